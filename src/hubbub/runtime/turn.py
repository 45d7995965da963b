"""A turn of the loop: what is read, then the tick. Compiled with the hot path.

    bytes ──→ connection.feed ──→ did it come alone? ──→ what came of it is written at once
                                     └── else ──→ the tick, at the end of this turn

The tick is the one place whose order matters. Everything that arrived in one turn of the loop is
parsed first, then:

    1. commit   rows become a frame, given to the writer thread, if someone waits or enough came;
                behind a group that has landed a moment later (`commitdelay`)
    2. write    each touched link is written once, while the disk works
    3. release  when the frame is durable: what was held for it is written (`node`)

so nothing is promised before it is safe, and nothing else waits for the disk. The node owns the
`Turn`; its sockets make a `Steady` each. No I/O but what links do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from hubbub.core.broker import Broker
from hubbub.core.clock import BEGUN
from hubbub.core.connection import Connection
from hubbub.core.limits import TURN_SECONDS, WEIGHED_BYTES
from hubbub.core.link import Link
from hubbub.errors import ProtocolError
from hubbub.runtime.busypoll import BusyPoll
from hubbub.runtime.commitdelay import CommitDelay

log = logging.getLogger("hubbub")

# Bytes of a read that filled the buffer: the loop reads such a socket up to 32 times before it does
# anything else, and what that wrote must be measured before it writes more.
FULL_READ: Final = 100_000


def safely(step: Callable[..., object], *arguments: object) -> None:
    """One connection's trouble with the hub's own code must not stop the others."""
    try:
        step(*arguments)
    except Exception:
        log.exception("the hub's own code broke; it goes on")


class Turn:
    """What the loop does in its turns for one broker. `soon` is its `call_soon`; `commit` is
    called where rows wait, `poll` looks for what is read next. `congested`: the disk is behind, so
    who publishes has to wait; the node says so.
    """

    def __init__(
        self,
        broker: Broker,
        soon: Callable[[Callable[[], None]], object],
        commit: Callable[[], None],
        poll: BusyPoll,
    ) -> None:
        self.poll = poll
        self.delay = CommitDelay()
        self.congested = False
        self._broker = broker
        self._log = broker.log
        self._soon = soon
        self._commit = commit
        self._scheduled = False

    def schedule(self) -> None:
        """Run the tick at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._soon(self.tick)

    def heard(self, link: Link | None) -> None:
        """A socket was read. Where it came alone, what came of it leaves without a tick.

        A turn of the loop costs as much as an answer does. While the disk is busy nobody looks
        how reads come; then only its own answer leaves at once.
        """
        broker, rows = self._broker, self._log
        touched = broker.outgoing.touched
        resting = rows.handed > rows.durable
        alone = not resting and self.poll.heard(len(touched) > 0)
        if self._scheduled:
            return
        if broker.unsettled or broker.retained.feeding or self._rows_wait():
            self.schedule()
        elif alone or (resting and len(touched) == 1 and touched[0] is link):
            self.flush()
        elif touched:
            self.schedule()

    def tick(self) -> None:
        self._scheduled = False
        self.poll.turned()
        broker = self._broker
        broker.clock.turned = broker.clock.now()
        if broker.retained.feeding:
            broker.retained.feed_on()
            self.schedule()
        if broker.unsettled:
            unsettled, broker.unsettled = broker.unsettled, []
            for session in unsettled:
                safely(session.settle)
            if broker.unsettled:  # more than was to be done in one turn
                self.schedule()
        if self._rows_wait():
            if self.delay.waits(self._log.position - self._log.handed):
                self.schedule()
            else:
                safely(self._commit)
        self.flush()

    def filled(self, reader: Reader) -> None:
        """So much was read of a socket that the loop would read on, and hear nobody else: not once
        this turn has had its time.
        """
        self.flush()
        clock = self._broker.clock
        if clock.now() - clock.turned > TURN_SECONDS:
            reader.rest()

    def landed(self, rows: int, seconds: float) -> None:
        """A group of so many rows is on the disk, so long after it was handed on."""
        if self._broker.outgoing.holding:
            self.delay.landed(rows, self._log.position - self._log.handed, seconds)

    def _rows_wait(self) -> bool:
        """For this turn: somebody waits for them, or they are many. Others have a timer, and
        while rows are on their way to the disk the next ones wait for it.
        """
        rows = self._log
        if rows.position <= rows.handed:
            return False
        waited_for = len(self._broker.outgoing.holding) > 0 and not rows.flying
        return waited_for or rows.pressing()

    def flush(self) -> None:
        """Hand what was written to the sockets."""
        outgoing = self._broker.outgoing
        touched, outgoing.touched = outgoing.touched, []
        touched.reverse()
        while touched:
            safely(_flush_all, touched)  # again behind one that broke
        transit = self._broker.sampled.transit
        if transit.on_its_way:
            safely(transit.look)


