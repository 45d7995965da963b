"""What the hub knows after a restart: a fold of the journal's rows.

One function for each kind of row, called live (the broker logs a row, then applies it) and in
replay (the journal reads it back), so that both always agree. The fold repeats decisions and
makes none: it consults no permission, limit, clock or random choice.

A snapshot is the shortest list of rows that leads here: `rows()`, and the messages that state
refers to (`needed`), each in the form of `carried`. Used by the broker and by the roller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from hubbub import schema
from hubbub.core.batch import Batch, Visits, left_at
from hubbub.core.kept import NOTHING, Kept, Retaining, kept_size, publisher_of
from hubbub.core.limits import PEEKED_BYTES
from hubbub.core.message import properties_column, read_json
from hubbub.core.names import Names, is_number
from hubbub.core.queue import PLAIN, Queue, QueueSettings
from hubbub.core.queue import PROTOCOL as QUEUE_PROTOCOL
from hubbub.core.session import FOR_EVER, SIZE, Session, SessionState, away_row, lent, row_about
from hubbub.core.topics import DELAYED, QUEUE, SHARE, delayed_topic
from hubbub.errors import DirectoryError
from hubbub.schema import Row, column_of, name_of, protocol_of

log = logging.getLogger("hubbub.state")

Key = tuple[str, str]

SHARED = "share"  # the protocol of a group of subscribers, in its rows

_QUEUE = QUEUE.encode()
_DELAYED = DELAYED.encode()
_SHARED = SHARED.encode()
_SHARE = SHARE.encode()

# Two things can begin at a queue's name: the queue, and the number that stands for the name.
ID_OF_QUEUE = b'{"id":true}'
ID_OF_SUBTOPIC = b'{"subtopic":true}'  # of one without a name: some clients make it
LENT: Final = b'{"lent":true}'  # of an end: what it had of groups is for others of them


def subtopic_properties(name: str) -> bytes:
    """What the row of a sub-topic's number says: whose it is, where the name does not."""
    return b"" if name else ID_OF_SUBTOPIC


def id_properties(name: str) -> bytes:
    """The properties of the `create` row that gives a topic name its number."""
    return ID_OF_QUEUE if name.startswith(QUEUE) else b""


def came_in(address: str, user: str, place: str) -> dict[str, object]:
    """What each `connect` row says: from where, as whom, at which listener."""
    said = {"address": address, "user": user, "listener": place}
    return {name: value for name, value in said.items() if value}


def lasting_properties(
    expiry: int, address: str = "", user: str = "", place: str = "", mount: str = "",
    began: int = 0, renumbered: bool = False,
) -> bytes:  # fmt: skip
    """The properties of the `connect` row of a session that outlives its connection."""
    properties = came_in(address, user, place)
    properties["lasting"] = True
    if mount:
        properties["mount"] = mount
    if began:
        properties["began"] = began
    if renumbered:
        properties["renumbered"] = True
    if expiry != FOR_EVER:
        properties["expiry"] = expiry
    return properties_column(properties)


def connect_row(
    session: Session, place: str, expiry: int, before: SessionState | None, began: int
) -> Row:
    """The `connect` row of who came in at that listener; `before`: what lasted of it until now."""
    came = session.address, session.user, place
    if not session.lasting:
        return row_about(session, schema.CONNECT, properties=properties_column(came_in(*came)))
    properties = lasting_properties(expiry, *came, session.mount, began)
    first = before.backlog.next if before is not None else 0
    return row_about(session, schema.CONNECT, number=first, properties=properties)


def queue_properties(
    owner: str, user: str, settings: QueueSettings, read: bool, began: int = 0
) -> bytes:
    """The properties of a queue's `create` row: whose it is, what was asked of it, if read."""
    said = {"owner": owner, "user": user}
    properties: dict[str, object] = {name: value for name, value in said.items() if value}
    if read:
        properties["read"] = True
    if began:
        properties["began"] = began
    asked = zip(settings._fields, settings, PLAIN, strict=True)
    properties.update({name: value for name, value, nothing in asked if value != nothing})
    return properties_column(properties)


