"""The log as the broker sees it: it numbers rows, says how far they are durable, and reads back.

This one lives in memory and is what a hub without a journal uses; `journal.writer.Journal` is
the durable one. What is not recorded but must wait for a slow receiver is kept here, bounded,
under negative numbers, and read the same way. Never does I/O itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from hubbub.core.clock import Clock
from hubbub.core.limits import KEPT_BYTES, MEMORY_LOG_BYTES
from hubbub.core.message import Message, Run
from hubbub.errors import UnreadableError
from hubbub.schema import Row

# What a promise waits for: the row is as safe as the journal makes it, on the disk as a rule, and
# in its copies; or the operating system has it; or nothing.
# Where the one who promises has no level of its own it is 0, and its link's counts.
DISK: Final = 1
SYSTEM: Final = 2
MEMORY: Final = 3
ELSEWHERE: Final = 4  # and above: another node has it, by a `Promise` of the log
LEVELS: Final = {"": 0, "disk": DISK, "os": SYSTEM, "none": MEMORY}


class Promise:
    """How far another place has what was handed on to it, in numbers that are higher than those of
    rows. `level`: as which a link asks for that. `upto`: the last one that is safe;
    `written`: the last one that is in the rows here up to `row`, after all.
    """

    __slots__ = ("level", "upto", "written", "row")

    def __init__(self, level: int) -> None:
        self.level = level
        self.upto = self.written = self.row = 0

    def safe(self, durable: int) -> int:
        return max(self.upto, self.written) if durable >= self.row else self.upto


@mypyc_attr(allow_interpreted_subclasses=True)
class Log:
    """Rows get the numbers 1, 2, 3 …; `position` is the last one, `durable` the last safe one.
    Those up to `handed` are on their way to where they are safe (`flying`: and the next ones wait
    for them), or there. `written`: the last one that survives the end of this process, if that is
    more.

    `segment` changes when a new file begins: what a segment must say for itself (audiences) is
    then written again. `records` is False where rows lead nowhere, as here. `most`: what
    it does with them, in a word of `LEVELS`.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.most = "none"
        self.records = False
        self.position = 0
        self.handed = 0
        self.durable = 0
        self.written = 0
        self.segment = 0
        self.flying = False
        self._kept: dict[int, Message] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._pinned: dict[int, Message] = {}
        self._pinned_again: dict[int, int] = {}  # how many more pins there are than one
        self._bytes = 0
        self._last_kept = -(1 << 48)
        self._promises: list[Promise] = []

    def level_of(self, promise: str) -> int:
        """Of "disk", "os", "none", or "": 0. Who is promised what the journal does has its copies,
        too.
        """
        return DISK if promise == self.most != "none" else LEVELS[promise]

    def promise(self) -> Promise:
        """Of one more place to which something is handed on."""
        self._promises.append(Promise(ELSEWHERE + len(self._promises)))
        return self._promises[-1]

    def append(self, row: Row) -> int:
        """Number a row (its seq and time are filled in here) and return its seq."""
        self.position += 1
        self.durable = self.handed = self.position
        return self.position

    def append_run(self, run: Run, audience: int) -> int:
        """Record every message of the run as `publish`; return the seq of the first."""
        return self.keep(run)

    def pressing(self) -> bool:
        """Whether rows that nobody waits for are to be handed on now, and not a moment later."""
        return True

    @property
    def pending_bytes(self) -> int:
        """About how many bytes wait to be handed on."""
        return 0

    def safe(self, level: int) -> int:
        """The last row of which that level may be promised; of what is elsewhere its number."""
        if level >= ELSEWHERE:
            return self._promises[level - ELSEWHERE].safe(self.durable)
        if level == MEMORY:
            return self.position
        return max(self.durable, self.written) if level == SYSTEM else self.durable

    def keep(self, run: Run) -> int:
        """Keep a run that is not recorded, as long as memory allows; return its first number.

        Numbers of kept messages are negative; like those of rows they only grow.
        """
        first = self.number(run)
        for message in run.messages():
            size = len(message.payload) + KEPT_BYTES
            self._kept[message.seq] = message
            self._order.append((message.seq, size))
            self._bytes += size
        while self._bytes > MEMORY_LOG_BYTES:
            number, size = self._order.popleft()
            self._kept.pop(number, None)
            self._bytes -= size
        return first

    def number(self, run: Run) -> int:
        """Give its messages such numbers without keeping them: who pins them does that."""
        messages = run.messages()
        first = self._last_kept + 1
        self._last_kept += len(messages)
        for number, message in enumerate(messages, first):
            message.seq = number
        return first

    def together(self, first: int) -> None:
        """The rows from `first` on, made in this turn, must not be torn apart by a crash."""

    def shelve(self) -> None:
        """None of the rows from now on belongs to those before."""

    def figures(self) -> dict[str, Callable[[], str]]:
        """What it says of itself under `$SYS/broker/journal/`: by name, how it reads now."""
        return {}

    def newest(self) -> int:
        """The number of the newest message; those that are retained later have greater ones."""
        return self.position if self.records else self._last_kept

    def pin(self, seq: int, message: Message | None = None) -> None:
        """Keep a kept message, whatever memory says, until as many `unpin` (retained, queues).

        One that was only numbered is said too; nobody else needs it, so then it is gone.
        """
        if seq in self._pinned:
            self._pinned_again[seq] = self._pinned_again.get(seq, 0) + 1
            return
        message = message or self._kept.get(seq)
        if message is not None:
            self._pinned[seq] = message

    def unpin(self, seq: int) -> None:
        more = self._pinned_again.pop(seq, 0) if self._pinned_again else 0
        if more > 1:
            self._pinned_again[seq] = more - 1
        elif not more:
            self._pinned.pop(seq, None)

    def gone(self, seq: int, size: int) -> None:
        """A message with a payload of so many bytes, which was in one queue and nowhere else, was
        taken away.
        """

    def read(self, seq: int) -> Message | None:
        """The message of that number, or None if it is gone for good.

        Raises UnreadableError if the machine cannot read it now. Who would give the message up for
        None must not do so then, but come again (`Broker.again`).
        """
        return self._kept.get(seq) or self._pinned.get(seq)

    def fetched(self) -> int:
        """How many bytes were read from files for that until now, or what takes as long."""
        return 0

    def look(self, seq: int) -> Message | None:
        """The same for who only shows it: None also if it cannot be read now."""
        try:
            return self.read(seq)
        except UnreadableError:
            return None
