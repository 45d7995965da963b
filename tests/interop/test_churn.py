"""Who comes and goes all day leaves nothing behind: in the hub's counts, and in its memory.

Lives of each protocol, over real sockets, each with names that nobody had before: sessions that
last and end, wills, retained messages that are cleared, queues that are made and destroyed, calls,
devices, half of them cut off in the middle. `make test` lives some hundreds, `make soak` an hour of
them (CHURN_MINUTES): by then the hub's memory must be flat.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from tests.process import RunningHub, StartHub

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: to close is to cut off
ACCEPTED = 17 + 8  # bytes: Init with 127.0.0.1, and a Connack that ends in the device's number
SECONDS = 20.0
MINUTES = float(os.environ.get("CHURN_MINUTES", "60"))
GROWTH = 1.1  # from the second quarter to the last one: it goes up and down by a tenth
GONE = ("client_count", "sessions_away", "queue_count", "retained", "connections")


@contextmanager
def dialed(hub: RunningHub, cut: bool) -> Iterator[socket.socket]:
    host, _, port = hub.address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as sock:
        if cut:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        yield sock


def heard(sock: socket.socket, end: bytes) -> bytes:
    """All that comes up to these bytes."""
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        assert piece, f"the hub closed a connection behind {data!r}"
        data += piece
    return data


def mqtt(hub: RunningHub, number: int, cut: bool) -> None:
    """A reader whose session may last, and a writer of every QoS with a will."""
    name, lasts = b"churn/%d" % number, number % 3 == 0
    will = codec.Will(name + b"/will", b"gone", 1, False)
    with dialed(hub, cut) as reader, dialed(hub, cut) as writer:
        subscribed = codec.subscribe(1, [(name + b"/#", 2)])
        reader.sendall(codec.connect(b"r%d" % number, not lasts, 60) + subscribed)
        heard(reader, b"\x90\x03\x00\x01\x02")
        writer.sendall(codec.connect(b"w%d" % number, True, 60, will))
        for qos in (0, 1, 2):
            writer.sendall(codec.publish(name + b"/%d" % qos, b"x" * 50, qos, packet_id=qos + 1))
        writer.sendall(codec.acknowledgement(codec.PUBREL, 3))
        writer.sendall(codec.publish(name + b"/kept", b"kept", 1, True, 4))
        heard(writer, b"\x40\x02\x00\x04")
        heard(reader, b"kept")
        writer.sendall(codec.publish(name + b"/kept", b"", 1, True, 5))
        heard(writer, b"\x40\x02\x00\x05")
        if not cut:
            writer.sendall(codec.DISCONNECT_PACKET)
    if lasts:  # it comes once more, so that its session ends with it
        with dialed(hub, False) as again:
            again.sendall(codec.connect(b"r%d" % number, True, 60))
            heard(again, b"\x20\x02\x00\x00")


def device(hub: RunningHub, number: int, cut: bool) -> None:
    """An SMQ device that subscribes to a name and publishes to it."""
    with dialed(hub, cut) as sock:
        head = b"GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"
        sock.sendall(head + smq.framed(smq.build_connect(b"device-%06d" % number)))
        accepted = sock.recv(ACCEPTED, socket.MSG_WAITALL)
        own = int.from_bytes(accepted[-4:], "big")
        sock.sendall(smq.framed(smq.message(smq.SUBSCRIBE, rest=b"device/%d" % number)))
        answer = heard(sock, b"device/%d" % number)
        at = answer.index(b"device/%d" % number)
        topic = int.from_bytes(answer[at - 4 : at], "big")
        sock.sendall(smq.framed(smq.message(smq.PUBLISH, topic, own, 0, rest=b"hello %d" % number)))
        heard(sock, b"hello %d" % number)
        if not cut:
            sock.sendall(smq.framed(smq.message(smq.DISCONNECT)))


def call(hub: RunningHub, number: int, cut: bool) -> None:
    """A caller and a service of message-switch, and both of their queues destroyed."""
    service, replies = f"service-{number}", f"caller-{number}"

    def said(sock: socket.socket, method: str, path: str, body: str = "") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body.encode())
        answer = heard(sock, b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return answer.partition(b"\r\n\r\n")[2]

    with dialed(hub, cut) as sock:
        said(sock, "GET", f"/login/token-{number}")
        said(sock, "GET", f"/persistent/{service}")
        said(sock, "GET", f"/transient/{replies}")
        said(sock, "POST", f"/request/{service}/{replies}", "?")
        said(sock, "POST", f"/response/{replies}/{service}/0", "!")
        said(sock, "GET", f"/ack/{service}/0")
        said(sock, "GET", f"/destroy/{service}")
        said(sock, "GET", f"/destroy/{replies}")


LIVES: dict[str, Callable[[RunningHub, int, bool], None]] = {
    "mqtt": mqtt, "device": device, "call": call,
}  # fmt: skip


def lived(hub: RunningHub, begin: int, count: int) -> None:
    for number in range(begin, begin + count):
        for live in LIVES.values():
            live(hub, number, number % 2 == 1)


def counts(hub: RunningHub) -> dict[str, int]:
    with urllib.request.urlopen(hub.url("http") + "/api/v1/status", timeout=SECONDS) as answer:
        status = json.load(answer)
    return {name: status[name] for name in GONE}


def left(hub: RunningHub, before: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What there is more, or less, of than before, when all who went had time to go."""
    until = time.monotonic() + SECONDS
    while (now := counts(hub)) != before and time.monotonic() < until:
        time.sleep(1.0)  # the last one that asked is gone by then, too
    return {name: (before[name], now[name]) for name in GONE if before[name] != now[name]}


@pytest.mark.interop
def test_nobody_is_left_of_hundreds_of_lives(start_hub: StartHub) -> None:
    hub = start_hub()
    before = counts(hub)
    lived(hub, 0, 200)
    assert left(hub, before) == {}


@pytest.mark.soak
@pytest.mark.timeout(120 * MINUTES)
def test_memory_is_flat_over_an_hour_of_lives(start_hub: StartHub) -> None:
    """In a hub that folds its journal all the while: what grows with the rows must not stay."""
    hub = start_hub("--set", "journal.segment_bytes=1048576")
    before = counts(hub)
    began, number, minutes = time.monotonic(), 0, list[int]()
    while len(minutes) < MINUTES:
        lived(hub, number, 20)
        number += 20
        if time.monotonic() - began > 60 * (len(minutes) + 1):
            minutes.append(hub.memory()[1])
            print(f"{number:9,} lives of each, {minutes[-1]} MiB", flush=True)
    assert left(hub, before) == {}
    quarter = max(1, len(minutes) // 4)
    assert max(minutes[-quarter:]) <= GROWTH * max(minutes[quarter : 2 * quarter]), minutes
