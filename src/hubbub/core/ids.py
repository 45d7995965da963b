"""Numbers of names, for protocols that carry them: made when they are asked for, and taken away.

    topic, subtopic ──> create row   a durable number, a random free one of 32 bits
    remove ───────────> forget row   the name has none any more, and the number is nobody's

A number is not taken away while somebody is subscribed to its topic by it, or observes it: what
comes would say a number that it does not know. Who only publishes by it, and has not asked for it
anew, reaches nobody from then on, as with any number that is unknown; nobody else gets it but by
one chance in 2^32. A sub-topic's number is the affair of the clients: who has it goes on with it,
who asks anew gets another. Called by the broker and who manages. No I/O.
"""

from __future__ import annotations

from operator import index
from typing import Final

from hubbub import schema
from hubbub.core.caches import weight_of
from hubbub.core.context import Context
from hubbub.core.names import LARGEST, free_number, is_number
from hubbub.core.observing import Observers
from hubbub.core.quotas import SUBTOPICS, TOPICS
from hubbub.core.session import Session, row_about
from hubbub.core.state import id_properties, subtopic_properties
from hubbub.schema import column_of

UNKNOWN: Final = "there is no such id"
IN_USE: Final = "a client is subscribed to it, or observes it, by this id"


class Ids:
    """The numbers of one hub. Who asked for one since the start pays for it (`core.quotas`)."""

    def __init__(self, broker: Context, observers: Observers) -> None:
        self._broker = broker
        self._observers = observers
        self._payers: dict[int, str] = {}
        self._subtopic_payers: dict[int, str] = {}

    def topic(self, name: str, session: Session, wanted: int = 0) -> int:
        """The durable number of a topic name, made if it is new; 0 when there are too many.

        `wanted`: a new one gets this number if it is nobody's (ValueError if it can be no number).
        """
        wanted, broker = _number(wanted), self._broker
        topics = broker.state.topics
        number = topics.numbers.get(name, 0)
        weight = weight_of(name)
        if number or broker.quotas.lacks(TOPICS, session, topics.weight, weight):
            return number
        taken = wanted in topics.names or broker.reachable(wanted)
        number = wanted if is_number(wanted) and not taken else broker.address()
        self._payers[number] = broker.quotas.take(TOPICS, session, weight)
        said = id_properties(name)
        broker.change(row_about(session, schema.CREATE, name, number=number, properties=said))
        return number

    def subtopic(self, name: str, session: Session, wanted: int = 0) -> int:
        """The same for a sub-topic; their numbers have a space of their own."""
        wanted, broker = _number(wanted), self._broker
        names = broker.state.subtopics
        number = names.numbers.get(name, 0)
        if number or (broker.hooks is not None and not broker.hooks.may_name(name, session)):
            return number
        weight = weight_of(name)
        if broker.quotas.lacks(SUBTOPICS, session, names.weight, weight):
            return 0
        free = is_number(wanted) and wanted not in names.names
        number = wanted if free else free_number(names.names)
        self._subtopic_payers[number] = broker.quotas.take(SUBTOPICS, session, weight)
        said = subtopic_properties(name)
        row = row_about(session, schema.CREATE, number=number, properties=said)
        broker.change(row._replace(subtopic=column_of(name)))
        return number

    def remove(self, name: str, session: Session) -> str:
        """Take the number of a topic away; why not, "" if it is done. Rights were asked before."""
        broker = self._broker
        number = broker.state.topics.numbers.get(name, 0)
        why = "" if number else UNKNOWN
        if number and self._in_use(name):
            why = IN_USE
        broker.audit.managed(session, "remove topic id", name, why)
        if why:
            return why
        said = id_properties(name)
        broker.change(row_about(session, schema.FORGET, name, number=number, properties=said))
        broker.quotas.give(TOPICS, self._payers.pop(number, ""), weight_of(name))
        broker.age += 1  # who has published by it looks it up again
        return ""

    def remove_subtopic(self, name: str, session: Session) -> str:
        """The same of a sub-topic."""
        broker = self._broker
        number = broker.state.subtopics.numbers.get(name, 0)
        why = "" if number else UNKNOWN
        broker.audit.managed(session, "remove sub-topic id", name, why)
        if why:
            return why
        said = subtopic_properties(name)
        row = row_about(session, schema.FORGET, number=number, properties=said)
        broker.change(row._replace(subtopic=column_of(name)))
        broker.quotas.give(SUBTOPICS, self._subtopic_payers.pop(number, ""), weight_of(name))
        return ""

    def _in_use(self, name: str) -> bool:
        """Whether a client that knows names by their numbers waits for something of this one."""
        observers = self._observers.names.get(name, {})
        return any(one.asks_by_number for one in observers) or any(
            one.asks_by_number and name in one.subscriptions
            for one in self._broker.clients.values()
        )


def _number(wanted: int) -> int:
    """0 asks for none; 1 is the hub's own, also while that goes by another."""
    number = index(wanted)  # a program may say anything
    if not 0 <= number <= LARGEST:
        raise ValueError(f"expected a number from 0 to {LARGEST}, got {number}")
    return number
