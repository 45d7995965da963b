"""What was tried against a hub by one who is let in, or who only reaches the port, with its count.

    python -m tests.interop.attacks [PART]      a table: all with 1/PART of the counts

Each attack runs in a process of its own against a hub of its own, while two honest clients ask
something every 20 ms: one pings, the other publishes and waits for the acknowledgement. A row
says the longest that either waited, and the hub's memory at its most and five seconds afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.auth.passwords import add_user
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from tests import security
from tests.process import ROOT, RunningHub

MIB: Final = 1 << 20
SMQ_HEAD: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"
BASIC: Final = b"Authorization: Basic bWFsOnNlY3JldA==\r\n"  # mal:secret


class Attack(NamedTuple):
    """`tool` says how; `run` takes the port and how many times, and ends by itself."""

    tool: str
    times: int
    run: Callable[[int, int], None]


class Row(NamedTuple):
    """What one did: seconds, seconds, MiB, MiB."""

    attack: str
    tool: str
    times: int
    ping: float
    publish: float
    most: int
    after: int


# The attacker's side: blocking sockets, nothing clever.


def dial(port: int, first: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.sendall(first)
    return sock


def mal(port: int, client: bytes, lasting: bool = False, v5: bool = True) -> socket.socket:
    """A client of MQTT that was let in as the user mal."""
    properties = codec.Properties({0x11: 1000} if lasting else {}) if v5 else None
    sock = dial(
        port, codec.connect(client, not lasting, 60, None, b"mal", b"secret", properties=properties)
    )
    sock.recv(1000)
    return sock


@contextlib.contextmanager
def suffered() -> Iterator[None]:
    """The hub may end it at any time; that is what is tried."""
    with contextlib.suppress(OSError):
        yield


def varint(number: int) -> bytes:
    found = b""
    while True:
        number, low = divmod(number, 128)
        found += bytes([low | (128 if number else 0)])
        if not number:
            return found


def half_messages(port: int, count: int) -> None:
    """PUBLISHes of 63 MiB of which the last MiB never comes."""
    head = b"\x30" + varint(63 * MIB) + b"\0\1a\0"
    socks = []
    for number in range(count):
        with suffered():
            sock = mal(port, b"half%d" % number)
            socks.append(sock)
            sock.sendall(head)
            for _ in range(62):
                sock.sendall(bytes(MIB))
    time.sleep(1)


def unread_answers(port: int, count: int) -> None:
    """Each asks 40 times for what is in a queue of 32 MiB, and reads nothing."""
    sock = dial(port, _post("/login/mal") + _post("/persistent/q"))
    sock.recv(1000)
    for _ in range(32):
        with suffered():
            sock.sendall(_post("/request/q/q", bytes(MIB)))
            sock.recv(1000)
    wanted = b'{"timeout": 0, "queues": ["q"]}'
    socks = []
    for number in range(count):
        with suffered():
            socks.append(dial(port, _post(f"/login/mal{number}") + _post("/transfer", wanted) * 40))
    time.sleep(3)


def _post(path: str, body: bytes = b"") -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n"
        % (path.encode(), BASIC, len(body))
    ) + body


def user_properties(port: int, count: int) -> None:
    """`count` MiB of empty user properties in one packet, of each kind that has properties."""
    properties = b"\x26\0\0\0\0" * (count * MIB // 5)
    properties = varint(len(properties)) + properties
    for head, rest in (
        (b"\x30", b"\0\1a" + properties),
        (b"\x82", b"\0\1" + properties + b"\0\1a\0"),
        (b"\xa2", b"\0\1" + properties + b"\0\1a"),
        (b"\xe0", b"\0" + properties),
        (b"\x40", b"\0\1\0" + properties),
    ):
        with suffered():
            sock = mal(port, b"many")
            sock.sendall(head + varint(len(rest)) + rest)
            sock.recv(1000)


def connect_properties(port: int, count: int) -> None:
    """CONNECTs with as many user properties as are read before the login."""
    properties = b"\x26\0\0\0\0" * 100_000
    body = b"\0\4MQTT\5\2\0\x3c" + varint(len(properties)) + properties + b"\0\1x"
    for _ in range(count):
        with suffered():
            dial(port, b"\x10" + varint(len(body)) + body).recv(1000)


def many_filters(port: int, count: int) -> None:
    """`count` filters of one SUBSCRIBE, then of one UNSUBSCRIBE, ten times over."""
    filters = [(b"f/%d/+/x" % number, 1) for number in range(count)]
    with suffered():
        sock = mal(port, b"wide", lasting=True)
        for _ in range(10):
            sock.sendall(codec.subscribe(5, filters, b"\0"))
            _read(sock, count)
            sock.sendall(codec.unsubscribe(6, [name for name, _ in filters], codec.NO_PROPERTIES))
            _read(sock, count)


def _read(sock: socket.socket, size: int) -> None:
    while size > 0 and (data := sock.recv(MIB)):
        size -= len(data)


def many_subscribes(port: int, count: int) -> None:
    """`count` SUBSCRIBEs of a lasting session, in one write."""
    with suffered():
        sock = mal(port, b"lasts", lasting=True)
        packets = [codec.subscribe(1 + n % 60_000, [(b"s/%d" % n, 1)], b"\0") for n in range(count)]
        sock.sendall(b"".join(packets))
        _read(sock, count * 6)


def creates(port: int, count: int) -> None:
    """SMQ: `count` bytes of Creates behind one new name."""
    with suffered():
        sock = dial(port, SMQ_HEAD)
        sock.recv(1000)
        sock.sendall(smq.framed(smq.build_connect(b"creates", b"mal:secret")))
        sock.recv(1000)
        new, known = (smq.framed(smq.message(smq.CREATE, rest=name)) for name in (b"new", b"known"))
        sock.sendall(new + known * (count // len(known)))
        _read(sock, count)


def deep_json(port: int, count: int) -> None:
    """`count` bytes of brackets, to the API and to message-switch."""
    for path in ("/api/v1/publish", "/transfer", "/create/q"):
        with suffered():
            sock = dial(port, _post(path, b"[" * count))
            sock.recv(1000)


def broken_uploads(port: int, count: int) -> None:
    """Uploads of a kilobyte of which a byte is sent."""
    for _ in range(count):
        with suffered():
            sock = dial(port, _post("/api/v1/publish", bytes(1000))[:-999])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


def wrong_logins(port: int, count: int) -> None:
    """Passwords that are not right, 50 at a time, of users that are none."""
    for first in range(0, count, 50):
        socks = []
        for number in range(first, min(first + 50, count)):
            with suffered():
                packet = codec.connect(b"c", True, 60, None, b"u%d" % number, b"wrong")
                socks.append(dial(port, packet))
        for sock in socks:
            with suffered():
                sock.settimeout(0.2)
                sock.recv(100)
            sock.close()


def fragments(port: int, count: int) -> None:
    """A WebSocket message in fragments of one byte."""
    head = (
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    with suffered():
        sock = dial(port, head)
        sock.recv(1000)
        sock.sendall(b"\x02\x81\0\0\0\0\x30" + b"\x00\x81\0\0\0\0x" * count)
        sock.recv(1000)


def pipelined(port: int, count: int) -> None:
    """`count` times the diagnostics of 2,000 messages of 10 kB, in one write."""
    sock = dial(port, _post("/persistent/d"))
    for _ in range(2_000):
        with suffered():
            sock.sendall(_post("/request/d/r", bytes(10_000)))
            sock.recv(1000)
    with suffered():
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % BASIC * count)
        sock.settimeout(5)
        _read(sock, 100 * MIB)


ATTACKS: Final = {
    "half a message": Attack("PUBLISH of 63 MiB less one", 40, half_messages),
    "answers not read": Attack("40 times /transfer of 32 MiB", 50, unread_answers),
    "empty user properties": Attack("MiB of them, five kinds of packet", 60, user_properties),
    "properties before the login": Attack("CONNECT with 500 kB of them", 500, connect_properties),
    "filters in one packet": Attack("SUBSCRIBE, UNSUBSCRIBE", 10_000, many_filters),
    "held answers, MQTT": Attack("SUBSCRIBEs of a lasting session", 32_000, many_subscribes),
    "held answers, SMQ": Attack("bytes of Creates behind a new name", 256 * 1024, creates),
    "deep JSON": Attack("bytes of [", 8 * MIB, deep_json),
    "uploads broken off": Attack("POST with a reset", 8_000, broken_uploads),
    "wrong logins": Attack("CONNECT", 14_550, wrong_logins),
    "fragments of one byte": Attack("WebSocket", 200_000, fragments),
    "pipelined diagnostics": Attack("GET / over 2,000 messages", 1_000, pipelined),
}


# The other side: what the honest see.


class Honest:
    """Two clients that ask something every 20 ms; the longest that each waited."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.ping = self.publish = 0.0
        self.over = False

    async def run(self) -> None:
        await asyncio.gather(self._ask("ping"), self._ask("publish"))

    async def _ask(self, what: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(codec.connect(what.encode(), True, 60, None, b"ann", b"secret"))
        await reader.readexactly(4)
        question = {"ping": b"\xc0\0", "publish": codec.publish(b"p", b"x", 1, packet_id=7)}[what]
        size = {"ping": 2, "publish": 4}[what]
        while not self.over:
            began = time.perf_counter()
            writer.write(question)
            await reader.readexactly(size)
            waited = time.perf_counter() - began
            setattr(self, what, max(getattr(self, what), waited))
            await asyncio.sleep(0.02)
        writer.close()


async def suffer(name: str, part: int = 1) -> Row:
    """Run one attack against a hub of its own; AssertionError if the hub did not live."""
    attack = ATTACKS[name]
    count = max(1, attack.times // part)
    with tempfile.TemporaryDirectory() as folder:
        users = Path(folder) / "users"
        for user in ("ann", "mal"):
            add_user(users, user, b"secret", scram=False)
        hub = RunningHub(Path(folder) / "data", "--set", f"password_file={users}")
        try:
            honest = Honest(hub.port)
            asking = asyncio.create_task(honest.run())
            await asyncio.sleep(0.5)
            command = (sys.executable, "-m", "tests.interop.attacks", "--attack", name)
            process = await asyncio.create_subprocess_exec(
                *command, str(hub.port), str(count), cwd=ROOT, stdout=subprocess.DEVNULL
            )
            async with asyncio.timeout(300):
                code = await process.wait()
            assert code == 0, f"the attacker of {name!r} broke"
            await asyncio.sleep(5)
            honest.over = True
            await asking
            most, after = hub.memory()
            return Row(name, attack.tool, count, honest.ping, honest.publish, most, after)
        finally:
            assert hub.stop() == 0, "the hub did not end in order"


async def main(part: int) -> None:
    rows = []
    for name in ATTACKS:
        print(name, file=sys.stderr)
        rows.append(await suffer(name, part))
    print(security.table("attacks", {row.attack: row._asdict() for row in rows}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        _, _, wanted, place, times = sys.argv
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        ATTACKS[wanted].run(int(place), int(times))
    else:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
