"""Which rows are wanted: by seq and time as a range, by kind and topic batch by batch.

    options topics, kinds         ─┐           ┌ Bounds: which range of seq is read at all
    conditions that Spark pushes  ─┴─▶ here ──▶└ Choice: which frames are decoded, which rows kept

What Spark pushes is tried on a whole column by Arrow; it checks that again itself: here it only
saves work. Filters are a tree, in which each different topic is looked up: thousands of them cost
what one costs. As one regular expression a thousand took RE2 10 ms for each frame, be it of one
row, and five thousand 190 ms. (Where each row has another topic the tree takes half a microsecond
a row, and one filter took RE2 0.03.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, Final, NamedTuple

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
    """Without looking ahead or at ends of lines: Python and Java read it alike."""
    _check(topic_filter)
    levels = column_of(topic_filter).decode().split("/")
    # Names that begin with $ match no filter that begins with a wildcard (section 4.7.2).
    if levels == ["#"]:
        return "(?:[^$].*)?"
    first = "(?:[^/$][^/]*)?" if levels[0] == "+" else re.escape(levels[0])
    last = levels.pop() if levels[-1] == "#" else ""
    rest = ("[^/]*" if level == "+" else re.escape(level) for level in levels[1:])
    return "/".join((first, *rest)) + ("(?:/.*)?" if last else "")


def _check(topic_filter: str) -> None:
    levels = topic_filter.split("/")
    for index, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise SettingError(f"topics: a wildcard must be a whole level in {topic_filter!r}")
        if level == "#" and index != len(levels) - 1:
            raise SettingError(f"topics: # must be the last level in {topic_filter!r}")


class Tree:
    """Filters by their levels. A level below that is None: a filter ends there."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = filters
        self._root: dict[bytes | None, Any] = {}
        for topic_filter in filters:
            _check(topic_filter)
            node = self._root
            for level in column_of(topic_filter).split(b"/"):
                node = node.setdefault(level, {})
            node[None] = None

    def __reduce__(self) -> tuple[type[Tree], tuple[Sequence[str]]]:
        return Tree, (self._filters,)  # one that is a thousand levels deep could not be pickled

    def __bool__(self) -> bool:
        return bool(self._root)

    def takes(self, topic: bytes) -> bool:
        """Whether one of the filters matches."""
        nodes = [self._root]
        wild = topic[:1] != b"$"  # such names match no filter that begins so (section 4.7.2)
        for level in topic.split(b"/"):
            below = []
            for node in nodes:
                if wild and b"#" in node:
                    return True
                if level in node:
                    below.append(node[level])
                if wild and level != b"+" and b"+" in node:
                    below.append(node[b"+"])
            if not below:
                return False
            nodes, wild = below, True
        return any(None in node or b"#" in node for node in nodes)


class Choice:
    """Conditions on kind and topic. Sent to the workers with the reader."""

    def __init__(self, kinds: str = "", topics: str = "") -> None:
        self.kinds = kinds_of(kinds)
        self.filters = Tree(listed(topics))
        self.conditions: list[Filter] = []

    def push(self, condition: Filter) -> None:
        """Take a condition of Spark's if it is about one of the columns."""
        if isinstance(condition, _KNOWN) and condition.attribute[:1] in {("kind",), ("topic",)}:
            self.conditions.append(condition)

    def __bool__(self) -> bool:
        return bool(self.kinds or self.filters or self.conditions)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Which rows of a batch with these columns are wanted; None = all of them."""
        masks = list(self._masks(batch))
        if not masks:
            return None
        mask = reduce(pc.and_, masks)
        return None if mask.true_count == len(mask) else mask

    def among(self, topics: list[bytes]) -> bool:
        """Whether a row with one of these topics may be wanted."""
        if self.filters:
            topics = [topic for topic in topics if self.filters.takes(topic)]
        names = pa.array(topics, pa.binary()).cast(pa.string())
        masks = [_held(one, names) for one in self.conditions if _column(one) == "topic"]
        return bool(reduce(pc.and_, masks).true_count if masks else topics)

    def _masks(self, batch: pa.RecordBatch) -> Iterator[pa.BooleanArray]:
        if self.kinds:
            yield _among(batch.column("kind"), self.kinds)
        if self.filters:
            topics = batch.column("topic").dictionary_encode()
            names = topics.dictionary.view(pa.binary()).to_pylist()
            yield pa.array(map(self.filters.takes, names), pa.bool_()).take(topics.indices)
        for condition in self.conditions:
            yield _held(condition, batch.column(_column(condition)))


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
