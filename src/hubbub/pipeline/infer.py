"""Proposes a typed table (`pipeline.typed`) from messages that came: what paths they have, and what
is there. Called by `hubbub pipeline infer`. It proposes: nullable columns, and a type that most of
the values have; what differs is said beside it. Knows no Spark.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, deque
from collections.abc import Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any, Final

import pyarrow.compute

from hubbub.journal.table import Table as Journal
from hubbub.pipeline.decode import VALUES, Undecodable, value_of
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.typed import COLUMNS, NAME, SHIPPED, column_of, step_of
from hubbub.spark.filters import pattern_of

ROWS: Final = 200_000  # of the journal that are looked at, the newest
ENOUGH: Final = 10_000  # messages, the newest
BYTES: Final = 8 << 20  # of their payloads: a value takes some 1.5 us, and may be two bytes
LOOKS: Final = 1_000_000  # at values, of all messages
PLACES: Final = 10 * COLUMNS  # that are counted; the most frequent ones become columns
ITEMS: Final = 8  # of a list that become columns
DEPTH: Final = 8

_KINDS: Final = ("publish", "send")
_WIDER: Final = {frozenset(("BIGINT", "DOUBLE")): "DOUBLE"}


class Found:
    """What messages have: by path how often which type, and how many messages there are."""

    def __init__(self) -> None:
        self.messages = 0
        self.broken = 0
        self.types: dict[str, Counter[str]] = {}
        self._left = LOOKS

    @property
    def enough(self) -> bool:
        return self._left <= 0

    def take(self, payload: bytes, content_type: str) -> None:
        self.messages += 1
        try:
            value = value_of(payload, content_type)
        except Undecodable:
            self.broken += 1
            return
        for path, scalar in self._scalars(value):
            if path in self.types or len(self.types) < PLACES:
                self.types.setdefault(path, Counter())[_type(scalar)] += 1

    def _scalars(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The places in a payload and what is there, in order; of a large one the first.

        Looks are counted: the shared references of CBOR make a large tree of a few bytes.
        """
        end = max(self._left - VALUES, 0)
        ahead = [("$", value, 0)]
        while ahead and self._left > end:
            self._left -= 1
            path, value, depth = ahead.pop()
            if isinstance(value, dict | list):
                if depth < DEPTH:
                    below = [*islice(_below(path, value), self._left - end)]
                    ahead.extend((place, item, depth + 1) for place, item in reversed(below))
            elif _is_scalar(value):
                yield path, value

    def lines(self, name: str, topics: str) -> Iterator[str]:
        """The declaration, in TOML."""
        levels = [*_levels(topics)]
        chosen_places = self._most_frequent(COLUMNS - len(levels))
        said = [f"of {self.messages:,} messages"]
        if self.broken:
            said.append(f"{self.broken:,} cannot be decoded")
        if left := len(self.types) - len(chosen_places):
            more = "or more " if len(self.types) >= PLACES else ""
            said.append(f"{left:,} {more}rarer places are left out")
        yield f"# {', '.join(said)}"
        yield "[[table]]"
        yield f"name = {_toml(name)}"
        yield f"topics = {_toml(topics)}"
        taken = {f"level_{level}" for level in levels}
        for level in levels:
            yield f'columns.level_{level} = "topic[{level}] STRING"'
        for path in chosen_places:
            types, column = self.types[path], _column(path, taken)
            chosen = _chosen(types)
            spec = _toml(f"{path} {chosen}")
            yield f"columns.{column} = {spec}{self._beside(types, chosen)}"

    def _most_frequent(self, most: int) -> list[str]:
        """In the order in which they came."""
        counts = Counter({path: types.total() for path, types in self.types.items()})
        wanted = {path for path, _ in counts.most_common(most)}
        return [path for path in self.types if path in wanted]

    def _beside(self, types: Counter[str], chosen: str) -> str:
        others = [f"{count:,} {kind}" for kind, count in types.items() if kind != chosen]
        there = sum(types.values())
        notes = [f"in {there:,}"] if there < self.messages else []
        if others and _WIDER.get(frozenset(types)) != chosen:
            notes.append("also " + ", ".join(others))
        return f"  # {'; '.join(notes)}" if notes else ""


def look(journal: Journal, topics: str, rules: Rules) -> Found:
    """The newest messages of these topics."""
    found, reading = Found(), Reading(rules)
    upto = journal.committed()
    wanted = _newest(journal, topics, upto)
    for batch in journal.read(min(wanted) - 1, upto) if wanted else ():
        columns = [batch.column(name) for name in ("topic", "payload", "content_type")]
        for index, seq in enumerate(batch.column("seq").to_pylist()):
            if seq in wanted and not found.enough:
                topic, payload, said = (column[index].as_py() for column in columns)
                found.take(payload, said or reading.of(topic)[0])
    return found


def _newest(journal: Journal, topics: str, upto: int) -> set[int]:
    """Which rows: payloads of them all may not fit into memory."""
    matches = re.compile(pattern_of((topics,)), re.DOTALL).fullmatch
    newest: deque[tuple[int, int]] = deque(maxlen=ENOUGH)
    for batch in journal.read(max(upto - ROWS, journal.first() - 1), upto):
        sizes = pyarrow.compute.binary_length(batch.column("payload"))
        columns = (batch.column(name) for name in ("seq", "kind", "topic"))
        for seq, kind, topic, size in zip(
            *(column.to_pylist() for column in (*columns, sizes)), strict=True
        ):
            if kind in _KINDS and matches(topic):
                newest.append((seq, size))
    left = BYTES
    chosen: set[int] = set()
    for seq, size in reversed(newest):
        left -= size
        if left < 0 and chosen:
            break
        chosen.add(seq)
    return chosen


def name_of(topics: str) -> str:
    """A name for a table of these topics."""
    words = re.sub(r"[^a-z0-9]+", "_", topics.lower())[:NAME].strip("_")
    if not words[:1].isalpha() or words in SHIPPED:
        words = f"t_{words}".rstrip("_")
    return f"{words}_table" if words.endswith("_open") else words


def _toml(text: str) -> str:
    """A string of TOML; what a terminal would not show as it is stands there by its number."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08X}" for one in quoted)


def _is_scalar(value: Any) -> bool:
    """Whether it fits a column."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int | str | datetime)


def _below(path: str, value: dict[Any, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value[:ITEMS]):
            yield f"{path}[{index}]", item
        return
    for key, item in value.items():
        if isinstance(key, str) and not re.search("[\ud800-\udfff]", key):  # no file has those
            yield path + step_of(key), item


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, datetime):
        return "TIMESTAMP"
    for kind, read in (("DATE", date.fromisoformat), ("TIMESTAMP", datetime.fromisoformat)):
        try:
            read(value)
            return kind if not value.isdecimal() else "STRING"
        except ValueError:
            continue
    return "STRING"


def _chosen(types: Counter[str]) -> str:
    wide = _WIDER.get(frozenset(types))
    texts = {"STRING", "TIMESTAMP", "DATE"}
    if wide is None and len(types) > 1 and texts.issuperset(types):
        return "STRING"
    return wide or types.most_common(1)[0][0]


def _column(path: str, taken: set[str]) -> str:
    """A name that no other column has."""
    name = column_of(path)
    fresh, number = name, 2
    while fresh in taken:
        fresh, number = f"{name}_{number}", number + 1
    taken.add(fresh)
    return fresh


def _levels(topics: str) -> Iterator[int]:
    """The levels of the topic that differ from message to message."""
    for level, said in enumerate(topics.split("/")):
        if said == "+":
            yield level
