"""Deliveries with their packet ids: a whole run at once, or what waited for room in the window.

    backlog    | 7 flying | 8 9 10 11 12 13 | 14 retained | ...
                            `waiting`         by itself, in the session

A back-end that takes what many devices say is behind all the time: each of its acknowledgements
makes room for as many messages, of QoS 1 nearly always. Where nothing about them asks for more
they are made without a look at each. Called by the session, which knows whether something does.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.limits import TURN_FETCHED_BYTES
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.core.message import Encoding, Run
from hubbub.core.rights import RECEIVE, Rights
from hubbub.core.session import Backlog
from hubbub.errors import UnreadableError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.dialect import Dialect

PACKET_IDS: Final = 65_535
WAITING_BYTES: Final = 65_536  # of one piece; then the link is looked at: does it take more?
WAITING_FETCHED: Final = TURN_FETCHED_BYTES // 8  # bytes that are read from files for it
ANSWERS: Final = 64  # looked at in one piece, before more are
RELEASED: Final = 1_024  # PUBRELs of one piece; the link is looked at in between
# A payload of so many bytes is a piece of its own, which all who get it share: 5 MB for fifty
# clients were 250 MB, which everybody waited for.
APART: Final = 65_536
PLAIN_ENTRY: Final = 1  # the low bits of one of QoS 1 that is not retained, and not over


def packet_id(number: int) -> int:
    return 1 + number % PACKET_IDS


def in_order(buf: bytes, at: int, table: bytes, first: int, count: int) -> int:
    """How many answers at `at`, `count` at most, are those of the packet ids from `first` on, as
    `table` has them. It may be some fewer: what is no run must not cost more than its length.
    """
    found, begin = min(count, ANSWERS), 4 * first
    while found and buf[at : at + 4 * found] != table[begin : begin + 4 * found]:
        found >>= 1
    while ANSWERS <= found < count:
        more = min(8 * found, count)
        if buf[at : at + 4 * more] != table[begin : begin + 4 * more]:
            break
        found = more
    return found


def waiting(
    backlog: Backlog, log: Log, window: int, dialect: Dialect, rights: Rights
) -> list[bytes]:
    """PUBLISHes of the next deliveries of QoS 1, as many as the window has room for.

    It ends before the first that is no such one, may expire, may not or cannot be read.
    """
    frames: list[bytes] = []
    number, size, name, topic = backlog.sent, 0, "", b""
    end = min(backlog.next, backlog.first + window)
    enough = log.fetched() + WAITING_FETCHED
    entries, first = backlog.entries, backlog.first
    while number < end:
        entry = entries[number - first]  # a walk to there would pass all that fly, each time
        if entry & 7 != PLAIN_ENTRY or size > WAITING_BYTES:
            break
        try:
            message = log.read(entry >> 35)
        except UnreadableError:
            break
        if message is None or message.expires or len(message.payload) >= APART:
            break
        if message.topic != name or not frames:
            if not rights.may(RECEIVE, message.topic):
                break
            name, topic = message.topic, dialect.shown(message.topic)
        again = number < backlog.tried
        frame = codec.publish(topic, message.payload, 1, False, packet_id(number), again)
        frames.append(frame)
        size += len(frame)
        number += 1
        if log.fetched() > enough:
            break
    return frames


def releases(backlog: Backlog, window: int) -> bytes:
    """PUBRELs of the next delivery, which the client has, and of those behind it that it has too:
    a client that comes back may have 60,000, and one by one they were a turn of 0.2 s.
    """
    number, received = backlog.sent, backlog.received
    first = packet_id(number)
    most = min(RELEASED, PACKET_IDS + 1 - first, backlog.first + window - number)
    count = 1
    while count < most and number + count in received:
        count += 1
    backlog.sent += count
    return codec.PUBRELS[4 * first : 4 * (first + count)]


def numbered(run: Run, encoding: Encoding, number: int) -> bytes:
    """The image of a run for one receiver, with packet ids from the delivery `number` on."""
    image = run.seen_as(encoding)
    first = packet_id(number)
    offset = run.offset if encoding is run.encoding else 0
    step, count = run.step, run.count
    if count == 1:
        offset = offset or codec.topic_at(image)[1]
        return b"".join((image[:offset], codec.IDS[2 * first : 2 * first + 2], image[offset + 2 :]))
    if not offset or first + count > PACKET_IDS + 1:
        return _numbered_slowly(image, number)
    patched = bytearray(image)
    patched[offset::step] = codec.IDS[2 * first : 2 * (first + count) : 2]
    patched[offset + 1 :: step] = codec.IDS[2 * first + 1 : 2 * (first + count) : 2]
    return bytes(patched)


def hand_over(link: Link, run: Run, encoding: Encoding, number: int, promised: bool) -> None:
    """A run leaves for one receiver, with packet ids from the delivery `number` on; `promised`:
    once it is durable, as for QoS 2.
    """
    if promised:
        link.prompt = True
    if run.step < APART or run.count > 1:
        in_two(link, numbered(run, encoding, number), b"", promised)
        return
    image, payload = run.seen_as(encoding), run.messages()[0].payload
    first, at, end = packet_id(number), codec.topic_at(image)[1], len(image) - len(payload)
    head = b"".join((image[:at], codec.IDS[2 * first : 2 * first + 2], image[at + 2 : end]))
    in_two(link, head, payload, promised)


def in_two(link: Link, head: bytes, payload: bytes, promised: bool) -> None:
    """What lies in `head` leaves, and the payload behind it if that is a piece of its own."""
    if promised:
        link.hold(head)
        if payload:
            link.hold(payload)
    else:
        link.write(head)
        if payload:
            link.write(payload)


def _numbered_slowly(image: bytes, number: int) -> bytes:
    """Packets of any length, or ids that wrap around."""
    patched = bytearray(image)
    for index, (_, body, _end) in enumerate(codec.packets(image)):
        at = body + 2 + (image[body] << 8 | image[body + 1])
        patched[at : at + 2] = packet_id(number + index).to_bytes(2, "big")
    return bytes(patched)
