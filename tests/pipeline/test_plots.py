"""What a pipeline hands over to be drawn."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.plots import KEPT, LINES, MINUTES, NAME, Plots

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
MICRO = int(NOW.timestamp() * 1e6)
TYPES = pa.schema([
    ("topic", pa.string()), ("minute", pa.timestamp("us", tz="UTC")), ("messages", pa.int64()),
])  # fmt: skip


def batch(data: Path, number: int, rows: list[tuple[str, int, int]], group: int = 0) -> None:
    """A whole batch: topic, minutes before now, messages."""
    place = data / f"tables/traffic/day=2026-01-01/batch_id={group}"
    place.mkdir(parents=True, exist_ok=True)
    minute = NOW.replace(second=0)
    found = [
        {"topic": topic, "minute": minute - timedelta(minutes=ago), "messages": messages}
        for topic, ago, messages in rows
    ]
    pq.write_table(pa.Table.from_pylist(found, TYPES), place / f"part-{number}-0.parquet")
    progress = Progress(number, number, NOW.isoformat(), group, NOW.isoformat(), 1)
    said = {"version": 2, "batch_id": number, **progress._asdict()}
    (data / "tables/_progress.json").write_text(json.dumps(said))


def test_points_of_an_hour_one_a_minute() -> None:
    plots = Plots(None)
    assert [one["title"] for one in plots.said()] == ["Rows a second", "Behind"]
    for second in range(0, 2 * MINUTES * 60, 20):
        plots.note(MICRO + second * 1_000_000, float(second), None if second < 60 else 1.5)
    rows, behind = plots.said()
    assert len(rows["time"]) == MINUTES == len(rows["lines"][0]["values"])
    assert rows["lines"][0]["values"][-2:] == [2 * MINUTES * 60.0 - 120, 2 * MINUTES * 60.0 - 60]
    assert behind["lines"][0]["values"][-1] == 1.5 and behind["unit"] == "s"


def test_the_busiest_topics_minute_by_minute_as_the_table_has_them(tmp_path: Path) -> None:
    long = "long/" + "x" * 1_000
    batch(tmp_path, 0, [("a", 3, 5), ("b", 3, 1), (long, 3, 9), ("c", 3, 2), ("a", 70, 1_000)])
    plots = Plots(Layout(tmp_path))
    plots.note(MICRO, 1.0, 0.0)
    batch(tmp_path, 1, [("a", 2, 7), ("b", 2, 50)])
    plots.note(MICRO + 30_000_000, 1.0, 0.0)
    assert len(plots.said()[-1]["time"]) == 1, "it is looked once a minute"
    plots.note(MICRO + 60_000_000, 1.0, 0.0)
    traffic = plots.said()[-1]
    assert traffic["title"] == "Messages a minute" and len(traffic["lines"]) == LINES
    assert len(traffic["time"]) == 2 and traffic["time"] == sorted(traffic["time"])
    values = {one["name"]: one["values"] for one in traffic["lines"]}
    assert values == {"b": [1, 50], "a": [5, 7], long[:NAME]: [9, 0]}
    plots.note(MICRO + (MINUTES + 10) * 60_000_000, 1.0, 0.0)
    assert [one["title"] for one in plots.said()] == ["Rows a second", "Behind"], "of long ago"


def test_files_that_were_merged_are_read_once(tmp_path: Path) -> None:
    for number in range(3):
        batch(tmp_path, number, [("a", 3 - number, 1)])
    plots = Plots(Layout(tmp_path))
    plots.note(MICRO, 1.0, 0.0)
    place = tmp_path / "tables/traffic/day=2026-01-01/batch_id=0"
    whole = pa.concat_tables([pq.ParquetFile(one).read() for one in sorted(place.iterdir())])
    for one in place.iterdir():
        one.unlink()
    batch(tmp_path, 3, [("a", 0, 4)])
    pq.write_table(whole, place / "part-0-to-2.parquet")
    plots.note(MICRO + 60_000_000, 1.0, 0.0)
    assert plots.said()[-1]["lines"] == [{"name": "a", "values": [1, 1, 1, 4]}]
    batch(tmp_path, 4, [("a", 0, 2)])
    whole = pa.concat_tables([pq.ParquetFile(one).read() for one in sorted(place.iterdir())])
    for one in place.iterdir():
        one.unlink()
    pq.write_table(whole, place / "part-0-to-4.parquet")
    plots.note(MICRO + 120_000_000, 1.0, 0.0)
    assert plots.said()[-1]["lines"] == [{"name": "a", "values": [1, 1, 1, 6]}]


def test_of_each_minute_only_the_busiest_are_kept(tmp_path: Path) -> None:
    batch(tmp_path, 0, [(f"t{number}", 1, number + 1) for number in range(3 * KEPT)])
    plots = Plots(Layout(tmp_path))
    plots.note(MICRO, 1.0, 0.0)
    assert [len(counts) for counts in plots._traffic.values()] == [KEPT]
    assert plots.said()[-1]["lines"][0] == {"name": f"t{3 * KEPT - 1}", "values": [3 * KEPT]}
