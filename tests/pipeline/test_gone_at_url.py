"""Tables at a URL are taken away from under a pipeline, or while none runs: it is said.

As `test_gone` for those of a data directory. The URL is one of the local disk, so that there is
something to take; on S3 it is a test of `test_object_storage`.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, JournalError
from hubbub.pipeline import ground
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.copy import copy
from hubbub.pipeline.places import Remote
from hubbub.pipeline.tables.table import AnyTable
from tests.spark.fixtures import Writer, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS: Final = 30
SECONDS: Final = 150.0  # in which it ends, on a machine that may be busy
TABLES: Final = ("messages", "readings", "traffic")  # each costs every batch

# By what is taken, "" = all: the error.
TAKEN: Final = {
    "": r"(their checkpoint|tables/_progress) is gone: put it back",
    "readings": "tables lacks readings, which batches up to 0 wrote: put back what was",
    "_progress": "tables/_progress is gone: put it back, or name an empty place with --to",
    "_checkpoint": "has tables but their checkpoint is gone: put it back, or name an empty",
    "_open": r"(open rows of traffic after batch 0 are|tables/_open is) gone",
}


class Url:
    """A pipeline in two batches, at a place that is a directory."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.tables, self.said = folder / "tables", list[str]()
        self.only: tuple[str, ...] = TABLES
        self._spark, self._folder = spark, folder
        self.write(0)

    def write(self, first: int) -> None:
        writer = Writer(self._folder / "data")
        writer.write(*(publish(n, "a", b"%d" % n) for n in range(first, first + ROWS)))
        writer.close()

    def run(self, stop: threading.Event, report: Callable[..., None], **more: Any) -> None:
        pipeline.run(
            self._spark, self._folder / "data", stop, report, only=self.only,
            to=self.tables.as_uri(), notice=self.said.append, **more,
        )  # fmt: skip

    def once(self, *anew: str) -> None:
        self.run(threading.Event(), lambda report: None, once=True, anew=anew)

    def error(self, report: Callable[..., None] = lambda report: None, **more: Any) -> str:
        """What it ends with, in time."""
        stop = threading.Event()
        late = threading.Timer(SECONDS, stop.set)
        late.start()
        try:
            with pytest.raises((DirectoryError, JournalError)) as raised:
                self.run(stop, report, **more)
        finally:
            late.cancel()
        assert not stop.is_set(), "it went on as if nothing was"
        return str(raised.value)

    def away(self, part: str) -> None:
        (self.tables / part).rename(self._folder / "away")

    def back(self, part: str) -> None:
        shutil.rmtree(self.tables / part, ignore_errors=True)  # what was made there since
        (self._folder / "away").rename(self.tables / part)

    def rows(self, table: str, what: str = "count(*), count(distinct seq)") -> tuple[Any, ...]:
        query = f"select {what} from '{self.tables}/{table}/**/*.parquet'"
        [found] = duckdb.connect().execute(query).fetchall()
        return found

    def whole(self, rows: int = ROWS) -> None:
        self.once()
        assert self.rows("messages") == self.rows("readings") == (rows, rows)


