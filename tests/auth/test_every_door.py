"""Credentials of a listener hold for every protocol on it: nobody gets in without them.

A hub in this process with a password file and permissions; each protocol is spoken by hand over a
real socket.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user, remove_user
from hubbub.config.settings import Journal, Settings
from hubbub.errors import SettingError
from hubbub.protocols.switch import Switch
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.client.smq.here import until

WEBSOCKET = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SMQ = b"GET / HTTP/1.1\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    add_user(tmp_path / "users", "ann", b"secret")
    add_user(tmp_path / "users", "eve", b"nosy")
    (tmp_path / "acl").write_text(
        "user ann\ntopic #\ntopic $SYS/#\ntopic $queue/#\nuser eve\ntopic write in/eve\n"
        "topic read out/+/eve\ntopic read out/all\n"
    )
    return tmp_path


@pytest.fixture
async def hub(files: Path) -> AsyncIterator[Node]:
    hub = Node(
        Settings(
            listen=("127.0.0.1:0",),
            password_file=str(files / "users"),
            acl_file=str(files / "acl"),
            journal=Journal(record="none"),
        )
    )
    hub.web = Application(hub)
    async with hub:
        yield hub


class Peer:
    """A socket that says bytes and hears the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, hub: Node) -> Peer:
        address = hub.listeners[0].address
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def ask(self, data: bytes, size: int = 1) -> bytes:
        """Say it; what came back, at least `size` bytes, and all of it if the hub closed."""
        self.writer.write(data)
        found = b""
        while len(found) < size:
            piece = await asyncio.wait_for(self.reader.read(65_536), 10)
            if not piece:
                break
            found += piece
        return found


def text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def connect(user: bytes = b"", secret: bytes = b"", client: bytes = b"c", level: int = 4) -> bytes:
    flags = 2 | 0x80 * bool(user) | 0x40 * bool(secret)
    body = text(b"MQTT") + bytes((level, flags, 0, 60)) + b"\0" * (level == 5) + text(client)
    body += (text(user) if user else b"") + (text(secret) if secret else b"")
    return bytes((0x10, len(body))) + body


def subscribe(*filters: bytes) -> bytes:
    body = b"\x00\x01" + b"".join(text(one) + b"\0" for one in filters)
    return bytes((0x82, len(body))) + body


def publish(topic: bytes) -> bytes:
    body = text(topic) + b"x"
    return bytes((0x30, len(body))) + body


def masked(message: bytes) -> bytes:
    assert len(message) < 126
    return bytes((0x82, 0x80 | len(message))) + bytes(4) + message


def smq_connect(credentials: bytes) -> bytes:
    body = b"\x02\x01\x06device" + bytes((len(credentials),)) + credentials + b"info"
    return struct.pack(">H", len(body) + 2) + body


def basic(user: bytes, secret: bytes) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(user + b":" + secret) + b"\r\n"


def request(target: bytes, more: bytes = b"", method: bytes = b"GET") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n"


WRONG = [(b"", b""), (b"ann", b"wrong"), (b"bob", b"secret"), (b"ann", b"")]


@pytest.mark.parametrize(("user", "secret"), WRONG)
async def test_mqtt(hub: Node, user: bytes, secret: bytes) -> None:
    refused = await (await Peer.dial(hub)).ask(connect(user, secret), 99)
    assert refused[:3] == b"\x20\x02\x00" and refused[3] in (4, 5) and len(refused) == 4
    five = await (await Peer.dial(hub)).ask(connect(user, secret, level=5), 99)
    assert five[:1] == b"\x20" and five[3] in (0x86, 0x87)
    peer = await Peer.dial(hub)
    await peer.ask(request(b"/mqtt", WEBSOCKET), 60)
    over_websocket = await peer.ask(masked(connect(user, secret)), 99)
    assert over_websocket[2:5] == b"\x20\x02\x00" and over_websocket[5] in (4, 5)
    assert not hub.broker.clients


async def test_mqtt_with_the_password(hub: Node) -> None:
    early = b"\x32\x07\x00\x01t\x00\x07hi"  # what comes meanwhile is taken afterwards
    answer = await (await Peer.dial(hub)).ask(connect(b"ann", b"secret") + early, 8)
    assert answer == b"\x20\x02\x00\x00" + b"\x40\x02\x00\x07"
    again = await (await Peer.dial(hub)).ask(connect(b"ann", b"secret"), 4)
    assert again == b"\x20\x02\x00\x00"


