"""Payloads on the command line: what `pub` and `rr` send, and how `sub` and `rr` print."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hubbub.errors import SettingError
from hubbub.terminal import for_bytes

PIECE_BYTES: Final = 64 * 1024  # of stdin, read at once


def given(
    message: str | None, file: Path | None, empty: bool = False, stdin: bool = False
) -> bytes:
    """The one payload that the options name; without any, what stdin holds."""
    ways = [message is not None, file is not None, empty, stdin]
    if sum(ways) > 1:
        raise SettingError("expected one payload: --message, --file, --null or --stdin, not both")
    if message is not None:
        return typed(message)
    if file is not None:
        return contents(file)
    if empty:
        return b""
    if not stdin and sys.stdin.isatty():
        print("hubbub: no --message; type the payload, and Ctrl-D at its end", file=sys.stderr)
    return sys.stdin.buffer.read()


def typed(word: str) -> bytes:
    """The bytes that were typed, whatever they are."""
    return word.encode("utf-8", "surrogateescape")


def contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingError(f"cannot read {file}: {error.strerror}") from None


async def lines() -> AsyncIterator[bytes]:
    """One payload a line of stdin, as they come."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)

    def read() -> None:
        data = b"more"
        while data:
            # Not through sys.stdin: its lock, held at the end, would stop the interpreter.
            data = os.read(sys.stdin.fileno(), PIECE_BYTES)
            asyncio.run_coroutine_threadsafe(pieces.put(data), loop).result()

    # A daemon: Ctrl-C must not wait for a terminal to say something.
    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while data := await pieces.get():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def repeated(one: bytes, times: int, delay: float) -> AsyncIterator[bytes]:
    """The same payload several times, with a pause in seconds between."""
    for count in range(times):
        if count and delay:
            await asyncio.sleep(delay)
        yield one


# Printing. A message is of any protocol: what it does not have is left out.

Printer = Callable[[Any], str]

_FIELDS: Final = (
    "subtopic", "qos", "retain", "content_type", "response_topic", "expiry",
    "subscription_ids",
)  # fmt: skip
_ALWAYS: Final = frozenset(("subtopic", "qos", "retain"))


def printer(template: str | None, as_json: bool, as_hex: bool, decoded: bool) -> Printer:
    """How each message is shown; `template` is that of mosquitto_sub -F."""
    if sum((template is not None, as_json, as_hex, decoded)) > 1:
        raise SettingError("expected one of --format, --json, --hex and --decode")
    if template is not None:
        return lambda message: formatted(template, message)
    show = _as_json if as_json else _as_hex if as_hex else _as_value if decoded else _as_text
    return lambda message: for_bytes(show(message))


def _as_json(message: Any) -> str:
    return json.dumps(fields(message), ensure_ascii=False)


def _as_hex(message: Any) -> str:
    return f"{_topic(message)} {message.payload.hex()}"


def _as_value(message: Any) -> str:
    return f"{_topic(message)} {json.dumps(decode(message), default=_shown)}"


def _as_text(message: Any) -> str:
    return f"{_topic(message)} {as_it_is(message.payload)}"


def _topic(message: Any) -> str:
    """On a terminal a name is part of one line, whatever is in it; a payload may have several."""
    return for_bytes(str(message.topic), lines=False)


def as_it_is(payload: bytes) -> str:
    """Text, or for `put` the bytes themselves; on a terminal what is no text is readable."""
    return payload.decode("utf-8", "backslashreplace" if sys.stdout.isatty() else "surrogateescape")


