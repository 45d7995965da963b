"""How the log of a node is copied: each piece behind the one before it, and none behind a stranger.

    journal → take ──→ waiting → in flight → stored by a quorum → safe: what was promised may leave
    snapshot → checkpoint ─┘         └── no answer: look how far the stream is, go on from there

A piece names the number of the stream's message that it must follow. That is the fence: who
appends one of its own (an heir) makes every later one of this node fail, also the one that is on
its way. That is one alone: of two the second one's number would be right again behind a stranger in
the place of the first, which servers take, and its answer would speak for both. What waits
meanwhile goes together.

A `life` is one unbroken series of pieces, from a start on. It counts when a checkpoint of it is
whole; what was before the checkpoint is let go. The runtime drives it; `Stream` carries. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from hubbub.cluster.gathering import Gathering
from hubbub.core.limits import (
    CLUSTER_COPY_FAR_SECONDS,
    CLUSTER_COPY_GATHER,
    CLUSTER_COPY_PATIENCE,
    CLUSTER_COPY_PIECE,
    CLUSTER_COPY_SECONDS,
    CLUSTER_QUORUM_SECONDS,
)

LOG: Final = "log"  # a group of rows; `upto` is its last one
STATE: Final = "state"  # a checkpoint: the fold of all rows up to `upto`
# Of an heir, whose name it has: nothing of that life comes after it. `upto`: `FOR_GOOD` if somebody
# removed the node by hand, then nobody has to take over what was before it.
FENCE: Final = "fence"
FOR_GOOD: Final = 1
KINDS: Final = (LOG, STATE, FENCE)
AGAIN: Final = 0.2  # seconds at least between two questions because a piece was refused
TURN: Final = 4  # pieces of the log for each one of a checkpoint, where both wait


class Piece(NamedTuple):
    """A part of a group or of a checkpoint, `more` of which follows or not."""

    life: int
    number: int
    kind: str
    upto: int
    more: bool
    data: bytes

    @property
    def for_good(self) -> bool:
        return self.kind == FENCE and self.upto == FOR_GOOD

    def head(self) -> str:
        return f"{self.life} {self.number} {self.kind} {self.upto} {self.more:d}"


def heard(head: str, data: bytes = b"") -> Piece | None:
    """What a message of a stream says; None for what no node wrote."""
    words = head.split(" ")
    if len(words) != 5 or words[2] not in KINDS:
        return None
    try:
        life, number, upto, more = (int(words[at]) for at in (0, 1, 3, 4))
    except ValueError:
        return None
    return Piece(life, number, words[2], upto, more != 0, data)


class Found(NamedTuple):
    """The end of a stream: the number of its last message, and the last piece in it, None if there
    is none. `strange`: so many messages behind that piece nobody of us wrote. `first`: the number
    of the first message that is there. `news`: pieces behind the message that was asked about.
    `gaps`: how many messages are missing between the first and the last one.
    """

    at: int
    last: Piece | None
    strange: int = 0
    first: int = 0
    news: tuple[tuple[int, Piece], ...] = ()
    gaps: int = 0

    @property
    def place(self) -> int:
        """The number of the last piece."""
        return self.at - self.strange

    @property
    def stopped(self) -> bool:
        """Whether an heir, or this node itself, has ended it so far."""
        return self.last is not None and self.last.kind == FENCE

    @property
    def for_good(self) -> bool:
        """Whether somebody has by hand."""
        return self.last is not None and self.last.for_good

    def following(self, stamp: int) -> int:
        """The life that begins behind it: they rise, whatever clocks say."""
        return max(stamp, self.last.life + 1) if self.last is not None else stamp


def landed(pieces: Iterable[Piece], life: int) -> int:
    """Up to which row the disk of the node whose stream this is must have all of that life: one
    group alone is on its way to it, and is in the newest piece.
    """
    whole = sorted(one.upto for one in pieces if one.life == life and not one.more)
    return whole[-2:][0] if whole else 0


class Stream(Protocol):
    """Where pieces go. Answers come to `stored` and `refused`, or never; then `look` asks."""

    def put(self, piece: Piece, after: int) -> None:
        """Append it, if the last message there has the number `after`. Never waits."""

    def look(self, behind: int, number: int) -> None:
        """Ask what is there behind that message, for the time of that number; the answer comes to
        `found`. While one is on its way the next one follows.
        """

    def glance(self) -> None:
        """Ask where it begins, and how many are missing; the answer comes to `begins`."""

    def purge(self, before: int) -> None:
        """Let go of all messages before that one."""


Part = tuple[int, bool, bytes]  # upto, more, data
Group = tuple[int, int, bytes | bytearray]  # its first row and its last, and all of it


class Copies:
    """What of this node's log is where a quorum has it. `safe` says how far that is.

    Messages that no node wrote are passed over, and `odd` is told how many; where what is needed
    was taken away `torn` is called, to begin another life.

    `active`: rows are copied; before, everything here is promised by the local disk alone. `ready`:
    a checkpoint of this life is whole. `moved` is called when `safe` may say more, `deposed` when
    somebody else wrote to the stream: a stop, or a life of this node's name. `ungrouped`: how many
    rows are in no group.
    """

    def __init__(
        self, stream: Stream, now: Callable[[], float], moved: Callable[[], None],
        deposed: Callable[[Found], None], odd: Callable[[int], None] = lambda count: None,
        torn: Callable[[], None] = lambda: None, ungrouped: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.active = self.ready = False
        self.life = 0
        self.groups = self.checkpoints = 0
        self.waiting_bytes = 0
        self._now = now
        self._moved = moved
        self._deposed = deposed
        self._odd = odd
        self._torn = torn
        self._ungrouped = ungrouped
        self._floor = 0
        self._number = 0
        self._base = 0  # the number in the stream of the last piece that is stored
        self._flows = self._declined = False
        self._asked, self._glanced = -AGAIN, 0.0
        self._looks = self._counts_from = 0  # looks so far, and the first whose answer counts
        self._heard = 0.0
        self._since = 0.0
        self._gathering = Gathering()
        self._patience = CLUSTER_COPY_PATIENCE
        self._open: deque[Group] = deque()  # groups that are not stored
        self._before: Group = (0, 0, b"")
        self._waiting: deque[Part] = deque()
        self._flying: Piece | None = None
        self._start: Iterator[Part] = iter(())
        self._starting: Part | None = None
        self._state: Iterator[Part] = iter(())
        self._in_state = False
        self._turn = 0
        self._places: deque[tuple[int, int]] = deque()  # upto, number in the stream
        self._group_at = self._state_at = 0
        self._kept_from = 0  # what lies before that may go when `detained` says nothing else
        self._gaps = 0  # messages that are missing there, since before this life
        self._first = 0  # the first piece of this life there: a checkpoint that goes on needs it
        self._detained = False

    # The journal's side

    def hold(self, durable: int) -> None:
        """Copies are wanted and nobody could be asked yet: nothing more is promised."""
        self.active, self.ready, self._floor = True, False, durable
        self._since = self._heard = self._now()

    def take(self, first: int, last: int, data: bytes | bytearray) -> None:
        """A group that changes state is on its way to the disk: here it goes to the others."""
        if not self.active:
            self._before = first, last, data  # it may be on its way when copying begins
            return
        self._wait(first, last, data)
        self.pump()

    def gathers(self) -> bool:
        """Whether the next group is worth waiting for: many rows are on their way together, or were
        a moment ago, and who waited for them is about to say more. Two groups that overlap cost
        twice what one costs, here and at each server, and are there no sooner.
        """
        if not self.ready:
            return False
        now = self._now()
        if self._open and self._flows:
            many = self._open[-1][1] - self._open[0][0] >= CLUSTER_COPY_GATHER
            return many and now - self._heard < self._patience
        return self._gathering.waits(now, self._ungrouped())

    def _wait(self, first: int, last: int, data: bytes | bytearray) -> None:
        if not self._open:
            self._since = self._now()
        self._open.append((first, last, data))
        self.waiting_bytes += len(data)
        self._waiting.extend(parts(last, data))

    def safe(self, landed: int) -> int:
        """How far of the rows that are on the local disk may be promised."""
        if not self.active:
            return landed
        if not self.ready:
            return min(landed, self._floor)
        return min(landed, self._open[0][0] - 1) if self._open else landed

    # A life

    def begin(
        self, life: int, found: Found, landed: int, log: Iterator[Part], state: Iterator[Part]
    ) -> None:
        """Copy from the start on: `log` are the groups behind the checkpoint `state` up to the row
        `landed`, which both lie in files; later ones come by `take`.
        """
        self.life, self._number = life, 0
        if not self.active:
            self._floor = landed
            if self._before[1] > landed:
                self._wait(*self._before)
        self._before = 0, 0, b""
        self.active, self.ready = True, False
        self._base, self._gaps, self._flying = found.at, found.gaps, None
        self._declined = False
        self._places.clear()
        self._group_at = self._state_at = self._kept_from = self._first = 0
        while self._open and self._open[0][1] <= landed:
            self._open.popleft()
        self._waiting = deque(part for _, last, data in self._open for part in parts(last, data))
        self.waiting_bytes = sum(len(part[2]) for part in self._waiting)
        self._start, self._starting = log, next(log, None)
        self._state, self._in_state = state, True
        self._since = self._now()
        self._flow()

    def checkpoint(self, state: Iterator[Part]) -> bool:
        """Publish one, if none is on its way; True if it will be."""
        if not self.ready or self._in_state:
            return False
        self._state, self._in_state = state, True
        self.pump()
        return True

    def pump(self) -> None:
        """Send what waits, if nothing is on its way."""
        if not self._flows or self._flying is not None:
            return
        found = self._next()
        if found is not None:
            kind, (upto, more, data) = found
            self._number += 1
            self._send(Piece(self.life, self._number, kind, upto, more, data))

    def _next(self) -> tuple[str, Part] | None:
        """Of a start first what lies in files, in order; then a checkpoint goes beside the log."""
        if self._starting is not None:
            part, self._starting = self._starting, next(self._start, None)
            return LOG, part
        self._turn += 1
        if self._in_state and (not self._waiting or self._turn % TURN == 0):
            state = next(self._state, None)
            if state is not None:
                return STATE, state
            self._in_state = False
        if not self._waiting:
            return None
        return LOG, self._together()

    def _together(self) -> Part:
        """As many of the groups that wait as one piece takes."""
        upto, more, data = self._waiting.popleft()
        found = [data]
        size = len(data)
        while not more and self._waiting and not self._waiting[0][1]:
            if size + len(self._waiting[0][2]) > CLUSTER_COPY_PIECE:
                break
            upto, _, data = self._waiting.popleft()
            found.append(data)
            size += len(data)
        self.waiting_bytes -= size
        return upto, more, found[0] if len(found) == 1 else b"".join(found)

    def _send(self, piece: Piece) -> None:
        self._heard = self._now()
        self._flying = piece
        self.stream.put(piece, self._base)

    # The stream's side

    def stored(self, life: int, number: int, at: int) -> None:
        """A quorum has that piece, and so all before it."""
        piece = self._flying
        if piece is None or (life, number) != (piece.life, piece.number):
            return
        now = self._now()
        # Where servers are far all that came meanwhile goes together, not half of it each time.
        far = min(2 * (now - self._heard), CLUSTER_COPY_FAR_SECONDS)
        self._patience = max(CLUSTER_COPY_PATIENCE, far)
        self._heard, self._base, self._flying = now, at, None
        self._done(piece, at)
        self._moved()
        self.pump()

    def _done(self, piece: Piece, at: int) -> None:
        self._first = self._first or at
        if piece.kind == STATE:
            self._state_at = self._state_at or at
            if not piece.more:
                self._checkpointed(piece.upto)
            return
        self._group_at = self._group_at or at
        if piece.more:
            return
        self._places.append((piece.upto, self._group_at))
        self._group_at = 0
        first = self._open[0][0] if self._open else piece.upto
        while self._open and piece.upto >= self._open[0][1]:
            self._open.popleft()
            self.groups += 1
        now = self._since = self._now()
        if piece.upto - first >= CLUSTER_COPY_GATHER:
            self._gathering.begin(now, piece.upto - first + self._ungrouped())

    def _checkpointed(self, upto: int) -> None:
        """What is in it need not stay; but a group of later rows may lie before it there."""
        while self._places and self._places[0][0] <= upto:
            self._places.popleft()
        first = self._state_at
        for place in (self._group_at, *(at for _, at in self._places)):
            if place:
                first = min(first, place)
                break
        self._state_at = 0
        self.checkpoints += 1
        self.ready = True
        self._kept_from = first
        if not self._detained:
            self.stream.purge(first)

    def detain(self, wanted: bool) -> None:
        """Whether what was before this life must stay: an heir may still have to read it."""
        self._detained = wanted
        if not wanted and self._kept_from:
            self.stream.purge(self._kept_from)

    def refused(self, life: int, number: int) -> None:
        """That piece was not taken, or it is not known whether it was."""
        piece = self._flying
        if self._flows and piece is not None and (life, number) == (piece.life, piece.number):
            self._flows, self._declined = False, True
            self._ask_again()

    def _ask_again(self) -> None:
        """At once; but servers without a leader refuse each piece at once, too, and for hours."""
        if self.life and self._declined and self._now() - self._asked >= AGAIN:
            self._ask()

    def broken(self) -> None:
        """There is no connection."""
        self._flows = False

    def connected(self) -> None:
        """There is one again, or what the stream said before now may not be so any more."""
        if self.life:
            self._ask()
            self._counts_from = self._looks

    def _ask(self) -> None:
        self._flows = self._declined = False
        self._asked = self._now()
        self._looks += 1
        self.stream.look(self._base, self._looks)

    def found(self, found: Found, look: int) -> None:
        """What the stream holds: what is there of this life is done, the rest is sent again."""
        if self._flows or not self.life or look < self._counts_from:
            return
        self._heard = self._now()
        for at, piece in found.news:
            if piece.kind == FENCE or piece.life > self.life:
                self.end()
                self._deposed(found._replace(last=piece, strange=found.at - at))
                return
        if found.at < self._base or self._lacks(found.first, found.gaps):
            self._is_torn()
            return
        self._gaps = found.gaps
        self._pass_over(found)
        if self._flying is not None:
            self._send(self._flying)
        self._flow()

    def begins(self, first: int, gaps: int = 0) -> None:
        """Where the stream begins, and how many are missing in it: while every piece is taken
        nothing else says that those before it are gone.
        """
        if self.life and self._lacks(first, gaps):
            self._is_torn()
        elif self.life:
            self._gaps = gaps

    def _lacks(self, first: int, gaps: int) -> bool:
        """Whether something is gone that an heir needs, if the stream begins there. Of what is
        missing inside nobody says where: what did so when this life began was not of it.
        """
        return gaps > self._gaps or 0 < (self._kept_from or self._first) < first

    def _is_torn(self) -> None:
        self.end()
        self._torn()

    def end(self) -> None:
        """Nothing more of this life goes to the stream."""
        self.life, self._flows, self._flying = 0, False, None

    def _pass_over(self, found: Found) -> None:
        """What is there of this life is done, whatever lies behind it."""
        ours = [(at, one) for at, one in found.news if one.life == self.life]
        strange = found.at - self._base - len(ours)
        for at, piece in ours:
            self.stored(self.life, piece.number, at)
        self._base = found.at
        if strange:
            self._odd(strange)

    def _flow(self) -> None:
        self._flows = True
        self._heard = self._now()
        self.pump()

    def wake(self) -> None:
        """A few times a second: ask for an answer that does not come; who has nothing to copy asks
        too, and so hears of a fence.
        """
        now = self._now()
        self._ask_again()
        if self.life and now - max(self._heard, self._asked) > CLUSTER_COPY_SECONDS:
            self._ask()
        elif self.life and now - max(self._glanced, self._asked) > CLUSTER_COPY_SECONDS:
            self._glanced = now
            self.stream.glance()

    # What it says about itself

    def is_own(self, at: int) -> bool:
        """Whether the stream is known, just asked, to be this node's to write to, and has had a
        message of that number.
        """
        return self._flows and self.life > 0 and at <= self._base

    def behind(self) -> float:
        """For how many seconds the oldest promise waits for copies."""
        waits = self.active and (self._open or not self.ready)
        return self._now() - self._since if waits else 0.0

    def stalled(self) -> bool:
        """Whether no quorum answers: longer than servers need to agree on another leader."""
        silent = self._now() - self._heard if self.active else 0.0
        return max(self.behind(), silent) > CLUSTER_QUORUM_SECONDS

    def figures(self) -> dict[str, Any]:
        return {
            "ready": self.ready,
            "waiting": len(self._open),
            "waiting_bytes": self.waiting_bytes + (len(self._flying.data) if self._flying else 0),
            "behind_seconds": round(self.behind(), 3),
            "groups": self.groups,
            "checkpoints": self.checkpoints,
        }


def parts(upto: int, data: bytes | bytearray) -> Iterator[Part]:
    """Bytes as parts that a server takes."""
    view = memoryview(data)
    end = max(len(view), 1)
    for at in range(0, end, CLUSTER_COPY_PIECE):
        following = at + CLUSTER_COPY_PIECE
        yield upto, following < end, bytes(view[at:following])
