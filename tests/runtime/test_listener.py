"""One port: what the first bytes decide, and bad input that ends its own connection and no other.

Each test talks to a hub in this process over real sockets. `bystander` is an MQTT client that is
connected all the time; at the end of each test it must still get its messages.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hubbub.client import mqtt
from hubbub.config.settings import Listener, Settings
from hubbub.core.limits import FAREWELLS, HALF_SECONDS, STRANGER_SECONDS
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.smq import Smq
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from hubbub.wire.websocket import CLOSE, masked_frame

PLAIN = "GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"
WEBSOCKET = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    hub = Node(Settings(listen=("127.0.0.1:0",), data=str(tmp_path / "data")))
    hub.web = Application(hub)
    async with hub, mqtt.connect(url(hub), client_id="bystander") as bystander:
        await bystander.subscribe("still/#", qos=1)
        yield hub
        await bystander.publish("still/here", b"yes", qos=1)
        async with asyncio.timeout(5):
            async for message in bystander.messages():
                assert message.payload == b"yes"
                break


def url(hub: Node) -> str:
    return f"mqtt://{hub.listeners[0].address}"


class Peer:
    """A socket that says bytes and hears the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, hub: Node, listener: int = 0) -> Peer:
        address = hub.listeners[listener].address
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 60)

    async def hear_all(self, seconds: float = 8) -> bytes:
        """Everything until the hub closes."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), seconds)
        except ConnectionResetError:
            return b""

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)


async def exchange(hub: Node, data: bytes) -> bytes:
    peer = await Peer.dial(hub)
    await peer.say(data)
    return await peer.hear_all()


def reasons(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hubbub")


async def test_who_left_its_id_to_the_hub_is_told_of_by_that(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The line which says why it was closed named nobody: `client ''`."""
    peer = await Peer.dial(hub)
    await peer.say(codec.connect(b"", True, 60) + b"\xf0\0")
    await peer.hear_all()
    [client] = re.findall(r"client '(auto-[0-9a-f]{16})'\) came in", reasons(caplog))
    [record] = [one for one in caplog.records if "closed: " in one.getMessage()]
    assert record.getMessage().endswith(f"client {client!r})")
    assert vars(record)["client"] == client, "for who collects lines as JSON, too"


async def test_bytes_of_no_protocol(hub: Node, caplog: pytest.LogCaptureFixture) -> None:
    assert await exchange(hub, b"\x00\xff\x13garbage") == b""
    assert "no protocol here begins with" in reasons(caplog)