def put(shown: str, end: str = "\n") -> None:
    """Print a message at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write((shown + end).encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def text(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace")


def fields(message: Any) -> dict[str, Any]:
    """The fields the protocol has; a payload that is no text goes as `payload_base64`."""
    found: dict[str, Any] = {"topic": message.topic}
    for name in _FIELDS:
        value = getattr(message, name, None)
        if value or (name in _ALWAYS and value is not None):
            found[name] = value
    if getattr(message, "correlation", b""):
        found["correlation"] = message.correlation.hex()
    if getattr(message, "user", ()):
        found["user"] = message.user
    try:
        found["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = b64encode(message.payload).decode()
    return found


def there(message: Any) -> dict[str, Any]:
    """As mosquitto_sub says it with %j; a payload that is no text goes as `payload_base64`."""
    found: dict[str, Any] = {
        "tst": datetime.now(UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S.%fZ%z"),
        "topic": message.topic,
        "qos": getattr(message, "qos", 0),
        "retain": int(getattr(message, "retain", False)),
        "payloadlen": len(message.payload),
    }
    said = {
        "content-type": getattr(message, "content_type", ""),
        "correlation-data": text(getattr(message, "correlation", b"")),
        "response-topic": getattr(message, "response_topic", ""),
        "user-properties": dict(_user(message)),
        "payload-format-indicator": int(getattr(message, "text", False)),
        "message-expiry-interval": getattr(message, "expiry", None),
        "subscription-identifier": next(iter(getattr(message, "subscription_ids", ())), 0),
    }
    properties = {name: value for name, value in said.items() if value}
    if properties:
        found["properties"] = properties
    try:
        found["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = b64encode(message.payload).decode()
    return found


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_shown)


# Decoders by content type, and the functions that read them.
_DECODERS: Final = {
    "json": ("json", "loads"),
    "cbor": ("cbor2", "loads"),
    "msgpack": ("msgpack", "unpackb"),
}


def decode(message: Any) -> Any:
    """The value in a payload: by its content type, else JSON, CBOR or MessagePack if it is one.

    What cannot be decoded is shown as text. CBOR and MessagePack need cbor2 and msgpack.
    """
    payload: bytes = message.payload
    content_type: str = getattr(message, "content_type", "")
    named = [name for name in _DECODERS if name in content_type]
    # Without a content type only containers count: every byte is some number in the binary ones.
    guessed = ["json", *(_BINARY if payload[:1] not in _TEXT else ())]
    for name in named or guessed:
        module, function = _DECODERS[name]
        try:
            value = getattr(import_module(module), function)(payload)
        except Exception:
            continue  # not that, or its package is not installed
        if named or name == "json" or isinstance(value, dict | list):
            return value
    return text(payload)


_BINARY: Final = ("msgpack", "cbor")
_TEXT: Final = frozenset(bytes((byte,)) for byte in range(0x20, 0x7F))


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\033", "0": "\0", "\\": "\\"}

# What a letter behind % stands for, as in mosquitto_sub.
_LETTERS: Final[dict[str, Callable[[Any], str]]] = {
    "%": lambda message: "%",
    "t": lambda message: str(message.topic),
    "p": lambda message: as_it_is(message.payload),
    "x": lambda message: str(message.payload.hex()),
    "X": lambda message: str(message.payload.hex().upper()),
    "l": lambda message: str(len(message.payload)),
    "q": lambda message: str(getattr(message, "qos", 0)),
    "r": lambda message: str(int(getattr(message, "retain", False))),
    "j": lambda message: _compact(there(message)),
    "J": lambda message: _compact(there(message) | {"payload": decode(message)}),
    "A": lambda message: "",  # the client has put the topic in its place
    "C": lambda message: str(getattr(message, "content_type", "")),
    "D": lambda message: as_it_is(getattr(message, "correlation", b"")),
    "E": lambda message: str(getattr(message, "expiry", None) or ""),
    "R": lambda message: str(getattr(message, "response_topic", "")),
    "S": lambda message: ",".join(map(str, getattr(message, "subscription_ids", ()))),
    "P": lambda message: " ".join(f"{name}:{value}" for name, value in _user(message)),
    "F": lambda message: "1" if getattr(message, "text", False) else "",
    "U": lambda message: f"{time.time():.9f}",
    "I": lambda message: datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
}
# Flags, width, a precision that means nothing, the letter; or the letter of an escape.
_PLACE: Final = re.compile(r"%(-?)(0?)(\d*)(?:\.\d*)?(.?)|\\(.?)", re.DOTALL)
_WITH_LINES: Final = "pD"
_NEVER_PADDED: Final = "%qrjJ"


def _user(message: Any) -> tuple[tuple[str, str], ...]:
    found: tuple[tuple[str, str], ...] = getattr(message, "user", ())
    return found


def formatted(template: str, message: Any) -> str:
    """A message in the format of mosquitto_sub -F. SettingError for a letter it has not."""

    def fill(place: re.Match[str]) -> str:
        if place[5] is not None:
            if place[5] not in _ESCAPES:
                known = " ".join(f"\\{one}" for one in _ESCAPES)
                raise SettingError(f"{place[0]} is not known in --format; these are: {known}")
            return _ESCAPES[place[5]]
        letter = _LETTERS.get(place[4])
        if letter is None:
            known = " ".join(f"%{one}" for one in _LETTERS)
            raise SettingError(f"{place[0]} is not known in --format; these are: {known}")
        # What the template itself says is the user's. Of what others say a payload has lines.
        shown = for_bytes(letter(message), lines=place[4] in _WITH_LINES)
        width = int(place[3] or 0) if place[4] not in _NEVER_PADDED else 0
        if place[1]:
            return shown.ljust(width)
        return shown.rjust(width, "0" if place[2] and place[4] == "l" else " ")

    return _PLACE.sub(fill, template)
