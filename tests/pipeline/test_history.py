"""What goes over the whole history: tables elsewhere, computed anew, published again, merged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from hubbub.cli.pipeline import app
from hubbub.errors import DirectoryError, JournalError, SettingError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline import sql
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.compact import compact, drop
from hubbub.pipeline.copy import copy
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.publish import Publisher
from hubbub.pipeline.replay import Choice, chosen, plan, play
from hubbub.pipeline.rules import NO_RULES, Alert, Rules
from hubbub.pipeline.tables import ALL
from hubbub.pipeline.tables.table import names
from hubbub.spark import hub as asking
from hubbub.spark.hub import Hub
from hubbub.spark.options import access
from tests.pipeline.test_run import answer, ask
from tests.process import RunningHub, StartHub
from tests.spark.fixtures import Writer, publish
from tests.spark.test_sink import published

pytestmark = pytest.mark.spark


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def filled(spark: SparkSession, writer: Writer, data: Path) -> Iterator[Path]:
    """Three batches of everything; the first two are a day, the third is the next."""
    first = writer.write(publish(0, "a", b'{"t": 1}'), publish(1, "a", b"2"), ask(2))
    pipeline.run(spark, data, threading.Event(), once=True)
    writer.write(answer(3, first), publish(70, "b", b'{"ts": 5}', content_type=b"text/plain"))
    pipeline.run(spark, data, threading.Event(), once=True)
    writer.write(publish(90_000, "b", b"{", content_type=b"application/json"))
    pipeline.run(spark, data, threading.Event(), once=True)
    yield data


def stranger(root: str | Path, query: str) -> list[tuple[object, ...]]:
    found = duckdb.connect()
    found.execute("set timezone = 'UTC'")
    for table in ALL:
        files = f"read_parquet('{root}/{table.name}/**/*.parquet', hive_partitioning = true)"
        found.execute(f"create view {table.name} as select * from {files}")
    return found.execute(query).fetchall()


@contextmanager
def looking(ask: Callable[[], object]) -> Iterator[list[object]]:
    """Asks again and again meanwhile; the different answers. One that listed files before they
    were exchanged and opened them afterwards is told so, and asks again."""
    answers: list[object] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):  # or it takes half of what it looks at
            try:
                answer = ask()
            except (duckdb.IOException, FileNotFoundError):
                continue
            if answer not in answers:
                answers.append(answer)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield answers
    finally:
        over.set()
        looker.join()


def readable(spark: SparkSession, root: Path) -> None:
    """All tables, also those without rows, have their columns for whoever asks."""
    for table in ALL:
        assert len(pandas.read_parquet(root / table.name).columns) >= len(table.columns)
        assert set(spark.read.parquet(str(root / table.name)).columns) >= set(names(table.columns))
    assert stranger(root, "select count(*) from alerts") == [(0,)]


TRAFFIC = "select topic, strftime(minute, '%H:%M'), messages, bytes from traffic order by 2, 1"


@pytest.mark.timeout(400)  # which includes what is made for it, on a machine that may be busy
def test_the_history_of_a_hub(spark: SparkSession, filled: Path) -> None:
    """Many questions about one history, which takes a while to make."""
    tables = filled / "tables"
    layout = Layout(filled)
    assert stranger(tables, "select count(*), max(batch_id) from messages") == [(6, 2)]
    readable(spark, tables)
    assert stranger(tables, "select seq, declared from quarantine") == [(6, "application/json")]

    before = stranger(tables, "select * from readings order by seq, path")
    assert [(row[0], row[6], row[7], row[8]) for row in before] == [
        (1, "t", 1.0, None), (2, "", 2.0, None), (5, "", None, '{"ts": 5}'),
    ]  # fmt: skip

    # Computed anew: the same, then by other rules.
    traffic = stranger(tables, TRAFFIC)

    def told() -> object:
        files = layout.carried("traffic", layout.stands().batch)
        opened = [row for file in files for row in pq.read_table(file).to_pylist()]
        count = "select count(*), count(distinct (seq, path)) from readings"
        return stranger(tables, count), stranger(tables, TRAFFIC), opened

    always = told()
    with looking(told) as answers:
        assert backfill(spark.newSession(), layout, "readings", NO_RULES) == (3, 0)
        assert backfill(spark, layout, "traffic", NO_RULES) == (len(traffic), 0)
    assert answers == [always]
    assert stranger(tables, "select * from readings order by seq, path") == before
    file = next(tables.glob("readings/*/batch_id=0/part-0*"))
    seq = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert (seq.compression, seq.encodings) == ("ZSTD", ("DELTA_BINARY_PACKED",))
    assert stranger(tables, TRAFFIC) == traffic
    rules = Rules(event_time="ts", lateness=0)
    assert backfill(spark, layout, "readings", rules) == (3, 0)
    assert backfill(spark, layout, "quarantine", NO_RULES) == (1, 0)
    with pytest.raises(SettingError, match="calls cannot be computed"):
        backfill(spark, layout, "calls", NO_RULES)
    running = Layout(filled)
    running.prepare(pipeline.NAMES)
    with pytest.raises(DirectoryError, match=r"another pipeline \(process \d+\) .* stop it first"):
        backfill(spark, layout, "readings", NO_RULES)
    running.release()

    # The running pipeline merged the first day; the rest is merged on demand.
    merged = sorted(file.name for file in tables.glob("messages/*/batch_id=0/part-0*"))
    assert merged == ["part-0000000000-to-0000000001.parquet"]
    progress = layout.stands()
    assert compact(layout, "messages", progress) == 0

    sql.views(spark, filled)
    assert spark.table("messages").count() == 6
    assert spark.table("traffic_open").count() == 1

    # A plan of a replay.
    rows = chosen(spark, Choice(("a", "b/#"), "2026-01-01 12:00:00.5", "2026-01-01 13:00"))
    found = plan(rows)
    assert (found.messages, found.topics, found.seconds(10)) == (2, 2, 6.9)
    assert plan(chosen(spark, Choice(("none",)))).seconds(1) is None

    # A copy elsewhere.
    new = filled / "copy"
    assert dict(copy(spark, filled, "", new.as_uri()))["messages"] == 6
    assert len(list(new.glob("messages/day=*/*.parquet"))) == 2
    readable(spark, new)
    assert pandas.read_parquet(new / "calls")["status"].tolist() == ["answered"]
    with pytest.raises(DirectoryError, match="is not empty"):
        list(copy(spark, filled, "", new.as_uri()))

    # What messages has no more cannot be computed, and stays.
    before = stranger(tables, "select seq, path, value from readings order by all")
    traffic = stranger(tables, TRAFFIC)
    assert drop(layout, "messages", progress, 1) == 1
    assert stranger(tables, "select min(seq) from messages") == [(6,)]
    assert backfill(spark, layout, "readings", NO_RULES) == (3, 3)
    assert stranger(tables, "select seq, path, value from readings order by all") == before
    assert backfill(spark, layout, "traffic", NO_RULES) == (len(traffic), len(traffic))
    assert stranger(tables, TRAFFIC) == traffic
    assert backfill(spark, layout, "readings", NO_RULES, discard=True) == (0, 0)


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A URL that no function of Python can open: Hadoop has a directory under another name."""
    (tmp_path / "elsewhere").mkdir()
    link = "fs.viewfs.mounttable.plant.link./tables"
    spark.conf.set(link, (tmp_path / "elsewhere").as_uri())
    yield "viewfs://plant/tables"
    spark.conf.unset(link)


