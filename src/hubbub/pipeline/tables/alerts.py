"""alerts: what the rules of the user found, and published.

The SQL of a rule runs once a batch, over the rows that the batch added to each table. It must
say the same when it is asked again (no random(), no current_timestamp()): a batch that was cut
short runs again, and the hub knows an alert it already took by its place.

A rule that fails stands alone: it is reported, and the others and all tables go on. However many
rows the rules find, they are written by Spark, and read back a piece at a time to be published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import islice
from typing import Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from hubbub.errors import SettingError
from hubbub.pipeline.rules import Alert
from hubbub.pipeline.tables.table import Column, Derived

NAME: Final = "alerts"
GRAIN: Final = "one row an alert: seq, number"

COLUMNS: Final = (
    Column("seq", "bigint", "the row of the journal up to which the batch read"),
    Column("number", "int", "its place among the alerts of the batch, from 0"),
    Column("rule", "string", "name of the rule that found it"),
    Column("time", "timestamp", "when the hub took that row in"),
    Column("topic", "string", "where it is published"),
    Column("qos", "tinyint", "0, 1 or 2"),
    Column("retain", "boolean", "it replaces the retained message of its topic"),
    Column("payload", "string", "the row that the rule found, as a JSON object"),
    Column("published", "boolean", "not if it was too old, or had been before the tables were "
           "made again; null where an older version wrote it"),
)  # fmt: skip

PIECE: Final = 1_000  # alerts that are in memory at once


class Found(NamedTuple):
    """A message to publish."""

    seq: int
    number: int
    rule: str
    topic: str
    qos: int
    retain: bool
    payload: str


class Batch(NamedTuple):
    """The batch that is asked: its last row and the time of it; when it began, in s since 1970.

    What was found in rows up to `fence` was published before.
    """

    seq: int
    time: str
    begun: float
    fence: int = 0


def check(spark: SparkSession, rules: tuple[Alert, ...]) -> None:
    """Raise SettingError for SQL that is wrong whatever the rows; the tables are views."""
    for rule in rules:
        try:
            _asked(spark, rule).schema  # noqa: B018  # what analyses it
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise SettingError(f"alert {rule.name!r}: {reason}") from error


def find(
    spark: SparkSession,
    rules: tuple[Alert, ...],
    batch: Batch,
    asks: Callable[[str], None],
    failed: Callable[[str, str], None],
) -> Answer:
    """The alerts of a batch; its tables are views.

    `asks` is told which rule comes next, "" at the end; `failed` that a rule could not be asked,
    and why.
    """
    answer = Answer()
    for place, rule in enumerate(rules):
        asks(rule.name)
        try:
            answer.add(_asked(spark, rule), partial(_alerts, place=place, rule=rule, batch=batch))
        except PySparkException as error:
            failed(rule.name, str(error).strip().splitlines()[0])
    asks("")
    return answer


class Answer:
    """What rules found. Spark keeps it, so that nothing can fail any more once it is here."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []
        self._found: list[DataFrame] = []

    def add(self, rows: DataFrame, alerts: Callable[[DataFrame], DataFrame]) -> None:
        self._kept.append(rows.persist())
        if rows.count():
            self._found.append(alerts(rows))

    def release(self) -> None:
        for rows in self._kept:
            rows.unpersist()

    def rows(self) -> DataFrame | None:
        """As rows of the table, None if there are none.

        The order, and so `number`, is the same whenever a batch is asked again.
        """
        return _ordered(reduce(DataFrame.unionByName, self._found)) if self._found else None


def _ordered(found: DataFrame) -> DataFrame:
    together = found.repartition(1)
    ordered = together.sortWithinPartitions("place", "payload", "published")
    numbered = ordered.withColumn("number", F.monotonically_increasing_id())  # of one partition
    return numbered.select(*(F.col(one.name).cast(one.type).alias(one.name) for one in COLUMNS))


def _asked(spark: SparkSession, rule: Alert) -> DataFrame:
    """What the rule finds: `payload`, and, if its rows have them, `at` (time) and `row` (seq)."""
    rows = spark.sql(rule.sql)
    types = {field.name: field.dataType for field in rows.schema.fields}
    timed = isinstance(types.get("time"), TimestampType)
    at = F.col("time") if timed else F.lit(None).cast("timestamp")
    row = F.col("seq") if "seq" in types else F.lit(None)
    payload = F.to_json(F.struct("*"))
    return rows.select(payload.alias("payload"), at.alias("at"), row.cast("bigint").alias("row"))


def _alerts(rows: DataFrame, place: int, rule: Alert, batch: Batch) -> DataFrame:
    time = F.lit(batch.time).cast("timestamp")
    oldest = F.timestamp_micros(F.lit(int((batch.begun - rule.max_age) * 1e6)))
    new = (F.coalesce("at", time) >= oldest) & (F.coalesce("row", F.lit(batch.seq)) > batch.fence)
    said = {
        "place": F.lit(place), "seq": F.lit(batch.seq), "rule": F.lit(rule.name), "time": time,
        "topic": F.lit(rule.topic), "qos": F.lit(rule.qos), "retain": F.lit(rule.retain),
        "published": new,
    }  # fmt: skip
    return rows.select("payload", *(value.alias(name) for name, value in said.items()), "at", "row")


def pieces(written: DataFrame) -> Iterator[list[Found]]:
    """Those to publish, in their order, some at a time."""
    chosen = written.where("published").orderBy("number").select(*Found._fields)
    rows = map(Found._make, chosen.toLocalIterator())
    while piece := list(islice(rows, PIECE)):
        yield piece


TABLE: Final = Derived(NAME, GRAIN, COLUMNS)
