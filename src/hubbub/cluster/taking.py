"""Messages that another node said: live ones, those it kept for us, retained ones told again.

Called by the membership for the records of a node, which it has put in order. Nothing here goes
on to a node. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hubbub.cluster import frames
from hubbub.cluster.estates import Key
from hubbub.cluster.keeping import lasts
from hubbub.cluster.node import Node, Phantom, messages_of
from hubbub.core.limits import (
    CLUSTER_CLOCK_SECONDS,
    CLUSTER_FEED,
    CLUSTER_RUN,
    CLUSTER_SLICE,
    CLUSTER_TOPICS,
    LINK_CHOKED,
)
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.queue import Queue
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, DELAYED, QUEUE, SHARE, SYSTEM, is_text
from hubbub.schema import name_from_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

# Names that mean something at the node where they are said: commands above all never cross.
REFUSED: Final = (SYSTEM, DELAYED, SHARE, "$hub/", "$CONTROL")
# What is published into a queue goes to its home in a way of its own (`cluster.queues`).
STAYS: Final = (*REFUSED, QUEUE)
NOBODY: Final[Mapping[int, Phantom]] = {}
SHORT: Final = 200  # bytes of a topic that is known again
SPARE: Final = 25  # of a hundred parts of a node's share on a disk that fills


def live(membership: Membership, node: Node, said: frames.Said) -> Iterator[None] | None:
    """What a node said to whoever is there, for nobody's journal; or what is retained there."""
    if said.again and not said.group and not node.settled():
        node.missed = True  # what is on its way there may be newer
        return None
    if said.count > CLUSTER_SLICE:
        return _live(membership, node, said)
    say(membership, said, sender_of(membership, said, node.name, node.clients))
    return None


def _live(membership: Membership, node: Node, said: frames.Said) -> Iterator[None]:
    for some in _slices(said):
        say(membership, some, sender_of(membership, some, node.name, node.clients))
        yield


def _slices(said: frames.Said) -> Iterator[frames.Said]:
    """A long run as short ones. Of one that is retained the last message stays, and those before
    the last slice go as live ones.
    """
    if said.count <= CLUSTER_SLICE:
        yield said
        return
    check(said)
    for at in range(0, said.count, CLUSTER_SLICE):
        yield _cut(said, at, min(at + CLUSTER_SLICE, said.count))


def _cut(said: frames.Said, at: int, end: int) -> frames.Said:
    step = len(said.payloads) // said.count
    payloads, rests = said.payloads[at * step : end * step], said.rests[at:end]
    retain = said.retain and end == said.count
    return replace(said, payloads=payloads, rests=rests, count=end - at, retain=retain)


def check(said: frames.Said, most: int = CLUSTER_RUN) -> None:
    if said.count > most:
        raise frames.Foreign(f"{said.count} messages where {most} may be")
    if said.count != len(said.rests) and (said.rests or len(said.payloads) % said.count):
        raise frames.Foreign(f"{said.count} messages that are not so many")


def say(
    membership: Membership, said: frames.Said, sender: Session, estate: str = ""
) -> None:  # fmt: skip
    """`estate`: for which it was kept."""
    topic = _topic(membership, said.topic)
    check(said)
    if said.group:
        said.retain = False  # it is kept by what goes to all nodes
    if said.retain and not _keeps(membership, said, topic):
        if said.again:
            return
        said.retain = False
    membership.messages_in += said.count
    route = _route(membership, said, topic, sender)
    if said.qos and not said.group and not topic.startswith(CLIENT):
        route = _of_estate(membership, route, estate or membership.holdings.own)
    if said.rests:
        run = _run_of_rests(membership, said, topic, sender, route)
    else:
        crossing = membership.crossing
        run = Run(sender, route, said.qos, said.count, crossing, said.payloads, said.retain)
    if run is not None and run.route.takes:
        membership.broker.publish(run)


def _run_of_rests(
    membership: Membership, said: frames.Said, topic: str, sender: Session, route: Route
) -> Run | None:  # fmt: skip
    """Those of them that have not expired, None if none is left."""
    messages, late = _in_time(membership, messages_of(said, topic))
    if not messages and not said.retain:
        return None
    if said.retain and late:  # it takes the place of what was retained there before, and is over
        messages, route = late, Route(topic, 0)
    run = Run(sender, route, said.qos, len(messages), SPELLED, said.payloads, said.retain)
    run.replace(messages)
    return run


