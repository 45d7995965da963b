"""The main figures of the last day, one point every FIGURES_SECONDS, in a ring of bounded memory.

    counters    how much a second since the point before
    gauges      what was so at the point
    times       of this interval, in milliseconds, from the histograms that `/metrics` shows

So a page that is loaded again, or by somebody else, shows what was. Nothing is kept over a restart:
the first point is then an interval after it. The node asks four times a second; the API reads.
"""

from __future__ import annotations

import resource
import shutil
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice, pairwise
from operator import sub
from typing import Final, NamedTuple

from hubbub.core.broker import Broker
from hubbub.core.limits import FIGURES_KEPT, FIGURES_SECONDS
from hubbub.core.metrics import Histogram
from hubbub.journal.writer import Journal

QUEUES_COUNTED: Final = 10_000  # whose messages are added up: a millisecond

Reading = Callable[[], float]


class Figure(NamedTuple):
    """`kind`: how points are made of readings, and several points one: their mean or most."""

    name: str
    kind: str


RATE: Final = "rate"
GAUGE: Final = "gauge"
TIME: Final = "time"

FIGURES: Final = (
    Figure("published", RATE),
    Figure("delivered", RATE),
    Figure("bytes_received", RATE),
    Figure("bytes_sent", RATE),
    Figure("dropped", RATE),
    Figure("connections_made", RATE),
    Figure("logins_refused", RATE),
    Figure("actions_refused", RATE),
    Figure("rows_written", RATE),
    Figure("bytes_written", RATE),
    Figure("cpu", RATE),  # seconds of a processor a second
    Figure("clients", GAUGE),
    Figure("connections", GAUGE),
    Figure("lasting", GAUGE),  # sessions, those that are away among them
    Figure("retained", GAUGE),
    Figure("queues", GAUGE),
    Figure("queued", GAUGE),
    Figure("calls_open", GAUGE),
    Figure("waiting_bytes", GAUGE),
    Figure("memory", GAUGE),
    Figure("disk_free", GAUGE),
    Figure("commit_ms_50", TIME),
    Figure("commit_ms_99", TIME),
    Figure("delivery_ms_50", TIME),
    Figure("delivery_ms_99", TIME),
    Figure("call_ms_50", TIME),
    Figure("call_ms_99", TIME),
    Figure("loop_ms_50", TIME),
    Figure("loop_ms_99", TIME),
)  # fmt: skip


SAME: Final[dict[str, Callable[..., float]]] = {"retained": max, "disk_free": min}  # not summed


