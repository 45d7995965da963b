"""SUBSCRIBE and UNSUBSCRIBE: what a client may have, what it is told, and what it then gets first.

A SUBACK leaves before anything of the new subscriptions (3.8.4); that of a lasting session leaves
when its rows are durable. A packet may have 100,000 filters: what both do is an iterator that stops
behind each PIECE of them, and everything else to the client stays aside meanwhile. The connection
calls it, now and in later turns. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from hubbub.core import client
from hubbub.core.clock import Clock
from hubbub.core.link import Link
from hubbub.core.past import Past, past_of, split
from hubbub.core.session import Subscription
from hubbub.core.topics import CLIENT, SELF, SHARE, is_well_formed
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError
from hubbub.protocols.mqtt.options import packed
from hubbub.protocols.mqtt.session import ANY_PACKET, MqttSession
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.schema import name_from_wire
from hubbub.wire.text import is_plain

log = logging.getLogger("hubbub.mqtt")

PIECE: Final = 50  # filters of one turn: a millisecond or two
LAST: Final = b"hubbub-last"  # user properties of a SUBSCRIBE: its filters begin in the past
SINCE: Final = b"hubbub-since"


def subscribe(
    mqtt: Sessions, session: MqttSession, body: bytes, old: bool, bridge: bool
) -> Iterator[None]:
    """Take a SUBSCRIBE and answer it. Nothing comes back to a bridge that came from it.

    `old`: the client speaks 3.1.
    """
    v5, reader = session.dialect.v5, codec.Reader(body, "SUBSCRIBE")
    packet_id, wanted, properties = codec.begin_subscribe(reader, v5)
    while reader.more():
        wanted.append(codec.wish_of(reader, v5))
        if not len(wanted) % (8 * PIECE):
            yield
    _check_answer(session, len(wanted))
    identifier = sum(properties.subscriptions) if properties is not None else 0
    codes, offers = [], []
    begins = _past_in(properties)
    link = _shut(session, len(wanted))
    try:
        for number, (name, wish) in enumerate(wanted, 1):
            options = wish | codec.NO_LOCAL if bridge else wish
            code, offered = _subscribe_one(
                mqtt, session, name_from_wire(name), options, identifier, begins
            )
            codes.append(code if v5 else _before_5(code, wish, old))
            if offered is not None:
                offers.append(offered)
            if not number % PIECE:
                yield
        session.subscribed()
        answer = codec.suback(packet_id, codes, codec.NO_PROPERTIES if v5 else b"")
        if link is None:
            _answer(session, answer, True)
        elif session.lasting:
            link.pass_aside(answer, barrier=True)
        else:
            link.write_aside(answer)
    finally:
        if link is not None:
            link.reopen()
    for number, (subscription, past) in enumerate(offers, 1):
        client.catch_up(mqtt.broker, subscription, past)
        if not number % PIECE:
            yield


def _past_in(properties: codec.Properties | None) -> tuple[str, str]:
    """What the user properties of a SUBSCRIBE say of the past, "" where they say nothing."""
    if properties is None or not properties.user:
        return "", ""
    said = dict(properties.user)
    return name_from_wire(said.get(LAST, b"")), name_from_wire(said.get(SINCE, b""))


def _begun(name: str, asked: tuple[str, str], clock: Clock) -> tuple[Past | None, str]:
    """Where in the past a subscription begins, and its filter. ValueError if nobody can say."""
    if asked[0] or asked[1]:
        return past_of(asked[0], asked[1], clock.stamp()), name
    return split(name, clock.stamp()) if name.startswith("$") else (None, name)


def _shut(session: MqttSession, filters: int) -> Link | None:
    """Keep everything else aside until the answer, if that takes more than this turn."""
    link = session.link
    if link is None or filters < PIECE or link.aside is not None:
        return None
    link.shut()
    return link


def _before_5(code: int, asked: int, old: bool) -> int:
    """3.1 has no code for a failure: it is told what it asked for, and nothing comes."""
    if code <= 2:
        return code
    return asked if old else codec.FAILURE


def _subscribe_one(
    mqtt: Sessions, session: MqttSession, name: str, options: int, identifier: int,
    begins: tuple[str, str],
) -> tuple[int, tuple[Subscription, Past | None] | None]:  # fmt: skip
    """The code for one filter, and the subscription if something is to be sent for it now, with
    where in the past it begins. `begins`: what the packet says of that.
    """
    try:
        past, name = _begun(name, begins, mqtt.broker.clock)
    except ValueError as error:
        log.info("%s: %s", session.client, error)
        return spec.IMPLEMENTATION, None
    name = _meant(session, name, "a SUBSCRIBE to")
    no_local = options & codec.NO_LOCAL != 0
    if no_local and name.startswith(SHARE):
        raise PacketError("a shared subscription with no local", spec.PROTOCOL)
    asked = packed(no_local, options & codec.AS_PUBLISHED != 0, identifier)
    qos = min(options & 3, mqtt.maximum_qos)
    encodings = session.encodings(qos, asked)
    subscription = Subscription(session, name, qos, encodings, False, asked, no_local)
    session.changes(name)
    try:
        new = client.subscribe(mqtt.broker, subscription, past)
    except client.Refused as refusal:
        return _refused(session, refusal), None
    handling = options >> codec.HANDLING_SHIFT
    wanted = past is not None or handling == 0 or (handling == 1 and new)
    return qos, (subscription, past) if wanted else None


def _meant(session: MqttSession, name: str, packet: str) -> str:
    """The hub's filter. A client knows its address, and may subscribe to that.

    One of too many levels is no error of the packet: it is refused by itself.
    """
    if not is_well_formed(name):
        reason = f"{packet} {name[:80]!r}, which is not a topic filter"
        raise PacketError(reason, spec.BAD_FILTER)
    if not is_plain(name):
        raise PacketError(f"{packet} {name[:80]!r}, which has a control character")
    return SELF if name == f"{CLIENT}{session.number}" else session.dialect.full_filter(name)


_CODES: Final = {
    client.MALFORMED: spec.BAD_FILTER,
    client.NO_WILDCARDS: spec.NO_WILDCARDS,
    client.NO_SHARING: spec.NO_SHARED,
    client.TOO_MANY: spec.QUOTA,
    client.NOT_ALLOWED: spec.NOT_ALLOWED,
    client.NO_PAST: spec.IMPLEMENTATION,
}
# A client of 5.0 read in its CONNACK that there is no such thing (3.2.2.3.11, 3.2.2.3.13).
_NOT_OFFERED: Final = (client.NO_WILDCARDS, client.NO_SHARING)


def _refused(session: MqttSession, refusal: client.Refused) -> int:
    """The reason code of a refusal."""
    code = _CODES[refusal.reason]
    if session.dialect.v5 and refusal.reason in _NOT_OFFERED:
        raise PacketError(str(refusal), code)
    return code


def unsubscribe(mqtt: Sessions, session: MqttSession, body: bytes) -> Iterator[None]:
    """Take an UNSUBSCRIBE and answer it."""
    v5, reader = session.dialect.v5, codec.Reader(body, "UNSUBSCRIBE")
    packet_id, names, _ = codec.begin_unsubscribe(reader, v5)
    while reader.more():
        names.append(reader.string("topic filter"))
        if not len(names) % (8 * PIECE):
            yield
    _check_answer(session, len(names))
    codes = []
    for number, name in enumerate(names, 1):
        if not number % PIECE:
            yield
        meant = _meant(session, _without_past(name_from_wire(name)), "an UNSUBSCRIBE from")
        session.changes(meant)
        found = mqtt.broker.unsubscribe(session, meant)
        codes.append(spec.SUCCESS if found else spec.NO_SUBSCRIPTION)
    session.subscribed()
    answer = codec.acknowledgement(codec.UNSUBACK, packet_id)
    _answer(session, codec.unsuback(packet_id, codes) if v5 else answer, False)


def _without_past(name: str) -> str:
    """What was subscribed to as `$history/20/TOPIC` is TOPIC."""
    try:
        return split(name, 0)[1] if name.startswith("$") else name
    except ValueError:
        return name


def _check_answer(session: MqttSession, filters: int) -> None:
    """Whoever takes only tiny packets cannot be answered about many filters (3.1.2.11.4)."""
    if session.packet_limit == ANY_PACKET:
        return
    size = len(codec.suback(1, [spec.SUCCESS] * filters, codec.NO_PROPERTIES))
    if size > session.packet_limit:
        reason = f"an answer of {size} bytes; packets of {session.packet_limit} are the largest"
        raise PacketError(reason, spec.TOO_LARGE)


def _answer(session: MqttSession, packet: bytes, barrier: bool) -> None:
    link = session.link
    assert link is not None
    if session.lasting:
        link.hold(packet, barrier=barrier)
    else:
        link.write(packet)
