"""`format("hubbub")` in batch and as a stream, over journals that the hub's writer wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from hubbub import schema
from hubbub.config import settings
from hubbub.errors import OffsetError, SettingError
from hubbub.journal.compact import compact
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.spark import options
from hubbub.spark.options import Options
from hubbub.spark.plan import Range
from hubbub.spark.source import HubbubDataSource, Reader, StreamReader, joined
from hubbub.spark.start import java_class
from tests.spark.fixtures import NOON, SECOND, Writer, publish, readings_rows


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def data(writer: Writer, tmp_path: Path) -> str:
    writer.write(*readings_rows(100))
    return str(tmp_path / "data")


# Without Spark: offsets and ranges


def test_default_path_is_that_of_every_command() -> None:
    assert options.DATA == settings.DEFAULT_DATA


def offset(writer: Writer, seq: int, **more: int) -> dict[str, int]:
    return {"v": 1, "parts": os.cpu_count() or 1, writer.id: seq, "lost": 0, **more}


def test_a_stream_takes_what_is_committed_and_no_more_than_the_limit(
    writer: Writer, tmp_path: Path
) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path), "maxOffsetsPerTrigger": "30"}))
    start = reader.initialOffset()
    assert start == offset(writer, 0)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert reader.latestOffset(start, limit) == offset(writer, 30)
    assert reader.latestOffset(start, ReadAllAvailable()) == offset(writer, 100)
    end = {**offset(writer, 100), "parts": 64}  # planned on another machine
    assert reader.latestOffset(end, limit) == end
    assert reader.partitions(end, end) == []


def test_a_batch_that_is_repeated_is_cut_the_same(writer: Writer, tmp_path: Path) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path)}))
    parts = [
        [(part.after, part.upto) for part in reader.partitions(start, end)]  # type: ignore[attr-defined]
        for start, end in [(offset(writer, 0), {**offset(writer, 100), "parts": 3})] * 2
    ]
    assert parts[0] == parts[1]


def test_available_now_ends_where_the_journal_ended_then(writer: Writer, tmp_path: Path) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path)}))
    reader.prepareForTriggerAvailableNow()
    writer.write(publish(2, "late"))
    assert reader.latestOffset(offset(writer, 0), ReadAllAvailable()) == offset(writer, 100)
    assert reader.reportLatestOffset() == offset(writer, 101)


def test_a_directory_without_journal_is_empty(tmp_path: Path) -> None:
    place = str(tmp_path / "none")
    reader = StreamReader(Options({"path": place}))
    start = reader.initialOffset()
    assert start[place] == 0
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    made = Writer(tmp_path / "none")
    made.write(*readings_rows(3))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offset(made, 3)
    assert [part.upto for part in reader.partitions(start, end)] == [3]  # type: ignore[attr-defined]
    made.close()


def test_an_offset_of_another_version_or_journal_is_an_error(
    writer: Writer, tmp_path: Path
) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path)}))
    with pytest.raises(OffsetError, match="version 1 or 2"):
        reader.latestOffset({"v": 3, "0": 0}, ReadAllAvailable())
    with pytest.raises(OffsetError, match="ends at 100: .* another hub"):
        reader.latestOffset(offset(writer, 5000), ReadAllAvailable())
    strange = {"v": 1, "parts": 2, "0123456789abcdef": 5}
    with pytest.raises(OffsetError, match="checkpoint of another hub: .* 0123456789abcdef"):
        reader.latestOffset(strange, ReadAllAvailable())


def test_rows_that_retention_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path / "data")
    path = data(writer, tmp_path)
    writer.close()
    monkeypatch.setattr(Frames, "first", lambda frames: 51)
    strict, lax = (StreamReader(Options({"path": path, **more})) for more in ({}, LAX))
    with pytest.raises(OffsetError, match=r"rows 11 to 50 .* failOnDataLoss=false"):
        strict.latestOffset(offset(writer, 10), ReadAllAvailable())
    assert strict.latestOffset(offset(writer, 50), ReadAllAvailable()) == offset(writer, 100)
    end = lax.latestOffset(offset(writer, 10), ReadMaxRows(20))
    assert end == offset(writer, 70, lost=40)
    assert [part.upto for part in lax.partitions(offset(writer, 10), end)] == [70]  # type: ignore[attr-defined]
    monkeypatch.setattr(Frames, "first", lambda frames: 61)
    assert lax.latestOffset(end, ReadMaxRows(20)) == offset(writer, 90, lost=40)
    assert f"rows 51 to 60 of {path} went (retention) since the batch" in caplog.text
    caplog.clear()
    assert lax.latestOffset(end, ReadMaxRows(20)) == offset(writer, 90, lost=40)
    assert not caplog.text


LAX = {"failOnDataLoss": "false"}


def test_several_journals_are_one_source(writer: Writer, tmp_path: Path) -> None:
    other = Writer(tmp_path / "other")
    other.write(*readings_rows(50))
    both = f"{data(writer, tmp_path)}, {tmp_path / 'other'}"
    reader = StreamReader(Options({"path": both}))
    start = reader.initialOffset()
    assert start == offset(writer, 0, **{other.id: 0})
    assert reader.latestOffset(start, ReadMaxRows(30)) == offset(writer, 20, **{other.id: 10})
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(parts) == 2 and len(rows) == 150
    assert reader.reportLatestOffset() == {**end, "sum": 150}
    alone = {"v": 1, "parts": 1, writer.id: 100}  # a journal that is new begins at its beginning
    assert reader.latestOffset(alone, ReadAllAvailable()) == end
    only = StreamReader(Options({"path": both, "startingOffsets": json.dumps({other.id: -1})}))
    assert only.initialOffset() == offset(writer, 0, **{other.id: 50})
    other.close()


def test_a_journal_that_is_named_twice_is_read_once_or_not_at_all(
    writer: Writer, tmp_path: Path
) -> None:
    """A hub of one process read by the URLs of two: each row was there twice, without a word."""
    (tmp_path / "link").symlink_to(data(writer, tmp_path))
    twice = Options({"path": f"{tmp_path / 'data'},{tmp_path / 'link'}"})
    with pytest.raises(SettingError, match="data and .*link are the same journal"):
        Reader(twice).partitions()
    reader = StreamReader(twice)
    with pytest.raises(SettingError, match="name it once"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.fixture
def both(writer: Writer, tmp_path: Path) -> tuple[str, str]:
    """Two journals as one source, of 100 and 50 rows, and the id of the second one."""
    other = Writer(tmp_path / "other")
    other.write(*readings_rows(50))
    other.close()
    return f"{data(writer, tmp_path)},{tmp_path / 'other'}", other.id


def read_of(reader: StreamReader, parts: Sequence[InputPartition]) -> list[int]:
    return sorted(
        seq for part in parts for one in reader.read(part) for seq in one.column("seq").to_pylist()
    )


def test_a_journal_that_is_gone_is_an_error_that_names_it(
    writer: Writer, both: tuple[str, str], tmp_path: Path
) -> None:
    places, other = both
    end = offset(writer, 100, **{other: 50})
    runs = StreamReader(Options({"path": places}))
    assert runs.latestOffset(end, ReadAllAvailable()) == end
    alone = StreamReader(Options({"path": str(tmp_path / "other")}))
    (tmp_path / "other").rename(tmp_path / "away")
    gone = f"journal {other} of {tmp_path}/other is gone, which is read up to row 50"
    for reader in (runs, StreamReader(Options({"path": places}))):
        with pytest.raises(OffsetError, match=f"{gone} .* With failOnDataLoss=false it goes on"):
            reader.latestOffset(end, ReadAllAvailable())
        with pytest.raises(OffsetError, match=gone):
            reader.partitions(offset(writer, 0), end)
    with pytest.raises(OffsetError, match=f"{gone} .*: it goes on after that row$"):
        alone.latestOffset({"v": 1, "parts": 1, other: 50}, ReadAllAvailable())
    Writer(tmp_path / "other").close()  # a hub was started there, with nothing
    for reader in (StreamReader(Options({"path": places})), runs):
        with pytest.raises(OffsetError, match="none of the places has it") as said:
            reader.latestOffset(end, ReadAllAvailable())
        assert f"{tmp_path}/data has {writer.id}, {tmp_path}/other has " in str(said.value)


def test_the_others_are_read_while_a_journal_is_gone(
    writer: Writer, both: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places, other = both
    end = offset(writer, 100, **{other: 20})
    runs = StreamReader(Options({"path": places, **LAX}))
    assert runs.latestOffset(end, ReadMaxRows(3)) == {**end, other: 23}
    (tmp_path / "other").rename(tmp_path / "away")
    starts = StreamReader(Options({"path": places, **LAX}))
    for reader in (runs, starts):
        assert [reader.latestOffset(end, ReadAllAvailable()) for _ in range(2)] == [end, end]
    gone = f"journal {other} of {tmp_path}/other is gone, which is read up to row 20"
    assert len(caplog.records) == 2, "each says it once"
    assert all(gone in message for message in caplog.messages)
    report = {**end, "away": {other: str(tmp_path / "other")}}
    assert starts.reportLatestOffset() == {**report, "sum": 120}
    assert runs.reportLatestOffset() == {**report, other: 50, "sum": 150}
    writer.write(publish(2, "more"))
    later = offset(writer, 101, **{other: 20})
    for reader in (runs, starts):
        assert reader.latestOffset(end, ReadAllAvailable()) == later
        assert read_of(reader, reader.partitions(end, later)) == [101]
    caplog.clear()
    (tmp_path / "away").rename(tmp_path / "other")
    whole = offset(writer, 101, **{other: 50})
    for reader in (runs, starts):
        assert reader.latestOffset(later, ReadAllAvailable()) == whole
        assert read_of(reader, reader.partitions(later, whole)) == [*range(21, 51)]
        assert "away" not in reader.reportLatestOffset()
    back = f"{tmp_path}/other is back, with journal {other}"
    assert caplog.messages == [back, back]


def test_rows_of_a_planned_batch_whose_journal_went_are_left_out(
    writer: Writer, both: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end stands in the checkpoint; that they are cut as before is for who writes them."""
    places, other = both
    start, whole = offset(writer, 0, **{other: 0}), offset(writer, 100, **{other: 50})
    given = {"path": places, "minPartitions": "6"}
    reader = StreamReader(Options({**given, **LAX}))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["v"] == 2
    parts = reader.partitions(start, end)
    ranges = [(part.journal, part.after, part.upto) for part in parts]  # type: ignore[attr-defined]
    assert len(ranges) == 6
    (tmp_path / "other").rename(tmp_path / "away")
    assert read_of(reader, parts) == [*range(1, 101)]
    assert f"journal {other} is gone" in caplog.text and "its rows 1 to 25 is left" in caplog.text
    with pytest.raises(OffsetError, match="other holds another journal than before"):
        read_of(StreamReader(Options(given)), parts)
    caplog.clear()
    again = StreamReader(Options({**given, **LAX}))
    found = again.partitions(start, end)
    assert ranges == [(part.journal, part.after, part.upto) for part in found]  # type: ignore[attr-defined]
    assert read_of(again, found) == [*range(1, 101)]
    assert f"rows 1 to 50 of journal {other} are skipped" in caplog.text
    assert again.latestOffset(end, ReadAllAvailable()) == {**whole, "lost": 50}
    assert again.latestOffset(end, ReadAllAvailable()) == end, "they are counted once"


