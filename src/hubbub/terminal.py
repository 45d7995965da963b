"""Words that strangers chose, on a terminal: names and payloads may carry what it would obey.

Escape sequences rename a window, hide lines or type for the operator. On a terminal control
characters, and what takes no place at all, are shown as Python writes them (`\\x1b`, `\\u200b`); in
a pipe or file everything stays as it is.
The commands print with `say`, the hub logs with `LogLines`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO, cast

_CONTROL: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_BIDIRECTIONAL: Final = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# Two names that differ in these only look the same; tags say to machines what no person sees.
_UNSEEN: Final = (
    0xAD, 0x34F, 0x180E, 0x200B, *range(0x2060, 0x2066), 0xFEFF, *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)  # fmt: skip
_JOINING: Final = (0x200C, 0x200D)  # as unseen, but Persian and emoji are written with them
_SHOWN: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*_CONTROL, *_BIDIRECTIONAL, *_UNSEEN, *_JOINING)
}
_LINES: Final = {
    code: shown for code, shown in _SHOWN.items() if chr(code) not in "\n\t\u200c\u200d"
}


def harmless(text: str, lines: bool = True) -> str:
    """The text without anything that a terminal would obey or not show; `lines` may end, have
    columns, and be in any script.
    """
    return text.translate(_LINES if lines else _SHOWN)


def for_bytes(text: str, stream: TextIO | None = None, lines: bool = True) -> str:
    """The text as a terminal may have it, else as it is, for who writes bytes that are no text."""
    return harmless(text, lines) if (stream or sys.stdout).isatty() else text


def for_stream(text: str, stream: TextIO | None = None, lines: bool = True) -> str:
    """The text as it may go to a stream, stdout unless it is said. Bytes that are no text are `?`:
    no stream would take them.
    """
    return for_bytes(text.encode("utf-8", "replace").decode(), stream, lines)


def say(
    text: str, end: str = "\n", stream: TextIO | None = None, lines: bool = True
) -> None:
    """Print a text at once that others had a part in."""
    print(for_stream(text, stream, lines), end=end, file=stream or sys.stdout, flush=True)


class Screened:
    """A stream for those who write many pieces, harmless if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(for_stream(text, self._stream))


def screened(stream: TextIO) -> TextIO:
    return cast(TextIO, Screened(stream))


class LogLines(logging.Formatter):
    """One line an event, whatever is in it; only what went wrong in our own code takes more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = harmless(record.message, lines=False)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_to_stderr(level: int | str, form: str, **options: Any) -> None:
    """Let the process log there, as `logging.basicConfig` would."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(form, **options))
    logging.basicConfig(level=level, handlers=[handler])
