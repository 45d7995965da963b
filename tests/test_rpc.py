"""Remote calls from any protocol to any other: nine pairs through one queue each.

Real clients over real sockets: message-switch as raw HTTP, with paths made as the original clients
make them, MQTT 5 by paho, SMQ by our client. Each responder is reached over a line that can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

import hubbub.client
from tests.process import RunningHub

pytestmark = pytest.mark.interop

SECONDS = 20.0
TTL = 2.0
_count = itertools.count()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path_factory.mktemp("rpc") / "data", "--set", f"rpc.reply_ttl={TTL:g}")
    yield hub
    hub.stop(signal.SIGKILL)


class Line:
    """Passes bytes on until it is cut; then nobody gets through any more."""

    def __init__(self, host: str, port: int) -> None:
        self._far = (host, port)
        self._open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(*self._far)
        self._open += [back, forth]
        self._tasks |= {
            asyncio.create_task(self._pass(near, forth)),
            asyncio.create_task(self._pass(far, back)),
        }

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


class Asked(NamedTuple):
    """A request as a responder has it; `where` and `mark` are what its protocol needs."""

    payload: bytes
    where: Any
    mark: Any


class Peer:
    """A client of one protocol at that port, as caller or responder for one queue."""

    def __init__(self, port: int, queue: str) -> None:
        self.port, self.queue = port, queue
        self.name = f"{type(self).__name__.lower()}-peer-{next(_count)}"
        self.requests: asyncio.Queue[Asked] = asyncio.Queue()
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def ask(self, payload: bytes) -> None: ...
    async def respond(self) -> None:
        """Begin to take requests."""

    async def answer(self, asked: Asked, payload: bytes) -> None: ...

    async def taken(self) -> Asked:
        return await asyncio.wait_for(self.requests.get(), SECONDS)

    async def heard(self, seconds: float = SECONDS) -> bytes | None:
        try:
            return await asyncio.wait_for(self.replies.get(), seconds)
        except TimeoutError:
            return None


class Switch(Peer):
    """Raw HTTP: one connection for requests, one that always waits in a transfer.

    Names are pasted into paths as they are, as the original clients do.
    """

    asked: int
    events: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        await self.say(self.streams, "GET", f"/login/{self.name}")
        await self.say(self.streams, "GET", f"/transient/{self.name}")
        await self.say(self.streams, "GET", f"/persistent/{self.queue}")

    async def say(self, streams: Any, method: str, path: str, body: bytes = b"") -> Any:
        reader, writer = streams
        writer.write(b"%b %b HTTP/1.1\r\n" % (method.encode(), path.encode()))
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200 OK"), head
        answer = await reader.readexactly(int(head.lower().split("content-length:")[1]))
        return json.loads(answer) if answer[:1] in (b"[", b"{") else answer

    async def ask(self, payload: bytes) -> None:
        self.events = self.events or asyncio.create_task(self.poll(self.name))
        target = f"/request/{self.queue}/{self.name}"
        [[queue, self.asked]] = await self.say(self.streams, "POST", target, payload)
        assert queue == self.queue

    async def respond(self) -> None:
        self.events = asyncio.create_task(self.poll(self.queue))

    async def poll(self, queue: str) -> None:
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        await self.say(streams, "GET", f"/login/{self.name}")
        after: dict[str, str] = {}
        while True:
            wanted = json.dumps({**after, "timeout": 30.0, "queues": [queue]}).encode()
            got = await self.say(streams, "POST", "/transfer", wanted)
            after = {"from": got["next"]}
            for (_, number), message in reversed(got["messages"]):
                self.take(number, message["payload"].encode(), *message["kind"])
                if message["kind"][0] == "Response":
                    await self.say(streams, "GET", f"/ack/{queue}/{number}")

    def take(self, number: int, payload: bytes, kind: str, which: Any) -> None:
        if kind == "Request":
            self.requests.put_nowait(Asked(payload, which, number))
        else:
            assert which == [self.queue, self.asked]
            self.replies.put_nowait(payload)

    async def answer(self, asked: Asked, payload: bytes) -> None:
        target = f"/response/{asked.where}/{self.queue}/{asked.mark}"
        await self.say(self.streams, "POST", target, payload)
        await self.say(self.streams, "GET", f"/ack/{self.queue}/{asked.mark}")

    async def close(self) -> None:
        if self.events is not None:
            self.events.cancel()
        self.streams[1].close()


class Mqtt(Peer):
    """paho over MQTT 5: response topic and correlation data."""

    CORRELATION: ClassVar = b"\0call\xff"

    async def open(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, self.name, protocol=paho.MQTTv5)

        def subscribed(*_: Any) -> None:
            loop.call_soon_threadsafe(ready.set)

        def arrived(client: Any, data: Any, message: Any) -> None:
            loop.call_soon_threadsafe(self.take, message)

        self.client.on_subscribe = subscribed
        self.client.on_message = arrived
        self.ready = ready
        await asyncio.to_thread(self.client.connect, "127.0.0.1", self.port)
        self.client.loop_start()
        await self.subscribe(f"answers/{self.name}")

    async def subscribe(self, topic: str) -> None:
        self.ready.clear()
        self.client.subscribe(topic, options=SubscribeOptions(1))
        await asyncio.wait_for(self.ready.wait(), SECONDS)

    async def ask(self, payload: bytes) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = f"answers/{self.name}"
        properties.CorrelationData = self.CORRELATION
        self.client.publish(f"$queue/{self.queue}", payload, 1, properties=properties)

    async def respond(self) -> None:
        await self.subscribe(f"$queue/{self.queue}")

    def take(self, message: Any) -> None:
        if message.topic == f"answers/{self.name}":
            assert message.properties.CorrelationData == self.CORRELATION
            self.replies.put_nowait(message.payload)
        else:
            mark = getattr(message.properties, "CorrelationData", None)
            self.requests.put_nowait(Asked(message.payload, message.properties.ResponseTopic, mark))

    async def answer(self, asked: Asked, payload: bytes) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if asked.mark is not None:
            properties.CorrelationData = asked.mark
        self.client.publish(asked.where, payload, 1, properties=properties)

    async def close(self) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)


class Smq(Peer):
    """Our SMQ client: whoever is named as the sender gets the answer."""

    async def open(self) -> None:
        url = f"smq://127.0.0.1:{self.port}"
        self.client = await hubbub.client.connect(url, client_id=self.name).__aenter__()
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        async for message in self.client.messages():
            if message.topic == f"$queue/{self.queue}":
                self.requests.put_nowait(Asked(message.payload, message.sender, None))
            else:
                self.replies.put_nowait(message.payload)

    async def ask(self, payload: bytes) -> None:
        await self.client.publish(f"$queue/{self.queue}", payload, "request")

    async def respond(self) -> None:
        await self.client.subscribe(f"$queue/{self.queue}")

    async def answer(self, asked: Asked, payload: bytes) -> None:
        await self.client.publish(asked.where, payload)

    async def close(self) -> None:
        self.reading.cancel()
        await self.client.close()


PEERS = {"switch": Switch, "mqtt": Mqtt, "smq": Smq}

every_pair = pytest.mark.parametrize(
    ("caller", "responder"), list(itertools.product(PEERS, PEERS))
)


@contextlib.asynccontextmanager
async def peer(kind: str, port: int, queue: str) -> AsyncIterator[Peer]:
    one = PEERS[kind](port, queue)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


async def waiting(hub: RunningHub, queue: str) -> list[Any]:
    """What the diagnostics show in the queue, oldest first: id and payload."""
    async with peer("switch", hub.port, queue) as watcher:
        assert isinstance(watcher, Switch)
        found = await watcher.say(watcher.streams, "GET", "/")
    entries = found["permanent_queues"][queue]["queue_contents"]
    return [entry["message"]["payload"] for _, entry in reversed(entries)]


async def until_empty(hub: RunningHub, queue: str) -> None:
    async with asyncio.timeout(SECONDS):
        while await waiting(hub, queue):
            await asyncio.sleep(0.05)


@every_pair
async def test_answers(hub: RunningHub, caller: str, responder: str) -> None:
    queue = f"answers-{caller}-{responder}"
    async with (
        peer(caller, hub.port, queue) as asking,
        peer(responder, hub.port, queue) as answering,
    ):
        await answering.respond()
        for payload in (b"one", b"two"):
            await asking.ask(payload)
            asked = await answering.taken()
            assert asked.payload == payload
            await answering.answer(asked, payload.upper())
            assert await asking.heard() == payload.upper()
        await until_empty(hub, queue)


async def calls_in_a_row(hub: RunningHub, caller: str, responder: str, count: int) -> None:
    queue = f"row-{caller}-{responder}"
    async with (
        peer(caller, hub.port, queue) as asking,
        peer(responder, hub.port, queue) as answering,
    ):
        await answering.respond()
        for number in range(count):
            payload = b"call %d" % number
            await asking.ask(payload)
            asked = await answering.taken()
            assert asked.payload == payload
            await answering.answer(asked, payload.upper())
            assert await asking.heard() == payload.upper(), f"no answer to {number}"
        await until_empty(hub, queue)


@every_pair
async def test_calls_in_a_row(hub: RunningHub, caller: str, responder: str) -> None:
    await calls_in_a_row(hub, caller, responder, 300)


@pytest.mark.soak
@pytest.mark.timeout(600)
@every_pair
async def test_ten_thousand_calls_in_a_row(hub: RunningHub, caller: str, responder: str) -> None:
    await calls_in_a_row(hub, caller, responder, 10_000)


@every_pair
async def test_a_responder_that_dies_in_the_middle(
    hub: RunningHub, caller: str, responder: str
) -> None:
    queue = f"deaths-{caller}-{responder}"
    async with Line("127.0.0.1", hub.port) as line, peer(caller, hub.port, queue) as asking:
        async with peer(responder, line.port, queue) as dying:
            await dying.respond()
            await asking.ask(b"who?")
            assert (await dying.taken()).payload == b"who?"
            line.cut()
            async with peer(responder, hub.port, queue) as second:
                await second.respond()
                asked = await second.taken()
                assert asked.payload == b"who?"
                await second.answer(asked, b"me")
                assert await asking.heard() == b"me"
        await until_empty(hub, queue)


@every_pair
async def test_no_answer_in_time_and_a_late_one(
    hub: RunningHub, caller: str, responder: str
) -> None:
    queue = f"late-{caller}-{responder}"
    async with peer(caller, hub.port, queue) as asking:
        await asking.ask(b"anybody?")
        assert await asking.heard(0.3) is None
        assert await waiting(hub, queue) == [b"anybody?".decode()]
        async with peer(responder, hub.port, queue) as answering:
            await answering.respond()
            asked = await answering.taken()
            if responder == "smq":
                await asyncio.sleep(TTL + 0.2)
            await answering.answer(asked, b"sorry")
            assert await asking.heard() == b"sorry"
            await until_empty(hub, queue)


@pytest.mark.parametrize("responder", PEERS)
@pytest.mark.parametrize("caller", PEERS)
async def test_a_reply_to_nobody(hub: RunningHub, caller: str, responder: str) -> None:
    """Who asked is gone: the request is answered and done with, and nothing breaks."""
    queue = f"gone-{caller}-{responder}"
    async with peer(responder, hub.port, queue) as answering:
        async with peer(caller, hub.port, queue) as asking:
            await asking.ask(b"bye")
            await answering.respond()
            asked = await answering.taken()
        await asyncio.sleep(0.1)
        await answering.answer(asked, b"too late")
        await until_empty(hub, queue)