def test_no_checkpoint_of_another_hub_is_gone_on_from(
    writer: Writer, both: tuple[str, str], tmp_path: Path
) -> None:
    """Whatever may be lost: its journals are not gone, they are others."""
    reader = StreamReader(Options({"path": both[0], **LAX}))
    with pytest.raises(OffsetError, match="checkpoint of another hub: .* 0123456789abcdef"):
        reader.latestOffset({"v": 1, "parts": 2, "0123456789abcdef": 5}, ReadAllAvailable())


def test_positions_by_name(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data(writer, tmp_path)

    def start(name: str) -> int:
        given = {"path": "data/", "startingOffsets": json.dumps({name: 70})}
        (part,) = Reader(Options(given)).partitions()
        return part.after  # type: ignore[attr-defined,no-any-return]

    for name in ("data", "./data/", str(tmp_path / "data"), writer.id, "0"):
        assert start(name) == 69
    with pytest.raises(SettingError, match="offsets: dta is none of the journals"):
        start("dta")


def test_a_directory_with_another_journal_is_not_read(writer: Writer, tmp_path: Path) -> None:
    part = Range(data(writer, tmp_path), "0123456789abcdef", 0, 5)
    with pytest.raises(OffsetError, match="holds another journal than before"):
        list(StreamReader(Options({})).read(part))


def test_a_range_is_read_the_same_each_time(writer: Writer, tmp_path: Path) -> None:
    reader = Reader(Options({"path": data(writer, tmp_path), "minPartitions": "3"}))
    parts = reader.partitions()
    assert len(parts) == 3
    once = [batch.to_pylist() for part in parts for batch in reader.read(part)]
    twice = [batch.to_pylist() for part in parts for batch in reader.read(part)]
    assert once == twice
    assert [row["seq"] for rows in once for row in rows] == list(range(1, 101))


def test_topics_and_kinds_choose_rows(writer: Writer, tmp_path: Path) -> None:
    writer.write(
        publish(0, "a/b"),
        publish(0, "a"),
        publish(0, "$SYS/a"),
        publish(0, "b/b", kind=schema.SEND),
        publish(0, "100%41/x"),
    )

    def chosen(*pushed: Filter, **given: str) -> list[int]:
        reader = Reader(Options({"path": str(tmp_path / "data"), **given}))
        reader.narrow(list(pushed))
        return seqs_of(reader)

    assert chosen(topics="a/#") == [1, 2]
    assert chosen(topics="a/+") == [1]
    assert chosen(topics="#") == [1, 2, 4, 5]
    assert chosen(topics="+/b") == [1, 4]
    assert chosen(topics="a, $SYS/#") == [2, 3]
    assert chosen(kinds="send") == [4]
    assert chosen(kinds="publish", topics="b/b") == []
    assert chosen(EqualTo(("kind",), "send")) == [4]
    assert chosen(StringStartsWith(("topic",), "a")) == [1, 2]
    assert chosen(In(("topic",), ("a", "b/b")), kinds="publish") == [2]
    assert chosen(Not(EqualTo(("kind",), "send")), IsNotNull(("topic",))) == [1, 2, 3, 4, 5]


def seqs_of(reader: Reader) -> list[int]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def source(given: dict[str, str]) -> HubbubDataSource:
    return HubbubDataSource(given)


@pytest.mark.parametrize("packed", [False, True])
def test_only_columns_that_are_wanted_are_read(
    writer: Writer, tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"path": data(writer, tmp_path), "columns": "topic, SEQ", "topics": "plant/1/#"}
    if packed:
        writer.close()
        for _ in range(2):
            compact(Directory(tmp_path / "data"))
            Writer(tmp_path / "data").close()
    asked = source(given)
    assert asked.schema().names == ["topic", "seq"]
    monkeypatch.setattr("hubbub.journal.table.batch_of", None)  # nothing is made whole
    for reader in (asked.reader(asked.schema()), asked.streamReader(asked.schema())):
        part = Range(given["path"], "", 0, 10)
        (batch,) = reader.read(part)
        assert batch.to_pydict() == {"topic": ["plant/1/temp"] * 3, "seq": [2, 6, 10]}


def test_all_columns_may_be_wanted_in_another_order(writer: Writer, tmp_path: Path) -> None:
    """They came in the journal's own: topics were called clients, and clients topics."""
    given = {"path": data(writer, tmp_path), "columns": ",".join(reversed(Table.schema.names))}
    asked, part = source(given), Range(given["path"], "", 0, 10)
    (turned,) = asked.reader(asked.schema()).read(part)
    plain = source({"path": given["path"]})
    (batch,) = plain.reader(plain.schema()).read(part)
    assert turned.schema.names == Table.schema.names[::-1]
    assert turned.select(Table.schema.names).to_pydict() == batch.to_pydict()


def test_few_columns_do_not_keep_whole_frames(writer: Writer, tmp_path: Path) -> None:
    """16,384 rows are handed to Spark at once, and those of a MiB had 16 GB in memory: a view of
    their topics was one of the payloads, too.
    """
    for _ in range(30):
        writer.write(publish(0, "large", bytes(1 << 20)))
    asked = source({"path": str(tmp_path / "data"), "columns": "topic", "maxPartitions": "1"})
    reader = asked.reader(asked.schema())
    tracemalloc.start()
    try:
        (batch,) = (batch for part in reader.partitions() for batch in reader.read(part))
        assert batch.num_rows == 30
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_stream_has_no_end(writer: Writer, tmp_path: Path) -> None:
    """It went on behind it, without a word."""
    for end in ({"endingOffsets": "5"}, {"endingTimestamp": "2026-01-01"}):
        asked = source({"path": data(writer, tmp_path), **end})
        asked.reader(asked.schema())
        with pytest.raises(SettingError, match=r"are of a batch .* a stream goes on"):
            asked.streamReader(asked.schema())


def test_a_schema_may_leave_columns_out(writer: Writer, tmp_path: Path) -> None:
    path = data(writer, tmp_path)
    wanted = StructType([StructField("time", TimestampType()), StructField("topic", StringType())])
    asked = source({"path": path})
    (batch,) = asked.reader(wanted).read(Range(path, "", 0, 1))
    assert batch.schema.names == ["time", "topic"] and batch.schema.field("topic").nullable
    columns = "The columns are seq, time, kind, .*, properties"
    with pytest.raises(SettingError, match=f"no column 'tpic', did you mean topic. {columns}"):
        asked.reader(StructType([StructField("tpic", StringType())]))
    with pytest.raises(SettingError, match="column seq is bigint, not int: cast it"):
        asked.reader(StructType([StructField("seq", IntegerType())]))
    with pytest.raises(SettingError, match="the schema has time, topic: leave out .schema"):
        source({"path": path, "columns": "topic"}).reader(wanted)
    with pytest.raises(SettingError, match=r"path or url has to be said with \.schema"):
        source({}).reader(wanted)
    for text in ("topic, payloads", ","):
        with pytest.raises(SettingError, match=f"^columns: .*{columns}"):
            source({"path": path, "columns": text}).schema()


def test_seq_and_time_choose_what_is_read_at_all(writer: Writer, tmp_path: Path) -> None:
    path = data(writer, tmp_path)  # row n at NOON + (n - 1) / 100 s

    def planned(*pushed: Filter, **given: str) -> list[tuple[int, int]]:
        reader = Reader(Options({"path": path, **given}))
        reader.narrow(list(pushed))
        return [(part.after, part.upto) for part in reader.partitions()]  # type: ignore[attr-defined]

    noon = datetime.fromtimestamp(NOON / SECOND, UTC)
    half = noon + timedelta(seconds=0.5)
    assert planned(GreaterThan(("seq",), 90)) == [(90, 100)]
    assert planned(LessThanOrEqual(("seq",), 3), GreaterThanOrEqual(("seq",), 2)) == [(1, 3)]
    assert planned(EqualTo(("seq",), 7)) == [(6, 7)]
    assert planned(EqualTo(("seq",), 700)) == []
    assert planned(GreaterThanOrEqual(("time",), half)) == [(50, 100)]
    assert planned(GreaterThan(("time",), half)) == [(51, 100)]
    assert planned(LessThan(("time",), half)) == [(0, 50)]
    assert planned(LessThanOrEqual(("time",), half)) == [(0, 51)]
    assert planned(startingTimestamp=half.isoformat()) == [(50, 100)]
    assert planned(endingTimestamp=str(NOON // 1000 + 500)) == [(0, 50)]
    assert planned(startingTimestamp=half.isoformat(), startingOffsets="latest") == [(50, 100)]


def test_a_batch_is_bounded_in_bytes_also_where_they_are_compressed(tmp_path: Path) -> None:
    """By what its rows carry in memory; one row may carry more, and then comes alone."""
    writer = Writer(tmp_path / "data")
    for n in range(20):
        writer.write(*(publish(n, "big", bytes(20_000)) for _ in range(3)))
    writer.close()
    path = tmp_path / "data"

    def batches(most: int) -> list[int]:
        reader = StreamReader(Options({"path": str(path), "maxBytesPerTrigger": str(most)}))
        found, end = [], offset(writer, 0)
        while (after := reader.latestOffset(end, ReadAllAvailable())) != end:
            found.append(after[writer.id] - end[writer.id])
            end = after
        return found

    plain = batches(200_000)
    assert plain == [9] * 6 + [6]
    assert batches(1) == [3] * 20  # a frame counts as a whole
    assert batches(10**9) == [60]
    for _ in range(2):  # two snapshots have to cover it
        compact(Directory(path))
        more = Writer(path)
        more.write(publish(30, "small"))
        more.close()
    (first,) = [part for part in (path / "log").glob("*01.rows")]
    assert first.stat().st_size < 60_000  # of 1.2 MB
    assert batches(2_000_000) == [62]
    assert batches(200_000) == [60, 2]


def test_a_batch_waits_for_rows_enough_but_not_for_ever(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    given = {"path": data(writer, tmp_path), "minOffsetsPerTrigger": "10", "maxTriggerDelay": "5"}
    reader = StreamReader(Options(given))
    end = reader.latestOffset(offset(writer, 0), ReadAllAvailable())
    assert end == offset(writer, 100)
    writer.write(publish(9, "a"))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    now[0] += 5
    end = reader.latestOffset(end, ReadAllAvailable())
    assert end == offset(writer, 101)
    writer.write(*(publish(10, "a") for _ in range(10)))
    assert reader.latestOffset(end, ReadAllAvailable()) == offset(writer, 111)
    reader.prepareForTriggerAvailableNow()
    now[0] += 1
    writer.write(publish(11, "a"))
    reader = StreamReader(Options(given))
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, ReadAllAvailable()) == offset(writer, 112)


def test_no_batch_of_spark_is_large(writer: Writer, tmp_path: Path) -> None:
    writer.write(*(publish(n, "big", bytes(1_000_000)) for n in range(30)))
    reader = Reader(Options({"path": str(tmp_path / "data")}))
    sizes = [batch.nbytes for part in reader.partitions() for batch in reader.read(part)]
    assert sum(sizes) > 30_000_000 and max(sizes) < 14_000_000


def test_a_stream_can_begin_at_a_time(writer: Writer, tmp_path: Path) -> None:
    path = data(writer, tmp_path)
    milliseconds = str(NOON // 1000 + 900)
    reader = StreamReader(Options({"path": path, "startingTimestamp": milliseconds}))
    assert reader.initialOffset() == offset(writer, 90)
    late = StreamReader(Options({"path": path, "startingTimestamp": str(NOON // 1000 + 9000)}))
    assert late.initialOffset() == offset(writer, 100)


def test_small_frames_are_joined(writer: Writer, tmp_path: Path) -> None:
    for row in readings_rows(10):
        writer.write(row)
    reader = Reader(Options({"path": str(tmp_path / "data")}))
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch.num_rows == 10


def test_to_join_small_frames_takes_little_beside_what_they_are_made_of() -> None:
    """A quiet hub has a frame a row: to ask each for its bytes took more than to read them all."""
    columns = [pa.array([None], column.type) for column in Table.schema]
    frames = [pa.RecordBatch.from_arrays(columns, schema=Table.schema)] * 4_000

    def seconds(work: Callable[[], object]) -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    ratios = [
        seconds(lambda: [*joined(iter(frames))]) / seconds(lambda: pa.concat_batches(frames))
        for _ in range(5)
    ]
    assert min(ratios) < 2.5  # it was five


# With Spark


@pytest.mark.spark
def test_batch_has_every_row_and_column(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    properties = b'{"user":[["k","v"]]}'
    writer.write(publish(1.5, "t/ü", b"\x00\xff", qos=2, retain=True, properties=properties))
    frame = spark.read.format("hubbub").load(str(tmp_path / "data"))
    assert frame.columns == [column.name for column in schema.COLUMNS]
    row = frame.first()
    assert row is not None
    assert (row.seq, row.kind, row.topic, bytes(row.payload)) == (1, "publish", "t/ü", b"\x00\xff")
    assert (row.qos, row.retain, row.properties) == (2, True, properties.decode())
    assert frame.selectExpr("cast(time as string) as t").first() == ("2026-01-01 12:00:01.5",)


@pytest.mark.spark
def test_columns_of_the_users_choice(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    path = data(writer, tmp_path)
    reader = spark.read.format("hubbub").option("columns", "topic,seq")
    frame = reader.load(path)
    assert frame.columns == ["topic", "seq"] and frame.where("seq > 90").count() == 10
    assert frame.groupBy("topic").count().count() == 4
    own = spark.read.format("hubbub").schema("time timestamp, qos tinyint").load(path)
    assert own.columns == ["time", "qos"] and own.where("qos = 0").count() == 100
    rows = spark.readStream.format("hubbub").schema("seq bigint").load(path)
    rows.writeStream.format("memory").queryName("few").trigger(
        availableNow=True
    ).start().awaitTermination(60)
    assert seqs(spark.table("few")) == [*range(1, 101)]
    with pytest.raises(PySparkException, match="no column 'topics', did you mean topic"):
        reader.option("columns", "topics").load(path).count()


@pytest.mark.spark
def test_a_frame_may_be_asked_again(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    """Spark 4.3 would read for the second query what the conditions of the first one left.

    With `pushdown` it does, and no method of the source is called that could know of it. Where that
    is no longer so (`make spark-next`), conditions can be pushed by default.
    """
    path = data(writer, tmp_path)
    frame = spark.read.format("hubbub").load(path)
    assert seqs(frame.where("seq = 5")) == [5]
    assert frame.count() == 100
    assert seqs(frame.where("seq < 3").union(frame.where("seq > 98"))) == [1, 2, 99, 100]
    narrow = spark.read.format("hubbub").option("pushdown", "true").load(path)
    assert seqs(narrow.where("seq = 5 AND topic LIKE 'plant/%'")) == [5]
    assert narrow.count() == 1, "Spark's trap"


@pytest.mark.spark
def test_batch_between_offsets(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    reader = spark.read.format("hubbub").option("minPartitions", "4")
    path = data(writer, tmp_path)
    assert seqs(reader.load(path)) == list(range(1, 101))
    between = reader.option("startingOffsets", "10").option("endingOffsets", '{"0": 20}')
    assert seqs(between.load(path)) == list(range(10, 20))


@pytest.mark.spark
def test_stream_goes_on_where_its_checkpoint_stands(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    path = data(writer, tmp_path)
    seen: list[list[int]] = []

    def run() -> None:
        rows = spark.readStream.format("hubbub").option("maxOffsetsPerTrigger", "60").load(path)
        rows.writeStream.foreachBatch(lambda frame, batch: seen.append(seqs(frame))).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination(60)

    run()
    writer.write(publish(2, "more"))
    run()
    assert seen == [list(range(1, 61)), list(range(61, 101)), [101]]


@pytest.mark.spark
def test_a_stream_of_several_journals_goes_on_without_one_and_then_with_it(
    spark: SparkSession, writer: Writer, both: tuple[str, str], tmp_path: Path
) -> None:
    places, other = both
    seen: list[list[int]] = []

    def run(**given: str) -> StreamingQueryProgress | None:
        rows = spark.readStream.format("hubbub").options(**given).load(places)
        query = (
            rows.writeStream.foreachBatch(lambda frame, batch: seen.append(seqs(frame)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return query.lastProgress

    run()
    (tmp_path / "other").rename(tmp_path / "away")
    writer.write(publish(2, "more"))
    with pytest.raises(PySparkException, match="other is gone, which is read up to row 50"):
        run()
    progress = run(**LAX)
    assert progress is not None
    latest = json.loads(progress.sources[0].latestOffset)
    assert latest == {
        "v": 1, "parts": os.cpu_count(), writer.id: 101, other: 50, "lost": 0, "sum": 151,
        "away": {other: str(tmp_path / "other")},
    }  # fmt: skip
    assert not progress.sources[0].metrics, "Spark takes some now: report what is there"
    (tmp_path / "away").rename(tmp_path / "other")
    back = Writer(tmp_path / "other")
    back.write(publish(2, "back"), publish(2, "back"))
    back.close()
    run()
    assert seen == [sorted([*range(1, 101), *range(1, 51)]), [101], [51, 52]]


@pytest.mark.spark
def test_an_error_reaches_the_user_with_our_words(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="topics: # must be the last level"):
        spark.read.format("hubbub").option("topics", "#/x").load("nowhere").count()


@pytest.fixture
def catalog(spark: SparkSession, writer: Writer, tmp_path: Path) -> Iterator[str]:
    """A table of Spark's catalog for a journal of 100 rows."""
    path = data(writer, tmp_path)
    options = f"path '{path}', topics 'plant/1/#', startingOffsets '3'"
    spark.sql(f"CREATE TABLE ours USING hubbub OPTIONS ({options}) TBLPROPERTIES ('who' = 'me')")
    yield path
    spark.sql("DROP TABLE ours")


@pytest.mark.spark
def test_a_table_of_sparks_catalog(spark: SparkSession, catalog: str, tmp_path: Path) -> None:
    """Spark 4.3 gives a reader the schema of such a table, and none of its options."""
    expected = [seq for seq in range(3, 101) if seq % 4 == 2]
    assert seqs(spark.table("ours")) == expected
    assert spark.table("ours").columns == [column.name for column in schema.COLUMNS]
    assert seqs(spark.sql("SELECT * FROM ours WITH (topics = 'plant/+/temp')")) == [*range(3, 101)]
    rows = spark.readStream.table("ours").writeStream.format("memory").queryName("followed")
    rows.trigger(availableNow=True).start().awaitTermination(60)
    assert seqs(spark.table("followed")) == expected
    with pytest.raises(PySparkException, match="no option 'topic', did you mean topics"):
        spark.sql(f"CREATE TABLE t USING hubbub OPTIONS (path '{catalog}', topic 'a')")
    spark.sql(f"CREATE TABLE named (seq bigint) USING hubbub OPTIONS (path '{catalog}')")
    narrow = f"(path '{catalog}', columns 'topic, seq')"
    spark.sql(f"CREATE TABLE narrow USING hubbub OPTIONS {narrow}")
    try:
        with pytest.raises(PySparkException, match="In CREATE TABLE leave out the columns"):
            spark.table("named").count()
        assert spark.table("narrow").columns == ["topic", "seq"]
        assert seqs(spark.table("narrow")) == [*range(1, 101)]
        with pytest.raises(PySparkException, match="say columns when it is made"):
            spark.sql("SELECT * FROM ours WITH (columns = 'topic')").count()
    finally:
        spark.sql("DROP TABLE narrow")
        spark.sql("DROP TABLE named")
    with pytest.raises(PySparkException, match="column seq is no part of a message"):
        spark.sql("INSERT INTO ours SELECT * FROM ours")


@pytest.mark.spark
def test_why_a_batch_failed_while_its_stream_was_stopped_may_be_a_long_text(
    spark: SparkSession,
) -> None:
    """Spark 4.3 looks by an expression that calls itself for each character: with the stack that
    a thread of Java has, and with four times that, a `foreachBatch` which was interrupted in an
    action ended with a StackOverflowError on the screen. Its text has 12,000 characters.
    """
    assert spark._jvm is not None
    stream = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    text = "py4j.protocol.Py4JJavaError: An error occurred while calling " + "x" * 24_000
    assert stream.PROXY_ERROR().findFirstIn(text).isEmpty()
    assert stream.PROXY_ERROR().findFirstIn(f"{text} java.io.InterruptedIOException").isDefined()


STRANGER = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
print("rows:", spark.read.format("hubbub").load(sys.argv[1]).count())
print("ours:", [name for name in sys.modules if name.startswith("hubbub")])
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_that_imports_nothing_of_ours_finds_the_source(
    quick_java: None, writer: Writer, tmp_path: Path
) -> None:
    path = data(writer, tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", STRANGER, path], capture_output=True, text=True, timeout=100
    )
    assert "rows: 100\nours: []" in ran.stdout, ran.stderr


@pytest.mark.spark
def test_a_journal_without_rows_has_no_rows(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    """Spark reads a partition of its own making where there is none of ours."""
    frame = spark.read.format("hubbub").option("path", str(tmp_path / "data")).load()
    assert frame.count() == 0
    misspelt = spark.read.format("hubbub").option("path", str(tmp_path / "date")).load()
    with pytest.raises(PySparkException, match="date holds no journal: expected the data direct"):
        misspelt.count()


def test_java_is_asked_for_a_class_once(spark: SparkSession) -> None:
    view = spark._jvm
    assert view is not None and view.functions is view.functions
    assert java_class(spark, "java.lang.Math").abs(-1) == 1
    assert java_class(spark, "java.lang") is not java_class(spark, "java.lang")  # no class
