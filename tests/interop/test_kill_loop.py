"""`kill -9` at random moments, again and again, under the load of clients people use.

Two publishers (QoS 1 and 2), a subscriber with a session, a retained topic and a queue. What was
acknowledged is known only after the last publish is over: then nothing of it may be missing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MessageState

from hubbub import server
from hubbub.config.settings import Journal, Settings
from tests.interop.test_crash import Web
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 30.0
RELEASED = (MessageState.MQTT_MS_RESEND_PUBREL, MessageState.MQTT_MS_WAIT_FOR_PUBCOMP)


class Client(paho.Client):
    """paho forgets what it has released if its second attempt to come back fails too, and
    publishes that once more; a client must not (MQTT 3.1.1, 4.3.3).
    """

    def _messages_reconnect_reset_out(self) -> None:
        released = [one for one in self._out_messages.values() if one.state in RELEASED]
        super()._messages_reconnect_reset_out()
        for message in released:
            message.state = RELEASED[0]


def serve(port: int, data: Path) -> None:
    """What a process does that runs the hub."""
    for number, name in ((1, os.devnull), (2, str(data.parent / "hub.log"))):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    # Small segments, so that folding and compressing are interrupted too.
    journal = Journal(segment_bytes=200_000)
    server.run(Settings(listen=(f"127.0.0.1:{port}",), data=str(data), journal=journal))


class Hub:
    """A hub that is forked from a process in which everything is imported: ten starts of a
    program would be most of the test.
    """

    _nursery = multiprocessing.get_context("forkserver")

    def __init__(self, port: int, data: Path) -> None:
        self._nursery.set_forkserver_preload([__name__])
        self.process = self._nursery.Process(target=serve, args=(port, data), daemon=True)
        self.process.start()
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                return
            except OSError:
                log = data.parent / "hub.log"
                assert self.process.is_alive(), log.read_text()
                assert time.monotonic() < until, "the hub does not listen"
                time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def at_once(_client: Any, _data: Any, sock: Any) -> None:
    """Else each PUBREC behind a PUBACK waits 40 ms for the system's delayed acknowledgement."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def client(name: str, port: int) -> Client:
    made = Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
    made.reconnect_delay_set(0.05, 0.1)  # type: ignore[arg-type]
    made.on_socket_open = at_once
    made.connect("127.0.0.1", port)
    return made


class Publisher:
    """Publishes numbers to one topic with a few on their way. `done`: message ids that are
    acknowledged. paho sends new messages between those it repeats, so none is published from the
    end of a connection until all open ones are done.
    """

    def __init__(self, name: str, port: int, topic: str, qos: int, retain: bool = False) -> None:
        self.topic, self.qos, self.retain = topic, qos, retain
        self.sent: list[tuple[bytes, int]] = []
        self.done: set[int] = set()
        self.client = client(name, port)
        self.steady = True
        self.client.on_disconnect = lambda *_: setattr(self, "steady", False)
        self.client.on_publish = lambda _client, _data, mid, *_: self.done.add(mid)
        self.client.loop_start()

    def publish(self) -> None:
        open_now = sum(mid not in self.done for _, mid in self.sent[-20:])
        self.steady = self.steady or not open_now
        if self.steady and open_now < 10 and self.client.is_connected():
            payload = b"%d" % len(self.sent)
            info = self.client.publish(self.topic, payload, self.qos, self.retain)
            self.sent.append((payload, info.mid))

    def finish(self) -> list[bytes]:
        until = time.monotonic() + PATIENCE
        while missing := {mid for _, mid in self.sent} - self.done:
            assert time.monotonic() < until, f"{self.topic}: {len(missing)} not acknowledged"
            time.sleep(0.02)
        self.client.disconnect()
        self.client.loop_stop()
        return [payload for payload, _ in self.sent]


