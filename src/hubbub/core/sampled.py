"""Which topics messages go to and who sends them, estimated: of each quarter of a second the first
ones are seen.

    |x x x x . . . . . . . . . . |x x x x . . . . . . . |x x   x      x    |
     looked at: they stand for all of the same window     so few: all of them

While it looks it is the broker's inspector, before the one that may be there; then it takes itself
away, so a busy hub pays nothing for the messages that are not looked at. A hub with less than LOOKS
a window counts every message.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from hubbub.core.context import Context
from hubbub.core.hooks import Hooks
from hubbub.core.latency import Transit
from hubbub.core.limits import SAMPLED_NAME, SENDERS_SAMPLED, TOPICS_SAMPLED
from hubbub.core.message import Run
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT

LOOKS: Final = 250  # runs of a window, so 1,000 a second: a thousandth of a processor
ROLL_SECONDS: Final = 5.0  # over which rates are taken
MESSAGE_WEIGHT: Final = 30_000  # bytes of payload that cost as much as a message


class Seen:
    """One topic: messages since it was first seen, the rate (a second), when the last one came."""

    __slots__ = ("messages", "rate", "time", "count")

    def __init__(self) -> None:
        self.messages = 0.0
        self.rate = 0.0
        self.time = 0
        self.count = 0.0  # since the last roll


class Sender:
    """One client that publishes, as `Seen` says it of a topic. `topic`: of its last message that
    was looked at. `weight`: bytes a second, with what a message costs beside its own.
    """

    __slots__ = (
        "protocol", "client", "user", "address", "topic", "rate", "bytes", "weight", "count",
        "size", "time", "rolled", "node",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.protocol = session.protocol
        self.client = shortened(session.client)
        self.user = shortened(session.user)
        self.address = session.address
        self.topic = ""
        self.rate = self.bytes = self.weight = 0.0
        self.count = self.size = 0.0  # since the last roll
        self.time = 0
        self.rolled = False
        self.node = session.node  # where it is, if that is another one


class Share:
    """What was looked at of one sender in this window."""

    __slots__ = ("count", "bytes", "topic")

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.topic = ""


def shortened(name: str) -> str:
    """The name as it is counted: a very long one has an end that stands for all that begin so."""
    return name if len(name) <= SAMPLED_NAME else name[: SAMPLED_NAME - 1] + "…"


class Sampled(Hooks):
    """The topics of late, at most TOPICS_SAMPLED; the one that was quiet for longest goes first.
    So it is with who sent them, at most SENDERS_SAMPLED.

    `part`: which part of the messages of the last window was looked at. `transit` times one message
    of each window.
    """

    def __init__(self, broker: Context) -> None:
        self.topics: OrderedDict[str, Seen] = OrderedDict()
        self._senders: OrderedDict[tuple[str, str], Sender] = OrderedDict()
        self.part = 1.0
        self.transit = Transit(broker.clock, broker.log)
        self._broker = broker
        self._inner: Hooks | None = None
        self._there = self._to_time = False
        self._left = 0
        self._window: dict[str, int] = {}
        self._sending: dict[Session, Share] = {}
        self._before = 0
        self._rolled = broker.clock.now()

    # The window

    def passes(self, run: Run) -> bool:
        if self._left > 0:
            if self._to_time:
                self._to_time = not self.transit.begin(run)
            name = shortened(run.route.name)
            self._window[name] = self._window.get(name, 0) + run.count
            share = self._sending.get(run.sender)
            if share is None:
                share = self._sending[run.sender] = Share()
            share.count += run.count
            share.bytes += len(run.image)
            share.topic = name
            self._left -= 1
            if not self._left:
                self._rest()
        return self._inner is None or self._inner.passes(run)

    def undelivered(self, run: Run) -> None:
        if self._inner is not None:
            self._inner.undelivered(run)

    def _rest(self) -> None:
        """Out of the way; where another came before it, it only passes on."""
        if self._broker.inspector is self:
            self._broker.inspector = self._inner
            self._there = False

    def _look(self) -> None:
        self._left = LOOKS
        self._to_time = True
        if not self._there:
            self._inner, self._broker.inspector = self._broker.inspector, self
            self._there = True

    def wake(self) -> None:
        """Called four times a second: a window ends, and the next one begins."""
        published = self._broker.metrics.messages_in
        looked = sum(self._window.values())
        whole = self._left > 0 or looked == 0
        share = 1.0 if whole else max(1.0, (published - self._before) / looked)
        self._before, self.part = published, 1.0 / share
        window, self._window = self._window, {}
        sending, self._sending = self._sending, {}
        for session, part in sending.items():
            if session.protocol:  # else it is the hub itself
                self._count_sender(session, part, share)
        for name, count in window.items():
            if not name.startswith(CLIENT):  # addresses come and go, and are no topics
                self._count(name, count * share)
        self._roll()
        self._look()

    # The topics

    def _count(self, name: str, messages: float) -> None:
        seen = self.topics.get(name)
        if seen is None:
            if len(self.topics) >= TOPICS_SAMPLED:
                self.topics.popitem(last=False)
            seen = self.topics[name] = Seen()
        else:
            self.topics.move_to_end(name)
        seen.messages += messages
        seen.count += messages
        seen.time = self._broker.clock.stamp()

    def _roll(self) -> None:
        passed = self._broker.clock.now() - self._rolled
        if passed < ROLL_SECONDS:
            return
        self._rolled += passed
        self._roll_senders(passed)
        for seen in self.topics.values():
            new = seen.count / passed
            seen.rate = (seen.rate + new) / 2 if seen.rate else new
            if seen.rate < 0.001:
                seen.rate = 0.0
            seen.count = 0.0

    # Who sends them

    def busiest(self) -> list[Sender]:
        """Who published of late, who costs most first. Of who has just begun it is known, too."""
        passed = max(self._broker.clock.now() - self._rolled, 1.0)
        found = list(self._senders.values())
        for sender in found:
            if not sender.rolled:
                self._rate(sender, sender.count / passed, sender.size / passed)
        return sorted(found, key=_weight, reverse=True)

    def _count_sender(self, session: Session, part: Share, share: float) -> None:
        key = session.protocol, shortened(session.client)
        sender = self._senders.get(key)
        if sender is None or _is_other(sender, session):
            if sender is None and len(self._senders) >= SENDERS_SAMPLED:
                self._senders.popitem(last=False)
            sender = self._senders[key] = Sender(session)
        self._senders.move_to_end(key)
        sender.count += part.count * share
        sender.size += part.bytes * share
        sender.topic = part.topic
        sender.time = self._broker.clock.stamp()

    def _roll_senders(self, passed: float) -> None:
        for key, sender in list(self._senders.items()):
            if not sender.count:
                del self._senders[key]  # the list is of now, and not smoothed
                continue
            self._rate(sender, sender.count / passed, sender.size / passed)
            sender.count = sender.size = 0.0
            sender.rolled = True

    def _rate(self, sender: Sender, messages: float, size: float) -> None:
        sender.rate, sender.bytes = messages, size
        sender.weight = size + messages * MESSAGE_WEIGHT


def _is_other(sender: Sender, session: Session) -> bool:
    """Whether its name is somebody else's now. Very long ones are of many who are one."""
    whose = sender.user != shortened(session.user) or sender.address != session.address
    return whose and len(session.client) <= SAMPLED_NAME


def _weight(sender: Sender) -> float:
    return sender.weight
