"""Who goes on with what a dead node had: one of the others, whichever stops its stream first.

    a node with a stream is silent ──→ fence: a message behind its last one, that one and no other
        └── refused: somebody else was first          └──→ read, fold, adopt, tell

The servers decide by the number that the fence must follow; nobody votes. A fence whose author
died before it had adopted is answered by the author's own heir (`cluster.stops`), also when the
dead node is back and has let go. The node calls `wake`.

Who was just started does not know which sessions are at a node that is away: until each one with a
stream was met, or has an heir, or its copy was read, none that lasts begins here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from hubbub.cluster import estates, heritage, wills
from hubbub.cluster.copies import FENCE, Found
from hubbub.cluster.jetstream import JetStream
from hubbub.cluster.membership import Membership
from hubbub.cluster.roster import unmet
from hubbub.cluster.stops import (
    Numbered,
    Stop,
    decisive,
    is_ours,
    stop_of,
    stops_of,
    unanswered,
)
from hubbub.core.limits import (
    CLUSTER_ADOPT_SECONDS,
    CLUSTER_BUSY_SECONDS,
    CLUSTER_COPY_PIECE,
    CLUSTER_HEIR_SECONDS,
    CLUSTER_RETURN_SECONDS,
)
from hubbub.core.session import Revival
from hubbub.core.state import State
from hubbub.core.turns import Stint
from hubbub.errors import HubbubError, JournalError
from hubbub.journal.copied import Copy
from hubbub.runtime.copying import Copying
from hubbub.runtime.folding import copy_of

LOOK_SECONDS: Final = 1.0
UNMET_SECONDS: Final = 2 * CLUSTER_RETURN_SECONDS  # until then each one is there, or has an heir
SAID_SECONDS: Final = 0.2  # until what was said has left this machine
WAITING_BYTES: Final = 2 * CLUSTER_COPY_PIECE  # behind which acknowledgements wait for the servers
WAIT_SECONDS: Final = 0.005  # from one look to the next whether it is less

log = logging.getLogger("hubbub.cluster")


class Known(NamedTuple):
    """The stops of a stream up to the message `at`, `whole` or the last one alone. `again`: when
    it is read once more, though the first one is another node's; `unreadable`: it could not be.
    """

    at: int
    stops: list[Stop]
    whole: bool
    again: float
    unreadable: bool = False


class Told(NamedTuple):
    """Whose heirs are known in a copy that ends with the message `at`, up to which message of their
    streams; `whole`: each life of it could be read.
    """

    at: int
    heirs: dict[str, int]
    whole: bool


class Heirs:
    """`protocols` make the sessions of a dead node live; `schedule` runs the tick. `_told`: what
    copies of others said, which say the same until there is more in them.
    """

    def __init__(
        self, membership: Membership, copying: Copying, protocols: Sequence[Revival],
        schedule: Callable[[], None],
    ) -> None:  # fmt: skip
        self.membership = membership
        self.broker = membership.broker
        self.copying = copying
        self.stream: JetStream = copying.stream
        self.protocols = protocols
        self._schedule = schedule
        self._seen: set[str] = set()
        self._missing: dict[str, float] = {}
        self._known: dict[str, Known] = {}
        self._told: dict[str, Told] = {}
        self._recalled: dict[str, int] = {}
        self._again = 0.0
        self._unmet_until = self.broker.clock.now() + UNMET_SECONDS
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Before clients are heard; who is there was met just now."""
        if self.copying.lived and self.stream.up:
            with contextlib.suppress(Exception):  # soon again
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._meet(await self._others())
        # What the sessions want that are in its own copy only that says: before it is here, what is
        # published would be kept for nobody.
        until = self.broker.clock.now() + UNMET_SECONDS
        while self.copying.is_own_heir and self.broker.clock.now() < until:
            self.copying.wake()
            self.membership.wake(self.broker.clock.now())
            self.wake()
            self._schedule()
            await asyncio.sleep(WAIT_SECONDS)
        self.wake()

    def wake(self) -> None:
        now = self.broker.clock.now()
        if self._unmet_until and not self.copying.copies.ready:  # nobody can be asked so far
            self._unmet_until = now + UNMET_SECONDS
        elif now >= self._unmet_until:
            self._unmet_until = 0.0
        is_unmet = now < self._unmet_until and self.copying.lived
        left = self._unmet_until - now
        self.broker.unmet = unmet("a node that is away", left) if is_unmet else ""
        runs = self._looking is not None and not self._looking.done()
        if runs or now < self._again or not self.copying.copies.ready or self.membership.excluded:
            return
        self._again = now + LOOK_SECONDS
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,), timeout=1)

    async def _look(self) -> None:
        if self.copying.fenced_at:
            await self._safely("that of this node", self._look_at_own())
        try:
            others = await self._others()
        except Exception as error:  # no leader, no connection: soon again
            self._cannot_look("the others'", error)
            return
        await self._safely("the others'", self._meet(others))
        for name in others:
            await self._safely(f"that of {name}", self._look_at(name))

    async def _safely(self, what: str, looking: Awaitable[None]) -> None:
        """One stream that has no leader, for a while or for ever, must not hide the others."""
        try:
            await looking
        except Exception as error:
            self._cannot_look(what, error)

    def _cannot_look(self, what: str, error: Exception) -> None:
        """Each second; it is said once a minute."""
        text = f"copies: {what} cannot be looked at: {error or type(error).__name__}"
        self.membership.hearing.warn(f"look {what}", text)

    async def _others(self) -> list[str]:
        return [name for name in await self.stream.nodes() if name != self.membership.name]

    async def _meet(self, names: Iterable[str]) -> None:
        """Whether each one, or its copy, has said what is there, or it is known to have an heir."""
        here = self.membership
        if not self._unmet_until:
            return
        for name in names:
            if here.waits(name) or not here.met(name):
                found = await self.stream.last(self.stream.stream_of(name))
                self._note_for_good(name, found)
                if self._is_answered(name, found):
                    continue
                if found.stopped or not await self._recalls(name, found):
                    return
        # Who says that it is an heir was asked what there is, and has not answered so far.
        if not any(node.asking for node in here.nodes.values()):
            self._unmet_until = 0.0

    async def _recalls(self, name: str, found: Found) -> bool:
        """Whether what a node has that is away is known from its copy. Who is there would have said
        so by now; who comes back meets this one before anything begins there.
        """
        here = self.membership
        if here.waits(name) or here.hearing.lives(name) or not wills.heard_all(here):
            return False
        if self._recalled.get(name) == found.at:
            return True
        try:
            if await self._unanswered(name, found.at):
                return False  # what was before a stop may be anywhere
            copy = await self._fold(await self.stream.read(name, found.at))
        except Exception as error:  # others may be looked at all the same
            log.info("what node %r has cannot be read: %s", name, error or type(error).__name__)
            return False
        if copy is None:
            return False

        def is_away() -> bool:
            return not here.hearing.lives(name)

        await self._in_turns(heritage.remember_away(here, name, copy.state), is_away)
        if is_away():
            self._recalled[name] = found.at
        return is_away()

    # Removed by hand

    async def has_stream(self, name: str) -> bool:
        return name in await self._others()

    async def is_taken_over(self, name: str) -> bool:
        """Whether nobody has to take over anything of its copy."""
        if not await self.has_stream(name):
            return True
        found = await self.stream.last(self.stream.stream_of(name))
        self._note_for_good(name, found)
        return self._is_answered(name, found)

    def _is_answered(self, name: str, found: Found) -> bool:
        return found.last is None or (found.stopped and found.place <= self._answered(name))

    async def stop_for_good(self, name: str) -> None:
        """Put the last stop into its stream. What was before it is nobody's to take over any more,
        and goes.
        """
        if not await self.has_stream(name):
            return
        found = await self.stream.last(self.stream.stream_of(name))
        if not found.for_good:
            estate, life = self.membership.holdings.own, found.following(self.broker.clock.stamp())
            if not await self.stream.fence(name, found.at, life, estate, for_good=True):
                raise HubbubError(f"the copy of node {name!r} was written to just now: once more")
            found = await self.stream.last(self.stream.stream_of(name))
        self._note_for_good(name, found)
        self.stream.purge(found.place, name)

    def _note_for_good(self, name: str, found: Found) -> None:
        """A stop that was put by hand is answered, whoever looks at it."""
        if found.for_good:
            heritage.note(self.membership, name, found.place)

    async def _look_at(self, name: str) -> None:
        if at := self.membership.waits(name):
            await self._answer(name, at)
        elif self._is_dead(name):
            await self._claim(name)

    def _is_dead(self, name: str) -> bool:
        """One that stopped in order, or was never seen, has longer: it may be on its way back."""
        now = self.broker.clock.now()
        if self.membership.hearing.lives(name):
            self._seen.add(name)
            self._missing.pop(name, None)
            return False
        known = name in self._seen and name not in self.membership.stopped
        wait = CLUSTER_HEIR_SECONDS if known else CLUSTER_RETURN_SECONDS
        return now - self._missing.setdefault(name, now) >= wait

    async def _claim(self, name: str) -> None:
        found = await self.stream.last(self.stream.stream_of(name))
        if found.last is None:
            return
        at = found.place
        self._note_for_good(name, found)
        if found.last.kind != FENCE:
            # One that was back, and whose heir is not known: first what was before that.
            at = await self._unanswered(name, found.at)
            if not at or await self._waits_for_itself(name, found.at):
                at = await self._fence(name, found)
        if at:
            await self._answer(name, at)

    async def _unanswered(self, name: str, upto: int) -> int:
        """The last stop of a stream for which nobody is known to have answered; 0 if there is none.
        Two that are open together may wait for one another's nodes for ever.
        """
        heads = await self.stream.read(name, upto, heads=True)
        stops = (at for at, piece in heads if piece.kind == FENCE)
        return max((at for at in stops if at > self._answered(name)), default=0)

    async def _waits_for_itself(self, name: str, upto: int) -> bool:
        """Whether what a dead node had before its first stop is for whoever is to have what it had
        last: then nobody answers for that one before its stream is stopped once more. Asked of who
        was waited for in vain, as all of it is read. If that fails, the first stop may be answered
        all the same, and all of it is read as seldom as ever.
        """
        known = self._known.get(name)
        if known is None or not known.whole or self.broker.clock.now() < known.again:
            return False
        try:
            pieces = await self.stream.read(name, upto)
            newest = await self._fold(pieces)
            stops = unanswered(stops_of(pieces), self._answered(name))
            if newest is None or not stops:
                return False
            held = _had(name, newest, stops)
            return await self._leads_to(held, name, decisive(name, stops))
        except Exception as error:
            text = "for whom node %r waits cannot be read: %s"
            log.info(text, name, error or type(error).__name__)
            return False

    async def _look_at_own(self) -> None:
        """Who stopped this node may have died before it had adopted, with this one as its heir."""
        name, at = self.membership.name, self.copying.fenced_at
        await self._answer(name, at)
        if self._answered(name) >= at:
            self.copying.confirmed(name, at)

    def _answered(self, name: str) -> int:
        """Up to which message of its stream what a node had is known to be at its heir."""
        return self.membership.inherited.get(name, 0)

    async def _fence(self, name: str, found: Found) -> int:
        log.warning("node %r is dead: stopping its stream behind message %d", name, found.at)
        estate, life = self.membership.holdings.own, found.following(self.broker.clock.stamp())
        return await self.stream.fence(name, found.at, life, estate)

    # Stops, each answered by whom it is for

    async def _answer(self, name: str, at: int) -> None:
        """Take over what a node had before the first stop, up to the message `at`, that nobody has
        answered for, if that is for this node to do.
        """
        if at <= self._answered(name):
            return
        known = self._known.get(name)
        if known is None or known.at != at:
            known = self._known[name] = await self._known_of(name, at)
        if known.whole:
            stops = self._open(name)
            is_ours = bool(stops) and self._is_ours(name, decisive(name, stops))
        else:  # others' before it are rare, and a stream is large
            is_ours = any(self._is_ours(name, stop) for stop in known.stops)
        late = self.broker.clock.now() >= known.again
        if is_ours and not known.unreadable or late:
            await self._read(name, at)

    async def _known_of(self, name: str, at: int) -> Known:
        """The last stop alone; of this node's own stream all are read at once."""
        piece = await self.stream.message(name, at)
        stops = [stop_of(at, piece)] if piece is not None and piece.kind == FENCE else []
        now, own = self.broker.clock.now(), name == self.membership.name
        return Known(at, stops, False, now if own else now + CLUSTER_RETURN_SECONDS)

    def _open(self, name: str) -> list[Stop]:
        known = self._known.get(name)
        return unanswered(known.stops, self._answered(name)) if known is not None else []

    def _is_ours(self, name: str, stop: Stop) -> bool:
        here = self.membership
        return is_ours(here.name, here.holdings.held, name, stop, self._open(here.name))

    async def _read(self, name: str, at: int) -> None:
        """Read all of it, and adopt if the first stop is this node's to answer for."""
        pieces = await self.stream.read(name, at)
        again = self.broker.clock.now() + CLUSTER_RETURN_SECONDS
        try:
            newest = await self._fold(pieces)
            said = heritage.known(newest.state).get(name, 0) if newest is not None else 0
            stops = unanswered(stops_of(pieces), max(self._answered(name), said))
            earlier = await self._told_in(name, pieces, stops[1:-1])
            stops = unanswered(stops, earlier.heirs.get(name, 0))
            all_read = False
            if stops and not self._is_ours(name, decisive(name, stops)):
                answered, all_read = await self._answered_by(name, decisive(name, stops))
                stops = unanswered(stops, answered)
            self._known[name] = Known(at, stops, True, again)
            if not stops:
                return
            if not self._is_ours(name, decisive(name, stops)):
                # What cannot be read may say that somebody has it: then nobody takes it once more.
                if not earlier.whole or not await self._is_first(name, stops, newest, all_read):
                    return
            first = stops[0].at
            copy = newest
            if first < at:
                before = [one for one in pieces if one[0] < first]
                copy = await self._fold(before)
        except JournalError as error:
            log.error("what node %r had cannot be taken over: %s", name, error)
            self._known[name] = self._known[name]._replace(again=again, unreadable=True)
            return
        if first > self._answered(name):
            await self._adopt(self._adoption(name, first, copy))

    async def _answered_by(self, name: str, stop: Stop) -> tuple[int, bool]:
        """Up to which stop the author of that one, or who had its estate later, has answered for
        them, as its own copy says: it may have died before anybody heard so. What it had then is
        for whoever answers for the next stop of its own stream; that may be the node `name`, which
        waits for this. And whether all were asked.
        """
        here = self.membership
        if here.directory.is_held(stop.author) or not wills.heard_all(here):
            return 0, False  # who has it says so
        others = await self._apart_from(name)
        asked = [one for one in others if not here.hearing.lives(one) or here.waits(one)]
        found = [await self._told_by(one) for one in asked]
        answered = max((told.heirs.get(name, 0) for told in found), default=0)
        return answered, all(told.whole for told in found)

    async def _apart_from(self, name: str) -> list[str]:
        """All with a stream but that one."""
        return [one for one in (*await self._others(), self.membership.name) if one != name]

    async def _told_by(self, other: str) -> Told:
        """Whose heirs are known at a node, as its copy says."""
        try:
            found = await self.stream.last(self.stream.stream_of(other))
            told = self._told.get(other)
            if told is None or told.at != found.at:
                pieces = await self.stream.read(other, found.at)
                ends = [*stops_of(pieces), Stop(found.place + 1, "")]
                told = (await self._told_in(other, pieces, ends))._replace(at=found.at)
                self._told[other] = told
        except Exception as error:
            log.info("what node %r has cannot be read: %s", other, error or type(error).__name__)
            return Told(0, {}, False)
        return told

    async def _told_in(
        self, of: str, pieces: Sequence[Numbered], ends: Iterable[Stop]
    ) -> Told:  # fmt: skip
        """The same of the lives that ended at those stops: the newest one need not know what an
        earlier one had taken over, on a lost disk.
        """
        heirs: dict[str, int] = {}
        whole = True
        for end in ends:
            try:
                copy = await self._fold([one for one in pieces if one[0] < end.at])
            except JournalError as error:
                log.warning("what node %r had taken over cannot be read: %s", of, error)
                whole = False
                continue
            for name, at in heritage.known(copy.state).items() if copy is not None else ():
                heirs[name] = max(at, heirs.get(name, 0))
        return Told(0, heirs, whole)

    async def _fold(self, pieces: Sequence[Numbered]) -> Copy | None:
        return await asyncio.to_thread(copy_of, pieces)

    async def _is_first(
        self, name: str, stops: list[Stop], newest: Copy | None, all_read: bool
    ) -> bool:  # fmt: skip
        """Whether the first one is for this node, though it does not say so: who answers for the
        last one does so for what the dead node was to answer for itself, or would have been, if
        nobody has: `all_read`.
        """
        if newest is None or not self._is_ours(name, stops[-1]):
            return False
        held = _had(name, newest, stops[:-1])
        if is_ours(name, held, name, stops[0]):
            return True
        return all_read and await self._leads_to(held, name, decisive(name, stops))

    async def _leads_to(self, held: set[str], name: str, stop: Stop) -> bool:
        """Whether the estate of that stop's author is to be whose `held` are, by stops of others
        that nobody has answered for. Then nobody else ever answers for it: two nodes stopped one
        another, in turn, and the later one died before it had taken over.
        """
        others = await self._apart_from(name)
        authors: dict[str, str] = {}  # whose stop decides, of those that were read
        while stop.author not in held:
            more: set[str] = set()
            for other in [one for one in others if one not in authors or authors[one] in held]:
                authors[other], behind, copy = await self._ended_by(held, other)
                if copy is not None and heritage.known(copy.state).get(name, 0) >= stop.at:
                    return False  # that one had answered
                if copy is not None:
                    more |= _had(other, copy, behind)
                if copy is not None or not authors[other]:
                    others.remove(other)  # there is no more to be read
            if more <= held:
                return False
            held = held | more
        return True

    async def _ended_by(
        self, held: Container[str], other: str
    ) -> tuple[str, list[Stop], Copy | None]:  # fmt: skip
        """The copy of a node whose stream was stopped by whoever has those estates, from before
        that, and the stops behind which it was; None if it is answered, or the stop is another
        one's. First the author of that stop, "" if it is answered.
        """
        found = await self.stream.last(self.stream.stream_of(other))
        pieces = await self.stream.read(other, found.at)
        every = stops_of(pieces)
        stops = unanswered(every, self._answered(other))
        behind = every[: len(every) - len(stops)]
        author = decisive(other, stops).author if stops else ""
        if not stops or author not in held:
            return author, behind, None
        before = [one for one in pieces if one[0] < stops[0].at]
        return author, behind, await self._fold(before)

    async def _adopt(self, adoption: heritage.Adoption) -> None:
        """What takes long goes in turns; then all of it is here at once."""
        estate, name = self.membership.holdings.own, adoption.dead

        def is_ours() -> bool:
            """Nobody else did it, and this node was not stopped itself."""
            return self.membership.holdings.own == estate and self._answered(name) < adoption.at

        try:
            await self._in_turns(adoption.pieces(), is_ours)
            await self._ask_for_patience(adoption.rest())
            if is_ours():
                self._go_live(adoption)
        except Exception:
            log.exception("the hub's own code broke; what was to be taken over is tried again")
            raise
        finally:
            adoption.staging.let_go()  # nothing, if it is live
        await self._in_turns(adoption.staging.forget(), lambda: True)

    def _adoption(self, name: str, at: int, copy: Copy | None) -> heritage.Adoption:
        if copy is None:  # it hears so all the same, or it would wait for its heir for ever
            log.warning("node %r had no whole checkpoint: there is nothing to take over", name)
            copy = Copy(State(), {}, 0)
            copy.state.apply(estates.taken_row(estates.STOPPED, self._answered(name)))
        elif copy.missing:
            log.warning("of what node %r had %d messages are missing", name, copy.missing)
        return heritage.Adoption(
            self.membership, name, at, copy.state, copy.messages, self.protocols
        )  # fmt: skip

    async def _in_turns(self, pieces: Iterator[None], wanted: Callable[[], bool]) -> None:
        """As much in a turn of the loop as one client may keep it for, as long as it is wanted.
        What comes in one turn is one group: messages, and what refers to them.
        """
        journal = self.broker.log
        over = False
        while not over and wanted():
            first, over = journal.position + 1, self._turn(pieces)
            journal.together(first)
            self._schedule()
            if not over:
                await self._pause()

    def _turn(self, pieces: Iterator[None]) -> bool:
        """Whether that was all."""
        stint = Stint(self.broker.clock)
        return not any(stint.over() for _ in pieces)

    async def _pause(self) -> None:
        """Others have their turn; what they say waits behind what is on its way to the copies."""
        await asyncio.sleep(0)
        while self.copying.waiting_bytes > WAITING_BYTES:
            await asyncio.sleep(WAIT_SECONDS)

    async def _ask_for_patience(self, count: int) -> None:
        """What goes live does so in one turn of the loop. If it is large this node says nothing for
        longer than one that is alive: the others hear so before.
        """
        seconds = min(int(count * CLUSTER_ADOPT_SECONDS), CLUSTER_BUSY_SECONDS)
        if seconds:
            log.warning("%d things are taken over: up to %d s without an answer", count, seconds)
            self.membership.busy = seconds
            self.membership.beat()
            await asyncio.sleep(SAID_SECONDS)

    def _go_live(self, adoption: heritage.Adoption) -> None:
        taken = adoption.run()
        log.warning(
            "this node is the heir of node %r: %d sessions, %d queues, %d messages, %d missing",
            adoption.dead, taken.sessions, taken.queues, taken.messages, taken.missing,
        )  # fmt: skip
        self._schedule()
        if self.membership.busy:  # nor has it heard the others
            self.membership.busy = 0
            for node in self.membership.nodes.values():
                node.heard = self.broker.clock.now()


def _had(name: str, copy: Copy, behind: Iterable[Stop]) -> set[str]:
    """The estates that a node had behind those stops, as its copy says. One of before the last of
    them says what it had then, which is another one's: the node died before its next life, which
    had nothing so far, was whole.
    """
    last = max((stop.at for stop in behind), default=0)
    if copy.state.taken.get(estates.STOPPED, 0) < last:
        return {estates.named(name, last)}
    return {estates.own(copy.state, name), *estates.held(copy.state)}
