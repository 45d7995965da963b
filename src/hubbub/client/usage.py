"""What all clients ask of the programs that use them: how payloads are given, and to be entered.

    publish("t", b"21.5")     bytes, bytearray or memoryview: as they are
    publish("t", "21.5")      text: as UTF-8
    publish("t", json=21.5)   anything that JSON can say: as JSON, without spaces
    publish("t", 21.5)        TypeError, which says so

Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from inspect import isawaitable
from json import JSONEncoder
from typing import Any, Final, Self

from hubbub.errors import CallFailed, HubbubError

ERROR: Final = "error"  # the sub-topic of an answer that says why there is none

Payload = bytes | bytearray | memoryview | str


class Nothing:
    """Its one instance is the default of `json=`: None is a value there."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = Nothing()
_ENCODE: Final = JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def payload_of(payload: Payload, json: object = NOTHING) -> bytes:
    """The bytes that are sent. TypeError for both of them, and for what is neither bytes nor text;
    TypeError or ValueError for what JSON cannot say (ValueError for NaN and infinity).
    """
    if json is not NOTHING:
        if payload:
            raise TypeError("a payload and json= were given: leave one of them out")
        return _ENCODE(json).encode()
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(
        f"a payload is bytes or str, got {type(payload).__name__} {payload!r:.40}: "
        f"json={payload!r:.40} sends it as JSON"
    )


async def reply_of(answer: Payload | Awaitable[Payload]) -> bytes:
    """What a handler returned, plain or async, as the bytes to send."""
    return payload_of(await answer if isawaitable(answer) else answer)


def failure(error: Exception) -> bytes:
    """What who asked is told of a handler that failed: a stranger, so nothing of its insides."""
    if isinstance(error, CallFailed):
        return str(error).encode()
    return f"the handler failed: {type(error).__name__}".encode()


def failed(payload: bytes) -> CallFailed:
    """The error that an answer with this payload is."""
    return CallFailed(payload.decode(errors="replace") or "the service said that it failed")


class Entered:
    """A client is connected by `async with client:`, or by `await client`, and `close` ends it."""

    async def open(self) -> None:
        """Connect; nothing, if it is."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave in order."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()


def must_be_entered(entered: bool, name: str) -> None:
    """HubbubError for who uses a client that was never connected: it would wait for ever."""
    if not entered:
        raise HubbubError(
            f"this client is not connected yet: use it in `async with hubbub.{name}(…) as client:`"
            " (blocking: `with`), or await it, and close() it in the end"
        )
