"""What a client subscribed to, and which callback gets a message.

A filter is wanted from `add` to `remove`. The broker is asked when there is a connection, and
again whenever it has lost the session. In MQTT 5 a filter with a callback has an identifier, so
that a message which a broker sends once for each of several filters finds each callback once;
before, and for filters without a callback, the topic decides. Called by the client only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hubbub.client.mqtt.connection import Connection
from hubbub.client.mqtt.message import Message
from hubbub.client.mqtt.packets import FAILURE, Answer, Options, Refusal
from hubbub.client.mqtt.session import Session

log = logging.getLogger("hubbub.client.mqtt")

Callback = Callable[[Message], Awaitable[object] | object]

FILTERS_PER_PACKET: Final = 100  # when subscriptions are made again
ROUTES: Final = 1_000  # topics whose callbacks are remembered
SHARED: Final = "$share/"


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter, also a shared one, matches a topic (4.7)."""
    if topic_filter.startswith(SHARED):
        topic_filter = topic_filter.split("/", 2)[-1]
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)] if len(levels) >= len(wanted) else []
    return len(wanted) == len(levels) and all(
        one in ("+", level) for one, level in zip(wanted, levels, strict=True)
    )


class Subscription:
    """One filter. `granted` is None until the broker of the present session said yes.

    `identifier` is what its messages carry from then on; 0 = they carry none.
    """

    __slots__ = ("filter", "options", "callback", "identifier", "granted", "answer")

    def __init__(self, topic_filter: str, options: Options, callback: Callback | None) -> None:
        self.filter = topic_filter
        self.options = options
        self.callback = callback
        self.identifier = 0
        self.granted: int | None = None
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()


class Subscriptions:
    """The filters of one client, by themselves."""

    def __init__(self) -> None:
        self._wanted: dict[str, Subscription] = {}
        self._unwanted: dict[str, asyncio.Future[None]] = {}
        self._listeners: dict[str, Callback] = {}
        self._identifiers = 0
        self._routes: dict[tuple[str, tuple[int, ...]], list[Callback]] = {}

    # What the program wants

    def listen(self, topic_filter: str, callback: Callback) -> None:
        """Have messages that match go to the callback, without subscribing."""
        self._listeners[topic_filter] = callback
        self._routes.clear()

    def add(self, wanted: Subscription, session: Session, connection: Connection | None) -> None:
        before = self._wanted.get(wanted.filter)
        if before is not None and not before.answer.done():
            wanted.answer = before.answer
        self._wanted[wanted.filter] = wanted
        self._routes.clear()
        if connection is not None:
            self._ask([wanted], session, connection)

    def remove(
        self, topic_filter: str, session: Session, connection: Connection | None
    ) -> asyncio.Future[None]:
        self._wanted.pop(topic_filter, None)
        self._listeners.pop(topic_filter, None)
        self._routes.clear()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwanted[topic_filter] = answer
        if connection is not None:
            self._ask_to_forget(topic_filter, session, connection)
        return answer

    # The connection comes and goes

    def attach(self, session: Session, connection: Connection, present: bool) -> None:
        """Ask the broker for all it does not know, or no longer knows."""
        missing = [one for one in self._wanted.values() if not present or one.granted is None]
        together = []
        for one in missing:
            if one.callback is not None and connection.identifies:
                self._ask([one], session, connection)  # an identifier is for a whole packet
            else:
                together.append(one)
        for at in range(0, len(together), FILTERS_PER_PACKET):
            self._ask(together[at : at + FILTERS_PER_PACKET], session, connection)
        for topic_filter in self._unwanted:
            self._ask_to_forget(topic_filter, session, connection)

    def end(self, error: Exception) -> None:
        """Nothing more will be answered."""
        answers: list[asyncio.Future[Any]] = [one.answer for one in self._wanted.values()]
        for answer in (*answers, *self._unwanted.values()):
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # maybe nobody waits any more
        self._unwanted.clear()

    # The broker

    def _ask(self, wanted: list[Subscription], session: Session, connection: Connection) -> None:
        for one in wanted:
            one.granted = None
            one.identifier = self._identifier(one) if connection.identifies else 0
        packet_id = session.request(lambda answer: self._answered(wanted, answer))
        filters = [(one.filter, one.options) for one in wanted]
        connection.subscribe(packet_id, filters, wanted[0].identifier)

    def _identifier(self, wanted: Subscription) -> int:
        if wanted.callback is None or wanted.identifier:
            return wanted.identifier
        self._identifiers += 1
        return self._identifiers

    def _answered(self, wanted: list[Subscription], answer: Answer) -> None:
        self._routes.clear()
        for one, code in zip(wanted, answer.codes, strict=False):
            if code >= FAILURE:
                error = Refusal(f"a subscription to {one.filter} was refused", code, answer.reason)
                self._refuse(one, error)
                continue
            one.granted = code
            if not one.answer.done():
                one.answer.set_result(code)

    def _refuse(self, subscription: Subscription, error: Exception) -> None:
        if self._wanted.get(subscription.filter) is subscription:
            del self._wanted[subscription.filter]
        if subscription.answer.done():
            log.warning("%s", error)
        else:
            subscription.answer.set_exception(error)

    def _ask_to_forget(self, topic_filter: str, session: Session, connection: Connection) -> None:
        packet_id = session.request(lambda answer: self._forgotten(topic_filter))
        connection.unsubscribe(packet_id, [topic_filter])

    def _forgotten(self, topic_filter: str) -> None:
        answer = self._unwanted.pop(topic_filter, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    # Messages

    def callbacks(self, message: Message) -> list[Callback]:
        """Who gets the message, each once; nobody: it is for `messages()`."""
        key = message.topic, message.subscription_ids
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            found = self._routes[key] = self._find(*key)
        return found

    def _find(self, topic: str, identifiers: tuple[int, ...]) -> list[Callback]:
        matching = [
            one for one in self._wanted.values()
            if one.callback is not None and matches(one.filter, topic)
        ]  # fmt: skip
        # An identifier may be one that an earlier run of this program gave to another filter.
        named = [one for one in matching if one.identifier in identifiers]
        chosen = named or [one for one in matching if one.granted is None or not one.identifier]
        found = [one.callback for one in chosen if one.callback is not None]
        found += [to for filter_, to in self._listeners.items() if matches(filter_, topic)]
        return found
