"""Makes the cells of a typed table out of a message, or says why they do not fit.

Called in Spark's workers by `tables.typed`, and by `tables.quarantine` for the reason. Strict: a
number is no text and "off" no number; a whole number may be a DOUBLE, and 3.0 an INT. What is not
there, or null, is null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from hubbub.pipeline.decode import Leaf, Undecodable, value_of
from hubbub.pipeline.event_time import microseconds, since
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.typed import Typed, cells_of

_SHOWN: Final = 60  # characters of a value in a reason
_EXACT: Final = 2**53
_BEYOND: Final = 2**63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Unfit(ValueError):
    """The message is no row of the table: why."""


class Fitter:
    """The cells of messages, by one declaration. One in each task of Spark's workers."""

    def __init__(self, typed: Typed, rules: Rules) -> None:
        self.cells = cells_of(typed)
        self._name = typed.name
        self._matches = re.compile(typed.pattern(), re.DOTALL).fullmatch
        self._strict = typed.late == "quarantine"
        self._patience = timedelta(seconds=rules.patience())
        self._payload = any(cell.level < 0 for cell in self.cells)

    def concerns(self, topic: str) -> bool:
        return self._matches(topic) is not None

    def row(self, topic: str, payload: bytes, content_type: str) -> list[Any]:
        """One cell a column. Raises Unfit; Undecodable if the payload is not what it should be.

        Whatever else a value does to Python is this message's reason too: raised, it would be the
        failure of the whole batch.
        """
        try:
            return self._row(topic, payload, content_type)
        except (Unfit, Undecodable, MemoryError):  # memory is the machine's
            raise
        except Exception as error:
            said = str(error)[:_SHOWN]
            raise Unfit(f"{self._name}: {type(error).__name__}: {said}") from error

    def _row(self, topic: str, payload: bytes, content_type: str) -> list[Any]:
        value = value_of(payload, content_type) if self._payload else None
        levels = topic.split("/")
        row: list[Any] = []
        for cell in self.cells:
            if cell.level >= 0:
                found: Any = levels[cell.level] if cell.level < len(levels) else None
            else:
                found = _at(value, cell.path)
            if found is None:
                if not cell.nullable:
                    raise Unfit(f"{self._name}.{cell.name} is missing, and NOT NULL")
                row.append(None)
                continue
            made = _MAKE[cell.type](found)
            if made is None:
                shown = repr(found)
                shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
                raise Unfit(f"{self._name}.{cell.name}: expected {cell.type.upper()}, got {shown}")
            row.append(made)
        return row

    def late(self, time: datetime, event_time: datetime) -> bool:
        """Whether its own time cannot count. Raises Unfit if that is for quarantine."""
        late = event_time > time or event_time < time - self._patience
        if late and self._strict:
            raise Unfit(f"{self._name}: {_how_late(time - event_time)}")
        return late

    def reason(self, batch: Any, topic: str, payload: bytes, content_type: str) -> str:
        """Why it is no row; "" if it is one. `batch`: its time and event time."""
        try:
            self.row(topic, payload, content_type)
            self.late(*batch)
        except (Unfit, Undecodable) as error:
            return str(error) or "it cannot be decoded"
        return ""


def _how_late(behind: timedelta) -> str:
    """In steps: with the seconds each row would have a reason of its own, and nobody could count
    by reason. They are the difference of its two times.
    """
    span = abs(behind)
    least = next((f"more than {name}" for step, name in _STEPS if span > step), "a second or less")
    return f"late by {least}" if behind > timedelta(0) else f"{least} in the future"


_STEPS: Final = (
    (timedelta(days=1), "a day"),
    (timedelta(hours=1), "an hour"),
    (timedelta(minutes=1), "a minute"),
    (timedelta(seconds=1), "a second"),
)


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return None
            value = value[step]
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        return None
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _whole(bits: int) -> Callable[[Any], int | None]:
    most = 1 << (bits - 1)

    def made(value: Any) -> int | None:
        if isinstance(value, Decimal | Fraction):
            value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, float):
            if not value.is_integer() or abs(value) > _EXACT:
                return None
            value = int(value)
        return value if -most <= value < most else None

    return made


def _plain(value: Decimal | Fraction) -> int | None:
    """A whole number of CBOR's other sorts; None if it has more, or more digits than any column."""
    fits = -_BEYOND <= value < _BEYOND if value == value else False
    return int(value) if fits and value == int(value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _string(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _timestamp(value: Any) -> datetime | None:
    """ISO 8601, or a number of s, ms, us or ns since 1970: as event times are."""
    found = None
    if isinstance(value, datetime):
        found = since(value)
    elif isinstance(value, str):
        found = microseconds(Leaf("", None, value))
    elif (number := _double(value)) is not None:
        found = microseconds(Leaf("", number, None))
    return None if found is None else _EPOCH + timedelta(microseconds=found)


def _date(value: Any) -> date | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


_MAKE: Final[dict[str, Callable[[Any], Any]]] = {
    "double": _double,
    "bigint": _whole(64),
    "int": _whole(32),
    "boolean": _boolean,
    "string": _string,
    "timestamp": _timestamp,
    "date": _date,
}
