"""How fast clients may send: messages and bytes a second, of each client and of each user.

Who is too fast is read from more slowly. Nobody is ended for it and nothing is lost: what was heard
over the rate is a debt, and until that is paid nothing more is read of the connection. What it says
meanwhile waits in the kernels, then in the sender; one read of it at most waits here.

    read ──> a part is heard ──> paid for, by its client and by its user ──> in debt?
                ^                                                               │
                └────────── its turn ────────── a line, one for all of a user <─┘

A part is worth about PART_SECONDS of the rate, and at most WORST_SECONDS: that many of the smallest
messages are in it, whatever came before. Only the rest of a message that has begun may be longer.
Connections of one user stand in one line and are heard in turns, so ten of them get together what
one would get: the next goes on when the one before has paid. Of those who closed meanwhile
GONE_MOST may stand there; then the oldest goes unheard.

Sockets pay here, and what is published over HTTP. Where no rate is set nobody has a `Toll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Final

from hubbub.config.limits import Limits
from hubbub.core.clock import Clock
from hubbub.core.limits import GONE_MOST
from hubbub.core.metrics import Metrics
from hubbub.core.turns import Stint
from hubbub.runtime.binding import hung_up, unheard
from hubbub.runtime.loop import SHORTEST
from hubbub.runtime.waiting import Conversing

PART_LEAST: Final = 64  # bytes: what is heard at once of who may send ten messages a second
PART_MOST: Final = 256 * 1024  # a read of the socket
PART_SECONDS: Final = 0.1  # of the rate, in a part
WORST_SECONDS: Final = 1.0  # of the rate, in a part of the smallest messages
SMALLEST: Final = 5  # bytes of a message: a PUBLISH of MQTT with a topic of one and nothing else
FIRST: Final = 12  # bytes of a login: less than any, so what follows it is not heard with it
FLOOR_SECONDS: Final = 0.02  # for what was said to come, from who has its turn
LOOKED_AT: Final = 16  # in a full line, whether they have closed, for each who comes
FORGOTTEN: Final = 1_000  # buckets that are looked at in a turn, to forget them
MINUTE: Final = 60.0  # from one line of the log about somebody to the next

CLIENT: Final = "client"
USER: Final = "user"
GONE: Final = "closed connections of a user that wait for its rate"
MESSAGES: Final = "messages_per_second"
BYTES: Final = "bytes_per_second"

log = logging.getLogger("hubbub.rates")


class Bucket:
    """What one client or user has sent. `due`: when it is paid, by MESSAGES and by BYTES.

    `line`: who waits for that; `held`: connections that pay here. `key` is empty if nobody else
    ever can. `floor`: who had its turn and has not paid for it yet. `unlooked`: who of the line may
    have closed.
    """

    __slots__ = (
        "kind", "key", "whose", "due", "line", "held", "told_again", "gone_again", "serving",
        "floor", "unlooked",
    )  # fmt: skip

    def __init__(self, kind: str, whose: str, key: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.key = key
        self.whose = whose
        self.due = {MESSAGES: 0.0, BYTES: 0.0}
        self.line: OrderedDict[Toll, None] = OrderedDict()  # thousands may leave it at once
        self.held = 0
        self.told_again = self.gone_again = 0.0
        self.serving: asyncio.TimerHandle | None = None  # for the first in line
        self.floor: Toll | None = None
        self.unlooked: list[Toll] = []

    def paid(self) -> float:
        return max(self.due.values())

    def rest(self) -> None:
        """Nobody has a turn, and none is to come."""
        if self.serving is not None:
            self.serving.cancel()
        self.serving = self.floor = None


class Toll:
    """What one connection pays, and where it stands in line. `turn` is called when it may go on.

    `rest`: what was read of it and not heard yet, from `at` on. `step`: how much it hears at once.
    `slowed`: it stands in line. `entered`: it had its turn, and hears the next part without
    standing in line again. `stream`: bytes out of WebSocket messages, heard before the `rest`;
    `unframed`: what was cut last is of these. `ends` ends it if its peer has closed, and says
    whether it has.
    """

    __slots__ = (
        "rates", "buckets", "turn", "rest", "at", "step", "stage", "slowed", "entered",
        "gone", "ahead", "ends", "stream", "unframed",
    )  # fmt: skip

    def __init__(
        self, rates: Rates, buckets: tuple[Bucket, ...], turn: Callable[[], None],
        ends: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        self.rates = rates
        self.buckets = buckets
        self.turn = turn
        self.ends = ends
        self.stream = bytearray()
        self.unframed = False
        self.rest = b""
        self.at = 0
        self.step = 4 * PART_LEAST if buckets else FIRST
        self.stage = self.ahead = 0
        self.slowed = self.entered = self.gone = False

    @property
    def left(self) -> int:
        """Bytes that wait here."""
        return len(self.rest) - self.at + len(self.stream)

    def keep(self, data: bytes) -> None:
        self.rest, self.at = self.rest[self.at :] + data if self.rest else data, 0

    def cut(self, missing: int = 0) -> bytes:
        """The part that is heard next. So many bytes are the rest of one message."""
        self.entered = False
        size = max(min(self.step, self.rates.part), min(missing, PART_MOST))
        self.unframed = bool(self.stream)
        if self.stream:
            part = bytes(self.stream[:size])
            del self.stream[:size]
            return part
        part = self.rest[self.at : self.at + size]
        self.at += len(part)
        if not self.left:
            self.rest, self.at = b"", 0
        return part

    def enter(self, stage: int = 0) -> bool:
        """Whether it may be heard now; else it stands in line, and `turn` is called later."""
        now = self.rates.clock.now()
        for number in range(stage, len(self.buckets)):
            bucket = self.buckets[number]
            if bucket.line or bucket.paid() > now:
                self.stage, self.slowed = number, True
                bucket.line[self] = None
                if len(bucket.line) > GONE_MOST:
                    self.rates.make_room(bucket, now)
                else:
                    bucket.unlooked.clear()
                self.rates.slow_down(bucket, now)
                return False
        self.slowed, self.entered = False, True
        return True

    def at_once(self, messages: int) -> int:
        """How many of so many messages may go together: as many as WORST_SECONDS are worth."""
        rates = [self.rates.most[bucket.kind, MESSAGES] for bucket in self.buckets]
        return min([messages, *(max(1, int(rate * WORST_SECONDS)) for rate in rates if rate)])

    def pay_ahead(self) -> None:
        messages, self.ahead = self.ahead, 0
        if messages:
            self.spend(messages, 0)

    def spend(self, messages: int, size: int) -> None:
        """Pay for what was heard; the next part is worth more nearly what it should be."""
        if not self.buckets:  # of who is not let in yet: small parts, whatever they bring
            return
        now = self.rates.clock.now()
        worth = max(self.rates.charge(one, messages, size, now) for one in self.buckets)
        if worth > 2 * PART_SECONDS:
            self.step = max(PART_LEAST, self.step // 2)
        elif worth < PART_SECONDS / 2:
            self.step = min(PART_MOST, self.step * 2)
        for bucket in self.buckets:
            if bucket.floor is self:
                self.rates.go_on(bucket, now)

    async def wait(self, most: float | None = None, messages: int = 0) -> None:
        """For those who can: return when it may go on, or after so many seconds.

        So many messages are paid for at that moment, or all who wait would go on together.
        """
        self.ahead = messages
        if self.enter():
            self.pay_ahead()
            return
        turn = asyncio.get_running_loop().create_future()

        def come() -> None:
            if not turn.done():
                turn.set_result(None)
            self.entered = False

        self.turn = come
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most):
                await turn


class Rates:
    """The buckets of one hub. `most`: what the settings allow, by kind and what is counted."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self.on = False
        self.most: dict[tuple[str, str], int] = {}
        self.clock = clock
        self._metrics = metrics
        self.part = PART_MOST  # bytes that are heard at once, at most
        self._burst = 0.0
        self._buckets: dict[tuple[str, ...], Bucket] = {}
        self._left: deque[Bucket] = deque()  # nobody pays there any more, perhaps for a while
        self._changing: deque[Callable[[], None]] = deque()  # what new settings are to those here

    def __len__(self) -> int:
        return len(self._buckets)

    def apply(self, limits: Limits, sockets: Iterable[Paying] = ()) -> None:
        """The settings have changed. They hold from now on for who is here, too."""
        before = self.most
        self.most = {
            (CLIENT, MESSAGES): limits.client_messages_per_second,
            (CLIENT, BYTES): limits.client_bytes_per_second,
            (USER, MESSAGES): limits.user_messages_per_second,
            (USER, BYTES): limits.user_bytes_per_second,
        }
        self.on = any(self.most.values())
        counts = [most for (_, what), most in self.most.items() if most and what == MESSAGES]
        part = int(min(counts) * WORST_SECONDS) * SMALLEST if counts else PART_MOST
        self.part = min(max(part, PART_LEAST), PART_MOST)
        self._burst = limits.burst_seconds
        sockets = list(sockets)
        going = len(self._changing) > 0
        if before and before != self.most:
            here = chain(*(sock.toll.buckets for sock in sockets if sock.toll is not None))
            self._forgive(dict.fromkeys(chain(here, self._buckets.values())))
        if self.on:
            self._changing.extend(sock.look_at_rates for sock in sockets)
        if not going:
            self._change()

    def _forgive(self, buckets: Iterable[Bucket]) -> None:
        """What is owed at another rate is owed no more."""
        for bucket in buckets:
            bucket.due = {MESSAGES: 0.0, BYTES: 0.0}
            if bucket.line:
                self._changing.append(partial(self._serve, bucket))

    def _change(self) -> None:
        """Thousands may be here, or wait, each with a read of its socket: as many as a turn may
        take.
        """
        stint = Stint(self.clock)
        try:
            while self._changing:
                self._changing.popleft()()
                if stint.over():
                    break
        finally:
            if self._changing:
                asyncio.get_running_loop().call_later(SHORTEST, self._change)

    def toll(
        self, whose: str, client: str, turn: Callable[[], None],
        ends: Callable[[], bool] | None = None,
    ) -> Toll:  # fmt: skip
        """What a connection of that user and client pays."""
        own = f"client {client!r} of {whose}" if client else f"a client of {whose}"
        # Without a name nobody could come back and be known.
        one = self._bucket(CLIENT, own, (whose, client)) if client else Bucket(CLIENT, own)
        return Toll(self, (one, self._bucket(USER, whose, (whose,))), turn, ends)

    def _bucket(self, kind: str, whose: str, key: tuple[str, ...]) -> Bucket:
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = Bucket(kind, whose, key)
        found.held += 1
        return found

    def leave(self, toll: Toll) -> None:
        """A connection is gone. What it owes is remembered, for it may come back."""
        if toll.gone:
            return
        toll.gone, toll.rest, toll.at = True, b"", 0
        toll.stream.clear()
        for bucket in toll.buckets:
            bucket.held -= 1
            if toll.slowed:
                bucket.line.pop(toll, None)
            if bucket.floor is toll:
                self.go_on(bucket, self.clock.now())
            if bucket.key and not bucket.held:
                self._left.append(bucket)

    def sweep(self, now: float) -> None:
        """Forget those who owe nothing and have nobody here; a few times a second."""
        for _ in range(min(FORGOTTEN, len(self._left))):
            bucket = self._left.popleft()
            if bucket.held or self._buckets.get(bucket.key) is not bucket:
                continue
            if max(bucket.paid(), bucket.told_again) > now:
                self._left.append(bucket)
            else:
                del self._buckets[bucket.key]

    def charge(self, bucket: Bucket, messages: int, size: int, now: float) -> float:
        """Add to what is owed there; how many seconds of the rate that was."""
        worth, earliest = 0.0, now - self._burst
        for what, amount in ((MESSAGES, messages), (BYTES, size)):
            most = self.most[bucket.kind, what]
            if most:
                seconds = amount / most
                bucket.due[what] = max(bucket.due[what], earliest) + seconds
                worth = max(worth, seconds)
            else:
                bucket.due[what] = 0.0
        return worth

    def slow_down(self, bucket: Bucket, now: float) -> None:
        """Somebody stands in line there."""
        if bucket.serving is None:
            self._come_back(bucket, now)
        what = max(bucket.due, key=bucket.due.__getitem__)
        name = f"{bucket.kind}_{what}"
        self._metrics.slowed[name] = self._metrics.slowed.get(name, 0) + 1
        most = self.most[bucket.kind, what]
        if most and now >= bucket.told_again:  # else it waits for those before it, and for no rate
            bucket.told_again = now + MINUTE
            log.warning(
                "%s sends more than limits.%s = %d and is read from more slowly",
                bucket.whose, name, most,
            )  # fmt: skip

    def make_room(self, bucket: Bucket, now: float) -> None:
        """Many stand in line there. Who has closed goes, the oldest first: it holds a descriptor
        that others may need. A few are looked at each time.
        """
        for _ in range(LOOKED_AT):
            if not bucket.unlooked:
                bucket.unlooked = list(reversed(bucket.line))
            toll = bucket.unlooked.pop()
            if toll not in bucket.line or toll.ends is None or not toll.ends():
                continue
            self.leave(toll)
            self._metrics.refused[GONE] = self._metrics.refused.get(GONE, 0) + 1
            if now >= bucket.gone_again:
                bucket.gone_again = now + MINUTE
                log.warning(
                    "%s has more than %d connections that wait for its rate; what those said "
                    "that it has closed is not heard any more", bucket.whose, GONE_MOST,
                )  # fmt: skip
            if len(bucket.line) <= GONE_MOST:
                return

    def _come_back(self, bucket: Bucket, now: float, least: float = SHORTEST) -> None:
        wait = max(bucket.paid() - now, least)
        bucket.serving = asyncio.get_running_loop().call_later(wait, self._serve, bucket)

    def go_on(self, bucket: Bucket, now: float) -> None:
        """Who had its turn has paid for it, or is gone."""
        bucket.floor = None
        if bucket.serving is not None:
            bucket.serving.cancel()
            bucket.serving = None
        if bucket.line:
            self._come_back(bucket, now)

    def _serve(self, bucket: Bucket) -> None:
        """Who is first in line goes on, and the next if nothing is owed then. Who has yet to be
        read is waited for a moment, or all in line would be heard at once. So they would be where a
        second's worth is saved up, or no rate is set any more: each turn has its part.
        """
        bucket.rest()
        stint = Stint(self.clock)
        for _ in range(len(bucket.line)):
            if bucket.paid() > self.clock.now():
                break
            toll, _ = bucket.line.popitem(last=False)
            if toll.gone or not toll.enter(toll.stage + 1):
                continue
            toll.pay_ahead()
            toll.turn()
            if toll.entered and not toll.gone:
                bucket.floor = toll
                break
            if stint.over():
                break
        if bucket.line and bucket.serving is None:
            least = FLOOR_SECONDS if bucket.floor is not None else SHORTEST
            self._come_back(bucket, self.clock.now(), least)