class State(Retaining):
    """Sessions by (protocol, client), queues by name, retained messages by topic, and names.

    `on_loan`: messages of a
    shared subscription, by seq and filter, that members have who end with the hub. `ahead`: so many
    ids above those that are known may have been told (`Queues.runs_ahead`).
    `adopting`: by dead node, what of it has come so far; nobody's yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[Key, SessionState] = {}
        self.queues: dict[str, Queue] = {}
        self.ended_queues: dict[str, int] = {}
        self.queue_floor = 0
        self.ahead = 0
        self.delayed: dict[int, int] = {}
        self.large: dict[int, int] = {}  # of these: bytes of what nobody should read to look at it
        self.on_loan: set[tuple[int, str]] = set()
        self.wills: dict[Key, Row] = {}  # of who does not last; `expires`: it is gone
        self.topics = Names()
        self.subtopics = Names()
        self.taken: dict[str, int] = {}
        self.adopting: dict[str, State] = {}
        self._audiences: dict[int, list[tuple[SessionState, int]]] = {}
        self._fold: dict[bytes, Callable[[Row], None]] = {
            schema.CONNECT: self._connect,
            schema.DISCONNECT: self._disconnect,
            schema.END: self._end,
            schema.SUBSCRIBE: self._subscribe,
            schema.UNSUBSCRIBE: self._unsubscribe,
            schema.WILL: self._will,
            schema.CREATE: self._create,
            schema.DESTROY: self._destroy,
            schema.FORGET: self._forget,
            schema.AUDIENCE: self._audience,
            schema.PUBLISH: self._publish,
            schema.RELEASE: self._release,
            schema.QUEUED: self._queued,
            schema.SEND: self._send,
            schema.DELIVER: self._deliver,
            schema.RECEIVED: self._received,
            schema.ACK: self._ack,
            schema.DROP: self._drop,
            schema.HELD: self._held,
            schema.TAKEN: self._taken,
            schema.REFUSED: _nothing,
            schema.MANAGED: _nothing,
            schema.AHEAD: self._ahead,
            schema.ADOPT: self._adopt,
        }

    def apply(self, row: Row) -> None:
        """Fold one row. A kind the fold does not know is an error: state would be wrong."""
        fold = self._fold.get(row.kind)
        if fold is None:
            raise DirectoryError(
                f"row {row.seq} of the journal is of the kind {name_of(row.kind)!r}, which this "
                "hubbub does not know: a newer one wrote it. Use that, or a backup from before"
            )
        fold(row)

    def fold(self, batch: Batch) -> None:
        """Fold them all."""
        retained = batch.retained()
        if retained is not None:
            self.retain_all(retained)
            return
        visits = batch.visits()
        if visits is not None:
            self._visit(visits)
            return
        for row in batch.rows():
            self.apply(row)

    # What `apply` ends in, and the broker calls with the parts in hand: per run and not per row.
    # (Of a queue these are its `add` and `remove`.)

    def published(
        self, audience: list[tuple[SessionState, int]], first: int, count: int, qos: int,
        size: int,
    ) -> None:  # fmt: skip
        """Put `count` messages of `size` bytes from `first` on into the audience's backlogs."""
        for session, granted in audience:
            level = min(qos, granted)
            if level:
                session.backlog.add(first, count, level, False, size)

    def opened(self, key: Key, number: int) -> None:
        """A lasting publisher began a QoS 2 exchange under this packet id."""
        session = self.sessions.get(key)
        if session is not None:
            session.open((number,))

    def delay(self, seq: int, due: int, size: int) -> None:
        """Keep a message of so many bytes until then, UTC microseconds."""
        self.delayed[seq] = due
        if size > PEEKED_BYTES:
            self.large[seq] = size

    # Sessions

    def _key(self, row: Row) -> Key:
        return protocol_of(row.protocol), name_of(row.client)

    def _session(self, row: Row) -> SessionState | None:
        return self.sessions.get(self._key(row))

    def _visit(self, found: Visits) -> None:
        """The same as rows would, in a fourth less of the time."""
        client, key, session = b"", (found.protocol, ""), self.sessions.get((found.protocol, ""))
        for kind, column, topic, qos, number, expires, said, time in zip(
            found.kinds, found.clients, found.topics, found.qos, found.numbers, found.expires,
            found.properties, found.times, strict=True,
        ):  # fmt: skip
            if column != client:
                client, key = column, (found.protocol, name_of(column))
                session = self.sessions.get(key)
            if kind == schema.CONNECT:
                session = self._come(key, session, number, expires, said)
            elif kind == schema.DISCONNECT:
                self._go(key, session, number, expires, left_at(said, time))
            elif session is not None:
                session.subscriptions[name_of(topic)] = (qos, said)

    def _connect(self, row: Row) -> None:
        key = self._key(row)
        self._come(key, self.sessions.get(key), row.number, row.expires, row.properties)

    def _come(
        self, key: Key, session: SessionState | None, number: int, expires: int, said: bytes
    ) -> SessionState | None:
        """Whose session may be there already; return it if there is one now."""
        if self.wills:
            self.wills.pop(key, None)
        if b'"lasting"' not in said:  # most of those that are folded at a start
            return session
        properties = read_json(said)
        if not properties.get("lasting"):
            return session
        if session is None:
            session = self.sessions[key] = SessionState(key[0], key[1], number)
        elif properties.get("renumbered"):
            session.backlog.renumber(number)
        session.began = properties.get("began", session.began)
        session.connected = True
        session.left = 0
        session.expiry = properties.get("expiry", FOR_EVER)
        session.user = properties.get("user", "")
        session.mount = properties.get("mount", "")
        session.expires = expires
        session.will = None
        return session

    def _disconnect(self, row: Row) -> None:
        key = self._key(row)
        left = left_at(row.properties, row.time)
        self._go(key, self.sessions.get(key), row.number, row.expires, left)

    def _go(
        self, key: Key, session: SessionState | None, number: int, expires: int, left: int
    ) -> None:
        if session is None:
            self.wills.pop(key, None)
            return
        session.connected = False
        if not left and expires:  # of a snapshot of before, in which rows have no time
            left = max(expires - session.expiry * 1_000_000, 0)
        session.left = left
        session.expires = expires
        session.will = None
        session.backlog.tried = max(session.backlog.tried, number)

    def _end(self, row: Row) -> None:
        session = self.sessions.pop(self._key(row), None)
        if session is not None and row.properties == LENT:
            self.on_loan.update(lent(session.backlog, session.shared))

    def _subscribe(self, row: Row) -> None:
        queue = self._bound_queue(row)
        if queue is not None:
            if row.topic.startswith(_SHARE):
                log.warning("%s was bound to %s, which is no topic: ignored", queue.name,
                            name_of(row.topic))  # fmt: skip
            else:
                queue.bindings[name_of(row.topic)] = row.qos
            return
        session = self._session(row)
        if session is not None:
            session.subscriptions[name_of(row.topic)] = (row.qos, row.properties)

    def _unsubscribe(self, row: Row) -> None:
        queue = self._bound_queue(row)
        if queue is not None:
            queue.bindings.pop(name_of(row.topic), None)
            return
        session = self._session(row)
        if session is not None:
            session.subscriptions.pop(name_of(row.topic), None)

    def _will(self, row: Row) -> None:
        """A row without a topic takes the will back."""
        session = self._session(row)
        if session is not None:
            session.will = row if row.topic else None
        elif row.topic:
            self.wills[self._key(row)] = row
        else:
            self.wills.pop(self._key(row), None)

    # Names and queues

    def _create(self, row: Row) -> None:
        topic = name_of(row.topic)
        is_queue = topic.startswith(QUEUE) and row.properties != ID_OF_QUEUE
        if not is_queue and not is_number(row.number):
            log.warning("%r has the number %d, which no client can say: it gets another", topic or
                        name_of(row.subtopic), row.number)  # fmt: skip
        elif row.subtopic or row.properties == ID_OF_SUBTOPIC:
            self.subtopics.add(name_of(row.subtopic), row.number)
        elif is_queue:
            self._create_queue(topic[len(QUEUE) :], row)
        else:
            self.topics.add(topic, row.number)

    def _forget(self, row: Row) -> None:
        """A name has no number any more."""
        if row.subtopic or row.properties == ID_OF_SUBTOPIC:
            self.subtopics.remove(name_of(row.subtopic))
        else:
            self.topics.remove(name_of(row.topic))

    def _create_queue(self, name: str, row: Row) -> None:
        """One that exists gets other settings, and no more than that."""
        properties = read_json(row.properties or b"{}")
        owner, user = properties.pop("owner", ""), properties.pop("user", "")
        read, began = properties.pop("read", False), properties.pop("began", 0)
        settings = QueueSettings(**properties)
        queue = self.queues.get(name)
        if queue is None:
            first = max(row.number, self.ended_queues.pop(name, 0))
            queue = self.queues[name] = Queue(name, first, owner)
            queue.user, queue.began = user, began
        queue.settings, queue.read = settings, read

    def _destroy(self, row: Row) -> None:
        """The queue goes; where its ids stood stays, so that they are never used again.

        A `number` says it for all queues that ended so far: new ones begin there at the least.
        """
        queue = self.queues.pop(name_of(row.topic)[len(QUEUE) :], None)
        if queue is not None and queue.next > self.queue_floor:  # else it would begin there anyway
            self.ended_queues[queue.name] = queue.next
        if row.number:
            self.ended_queues.clear()
            self.queue_floor = row.number

    def _ahead(self, row: Row) -> None:
        """A hub begins to tell ids early, or ends with all of them durable.

        If it begins and the one before did not end so, ids were told whose rows are lost.
        """
        if row.number:
            for queue in self.queues.values():
                queue.next += self.ahead
        self.ahead = row.number

    def queue_at(self, topic: str) -> Queue | None:
        """The queue that is meant by the name of a topic, if it is there."""
        return self.queues.get(topic[len(QUEUE) :]) if topic.startswith(QUEUE) else None

    def _bound_queue(self, row: Row) -> Queue | None:
        if row.protocol != QUEUE_PROTOCOL.encode():
            return None
        return self.queue_at(name_of(row.client))

    # Messages

    def _audience(self, row: Row) -> None:
        self._audiences[row.seq] = [
            (self.sessions[protocol, client], qos)
            for protocol, client, qos in read_json(row.payload)
            if (protocol, client) in self.sessions
        ]

    def _publish(self, row: Row) -> None:
        if row.ref:
            # A damaged file may have lost the audience's row; the reader has reported that.
            audience = self._audiences.get(row.ref, [])
            self.published(audience, row.seq, 1, row.qos, len(row.payload))
        topic = row.topic
        if topic.startswith(_DELAYED):
            self._delay(row)
        elif row.retain:
            name, size = name_of(topic), len(row.payload)
            whose = publisher_of(row.properties) if row.properties else ""
            taken = kept_size(name, size)
            self.retain(name, Kept(row.seq, taken, row.expires, whose) if size else NOTHING)
        if row.number:
            self.opened(self._key(row), row.number)

    def _delay(self, row: Row) -> None:
        seconds, _ = delayed_topic(name_of(row.topic))
        if seconds:
            self.delay(row.seq, row.time + seconds * 1_000_000, len(row.payload))

    def _release(self, row: Row) -> None:
        session = self._session(row)
        if session is not None:
            session.open_ids.discard(row.number)

    def _held(self, row: Row) -> None:
        self.opened(self._key(row), row.number)

    def _queued(self, row: Row) -> None:
        queue = self._bound_queue(row)
        if queue is not None:
            properties = read_json(row.properties or b"{}")
            queue.add(row.number, row.ref, properties.get("bytes", 0), row.expires)
            if "delivered" in properties:
                queue.delivered[row.number] = properties["delivered"]
            if "answered" in properties:
                queue.answers[row.number] = row.ref
            return
        if row.protocol == _SHARED:
            self.on_loan.add((row.ref, name_of(row.client)))
            return
        session = self._session(row)
        if session is None:
            return
        if row.ref:
            if row.topic:
                session.shared[session.backlog.next] = name_of(row.topic)
            session.backlog.add(row.ref, 1, row.qos, row.retain, row.number)
        else:
            session.backlog.skip()

    def _send(self, row: Row) -> None:
        queue = self.queue_at(name_of(row.topic))
        if queue is not None:
            queue.add(row.number, row.seq, len(row.payload), row.expires)
        if row.ref:
            self._answered(row)

    def _answered(self, row: Row) -> None:
        """A request is answered for good: at the next start it is over, acknowledged or not."""
        answers = read_json(row.properties or b"{}").get("answers", [])
        queue = self.queues.get(answers[0]) if len(answers) == 2 else None
        if queue is not None and queue.messages.get(answers[1]) == row.ref:
            queue.answers[answers[1]] = row.seq

    def _deliver(self, row: Row) -> None:
        """Leases are not state, a restart ends them; how many there were may be."""
        queue = self.queue_at(name_of(row.topic)) if row.properties else None
        if queue is not None and row.number in queue.messages:
            queue.delivered[row.number] = read_json(row.properties)["delivery"]

    def _received(self, row: Row) -> None:
        session = self._session(row)
        if session is None:
            return
        number = session.delivery_in(row)
        if number >= 0:
            numbers = range(number, number + row.number)
            session.backlog.receive(filter(session.backlog.holds, numbers))

    def _ack(self, row: Row) -> None:
        if row.topic.startswith(_QUEUE):
            queue = self.queue_at(name_of(row.topic))
            if queue is not None:
                queue.remove(row.number)
            return
        if row.topic == _DELAYED:
            self.delayed.pop(row.ref, None)
            self.large.pop(row.ref, None)
            return
        if row.protocol == _SHARED:
            self.on_loan.discard((row.ref, name_of(row.client)))
            return
        session = self._session(row)
        if session is None:
            return
        number = session.delivery_in(row)
        if number >= 0:
            for one in range(number, number + row.number):
                session.shared.pop(one, None)
                session.backlog.remove(one)

    def _drop(self, row: Row) -> None:
        """The newest deliveries of the session were too many; they were never sent.

        With a topic and nobody's: the retained message of that topic has expired. A queue's: one
        of its messages was given up.
        """
        queue = self._bound_queue(row)
        if queue is not None:
            queue.remove(row.number)
            return
        if row.topic and not row.client:
            topic = name_of(row.topic)
            if self.retained_seq(topic) == row.ref:
                self.retain(topic)
            return
        session = self._session(row)
        if session is not None:
            session.cut(row.number)

    def _taken(self, row: Row) -> None:
        """Below 0: as if it had never been said."""
        if row.number < 0:
            self.taken.pop(name_of(row.client), None)
        else:
            self.taken[name_of(row.client)] = row.number

    # What was a dead node's

    def _adopt(self, row: Row) -> None:
        """It comes by and by, and is live at once: nothing of it is before all is here."""
        node = name_of(row.content_type)
        if row.subtopic:
            if node not in self.adopting:
                self.adopting[node] = State()
            self.adopting[node].apply(adoptee(row))
            return
        adopted = self.adopting.pop(node, None)
        if adopted is not None and row.number:
            self._join_sessions(adopted.sessions)
            self._join_queues(adopted.queues)

    def _join_sessions(self, others: dict[Key, SessionState]) -> None:
        for key, session in others.items():
            own = self.sessions.get(key)
            if own is None:
                self.sessions[key] = session
            else:
                further = own.backlog.next - session.backlog.first
                own.shared |= {one + further: group for one, group in session.shared.items()}
                own.backlog.join(session.backlog)

    def _join_queues(self, others: dict[str, Queue]) -> None:
        """One of the same name here gets the messages behind its own, under new ids."""
        for name, queue in others.items():
            own = self.queues.get(name)
            if own is None:
                queue.next = max(queue.next, self.ended_queues.pop(name, 0))
                self.queues[name] = queue
            else:
                for seq, _, size in queue.above(-1):
                    own.add(own.next, seq, size)

    # The snapshot

    def rows(self) -> Iterator[Row]:
        """State as rows with seq 0; the needed messages are not among them."""
        for name, number in self.topics.numbers.items():
            yield Row(
                0, 0, schema.CREATE, topic=column_of(name), number=number,
                properties=id_properties(name),
            )  # fmt: skip
        for name, number in self.subtopics.numbers.items():
            row = Row(0, 0, schema.CREATE, subtopic=column_of(name), number=number)
            yield row._replace(properties=subtopic_properties(name))
        for node, number in self.taken.items():
            yield Row(0, 0, schema.TAKEN, client=column_of(node), number=number)
        for session in self.sessions.values():
            yield from session_rows(session)
        for will in self.wills.values():
            yield will._replace(seq=0)
        for seq, group in sorted(self.on_loan):
            yield Row(0, 0, schema.QUEUED, _SHARED, column_of(group), ref=seq, number=1)
        if self.ahead:
            yield Row(0, 0, schema.AHEAD, number=self.ahead)
        if self.queue_floor:
            yield Row(0, 0, schema.DESTROY, topic=_QUEUE, number=self.queue_floor)
        for name, first in self.ended_queues.items():
            topic = column_of(QUEUE + name)
            yield Row(0, 0, schema.CREATE, topic=topic, number=first)
            yield Row(0, 0, schema.DESTROY, topic=topic)
        for queue in self.queues.values():
            yield from queue_rows(queue)
        for node, state in self.adopting.items():
            for row in state.rows():
                yield adopting(node, row)

    def needed(self) -> set[int]:
        """The seqs of the messages that backlogs, queues, delays and the retained set refer to."""
        found = {kept.seq for kept in self.retained.values()}
        found.update(self.delayed)
        found.update(seq for seq, _ in self.on_loan)
        for session in self.sessions.values():
            found.update(entry >> 35 for entry in session.backlog.entries if entry)
        for queue in self.queues.values():
            found.update(queue.messages.values())
        for state in self.adopting.values():
            found |= state.needed()
        return found

    def carried(self, row: Row) -> Row:
        """A needed message as it goes into a snapshot: without effects that others repeat."""
        if row.kind == schema.SEND:
            queue = self.queue_at(name_of(row.topic))
            if queue is not None and queue.messages.get(row.number) == row.seq:
                return row
            row = row._replace(kind=schema.PUBLISH)  # only a session still waits for it
        current = self.retained_seq(name_of(row.topic)) == row.seq
        retain = row.retain and (current or row.seq in self.delayed)
        return row._replace(ref=0, number=0, retain=retain)


