"""A dead node's sessions and queues go on at another one: real hubs, real servers, real kills."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.client.mqtt import Will
from hubbub.errors import HubbubError
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_jetstream import Hubs, hubs, pieces_of, quorum
from tests.cluster.test_nats import stack
from tests.process import RunningHub

__all__ = ["hubs", "quorum", "stack"]

PATIENCE = 40.0
FAILOVER_SECONDS = 10.0
pytestmark = [
    pytest.mark.interop,
    has_program,
]


def status(hub: RunningHub) -> dict[str, Any]:
    found = httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE).json()
    return dict(found)


def know(hub: RunningHub, *names: str) -> None:
    until = time.monotonic() + PATIENCE
    while {node["name"] for node in status(hub)["cluster"]["nodes"]} != set(names):
        assert time.monotonic() < until
        time.sleep(0.1)


def wanted_at(hub: RunningHub, name: str) -> None:
    """It knows that something is wanted at that node, which is told when that is safe there."""
    until = time.monotonic() + PATIENCE
    while not any(
        node["filters"] for node in status(hub)["cluster"]["nodes"] if node["name"] == name
    ):
        assert time.monotonic() < until
        time.sleep(0.05)


def pair(hubs: Hubs) -> tuple[RunningHub, RunningHub]:
    a = hubs.ready(hubs.hub("a"))
    b = hubs.ready(hubs.hub("b"))
    know(a, "b")
    know(b, "a")
    return a, b


def is_heir(hubs: Hubs, name: str, dead: str, seconds: float = PATIENCE) -> float:
    """Wait until it says so; how long that took."""
    began = time.monotonic()
    while f"heir of node '{dead}'" not in (hubs.root / name / "hub.log").read_text():
        assert time.monotonic() - began < seconds
        time.sleep(0.1)
    return time.monotonic() - began


async def read(
    hub: RunningHub, client_id: str, idle: float = 2.0, until: bytes = b""
) -> list[bytes]:
    """All that waits in a session, and what comes up to this, for which it waits longer."""
    found: list[bytes] = []
    async with connect(hub.url("mqtt"), client_id=client_id, clean=False) as client:
        messages = aiter(client.messages())
        while True:
            try:
                async with asyncio.timeout(PATIENCE if until and until not in found else idle):
                    found.append((await anext(messages)).payload)
            except TimeoutError:
                return found


async def flow(hub: RunningHub, topic: str, qos: int, acked: set[bytes], name: str) -> None:
    """Publish until the hub is gone; what it acknowledged is noted outside of it."""
    with contextlib.suppress(HubbubError, OSError):
        async with connect(hub.url("mqtt"), client_id=name, reconnect=False) as client:

            async def one(payload: bytes) -> None:
                await client.publish(topic, payload, qos=qos)
                acked.add(payload)

            number = 0
            while True:
                batch = [b"%s %d" % (name.encode(), number + n) for n in range(10)]
                number += 10
                await asyncio.gather(*map(one, batch))
                await asyncio.sleep(0.01)


async def test_who_starts_alone_lets_sessions_begin_that_are_at_nobody_who_is_away(
    hubs: Hubs, quorum: Quorum
) -> None:
    """It is no heir for half a minute: the other one may be on its way back."""
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(b.url("mqtt"), client_id="at-b", clean=False) as client:
        await client.subscribe("kept", qos=1)
    await asyncio.sleep(1.0)
    for hub in (a, b):
        hub.process.kill()
        hub.process.wait()
    shutil.rmtree(hubs.root / "a" / "data")  # nor does its journal say who was at b
    a = await asyncio.to_thread(hubs.hub, "a")
    began = time.monotonic()
    while True:
        try:
            async with connect(a.url("mqtt"), client_id="new", clean=False, reconnect=False):
                break
        except HubbubError as error:
            assert "away" in str(error) or "has not taken over" in str(error), error
            assert time.monotonic() - began < 20
            await asyncio.sleep(0.2)
    with pytest.raises(HubbubError, match="'b'"):
        async with connect(a.url("mqtt"), client_id="at-b", clean=False, reconnect=False):
            pass
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"meanwhile", qos=1)
    b = await asyncio.to_thread(hubs.hub, "b")
    assert await read(b, "at-b") == [b"meanwhile"]


async def test_all_that_lasts_of_a_killed_node_goes_on_at_another(
    hubs: Hubs, quorum: Quorum, stack: AsyncExitStack
) -> None:
    """Sessions, queues, delayed and retained messages, and wills of who was connected."""
    a, b = await asyncio.to_thread(pair, hubs)
    for qos in (1, 2):
        async with connect(a.url("mqtt"), client_id=f"away{qos}", clean=False) as client:
            await client.subscribe(f"kept/{qos}", qos=qos)
    async with connect(a.url("switch"), token="maker") as switch:
        await switch.create("jobs")
    async with connect(a.url("mqtt"), client_id="later") as client:
        await client.publish("$delayed/20/kept/1", b"delayed", qos=1)
        await client.publish("state/x", b"kept", qos=1, retain=True)
        await client.publish("state/y", b"kept", qos=1, retain=True)
        await client.publish("state/y", b"", qos=1, retain=True)
    for name, lasts in (("passing", False), ("lasting", True)):
        will = Will("last/words", name.encode(), 1)
        options: dict[str, Any] = {"clean": not lasts, "reconnect": False}
        dying = connect(a.url("mqtt"), client_id=name, will=will, **options)
        await stack.enter_async_context(dying)
    watcher = await stack.enter_async_context(connect(b.url("mqtt"), client_id="watcher"))
    await watcher.subscribe("last/words", qos=1)
    acked: dict[str, set[bytes]] = {"kept/1": set(), "kept/2": set(), "$queue/jobs": set()}
    tasks = [
        asyncio.create_task(flow(a, topic, 2 if topic == "kept/2" else 1, acked[topic], f"w{at}"))
        for at, topic in enumerate(acked)
    ]
    await asyncio.sleep(2.0)
    a.process.kill()
    killed = time.monotonic()
    frozen = {topic: set(payloads) for topic, payloads in acked.items()}
    await asyncio.wait(tasks, timeout=10)
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    assert time.monotonic() - killed < FAILOVER_SECONDS
    assert all(len(payloads) > 50 for payloads in frozen.values())
    for qos in (1, 2):
        got = await read(b, f"away{qos}", until=b"delayed" if qos == 1 else b"")
        assert frozen[f"kept/{qos}"] <= set(got)
        assert len(got) == len(set(got))
        ours = [int(payload.split()[1]) for payload in got if b" " in payload]
        assert ours == sorted(ours)
        assert (b"delayed" in got) == (qos == 1)
    async with connect(b.url("mqtt"), client_id="worker") as worker:
        await worker.subscribe("$queue/jobs", qos=1)
        jobs: set[bytes] = set()
        messages = aiter(worker.messages())
        while not frozen["$queue/jobs"] <= jobs:
            async with asyncio.timeout(PATIENCE):
                jobs.add((await anext(messages)).payload)
    async with connect(b.url("mqtt"), client_id="late") as late:
        await late.subscribe("state/#", qos=1)
        await late.publish("state/z", b"behind all", qos=1)
        assert await said(late, b"behind all") == [b"kept", b"behind all"]
    await watcher.publish("last/words", b"behind all", qos=1)
    assert sorted(await said(watcher, b"behind all")) == [b"behind all", b"lasting", b"passing"]


async def said(client: Any, last: bytes) -> list[bytes]:
    """All that a client hears up to this."""
    found: list[bytes] = []
    messages = aiter(client.messages())
    async with asyncio.timeout(PATIENCE):
        while last not in found:
            found.append((await anext(messages)).payload)
    return found


async def test_who_was_dead_comes_back_as_an_empty_node_and_takes_part(
    hubs: Hubs, quorum: Quorum
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
        await client.publish("kept", b"unread", qos=1)
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"before", qos=1)
    a.stop(signal.SIGKILL)
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    a = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    await asyncio.to_thread(know, a, "b")
    assert "has taken over" in (hubs.root / "a" / "hub.log").read_text()
    assert status(a)["sessions_away"] == 0
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"after", qos=1)
    got = await read(a, "away")  # by way of a, which is not its home
    assert b"before" in got
    assert b"after" in got


async def subscribed_at(hub: RunningHub, name: str) -> None:
    async with connect(hub.url("mqtt"), client_id=name, clean=False) as client:
        await client.subscribe("kept", qos=2)


async def publish_all(hub: RunningHub, *numbers: int, topic: str = "kept") -> None:
    async with connect(hub.url("mqtt"), client_id="w") as client:
        for number in numbers:
            await client.publish(topic, b"%d" % number, qos=2)


@pytest.mark.parametrize("disk", ["older", "put back", "lost", "lost twice"])
async def test_who_is_back_at_once_with_less_than_its_copy_says_goes_on_with_the_copy(
    hubs: Hubs, quorum: Quorum, disk: str
) -> None:
    """Before anybody is its heir: a backup was put back, or the disk is a new one. What is put back
    may be longer than what the node went on with.
    """
    a, b = await asyncio.to_thread(pair, hubs)
    data, backup = hubs.root / "a" / "data", hubs.root / "backup"
    await subscribed_at(a, "away")
    await publish_all(b, 0, 1)
    if disk == "older":
        await asyncio.to_thread(a.stop)
        shutil.copytree(data, backup)
        a = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
        await asyncio.to_thread(know, a, "b")
    if disk == "put back":
        await publish_all(a, *range(200), topic="other")
        a.stop(signal.SIGKILL)
        shutil.move(data, backup)
        a = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
        await asyncio.to_thread(know, a, "b")
        await subscribed_at(a, "new")
    await publish_all(b, 2, 3)
    await publish_all(a, 4, 5)
    a.stop(signal.SIGKILL)
    shutil.rmtree(data)
    if disk in ("older", "put back"):
        shutil.copytree(backup, data)
    if disk == "lost twice":
        a = await asyncio.to_thread(hubs.hub, "a")
        a.stop(signal.SIGKILL)
        shutil.rmtree(data)
    (hubs.root / "a" / "hub.log").unlink()
    a = await asyncio.to_thread(hubs.hub, "a")
    await publish_all(a, 6, 7)  # at once
    await asyncio.to_thread(is_heir, hubs, "a", "a")
    await asyncio.to_thread(know, a, "b")
    if disk != "lost twice":  # who died behind its stop finds that
        assert "is an older one" in (hubs.root / "a" / "hub.log").read_text()
    assert in_two_orders(await read(b, "away")) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    if disk == "put back":
        assert in_two_orders(await read(b, "new")) == [[2, 3], [4, 5, 6, 7]]


def in_two_orders(payloads: list[bytes]) -> list[list[int]]:
    """What was published at node b, and what at node a: each in its order, and no more."""
    numbers = [int(payload) for payload in payloads]
    return [[one for one in numbers if one < 4], [one for one in numbers if one >= 4]]


async def test_who_lost_its_disk_keeps_what_is_for_who_is_away(hubs: Hubs, quorum: Quorum) -> None:
    """What the one that is away wants is in the copy of the other one alone."""
    a, b = await asyncio.to_thread(pair, hubs)
    c = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("c")))
    await asyncio.to_thread(know, c, "a", "b")
    await asyncio.to_thread(know, a, "b", "c")
    async with connect(b.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept/#", qos=2)
    await asyncio.to_thread(wanted_at, a, "b")
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept/x", b"0", qos=2)
    await asyncio.sleep(1.0)
    b.process.kill()
    a.stop(signal.SIGKILL)
    shutil.rmtree(hubs.root / "a" / "data")
    a = await asyncio.to_thread(hubs.hub, "a")
    async with connect(a.url("mqtt"), client_id="w") as client:
        for number in range(1, 5):
            await client.publish("kept/x", b"%d" % number, qos=2)
    await asyncio.to_thread(is_heir, hubs, "a", "a")
    log = [hubs.root / name / "hub.log" for name in ("a", "c")]
    until = time.monotonic() + PATIENCE
    while not any("heir of node 'b'" in one.read_text() for one in log):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    assert await read(c, "away", 3.0) == [b"%d" % number for number in range(5)]


@pytest.mark.soak
async def test_a_node_that_was_stopped_for_too_long_is_deposed_and_loses_nothing(
    hubs: Hubs, quorum: Quorum
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    acked: set[bytes] = set()
    task = asyncio.create_task(flow(a, "kept", 1, acked, "w"))
    await asyncio.sleep(1.0)
    a.process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    await asyncio.sleep(5.0)
    a.process.send_signal(signal.SIGCONT)
    await asyncio.wait([task], timeout=20)
    await asyncio.to_thread(know, a, "b")
    until = time.monotonic() + PATIENCE
    while "has taken over" not in (hubs.root / "a" / "hub.log").read_text():
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    await asyncio.to_thread(hubs.ready, a)
    async with connect(a.url("mqtt"), client_id="w2") as client:
        await client.publish("kept", b"w2 after", qos=1)
        acked.add(b"w2 after")
    got = await read(b, "away", 3.0)
    assert acked <= set(got)
    assert len(acked) > 20


async def test_what_others_keep_for_a_dead_node_goes_to_its_heir_once_and_in_order(
    hubs: Hubs, quorum: Quorum, tmp_path: Path
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    c = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("c")))
    await asyncio.to_thread(know, c, "a", "b")
    for hub, name in ((a, "away"), (b, "own")):
        async with connect(hub.url("mqtt"), client_id=name, clean=False) as client:
            await client.subscribe("kept", qos=2)
    await asyncio.sleep(1.0)
    acked: set[bytes] = set()
    task = asyncio.create_task(flow(c, "kept", 2, acked, "w"))
    await asyncio.sleep(1.5)
    a.process.kill()
    logs = [tmp_path / name / "hub.log" for name in ("b", "c")]
    async with asyncio.timeout(PATIENCE):
        while not any("heir of node 'a'" in one.read_text() for one in logs):
            await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2.0)
    both = ("away", "own")
    for name, got in zip(both, await asyncio.gather(*(read(b, one) for one in both)), strict=True):
        assert acked <= set(got), name
        assert len(got) == len(set(got)), name
        numbers = [int(payload.split()[1]) for payload in got]
        assert numbers == sorted(numbers), name


async def slowest(hub: RunningHub, over: asyncio.Event, qos: int) -> float:
    """The longest time that a message took which a client of a hub said to itself."""
    found = 0.0
    async with connect(hub.url("mqtt"), client_id=f"clock{qos}") as client:
        await client.subscribe(f"clock/{qos}", qos=qos)
        messages = aiter(client.messages())
        while not over.is_set():
            began = time.monotonic()
            await client.publish(f"clock/{qos}", b"", qos=qos)
            await anext(messages)
            found = max(found, time.monotonic() - began)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [60_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_clients_of_an_heir_are_served_while_it_takes_over_very_much(
    hubs: Hubs, count: int
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    async with connect(a.url("mqtt"), client_id="writer") as client:
        for first in range(0, count, 1000):
            said = range(first, min(first + 1000, count))
            await asyncio.gather(*(client.publish("kept", b"w %d" % one, qos=1) for one in said))
    over = asyncio.Event()
    clocks = [asyncio.create_task(slowest(b, over, qos)) for qos in (0, 1)]
    a.process.kill()
    seconds = await asyncio.to_thread(is_heir, hubs, "b", "a")
    over.set()
    live, lasting = await asyncio.gather(*clocks)
    print(f"{count}: heir after {seconds:.1f} s, QoS 0 {live:.3f} s, QoS 1 {lasting:.3f} s")
    assert max(live, lasting) < 2.0, "one turn would be as long as all of it"
    got = await read(b, "away", 5.0)
    assert [int(payload.split()[1]) for payload in got] == list(range(count))


async def test_a_stream_is_bounded_by_checkpoints_and_an_heir_starts_from_one(
    hubs: Hubs, quorum: Quorum
) -> None:
    """Ten finished segments: snapshots are made beside, and what they say is let go."""

    def start() -> tuple[RunningHub, RunningHub]:
        a = hubs.ready(hubs.hub("a", "--set", "journal.segment_bytes=1048576"))
        b = hubs.ready(hubs.hub("b"))
        know(a, "b")
        return a, b

    a, b = await asyncio.to_thread(start)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"first", qos=1)
        for number in range(1000):  # replaced again and again: the log grows, the state does not
            await client.publish("state/x", b"%d " % number + bytes(10_000), qos=1, retain=True)
        await asyncio.to_thread(hubs.until, a, lambda copies: copies["checkpoints"] > 2)
        await client.publish("kept", b"last", qos=1)
    async with asyncio.timeout(PATIENCE):  # what a checkpoint says is let go beside
        while sum(len(piece.data) for piece in await pieces_of(quorum, "a")) >= 6_000_000:
            await asyncio.sleep(0.5)
    a.process.kill()
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    assert await read(b, "away") == [b"first", b"last"]
    async with connect(b.url("mqtt"), client_id="r") as client:
        await client.subscribe("state/x")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(aiter(client.messages()))).payload.startswith(b"999 ")


@pytest.mark.soak
async def test_an_heir_that_died_before_it_had_adopted_has_an_heir_itself(
    hubs: Hubs, quorum: Quorum
) -> None:
    """The stop behind a dead node's stream is of one that is dead, too, and never did the rest."""
    import nats

    here = dict(zip("ab", await asyncio.to_thread(pair, hubs), strict=True))
    here["c"] = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("c")))
    await asyncio.to_thread(know, here["c"], "a", "b")
    for name in "ab":
        async with connect(here[name].url("mqtt"), client_id=f"at-{name}", clean=False) as client:
            await client.subscribe("kept", qos=1)
    await asyncio.sleep(1.0)
    async with connect(here["a"].url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"kept", qos=1)
    here["c"].process.kill()
    heir = ""
    async with asyncio.timeout(PATIENCE):
        while not heir:
            await asyncio.sleep(0.2)
            logs = {name: (hubs.root / name / "hub.log").read_text() for name in "ab"}
            heir = next((name for name in "ab" if "heir of node 'c'" in logs[name]), "")
    other = "b" if heir == "a" else "a"
    here[other].process.kill()
    client = await nats.connect(quorum.urls)
    try:
        headers = {"Hubbub-Copy": "1 1 fence 0 0"}
        await client.jetstream().publish(f"hubbub.log.{other}", b"c", headers=headers)
    finally:
        await client.close()
    await asyncio.to_thread(is_heir, hubs, heir, other)
    for name in "ab":
        assert await read(here[heir], f"at-{name}") == [b"kept"]
