"""A disk of 150 MB, filled over and over by what stays there and by what does not.

A real hub with its usual settings. What stays is refused before the disk is full, what passes goes
on, and all that was acknowledged is there after a `kill -9` at the worst moment. When it was taken
away the hub has room again, by itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hubbub.auth.passwords import add_user
from hubbub.client import mqtt
from hubbub.client.mqtt import Message, MqttClient, Refusal
from hubbub.errors import Refused
from hubbub.protocols.mqtt.specification import QUOTA
from tests.disk import small_disk
from tests.process import RunningHub, StartHub

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(600)]

DISK: Final = 150
LITTLE: Final = 48
STAYS: Final = 10  # retained messages that nobody takes away
LARGE: Final = bytes(30_000_000)
SIZE: Final = 50_000  # of a payload; random bytes, or segments that are compressed were nothing
PASSING: Final = 4_000  # messages of traffic that stays nowhere: more than the disk has
LEFT: Final = 60.0  # seconds for what was taken away to be room
CROWD: Final = 60  # users: each gets a part of the last of the disk, and together they fill it
SECRET: Final = "secret"


class Kind(NamedTuple):
    """What stays: `topic` of number N, whether it is retained; the filter that brings it back."""

    topic: str
    retain: bool
    filter: str


KINDS = {
    "a queue": Kind("$queue/q", False, "$queue/q"),
    "retained messages": Kind("kept/{}", True, "kept/+"),
    "a session that is away": Kind("waits/{}", False, "waits/+"),
}
AWAY = "away"
FULL: Final = "are the most|are kept free"  # the end of each reason that names who has what


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK) as path:
        yield path


@pytest.fixture
def little(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "little", LITTLE) as path:
        yield path


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    for number in range(CROWD):
        add_user(path, f"u{number}", SECRET.encode(), scram=False)
    return path


def url(hub: RunningHub, user: str) -> str:
    return hub.url("mqtt").replace("://", f"://{user}:{SECRET}@")


async def fill(hub: RunningHub, kind: Kind) -> list[int]:
    """One user after the other publishes until one is refused, until nothing more may stay; the
    numbers of those that were acknowledged.
    """
    taken: list[int] = []
    for user in range(CROWD):
        async with mqtt.connect(url(hub, f"u{user}"), f"fills{user}") as client:
            before = len(taken)
            if user:  # who has taken nothing yet does not get what is left with one message
                with pytest.raises(Refusal, match=FULL):
                    await client.publish(kind.topic.format("large"), LARGE, 1, kind.retain)
            await fill_alone(client, kind, taken)
            assert len(taken) > before or "kept free" in log_of(hub), "the first took it all"
        if "kept free" in log_of(hub):
            return taken
    raise AssertionError("there is still room")


async def fill_alone(client: MqttClient, kind: Kind, taken: list[int]) -> None:
    for number in range(len(taken), DISK * 20):
        payload = b"%d " % number + os.urandom(SIZE)
        try:
            await client.publish(kind.topic.format(number), payload, 1, kind.retain)
        except Refusal as refusal:
            assert refusal.code == QUOTA and re.search(FULL, str(refusal)), refusal
            return
        taken.append(number)
    raise AssertionError("nothing was refused")


async def take_away(client: MqttClient, kind: Kind, count: int) -> set[int]:
    """Read all of it, and leave nothing of it there."""
    found: set[int] = set()
    if kind.filter != KINDS["a session that is away"].filter:
        await client.subscribe(kind.filter, 1)
    async with asyncio.timeout(LEFT):
        async for message in client.messages():
            if not message.payload:  # what was taken away is published, too
                continue
            found.add(int(message.payload.split()[0]))
            if message.retain:
                await client.publish(message.topic, b"", 1, True)
            if len(found) == count:
                break
    return found


async def pass_through(client: MqttClient, count: int) -> None:
    for _ in range(count // 20):
        await asyncio.gather(*(client.publish("passes", os.urandom(SIZE), 1) for _ in range(20)))


async def has_room(client: MqttClient, kind: Kind) -> bool:
    try:
        await client.publish(kind.topic.format("new"), b"0 ", 1, kind.retain)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("name", KINDS)
async def test_a_disk_is_filled(
    name: str, disk: Path, start_hub: StartHub, users: Path
) -> None:  # fmt: skip
    kind, data, guarded = KINDS[name], disk / "data", ("--set", f"password_file={users}")
    hub = start_hub(*guarded, data=data)
    async with mqtt.connect(url(hub, "u0"), AWAY, False, session_expiry=3600) as away:
        await away.subscribe(KINDS["a session that is away"].filter, 1)
    taken = await fill(hub, kind)
    assert re.search("user 'u0' has taken .* of the last", log_of(hub)), "and of whom first"
    async with mqtt.connect(url(hub, "u1"), "passes") as client:
        await pass_through(client, PASSING)
        assert not await has_room(client, kind), "it was full, and nobody took anything away"
    assert re.search("kept free", log_of(hub)), "the log says so"
    hub.stop(signal.SIGKILL)
    hub = start_hub(*guarded, data=data)
    reader = {"clean": False, "session_expiry": 3600} if "away" in name else {}
    async with mqtt.connect(url(hub, "u0"), AWAY if reader else "takes", **reader) as client:  # type: ignore[arg-type]
        assert await take_away(client, kind, len(taken)) == set(taken), "acknowledged, and lost"
    async with mqtt.connect(url(hub, "u1"), "goes on") as client, asyncio.timeout(LEFT):
        while not await has_room(client, kind):
            await pass_through(client, 20)
        await pass_through(client, PASSING)
    assert not re.search("Traceback|No space left", log_of(hub))
    assert hub.stop() == 0


async def take_all(hub: RunningHub, name: str, count: int) -> None:
    """Take away what was filled with, as its owner would."""
    if name == "a session that is away":
        async with mqtt.connect(url(hub, "u0"), AWAY, True):
            return
    async with mqtt.connect(url(hub, "u0"), "takes") as client:
        assert len(await take_away(client, KINDS[name], count)) == count


@pytest.mark.parametrize("name", KINDS)
async def test_room_comes_back_where_nobody_publishes(
    name: str, little: Path, start_hub: StartHub, users: Path
) -> None:
    """What is refused leaves no row, so the segment that says what was taken away never gets full:
    without its early end nothing is folded, and nothing given back.
    """
    kept = KINDS["retained messages"]
    guarded = ("--set", f"password_file={users}")
    hub = start_hub(*guarded, data=little / "data")
    async with mqtt.connect(url(hub, "u0"), AWAY, False, session_expiry=3600) as away:
        await away.subscribe(KINDS["a session that is away"].filter, 1)
    async with mqtt.connect(url(hub, "u1"), "stays") as client:
        for number in range(STAYS):
            await client.publish(f"stays/{number}", b"%d" % number, 1, True)
    taken = await fill(hub, KINDS[name])
    await take_all(hub, name, len(taken))
    async with mqtt.connect(url(hub, "u1"), "goes on") as client, asyncio.timeout(LEFT):
        while not await has_room(client, kept):
            await asyncio.sleep(1)
    assert not re.search("Traceback|No space left", log_of(hub))
    hub.stop(signal.SIGKILL)
    hub = start_hub(*guarded, data=little / "data")
    async with mqtt.connect(url(hub, "u0"), "reads") as client:
        await client.subscribe("stays/+", 1)
        await client.subscribe("kept/new", 1)
        found = {message.topic async for message in first(client, STAYS + 1)}
        assert found == {"kept/new", *(f"stays/{number}" for number in range(STAYS))}
    assert hub.stop() == 0


async def first(client: MqttClient, count: int) -> AsyncIterator[Message]:
    async with asyncio.timeout(LEFT):
        async for message in client.messages():
            yield message
            count -= 1
            if not count:
                return


def log_of(hub: RunningHub) -> str:
    return (hub.data.parent / "hub.log").read_text()


async def test_what_stays_nowhere_passes(disk: Path, start_hub: StartHub) -> None:
    hub = start_hub(data=disk / "data")
    async with mqtt.connect(hub.url("mqtt"), "passes") as client:
        await pass_through(client, 2 * PASSING)
        async with asyncio.timeout(LEFT):
            while not await has_room(client, KINDS["retained messages"]):
                await asyncio.sleep(1)
    assert not re.search("Traceback|No space left", log_of(hub))
    assert hub.stop() == 0
