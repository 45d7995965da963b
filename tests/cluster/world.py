"""Brokers as nodes over an engine that does what a seed says: lose, repeat and delay frames, cut.

Time is the test's own. What one node sends another stays in order, as NATS keeps it; nothing else
is sure.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from hubbub.cluster.membership import Membership
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import CLUSTER_FRAME_BYTES
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.session import Session, Subscription
from tests.core.recording import Recording, StillClock

NAMES = ("a", "b", "c")


class Reader(Session):
    """A client that remembers; `taken` says that it was taken over."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__("p", client, broker.open)
        self.broker = broker
        self.got: list[tuple[str, bytes]] = []
        self.changes: list[tuple[str, int]] = []
        self.taken = False

    def wish(self, topic: str) -> None:
        encodings = (SPELLED, SPELLED, SPELLED)
        self.broker.subscribe(Subscription(self, topic, 0, encodings))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.got += [(message.topic, message.payload) for message in run.messages()]

    def changed(self, name: str, count: int) -> None:
        self.changes.append((name, count))

    def taken_over(self) -> None:
        self.taken = True
        self.broker.disconnect(self, "taken over")


class Lines:
    """The engine of one node: a line to each other one, in order. `pace`: it takes no more."""

    trouble = ""
    complete = True
    most = CLUSTER_FRAME_BYTES

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.waits = 0
        self.lines: dict[str, deque[bytes]] = {}
        self.marks: list[Callable[[], None]] = []

    async def open(self, heard: object, changed: object) -> None:
        raise AssertionError("the world drives")

    def send(self, node: str, frames: list[bytes]) -> bool:
        if not self.up:
            return False
        for name in [node] if node else [name for name in self.world.members if name != self.name]:
            self.lines.setdefault(name, deque()).extend(frames)
        return True

    async def settle(self, met: object) -> None:
        raise AssertionError("nobody opens it")

    def mark(self, passed: Callable[[], None]) -> None:
        self.marks.append(passed)

    def waiting(self, node: str = "") -> int:
        return self.waits

    async def close(self) -> None:
        self.lines.clear()


class World:
    def __init__(self, seed: int = 0, names: tuple[str, ...] = NAMES) -> None:
        self.chance = random.Random(seed)
        self.clock = StillClock()
        self.members: dict[str, Membership] = {}
        self.cut: set[str] = set()
        self.lossy = 0.0
        for name in names:
            self.add(name)

    def add(self, name: str) -> Membership:
        broker = Broker(self.clock, Recording(self.clock), "all")
        member = self.members[name] = Membership(broker, Lines(self, name), "0")
        member.begin()
        return member

    def lines(self, name: str) -> Lines:
        engine = self.members[name].engine
        assert isinstance(engine, Lines)
        return engine

    def tick(self) -> None:
        for member in self.members.values():
            touched, member.broker.outgoing.touched = member.broker.outgoing.touched, []
            for link in touched:
                link.flush()

    def carry(self, most: int = 1_000_000) -> None:
        """Hand over what is on the lines, from a line that chance takes."""
        for _ in range(most):
            self.tick()
            full = [
                (name, other)
                for name in self.members
                for other, line in self.lines(name).lines.items()
                if line
            ]
            if not full:
                if self.passes():
                    continue
                return
            name, other = self.chance.choice(full)
            frame = self.lines(name).lines[other].popleft()
            if other not in self.members or {name, other} & self.cut:
                continue
            if self.chance.random() < self.lossy:
                if self.chance.random() < 0.5:
                    continue  # lost
                self.members[other].hear(frame)  # and again
            self.members[other].hear(frame)

    def passes(self) -> bool:
        """All that was on its way has come; whether that was waited for."""
        found = [(name, self.lines(name)) for name in self.members]
        marks = [mark for name, engine in found if name not in self.cut for mark in engine.marks]
        for _, engine in found:
            engine.marks = []
        for mark in marks:
            mark()
        return bool(marks)

    def wait(self, seconds: float) -> None:
        until = self.clock.seconds + seconds
        while self.clock.seconds < until:
            self.clock.seconds += 0.25
            for member in self.members.values():
                member.wake(self.clock.now())
            self.carry()

    def meet(self) -> None:
        self.wait(2)
        for name, member in self.members.items():
            assert set(member.nodes) == set(self.members) - {name}

    def client(self, name: str, client: str) -> Reader:
        broker = self.members[name].broker
        session = Reader(broker, client)
        opening = Opening(Gate(broker.open), "127.0.0.1")
        admission = Admission("p", client, "", broker.open, opening)
        broker.take_over(admission)
        broker.connect(session, admission)
        return session

    def publish(self, sender: Reader, topic: str, payload: bytes, retain: bool = False) -> None:
        sender.broker.post(Message(topic, payload, retain=retain), sender)

    def retained(self, name: str) -> dict[str, bytes]:
        broker = self.members[name].broker
        found = {topic: broker.log.look(kept.seq) for topic, kept in broker.state.retained.items()}
        return {topic: message.payload for topic, message in found.items() if message is not None}

    def hears_of_one_ahead(self) -> None:
        """All have what node b retained at `x` while its clock was 20 s ahead."""
        self.clock.seconds += 20
        self.publish(self.client("b", "writer"), "x", b"ahead", retain=True)
        self.carry()
        self.clock.seconds -= 20
        self.wait(1)
        assert self.retained("a") == {"x": b"ahead"}
