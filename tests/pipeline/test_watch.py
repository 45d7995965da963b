"""What a pipeline says of itself, as the hub's status has it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.config.settings import Journal, Settings
from hubbub.core.limits import PIPELINES
from hubbub.journal.table import Table
from hubbub.pipeline.metrics import Metrics
from hubbub.pipeline.run import Report
from hubbub.pipeline.watch import Watch, Watched
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.process import ROOT
from tests.spark.fixtures import Writer, publish

REPORT = Report(0, 1, 10, 8, 0, 0.5, {"messages": 0.25, "readings": 0.125}, 0, 2)


def watching(data: Path, told: Callable[[str], None]) -> tuple[Metrics, Watch]:
    metrics = Metrics(Table(str(data)), 0)
    of = Watched(data, str(data / "tables"), True, "http://127.0.0.1:4040")
    return metrics, Watch(of, metrics, told)


async def shown(data: Path) -> Any:
    """What a hub with that directory has under `pipeline`."""
    node = Node(
        Settings(data=str(data), listen=("127.0.0.1:0",), journal=Journal(durability="os"))
    )
    node.web = Application(node)
    async with node:
        url = f"http://{node.listeners[0].address}/api/v1/status"
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            return (await client.get(url)).json()["pipeline"]


async def test_the_hub_shows_what_the_pipeline_said(writer: Writer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    told: list[str] = []
    table = data / "tables/readings/day=2026-01-01/batch_id=0"
    table.mkdir(parents=True)
    (table / "part-0.parquet").write_bytes(b"12345")
    writer.write(publish(0, "a"), publish(1, "a"))  # of long ago, by the clock of now
    metrics, watch = watching(data, told.append)
    with pytest.raises(OSError, match="the disk is gone"), watch:
        assert watch.said()["state"] == "behind"
        assert (watch.said()["behind_rows"], watch.said()["last_batch"]) == (2, None)
        metrics.report(REPORT)
        watch.report(REPORT)
        assert (watch.said()["state"], watch.said()["behind_rows"]) == ("behind", 1)
        raise OSError("the disk is gone")
    assert told == []  # it began with rows that were old, and has fewer to do
    writer.close()
    [said] = await shown(data)
    assert (said["name"], said["state"], said["seq"]) == ("tables", "failed", 1)
    assert said["last_error"]["text"] == "the disk is gone"
    assert said["last_batch"]["rows"] == 10 and said["rows_per_second"] == 20
    assert (said["quarantined"], said["quarantine_rate"]) == (2, 0.25)
    assert said["by_table"] == [
        {"name": "messages", "seconds": 0.25},
        {"name": "readings", "seconds": 0.125, "files": 1, "bytes": 5},
    ]


def test_who_falls_behind_is_told_and_who_begins_behind_is_not(
    writer: Writer, tmp_path: Path
) -> None:
    told: list[str] = []
    writer.write(publish(0, "a"))
    metrics, watch = watching(tmp_path / "data", told.append)
    watch.said()
    metrics.report(REPORT._replace(seq=0))
    watch.report(REPORT)
    watch.said()
    assert told == []
    writer.write(publish(1, "a"), publish(2, "a"))
    watch.said()
    watch.said()
    assert [line.partition(":")[0] for line in told] == ["the tables fall behind"]
    metrics.report(REPORT._replace(seq=3))
    watch.said()
    assert told[1:] == ["the tables caught up"]
    writer.write(publish(3, "a"))  # from nothing at all
    watch.said()
    assert len(told) == 3 and told[2].startswith("the tables fall behind: 1 rows wait")


def test_who_takes_what_is_there_and_ends_is_told_nothing(writer: Writer, tmp_path: Path) -> None:
    told: list[str] = []
    data = tmp_path / "data"
    metrics = Metrics(Table(str(data)), 0)
    watch = Watch(Watched(data, str(data / "tables"), True, once=True), metrics, told.append)
    metrics.report(REPORT._replace(seq=0))
    watch.report(REPORT)
    watch.said()
    writer.write(publish(0, "a"), publish(1, "a"))
    assert watch.said()["behind_rows"] == 2 and told == []


async def test_how_far_behind_one_is_that_does_not_run_the_journal_says(
    writer: Writer, tmp_path: Path
) -> None:
    writer.write(publish(0, "a"))
    metrics, watch = watching(tmp_path / "data", print)
    metrics.report(REPORT._replace(seq=1))
    with watch:
        watch.report(REPORT)
    writer.write(publish(1, "a"), publish(2, "a"))
    writer.close()
    [said] = await shown(tmp_path / "data")
    assert (said["state"], said["seq"], said["behind_seconds"]) == ("stopped", 1, None)
    assert said["behind_rows"] >= 2, "and what the hub wrote when it began"


async def test_one_that_is_killed_is_silent_and_what_is_no_state_is_not_shown(
    tmp_path: Path,
) -> None:
    assert await shown(tmp_path / "data") == []
    metrics, watch = watching(tmp_path / "data", print)
    place = tmp_path / "data/pipelines"
    place.mkdir()
    said = watch.said()
    (place / "now.json").write_text(json.dumps(said | {"name": "now"}))
    said["time"] -= 60_000_000
    (place / "dead.json").write_text(json.dumps(said | {"name": "dead"}))
    for number, text in enumerate(("", "[]", "{}", '{"state": "running", "time": ""}', "{")):
        (place / f"broken{number}.json").write_text(text)
    found = {one["name"]: one["state"] for one in await shown(tmp_path / "data")}
    assert found == {"now": "running", "dead": "silent"}
    for number in range(2 * PIPELINES):
        (place / f"{number}.json").write_text(json.dumps(said | {"name": str(number)}))
    assert len(await shown(tmp_path / "data")) <= PIPELINES


def test_it_is_written_also_while_no_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.pipeline.watch.EVERY", 0.01)
    _, watch = watching(tmp_path, print)
    with watch:
        times: set[int] = set()
        limit = time.monotonic() + 20
        while len(times) < 3 and time.monotonic() < limit:
            if watch.file.exists():
                times.add(json.loads(watch.file.read_text())["time"])
        assert len(times) == 3
    assert json.loads(watch.file.read_text())["state"] == "stopped"


def test_the_document_has_every_key(tmp_path: Path) -> None:
    text = (ROOT / "docs/reference/http-api.md").read_text("utf-8")
    table = text.partition("`pipeline` is a list")[2].partition("\n## ")[0]
    rows = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(watching(tmp_path, print)[1].said())
