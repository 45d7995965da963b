"""What is handed on to the node that keeps it, and is in no journal here: QoS 1 for one estate.

    publish ──> Kept(number, passed) ──> journal of the holder, and its copies
                                                  |
    PUBACK <───────── Taken(number) <─────────────+

Where somebody who lasts at another node is the only one for whom a message must be kept, it is
written, synced and copied once, there; its publisher is answered when that is done. Kept here as
well (`cluster.keeping`) it is so twice, and a third time when it is over.

    no answer for CLUSTER_PASSED_SECONDS, a frame is lost, another holder, a message that must be
    kept here
       └── all that is on its way becomes rows here, under the numbers that were told

Nothing is sent again from here: that is keeping's. So it goes when nothing is kept any more, and
one order of numbers holds for both. A number that was told belongs to one message for ever, also
after a crash, which takes all that was on its way: numbers are told out of a block that the journal
has given up before, by a row from which on the backlog goes on behind that block.

Owned by the estate, asked by the broker (`Session.hand_on`). No I/O.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames
from hubbub.cluster.gathering import Gathering
from hubbub.cluster.keeping import PROTOCOL, Keeping
from hubbub.core.limits import (
    CLUSTER_COPY_GATHER,
    CLUSTER_PASSED,
    CLUSTER_PASSED_BYTES,
    CLUSTER_PASSED_SECONDS,
    CLUSTER_WINDOW,
)
from hubbub.core.message import SPELLED, Run
from hubbub.core.route import Route

if TYPE_CHECKING:
    from hubbub.cluster.estates import Estate

BLOCK: Final = 65_536  # numbers: as many as a clock that gives the first ones has in 0.07 s
FIRST: Final = 1 << 60  # of what publishers wait for: above all rows


class Passed:
    """A run, what its publisher waits for, and the number of its last message, 0 as long as it has
    none.
    """

    __slots__ = ("run", "awaited", "last")

    def __init__(self, run: Run, awaited: int) -> None:
        self.run = run
        self.awaited = awaited
        self.last = 0

    def first(self) -> int:
        return self.last - self.run.count + 1


class Passing:
    """`runs`: on their way; `unsent`: behind those, until nothing is kept any more; in all `count`
    messages of `size` bytes. `next`: the number of the next one, those below `end` were given up by
    the row `sure`. `oldest`: what was the first at the last looks, since when. What was taken back
    is below `behind`; until the holder has it, and the time `rests` came, all is kept here.
    """

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self.estate: Estate = keeping.estate
        self.broker = keeping.broker
        self.promise = keeping.broker.log.promise()
        self.runs: deque[Passed] = deque()
        self.unsent: deque[Passed] = deque()
        self.count = self.size = 0
        self.next = self.end = self.sure = 0
        self._awaited = FIRST
        self._oldest, self._since = 0, 0.0
        self._behind, self._rests = 0, 0.0
        self._gathering = Gathering()

    def hand_on(self, run: Run) -> bool:
        """Whether it is; else it is to be kept here. It leaves with the next `pump`."""
        count, size = self.count + run.count, self.size + len(run.image)
        if count > CLUSTER_PASSED or size > CLUSTER_PASSED_BYTES or not self._is_open():
            return False
        self.count, self.size = count, size
        self._awaited += 1
        self.unsent.append(Passed(run, self._awaited))
        self.broker.handing[PROTOCOL, self.estate.client] = self.estate
        run.level, run.upto = self.promise.level, self._awaited
        return True

    def _is_open(self) -> bool:
        """Whether all that is kept is on its way, and is not much."""
        if self.runs:
            return self.estate.passes()
        backlog = self.keeping.backlog
        little = backlog.sent == backlog.next and backlog.in_flight() <= CLUSTER_WINDOW
        has_rested = backlog.first >= self._behind and self.broker.clock.now() >= self._rests
        return little and has_rested and self.estate.passes()

    def pump(self) -> None:
        """Send what waits, when nothing is kept any more, and what was sent is answered: the holder
        has one group on its way at a time, and what comes in one frame is in one group there.
        """
        waits = self.runs or self.keeping.backlog.entries or not self.unsent
        if waits or not self.estate.passes():
            return
        if self._gathering.waits(self.broker.clock.now(), self.count):
            return
        self.runs, self.unsent = self.unsent, deque()
        self._reserve(self.count)
        crossing, number = self.estate.membership.crossing, self.next - 1
        for said in frames.joined(crossing.short(passed.run) for passed in self.runs):
            number += said.count
            self._send(said, number)
        for passed in self.runs:
            self.next += passed.run.count
            passed.last = self.next - 1

    def _send(self, said: frames.Said, last: int) -> None:
        membership, keeping, holder = self.estate.membership, self.keeping, self.estate.holder
        assert holder is not None
        client, own, before = self.estate.client, membership.holdings.own, keeping.previous
        record = frames.Kept(client, own, last, before, said, passed=True)
        holder.link.hold(frames.piece(record), upto=self.sure)
        keeping.previous = last
        membership.messages_out += said.count

    def _reserve(self, count: int) -> None:
        """Have numbers for so many: the next block, if these go beyond the one that there is, or
        something was kept since.
        """
        backlog = self.keeping.backlog
        if backlog.next != self.end:
            self.next = self.end = backlog.next
        if self.next + count > self.end:
            self.end += BLOCK
            self.keeping.renumber(self.end)
            self.sure = self.broker.log.position

    def taken(self, upto: int) -> None:
        """The holder's journal has all up to this number."""
        runs, before, awaited = self.runs, self.count, 0
        while runs and runs[0].last <= upto:
            passed = runs.popleft()
            awaited = passed.awaited
            self.count -= passed.run.count
            self.size -= len(passed.run.image)
        if awaited:
            self.promise.upto = awaited
            self.broker.outgoing.release()
        pause = self.estate.membership.pause
        if pause is not None and before - self.count >= CLUSTER_COPY_GATHER:
            seconds = self._gathering.begin(self.broker.clock.now(), before)
            pause(seconds, partial(self._go_on, self._gathering.moment))

    def _go_on(self, moment: int) -> None:
        """Who was answered has said more, or says no more."""
        self._gathering.over(moment)
        self.estate.pump()
        self.estate.membership.relays.hurry()

    def take_back(self) -> None:
        """All that is on its way is kept here after all, in rows that no crash tears apart. What
        was sent counts as such: what of it does not arrive is missed there, and comes again.
        Numbers that were not told are free again.
        """
        broker, keeping, first = self.broker, self.keeping, self.broker.log.position + 1
        if not self.count and keeping.backlog.next != self.end:
            return
        if keeping.backlog.next == self.end:
            keeping.renumber(self.runs[0].first() if self.runs else self.next)
        self._keep(self.runs)
        if self.runs:
            keeping.backlog.sent = keeping.backlog.next
        self._keep(self.unsent)
        self.promise.written, self.promise.row = self._awaited, broker.log.position
        broker.log.together(first)
        self.forget()
        self._behind = keeping.backlog.next
        self._rests = broker.clock.now() + CLUSTER_PASSED_SECONDS

    def _keep(self, all_passed: deque[Passed]) -> None:
        for passed in all_passed:
            run = passed.run
            route = self.keeping.route(run.route.name)
            self.broker.keep_after_all(_anew(run, route))
            self.keeping.tally.add(run.sender, run.count, self.keeping.backlog.next)

    def look(self, now: float) -> None:
        """A few times a second: what is not answered for too long is kept here."""
        waiting = self.runs or self.unsent
        oldest = waiting[0].awaited if waiting else 0
        if oldest != self._oldest:
            self._oldest, self._since = oldest, now
        elif oldest and now - self._since > CLUSTER_PASSED_SECONDS:
            self.take_back()

    def forget(self) -> None:
        """Nothing is on its way from here any more, and no block is open: what is kept now goes on
        with its numbers, and comes by its end like by any other.
        """
        self.runs, self.unsent = deque(), deque()
        self.count = self.size = self.next = self.end = 0
        self.broker.handing.pop((PROTOCOL, self.estate.client), None)


def _anew(run: Run, route: Route) -> Run:
    """The same, not numbered: somebody here may have it under a number of its own."""
    found = Run(run.sender, route, run.qos, run.count, run.encoding, run.image)
    found.offset, found.size = run.offset, run.size
    if run.encoding is SPELLED:
        found.replace([message.copied() for message in run.messages()])
    return found
