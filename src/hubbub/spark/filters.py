"""Which rows are wanted: by seq and time as a range, by kind and topic batch by batch.

    options topics, kinds         ─┐           ┌ Bounds: which range of seq is read at all
    conditions that Spark pushes  ─┴─▶ here ──▶└ Choice: which frames are decoded, which rows kept

Values repeat, so a condition is tried once a different value and not once a row. What Spark
pushed it checks again itself: here it only saves work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from hubbub.errors import SettingError
from hubbub.journal.table import LOOKED_AT
from hubbub.schema import KINDS, column_of
from hubbub.spark.options import listed, microseconds


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


class Choice:
    """Conditions on kind and topic. Sent to the workers with the reader."""

    def __init__(self, kinds: str = "", topics: str = "") -> None:
        self.kinds = kinds_of(kinds)
        self.pattern = pattern_of(listed(topics))
        self.conditions: list[Filter] = []

    def push(self, condition: Filter) -> None:
        """Take a condition of Spark's if it is about one of the columns."""
        if isinstance(condition, _KNOWN) and condition.attribute[:1] in {("kind",), ("topic",)}:
            self.conditions.append(condition)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.pattern or self.conditions)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Which rows of a batch with these columns are wanted; None = all of them."""
        mask = None
        for column in LOOKED_AT:
            coded = batch.column(column).dictionary_encode()
            values = coded.dictionary.to_pylist()
            wanted = [self._wants(column, value) for value in values]
            if not all(wanted):
                found = pa.array(wanted, pa.bool_()).take(coded.indices)
                mask = found if mask is None else pc.and_(mask, found)
        return mask

    def _wants(self, column: str, value: str) -> bool:
        if column == "kind" and self.kinds and value not in self.kinds:
            return False
        if column == "topic" and self.pattern:
            # `re` keeps compiled expressions; the reader is pickled, so here is no place for one.
            if re.fullmatch(self.pattern, value, re.DOTALL) is None:
                return False
        return all(
            _holds(condition, value)
            for condition in self.conditions
            if condition.attribute[0] == column  # type: ignore[attr-defined]
        )


_KNOWN: Final = (
    EqualTo, EqualNullSafe, In, StringStartsWith, StringEndsWith, StringContains,
)  # fmt: skip


def _holds(condition: Filter, value: str) -> bool:
    match condition:
        case EqualTo(value=wanted) | EqualNullSafe(value=wanted):
            return bool(value == wanted)
        case In(value=values):
            return value in values
        case StringStartsWith(value=text):
            return value.startswith(text)
        case StringEndsWith(value=text):
            return value.endswith(text)
        case StringContains(value=text):
            return text in value
    return True


class Bounds(NamedTuple):
    """after < seq <= upto, since <= time < until (microseconds); 0 = no such bound."""

    after: int = 0
    upto: int = 0
    since: int = 0
    until: int = 0

    def narrowed(self, conditions: Sequence[Filter]) -> Bounds:
        """With the conditions of Spark's that are about seq or time."""
        bounds = self
        for condition in conditions:
            bounds = bounds._narrowed(condition)
        return bounds

    def _narrowed(self, condition: Filter) -> Bounds:
        match condition:
            case (
                EqualTo(attribute=(column,), value=value)
                | EqualNullSafe(attribute=(column,), value=value)
            ):
                return self._least(column, value, 0)._most(column, value, 0)
            case GreaterThan(attribute=(column,), value=value):
                return self._least(column, value, 1)
            case GreaterThanOrEqual(attribute=(column,), value=value):
                return self._least(column, value, 0)
            case LessThan(attribute=(column,), value=value):
                return self._most(column, value, 1)
            case LessThanOrEqual(attribute=(column,), value=value):
                return self._most(column, value, 0)
        return self

    def _least(self, column: str, value: object, beyond: int) -> Bounds:
        if column == "seq" and isinstance(value, int):
            return self._replace(after=max(self.after, value + beyond - 1))
        if column == "time" and isinstance(value, datetime):
            return self._replace(since=max(self.since, microseconds(value) + beyond))
        return self

    def _most(self, column: str, value: object, beyond: int) -> Bounds:
        if column == "seq" and isinstance(value, int):
            upto = max(value - beyond, 1)
            return self._replace(upto=min(self.upto or upto, upto))
        if column == "time" and isinstance(value, datetime):
            until = microseconds(value) + 1 - beyond
            return self._replace(until=min(self.until or until, until))
        return self
