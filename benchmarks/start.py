"""What a start of Spark costs until a first batch is whole: a bare one, and the pipeline's.

    python -m benchmarks.start [--rounds 3]

In turns, on this machine: Spark as PySpark starts it, which streams one file of Parquet into
another; the same with the Java and the settings of the pipeline; and `hubbub pipeline run`, which
makes all tables of 200 messages. Each says the CPU of all its processes, and the time, when Spark
runs and when its first batch is whole. Spark's classes are kept as for users (HUBBUB_CACHE).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pipeline import cpu_seconds, fill

STREAM: Final = """
spark.sparkContext.setLogLevel("OFF")
print("Spark runs", flush=True)
rows = spark.readStream.schema("seq long, payload string").parquet(folder + "/in")
query = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", folder + "/cp")
query.format("parquet").start(folder + "/out").awaitTermination()
print("batch 0", flush=True)
input()
"""
BARE: Final = f"""
import sys
from pyspark.sql import SparkSession
folder = sys.argv[1]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
{STREAM}
"""
OURS: Final = f"""
import sys
from hubbub.pipeline.rules import NO_RULES
from hubbub.pipeline.run import settings_for
from hubbub.spark.start import session
folder = sys.argv[1]
spark = session("local[2]", **settings_for(NO_RULES, ""))
{STREAM}
"""


class Took(NamedTuple):
    """Seconds of CPU and of the clock until Spark runs, and until the first batch is whole."""

    spark_cpu: float
    spark: float
    batch_cpu: float
    batch: float


def timed(command: list[str]) -> Took:
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONPATH": f"src:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    found: list[float] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(("Spark runs", "batch 0")):
            found += [cpu_seconds(process.pid), time.monotonic() - begun]
        if len(found) == 4:
            break
    process.send_signal(signal.SIGINT)
    process.communicate()
    return Took(*found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hubbub-start-"))
    try:
        fill(folder / "data", 200)
        (folder / "in").mkdir()
        rows = pa.table({"seq": range(200), "payload": ["{}"] * 200})
        pq.write_table(rows, folder / "in/one.parquet")
        ways = {
            "bare Spark, Parquet to Parquet": [sys.executable, "-c", BARE, str(folder)],
            "the same, started as ours": [sys.executable, "-c", OURS, str(folder)],
            "hubbub pipeline run": [
                sys.executable, "-m", "hubbub", "pipeline", "run", "--data", str(folder / "data"),
                "--master", "local[2]",
            ],
        }  # fmt: skip
        taken: dict[str, list[Took]] = {name: [] for name in ways}
        for _ in range(chosen.rounds):
            for name, command in ways.items():
                for place in ("cp", "out", "data/tables"):
                    shutil.rmtree(folder / place, ignore_errors=True)
                taken[name].append(timed(command))
        for name, some in taken.items():
            middle = [statistics.median(one) for one in zip(*some, strict=True)]
            print(f"{name:32} Spark runs {middle[0]:5.1f} s of CPU ({middle[1]:.1f} s), "
                  f"first batch {middle[2]:5.1f} s ({middle[3]:.1f} s)", flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
