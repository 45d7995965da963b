"""Picks rows of the journal by kind and by MQTT topic filter, batch by batch.

Called by the source in Spark's workers. Topics repeat, so a filter is tried once a different
topic and not once a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from hubbub.errors import SettingError
from hubbub.schema import KINDS, column_of


def listed(option: str) -> tuple[str, ...]:
    """The parts of a comma-separated option, spaces around them dropped."""
    return tuple(part for part in (piece.strip() for piece in option.split(",")) if part)


def kinds_of(option: str) -> tuple[str, ...]:
    """The `kinds` option checked: raises SettingError for a kind that no row has."""
    kinds = listed(option)
    unknown = [kind for kind in kinds if kind.encode() not in KINDS]
    if unknown:
        known = ", ".join(sorted(kind.decode() for kind in KINDS))
        raise SettingError(f"kinds: there is no kind {unknown[0]!r}; kinds are {known}")
    return kinds


def pattern_of(filters: Iterable[str]) -> str:
    """One regular expression for topics that match any of the MQTT filters; "" for no filters.

    Raises SettingError where a wildcard is not a whole level, or `#` not the last one
    (MQTT 5 section 4.7.1).
    """
    return "|".join(_expression(topic_filter) for topic_filter in filters)


def _expression(topic_filter: str) -> str:
    levels = column_of(topic_filter).decode().split("/")
    for index, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise SettingError(f"topics: a wildcard must be a whole level in {topic_filter!r}")
        if level == "#" and index != len(levels) - 1:
            raise SettingError(f"topics: # must be the last level in {topic_filter!r}")
    # Names that begin with $ match no filter that begins with a wildcard (section 4.7.2).
    guard = r"(?!\$)" if levels[0] in ("+", "#") else ""
    last = levels.pop() if levels[-1] == "#" else ""
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    if not last:
        return guard + body
    return guard + (body + "(?:/.*)?" if levels else ".*")


def select(batch: pa.RecordBatch, kinds: tuple[str, ...], pattern: str) -> pa.RecordBatch:
    """The rows whose kind is listed and whose topic matches; an empty choice means all."""
    if kinds:
        batch = batch.filter(pc.is_in(batch.column("kind"), pa.array(kinds, pa.string())))
    if pattern:
        batch = batch.filter(_matching(batch.column("topic"), re.compile(pattern, re.DOTALL)))
    return batch


def _matching(topics: pa.StringArray, expression: re.Pattern[str]) -> pa.BooleanArray:
    coded = topics.dictionary_encode()
    verdicts = [expression.fullmatch(topic) is not None for topic in coded.dictionary.to_pylist()]
    return pa.array(verdicts, pa.bool_()).take(coded.indices)
