"""Tables that a user declares: which messages, which columns, and what of them is a row.

    [[table]]
    name = "climate"
    topics = "plant/+/climate"          # an MQTT filter, or a list of them
    columns.device = "topic[1] STRING"  # the second level of the topic
    columns.temperature = { from = "$.temp", type = "DOUBLE", unit = "°C", nullable = false }
    columns.at = "$.meta.at TIMESTAMP"
    json_schema = "climate.json"        # columns from a JSON Schema, beside or instead
    key = ["device"]
    dedupe_by = ["device", "at"]        # of rows alike in these the first counts,
    dedupe_seconds = 3600               # until none came for so long
    window = "1 minute"                 # a row a key and minute; columns: "avg $.temp DOUBLE"
    late = "keep"                       # or "quarantine"
    by = "day"                          # how the files lie; or "none"

They are in the rules file. Here the declaration is read and checked; `cells` makes cells of
payloads, `tables.typed` makes tables of both. Knows no Spark and no message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from hubbub.errors import SettingError
from hubbub.spark.filters import pattern_of

MOST: Final = 32  # tables: each is asked of every row of the journal
COLUMNS: Final = 500
DEDUPE_SECONDS: Final = 3600.0
NAME: Final = 50  # characters of a name that is made here: one may have 64
LONGEST: Final = 3_652 * 86_400.0  # seconds of a window, or to remember: ten years, as lateness
TYPES: Final = {
    "DOUBLE": "double",
    "BIGINT": "bigint",
    "INT": "int",
    "BOOLEAN": "boolean",
    "STRING": "string",
    "TIMESTAMP": "timestamp",
    "DATE": "date",
}
AGGREGATES: Final = ("avg", "sum", "min", "max", "count")
SHIPPED: Final = frozenset(
    ("messages", "readings", "quarantine", "traffic", "calls", "sessions", "deliveries", "audit",
     "alerts")
)  # fmt: skip
# What every such table has by itself.
OURS: Final = frozenset(
    (
        "seq",
        "time",
        "event_time",
        "topic",
        "day",
        "window_start",
        "messages",
        "late",
        "open",
        "batch_id",
    )
)

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SPEC: Final = re.compile(
    r"(?:(?P<how>[a-z]+)\s+)?"
    r"(?P<place>\$(?:\"(?:[^\"\\]|\\.)*\"|[^\s\"])*|topic\[\d+\])\s+(?P<type>[A-Za-z]+)"
    r"(?P<null>\s+NOT\s+NULL)?"
)
_STEP: Final = re.compile(r'\.([^.\[\]"]+)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')
_SPAN: Final = re.compile(r"(\d{1,9})\s*(second|minute|hour|day)s?")
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column as the user declares it; a text "avg $.temp DOUBLE NOT NULL" says the same."""

    place: str = msgspec.field(name="from")
    type: str
    nullable: bool = True
    unit: str = ""
    how: str = msgspec.field(default="", name="as")
    meaning: str = ""


