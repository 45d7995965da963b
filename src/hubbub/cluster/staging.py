"""What a dead node had comes into this node's log piece by piece, and is nobody's meanwhile.

    the copy of its log → messages under numbers of this log, `adopt` rows that refer to them → …

Between two pieces this node serves its own clients. A crash in between leaves what a start lets
go of, and what the heir of this node passes over: all of it begins again then. One row makes it
live (`heritage`). A queue's message that has its answer does not come along, nor does a will: that
is due from the moment on that its session is here. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from itertools import islice
from typing import Final

from hubbub import schema
from hubbub.cluster.estates import Key
from hubbub.cluster.keeping import PROTOCOL, estate_and_origin, kept_by
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_PIECE
from hubbub.core.message import Message, message_of, of_node
from hubbub.core.queue import Queue
from hubbub.core.session import SessionState
from hubbub.core.state import State, adopted, adopting, queue_rows, session_rows
from hubbub.schema import PUBLISH, Row, column_of

_WITHOUT: Final = (schema.WILL, schema.SUBSCRIBE)  # of what was kept: who wants it says so


class Staging:
    """`estate`: the dead node's own; `rows`: its messages, by their seq there; `seqs`: what they
    are here, as far as they have come; `missing`: how many nobody has.
    """

    def __init__(
        self, broker: Broker, dead: str, estate: str, state: State, rows: dict[int, Row]
    ) -> None:  # fmt: skip
        self.broker = broker
        self.dead = dead
        self.estate = estate
        self.state = state
        self.rows = rows
        self.seqs: dict[int, int] = {0: 0}
        self.missing = 0

    def pieces(self, held: Collection[str], protocols: Collection[str]) -> Iterator[None]:
        """Sessions of those `protocols`, queues, and what it kept for other estates than those that
        are `held` here.

        It may be gone on with later after each one, never torn apart by a crash in between.
        """
        self.let_go()
        for session in self.state.sessions.values():
            if session.protocol in protocols:
                yield from self._session(session)
            elif session.protocol == PROTOCOL and session.backlog.entries:
                estate, origin = estate_and_origin(session.client)
                if estate not in held:
                    yield from self._kept(session, kept_by(estate, origin or self.estate))
        for queue in self.state.queues.values():
            yield from self._queue(queue)

    def let_go(self) -> None:
        """Nothing of it is to come any more, or all of it once more."""
        if self.dead in self.broker.state.adopting:
            self.broker.change(adopted(self.dead, live=False))

    def leave_out(self, protocol: str, client: str) -> None:
        """A session has come that is not to be here."""
        here = self.broker.state.adopting.get(self.dead)
        if here is not None and (protocol, client) in here.sessions:
            self._add(Row(0, 0, schema.END, protocol.encode(), column_of(client)))

    def live(self, sessions: Iterable[SessionState], lost: Container[Key]) -> None:
        """All has come. `sessions`: those of them that are here now; `lost`: whose will is due."""
        self.broker.change(adopted(self.dead, live=True))
        for session in sessions:
            if session.will is not None and (session.protocol, session.client) in lost:
                self.broker.change(session.will._replace(seq=0))

    def forget(self) -> Iterator[None]:
        """Let go of the copy, which is in memory, in pieces."""
        for found in (self.rows, self.seqs):
            while found:
                for key in list(islice(found, CLUSTER_PIECE)):
                    del found[key]
                yield

    def copied(self, seq: int, topic: bytes | None = None) -> int:
        """The number here of a message there, 0 if nobody has it."""
        if seq not in self.seqs and (number := self.once_more(seq, topic)):
            self.seqs[seq] = number
        return self.seqs.get(seq, 0)

    def once_more(self, seq: int, topic: bytes | None = None) -> int:
        """The same in a row of its own."""
        row = self.rows.get(seq)
        if row is None:
            self.missing += 1
            return 0
        said = of_node(row.properties, self.dead)
        copy = row._replace(seq=0, kind=PUBLISH, ref=0, number=0, retain=False, properties=said)
        if topic is not None:  # how long it waits counts from the time that its row has here
            now = self.broker.clock.stamp()
            copy = copy._replace(topic=topic, retain=row.retain, time=now)
        return self.broker.change(copy)

    def read(self, seq: int) -> Message | None:
        row = self.rows.get(seq)
        return message_of(row) if row is not None else None

    def _add(self, row: Row) -> None:
        self.broker.change(adopting(self.dead, row))

    def _session(self, session: SessionState) -> Iterator[None]:
        for row in session_rows(session):
            if row.kind == schema.WILL:
                continue
            if row.kind in (schema.QUEUED, schema.RECEIVED):
                row = row._replace(ref=self.copied(row.ref))
            self._add(row)
            yield

    def _queue(self, queue: Queue) -> Iterator[None]:
        """Ids that may have been told and were lost are passed over."""
        for row in queue_rows(queue):
            if row.kind == schema.CREATE:
                row = row._replace(number=row.number + self.state.ahead)
            elif row.kind == schema.QUEUED:
                seq = 0 if row.number in queue.answers else self.copied(row.ref)
                if not seq:
                    continue
                row = row._replace(ref=seq)
            self._add(row)
            yield

    def _kept(self, session: SessionState, client: str) -> Iterator[None]:
        """What it kept for another estate goes on from here, under the numbers that it had."""
        name = column_of(client)
        for row in session_rows(session):
            if row.kind in _WITHOUT:
                continue
            if row.kind == schema.QUEUED:
                row = row._replace(ref=self.copied(row.ref) if row.ref else 0)
            self._add(row._replace(client=name))
            yield
