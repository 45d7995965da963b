"""Turns a payload into readings: JSON, CBOR, MessagePack, plain numbers and text.

Called for each message by `tables.readings`, in Spark's workers. Knows no Spark; never guesses
at binary data, and never raises anything but `Undecodable`.

    {"cpu": [{"load": 0.5, "on": true}], "name": "pi"}

    path            value  text
    cpu[0].load     0.5
    cpu[0].on       1      true
    name                   pi

A path is made of keys joined by dots and list positions in brackets. A key that contains one of
`. [ ] "`, or is empty, is written ["like this"], so different leaves have different paths. A
plain number or text has the path "".

A few bytes can mean much: a long key stands in the path of everything below it, and CBOR may say
the same text again by a number. So what comes out is counted while it is made.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import cbor2
import msgpack
import msgspec

from hubbub.schema import name_shown

DEPTH: Final = 64  # a payload nested deeper is an attack, not a measurement
VALUES: Final = 100_000  # objects, lists and leaves in one message
CHARACTERS: Final = 16 << 20  # of the paths and texts of one, beside those of its payload

# ASCII: other white space, as the separator 0x1C, is some to `re` and none to `float`.
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_PLAIN_KEY = re.compile(r'[^.\[\]"]+')
_HUGE: Final = float("inf")
_EXACT: Final = 2**53  # up to here every integer is a float64
_fast_json: Final = msgspec.json.Decoder().decode


class Undecodable(ValueError):
    """The payload is not what its content type declares, or beyond the bounds above."""


class Leaf(NamedTuple):
    """One value. Numbers have `value`, texts `text`, booleans both."""

    path: str
    value: float | None
    text: str | None


def leaves(payload: bytes, content_type: str) -> list[Leaf]:
    """The readings of one payload, see `Leaves.take`."""
    found = Leaves()
    found.take(0, payload, content_type)
    return [Leaf(*leaf) for leaf in zip(found.paths, found.values, found.texts, strict=True)]


def value_of(payload: bytes, content_type: str) -> Any:
    """The payload as one value, by its content type; JSON or a number without one.

    Raises Undecodable if it is not that, also if nothing here can read that content type.
    """
    decoder = decoder_of(content_type) if content_type else _json
    if decoder is None:
        raise Undecodable(f"there is no decoder for {content_type[:100]!r}")
    try:
        return decoder(payload)
    except Exception as error:  # decoders of foreign bytes raise whatever they like
        raise _undecodable(error, content_type or "JSON") from error


class Leaves:
    """The readings of many messages as columns: `places` says which message each one is of."""

    __slots__ = ("places", "paths", "values", "texts", "_seen", "_left")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.paths: list[str] = []
        self.values: list[float | None] = []
        self.texts: list[str | None] = []
        self._seen = 0
        self._left = 0

    def take(self, place: int, payload: bytes, content_type: str) -> None:
        """Add the readings of a payload, in its own order; none if it holds none or is opaque.

        A content type decides how to read it, and one that is not listed in DECODERS makes it
        opaque. Without one it is JSON or a number if it is valid UTF-8. Raises Undecodable if a
        declared payload is not what it says, and then adds nothing.
        """
        before = len(self.paths)
        self._seen = 0
        self._left = CHARACTERS + len(payload)
        if not content_type:
            self._undeclared(payload, before)
        elif (decoder := decoder_of(content_type)) is not None:
            try:
                self._walk("", decoder(payload), 0)
            except Exception as error:  # decoders of foreign bytes raise whatever they like
                self._cut(before)
                raise _undecodable(error, content_type) from error
        self.places.extend([place] * (len(self.paths) - before))

    def _undeclared(self, payload: bytes, before: int) -> None:
        try:
            self._walk("", _json(payload), 0)
            return
        except (ValueError, RecursionError):
            self._cut(before)
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return
        if _NUMBER.fullmatch(text):
            self._scalar("", _number(text))

    def _cut(self, length: int) -> None:
        for column in (self.paths, self.values, self.texts):
            del column[length:]

    def _walk(self, path: str, value: Any, depth: int) -> None:
        """All leaves in order. Counted, because CBOR's shared references may form any graph."""
        if isinstance(value, dict):
            self._enter(path, len(value), depth)
            self._fields(path, value, depth + 1)
        elif isinstance(value, list):
            self._enter(path, len(value), depth)
            for index, item in enumerate(value):
                self._walk(f"{path}[{index}]", item, depth + 1)
        else:
            self._scalar(path, value)

    def _fields(self, path: str, value: dict[Any, Any], depth: int) -> None:
        """The leaves of an object; the sorts that most of them are go straight in."""
        known = _KEYS.get(path, _NONE)
        said = 0  # characters of places that are known: they count as those that are not
        for key, item in value.items():
            place = known.get(key) if type(key) is str else None
            if place is None:
                place = _remembered(path, key)
                self._spend(len(place))
            else:
                said += len(place)
            sort = type(item)
            if sort is float and -_HUGE < item < _HUGE:
                self.paths.append(place)
                self.values.append(item)
                self.texts.append(None)
            elif sort is str:
                self.paths.append(place)
                self.values.append(None)
                short = len(item) <= _SHORT and item.isascii()
                self.texts.append(item if short else self._said(item))
            elif sort is int and -_EXACT <= item <= _EXACT:
                self.paths.append(place)
                self.values.append(float(item))
                self.texts.append(None)
            else:
                self._walk(place, item, depth)
        self._spend(said)

    def _enter(self, path: str, count: int, depth: int) -> None:
        self._seen += count
        if depth >= DEPTH or self._seen >= VALUES:
            raise Undecodable(f"deeper than {DEPTH} levels or more than {VALUES} values")
        self._spend(count * len(path))

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise Undecodable(f"paths and texts of more than {CHARACTERS} characters")

    def _said(self, text: str) -> str:
        self._spend(len(text))
        return text if text.isascii() else name_shown(text)

    def _add(self, path: str, value: float | None, text: str | None) -> None:
        self.paths.append(path)
        self.values.append(value)
        self.texts.append(text)

    def _scalar(self, path: str, value: Any) -> None:
        """The row of a scalar; none for null, bytes and what has no plain meaning."""
        if isinstance(value, bool):
            self._add(path, float(value), "true" if value else "false")
        elif isinstance(value, str):
            self._add(path, None, self._said(value))
        elif isinstance(value, int | float | Decimal | Fraction):
            self._number(path, value)
        elif isinstance(value, datetime | date):
            self._add(path, None, value.isoformat())
        elif isinstance(value, UUID):
            self._add(path, None, str(value))

    def _number(self, path: str, value: int | float | Decimal | Fraction) -> None:
        """A number as float64; one that would lose digits keeps them in `text`."""
        try:
            rounded = float(value)
        except (OverflowError, ValueError):
            rounded = math.inf
        if math.isfinite(rounded):
            exact = isinstance(value, float) or rounded == value
            self._add(path, rounded, None if exact else self._said(str(value)))
        elif not isinstance(value, float):
            self._add(path, None, self._said(str(value)))


