"""A will, and the row that keeps it while its client is connected, and over a restart. No I/O."""

from __future__ import annotations

from hubbub.core.gate import owner
from hubbub.core.message import Message, message_of, read_json, row_saying
from hubbub.core.session import Session
from hubbub.protocols.mqtt.dialect import SECOND
from hubbub.schema import WILL, Row


class Will:
    """A will: what is published, after how many seconds, and how long that is worth sending.

    `life` -1 = for ever.
    """

    __slots__ = ("delay", "life", "message")

    def __init__(self, message: Message, delay: int = 0, life: int = -1) -> None:
        message.expires = 0  # its time begins when it is published
        self.message = message
        self.delay = delay
        self.life = life

    def published(self, stamp: int) -> Message:
        """The message as it is published now."""
        message = self.message
        message.expires = stamp + self.life * SECOND if self.life >= 0 else 0
        message.seq = message.time = 0
        return message

    def row(self, session: Session, checked: bool) -> Row:
        """The row that keeps it. `checked`: there are rules for that client, or it is a user: who
        said it is in the row, for when nobody else knows it any more.
        """
        properties = dict(self.message.properties or {})
        if checked:
            properties["by"] = by = [session.user]
            if session.payer != owner(session.user, ""):
                by.append(session.payer)
        if self.delay:
            properties["delay"] = self.delay
        if self.life >= 0:
            properties["expiry"] = self.life
        return row_saying(self.message, WILL, 0, 0, properties)


def will_of(row: Row) -> Will:
    """The will that a row keeps."""
    message = message_of(row)
    properties = message.properties or {}
    properties.pop("by", None)
    delay, life = properties.pop("delay", 0), properties.pop("expiry", -1)
    message.properties = properties or None
    assert isinstance(delay, int) and isinstance(life, int)
    return Will(message, delay, life)


def left_by(row: Row) -> tuple[str, str] | None:
    """As whom the client of a will had logged in, and to whom that is put down; None if nobody had
    to know, or the row is of a version that did not say it.
    """
    if b'"by"' not in row.properties:
        return None
    by = read_json(row.properties).get("by")
    if not isinstance(by, list) or not by:
        return None
    user = str(by[0])
    return user, str(by[1]) if len(by) > 1 else owner(user, "")
