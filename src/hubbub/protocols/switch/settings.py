"""The settings of one queue in JSON, as `POST /create/QUEUE` takes and shows them. No I/O."""

from __future__ import annotations

import json
from typing import Final

from hubbub.core.queue import PLAIN, QueueSettings
from hubbub.protocols.switch.codec import INVALID, Refused, json_object, quoted_name

LARGEST: Final = 1 << 40  # of a number: far beyond any use, and still safe to count with


def settings_of(body: bytes, now: QueueSettings) -> QueueSettings:
    """What a body asks for, on top of what holds now; Refused (400) says what was expected."""
    try:
        given = json_object(body) if body else {}
    except INVALID as error:
        raise Refused(400, f"expected a JSON object: {error}") from None
    for name, value in given.items():
        if name not in QueueSettings._fields:
            known = ", ".join(QueueSettings._fields)
            raise Refused(400, f"there is no setting {name}; expected some of {known}")
        # not by what holds now: seconds may have been said as 7, and are 7.5 next
        expected = _expected(value, getattr(PLAIN, name))
        if expected:
            raise Refused(400, f"{name} cannot be {value!r}; expected {expected}")
    return now._replace(**given)


def _expected(value: object, kind: object) -> str:
    """What the value should have been, "" if it is right."""
    if isinstance(kind, str):
        return "" if isinstance(value, str) else "the name of a queue"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, int) and isinstance(value, float):
        number = False
    if number and 0 <= value <= LARGEST:  # type: ignore[operator]
        return ""
    return f"a {'whole ' * isinstance(kind, int)}number from 0 on"


def settings_said(settings: QueueSettings) -> bytes:
    """All settings as a JSON object."""
    pairs = zip(settings._fields, settings, strict=True)
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), _said(value)) for name, value in pairs)


def _said(value: object) -> bytes:
    if isinstance(value, str):
        return quoted_name(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value).encode()
