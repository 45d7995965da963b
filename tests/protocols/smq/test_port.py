"""SMQ on the real port: what real clients need of the socket, TLS, and bad bytes."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as connect_websocket

from hubbub.client.smq import SmqClient, SmqMessage, connect
from hubbub.config.settings import Tls
from hubbub.core.limits import LINK_CHOKED
from hubbub.protocols.smq import codec
from hubbub.runtime.node import Node
from hubbub.wire.websocket import masked_frame
from tests.certificates import Authority
from tests.client.smq.here import serving, until, url
from tests.process import StartHub
from tests.protocols.smq.device import HEAD, WEBSOCKET_HEAD, told


@pytest.fixture
async def hub() -> AsyncIterator[Node]:
    async with serving() as node:
        yield node


def port(hub: Node) -> int:
    return hub.listeners[0].address.port


async def first(client: SmqClient) -> SmqMessage:
    async with asyncio.timeout(10):
        return await anext(client.messages())


# What real clients need


async def test_a_c_client_hears_init_first_and_nothing_of_http(hub: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(hub))
    writer.write(HEAD[:20])
    await asyncio.sleep(0.05)
    writer.write(HEAD[20:])
    async with asyncio.timeout(10):
        frame = await reader.readexactly(17)
    assert frame[:4] == b"\0\x11\1\1" and frame[8:] == b"127.0.0.1"
    writer.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/", "/plain.lsp", "/a/b?room=12", "/mqtt"])
async def test_any_path_method_and_version_will_do(
    hub: Node, method: str, version: str, path: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(hub))
    head = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nsimplemq: yes\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(10):
        assert (await reader.readexactly(17))[:4] == b"\0\x11\1\1"
    writer.close()


async def test_what_a_client_sends_at_once_with_its_request_is_not_lost(hub: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(hub))
    writer.write(HEAD + codec.framed(codec.build_connect(b"hasty-1")) + b"\0\3\x0c")
    async with asyncio.timeout(10):
        assert (await reader.readexactly(17 + 8 + 3))[-3:] == b"\0\3\x0d"
    writer.close()


async def test_java_gets_the_head_and_init_in_two_tls_records(tmp_path: Path) -> None:
    """HttpURLConnection buffers what comes with the head and never shows it."""
    authority = Authority(tmp_path / "tls")
    certificate = str(authority.sign("localhost", server=True))
    context = ssl.create_default_context(cafile=authority.file)
    async with serving(tls=Tls(certificate=certificate)) as hub:
        reader, writer = await asyncio.open_connection("localhost", port(hub))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def step() -> None:
            writer.write(outgoing.read())
            async with asyncio.timeout(10):
                incoming.write(await reader.read(1 << 16))

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await step()
        tls.write(HEAD.replace(b"\r\n\r\n", b"\r\nSendSmqHttpResponse: true\r\n\r\n"))
        records: list[bytes] = []
        while len(records) < 2:
            try:
                records.append(tls.read(1 << 16))  # one record a call
            except ssl.SSLWantReadError:
                await step()
        assert records[0].startswith(b"HTTP/1.1 200") and records[0].endswith(b"\r\n\r\n")
        assert records[1][:4] == b"\0\x11\1\1"
        writer.close()


async def test_a_browsers_websocket_speaks_smq(hub: Node) -> None:
    async with connect_websocket(f"{url(hub, 'ws')}/smq") as browser:
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


async def test_a_browser_on_wss_reaches_two_plain_devices_at_once_and_one_answers(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "tls")
    certificate = str(authority.sign("localhost", server=True))
    trust = ssl.create_default_context(cafile=authority.file)
    payload = bytes(range(256)) * 4
    async with serving(tls=Tls(certificate=certificate)) as hub:
        where = f"wss://localhost:{port(hub)}/lamp?room=12"
        async with connect(url(hub)) as lamp, connect(url(hub)) as heater:
            await lamp.subscribe("house")
            await heater.subscribe("house")
            async with connect_websocket(where, ssl=trust) as browser:
                await browser.recv()
                await browser.send(codec.build_connect(b"browser-1"))
                number = told(await browser.recv(decode=False))[2]
                assert isinstance(number, int)
                await browser.send(codec.message(codec.CREATE, rest=b"house"))
                tid = told(await browser.recv(decode=False))[2]
                assert isinstance(tid, int)
                await browser.send(codec.message(codec.PUBLISH, tid, number, 0, rest=payload))
                for device in (lamp, heater):
                    assert await first(device) == ("house", payload, "", number, 0)
                await lamp.publish(number, payload[::-1])
                heard = told(await browser.recv(decode=False))
                assert heard == ("Publish", number, lamp.number, 0, payload[::-1])


# Bad bytes


@pytest.mark.parametrize(
    ("head", "sent", "last"),
    [
        (HEAD, codec.framed(b"\xff" * 9), codec.framed(
            b"\x03\x01\0\0\0\0expected Connect, got type 255")),
        (HEAD, b"\0\1", b""),
        (HEAD, b"\0\x08\2\1\x20abc", codec.framed(
            b"\x03\x01\0\0\0\0the uid of Connect is cut off")),
        (WEBSOCKET_HEAD, b"\x82\xff" + b"\xff" * 8, b"\x88\x02\x03\xea"),
        (WEBSOCKET_HEAD, b"\x82\xff\0\0\0\xff\0\0\0\0", b"\x88\x02\x03\xf1"),
        (WEBSOCKET_HEAD, b"\x82\x03abc", b"\x88\x02\x03\xea"),
        (WEBSOCKET_HEAD, masked_frame(b""), b"\x88\x02\x03\xe8"),
    ],
    ids=["garbage", "length 1", "a lying Connect", "lies", "too large", "unmasked", "empty"],
)  # fmt: skip
async def test_bad_bytes_end_that_connection_only(
    hub: Node, head: bytes, sent: bytes, last: bytes
) -> None:
    async with connect(url(hub)) as bystander:
        reader, writer = await asyncio.open_connection("127.0.0.1", port(hub))
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


@pytest.mark.parametrize("websocket", [False, True], ids=["raw", "websocket"])
async def test_a_subscriber_that_does_not_read_loses_messages_and_slows_nobody(
    hub: Node, websocket: bool
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(hub), limit=1 << 14)
    body = codec.build_connect(b"sleeper"), codec.message(codec.SUBSCRIBE, rest=b"flood")
    if websocket:
        writer.write(WEBSOCKET_HEAD + b"".join(map(masked_frame, body)))
    else:
        writer.write(HEAD + b"".join(map(codec.framed, body)))
    async with connect(url(hub)) as talker, connect(url(hub)) as listener:
        heard: list[bytes] = []
        await listener.subscribe("flood", lambda message: heard.append(message.payload))
        await until(lambda: hub.broker.observers.count("flood") == 2)
        for count in range(10, 610, 10):
            for _ in range(10):
                await talker.publish("flood", b"x" * 60_000)
            await until(lambda count=count: len(heard) == count)  # type: ignore[misc]
        [sleeper] = [one for one in hub.broker.clients.values() if one.client == "sleeper"]
        lost = sleeper.dropped["slow reader"]
        assert 500 < lost == hub.broker.metrics.dropped["slow reader"]
        assert sleeper.link.size < LINK_CHOKED + 11 * 60_100  # type: ignore[attr-defined]
    writer.transport.abort()


# The life of the hub


@pytest.mark.interop
async def test_when_the_hub_is_told_to_stop_clients_see_a_bare_close(start_hub: StartHub) -> None:
    """A Disconnect would tell devices never to return."""
    hub = start_hub()
    raw = await asyncio.open_connection("127.0.0.1", hub.port)
    web = await asyncio.open_connection("127.0.0.1", hub.port)
    raw[1].write(HEAD + codec.framed(codec.build_connect(b"device-1")))
    web[1].write(WEBSOCKET_HEAD + masked_frame(codec.build_connect(b"device-2")))
    async with asyncio.timeout(20):
        await raw[0].readexactly(17 + 8)
        await web[0].readuntil(b"\r\n\r\n")
        await web[0].readexactly(17 + 8)
        assert await asyncio.to_thread(hub.stop) == 0
        assert await raw[0].read() == b""
        assert await web[0].read() == b"\x88\x02\x03\xe8"
    for _, writer in (raw, web):
        writer.close()


@pytest.mark.interop
async def test_a_new_topic_id_survives_kill_9(start_hub: StartHub) -> None:
    hub = start_hub()
    async with connect(hub.url("smq"), reconnect=False) as a:
        topic, sub = await a.create("durable/x"), await a.createsub("temp")
        hub.stop(signal.SIGKILL)
    again = start_hub(data=hub.data)
    async with connect(again.url("smq")) as a:
        assert (await a.create("durable/x"), await a.createsub("temp")) == (topic, sub)
