"""What a client says right behind its login, and closes: it is heard once the gate has decided."""

from __future__ import annotations

import asyncio
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
