"""Names and filters, and the tree that finds the subscriptions of a name.

Rules of filters (OASIS standard, section 4.7; the same for every protocol with wildcards):

    sport/+/player      `+` stands for exactly one level, also an empty one
    sport/#             `#` for this level and all below it, `sport` itself included
    +/x, #              never match names that begin with `$`
    sport+, a/#/b       not valid: a wildcard fills its level, and `#` is the last

Linear in the length of the name, whatever the filters. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.core.limits import NAME_BYTES, NAME_LEVELS
from hubbub.core.session import Session, Subscription
from hubbub.wire.text import is_plain

QUEUE: Final = "$queue/"
CLIENT: Final = "$client/"
SELF: Final = "$client/self"  # subscribed to: what is published to the client's own address
SHARE: Final = "$share/"
SYSTEM: Final = "$SYS"
HUB: Final = SYSTEM + "/#"  # who may manage it may manage the hub, who may trace it sees it
DELAYED: Final = "$delayed/"
OWN: Final = ("$SYS/", QUEUE, CLIENT, SHARE, DELAYED, "$hub/")  # names that mean something here
DELAY_SECONDS: Final = 4_294_967  # 49.7 days: as milliseconds they fit into 32 bits


def client_number(name: str) -> int:
    """The number in an address `$client/<number>`, 0 if there is none that fits into 32 bits.

    Bounded before it is read: Python takes no number of more than 4,300 digits.
    """
    digits = name[len(CLIENT) :] if name.startswith(CLIENT) else ""
    number = int(digits) if len(digits) <= 10 and digits.isdecimal() and digits.isascii() else 0
    return number if number < 1 << 32 else 0


def is_name(name: str) -> bool:
    """Whether a message can be published to it by clients that know wildcards.

    Not one with control characters: libmosquitto ends the connection over which it gets that. Nor
    a queue's without the queue.
    """
    return is_text(name) and not has_wildcard(name) and name != QUEUE and is_plain(name)


def delayed_topic(name: str) -> tuple[int, str]:
    """Seconds and topic of `$delayed/<seconds>/<topic>`; (0, "") if it is not of that form."""
    seconds, _, topic = name[len(DELAYED) :].partition("/")
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= 7 and is_name(topic)):
        return 0, ""
    if topic.startswith((CLIENT, DELAYED)) or is_system(topic):
        return 0, ""
    if not 1 <= int(seconds) <= DELAY_SECONDS:
        return 0, ""
    return int(seconds), topic


def is_system(name: str) -> bool:
    """Whether it is the hub's own: `$SYSTEM/x` is a name like others."""
    return name.startswith(SYSTEM) and (len(name) == len(SYSTEM) or name[len(SYSTEM)] == "/")


def is_bridge_state(name: str) -> bool:
    """What a bridge says of itself: the one name under `$SYS` that clients publish to.

    `$SYS/broker/connection/<bridge>/state`, as mosquitto's set it at the broker that they join.
    """
    levels = name.split("/")
    return levels[:3] == [SYSTEM, "broker", "connection"] and levels[4:] == ["state"]


def is_filter(topic_filter: str) -> bool:
    return topic_filter.count("/") < NAME_LEVELS and is_well_formed(topic_filter)


def is_well_formed(topic_filter: str) -> bool:
    """Whether it is a filter, of any number of levels."""
    if not is_text(topic_filter):
        return False
    if not has_wildcard(topic_filter):
        return True
    levels = topic_filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != last):
            return False
        if "+" in level and level != "+":
            return False
    return True


def shared_filter(topic_filter: str) -> str:
    """The filter inside `$share/<group>/<filter>`; "" if it is not one of that form."""
    group, _, inner = topic_filter[len(SHARE) :].partition("/")
    return inner if group and not has_wildcard(group) else ""


def is_group(topic_filter: str, literal: bool) -> bool:
    """Whether that is a shared subscription's, and no topic that is called so."""
    return topic_filter.startswith(SHARE) and not literal