def together(several: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Columns of several processes as those of one hub, at the times of who has most points: each
    adds what it had at the point nearest to that. What is the same everywhere is not added up, and
    of times the largest counts.
    """
    base = max(several, key=lambda columns: len(columns["time"]))
    times = base["time"]
    step = max((after - before for before, after in pairwise(times)), default=FIGURES_SECONDS * 1e6)
    places = [[_nearest(one["time"], time, step) for time in times] for one in several]
    found = {"time": times}
    for name, kind in FIGURES:
        put = SAME.get(name, max if kind is TIME else sum)
        columns = list(zip(several, places, strict=True))
        found[name] = [
            put([one[name][at[index]] for one, at in columns if at[index] >= 0])
            for index in range(len(times))
        ]
    return found


def _nearest(times: list[float], wanted: float, most: float) -> int:
    """Where the time is that is nearest, -1 if none is so near: it was not there then."""
    at = bisect_left(times, wanted)
    near = [index for index in (at - 1, at) if 0 <= index < len(times)]
    found = min(near, key=lambda index: abs(times[index] - wanted), default=-1)
    return found if found >= 0 and abs(times[found] - wanted) <= most else -1


class Figures:
    """`points`: when (microseconds since 1970) and the values, in the order of FIGURES."""

    def __init__(self, broker: Broker, journal: Journal | None, delay: Histogram) -> None:
        self.points: deque[tuple[int, array[float]]] = deque(maxlen=FIGURES_KEPT)
        self._clock = broker.clock
        self._readings = {**_of_process(), **_of_broker(broker), **_of_journal(journal)}
        self._times = {
            "loop": _Times(delay),
            "delivery": _Times(broker.sampled.transit.seconds),
            "call": _Times(broker.queues.calls.seconds),
        }
        if journal is not None:
            self._times["commit"] = _Times(journal.pulse.commit_seconds)
        self._before = self._read()
        self._at = self._clock.now()

    def wake(self, now: float) -> None:
        """Make a point if it is time."""
        passed = now - self._at
        if passed < FIGURES_SECONDS:
            return
        read, times = self._read(), {}
        for name, one in self._times.items():
            times[f"{name}_ms_50"], times[f"{name}_ms_99"] = one.since()
        values = array("d")
        for (name, kind), after, before in zip(FIGURES, read, self._before, strict=True):
            values.append((after - before) / passed if kind is RATE else times.get(name, after))
        self.points.append((self._clock.stamp(), values))
        self._before, self._at = read, now

    def since(self, when: int, most: int) -> dict[str, list[float]]:
        """Columns of the points after that time, put together so that they are `most` at most."""
        found = [point for point in self.points if point[0] > when]
        width = max(1, -(-len(found) // most))
        pieces = [found[at : at + width] for at in range(0, len(found), width)]
        columns: dict[str, list[float]] = {"time": [piece[-1][0] for piece in pieces]}
        for index, (name, kind) in enumerate(FIGURES):
            several = [[values[index] for _, values in piece] for piece in pieces]
            columns[name] = [round(max(v) if kind is TIME else sum(v) / len(v), 3) for v in several]
        return columns

    def _read(self) -> list[float]:
        readings = self._readings
        return [readings[name]() if name in readings else 0.0 for name, _ in FIGURES]


class _Times:
    """What came into a histogram since it was last asked."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._before = list(histogram.counts)

    def since(self) -> tuple[float, float]:
        """Half and 99 of 100 took no longer than so many milliseconds; 0 if nothing was done."""
        counts = list(self._histogram.counts)
        new, self._before = list(map(sub, counts, self._before)), counts
        return _quantile(new, 0.5), _quantile(new, 0.99)


def _quantile(counts: list[int], share: float) -> float:
    """Within a bucket its times count as spread evenly, as Prometheus does it."""
    wanted, low = share * sum(counts), 0.0
    for count, high in zip(counts, (*Histogram.BOUNDS, Histogram.BOUNDS[-1]), strict=True):
        if count and wanted <= count:
            return 1000 * (low + (high - low) * wanted / count)
        wanted, low = wanted - count, high
    return 0.0


def _of_broker(broker: Broker) -> dict[str, Reading]:
    metrics, state, refusals = broker.metrics, broker.state, broker.audit.refusals
    return {
        "published": lambda: metrics.messages_in,
        "delivered": lambda: metrics.messages_out,
        "bytes_received": lambda: metrics.bytes_received,
        "bytes_sent": lambda: broker.outgoing.bytes_sent,
        "dropped": lambda: sum(metrics.dropped.values()),
        "connections_made": lambda: metrics.connections,
        "logins_refused": lambda: refusals.logins,
        "actions_refused": lambda: refusals.actions,
        "clients": lambda: len(broker.clients),
        "connections": lambda: metrics.connections - metrics.connections_ended,
        "lasting": lambda: len(state.sessions),
        "retained": lambda: len(state.retained),
        "queues": lambda: len(state.queues),
        "queued": lambda: sum(
            len(queue.messages) for queue in islice(state.queues.values(), QUEUES_COUNTED)
        ),
        "calls_open": lambda: len(broker.replies.open),
    }  # fmt: skip


def _of_journal(journal: Journal | None) -> dict[str, Reading]:
    if journal is None:
        return {}
    pulse, path = journal.pulse, journal.directory.path
    return {
        "rows_written": lambda: pulse.rows,
        "bytes_written": lambda: pulse.bytes,
        "waiting_bytes": lambda: journal.pending_bytes,
        "disk_free": lambda: shutil.disk_usage(path).free,
    }


def _of_process() -> dict[str, Reading]:
    return {"cpu": time.process_time, "memory": _memory}


def _memory() -> float:
    """What this process has in memory now; where there is no /proc, what it had at most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
