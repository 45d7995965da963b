"""The Java of every Spark that the tests start: for lives of seconds.

Without the second compiler and the parallel collector a short run needs half the processor time,
and a third less where the classes of Spark lie in an archive as the JVM wants them in memory.
`make test` writes that archive once: `python -m tests.java`. Not every Java can write one, which
leaves an empty file, and a JVM that cannot use it starts without.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from pathlib import Path
from typing import Final

from tests.process import ROOT

ARCHIVE: Final = ROOT / "build" / "spark.jsa"
# With the first compiler alone Java keeps 48 MB for what it compiles, which the tests of a process
# that share a Spark fill within minutes: throwing it out again took a tenth of that Java's time. It
# gets what both compilers have.
CODE: Final = "-XX:ReservedCodeCacheSize=240m"
FLAGS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", CODE)
QUIET: Final = "-Xlog:cds*=off"
# Another Java says how each Spark is started: with the archive that takes it twice as long.
_SCRIPT: Final = """#!/bin/sh
case " $* " in *" org.apache.spark.launcher.Main "*) exec {java} "$@";; esac
exec {java} {archive} "$@"
"""


def home(folder: Path, java: Path) -> Path:
    """A JAVA_HOME whose `java` is that program with our flags."""
    words = shlex.join([str(java), *FLAGS])
    archive = ""
    if ARCHIVE.is_file() and ARCHIVE.stat().st_size:
        archive = shlex.join([f"-XX:SharedArchiveFile={ARCHIVE}", QUIET])
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(java=words, archive=archive))
    script.chmod(0o755)
    return folder


def write_archive() -> None:
    """Start a Spark, let it do what most tests do, and wait until its classes are written.

    A batch of the pipeline is among it: the first one in each JVM took a processor six seconds
    without, and takes 4.5.
    """
    from pyspark import SparkContext

    from hubbub.pipeline import run as pipeline
    from hubbub.spark.start import session
    from tests.spark.fixtures import Writer, readings_rows

    os.environ["HUBBUB_CACHE"] = ""  # a JVM that has one of its user's archives writes no other
    ARCHIVE.parent.mkdir(exist_ok=True)
    options = shlex.join([*FLAGS, f"-XX:ArchiveClassesAtExit={ARCHIVE}", QUIET])
    spark = session("local[2]", **{"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        spark.range(9).write.parquet(f"{folder}/table")
        rows = spark.read.parquet(f"{folder}/table").mapInArrow(lambda batches: batches, "id long")
        rows.groupBy("id").count().collect()
        data = Path(folder) / "data"
        writer = Writer(data)
        writer.write(*readings_rows(100))
        pipeline.run(spark, data, threading.Event(), once=True)
        writer.close()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.communicate()  # at the end of its input it ends
    ARCHIVE.touch()  # a JVM that cannot write one is not asked again


if __name__ == "__main__":
    write_archive()
