"""Nothing of a connection waits for the collector of cycles; what full looks leave is put aside."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubbub.config.settings import Settings, Tls
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime import collector
from hubbub.runtime.collector import MANY, Aside, loading
from hubbub.runtime.node import Node
from tests.certificates import Authority
from tests.process import ROOT
from tests.protocols.smq.device import HEAD

TIMES = 20

MQTT = codec.connect(b"ann", True, 60, codec.Will(b"will", b"gone", 1, True))
MQTT += codec.subscribe(1, [(b"a/#", 2)])
LASTING = codec.connect(b"bob", False, 60) + codec.subscribe(1, [(b"a/#", 2)])
PUBLISHED = MQTT + codec.publish(b"a/b", b"1", 2, packet_id=3)
GROUPS = codec.connect(b"eve", True, 60) + codec.subscribe(1, [(b"$share/g/a", 1)])
GROUPS += codec.unsubscribe(2, [b"$share/g/a"])
SMQ = (HEAD, smq.framed(smq.message(smq.CONNECT, smq.VERSION, rest=b"\x08device-1\0")))
SWITCH = (b"GET /login/T HTTP/1.1\r\nHost: localhost\r\n\r\n",
          b"GET /subscribe/q HTTP/1.1\r\nHost: localhost\r\n\r\n")  # fmt: skip
SOCKET = (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
          b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\n"
          b"Sec-WebSocket-Protocol: mqtt\r\n\r\n",)  # fmt: skip

SAID = {
    "mqtt": (MQTT,), "a lasting session": (LASTING,), "a publisher": (PUBLISHED,),
    "groups": (GROUPS,), "refused": (codec.connect(b"", False, 60),), "smq": SMQ, "switch": SWITCH,
    "no request": (b"GET / HTTP/9.9\r\nHost: a b\r\n\r\n",), "websocket": SOCKET,
    "foreign": (b"\x16\x03",), "silent": (b"\x10",),
}  # fmt: skip


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is there before stays aside afterwards: of pytest's process each look takes a second."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


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


# What is put aside, in processes of their own: what these look through has to be little


@contextmanager
def begun(many: int = 0) -> Iterator[Aside]:
    gc.collect()
    gc.disable()
    gc.unfreeze()
    aside = Aside()
    aside.begin()
    collector.MANY = many or gc.get_freeze_count()  # type: ignore[misc]
    yield aside
    aside.end()


def doubled() -> None:
    with begun():
        least = gc.get_freeze_count()
        kept: list[list[object]] = [[] for _ in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() >= least + len(kept)
        for ring in (loop() for _ in range(2 * least)):
            kept.append(ring)
        gc.collect()
        assert gc.get_freeze_count() == 0  # everything is looked at the next time
        kept.clear()  # of which nobody knows any more
        del ring
        assert gc.collect() >= 2 * least
        assert least // 2 < gc.get_freeze_count() < 2 * least
        gc.collect()
        assert gc.get_freeze_count() > least // 2


def loop() -> list[object]:
    ring: list[object] = []
    ring.append(ring)
    return ring


def come_and_gone() -> None:
    with begun(5_000):
        for _ in range(20):
            some: list[list[object]] = [[] for _ in range(gc.get_freeze_count() // 3)]
            gc.collect()
            some.clear()
            assert gc.get_freeze_count() > 0


def ended() -> None:
    with begun() as aside:
        assert gc.get_freeze_count() > 0 and aside.looked in gc.callbacks
    assert gc.get_freeze_count() == 0 and aside.looked not in gc.callbacks


def alone(check: Callable[[], None]) -> None:
    code = f"from tests.runtime.test_collector import {check.__name__} as check; check()"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=paths, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def loaded() -> None:
    gc.enable()
    with loading():
        assert not gc.isenabled()
        kept = [[] for _ in range(MANY)]  # type: ignore[var-annotated]
    assert gc.isenabled() and gc.get_freeze_count() >= len(kept)
    gc.disable()
    with loading():
        pass
    assert not gc.isenabled(), "who has switched it off keeps it off"


def test_what_is_loaded_is_put_aside() -> None:
    alone(loaded)


def test_what_full_looks_leave_is_put_aside_until_that_has_doubled() -> None:
    alone(doubled)


def test_who_comes_and_goes_does_not_count() -> None:
    """Objects that went as ever: what is aside is no more than it was."""
    alone(come_and_gone)


def test_nothing_is_aside_once_it_has_ended() -> None:
    alone(ended)
