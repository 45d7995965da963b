"""What a client says right behind its login, and closes: it is heard once the gate has decided."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.auth.passwords import Passwords, add_user
from hubbub.config.settings import Journal, Limits, Listener, Settings, Tls
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.node import Node
from hubbub.wire.websocket import CLOSE
from hubbub.wire.websocket import masked_frame as masked
from tests.certificates import Authority
from tests.client.smq.here import until
from tests.runtime.test_framing import Peer as Framed

COUNT = 50
RATED = Limits(user_messages_per_second=1_000)
LOGIN = codec.connect(b"early", True, 60, user=b"ann", password=b"sesame")
SAID = b"".join(codec.publish(b"t/%d" % n, b"x", n % 2, packet_id=1 + n) for n in range(COUNT))


@asynccontextmanager
async def serving(
    folder: Path, limits: Limits, authority: Authority | None = None
) -> AsyncIterator[Node]:
    """The gate looks at passwords, which takes some milliseconds."""
    add_user(folder / "users", "ann", b"sesame")
    tls = Tls()
    if authority is not None:
        tls = Tls(certificate=str(authority.sign("localhost", server=True)))
    settings = Settings(
        listen=(), listener=(Listener(address="127.0.0.1:0"),), tls=tls, limits=limits,
        journal=Journal(record="none"), password_file=str(folder / "users"),
    )  # fmt: skip
    async with Node(settings) as node:
        yield node


async def heard(metrics: Metrics, sender: asyncio.StreamWriter) -> None:
    """All of it, and then the connection is gone."""
    await until(lambda: metrics.messages_in == COUNT)
    await until(lambda: metrics.connections_ended == metrics.connections)
    sender.close()


limited = pytest.mark.parametrize("limits", [Limits(), RATED], ids=["free", "rated"])
at_once = pytest.mark.parametrize("at_once", [True, False], ids=["at once", "apart"])


@limited
@at_once
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
async def test_mqtt(tmp_path: Path, limits: Limits, at_once: bool, secured: bool) -> None:
    authority = Authority(tmp_path) if secured else None
    async with serving(tmp_path, limits, authority) as node:
        address = node.listeners[0].address
        tls = authority.client() if authority is not None else None
        name = "localhost" if secured else None
        _, writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls, server_hostname=name
        )
        if at_once:
            writer.write(LOGIN + SAID)
        else:
            writer.write(LOGIN)
            await until(lambda: any(sock.connection is not None for sock in node.sockets))
            writer.write(SAID)
        if secured:
            writer.close()
        else:
            writer.write_eof()
        await heard(node.broker.metrics, writer)


@limited
@pytest.mark.parametrize(
    "last", [masked(b"\x03\xe8", CLOSE), b"\xff" * 10, b""], ids=["closes", "nonsense", "gone"]
)
@pytest.mark.parametrize("one_frame", [True, False], ids=["one frame", "many"])
async def test_websocket(tmp_path: Path, limits: Limits, last: bytes, one_frame: bool) -> None:
    """It closes, says nonsense, or is gone."""
    async with serving(tmp_path, limits) as node:
        peer = await Framed.dial(node, "/mqtt", "Sec-WebSocket-Protocol: mqtt\r\n")
        pieces = [SAID] if one_frame else [SAID[at : at + 7] for at in range(0, len(SAID), 7)]
        peer.writer.write(masked(LOGIN) + b"".join(map(masked, pieces)) + last)
        peer.writer.write_eof()
        await heard(node.broker.metrics, peer.writer)


async def test_smq(tmp_path: Path) -> None:
    """Each frame of a WebSocket is one message."""
    async with serving(tmp_path, Limits()) as node:
        peer = await Framed.dial(node, "/smq.lsp")
        await peer.hear(1)
        login = smq.build_connect(b"device", b"ann:sesame")
        said = [smq.message(smq.CREATE, rest=b"x/%d" % number) for number in range(COUNT)]
        peer.writer.write(b"".join(map(masked, [login, *said])))
        peer.writer.write_eof()
        await until(lambda: f"x/{COUNT - 1}" in node.broker.state.topics.numbers)


SHOWN = b"Authorization: Basic " + base64.b64encode(b"ann:sesame") + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\n%b\r\n" % (path, headers)


def transfer(seconds: int) -> bytes:
    body = b'{"timeout":%d,"queues":["q"]}' % seconds
    return b"POST /transfer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def answered(node: Node, *said: bytes) -> bytes:
    """All that a client hears that says no more, but reads on; behind each other piece it waits for
    an answer.
    """
    address = node.listeners[0].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    found = b""
    async with asyncio.timeout(10):
        for piece in said[:-1]:
            writer.write(piece)
            found += await reader.readuntil(b"\r\n\r\n")
        writer.write(said[-1])
        writer.write_eof()
        found += await reader.read()
    writer.close()
    return found


POST = b"POST /publish/a?qos=1 HTTP/1.1\r\n" + SHOWN + b"content-length: 2\r\n\r\nhi"


@limited
async def test_a_request_is_answered_though_its_password_takes_a_while(
    tmp_path: Path, limits: Limits
) -> None:
    """It was closed without a word, as if it were gone; whoever asked did not know what became of
    it.
    """
    async with serving(tmp_path, limits) as node:
        for said, begins in (
            (POST, b"HTTP/1.1 200 OK"),
            (POST.replace(b"YW5u", b"Ym9i"), b"HTTP/1.1 401 "),
            (get(b"/login/me", SHOWN) + get(b"/create/q"), OK),
            (get(b"/login/me", SHOWN), OK),
        ):
            assert (await answered(node, said)).startswith(begins), said
        metrics = node.broker.metrics
        await until(lambda: metrics.connections_ended == metrics.connections)
        assert metrics.messages_in == 1


@limited
async def test_all_that_was_asked_is_answered_in_order(tmp_path: Path, limits: Limits) -> None:
    """In more turns than one; and half a request behind it is none."""
    count = 3_000 if limits is not RATED else 300
    send = b"POST /send/q/1 HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi"
    async with serving(tmp_path, limits) as node:
        begins = get(b"/login/me", SHOWN) + get(b"/create/q")
        found = await answered(node, begins, send * count + send[:-1])
        assert found.count(b"HTTP/1.1 200 OK") == 2 + count
        assert len(node.broker.state.queues["q"].messages) == count


@pytest.mark.parametrize(
    "said",
    [
        b"POST /publish/a?qos=1 HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"POST /publish/a?qos=1 HTTP/1.0\r\ncontent-length: 2\r\n\r\nhi",
        b"POST /publish/a?qos=1 HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi" * 120,
    ],
    ids=["Connection: close", "HTTP/1.0", "too many"],
)
async def test_so_is_the_last_that_a_connection_is_for(tmp_path: Path, said: bytes) -> None:
    """It was to be closed behind the answer, which waited for the disk, and was closed before."""
    settings = Settings(listen=("127.0.0.1:0",), data=str(tmp_path / "data"))
    async with Node(settings) as node:
        for _ in range(5):
            assert (await answered(node, said)).startswith(OK)
        login = codec.connect(b"c", True, 60) + codec.publish(b"a", b"hi", 1, packet_id=9)
        for _ in range(5):
            assert (await answered(node, login + codec.DISCONNECT_PACKET)).endswith(b"\x40\2\0\x09")
        metrics = node.broker.metrics
        await until(lambda: metrics.connections_ended == metrics.connections)


async def test_who_says_no_more_waits_for_nothing(tmp_path: Path) -> None:
    """It may be gone: a message that came would be shown to nobody. What is there it gets."""
    async with serving(tmp_path, Limits()) as node:
        begins = get(b"/login/me", SHOWN) + get(b"/create/q")
        send = b"POST /send/q/1 HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi"
        found = await answered(node, begins, transfer(60))
        assert found.count(b"HTTP/1.1 200 OK") == 3 and b'"messages":[]' in found
        found = await answered(node, begins + transfer(60) + send + transfer(60))
        assert found.count(b"HTTP/1.1 200 OK") == 5 and b"hi" in found.rpartition(b"HTTP/1.1")[2]


async def test_who_only_logs_in_and_goes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears the answer: of thousands who gave up waiting no password is looked at."""
    looked, verify = [], Passwords.verify

    def counting(self: Passwords, user: str, secret: bytes) -> bool:
        looked.append(user)
        return verify(self, user, secret)

    monkeypatch.setattr(Passwords, "verify", counting)
    async with serving(tmp_path, Limits()) as node:
        address, metrics = node.listeners[0].address, node.broker.metrics
        for number in range(40):
            _, writer = await asyncio.open_connection(address.host, address.port)
            other = b"wrong %d" % number  # each is a work of its own
            writer.write(codec.connect(b"c", True, 60, user=b"ann", password=other))
            writer.close()
        await until(lambda: metrics.connections_ended == metrics.connections == 40)
        assert len(looked) < 20
