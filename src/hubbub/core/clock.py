"""The two clocks of the hub. The hub makes one; a simulation passes its own.

`now` is for time-outs: monotonic seconds. `stamp` is for rows: UTC microseconds that never go
back, so that time orders the journal. Delays and expiries are counted in stamps, so a stamp never
jumps either: while the hub runs it goes with the monotonic clock, and is steered towards what the
machine's clock says by a twelfth of the time that passes at most (the rate at which chrony slews,
too). A machine's clock that is set an hour back or a year ahead ends no delay and stops none; the
time that the machine slept does count.

Only a start takes the machine's clock as it is: see `begin`. Of several processes one that is
started again goes by the time of those that run: they are one hub, and hear nobody whose time is
another.
"""

from __future__ import annotations

import time
from typing import Final

from mypy_extensions import mypyc_attr

from hubbub.core.limits import CLOCK_BEHIND

BEGUN: Final = 1
SLEW: Final = 12  # the part of the time that passes by which stamps may be steered
ASLEEP: Final = 1_000_000  # microseconds: less may be two clocks read one after the other
ASTRAY: Final = 60_000_000  # microseconds between stamps and the machine's clock that are said


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """Reads the machine's clocks. `turned`: when the loop's last turn was over, as `now` says it; 0
    = nobody does. `reading`: what is taken in came in one read of a socket, which has one stamp;
    0 = in none, BEGUN = that is to come, 2 = it has come.
    """

    def __init__(self) -> None:
        self.turned = 0.0
        self.reading = 0
        # Asked several times a message: to find them in their module takes as long as they do.
        self._seconds = time.monotonic
        self._nanoseconds = time.monotonic_ns
        self._last = 0
        self._steered = self._elapsed()
        self._slept = self._asleep()
        self._base = self._machine() - self._steered  # what is added to the monotonic clock
        self._common: memoryview | None = None  # by all processes of this hub; 0 = none runs yet

    def share(self, common: memoryview) -> None:
        """Before it begins: memory that all processes have, with one number."""
        self._common = common
        self._reset(self._elapsed())

    def _reset(self, elapsed: int) -> None:
        common = self._common
        self._base = common[0] if common is not None and common[0] else self._machine() - elapsed

    def now(self) -> float:
        return self._seconds()

    def elapsed(self) -> float:
        """Seconds as `now` has them, and those in which the machine slept."""
        return self.now() + self._asleep() / 1_000_000

    def spent(self) -> float:
        """The seconds that this thread has worked: for who must not work for too long at a time."""
        return time.thread_time()

    def stamp(self) -> int:
        stamp = self._nanoseconds() // 1000 + self._base
        if stamp > self._last:  # several times a message, and max() is a call
            self._last = stamp
        return self._last

    def taken_in(self) -> int:
        """The stamp of what came just now; all that came in one read has one."""
        if self.reading > BEGUN:
            return self._last
        self.reading += self.reading  # no read stays none
        return self.stamp()

    def begin(self, last: int) -> str:
        """A start: `last` is the time of the last row. Return what is to be said, "" for nothing.

        If the machine's clock is behind it by CLOCK_BEHIND at most, stamps go on from there. If it
        is further behind, the rows were written by a clock that was wrong: time begins again.
        """
        elapsed = self._elapsed()
        self._reset(elapsed)
        behind = last - elapsed - self._base
        self._slept = self._asleep()
        if behind > CLOCK_BEHIND * 1_000_000:
            self._last = 0
            return (
                f"the last row is {behind // 1_000_000} s ahead of the machine's clock: the clock "
                "was wrong when it was written, or is now; rows from now on have the time of now"
            )
        self._last = last
        if behind > 0:
            self._base += behind
        return ""

    def steer(self) -> int:
        """Called a few times a second; return how far stamps are ahead of the machine's clock."""
        elapsed, slept = self._elapsed(), self._asleep()
        if slept - self._slept > ASLEEP:  # that time has passed, for delays, too
            self._base += slept - self._slept
            self._slept = slept
        ahead = self.ahead()
        most = (elapsed - self._steered) // SLEW
        self._base -= max(-most, min(most, ahead))
        self._steered = elapsed
        if self._common is not None:
            self._common[0] = self._base
        return ahead

    def ahead(self) -> int:
        """How far stamps are ahead of the machine's clock."""
        return self._elapsed() + self._base - self._machine()

    def _machine(self) -> int:
        return time.time_ns() // 1000

    def _asleep(self) -> int:
        """How long the machine slept since it was started: the monotonic clock stood still."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000 - self._elapsed()

    def _elapsed(self) -> int:
        return time.monotonic_ns() // 1000


def astray(ahead: int) -> str:
    """What is to be said of stamps that are so far ahead of the machine's clock, "" for nothing."""
    if abs(ahead) <= ASTRAY:
        return ""
    goes_on = 0 < ahead <= CLOCK_BEHIND * 1_000_000  # as `Clock.begin` has it
    start = "also over a start" if goes_on else "and takes the clock as it is at the next start"
    if ahead < 0:
        start += ", which lets sessions that are away last so much longer"
    return (
        f"the time of rows is {abs(ahead) // 1_000_000} s {'ahead of' if ahead > 0 else 'behind'} "
        f"the machine's clock, which was set: it follows by 5 s a minute, {start}"
    )