@pytest.fixture
def url(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Url:
    monkeypatch.setattr(pipeline, "ROWS", ROWS // 2)
    monkeypatch.setattr(ground, "SECONDS", 0.2)
    return Url(spark, tmp_path)


def every_other(first: int) -> list[object]:
    """What is taken in the midst of a batch or while none runs, in turn; `make soak` does all."""
    return [
        pytest.param(part, marks=() if n % 2 == first else pytest.mark.soak)
        for n, part in enumerate(TAKEN)
    ]


@pytest.mark.parametrize("part", every_other(0))
def test_in_the_midst_of_a_batch(url: Url, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Remote.append

    def taken(self: Remote, table: AnyTable, rows: Any, batch: int) -> str:
        if (table.name, batch) == ("messages", 1):
            url.away(part)
        return append(self, table, rows, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "append", taken)
        patch.setattr(ground, "SECONDS", 999.0)  # the batch itself finds it
        assert re.search(TAKEN[part], url.error(once=True))
    url.back(part)
    url.whole()


@pytest.mark.parametrize("part", every_other(1))
def test_while_it_waits_for_rows(url: Url, part: str) -> None:
    taken = threading.Event()

    def report(said: pipeline.Report) -> None:
        if not said.behind and not taken.is_set():
            taken.set()
            url.away(part)

    said = url.error(report, every=0.2)
    assert re.search(TAKEN[part].replace("batches up to 0", "batches up to 1"), said)
    url.back(part)
    url.whole()


def test_a_checkpoint_that_spark_makes_anew_is_none(url: Url) -> None:
    """What it writes when a batch is over made the directory again, and the loss was not seen."""
    taken = threading.Event()

    def report(said: pipeline.Report) -> None:
        if not said.behind and not taken.is_set():
            taken.set()
            url.away("_checkpoint")
            (url.tables / "_checkpoint/commits").mkdir(parents=True)

    assert "has tables but their checkpoint is gone" in url.error(report, every=0.2)
    url.back("_checkpoint")
    url.whole()


# While none runs: each run is one batch, as what is said does not hang on how many there were

in_one_batch = pytest.mark.usefixtures("one_batch")


@pytest.fixture
def one_batch(url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ROWS", 10 * ROWS)


@in_one_batch
def test_a_table_that_is_gone_is_not_taken_for_new(url: Url, spark: SparkSession) -> None:
    url.once()
    url.away("readings")
    url.write(ROWS)
    said = url.error(once=True)
    assert "lacks readings, which batches up to 0 wrote: put back" in said
    assert "`hubbub pipeline run --anew readings` goes on without the rows before" in said
    with pytest.raises(DirectoryError, match="lacks readings, which batches up to 0 wrote"):
        [*copy(spark, "", url.tables.as_uri(), f"{url.tables}-copy")]
    url.back("readings")
    url.whole(2 * ROWS)
    assert url.said == []


@in_one_batch
def test_a_table_begins_anew_whose_open_rows_went_with_it(url: Url) -> None:
    """It began to say, for ever, that they are gone."""
    url.once()
    shutil.rmtree(url.tables / "traffic")
    shutil.rmtree(url.tables / "_open/traffic")
    url.write(70)
    url.once("traffic")
    url.write(200)
    url.whole(3 * ROWS)
    assert url.rows("traffic", "sum(messages)") == (ROWS,), "the minute that began later"


@in_one_batch
def test_a_table_that_is_gone_begins_anew_where_that_is_said(url: Url) -> None:
    url.only = (*TABLES, "calls")
    url.once()
    shutil.rmtree(url.tables / "readings")
    shutil.rmtree(url.tables / "calls")
    url.write(ROWS)
    url.once("readings", "calls", "traffic")
    assert [one.partition(":")[0] for one in url.said] == [
        "readings was gone, with what batches 0 to 0 wrote",
        "calls was gone, with what batches 0 to 0 wrote",
    ]
    assert url.rows("readings", "count(*), min(seq)") == (ROWS, ROWS + 1)
    assert url.rows("messages") == (2 * ROWS, 2 * ROWS)


@in_one_batch
def test_progress_that_is_gone_is_no_begin(url: Url) -> None:
    url.once()
    url.away("_progress")
    assert "tables/_progress is gone: put it back" in url.error(once=True)
    url.back("_progress")
    url.whole()


@in_one_batch
def test_tables_without_all_that_says_how_far_they_are_are_no_begin(url: Url) -> None:
    """They were written over from the first batch on."""
    url.once()
    url.away("_progress")
    shutil.rmtree(url.tables / "_checkpoint")
    assert "has tables but their checkpoint is gone: put it back" in url.error(once=True)
    assert url.rows("messages") == (ROWS, ROWS)


@in_one_batch
def test_rules_of_the_storage_that_remove_what_is_old_take_no_table(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file without rows is written again when a day begins, where another one is."""
    renewed: list[int] = []
    renew = Remote._renew

    def seen(self: Remote, day: int) -> None:
        renewed.append(day)
        renew(self, day)
        calls = {one.name for one in (url.tables / "calls").iterdir()}
        assert calls == {"batch_id=-1", "batch_id=-2"}
        shutil.rmtree(url.tables / "calls" / f"batch_id=-{2 - day % 2}")  # the older one

    url.only = ("messages", "calls")
    url.once()
    monkeypatch.setattr(Remote, "_renew", seen)
    days = (1, 2, 3)
    for day in days:
        writer = Writer(url.tables.with_name("data"))
        writer.write(publish(day * 86_400, "a"))
        writer.close()
        url.once()
    first = date(2026, 1, 1).toordinal()
    assert renewed == [first + day for day in days]
    assert url.rows("calls", "count(*)") == (0,)


def test_a_storage_that_cannot_be_asked_is_not_taken_for_one_without_tables() -> None:
    class Away(Remote):
        def _listed(self, path: str) -> list[str]:
            raise OSError("connection reset")

    nothing: Any = None
    Away(nothing, "s3a://plant").need()
