"""A client id whose session lasts, at several hubs at once, again and again, under traffic."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import httpx
import pytest

from hubbub import connect
from tests.cluster.plain import Cut, Plain
from tests.cluster.quorum import has_program
from tests.cluster.test_heirs import PATIENCE, flow, know
from tests.cluster.test_jetstream import Hubs, hubs, quorum
from tests.process import RunningHub

__all__ = ["hubs", "quorum"]

NAME = "racer"
RACES = 25
pytestmark = [
    pytest.mark.interop,
    has_program,
]


async def homes(hubs: list[RunningHub]) -> list[str]:
    """Which hubs have its session."""
    found = []
    async with httpx.AsyncClient(timeout=PATIENCE) as web:
        for hub in hubs:
            answer = await web.get(hub.url("http") + f"/api/v1/ls/sessions?search={NAME}")
            found += [hub.address] * answer.json()["count"]
    return found


async def begin(hubs: list[RunningHub]) -> None:
    """Its session is at the first hub, and all know of it: what they publish reaches it."""
    first = Plain(NAME, clean=False)
    assert not await first.open(hubs[0].port)
    await first.subscribe("kept", 1)
    for hub in hubs:
        async with connect(hub.url("mqtt"), client_id="asks") as client, asyncio.timeout(PATIENCE):
            while (hub.address.encode(), False) not in first.got:
                await client.publish("kept", hub.address, qos=1)
                await asyncio.sleep(0.05)
    first.cut()


async def comes(hub: RunningHub, all_of_them: list[Plain]) -> None:
    """A later one may end it before it was answered."""
    client = Plain(NAME, clean=False)
    with contextlib.suppress(Cut):
        assert await client.open(hub.port), "another session began"
        all_of_them.append(client)


def alive(clients: list[Plain]) -> list[Plain]:
    return [client for client in clients if not client.ended.is_set()]


@pytest.mark.slow
async def test_one_connection_and_one_session_are_left_and_nothing_acknowledged_is_lost(
    hubs: Hubs,
) -> None:
    chance = random.Random(5)
    starts = [asyncio.to_thread(hubs.hub, name) for name in "abc"]
    here = list(await asyncio.gather(*starts))
    for hub, others in zip(here, ("bc", "ac", "ab"), strict=True):
        await asyncio.to_thread(hubs.ready, hub)
        await asyncio.to_thread(know, hub, *others)
    await begin(here)
    clients: list[Plain] = []
    acked: set[bytes] = set()
    writers = [
        asyncio.create_task(flow(hub, "kept", 1, acked, f"w{at}")) for at, hub in enumerate(here)
    ]
    for _ in range(RACES):
        at_once = chance.sample(here, chance.choice((2, 2, 3)))
        await asyncio.gather(*(comes(hub, clients) for hub in at_once))
        await asyncio.sleep(chance.choice((0.0, 0.02, 0.2)))
    async with asyncio.timeout(PATIENCE):
        while len(alive(clients)) != 1:
            await asyncio.sleep(0.05)
    (last,) = alive(clients)
    before = len(last.got)
    async with asyncio.timeout(PATIENCE):
        while len(last.got) < before + 100:
            await asyncio.sleep(0.05)
    for task in writers:
        task.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    frozen = set(acked)
    assert len(clients) > RACES
    until = time.monotonic() + PATIENCE
    while missing := frozen - {payload for client in clients for payload, _ in client.got}:
        assert time.monotonic() < until, sorted(missing)[:5]
        await asyncio.sleep(0.1)
    assert alive(clients) == [last]
    assert await homes(here) == [here[0].address]
    for client in clients:
        last_of: dict[bytes, int] = {}
        for payload in dict.fromkeys(payload for payload, _ in client.got):
            writer, number = payload.split()
            assert last_of.get(writer, -1) < int(number), payload
            last_of[writer] = int(number)
    last.cut()