class Subscriber:
    """`got`: by topic, every payload as it came."""

    def __init__(self, name: str, port: int, *filters: str) -> None:
        self.got: dict[str, list[bytes]] = {}
        self.subscribed = threading.Event()
        self.client = client(name, port)
        self.client.on_message = self._keep
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.subscribe([(name, 2) for name in filters])
        self.client.loop_start()
        assert self.subscribed.wait(PATIENCE)

    def _keep(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.got.setdefault(message.topic, []).append(bytes(message.payload))

    def wait_for(self, topic: str, payloads: list[bytes]) -> list[bytes]:
        until = time.monotonic() + PATIENCE
        while missing := set(payloads) - set(self.got.get(topic, [])):
            assert time.monotonic() < until, f"{topic}: {sorted(missing)} never came"
            time.sleep(0.02)
        return self.got[topic]

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Sender(threading.Thread):
    """Sends numbers to a queue over HTTP; `ids`: by payload, what the hub answered."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.ids: dict[str, int] = {}
        self.over = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as sock:
                    self._send(Web(sock))
            except (OSError, AssertionError):
                time.sleep(0.02)  # killed: nobody knows what became of the last one

    def _send(self, web: Web) -> None:
        web.sock.settimeout(5)
        web.ask("GET", "/login/sender")
        web.ask("GET", "/persistent/jobs")
        while not self.over.is_set():
            self.count += 1
            answer = web.ask("POST", "/request/jobs/none", b"%d" % self.count)
            self.ids[str(self.count)] = int(answer.rpartition(b",")[2].rstrip(b"]"))


def queued(port: int) -> dict[str, int]:
    """All messages of the queue: payload -> id; none may have the id of another."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        web = Web(sock)
        web.ask("GET", "/login/reader")
        found: dict[str, int] = {}
        cursor = "-1"
        while True:
            wanted = {"from": cursor, "timeout": 0.0, "queues": ["jobs"]}
            answer = json.loads(web.ask("POST", "/transfer", json.dumps(wanted).encode()))
            if not answer["messages"]:
                break
            cursor = answer["next"]
            found |= {said["payload"]: number for (_, number), said in answer["messages"]}
    assert len(set(found.values())) == len(found), "an id was used twice"
    return found


def in_order(got: list[bytes]) -> bool:
    """Whether each came for the first time after those before it."""
    first = list(dict.fromkeys(map(int, got)))
    return first == sorted(first)


def loop(start: Callable[[], Hub], port: int, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    hub = start()
    subscriber = Subscriber("subscriber", port, "one", "two")
    one, two = Publisher("one", port, "one", 1), Publisher("two", port, "two", 2)
    kept = Publisher("kept", port, "kept", 1, retain=True)
    sender = Sender(port)
    sender.start()
    for _ in range(rounds):
        until = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < until:
            for publisher in (one, two, kept):
                publisher.publish()
            time.sleep(0.001)
        hub.kill()
        hub = start()
    sender.over.set()
    sender.join(PATIENCE)
    assert not sender.is_alive()
    sent = {publisher.topic: publisher.finish() for publisher in (one, two, kept)}
    for topic in ("one", "two"):
        assert in_order(subscriber.wait_for(topic, sent[topic])), topic
    assert len(set(subscriber.got["two"])) == len(subscriber.got["two"]), "QoS 2 came twice"
    subscriber.stop()
    late = Subscriber("late", port, "kept")
    assert late.wait_for("kept", sent["kept"][-1:]) == sent["kept"][-1:]
    late.stop()
    assert sender.ids.items() <= queued(port).items()
    for load in (len(sender.ids), len(sent["one"]), len(sent["two"])):
        assert load > rounds, "there was hardly any load"


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Callable[[int, int], None]]:
    """Run the loop: so many rounds, from that seed."""
    port, hubs = free_port(), []

    def start() -> Hub:
        hubs.append(Hub(port, tmp_path / "data"))
        return hubs[-1]

    yield lambda rounds, seed: loop(start, port, rounds, seed)
    for hub in hubs:
        hub.kill()


def test_ten_times(again: Callable[[int, int], None]) -> None:
    again(10, 1)


@pytest.mark.soak
def test_a_hundred_times(again: Callable[[int, int], None]) -> None:
    again(100, 2)
