"""A hub in which everything is real but the event loop, the sockets, the disk and the time.

`SimulatedNode` is the hub's own `Node`, with its listener, its tick and its journal. What a thread
or the loop would do happens when the world says so.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from hubbub.config.settings import Journal as JournalSettings
from hubbub.config.settings import Limits, Settings
from hubbub.config.settings import Listener as ListenerSettings
from hubbub.core.clock import Clock
from hubbub.core.gate import Gate
from hubbub.core.limits import LINK_CHOKED
from hubbub.core.message import Run
from hubbub.core.state import State
from hubbub.journal import frame, roll
from hubbub.journal.content import Content
from hubbub.journal.group import Group
from hubbub.journal.healing import whole_snapshot
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal
from hubbub.runtime.door import Door
from hubbub.runtime.listener import Listener
from hubbub.runtime.node import Node
from hubbub.runtime.socket import Socket
from hubbub.schema import Row


class SimulatedClock(Clock):
    """`wall` may jump, as clocks of machines do; `seconds` never goes back."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall = 1_800_000_000_000_000
        super().__init__()

    def now(self) -> float:
        return self.seconds

    def stamp(self) -> int:
        self._last = max(self._last, self._elapsed() + self._base)
        return self._last

    def _machine(self) -> int:
        return self.wall

    def _asleep(self) -> int:
        return 0

    def _elapsed(self) -> int:
        return int(self.seconds * 1_000_000)

    def go_on(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += int(seconds * 1_000_000)


class Timer:
    """What `call_later` returns."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def cancel(self) -> None:
        self.call = lambda: None


class SimulatedLoop:
    """What a node asks of its loop. `arrivals` come from the journal's thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.soon: list[Callable[[], None]] = []
        self.arrivals: list[Callable[[], None]] = []
        self._later: list[tuple[float, int, Timer]] = []

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(lambda: call(*arguments))

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self.arrivals.append(lambda: call(*arguments))

    def call_later(self, delay: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(lambda: call(*arguments))
        heapq.heappush(self._later, (self.clock.now() + delay, id(timer), timer))
        return timer

    def run(self) -> None:
        """All turns until nothing is left to do at this time."""
        while self._later and self._later[0][0] <= self.clock.now():
            self.soon.append(heapq.heappop(self._later)[2].call)
        while self.soon:
            calls, self.soon = self.soon, []
            for call in calls:
                call()


class _NoThread:
    def start(self) -> None: ...

    def is_alive(self) -> bool:
        return False


def _nobody(run: Run) -> None: ...


class SteppedJournal(Journal):
    """A journal whose thread takes one step when it is told. `landed`: payloads on the disk,
    `in_system`: those that at least survive the process.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        try:
            super().__init__(*arguments, **settings)
        except BaseException:
            self.directory.release()
            raise
        self.disk._worker = cast(Any, _NoThread())
        self._now: Group | None = None
        self._step = 0
        self.landed: set[bytes] = set()
        self.in_system: set[bytes] = set()
        self.told: Callable[[Run], None] = _nobody

    def append_run(self, run: Run, audience: int) -> int:
        self.told(run)
        return super().append_run(run, audience)

    def as_taken(self, row: Row) -> Row:
        """A row as the start took it, if it was there then."""
        return self.righting.row(row)

    def step(self) -> None:
        if self._now is None:
            try:
                self._now = self.disk.groups.get_nowait()
            except queue.Empty:
                return
            self._step = 0
        group = self._now
        assert group is not None
        try:
            if self._step == 0:
                self.disk.land(group)
                self._step = 1
                self.landed.update(row.payload for row in group.rows)
            self.disk.publish(group)
        except OSError as error:
            self.disk.complain(error)
            return
        self.disk.complain(None)
        self._now = None
        self.disk.on_durable(group.last)

    def rows_of_now(self) -> list[Row]:
        """The rows of the group that the thread has."""
        return list(self._now.rows) if self._now is not None else []

    def abandon(self) -> None:
        """The process is gone; the system closes its files."""
        self.disk.forget()
        self._read.close()
        self.directory.release()


class Wire:
    """Both ends of one connection. The client's end: `to_hub`, `from_hub`, `stuck`, `open`.

    `stuck`: the client reads nothing, and the system's buffers are full.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.to_hub = bytearray()
        self.from_hub = bytearray()
        self.stuck = False
        self.open = True
        self.sock = self.heard_by = Socket(node.listener)
        self.sock.connection_made(cast(Any, self))

    # The client's end

    def read(self) -> bytes:
        data = bytes(self.from_hub)
        self.from_hub.clear()
        return data

    def deliver(self, size: int) -> None:
        """So many bytes reach the hub."""
        data = bytes(self.to_hub[:size])
        del self.to_hub[:size]
        if self.open and data:
            self.heard_by.data_received(data)

    def unstick(self) -> None:
        self.stuck = False
        if self.open:
            self.sock.resume_writing()

    def hang_up(self) -> None:
        if self.open:
            self.open = False
            self.node._loop.call_soon(self.sock.connection_lost, None)

    # The hub's end: a transport

    def set_protocol(self, protocol: Any) -> None:
        self.heard_by = protocol

    def write(self, data: bytes) -> None:
        if self.open:
            self.from_hub += data

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    close = abort = hang_up

    def is_closing(self) -> bool:
        return not self.open

    def get_write_buffer_size(self) -> int:
        return LINK_CHOKED + 1 if self.stuck else 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 4711) if name == "peername" else None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class SimulatedNode(Node):
    """A node on this disk. `begin` is a start, with all that recovery does."""

    def __init__(
        self, path: Path, clock: SimulatedClock, segment_bytes: int, record: str = "all"
    ) -> None:
        settings = Settings(
            data=str(path),
            limits=Limits(busy_poll_us=0),  # nor does anything else look at the machine's clock
            journal=JournalSettings(
                record=cast(Any, record), retain_seconds=0, retain_bytes=1 << 40,
                topic_durability=("o/# os", "m/# none"),
            ),  # fmt: skip
        )
        super().__init__(settings)
        self.clock = clock
        self.ends_early = False
        self.loop = SimulatedLoop(clock)
        self._loop = cast(Any, self.loop)
        self.log = self.journal = SteppedJournal(
            path, clock, "disk", self._synced, segment_bytes=segment_bytes,
            sync=lambda fd: os.fdatasync(fd),
        )  # fmt: skip

    def begin(self) -> None:
        self._open_broker()
        self.door = Door(self.broker.metrics, itertools.count().__next__)  # no machine is too slow
        self._recover()
        gate = Gate(self.broker.open)
        self.listener = Listener(
            self, ListenerSettings(address="127.0.0.1:1"), self.protocols, gate
        )

    def _release(self, seq: int) -> None:
        super()._release(seq)
        if self.ends_early and self.idle():
            self.ends_early = False
            self.log.end_early()

    def _written(self, seq: int) -> None:
        self.log.in_system |= {row.payload for row in self.log.rows_of_now()}
        super()._written(seq)

    def on_disk(self) -> State:
        """What the files say."""
        return replayed(self.log.directory, self.log.as_taken)

    def sweep(self) -> None:
        self._sweep_once()

    def roll(self) -> bool:
        """Fold the oldest finished segment, if there is one. Else one ends early as soon as it may,
        as where room is short.
        """
        command = self.log.roll_due()
        if command is None:
            self.ends_early = True
            return False
        roll.roll(self.log.directory, int(command[5]), righting=self.log.righting)
        self.log.rolled()
        return True

    def idle(self) -> bool:
        """Whether the files say all that the state does."""
        return not self.log.pending and not self.log.flying


def _as_written(row: Row) -> Row:
    return row


def replayed(directory: Directory, as_taken: Callable[[Row], Row] = _as_written) -> State:
    """State as the files say it, read by other means than a start. `as_taken`: what that takes a
    row for, if the clock was far ahead when it was written.
    """
    state = State()
    upto = 0
    for seq in reversed(directory.snapshots()):
        found = whole_snapshot(directory.snapshot(seq))
        if found is None:
            continue
        upto = seq
        with Content(directory.snapshot(seq)) as content:
            for one in found:
                for row in content.rows(one):
                    state.apply(as_taken(row))
        break
    for first, following in directory.spans():
        if following and following <= upto + 1:
            continue
        with Content(directory.segment(first)) as content:
            for one in content.rows_frames(following):
                if one.flags & frame.STATE:
                    for row in content.rows(one):
                        if row.seq > upto:
                            state.apply(as_taken(row))
    return state
