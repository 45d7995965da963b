"""Spark's checkpoint and the tables are of one moment, or a run is refused: one of the two came
from a backup. Else rows would be left out, or be there twice, and nothing would say so.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import HubbubError
from hubbub.pipeline import run as pipeline
from tests.spark.fixtures import Writer, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS: Final = 10  # in a batch
WRITTEN: Final = 20
TABLES: Final = ("messages", "traffic")


class Tables:
    """Two batches, in a data directory or at a URL."""

    def __init__(self, spark: SparkSession, folder: Path, far: bool) -> None:
        self.data = folder / "data"
        self.root = folder / "tables" if far else self.data / "tables"
        self._spark, self._to, self._rows = spark, self.root.as_uri() if far else "", 0
        self.said: list[str] = []
        self.grow()

    def grow(self) -> None:
        writer = Writer(self.data)
        first = self._rows
        writer.write(*(publish(n, "a", b"%d" % n) for n in range(first, first + WRITTEN)))
        writer.close()
        self._rows += WRITTEN
        self.once()

    def once(self, skip_lost: bool = False) -> None:
        pipeline.run(
            self._spark, self.data, threading.Event(), once=True, only=TABLES, to=self._to,
            notice=self.said.append, skip_lost=skip_lost,
        )  # fmt: skip

    def kept(self, part: str) -> Path:
        """A copy, as a backup has it."""
        place = self.root.parent / "backup"
        copy: Callable[..., object] = shutil.copytree
        copy(self.root / part, place)
        return place

    def put(self, place: Path, part: str) -> None:
        shutil.rmtree(self.root / part)
        place.rename(self.root / part)

    def messages(self) -> tuple[int, int]:
        query = f"select count(*), count(distinct seq) from '{self.root}/messages/**/*.parquet'"
        [(rows, seqs)] = duckdb.connect().execute(query).fetchall()
        return rows, seqs


@pytest.fixture(params=[False, True], ids=["disk", "url"])
def tables(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Tables:
    monkeypatch.setattr(pipeline, "ROWS", ROWS)
    return Tables(spark, tmp_path, request.param)


@pytest.mark.parametrize(
    ("tables", "rows"),
    [(False, 7), (False, 20), (True, 7), pytest.param(True, 20, marks=pytest.mark.soak)],
    indirect=["tables"],
)
def test_a_checkpoint_that_is_older_than_the_tables_is_refused(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """With seven rows a batch rows would be left out, and with 20 they would be there twice. What
    refuses them is the same on a disk and at a URL: `make soak` does both there.
    """
    old = tables.kept("_checkpoint")
    monkeypatch.setattr(pipeline, "ROWS", rows)
    tables.grow()
    monkeypatch.setattr(pipeline, "ROWS", ROWS)
    now = tables.root.parent / "now"
    (tables.root / "_checkpoint").rename(now)
    old.rename(tables.root / "_checkpoint")
    for _ in range(2):
        with pytest.raises(HubbubError, match=r"_checkpoint is not of the tables .* they stand at"):
            tables.once()
    tables.put(now, "_checkpoint")
    tables.grow()
    assert tables.messages() == (3 * WRITTEN, 3 * WRITTEN)


def test_tables_that_are_older_than_the_checkpoint_are_refused(tables: Tables) -> None:
    """Unless who runs it takes the loss: then it is counted."""
    folder = tables.root.parent
    shutil.copytree(tables.root, folder / "old")
    tables.grow()
    (tables.root / "_checkpoint").rename(folder / "now")
    shutil.rmtree(tables.root)
    (folder / "old").rename(tables.root)
    tables.put(folder / "now", "_checkpoint")
    with pytest.raises(HubbubError, match="it goes on after row 40, and they stand at .* row 20"):
        tables.grow()


def test_rows_that_nothing_can_read_are_lost_and_no_other_checkpoint_s(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rows of a batch went when a user took the loss: a later run without goes on."""
    monkeypatch.setattr(pipeline, "ROWS", 4 * WRITTEN)
    tables = Tables(spark, tmp_path, False)
    writer = Writer(tables.data)
    writer.write(*(publish(40 + n, "a", b"%d" % n) for n in range(WRITTEN)))
    writer.close()
    [*_, segment] = sorted((tables.data / "log").glob("*.rows"))
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    damaged[-40:] = bytes(40)
    segment.write_bytes(damaged)
    tables.once(skip_lost=True)
    tables.grow()
    rows, seqs = tables.messages()
    assert rows == seqs >= 2 * WRITTEN


@pytest.mark.parametrize(
    ("tables", "part"),
    [
        (False, "metadata"), (False, "offsets"), (True, "metadata"),
        pytest.param(True, "offsets", marks=pytest.mark.soak),
    ],
    indirect=["tables"],
)  # fmt: skip
def test_a_checkpoint_of_which_a_part_is_gone_is_refused(tables: Tables, part: str) -> None:
    place = tables.root / "_checkpoint" / part
    away = place.rename(tables.root.parent / "away")
    with pytest.raises(HubbubError, match="has tables but their checkpoint is gone: put it back"):
        tables.once()
    away.rename(place)
    tables.grow()
    assert tables.messages() == (2 * WRITTEN, 2 * WRITTEN)