def has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def is_text(name: str) -> bool:
    """Whether every protocol can say it: a topic, a filter, the text of a property."""
    if not name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        return False


def matches(topic_filter: str, name: str) -> bool:
    """Whether one filter matches one name; the tree answers for many at once."""
    if name.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), name.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


class _Level:
    """A node of the tree: the subscriptions that end here, and the levels below."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.here: dict[Session, Subscription] = {}


NOBODY: Final[dict[Session, Subscription]] = {}


class Filters:
    """All subscriptions of a hub, by filter.

    Literal subscriptions (of protocols without wildcards) are kept apart: there `+` and `#` are
    ordinary characters. `told`: called with each that is added (1) or removed (-1).
    """

    def __init__(self) -> None:
        self.told: Callable[[Subscription, int], None] | None = None
        self._root = _Level()
        # Most names have one subscription, which needs no table of its own (230 bytes).
        self._one: dict[str, Subscription] = {}
        self._many: dict[str, dict[Session, Subscription]] = {}

    def add(self, subscription: Subscription) -> None:
        name = subscription.filter
        if self.told is not None:
            self.told(subscription, 1)
        if subscription.literal or not has_wildcard(name):
            self._add_literal(name, subscription)
            return
        node = self._root
        for level in name.split("/"):
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _Level()
            node = below
        node.here[subscription.session] = subscription

    def remove(self, subscription: Subscription) -> None:
        name, session = subscription.filter, subscription.session
        if self.told is not None:
            self.told(subscription, -1)
        if subscription.literal or not has_wildcard(name):
            self._remove_literal(name, session)
            return
        path = [self._root]
        levels = name.split("/")
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return
            path.append(below)
        path[-1].here.pop(session, None)
        while levels and not path[-1].here and not path[-1].below:
            path.pop()
            del path[-1].below[levels.pop()]

    def replace(self, old: Subscription, new: Subscription) -> None:
        """Of the same session and name, and both literal or not: it is told as one more first."""
        self.add(new)
        if self.told is not None:
            self.told(old, -1)

    def _add_literal(self, name: str, subscription: Subscription) -> None:
        here, one = self._many.get(name), self._one.get(name)
        if here is not None:
            here[subscription.session] = subscription
        elif one is None or one.session is subscription.session:
            self._one[name] = subscription
        else:
            del self._one[name]
            self._many[name] = {one.session: one, subscription.session: subscription}

    def _remove_literal(self, name: str, session: Session) -> None:
        here, one = self._many.get(name), self._one.get(name)
        if one is not None and one.session is session:
            del self._one[name]
        elif here is not None:
            here.pop(session, None)
            if not here:
                del self._many[name]

    def match(self, name: str) -> list[Subscription]:
        """Every subscription whose filter matches the name; a session may appear twice."""
        one = self._one.get(name)
        found = [one] if one is not None else list(self._many.get(name, NOBODY).values())
        if self._root.below and is_name(name):
            levels = name.split("/")
            if name.startswith("$"):
                below = self._root.below.get(levels[0])
                nodes = [below] if below is not None else []
                self._walk(nodes, levels, 1, found)
            else:
                self._walk([self._root], levels, 0, found)
        return found

    def _walk(
        self, nodes: list[_Level], levels: list[str], at: int, found: list[Subscription]
    ) -> None:
        """Go down level by level with the set of nodes that match so far."""
        for level in levels[at:]:
            reached: list[_Level] = []
            for node in nodes:
                below = node.below
                rest = below.get("#")
                if rest is not None:
                    found.extend(rest.here.values())
                one = below.get("+")
                if one is not None:
                    reached.append(one)
                same = below.get(level)
                if same is not None:
                    reached.append(same)
            if not reached:
                return
            nodes = reached
        for node in nodes:
            found.extend(node.here.values())
            rest = node.below.get("#")
            if rest is not None:
                found.extend(rest.here.values())
