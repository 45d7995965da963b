"""The tables of a real hub that carried everything, and those of who has only the page.

docs/journal-format.md must say enough: `stranger` is written from it, and gets every row right.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pyarrow.parquet as pq
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql import SparkSession

from hubbub.pipeline import run as pipeline
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.tables import calls, deliveries, sessions
from hubbub.pipeline.tables.table import Folded, names
from hubbub.protocols.switch import codec
from tests.pipeline import stranger
from tests.pipeline.tables.test_stranger import in_order
from tests.process import RunningHub, StartHub
from tests.test_rpc import PEERS, Switch, peer, until_empty

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

ODD = "pump%41-Ä"  # in the journal it is another text
HUB = ("--set", "session.backlog_messages=20", "--set", "journal.segment_bytes=65536")
PATIENCE = 20.0


class Device:
    """paho that acknowledges what it is told to, and when; a session that lasts."""

    def __init__(self, port: int, name: str, **options: Any) -> None:
        self.heard: queue.SimpleQueue[paho.MQTTMessage] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True
        )
        self.paho.on_message = lambda client, data, message: self.heard.put(message)
        self.paho.on_connect = self.paho.on_subscribe = self.paho.on_publish = (
            lambda *said: self.said.put(said)
        )
        lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        lasting.SessionExpiryInterval = 1000
        options = {"clean_start": False, **options}
        self.paho.connect("127.0.0.1", port, properties=lasting, **options)
        self.paho.loop_start()
        self.said.get(timeout=PATIENCE)

    def subscribe(self, *topics: str, qos: int = 1) -> None:
        self.paho.subscribe([(topic, qos) for topic in topics])
        self.said.get(timeout=PATIENCE)

    def publish(self, topic: str, *payloads: str, qos: int = 1, **more: Any) -> None:
        for payload in payloads:
            self.paho.publish(topic, payload, qos, **more)
            self.said.get(timeout=PATIENCE)

    def take(self, count: int) -> list[paho.MQTTMessage]:
        return [self.heard.get(timeout=PATIENCE) for _ in range(count)]

    def ack(self, *messages: paho.MQTTMessage) -> None:
        for message in messages:
            assert self.paho.ack(message.mid, message.qos) == MQTTErrorCode.MQTT_ERR_SUCCESS

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def device(hub: RunningHub, name: str, **options: Any) -> Iterator[Device]:
    made = Device(hub.port, name, **options)
    try:
        yield made
    finally:
        made.close()


def topics(hub: RunningHub) -> None:
    """Deliveries that are acknowledged in any order, more than once open, and too many."""
    with device(hub, ODD) as odd, device(hub, "far") as far, device(hub, "source") as source:
        odd.subscribe("a/#", qos=2)
        far.subscribe("a/#", "$share/g/s")
        odd.subscribe("$share/g/s")
        source.publish("a/1", "1", "2", "3")
        source.publish("a/2", "4", qos=2)
        source.publish("a/1", "5", qos=0)
        first, second, third, *_ = odd.take(5)
        odd.ack(third, first)
        far.ack(*(one for one in far.take(5) if one.qos))
        source.publish("kept", "k", retain=True)
        for _ in range(3):  # the same message is open three times
            odd.subscribe("kept")
        one, two, three = odd.take(3)
        odd.ack(two)
        source.publish("s", *map(str, range(6)))
        source.publish("$delayed/1/a/1", "late")
        odd.ack(second, three, *odd.take(1))
    with device(hub, "source") as source:
        source.publish("a/1", *map(str, range(30)))  # 20 may wait
    with device(hub, ODD) as odd, device(hub, "far", clean_start=True):
        for message in odd.take(6):
            odd.ack(message)


async def queues(hub: RunningHub) -> None:
    """Calls of every protocol by every other, and queues that give messages up."""
    for caller, responder in itertools.product(PEERS, PEERS):
        odd = "" if "switch" in (caller, responder) else "%41"  # in a URL it is another name
        name = f"{caller}-{responder}{odd}"
        async with peer(caller, hub.port, name) as asking, peer(responder, hub.port, name) as other:
            await other.respond()
            await asking.ask(b"?")
            await other.answer(await other.taken(), b"!")
            assert await asking.heard() == b"!"
            await until_empty(hub, name)
            await asking.ask(b"again?")  # nobody answers
            await other.taken()
    async with peer("switch", hub.port, "jobs") as user:
        assert isinstance(user, Switch)
        await settled(user, "dead", {})
        await settled(user, "jobs", {"lease": 1, "max_deliveries": 1, "dead_letter": "dead"})
        await settled(user, "short", {"expires": 1})
        for place in ("jobs", "short", "gone"):
            await user.say(user.streams, "GET", f"/persistent/{place}")
            await user.say(user.streams, "POST", codec.target("request", place, user.name), b"job")
        wanted = {"timeout": 1.0, "queues": ["jobs"]}
        await user.say(user.streams, "POST", "/transfer", json.dumps(wanted).encode())
        await user.say(user.streams, "GET", "/destroy/gone")
        await asyncio.sleep(3)  # leases and messages are over


async def settled(user: Switch, name: str, settings: dict[str, Any]) -> None:
    await user.say(user.streams, "POST", f"/create/{name}", json.dumps(settings).encode())


def kinds(rows: list[stranger.Row]) -> set[str]:
    """What the traffic must have had, so that the page is asked about it."""
    seen: dict[str, Callable[[stranger.Row], bool]] = {
        "another than the oldest": lambda row: "delivery" in row["said"] and row["kind"] == "ack",
        "several at once": lambda row: row["kind"] == "ack" and row["number"] > 1,
        "an answer by publish": lambda row: "answers" in row["said"] and row["kind"] == "publish",
        "an answer by send": lambda row: row["kind"] == "send" and row["ref"] > 0,
        "too many": lambda row: row["kind"] == "drop" and not row["topic"],
        "given up": lambda row: row["kind"] == "drop" and row["topic"].startswith("$queue/"),
        "over": lambda row: row["kind"] == "end",
        "destroyed": lambda row: row["kind"] == "destroy",
        "shared": lambda row: row["kind"] == "queued" and row["topic"] != "",
        "delayed": lambda row: row["topic"] == "$delayed/",
        "odd": lambda row: row["client"] == "pump%2541-Ä",
    }
    return {name for name, is_it in seen.items() if not any(map(is_it, rows))}


@pytest.mark.timeout(300)
def test_a_stranger_gets_every_row_right(
    spark: SparkSession, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub(*HUB)
    topics(hub)
    asyncio.run(queues(hub))
    with device(hub, "here when it ends") as there:
        there.subscribe("a/#")
        hub.stop(signal.SIGKILL)
    hub = start_hub(*HUB)
    with device(hub, ODD) as odd, device(hub, "source") as source:
        source.publish("a/3", "1", "2", qos=2)
        odd.ack(*odd.take(3))
    hub.stop()

    monkeypatch.setattr(pipeline, "ROWS", 150)
    pipeline.run(spark, hub.data, threading.Event(), once=True)
    rows = list(stranger.rows_of(hub.data))
    found = stranger.tables(iter(rows))
    assert kinds(rows) == set(), "the traffic lacks these"
    for module in (deliveries, calls, sessions):
        table = module.TABLE
        assert in_order(found[table.name]) == in_order(in_files(hub.data, table)), table.name
        assert {row["status"] for row in found["deliveries"]} >= {
            "acknowledged", "dropped", "ended", "destroyed", "open",
        }  # fmt: skip


def in_files(data: Path, table: Folded) -> list[stranger.Row]:
    """The rows of a table, final and open, as they lie on the disk."""
    layout = Layout(data)
    progress = layout.stands()
    files = [part.file for part in layout.files(table.name, -1, progress.batch)]
    files += layout.carried(table.name, progress.batch)
    columns = names(table.columns)
    found = (pq.ParquetFile(file).read(columns=columns).to_pylist() for file in files)
    return [row for rows in found for row in rows if row["seq"] is not None]