def _flush_all(touched: list[Link]) -> None:
    """Write them from the last to the first; each is out of the list before its turn."""
    while touched:
        touched.pop().flush()


class Reader(Protocol):
    """What a socket does about the rarer things, and what it knows of its reads: how many bytes
    came, up to the last `report`, and how many those were when it was weighed.
    """

    blocked: bool
    received: int
    weighed: int

    def refuse(self, error: ProtocolError) -> None: ...
    def broke(self) -> None: ...
    def schedule(self) -> None: ...
    def hurry(self, link: Link) -> None: ...
    def rest(self) -> None: ...
    def look_up(self, published: bool) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, error: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Steady:
    """The reads of one socket, of which nearly all are like this: the client was let in, speaks
    without WebSocket frames and pays no rate. All others go the long way (`socket`), which does
    the same and asks more.

    To the loop it is the protocol of the connection meanwhile, so that a read is compiled from its
    first step on. What else the loop has to say goes on to the socket. What each read would ask the
    socket it knows itself: `count` bytes came since the last `look_up`, which comes at the latest
    when they are more than `most`; `blocked` is the socket's.
    """

    def __init__(self, reader: Reader, connection: Connection, link: Link, turn: Turn) -> None:
        self._reader = reader
        self._connection = connection
        self._link = link
        self._turn = turn
        self._metrics = connection.broker.metrics
        self._clock = connection.broker.clock
        self.blocked = reader.blocked
        self.count = 0
        self.most = 0
        self._measure()

    def data_received(self, data: bytes) -> None:
        published = self.read(data)
        self.count += len(data)
        if self._turn.congested or self.blocked or self.count > self.most:
            self.report()
            self._reader.look_up(published)
            self._measure()

    def report(self) -> None:
        """The socket knows of all that came."""
        self._reader.received += self.count
        self.most -= self.count
        self.count = 0

    def _measure(self) -> None:
        reader = self._reader
        self.most = WEIGHED_BYTES - (reader.received - reader.weighed)

    def eof_received(self) -> bool | None:
        return self._reader.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.connection_lost(error)

    def pause_writing(self) -> None:
        self.blocked = True
        self._reader.pause_writing()

    def resume_writing(self) -> None:
        self.blocked = False
        self._reader.resume_writing()

    def read(self, data: bytes) -> bool:
        """Hear what came; whether something was published thereby."""
        connection, link, metrics = self._connection, self._link, self._metrics
        clock = self._clock
        metrics.bytes_received += len(data)
        published = metrics.messages_in
        out = link.out
        clock.reading = BEGUN
        try:
            connection.feed(data)
            if connection.restless or link.closing:
                self._reader.schedule()
        except ProtocolError as error:
            self._reader.refuse(error)
        except Exception:
            self._reader.broke()
        clock.reading = 0
        if len(data) > FULL_READ:
            self._turn.filled(self._reader)
        self._turn.heard(link)
        if not out and link.prompt and link.out is out:  # no answer took the kernel's along
            self._reader.hurry(link)
        return metrics.messages_in != published
