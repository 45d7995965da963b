"""Retained messages: the last one of each topic that was published to be kept.

    publish, retain ──> keep      state (durable), and the tree of names that finds them by filter
    subscribe ────────> offer     a literal filter: at once; a wildcard: by and by, as a feed

A wildcard may match a hundred thousand messages. They leave in slices, one a tick, and only as
fast as the subscriber takes them, so nobody else waits and no buffer overflows. What is published
after the subscription comes as a live message, and the feed leaves it out. An expired message
goes when it is next looked at. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.core.limits import RETAINED
from hubbub.core.message import Message, Run
from hubbub.core.topics import has_wildcard, is_name, matches
from hubbub.schema import Row, column_of

if TYPE_CHECKING:
    from hubbub.core.broker import Broker
    from hubbub.core.session import Session, Subscription

SLICE: Final = 1_000  # messages a tick for all feeds: a few milliseconds


class _Level:
    """A level of the names: what is below, and the name that ends here."""

    __slots__ = ("below", "name")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.name: str | None = None


class NameTree:
    """Names, found by filter. What is added or discarded during a search may be missed."""

    def __init__(self) -> None:
        self._root = _Level()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str) -> None:
        node = self._root
        for level in name.split("/"):
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _Level()
            node = below
        if node.name is None:
            node.name = name
            self._count += 1

    def discard(self, name: str) -> None:
        path = [self._root]
        levels = name.split("/")
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return
            path.append(below)
        found = path[-1]
        if found.name is None:
            return
        found.name = None
        self._count -= 1
        while levels and path[-1].name is None and not path[-1].below:
            path.pop()
            del path[-1].below[levels.pop()]

    def match(self, topic_filter: str) -> Iterator[str]:
        """The names that match, one by one, without looking at more of the tree than for these."""
        levels = topic_filter.split("/")
        stack = [(iter([self._root]), 0)]
        while stack:
            nodes, at = stack[-1]
            for node in nodes:
                level = levels[at] if at < len(levels) else ""
                if node.name is not None and (at == len(levels) or level == "#"):
                    yield node.name
                if node.below and at < len(levels):
                    stack.append((self._below(node, level), at if level == "#" else at + 1))
                    break
            else:
                stack.pop()

    def _below(self, node: _Level, level: str) -> Iterator[_Level]:
        if level not in ("+", "#"):
            one = node.below.get(level)
            return iter([one] if one is not None else [])
        if node is self._root:
            return iter([one for key, one in node.below.items() if not key.startswith("$")])
        return iter(list(node.below.values()))  # of now: names come and go meanwhile


class Feed:
    """What a new subscription gets of the messages retained before it, up to the seq `newest`."""

    __slots__ = ("names", "newest", "subscription")

    def __init__(self, subscription: Subscription, names: Iterator[str], newest: int) -> None:
        self.subscription = subscription
        self.names = names
        self.newest = newest


class Retained:
    """The retained messages of a broker, at `most` so many.

    `feeding`: sessions whose feeds go on with the tick.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.feeding: dict[Session, None] = {}
        self.most = RETAINED
        self._tree = NameTree()

    def may_keep(self, run: Run) -> bool:
        name = run.route.name
        return not name.startswith("$") and is_name(name) and self.has_room(name)

    def has_room(self, name: str) -> bool:
        retained = self.broker.state.retained
        return len(retained) < self.most or name in retained or name.startswith("$")

    def keep(self, run: Run) -> None:
        """The last message of the run replaces the retained one; an empty one clears it."""
        message = run.messages()[-1]
        seq = run.first + run.count - 1
        log, name = self.broker.log, run.route.name
        before = self.broker.state.retain(name, seq if message.payload else 0)
        if not log.records:
            log.unpin(before)
            if message.payload:
                log.pin(seq)
        if message.payload:
            self._tree.add(name)
        else:
            self._tree.discard(name)

    def note(self, name: str) -> None:
        """A row of the hub's own retained a message, past `keep`."""
        self._tree.add(name)

    # Offering

    def offer(self, subscription: Subscription) -> None:
        """Hand a new subscription what was retained before it."""
        broker, name = self.broker, subscription.filter
        session = subscription.session
        wild = not subscription.literal and has_wildcard(name)
        for topic in broker.readings:
            if (topic == name or (wild and matches(name, topic))) and self._may(session, topic):
                session.offer(broker.reading(topic), subscription, retained=True)
        if wild:
            feed = Feed(subscription, self._names().match(name), broker.log.newest())
            if session.feeds is None:
                session.feeds = deque()
            session.feeds.append(feed)
            self.feed(session)
        elif name in broker.state.retained:
            self._offer_one(name, subscription, broker.log.newest())

    def _names(self) -> NameTree:
        """The tree; made anew when the state came from the journal."""
        retained = self.broker.state.retained
        if len(self._tree) != len(retained):
            self._tree = NameTree()
            for name in retained:
                self._tree.add(name)
        return self._tree

    def feed_on(self) -> None:
        """A slice for each feed that waits for the tick. Called once a tick."""
        each = max(1, SLICE // max(1, len(self.feeding)))
        for session in list(self.feeding):
            self.feed(session, each)

    def feed(self, session: Session, most: int = SLICE) -> None:
        """Go on with the feeds of a session, as far as it has room and a slice allows."""
        feeds = session.feeds
        self.feeding.pop(session, None)
        while feeds and session.hungry():
            if not most:
                self.feeding[session] = None
                return
            feed, subscription = feeds[0], feeds[0].subscription
            if session.subscriptions.get(subscription.filter) is not subscription:
                feeds.popleft()
                continue
            for name in feed.names:
                self._offer_one(name, subscription, feed.newest)
                most -= 1
                if not (most and session.hungry()):
                    break
            else:
                feeds.popleft()

    def _offer_one(self, name: str, subscription: Subscription, newest: int) -> None:
        session = subscription.session
        message = self._read(name, newest) if self._may(session, name) else None
        if message is None or (subscription.no_local and _is_from(session, message)):
            return
        qos = min(message.qos, subscription.qos)
        if session.lasting and qos:
            row = Row(
                0, 0, schema.QUEUED, session.protocol.encode(), column_of(session.client),
                ref=message.seq, qos=qos, retain=True, number=len(message.payload),
            )  # fmt: skip
            self.broker.change(row)
        session.offer(message, subscription, retained=True)

    def _may(self, session: Session, name: str) -> bool:
        return session.rights is self.broker.open or session.rights.may_receive(name)

    def _read(self, name: str, newest: int) -> Message | None:
        """The message, unless it is newer, gone or expired."""
        broker = self.broker
        seq = broker.state.retained.get(name, 0)
        if not seq or seq > newest:
            return None
        message = broker.log.read(seq)
        if message is None or not 0 < message.expires <= broker.clock.stamp():
            return message
        broker.metrics.drop("expired")
        broker.change(Row(0, 0, schema.DROP, topic=column_of(name), ref=seq, number=1))
        broker.log.unpin(seq)
        self._tree.discard(name)
        return None


def _is_from(session: Session, message: Message) -> bool:
    return message.client == session.client and message.protocol == session.protocol