def test_tables_at_a_url(
    spark: SparkSession, writer: Writer, data: Path, tmp_path: Path, elsewhere: str
) -> None:
    root = tmp_path / "elsewhere"
    first = writer.write(publish(0, "a", b'{"t": 1}'), ask(2))
    pipeline.run(spark, data, threading.Event(), once=True, to=elsewhere)
    writer.write(answer(3, first), publish(70, "a", b"2"))
    batches = root / "_checkpoint" / "commits"
    pipeline.run(spark, data, threading.Event(), once=True, to=elsewhere)
    for file in batches.glob("*1*"):
        file.unlink()
    for slot in root.glob("_progress/slot=1"):  # cut short before it was whole
        slot.rename(tmp_path / "gone")
    pipeline.run(spark, data, threading.Event(), once=True, to=elsewhere)
    copied = dict(copy(spark, data, elsewhere, f"{elsewhere}/copy"))
    assert (copied["messages"], copied["calls"]) == (4, 1)
    readable(spark, root)
    assert pandas.read_parquet(root / "messages")["seq"].tolist() == [1, 2, 3, 4]
    assert pandas.read_parquet(root / "calls")["status"].tolist() == ["answered"]
    assert sorted(pandas.read_parquet(root / "traffic")["topic"]) == [
        "$queue/cli",
        "$queue/foo",
        "a",
    ]
    assert not (data / "tables").exists()


