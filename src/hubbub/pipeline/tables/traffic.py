"""traffic: what passed through each topic, minute by minute.

A minute closes when the journal has a row of a later one: the time of rows never goes back. While
nothing at all is written, the last minute stays open.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Column, Spanning

GRAIN: Final = "one row a topic and minute: topic, minute"

COLUMNS: Final = (
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("minute", "timestamp", "beginning of the minute, in UTC"),
    Column("messages", "bigint", "messages published to it or sent into it"),
    Column("bytes", "bigint", "their payloads together", "bytes"),
)


def rows(batch: DataFrame, carried: DataFrame, until: Expression) -> DataFrame:
    """All minutes known so far that are not written yet; open = the minute of `until`."""
    fresh = batch.where(MESSAGE).select(
        "topic",
        F.date_trunc("minute", "time").alias("minute"),
        F.lit(1).cast("bigint").alias("messages"),
        F.length("payload").cast("bigint").alias("bytes"),
    )
    both = fresh.unionByName(carried).groupBy("topic", "minute")
    summed = both.agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    return summed.withColumn("open", F.col("minute") >= F.date_trunc("minute", until))


TABLE: Final = Spanning("traffic", GRAIN, COLUMNS, rows)
