"""What a user says about his data, in one TOML file: how to decode it, its own time, alerts.

    event_time = "ts"              # where in a payload its own time is; "" (default) = nowhere
    lateness = 60                  # seconds that an event time may lie behind the hub's clock

    [[decode]]                     # the first whose filter matches counts
    topics = "plant/+/raw"         # an MQTT filter, or a list of them
    as = "application/cbor"        # the content type of messages that name none
    event_time = "meta.t"          # instead of the one above

    [[alert]]
    name = "hot"
    topic = "alerts/hot"
    sql = "SELECT time, topic, value FROM readings WHERE path = 'temp' AND value > 80"
    qos = 1                        # 0, 1 (default) or 2
    retain = false
    max_age = 3600                 # seconds; what is older is kept in the table, not published

    [[table]]                      # a table of one's own: see `pipeline.typed`
    name = "climate"
    topics = "plant/+/climate"
    columns.temperature = "$.temp DOUBLE"

    [[sink]]                       # rows of a table into a database: see `pipeline.jdbc`
    name = "warehouse"
    table = "readings"
    url = "jdbc:postgresql://127.0.0.1/plant"
    into = "readings"
    key = ["seq", "path"]
    user = "hubbub"
    password_file = "secret"

Read by the command line, carried to Spark's workers by the tables that decode. A path is one of
`pipeline.decode`; `$.meta.t`, as columns have it, is read as one. The SQL of an alert sees the
rows that a batch adds to each table.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from hubbub.errors import SettingError
from hubbub.pipeline.decode import DECODERS, decoder_of, path_of
from hubbub.pipeline.typed import SHIPPED, Field, Typed, checked, steps_of, whole
from hubbub.spark.filters import pattern_of
from hubbub.spelling import meant

MAX_AGE: Final = 3600.0  # seconds: who catches up after a day off cries no old alarms
MOST: Final = 3_652 * 86_400.0  # seconds that lateness or an alert's age may be: ten years
LATENESS: Final = 60.0  # seconds; longer keeps minutes open, shorter counts more rows as late


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to read the messages whose topic matches one of the filters."""

    topics: str | tuple[str, ...]
    content_type: str = msgspec.field(default="", name="as")
    event_time: str | None = None


class Alert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each row the SQL finds in a batch is published to `topic`, as a JSON object."""

    name: str
    topic: str
    sql: str
    qos: int = 1
    retain: bool = False
    max_age: float = MAX_AGE


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A database that gets the rows of a table (`pipeline.jdbc`), each once by its key."""

    name: str
    table: str
    url: str
    into: str
    key: tuple[str, ...]
    user: str = ""
    password_file: str = ""


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Without one, content types and JSON decide, and time is the hub's."""

    event_time: str = ""
    lateness: float = LATENESS
    decode: tuple[Decode, ...] = ()
    alert: tuple[Alert, ...] = ()
    table: tuple[Typed, ...] = ()
    sink: tuple[Sink, ...] = ()

    def timed(self) -> bool:
        """Whether any message can have a time of its own."""
        return bool(self.event_time) or any(one.event_time for one in self.decode)

    def patience(self) -> float:
        """Seconds after its end at which a minute closes."""
        return self.lateness if self.timed() else 0.0

    def doubts(self) -> list[str]:
        """What is said and does nothing, though the file is right."""
        if self.timed():
            return []
        said = [f"table {one.name!r}: late" for one in self.table if one.late != "keep"]
        if self.lateness != LATENESS:
            said.insert(0, "lateness")
        why = "does nothing: without event_time no message can be late"
        return [f"{one} {why} (event_time = 'meta.at' says where its own time is)" for one in said]

    def declared(self) -> str:
        """A regular expression for the topics whose content type a rule names; "" for none."""
        return "|".join(_pattern(one.topics) for one in self.decode if one.content_type)

    def placed(self) -> str:
        """The same for the topics of the tables that are declared."""
        return "|".join(one.pattern() for one in self.table)


NO_RULES: Final = Rules()
NAME_BYTES: Final = 63  # of a table of PostgreSQL
# Columns of shipped tables that may be null.
_NULL: Final = {
    "messages": frozenset(("content_type", "reply_to", "correlation", "expires", "properties")),
    "readings": frozenset(("value", "text")),
    "calls": frozenset(("responder", "answered", "latency_ms")),
    "sessions": frozenset(("disconnected", "seconds")),
    "deliveries": frozenset(("topic", "handed", "ended", "latency_ms", "by")),
    "alerts": frozenset(("published",)),
}
# What may stand where, by what msgspec calls the place of an object; "" is the file.
_KEYS: Final = {
    place: tuple(one.__struct_encode_fields__)
    for place, one in (
        ("", Rules), ("decode", Decode), ("alert", Alert), ("table", Typed),
        ("columns", Field), ("sink", Sink),
    )
}  # fmt: skip
_UNKNOWN: Final = re.compile(r"(?s)Object contains unknown field `(.*?)`(?: - at `\$\.(.*)`)?")


def read_rules(file: str | Path) -> Rules:
    """The rules in a file, checked. Raises SettingError that names the file and the place."""
    try:
        rules = msgspec.toml.decode(Path(file).read_bytes(), type=Rules)
        made = tuple(whole(one, Path(file).parent) for one in rules.table)
        rules = _with_paths(msgspec.structs.replace(rules, table=made))
        _check(rules)
    except OSError as error:
        raise SettingError(f"cannot read the rules {file}: {error.strerror}") from error
    except (msgspec.DecodeError, SettingError) as error:
        raise SettingError(f"{file}: {_said(str(error))}") from error
    return rules


