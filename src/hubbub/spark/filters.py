"""Which rows are wanted: by seq and time as a range, by kind and topic batch by batch.

    options topics, kinds         ─┐           ┌ Bounds: which range of seq is read at all
    conditions that Spark pushes  ─┴─▶ here ──▶└ Choice: which frames are decoded, which rows kept

A condition is tried on a whole column by Arrow: trying each different value in Python took five
times as long as reading all rows, where each row has another topic. What Spark pushed it checks
again itself: here it only saves work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
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
from hubbub.schema import KINDS, column_of
from hubbub.spark.options import listed, microseconds

_WILD: Final = re.compile("[+#]")
PATTERN: Final = 100_000  # characters of one pattern: a filter has at most 64 KiB


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
    """Without looking ahead or at ends of lines: Python, Java and RE2 read it alike."""
    levels = column_of(topic_filter).decode().split("/")
    for index, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise SettingError(f"topics: a wildcard must be a whole level in {topic_filter!r}")
        if level == "#" and index != len(levels) - 1:
            raise SettingError(f"topics: # must be the last level in {topic_filter!r}")
    # Names that begin with $ match no filter that begins with a wildcard (section 4.7.2).
    if levels == ["#"]:
        return "(?:[^$].*)?"
    first = "(?:[^/$][^/]*)?" if levels[0] == "+" else re.escape(levels[0])
    last = levels.pop() if levels[-1] == "#" else ""
    rest = ("[^/]*" if level == "+" else re.escape(level) for level in levels[1:])
    return "/".join((first, *rest)) + ("(?:/.*)?" if last else "")


class Choice:
    """Conditions on kind and topic. Sent to the workers with the reader."""

    def __init__(self, kinds: str = "", topics: str = "") -> None:
        self.kinds = kinds_of(kinds)
        filters = listed(topics)
        self.names = [column_of(one).decode() for one in filters if not _WILD.search(one)]
        self.patterns = _together(_expression(one) for one in filters if _WILD.search(one))
        self.conditions: list[Filter] = []

    def push(self, condition: Filter) -> None:
        """Take a condition of Spark's if it is about one of the columns."""
        if isinstance(condition, _KNOWN) and condition.attribute[:1] in {("kind",), ("topic",)}:
            self.conditions.append(condition)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.names or self.patterns or self.conditions)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Which rows of a batch with these columns are wanted; None = all of them."""
        masks = list(self._masks(batch))
        if not masks:
            return None
        mask = reduce(pc.and_, masks)
        return None if mask.true_count == len(mask) else mask

    def among(self, topics: list[bytes]) -> bool:
        """Whether a row with one of these topics may be wanted."""
        names = pa.array(topics, pa.binary()).cast(pa.string())
        masks = [_held(one, names) for one in self.conditions if _column(one) == "topic"]
        if self.names or self.patterns:
            masks.append(self._matched(names))
        return not masks or bool(reduce(pc.and_, masks).true_count)

    def _masks(self, batch: pa.RecordBatch) -> Iterator[pa.BooleanArray]:
        if self.kinds:
            yield _among(batch.column("kind"), self.kinds)
        if self.names or self.patterns:
            yield self._matched(batch.column("topic"))
        for condition in self.conditions:
            yield _held(condition, batch.column(_column(condition)))

    def _matched(self, topics: pa.Array) -> pa.BooleanArray:
        found = [pc.match_substring_regex(topics, pattern=one) for one in self.patterns]
        return reduce(pc.or_, [*found, _among(topics, self.names)])


def _together(expressions: Iterable[str]) -> list[str]:
    """As few patterns of RE2 as there can be: it knows a bound for the size of one."""
    groups: list[list[str]] = []
    room = 0
    for one in expressions:
        if room < len(one):
            groups.append([])
            room = PATTERN
        groups[-1].append(one)
        room -= len(one)
    return [rf"^(?s:{'|'.join(group)})\z" for group in groups]


def _among(column: pa.Array, values: Iterable[object]) -> pa.BooleanArray:
    texts = [value for value in values if isinstance(value, str)]
    return pc.is_in(column, value_set=pa.array(texts, column.type))


def _column(condition: Filter) -> str:
    return str(condition.attribute[0])  # type: ignore[attr-defined]


def _held(condition: Filter, column: pa.Array) -> pa.BooleanArray:
    """The values for which one of `_KNOWN` holds."""
    match condition:
        case EqualTo(value=wanted) | EqualNullSafe(value=wanted):
            return _among(column, [wanted])
        case In(value=values):
            return _among(column, values)
    return _PART[type(condition)](column, pattern=condition.value)  # type: ignore[attr-defined]


_PART: Final[dict[type[Filter], Callable[..., pa.BooleanArray]]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}
_KNOWN: Final = (EqualTo, EqualNullSafe, In, StringStartsWith, StringEndsWith, StringContains)


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
