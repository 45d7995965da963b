"""History back into topics: what `messages` has, published again in its old rhythm.

Called by `hubbub pipeline replay`. Only what was published to topics is replayed, in the order of
the journal, with its payload, QoS, retain flag, content type and sub-topic; what went into queues
is not, nor the hub's own topics. `plan` says what would happen and sends nothing.

    at 10×: a message that came 30 s after the first one leaves 3 s after the first one
    at max: speed 0, as fast as the hub takes them
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.pipeline.publish import LINES, Publisher, message_of
from hubbub.spark.filters import pattern_of

TICK: Final = 0.02  # seconds: what is due within them leaves together


class Choice(NamedTuple):
    """Which messages: their topics as MQTT filters, and times, "" for no bound; UTC."""

    topics: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


class Plan(NamedTuple):
    """What a replay would do."""

    messages: int
    topics: int
    bytes: int
    first: datetime | None
    last: datetime | None

    def seconds(self, speed: float) -> float | None:
        """How long it takes, None if only the hub sets the pace."""
        if self.first is None or self.last is None or not speed:
            return None
        return (self.last - self.first).total_seconds() / speed


def chosen(spark: SparkSession, choice: Choice) -> DataFrame:
    """The rows of the view `messages` that will be replayed, in their order."""
    rows = spark.table("messages").where("kind = 'publish' AND NOT startswith(topic, '$')")
    if choice.topics:
        rows = rows.where(F.col("topic").rlike(rf"^(?s:{pattern_of(choice.topics)})\z"))
    if choice.since:
        since = F.lit(choice.since).cast("timestamp")
        rows = rows.where((F.col("time") >= since) & (F.col("day") >= F.to_date(since)))
    if choice.until:
        until = F.lit(choice.until).cast("timestamp")
        rows = rows.where((F.col("time") < until) & (F.col("day") <= F.to_date(until)))
    return rows.orderBy("seq")


def plan(rows: DataFrame) -> Plan:
    found = rows.agg(
        F.count("*"),
        F.count_distinct("topic"),
        F.coalesce(F.sum(F.length("payload")), F.lit(0)),
        F.min("time"),
        F.max("time"),
    ).first()
    assert found is not None
    return Plan(*found)


def play(
    rows: Iterable[Any],
    publisher: Publisher,
    speed: float,
    prefix: str = "",
    report: Callable[[int], None] = lambda sent: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Publish the rows at `speed` times their rhythm, 0 = as fast as possible; return how many."""
    query = f"replay-{uuid.uuid4().hex}"
    begun: float | None = None
    first = 0.0
    sent = 0
    due: list[dict[str, Any]] = []

    def leave() -> None:
        nonlocal sent
        publisher.send(f"{query}/0/0", sent, due)
        sent += len(due)
        due.clear()
        report(sent)

    for row in rows:
        if speed:
            at = row["time"].timestamp()
            if begun is None:
                begun, first = clock(), at
            wait = begun + (at - first) / speed - clock()
            if wait > TICK:
                leave()
                sleep(wait)
        due.append(message_of(row, prefix))
        if len(due) >= LINES:
            leave()
    if due:
        leave()
    publisher.forget(query)
    return sent
