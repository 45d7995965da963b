"""Our SMQ client and a real hub, over real sockets; and bad bytes on the real port."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from websockets.asyncio.client import connect as connect_websocket

from hubbub.client.smq import SmqClient, SmqMessage, connect
from hubbub.errors import Refused
from hubbub.protocols.smq import codec
from hubbub.wire.websocket import masked_frame
from tests.process import RunningHub, StartHub
from tests.protocols.smq.device import HEAD, WEBSOCKET_HEAD, told

pytestmark = pytest.mark.interop

T = TypeVar("T")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path_factory.mktemp("hub") / "data")
    yield hub
    hub.stop(signal.SIGKILL)


@pytest.fixture
def url(shared: RunningHub) -> str:
    return shared.url("smq")


async def soon(waited: AsyncIterator[T]) -> T:
    async with asyncio.timeout(10):
        return await anext(waited)


async def first(client: SmqClient) -> SmqMessage:
    return await soon(client.messages())


@pytest.mark.parametrize("websocket", [False, True], ids=["raw", "websocket"])
async def test_publish_subscribe_and_answer(url: str, websocket: bool) -> None:
    async with connect(url, websocket=websocket) as a, connect(url) as b:
        await a.create_sub("temp")
        await a.subscribe("rooms/kitchen")
        await b.publish("rooms/kitchen", b"21", subtopic="temp")
        message = await first(a)
        assert message == ("rooms/kitchen", b"21", "temp", b.number)
        await a.publish(message.sender, b"thanks")
        assert await first(b) == (f"$client/{b.number}", b"thanks", "", a.number)


async def test_messages_keep_their_order(url: str) -> None:
    async with connect(url) as a, connect(url) as b:
        await a.subscribe("many")
        for number in range(500):
            await b.publish("many", b"%d" % number)
        stream = a.messages()
        assert [(await soon(stream)).payload for _ in range(500)] == [b"%d" % n for n in range(500)]


async def test_observe_tells_the_subscribers_of_a_topic_and_the_end_of_a_client(url: str) -> None:
    async with connect(url) as a, connect(url) as b, connect(url) as c:
        counts, life = a.observe("observed"), a.observe(c.number)
        assert await soon(counts) == 0
        gone = asyncio.create_task(soon(life))
        await b.subscribe("observed")
        assert await soon(counts) == 1
        await b.unsubscribe("observed")
        assert await soon(counts) == 0
        await c.close()
        assert await gone == 0


async def test_a_refused_topic_and_a_payload_too_large_are_errors(url: str) -> None:
    async with connect(url) as a:
        with pytest.raises(Refused, match=r"refused the topic '\$SYS/x'"):
            await a.publish("$SYS/x", b"forged")
        with pytest.raises(ValueError, match="at most 65535 bytes"):
            await a.publish("big", bytes(codec.PAYLOAD_BYTES + 1))
        await a.publish("big", bytes(codec.PAYLOAD_BYTES))


async def test_the_same_client_id_again_ends_the_older_client(url: str) -> None:
    async with connect(url, client_id="client-a") as old:
        async with connect(url, client_id="client-a") as new:
            assert new.number == old.number
            with pytest.raises(Refused, match="reconnect"):
                await first(old)
            with pytest.raises(Refused, match="reconnect"):
                await old.publish("x", b"")


async def test_a_client_id_too_short_is_refused_with_the_hubs_text(url: str) -> None:
    with pytest.raises(Refused, match="at least 6 bytes, this one 5"):
        await connect(url, client_id="short").__aenter__()


async def test_after_close_the_messages_end(url: str) -> None:
    async with connect(url) as a:
        await a.publish(a.number, b"last")
        await asyncio.sleep(0.2)
    assert [message.payload async for message in a.messages()] == [b"last"]


async def test_a_server_that_is_no_smq_hub_is_named() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for serve, error, text in (
        (page, Refused, "no SMQ hub: HTTP/1.1 404"),
        (rude, OSError, "answers no HTTP|reset"),
    ):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(error, match=text):
                await connect(f"smq://127.0.0.1:{port}").__aenter__()
    with pytest.raises(OSError):
        await connect(f"smq://127.0.0.1:{port}").__aenter__()


async def test_when_the_hub_stops_clients_see_a_bare_close(start_hub: StartHub) -> None:
    hub = start_hub()
    async with connect(hub.url("smq")) as a, connect(hub.url("smq"), websocket=True) as b:
        assert await asyncio.to_thread(hub.stop) == 0
        for client in (a, b):
            with pytest.raises(ConnectionError, match="the hub closed the connection"):
                await first(client)


async def test_a_new_topic_id_survives_kill_9(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub()
    async with connect(hub.url("smq")) as a:
        topic, sub = await a.create("durable/x"), await a.create_sub("temp")
        hub.stop(signal.SIGKILL)
    again = start_hub(data=hub.data)
    async with connect(again.url("smq")) as a:
        assert (await a.create("durable/x"), await a.create_sub("temp")) == (topic, sub)


async def test_a_browsers_websocket_speaks_smq(shared: RunningHub) -> None:
    async with connect_websocket(shared.url("ws") + "/smq") as browser:
        init = told(await browser.recv(decode=False))
        assert init[0] == "Init" and init[3] == b"127.0.0.1"
        await browser.send(codec.build_connect(b"browser-1"))
        connack = told(await browser.recv(decode=False))
        assert connack[:2] == ("Connack", 0)
        etid = connack[2]
        assert isinstance(etid, int)
        await browser.send(codec.message(codec.PUBLISH, etid, etid, 0, rest=b"x" * 70_000))
        assert told(await browser.recv(decode=False)) == ("Publish", etid, etid, 0, b"x" * 70_000)
        await browser.send(codec.message(codec.DISCONNECT))
        await browser.wait_closed()
        assert browser.close_code == 1000


@pytest.mark.parametrize(
    ("head", "sent", "last"),
    [
        (HEAD, b"\xff" * 70_000, codec.framed(b"\x03\x01\0\0\0\0expected Connect, got type 255")),
        (HEAD, b"\0\1", b""),
        (WEBSOCKET_HEAD, b"\x82\xff" + b"\xff" * 8, b"\x88\x02\x03\xea"),
        (WEBSOCKET_HEAD, b"\x82\xff\0\0\0\xff\0\0\0\0", b"\x88\x02\x03\xf1"),
        (WEBSOCKET_HEAD, b"\x82\x03abc", b"\x88\x02\x03\xea"),
        (WEBSOCKET_HEAD, masked_frame(b""), b"\x88\x02\x03\xe8"),
    ],
    ids=["garbage", "length 1", "lies", "too large", "unmasked", "empty"],
)
async def test_bad_bytes_end_that_connection_only(
    shared: RunningHub, head: bytes, sent: bytes, last: bytes
) -> None:
    async with connect(shared.url("smq")) as bystander:
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)  # the bytes shall not come with the head
        writer.write(sent)
        async with asyncio.timeout(10):
            try:
                heard = await reader.read()
            except ConnectionResetError:  # the hub did not read all of it
                heard = last
        assert heard.endswith(last)
        writer.close()
        await bystander.publish(bystander.number, b"never noticed")
        assert (await first(bystander)).payload == b"never noticed"


async def test_a_c_client_hears_init_first_and_nothing_of_http(shared: RunningHub) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    writer.write(HEAD[:20])
    await asyncio.sleep(0.05)
    writer.write(HEAD[20:])
    frame = await asyncio.wait_for(reader.readexactly(17), 10)
    assert frame[:4] == b"\0\x11\1\1" and frame[8:] == b"127.0.0.1"
    writer.close()
