"""A hub's log is copied as its node drives it: asked for, begun, gone on with, left.

    start ── the stream is asked ──→ begin: files, then groups as they come ──→ ready
                └── nobody can be asked: what lasts is refused until somebody can

Where there was a life before (`DIR/copied`), nothing is acknowledged before JetStream was asked:
another node may have the sessions by now. The node calls `open`, `wake` and `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from hubbub.cluster import estates, heritage, wills
from hubbub.cluster.copies import FENCE, Copies, Found, landed
from hubbub.cluster.jetstream import JetStream, Listener
from hubbub.cluster.membership import Membership
from hubbub.cluster.monitor import UNKNOWN, Monitor, Verdict, verdict
from hubbub.cluster.roster import removed
from hubbub.cluster.stops import Numbered, author_of
from hubbub.config.settings import Settings
from hubbub.core.limits import (
    CLUSTER_COPY_GATHER_SECONDS,
    CLUSTER_COPY_HEADS,
)
from hubbub.core.session import Revival
from hubbub.errors import HubbubError, JournalError
from hubbub.journal.copied import Files, Snapshot
from hubbub.journal.files import write_whole
from hubbub.journal.writer import Journal
from hubbub.runtime.folding import copy_of

ASK_SECONDS: Final = 4.0  # for which a start waits; then it goes on asking beside
RETRY_SECONDS: Final = 1.0
MONITOR_SECONDS: Final = 30.0  # servers are set otherwise only when they start
LOST_QUORUM: Final = "no quorum of the NATS servers answers"
MARKER: Final = "copied"  # the file in its directory that says that a journal's rows were
# What a journal says of the stream, as rows `taken` of these names: the life that was begun from
# it last, and the one, or the stop, behind which that was.
LIFE: Final = "$life"
BEFORE: Final = "$life/before"
LANDED_SECONDS: Final = 0.01  # from one look to the next whether the disk has it

# What the status says of a hub whose log is not copied.
NO_COPIES: Final[dict[str, Any]] = {
    "mode": "live", "stream": "", "servers": 0, "trouble": "", "ready": False, "waiting": 0,
    "waiting_bytes": 0, "behind_seconds": 0.0, "groups": 0, "checkpoints": 0,
    "survives_power_loss": UNKNOWN, "power_loss": "nothing is copied", "monitored": [],
}  # fmt: skip

log = logging.getLogger("hubbub.cluster")


class Copying:
    """The copies of one hub's journal. `let_go` is called when more of it is safe. `lived`: there
    was a life before, here or on the servers. `_stood`: it stood still, and its stream has not been
    looked at since; `_usurped`: a life of its name that is not its own stands behind its `_life`.
    `is_own_heir`: it has stopped its stream itself, maybe before this start, and not taken over.
    """

    def __init__(
        self, membership: Membership, journal: Journal, settings: Settings,
        protocols: Sequence[Revival], let_go: Callable[[], None],
    ) -> None:  # fmt: skip
        self.membership = membership
        self.broker = broker = membership.broker
        self.protocols = protocols
        self.is_own_heir = False
        self.fenced_at = self._gave_up = self._doubted = self._found_upto = 0
        self.journal = journal
        self.stream = JetStream(settings.cluster)
        now = broker.clock.now
        self.copies = Copies(
            self.stream, now, self._moved, self._deposed, self._is_odd, self._is_torn,
            lambda: journal.pending,
        )  # fmt: skip
        self._let_go = let_go
        self._marker = journal.directory.path / MARKER
        self._marked = self.lived = self._marker.exists()
        if self._marked:
            wills.wait_to_know(membership, wills.WHOSE)
        self._asked = asyncio.Event()
        self._monitor = Monitor(settings.cluster)
        self._verdict = verdict(self._monitor.servers, ())
        self._gathering: asyncio.TimerHandle | None = None
        self._monitoring: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._upto = 0
        self._life = 0
        self._usurped = self._stood = False
        self._late = ""  # why they did not begin when that was last tried
        journal.beyond = self.copies
        membership.stood = self._stood_still
        membership.confirmed, membership.doubted = self.confirmed, self.doubted

    @property
    def waiting_bytes(self) -> int:
        return self.copies.waiting_bytes

    def gathers(self) -> bool:
        """Whether what waits goes with what comes in a moment, because copies are dear."""
        if self.journal.due(self.broker.clock.now()) or not self.copies.gathers():
            return False
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(CLUSTER_COPY_GATHER_SECONDS, self._gathered)
        return True

    def _gathered(self) -> None:
        self._gathering = None
        self._let_go()

    async def open(self) -> None:
        """Ask, and copy from now on. Waits for an answer, but not for long."""
        self._found_upto = self.journal.on_disk
        if self._marked:
            self.copies.hold(self.journal.durable)
        up, copies = self._came_up, self.copies
        self.stream.open(
            Listener(
                copies.stored, copies.refused, copies.found, up, copies.broken, copies.begins
            )
        )  # fmt: skip
        self._monitoring = asyncio.create_task(self._ask_servers())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await self._asked.wait()
        self.wake()

    def _stood_still(self) -> None:
        """Another node may have what is here since: its stream says so, now or when it can."""
        if self.copies.active:
            self._stood = True
            wills.wait_to_know(self.membership, wills.STOOD)
            self.copies.connected()

    def _looked(self) -> None:
        """What is here is this node's own, or was let go of."""
        if self._stood:
            self._stood = False
            wills.known(self.membership, wills.STOOD)

    async def _ask_servers(self) -> None:
        """How often they sync; who has the stream may change with each look."""
        while self._monitor.servers:
            try:
                await self._monitor.look()
                found = verdict(self._monitor.servers, await self._holders())
            except Exception:  # the next look is another one
                log.exception("copies: the hub's own code broke; the servers are asked again")
                found = Verdict(UNKNOWN, "the hub's log says why")
            if found != self._verdict:
                log.info("copies: survive a loss of power of all servers: %s (%s)", *found)
            self._verdict = found
            await asyncio.sleep(MONITOR_SECONDS if self.stream.up else RETRY_SECONDS)

    async def _holders(self) -> list[str] | None:
        try:
            return await self.stream.holders() if self.stream.up else None
        except Exception as error:  # no leader: asked again
            log.debug("copies: %s", error or type(error).__name__)
            return None

    def _came_up(self) -> None:
        unable = self.stream.unable
        if unable and self.copies.active:  # others may have the sessions: nobody else can say
            log.error("copies: %s, where it had some: nothing that lasts is acknowledged", unable)
        elif unable:
            log.warning("copies: %s; this node's disk alone keeps what it acknowledges", unable)
            self._asked.set()
        elif self.copies.life:
            self.copies.connected()
        elif self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        """Look who wrote last, and begin a life behind that."""
        while not self.copies.life and self.stream.up and not self.membership.excluded:
            try:
                if not await self.membership.alone():
                    break
                found = await self._newest()
                self.lived = self.lived or found.last is not None
                if found.for_good:
                    if not await self._begins_anew(found):
                        break
                elif found.stopped:
                    if found.place > self._gave_up:
                        self._give_up(found)
                elif at := heritage.awaited(self.membership):
                    await self._goes_on_waiting(found, at)
                await self._begin_behind(found)
                self._decided()
                break
            except Exception as error:  # nobody leads, a file cannot be read: again in a moment
                text = str(error) or type(error).__name__
                if text != self._late:
                    log.warning("copies cannot begin yet: %s", text)
                self._late = text
                await asyncio.sleep(RETRY_SECONDS)
        if self.copies.life or self.membership.excluded:
            self._asked.set()

    def _decided(self) -> None:
        wills.known(self.membership, wills.WHOSE)

    async def _newest(self) -> Found:
        """The last message of this node's stream. It is a stop of its own behind what its disk did
        not have: a journal of before is not gone on with, nor an empty one, nor that of another
        directory; this node is the heir of its copy.
        """
        name = self.membership.name
        found = await self.stream.last(self.stream.name)
        if found.last is None or found.last.kind == FENCE:
            return found
        begin = max(0, found.at - CLUSTER_COPY_HEADS)
        heads = await self.stream.read(name, found.at, heads=True, behind=begin)
        fences = [one for one, piece in heads if piece.kind == FENCE]
        if fences and fences[-1] > self._stopped():
            stop = await self._unknown_stop(found, fences[-1])
            if stop is not None:
                return stop
        # A later life than that of a hub that runs is another one's, also behind a stop.
        elif self._usurped or 0 < self._life < found.last.life:
            if not await self._acknowledged(found, self._life):
                return found
        elif self._is_new_enough(heads) and not await self._is_anothers(found, heads):
            return found
        return await self._stop_itself(found)

    async def _unknown_stop(self, found: Found, place: int) -> Found | None:
        """A stop of which this journal does not know: what is behind it is no life of this
        directory. None if that is a life all the same: the node went on with another directory, or
        after this was copied, and what it acknowledged then is there.
        """
        last = await self.stream.message(self.membership.name, place)
        if last is None:
            raise HubbubError("what is in the stream of this node is let go of just now")
        stop = found._replace(last=last, strange=found.at - place)
        if self._is_removed(stop) or not await self._acknowledged(found, last.life):
            return stop
        self._say_older(f"does not know of the stop at message {place}, and of what followed it")
        return None

    def _is_new_enough(self, heads: Sequence[Numbered]) -> bool:
        """Whether this node's disk has what its copy says that it had."""
        own = (one.life for _, one in heads if one.kind != FENCE and self._is_own(one.life))
        upto, here = landed((one for _, one in heads), max(own, default=0)), self._found_upto
        if 0 < here >= upto:
            return True
        self._say_older(f"ends with row {here}, its copy on the servers not before {upto}")
        return False

    def _is_own(self, life: int) -> bool:
        """Whether it was begun from this directory, as far as the directory can tell: numbers of
        rows say nothing of any other. What lies before that is said a second time. Versions before
        this one left a marker alone.
        """
        taken = self.broker.state.taken
        if LIFE not in taken:
            return self._marked
        return life <= taken[BEFORE] or life == taken[LIFE]

    async def _is_anothers(self, found: Found, heads: Sequence[Numbered]) -> bool:
        """Whether the node went on with another directory, or with this one after it was copied,
        and was believed: then what is here is not what it had.
        """
        lives = {one.life for _, one in heads if one.kind != FENCE}
        if self._life or all(self._is_own(one) for one in lives):
            return False
        if not await self._acknowledged(found, 0):
            return False
        self._say_older(f"has begun no life {max(lives)}, which is what the servers have")
        return True

    def _say_older(self, why: str) -> None:
        log.error(
            "the journal here %s: it is an older one, or was lost, and the copy is gone on with. "
            "To go on with this journal all the same, delete the stream %s first",
            why, self.stream.name,
        )  # fmt: skip

    async def _acknowledged(self, found: Found, life: int) -> bool:
        """Whether whoever wrote a life of this name that is later than that one may have
        acknowledged anything: all of it was in the stream then. What cannot be read is nobody's.
        """
        pieces = await self.stream.read(self.membership.name, found.at)
        later = [(at, one) for at, one in pieces if one.life > life]
        try:
            return await asyncio.to_thread(copy_of, later) is not None
        except JournalError as error:
            log.warning("copies: a life of this node's name in its stream is none: %s", error)
            return False

    async def _stop_itself(self, found: Found) -> Found:
        """This node is the heir of what its stream says."""
        name = self.membership.name
        author = estates.named(name, found.at + 1)  # as which this node answers for it
        life = found.following(self.broker.clock.stamp())
        await self.stream.fence(name, found.at, life, author)
        found = await self.stream.last(self.stream.name)
        if not found.stopped:  # else another node may have been first
            raise HubbubError("somebody else writes to the stream of this node")
        return found

    async def _begins_anew(self, found: Found) -> bool:
        """This node was removed by hand. A directory that is one of this name since then, empty or
        a backup that was put back, is another node's: it has an estate of its own, and what it says
        from before the stop is its own, too.
        """
        name, at = self.membership.name, found.place
        if at <= self._stopped():
            return True
        if self._is_removed(found):
            self.membership.hearing.take_no_part(removed(name))
            return False
        log.warning("node %r was removed, and begins anew with what its journal says", name)
        self.broker.change(estates.taken_row(estates.STOPPED, at))
        heritage.note(self.membership, name, at)
        self.membership.holdings.look()
        return True

    def _is_removed(self, stop: Found) -> bool:
        """Whether this directory was that of the node when somebody removed it by hand."""
        last = stop.last
        return last is not None and last.for_good and self.membership.born <= last.life

    async def _landed(self) -> None:
        upto = self.broker.log.position
        self._let_go()
        while self.journal.on_disk < upto:
            await asyncio.sleep(LANDED_SECONDS)

    async def _begin_behind(self, found: Found) -> None:
        """That this directory begins that life, and what was let go of, is on its disk before
        anything of it is in the stream and hides a stop.
        """
        journal = self.journal
        life = found.following(self.broker.clock.stamp())
        before = found.last.life if found.last is not None else 0
        for name, number in ((BEFORE, before), (LIFE, life)):
            self.broker.change(estates.taken_row(name, number))
        await self._landed()
        self._usurped = False
        self._late = ""
        files = Files(journal.directory, journal.on_disk)
        self._upto = files.snapshot.upto
        self._life = life
        self.copies.begin(life, found, journal.on_disk, files.log(), files.snapshot.parts())

    def _moved(self) -> None:
        if self.copies.ready and not self._marked:
            self._marked = True
            write_whole(self._marker, f"{self.stream.name}\n".encode())
            log.info("copies: %s has all of this node's log", self.stream.name)
        self.journal.settle()
        self._let_go()

    def _deposed(self, found: Found) -> None:
        """Somebody else wrote to the stream: who thought that this node was dead, or has its name.
        That one is not heard by this node, or it would not have begun; what it has acknowledged, if
        it came so far, is taken over.
        """
        if found.for_good:
            self.copies.hold(self.journal.durable)
        elif found.stopped:
            self._give_up(found)
            self._looked()
        else:
            log.error(
                "another hub has written to %s as node %r: each node needs a name of its own",
                self.stream.name, self.membership.name,
            )  # fmt: skip
            self.copies.hold(self.journal.durable)
            self._usurped = True
        self._beginning = asyncio.create_task(self._begin())

    def _is_odd(self, count: int) -> None:
        """Whoever may write to the stream can put anything there; what it says is nobody's."""
        log.debug("copies: passed over %d messages", count)
        self.membership.hearing.refuse(f"messages in the stream {self.stream.name} of no node")

    def _is_torn(self) -> None:
        """It was purged, or deleted and made anew: a checkpoint goes there as at first."""
        log.error("copies: what was in %s is gone; all is copied again", self.stream.name)
        self.copies.hold(self.journal.durable)
        self._found_upto = self.journal.on_disk
        self._beginning = asyncio.create_task(self._begin())

    def _stopped(self) -> int:
        """Which stop of its stream this node knows of."""
        return max(self._gave_up, self.broker.state.taken.get(estates.STOPPED, 0))

    def _give_up(self, found: Found) -> None:
        """What was this node's is its heir's. What is left begins anew behind the fence; before it
        nothing goes until the heir says that it has it.
        """
        author = estates.began_by(author_of(found.last)) if found.last is not None else ""
        if not author:
            log.error("a stop that names no node ends what was this one's")
        elif author != self.membership.name:
            log.error("node %r has taken over the sessions and queues of this one", author)
        self.is_own_heir = author == self.membership.name
        self.copies.hold(self.journal.durable)
        self._gave_up = found.place
        self._wait_for_heir(found.place)
        heritage.discard_promises(self.broker, self.membership)
        heritage.let_go(self.broker, self.membership, self.protocols, found.place, author)

    async def _goes_on_waiting(self, found: Found, at: int) -> None:
        """It had let go before this start, for itself or another one."""
        if found.last is not None and at <= found.at:
            stop = await self.stream.message(self.membership.name, at)
            author = estates.began_by(author_of(stop)) if stop is not None else ""
            self.is_own_heir = author == self.membership.name
        self._wait_for_heir(at)

    def _wait_for_heir(self, at: int) -> None:
        self.fenced_at = at
        self.membership.deposed = True
        self.copies.detain(True)

    def confirmed(self, dead: str, at: int) -> None:
        """A node says that it has what was that one's, up to that message of its stream."""
        if dead == self.membership.name and 0 < self.fenced_at <= at:
            log.info("the heir has all that was this node's")
            self._goes_on()

    def doubted(self, at: int) -> None:
        """A node says that another one has what was this one's, which does not know so."""
        if at > self._gave_up:
            self._doubted = at
            self.copies.connected()  # whether its stream is stopped

    def _is_old(self) -> None:
        """What another node has taken over is here, and the stream is this one's: its journal is
        one of before that, or lost.
        """
        at, self._doubted = self._doubted, 0
        self._gave_up = at
        self._wait_for_heir(at)
        log.error(
            "another node has what this journal says: it is of before message %d. To go on with a "
            "backup all the same: stop this hub, `hubbub end node %s` at another one, restore the "
            "backup once more (docs/guide/backup.md)", at, self.membership.name,
        )  # fmt: skip
        heritage.discard_promises(self.broker, self.membership)
        heritage.let_go(self.broker, self.membership, self.protocols, at)

    def _goes_on(self) -> None:
        self.is_own_heir = False
        self.fenced_at = 0
        self.membership.deposed = False
        self.copies.detain(False)

    def wake(self) -> None:
        """A few times a second."""
        copies = self.copies
        if self.membership.excluded and copies.life:  # the stream is the other one's
            copies.hold(self.journal.durable)
            copies.end()
        copies.wake()
        # Of a life that has not begun nothing is known before a quorum has its checkpoint.
        if self._stood and copies.ready and copies.is_own(0):
            self._looked()
        if self._doubted > self._gave_up and copies.is_own(self._doubted) and not self.fenced_at:
            self._is_old()
        if self.fenced_at and not heritage.waits(self.membership):
            self._waited()
        reason = ""
        if copies.active and self.membership.excluded:
            reason = self.membership.excluded
        elif copies.active and not copies.life:
            reason = "JetStream does not say yet who has the sessions of this node"
        elif self.membership.deposed:
            reason = "the heir of this node has not taken over yet"
        elif copies.stalled():
            reason = LOST_QUORUM
        before, self.broker.no_quorum = self.broker.no_quorum, reason
        if reason and reason != before:
            log.warning("%s: until then nothing that lasts is acknowledged", reason)
        elif before == LOST_QUORUM and not reason:
            log.warning("a quorum of the NATS servers answers again")
        elif before and not reason:
            log.warning("what lasts is acknowledged again; it was not, because %s", before)
        if self.journal.snapshot_seq > self._upto and copies.ready:
            snapshot = Snapshot(self.journal.directory)
            if copies.checkpoint(snapshot.parts()):
                self._upto = snapshot.upto

    def _waited(self) -> None:
        """It need not any longer: it knew already, or nobody came."""
        membership = self.membership
        if membership.inherited.get(membership.name, 0) < self.fenced_at:
            text = "no heir of this node has come in %d s: what it had is let go"
            log.error(text, membership.keep)
        self._goes_on()

    def status(self) -> dict[str, Any]:
        """`servers`: how many have it. `trouble`: why nothing is copied."""
        copies, stream = self.copies, self.stream
        return {
            "mode": "copied" if copies.active else "live",
            "stream": stream.name,
            "servers": stream.replicas if copies.active else 0,
            "trouble": self._trouble(),
            **copies.figures(),
            "ready": copies.ready and not self.broker.no_quorum,
            **self._power_loss(),
        }

    def _trouble(self) -> str:
        """What the account lacks is why no quorum answers."""
        stream = self.stream
        found = stream.unable or self.broker.no_quorum or self._silence()
        denied = stream.denied.trouble()
        return f"{denied}; {found}" if denied and found != self._silence() else found or denied

    def _silence(self) -> str:
        silent = self.stream.silent
        return f"nothing is copied yet, JetStream cannot be asked: {silent}" if silent else ""

    def _power_loss(self) -> dict[str, Any]:
        active, found = self.copies.active, self._verdict
        return {
            "survives_power_loss": found.survives if active else UNKNOWN,
            "power_loss": found.why if active else NO_COPIES["power_loss"],
            "monitored": self._monitor.figures(),
        }

    async def close(self) -> None:
        for task in (self._beginning, self._monitoring):
            if task is not None:
                task.cancel()
        if self._gathering is not None:
            self._gathering.cancel()
        await self.stream.close()


def copying(
    membership: Membership | None, journal: Journal | None, settings: Settings,
    protocols: Sequence[Revival], let_go: Callable[[], None],
) -> Copying | None:  # fmt: skip
    """None for a hub whose log is not copied."""
    wanted = settings.cluster
    if membership is None:
        return None
    if journal is None:
        return None
    if not wanted.url or wanted.copies == "0":
        if (journal.directory.path / MARKER).exists():
            _copied_before(membership, protocols)
        return None
    return Copying(membership, journal, settings, protocols, let_go)


def _copied_before(membership: Membership, protocols: Sequence[Revival]) -> None:
    """The log of this hub goes to no servers any more. Another one may have what is here, and says
    so; of a hub whose log never did nobody can have anything.
    """

    def doubted(at: int) -> None:
        log.error("another node has what was here, since its log was copied: it is let go")
        heritage.let_go(membership.broker, membership, protocols, at)

    membership.doubted = doubted
