"""alerts: what the rules of the user found, and published.

The SQL of a rule runs once a batch, over the rows that the batch added to each table. It must
say the same when it is asked again (no random(), no current_timestamp()): a batch that was cut
short runs again, and the hub knows an alert it already took by its place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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
)

MOST: Final = 10_000  # alerts of one batch: more is a rule that says something of every message


class Found(NamedTuple):
    """A row of the table, and a message to publish."""

    seq: int
    number: int
    rule: str
    time: str
    topic: str
    qos: int
    retain: bool
    payload: str


def find(spark: SparkSession, rules: tuple[Alert, ...], seq: int, time: str) -> list[Found]:
    """The alerts of a batch, in an order that is the same if it is asked again.

    The batch ends with the row `seq`; its tables are views of the session. Raises SettingError
    for SQL that cannot run, and for more than MOST alerts.
    """
    found: list[Found] = []
    for rule in rules:
        for payload in _payloads(spark, rule):
            said = (rule.name, time, rule.topic, rule.qos, rule.retain, payload)
            found.append(Found(seq, len(found), *said))
    return found


def _payloads(spark: SparkSession, rule: Alert) -> list[str]:
    try:
        rows = spark.sql(rule.sql)
        said = rows.select(F.to_json(F.struct("*")).alias("payload")).orderBy("payload")
        payloads = [row.payload for row in said.limit(MOST + 1).collect()]
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingError(f"alert {rule.name!r}: {reason}") from error
    if len(payloads) > MOST:
        raise SettingError(
            f"alert {rule.name!r} finds more than {MOST} rows in one batch: narrow its WHERE"
        )
    return payloads


def frame(spark: SparkSession, found: list[Found]) -> DataFrame:
    """Alerts as rows of the table."""
    rows = spark.createDataFrame(
        found,
        "seq bigint, number int, rule string, time string, topic string, qos int, retain boolean, "
        "payload string",
    )
    return rows.select(
        *(rows[column.name].cast(column.type).alias(column.name) for column in COLUMNS)
    )


TABLE: Final = Derived(NAME, GRAIN, COLUMNS)
