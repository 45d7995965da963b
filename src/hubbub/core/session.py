"""Who gets messages: sessions, their subscriptions, and the backlog of what is not acknowledged.

A `Session` is anything a message can be delivered to: a client's session, a queue, a callback of
the hub, a bridge, another node. Protocols subclass it; the broker calls `deliver`.

A session numbers its deliveries 0, 1, 2 … in the order of the journal's fold. A `Backlog` holds
those that are not acknowledged, oldest first:

    number   first      first+1     …            sent               next
             |----- in flight, in order -----|----- waiting -----|
             entry = seq << 35 | leased << 34 | bytes << 3 | retained << 2 | qos, or 0 once
                     acknowledged early

The payloads stay in the log. Nothing here knows a protocol or does I/O.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from hubbub import schema
from hubbub.core.batch import LEFT
from hubbub.core.gate import Opening
from hubbub.core.limits import CLOCK_BEHIND, LINK_CHOKED
from hubbub.core.message import Encoding, Message, Run, first_in, read_json, run_of
from hubbub.core.metrics import Traffic
from hubbub.core.rights import Rights
from hubbub.core.route import Route
from hubbub.schema import Row, column_of, protocol_column, row_without_message

if TYPE_CHECKING:
    from hubbub.core.link import Link
    from hubbub.core.queue import Queue

FOR_EVER: Final = 0xFFFF_FFFF  # the expiry, in seconds, of a session that does not end by itself
FULL: Final = "backlog full"  # why a message is dropped, or may not wait
UNCOUNTED: Final = Traffic()  # of who is not connected here
SIZE: Final = 0x7FFF_FFFF  # of the payload, in an entry of a backlog
LEASED: Final = 1 << 34  # there: a queue's, of which the journal's fold has no more than the number
NEAR: Final = 32  # deliveries at the front of a backlog, among which one is looked for
FEW: Final = 256  # entries: to find each from the ends takes less than a walk through the others
NOTHING: Final[deque[int]] = deque(maxlen=0)  # shared by all backlogs that are empty
NONE: Final[set[int]] = set()  # the same of numbers: nothing is added to this one

# The same of what most sessions never have any of: eight empty dictionaries are half a kilobyte.
# Whoever adds to one gives the session its own before.
NO_LEASES: Final[dict[int, tuple[Queue, int]]] = {}
NO_REQUESTS: Final[dict[int, tuple[str, bytes, object]]] = {}
NO_SHARED: Final[dict[int, str]] = {}
NOWHERE: Final[OrderedDict[str, None]] = OrderedDict()
NO_ROUTES: Final[dict[bytes, Route]] = {}
NOTHING_DROPPED: Final[dict[str, int]] = {}
NOTHING_KEPT: Final[dict[str, tuple[int, bytes]]] = {}  # of subscriptions that end with a client


class Backlog:
    """Unacknowledged deliveries. `received` are the numbers a QoS 2 receiver already has.

    `sent` is the number up to which deliveries were sent on this connection, `tried` up to
    which they were ever sent: those below it are repetitions. `bytes` are those of the payloads,
    `_flying` those of what is not acknowledged below `_weighed`, once somebody has asked.
    """

    __slots__ = ("first", "entries", "bytes", "received", "sent", "tried", "_flying", "_weighed")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.entries = NOTHING  # until something is in it: an empty one of its own is 760 bytes
        self.bytes = 0
        self.received = NONE
        self.sent = first
        self.tried = first
        self._flying = self._weighed = 0

    @property
    def next(self) -> int:
        return self.first + len(self.entries)

    def add(self, seq: int, count: int, qos: int, retained: bool = False, size: int = 0) -> None:
        """`count` more deliveries of consecutive messages; seq 0 = never read back.

        `retained`: delivered because of a new subscription, which some protocols tell. `size`:
        the bytes of the payload of each.
        """
        low = size << 3 | qos | 4 if retained else size << 3 | qos
        self.bytes += size * count
        if self.entries is NOTHING:
            self.entries = deque()
        if count == 1:
            self.entries.append(seq << 35 | low)
        elif seq:
            self.entries.extend([one << 35 | low for one in range(seq, seq + count)])
        else:
            self.entries.extend([low] * count)

    def lease(self, seq: int, qos: int, size: int) -> None:
        """One more delivery, of a message that is a queue's."""
        self.add(seq, 1, qos, False, size)
        self.entries[-1] |= LEASED

    def end_leases(self, most: int) -> None:
        """None of these is sent again; they are among the oldest `most`."""
        ends = [at for at, one in enumerate(islice(self.entries, most), self.first) if one & LEASED]
        for number in ends:
            self.remove(number)

    def join(self, other: Backlog) -> None:
        """What waits in another one, of which nothing was sent, waits behind this."""
        if other.entries:
            self.bytes += other.bytes
            if self.entries is NOTHING:
                self.entries = deque()
            self.entries.extend(other.entries)

    def receive(self, numbers: Iterable[int]) -> None:
        """A QoS 2 receiver has these."""
        if self.received is NONE:
            self.received = set()
        self.received.update(numbers)

    def skip(self) -> None:
        """A number that nobody waits for: acknowledged before its predecessors, or leased."""
        if self.entries:
            self.entries.append(0)
        else:
            self.first += 1
            self.sent = max(self.sent, self.first)

    def seq(self, number: int) -> int:
        return self.entries[number - self.first] >> 35

    def qos(self, number: int) -> int:
        return self.entries[number - self.first] & 3

    def number_of(self, seq: int) -> int:
        """The number of its oldest delivery that is no lease, or -1. Near the front: `name_of`."""
        for index, entry in enumerate(self.entries):
            if entry and entry >> 35 == seq and not entry & LEASED:
                return self.first + index
        return -1

    def name_of(self, number: int, surely: bool = False) -> bytes:
        """What a row needs, beside the message, to mean this delivery: nothing, as a rule.

        The same message may be there twice (retained, on a second subscription); then the
        oldest is meant, and any other is named in the properties. So is a lease, and what is not
        near the front: whether it is the oldest was asked of all before it, here and in the fold.
        `surely`: in any case, for in the fold older ones may not be over yet.
        """
        at = number - self.first
        if at < NEAR and not surely:
            seq = self.entries[at] >> 35
            for index, entry in enumerate(islice(self.entries, at + 1)):
                if entry and entry >> 35 == seq and not entry & LEASED:
                    if index == at:
                        return b""
                    break
        return b'{"delivery":%d}' % number

    def some(self, number: int, count: int) -> list[int]:
        """The entries of so many deliveries from that one on."""
        at, entries = number - self.first, self.entries
        if count > FEW or at <= count:
            return list(islice(entries, at, at + count))  # which passes all before them
        return [entries[index] for index in range(at, at + count)]

    def are_there(self, count: int) -> bool:
        """Whether the oldest so many are, and all of them of QoS 1."""
        if count == 1:
            return self.entries[0] & 3 == 1
        return all([entry & 3 == 1 for entry in self.some(self.first, count)])

    def holds(self, number: int) -> bool:
        return self.first <= number < self.next and self.entries[number - self.first] != 0

    def leased(self, number: int) -> bool:
        return self.entries[number - self.first] & LEASED != 0

    def retained(self, number: int) -> bool:
        return self.entries[number - self.first] & 4 != 0

    def remove(self, number: int) -> None:
        """A delivery is over; numbers that nobody waits for leave at the front."""
        if not self.holds(number):
            return
        entries = self.entries
        size = entries[number - self.first] >> 3 & SIZE
        self.bytes -= size
        if number < self._weighed:
            self._flying -= size
        entries[number - self.first] = 0
        self.received.discard(number)
        while entries and not entries[0]:
            entries.popleft()
            self.first += 1
        if self.sent < self.first:
            self.sent = self.first

    def excess(self, messages: int, size: int) -> int:
        """How many of the newest, which were never sent, are over these bounds.

        One may wait whatever its size.
        """
        unsent = self.next - self.sent
        count = max(0, min(len(self.entries) - messages, unsent))
        over = self.bytes - size
        index = 0
        while over > 0 and index < unsent - 1:
            index += 1
            over -= self.entries[-index] >> 3 & SIZE
        return max(count, index)

    def cut(self, count: int) -> None:
        """Take back the newest deliveries, which were never sent; their numbers are free."""
        for _ in range(min(count, self.next - self.sent)):
            self.bytes -= self.entries.pop() >> 3 & SIZE

    def in_flight(self) -> int:
        return self.sent - self.first

    def bytes_in_flight(self) -> int:
        """Asked for each that is sent: what was there before is not looked at again."""
        if self._weighed > self.sent:
            self._flying = self._weighed = 0
        begin = max(self._weighed, self.first)
        for entry in self.some(begin, self.sent - begin):
            self._flying += entry >> 3 & SIZE
        self._weighed = self.sent
        return self._flying

    def shift(self, count: int) -> None:
        """The oldest `count` deliveries are over, in order."""
        size = 0
        for _ in range(count):
            size += self.entries.popleft() >> 3 & SIZE
        self.bytes -= size
        self.first += count
        if self._weighed:
            self._flying = self._flying - size if self.first <= self._weighed else 0
        while self.entries and not self.entries[0]:
            self.entries.popleft()
            self.first += 1
        self.sent = max(self.sent, self.first)

    def renumber(self, number: int) -> None:
        """Where nothing waits: the next delivery has this number."""
        if not self.entries:
            self.first = self.sent = self.tried = number
            self._flying = self._weighed = 0

    def rewind(self) -> None:
        """The connection is gone: all that is not acknowledged will be sent again."""
        self.tried = max(self.tried, self.sent)
        self.sent = self.first
        self._flying = self._weighed = 0


