"""Exactly once: the driver is killed at random moments, and the tables are as if it never was."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from hubbub.journal.table import Table as Journal
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.after import Named
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.publish import Publisher
from hubbub.pipeline.rules import read_rules
from hubbub.pipeline.tables import ALL, alerts
from hubbub.pipeline.tables.table import CARRIED
from hubbub.pipeline.tables.typed import every
from hubbub.spark.hub import Hub
from hubbub.spark.options import access
from tests.process import ROOT, RunningHub

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


ALERTS = """
[[alert]]
name = "broken"
topic = "alerts/none"
sql = "SELECT raise_error('it burns') FROM readings WHERE value > 3"

[[alert]]
name = "tenth"
topic = "alerts/tenth"
sql = "SELECT seq, value FROM readings WHERE value % 10 = 0 AND topic = 'plant/0'"

[[table]]
name = "plant"
topics = "plant/+"
columns.t = "$.t DOUBLE NOT NULL"

[[table]]
name = "firsts"
topics = "plant/+"
columns.t = "$.t DOUBLE"
dedupe_by = ["t"]

[[table]]
name = "seconds"
topics = "plant/+"
window = "1 second"
columns.mean = "avg $.t DOUBLE"
columns.last = "max $.t DOUBLE"
"""


class Traffic(threading.Thread):
    """Messages, and a lasting session that comes and goes and answers calls, until `stop`.

    `rest`: seconds between two dozen messages.
    """

    def __init__(self, hub: RunningHub, rest: float = 0.03) -> None:
        super().__init__()
        self.stop = threading.Event()
        self._rest = rest
        self._hub = hub
        self._publisher = Publisher(Hub(hub.url("http"), access({})))

    def run(self) -> None:
        number = 0
        while not self.stop.wait(0.05):
            client = paho.Client(CallbackAPIVersion.VERSION2, "lasting", protocol=paho.MQTTv5)
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 1000
            client.connect("127.0.0.1", self._hub.port, properties=properties, clean_start=False)
            client.on_message = answer
            client.loop_start()
            client.subscribe([("plant/#", 1), ("$queue/work", 1)])
            for _ in range(5):
                self._publisher.send(f"traffic/{number}/0", 0, self._messages(number))
                number += 1
                self.stop.wait(self._rest)
            client.disconnect()
            client.loop_stop()

    def _messages(self, number: int) -> list[dict[str, Any]]:
        values = [
            {"topic": f"plant/{n % 3}", "qos": 1, "payload": f'{{"t": {number}.{n}}}'}
            for n in range(20)
        ]
        large = {"topic": "plant/file", "payload": "x" * 300_000} if number % 4 == 0 else None
        broken = {"topic": "plant/0", "payload": "{", "content_type": "application/json"}
        ask = {"topic": "$queue/work", "payload": "?", "reply_to": "answers"}
        return [*values, broken, ask, *([large] if large else [])]


def answer(client: paho.Client, data: object, asked: paho.MQTTMessage) -> None:
    """Answer a call; nobody asks for an answer to the other messages."""
    topic = getattr(asked.properties, "ResponseTopic", "")
    if topic:
        client.publish(topic, b"!", qos=1)


def kill_while_it_works(data: Path, dice: random.Random, rules: Path) -> None:
    """A pipeline as a process of its own, with its JVM, killed within its first few batches.

    A driver counts batches and not seconds: on a busy machine it would never get to one.
    """
    code = (
        "import sys, threading\n"
        "from hubbub.pipeline import run\n"
        "from hubbub.pipeline.after import Named\n"
        "from hubbub.spark.start import session\n"
        "from hubbub.pipeline.rules import read_rules\n"
        "run.ROWS = 400\n"
        "spark = session('local[1]')\n"
        "print('ready', flush=True)\n"
        "run.run(spark, sys.argv[1], threading.Event(), every=0.1,\n"
        "    rules=read_rules(sys.argv[2]), catalog=Named('sqlite'))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(data), str(rules)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline(), "the driver did not start"
        enough = batches(data) + dice.randrange(3)
        deadline = time.monotonic() + 200  # for a machine that may be busy
        while batches(data) < enough and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(dice.uniform(0, 3))
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    print(f"killed with {batches(data)} whole batches")
    deadline = time.monotonic() + 20
    while Layout(data).writer() is not None and time.monotonic() < deadline:
        time.sleep(0.05)


def batches(data: Path) -> int:
    progress = Layout(data).progress()
    return 0 if progress is None else progress.batch + 1


def contents(data: Path) -> dict[str, list[str]]:
    """All final rows of all tables, and the open ones, whatever batch wrote them.

    An alert has the number of its batch: what was found is the rest of it.
    """
    layout = Layout(data)
    found = {}
    for table in every(layout):
        left = {"day", *(("seq", "number", "time") if table is alerts.TABLE else ())}
        columns = ", ".join(f'"{one.name}"' for one in table.columns if one.name not in left)
        places = {table.name: f"{layout.root}/{table.name}/**/*.parquet"}
        if isinstance(table, CARRIED):
            opened = layout.carried(table.name, layout.stands().batch)
            if opened:
                places[f"{table.name}_open"] = str(opened[0].parent / "*.parquet")
        for name, place in places.items():
            # Beside open rows lies what only the next batch needs, without a first column.
            query = f"select {columns} from '{place}' where {table.columns[0].name} is not null"
            found[name] = texts(duckdb.connect(), query)
    return found


def texts(reader: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """The rows of a query as texts, in order: Python's own times would take minutes."""
    reader.execute("set timezone = 'UTC'")
    asked = reader.execute(f"select cast(row(*columns(one.*)) as varchar) from ({query}) one")
    return sorted(str(row[0]) for row in asked.fetchall())


