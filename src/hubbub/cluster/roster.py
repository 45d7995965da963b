"""Which nodes there have been: since when one is away, and which were removed for good.

    met, or gone       → a row, so a node that is away is shown also after a start
    removed by hand    → a row, told to all, also to who was away: nothing waits for it any more,
                         nothing of it is heard; who is met tells it
    just started       → who was there last is expected: a session that lasts may be at it

A directory knows since when it is that of a node (`born`): one that began behind the removal, an
empty one or a backup that was put back, is another node of the same name, and is welcome. Owned by
the membership, called by it, by what hears frames and by the runtime. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub.cluster import frames
from hubbub.cluster.estates import began_by, taken_row
from hubbub.cluster.named import Named
from hubbub.cluster.retained import UNSAID
from hubbub.core.limits import CLUSTER_BEAT_SECONDS, CLUSTER_NAMES, CLUSTER_RETURN_SECONDS
from hubbub.core.queue import PROTOCOL as QUEUE

if TYPE_CHECKING:
    from hubbub.cluster.estates import Estate
    from hubbub.cluster.membership import Membership
    from hubbub.cluster.node import Node

MET: Final = "$node/"  # before a node's name: since when it is away, or that it is there
HERE: Final = 1
REMOVED: Final = "$removed/"  # before a node's name: when it was removed for good
WHAT_TO_DO: Final = (
    "start it with another directory, or with a backup of this one that is put back now"
)

log = logging.getLogger("hubbub.cluster")


class Rest(NamedTuple):
    """What there is of a node that is away, and nobody has taken over: what lasts there, and
    messages that wait for it.
    """

    sessions: int = 0
    queues: int = 0
    messages: int = 0


class Roster:
    """`away`: since when each node is that was met and is not there (microseconds since 1970);
    `removed`: when others were for good. `answers`: what other nodes said of each that is asked
    about now. `_born`: since when the directories of those are that were met in this life;
    `_told`: when (monotonic seconds) who was removed was told so last; `_expected`: who was there
    when this hub ended and has not said yet what lasts there, for so long as `_until`.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._broker = membership.broker
        self.away: dict[str, int] = {}
        self.removed: dict[str, int] = {}
        self.answers: dict[str, dict[str, Rest]] = {}
        self._born = Named[int]()
        self._told = Named[float]()
        self._expected: list[str] = []
        self._until = 0.0

    def begin(self) -> None:
        """The state is recovered. Who was there then is away until it is met."""
        for name, number in self._broker.state.taken.items():
            if name.startswith(MET):
                since = number if number > HERE else self._membership.boot
                self.away[name.removeprefix(MET)] = since
                if number == HERE:
                    self._expected.append(name.removeprefix(MET))
            elif name.startswith(REMOVED):
                self.removed[name.removeprefix(REMOVED)] = number

        self._until = self._broker.clock.now() + CLUSTER_RETURN_SECONDS
        if self._expected and not self._membership.engine.complete:
            text = "no session that lasts begins here before %s is met, or for %g s"
            log.info(text, _named(self._expected), CLUSTER_RETURN_SECONDS)

    def expects(self) -> str:
        """Why no session that lasts may begin here so far, "" if it may: a client that comes to
        this node first, after all had lost their power, would lose the one that it has at another.
        Who does not come for longer than a restart takes is away, also for the next start.
        """
        here = self._membership
        if not self._expected or here.engine.complete:  # who starts with this one is waited for
            return ""
        self._expected = [one for one in self._expected if self.knows(one) and not here.met(one)]
        left = self._until - self._broker.clock.now()
        if left <= 0:
            for name in self._expected:
                if name in self.away:
                    self._note(MET, name, self.away[name])
            self._expected = []
        if not self._expected:
            return ""
        return unmet(_named(self._expected), left)

    # Who comes and goes

    def came(self, node: Node, born: int) -> None:
        self.away.pop(node.name, None)
        self._born[node.name] = born
        self._note(MET, node.name, HERE)

    def went(self, node: Node) -> None:
        since = self._broker.clock.stamp()
        self.away[node.name] = since
        self._note(MET, node.name, since)

    def _note(self, kind: str, name: str, number: int) -> None:
        """As many as there may be nodes: whoever reaches the engine can say any name."""
        taken = self._broker.state.taken
        if taken.get(kind + name, 0) == number:
            return
        if kind + name not in taken:
            known = [one for one in taken if one.startswith(kind)]
            for one in known[: max(0, len(known) + 1 - CLUSTER_NAMES)]:
                self._drop(kind, one.removeprefix(kind))
        self._broker.change(taken_row(kind + name, number))

    def _drop(self, kind: str, name: str) -> None:
        (self.away if kind == MET else self.removed).pop(name, None)
        if kind + name in self._broker.state.taken:
            self._broker.change(taken_row(kind + name, UNSAID))

    # What there is of one that is away

    def knows(self, name: str) -> bool:
        return name in self.away or name in self._membership.nodes or bool(self._estates(name))

    def heirs(self, name: str) -> list[str]:
        """Who has what that node began, or had it last."""
        here = self._membership
        found = {here.name for estate in here.holdings.held if began_by(estate) == name}
        began = [estate for estate in (*here.estates, *here.directory.there)
                 if began_by(estate) == name]  # fmt: skip
        found.update(here.directory.holder(estate) for estate in began)
        return sorted(found - {name})

    def rest(self, name: str) -> Rest:
        here = self._membership
        estates = self._estates(name)
        keys = [key for one in estates for key in here.directory.there.get(one, ())]
        queues = sum(key[0] == QUEUE for key in keys)
        messages = sum(one.unacknowledged() for one in self._waiting(estates))
        return Rest(len(keys) - queues, queues, messages)

    def _estates(self, name: str) -> list[str]:
        """Those that it had when it went."""
        here = self._membership
        known = dict.fromkeys((*here.estates, *here.directory.there))
        return [one for one in known if here.directory.holder(one) == name and not self._has(one)]

    def _has(self, estate: str) -> bool:
        """Whether somebody has it."""
        here = self._membership
        known = here.estates.get(estate)
        return estate in here.holdings.held or known is not None and known.holder is not None

    def _waiting(self, estates: list[str]) -> Iterator[Estate]:
        known = self._membership.estates
        yield from (known[one] for one in estates if one in known)

    def ask(self, name: str) -> dict[str, Rest]:
        """What others know of it; they answer soon, or are of a version that does not. Who asks
        takes it out of `answers` in the end; more may be asked about at once.
        """
        self._membership.tell_all(frames.Remains(name, True))
        return self.answers.setdefault(name, {})

    def remains(self, node: Node, record: frames.Remains) -> None:
        if record.asks:
            node.tell(frames.Remains(record.node, False, *self.rest(record.node)))
        elif record.node in self.answers:
            said = Rest(record.sessions, record.queues, record.messages)
            self.answers[record.node][node.name] = said

    # Removed

    def remove(self, name: str) -> None:
        """By hand, here: all are told."""
        record = frames.Removed(name, self._membership.stamps.by_all_clocks(self._stamp()))
        self._membership.tell_all(record)
        self._remove(record)

    def _stamp(self) -> int:
        return self._broker.clock.stamp()

    def tell(self, node: Node) -> None:
        """Who was away has not heard it."""
        for name, at in self.removed.items():
            node.tell(frames.Removed(name, at))

    def hears(self, node: Node, record: frames.Removed) -> None:
        """A node says that one was removed; it may be this one."""
        if record.node != self._membership.name:
            self._remove(record)
        elif record.at >= self._membership.born:
            self._membership.hearing.take_no_part(removed(record.node))

    def is_removed(self, name: str, said: list[frames.Record]) -> bool:
        """Whether it says something as the node that it was before that; it is told so."""
        at = self.removed.get(name, 0)
        beats = [one for one in said if isinstance(one, frames.Beat)]
        if not at or all(beat.born > at for beat in beats):
            return False
        if not self._was_first(name, at, said):
            self._tell_removed(name, at)
        return True

    def _was_first(self, name: str, at: int, said: list[frames.Record]) -> bool:
        """Two that were apart may have removed each other: what the one did that was removed before
        counts for nobody, and the other one is heard.
        """
        here = self._membership
        for one in said:
            if isinstance(one, frames.Removed) and one.node == here.name:
                if here.born <= one.at and (one.at, here.name) < (at, name):
                    here.hearing.take_no_part(removed(here.name))
                    return True
        return False

    def _tell_removed(self, name: str, at: int) -> None:
        """Once a beat: who removed this node, too, answers what it is told."""
        here, now = self._membership, self._broker.clock.now()
        if now - self._told.get(name, -CLUSTER_BEAT_SECONDS) < CLUSTER_BEAT_SECONDS:
            return
        self._told[name] = now
        pieces = frames.piece(here.says()) + frames.piece(frames.Removed(name, at))
        here.engine.send(name, [frames.frame(here.name, here.boot, 0, 0, pieces)])

    def _remove(self, record: frames.Removed) -> None:
        name, at, here = record.node, record.at, self._membership
        if at <= self.removed.get(name, 0):
            return
        self.removed[name] = at
        self._note(REMOVED, name, at)
        if self._born.get(name, 0) > at:
            return  # there is another one of that name since
        node = here.nodes.get(name)
        if node is not None:
            here.forget(node, "it was removed for good")
        rest = self.rest(name)
        text = "node %r was removed for good, with %d sessions, %d queues, %d messages"
        log.warning(text, name, *rest)
        for estate in self._estates(name):
            if estate in here.estates:
                here.let_go(here.estates[estate])
            here.directory.forget(estate)
            here.holdings.forget_origin(estate)
        self._drop(MET, name)
        self._broker.age += 1


def unmet(where: str, seconds: float) -> str:
    """Why no session that lasts begins, for who wants one and for who looks at the status."""
    return (
        f"it is not known yet which sessions are at {where}: new ones that last are refused for "
        f"{seconds:.0f} s more at most"
    )


def _named(nodes: list[str]) -> str:
    return ", ".join(f"node {name!r}" for name in sorted(nodes)[:3]) + ", …" * (len(nodes) > 3)


def removed(name: str) -> str:
    return (
        f"node {name!r} was removed for good (hubbub end node) and what this directory says is "
        f"nobody's any more: {WHAT_TO_DO}"
    )
