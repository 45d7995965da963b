"""Which rows may become a journal: those that a hub can have written, and can start on.

An import is the one door through which rows come that no hub has made. What is believed here is
believed for ever: a start folds it, clients get it. So each row is looked at by itself (numbers,
names, properties), and is then folded as a start will do it. Used by `exchange`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from hubbub import schema
from hubbub.core.limits import CLOCK_BEHIND, NAME_BYTES, PACKET_BYTES
from hubbub.core.past import USER
from hubbub.core.session import SIZE
from hubbub.core.state import ADOPTED, State, adoptee
from hubbub.core.topics import is_name, is_text, is_well_formed
from hubbub.errors import JournalError
from hubbub.schema import COLUMNS, KINDS, Row, changes_state, name_of

_MOST: Final = 2**61  # of a number: no hub comes there, and it leaves room for rows behind it
LATEST: Final = 253_402_300_799_999_999  # the end of the year 9999: JSON lines can say no later
_COUNT: Final = 1_000_000  # deliveries that one row is about; clients have 65,535 in flight
_SHOWN: Final = 60  # characters of a value in an error

_TEXTS: Final = tuple(column.name for column in COLUMNS if column.type == "string")
_INTEGER: Final = (int,)
_NUMBER: Final = (int, float)
_TEXT: Final = (str,)
_TRUTH: Final = (bool,)
_LARGEST: Final = 1 << 40  # of a number there: as microseconds from now it still fits into 64 bits

# What is kept of properties as it comes, and of which type it must be.
_SAID: Final[dict[bytes, dict[str, tuple[type, ...]]]] = {
    schema.CONNECT: {"expiry": _INTEGER, "user": _TEXT, "mount": _TEXT},
    schema.WILL: {"delay": _INTEGER, "expiry": _INTEGER},
    schema.CREATE: {
        "owner": _TEXT, "user": _TEXT, "max_messages": _INTEGER, "max_bytes": _INTEGER,
        "expires": _NUMBER, "lease": _NUMBER, "max_deliveries": _INTEGER, "dead_letter": _TEXT,
    },
    schema.SUBSCRIBE: {"no_local": _TRUTH, "as_published": _TRUTH, "identifier": _INTEGER},
    schema.QUEUED: {"bytes": _INTEGER, "delivered": _INTEGER},
    schema.DELIVER: {"delivery": _INTEGER},
    schema.RECEIVED: {"delivery": _INTEGER},
    schema.ACK: {"delivery": _INTEGER},
}  # fmt: skip

# Whose topics may be any bytes: wildcards are nothing special there. With a client: only its.
_LITERAL: Final = frozenset(((b"smq", b""), (b"", b"hub")))
_FILTERS: Final = frozenset((b"mqtt",))  # whose subscriptions are filters, each of them
_LONGEST: Final = 64  # bytes of a protocol's name: `hubbub ls` has a column of it
_PROTOCOL: Final = re.compile(rb"[A-Za-z0-9_.-]{0,%d}" % _LONGEST)
_QUEUE: Final = b"$queue/"
_ANY_QUEUE: Final = ("reply_to", schema.SEND)  # of message-switch: its name may be any bytes
_MESSAGES: Final = frozenset((schema.PUBLISH, schema.SEND, schema.WILL))


class Admission:
    """Looks at rows in their order; JournalError says which is wrong, where, and why."""

    def __init__(self) -> None:
        self._before: Row | None = None
        self._state = State()

    def check(self, row: Row) -> None:
        self._place(row)
        meant = _meant(row)
        _numbers(meant)
        _texts(row)
        _who(row)
        _names(meant)
        said = _properties(meant)
        if meant.kind in _MESSAGES:
            _message(meant, said)
        self._fold(row)
        self._before = row

    def _place(self, row: Row) -> None:
        before = self._before
        if before is not None and row.seq != before.seq + 1:
            raise wrong(row, "seq", str(before.seq + 1))
        if not 1 <= row.seq <= _MOST:
            raise wrong(row, "seq", f"1 to {_MOST}")
        if row.kind not in KINDS:
            raise wrong(row, "kind", "a known kind, and not an unknown kind")
        if before is not None and before.time - CLOCK_BEHIND * 1_000_000 <= row.time < before.time:
            # More than that is a hub that began again after a clock had been wrong.
            raise JournalError(f"row {row.seq}, column time: it is older than the row before it")

    def _fold(self, row: Row) -> None:
        """What a start cannot fold would keep every hub from starting there."""
        if not changes_state(row):
            return
        try:
            self._state.apply(row)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            told = f"{type(error).__name__}: {str(error)[:_SHOWN]}"
            column = "payload" if row.kind == schema.AUDIENCE else "properties"
            raise wrong(row, column, f"what a hub can start on ({told})") from None


def _meant(row: Row) -> Row:
    """The row as it is folded: one of a dead node (docs/decisions/0051) lies within another."""
    if row.kind != schema.ADOPT or not row.subtopic:
        return row
    if row.subtopic not in ADOPTED:
        raise wrong(row, "subtopic", "a kind that comes of a dead node")
    return adoptee(row)


def wrong(row: Row, column: str, expected: str) -> JournalError:
    came = repr(getattr(row, column))
    shown = came if len(came) <= _SHOWN else f"{came[:_SHOWN]}… ({len(came)} characters)"
    return JournalError(f"row {row.seq}, column {column}: expected {expected}, got {shown}")


def _texts(row: Row) -> None:
    for name in _TEXTS:
        text: bytes = getattr(row, name)
        if len(text) > 3 * PACKET_BYTES:  # each byte may be written %XX
            raise wrong(row, name, f"no more than {PACKET_BYTES} bytes")
        try:
            text.decode()
        except UnicodeDecodeError:
            raise wrong(row, name, "UTF-8") from None


def _numbers(row: Row) -> None:
    if not 0 <= row.qos <= 2:
        raise wrong(row, "qos", "0, 1 or 2")
    if not -_MOST <= row.ref <= _MOST:
        raise wrong(row, "ref", f"no more than {_MOST}")
    if not -_MOST <= row.number <= _most_of(row):
        raise wrong(row, "number", f"no more than {_most_of(row)}")
    for name in ("time", "expires"):
        if not 0 <= getattr(row, name) <= LATEST:
            raise wrong(row, name, "a time from 1970 to the year 9999")


def _most_of(row: Row) -> int:
    """Of a count of deliveries, or the size of a payload; a queue's numbers are its ids."""
    if row.protocol == b"queue" or row.topic.startswith(_QUEUE):
        return _MOST
    if row.kind in (schema.ACK, schema.RECEIVED):
        return _COUNT
    return SIZE if row.kind == schema.QUEUED else _MOST


