"""A connected client as the program around the hub sees it: `Peer`, its `Sock` and its `Info`.

Views of what the core knows, made when the program asks. Nothing here changes a client, but for
`Sock.close`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl

from hubbub.core.broker import Broker
from hubbub.core.gate import Opening
from hubbub.core.message import Message
from hubbub.core.names import Names
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, client_number
from hubbub.schema import name_from_wire

SERVER_UID: Final = "SMQ server client"  # of the hub's own peer
SUBTID: Final = "smq-subtid"  # property: the number of a sub-topic that has no name


class Sock:
    """The connection of a client. Two of the same connection are equal."""

    def __init__(self, opening: Opening | None) -> None:
        self.opening = opening

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sock) and self.opening is other.opening

    def __hash__(self) -> int:
        return id(self.opening)

    def __repr__(self) -> str:
        return "<Sock {}:{}>".format(*self.peername())

    def peername(self) -> tuple[str, int]:
        """The IP address and port of the other end; ("", 0) if there is none."""
        opening = self.opening
        return (opening.address, opening.port) if opening is not None else ("", 0)

    def close(self) -> None:
        """End the connection without a word; a well-behaved client comes back."""
        if self.opening is not None:
            self.opening.carrier.close_for("closed by the program")


class Info(str):
    """How a client came in: what `authenticate` and `onconnect` are given.

    It is the text that an SMQ client says about itself, as in the reference, and knows more.
    `protocol` is what it speaks, `uid` the id it chose, `user` its user name, `certificate` the
    name in its TLS certificate, `info` the plain text, `seed` the number
    that an SMQ client was told and may have hashed its credentials with, `arg` what the program
    said in `Hub.connect`. Of its HTTP request, if it had one: `url`, `header` (names in lower
    case) and `data` (of the query). `sock` is its connection.
    """

    def __new__(cls, opening: Opening, uid: str, user: str = "") -> Info:
        return super().__new__(cls, opening.info)

    def __init__(self, opening: Opening, uid: str, user: str = "") -> None:
        self._request = opening.request
        self.sock = Sock(opening)
        self.protocol = opening.protocol
        self.uid = uid
        self.user = user
        self.certificate = opening.certificate
        self.info = opening.info
        self.seed = opening.challenge
        self.arg = opening.argument

    @property
    def url(self) -> str:
        return name_from_wire(self._request.target) if self._request is not None else ""

    @property
    def header(self) -> dict[str, str]:
        return dict(self._request.headers) if self._request is not None else {}

    @cached_property
    def data(self) -> dict[str, str]:
        query = self._request.query.decode("latin-1") if self._request is not None else ""
        return dict(parse_qsl(query, keep_blank_values=True))


class Peer:
    """One client of any protocol. What is documented here is read-only.

    Every other attribute belongs to the program: `peer.room = "kitchen"` stays with the
    connection. `tid` is the client's own number, `uid` the id it chose (bytes that are not UTF-8
    as surrogates), `protocol` says which protocol it speaks. `phantom`: it is connected to
    another node.
    """

    def __init__(self, session: Session, names: Names) -> None:
        opening = session.opening
        self._session = session
        self._names = names
        self.tid = session.number
        self.uid = session.client
        self.protocol = session.protocol
        self.phantom = session.far
        self.sock = Sock(opening)
        self.info: Info | None = None
        if opening is not None:
            self.info = Info(opening, self.uid, session.user)

    @property
    def topics(self) -> dict[int, Sock] | None:
        """The topic ids it subscribes to, each with its sock; None if there are none.

        Filters with wildcards have no id and are not here.
        """
        numbers, names = self._names.numbers, self._session.subscriptions
        found = {numbers[name]: self.sock for name in names if name in numbers}
        return found or None

    def __repr__(self) -> str:
        return f"<Peer {self.tid} {self.protocol} {self.uid!r}>"


class Peers:
    """The peers of a hub: one for each connected client, made when it is first asked for."""

    def __init__(self, broker: Broker, me: Session) -> None:
        self.broker = broker
        self.me = me
        self._server = self._new(me)
        self._server.uid = SERVER_UID
        self._made: dict[int, Peer] = {}

    def _new(self, session: Session) -> Peer:
        peer = Peer(session, self.broker.state.topics)
        if session.far and not session.protocol:
            peer.uid = SERVER_UID  # of the hub at that node
        return peer

    def of(self, session: Session) -> Peer:
        """Of a client; who is not connected (a single HTTP request) gets a new one each time."""
        peer = self._made.get(session.number)
        if peer is None:
            peer = self._new(session)
            if session.number:
                self._made[session.number] = peer
        return peer

    def by_number(self, number: int) -> Peer | None:
        if number == self.me.number:
            return self._server
        session = self.broker.client(number)
        return self.of(session) if session is not None else None

    def all(self) -> list[Peer]:
        """The hub's own, then the clients, then phantoms; bridges are none."""
        clients = [one for one in self.broker.clients.values() if one.opening is not None]
        return [self._server, *map(self.of, [*clients, *self.broker.phantoms.values()])]

    def forget(self, number: int) -> None:
        """Whoever had this number is gone."""
        peer = self._made.pop(number, None)
        if peer is not None:
            peer.tid = number

    def left(self, session: Session, number: int) -> Peer:
        """The peer of a client that had this number until now; it is forgotten."""
        peer = self._made.pop(number, None) or self._new(session)
        peer.tid = number
        return peer

    def numbers(self, message: Message, received: bool = False) -> tuple[int, int, int]:
        """ptid, tid and subtid of a message; a topic without a number gets one.

        Of one that the hub received, ptid is where an answer reaches the asker.
        """
        broker, me = self.broker, self.me
        answer = broker.replies.id_of(message, me) if received and message.reply_to else 0
        tid = client_number(message.topic)  # 0 was never anybody's, and gets no other number
        if not message.topic.startswith(CLIENT):
            tid = broker.topic_id(message.topic, me)
        subtid = (message.properties or {}).get(SUBTID, 0)
        if message.subtopic:
            subtid = broker.subtopic_id(message.subtopic, me)
        number = subtid if isinstance(subtid, int) else 0
        return answer or message.sender or me.number, tid, number
