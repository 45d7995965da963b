"""One schedule: a hub, its clients, and what may happen to them, all drawn from a seed.

    python -m tests.simulation SEED      the same schedule again, step by step on stderr

At each step: nothing is promised that a power cut would take, no number means two things,
nothing older comes after something newer, QoS 2 comes once, and when the disk is idle the files
say the same state as the hub. At the end everything acknowledged has reached everybody it was for.
"""

from __future__ import annotations

import errno
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path

from hubbub.core.limits import COMMIT_ROWS
from hubbub.errors import HubbubError
from hubbub.journal.segments import Directory
from tests.core.recording import shape
from tests.simulation.clients import (
    Client,
    Newcomer,
    Producer,
    Publisher,
    Reader,
    Subscriber,
    Thing,
)
from tests.simulation.disk import CHANGES, READS, SYNCS, Disk, Ended, framed
from tests.simulation.hub import SimulatedClock, SimulatedNode, Wire

STEPS = 450
DISK_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
ERRORS = (*DISK_ERRORS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
BURST = 6  # failures at most
LOST = ("gone", "memory full", "backlog full", "queue full")


class Alarm(logging.Handler):
    """What the hub logs as broken is a failure here."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.broken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.broken.append(self.format(record))


class World:
    def __init__(self, seed: int, root: Path, steps: int = STEPS, verbose: bool = False) -> None:
        self.chance = random.Random(seed)
        self.verbose = verbose
        self.steps = steps
        self.root = root
        self.clock = SimulatedClock()
        self.disk = Disk(root, self.chance)
        self.weights = [
            weight if calm else weight * self.chance.choice((0.0, 0.5, 1.0, 3.0))
            for weight, calm in _CHANCES.values()
        ]
        self.segment_bytes = self.chance.choice((8_000, 30_000, 200_000))
        self.frame_rows = self.chance.choice((3, COMMIT_ROWS))
        self.ghosts: list[Wire] = []
        self.alarm = Alarm()
        self.spare = False
        self.starts = 0
        self.compared = 0
        self._safe: set[bytes] = set()
        self._promised: dict[str, set[bytes]] = {}  # acknowledged, by durability
        self._forgiven: set[bytes] = set()  # of these what a crash may have taken
        self._ids: dict[tuple[str, int], bytes] = {}
        self._names: dict[bytes, int] = {}
        self._make_clients()

    def _make_clients(self) -> None:
        chance = self.chance
        self.publishers = [
            Publisher(self, "pub1", chance.random() < 0.5, {"a/1": 1, "a/2": 2, "r/1": 1}),
            Publisher(self, "pub2", chance.random() < 0.5, {"a/1": 1, "a/3": 2, "r/2": 2}),
            Publisher(self, "pub3", chance.random() < 0.5, {"$queue/work": 1, "s/1": 1, "c/1": 1}),
            Publisher(self, "pub4", chance.random() < 0.5, {"o/1": 1, "o/2": 2, "m/1": 1}),
        ]
        self.subscribers = [
            Subscriber(self, "sub1", False, "a/#", 2),
            Subscriber(self, "sub2", True, "a/+", 2),
            Subscriber(self, "sub3", chance.random() < 0.5, "a/1", 1),
            Subscriber(self, "sub4", False, "c/#", 1),
            Subscriber(self, "sub5", True, "o/#", 2),
            Subscriber(self, "sub6", False, "m/#", 1),
        ]
        self.workers = [
            Subscriber(self, "work1", False, "$queue/work", 1, ordered=False),
            Subscriber(self, "work2", True, "$queue/work", 1, ordered=False, clean=True),
        ]
        self.sharers = [
            Subscriber(self, "share1", False, "$share/g/s/#", 1, ordered=False),
            Subscriber(self, "share2", True, "$share/g/s/#", 1, ordered=False),
        ]
        self.producers = [
            Producer(self, "make1", "jobs"),
            Producer(self, "make2", "jobs"),
            Producer(self, "churn", "churn", churns=True),
        ]
        self.readers = [Reader(self, "read1", "jobs"), Reader(self, "read2", "jobs")]
        self.bound = Reader(self, "read3", "bound", greedy=False)
        self.late = Subscriber(self, "late", chance.random() < 0.5, "r/#", 1, ordered=False)
        self.newcomer = Newcomer(self, "new", self.publishers)
        self.things = [Thing(self, "thing-1", b"a/1"), Thing(self, "thing-2", b"a/thing-1/1")]
        self.clients: list[Client] = [
            *self.publishers, *self.subscribers, *self.workers, *self.sharers, *self.producers,
            *self.readers, self.bound, self.newcomer, self.late, *self.things,
        ]  # fmt: skip

    # What clients ask of the world

    def note(self, text: str) -> None:
        if self.verbose:
            print(f"{self.clock.seconds:10.3f}  {text}", file=sys.stderr)

    def must_be_safe(self, payload: bytes, topic: str) -> None:
        """Now that it is acknowledged: on the disk, or as far as its topic says."""
        log = self.node.log
        safe = payload in self._safe | log.landed or self.disk.has(payload)
        if topic.startswith("m/"):
            self._promised.setdefault("none", set()).add(payload)
        elif topic.startswith("o/"):
            self._promised.setdefault("os", set()).add(payload)
            assert safe or payload in log.in_system, f"{payload!r} is not written"
        else:
            assert safe, f"{payload!r} was promised too early"

    def has_id(self, space: str, number: int, meaning: bytes) -> None:
        before = self._ids.setdefault((space, number), meaning)
        assert before == meaning, f"{space} {number} was {before!r} and is {meaning!r}"

    def is_called(self, name: bytes, number: int) -> None:
        before = self._names.setdefault(name, number)
        assert before == number, f"{name!r} had the number {before} and has {number}"

    # The schedule

    def run(self) -> None:
        alarm = self.alarm
        log = logging.getLogger("hubbub")
        log.addHandler(alarm)
        propagate, log.propagate = log.propagate, False
        try:
            with self.disk.watched(), framed(self.frame_rows):
                self._start()
                self._prepare()
                for _ in range(self.steps):
                    self._step()
                    assert not alarm.broken, alarm.broken[0]
                self._finish()
        finally:
            log.removeHandler(alarm)
            log.propagate = propagate
            if hasattr(self, "node"):
                self.node.log.abandon()

    def _start(self) -> None:
        self.starts += 1
        self.node = SimulatedNode(self.root, self.clock, self.segment_bytes)
        self.node.begin()

    def _prepare(self) -> None:
        """Who is owed something has subscribed before it begins, and the queues are there."""
        for name in ("jobs", "churn"):
            self.node.broker.queues.named(name)
        self.node.broker.queues.bind(self.node.broker.queues.named("bound"), "a/#")
        waiting: list[Subscriber] = [*self.subscribers, *self.workers, *self.sharers]
        while not all(one.subscribed for one in waiting):
            for one in waiting:
                one.act()
            self._calm()
        self.note("begin")

    def _calm(self) -> None:
        """Everything on its way arrives."""
        for client in self.clients:
            if client.wire is not None:
                client.wire.deliver(1 << 20)
        self.node.loop.run()
        self.node.log.step()
        self._arrive()

    def _arrive(self) -> None:
        arrivals, self.node.loop.arrivals = self.node.loop.arrivals, []
        self.node.loop.soon += arrivals
        self.node.loop.run()

    def _step(self) -> None:
        (event,) = self.chance.choices(_EVENTS, self.weights)
        try:
            event(self)
            self.node.loop.run()
            self._compare()
        except Ended:
            self.note("in the middle of things")
            self.chance.choice((self._lose_power, self._kill))()

    def _compare(self) -> None:
        """When the disk is idle the files say what the hub knows."""
        node = self.node
        if not node.idle() or self.chance.random() > 0.06:
            return
        self.compared += 1
        live, found = shape(node.broker.state), shape(node.on_disk())
        for part, value in live.items():
            assert found[part] == value, f"{part}: the files say {found[part]}, the hub {value}"

    # Events

    def _client(self) -> Client:
        return self.chance.choice(self.clients)

    def _act(self) -> None:
        self._client().act()

    def _deliver(self) -> None:
        wires = [one.wire for one in self.clients if one.wire is not None and one.wire.to_hub]
        wires += [one for one in self.ghosts if one.to_hub]
        if wires:
            wire = self.chance.choice(wires)
            size = len(wire.to_hub)
            wire.deliver(size if self.chance.random() < 0.7 else self.chance.randrange(size + 1))

    def _write(self) -> None:
        self.node.log.step()

    def _sweep(self) -> None:
        self.clock.go_on(self.chance.choice((0.01, 0.1, 0.5)))
        self.node.sweep()

    def _cut(self) -> None:
        client = self._client()
        self.note(f"{client.name} is cut")
        client.cut()

    def _take_over(self) -> None:
        client = self._client()
        self.note(f"{client.name} takes over")
        client.vanish()
        client.dial()

    def _lay_ghosts(self) -> None:
        for wire in self.ghosts:
            wire.hang_up()
        self.ghosts = []

    def _stick(self) -> None:
        wire = self._client().wire
        if wire is not None:
            wire.stuck = True

    def _unstick(self) -> None:
        for client in self.clients:
            if client.wire is not None and client.wire.stuck and self.chance.random() < 0.5:
                client.wire.unstick()

    def _roll(self) -> None:
        """At times calls fail meanwhile: then it is tried again some day."""
        if self.chance.random() < 0.3:
            self._trouble(CHANGES | READS, 200)
        try:
            if self.node.roll():
                self.note("rolled")
                self.spare = True
        except (HubbubError, OSError) as error:
            assert self.disk.failed, error
            self.note(f"not rolled: {error}")
        self.disk.heal()

    def _trouble(self, kinds: frozenset[str], skip: int = 0) -> None:
        """Some of the next calls of these kinds fail."""
        error = self.chance.choice(ERRORS if kinds & READS else DISK_ERRORS)
        count = 1 + self.chance.randrange(BURST)
        self.disk.fail(kinds, error, count, self.chance.randrange(skip + 1))
        self.note(f"{count} times {errno.errorcode[error]}")

    def _jump(self) -> None:
        self.clock.wall += self.chance.choice((-3600, -5, 5, 3600)) * 1_000_000

    def _fail(self) -> None:
        """The disk fails while the journal's thread writes."""
        self._trouble(self.chance.choice((SYNCS, CHANGES, CHANGES | READS)))
        while self.disk.failures:
            before = len(self.disk.failures)
            self.node.log.step()
            if len(self.disk.failures) == before:
                break
        self.disk.heal()
        if self.chance.random() < 0.3:
            self.node.loop.run()
            self._arrive()
            self.chance.choice((self._kill, self._lose_power))()

    def _fail_in_the_loop(self) -> None:
        """Calls fail while clients are served: messages are read back, files are opened."""
        self._trouble(READS)
        for _ in range(20):
            self._client().act()
            self._deliver()
            self.node.loop.run()
            self._arrive()
        self.disk.heal()

    def _fuse(self) -> None:
        self.disk.countdown = self.chance.randrange(12)

    def _lose_power(self) -> None:
        self.note("power lost")
        self._end("os", "none")
        self.disk.lose_power()
        self._begin_again()

    def _kill(self) -> None:
        self.note("killed")
        self._end("none")
        self.disk.switch_on()
        self._begin_again()

    def _end(self, *forgotten: str) -> None:
        """The process is gone, and with it what was promised no better than that."""
        self._safe |= self.node.log.landed
        self._forget(*forgotten)
        self.node.log.abandon()
        self.ghosts = []
        for client in self.clients:
            if client.wire is not None:
                client.wire.open = False
            client.cut()

    def _forget(self, *levels: str) -> None:
        for level in levels:
            self._forgiven |= self._promised.get(level, set()) - self._safe

    def _begin_again(self) -> None:
        if self.chance.random() < 0.1:
            self._damage_snapshot()
        if self.chance.random() < 0.2:
            self.disk.countdown = self.chance.randrange(20)
        elif self.chance.random() < 0.3:
            self._trouble(CHANGES | READS, 60)
        while True:
            try:
                self._start()
                self.node.loop.run()
                self.disk.heal()
                return
            except (HubbubError, OSError) as error:
                assert self.disk.heal(), error
                self.note(f"it does not start: {error}")
                self.node.log.abandon()
            except Ended:
                self.note("in the middle of a start")
                self.node.log.abandon()
                if self.chance.random() < 0.5:
                    self.disk.lose_power()
                    self._forget("os")
                else:
                    self.disk.switch_on()

    def _damage_snapshot(self) -> None:
        """A bit of the newest snapshot; the hub starts from the one before. Not of both: the next
        damage comes only after another snapshot was made.
        """
        directory = Directory(self.root)
        *older, newest = [0, *directory.snapshots()]
        if len(older) > 1 and self.spare:
            self.spare = False
            self.note("a damaged snapshot")
            data = bytearray(directory.snapshot(newest).read_bytes())
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            directory.snapshot(newest).write_bytes(data)

    # The end

    def _finish(self) -> None:
        self.note("the end begins")
        self.disk.switch_on()
        self._lay_ghosts()
        for client in self.clients:
            if client.wire is not None and client.wire.stuck:
                client.wire.unstick()
        for _ in range(600):
            for client in self.clients:
                client.act()
            self._calm()
            self.clock.go_on(0.3)
            self.node.sweep()
            assert not self.alarm.broken, self.alarm.broken[0]
            if self._owed() is None and all(client.done() for client in self.clients):
                break
        assert self._owed() is None, self._owed()
        waiting = [client.name for client in self.clients if not client.done()]
        assert not waiting, f"{waiting} wait for ever"
        dropped = self.node.broker.metrics.dropped
        assert not any(reason in dropped for reason in LOST), dropped

    def _owed(self) -> str | None:
        """What is still missing, in words."""
        for subscriber in self.subscribers:
            whole = subscriber.wish.rstrip("#+")
            missing = self._acknowledged(whole) - subscriber.got.keys() - {b""}
            if missing := missing - self._forgiven:
                return f"{subscriber.name} has not got {sorted(missing)}"
        for group, topic in ((self.workers, "$queue/work"), (self.sharers, "s/")):
            got = {payload for one in group for payload in one.got}
            if missing := self._acknowledged(topic) - got:
                return f"none of {[one.name for one in group]} has got {sorted(missing)}"
        if missing := self._acknowledged("a/") - set(self.bound.seen.values()):
            return f"the queue of a binding has not got {sorted(missing)}"
        return self._owed_in_queue() or self._owed_retained()

    def _owed_in_queue(self) -> str | None:
        tried = {number for one in self.readers for number in one.tried}
        seen = {number for one in self.readers for number in one.seen}
        sent = {number for one in self.producers if one.queue == "jobs" for number in one.sent}
        missing = sent - tried - seen
        waiting = self.node.broker.state.queues["jobs"].messages
        if lost := sent - tried - waiting.keys():
            return f"jobs {sorted(lost)} are lost"
        return f"nobody has read the jobs {sorted(missing)}" if missing else None

    def _owed_retained(self) -> str | None:
        for publisher in self.publishers:
            for topic, payloads in publisher.acknowledged.items():
                found = self.newcomer.seen.get(topic, b"")
                if topic.startswith(("r/", "c/")) and payloads and found != payloads[-1]:
                    return f"{topic} is {found!r}, not {payloads[-1]!r}"
        return None

    def _acknowledged(self, prefix: str) -> set[bytes]:
        return {
            payload
            for one in self.publishers
            for topic, payloads in one.acknowledged.items()
            if topic.startswith(prefix)
            for payload in payloads
        }


# How likely each event is; accidents are more likely in some schedules than in others.
_CHANCES: dict[Callable[[World], None], tuple[float, bool]] = {
    World._act: (40, True),
    World._deliver: (30, True),
    World._write: (15, True),
    World._arrive: (15, True),
    World._sweep: (5, True),
    World._cut: (1, False),
    World._take_over: (1, False),
    World._lay_ghosts: (0.5, True),
    World._stick: (0.5, False),
    World._unstick: (1, True),
    World._roll: (1.5, True),
    World._jump: (0.2, False),
    World._fail: (0.7, False),
    World._fail_in_the_loop: (0.7, False),
    World._fuse: (0.5, False),
    World._lose_power: (0.4, False),
    World._kill: (0.4, False),
}
_EVENTS = list(_CHANCES)