async def test_garbage_behind_a_connect_ends_that_connection_only(hub: Node) -> None:
    """It is parsed when the gate has answered, outside any call of the listener."""
    garbage = b"\x30\xff\xff\xff\xff\xff"
    answer = await (await Peer.dial(hub)).ask(connect(b"ann", b"secret") + garbage, 99)
    assert answer == b"\x20\x02\x00\x00"
    assert not hub.broker.clients


@pytest.mark.parametrize(("user", "secret"), WRONG)
async def test_smq(hub: Node, user: bytes, secret: bytes) -> None:
    shown = user + b":" + secret if user or secret else b""
    peer = await Peer.dial(hub)
    await peer.ask(SMQ, 3)
    assert (await peer.ask(smq_connect(shown), 99))[2:4] == b"\x03\x03"
    peer = await Peer.dial(hub)
    await peer.ask(request(b"/", WEBSOCKET), 130)
    assert (await peer.ask(masked(smq_connect(shown)[2:]), 99))[2:4] == b"\x03\x03"
    assert not hub.broker.clients


async def test_smq_with_the_password(hub: Node) -> None:
    peer = await Peer.dial(hub)
    await peer.ask(SMQ, 3)
    assert (await peer.ask(smq_connect(b"ann:secret"), 3))[2:4] == b"\x03\x00"


async def test_smq_may_say_a_whole_frame_of_what_it_is(hub: Node) -> None:
    peer = await Peer.dial(hub)
    await peer.ask(SMQ, 3)
    connect = b"\xff\xff\x02\x01\x06device\x0aann:secret".ljust(0xFFFF, b"i")
    peer.writer.write(connect[:40_000])
    await asyncio.sleep(0.05)
    assert (await peer.ask(connect[40_000:], 3))[2:4] == b"\x03\x00"


SWITCH = [
    (b"GET", b"/"), (b"GET", b"/login/me"), (b"GET", b"/trace"), (b"POST", b"/publish/t"),
    (b"POST", b"/bind/q"),
]  # fmt: skip
WEB = [(b"GET", b"/api/v1/status"), (b"GET", b"/metrics"), (b"GET", b"/nothing")]


@pytest.mark.parametrize(("user", "secret"), WRONG)
@pytest.mark.parametrize(("method", "target"), SWITCH + WEB)
async def test_http(hub: Node, method: bytes, target: bytes, user: bytes, secret: bytes) -> None:
    header = basic(user, secret) if user or secret else b""
    more = header + b"Connection: close\r\nContent-Length: 0\r\n"
    answer = await (await Peer.dial(hub)).ask(request(target, more, method), 1 << 20)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: basic " in answer.lower()


@pytest.mark.parametrize("header", [basic(b"ann", b"secret"), b"Authorization: Bearer ann.secret"])
@pytest.mark.parametrize("target", [b"/api/v1/status", b"/login/me", b"/"])
async def test_http_with_the_password(hub: Node, target: bytes, header: bytes) -> None:
    more = header.rstrip() + b"\r\nConnection: close\r\n"
    answer = await (await Peer.dial(hub)).ask(request(target, more), 1 << 20)
    assert answer.startswith(b"HTTP/1.1 200 ")


LARGE = b"Content-Length: 3000000\r\n"


@pytest.mark.parametrize(("user", "secret"), WRONG[:2])
@pytest.mark.parametrize(("method", "target"), [*SWITCH, (b"POST", b"/api/v1/publish")])
async def test_no_body_is_kept_of_who_is_not_let_in(
    hub: Node, method: bytes, target: bytes, user: bytes, secret: bytes
) -> None:
    """Before, message-switch asked when all was there: a stranger had 64 MiB kept."""
    header = basic(user, secret) if user or secret else b""
    peer = await Peer.dial(hub)
    peer.writer.write(request(target, header + LARGE, method))
    answer = await peer.ask(bytes(100_000))
    assert answer.startswith(b"HTTP/1.1 401 ") and hub.waiting.total < 200_000


