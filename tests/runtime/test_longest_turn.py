"""Who asks for much keeps nobody waiting: the longest turn of the loop, in time of the processor.

Each of these was one turn of 120 ms to 1.3 s. A turn is 4 ms of work for one and as much for all
that goes on in turns, and what the machine adds.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub.config.settings import Bridge, Settings
from hubbub.core.message import Message
from hubbub.core.turns import Turns
from hubbub.protocols.mqtt import codec
from hubbub.runtime.dialer import Line
from hubbub.runtime.node import Node
from hubbub.runtime.socket import Socket
from hubbub.runtime.turn import Steady
from hubbub.wire.http import response
from tests.runtime.turns import ASKED, serving
from tests.runtime.turns import asked as asked_of

MOST = 0.06  # seconds; on a quiet machine they are below 0.01
EACH = 1e-4  # of one answer among many; what was not linear took three times that, and now a tenth


class Longest:
    """Measures each call of what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds = max(self.seconds, time.thread_time() - began)

        return measured


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Longest:
    longest = Longest()
    for reader in (Socket, Steady, Line):
        monkeypatch.setattr(reader, "data_received", longest.of(reader.data_received))
    monkeypatch.setattr(Turns, "settle", longest.of(Turns.settle))
    return longest


@pytest.fixture
async def hub(tmp_path: Path, longest: Longest) -> AsyncIterator[Node]:
    gc.disable()  # a hub of its own process freezes what it has
    async with Node(Settings(listen=("127.0.0.1:0",), data=str(tmp_path / "data"))) as hub:
        yield hub
    gc.enable()


async def asked(hub: Node, *said: bytes, until: int) -> bytes:
    """Everything that comes, until so many bytes are there."""
    address = hub.listeners[0].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    for one in said:
        writer.write(one)
        await asyncio.sleep(0.2)
    async with asyncio.timeout(60):
        heard = await reader.readexactly(until)
    writer.close()
    return heard


def framed(kind: int, body: bytes) -> bytes:
    return (len(body) + 3).to_bytes(2, "big") + bytes((kind,)) + body


NAMES = [b"a/%d/b" % number for number in range(10_000)]
CONNECT = codec.connect(b"ann", True, 0)
LASTING = codec.connect(b"ann", False, 0)
SUBSCRIBE = codec.subscribe(1, [(name, 0) for name in NAMES])
MANY = b"".join(codec.subscribe(1, [(b"a", 0)]) for _ in range(20_000))


@pytest.mark.parametrize(
    ("said", "until"),
    [
        ((CONNECT, SUBSCRIBE), 4 + 10_005),
        ((LASTING, SUBSCRIBE), 4 + 10_005),
        ((CONNECT, codec.unsubscribe(1, NAMES)), 4 + 4),
        ((LASTING, MANY), 4 + 5 * 20_000),
    ],
    ids=["subscribe", "lasting", "unsubscribe", "many packets"],
)
async def test_many_filters(
    hub: Node, longest: Longest, said: tuple[bytes, ...], until: int
) -> None:
    heard = await asked(hub, *said, codec.PINGREQ_PACKET, until=until + 2)
    assert heard.endswith(codec.PINGRESP_PACKET), "what came behind it is heard behind it"
    assert longest.seconds < MOST


async def test_many_names_of_smq(hub: Node, longest: Longest) -> None:
    head = b"GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"
    names = b"".join(framed(6, b"x/%05d" % number) for number in range(8_000))
    init, connack, ack = 3 + 5 + len("127.0.0.1"), 8, 3 + 5 + 7
    said = (head, framed(2, b"\1\6device\0"), names, framed(12, b""))
    heard = await asked(hub, *said, until=init + connack + 8_000 * ack + 3)
    assert heard.endswith(framed(13, b""))
    assert longest.seconds < MOST


@pytest.mark.parametrize("name", list(ASKED)[2:])
async def test_what_one_may_ask(tmp_path: Path, name: str) -> None:
    """Each whole callback of the loop, with the tick: what nobody else is heard in."""
    async with serving(tmp_path / "data") as hub:
        took = await asked_of(hub, ASKED[name]())
    assert took.longest < MOST and took.each < EACH


