"""audit: who came in, who was refused what and why, who managed what."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.table import Column, Table

GRAIN: Final = "one row an event: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the row in the journal"),
    Column("time", "timestamp", "when it was"),
    Column("kind", "string", "connect: came in; refused; managed: did that to what is for all"),
    Column("protocol", "string", "what it spoke, '' for the hub itself"),
    Column("user", "string", "whom the gate let in, or who it said it was; '' for nobody"),
    Column("client", "string", "client id, SMQ uid or message-switch token; the first 100 of it"),
    Column("address", "string", "where it came from"),
    Column("listener", "string", "where it came in, as the settings say it"),
    Column("verb", "string", "what it wanted: connect, publish, subscribe, …; take: of a quota"),
    Column("name", "string", "topic, filter, queue or pool; of what was managed its name"),
    Column("reason", "string", "the rule that refuses, or why not; '' if it was done"),
    Column("more", "bigint", "refusals that have no row of their own: only where client is ''"),
)

EVENT: Final = "kind IN ('connect', 'refused', 'managed')"


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """What people want to know of a batch; older journals say less of who came in."""

    def said(name: str) -> Expression:
        return F.get_json_object("properties", f"$.{name}")

    nothing = F.lit("")
    return batch.where(EVENT).select(
        "seq", "time", "kind", "protocol", F.coalesce(said("user"), nothing).alias("user"),
        "client", F.coalesce(said("address"), nothing).alias("address"),
        F.coalesce(said("listener"), nothing).alias("listener"),
        F.coalesce(said("verb"), F.when(F.col("kind") == "connect", "connect"), nothing)
        .alias("verb"),
        F.col("topic").alias("name"),
        F.coalesce(said("rule"), said("reason"), said("trouble"), nothing).alias("reason"),
        F.when(F.col("kind") == "refused", F.col("number")).otherwise(0).alias("more"),
    )  # fmt: skip


TABLE: Final = Table("audit", GRAIN, COLUMNS, lambda rules: EVENT, rows, of_messages=False)
