"""Frames of other nodes, in order and each once; what is wrong with them is said and counted.

What one says may be work for seconds: a run of very many messages, all that holds of a node with
very many clients. It goes on in turns, as what clients ask for does; what comes meanwhile waits in
a line of its own for each node (`cluster.lines`).

    bytes → a frame → of which life of which node → its records, one by one → what was kept: noted
                                                          └── messages, while the disk is behind:
                                                              aside, until it is not

While the disk is behind messages wait, as those of publishers here do. All else is heard: who is
there, who came and went, what was taken. So no node is dead for one whose disk is slow, and none
waits for another: what ends it is the disk here alone.

A frame may be held on its way, lost, repeated, foreign or damaged, of a node whose clock is far
off, or that does not know yet that another one has what it had. Owned by the membership. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub.cluster import frames
from hubbub.cluster.lines import DONE, Lines
from hubbub.cluster.named import Named
from hubbub.cluster.node import Node
from hubbub.core.limits import (
    CLUSTER_ASIDE_BYTES,
    CLUSTER_CLOCK_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_FRAME_MESSAGES,
    CLUSTER_UNHEARD_BYTES,
)
from hubbub.core.turns import Stint

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

LOST: Final = "frames lost between nodes"
REFUSED: Final = "frames refused between nodes"
SLOW: Final = "the disk is too slow for other nodes"
MESSAGES: Final = (frames.Said, frames.Kept)
WEIGHT: Final = 1024  # bytes that a frame takes beside its own: it may be alone in its line
REASONS: Final = 100  # that are remembered; with names in them there are any number

log = logging.getLogger("hubbub.cluster")


def said_in(record: frames.Record) -> frames.Said | None:
    """The messages of a record, live ones or one that was kept."""
    said = record.said if isinstance(record, frames.Kept) else record
    return said if isinstance(said, frames.Said) else None


def size_of(record: frames.Record) -> int:
    """What a record of messages takes that waits."""
    said = said_in(record)
    assert said is not None
    rests = sum(len(rest.payload) + len(rest.properties) + WEIGHT for rest in said.rests)
    return len(said.payloads) + rests + WEIGHT


def _check_work(records: Iterable[frames.Record]) -> None:
    """What one frame says is no work for hours."""
    count = 0
    for record in records:
        if isinstance(record, frames.Said):
            count += record.count
        elif isinstance(record, frames.Kept):
            count += record.said.count
    if count > CLUSTER_FRAME_MESSAGES:
        raise frames.Foreign(f"a frame of {count} messages, {CLUSTER_FRAME_MESSAGES} may be")


class Came(NamedTuple):
    """A frame, the node that it says it is of, and when it came: in monotonic seconds, and by the
    clock that others are compared with.
    """

    data: bytes
    name: str
    at: float
    stamp: int


class Aside(NamedTuple):
    """Messages that wait for the disk, and the node that said them, which may be gone."""

    node: Node
    record: frames.Record


class Hearing:
    """`lost`: frames that never came; `refused`: how many were, by reason; `_strange`: of whom one
    was, and when. `apart`: for how many seconds a node's clock is ahead of this one. `unheard`:
    frames that came; `crowded`: whether messages are to wait, `aside`: those that do. `_later`: it
    goes on in the next turn.
    """

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.broker = membership.broker
        self.lost = 0
        self.refused: dict[str, int] = {}
        self._strange = Named[float]()
        self.apart = Named[float]()
        self.unheard = Lines[Came](CLUSTER_UNHEARD_BYTES, self._heard)
        self.crowded: Callable[[], bool] = lambda: False
        self.aside = Lines[Aside](CLUSTER_ASIDE_BYTES, self._said_late)
        self._later = False
        self._stint = Stint(membership.broker.clock)
        self._said: dict[str, float] = {}

    def hear(self, data: bytes) -> None:
        """A frame came. What is wrong with it is logged and counted, and it is let go."""
        clock, name = self.broker.clock, frames.name_in(data)
        if self.unheard.is_full(name):
            self._misses(name)
            return
        came = Came(data, name, clock.now(), clock.stamp())
        self.unheard.add(name, came, len(data) + WEIGHT)
        self.go_on()

    def go_on(self) -> bool:
        """With what waits, unless that is done in the next turn; whether there was something."""
        waits = not self._later and (bool(self.unheard) or self._may_say())
        if waits:
            self._work()
        return waits

    def _misses(self, name: str) -> None:
        """It is as if it were lost on the way; but who said it lives."""
        now, node = self.broker.clock.now(), self.membership.nodes.get(name)
        self._strange[name] = now
        if node is not None:
            node.heard = now

    def is_behind(self, name: str) -> bool:
        """Whether frames wait that came of that node: it may be silent since and has said more."""
        return name in self.unheard

    def heard_until(self) -> float:
        """All was heard that had come by then."""
        now = self.broker.clock.now()
        return min((came.at for came in self.unheard.firsts()), default=now)

    def has_heard(self, at: float) -> bool:
        """Whether all was heard that had come by then, and in that moment."""
        return all(came.at > at for came in self.unheard.firsts())

    def _work(self) -> None:
        """A turn of hearing; then what waits for the disk."""
        self._later = False
        self._stint = Stint(self.broker.clock)
        while self.unheard or self._may_say():
            over = self.unheard.go_on()
            if over and self._may_say():
                over = self.aside.go_on()
            if not over:
                self._later = True
                self.broker.later(self._work)
                return
        self.membership.lost.look()

    # What waits for the disk

    def waits(self, node: Node, record: frames.Record) -> bool:
        """Whether a record waits until the disk has less to do, behind those that do."""
        if type(record) not in MESSAGES or not (node.name in self.aside or self.crowded()):
            return False
        if self.aside.is_full(node.name):
            self._declines(node, record)
        else:
            self.aside.add(node.name, Aside(node, record), size_of(record))
        return True

    def _declines(self, node: Node, record: frames.Record) -> None:
        """What was kept is sent again, when there is room; what is retained is told again."""
        if not isinstance(record, frames.Said):
            node.declined = True
            return
        if record.retain:
            node.declined = True
        if record.again:
            return
        self.broker.metrics.drop(SLOW, record.count)
        text = f"the disk is too slow for what node {node.name!r} says: messages are dropped"
        self.warn("aside", text)

    def _may_say(self) -> bool:
        return bool(self.aside) and not self.crowded()

    def _said_late(self, late: Aside) -> Iterator[None]:
        """One record of those that waited, in turns as when it comes."""
        node, record = late
        if self._is_there(node) or self._outlives(node, record):
            yield from self.said_by(node, (record,), waited=True)
        else:
            self._declines(node, record)

    def _is_there(self, node: Node) -> bool:
        return self.membership.nodes.get(node.name) is node

    def _outlives(self, node: Node, record: frames.Record) -> bool:
        """Whether it counts though its node is gone: it came in time and in order, and before what
        that says when it is back. What was kept is sent again, by whoever has it; and where another
        one has what the node had, that says what was retained there.
        """
        is_its_own = node.stopped >= self.membership.inherited.get(node.name, 0)
        return isinstance(record, frames.Said) and is_its_own

    # A frame

    def _heard(self, came: Came) -> Iterator[None]:
        """What a frame says; each time that a turn is over it goes on in the next one."""
        membership = self.membership
        if membership.excluded:
            return
        try:
            frame = frames.opened(came.data)
            _check_work(frame.records)
            if frame.node == membership.name:
                self._namesake(frame, came.stamp)
                return
            node = self._from(frame, came)
            if node is not None:
                if frame.life and not isinstance(next(iter(frame.records), None), frames.Part):
                    node.torn = False  # parts come one by one, in frames of their own
                yield from self.said_by(node, frame.records)
        except frames.Foreign as error:
            self.refuse(str(error))
            self._strange[came.name] = self.broker.clock.now()

    def said_by(
        self, node: Node, records: Iterable[frames.Record], waited: bool = False
    ) -> Iterator[None]:
        """What was kept is noted before each pause, with the messages."""
        first = self.broker.log.position + 1
        for record in records:
            pieces = self._begin(node, record, waited)
            goes_on = True
            while goes_on:
                goes_on = pieces is not None and self._goes_on(node, record, pieces)
                if self._stint.over():
                    node.acknowledge(first)
                    yield
                    first = self.broker.log.position + 1
                    if not (waited or self._is_there(node)):
                        return
        node.acknowledge(first)

    def lives(self, name: str) -> bool:
        """Whether there is such a node, known or shut out: another version, a clock that is wrong.
        Who is not understood is not dead, nor who was not heard yet.
        """
        heard = self._strange.get(name)
        there = heard is not None and self.broker.clock.now() - heard <= CLUSTER_DEAD_SECONDS
        return there or name in self.membership.nodes or self.is_behind(name)

    def _begin(
        self, node: Node, record: frames.Record, waited: bool
    ) -> Iterator[None] | None:  # fmt: skip
        """One record; the pieces of one that is long. A bad one takes no other one with it."""
        try:
            return self.membership.take(node, record, waited)
        except Exception as error:
            self._broke(node, record, error)
            return None

    def _goes_on(self, node: Node, record: frames.Record, pieces: Iterator[None]) -> bool:
        """One piece more of it; whether there was one."""
        try:
            return next(pieces, DONE) is not DONE
        except Exception as error:
            self._broke(node, record, error)
            return False

    def _broke(self, node: Node, record: frames.Record, error: Exception) -> None:
        if isinstance(error, frames.Foreign):
            node.more.clear()  # it may have been one of those: they are asked for again
            self.refuse(str(error))
            return
        text = f"{type(error).__name__}: {error}"[:100]  # of a shape that no node sends
        self.refuse(f"a {type(record).__name__} of node {node.name!r} that broke: {text}")

    def _from(self, frame: frames.Frame, came: Came) -> Node | None:
        """The node of a frame, None if there is nothing more to do with it. It may have waited
        since it came.
        """
        membership = self.membership
        node = membership.nodes.get(frame.node)
        if node is not None and frame.boot < node.boot:
            raise frames.Foreign(f"a frame that {frame.node!r} sent before it was started again")
        beats = [record for record in frame.records if isinstance(record, frames.Beat)]
        strange = node is None or frame.boot > node.boot or frame.node in membership.shunned
        if beats or strange:
            node = self._introduced(frame, beats, came)
        if node is None:
            return None
        node.heard = self.broker.clock.now()
        return node if not frame.life or self._in_order(node, frame) else None

    def _introduced(
        self, frame: frames.Frame, beats: list[frames.Beat], came: Came
    ) -> Node | None:  # fmt: skip
        """The node of one that says who it is, or is not known as that."""
        membership = self.membership
        self._check_clock(frame.node, beats, came.stamp)
        if membership.roster.is_removed(frame.node, frame.records):
            raise frames.Foreign(f"node {frame.node!r} was removed for good")
        for beat in beats:
            membership.stamps.hears(beat.stamp, came.at)
        node = membership.nodes.get(frame.node)  # unless it is shut out now
        if node is not None and frame.boot > node.boot:
            membership.forget(node, "it was started again")
        if not all(self._is_now(frame.node, beat) for beat in beats):
            return None
        node = membership.nodes.get(frame.node)
        if node is None and beats:
            if not any(isinstance(record, frames.Bye) for record in frame.records):
                return membership.meet(frame, beats[-1])
        return node

    def _is_now(self, name: str, beat: frames.Beat) -> bool:
        """Whether what a node says is of the life that it has now: it may have been held on its
        way, or the node does not know yet that its stream was stopped, and is told so.
        """
        membership = self.membership
        at, node = membership.inherited.get(name, 0), membership.nodes.get(name)
        if beat.stopped < at:
            if self.broker.log.durable >= membership.sure:
                deposed = frames.piece(frames.Deposed(at))
                data = frames.frame(membership.name, membership.boot, 0, 0, deposed)
                membership.engine.send(name, [data])
            if node is not None:
                membership.forget(node, "what it had is at another one, which it does not know")
            return False
        if node is not None and node.stopped != beat.stopped:
            membership.forget(node, "it has let go of what it had")
        if beat.waits:
            membership.waiting[name] = beat.stopped, self.broker.clock.now()
            self.warn(f"{name} waits", f"node {name!r} waits: its heir is not known")
        return True

    def _in_order(self, node: Node, frame: frames.Frame) -> bool:
        """Frames of one life come in order, each once; what is missing is asked for."""
        if frame.life < node.their_life:
            return False
        if frame.life > node.their_life:
            first = node.their_life == 0
            node.their_life, node.seen = frame.life, frame.seq
            node.lost()
            if not first or frame.seq > 1:
                self.membership.relays.torn(node, LOST)
                node.ask()
            return True
        missing = frame.seq - node.seen - 1
        if missing < 0:
            return False
        node.seen = frame.seq
        if missing:
            node.lost()
            self.lost += missing
            self.broker.metrics.drop(LOST, missing)
            self.membership.relays.torn(node, LOST)
            self.warn("lost", f"{missing} frames of node {node.name!r} were lost on the way")
            node.ask()
        return True

    def _check_clock(self, name: str, beats: list[frames.Beat], came: int) -> None:
        membership = self.membership
        for beat in beats:
            apart = self.apart[name] = (beat.stamp - came) / 1_000_000
            if abs(apart) <= CLUSTER_CLOCK_SECONDS:
                membership.shunned.pop(name, None)
                continue
            membership.shunned[name] = f"its clock is {apart:+.0f} s from this one"
            if name in membership.nodes:
                membership.forget(membership.nodes[name], membership.shunned[name])
        if name in membership.shunned:
            raise frames.Foreign(f"node {name!r} is shut out: {membership.shunned[name]}")

    def _namesake(self, frame: frames.Frame, came: int) -> None:
        """Of two nodes with one name the younger takes no part."""
        membership = self.membership
        if frame.boot == membership.boot:
            return
        stamps = [record.stamp for record in frame.records if isinstance(record, frames.Beat)]
        if not stamps or abs(came - stamps[0]) > CLUSTER_DEAD_SECONDS * 1_000_000:
            return  # of this node's own life before, which was on its way for long
        text = f"another node of the cluster has the name {membership.name!r}"
        if frame.boot > membership.boot:
            self.refuse(f"{text}, and was started later")
            membership.beat_soon()  # it hears why
            return
        self.stay_out()

    def stay_out(self) -> None:
        """Another node has the name of this one, and had it first."""
        membership = self.membership
        text = f"another node of the cluster has the name {membership.name!r}"
        self.take_no_part(f"{text}: give each node its own (cluster.name, --cluster-name)")

    def take_no_part(self, why: str) -> None:
        membership = self.membership
        membership.excluded = why
        log.error("%s; this node takes no part", why)
        for node in list(membership.nodes.values()):
            membership.forget(node, "this node takes no part any more")

    def refuse(self, reason: str) -> None:
        if len(self.refused) >= REASONS and reason not in self.refused:
            self.refused.clear()
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self.broker.metrics.drop(REFUSED)
        self.warn(reason, f"refused: {reason}")

    def warn(self, kind: str, text: str) -> None:
        """Once a minute of a kind."""
        now = self.broker.clock.now()
        if now >= self._said.get(kind, 0.0):
            if len(self._said) >= REASONS:
                self._said.clear()
            self._said[kind] = now + 60
            log.warning("%s", text)
