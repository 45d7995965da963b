"""A subscription that begins in the past: what was published before it comes first.

    last=20        the newest twenty messages
    since=1h       those of the last hour; also 90s, 30m, 7d, or a time such as 2026-01-31T12:00Z

Where a protocol has no properties, the name itself may say it: `$history/20/TOPIC` and
`$history/1h/TOPIC` mean TOPIC, beginning there. Who may subscribe may ask; each message is asked
about like any other (`receive`). What comes has QoS 0 and wants no answer. No I/O: an `Archive` of
the edge finds the messages, where there is a journal.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from hubbub.core.limits import HISTORY_MESSAGES
from hubbub.core.message import Message, message_of
from hubbub.core.rights import RECEIVE
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import OWN
from hubbub.schema import Row

PREFIX: Final = "$history/"
TIME: Final = "hubbub-time"  # the user property of what comes from the past: when it was published
USER: Final = "user"
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SPAN: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_DIGITS: Final = 9


class Past(NamedTuple):
    """At most the newest `last` messages, published at `since` (microseconds since 1970) or later.

    0 for one of them: it is not asked.
    """

    last: int
    since: int


def past_of(last: str, since: str, now: int) -> Past:
    """What a client asks for; "" where it says nothing. ValueError in words for it."""
    count = 0
    if last:
        plain = last.isascii() and last.isdecimal() and len(last) <= _DIGITS
        count = int(last) if plain else 0
        if not 1 <= count <= HISTORY_MESSAGES:
            raise ValueError(f"last: expected 1 to {HISTORY_MESSAGES}, got {last[:40]!r}")
    return Past(count, moment_of(since, now) if since else 0)


def moment_of(text: str, now: int, name: str = "since") -> int:
    """`1h` or a time as microseconds since 1970. ValueError in words, with the `name` it has."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return max(now - int(span[1]) * _UNITS[span[2]] * 1_000_000, 1)
    try:
        found = datetime.fromisoformat(text)
        moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return max(int(moment.timestamp() * 1_000_000), 1)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name}: expected 90s, 30m, 1h, 7d or a time such as 2026-01-31T12:00Z, "
            f"got {text[:40]!r}"
        ) from None


def split(name: str, now: int) -> tuple[Past | None, str]:
    """`$history/20/TOPIC` as what it means; any other name as it is. ValueError if it is none."""
    if not name.startswith(PREFIX):
        return None, name
    wanted, _, topic = name[len(PREFIX) :].partition("/")
    if not wanted or not topic:
        raise ValueError(f"{name[:80]!r}: expected $history/20/TOPIC or $history/1h/TOPIC")
    digits = wanted.isascii() and wanted.isdecimal()
    return past_of(wanted if digits else "", "" if digits else wanted, now), topic


NOTHING_KEPT: Final = "this hub keeps no history: see journal.record and durability"


def has_past(name: str) -> bool:
    """Whether the journal keeps what was published there: not what goes to one receiver alone."""
    return not name.startswith(OWN)


def shown_time(moment: int) -> str:
    """Microseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="milliseconds")


def recalled(row: Row) -> Message:
    """A message of the past as a new subscriber gets it: it says when it was published."""
    message = message_of(row)
    properties = dict(message.properties or {})
    user = properties.get(USER)
    said = [TIME, shown_time(row.time)]
    properties[USER] = [*(user if isinstance(user, list) else []), said]
    message.properties = properties
    message.qos, message.seq = 0, 0  # it is in no backlog, and no queue waits for it
    message.reply_to, message.correlation = "", b""  # nobody waits for its answer
    return message


@mypyc_attr(allow_interpreted_subclasses=True)
class Archive:
    """Who finds what was published before. The edge makes one; this is the one of no journal."""

    def keeps(self) -> bool:
        """Whether anything that was published can be found."""
        return False

    def lacks(self, session: Session) -> str:
        """Why it has to ask again later, in words for it; "" = it can ask now."""
        return ""

    def enter(self, subscription: Subscription, past: Past) -> None:
        """It has just begun, and is to get that: it counts from now on, and the past ends here."""

    def recall(self, subscription: Subscription) -> None:
        """Have one that was entered `take` what it asked for, by and by: it has its answer."""


def may_have(session: Session, name: str, everything: object) -> bool:
    """Whether it may receive that name. `everything`: the rights that nobody has to ask."""
    return session.rights is everything or session.rights.may(RECEIVE, name)


def take(subscription: Subscription, row: Row, now: int, everything: object) -> None:
    """Give one message of the past to a subscription, unless it is over or may not have that."""
    session = subscription.session
    if session.subscriptions.get(subscription.filter) is not subscription:
        return
    message = recalled(row)
    if 0 < message.expires <= now or not may_have(session, message.topic, everything):
        return
    own = message.client == session.client and message.protocol == session.protocol
    if not (own and subscription.no_local):
        session.offer(message, subscription, retained=False)