def adopting(node: str, row: Row) -> Row:
    """The row of a dead node as one of this hub, which it is for all when everything has come."""
    return row._replace(
        seq=0, kind=schema.ADOPT, subtopic=row.kind, content_type=column_of(node)
    )  # fmt: skip


# The kinds that come of a dead node.
ADOPTED: Final = frozenset((
    schema.CONNECT, schema.DISCONNECT, schema.SUBSCRIBE, schema.HELD, schema.QUEUED,
    schema.RECEIVED, schema.END, schema.CREATE,
))  # fmt: skip


def adoptee(row: Row) -> Row:
    """The row that `adopting` made this of."""
    return row._replace(kind=row.subtopic, subtopic=b"", content_type=b"")


def adopted(node: str, live: bool) -> Row:
    """Everything has come; or nothing more does, and what has is let go."""
    return Row(0, 0, schema.ADOPT, content_type=column_of(node), number=int(live))


def _nothing(row: Row) -> None:
    """What it says is for people: no state comes of it."""


def session_rows(session: SessionState) -> Iterator[Row]:
    """The rows that bring one session to another hub, or to the next start of this one."""
    protocol, client = session.protocol.encode(), column_of(session.client)
    backlog = session.backlog
    yield Row(
        0, 0, schema.CONNECT, protocol, client, number=backlog.first, expires=session.expires,
        properties=lasting_properties(
            session.expiry, "", session.user, "", session.mount, session.began
        ),
    )  # fmt: skip
    for topic_filter, (qos, options) in session.subscriptions.items():
        topic = column_of(topic_filter)
        yield Row(
            0, 0, schema.SUBSCRIBE, protocol, client, topic, qos=qos, properties=options
        )  # fmt: skip
    for number in session.open_ids:
        yield Row(0, 0, schema.HELD, protocol, client, number=number)
    for number, entry in enumerate(backlog.entries, backlog.first):
        seq = entry >> 35
        group = column_of(session.shared.get(number, ""))
        yield Row(
            0, 0, schema.QUEUED, protocol, client, group, qos=entry & 3, retain=entry & 4 != 0,
            ref=seq, number=entry >> 3 & SIZE,
        )  # fmt: skip
        if number in backlog.received:
            yield Row(
                0, 0, schema.RECEIVED, protocol, client, ref=seq, number=1,
                properties=backlog.name_of(number),
            )  # fmt: skip
    if not session.connected:
        yield away_row(session, session.expires, session.left)
    if session.will is not None:
        yield session.will._replace(seq=0)


def queue_rows(queue: Queue) -> Iterator[Row]:
    """A queue, its bindings, and its messages in order (their own rows are carried)."""
    protocol, client = QUEUE_PROTOCOL.encode(), column_of(queue.client)
    properties = queue_properties(queue.owner, queue.user, queue.settings, queue.read, queue.began)
    yield Row(0, 0, schema.CREATE, topic=client, number=queue.next, properties=properties)
    for topic_filter, qos in queue.bindings.items():
        yield Row(0, 0, schema.SUBSCRIBE, protocol, client, column_of(topic_filter), qos=qos)
    expires = queue.held | {number: when for when, number in queue.expiring}
    for seq, number, size in queue.above(-1):
        said: dict[str, object] = {"bytes": size}
        if number in queue.delivered:
            said["delivered"] = queue.delivered[number]
        if number in queue.answers:
            said["answered"] = True
        yield Row(
            0, 0, schema.QUEUED, protocol, client, ref=seq, number=number,
            expires=expires.get(number, 0), properties=properties_column(said),
        )  # fmt: skip
