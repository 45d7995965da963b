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

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Column, Moment, Spanning

GRAIN: Final = "one row a topic and minute: topic, minute"

COLUMNS: Final = (
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("minute", "timestamp", "beginning of the minute, in UTC"),
    Column("messages", "bigint", "messages published to it or sent into it"),
    Column("bytes", "bigint", "their payloads together", "bytes"),
    Column("late", "bigint", "those of them whose event time could not count"),
)


def rows(batch: DataFrame, carried: DataFrame, moment: Moment) -> DataFrame:
    """All minutes known so far that are not written yet; open = not before the watermark."""
    lateness = f"INTERVAL {moment.rules.patience():.6f} SECONDS"
    misplaced = f"(event_time > time OR event_time < time - {lateness})"
    fresh = batch.where(MESSAGE).selectExpr(
        "topic",
        f"date_trunc('minute', IF({misplaced}, time, event_time)) AS minute",
        "1L AS messages",
        "CAST(length(payload) AS bigint) AS bytes",
        f"CAST({misplaced} AS bigint) AS late",
    )
    both = fresh.unionByName(carried).groupBy("topic", "minute")
    summed = both.agg(*(F.sum(name).alias(name) for name in ("messages", "bytes", "late")))
    earliest = _minute(moment.until - F.expr(lateness))
    still = F.col("minute").between(earliest, _minute(moment.until))
    return summed.withColumn("open", still)


def _minute(time: Expression) -> Expression:
    return F.date_trunc("minute", time)


TABLE: Final = Spanning(
    "traffic", GRAIN, COLUMNS, lambda rules: MESSAGE, rows, clocked=True, of_messages=True
)