def _said(error: str) -> str:
    """The words of an error; for a key that is none, with those that may stand there."""
    found = _UNKNOWN.fullmatch(error)
    place = (found[2] or "") if found else ""
    known = _KEYS.get(re.sub(r"\[[^]]*\]", "", place).rpartition(".")[2])
    if found is None or known is None:
        return error
    where = f"{place}: " if place else ""
    hint = meant(found[1], known, like=0.6)  # words so short have soon half their letters alike
    there = f"{hint} Known are" if hint else "known are"
    return f"{where}there is no key {found[1]!r}; {there} {', '.join(known)}"


def _with_paths(rules: Rules) -> Rules:
    """Each event time by its path, however it is written. Raises SettingError."""
    decode = tuple(
        msgspec.structs.replace(one, event_time=_path(one.event_time)) if one.event_time else one
        for one in rules.decode
    )
    return msgspec.structs.replace(rules, event_time=_path(rules.event_time), decode=decode)


def _path(said: str) -> str:
    """`$.a.b` as the path a.b; what else begins with $ is a key, as $date is one."""
    if said != "$" and not said.startswith(("$.", "$[")):
        return said
    steps = steps_of(said)
    if not steps:
        raise SettingError(
            f"event_time: {said!r} is no place of a time in a payload: expected as "
            "'meta.at' or '$.meta.at', and '$.list[0]' in a list"
        )
    return path_of(steps)


def _check(rules: Rules) -> None:
    if not 0 <= rules.lateness <= MOST:
        raise SettingError(f"lateness: expected 0 to {MOST:.0f} seconds, got {rules.lateness}")
    checked(rules.table)
    for rule in rules.decode:
        _pattern(rule.topics)
        if rule.content_type and decoder_of(rule.content_type) is None:
            raise SettingError(
                f"decode: there is no decoder for {rule.content_type!r}: expected one of "
                + ", ".join(DECODERS)
            )
    names = [alert.name for alert in rules.alert]
    for alert in rules.alert:
        if names.count(alert.name) > 1:
            raise SettingError(f"alert: two are named {alert.name!r}")
        if alert.qos not in (0, 1, 2):
            raise SettingError(f"alert {alert.name!r}: qos is 0, 1 or 2, got {alert.qos}")
        if not 0 < alert.max_age <= MOST:
            raise SettingError(
                f"alert {alert.name!r}: max_age is above 0 and at most {MOST:.0f} seconds, "
                f"got {alert.max_age}"
            )
        if not alert.topic or re.search(r"[+#\0]", alert.topic):
            raise SettingError(f"alert {alert.name!r}: {alert.topic!r} is no topic to publish to")


    _check_sinks(rules)


def _check_sinks(rules: Rules) -> None:
    names = [sink.name for sink in rules.sink]
    for sink in rules.sink:
        where = f"sink {sink.name!r}"
        if not re.fullmatch(r"[\w-]{1,64}", sink.name) or names.count(sink.name) > 1:
            raise SettingError(f"{where}: a name is of letters, digits, _ and -, and stands once")
        if sink.table not in {*SHIPPED, *(one.name for one in rules.table)}:
            raise SettingError(f"{where}: there is no table {sink.table!r}")
        if not sink.url.startswith("jdbc:postgresql:"):
            raise SettingError(f"{where}: expected the url jdbc:postgresql://HOST/DATABASE")
        if not re.fullmatch(r"([A-Za-z_]\w*\.)?[A-Za-z_]\w*", sink.into):
            raise SettingError(f"{where}: {sink.into!r} is no name of a table in a database")
        if any(len(part.encode()) > NAME_BYTES for part in sink.into.split(".")):
            raise SettingError(
                f"{where}: into is longer than {NAME_BYTES} bytes, which PostgreSQL cuts: it would "
                "be another table"
            )
        if not sink.key:
            raise SettingError(f"{where}: key is empty: name the columns that make a row one")
        _check_key(sink, rules)


def _check_key(sink: Sink, rules: Rules) -> None:
    """Raise SettingError for a column that may be null."""
    nulls, advice = {*_NULL.get(sink.table, ())}, ""
    for own in rules.table:
        if own.name == sink.table:
            nulls = {name for name, one in own.fields().items() if one.nullable}
            advice = ", or declare it NOT NULL"
    if found := sorted(nulls.intersection(sink.key)):
        raise SettingError(
            f"sink {sink.name!r}: {found[0]} of {sink.table} may be null, which no key in a "
            f"database can be: take another column{advice}"
        )


@cache
def _pattern(topics: str | tuple[str, ...]) -> str:
    return pattern_of((topics,) if isinstance(topics, str) else topics)


class Reading:
    """The rules by topic: how a message is to be read. One in each task of Spark's workers."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._chosen = [(re.compile(_pattern(one.topics), re.DOTALL), one) for one in rules.decode]
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, topic: str) -> tuple[str, str]:
        """The content type of a message that names none, and the path of its own time."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _TOPICS:
                self._known.clear()
            known = self._known[topic] = self._find(topic)
        return known

    def _find(self, topic: str) -> tuple[str, str]:
        for pattern, rule in self._chosen:
            if pattern.fullmatch(topic):
                own = rule.event_time
                return rule.content_type, self._rules.event_time if own is None else own
        return "", self._rules.event_time


_TOPICS: Final = 100_000  # topics a task keeps the answer for