def _topic(membership: Membership, wire: bytes) -> str:
    topic = _crossing(wire) if len(wire) <= SHORT else _crossing.__wrapped__(wire)
    if topic in membership.broker.controls:
        raise frames.Foreign(f"messages to {topic[:80]!r}, which does not cross")
    if topic == membership.addressed:
        return f"{CLIENT}{membership.broker.itself.number}"
    return topic


@lru_cache(CLUSTER_TOPICS)
def _crossing(wire: bytes) -> str:
    """A topic that another node says, which means the same there as here."""
    topic = name_from_wire(wire)
    if topic.startswith(REFUSED) or not is_text(topic):
        raise frames.Foreign(f"messages to {topic[:80]!r}, which does not cross")
    return topic


def _in_time(
    membership: Membership, messages: list[Message]
) -> tuple[list[Message], list[Message]]:
    """Those that have not expired on their way, on which they may be held for long; and the last
    one, if it has.
    """
    now = membership.broker.clock.stamp()
    found = [one for one in messages if not 0 < one.expires <= now]
    if len(found) < len(messages):
        membership.broker.metrics.drop("expired", len(messages) - len(found))
    return found, [one for one in messages[-1:] if 0 < one.expires <= now]


def keep(membership: Membership, node: Node, kept: frames.Kept) -> Iterator[None] | None:
    """The next ones of those that are kept for an estate come, or some once more."""
    check(kept.said)
    if kept.estate not in membership.holdings.held:
        return None  # its node has not heard yet who holds that
    if not membership.has(node, kept.origin):
        return None  # nor have we; how far we are is noted of estates that are somebody's alone
    took = membership.holdings.took(kept.estate, kept.origin)
    # Numbers go on from where they were, also where all clocks were ahead and are set back now.
    latest = max(membership.holdings.latest(), took) + CLUSTER_CLOCK_SECONDS * 1_000_000
    if kept.number > latest:
        raise frames.Foreign(f"a kept message of the number {kept.number}, which is to come")
    if lacks := lacks_room(membership, node):
        node.declined = True
        if not membership.broker.no_room:
            text = f"{lacks}: what it keeps for this node waits there"
            membership.hearing.warn(f"room {node.name}", text)
        return None
    node.receipts.add((kept.estate, kept.origin))
    return _take_all(membership, node, kept, took) if kept.previous <= took < kept.number else None


def lacks_room(membership: Membership, node: Node, again: bool = False) -> str:
    """Why nothing that a node kept is taken now. `again`: for who was told so, for which there is
    to be some room: it tells all that holds there first.
    """
    broker = membership.broker
    return broker.no_room or broker.scarce.has_its_share(_bringer(node), SPARE if again else 0)


def _bringer(node: Node) -> str:
    return f"node {node.name!r}"


def _take_all(
    membership: Membership, node: Node, kept: frames.Kept, took: int
) -> Iterator[None]:  # fmt: skip
    """Those of which the journal here does not know yet, in pieces that are taken as a whole."""
    said = kept.said
    known = took - (kept.number - said.count)
    number = max(took, kept.number - said.count)
    holdings = membership.holdings
    for some in _slices(said if known <= 0 else _cut(said, known, said.count)):
        if kept.estate not in holdings.held or holdings.took(kept.estate, kept.origin) != took:
            return  # since the last piece; or another node has said it, who is the heir of this one
        number += some.count
        took = number
        node.receipts.add((kept.estate, kept.origin))  # those of a turn are told at its end
        # What is in no other journal is there where it was passed on to, as if it was said there.
        whose = ("", NOBODY) if kept.passed else (node.name, node.clients)
        sender = sender_of(membership, some, *whose)
        scarce = membership.broker.scarce
        scarce.brought_by = _bringer(node)
        try:
            take(membership, kept.estate, kept.origin, number, some, sender)
        finally:
            scarce.brought_by = ""
        yield


def take(
    membership: Membership, estate: str, origin: str, number: int, said: frames.Said,
    sender: Session,
) -> None:  # fmt: skip
    """It is taken, whatever becomes of it: nobody would have it after a refusal."""
    membership.holdings.note(estate, origin, number)
    group = name_from_wire(said.group)
    if group.startswith(SHARE) and _is_for_others(membership, group):
        _pass_on(membership, said, group)
    else:
        say(membership, said, sender, estate)


def _is_for_others(membership: Membership, name: str) -> bool:
    """Whether the group that it is for has no member here any more, and has some elsewhere."""
    group = membership.broker.groups.by_filter.get(name)
    return group is not None and all(member.session.far for member in group.members)


