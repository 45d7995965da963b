"""audit: who came in, who was refused what and why, who managed what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.table import Column, Make, Table, arrow, ddl, each
from hubbub.schema import name_shown

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


_KINDS: Final = pa.array(["connect", "refused", "managed"])
_SCHEMA: Final = arrow(COLUMNS)


def made(rules: Rules) -> Make:
    return _made


def _made(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What people want to know of some rows; older journals say less of who came in."""
    found = rows.filter(pc.is_in(rows["kind"], value_set=_KINDS))
    if not found.num_rows:
        return
    said = [_properties(one) for one in found["properties"].cast(pa.binary()).to_pylist()]
    kinds = found["kind"].to_pylist()
    columns = {name: found[name] for name in ("seq", "time", "kind", "protocol", "client")}
    columns |= {name: [one.get(name, "") for one in said] for name in _SAID}
    columns["verb"] = [
        one.get("verb", "connect" if kind == "connect" else "")
        for kind, one in zip(kinds, said, strict=True)
    ]
    columns["name"] = found["topic"]
    columns["reason"] = [
        next((one[name] for name in _REASONS if name in one), "") for one in said
    ]
    refused = pc.equal(found["kind"], "refused")
    columns["more"] = pc.if_else(refused, found["number"], 0)
    yield pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


_SAID: Final = ("user", "address", "listener")
_REASONS: Final = ("rule", "reason", "trouble")


def _properties(said: bytes) -> dict[str, str]:
    """The values that properties have, as texts; none if they are not the hub's own words."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: name_shown(value) if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """The same where Spark writes."""
    chosen = batch.where(EVENT)
    return chosen.mapInArrow(partial(each, made=made, rules=rules), ddl(COLUMNS))


TABLE: Final = Table(
    "audit", GRAIN, COLUMNS, lambda rules: EVENT, rows, of_messages=False, made=made
)
