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
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple
from uuid import UUID

import cbor2
import msgpack

DEPTH: Final = 64  # a payload nested deeper is an attack, not a measurement
VALUES: Final = 100_000  # objects, lists and leaves in one message

_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_PLAIN_KEY = re.compile(r'[^.\[\]"]+')


class Undecodable(ValueError):
    """The payload is not what its content type declares, or beyond DEPTH or VALUES."""


class Leaf(NamedTuple):
    """One value. Numbers have `value`, texts `text`, booleans both."""

    path: str
    value: float | None
    text: str | None


def leaves(payload: bytes, content_type: str) -> list[Leaf]:
    """The readings of a payload, in its own order; [] if it holds none or is opaque.

    A content type decides how to read it, and one that is not listed in DECODERS makes it opaque.
    Without one it is JSON or a number if it is valid UTF-8. Raises Undecodable if a declared
    payload is not what it says.
    """
    if not content_type:
        return _undeclared(payload)
    decoder = decoder_of(content_type)
    if decoder is None:
        return []
    try:
        return _flat(decoder(payload))
    except Undecodable:
        raise
    except (RecursionError, MemoryError) as error:
        raise Undecodable(f"nested too deep for {content_type}") from error
    except Exception as error:  # decoders of foreign bytes raise whatever they like
        raise Undecodable(f"not {content_type}: {error}") from error


def _undeclared(payload: bytes) -> list[Leaf]:
    try:
        return _flat(_json(payload))
    except (ValueError, RecursionError):
        pass
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return []
    return _flat(float(text)) if _NUMBER.fullmatch(text) else []


def decoder_of(content_type: str) -> Callable[[bytes], Any] | None:
    """The decoder a MIME type asks for, its parameters ignored; None if there is none."""
    name = content_type.partition(";")[0].strip().lower()
    _, plus, suffix = name.rpartition("+")
    return DECODERS.get(name) or (DECODERS.get("application/" + suffix) if plus else None)


def _json(payload: bytes) -> Any:
    return json.loads(payload.decode(), parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")  # RFC 8259 section 6


def _text(payload: bytes) -> Any:
    text = payload.decode()
    return float(text) if _NUMBER.fullmatch(text) else text


def _cbor(payload: bytes) -> Any:
    return cbor2.loads(payload)


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


def _flat(value: Any) -> list[Leaf]:
    """All leaves in order. A loop with a bound: CBOR's shared references may form any graph."""
    found: list[Leaf] = []
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    seen = 0
    while todo:
        path, value, depth = todo.pop()
        seen += 1
        if depth > DEPTH or seen > VALUES:
            raise Undecodable(f"deeper than {DEPTH} levels or more than {VALUES} values")
        inner = _inside(path, value)
        if inner is not None:
            todo.extend((place, item, depth + 1) for place, item in reversed(inner))
        elif (leaf := _leaf(path, value)) is not None:
            found.append(leaf)
    return found


def _inside(path: str, value: Any) -> list[tuple[str, Any]] | None:
    """The places in an object or list and what is there; None for anything else."""
    if isinstance(value, dict):
        return [(_under(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return None


def _under(path: str, key: Any) -> str:
    if not isinstance(key, str):
        return f"{path}[{_scalar(key)}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(_valid(key), ensure_ascii=False)}]"
    return f"{path}.{_valid(key)}" if path else _valid(key)


def _scalar(key: Any) -> str:
    return f"h'{key.hex()}'" if isinstance(key, bytes) else _valid(str(key))


def _leaf(path: str, value: Any) -> Leaf | None:
    """The row of a scalar; None for null, bytes and what has no plain meaning."""
    if isinstance(value, bool):
        return Leaf(path, float(value), "true" if value else "false")
    if isinstance(value, str):
        return Leaf(path, None, _valid(value))
    if isinstance(value, int | float | Decimal | Fraction):
        return _number(path, value)
    if isinstance(value, datetime | date):
        return Leaf(path, None, value.isoformat())
    return Leaf(path, None, str(value)) if isinstance(value, UUID) else None


def _number(path: str, value: int | float | Decimal | Fraction) -> Leaf | None:
    """A number as float64; one that would lose digits keeps them in `text`."""
    try:
        rounded = float(value)
    except (OverflowError, ValueError):
        rounded = math.inf
    if math.isinf(rounded) or math.isnan(rounded):
        return None if isinstance(value, float) else Leaf(path, None, str(value)[:1000])
    exact = isinstance(value, float) or rounded == value
    return Leaf(path, rounded, None if exact else str(value)[:1000])


def _valid(text: str) -> str:
    """Text that UTF-8 can carry: JSON may spell half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