def _pass_on(membership: Membership, said: frames.Said, name: str) -> None:
    """To a node with members: that has told so, and would have told if it had none any more, before
    it sent one here. So nothing goes round.
    """
    topic = name_from_wire(said.topic)
    for message in messages_of(said, topic):
        run = membership.crossing.read_back(message)
        run.sender.far = False
        group = membership.broker.groups.by_filter[name]
        run.route.subscriptions, run.route.shared = [group.entrance], group.lasts()
        membership.broker.publish(run)


def taken(membership: Membership, node: Node, record: frames.Taken) -> None:
    estate = membership.estates.get(record.estate)
    if estate is not None and estate.holder is node:
        estate.taken(record.origin, record.number)
    if node.missed and node.settled():
        node.missed = False
        node.ask()


def sender_of(
    membership: Membership, said: frames.Said, node: str, clients: Mapping[int, Phantom] = NOBODY
) -> Session:  # fmt: skip
    """Who published it, as a client of that node."""
    phantom = clients.get(said.sender) if said.sender else None
    if phantom is None:  # an HTTP request, a client that is gone
        client = name_from_wire(said.client)
        phantom = Phantom(said.protocol, client, membership.rights, said.sender, node)
    phantom.asks_by_number = said.asks
    return phantom


def _route(membership: Membership, said: frames.Said, topic: str, sender: Session) -> Route:
    if not said.group:
        route = membership.broker.route(sender, topic)
        return route if not said.again else passing(route)
    group = membership.broker.groups.by_filter.get(name_from_wire(said.group))
    route = Route(topic, membership.broker.age)
    route.record = membership.broker.record == "all"
    if group is not None:
        route.subscriptions, route.shared = [group.entrance], group.lasts()
    return route


def _of_estate(membership: Membership, route: Route, estate: str) -> Route:
    """Who lasts in the estates that were taken over gets what is kept for those, and nothing else;
    and of that nobody else gets anything.
    """
    holdings = membership.holdings
    of = holdings.members
    if estate != holdings.own:
        its = {key for key in _kept_for(route) if of.get(key) == estate}
        its |= {key for key, which in holdings.shares if which == estate}
        return _only(route, lambda key: key in its)
    if not of:
        return route
    theirs = {key for key in _kept_for(route) if key in of}
    return _only(route, lambda key: key not in theirs)


def _kept_for(route: Route) -> Iterator[Key]:
    """For whom messages to it are kept: sessions that last and subscribe so, and bound queues."""
    for state, _ in route.audience:
        yield state.protocol, state.client
    for one in route.subscriptions:
        if isinstance(one.session, Queue) and lasts(one.session):
            yield one.session.protocol, one.session.client


def passing(route: Route) -> Route:
    """The same without who lasts: for them messages are kept where they are published."""
    found = Route(route.name, route.age)
    found.record = route.record
    found.subscriptions = [one for one in route.subscriptions if not lasts(one.session)]
    return found


def _only(route: Route, wanted: Callable[[Key], bool]) -> Route:
    """The same with some of those it leads to."""
    found = Route(route.name, route.age)
    found.record, found.must, found.shared = route.record, route.must, route.shared
    found.audience = [
        one for one in route.audience if wanted((one[0].protocol, one[0].client))
    ]
    found.subscriptions = [
        one for one in route.subscriptions if wanted((one.session.protocol, one.session.client))
    ]
    return found


def _keeps(membership: Membership, said: frames.Said, topic: str) -> bool:
    """Whether it is the last one of its name; then its stamp goes with it."""
    stamp = said.stamp, said.node
    if not said.rests or stamp <= membership.stamps.of(topic):
        return False
    cleared = not said.rests[-1].payload
    known = said.again and membership.stamps.has(topic, said.rests[-1].payload)
    membership.stamps.keep(topic, stamp, cleared)
    if known:
        return False  # this node's own, from before a start
    return not (cleared and said.again and topic not in membership.broker.state.retained)


def feed(membership: Membership, node: Node) -> None:
    """Go on telling a node what is retained here, as far as there is room."""
    if not node.ready() or not node.caught_up():
        return
    if node.behind and not node.feed:
        node.behind = False
        node.feed = deque([*membership.broker.state.retained, *membership.stamps.cleared])
    state, log_ = membership.broker.state.retained, membership.broker.log
    for _ in range(min(CLUSTER_FEED, len(node.feed))):
        name = node.feed.popleft()
        message = log_.look(state[name].seq) if name in state else Message(name, b"", retain=True)
        if message is None or name.startswith(STAYS):
            continue
        stamp = membership.stamps.of(name)
        run = membership.crossing.read_back(message)
        piece = membership.crossing.spelled(run, *stamp, again=True)
        node.link.hold(piece, upto=membership.stamps.sure)
        if node.link.size > LINK_CHOKED // 2:
            break