def catalogued(data: Path) -> dict[str, list[str]]:
    """The final rows as the catalog has them, in the same form."""
    uri = f"sqlite:///{Layout(data).root}/_iceberg/catalog.db"
    catalog = load_catalog("hubbub", type="sql", uri=uri)
    found = {}
    for table in every(Layout(data)):
        left = {"day", *(("seq", "number", "time") if table is alerts.TABLE else ())}
        columns = ", ".join(f'"{one.name}"' for one in table.columns if one.name not in left)
        reader = duckdb.connect()
        catalog.load_table(f"hubbub.{table.name}").scan().to_duckdb(table.name, reader)
        found[table.name] = texts(reader, f"select {columns} from {table.name}")
    return found


def check(
    spark: SparkSession, hub: RunningHub, rounds: int, dice: random.Random, rest: float = 0.03
) -> None:
    """With alerts each driver takes twice as long until it writes."""
    file = hub.data.with_name("rules.toml")
    file.write_text(ALERTS)
    rules = read_rules(file)
    traffic = Traffic(hub, rest)
    traffic.start()
    try:
        for _ in range(rounds):
            kill_while_it_works(hub.data, dice, file)
    finally:
        traffic.stop.set()
        traffic.join()
    hub.stop()
    assert batches(hub.data), "no driver came to a batch before it was killed"
    named = Named("sqlite")
    pipeline.run(spark, hub.data, threading.Event(), once=True, rules=rules, catalog=named)
    whole = hub.data.with_name("whole")
    shutil.copytree(hub.data, whole, ignore=shutil.ignore_patterns("tables", "lock"))
    pipeline.run(spark, whole, threading.Event(), once=True, rules=rules)
    assert Layout(whole).stands().seq == Journal(str(hub.data)).committed()
    killed, batch = contents(hub.data), contents(whole)
    assert killed.keys() == batch.keys()
    for name, rows in batch.items():
        assert killed[name] == rows, name
    assert killed["plant"] and killed["seconds"] and killed["firsts"]
    for name, rows in catalogued(hub.data).items():
        assert killed[name] == rows, f"{name} in the catalog"
    for table in ALL:
        # A minute of traffic closes a minute later, which two kills may not take.
        place = "traffic_open" if table.name == "traffic" else table.name
        assert batch[place] or (place == "alerts" and not rules.alert), f"nothing for {place}"


@pytest.mark.timeout(1500)  # three starts of Spark, on a machine that may be busy
def test_two_kills(spark: SparkSession, hub: RunningHub) -> None:
    """One before anything is whole, or soon after, and one of a driver that went on from there.

    Of less traffic than below: most of it comes while drivers start, and each row is written twice.
    """
    check(spark, hub, 2, random.Random(7), 0.15)


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("quarter", [1, 2, 3, 4])
def test_a_hundred_kills(spark: SparkSession, hub: RunningHub, quarter: int) -> None:
    """With typed tables, a catalog and alerts, each quarter on one hub's journal that grows."""
    check(spark, hub, 25, random.Random())
