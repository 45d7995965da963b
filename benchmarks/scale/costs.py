"""What one event of a cluster costs a node, measured with the hub's own code in this process.

Several brokers with their memberships are joined by lines that only carry; what is timed is the
thread's own processor time of one side. What NATS adds to a frame is measured between real hubs
(`check.py`), and what a broker does for its own clients stands in docs/benchmarks.md.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

from hubbub.cluster.membership import Membership
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import CLUSTER_FRAME_BYTES
from hubbub.core.log import Log
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.session import Session, Subscription

EVENTS = 20_000
BEATS = 500
TICK = 100  # messages that leave together


class Costs(NamedTuple):
    """Seconds of the processor, and bytes of memory or of a frame.

    `tell_client` and `hear_client`: of one client that comes, for each other node; `hold_client`:
    that it is known there. The same for a filter. `send` and `take`: of one message of 128 bytes,
    for each node that wants it; `own`: what it costs a node to publish it at all.
    """

    tell_client: float
    hear_client: float
    hold_client: float
    client_bytes: float
    tell_filter: float
    hear_filter: float
    hold_filter: float
    filter_bytes: float
    own: float
    send: float
    take: float
    message_bytes: float
    beat: float


class Line:
    """The engine of one node: keeps what is to be carried."""

    trouble = ""
    complete = True
    most = CLUSTER_FRAME_BYTES
    up = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.out: list[tuple[str, bytes]] = []

    async def open(self, heard: object, changed: object) -> None:
        raise AssertionError("nobody opens it")

    def send(self, node: str, frames: list[bytes]) -> bool:
        self.out += [(node, frame) for frame in frames]
        return True

    async def settle(self, met: object) -> None:
        raise AssertionError("nobody opens it")

    def mark(self, passed: object) -> None:
        raise AssertionError("nobody is lost")

    def waiting(self, node: str = "") -> int:
        return 0

    async def close(self) -> None:
        self.out.clear()


class Reader(Session):
    """A client that throws away what it gets."""

    def deliver(self, run: Run, subscription: Subscription) -> None:
        pass


class Cluster:
    """So many nodes that have met, the first of them with a client of its own if it is `sender`."""

    sender: Session  # at the first one

    def __init__(self, count: int) -> None:
        self.members: dict[str, Membership] = {}
        clock = Clock()
        for number in range(count):
            line = Line(f"n{number}")
            member = Membership(Broker(clock, Log(clock), "none"), line, "0")
            member.begin()
            self.members[line.name] = member
        for _ in range(4):
            for member in self.members.values():
                member.beat()
            self.carry()
        for member in self.members.values():
            assert len(member.nodes) == count - 1, "they have not met"

    def node(self, number: int) -> Membership:
        return self.members[f"n{number}"]

    def taken(self, member: Membership) -> list[tuple[str, bytes]]:
        """What it says with this tick."""
        outgoing = member.broker.outgoing
        touched, outgoing.touched = outgoing.touched, []
        for link in touched:
            link.flush()
        line = member.engine
        assert isinstance(line, Line)
        said, line.out = line.out, []
        return said

    def carry(self) -> None:
        while said := [(name, one) for name, m in self.members.items() for one in self.taken(m)]:
            for origin, (to, frame) in said:
                for name, member in self.members.items():
                    if name != origin and to in ("", name):
                        member.hear(frame)

    def client(self, number: int, name: str) -> Reader:
        broker = self.node(number).broker
        session = Reader("mqtt", name, broker.open)
        opening = Opening(Gate(broker.open), "127.0.0.1")
        broker.connect(session, Admission("mqtt", name, "", broker.open, opening))
        return session

    def wish(self, number: int, session: Session, topic: str) -> None:
        broker = self.node(number).broker
        broker.subscribe(Subscription(session, topic, 0, (SPELLED, SPELLED, SPELLED)))


def settle(member: Membership) -> None:
    """All that it put off to its next turns, as the loop does."""
    broker = member.broker
    while broker.unsettled:
        unsettled, broker.unsettled = broker.unsettled, []
        for session in unsettled:
            session.settle()


def took(call: Callable[[], object]) -> float:
    """Seconds of this thread's processor time."""
    gc.collect()
    gc.disable()
    began = time.thread_time()
    call()
    spent = time.thread_time() - began
    gc.enable()
    return spent