async def test_a_body_of_who_is_let_in_comes_whole(hub: Node) -> None:
    """Its password is looked at while the body comes, and the rights when it is there."""
    peer = await Peer.dial(hub)
    head = request(b"/publish/in/eve", basic(b"eve", b"nosy") + LARGE, b"POST")
    assert b" 200 OK" in await peer.ask(head + bytes(3_000_000))
    assert hub.broker.metrics.messages_in == 1 and not hub.waiting.total
    head = request(b"/publish/elsewhere", basic(b"eve", b"nosy") + LARGE, b"POST")
    assert b" 403 " in await peer.ask(head + bytes(3_000_000))


async def test_each_request_of_a_connection_is_asked(hub: Node) -> None:
    """A proxy may send those of several people."""
    peer = await Peer.dial(hub)
    status = b"/api/v1/status"
    assert (await peer.ask(request(status, basic(b"ann", b"secret")))).startswith(b"HTTP/1.1 200 ")
    assert (await peer.ask(request(status))).startswith(b"HTTP/1.1 401 ")


async def test_what_pages_show_is_not_for_everybody(hub: Node) -> None:
    answer = await (await Peer.dial(hub)).ask(request(b"/api/v1/status", basic(b"eve", b"nosy")))
    assert answer.startswith(b"HTTP/1.1 403 ") and b"$SYS/#" in answer
    for target in (b"/", b"/trace"):
        answer = await (await Peer.dial(hub)).ask(request(target, basic(b"eve", b"nosy")))
        assert answer.startswith(b"HTTP/1.1 403 "), target


async def test_permissions_of_publishing_and_receiving(hub: Node) -> None:
    ann, eve = await Peer.dial(hub), await Peer.dial(hub)
    await ann.ask(connect(b"ann", b"secret", b"ann"), 4)
    await eve.ask(connect(b"eve", b"nosy", b"eve"), 4)
    assert (await ann.ask(subscribe(b"#"), 5))[4] == 0
    subscribed = await eve.ask(subscribe(b"#", b"in/eve", b"$SYS/#"), 7)
    assert subscribed == b"\x90\x05\x00\x01\x00\x80\x80", "what it may never receive is refused"
    for topic in (b"elsewhere", b"in/eve"):
        eve.writer.write(publish(topic))
    assert await ann.ask(b"", 11) == publish(b"in/eve")
    for topic in (b"out/bob/bob", b"secret", b"out/all"):
        ann.writer.write(publish(topic))
    assert await eve.ask(b"", 12) == publish(b"out/all")
    assert hub.broker.metrics.dropped["not allowed"] == 1


async def test_retained_messages_are_for_those_who_may(hub: Node) -> None:
    ann, eve = await Peer.dial(hub), await Peer.dial(hub)
    await ann.ask(connect(b"ann", b"secret", b"ann"), 4)
    for topic in (b"secret", b"out/all"):
        body = text(topic) + b"\0\1x"
        await ann.ask(bytes((0x33, len(body))) + body, 4)
    await eve.ask(connect(b"eve", b"nosy", b"eve"), 4)
    answer = await eve.ask(subscribe(b"#"), 5 + 12)
    assert answer == b"\x90\x03\x00\x01\x00" + b"\x31\x0a" + text(b"out/all") + b"x"


@pytest.mark.parametrize(
    "change",
    [
        lambda files: add_user(files / "users", "eve", b"other"),
        lambda files: (files / "acl").write_text("user ann\ntopic #\n"),
    ],
    ids=["password", "permissions"],
)
async def test_files_read_again_end_those_who_may_not_stay(
    hub: Node, files: Path, change: Callable[[Path], object]
) -> None:
    ann, eve = await Peer.dial(hub), await Peer.dial(hub)
    await ann.ask(connect(b"ann", b"secret", b"ann"), 4)
    await eve.ask(connect(b"eve", b"nosy", b"eve"), 4)
    change(files)
    hub.read_credentials()
    assert await eve.ask(b"") == b"", "closed"
    assert await ann.ask(b"\xc0\x00", 2) == b"\xd0\x00"


