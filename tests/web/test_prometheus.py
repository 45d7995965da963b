"""`/metrics`: every line of the table, read back by Prometheus' own parser."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hubbub.cluster.switchboard import Switchboard
from hubbub.config.settings import Listener, Settings
from hubbub.runtime.node import Node
from hubbub.web import prometheus


async def test_every_metric_is_in_the_status(tmp_path: Path) -> None:
    listener = Listener(address="127.0.0.1:0")
    settings = Settings(data=str(tmp_path), listen=(), listener=(listener,))
    async with Node(settings, engine=Switchboard().join("a")) as node:
        node.broker.queues.named("jobs")
        node.broker.metrics.drop("slow consumer", 3)
        status = await node.metrics()
    page = prometheus.page(status).decode()
    found = {one.name: one for one in text_string_to_metric_families(page)}
    assert set(found) == {f"hubbub_{family.name}" for family in prometheus.FAMILIES}
    (dropped,) = found["hubbub_messages_dropped"].samples
    assert (dropped.labels, dropped.value) == ({"reason": "slow consumer"}, 3)
    (queue,) = found["hubbub_queue_messages"].samples
    assert (queue.labels, queue.value) == ({"name": "jobs"}, 0)
    assert found["hubbub_journal_trouble"].samples[0].value == 0


def test_trouble_is_1() -> None:
    page = prometheus.page({"journal": {"trouble": "the disk is full"}})
    assert b"hubbub_journal_trouble 1.0" in page


def test_the_document_has_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text("utf-8")
    for family in prometheus.FAMILIES:
        name = f"hubbub_{family.name}" + "_total" * family.counter
        label = f"{{{family.label}}}" if family.label else ""
        kind = "counter" if family.counter else "gauge"
        assert f"| `{name}{label}` | {kind} | {family.says} |" in text
