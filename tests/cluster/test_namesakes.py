"""A second hub of one name: real hubs, real servers, and what a mistake in a name may touch."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import time
from typing import Any

import pytest

from hubbub import connect
from hubbub.cluster.copies import STATE
from hubbub.cluster.jetstream import HEADER, stream_of
from hubbub.errors import HubbubError
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_heirs import flow, know, pair, read, status
from tests.cluster.test_jetstream import Hubs, hubs, pieces_of, quorum
from tests.process import RunningHub

__all__ = ["hubs", "quorum"]

STARTS = 6
PATIENCE = 40.0
pytestmark = [
    pytest.mark.interop,
    has_program,
]


def start_namesake(hubs: Hubs) -> str:
    """A hub with an empty directory and the name of another one; what it says."""
    shutil.rmtree(hubs.root / "double", ignore_errors=True)
    with pytest.raises(AssertionError, match="did not start"):
        hubs.hub("double", "--cluster-name", "a")
    return (hubs.root / "double" / "hub.log").read_text()


def said_by(hubs: Hubs, name: str) -> str:
    return (hubs.root / name / "hub.log").read_text()


async def says(hubs: Hubs, name: str, text: str) -> None:
    until = time.monotonic() + PATIENCE
    while text not in said_by(hubs, name):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)


async def test_a_second_hub_of_one_name_touches_nothing_of_the_first(
    hubs: Hubs, quorum: Quorum
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    acked: set[bytes] = set()
    flows = [
        asyncio.create_task(flow(hub, "kept", 1, acked, name))
        for hub, name in ((a, "wa"), (b, "wb"))
    ]
    lives = {piece.life for piece in await pieces_of(quorum, "a")}
    for _ in range(STARTS):
        said = await asyncio.to_thread(start_namesake, hubs)
        assert "has the name 'a': give each node its own" in said and "Traceback" not in said
        before = len(acked)
        async with asyncio.timeout(PATIENCE):
            while len(acked) == before:
                await asyncio.sleep(0.05)
    for one in flows:
        one.cancel()
    await asyncio.wait(flows)
    assert {piece.life for piece in await pieces_of(quorum, "a")} == lives
    for name in ("a", "b"):
        touched = "heir of node|has taken over|started again|older one|has written to"
        assert not re.search(touched, said_by(hubs, name)), said_by(hubs, name)
    got = await read(b, "away")
    assert acked <= set(got) and len(got) == len(set(got))


@pytest.mark.parametrize("whole", [False, True])
async def test_a_later_life_of_ones_own_name_ends_what_was_acknowledged_for_nobody(
    hubs: Hubs, quorum: Quorum, whole: bool
) -> None:
    """Somebody has written one, behind what this hub said: in part, or as a life that counts."""
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    async with connect(b.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"before", qos=1)
    state = [piece for piece in await pieces_of(quorum, "a") if piece.kind == STATE][-1]
    await write(quorum, f"{state.life + 1} 1 state {state.upto} {int(not whole)}", state.data)
    await says(hubs, "a", "another hub has written to hubbub_hubbub_a")
    await asyncio.to_thread(hubs.ready, a)
    await asyncio.to_thread(hubs.until, a, lambda copies: not copies["trouble"])
    await asyncio.to_thread(know, b, "a")
    assert not re.search("has taken over|Traceback|[^\n\x20-\x7f]", said_by(hubs, "a"))
    if whole:  # it was the later one's to say what there is, and its checkpoint had no messages
        return
    async with connect(b.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"after", qos=1)
    a.process.send_signal(signal.SIGKILL)
    await says(hubs, "b", "heir of node 'a'")
    assert await read(b, "away") == [b"before", b"after"]
    assert status(b)["cluster"]["copies"]["trouble"] == ""


async def write(quorum: Quorum, head: str, data: bytes) -> None:
    import nats

    client = await nats.connect(quorum.urls)
    try:
        stream: Any = client.jetstream()
        await stream.publish("hubbub.log.a", data, headers={HEADER: head})
        assert await stream.stream_info(stream_of("hubbub", "a"))
    finally:
        await client.close()


async def publish(
    hub: RunningHub, name: str, acked: set[bytes], count: int, seconds: float = PATIENCE
) -> None:
    """So many of QoS 1, one after the other, as far as the hub acknowledges each in that time."""
    with contextlib.suppress(HubbubError, OSError, TimeoutError):
        async with connect(hub.url("mqtt"), client_id=name, reconnect=False) as client:
            for number in range(count):
                payload = b"%s %d" % (name.encode(), number)
                async with asyncio.timeout(seconds):
                    await client.publish("kept", payload, qos=1)
                acked.add(payload)


def takes_no_part(hub: RunningHub) -> bool:
    return "has the name 'a'" in status(hub)["cluster"]["trouble"]


def has_stopped(hub: RunningHub) -> bool:
    """It has heard so, and a moment later it writes no copies any more."""
    return takes_no_part(hub) and not status(hub)["cluster"]["copies"]["ready"]


@pytest.mark.slow
async def test_a_namesake_of_one_that_is_silent_is_it_until_that_one_is_heard(
    hubs: Hubs, quorum: Quorum
) -> None:
    """The first one stands still (SIGSTOP) for so long that it is taken for dead. What either has
    acknowledged is there when it goes on.
    """
    first = await asyncio.to_thread(hubs.hub, "a")
    await publish(first, "before", set(), 500)  # rows that a start finds
    first.stop()
    first, b = await asyncio.to_thread(pair, hubs)
    async with connect(first.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    acked: set[bytes] = set()
    await publish(first, "first", acked, 20)
    first.process.send_signal(signal.SIGSTOP)
    try:
        (hubs.root / "double").mkdir()
        second = await asyncio.to_thread(hubs.hub, "double", "--cluster-name", "a")
        await says(hubs, "double", "it is taken for dead")
        await asyncio.to_thread(hubs.ready, second)
        await publish(second, "second", acked, 20)
        assert len(acked) == 40
    finally:
        first.process.send_signal(signal.SIGCONT)
    until = time.monotonic() + PATIENCE
    while not has_stopped(second):
        assert time.monotonic() < until, (status(first)["cluster"], status(second)["cluster"])
        await publish(second, f"late {time.monotonic()}", acked, 3, seconds=3.0)
    assert not takes_no_part(first)
    unheard: set[bytes] = set()
    await publish(second, "never", unheard, 3, seconds=3.0)
    assert not unheard, "who takes no part acknowledges nothing that lasts"
    second.stop(signal.SIGKILL)
    await asyncio.to_thread(hubs.ready, first)
    await asyncio.to_thread(know, b, "a")
    await publish(b, "after", acked, 20)
    got: list[bytes] = []
    while not acked <= set(got) and time.monotonic() < until + PATIENCE:
        with contextlib.suppress(HubbubError):  # b may take the first one for one of before
            got += await read(b, "away")
        await asyncio.sleep(0.1)
    assert not acked - set(got)
    for name in ("a", "double", "b"):
        assert "Traceback" not in said_by(hubs, name)
