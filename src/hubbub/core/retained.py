"""Retained messages: the last one of each topic that was published to be kept.

    publish, retain ──> keep      state (durable), and the list of names that finds them by filter
    subscribe ────────> offer     a literal filter: at once; a wildcard: by and by, as a feed

A wildcard may match a hundred thousand messages. They leave in slices, one a tick, and only as
fast as the subscriber takes them, so nobody else waits and no buffer overflows. A slice is so much
work: a look at a name takes some of it, a message more, and more still if it must be read from the
disk. So a feed looks for some names first, and then asks for their messages in the order in which
they lie there, which is that in which they were published. What is published after the subscription
comes as a live message, and the feed leaves it out. An expired message goes when it is next looked
at, at the latest a moment after its time. What one takes is put down to its publisher until it
goes. One whose publisher may no longer write there stays, and nobody is given it. No I/O.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final

from hubbub import schema
from hubbub.core.context import Context
from hubbub.core.kept import NOTHING, Kept, kept_size
from hubbub.core.limits import PUBLISHERS, RETAINED
from hubbub.core.message import PUBLISHER, Message, Run
from hubbub.core.quotas import RETAINED as RETAINED_BYTES
from hubbub.core.quotas import payer
from hubbub.core.rights import PUBLISH, RECEIVE, Rights
from hubbub.core.session import Feed, Session, Subscription
from hubbub.core.topics import OWN, SYSTEM, has_wildcard, is_bridge_state, is_name, matches
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of

SLICE: Final = 4_000  # looks a tick for all feeds, or what takes as long: a few milliseconds
MESSAGE: Final = 4  # looks for which one is offered
FETCHED: Final = 4_096  # bytes of a file that are read in the time of a look
LOOKS: Final = 8_192  # of a feed before it offers what it has found,
ALL_LOOKS: Final = 1 << 20  # or its part of these, as each client may have found so much,
FEW_LOOKS: Final = 256  # but no fewer
REPLACED: Final = 1_000  # entries of messages that are gone, before it is worth to drop them
PART: Final = 512  # names; moving so many takes less than finding the place
AT_ONCE: Final = 4_096  # names that are put in order in one piece: 1 to 2 ms
SAMPLES: Final = 8  # names that are looked at for each so many, to cut all into about equal pieces
FEW: Final = 32  # names a search takes at once; the next that may match can lie far away
WILD: Final = ("+", "#")


class NameList:
    """Names in their order, found by filter: all that is below a level lies together.

    They lie in parts, so that a new one moves few others. What is added or discarded during a
    search may be missed.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._set(_cut(sorted(names)))

    def _set(self, parts: list[list[str]]) -> None:
        self._parts = parts or [[]]
        self._begins = ["", *(part[0] for part in self._parts[1:])]

    def fill(self, names: list[str]) -> Iterator[None]:
        """Become the list of these, in short pieces; until the last one it is as it was.

        To sort a million takes 0.3 s, in which nobody else would be heard. So each goes to those
        that lie between the same two of a few, and then these are sorted.
        """
        samples = random.sample(names, len(names) // AT_ONCE * SAMPLES)
        begins = sorted(samples)[SAMPLES::SAMPLES]
        between: list[list[str]] = [[] for _ in range(len(begins) + 1)]
        for at in range(0, len(names), AT_ONCE):
            for name in names[at : at + AT_ONCE]:
                between[bisect_right(begins, name)].append(name)
            yield
        parts: list[list[str]] = []
        for run in between:
            parts += _cut(sorted(run))
            yield
        self._set(parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, name: str) -> None:
        number = bisect_right(self._begins, name) - 1
        part = self._parts[number]
        at = bisect_left(part, name)
        if at < len(part) and part[at] == name:
            return
        part.insert(at, name)
        if len(part) > PART:
            self._parts.insert(number + 1, part[PART // 2 :])
            self._begins.insert(number + 1, part[PART // 2])
            del part[PART // 2 :]

    def discard(self, name: str) -> None:
        number = bisect_right(self._begins, name) - 1
        part = self._parts[number]
        at = bisect_left(part, name)
        if at == len(part) or part[at] != name:
            return
        del part[at]
        if number and not part:
            del self._parts[number], self._begins[number]

    def match(self, topic_filter: str) -> Iterator[str]:
        """The names that match, and an empty one for each look that found none.

        Passes over all that cannot match between them, so a look costs the same anywhere.
        """
        wanted = topic_filter.split("/")
        key = "/".join(takewhile(lambda level: level not in WILD, wanted)) or "\0"
        while names := self._from(key):
            for name in names:
                if name < key:
                    continue
                key = _next(name, wanted)
                if not key:
                    return
                yield name if key == name else ""
            key = max(key, names[-1] + "\0")

    def below(self, prefix: str) -> Iterator[str]:
        """The names that begin so, in their order."""
        key = prefix
        while names := self._from(key):
            for name in names:
                if name >= key:
                    if not name.startswith(prefix):
                        return
                    yield name
            key = max(key, names[-1] + "\0")

    def _from(self, key: str) -> list[str]:
        """A few names from the key on, none at the end: a copy, they come and go meanwhile."""
        number = bisect_right(self._begins, key) - 1
        part = self._parts[number]
        at = bisect_left(part, key)
        if at == len(part) and number + 1 < len(self._parts):
            part, at = self._parts[number + 1], 0
        return part[at : at + FEW]


def _next(name: str, wanted: list[str]) -> str:
    """The name itself if it matches, else the least one that still may; "" if none may.

    What is below `a/b` begins with `a/b/` and ends before `a/b0`: 0 comes after the slash.
    """
    if name.startswith("$") and wanted[0] in WILD:
        return "%"  # comes after the dollar
    levels = name.split("/")
    free = 0  # how many levels end with the last `+`
    for at, level in enumerate(wanted):
        if level == "#":
            return name
        if at == len(levels):
            return name + "\0"
        if level == "+":
            free = at + 1
        elif level != levels[at]:
            here = "/".join([*levels[:at], level])
            if name < here:
                return here
            if name < here + "/":
                return here + "/"
            return "/".join(levels[:free]) + "0" if free else ""
    return name if len(levels) == len(wanted) else "/".join(levels[: len(wanted)]) + "0"


def _cut(ordered: list[str]) -> list[list[str]]:
    return [ordered[at : at + PART] for at in range(0, len(ordered), PART)]


class Retained:
    """The retained messages of a broker, at `most` so many.

    `feeding`: sessions whose feeds go on with the tick. `in_order`: names can be found by what they
    begin with, which is not so in the first moments after a start. `told`: called with what is
    kept, and with the number of what it replaces, 0 = nothing.
    """

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self.feeding: dict[Session, None] = {}
        self.most = RETAINED
        self.told: Callable[[Run, int], None] | None = None
        self._publishers: dict[tuple[str, str, str], list[Rights]] = {}
        self._found_after = -1  # so many changes of the rules
        self._names = NameList()
        self.in_order = True
        self._noted: dict[str, None] | None = None  # names that came or went while it is filled
        self._expiring: list[tuple[int, str]] = []
        self._left = SLICE  # looks of this turn, for all that subscribe in it

    def recover(self) -> None:
        """After a restart: know the names of what the journal remembers.

        That they are put in order goes on in turns; who asks by a wildcard meanwhile waits for it.
        """
        self.in_order = False
        self.broker.later(partial(self.broker.in_turns, self._fill()))
        each: dict[str, int] = {}
        for kept in self.broker.state.retained.values():
            if kept.whose:
                each[kept.whose] = each.get(kept.whose, 0) + kept.size
        for whose, size in each.items():
            self.broker.quotas.put_down(RETAINED_BYTES, whose, size)
        self._watch_all()

    def _fill(self) -> Iterator[None]:
        noted = self._noted = dict[str, None]()
        yield from self._names.fill(list(self.broker.state.retained))
        self._noted = None
        for name in noted:
            self.note(name)
        self.in_order = True

    def _watch_all(self) -> None:
        retained = self.broker.state.retained
        self._expiring = [(one.expires, name) for name, one in retained.items() if one.expires]
        heapify(self._expiring)

    def _watch(self, expires: int, name: str) -> None:
        """One that is replaced stays in the heap until its time, but not too many do."""
        heappush(self._expiring, (expires, name))
        if len(self._expiring) > 2 * len(self.broker.state.retained) + REPLACED:
            self._watch_all()

    def may_keep(self, run: Run) -> bool:
        name = run.route.name
        if not (may_be_kept(name) and is_name(name)):
            return False
        return not self.lacks_room(run.sender, name, run.payload_size())

    def lacks_room(self, sender: Session, name: str, size: int) -> str:
        """Why a message of that size of this client may not be kept there; "" if it may. On a disk
        that is short of room only one that is no larger than what it replaces. An empty one keeps
        nothing.
        """
        broker, state = self.broker, self.broker.state
        if not (size and may_be_kept(name)):
            return ""
        before = state.retained.get(name, NOTHING)
        grows = name not in state.retained or kept_size(name, size) > before.size
        lacks = broker.lacks_disk(sender, size=size) if broker.tight and grows else ""
        if lacks:
            return lacks
        if len(state.retained) >= self.most and name not in state.retained:
            return f"there are {self.most} retained messages, which are the most"
        size = kept_size(name, size)
        own = before.size if before.whose == payer(sender) else 0
        if size <= own:
            return ""
        there = state.kept_bytes() - before.size + own
        return broker.quotas.lacks(RETAINED_BYTES, sender, there, size - own)

    def keep(self, run: Run) -> None:
        """The last message of the run replaces the retained one; an empty one clears it."""
        message = run.messages()[-1]
        seq = run.first + run.count - 1
        log, state, name = self.broker.log, self.broker.state, run.route.name
        if not log.records:
            log.unpin(state.retained_seq(name))
            if message.payload:
                log.pin(seq)
        before = state.retained_seq(name)
        self._give(name)
        if message.payload:
            size, expires = kept_size(name, len(message.payload)), message.expires
            whose = self.broker.quotas.take(RETAINED_BYTES, run.sender, size)
            state.retain(name, Kept(seq, size, expires, whose))
            if expires:
                self._watch(expires, name)
        else:
            state.retain(name)
        if bool(before) != bool(message.payload):
            self.note(name)
        if self.told is not None:
            self.told(run, before)

    def _give(self, name: str) -> None:
        """Whose retained message goes has room for others."""
        kept = self.broker.state.retained.get(name)
        if kept is not None:
            self.broker.quotas.give(RETAINED_BYTES, kept.whose, kept.size)

    def wake(self) -> None:
        """Let go of what has expired."""
        if self._has_expired():
            self.broker.one_in_turns(self, self._let_go)

    def _has_expired(self) -> bool:
        return bool(self._expiring) and self._expiring[0][0] <= self.broker.clock.stamp()

    def _let_go(self) -> Iterator[None]:
        """In turns: what was published together may expire together."""
        while self._has_expired():
            expires, name = heappop(self._expiring)
            if self.broker.state.retained.get(name, NOTHING).expires == expires:
                self._expire(name)
            yield

    def _expire(self, name: str) -> None:
        broker = self.broker
        seq = broker.state.retained_seq(name)
        self._give(name)
        broker.metrics.drop("expired")
        broker.change(Row(0, 0, schema.DROP, topic=column_of(name), ref=seq, number=1))
        broker.log.unpin(seq)
        self.note(name)

    def note(self, name: str) -> None:
        """There is a retained message of that name now, or none any more."""
        if self._noted is not None:
            self._noted[name] = None
        elif name in self.broker.state.retained:
            self._names.add(name)
        else:
            self._names.discard(name)

    # Showing

    def below(self, prefix: str) -> Iterator[str]:
        """The names that begin so. Some may come or go meanwhile."""
        return self._names.below(prefix)

    def look(self, name: str) -> Message | None:
        """What is retained there, for who may read it; None also if it cannot be read now."""
        if name in self.broker.readings:
            return self.broker.reading(name)
        try:
            message = self._read(name, self.broker.log.newest())
        except UnreadableError:
            return None
        if message is not None and message.properties and not self._stands(message, name):
            return None
        return message

    # Offering

    def offer(self, subscription: Subscription) -> None:
        """Hand a new subscription what was retained before it."""
        broker, name = self.broker, subscription.filter
        session = subscription.session
        wild = not subscription.literal and has_wildcard(name)
        if name.startswith(SYSTEM):  # no other filter matches what is read there
            for topic in broker.readings:
                if (topic == name or (wild and matches(name, topic))) and self._may(session, topic):
                    session.offer(broker.reading(topic), subscription, retained=True)
        if wild:
            feed = Feed(subscription, self._names.match(name), broker.log.newest(), self._looks())
            if session.feeds is None:
                session.feeds = deque()
            session.feeds.append(feed)
            self.feed(session)
        elif name in broker.state.retained:
            self._offer_or_later(name, subscription, broker.log.newest())

    def feed_on(self) -> None:
        """A slice for all feeds that wait for the tick. Called once a tick."""
        if not self.in_order:
            return
        sessions, self.feeding = list(self.feeding), {}
        self._left = SLICE
        share = max(MESSAGE, SLICE // max(1, len(sessions)))
        for number, session in enumerate(sessions):
            if self._left <= 0:  # these are the first ones next time
                self.feeding = dict.fromkeys((*sessions[number:], *self.feeding))
                return
            self.feed(session, share)

    def feed(self, session: Session, most: int = SLICE) -> None:
        """Go on with the feeds of a session, as far as it has room and a slice allows.

        One that had its slice waits for the tick, and so do all when a turn has had its own: ten
        thousand filters of one packet are ten thousand feeds.
        """
        feeds = session.feeds
        most = min(most, self._left)
        while feeds and session not in self.feeding and session.hungry():
            if most <= 0 or not self.in_order:
                self.feeding[session] = None
                return
            feed, subscription = feeds[0], feeds[0].subscription
            if session.subscriptions.get(subscription.filter) is not subscription:
                feeds.popleft()
                continue
            looks = feed.looks and not feed.ended
            spent = self._look(feed, most) if looks else self._offer_found(feed, most)
            most -= spent
            self._left -= spent
            if feed.ended and not feed.found:
                feeds.popleft()
        if feeds is not None and not feeds:
            session.feeds = None  # an empty one takes 760 bytes

    def _looks(self) -> int:
        return max(FEW_LOOKS, min(LOOKS, ALL_LOOKS // (1 + len(self.broker.clients))))

    def _look(self, feed: Feed, most: int) -> int:
        """Look at so many names more; how many there were."""
        looks, most, found = 0, min(most, feed.looks), feed.found
        for name in feed.names:
            looks += 1
            if name:
                found.append(name)
            if looks >= most:
                break
        else:
            feed.ended = True
        feed.looks -= looks
        if feed.ended or not feed.looks:
            found.sort(key=self.broker.state.retained_seq, reverse=True)
        return looks

    def _offer_found(self, feed: Feed, most: int) -> int:
        """Offer what is retained under the names that were found; so many looks it took."""
        session, found, log = feed.subscription.session, feed.found, self.broker.log
        spent, fetched = 0, log.fetched()
        while found and spent < most and session.hungry():
            self._offer_or_later(found.pop(), feed.subscription, feed.newest)
            spent += MESSAGE + (log.fetched() - fetched) // FETCHED
            fetched = log.fetched()
        if not found:
            feed.looks = self._looks()
        return spent

    def _offer_or_later(self, name: str, subscription: Subscription, newest: int) -> None:
        try:
            self._offer_one(name, subscription, newest)
        except UnreadableError:
            key = (subscription, name)
            self.broker.again(key, partial(self._offer_later, name, subscription, newest))

    def _offer_later(self, name: str, subscription: Subscription, newest: int) -> None:
        current = subscription.session.subscriptions.get(subscription.filter)
        if current is subscription:
            self._offer_or_later(name, subscription, newest)

    def _offer_one(self, name: str, subscription: Subscription, newest: int) -> None:
        session = subscription.session
        message = self._read(name, newest) if self._may(session, name) else None
        if message is None or (subscription.no_local and _is_from(session, message)):
            return
        if message.properties and not self._stands(message, name):
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
        return session.rights is self.broker.open or session.rights.may(RECEIVE, name)

    def _stands(self, message: Message, name: str) -> bool:
        """Whether its publisher may still write there, if that is known and asked."""
        broker = self.broker
        source = (message.properties or {}).get(PUBLISHER)
        if not (broker.check_source and isinstance(source, list) and len(source) == 2):
            return True
        for rights in self._permissions((str(source[0]), message.client, str(source[1]))):
            if rights is not broker.open and not rights.ask(PUBLISH, name):
                return False
        return True

    def _permissions(self, who: tuple[str, str, str]) -> list[Rights]:
        """Those of a user and client of a listener: many messages are of the same one."""
        known, rules = self._publishers, self.broker.rules
        if self._found_after != rules or len(known) >= PUBLISHERS:
            self._found_after = rules
            known.clear()
        found = known.get(who)
        if found is None:
            found = known[who] = self.broker.permissions(*who)
        return found

    def _read(self, name: str, newest: int) -> Message | None:
        """The message, unless it is newer, gone or expired."""
        broker = self.broker
        seq = broker.state.retained_seq(name)
        if not seq or seq > newest:
            return None
        message = broker.log.read(seq)
        if message is None or not 0 < message.expires <= broker.clock.stamp():
            return message
        self._expire(name)
        return None


def may_be_kept(name: str) -> bool:
    """Not what means something here; other names under `$` are like any other."""
    return not name.startswith(OWN) or is_bridge_state(name)


def _is_from(session: Session, message: Message) -> bool:
    return message.client == session.client and message.protocol == session.protocol