def _undecodable(error: Exception, content_type: str) -> Undecodable:
    if isinstance(error, Undecodable):
        return error
    if isinstance(error, RecursionError | MemoryError):
        return Undecodable(f"nested too deep for {content_type}")
    return Undecodable(f"not {content_type}: {error}")


@lru_cache(256)
def decoder_of(content_type: str) -> Callable[[bytes], Any] | None:
    """The decoder a MIME type asks for, its parameters ignored; None if there is none."""
    name = content_type.partition(";")[0].strip().lower()
    _, plus, suffix = name.rpartition("+")
    return DECODERS.get(name) or (DECODERS.get("application/" + suffix) if plus else None)


def _json(payload: bytes) -> Any:
    """msgspec is eight times as fast and stricter: what it refuses is asked again."""
    try:
        return _fast_json(payload)
    except (msgspec.MsgspecError, RecursionError):
        return json.loads(payload.decode(), parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")  # RFC 8259 section 6


def _text(payload: bytes) -> Any:
    text = payload.decode()
    return _number(text) if _NUMBER.fullmatch(text) else text


def _number(text: str) -> int | float:
    """A whole number keeps all its digits, but for more of them than Python reads."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _cbor(payload: bytes) -> Any:
    """One item and no more: the first byte of almost anything is a whole item of CBOR."""
    data = io.BytesIO(payload)
    value = cbor2.CBORDecoder(data, max_depth=DEPTH, semantic_decoders=_AS_TEXT).decode()
    if data.tell() != len(payload):
        raise ValueError(f"{len(payload) - data.tell()} bytes follow its end")
    return value


# Regular expressions and MIME messages: understanding them can take hours, and is no use here.
_AS_TEXT: Final = dict.fromkeys((35, 36), lambda value, immutable: value)


def _msgpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False, timestamp=3)


DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "application/json": _json,
    "text/json": _json,
    "text/plain": _text,
    "application/cbor": _cbor,
    "application/msgpack": _msgpack,
    "application/x-msgpack": _msgpack,
    "application/vnd.msgpack": _msgpack,
}


def _remembered(path: str, key: Any) -> str:
    """The path of a key below another path, kept in `_KEYS`: keys come again with each message."""
    if type(key) is not str:
        return f"{path}[{_scalar_key(key)}]"
    place = _spelled(path, key)
    if len(place) <= _SHORT:
        if len(_KEYS) >= _MOST_PATHS or len(_KEYS.get(path, _NONE)) >= _MOST_KEYS:
            _KEYS.clear()
        _KEYS.setdefault(path, {})[key] = place
    return place


def path_of(steps: Iterable[str | int]) -> str:
    """The path of what is reached by these keys and positions."""
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _spelled(path, step)
    return path


def _spelled(path: str, key: str) -> str:
    if not key.isascii() and name_shown(key) != key:
        return f"{path}[{json.dumps(key)}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


_NONE: Final[dict[str, str]] = {}
_KEYS: Final[dict[str, dict[str, str]]] = {}  # path: key: path of the key
_SHORT: Final = 256  # characters of a path that is worth remembering, of a text not to count
_MOST_PATHS: Final = 100  # objects, and
_MOST_KEYS: Final = 1_000  # keys of each that are kept: 30 MB at the very most


def _scalar_key(key: Any) -> str:
    if isinstance(key, bytes):
        return f"h'{key.hex()}'"
    if isinstance(key, int | float | None) and key == key:
        return str(key)
    raise Undecodable(f"no path can name a key like {type(key).__name__}")
