"""What a dead node had comes into this node's log piece by piece, and is nobody's meanwhile.

    the copy of its log → messages under numbers of this log, `adopt` rows that refer to them → …

Between two pieces this node serves its own clients. A crash in between leaves what a start lets
go of, and what the heir of this node passes over: all of it begins again then. One row makes it
live (`heritage`). A queue's message that has its answer does not come along, nor does a will: that
is due from the moment on that its session is here. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from hubbub import schema
from hubbub.cluster.keeping import AFTER, FROM, PROTOCOL, cuts_of, moved_row
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_PIECE
from hubbub.core.message import Message, message_of, of_node
from hubbub.core.queue import Queue
from hubbub.core.session import SessionState
from hubbub.core.state import State, adopted, adopting, lasting_properties, queue_rows, session_rows
from hubbub.schema import PUBLISH, Row, column_of

_NODE: Final = PROTOCOL.encode()


class Staging:
    """`rows`: the messages of the dead node, by their seq there; `seqs`: what they are here, as far
    as they have come; `missing`: how many nobody has.
    """

    def __init__(self, broker: Broker, dead: str, state: State, rows: dict[int, Row]) -> None:
        self.broker = broker
        self.dead = dead
        self.state = state
        self.rows = rows
        self.seqs: dict[int, int] = {0: 0}
        self.missing = 0

    def pieces(self, own: str, protocols: Collection[str]) -> Iterator[None]:
        """Sessions of those `protocols`, queues, and what it kept for other nodes but the `own`.

        It may be gone on with later after each one, never torn apart by a crash in between.
        """
        self.let_go()
        for session in self.state.sessions.values():
            if session.protocol in protocols:
                yield from self._session(session)
            elif session.protocol == PROTOCOL and session.client != own:
                yield from self._kept(session)
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

    def live(self, sessions: Iterable[SessionState]) -> None:
        """All has come. `sessions`: those of them that are here now."""
        self.broker.change(adopted(self.dead, live=True))
        for session in sessions:
            if session.will is not None:
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
        if topic is not None:
            copy = copy._replace(topic=topic, retain=row.retain)
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

    def _kept(self, session: SessionState) -> Iterator[None]:
        """What it kept for another node goes on from here, under its old numbers."""
        cuts, shared, begun = cuts_of(self.state, session.client), session.shared, False
        for number, seq, qos in waits_in(session):
            copied = self.copied(seq)
            if not copied:
                continue
            if not begun:
                begun, client, said = True, column_of(session.client), lasting_properties(0)
                self._add(Row(0, 0, schema.CONNECT, _NODE, client, properties=said))
            group = shared.get(seq, "")
            name = f"{FROM}{self.dead}/{number}"
            if not group.startswith(FROM):
                name += after_of(self.dead, cuts, number)
            name += f"/{group}" if group else ""
            self._add(moved_row(session.client, copied, qos, name))
            yield


def waits_in(session: SessionState) -> Iterator[tuple[int, int, int]]:
    """Number, seq and QoS of each that waits."""
    backlog = session.backlog
    for number, entry in enumerate(backlog.entries, backlog.first):
        if entry:
            yield number, entry >> 35, entry & 3


def after_of(author: str, cuts: Mapping[str, int], number: int) -> str:
    """What follows the name of a group: of which dead nodes that one was known to be the heir. Its
    author is among them: had it been dead, it kept this when it was back.
    """
    known = (dead for dead, cut in cuts.items() if number >= cut and dead != author)
    return f"/{AFTER}{','.join((author, *known))}"
