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

from hubbub.journal.table import Table as Journal
from hubbub.pipeline.decode import Undecodable, value_of
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.typed import COLUMNS, NAME, SHIPPED, column_of, step_of
from hubbub.spark.filters import pattern_of

ROWS: Final = 200_000  # of the journal that are looked at, the newest
ENOUGH: Final = 10_000  # messages, the newest
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

    def take(self, payload: bytes, content_type: str) -> None:
        self.messages += 1
        try:
            value = value_of(payload, content_type)
        except Undecodable:
            self.broken += 1
            return
        for path, scalar in _scalars("$", value, 0):
            if path in self.types or len(self.types) < COLUMNS:
                self.types.setdefault(path, Counter())[_type(scalar)] += 1

    def lines(self, name: str, topics: str) -> Iterator[str]:
        """The declaration, in TOML."""
        said = f"of {self.messages:,} messages"
        yield f"# {said}, {self.broken:,} cannot be decoded" if self.broken else f"# {said}"
        yield "[[table]]"
        yield f"name = {_toml(name)}"
        yield f"topics = {_toml(topics)}"
        levels = [*_levels(topics)]
        taken = {f"level_{level}" for level in levels}
        for level in levels:
            yield f'columns.level_{level} = "topic[{level}] STRING"'
        for path, types in islice(self.types.items(), COLUMNS - len(levels)):
            column = _column(path, taken)
            chosen = _chosen(types)
            spec = _toml(f"{path} {chosen}")
            yield f"columns.{column} = {spec}{self._beside(types, chosen)}"

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
    matches = re.compile(pattern_of((topics,)), re.DOTALL).fullmatch
    upto = journal.committed()
    newest: deque[int] = deque(maxlen=ENOUGH)  # payloads of them all may not fit into memory
    for batch in journal.read(max(upto - ROWS, journal.first() - 1), upto):
        kinds, names = (batch.column(name).to_pylist() for name in ("kind", "topic"))
        for seq, kind, topic in zip(batch.column("seq").to_pylist(), kinds, names, strict=True):
            if kind in _KINDS and matches(topic):
                newest.append(seq)
    wanted = {*newest}
    for batch in journal.read(newest[0] - 1, upto) if newest else ():
        columns = [batch.column(name) for name in ("topic", "payload", "content_type")]
        for index, seq in enumerate(batch.column("seq").to_pylist()):
            if seq in wanted:
                topic, payload, said = (column[index].as_py() for column in columns)
                found.take(payload, said or reading.of(topic)[0])
    return found


def name_of(topics: str) -> str:
    """A name for a table of these topics."""
    words = re.sub(r"[^a-z0-9]+", "_", topics.lower())[:NAME].strip("_")
    if not words[:1].isalpha() or words in SHIPPED:
        words = f"t_{words}".rstrip("_")
    return f"{words}_table" if words.endswith("_open") else words


def _toml(text: str) -> str:
    """A string of TOML, which is one of JSON but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _scalars(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth < DEPTH:
        for key, item in value.items():
            if isinstance(key, str) and not re.search("[\ud800-\udfff]", key):  # no file has those
                yield from _scalars(path + step_of(key), item, depth + 1)
    elif isinstance(value, list) and depth < DEPTH:
        for index, item in enumerate(value[:ITEMS]):
            yield from _scalars(f"{path}[{index}]", item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        return  # it fits no column
    elif isinstance(value, bool | int | float | str | datetime):
        yield path, value


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
