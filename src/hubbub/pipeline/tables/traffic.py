"""traffic: what passed through each topic, minute by minute.

A message counts in the minute of its event time. The watermark is the hub's clock less the
lateness that the rules allow, not the largest event time seen: a device with a wrong clock
closes nobody's minute, and whether a message is late does not depend on the cut of the batches.

    event time   … watermark ………………………… time of its row …
                 late         its own minute         future

A message that is late, or from the future, counts in the minute of its row, and in `late`: each
message counts once. A minute closes when the watermark has passed it; while nothing at all is
written to the journal it stays open.

A hub whose clock was once in the future, and put right at a start, has written minutes that are
still to come. Time has left them, so they close. One that was open when its clock went astray may
have two rows, whose sums are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Column, Make, Summed, arrow

GRAIN: Final = "one row a topic and minute: topic, minute"

COLUMNS: Final = (
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("minute", "timestamp", "beginning of the minute, in UTC"),
    Column("messages", "bigint", "messages published to it or sent into it"),
    Column("bytes", "bigint", "their payloads together", "bytes"),
    Column("late", "bigint", "those of them whose event time could not count"),
)


_SCHEMA: Final = arrow(COLUMNS)
_KEYS: Final = ("topic", "minute")
_SUMS: Final = ("messages", "bytes", "late")


def part(rules: Rules) -> Make:
    return partial(_part, timedelta(seconds=rules.patience()))


def _part(patience: timedelta, messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The sums of some messages."""
    time, own = messages["time"], messages["event_time"]
    oldest = pc.subtract(time, patience)
    misplaced = pc.or_(pc.greater(own, time), pc.less(own, oldest))
    columns = [
        messages["topic"],
        pc.floor_temporal(pc.if_else(misplaced, time, own), unit="minute"),
        pa.repeat(pa.scalar(1, pa.int64()), messages.num_rows),
        pc.cast(pc.binary_length(messages["payload"]), pa.int64()),
        pc.cast(misplaced, pa.int64()),
    ]
    yield from added(pa.table(columns, schema=_SCHEMA)).to_batches()


def added(rows: pa.Table) -> pa.Table:
    """Such sums of the same minute together."""
    groups = rows.group_by(list(_KEYS), use_threads=False)
    found = groups.aggregate([(name, "sum") for name in _SUMS])
    sums = [found[f"{name}_sum"] for name in _SUMS]
    return pa.table([found["topic"], found["minute"], *sums], schema=_SCHEMA)


def summed(parts: pa.Table, until: datetime, rules: Rules) -> pa.Table:
    """All minutes known so far that are not written yet; open = not before the watermark."""
    found = added(parts)
    first, last = (_minute(until - wait) for wait in (timedelta(seconds=rules.patience()), _NOW))
    still = pc.and_(pc.greater_equal(found["minute"], first), pc.less_equal(found["minute"], last))
    # What stays open is looked at again with each batch, in whatever order: only the rest has one.
    over = found.filter(pc.invert(still)).sort_by([("minute", "ascending"), ("topic", "ascending")])
    both = ((over, False), (found.filter(still), True))
    return pa.concat_tables([rows.append_column("open", pa.repeat(mark, len(rows)))
                             for rows, mark in both])  # fmt: skip


_NOW: Final = timedelta()


def _minute(time: datetime) -> pa.Scalar:
    return pa.scalar(time.replace(second=0, microsecond=0), pa.timestamp("us", "UTC"))


TABLE: Final = Summed("traffic", GRAIN, COLUMNS, lambda rules: MESSAGE, part, summed, _KEYS)
