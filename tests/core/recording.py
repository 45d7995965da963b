"""A broker whose rows can be looked at: a log in memory that records, and sessions that listen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import SPELLED, Message, Run, message_of, row_of
from hubbub.core.session import LEASED, Session, SessionState, Subscription
from hubbub.core.state import State
from hubbub.errors import UnreadableError
from hubbub.schema import PUBLISH, Row


class StillClock(Clock):
    """Time goes on only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def stamp(self) -> int:
        return int(self.seconds * 1_000_000)


class Hasty(StillClock):
    """Whoever asks has worked for a tenth of a millisecond since."""

    def now(self) -> float:
        self.seconds += 0.0001
        return self.seconds

    def spent(self) -> float:
        return self.seconds


class Recording(Log):
    """Keeps every row. Not `prompt`: they are durable only once `sync` is called."""

    def __init__(self, clock: Clock, prompt: bool = True) -> None:
        super().__init__(clock)
        self.records = True
        self.prompt = prompt
        self.unreadable = False  # the machine can read no message just now
        self.rows: list[Row] = []

    def append(self, row: Row) -> int:
        self.position += 1
        self.rows.append(row._replace(seq=self.position, time=self.clock.stamp()))
        if self.prompt:
            self.durable = self.position
        return self.position

    def append_run(self, run: Run, audience: int) -> int:
        first = self.position + 1
        for message in run.messages():
            self.append(row_of(message, PUBLISH, audience, run.number))
        return first

    def read(self, seq: int) -> Message | None:
        if self.unreadable:
            raise UnreadableError("a block of the disk")
        return super().read(seq) if seq < 0 else message_of(self.rows[seq - 1])

    def sync(self) -> None:
        self.durable = self.position

    def kinds(self) -> list[str]:
        return [row.kind.decode() for row in self.rows]


class Ear(Session):
    """Keeps what it gets: (topic, payload, QoS)."""

    def __init__(self, broker: Broker, client: str, lasting: bool = False) -> None:
        super().__init__("test", client, broker.open)
        self.lasting = lasting
        self.heard: list[tuple[str, bytes, int]] = []
        self.counts: list[tuple[str, int]] = []
        self.room = True
        self.direct = self.wish(f"$client/{client}")
        broker.connect(self, broker.own("test", client))

    def wish(self, topic_filter: str, qos: int = 0, literal: bool = False) -> Subscription:
        return Subscription(self, topic_filter, qos, (SPELLED, SPELLED, SPELLED), literal)

    def deliver(self, run: Run, subscription: Subscription) -> None:
        qos = min(run.qos, subscription.qos)
        self.heard += [(message.topic, message.payload, qos) for message in run.messages()]

    def ready(self) -> bool:
        return self.room and super().ready()

    def changed(self, name: str, count: int) -> None:
        self.counts.append((name, count))

    def hear(self) -> list[tuple[str, bytes, int]]:
        heard, self.heard = self.heard, []
        return heard


def recording(record: str = "all", exclude: tuple[str, ...] = ()) -> tuple[Broker, Recording]:
    clock = StillClock()
    log = Recording(clock)
    return Broker(clock, log, record, exclude), log


def settle(broker: Broker) -> int:
    """The ends of as many ticks as it takes; how many."""
    ticks = 0
    while broker.unsettled:
        unsettled, broker.unsettled = broker.unsettled, []
        for session in unsettled:
            session.settle()
        ticks += 1
    return ticks


def folded(rows: Iterable[Row]) -> State:
    state = State()
    for row in rows:
        state.apply(row)
    return state


def snapshot(state: State, rows: list[Row]) -> list[Row]:
    """What the roller writes: the rows of the state, and the messages that it needs."""
    needed = state.needed()
    return [*state.rows(), *(state.carried(row) for row in rows if row.seq in needed)]


def seqs(state: State) -> dict[str, int]:
    """The retained message of each topic."""
    return {topic: kept.seq for topic, kept in state.retained.items()}


def shape(state: State) -> dict[str, Any]:
    """All that a state says, to be compared.

    Leased messages have only a number in the fold: a restart ends their leases.
    """
    return {
        "sessions": {key: _session(one) for key, one in state.sessions.items()},
        "queues": {
            name: (queue.next, queue.owner, queue.messages, queue.bindings, set(queue.answers))
            for name, queue in state.queues.items()
        },
        "ended": (state.ended_queues, state.queue_floor),
        "retained": seqs(state),
        "wills": {key: will._replace(seq=0, time=0) for key, will in state.wills.items()},
        "topics": state.topics.numbers,
        "topic names": state.topics.names,
        "subtopics": state.subtopics.numbers,
        "taken": state.taken,
        "ahead": state.ahead,
        "adopting": {node: shape(one) for node, one in state.adopting.items()},
    }


def _session(session: SessionState) -> dict[str, Any]:
    backlog, will = session.backlog, session.will
    entries = dict(enumerate(backlog.entries, backlog.first))
    leased = {number for number, entry in entries.items() if entry & LEASED}
    deliveries = {
        number: entry for number, entry in entries.items() if entry and number not in leased
    }
    return {
        "subscriptions": session.subscriptions,
        "deliveries": deliveries,
        "next": backlog.next,
        "received": backlog.received - leased,
        "open": session.open_ids,
        "shared": session.shared,
        "expires": session.expires,
        "connected": session.connected,
        "will": will._replace(seq=0, time=0) if will is not None else None,
    }
