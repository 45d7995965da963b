"""How the process logs: lines with date and zone or JSON, and not the same one for ever.

Of lines that say the same, but for names and numbers in them, LIKE within SPAN seconds are written;
then one says how many more there were. What is only shown because somebody asked (debug) is never
left out, nor is who did what (`core.audit`), which has bounds of its own. Set up by `server`; the
lines come from everywhere. What is said of the settings before they are known is `held` till then.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from hubbub.terminal import LogLines

LIKE: Final = 50  # lines of one kind: more are read by nobody
SPAN: Final = 10.0  # seconds, from the first of them
KINDS: Final = 1_000  # that are remembered; then all begin anew
SAID: Final = 20  # kinds of one statement in a span: strangers choose words that stand in some
BOUNDED: Final = ("hubbub.audit",)  # by themselves; of these each is wanted
WHO: Final = ("user", "client", "protocol", "address", "listener")  # what a record may know

# Quoted as `repr` does it, and perhaps cut off: who is quoted has both quotes in its name if it
# wants each line to be another.
_NAMES: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|[0-9a-fA-F:.]*[0-9][0-9a-fA-F:.]*""",
    re.DOTALL,
)


class Repeats(logging.Filter):
    """Counts lines that are like others; `say` gets a line about those that were left out."""

    def __init__(self, say: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._say = say
        self._kinds: dict[tuple[str, str], list[float]] = {}  # when its span ends, and how many
        self._of: dict[tuple[str, str], tuple[str, str]] = {}  # of which statement one is
        self._said: dict[tuple[str, str], int] = {}  # how many kinds of each there are
        self._look = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now >= self._look:
            self.tell(now)
        if record.levelno < logging.INFO or record.name in BOUNDED:
            return True
        kind = self._kind(record, now)
        kind[1] += 1
        return kind[1] <= LIKE

    def _kind(self, record: logging.LogRecord, now: float) -> list[float]:
        key = record.name, _NAMES.sub("_", record.getMessage()[:300])
        kind = self._kinds.get(key)
        if kind is not None:
            return kind
        said = record.name, str(record.msg)
        if len(self._kinds) >= KINDS:
            self.tell()
            self._look = now + 1.0
        if self._said.get(said, 0) >= SAID:
            return self._kinds.setdefault(said, [now + SPAN, 0])  # the rest of them are as one
        self._said[said] = self._said.get(said, 0) + 1
        self._of[key] = said
        kind = self._kinds[key] = [now + SPAN, 0]
        return kind

    def tell(self, now: float = float("inf")) -> None:
        """Say what was left out in the spans that are over by now."""
        self._look = now + 1.0
        for key in [key for key, (until, _) in self._kinds.items() if until <= now]:
            said = self._of.pop(key, None)
            if said is not None:
                self._forget(said)
            more = int(self._kinds.pop(key)[1]) - LIKE
            if more > 0:
                text = f"{more} more lines within {SPAN:.0f} s like: {key[1]}"
                self._say(logging.LogRecord(key[0], logging.INFO, "", 0, text, (), None))

    def _forget(self, said: tuple[str, str]) -> None:
        """One kind less of a statement."""
        left = self._said.get(said, 0) - 1
        if left > 0:
            self._said[said] = left
        else:
            self._said.pop(said, None)


class JsonLines(logging.Formatter):
    """A JSON object a line: time, level, logger, message, and who it is about, if that is known."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, str] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: value for name in WHO if (value := getattr(record, name, ""))}
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)


class _Held(logging.Handler):
    """Keeps what it gets."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


@contextmanager
def held() -> Iterator[list[logging.LogRecord]]:
    """While nobody knows yet how a line looks: what is logged, for `tell`."""
    records: list[logging.LogRecord] = []
    handler = _Held(records)
    logging.root.addHandler(handler)
    try:
        yield records
    finally:
        logging.root.removeHandler(handler)


def tell(records: Iterable[logging.LogRecord]) -> None:
    """Log what was held."""
    for record in records:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def log_to_stderr(level: str, form: str, process: str = "") -> Repeats:
    """Let the process log there; `form` is `text` or `json`. Call `tell` before it ends. `process`
    says in each line which of several it is.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMS[form](process))
    repeats = Repeats(handler.emit)
    handler.addFilter(repeats)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return repeats


def _lines(process: str) -> logging.Formatter:
    which = f"[{process}] " if process else ""
    form = f"%(asctime)s %(levelname).1s {which}%(name)s: %(message)s"
    return LogLines(form, datefmt="%Y-%m-%dT%H:%M:%S%z")


FORMS: Final[dict[str, Callable[[str], logging.Formatter]]] = {"text": _lines, "json": JsonLines}
