"""Messages that another node said: live ones, those it kept for us, retained ones told again.

Called by the membership for the records of a node, which it has put in order. Nothing here goes
on to a node. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.cluster import frames
from hubbub.cluster.keeping import AFTER, FROM, MOVED, OWN, TOOK, only, passing, without
from hubbub.cluster.node import Node, Phantom, messages_of
from hubbub.core.limits import CLUSTER_CLOCK_SECONDS, CLUSTER_FEED, LINK_CHOKED
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, DELAYED, QUEUE, SHARE, SYSTEM, is_text
from hubbub.schema import Row, column_of, name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

# Names that mean something at the node where they are said: commands above all never cross.
REFUSED: Final = (SYSTEM, DELAYED, SHARE, "$hub/", "$CONTROL")
# What is published into a queue goes to its home in a way of its own (`cluster.queues`).
STAYS: Final = (*REFUSED, QUEUE)


def say(
    membership: Membership, node: Node, said: frames.Said, after: list[str] | None = None,
    author: str = "",
) -> None:  # fmt: skip
    """`author`: the node where it was published, if `node` says it for that one."""
    topic = name_from_wire(said.topic)
    if topic == f"{CLIENT}{membership.number}":
        topic = f"{CLIENT}{membership.broker.itself.number}"
    if topic.startswith(REFUSED) or topic in membership.broker.controls or not is_text(topic):
        raise frames.Foreign(f"messages to {topic[:80]!r}, which does not cross")
    if said.count != len(said.rests) and (said.rests or len(said.payloads) % said.count):
        raise frames.Foreign(f"{said.count} messages that are not so many")
    if said.group:
        said.retain = False  # it is kept by what goes to all nodes
    if said.again and not node.settled():
        node.missed = True  # what is on its way there may be newer
        return
    if said.retain and not _keeps(membership, said, topic):
        if said.again:
            return
        said.retain = False
    sender = sender_of(membership, node, said)
    membership.messages_in += said.count
    encoding = SPELLED if said.rests else membership.crossing
    route = _route(membership, said, topic, sender)
    if said.qos and not said.group and membership.adopted:
        route = _for_its_own(membership, author or node.client, route, after or [])
    run = Run(sender, route, said.qos, said.count, encoding, said.payloads, said.retain)
    if said.rests:
        run.replace(messages_of(said, topic))
    if run.route.takes:
        membership.broker.publish(run)


def keep(membership: Membership, node: Node, kept: frames.Kept) -> None:
    """The next one of those that a node keeps for this one comes, or one once more."""
    latest = membership.broker.clock.stamp() + CLUSTER_CLOCK_SECONDS * 1_000_000
    if kept.number > latest:
        raise frames.Foreign(f"a kept message of the number {kept.number}, which is to come")
    group = name_from_wire(kept.said.group)
    # It would be dropped where it is to stay; or comes once more when its node has heard that this
    # one is its own heir.
    back = membership.name in membership.adopted and membership.name not in kept.after
    if membership.broker.no_room or membership.deposed or (back and not group.startswith(MOVED)):
        node.declined = True
        return
    node.receipt = True
    if kept.previous <= node.took < kept.number:
        take(membership, node, kept.number, kept.said, kept.after)


def take(
    membership: Membership, node: Node, number: int, said: frames.Said, after: list[str]
) -> None:
    """It is taken, whatever becomes of it: nobody would have it after a refusal."""
    node.took, group, author = number, name_from_wire(said.group), ""
    if was_had(group, "", membership.broker.state.taken):
        return
    while group.startswith(FROM):
        author, other, group = _numbered(group.removeprefix(FROM))
        if not _is_next_of(membership, author, other):
            return
        after = []
    if group.startswith(AFTER):
        names, _, group = group.removeprefix(AFTER).partition("/")
        after = names.split(",")
    said.group = name_to_wire(group)
    if group.startswith(SHARE) and _is_for_others(membership, group):
        _pass_on(membership, said, group)
    else:
        say(membership, node, said, after, author)


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


def was_had(group: str, dead: str, taken: Mapping[str, int]) -> bool:
    """Whether a message that was kept for a dead node had come to it under the number of another
    dead one. `taken`: what the `dead` one had, or "" for what its heir knows of that. What was kept
    for another one that died before it has numbers of that one's, which mean nothing to others.
    """
    begin, found, rest = group.partition(FROM)
    rest = FROM + rest if found and (begin.startswith(MOVED) or dead) else ""
    while rest.startswith(FROM):  # heirs of heirs: each gave it a number more
        other, number, rest = _numbered(rest.removeprefix(FROM))
        its_own = bool(dead) and begin in ("", f"{MOVED}{dead}/")
        name = other if its_own else f"{TOOK}{begin.removeprefix(MOVED)}{other}"
        if number <= taken.get(name, 0):
            return True
    inner = group.find(MOVED, 1)  # it moved before, for another dead one
    return inner > 0 and was_had(group[inner:], "", taken)


def _numbered(name: str) -> tuple[str, int, str]:
    """NODE/NUMBER, and of which group it is, if that is said behind it."""
    node, _, rest = name.partition("/")
    digits, _, group = rest.partition("/")
    if not digits.isdecimal():
        raise frames.Foreign(f"a kept message of {name[:80]!r} without its number")
    return node, int(digits), group


def _is_next_of(membership: Membership, dead: str, number: int) -> bool:
    """Whether that message of a dead node, which its heir says now, was not taken yet."""
    if number <= membership.broker.state.taken.get(dead, 0):
        return False
    row = Row(0, 0, schema.TAKEN, client=column_of(dead), number=number)
    membership.broker.change(row)
    return True


def taken(membership: Membership, node: Node, record: frames.Taken) -> None:
    if node.keeping is not None:
        node.keeping.taken(record.number)
    if node.missed and node.settled():
        node.missed = False
        node.ask()


def sender_of(membership: Membership, node: Node, said: frames.Said) -> Session:
    """Who published it, as a client of that node."""
    phantom = node.clients.get(said.sender) if said.sender else None
    if phantom is None:  # an HTTP request, a client that is gone
        client = name_from_wire(said.client)
        phantom = Phantom(said.protocol, client, membership.rights, said.sender, node.client)
    phantom.asks_by_number = said.asks
    return phantom


def _route(membership: Membership, said: frames.Said, topic: str, sender: Session) -> Route:
    if not said.group:
        route = membership.broker.route(sender, topic)
        return route if not said.again else passing(route)
    name = name_from_wire(said.group)
    if name.startswith(MOVED):
        name = name[name.rfind(MOVED) :]  # of what moved twice: whom it was for at first
        route = membership.broker.route(sender, topic)
        dead = name.removeprefix(MOVED).partition("/")[0]
        if dead not in membership.adopted:
            return route
        return only(route, _theirs(membership, route, dead, name))
    group = membership.broker.groups.by_filter.get(name)
    route = Route(topic, membership.broker.age)
    route.record = membership.broker.record == "all"
    if group is not None:
        route.subscriptions, route.shared = [group.entrance], group.lasts()
    return route


def _theirs(
    membership: Membership, route: Route, dead: str, group: str
) -> set[tuple[str, str]]:  # fmt: skip
    """Who of the route lasted at that node; of those whose heir it was only if the author knew so:
    else they have it apart.
    """
    here = {(state.protocol, state.client) for state, _ in route.audience}
    here |= {(one.session.protocol, one.session.client) for one in route.subscriptions}
    at, taken = group.find(AFTER), membership.broker.state.taken
    after = group[at + len(AFTER) :].partition("/")[0].split(",") if at >= 0 else ()

    def depth(node: str, key: tuple[str, str]) -> int:
        return taken.get(f"{OWN}{node}/{key[0]}/{key[1]}", 0)

    return {
        key for key in here & membership.adopted[dead]
        if not any(
            key in keys and depth(other, key) < depth(dead, key)
            for other, keys in membership.adopted.items()
            if other != dead and other not in after
        )
    }  # fmt: skip


def _for_its_own(membership: Membership, author: str, route: Route, after: list[str]) -> Route:
    """Who was at home at a dead node gets apart what was published before its heir was known."""
    for dead, keys in membership.adopted.items():
        if dead != author and dead not in after:
            route = without(route, keys)
    return route


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
        message = log_.look(state[name]) if name in state else Message(name, b"", retain=True)
        if message is None or name.startswith(STAYS):
            continue
        stamp = membership.stamps.of(name)
        run = membership.crossing.read_back(message)
        piece = membership.crossing.spelled(run, *stamp, again=True)
        node.link.hold(piece, upto=membership.stamps.sure)
        if node.link.size > LINK_CHOKED // 2:
            break