def lent(backlog: Backlog, shared: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """What is there for members of groups, the oldest first, as it is now: seqs, and whose. One
    message may be there for several groups, and for nobody's as well.
    """
    entries = tuple(backlog.entries) if shared else ()
    return (
        (entry >> 35, shared[number])
        for number, entry in enumerate(entries, backlog.first)
        if number in shared
    )


class SessionState:
    """What of a session survives its connection, and the hub when it is `lasting`.

    `subscriptions`: filter -> (qos, options), options meaning something to its protocol only.
    `open_ids`: packet ids of QoS 2 publishes it has not released. `expiry`: how many seconds it
    lasts without a connection, `expires`: UTC microseconds after which an unconnected one is over
    (0 = never), `left`: when it lost its connection, 0 while it has one. `will`: what is published
    for it when its connection is lost; with `expires` set, that is lost and the will is due then.
    `shared`: number of a delivery -> the filter of the group that chose it for that, which goes to
    another member if this session ends before. `user`: whose it is; `mount`: what its names have
    before those that its client says. `most`: how many may wait for it, if it stands for many; 0 =
    as many as for one. `began`: when (microseconds since 1970), 0 if that was before journals said
    so. One that is `passing` ends with its connection: the fold knows nothing of it.
    """

    __slots__ = (
        "protocol", "client", "subscriptions", "backlog", "open_ids", "will", "expiry",
        "expires", "left", "connected", "shared", "user", "mount", "most", "began",
    )  # fmt: skip

    def __init__(
        self, protocol: str, client: str, first: int = 0, passing: bool = False
    ) -> None:
        self.protocol = protocol
        self.client = client
        self.subscriptions: dict[str, tuple[int, bytes]] = NOTHING_KEPT if passing else {}
        self.backlog = Backlog(first)
        self.open_ids = NONE
        self.will: Row | None = None
        self.expiry = FOR_EVER
        self.expires = 0
        self.left = 0
        self.connected = False
        self.shared: dict[int, str] = NO_SHARED if passing else {}
        self.user = ""
        self.mount = ""
        self.most = 0
        self.began = 0

    def open(self, ids: Iterable[int]) -> None:
        """It has begun QoS 2 exchanges under these."""
        if self.open_ids is NONE:
            self.open_ids = set()
        self.open_ids.update(ids)

    def delivery_in(self, row: Row) -> int:
        """The number of the delivery that a row is about; see Backlog.name_of."""
        if row.properties:
            return int(read_json(row.properties)["delivery"])
        return self.backlog.number_of(row.ref)

    def cut(self, count: int) -> None:
        """So many of the newest are taken back: their numbers are those of others."""
        self.backlog.cut(count)
        for number in [one for one in self.shared if one >= self.backlog.next]:
            del self.shared[number]

    def keeps(self, size: int = 0) -> bool:
        """Whether what comes for it stays on the disk: it is away, or does not read.

        `size`: of what has just come.
        """
        return not self.connected or self.backlog.bytes - size > LINK_CHOKED


# That of all who end with their connections and have begun nothing of QoS 2: nothing changes it.
PASSING: Final = SessionState("", "", 0, passing=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription:
    """A session's wish for what matches `filter`, up to `qos`; encodings by the message's QoS.

    Sessions with equal options share their encodings, and so the images made for them. In a
    `literal` one `+` and `#` are ordinary characters. `options` mean something to its protocol.
    `no_local`: what the session itself publishes does not come back through it.
    """

    __slots__ = ("session", "filter", "qos", "encodings", "literal", "options", "no_local")

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        qos: int,
        encodings: tuple[Encoding, Encoding, Encoding],
        literal: bool = False,
        options: bytes = b"",
        no_local: bool = False,
    ) -> None:
        self.session = session
        self.filter = topic_filter
        self.qos = qos
        self.encodings = encodings
        self.options = options
        self.literal = literal
        self.no_local = no_local


class Feed:
    """What a new subscription gets of the messages retained before it, up to the seq `newest`.

    `names`: where it looks, until they have `ended`; `looks`: at so many more before it gets what
    is retained under those that were `found`, the last one first.
    """

    __slots__ = ("names", "newest", "subscription", "found", "looks", "ended")

    def __init__(
        self, subscription: Subscription, names: Iterator[str], newest: int, looks: int
    ) -> None:
        self.subscription = subscription
        self.names = names
        self.newest = newest
        self.found: list[str] = []
        self.looks = looks
        self.ended = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Session:
    """A receiver of messages.

    `column`: its client as rows have it, b"" until the first one (`schema.column_of`).
    `payer`: for whom counts what it takes of what is for all (`core.quotas`).
    `asks_by_number`: its protocol names no place for answers, they go to its number.
    `traffic`: where its messages are counted, with those of all who speak its protocol.
    `user` is whom the gate let in ("" = nobody in particular), with `rights`; the client's name is
    this session's `since` that seq, and what came before may be another user's. `came` is when it
    was last let in (microseconds since 1970). `number` is its
    address in the hub ($client/<number>), 0 while it is not connected; `mount` as in SessionState;
    `subscriptions` are its own by filter; `direct` is how it gets what is published to its
    address (None = not at all), `opening` how its connection began, if it has one. `lasting`
    sessions outlive their connection. `leases`: seq -> queue and id of a message that it took
    from a queue and has not acknowledged, `requests`: seq -> address and correlation of the answer
    that it owes to some of them; the queue takes out what is over. `turned_away`: the queues in
    which something waits that nobody had room for, or may wait, the first one first. `shared`: as
    in SessionState. `feeds`: retained messages that it has not got yet. `no_local`: how many of its
    subscriptions are so; if there is one, its own `routes` leave it out. `far`: it is another node
    of a cluster, or a client there, and `node` that one's name where rows are to say it; `once`:
    nothing that a node sent is given to it here, because who sent it has chosen among all nodes.
    """

    def __init__(self, protocol: str, client: str, rights: Rights) -> None:
        self.protocol = protocol
        self.client = client
        self.column = b""
        self.rights = rights
        self.traffic = UNCOUNTED
        self.user = ""
        self.mount = ""
        self.since = 0
        self.came = 0
        self.number = 0
        self.address = ""
        self.payer = ""
        self.opening: Opening | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.direct: Subscription | None = None
        self.node = ""
        self.leases = NO_LEASES
        self.requests = NO_REQUESTS
        self.turned_away = NOWHERE
        self.dropped = NOTHING_DROPPED
        self.shared = NO_SHARED
        self.feeds: deque[Feed] | None = None  # most never have one
        self.no_local = 0
        self.routes = NO_ROUTES
        # Together, and a byte each when compiled: one by one they would take eight.
        self.asks_by_number = False
        self.lasting = False
        self.far = False
        self.once = False

    def merge(self, matching: list[Subscription]) -> Subscription:
        """Several of its subscriptions match a name: the one that delivers, of the highest QoS."""
        best = matching[0]
        for subscription in matching:
            if subscription.qos > best.qos:
                best = subscription
        return best

    def answered(self, address: str, correlation: bytes | None = None) -> int:
        """The seq of its oldest request that an answer there is for, 0 if there is none.

        `correlation`: as the answer says it; None where the protocol has no such thing.
        """
        for seq, (reply_to, asked, _) in self.requests.items():
            if reply_to == address and correlation in (None, asked):
                return seq
        return 0

    def owes(self, message: Message) -> None:
        """It was handed a request, which its answer acknowledges."""
        if self.requests is NO_REQUESTS:
            self.requests = {}
        said = message.reply_to, message.correlation, first_in(message)
        self.requests[message.seq] = said

    def hold(self, seq: int, queue: Queue, number: int) -> None:
        """It has a message of that queue now."""
        if self.leases is NO_LEASES:
            self.leases = {}
        self.leases[seq] = (queue, number)

    def turn_away(self, queue: str) -> None:
        """Nobody has room for what waits there: it looks again when it has some."""
        if self.turned_away is NOWHERE:
            self.turned_away = OrderedDict()
        self.turned_away[queue] = None

    def share(self, number: int, group: str) -> None:
        """A group has chosen it for that delivery."""
        if self.shared is NO_SHARED:
            self.shared = {}
        self.shared[number] = group

    def chosen(self, group: str) -> bool:
        """A group has chosen it for what it is given next, and it does not last. Whether it will
        acknowledge that: who takes it at once has it.
        """
        return False

    def lent(self) -> Iterator[tuple[int, str]]:
        """What it has of groups: seqs, and whose they are."""
        return iter(())

    def misses(self, reason: str, count: int) -> None:
        """It does not get so many messages."""
        if self.dropped is NOTHING_DROPPED:
            self.dropped = {}
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def unacknowledged(self) -> int:
        """How many deliveries it has not acknowledged."""
        return 0

    def relieved(self) -> None:
        """It is done with a message of a queue: another queue may have found no room before."""

    def crosses(self) -> bool:
        """Whether what it is given may be kept for another node."""
        return self.far

    def lacks_room(self, sender: Session, count: int, size: int) -> str:
        """Why so many more messages of this sender, of so many bytes together, may not wait for it;
        "" if they may.
        """
        return ""

    def excess(self, run: Run) -> int:
        """Of a node: how many of these messages, which wait for it now, are too many. The others
        count for who published them.
        """
        return 0

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """Take the run: write it to the link, or leave it in the backlog. Never waits."""
        raise NotImplementedError

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        """Take one message that is meant for this session alone: retained, or from a queue."""
        self.deliver(run_of(message, self, Route(message.topic, 0)), subscription)

    def keep_for(self, run: Run, qos: int, group: str) -> None:
        """Of a node that lasts: one message is for a member of that group there."""
        raise NotImplementedError

    def hand_on(self, run: Run) -> bool:
        """Of a node: keep these messages of QoS 1 there, and not here, if that can be just now.
        The run says what the answer to its publisher waits for.
        """
        return False

    def take_back(self) -> None:
        """Of a node: what was handed on, and is not known to be there, is kept here after all."""

    def ready(self) -> bool:
        """Whether a queue may hand it one more message now."""
        return self.number != 0

    def fits(self, message: Message, subscription: Subscription) -> bool:
        """Whether it can be shown a message of this size at all, now that it is connected."""
        return True

    def way_out(self) -> Link | None:
        """What its messages are written to at once, if there is such a thing now."""
        return None

    def hungry(self) -> bool:
        """Whether it takes more of the retained messages now; else it asks when it does."""
        return True

    def changed(self, name: str, count: int) -> None:
        """The number of clients that a publish to an observed name would reach."""

    def settle(self) -> None:
        """Write the rows that were gathered during this tick (acknowledgements)."""

    def taken_over(self) -> None:
        """The same client came back on another connection: end this one."""

    def goodbye(self, text: str = "") -> None:
        """The hub ends this client, for good; `text` tells it why, where its protocol can."""
        if self.opening is not None:
            self.opening.carrier.close_for(text or "ended by the hub")


@mypyc_attr(allow_interpreted_subclasses=True)
class Revival:
    """Who knows the sessions of a protocol that are away, by what the journal remembers."""

    name = ""

    def revive(self, state: SessionState) -> Session | None:
        """Make the session of a client that is away, from what the journal remembers."""
        return None

    def end_away(self, client: str) -> bool:
        """End the session of a client that is away, for good; False if it has none."""
        return False

    def publish_will(self, will: Row) -> None:
        """After a restart: a client was connected when the hub ended, and so did its session."""

    def was_lost(self, client: str) -> None:
        """It is not at another node either: its will, if that is due and waits, is said."""


def publish_wills(wills: Iterable[Row], protocols: Mapping[str, Revival]) -> None:
    """Of who was connected to a hub that ended, and does not last."""
    for will in list(wills):
        protocol = protocols.get(will.protocol.decode())
        if protocol is not None:
            protocol.publish_will(will)


class Silent(Session):
    """The session of something that publishes and never receives: an HTTP request, a restart."""

    def deliver(self, run: Run, subscription: Subscription) -> None:
        raise AssertionError("a silent session has no subscriptions")

    def ready(self) -> bool:
        return False


def row_about(
    session: Session, kind: bytes, topic: str = "", ref: int = 0, number: int = 0,
    expires: int = 0, properties: bytes = b"", qos: int = 0,
) -> Row:  # fmt: skip
    """A row that says what a session did."""
    protocol, client = protocol_column(session.protocol), column_of(session.client)
    return row_without_message(
        kind, protocol, client, column_of(topic), ref, number, expires, properties, qos
    )


def away_row(state: SessionState, expires: int, left: int) -> Row:
    """That it is away, as snapshots say it: since when is in it, for they have no times."""
    return Row(
        0, 0, schema.DISCONNECT, state.protocol.encode(), column_of(state.client),
        number=state.backlog.tried, expires=expires, properties=LEFT % left,
    )  # fmt: skip


def longer(state: SessionState, late: int, now: int) -> list[Row]:
    """The rows by which what ends of a session that is away does so as much later. Of a snapshot of
    a clock that was far ahead it went away in a time to come, and ends as much earlier; its will
    has a time, which was righted.
    """
    ahead = state.left - now
    by = -ahead if ahead > CLOCK_BEHIND * 1_000_000 else late
    rows = list[Row]()
    if state.connected or not by:
        return rows
    if state.expires or by < 0:
        expires = max(state.expires + by, 1) if state.expires else 0
        rows.append(away_row(state, expires, state.left + min(by, 0)))
    if state.will is not None:  # also where it has no end: the row before takes it away
        due = state.will.expires
        rows.append(state.will._replace(expires=due + max(by, 0) if due else 0))
    return rows