class Typed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as the user declares it."""

    name: str
    topics: str | tuple[str, ...]
    columns: dict[str, str | Field] = {}
    json_schema: str = ""
    key: tuple[str, ...] = ()
    dedupe_by: tuple[str, ...] = ()
    dedupe_seconds: float = DEDUPE_SECONDS
    window: str = ""
    late: Literal["keep", "quarantine"] = "keep"
    by: Literal["day", "none"] = "day"

    def fields(self) -> dict[str, Field]:
        return {
            name: one if isinstance(one, Field) else _field(self.name, name, one)
            for name, one in self.columns.items()
        }

    def pattern(self) -> str:
        """A regular expression for its topics."""
        return pattern_of((self.topics,) if isinstance(self.topics, str) else self.topics)

    def seconds(self) -> int:
        """Of a window; 0 without one."""
        found = _SPAN.fullmatch(self.window)
        return int(found[1]) * _SECONDS[found[2]] if found else 0


class Cell(NamedTuple):
    """Where a cell is: a level of the topic, or else a path in the payload."""

    name: str
    type: str
    nullable: bool
    level: int
    path: tuple[str | int, ...]


def cells_of(typed: Typed) -> tuple[Cell, ...]:
    return tuple(
        Cell(name, TYPES[one.type.upper()], one.nullable, *_place(typed.name, name, one.place))
        for name, one in typed.fields().items()
    )


def whole(typed: Typed, folder: Path) -> Typed:
    """With the columns of its JSON Schema, a file in `folder`, checked. Raises SettingError."""
    if typed.json_schema:
        found = _of_schema(typed, folder / typed.json_schema)
        columns: dict[str, str | Field] = {**found, **typed.columns}
        typed = msgspec.structs.replace(typed, columns=columns, json_schema="")
    _check(typed)
    return typed


def check_name(name: str) -> None:
    """Raise SettingError if no table of a user can be named so."""
    if not _NAME.fullmatch(name) or name.endswith("_open") or name in SHIPPED:
        raise SettingError(
            f"table {name!r}: a name is of a-z, 0-9 and _, 64 at most, begins with a letter, does "
            "not end with _open, and is that of no shipped table"
        )


def _check(typed: Typed) -> None:
    where = f"table {typed.name!r}"
    check_name(typed.name)
    typed.pattern()
    if not 0 < len(typed.columns) <= COLUMNS:
        raise SettingError(f"{where}: expected 1 to {COLUMNS} columns, got {len(typed.columns)}")
    for name in typed.columns:
        if not _NAME.fullmatch(name) or name in OURS or name.startswith("kept_"):
            raise SettingError(f"{where}: {name!r} cannot be a column: every table has its own, "
                               "or it is not of a-z, 0-9 and _")  # fmt: skip
    _known_types(typed)
    fields, windowed = typed.fields(), bool(typed.window)
    if typed.window and not 0 < typed.seconds() <= LONGEST:
        raise SettingError(
            f"{where}: window is as '1 minute' or '10 seconds', and ten years at most, "
            f"got {typed.window!r}"
        )
    for name in (*typed.key, *typed.dedupe_by):
        if name not in fields:
            raise SettingError(f"{where}: there is no column {name!r} for a key")
    if not 0 < typed.dedupe_seconds <= LONGEST:
        raise SettingError(
            f"{where}: dedupe_seconds is above 0 and at most {LONGEST:.0f}, "
            f"got {typed.dedupe_seconds}"
        )
    for name, one in fields.items():
        if bool(one.how) != (windowed and name not in typed.key):
            raise SettingError(
                f"{where}, {name}: with a window each column is in `key` or says how it is made "
                f"({', '.join(AGGREGATES)}), and without one none does"
            )
        if one.how in ("avg", "sum") and TYPES[one.type.upper()] not in ("double", "bigint", "int"):
            raise SettingError(f"{where}, {name}: {one.how} is for numbers, got {one.type}")
    cells_of(typed)


def _field(table: str, name: str, said: str) -> Field:
    found = _SPEC.fullmatch(said.strip())
    if found is None:
        raise SettingError(
            f"table {table!r}, {name}: expected as '$.temp DOUBLE' or 'topic[1] STRING NOT NULL', "
            f"got {said!r}"
        )
    return Field(found["place"], found["type"], not found["null"], how=found["how"] or "")


def _place(table: str, name: str, place: str) -> tuple[int, tuple[str | int, ...]]:
    """The level of the topic and (), or -1 and the steps of a path."""
    if found := re.fullmatch(r"topic\[(\d+)\]", place):
        return int(found[1]), ()
    steps = steps_of(place)
    if steps is None:
        raise SettingError(
            f"table {table!r}, {name}: {place!r} is no place: expected $, $.a.b, $.list[0], "
            '$["a b"] or topic[N]'
        )
    return -1, steps


def steps_of(place: str) -> tuple[str | int, ...] | None:
    """The keys and positions of a place in a payload, as `$.a[0]`; None if it is none."""
    steps: list[str | int] = []
    at = 1
    while place[:1] == "$" and at < len(place) and (step := _STEP.match(place, at)):
        key, index, quoted = step.groups()
        steps.append(key if key is not None else int(index) if index else json.loads(quoted))
        at = step.end()
    return tuple(steps) if place[:1] == "$" and at == len(place) else None


def checked(typed: tuple[Typed, ...]) -> None:
    """What can be wrong among several. Raises SettingError."""
    names = [one.name for one in typed]
    if len(names) > MOST:
        raise SettingError(f"table: {MOST} at most, got {len(names)}")
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"table: two are named {name!r}")


def _known_types(typed: Typed) -> None:
    """Raise SettingError for a type or an aggregate that is none."""
    for name, one in typed.fields().items():
        if one.type.upper() not in TYPES:
            raise SettingError(f"table {typed.name!r}, {name}: {one.type!r} is no type: expected "
                               f"one of {', '.join(TYPES)}")  # fmt: skip
        if one.how and one.how not in AGGREGATES:
            raise SettingError(f"table {typed.name!r}, {name}: {one.how!r} is none of "
                               f"{', '.join(AGGREGATES)}")  # fmt: skip


# JSON Schema

_OF_SCHEMA: Final = {
    "number": "DOUBLE",
    "integer": "BIGINT",
    "boolean": "BOOLEAN",
    "string": "STRING",
}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def _of_schema(typed: Typed, file: Path) -> dict[str, Field]:
    """Its columns. Two places that would be one are refused, unless `columns` says which it is."""
    where = f"table {typed.name!r}"
    try:
        schema = json.loads(file.read_text("utf-8"))
        if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
            raise SettingError(f"{where}: {file} is no JSON Schema of an object")
        fields = [*_properties(schema, "$", True)]
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"{where}: cannot read the JSON Schema {file}: {error}") from None
    found: dict[str, Field] = {}
    for one in fields:
        name = column_of(one.place)
        if name in found and name not in typed.columns:
            raise SettingError(
                f"{where}: of {file}, {found[name].place} and {one.place} would both be the column "
                f"{name}: say which of them is, as columns.{name} = "
                f"'{found[name].place} {found[name].type}', and give the other a name of its own"
            )
        found[name] = one
    return found


def column_of(place: str) -> str:
    """A name for the column of a place in a payload, by which alone it goes."""
    name = re.sub(r"[^a-z0-9_]+", "_", place.removeprefix("$").lower()).strip("_") or "value"
    name = name[:NAME] if name[0].isalpha() else f"c_{name[: NAME - 2]}"
    return f"own_{name}" if name in OURS or name.startswith("kept_") else name


def _properties(schema: dict[str, Any], path: str, needed: bool) -> Iterator[Field]:
    """Its plain values, and those of objects in it; lists and all else are no columns."""
    required = schema.get("required")
    musts = required if isinstance(required, list) else ()
    for name, one in schema["properties"].items():
        kinds = one.get("type") if isinstance(one, dict) else None
        several = kinds if isinstance(kinds, list) else [kinds]
        plain = [str(kind) for kind in several if kind != "null"]
        must = needed and name in musts and "null" not in several
        step = path + step_of(name)
        if plain == ["object"] and isinstance(one.get("properties"), dict):
            yield from _properties(one, step, must)
        elif len(plain) == 1 and plain[0] in _OF_SCHEMA:
            kind = _FORMATS.get(str(one.get("format")), _OF_SCHEMA[plain[0]])
            unit, said = str(one.get("unit", "")), str(one.get("description", ""))
            yield Field(step, kind, not must, unit, meaning=said)


def step_of(key: str) -> str:
    """What follows a place for that key below it."""
    plain = re.fullmatch(r"\w+", key)
    return f".{key}" if plain else f"[{json.dumps(key, ensure_ascii=False)}]"
