"""Another node: the link there, its clients as phantoms here, and how messages look between nodes.

    publish -> route -> Estate.deliver -> link -> Wire -> the engine      once a tick, in frames
    a frame from there -> Phantom as the sender -> publish                 never to a node again

Made by the membership. No I/O.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames
from hubbub.cluster.estates import Estate, taken_row, took_of
from hubbub.cluster.retained import STAMP
from hubbub.core.broker import Broker
from hubbub.core.limits import NAME_BYTES
from hubbub.core.link import Link
from hubbub.core.message import PUBLISHER, Encoding, Message, Run, properties_column, run_of
from hubbub.core.rights import Rights
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import CLIENT
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

PAUSE: Final = 8  # beats at most from one question to the same one


class FarRights(Rights):
    """Of who was asked at another node: rights to publish are asked where a client is.

    One for all of them, so that their routes are not those of local senders.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found_by_name = False


class Phantom(Session):
    """A client of another node, or the hub there: as a sender, and to be written to."""

    def __init__(
        self, protocol: str, client: str, rights: Rights, number: int, node: str = "",
        since: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(protocol, client, rights)
        self.far = True
        self.came = since
        self.node = node
        self.number = number

    def is_same(self, protocol: str, client: str, since: int) -> bool:
        """Who comes again has the same number: that it was gone may be lost on the way."""
        return (self.protocol, self.client, self.came) == (protocol, client, since)

    def deliver(self, run: Run, subscription: Subscription) -> None:
        raise AssertionError("what is for a phantom goes to its node")


class Crossing(Encoding):
    """How messages look between nodes. `group`: for one member of this group there."""

    def __init__(self, broker: Broker, number: int, group: str = "") -> None:
        self.broker = broker
        self.number = number  # by which others know the hub itself
        self.group = name_to_wire(group)
        self.by_qos = (self, self, self)

    def encode(self, run: Run) -> bytes:
        return frames.piece(self.short(run))

    def spelled(self, run: Run, stamp: int = 0, node: str = "", again: bool = False) -> bytes:
        """The same with all that the messages have, and of a retained one whose it is."""
        return frames.piece(self.said(run, stamp, node, again))

    def said(self, run: Run, stamp: int = 0, node: str = "", again: bool = False) -> frames.Said:
        rests = list(map(self._rest, run.messages()))
        return self._record(run, b"", rests, stamp, node, again)

    def _record(
        self, run: Run, payloads: bytes, rests: list[frames.Rest], stamp: int = 0,
        node: str = "", again: bool = False,
    ) -> frames.Said:  # fmt: skip
        sender, number = run.sender, run.sender.number
        if number == self.broker.itself.number:
            number = self.number
        return frames.Said(
            number, sender.protocol, name_to_wire(sender.client), name_to_wire(run.route.name),
            self.group, run.qos, run.retain, sender.asks_by_number, payloads, run.count, rests,
            stamp, node, again,
        )  # fmt: skip

    def _rest(self, message: Message) -> frames.Rest:
        reply_to = message.reply_to
        if reply_to == f"{CLIENT}{self.broker.itself.number}":
            reply_to = f"{CLIENT}{self.number}"
        return frames.Rest(
            message.payload, name_to_wire(message.subtopic), name_to_wire(message.content_type),
            name_to_wire(reply_to), message.correlation, message.expires,
            properties_column(message.properties),
        )  # fmt: skip

    def short(self, run: Run) -> frames.Said:
        """The payloads alone, where they and the run are all that is to be said."""
        payloads = run.encoding.payloads(run)
        return self.said(run) if payloads is None else self._record(run, b"".join(payloads), [])

    def together(self, messages: list[Message], qos: int) -> frames.Said:
        """Messages of one author to one name that were read from the journal."""
        run = self.read_back(messages[0])
        run.qos, run.count = qos, len(messages)
        run.replace(messages)
        size = len(messages[0].payload)
        if all(len(one.payload) == size and one.is_plain() for one in messages):
            return self._record(run, b"".join([one.payload for one in messages]), [])
        return self.said(run)

    def read_back(self, message: Message) -> Run:
        """A run of a message that was read from the journal, whose author may be gone by now."""
        rights = self.broker.open
        author = Phantom(message.protocol, message.client, rights, message.sender)
        author.asks_by_number = message.answers_sender
        return run_of(message, author, Route(message.topic, 0))

    def decode(self, run: Run) -> list[Message]:
        """Of a run that came from a node: its image are the payloads."""
        sender, name, qos, retain = run.sender, run.route.name, run.qos, run.retain
        protocol, client, number = sender.protocol, sender.client, sender.number
        found = [
            Message(name, payload, qos, retain, protocol, client, number)
            for payload in self.payloads(run)
        ]
        for message in found:
            message.answers_sender = sender.asks_by_number
        return found

    def payloads(self, run: Run) -> list[bytes]:
        image, step = run.image, run.step
        if not step:
            return [b""] * run.count
        return [image[at : at + step] for at in range(0, len(image), step)]


def _check(rest: frames.Rest) -> None:
    """What protocols could not say of a message stops here."""
    for text in (rest.subtopic, rest.content_type, rest.reply_to, rest.correlation):
        if len(text) > NAME_BYTES:
            raise frames.Foreign(f"a text of {len(text)} bytes")
    try:
        properties = json.loads(rest.properties) if rest.properties else {}
    except (ValueError, RecursionError):
        properties = None
    if not isinstance(properties, dict):
        raise frames.Foreign("properties that are none")
    if rest.reply_to.startswith(b"$CONTROL"):
        raise frames.Foreign("an answer is wanted where commands go")


def messages_of(said: frames.Said, topic: str) -> list[Message]:
    """Those of which more is said than the payload."""
    client = name_from_wire(said.client)
    found = []
    for rest in said.rests:
        _check(rest)
        properties = json.loads(rest.properties) if rest.properties else None
        if properties is not None:
            properties.pop(PUBLISHER, None)  # whom only its own node knows
        message = Message(
            topic, rest.payload, said.qos, said.retain, said.protocol, client, said.sender,
            name_from_wire(rest.subtopic), name_from_wire(rest.content_type),
            name_from_wire(rest.reply_to), rest.correlation,
            properties, rest.expires,
        )  # fmt: skip
        message.answers_sender = said.asks
        found.append(message)
    if said.stamp and said.retain:
        last = found[-1]
        last.properties = {**(last.properties or {}), STAMP: [said.stamp, said.node]}
    return found


class Wire:
    """The transport of a node's link: what a tick gathered becomes frames."""

    def __init__(self, membership: Membership, node: Node) -> None:
        self.membership = membership
        self.node = node

    def write(self, data: bytes) -> None:
        self.membership.send(self.node, frames.cut(data, self.membership.engine.most))

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return self.membership.engine.waiting(self.node.name)

    def close(self) -> None:
        """It ends with the membership."""

    def abort(self) -> None:
        self.close()


class Node:
    """`boot`: when it started; `life`: when this node met it; `estate`: the one that it began, as
    which its clients are here; `stopped`: which message of its stream it began that behind. `sent`
    and `seen` count frames.

    `their_life` is its own of us, 0 before its first frame; `asking`: the question that it has not
    answered, 0 = none; `behind`: it missed retained messages. `heard` (monotonic seconds): when it
    last said something. `clients`: its phantoms by number, `number_there`: of the hub itself.
    `keeps`: what its journal does; 0: it reads no several kept messages in one record (`Beat`).
    `counts`: how many a publish there reaches, by observed name. `feed`: names of retained messages
    that it is still to be told. `receipts`: of which estates, and what origins, it is to be told
    how far this node has what it kept; `declined`: there was no room for something; `missed`:
    retained messages of it came too early. `parts` of a record have come, and `more` of all that
    holds there; `torn`: what comes may be the rest of a record whose beginning did not; `question`:
    what it has asked and was not told, `told_until`: what it was is on its way (monotonic seconds).
    """

    def __init__(
        self, membership: Membership, name: str, estate: Estate, boot: int, life: int,
        stopped: int,
    ) -> None:  # fmt: skip
        self.membership = membership
        self.broker = membership.broker
        self.name: str = name
        self.estate = estate
        self.boot = boot
        self.life = life
        self.stopped = stopped
        self.sent = 0
        self.their_life = 0
        self.seen = 0
        self.asking = 0
        self.behind = False
        self.heard = self.broker.clock.now()
        self.version = self.place = ""
        self.busy = 0
        self.keeps = 0
        self.receipts: set[tuple[str, str]] = set()
        self.declined = self.missed = False
        self.clients: dict[int, Phantom] = {}
        self.number_there = 0
        self.counts: dict[str, int] = {}
        self.parts = bytearray()
        self.more: list[frames.Whole] = []
        self.torn = False
        self.question = 0
        self.told_until = 0.0
        self._beats = self._pause = 1
        self.feed: deque[str] = deque()
        self.link = Link(self.broker.outgoing, Wire(membership, self))
        self.link.relieved = self.relieve

    def estates(self) -> list[Estate]:
        """Those that it holds."""
        return [one for one in self.membership.estates.values() if one.holder is self]

    def acknowledge(self, first: int) -> None:
        """Say how far what it kept was taken, when that is safe, by one row for many, which no
        crash tears from the messages that it speaks of: the rows from `first` on.
        """
        if not self.receipts:
            return
        receipts, self.receipts = self.receipts, set()
        membership, taken = self.membership, self.broker.state.taken
        for pair in receipts:
            if membership.holdings.took(*pair) != taken.get(took_of(*pair), 0):
                self.broker.change(taken_row(took_of(*pair), membership.holdings.took(*pair)))
                self.broker.log.together(first)
        for pair in receipts:
            self.link.hold(frames.piece(frames.Taken(*pair, membership.holdings.took(*pair))))

    def there(self) -> bool:
        """Whether it can be written to: it was met, and the engine carries."""
        return self.membership.nodes.get(self.name) is self and self.membership.engine.up

    def tell(self, record: frames.Record) -> None:
        self.link.write(frames.piece(record))

    def ask(self) -> None:
        """Have it say all that holds there; again with beats, until it does."""
        self.asking = self.asking or self.sent + 1
        self.tell(frames.Ask(self.asking))

    def ask_again(self) -> None:
        """With a beat, ever more rarely: what was asked, or the answer, was lost; or it is long."""
        comes = self.parts or self.more or self.membership.hearing.is_behind(self.name)
        if not self.asking or comes:
            return
        self._beats -= 1
        if not self._beats:
            self._beats = self._pause = min(2 * self._pause, PAUSE)
            self.ask()

    def is_answered(self) -> None:
        self.asking = 0
        self._beats = self._pause = 1

    def lost(self) -> None:
        """Frames of it are: what they had parts of is not there. The rest of that would be read as
        a record of its own, which a client could have put into a message.
        """
        self.torn = True
        self.parts.clear()
        self.more.clear()

    def relieve(self) -> None:
        """There is room again."""
        self.link.choked = False
        self.broker.patience.drained(self.link)
        self.membership.relays.relieve(self)
        self.pump()

    def pump(self) -> None:
        """What is kept for what it holds, as far as there is room."""
        for estate in self.estates():
            estate.pump()

    def ready(self) -> bool:
        return self.there() and not self.link.choked

    def caught_up(self) -> bool:
        """Whether all that is kept for it is on its way: retained messages come after it."""
        return not self.link.held and all(estate.caught_up() for estate in self.estates())

    def settled(self) -> bool:
        """Whether it has all that was kept for it when it was met."""
        return all(estate.settled() for estate in self.estates())

    def unacknowledged(self) -> int:
        return sum(estate.unacknowledged() for estate in self.estates())

    def changed(self, name: str, count: int) -> None:
        self.estate.changed(name, count)
