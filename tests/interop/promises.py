"""What a hub has acknowledged, kept outside of it: by clients that believe nothing else.

A `Ledger` is what publishers were promised. `publish`, `send` add to it; `take` and `missing` ask
a hub for it again. All of them come back in time, whatever the hub does.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from hubbub.protocols.mqtt import codec

SUBSCRIBED: Final = ((b"a/#", 2), (b"r/#", 2))  # by everybody who is owed something
QUEUE: Final = "jobs"


@dataclass
class Ledger:
    """`messages`: acknowledged, for every lasting session. `retained`: by topic, all that was sent
    in order. `kept`: of these, how many up to the last acknowledged one. `queued`: in the queue.
    `got`: what each client has taken, as far as it knows.
    """

    messages: set[bytes] = field(default_factory=set)
    retained: dict[str, list[bytes]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    queued: set[bytes] = field(default_factory=set)
    got: dict[str, set[bytes]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # no two messages are equal

    def copy(self) -> Ledger:
        return Ledger(
            set(self.messages),
            {topic: list(sent) for topic, sent in self.retained.items()},
            dict(self.kept),
            set(self.queued),
            {name: set(got) for name, got in self.got.items()},
            self.numbers,
        )


class Gone(Exception):
    """The hub closed the connection, or said nothing for too long."""


class Line:
    """One MQTT connection. Every read ends at `until`."""

    def __init__(self, port: int, client: str, clean: bool, until: float) -> None:
        self.until = until
        self._rest = b""
        try:
            self.sock = socket.create_connection(("127.0.0.1", port), self._left())
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise Gone(f"no connection: {error}") from None
        self.say(codec.connect(client.encode(), clean, 0))
        kind, body = self.hear()
        if kind >> 4 != codec.CONNACK or body[1]:
            raise Gone(f"refused: {body!r}")
        self.present = bool(body[0])

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise Gone("nothing came in time")
        return left

    def say(self, *packets: bytes) -> None:
        try:
            self.sock.settimeout(self._left())
            self.sock.sendall(b"".join(packets))
        except OSError as error:
            raise Gone(str(error)) from None

    def hear(self) -> tuple[int, bytes]:
        """The first byte and the body of the next packet."""
        while True:
            for start, body, end in codec.packets(self._rest):
                head, packet = self._rest[start], self._rest[body:end]
                self._rest = self._rest[end:]
                return head, packet
            try:
                self.sock.settimeout(self._left())
                data = self.sock.recv(1 << 16)
            except OSError as error:
                raise Gone(str(error)) from None
            if not data:
                raise Gone("the hub closed the connection")
            self._rest += data

    def answer(self, head: int, body: bytes) -> codec.Publish | None:
        """Acknowledge what came; the message if it is one."""
        kind = head >> 4
        if kind == codec.PUBLISH:
            packet = codec.parse_publish(head, body)
            if packet.qos:
                answer = codec.PUBACK if packet.qos == 1 else codec.PUBREC
                self.say(codec.acknowledgement(answer, packet.packet_id))
            return packet
        if kind == codec.PUBREL:
            packet_id = int.from_bytes(body[:2], "big")
            self.say(codec.acknowledgement(codec.PUBCOMP, packet_id))
        return None


@contextmanager
def line(port: int, client: str, seconds: float, clean: bool = True) -> Iterator[Line]:
    made = Line(port, client, clean, time.monotonic() + seconds)
    try:
        yield made
    finally:
        made.sock.close()


def subscribe(port: int, client: str) -> None:
    """Begin a lasting session, and leave."""
    with line(port, client, 10, clean=False) as one:
        one.say(codec.subscribe(9, list(SUBSCRIBED)))
        while one.hear()[0] >> 4 != codec.SUBACK:
            pass


def publish(
    port: int, ledger: Ledger, many: int, seconds: float, size: int = 4000, client: str = "pub"
) -> int:
    """Publish so many, QoS 1 and 2, each third one retained; how many were acknowledged in time."""
    open_now: dict[int, tuple[str, bytes, bool]] = {}
    done = 0
    try:
        with line(port, client, seconds) as one:
            for packet_id in range(1, many + 1):
                payload = b"%d " % next(ledger.numbers) + bytes(size)
                retain = not packet_id % 3
                topic = f"r/{packet_id % 4}" if retain else f"a/{packet_id % 2}"
                if retain:
                    ledger.retained.setdefault(topic, []).append(payload)
                open_now[packet_id] = (topic, payload, retain)
                qos = 1 + packet_id // 2 % 2
                one.say(codec.publish(topic.encode(), payload, qos, retain, packet_id))
            while done < many:
                head, body = one.hear()
                packet_id = int.from_bytes(body[:2], "big")
                if head >> 4 in (codec.PUBACK, codec.PUBREC) and packet_id in open_now:
                    _promised(ledger, *open_now.pop(packet_id))
                    done += 1
                if head >> 4 == codec.PUBREC:
                    one.say(codec.acknowledgement(codec.PUBREL, packet_id))
    except Gone:
        pass
    return done


def _promised(ledger: Ledger, topic: str, payload: bytes, retain: bool) -> None:
    ledger.messages.add(payload)
    if retain:
        here = ledger.retained[topic].index(payload)
        ledger.kept[topic] = max(ledger.kept.get(topic, 0), here)


def take(port: int, ledger: Ledger, client: str, seconds: float) -> set[bytes]:
    """What is owed to this client comes; returns what did not in time. Gone: its session is."""
    got = ledger.got.setdefault(client, set())
    with line(port, client, seconds, clean=False) as one:
        if not one.present:
            raise Gone(f"the session of {client} is lost")
        try:
            while ledger.messages - got:
                packet = one.answer(*one.hear())
                if packet is not None:
                    got.add(packet.payload)
        except Gone:
            pass
    return ledger.messages - got


def retained_wrong(port: int, ledger: Ledger, seconds: float) -> dict[str, bytes]:
    """Retained topics that are older than what was acknowledged, or not there (b"")."""
    found: dict[str, bytes] = {}
    with line(port, "looks", seconds) as one:
        one.say(codec.subscribe(9, [(b"r/#", 0)]), codec.PINGREQ_PACKET)
        while True:
            head, body = one.hear()
            if head >> 4 == codec.PINGRESP:
                break
            packet = one.answer(head, body)
            if packet is not None:
                found[packet.topic.decode()] = packet.payload
    return {
        topic: found.get(topic, b"").partition(b" ")[0]
        for topic, at in ledger.kept.items()
        if found.get(topic) not in ledger.retained[topic][at:]
    }


class Web:
    """Requests of one message-switch client, one after the other."""

    def __init__(self, port: int, client: str, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.sock = socket.create_connection(("127.0.0.1", port), seconds)
        self.ask("GET", f"/login/{client}")

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sock.sendall(head.encode() + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        top, _, rest = data.partition(b"\r\n\r\n")
        size = int(top.lower().partition(b"content-length:")[2].partition(b"\r")[0])
        while len(rest) < size:
            rest += self._more()
        if not top.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(top.decode(errors="replace"))
        return rest

    def _more(self) -> bytes:
        self.sock.settimeout(max(self._until - time.monotonic(), 0.001))
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the hub is gone")
        return data


def send(port: int, ledger: Ledger, many: int, seconds: float, size: int = 500) -> int:
    """Send so many to the queue; how many the hub took in time."""

    def sent(web: Web) -> None:
        web.ask("GET", f"/persistent/{QUEUE}")
        for _ in range(many):
            payload = b"%d " % next(ledger.numbers) + b"x" * size
            web.ask("POST", f"/request/{QUEUE}/none", payload)
            ledger.queued.add(payload)

    before = len(ledger.queued)
    _within(port, "sender", seconds, sent)
    return len(ledger.queued) - before


def queue_missing(port: int, ledger: Ledger, seconds: float) -> set[bytes]:
    """What was taken for the queue and is not in it; reading leaves it there."""
    found: set[bytes] = set()

    def read(web: Web) -> None:
        cursor = "-1"
        while True:
            wanted = {"from": cursor, "timeout": 0.0, "queues": [QUEUE]}
            answer = json.loads(web.ask("POST", "/transfer", json.dumps(wanted).encode()))
            if not answer["messages"]:
                return
            cursor = answer["next"]
            found.update(said["payload"].encode() for _, said in answer["messages"])

    _within(port, "reader", seconds, read)
    return ledger.queued - found


def _within(port: int, client: str, seconds: float, step: Callable[[Web], None]) -> None:
    try:
        web = Web(port, client, seconds)
        with web.sock:
            step(web)
    except (OSError, ValueError):
        pass
