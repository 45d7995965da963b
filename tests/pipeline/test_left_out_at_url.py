"""Tables at a URL that a run leaves out and another takes in again: what is open stays open."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import JournalError, SettingError
from hubbub.pipeline import places
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.absence import Home
from hubbub.pipeline.noted import Noted, noted
from hubbub.pipeline.places import Remote
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import ALL, TABLES, calls, messages, typed
from hubbub.pipeline.typed import Typed
from hubbub.schema import ACK, SEND, Row
from tests.spark.fixtures import Writer, publish

NAMES = tuple(table.name for table in TABLES)
FEW = ("messages", "audit")
SOME = ("messages", "traffic", "calls")
SLOTS = 3  # for open rows, which are sixteen else: so many batches take ten seconds
NOTED = ("wrote", "declared")  # what an earlier version did not say


class Url:
    """Runs at a place of their own, a row of the journal a batch."""

    def __init__(self, spark: SparkSession, writer: Writer, folder: Path) -> None:
        self.said: list[str] = []
        self._spark, self._writer, self._folder = spark, writer, folder

    def once(self, *only: str) -> None:
        pipeline.run(
            self._spark, self._folder / "data", threading.Event(), once=True, only=only,
            to=(self._folder / "tables").as_uri(), notice=self.said.append,
        )  # fmt: skip

    def writes(self, *rows: Row) -> int:
        return self._writer.write(*rows)

    def calls(self) -> list[tuple[object, ...]]:
        query = f"select seq, status from '{self._folder}/tables/calls/**/*.parquet' order by seq"
        return duckdb.connect().execute(query).fetchall()


@pytest.fixture
def url(
    spark: SparkSession, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Url:
    monkeypatch.setattr(pipeline, "ROWS", 1)
    monkeypatch.setattr(places, "KEPT", SLOTS)
    return Url(spark, writer, tmp_path)


def asks() -> Row:
    ask = publish(0, "$queue/work", b"?", reply_to=b"answers", number=1)
    return ask._replace(kind=SEND)


def done(ref: int) -> Row:
    return publish(80, "$queue/work", b"", ref=ref, number=1)._replace(kind=ACK)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("between", [pytest.param(1, marks=pytest.mark.soak), SLOTS - 1])
def test_what_was_open_closes_whatever_was_between(
    url: Url, between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = url.writes(asks())
    url.once(*SOME)
    url.writes(*(publish(1 + n, "a") for n in range(between)))
    url.once(*FEW)
    url.writes(done(request))

    def dies(self: Remote, progress: object) -> None:
        raise OSError("as a process that is killed here")

    with monkeypatch.context() as changed:  # all is written, and nothing says so
        changed.setattr(Remote, "advance", dies)
        with pytest.raises(JournalError, match="killed here"):
            url.once(*SOME)
    url.once(*SOME)
    assert url.calls() == [(request, "unanswered")]


# What is noted


CALLS, OWN = calls.TABLE, Typed("climate", "a", {"x": "$.x DOUBLE"})
ONCE = Typed("once", "a", {"x": "$.x DOUBLE"}, dedupe_by=("x",))
THERE = Home("s3a://plant", "name an empty place with --to", False)


def test_what_a_run_left_out_is_noted_with_each_batch_and_said() -> None:
    first = Noted(0, Noted().after(0, TABLES))
    assert first.take_in(TABLES, NO_RULES, THERE) == []
    assert first.left_by((messages.TABLE, CALLS)) == sorted({*NAMES} - {"messages", "calls"})
    later = Noted(9, first.after(9, (messages.TABLE,)))
    assert later.out("calls") and not later.out("messages") and not later.out("climate")
    assert later.left_by((messages.TABLE,)) == [], "kept apart when it began"
    assert later.take_in((messages.TABLE, CALLS), NO_RULES, THERE) == [
        "calls was left out of batches 1 to 9: their rows are missing in it, and what was open "
        "then may stay so. To have them name an empty place with --to, then the next run makes all "
        "tables again from what the journal still has"
    ]


def test_a_table_of_the_user_stays_what_it_was_declared() -> None:
    rules = Rules(table=(OWN, ONCE))
    own = typed.tables_of(rules)
    first = Noted(0, Noted().after(0, own), typed.decoded(Noted().declares(rules).encode()))
    assert first.take_in(own, rules, THERE) == []
    other = Rules(table=(Typed("climate", "a", {"x": "$.x STRING"}),))
    with pytest.raises(SettingError, match="x was double, is string.*new table, or another --to"):
        first.take_in(typed.tables_of(other), other, THERE)
    left = first._replace(batch=7)
    [said] = left.take_in(own[:1], Rules(table=(OWN,)), THERE)
    assert said.startswith("climate was left out of batches 1 to 7")
    with pytest.raises(SettingError, match="once was left out of batches 1 to 7, so what is open"):
        left.take_in(own, rules, THERE)


def test_what_an_earlier_version_wrote_counts_as_whole() -> None:
    before = noted(5, None, None)
    assert before.take_in(TABLES, NO_RULES, THERE) == [] and not before.out("calls")
    every = dict.fromkeys((one.name for one in ALL), 5)
    assert before.after(6, (messages.TABLE,)) == every | {"messages": 6}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_that_an_earlier_version_left_open_are_an_error_and_not_gone(
    url: Url, tmp_path: Path
) -> None:
    url.writes(asks())
    url.once(*SOME)
    url.writes(*(publish(1 + n, "a") for n in range(SLOTS)))
    url.once(*SOME)
    stale = tmp_path / "tables/_open/calls"
    last = stale / f"slot={SLOTS - 1}"
    shutil.copytree(last, stale / "slot=0", dirs_exist_ok=True)  # rows of the batch before
    for file in (stale / "slot=0").glob("*"):
        if not (last / file.name).exists():
            file.unlink()
    for file in (tmp_path / "tables/_progress").rglob("*.json"):
        said = json.loads(file.read_text())
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(json.dumps({key: said[key] for key in said if key not in NOTED}))
    url.writes(publish(90, "a"))
    with pytest.raises(JournalError, match=f"open rows of calls after batch {SLOTS} are gone"):
        url.once(*SOME)
