"""A will is for a client that is lost, not for one that has come again.

    home of its session   takes the client over: the will, if it is due at once, then the client
    another node          says so after it has let the client in: what it says would come behind it

Within one hub a will is published before its client is welcomed once more. Between two nodes it
could come only afterwards: late, and retained over what the client has said since. So a node that
knows that a client is connected elsewhere says nothing of its former connection, whether that was
here, with a node that is dead, or before a start. Nor does one that hears that the client was at
another node since, and has gone from there: its will of then was said, or was not to be. By the
clocks of the two, which is the best there is. MQTT lets a hub that fails say wills later (5.0,
3.1.2.5); when it is too late it does not.

A hub that stood still is as one that was started, for wills of who had come before: the others took
it for dead, so its clients may have gone to them, and they say anew who is there. Who has copies
asks its stream, too. Called by the membership and the runtime. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.cluster.estates import Key
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_DEAD_SECONDS
from hubbub.core.session import Revival, Silent, publish_wills, row_about
from hubbub.schema import Row, name_of

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

# What a hub that was started does not know at first.
WHOSE: Final = "who has what lasted here"
WHO_IS_WHERE: Final = "who is connected elsewhere"
STOOD: Final = "whether another node has taken over"  # of one that stood still
# Without NATS, never awake for 5 s, or where a node that is there cannot say all that holds there;
# then it says what is due as if it were alone.
UNKNOWN_SECONDS: Final = 60.0


def withdraw(broker: Broker, key: Key) -> None:
    """Its will is not published any more; not here, at least."""
    state = broker.state.sessions.get(key)
    will = broker.state.wills.get(key) if state is None else state.will
    if will is not None:
        session = broker.sessions.get(key) or Silent(*key, broker.open)
        broker.change(row_about(session, schema.WILL))


def connected(broker: Broker, keys: Collection[Key]) -> set[Key]:
    """Which of these clients are connected, here or at another node."""
    if not keys:
        return set()
    there = ((one.protocol, one.client) for one in broker.phantoms.values())
    here = {key for key in keys if (one := broker.sessions.get(key)) is not None and one.number}
    return here.union(key for key in there if key in keys)


def went(membership: Membership, key: Key, since: int, whose: str = "") -> None:
    """A client is gone from where it had come at that time; the last ones of all are remembered."""
    if key[1] and not membership.relays.many(key[0]):
        membership.left.note(key, since, whose)
        membership.lost.elsewhere(key, since)


def stale(membership: Membership, wills: Mapping[Key, Row]) -> set[Key]:
    """Of which of these, of before a start or of a dead node, the client was elsewhere since. One
    that waits is due since its connection began.
    """
    left = membership.left
    began = {key: will.expires or will.time for key, will in wills.items()}
    return {key for key, at in began.items() if 0 < at < left.since(key)}


def key_of(will: Row) -> Key:
    return will.protocol.decode(), name_of(will.client)


def publish(
    membership: Membership, wills: Iterable[Row], protocols: Mapping[str, Revival]
) -> None:
    """Those of who is lost."""
    due = {key_of(will): will for will in wills}
    for key in connected(membership.broker, due.keys()) | stale(membership, due):
        del due[key]
    publish_wills(due.values(), protocols)


def listen(membership: Membership) -> None:
    """It has joined: from now on it hears who is connected elsewhere."""
    if membership.engine.complete:
        known(membership, WHO_IS_WHERE)
    else:
        membership.joined = membership.up_since = membership.broker.clock.now()


def look(membership: Membership, now: float) -> None:
    """Whoever has not said by now who is there is dead, or cannot reach this node. Who was heard to
    be there may need longer to say all: that is asked for.
    """
    if not membership.joined:
        return
    if not membership.engine.up:
        membership.up_since = now
    if WHO_IS_WHERE in membership.unknown:
        asks = any(node.asking for node in membership.nodes.values())
        said = heard_all(membership) and not asks
        if said or now - membership.joined >= UNKNOWN_SECONDS:
            known(membership, WHO_IS_WHERE)


def heard_all(membership: Membership) -> bool:
    """Whether it has heard for long enough what others say: who is there has said so. What came and
    waits was not heard.
    """
    if not membership.joined:  # it need not wait for anybody
        return True
    heard = membership.hearing.heard_until() - membership.up_since
    return membership.engine.up and heard >= CLUSTER_DEAD_SECONDS


def wait_to_know(membership: Membership, what: str) -> None:
    membership.unknown.add(what)
    membership.broker.undecided = True


def stood_still(membership: Membership) -> None:
    """The others took it for dead, and it hears anew who is with them. One that does so again and
    again before it has heard that says what is due after `UNKNOWN_SECONDS` of it.
    """
    broker = membership.broker
    membership.up_since = broker.clock.now()
    if WHO_IS_WHERE not in membership.unknown:
        membership.joined = membership.up_since
    broker.stood = broker.clock.stamp()
    wait_to_know(membership, WHO_IS_WHERE)


def known(membership: Membership, what: str) -> None:
    """Once all is, what is due is this node's to say, or nobody's."""
    broker = membership.broker
    membership.unknown.discard(what)
    if membership.unknown or not broker.undecided:
        return
    broker.undecided, broker.stood = False, 0
    of_before = _left_open(broker)
    for key in sorted(connected(broker, of_before) | stale(membership, _ending(broker, of_before))):
        session = broker.sessions.get(key)
        if session is None or not session.number:
            withdraw(broker, key)
    gone = _ending(broker, of_before - broker.sessions.keys())
    publish_wills(gone.values(), membership.relays.protocols)


def _left_open(broker: Broker) -> set[Key]:
    """Who has a will here. Who was lost just now is asked about where they wait (`lost`): of them
    it may be said that they are where they came from.
    """
    lasting = {key for key, one in broker.state.sessions.items() if one.will is not None}
    return (lasting | broker.state.wills.keys()) - broker.lost.keys()


def _ending(broker: Broker, keys: Collection[Key]) -> dict[Key, Row]:
    """The wills of those of them whose sessions end with their connections."""
    return {key: will for key, will in broker.state.wills.items() if key in keys}
