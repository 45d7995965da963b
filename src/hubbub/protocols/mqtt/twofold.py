"""QoS 2 in runs: four packets a message, each of them handled together with its like.

    publisher   PUBLISH PUBLISH … ->  <- PUBREC PUBREC …   PUBREL PUBREL … ->  <- PUBCOMP PUBCOMP …
    subscriber  <- PUBLISH PUBLISH …  PUBREC PUBREC … ->   <- PUBREL PUBREL …  PUBCOMP PUBCOMP … ->

What comes in a window comes in one read, in the order of its packet ids, so a run is seen by one
comparison and answered by one slice of a table. Whatever is not as it nearly always is goes the
long way, a packet at a time: a lasting publisher, whose packet ids are rows; an id that is open
already; answers out of order; a client that is served one after the other (`serial`). There the
standard is obeyed in each corner; here nothing may happen that would not happen there.

Called by the connection; no I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.route import Route
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.incoming import Incoming
from hubbub.protocols.mqtt.numbering import PACKET_IDS, in_order, packet_id
from hubbub.protocols.mqtt.session import TWO, MqttSession
from hubbub.schema import RECEIVED, counted

# Packets of a run: it is looked at again from the first one that does not belong to it, and such
# looks must not take longer than they save.
LONGEST: Final = 64

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))


def fits(session: MqttSession, route: Route, buf: bytes, mark: int) -> bool:
    """Whether publishes of QoS 2 whose first packet id is at `mark` may be a run."""
    if session.lasting or session.serial is not None or len(buf) < mark + 2:
        return False
    if (buf[mark] << 8 | buf[mark + 1]) in session.state.open_ids:
        return False
    own = [one for one in route.subscriptions if one.session is session]
    return not own  # its own copy comes after the PUBREC


def fresh(session: MqttSession, image: bytes, mark: int, step: int, count: int) -> list[int]:
    """The packet ids at `mark` of publishes `step` bytes long, up to one that is not new."""
    ids: list[int] = []
    for at in range(mark, mark + count * step, step):
        one = image[at] << 8 | image[at + 1]
        if one in ids or one in session.state.open_ids:
            break
        ids.append(one)
    return ids


def answered(session: MqttSession, incoming: Incoming | None, buf: bytes, at: int) -> int:
    """Take the run of acknowledgements at `at`; where it ends, or `at` if it goes the long way."""
    head = buf[at]
    if head == PUBACK:
        return session.acknowledge_run(buf, at)
    if session.serial is not None or session.link is None:
        return at
    if head == PUBREL:
        return _released(session, incoming, buf, at)
    return _received(session, buf, at) if head == PUBREC else _completed(session, buf, at)


def _released(session: MqttSession, incoming: Incoming | None, buf: bytes, at: int) -> int:
    """PUBRELs of a publisher: its packet ids are free again."""
    link, open_ids = session.link, session.state.open_ids
    most = min((len(buf) - at) >> 2, LONGEST)
    ids: list[int] = []
    for place in range(at, at + 4 * most, 4):
        one = buf[place + 2] << 8 | buf[place + 3]
        if buf[place] != PUBREL or buf[place + 1] != 2 or one not in open_ids or one in ids:
            break
        ids.append(one)
    count = len(ids)
    if session.lasting or link is None or not count:
        return at
    open_ids.difference_update(ids)
    if incoming is not None:
        incoming.unreleased = max(0, incoming.unreleased - count)
    answers = bytearray(buf[at : at + 4 * count])
    answers[::4] = b"\x70" * count
    link.hold(bytes(answers))
    return at + 4 * count


def _in_order(session: MqttSession, table: bytes, buf: bytes, at: int, number: int) -> int:
    """How many answers at `at` are those of the deliveries from `number` on, all of QoS 2."""
    backlog = session.backlog
    first = packet_id(number)
    most = min(backlog.sent - number, (len(buf) - at) >> 2, PACKET_IDS + 1 - first)
    count = in_order(buf, at, table, first, most)
    if count == 1:
        return int(backlog.qos(number) == TWO)
    alike = [entry & 3 for entry in backlog.some(number, count)] == [TWO] * count
    return count if alike else 0


def _received(session: MqttSession, buf: bytes, at: int) -> int:
    """PUBRECs: from now on only PUBREL is sent for these deliveries, whatever happens."""
    backlog, link = session.backlog, session.link
    identifier = buf[at + 2] << 8 | buf[at + 3]
    number = backlog.first + (identifier - 1 - backlog.first) % PACKET_IDS
    if number >= backlog.sent or not identifier or link is None:
        return at
    count = _in_order(session, codec.PUBRECS, buf, at, number)
    numbers = range(number, number + count)
    if not count or not backlog.received.isdisjoint(numbers):
        return at
    if session.lasting:
        row = session.row_of_delivery(RECEIVED, number)
        session.broker.change(counted(row, count))
    else:
        backlog.receive(numbers)
    link.pass_aside(codec.PUBRELS[4 * identifier : 4 * (identifier + count)])
    return at + 4 * count


def _completed(session: MqttSession, buf: bytes, at: int) -> int:
    """PUBCOMPs: the oldest deliveries are over."""
    backlog = session.backlog
    if not session.plain():
        return at
    count = _in_order(session, codec.PUBCOMPS, buf, at, backlog.first)
    numbers = range(backlog.first, backlog.first + count)
    if not count or not backlog.received.issuperset(numbers):
        return at
    backlog.received.difference_update(numbers)
    session.over(count)
    return at + 4 * count
