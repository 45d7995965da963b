"""The same source, sink and pipeline on a standalone cluster and through Spark Connect.

The cluster is that of the PySpark package: a master and two workers on the loopback. On it a
driver, then an executor, is killed in the midst of a stream from topics to topics.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from hubbub.journal.table import Table
from hubbub.pipeline.layout import Layout
from hubbub.spark.hub import Hub
from tests.nursery import Nursery
from tests.pipeline.test_run import rows_of
from tests.process import Forked, RunningHub
from tests.spark.cluster import HOME, PATIENCE, PYTHONPATH, Cluster, environment, wait
from tests.spark.test_remote import ACCESS
from tests.spark.test_sink import published

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

MESSAGES = 1000
IMPORTED = ("hubbub.cli.pipeline", "hubbub.pipeline.run")
CONNECTS = ("pyspark.sql.connect.session",)  # where there is gRPC

DRIVER = """
import sys
import hubbub.spark
master, url, checkpoint = sys.argv[1:]
spark = hubbub.spark.session(
    master, **{"spark.executor.memory": "512m", "spark.task.maxFailures": "10"}
)
rows = hubbub.spark.messages(
    spark, "in/#", url, stream=True, maxOffsetsPerTrigger="200", minPartitions="2"
)
out = rows.selectExpr("replace(topic, 'in', 'out') AS topic", "payload")
query = out.writeStream.format("hubbub").option("url", url).option("query", "copy")
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
hubbub.spark.end(spark)
"""

CONNECT = """
import sys
import hubbub.spark
spark = hubbub.spark.session(remote=sys.argv[1])
rows = spark.read.format("hubbub").option("url", sys.argv[2]).option("topics", "in/#").load()
print("rows:", rows.count(), "of topic 1:", rows.where("topic = 'in/1'").count())
"""


@pytest.fixture(scope="module")
def cluster(quick_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def connect(quick_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")
    server = subprocess.Popen(
        [
            str(HOME / "bin" / "spark-submit"), "--master", "local[2]",
            "--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, cwd=tmp_path_factory.mktemp("connect"),
    )  # fmt: skip
    assert server.stdout is not None
    found = (re.search(r"started at: .*?:(\d+)", line) for line in server.stdout)
    port = next((match[1] for match in found if match), "")
    assert port, "the Connect server did not start"
    drained = threading.Thread(target=server.stdout.read)  # it must never wait for a reader
    drained.start()
    yield f"sc://127.0.0.1:{port}"
    os.killpg(server.pid, signal.SIGKILL)
    drained.join()
    server.communicate()


def feed(hub: RunningHub, first: int = 0) -> None:
    lines = [{"topic": f"in/{n % 5}", "payload": str(n)} for n in range(first, first + MESSAGES)]
    body = "\n".join(map(json.dumps, lines)).encode()
    Hub(hub.url("http"), ACCESS).ask("POST", "/api/v1/publish", body)


def rows(hub: RunningHub) -> int:
    return Table(str(hub.data)).committed()


def copies(hub: RunningHub) -> list[int]:
    return [int(row["payload"]) for row in published(hub) if row["topic"].startswith("out/")]


@pytest.mark.timeout(600)
def test_killed_drivers_and_executors_change_nothing(
    cluster: Cluster, hub: RunningHub, tmp_path: Path
) -> None:
    feed(hub)
    program = [sys.executable, "-c", DRIVER, cluster.master, hub.url("http")]
    program.append(str(tmp_path / "checkpoint"))
    log = open(tmp_path / "driver.log", "wb")

    def drive() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            program, env=cluster.environment, stdout=log, stderr=log, start_new_session=True
        )

    def goes_on(count: int) -> Callable[[], bool]:
        before = rows(hub)
        return lambda: rows(hub) >= before + count

    driver = drive()
    wait(goes_on(250), "the first driver did not begin")
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert len(copies(hub)) < MESSAGES, "it was over before it could be killed"
    driver = drive()
    wait(goes_on(250), "the second driver did not go on")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    assert driver.wait(PATIENCE) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    log.close()
    assert sorted(copies(hub)) == list(range(MESSAGES))


@pytest.mark.timeout(400)
def test_spark_connect(hub: RunningHub, connect: str) -> None:
    feed(hub)
    ran = subprocess.run(
        [sys.executable, "-c", CONNECT, connect, hub.url("http")],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert f"rows: {MESSAGES} of topic 1: {MESSAGES // 5}" in ran.stdout, ran.stderr


@pytest.mark.timeout(600)
def test_the_pipeline_on_a_cluster(cluster: Cluster, hub: RunningHub) -> None:
    """The journal comes from the hub, whose disk the workers of a cluster do not see."""
    follow_then_end(hub, "--master", cluster.master, "--hub", hub.url("http"))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_executors_change_no_table(cluster: Cluster, hub: RunningHub) -> None:
    """One or both of them, ten times, also of a table that Spark itself makes."""
    rules = hub.data.with_name("rules.toml")
    rules.write_text('[[table]]\nname = "own"\ntopics = "in/+"\ncolumns.n = "$ DOUBLE"\n')
    there = ("--master", cluster.master, "--hub", hub.url("http"), "--rules", str(rules))
    dice, killed = random.Random(), 0
    feed(hub)
    running = pipeline("run", "--data", str(hub.data), "--every", "0.3", *there)
    try:
        wait(lambda: stands_at(hub), "the first batch did not come")
        for number in range(1, 11):
            feed(hub, number * MESSAGES)
            time.sleep(dice.uniform(0, 3))
            for executor in cluster.executors()[: dice.choice((1, 2))]:
                os.kill(executor, signal.SIGKILL)
                killed += 1
            if number % 3 == 0:
                wait(lambda: stands_at(hub), f"it did not go on after {killed} were killed")
        wait(lambda: stands_at(hub), "the last batch did not come")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 0 and "Traceback" not in out + err, out + err
    assert killed >= 5, "they were there to be killed"
    each_once(hub, 11 * MESSAGES)
    own = f"'{hub.data}/tables/own/**/*.parquet'"
    query = f"select count(*), count(distinct seq), sum(n) from {own}"
    count = 11 * MESSAGES
    assert rows_of(hub.data, query) == [(count, count, sum(range(count)))]


@pytest.mark.timeout(600)
def test_the_pipeline_on_a_connect_server(hub: RunningHub, connect: str) -> None:
    follow_then_end(hub, "--remote", connect)
    feed(hub, 2 * MESSAGES)
    ran = pipeline("run", "--once", "--data", str(hub.data), "--remote", connect)
    out, err = ran.communicate(timeout=PATIENCE)
    assert (ran.returncode, err) == (0, ""), out
    each_once(hub, 3 * MESSAGES)
    query = "select count(*) as n from readings"
    ran = pipeline("sql", query, "--data", str(hub.data), "--remote", connect, "--format", "csv")
    assert ran.communicate(timeout=PATIENCE) == (f"n\n{3 * MESSAGES}\n", "")


@pytest.mark.timeout(600)
def test_a_table_at_a_url_that_is_gone_is_said_through_connect(
    hub: RunningHub, connect: str, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    of = ("--data", str(hub.data), "--tables", "messages,readings")
    words = ("run", "--to", place.as_uri(), "--remote", connect, *of)
    feed(hub)
    running = pipeline(*words, "--every", "0.5")
    try:
        wait(lambda: any((place / "_checkpoint/commits").glob("0")), "no batch came")
        shutil.rmtree(place / "readings")
        _, err = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert "tables lacks readings, which batches up to" in err
    _, err = pipeline(*words, "--once").communicate(timeout=PATIENCE)
    assert "tables lacks readings, which batches up to" in err
    anew = pipeline(*words, "--once", "--anew", "readings")
    out, err = anew.communicate(timeout=PATIENCE)
    assert anew.returncode == 0 and "readings was gone, with what batches 0 to" in out, err


@pytest.mark.timeout(600)
def test_what_is_gone_at_a_url_at_a_start_is_refused_through_connect(
    hub: RunningHub, connect: str, tmp_path: Path
) -> None:
    """Without `_progress` all was taken for new, and without a checkpoint rows were left out."""
    place, away = tmp_path / "tables", tmp_path / "away"
    of = ("--data", str(hub.data), "--tables", "messages,traffic", "--remote", connect)

    def once() -> str:
        ran = pipeline("run", "--once", "--to", place.as_uri(), *of)
        _, err = ran.communicate(timeout=PATIENCE)
        assert (ran.returncode == 0) == (err == ""), err
        return err

    feed(hub)
    assert once() == ""
    feed(hub, MESSAGES)
    for part, said in (
        ("_progress", "tables/_progress is gone: put it back, or name an empty place with --to"),
        ("_checkpoint", "has tables but their checkpoint is gone: put it back"),
        ("_checkpoint/metadata", "has tables but their checkpoint is gone: put it back"),
    ):
        (place / part).rename(away)
        assert said in once()
        shutil.rmtree(place / part, ignore_errors=True)
        away.rename(place / part)
    assert once() == ""
    found = [read_table(file).to_pylist() for file in (place / "messages").rglob("*.parquet")]
    seqs = [row["seq"] for rows in found for row in rows if row["topic"].startswith("in/")]
    assert len(seqs) == len({*seqs}) == 2 * MESSAGES
    (place / "_lock").touch()
    assert "are the tables of a data directory, which lie otherwise: leave --to out" in once()


def follow_then_end(hub: RunningHub, *where: str) -> None:
    """Run the pipeline, feed the hub before and meanwhile, and end it by Ctrl-C."""
    feed(hub)
    running = pipeline("run", "--data", str(hub.data), "--every", "0.5", *where)
    try:
        wait(lambda: stands_at(hub), "the first batch did not come")
        feed(hub, MESSAGES)
        wait(lambda: stands_at(hub), "the second batch did not come")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert (running.returncode, err) == (0, ""), out
    assert re.search(r"^batch 0: \d+ rows, .* behind, .* rows/s\)", out, re.MULTILINE), out
    assert out.endswith("Stopped; the next run goes on from here.\n")
    each_once(hub, 2 * MESSAGES)


@functools.cache
def nursery() -> Nursery:
    """Commands of the pipeline are forked: what each imports took more than many have to do."""
    return Nursery({}, (*IMPORTED, *(CONNECTS if find_spec("grpc") else ())))


def pipeline(*arguments: str) -> Forked:
    given = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return Forked(nursery(), ["hubbub", "pipeline", *arguments], given)


def stands_at(hub: RunningHub) -> bool:
    """Whether the tables have all rows of the journal."""
    progress = Layout(hub.data).progress()
    return progress is not None and progress.seq == rows(hub)


def each_once(hub: RunningHub, count: int) -> None:
    query = "select count(*), count(distinct seq), sum(value) from readings"
    assert rows_of(hub.data, query) == [(count, count, sum(range(count)))]