async def test_who_comes_back_when_all_that_waits_has_expired(hub: Node, longest: Longest) -> None:
    """None of it takes a place in the window or on the link: all of it was looked at at once."""
    subscribed = LASTING, codec.subscribe(1, [(b"a", 1)])
    await asked(hub, *subscribed, until=4 + 5)
    soon = hub.clock.stamp() + 1_500_000
    for _ in range(30_000):
        hub.broker.post(Message("a", b"x", 1, expires=soon))
    hub.schedule()
    await asyncio.sleep((soon - hub.clock.stamp()) / 1e6 + 0.1)
    longest.seconds = 0.0
    address = hub.listeners[0].address
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(LASTING)
    backlog = hub.broker.state.sessions["mqtt", "ann"].backlog
    async with asyncio.timeout(60):
        while backlog.entries:  # as long as it is there
            await asyncio.sleep(0.01)
    writer.close()
    assert hub.broker.metrics.dropped == {"expired": 30_000}
    assert longest.seconds < MOST


async def many_queues(hub: Node, longest: Longest) -> None:
    for number in range(30_000):
        hub.broker.queues.named(f"q{number:05}")
    await asyncio.sleep(1)
    longest.seconds = 0.0


async def test_diagnostics_of_many_queues(hub: Node, longest: Longest) -> None:
    await many_queues(hub, longest)
    address = hub.listeners[0].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /login/me HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(60):
        heard = await reader.read(-1)
    writer.close()
    assert b'"q00000":{' in heard and b'"q09999":{' in heard and b'"q10000":{' not in heard
    assert heard.endswith(b',"queues":30000}')
    assert longest.seconds < MOST


async def test_a_list_of_many_queues(hub: Node, longest: Longest) -> None:
    await many_queues(hub, longest)
    said = b"GET /login/me HTTP/1.1\r\n\r\n", b"GET /list/q HTTP/1.1\r\n\r\n"
    size = 1 + 30_000 * 9
    heads = response(200, b"") + response(200, bytes(size))[:-size]
    heard = await asked(hub, *said, until=len(heads) + size)
    assert heard.startswith(heads + b'["q29999","q29998",')
    assert heard.endswith(b'"q00000"]')
    assert longest.seconds < MOST


@pytest.mark.parametrize("name", ["$queue/q", "$share"])
async def test_a_run_of_messages_that_are_taken_one_by_one(
    hub: Node, longest: Longest, name: str
) -> None:
    """A read of them took 60 to 280 ms, and the loop made 32 of these before it did more."""
    count = 60_000
    topic = b"$queue/q" if name == "$queue/q" else b"a"
    address = hub.listeners[0].address
    member = await asyncio.open_connection(address.host, address.port)
    wanted = b"$share/g/a" if name == "$share" else topic
    member[1].write(codec.connect(b"m", True, 0) + codec.subscribe(1, [(wanted, 0)]))
    await member[0].readexactly(9)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(codec.connect(b"p", True, 0) + codec.publish(topic, b"x", 0) * count)
    async with asyncio.timeout(60):
        while hub.broker.metrics.messages_in < count:
            await asyncio.sleep(0.01)
    for one in (writer, member[1]):
        one.close()
    assert longest.seconds < MOST


async def test_a_broker_of_a_bridge_that_says_much_at_once(
    tmp_path: Path, longest: Longest
) -> None:
    """A read has room for 13,000 messages, which took a third of a second, and there are more."""
    count, over = 40_000, asyncio.Event()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(codec.connack(False, 0))
        some = [codec.publish(b"b/%d" % (one % 100), b"x", 0) for one in range(count)]
        writer.write(b"".join(some))
        await writer.drain()
        await over.wait()
        writer.close()

    gc.disable()
    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        bridge = Bridge(name="b", addresses=(address,), topics=("b/# in 0",), version="3.1.1")
        data = str(tmp_path / "data")
        settings = Settings(listen=("127.0.0.1:0",), data=data, bridge=(bridge,))
        async with Node(settings) as hub, asyncio.timeout(60):
            while hub.broker.metrics.messages_in < count:
                await asyncio.sleep(0.01)
            over.set()
    gc.enable()
    assert longest.seconds < MOST
