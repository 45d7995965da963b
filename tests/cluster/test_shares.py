"""Shared subscriptions whose members last at several nodes: an acknowledged message goes to one
that lives, or waits in one place (MQTT 5.0, 4.8.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hubbub import Hub
from hubbub.cluster.membership import Membership
from tests.cluster.roaming import roaming
from tests.cluster.test_two_hubs import LISTEN, Pair, knows, nodes, until

GROUP = "$share/g/work/#"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(stack)


def member(hub: Hub) -> Membership:
    assert hub.node.membership is not None
    return hub.node.membership


def kept_for(hub: Hub, node: str) -> int:
    return member(hub).estates[node].unacknowledged()


async def joined(hub: Hub, other: Hub, client: str, qos: int = 2) -> None:
    """A member that lasts at this node, and is away."""
    async with roaming(hub, client) as device:
        await device.want(GROUP, qos)
    await until(knows(other, member(hub).name, GROUP, False))


async def publish(hub: Hub, begin: int, end: int, qos: int) -> None:
    async with roaming(hub, "writer", expiry=0, clean=True) as writer:
        for number in range(begin, end):
            writer.send("work/x", b"%d" % number, qos)
            assert await writer.code("publish") == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_for_a_member_of_a_node_that_is_cut_off_waits_for_it(
    pair: Pair, qos: int, tmp_path: Path
) -> None:
    a = await pair.hub("a", data=tmp_path / "a")
    b = await pair.hub("b", data=tmp_path / "b")
    await until(lambda: nodes(a) and nodes(b))
    await joined(b, a, "m1")
    await publish(a, 0, 5, qos)
    await until(lambda: not kept_for(a, "b"))
    pair.seats["b"].cut = True
    await publish(a, 5, 10, qos)
    assert kept_for(a, "b") == 5
    pair.seats["b"].cut = False
    await until(lambda: not kept_for(a, "b"))
    async with roaming(b, "m1") as device:
        assert await device.take(10) == [b"%d" % number for number in range(10)]
        await asyncio.sleep(0.1)
        assert device.heard.empty()


async def test_a_message_that_also_goes_to_the_same_node_for_another_reason_comes_once_each(
    pair: Pair,
) -> None:
    """A subscription of its own, and two groups: three readers, each has all of it once."""
    a, b = await pair.both()
    others = {"own": "work/#", "h1": "$share/h/work/#"}
    for client, topic in others.items():
        async with roaming(b, client) as device:
            await device.want(topic, 2)
    await until(knows(a, "b", "$share/h/work/#", False))
    await joined(b, a, "m1")
    await publish(a, 0, 5, 2)
    for client in (*others, "m1"):
        async with roaming(b, client) as device:
            assert await device.take(5) == [b"%d" % number for number in range(5)]
            await asyncio.sleep(0.1)
            assert device.heard.empty(), client


async def test_while_a_node_is_away_a_living_member_elsewhere_gets_all(pair: Pair) -> None:
    a, b = await pair.both()
    await joined(b, a, "m1")
    async with roaming(a, "m2") as device:
        await device.want(GROUP, 1)
        member(a).forget(member(a).nodes["b"], "silent for 5 s")
        pair.seats["b"].cut = True
        await publish(a, 0, 6, 1)
        assert await device.take(6) == [b"%d" % number for number in range(6)]
    assert kept_for(a, "b") == 0


async def test_what_comes_to_a_node_whose_members_left_goes_on_to_one_with_members(
    pair: Pair,
) -> None:
    a, b = await pair.both()
    await joined(b, a, "m1")
    await joined(a, b, "m2")
    async with roaming(a, "m2") as living:
        pair.seats["b"].cut = True  # nobody hears yet that the member there goes
        await publish(a, 0, 8, 2)
        waits = kept_for(a, "b")
        assert 0 < waits < 8
        async with roaming(b, "m1", expiry=0, clean=True):
            pass
        pair.seats["b"].cut = False
        assert sorted(await living.take(8)) == [b"%d" % number for number in range(8)]
        await asyncio.sleep(0.2)
        assert living.heard.empty() and kept_for(a, "b") == 0


async def test_a_node_that_is_started_again_still_has_what_it_kept_for_a_group(
    pair: Pair, tmp_path: Path
) -> None:
    b = await pair.hub("b")
    async with Hub(listen=LISTEN, cluster=pair.board.join("a"), data=tmp_path / "a") as a:
        await until(lambda: nodes(a) and nodes(b))
        await joined(b, a, "m1")
        pair.seats["b"].cut = True
        await publish(a, 0, 5, 2)
        assert kept_for(a, "b") == 5
    async with Hub(listen=LISTEN, cluster=pair.board.join("a"), data=tmp_path / "a") as a:
        assert kept_for(a, "b") == 5
        pair.seats["b"].cut = False
        await until(lambda: nodes(a) and not kept_for(a, "b"))
    async with roaming(b, "m1") as device:
        assert await device.take(5) == [b"%d" % number for number in range(5)]