class Heard(Publisher):
    """Nothing is published; when what left is kept, by a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left: list[tuple[float, str]] = []

    def send(self, batch: str, first: int, messages: list[dict[str, object]]) -> int:
        assert first == len(self.left)
        self.left += [(round(self.now, 3), str(one["topic"])) for one in messages]
        return len(messages)

    def forget(self, query: str) -> None: ...

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("speed", "times"), [(1, [0, 1, 1, 30]), (10, [0, 0.1, 0.1, 3]), (0, 4 * [0])]
)
def test_messages_leave_in_their_old_rhythm(speed: float, times: list[float]) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    row = {"qos": 0, "retain": False, "payload": b"", "content_type": None, "subtopic": None}
    moments = (0.0, 1.0, 1.01, 30.0)
    rows = [
        {**row, "topic": f"t/{n}", "time": noon + timedelta(seconds=moment)}
        for n, moment in enumerate(moments)
    ]
    heard = Heard()
    assert play(rows, heard, speed, "x/", clock=heard.clock, sleep=heard.sleep) == 4
    assert heard.left == [(moment, f"x/t/{n}") for n, moment in enumerate(times)]


@pytest.mark.interop
@pytest.mark.slow
def test_replay_as_a_command(
    spark: SparkSession,
    writer: Writer,
    data: Path,
    start_hub: StartHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hubbub.spark.start.end", lambda spark: None)  # others use it too
    writer.write(
        *(publish(n / 5, f"plant/{n % 2}", b"%d" % n) for n in range(6)), publish(1, "b"), ask(1)
    )
    pipeline.run(spark, data, threading.Event(), once=True)
    hub = start_hub(data=tmp_path / "hub")

    def replay(*words: str, url: str = hub.url("http")) -> str:
        command = ["replay", "--data", str(data), "--topics", "plant/+", "--url", url, *words]
        app(command, standalone_mode=False)
        return capsys.readouterr().out

    plan = "6 messages of 2 topics, 6 bytes, from 2026-01-01 12:00:00 to 2026-01-01 12:00:01 UTC: "
    assert replay("--speed", "10") == (
        f"{plan}in 0 s\nNothing was published. The same with --go does it.\n"
    )
    assert replay("--since", "1h") == "There are no such messages.\n"
    assert replay("--since", "2026-01-01 12:00:00.3", "--until", "1h").startswith("4 messages of 2")
    assert published(hub) == []
    assert "6 messages published" in replay("--prefix", "x1/", "--go")
    replay("--prefix", "x10/", "--go", "--speed", "10")
    assert f"{plan}as fast as the hub" in replay("--prefix", "xmax/", "--go", "--speed", "max")
    for speed, least, most in (("1", 0.8, 10.0), ("10", 0.02, 0.8), ("max", 0.0, 0.8)):
        rows = [row for row in published(hub) if row["topic"].startswith(f"x{speed}/plant/")]
        assert [int(row["payload"]) for row in rows] == list(range(6))
        assert least <= (rows[-1]["time"] - rows[0]["time"]).total_seconds() <= most, speed
    monkeypatch.setattr(asking, "FIRST_PATIENCE", 0.1)
    with pytest.raises(JournalError, match="http://127.0.0.1:9 did not answer .*: start it"):
        replay("--go", url="http://127.0.0.1:9")


@pytest.mark.interop
@pytest.mark.slow
def test_alerts_come_back_into_the_hub_once(
    spark: SparkSession, hub: RunningHub, data: Path
) -> None:
    """Alerts, a batch that runs again, and a replay, all at a real hub."""
    publisher = Publisher(Hub(hub.url("http"), access({})))
    payloads = ("0", "1", "2", '"off"')
    publisher.send("test/0/0", 0, [{"topic": "a", "payload": payload} for payload in payloads])
    above = "SELECT seq, value FROM readings WHERE topic = 'a' AND value > 0"
    rules_with = Rules(
        alert=(
            Alert("broken", "alerts/none", "SELECT raise_error('it burns') FROM readings"),
            # 'off' is no number, and therefore not above 0.
            Alert("high", "alerts/high", f"{above} OR CAST(text AS DOUBLE) > 0", retain=True),
            Alert("old", "alerts/none", above, max_age=1e-3),
        )
    )
    said: list[str] = []

    def run(rules: Rules = rules_with) -> None:
        publish = publisher.alerts
        pipeline.run(
            spark, data, threading.Event(), once=True, rules=rules, publish=publish,
            notice=said.append,
        )  # fmt: skip

    run()
    layout = Layout(data)
    # The batch runs again as if the driver had been killed before it said that it is whole.
    for file in (data / "tables/_checkpoint/commits").glob("*0*"):
        file.unlink()
    (data / "tables/_progress.json").unlink()
    run()
    run(NO_RULES)
    query = "select topic, payload, retain from messages where topic like 'alerts/%' order by seq"
    found = stranger(data / "tables", query)
    assert [(topic, json.loads(bytes(text))["value"], retain) for topic, text, retain in found] == [  # type: ignore[call-overload]
        ("alerts/high", 1.0, True),
        ("alerts/high", 2.0, True),
    ]
    assert stranger(
        data / "tables", "select seq > 0, number, rule, published from alerts order by number"
    ) == [
        (True, 0, "high", True), (True, 1, "high", True), (True, 2, "old", False),
        (True, 3, "old", False),
    ]  # fmt: skip
    assert said[0].startswith("alert 'broken' failed and is left out of this batch: ")
    assert "it burns" in said[0]

    # Tables that are made again have their alerts, and publish none again.
    (data / "tables").rename(data / "before")
    run()
    query = "select rule, published from alerts order by number"
    assert stranger(data / "tables", query) == 2 * [("high", False)] + 2 * [("old", False)]

    sql.views(spark, data)
    rows = chosen(spark, Choice(("a",))).toLocalIterator()
    assert play(rows, publisher, 1000.0, "again/") == 4
    run(NO_RULES)
    query = "select payload from messages where topic = 'again/a' order by seq"
    assert [bytes(row[0]) for row in stranger(data / "tables", query)] == [  # type: ignore[call-overload]
        b"0", b"1", b"2", b'"off"',
    ]  # fmt: skip
    assert layout.writer() is None
