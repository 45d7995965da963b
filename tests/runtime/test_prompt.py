"""Clients that keep Nagle's algorithm: their second small packet does not wait 40 ms for ours.

Such a client holds it back until the kernel of the hub has acknowledged the first. Each of twenty
takes 40 ms where the kernel takes its time, and less than one where it is told to hurry. A busy
machine makes some of them late, too, but never most.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from hubbub.config.settings import Journal, Listener, Settings, Tls
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from tests.certificates import Authority

TIMES = 20
SOON = 0.02  # seconds: half of the kernel's own time

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Slowpoke:
    """A blocking socket as most clients open it: every `say` is a segment of its own."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection(("localhost", port), 20)
        assert not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        self.sock = context.wrap_socket(sock, server_hostname="localhost") if context else sock

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def hear(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            assert piece, "the hub closed"
            data += piece
        return data


def mqtt(client: Slowpoke, subscribed: int | None = None) -> None:
    client.say(codec.connect(b"slow", True, 60))
    client.hear(4)
    if subscribed is not None:
        client.say(codec.subscribe(1, [(b"own/#", subscribed)]))
        client.hear(5)


def publishes_and_asks(client: Slowpoke) -> Iterator[None]:
    """Who hears and publishes: nothing comes back for the publish, and the ping waits behind it."""
    mqtt(client, 0)
    for _ in range(TIMES):
        client.say(codec.publish(b"other", b"x", 0), codec.PINGREQ_PACKET)
        assert client.hear(2) == codec.PINGRESP_PACKET
        yield


def acknowledges_and_publishes(client: Slowpoke) -> Iterator[None]:
    """A message of QoS 1 to oneself: the next one waits behind the PUBACK of the last."""
    mqtt(client, 1)
    packet = codec.publish(b"own/a", b"x", 1, packet_id=7)
    for number in range(1, TIMES + 1):
        client.say(packet)
        client.hear(len(packet) + 4)
        client.say(codec.acknowledgement(codec.PUBACK, number))
        yield


def answers_qos_2(client: Slowpoke) -> Iterator[None]:
    """A PUBREC waits behind a PUBACK; nothing was ever published on this connection."""
    mqtt(client, 2)
    with contextlib.closing(socket.create_connection(client.sock.getpeername()[:2])) as other:
        other.sendall(codec.connect(b"other", True, 60))
        for number in range(1, 2 * TIMES, 2):
            one = codec.publish(b"own/a", b"x", 1, packet_id=5)
            two = codec.publish(b"own/a", b"x", 2, packet_id=6)
            other.sendall(one + two + codec.acknowledgement(codec.PUBREL, 6))
            client.hear(len(one) + len(two))
            client.say(
                codec.acknowledgement(codec.PUBACK, number),
                codec.acknowledgement(codec.PUBREC, number + 1),
            )
            assert client.hear(4) == codec.acknowledgement(codec.PUBREL, number + 1)
            client.say(codec.acknowledgement(codec.PUBCOMP, number + 1))
            yield


def sends_a_body_apart(client: Slowpoke) -> Iterator[None]:
    """An HTTP client that sends the body of a request behind its head."""
    client.say(b"GET /login/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    client.hear(len(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
    for _ in range(TIMES):
        client.say(b"POST /ack HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n", b"{}")
        assert b"HTTP/1.1" in client.sock.recv(1000)
        yield


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as made:
        yield made


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    "talk",
    [publishes_and_asks, acknowledges_and_publishes, answers_qos_2, sends_a_body_apart],
)
def test_the_second_piece_does_not_wait(
    runner: asyncio.Runner, authority: Authority, talk: Callable[[Slowpoke], Iterator[None]],
    secure: bool,
) -> None:  # fmt: skip
    async def main() -> list[float]:
        tls = Tls(certificate=str(authority.sign("localhost", server=True))) if secure else Tls()
        place = Listener(address="127.0.0.1:0", tls=tls)
        memory = Journal(record="none")
        async with Node(Settings(listen=(), listener=(place,), journal=memory)) as node:
            return await asyncio.to_thread(timed, node.listeners[0].address.port)

    def timed(port: int) -> list[float]:
        context = ssl.create_default_context(cafile=str(authority.file)) if secure else None
        client = Slowpoke(port, context)
        with contextlib.closing(client.sock):
            ends = [time.monotonic(), *(time.monotonic() for _ in talk(client))]
        return sorted(end - began for began, end in itertools.pairwise(ends))

    took = runner.run(main())
    assert len(took) == TIMES and took[TIMES // 2] < SOON, took


def test_a_path_is_no_tcp(tmp_path: Path) -> None:
    """A Unix socket has no such option, and needs none."""

    async def main() -> None:
        path = tmp_path / "hub"
        place = Listener(address=f"unix:{path}")
        async with Node(Settings(listen=(), listener=(place,), journal=Journal(record="none"))):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(codec.connect(b"near", True, 60) + codec.subscribe(1, [(b"a", 2)]))
            assert await reader.readexactly(9)
            writer.write(codec.publish(b"b", b"x", 0))
            await asyncio.sleep(0.01)
            writer.write(codec.PINGREQ_PACKET)
            assert await reader.readexactly(2) == codec.PINGRESP_PACKET
            writer.close()

    asyncio.run(asyncio.wait_for(main(), 20))
