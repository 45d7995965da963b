"""`/metrics`: every line of the table, read back by Prometheus' own parser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hubbub.auth.passwords import add_user
from hubbub.cluster.switchboard import Switchboard
from hubbub.config.settings import Listener, Settings
from hubbub.core.message import Message
from hubbub.core.metrics import Histogram
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Silent
from hubbub.runtime.node import VERSION, Node
from hubbub.web import prometheus
from hubbub.web.app import Application

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
ANY: Final = Rights()


async def test_every_metric_is_in_the_status(tmp_path: Path) -> None:
    listener = Listener(address="127.0.0.1:0")
    settings = Settings(data=str(tmp_path), listen=(), listener=(listener,))
    async with Node(settings, engine=Switchboard().join("a")) as node:
        node.broker.queues.named("jobs")
        for number in range(2):
            queue = node.broker.queues.named(f"jobs.{number}", maker=Session("other", "ann", ANY))
            queue.messages[1] = 0
        node.broker.metrics.drop("slow consumer", 3)
        node.broker.post(Message("t", b"x"))
        node.broker.post(Message("t", b"x"), Silent("http", "", ANY))
        status = await node.metrics()
    page = prometheus.page(status).decode()
    found = {one.name: one for one in text_string_to_metric_families(page)}
    names = {f"hubbub_{family.name}" for family in prometheus.FAMILIES}
    assert {name for name in found if name.startswith("hubbub_")} == names
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6
    (build,) = found["hubbub_build_info"].samples
    assert build.labels["version"].startswith(VERSION + " (")
    samples = found["hubbub_messages_received"].samples
    published = {one.labels["protocol"]: one.value for one in samples}
    assert published["http"] == 1 and published["hub"] >= 1
    assert sum(published.values()) == status["messages_in"]
    (dropped,) = found["hubbub_messages_dropped"].samples
    assert (dropped.labels, dropped.value) == ({"reason": "slow consumer"}, 3)
    queues = {one.labels["name"]: one.value for one in found["hubbub_queue_messages"].samples}
    assert queues == {"jobs": 0, "(of clients)": 2}, "no series for a name that is gone tomorrow"
    assert found["hubbub_journal_trouble"].samples[0].value == 0


async def test_the_rights_that_its_reader_is_given_are_enough(tmp_path: Path) -> None:
    text = (DEPLOY / "README.md").read_text("utf-8")
    (acl,) = re.findall(r"```\n(user prometheus\n.*?)```", text, re.DOTALL)
    users, rules = tmp_path / "users", tmp_path / "acl"
    add_user(users, "prometheus", b"secret")
    add_user(users, "eve", b"secret")
    rules.write_text(acl)
    settings = Settings(
        data=str(tmp_path / "data"), listen=("127.0.0.1:0",), password_file=str(users),
        acl_file=str(rules),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node:
        url = f"http://{node.listeners[0].address}/metrics"
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            assert (await client.get(url)).status_code == 401
            assert (await client.get(url, auth=("eve", "secret"))).status_code == 403
            assert (await client.get(url, auth=("prometheus", "secret"))).status_code == 200


def test_trouble_is_1() -> None:
    page = prometheus.page({"journal": {"trouble": "the disk is full"}})
    assert b"hubbub_journal_trouble 1.0" in page
    for why, number in (("the disk has 2 MB left", b"1.0"), ("", b"0.0")):
        page = prometheus.page({"limits": {"not_taken": why, "disk_free": 5, "disk_bytes": 9}})
        assert b"hubbub_disk_trouble " + number in page and b"hubbub_disk_free_bytes 5.0" in page


def test_the_document_has_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text("utf-8")
    for family in prometheus.FAMILIES:
        name = f"hubbub_{family.name}" + "_total" * (family.kind == prometheus.COUNT)
        label = f"{{{family.label}}}" if family.label else ""
        assert f"| `{name}{label}` | {family.kind} | {family.says} |" in text


def test_trouble_of_a_cluster_is_1_and_each_clock_has_its_number() -> None:
    clocks = [{"name": "b", "ahead_seconds": -120.0}]
    cluster = {"trouble": "x", "clocks": clocks, "copies": {"trouble": ""}}
    page = prometheus.page({"cluster": cluster})
    assert b"hubbub_cluster_trouble 1.0" in page
    assert b"hubbub_cluster_copies_trouble 0.0" in page
    assert b'hubbub_cluster_clock_ahead_seconds{name="b"} -120.0' in page


@pytest.mark.parametrize(
    "alert",
    ["NatsLost", "NodeAway", "NoQuorum", "CopiesBehind", "ClockOff", "FramesRefused"],
)
def test_an_operator_of_a_cluster_has_an_alert_for_it(alert: str) -> None:
    rules = (DEPLOY / "prometheus-alerts.yml").read_text("utf-8")
    (rule,) = re.findall(rf"- alert: Hubbub{alert}\n(.*?)(?=\n      - alert|\Z)", rules, re.DOTALL)
    assert "hubbub_cluster_" in rule and "summary:" in rule and "do:" in rule


def test_a_histogram() -> None:
    took = Histogram()
    for seconds in (0.00005, 0.0001, 0.002, 7.0):
        took.add(seconds)
    page = prometheus.page({"commit_seconds": took}).decode()
    found = {one.name: one for one in text_string_to_metric_families(page)}
    samples = found["hubbub_journal_commit_seconds"].samples
    buckets = {one.labels["le"]: one.value for one in samples if "le" in one.labels}
    assert (buckets["0.0001"], buckets["0.001"], buckets["0.0025"]) == (2, 2, 3)
    assert (buckets["2.5"], buckets["+Inf"]) == (3, 4)
    assert samples[-1].name.endswith("_sum") and samples[-1].value == pytest.approx(7.00215)
    assert took.BOUNDS == tuple(sorted(took.BOUNDS))


def promtool(*words: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool: on Debian, apt install prometheus")
    return subprocess.run([program, *words], input=said, capture_output=True, timeout=30)


@pytest.mark.interop
async def test_its_own_tool_finds_nothing(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), listen=(), listener=(Listener(address="127.0.0.1:0"),))
    async with Node(settings, engine=Switchboard().join("a")) as node:
        node.broker.queues.named("jobs")
        page = prometheus.page(await node.metrics())
    done = promtool("check", "metrics", said=page)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.interop
def test_the_alerts_are_rules() -> None:
    done = promtool("check", "rules", str(DEPLOY / "prometheus-alerts.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    text = (DEPLOY / "grafana-dashboard.json").read_text("utf-8")
    found: list[dict[str, Any]] = json.loads(text)["panels"]
    return found


async def test_how_fast_the_one_sends_who_sends_most(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), listen=(), listener=(Listener(address="127.0.0.1:0"),))
    async with Node(settings) as node:
        broker = node.broker
        broker.sampled.wake()
        for name, count in (("quiet", 1), ("flood", 50)):
            sender = Silent("mqtt", name, broker.open)
            broker.connect(sender, broker.own("mqtt", name))
            for _ in range(count):
                broker.post(Message("a", b"12345"), sender)
        broker.sampled.wake()
        found = (await node.metrics())["busiest_sender"]
        page = prometheus.page(await node.metrics()).decode()
    assert 20 < found["messages_per_second"] <= 50
    assert "hubbub_busiest_sender_messages_per_second" in page


@pytest.mark.interop
def test_what_the_panels_ask_can_be_asked(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": one.replace("$instance", ".*")}
        for number, one in enumerate(asked)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_panel_lies_on_another_and_what_matters_at_night_has_one() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for one in places
        for x in range(one["x"], one["x"] + one["w"])
        for y in range(one["y"], one["y"] + one["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())
    text = json.dumps(panels())
    for name in (
        "certificate_expires_seconds", "client_ca_expires_seconds", "crl_expires_seconds",
        "disk_free_bytes", "disk_trouble", "journal_trouble", "bridge_up", "bridge_cut_off",
        "busiest_sender_messages_per_second", "queue_consumers", "cluster_node", "cluster_trouble",
        "cluster_received_total", "cluster_kept", "cluster_copies_behind_seconds",
    ):  # fmt: skip
        assert f"hubbub_{name}" in text, name


@pytest.mark.parametrize("file", ["prometheus-alerts.yml", "grafana-dashboard.json"])
def test_what_watches_asks_for_metrics_that_are(file: str) -> None:
    text = (DEPLOY / file).read_text("utf-8")
    endings = {prometheus.COUNT: ("_total",), prometheus.GAUGE: ("",),
               prometheus.HISTOGRAM: ("_bucket", "_sum", "_count")}  # fmt: skip
    known = {
        f"hubbub_{family.name}{ending}"
        for family in prometheus.FAMILIES
        for ending in endings[family.kind]
    }
    asked = set(re.findall(r"\bhubbub_[a-z_]+", text)) - {"hubbub_pipeline_behind_seconds"}
    assert asked and asked <= known
    if file.endswith(".json"):
        assert json.loads(text)["title"] == "Hubbub"
