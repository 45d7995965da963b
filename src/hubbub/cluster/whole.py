"""All that holds of a node, as it is told to who meets it, or missed something; and heard.

    tell   one record, or several where that would be long to read; who has them all hears them
    hear   what is not in it is over; the rest comes in turns

An answer may be long on its way, and who waits for it asks again: it is told again only when the
last one is likely to have come. Called by the membership. No I/O.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from hubbub.cluster import frames, heritage, wills
from hubbub.cluster.estates import Estate
from hubbub.cluster.node import Node
from hubbub.core.caches import LONG
from hubbub.core.limits import (
    CLUSTER_HOLDS_BYTES,
    CLUSTER_WHOLE,
    CLUSTER_WHOLE_BYTES,
    LINK_CHOKED,
    MIB,
)
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

SECOND_BYTES: Final = 8 * MIB  # of one that is on its way, before it is told once more

log = logging.getLogger("hubbub.cluster")

T = TypeVar("T")


# Told


def asked(membership: Membership, node: Node, record: frames.Ask) -> None:
    node.question = record.question
    answer(membership, node)


def answer(membership: Membership, node: Node) -> None:
    """What it has asked, if the answer before has left by now. A link may be choked for hours, by
    what waits for a quorum.
    """
    if not node.question or membership.broker.clock.now() < node.told_until:
        return
    if membership.engine.waiting(node.name) >= LINK_CHOKED:
        return
    question, node.question = node.question, 0
    tell(membership, node, question)
    node.feed = deque([*membership.broker.state.retained, *membership.stamps.cleared])
    for estate in node.estates():
        estate.again()
        # What was said of what it kept may have been lost on the way there.
        held, took = membership.holdings.held, membership.holdings.took
        pairs = ((name, estate.client) for name in held)
        node.receipts.update(pair for pair in pairs if took(*pair))


def tell(membership: Membership, node: Node, answers: int = 0) -> None:
    pieces = _pieces(membership, membership.whole(answers))
    for piece in pieces:
        node.link.write(piece)
    size = sum(map(len, pieces))
    node.told_until = membership.broker.clock.now() + size // MIB * MIB / SECOND_BYTES
    heritage.tell(membership, node)  # behind what is here of those whose heir it is
    membership.roster.tell(node)
    permits = membership.permits()
    if permits is not None:
        node.tell(permits)


def _pieces(membership: Membership, whole: frames.Whole) -> list[bytes]:
    piece = frames.piece(whole)
    if _fits(whole, piece):
        return [piece]
    if len(piece) > CLUSTER_HOLDS_BYTES:
        piece = frames.piece(whole := _of_short_names(whole))
        text = "all that holds here is more than others take: what has long names is left out"
        membership.hearing.warn("whole", text)
    if len(piece) > CLUSTER_HOLDS_BYTES:
        log.error(
            "all that holds here is %d MB, and others take %d: they do not hear of it. Fewer "
            "clients, sessions and filters at one node, or shorter names, are less",
            len(piece) >> 20, CLUSTER_HOLDS_BYTES >> 20,
        )  # fmt: skip
        return []
    cut = list(_cut(whole))
    return [frames.piece(frames.More(at, len(cut), one)) for at, one in enumerate(cut, 1)]


def _lists(whole: frames.Whole) -> Iterator[int]:
    yield from (len(whole.clients), len(whole.watches), len(whole.left))
    for one in whole.holdings:
        yield from (len(one.wants), len(one.lasts))


def _fits(whole: frames.Whole, piece: bytes) -> bool:
    return len(piece) <= CLUSTER_WHOLE_BYTES and sum(_lists(whole)) <= CLUSTER_WHOLE


def _cut(whole: frames.Whole) -> Iterator[frames.Whole]:
    """In halves, until each is short enough; all of it in its order."""
    if _fits(whole, frames.piece(whole)) or max(_lists(whole)) < 2:
        yield whole
        return
    for second in (False, True):
        yield from _cut(_half(whole, second))


def _half(whole: frames.Whole, second: bool) -> frames.Whole:
    def of(all_: list[T]) -> list[T]:
        middle = (len(all_) + 1) // 2
        return all_[middle:] if second else all_[:middle]

    holdings = [
        frames.Holding(one.estate, one.generation, of(one.wants), of(one.lasts))
        for one in whole.holdings
    ]
    return frames.Whole(
        whole.answers, whole.number, of(whole.clients), of(whole.watches), holdings, of(whole.left)
    )


def _of_short_names(whole: frames.Whole) -> frames.Whole:
    """Whose names are long is not worth that others hear of nobody."""
    holdings = [
        frames.Holding(
            one.estate, one.generation, [want for want in one.wants if len(want[0]) <= LONG],
            [last for last in one.lasts if len(last[1]) <= LONG],
        )
        for one in whole.holdings
    ]  # fmt: skip
    clients = [client for client in whole.clients if len(client[2]) <= LONG]
    watches = [name for name in whole.watches if len(name) <= LONG]
    return frames.Whole(whole.answers, whole.number, clients, watches, holdings, whole.left)


# Heard


def more(membership: Membership, node: Node, record: frames.More) -> Iterator[None] | None:
    """Of several records one; what holds is known with the last."""
    if record.number == 1:
        node.more.clear()
    if record.number != len(node.more) + 1:
        return None  # one is missing, which was asked for
    node.more.append(record.whole)
    if record.number < record.of:
        return None
    parts, node.more = node.more, []
    return hear(membership, node, _together(parts))


def _together(parts: list[frames.Whole]) -> frames.Whole:
    last = parts[-1]
    holdings: dict[str, frames.Holding] = {}
    for one in chain.from_iterable(part.holdings for part in parts):
        known = holdings.setdefault(one.estate, one)
        if known is not one:
            known.wants += one.wants
            known.lasts += one.lasts
    return frames.Whole(
        last.answers, last.number, [client for part in parts for client in part.clients],
        [name for part in parts for name in part.watches], list(holdings.values()),
        [left for part in parts for left in part.left],
    )  # fmt: skip


def hear(membership: Membership, node: Node, record: frames.Whole) -> Iterator[None]:
    clients = {}
    for number, protocol, wire, _ in record.clients:
        clients[number] = protocol, wire
        yield
    clients[record.number] = "", b"hub"
    for number, phantom in list(node.clients.items()):
        if clients.get(number) != (phantom.protocol, name_to_wire(phantom.client)):
            membership.gone(node, number)
        yield
    membership.there(node, record.number, "", b"hub", 0)
    for client in record.clients:
        membership.there(node, *client)
        yield
    for protocol, wire, since in record.left:
        wills.went(membership, (protocol, name_from_wire(wire)), since)
        yield
    yield from _watches(membership, node, record.watches)
    for holding in record.holdings:
        estate = membership.holds(node, holding.estate, holding.generation)
        if estate is not None:
            yield from _of_holder(node, estate, _estate(membership, node, estate, holding))
    membership.broker.age += 1
    node.number_there = record.number
    if record.answers == node.asking:
        node.is_answered()


def _watches(membership: Membership, node: Node, names: list[bytes]) -> Iterator[None]:
    wanted, observed = dict.fromkeys(names, True), membership.broker.observers.names
    for name in [name for name, by in observed.items() if node.estate in by]:
        wanted.setdefault(name_to_wire(name), False)
    for wire, on in wanted.items():
        membership.watches(node, frames.Watch(wire, on))
        yield


def _of_holder(node: Node, estate: Estate, pieces: Iterator[None]) -> Iterator[None]:
    """As long as the node has it: between two turns another one may."""
    for _ in pieces:
        yield
        if estate.holder is not node:
            return


def _estate(
    membership: Membership, node: Node, estate: Estate, holding: frames.Holding
) -> Iterator[None]:
    wants = {}
    for name, literal, kept in holding.wants:
        wants[name_from_wire(name), literal] = kept
        yield
    for key in [key for key in estate.wants if key not in wants]:
        estate.leaves(key)
        yield
    for key, kept in wants.items():
        estate.want(key, kept)
        yield
    estate.told = True
    yield from membership.directory.whole(node, estate.client, holding.lasts)
