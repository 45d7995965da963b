"""How long one packet, or many answers that wait for one another, keep all others waiting.

    python -m tests.runtime.turns      each of ASKED against a hub in this process, into the page

Measured is the time of the processor that each callback of the loop takes, which is how long nobody
else is heard; the client is a thread of its own, so its work counts for nobody. `each`: all that
time, for one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.config.settings import Settings
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.node import Node
from tests import security

MIB: Final = 1 << 20


class Turns:
    """The callbacks of a loop: the longest in seconds, and all together."""

    def __init__(self) -> None:
        self.longest = self.together = 0.0


@contextlib.contextmanager
def watched() -> Iterator[Turns]:
    """Look at each callback of this thread's loops, which are asyncio's own."""
    turns, run = Turns(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        turns.longest = max(turns.longest, took)
        turns.together += took

    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield turns
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Node]:
    gc.collect()
    gc.disable()  # a hub of its own process freezes what it has
    try:
        async with Node(Settings(listen=("127.0.0.1:0",), data=str(folder))) as node:
            yield node
    finally:
        gc.enable()


class Asked(NamedTuple):
    """What is said once somebody is in, and how many bytes are the answer to it, with `ends` at
    their end. `times`: the answers, or what there is of it; `one`: it is one packet.
    """

    first: bytes
    welcome: int
    said: bytes
    answer: int
    ends: bytes
    times: int
    one: bool = True


class Took(NamedTuple):
    """Seconds."""

    longest: float
    each: float


def _subscribed(filters: list[bytes], lasting: bool = False) -> Asked:
    said = codec.subscribe(1, [(one, 1) for one in filters])
    answer = _length(2 + len(filters)) + 2 + len(filters)
    return _mqtt(said, answer, len(filters), lasting)


def _length(size: int) -> int:
    """Of a packet's head, and so many bytes behind it."""
    return 2 + (size > 127) + (size > 16_383)


def _mqtt(
    said: bytes, answer: int, times: int, lasting: bool = False, one: bool = True, v5: bool = False
) -> Asked:
    """With a ping behind it: what is answered before is answered in order."""
    properties = codec.Properties({0x11: 1000} if lasting else {}) if v5 else None
    first = codec.connect(b"ann", not lasting, 0, properties=properties)
    said += codec.PINGREQ_PACKET
    pong = codec.PINGRESP_PACKET
    return Asked(first, 0 if v5 else 4, said, answer + len(pong), pong, times, one)


NAMES: Final = [b"a/%d/b" % number for number in range(10_000)]
LONG: Final = [b"%05d/" % number + b"x" * 90 for number in range(10_000)]
DEEP: Final = [b"%04d" % number + b"/a" * 199 for number in range(2_500)]
USER: Final = codec.Properties(user=[(b"k" * 60, b"v" * 60)] * 500)


def _many(count: int) -> Asked:
    said = b"".join(
        codec.subscribe(1 + n % 60_000, [(b"s/%d" % n, 1)]) for n in range(count)
    )
    return _mqtt(said, 5 * count, count, lasting=True, one=False)


def _creates(size: int) -> Asked:
    """SMQ: so many bytes of Creates behind one of a new name."""
    head = b"GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"
    new, known = (smq.framed(smq.message(smq.CREATE, rest=name)) for name in (b"new", b"known"))
    count = size // len(known)
    ack = len(known) + 5  # a status and the number beside the name
    init, connack = 3 + 5 + len("127.0.0.1"), 8
    first = head + smq.framed(smq.build_connect(b"creates", b"")) + known
    ping, pong = smq.framed(bytes((12,))), smq.framed(bytes((13,)))
    answer = ack - 2 + count * ack + len(pong)
    said = new + known * count + ping
    return Asked(first, init + connack + ack, said, answer, pong, count, False)


ASKED: Final = {
    "SUBSCRIBE, 10,000 filters": lambda: _subscribed(NAMES),
    "the same for a lasting session": lambda: _subscribed(NAMES, lasting=True),
    "SUBSCRIBE of a MiB, 10,000 filters": lambda: _subscribed(LONG),
    "SUBSCRIBE of a MiB, 200 levels in each filter": lambda: _subscribed(DEEP),
    "UNSUBSCRIBE, 10,000 filters": lambda: _mqtt(codec.unsubscribe(1, NAMES), 4, len(NAMES)),
    "PUBLISH, 64 KiB of user properties": lambda: _properties(),
    "SUBSCRIBEs of a lasting session, 32,000": lambda: _many(32_000),
    "SMQ Creates behind a new name, 64 KiB": lambda: _creates(64 << 10),
    "SMQ Creates behind a new name, 256 KiB": lambda: _creates(256 << 10),
}


def _properties() -> Asked:
    said = codec.publish(b"t", b"x", 0, properties=USER.encode())
    return _mqtt(said, 0, 500, v5=True)


async def asked(node: Node, what: Asked) -> Took:
    """Say it, and hear all of the answer."""
    host, port = node.listeners[0].address[:2]
    sock = await asyncio.to_thread(_come_in, host, port, what)
    with sock, watched() as turns:
        await asyncio.to_thread(_ask, sock, what)
    return Took(turns.longest, turns.together / what.times)


def _come_in(host: str, port: int, what: Asked) -> socket.socket:
    sock = socket.create_connection((host, port), 60)
    sock.sendall(what.first)
    if what.welcome:
        _read(sock, what.welcome)
    else:  # of 5.0 it says how long it is
        _read(sock, _read(sock, 2)[1])
    return sock


def _ask(sock: socket.socket, what: Asked) -> None:
    sock.sendall(what.said)
    heard = _read(sock, what.answer)
    assert heard.endswith(what.ends), heard[-20:]


def _read(sock: socket.socket, size: int) -> bytes:
    heard = bytearray()
    while len(heard) < size:
        data = sock.recv(min(MIB, size - len(heard)))
        assert data, "the hub closed"
        heard += data
    return bytes(heard)


async def measured(name: str) -> Took:
    """The least of three, which is what other programs took least of."""
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            async with serving(Path(folder)) as node:
                found.append(await asked(node, ASKED[name]()))
    return Took(min(one.longest for one in found), min(one.each for one in found))


def main() -> int:
    compiled = not codec.__file__.endswith("py")
    for name in ASKED:
        took = asyncio.run(measured(name))
        what = ASKED[name]()
        row = {"longest": took.longest, "each": took.each, "times": what.times, "one": what.one}
        print(f"{name:50} {took.longest * 1e3:6.1f} ms {took.each * 1e6:6.1f} us", flush=True)
        security.record("turns", f"{name}{', compiled' if compiled else ''}", row, always=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
