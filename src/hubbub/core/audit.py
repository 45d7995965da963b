"""Who came in, who was refused what, and who managed what: a line of the log and a row each.

    connect   its row is the session's own; here it gets its line
    refused   a login, or what somebody who is in may not do or gets no more of
    managed   what was done to something that is not one's own, and how it ended

Anybody can be refused, as often as it likes. So of each sort (logins, the rest) REFUSALS_TOLD a
minute have a line and a row, half of them of one user or address at most; a line and a row say how
many more there were. Names are cut: what a row says is for people. No secret is ever given here.
Called by the broker, its gates and whoever manages; no I/O.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, NamedTuple

from hubbub import schema
from hubbub.core.clock import Clock
from hubbub.core.gate import Opening, owner
from hubbub.core.limits import GONE_KEPT, REFUSALS_TOLD, SAID_A_SECOND
from hubbub.core.log import Log
from hubbub.core.message import properties_column
from hubbub.core.rights import NAME_KEPT, TEXT_KEPT, Refusals, named, refusal, words_of
from hubbub.core.session import Session
from hubbub.schema import Row, column_of

MINUTE: Final = 60.0
LOGIN: Final = "connect"  # the verb of who wants to come in
LACKED: Final = "take"  # and of who gets no more of a pool

log = logging.getLogger("hubbub.audit")


class Who(NamedTuple):
    """Who did it: its names, and how it came in; "" is the hub or what nobody knows."""

    user: str
    client: str
    protocol: str
    address: str
    listener: str

    def __str__(self) -> str:
        here = self.protocol or self.user
        return f"{named(self.user)} (client {self.client!r})" if here else "the hub itself"

    def extra(self) -> dict[str, str]:
        """The same for a log of which machines make sense."""
        return self._asdict()

    def way(self) -> str:
        """By what and through which door, as a line of the log says it after the rest."""
        door = f"listener {self.listener}" if self.listener else ""
        said = ", ".join(filter(None, (self.protocol, self.address, door)))
        return f" [{said}]" if said else ""


def who(session: Session) -> Who:
    opening = session.opening
    place = opening.gate.place if opening is not None else ""
    return Who(session.user, session.client, session.protocol, session.address, place)


class Left(NamedTuple):
    """A client that went: when and since when it was there (microseconds since 1970), and why."""

    time: int
    came: int
    who: Who
    reason: str  # "" = it left in order


class Bound:
    """How many refusals of one sort are told in this minute, and how many are not."""

    def __init__(self) -> None:
        self._until = 0.0
        self._told: dict[str, int] = {}
        self._left = REFUSALS_TOLD
        self._out = 0

    def allows(self, now: float, whose: str) -> bool:
        """Whether one more of that user or address is told; the others are counted."""
        if now >= self._until:
            self._until, self._left = now + MINUTE, REFUSALS_TOLD
            self._told.clear()
        told = self._told.get(whose, 0)
        if not self._left or told >= REFUSALS_TOLD // 2:
            self._out += 1
            return False
        self._told[whose] = told + 1
        self._left -= 1
        return True

    def left_out(self, now: float) -> int:
        """How many were not told, once their minute is over."""
        if not self._out or now < self._until:
            return 0
        out, self._out = self._out, 0
        return out


class Audit:
    """The one place that tells of it. `rows`: whether the journal hears it too."""

    def __init__(self, clock: Clock, rows: Log) -> None:
        self.refusals = Refusals(clock)
        self.rows = rows.records
        self._clock = clock
        self._journal = rows
        self._logins = Bound()
        self._actions = Bound()
        self.gone: deque[Left] = deque(maxlen=GONE_KEPT)
        self._second = 0.0
        self._said = 0

    def connected(self, session: Session) -> None:
        """A gate has let it in; so many lines a second at most, the rows say all."""
        now = self._clock.now()
        if now - self._second >= 1.0:
            if self._said > SAID_A_SECOND:
                log.info("%d more clients came in within a second", self._said - SAID_A_SECOND)
            self._second, self._said = now, 0
        self._said += 1
        if self._said <= SAID_A_SECOND:
            one = who(session)
            log.info("%s came in%s", one, one.way(), extra=one.extra())

    def left(self, session: Session, reason: str) -> None:
        """A client is gone. The last ones are remembered, for who asks why."""
        user, client, protocol, address, listener = who(session)
        short = Who(user[:NAME_KEPT], client[:NAME_KEPT], protocol, address, listener)
        self.gone.append(Left(self._clock.stamp(), session.came, short, reason[:TEXT_KEPT]))

    def turned_away(self, opening: Opening, user: str, client: str, reason: str) -> None:
        """A gate has not let somebody in."""
        one = Who(user, client, opening.protocol, opening.address, opening.gate.place)
        where = opening.address or "this host"
        text = f"{one} at {where} was not let in: {words_of(reason)}"
        self.refusals.keep_login(user, client, text)
        stranger = owner("", one.address)  # any user name can be said
        self._tell(self._logins, stranger, one, LOGIN, "", {"reason": words_of(reason)}, text)

    def refused(self, session: Session, verb: str, name: str, rule: str = "") -> str:
        """Somebody may not do that with a name: why, in words for its own ears. Without a `rule`
        its rights decided.
        """
        one, rule = who(session), rule or session.rights.decided_by(verb, name)
        text = refusal(one.user, one.client, verb, name, rule)
        self.refusals.keep(one.user, one.client, text)
        shown = session.opening.credentials if session.opening is not None else None
        whose = shown.owner if shown is not None else owner(one.user, one.address)
        self._tell(self._actions, whose, one, verb, name, {"rule": rule}, text)
        return text

    def lacked(self, session: Session, pool: str, text: str) -> None:
        """Somebody gets no more of what is for all. Whoever calls says it once a minute."""
        one = who(session)
        self.refusals.keep(one.user, one.client, text)
        log.warning("%s", text, extra=one.extra())
        if self.rows:
            self._row(schema.REFUSED, one, LACKED, pool, {"reason": text})

    def managed(self, session: Session, verb: str, name: str, trouble: str = "") -> None:
        """Somebody did something to what is not its own alone, or tried to (`trouble`)."""
        one = who(session)
        what = f"{verb} {name}".rstrip()
        ended = trouble or "done"
        log.info("%s: %s: %s%s", one, what[:TEXT_KEPT], ended, one.way(), extra=one.extra())
        if self.rows:
            self._row(schema.MANAGED, one, verb, name, {"trouble": trouble})

    def wake(self) -> None:
        """Say how many refusals were not told in the minute that is over."""
        now = self._clock.now()
        self._say_rest("logins", self._logins.left_out(now))
        self._say_rest("refusals", self._actions.left_out(now))

    def close(self) -> None:
        """The same for what is left, before the journal ends."""
        self._say_rest("logins", self._logins.left_out(float("inf")))
        self._say_rest("refusals", self._actions.left_out(float("inf")))

    def _tell(
        self, bound: Bound, whose: str, one: Who, verb: str, name: str, why: dict[str, str],
        text: str,
    ) -> None:
        if not bound.allows(self._clock.now(), whose):
            return
        log.info("%s%s", text[: 2 * TEXT_KEPT], one.way(), extra=one.extra())
        if self.rows:
            self._row(schema.REFUSED, one, verb, name, why)

    def _say_rest(self, what: str, count: int) -> None:
        if not count:
            return
        log.info("%d more %s within a minute are not told one by one", count, what)
        if self.rows:
            properties = properties_column({"verb": LOGIN} if what == "logins" else None)
            row = Row(0, 0, schema.REFUSED, number=count, properties=properties)
            self._journal.append(row)

    def _row(self, kind: bytes, one: Who, verb: str, name: str, why: dict[str, str]) -> None:
        said: dict[str, str] = {
            "verb": verb, "user": one.user, "address": one.address, "listener": one.listener, **why,
        }  # fmt: skip
        properties: dict[str, object] = {
            key: value[:TEXT_KEPT] for key, value in said.items() if value
        }
        self._journal.append(
            Row(
                0, 0, kind, one.protocol.encode(), column_of(one.client[:NAME_KEPT]),
                column_of(name[:TEXT_KEPT]), properties=properties_column(properties),
            )  # fmt: skip
        )