@pytest.mark.parametrize(
    "visit",
    [
        request(b"/publish/t", basic(b"eve", b"nosy") + b"Content-Length: 0\r\n", b"POST"),
        request(b"/login/other", basic(b"eve", b"nosy")),
    ],
    ids=["a request", "a login"],
)
async def test_who_else_was_on_a_connection_does_not_keep_it(
    hub: Node, files: Path, visit: bytes
) -> None:
    """Its credentials are those of who logged in, not the last that were right."""
    ann = await Peer.dial(hub)
    assert b"200 OK" in await ann.ask(request(b"/login/me", basic(b"ann", b"secret")))
    assert b"HTTP/1.1" in await ann.ask(visit)
    remove_user(files / "users", "ann")
    hub.read_credentials()
    assert await ann.ask(request(b"/list/")) == b""


async def test_a_trace_that_waits_is_asked_again(hub: Node, files: Path) -> None:
    eve, ann = await Peer.dial(hub), await Peer.dial(hub)
    (files / "acl").write_text("user ann\ntopic $queue/#\nuser eve\ntopic read $queue/#\n")
    hub.read_credentials()
    assert b"200 OK" in await ann.ask(request(b"/login/me", basic(b"ann", b"secret")))
    assert b"200 OK" in await ann.ask(request(b"/persistent/q"))
    eve.writer.write(request(b"/trace/0/1", basic(b"eve", b"nosy")))
    [switch] = [one for one in hub.protocols if isinstance(one, Switch)]
    await until(lambda: bool(switch._desk.trace.watches))
    (files / "acl").write_text("user ann\ntopic $queue/#\nuser eve\ntopic read none\n")
    hub.read_credentials()
    told = b"Content-Length: 6\r\n"
    assert b"200 OK" in await ann.ask(request(b"/request/q/none", told, b"POST") + b"secret")
    assert (await eve.ask(b"")).endswith(b'{"events":[]}')


async def test_the_same_name_with_another_password_is_refused(hub: Node) -> None:
    ann = await Peer.dial(hub)
    assert b"200 OK" in await ann.ask(request(b"/login/me", basic(b"ann", b"secret")))
    assert b" 401 " in await ann.ask(request(b"/persistent/q", basic(b"ann", b"wrong")))
    assert b" 401 " in await ann.ask(
        request(b"/persistent/q", b"Authorization: Bearer ann.wrong\r\n")
    )
    other = await Peer.dial(hub)
    assert b"200 OK" in await other.ask(request(b"/login/me", basic(b"ann", b"secret")))
    large = request(b"/request/q/x", basic(b"ann", b"wrong") + LARGE, b"POST") + bytes(40_000)
    assert b" 401 " in await other.ask(large), "before its body is there, and no traceback"
    assert "q" not in hub.broker.state.queues
    for header in (b"", basic(b"ann", b"secret"), b"Authorization: Bearer ann.secret\r\n"):
        assert b"200 OK" in await ann.ask(request(b"/persistent/q", header))


async def test_permissions_change_under_those_who_stay(hub: Node, files: Path) -> None:
    ann, eve = await Peer.dial(hub), await Peer.dial(hub)
    await ann.ask(connect(b"ann", b"secret", b"ann"), 4)
    await eve.ask(connect(b"eve", b"nosy", b"eve"), 4)
    await eve.ask(subscribe(b"#"), 5)
    (files / "acl").write_text("user ann\ntopic #\nuser eve\ntopic read secret\n")
    hub.read_credentials()
    for topic in (b"out/all", b"secret"):
        ann.writer.write(publish(topic))
    assert await eve.ask(b"", 11) == publish(b"secret")


async def test_a_damaged_file_does_not_keep_the_others_from_being_read(
    hub: Node, files: Path
) -> None:
    eve = await Peer.dial(hub)
    await eve.ask(connect(b"eve", b"nosy", b"eve"), 4)
    (files / "users").write_text("damaged\n")
    (files / "acl").write_text("topic public/#\n")
    with pytest.raises(SettingError, match="users:1: "):
        hub.read_credentials()
    assert await eve.ask(b"") == b"", "its permissions went, its password is as it was"
    answer = await (await Peer.dial(hub)).ask(connect(b"eve", b"nosy", b"eve"), 4)
    assert answer == b"\x20\x02\x00\x00"
    with pytest.raises(SettingError):
        hub.read_credentials()
    assert len(hub.broker.clients) == 1, "nothing has changed since"