@pytest.mark.pure
async def test_a_connection_that_says_nothing_ends(
    hub: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.socket.STRANGER_SECONDS", 0.3)
    assert await exchange(hub, b"") == b""
    assert "said nothing that could be recognised" in reasons(caplog)


@pytest.mark.pure
async def test_half_a_head_ends_in_time(
    hub: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.socket.STRANGER_SECONDS", 0.3)
    assert await exchange(hub, b"GET /login/me HTTP/1.1\r\nHost: localhost\r\n") == b""
    assert "GET /login/me" in reasons(caplog)


async def test_a_head_without_end(hub: Node, caplog: pytest.LogCaptureFixture) -> None:
    answer = await exchange(hub, b"GET / HTTP/1.1\r\nX: " + b"x" * 17_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert "request head of more than 16384 bytes" in reasons(caplog)


async def test_a_head_that_is_no_http(hub: Node) -> None:
    answer = await exchange(hub, b"GET nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_an_oversized_packet(hub: Node, caplog: pytest.LogCaptureFixture) -> None:
    peer = await Peer.dial(hub)
    await peer.say(codec.connect(b"greedy", True, 60))
    assert await peer.hear(4) == b"\x20\x02\x00\x00"
    await peer.say(b"\x30\xff\xff\xff\x7f" + b"x" * 1000)
    assert await peer.hear_all() == b""
    assert "a packet of 268435460 bytes" in reasons(caplog)


async def test_a_websocket_frame_that_lies_about_its_length(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    host = str(hub.listeners[0].address)
    peer = await Peer.dial(hub)
    await peer.say(WEBSOCKET.format(path="/", host=host, more="").encode())
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    await peer.say(b"\x82\xff" + struct.pack(">Q", 1 << 62) + b"mask")
    assert (await peer.hear_all())[-4:-2] == b"\x88\x02"
    assert "more than" in reasons(caplog)


@pytest.mark.parametrize(
    "more",
    [
        "Origin: https://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",  # another port of this host
        "Referer: http://evil.example/page\r\n",  # of a picture, without TLS
    ],
    ids=["origin", "cross-site", "same-site", "referer"],
)
@pytest.mark.parametrize("path", ["/mqtt", "/", "/destroy/q", "/api/v1/status"])
async def test_a_page_of_a_foreign_origin(
    hub: Node, more: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = str(hub.listeners[0].address)
    head = WEBSOCKET if path in ("/mqtt", "/") else PLAIN
    answer = await exchange(hub, head.format(path=path, host=host, more=more).encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert "may not use this hub" in reasons(caplog)


REBOUND = "Origin: http://evil.example:8080\r\n"  # the page's own site, and so of its own origin
DOORS = {
    "mqtt": WEBSOCKET.format(path="/mqtt", host="evil.example:8080", more=REBOUND),
    "smq websocket": WEBSOCKET.format(path="/", host="evil.example:8080", more=REBOUND),
    "smq": PLAIN.format(path="/", host="evil.example:8080", more="SimpleMQ: 1\r\n"),
    "switch": PLAIN.format(path="/login/me", host="evil.example:8080", more=""),
    "diagnostics": PLAIN.format(path="/", host="evil.example:8080", more=""),
    "api": PLAIN.format(path="/api/v1/status", host="evil.example:8080", more=""),
}


@pytest.mark.parametrize("door", DOORS)
async def test_a_page_whose_own_name_means_our_address(
    hub: Node, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DNS rebinding: every door is shut to a name that nobody gave us, with one line a minute."""
    for _ in range(3):
        answer = await exchange(hub, DOORS[door].encode())
        assert answer.startswith(b"HTTP/1.1 421 Misdirected Request\r\n") and b"`hosts`" in answer
    [line] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "evil.example:8080" in line.message and "setting `hosts`" in line.message
    hub.listeners[0]._told_again -= 60.0  # a minute later
    await exchange(hub, DOORS[door].encode())
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 2


async def test_every_request_of_a_connection_says_a_name_of_ours(hub: Node) -> None:
    for first, path in (("/login/me", "/list/"), ("/api/v1/status", "/api/v1/status")):
        peer = await Peer.dial(hub)
        await peer.say(PLAIN.format(path=first, host="localhost", more="").encode())
        assert (await peer.head()).startswith(b"HTTP/1.1 200 ")
        await peer.say(PLAIN.format(path=path, host="evil.example", more="").encode())
        async with asyncio.timeout(5):
            while b" 421 " not in await peer.reader.readline():
                pass


@pytest.mark.parametrize(
    "place",
    [
        Listener(address="127.0.0.1:0", hosts=("hub.example",)),
        Listener(address="127.0.0.1:0", hosts=(".example",)),
        Listener(address="127.0.0.1:0", origins=("https://hub.example",)),
        Listener(address="127.0.0.1:0", allow_anonymous=False, password_file="users"),
    ],
    ids=["named", "below a name", "origin", "credentials"],
)
async def test_a_name_of_ours(tmp_path: Path, place: Listener) -> None:
    (tmp_path / "users").touch()
    if place.password_file:
        place = replace(place, password_file=str(tmp_path / "users"))
    async with Node(Settings(listen=(), listener=(place,), data=str(tmp_path))) as hub:
        peer = await Peer.dial(hub)
        await peer.say(WEBSOCKET.format(path="/mqtt", host="hub.example:80", more="").encode())
        assert (await peer.head()).startswith(b"HTTP/1.1 101 ")


async def test_names_of_ours_may_be_said_once_for_all_addresses(tmp_path: Path) -> None:
    own = Listener(address="127.0.0.1:0", hosts=("other.example",))
    settings = Settings(listen=("127.0.0.2:0",), listener=(own,), hosts=("hub.example",))
    assert [one.hosts for one in settings.listeners()] == [("hub.example",), ("other.example",)]


async def test_who_asks_for_the_plain_socket_gets_it_though_it_looks_like_a_websocket(
    hub: Node,
) -> None:
    """As the reference: 200, then Init as it stands on a raw socket."""
    more = "SendSmqHttpResponse: true\r\n"
    peer = await Peer.dial(hub)
    await peer.say(WEBSOCKET.format(path="/", host="localhost", more=more).encode())
    head = await peer.head()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"SmqBroker: true" in head
    assert await peer.hear(4) == bytes((0, 17, 1, 1))


async def test_a_browser_runs_nothing_that_a_name_says(hub: Node) -> None:
    """What is answered on a message-switch connection was sniffed, and ran in the hub's origin."""
    path = "/<script>alert(1)</script>"
    log_in = PLAIN.format(path="/login/me", host="localhost", more="")
    for more, typed in (("Sec-Fetch-Site: none\r\n", True), ("", False)):
        peer = await Peer.dial(hub)
        await peer.say(log_in.encode())
        await peer.hear(len(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
        await peer.say(PLAIN.format(path=path, host="localhost", more=more).encode())
        head = await peer.head()
        assert b" 404 " in head and path.encode() in await peer.hear(len("Not found: " + path))
        assert (b"content-type: text/plain" in head and b"nosniff" in head) is typed
        assert typed or head == b"HTTP/1.1 404 Not Found\r\ncontent-length: 37\r\n\r\n"


async def test_a_page_of_its_own_origin(hub: Node) -> None:
    host = str(hub.listeners[0].address)
    peer = await Peer.dial(hub)
    more = f"Origin: http://{host}\r\nSec-WebSocket-Protocol: mqtt\r\n"
    await peer.say(WEBSOCKET.format(path="/", host=host, more=more).encode())
    head = await peer.head()
    assert head.startswith(b"HTTP/1.1 101 ") and b"sec-websocket-protocol: mqtt" in head.lower()


async def test_an_allowed_origin(tmp_path: Path) -> None:
    listener = Listener(address="127.0.0.1:0", origins=("https://app.example",))
    async with Node(Settings(listen=(), listener=(listener,), data=str(tmp_path))) as hub:
        peer = await Peer.dial(hub)
        more = "Origin: https://app.example\r\n"
        await peer.say(WEBSOCKET.format(path="/mqtt", host="localhost", more=more).encode())
        assert (await peer.head()).startswith(b"HTTP/1.1 101 ")


async def test_a_listener_for_websockets_only_or_for_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = tuple(
        Listener(address="127.0.0.1:0", protocols=("mqtt",), websocket=kind)
        for kind in ("only", "never")
    )
    async with Node(Settings(listen=(), listener=listeners, data=str(tmp_path))) as hub:
        plain = codec.connect(b"ann", True, 60)
        framed = WEBSOCKET.format(path="/mqtt", host="localhost", more="").encode()
        for listener, request, answer in (
            (hub.listeners[0], plain, b""),
            (hub.listeners[0], framed, b"HTTP/1.1 101 "),
            (hub.listeners[1], plain, b"\x20\x02\0\0"),
            (hub.listeners[1], framed, b"HTTP/1.1 404 "),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
            writer.write(request)
            assert await asyncio.wait_for(reader.read(13), 5) == answer[:13]
            writer.close()
    assert "no protocol here begins with" in reasons(caplog)


async def test_a_body_that_is_no_json(hub: Node) -> None:
    """message-switch answers 500, and the connection stays usable."""
    peer = await Peer.dial(hub)
    await peer.say(b"GET /login/me HTTP/1.1\r\n\r\n")
    await peer.head()
    await peer.say(b"POST /transfer HTTP/1.1\r\ncontent-length: 3\r\n\r\n{,}")
    assert (await peer.head()).startswith(b"HTTP/1.1 500 Internal Server Error")
    assert await peer.hear(28) == b"Error: Internal Server Error"
    await peer.say(b"GET /list/ HTTP/1.1\r\n\r\n")
    assert (await peer.head()).startswith(b"HTTP/1.1 200 OK")


async def test_the_first_request_binds_the_connection(hub: Node) -> None:
    """A connection that began with the web application is never message-switch's."""
    peer = await Peer.dial(hub)
    await peer.say(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await peer.head()
    assert b"application/json" in head
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await peer.hear(size)
    await peer.say(b"GET /list/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await peer.head()).startswith(b"HTTP/1.1 404 ")
    assert await peer.hear(27) == b"there is nothing at '/list/'"[:27]


async def test_get_slash_is_diagnostics_unless_a_page_is_wanted(hub: Node) -> None:
    plain = await Peer.dial(hub)
    await plain.say(b"GET / HTTP/1.1\r\nAccept: */*\r\n\r\n")
    assert (await plain.head()).startswith(b"HTTP/1.1 200 OK")
    assert (await plain.hear(15)) == b'{"start_time":0'
    page = await Peer.dial(hub)
    await page.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
    assert b"text/html" in await page.head()


async def test_diagnostics_bind_nothing(hub: Node) -> None:
    """After `GET /` the next request decides: here first message-switch, there the web app."""
    for request, answer in (
        (b"GET /login/me HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0"),
        (b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", b"application/json"),
        (b"GET /x HTTP/1.1\r\nSimpleMQ: 1\r\nSendSmqHttpResponse: true\r\n\r\n", b"SmqBroker"),
    ):
        peer = await Peer.dial(hub)
        for _ in range(2):
            await peer.say(b"GET / HTTP/1.1\r\n\r\n")
            head = await peer.head()
            assert head.startswith(b"HTTP/1.1 200 OK")
            await peer.hear(int(head.rpartition(b": ")[2]))
        await peer.say(request[:9])
        await asyncio.sleep(0.05)
        await peer.say(request[9:])
        assert answer in await peer.head()


async def test_a_half_closed_connection_still_gets_its_answer(hub: Node) -> None:
    peer = await Peer.dial(hub)
    await peer.say(b"POST /publish/a/b?qos=1 HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi")
    peer.writer.write_eof()
    assert (await peer.hear_all()).startswith(b"HTTP/1.1 200 OK")


async def test_mqtt_over_websocket_may_split_packets_over_messages(hub: Node) -> None:
    peer = await Peer.dial(hub)
    await peer.say(WEBSOCKET.format(path="/mqtt", host="localhost", more="").encode())
    await peer.head()
    packet = codec.connect(b"browser", True, 60)
    for piece in (packet[:3], packet[3:]):
        await peer.say(bytes((0x82, 0x80 | len(piece))) + b"\0\0\0\0" + piece)
    assert await peer.hear(6) == b"\x82\x04\x20\x02\x00\x00"
    await peer.say(b"\x82\x82\0\0\0\0" + codec.DISCONNECT_PACKET)
    assert await peer.hear_all() == b"\x88\x02\x03\xe8", "a close frame with code 1000"


PING = codec.PINGREQ_PACKET * 50_000


@pytest.mark.slow
@pytest.mark.pure
async def test_who_does_not_read_is_not_read_from(
    hub: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.socket.LINK_PAUSED", 200_000)
    peer = await Peer.dial(hub)
    await peer.say(codec.connect(b"lazy", True, 1))
    await peer.hear(4)
    asked = await asked_until_stuck(peer)
    (sock,) = [sock for sock in hub.sockets if sock.paused]
    assert sock.link is not None
    assert 200_000 < sock.link.size < 1_000_000, "the answers to one read more than the bound"
    await asyncio.sleep(2.5)
    assert sock.paused, "silent because the hub does not listen: that is not held against it"
    answers = codec.PINGRESP_PACKET * (asked // 2)
    assert await peer.hear(len(answers)) == answers
    await peer.say(codec.PINGREQ_PACKET)
    assert await peer.hear(2) == codec.PINGRESP_PACKET
    assert not sock.paused


@pytest.mark.pure
async def test_who_never_reads_is_ended(
    hub: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hubbub.runtime.socket.LINK_PAUSED", 200_000)
    monkeypatch.setattr("hubbub.runtime.socket.LINK_CHOKED", 100_000)
    monkeypatch.setattr("hubbub.runtime.socket.STALLED_SECONDS", 0.5)
    monkeypatch.setattr("hubbub.runtime.socket.CLOSE_SECONDS", 0.2)
    peer = await Peer.dial(hub)
    await peer.say(codec.connect(b"dead", True, 0))
    await asked_until_stuck(peer)
    async with asyncio.timeout(10):
        while len(hub.sockets) > 1:
            await asyncio.sleep(0.1)
    assert "it has read nothing for 0.5 s" in reasons(caplog)


async def asked_until_stuck(peer: Peer) -> int:
    """Send pings until the hub takes no more of them or ends it; how many bytes were sent."""
    asked = 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        while asked < 100_000_000:
            peer.writer.write(PING)
            asked += len(PING)
            await asyncio.wait_for(peer.writer.drain(), 1)
    assert asked < 100_000_000
    return asked


def test_the_key_of_rfc_6455() -> None:
    """1.3: the sample nonce gives this accept value."""
    from hubbub.wire.websocket import accept_key

    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert len(base64.b64decode("dGhlIHNhbXBsZSBub25jZQ==")) == 16


# What comes in pieces, and what is not let in


POST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


async def heard_by(hub: Node, topic: str) -> mqtt.MqttClient:
    client = mqtt.connect(url(hub), client_id="listener")
    await client.__aenter__()
    await client.subscribe(topic)
    return client


@pytest.mark.parametrize("before", ["", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("size", [2, 500_000])
async def test_a_body_in_a_segment_of_its_own(hub: Node, before: str, size: int) -> None:
    """It hung, was too large a head, or was taken for a request."""
    peer = await Peer.dial(hub)
    if before:
        await peer.say(before.encode())
        head = await peer.head()
        await peer.hear(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    await peer.say(POST.format(path="/publish/a", size=size).encode())
    await asyncio.sleep(0.05)
    await peer.say(b"x" * size)
    assert await peer.hear(len(OK)) == OK


@pytest.mark.parametrize("first", ["GET / ", "POST /publish/kept ", "GET / HTTP/1.1\r\n\r\nGET / "])
async def test_a_body_is_never_executed_as_a_request(hub: Node, first: str) -> None:
    smuggled = POST.format(path="/publish/smuggled", size=1).encode() + b"x"
    listener = await heard_by(hub, "#")
    peer = await Peer.dial(hub)
    head = f"{first}HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(smuggled)}\r\n\r\n"
    await peer.say(head.encode())
    await asyncio.sleep(0.05)
    await peer.say(smuggled)
    await peer.head()
    await peer.say(POST.format(path="/publish/last", size=1).encode() + b"x")
    async with asyncio.timeout(10):
        topics = []
        async for message in listener.messages():
            topics.append(message.topic)
            if message.topic == "last":
                break
    assert "smuggled" not in topics
    await listener.__aexit__(None, None, None)


async def test_connections_of_the_web_application_are_counted(tmp_path: Path) -> None:
    place = Listener(address="127.0.0.1:0", max_connections=2)
    hub = Node(Settings(listen=(), listener=(place,), data=str(tmp_path)))
    hub.web = Application(hub)
    page = PLAIN.format(path="/metrics", host="localhost", more="").encode()
    async with hub:
        here = [await Peer.dial(hub) for _ in range(2)]
        for peer in here:
            await peer.say(page)
            assert (await peer.head()).startswith(b"HTTP/1.1 200 ")
        assert await exchange(hub, page) == b""
        here.pop().writer.close()
        page = page.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            while not (await exchange(hub, page)):
                await asyncio.sleep(0.02)


async def test_who_comes_back_at_once_finds_room(tmp_path: Path) -> None:
    """A network was away for a moment: the hub hears of the new connections before the old ends."""
    many = 40
    place = Listener(address="127.0.0.1:0", max_connections=many)
    async with Node(Settings(listen=(), listener=(place,), data=str(tmp_path))) as hub:

        def dial(number: int) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", hub.listeners[0].address.port))
            made.sendall(codec.connect(b"c%d" % number, True, 60))
            return made

        async def answers(sockets: list[socket.socket]) -> list[bytes]:
            loop = asyncio.get_running_loop()
            for one in sockets:
                one.setblocking(False)
            async with asyncio.timeout(10):
                return [await loop.sock_recv(one, 9) for one in sockets]

        old = [dial(number) for number in range(many)]
        assert await answers(old) == [b"\x20\x02\0\0"] * many
        new = [dial(0)]  # and from here on the loop does not run
        for number, one in enumerate(old):
            one.close()
            new += [dial(number)] if number else []
        assert await answers(new) == [b"\x20\x02\0\0"] * many
        late = [dial(number) for number in range(many, many + 3)]
        assert await answers(late) == [b""] * 3, "and nobody else does"
        new.pop().close()
        assert await answers([dial(many)]) == [b"\x20\x02\0\0"]
        for one in (*new, *late):
            one.close()


async def test_when_no_file_is_left_new_connections_are_refused_with_a_line_a_minute(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    hub.most_connections = 1  # the bystander
    for _ in range(3):
        assert await exchange(hub, b"GET / HTTP/1.1\r\n\r\n") == b""
    [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "refused connections: 1 are open" in line.message
    hub.most_connections = 100


async def test_half_a_request_to_the_web_application_ends(hub: Node) -> None:
    """Before the login with the time of a stranger; after it when nothing comes any more."""
    listener, now = hub.listeners[0], hub.clock.now()
    half = POST.format(path="/api/v1/publish", size=9).encode() + b"{"
    peer = await Peer.dial(hub)
    await peer.say(half)
    while not len(listener.guests):
        await asyncio.sleep(0.01)
    listener.sweep(now + HALF_SECONDS - 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.reader.read(1), 0.2)
    listener.sweep(now + HALF_SECONDS + 5)
    assert await peer.hear_all() == b""
    async with asyncio.timeout(5):
        while len(listener.guests):
            await asyncio.sleep(0.01)
    assert not [one for one in hub.broker.metrics.dropped if "error" in one]


@pytest.mark.parametrize(
    "said",
    [
        b"GET /login/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\n\r\n",
        POST.format(path="/publish/x", size=9).encode(),
        POST.format(path="/api/v1/publish", size=9).encode(),
        codec.connect(b"me", True, 60)[:9],
        b"",
    ],
    ids=["login", "page", "half a publish", "half a body", "half a CONNECT", "nothing"],
)
async def test_who_is_not_let_in_has_thirty_seconds(tmp_path: Path, said: bytes) -> None:
    """Also who says nothing for a while: a modem dials, and is told only then what to send."""
    (tmp_path / "users").touch()
    place = Listener(address="127.0.0.1:0", password_file=str(tmp_path / "users"))
    hub = Node(Settings(listen=(), listener=(place,), data=str(tmp_path / "data")))
    hub.web = Application(hub)
    async with hub:
        peer = await Peer.dial(hub)
        await peer.say(said)
        while not len(hub.strangers):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(hub.strangers) == 1
        assert not list(hub.deadlines.due(hub.clock.now() + STRANGER_SECONDS - 2))
        hub.strangers.sweep(hub.clock.now() + STRANGER_SECONDS - 0.5)
        assert len(hub.strangers) == 1
        hub.strangers.sweep(hub.clock.now() + STRANGER_SECONDS)
        await peer.hear_all(3)
        assert len(hub.strangers) == 0 and not hub.sockets


async def test_who_is_let_in_is_no_stranger(hub: Node) -> None:
    assert len(hub.strangers) == 0, "the bystander"
    for said in (PLAIN.format(path="/login/me", host="localhost", more="").encode(),
                 PLAIN.format(path="/metrics", host="localhost", more="").encode()):  # fmt: skip
        peer = await Peer.dial(hub)
        await peer.say(said)
        assert (await peer.head()).startswith(b"HTTP/1.1 200 ")
        assert len(hub.strangers) == 0


async def test_what_a_stranger_says_has_a_bound(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await Peer.dial(hub)
    await peer.say(WEBSOCKET.format(path="/", host="localhost", more="").encode())
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            await peer.say((b"\x8a\xfd" + bytes(4 + 125)) * 10)  # pongs that nobody asked for
    await peer.hear_all()
    most = next(one for one in hub.protocols if isinstance(one, Smq)).login_bytes
    assert f"more than {most} bytes before it was let in" in reasons(caplog)


@pytest.mark.parametrize("most", [1, 20, 1_000])
async def test_who_is_ended_reads_why(hub: Node, most: int) -> None:
    """Whatever it still says: a socket closed with something unread loses the last words."""
    properties = codec.Properties()
    speaker = next(one for one in hub.protocols if isinstance(one, Mqtt))
    speaker.receive_maximum = most
    for _ in range(10):
        peer = await Peer.dial(hub)
        await peer.say(codec.connect(b"hasty", True, 60, None, properties=properties))
        publish = [
            codec.publish(b"a", bytes(1000), 2, False, number, False, b"\0")
            for number in range(1, most + 2)
        ]
        with contextlib.suppress(ConnectionError):
            await peer.say(b"".join(publish) + bytes(300_000))
        heard = await peer.hear_all()
        *_, (start, body, _) = codec.packets(heard)
        assert (heard[start], heard[body]) == (0xE0, 0x93)
        peer.writer.close()


async def test_who_never_leaves_is_cut_off_after_a_second(hub: Node) -> None:
    peer = await Peer.dial(hub)
    await peer.say(codec.connect(b"slow", True, 60) + b"\xf0\x00")
    assert await peer.hear_all() == b"\x20\x02\0\0"
    leaving = hub.leaving.transports
    assert len(leaving) == 1
    assert hub.listeners[0].connections == 1, "it is not counted any more"
    async with asyncio.timeout(5):
        while leaving:
            with contextlib.suppress(ConnectionError):
                await peer.say(b"more")
            await asyncio.sleep(0.05)


async def test_no_more_than_a_few_leave_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted out, and each has a descriptor still: the oldest goes, by whichever listener
    it came.
    """
    monkeypatch.setattr("hubbub.runtime.farewell.LINGER_SECONDS", 60)
    peers = []
    async with Node(Settings(listen=("127.0.0.1:0", "127.0.0.1:0"), data=str(tmp_path))) as hub:
        leaving = hub.leaving.transports
        for number in range(FAREWELLS + 3):
            peers.append(await Peer.dial(hub, number % 2))
            await peers[-1].say(codec.connect(b"leaver%d" % number, True, 60) + b"\xf0\x00")
            assert await peers[-1].hear_all() == b"\x20\x02\0\0"
        assert len(leaving) == FAREWELLS
        gone = [transport.is_closing() for transport in leaving]  # type: ignore[attr-defined]
        assert not any(gone), "those that are left are the youngest"
        for peer in peers:
            peer.writer.close()
        async with asyncio.timeout(20):
            while leaving:
                await asyncio.sleep(0.01)


async def test_who_leaves_over_websocket_may_answer_the_close(
    hub: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DISCONNECT, one Close frame; the peer's own may come late (RFC 6455, 7.1.1), for a while."""
    monkeypatch.setattr("hubbub.runtime.farewell.LINGER_SECONDS", 60)
    leaving = hub.leaving.transports
    host = str(hub.listeners[0].address)
    peer = await Peer.dial(hub)
    await peer.say(
        WEBSOCKET.format(path="/mqtt", host=host, more="Sec-WebSocket-Protocol: mqtt\r\n").encode()
    )
    await peer.head()
    await peer.say(masked_frame(codec.connect(b"leaver", True, 0)))
    await peer.hear(6)
    await peer.say(masked_frame(b"\xe0\0"))
    assert await peer.hear_all() == b"\x88\x02\x03\xe8"
    assert len(leaving) == 1, "it waits for ours"
    await peer.say(masked_frame(b"\x03\xe8", CLOSE))
    peer.writer.close()
    async with asyncio.timeout(20):
        while leaving:
            await asyncio.sleep(0.01)
    assert ("mqtt", "leaver") not in hub.broker.sessions


async def test_who_leaves_without_waiting_is_gone(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Our Close frame is answered with a reset: nothing waits for more, and nothing broke."""
    host = str(hub.listeners[0].address)
    before = hub.listeners[0].connections
    peer = await Peer.dial(hub)
    more = "Sec-WebSocket-Protocol: mqtt\r\n"
    await peer.say(WEBSOCKET.format(path="/mqtt", host=host, more=more).encode())
    await peer.head()
    await peer.say(masked_frame(codec.connect(b"leaver", True, 0)))
    await peer.hear(6)
    peer.writer.write(masked_frame(b"\xe0\0"))
    peer.writer.close()
    async with asyncio.timeout(20):
        while hub.listeners[0].connections > before or hub.leaving.transports:
            await asyncio.sleep(0.01)
    assert not reasons(caplog).count("broke")
