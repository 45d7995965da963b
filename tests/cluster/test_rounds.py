"""Hubs and nats-servers that are killed and stand still under traffic, in whatever order.

What was acknowledged is frozen outside of them and looked for by real clients: a session of QoS 1
and 2, and a queue. Each publisher's messages come in their order; those of QoS 2 once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from hubbub import connect
from hubbub.errors import HubbubError
from hubbub.protocols.switch.codec import FIRST
from tests.cluster.plain import Cut, Plain
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_heirs import flow, know, pair
from tests.cluster.test_jetstream import Hubs, hubs, leader, quorum
from tests.process import RunningHub

__all__ = ["hubs", "quorum"]

PATIENCE = 40.0
IDLE = 1.0  # seconds without a message: all that waited has come
SESSION = {"kept": 1, "exact": 2}
QUEUE = "$queue/jobs"
TOPICS = {**SESSION, QUEUE: 1}
SERVERS = range(3)
pytestmark = [
    pytest.mark.interop,
    has_program,
]


class Traffic:
    """`acked` and `got` are of all that was ever said; a payload says its writer and number."""

    def __init__(self) -> None:
        self.acked: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.got: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.first: Counter[bytes] = Counter()  # of QoS 2: repetitions say that they are
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, hub: RunningHub) -> None:
        client = Plain("away", clean=False)
        await client.open(hub.port)
        for topic, qos in SESSION.items():
            await client.subscribe(topic, qos)
        client.cut()
        async with connect(hub.url("switch"), token="maker") as switch:
            await switch.create("jobs")

    def write(self, hub: RunningHub, name: str) -> None:
        """One client for each topic, until the hub is gone."""
        for topic, qos in TOPICS.items():
            writer = f"{name}-{topic[-4:]}"
            flowing = flow(hub, topic, qos, self.acked[topic], writer)
            self._tasks.append(asyncio.create_task(flowing))

    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    async def more(self, count: int = 50) -> None:
        """Until so many more of each topic are acknowledged."""
        before = {topic: len(acked) for topic, acked in self.acked.items()}
        async with asyncio.timeout(PATIENCE):
            while any(len(self.acked[topic]) < before[topic] + count for topic in TOPICS):
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def read(self, hub: RunningHub) -> None:
        """What waits in the session and in the queue; both may be on their way to an heir."""
        await asyncio.gather(self._session(hub), self._jobs(hub))

    async def _session(self, hub: RunningHub) -> None:
        client = Plain("away", clean=False)
        with contextlib.suppress(Cut):
            assert await client.open(hub.port), "the session is lost"
            await _all(client)
        for payload, dup in client.got:
            topic = "kept" if b"-kept " in payload else "exact"
            self.got[topic].append(payload)
            if topic == "exact" and not dup:
                self.first[payload] += 1

    async def _jobs(self, hub: RunningHub) -> None:
        worker = Plain("worker", clean=True)
        with contextlib.suppress(Cut):
            await worker.open(hub.port)
            await worker.subscribe(QUEUE, 1)
            await _all(worker)
        self.got[QUEUE] += [payload for payload, _ in worker.got]

    async def take(self, hub: RunningHub) -> None:
        """What waits in the queue, as a client of message-switch."""
        with contextlib.suppress(HubbubError, OSError):
            async with connect(hub.url("switch"), token="worker") as switch:
                after = FIRST
                while True:
                    messages, after = await switch.transfer("jobs", after, IDLE)
                    if not messages:
                        return
                    self.got[QUEUE] += [message.payload for message in messages]
                    for message in messages:
                        await switch.ack("jobs", message.number)

    def missing(self) -> dict[str, list[bytes]]:
        lacks = {topic: acked - set(self.got[topic]) for topic, acked in self.acked.items()}
        return {topic: sorted(found)[:5] for topic, found in lacks.items() if found}

    def holds(self, *about: object) -> None:
        """Nothing acknowledged is missing; what came is in order, and of QoS 2 came once."""
        assert not self.missing(), (about, self.missing())
        twice = [payload for payload, count in self.first.items() if count > 1]
        assert not twice, (about, twice[:5])
        for topic, got in self.got.items():
            last: dict[bytes, int] = {}
            for payload in dict.fromkeys(got):
                writer, number = payload.split()
                assert last.get(writer, -1) < int(number), (about, topic, payload, last[writer])
                last[writer] = int(number)


async def _all(client: Plain) -> None:
    """Until nothing came for a while; all of it is acknowledged then."""
    count = -1
    while count < len(client.got) and not client.ended.is_set():
        count = len(client.got)
        await asyncio.sleep(IDLE)
    client.cut()


class Round:
    """What chance does to two hubs and three servers, and undoes."""

    def __init__(self, hubs: Hubs, here: dict[str, RunningHub], chance: random.Random) -> None:
        self.hubs = hubs
        self.here = here
        self.chance = chance
        self.victims = chance.choice(("a", "b", "ab", "", ""))
        events = ["one", "two", "all", "leader", "leader stands"]
        self.event = chance.choice(events if not self.victims else [*events, *["none"] * 5])
        self.servers: list[int] = []

    def __str__(self) -> str:
        return f"hubs {self.victims or 'none'}, servers {self.event} {self.servers}"

    async def strike(self) -> None:
        counts = {"none": 0, "one": 1, "two": 2, "all": 3}
        self.servers = self.chance.sample(SERVERS, counts.get(self.event, 0))
        if self.event.startswith("leader"):
            self.servers = [await leader(self.hubs.quorum, self.chance.choice("ab"))]
        for server in self.servers:
            if self.event == "leader stands":
                self.hubs.quorum.signal(server, signal.SIGSTOP)
            else:
                self.hubs.quorum.kill(server)
        for name in self.victims:
            self.here[name].process.kill()
        stands = self.event == "leader stands"
        await asyncio.sleep(self.chance.uniform(3, 8) if stands else self.chance.choice((0, 3, 8)))

    def mend(self) -> None:
        for server in self.servers:
            if self.event == "leader stands":
                self.hubs.quorum.signal(server, signal.SIGCONT)
            else:
                self.hubs.quorum.start(server)

    async def settle(self) -> None:
        for name in self.victims:
            self.here[name].stop(signal.SIGKILL)
            self.here[name] = await asyncio.to_thread(self.hubs.hub, name)
        for name, other in ("ab", "ba"):
            await asyncio.to_thread(self.hubs.ready, self.here[name])
            await asyncio.to_thread(know, self.here[name], other)


async def rounds(hubs: Hubs, count: int, seed: int) -> None:
    """Whichever hub chance takes has all of it at the end of each. A seed says what is struck;
    how often is read is said by the clock, and changes nothing of that.
    """
    chance, whichever = random.Random(seed), random.Random(seed)
    here = dict(zip("ab", await asyncio.to_thread(pair, hubs), strict=True))
    traffic = Traffic()
    await traffic.begin(here["a"])
    for number in range(count):
        now, before = Round(hubs, here, chance), traffic.count()
        for name, hub in here.items():
            traffic.write(hub, f"{name}{number}")
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        await now.strike()
        goes_on = chance.random() < 0.5
        if goes_on:  # who is left publishes beside servers that come back
            now.mend()
            await asyncio.sleep(chance.uniform(0.5, 4))
        await traffic.end()
        if not goes_on:
            now.mend()
        await now.settle()
        until = time.monotonic() + 3 * PATIENCE  # of a machine that does much else, too
        while True:
            if whichever.random() < 0.5:
                await traffic.take(here[whichever.choice("ab")])
            await traffic.read(here[whichever.choice("ab")])
            if not traffic.missing() or time.monotonic() > until:
                break
        traffic.holds(seed, number, str(now))
        print(f"round {number}: {now}; {traffic.count() - before} acknowledged", flush=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_few_rounds_of_kills_lose_nothing_acknowledged(hubs: Hubs) -> None:
    await rounds(hubs, 3, 7)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_hundred_rounds_of_kills_lose_nothing_acknowledged(hubs: Hubs) -> None:
    await rounds(hubs, 100, 1)


@pytest.mark.slow
async def test_a_leader_stands_still_and_two_servers_are_killed_under_traffic(
    hubs: Hubs, quorum: Quorum, tmp_path: Path
) -> None:
    """What was acknowledged is in the copy alone in the end: the hub's disk is gone, too."""
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    traffic = Traffic()
    await traffic.begin(hub)
    traffic.write(hub, "w")
    await traffic.more()
    stands = await leader(quorum, "a")
    quorum.signal(stands, signal.SIGSTOP)
    await traffic.more()  # more than was on its way: the others have a leader
    quorum.signal(stands, signal.SIGCONT)
    await traffic.more()
    leads = await leader(quorum, "a")
    victims = (leads, (leads + 1) % 3)
    for server in victims:
        quorum.kill(server)
    await asyncio.sleep(0.5)
    promised = traffic.count()
    await asyncio.sleep(1.0)
    assert traffic.count() == promised, "acknowledged without a quorum"
    for server in victims:
        quorum.start(server)
    await traffic.more()
    hub.stop(signal.SIGKILL)
    await traffic.end()
    shutil.rmtree(tmp_path / "a" / "data")
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    until = time.monotonic() + PATIENCE
    while traffic.missing() and time.monotonic() < until:
        await traffic.read(hub)
    traffic.holds()