def held(call: Callable[[], object]) -> float:
    """Bytes that stay."""
    gc.collect()
    tracemalloc.start()
    call()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(size)


Event = Callable[[Cluster, int], object]


def _told(cluster: Cluster, event: Event) -> tuple[float, list[bytes]]:
    """What EVENTS of them cost the node where they are, and what it says to the next one."""
    said: list[tuple[str, bytes]] = []

    def all_of_them() -> None:
        for number in range(EVENTS):
            event(cluster, number)
            if number % TICK == TICK - 1:
                said.extend(cluster.taken(cluster.node(0)))

    spent = took(all_of_them)
    return spent, [frame for to, frame in said if to in ("", "n1")]


def _to_each(event: Event, ready: Callable[[Cluster, int], object]) -> float:
    """What one event costs for each node that is told: the slope from one to five of them."""

    def told(others: int) -> float:
        cluster = Cluster(1 + others)
        ready(cluster, others)
        return _told(cluster, event)[0]

    one, five = (min(told(others) for _ in range(3)) for others in (1, 5))
    return max(0.0, five - one) / 4 / EVENTS


class Heard(NamedTuple):
    seconds: float
    held: float
    size: float


def _heard(event: Event, ready: Callable[[Cluster, int], object]) -> Heard:
    """What one event costs a node that is told."""

    def hearing() -> tuple[Callable[[], None], float]:
        cluster = Cluster(2)
        ready(cluster, 1)
        frames = _told(cluster, event)[1]
        member = cluster.node(1)

        def hear() -> None:
            for frame in frames:
                member.hear(frame)
            settle(member)

        return hear, sum(map(len, frames)) / EVENTS

    seconds = min(took(hearing()[0]) for _ in range(3)) / EVENTS
    hear, size = hearing()
    return Heard(seconds, held(hear) / EVENTS, size)


def _comes(cluster: Cluster, number: int) -> None:
    cluster.client(0, f"device-{number:07}")


def _wishes(cluster: Cluster, number: int) -> None:
    cluster.wish(0, cluster.sender, f"devices/{number:07}/commands")


def _says(cluster: Cluster, number: int) -> None:
    cluster.node(0).broker.post(Message("t", bytes(128)), cluster.sender)


def _connected(cluster: Cluster, others: int) -> None:
    cluster.sender = cluster.client(0, "sender")


def _wanted(cluster: Cluster, others: int) -> None:
    """By each other node."""
    _connected(cluster, others)
    for number in range(1, 1 + others):
        cluster.wish(number, cluster.client(number, f"reader-{number}"), "t")
    cluster.carry()


def _beat(member: Membership) -> None:
    for _ in range(BEATS):
        member.beat()


def measure() -> Costs:
    """A quarter of a minute."""
    client, topic = _heard(_comes, _connected), _heard(_wishes, _connected)
    message, beats, alone = _heard(_says, _wanted), Cluster(6), Cluster(1)
    _connected(alone, 0)
    return Costs(
        tell_client=_to_each(_comes, _connected), hear_client=client.seconds,
        hold_client=client.held, client_bytes=client.size,
        tell_filter=_to_each(_wishes, _connected), hear_filter=topic.seconds,
        hold_filter=topic.held, filter_bytes=topic.size,
        own=min(_told(alone, _says)[0] for _ in range(3)) / EVENTS,
        send=_to_each(_says, _wanted), take=message.seconds, message_bytes=message.size,
        beat=took(lambda: _beat(beats.node(0))) / BEATS / 5,
    )  # fmt: skip
