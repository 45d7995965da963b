"""Nothing of a connection waits for the collector of cycles; what full looks leave is put aside."""

from __future__ import annotations

import asyncio
import collections
import gc
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.config.settings import Settings, Tls
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.collector import MANY, Aside
from hubbub.runtime.node import Node
from tests.certificates import Authority
from tests.protocols.smq.device import HEAD

TIMES = 20

MQTT = codec.connect(b"ann", True, 60, codec.Will(b"will", b"gone", 1, True))
MQTT += codec.subscribe(1, [(b"a/#", 2)])
LASTING = codec.connect(b"bob", False, 60) + codec.subscribe(1, [(b"a/#", 2)])
PUBLISHED = MQTT + codec.publish(b"a/b", b"1", 2, packet_id=3)
SMQ = (HEAD, smq.framed(smq.message(smq.CONNECT, smq.VERSION, rest=b"\x04dev1\0")))
SWITCH = (b"GET /login/T HTTP/1.1\r\nHost: localhost\r\n\r\n",
          b"GET /subscribe/q HTTP/1.1\r\nHost: localhost\r\n\r\n")  # fmt: skip
SOCKET = (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
          b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\n"
          b"Sec-WebSocket-Protocol: mqtt\r\n\r\n",)  # fmt: skip

SAID = {
    "mqtt": (MQTT,), "a lasting session": (LASTING,), "a publisher": (PUBLISHED,),
    "refused": (codec.connect(b"", False, 60),), "smq": SMQ, "switch": SWITCH,
    "websocket": SOCKET, "foreign": (b"\x16\x03",), "silent": (b"\x10",),
}  # fmt: skip


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.unfreeze()


def left() -> collections.Counter[str]:
    """What the collector finds of ours that nobody refers to but itself."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = (type(one) for one in gc.garbage)
    return collections.Counter(kind.__qualname__ for kind in kinds
                               if kind.__module__.startswith("hubbub"))  # fmt: skip


async def come_and_go(hub: Node, said: tuple[bytes, ...], tls: ssl.SSLContext | None) -> None:
    address = hub.listeners[0].address
    host = "localhost" if tls is not None else address.host
    reader, writer = await asyncio.open_connection(host, address.port, ssl=tls)
    for piece in said:
        writer.write(piece)
        try:
            async with asyncio.timeout(0.05):
                await reader.read(1000)
        except TimeoutError:
            pass
    writer.transport.abort()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("name", SAID)
async def test_nothing_of_a_connection_is_left(
    name: str, secure: bool, tmp_path: Path, uncollected: None
) -> None:
    authority = Authority(tmp_path)
    certificate = str(authority.sign("localhost", server=True))
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"),
        tls=Tls(certificate=certificate, key=certificate),
    )  # fmt: skip
    tls = authority.client() if secure else None
    async with Node(settings) as hub:
        metrics = hub.broker.metrics
        for _ in range(TIMES):
            await come_and_go(hub, SAID[name], tls)
        async with asyncio.timeout(20):
            while metrics.connections_ended < TIMES:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        found = left()
    assert not any(count >= TIMES // 2 for count in found.values()), found


def test_what_a_full_look_leaves_is_put_aside_until_many_have_gone() -> None:
    metrics = Metrics(0)
    aside = Aside(metrics)
    aside.begin()
    try:
        before = gc.get_freeze_count()
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        gc.collect()
        assert gc.get_freeze_count() >= before + len(kept)
        metrics.connections = metrics.connections_ended = MANY + 1
        gc.collect()
        assert gc.get_freeze_count() == 0  # the next look is at everything
        gc.collect()
        assert gc.get_freeze_count() > before
    finally:
        aside.end()
    assert gc.get_freeze_count() == 0