def _who(row: Row) -> None:
    """Protocols have short names, ours and those of others; no client of MQTT can say NUL."""
    if not _PROTOCOL.fullmatch(row.protocol):
        raise wrong(row, "protocol", f"a name of no more than {_LONGEST} letters, digits, _ . -")
    if row.protocol in _FILTERS and "\0" in name_of(row.client):
        raise wrong(row, "client", "no NUL")


def _names(row: Row) -> None:
    topic = name_of(row.topic)
    if row.kind == schema.PUBLISH and (row.ref or row.retain or not _literal(row)):
        if not is_name(topic):
            raise wrong(row, "topic", f"1 to {NAME_BYTES} bytes of UTF-8, no NUL, no wildcards")
    elif row.kind == schema.WILL and topic and not _literal(row):
        if not is_name(topic):
            raise wrong(row, "topic", f"up to {NAME_BYTES} bytes of UTF-8, no NUL, no wildcards")
    elif row.kind == schema.SUBSCRIBE and row.protocol in _FILTERS:
        if not is_well_formed(topic):
            raise wrong(row, "topic", f"a filter of 1 to {NAME_BYTES} bytes, no NUL")


def _literal(row: Row) -> bool:
    return (row.protocol, b"") in _LITERAL or (row.protocol, row.client) in _LITERAL


def _message(row: Row, said: dict[str, Any]) -> None:
    """What subscribers are told beside the payload: as every protocol can say it."""
    for name in ("content_type", "reply_to"):
        text = name_of(getattr(row, name))
        if text and not is_text(text) and (name, row.kind) != _ANY_QUEUE:
            raise wrong(row, name, f"up to {NAME_BYTES} bytes of UTF-8, no NUL")
    if len(row.correlation) > NAME_BYTES:
        raise wrong(row, "correlation", f"no more than {NAME_BYTES} bytes")
    pairs = said.get(USER, [])
    whole = isinstance(pairs, list) and all(isinstance(pair, list) for pair in pairs)
    if not whole or not all(len(pair) == 2 and all(map(_sayable, pair)) for pair in pairs):
        raise wrong(row, "properties", f"{USER} to be pairs of texts")


def _sayable(text: object) -> bool:
    return isinstance(text, str) and (not text or is_text(text))


def _properties(row: Row) -> dict[str, Any]:
    if not row.properties:
        return {}
    try:
        said: Any = json.loads(row.properties)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise wrong(row, "properties", "a JSON object, or nothing")
    if row.kind == schema.SUBSCRIBE and not said.keys() <= _SAID[row.kind].keys():
        raise wrong(row, "properties", "the options of a subscription")
    for name, types in _SAID.get(row.kind, {}).items():
        value = said.get(name, types[0]())
        if not isinstance(value, types):
            kinds = " or ".join(one.__name__ for one in types)
            raise wrong(row, "properties", f"{name} to be of the type {kinds}")
        if isinstance(value, int | float) and not 0 <= value <= _LARGEST:
            raise wrong(row, "properties", f"{name} from 0 to {_LARGEST}")
    return said
