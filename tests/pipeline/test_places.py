"""Tables at a URL: one writer, in a place that is its own."""

from __future__ import annotations

import os
import platform
import shutil
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.places import Remote
from hubbub.pipeline.tables import ALL
from tests.spark.fixtures import Writer, publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_one_writer_in_a_place_of_its_own(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    data, place = tmp_path / "data", tmp_path / "tables"
    writer.write(publish(0, "a"))

    def run() -> None:
        pipeline.run(spark, data, threading.Event(), once=True, to=place.as_uri())

    place.mkdir()
    (place / "thesis.txt").write_text("not ours")
    with pytest.raises(DirectoryError, match=r"no pipeline wrote \(thesis.txt\): name an empty"):
        run()
    (place / "thesis.txt").unlink()
    run()

    # A second one begins while the first is at work: the first writes no more.
    writer.write(publish(1, "a"))
    first, second = (Remote(spark, place.as_uri(), ALL) for _ in range(2))
    first.prepare()
    first.append(ALL[0], spark.read.parquet(str(place / "messages")).drop("batch_id"), 7)
    shutil.rmtree(place / "messages" / "batch_id=7")
    second.prepare()
    progress = second.progress()
    assert progress is not None
    who = f"process {os.getpid()} on {platform.node()}"
    for write in (
        lambda: first.append(ALL[0], spark.range(1).toDF("seq"), 7),
        lambda: first.advance(progress),
    ):
        with pytest.raises(DirectoryError, match=rf"\({who}\) began to write .*: this one ends"):
            write()
    assert not (place / "messages" / "batch_id=7").exists()

    # One of another journal, as of another node, is refused, and the second goes on.
    other = Writer(tmp_path / "other")
    other.write(publish(0, "a"))
    other.close()
    said = f"are the tables of another journal \\({writer.id}, not {other.id}\\): each has a place"
    with pytest.raises(DirectoryError, match=said):
        pipeline.run(spark, tmp_path / "other", threading.Event(), once=True, to=place.as_uri())
    second.advance(progress)

    run()
    assert len(list((place / "_writer").glob("0*"))) == 1
    shutil.rmtree(place / "_checkpoint")
    with pytest.raises(DirectoryError, match="has tables but their checkpoint is gone"):
        run()