class Paying(Conversing):
    """What a socket does about its rates."""

    __slots__ = ()
    busy: bool

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def schedule(self) -> None:
        raise NotImplementedError

    def look_at_rates(self) -> None:
        raise NotImplementedError

    def hear_later(self) -> None:
        raise NotImplementedError

    def hear_soon(self) -> None:
        raise NotImplementedError

    def toll_of(self, rates: Rates, whose: str, client: str) -> Toll | None:
        """Somebody was let in on it, or a rate was set. HTTP may bring another one each time."""
        old = self.toll
        same = old is not None and old.buckets and old.buckets[1].whose == whose
        if same or not (whose and rates.on):
            return old
        new = rates.toll(whose, client, self._turn, self._ends)
        if old is not None:
            new.keep(old.rest[old.at :])
            new.stream += old.stream
            rates.leave(old)
        return new

    def hear_first(self, rates: Rates, data: bytes) -> bytes:
        """What of its first bytes is heard now. With rates it is little: what follows a login in
        the same segment is its user's to pay for.
        """
        if not rates.on:
            return data
        self.toll = Toll(rates, (), self._turn)  # type: ignore[misc]  # the socket's slot
        self.toll.keep(data)
        return self.toll.cut()

    def part_of(self, toll: Toll, data: bytes) -> bytes:
        """What of the bytes that came is heard now; the rest is kept."""
        if data:
            toll.keep(data)
        connection = self.connection
        if connection is not None and connection.asking:  # what follows a login is its user's
            if toll.left:
                self._stop()
            return b""
        if toll.slowed or self.busy or self.held or self.paused or not toll.left:
            return b""
        if not (toll.entered or toll.enter()):
            self._stop()
            return b""
        if self.frames is not None and not toll.stream:
            return toll.cut(self.frames.missing())
        return toll.cut(connection.missing() if connection is not None else 0)

    def pay(self, messages: int, size: int) -> None:
        """Pay for what was heard, and stand in line if that is too much."""
        toll = self.toll
        if toll is None:
            return
        toll.spend(messages, size)
        if toll.slowed or self.transport is None or self.transport.is_closing():
            return
        if not toll.enter():
            self._stop()
            return
        toll.entered = False  # asked again when it says more: others may have paid meanwhile
        if toll.left:
            self._stop()
        self.read_on()

    def _stop(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _turn(self) -> None:
        """It is heard again. That nothing came meanwhile was our own doing."""
        toll = self.toll
        if toll is None or toll.gone:
            return
        if self.connection is not None:
            self.connection.listens(toll.rates.clock.now())
        if toll.left:
            self.data_received(b"")
        else:
            toll.entered = unheard(self.transport)  # who has nothing to say keeps nobody waiting
            self.read_on()
        self.schedule()

    def _ends(self) -> bool:
        if not hung_up(self.transport):
            return False
        if self.transport is not None:
            self.transport.abort()
        return True

    def slowed(self) -> bool:
        """Whether nothing is read of it, because it sends too fast."""
        return self.toll is not None and self.toll.slowed

    def waits(self) -> bool:
        """Whether there is a reason to hear nothing of it now."""
        return bool(self.busy or self.held or self.paused or self.kept) or self.slowed()

    def rest(self) -> None:
        """It said much at once: all others are heard before it says more."""
        if self.transport is not None and not (self.transport.is_closing() or self.waits()):
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.read_on)

    def read_on(self) -> None:
        """Unless there is another reason not to."""
        if self.transport is None or self.transport.is_closing() or self.waits():
            return
        toll = self.toll
        unheard = toll is not None and toll.left > 0
        out_of_frames = toll is not None and bool(toll.stream)  # comes before what is left of these
        if self.frames is not None and self.frames.left is not None and not out_of_frames:
            self.hear_later()
        elif unheard:
            self.hear_soon()
        else:
            self.transport.resume_reading()
