"""quarantine: messages that are not what their content type, or the rules, say they are.

A message that nothing declares is never here: without a declaration bytes are just bytes. One that
is no row of a typed table (`pipeline.typed`) is here for each such table, unless its content type
is wrong already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from hubbub.pipeline.cells import Fitter
from hubbub.pipeline.decode import Undecodable, leaves
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.tables.messages import MESSAGE, named
from hubbub.pipeline.tables.table import Column, Make, Table, arrow, ddl, each

GRAIN: Final = "one row a message and what it should be: seq, declared"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the message in the journal"),
    Column("time", "timestamp", "when the hub took it in"),
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("protocol", "string", "protocol it came by"),
    Column("client", "string", "who sent it"),
    Column("declared", "string", "the content type it should have, or `table NAME`"),
    Column("reason", "string", "why it could not be decoded"),
    Column("payload", "binary", "the bytes of the message"),
)

_CONTEXT: Final = ("seq", "time", "topic", "protocol", "client")
_SCHEMA: Final = arrow(COLUMNS)


def event(rules: Rules) -> str:
    """The messages that a content type or a rule declares."""
    said = "|".join(part for part in (rules.declared(), rules.placed()) if part)
    by_rule = f" OR {named(said)}" if said else ""
    return f"{MESSAGE} AND (content_type <> ''{by_rule})"


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """The declared messages of a batch that are not what they should be."""
    chosen = batch.where(event(rules))
    chosen = chosen.select(*_CONTEXT, "content_type", "payload", "event_time")
    return chosen.mapInArrow(partial(each, made=made, rules=rules), ddl(COLUMNS))


def made(rules: Rules) -> Make:
    fitters = [(one.name, Fitter(one, rules)) for one in rules.table]
    return partial(_made, Reading(rules), fitters)


def _made(
    reading: Reading, fitters: list[tuple[str, Fitter]], messages: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Those of some messages that are declared and cannot be decoded."""
    names = ("payload", "content_type", "topic", "time", "event_time")
    columns = (messages.column(name).to_pylist() for name in names)
    found = []
    for index, (payload, content_type, topic, *times) in enumerate(zip(*columns, strict=True)):
        declared = content_type or reading.of(topic)[0]
        reason = _reason(payload, declared) if declared else ""
        if reason:
            found.append((index, declared, reason))
            continue
        for name, fitter in fitters:
            if fitter.concerns(topic):
                reason = fitter.reason(times, topic, payload, declared)
                if reason:
                    found.append((index, f"table {name}", reason))
    if found:
        yield _built(messages, found)


def _reason(payload: bytes, declared: str) -> str:
    try:
        leaves(payload, declared)
    except Undecodable as error:
        return str(error) or "it cannot be decoded"
    return ""


def _built(batch: pa.RecordBatch, found: list[tuple[int, str, str]]) -> pa.RecordBatch:
    chosen, declared, reasons = zip(*found, strict=True)
    kept = batch.take(pa.array(chosen, pa.int32()))
    columns = [kept.column(name) for name in _CONTEXT]
    words = [pa.array(declared, pa.string()), pa.array(reasons, pa.string())]
    return pa.record_batch([*columns, *words, kept.column("payload")], schema=_SCHEMA)


TABLE: Final = Table("quarantine", GRAIN, COLUMNS, event, rows, made=made)
