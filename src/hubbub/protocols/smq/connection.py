"""The SMQ conversation: from the HTTP head to the end. No I/O.

    hub                       client
     |  <---- HTTP request ----  |   `SimpleMQ: …`, or a WebSocket handshake
     |  ----- [200], Init ---->  |   the 200 only if it is asked for
     |  <----- Connect --------  |   within 4 s
     |  ----- Connack -------->  |   with the client's own number, its etid
     |  <--- anything else --->  |

The listener feeds it; it calls the broker. What a client may send in which state is the table at
the end of this file; anything else closes the connection.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Final

from hubbub.config.settings import Settings
from hubbub.core import client
from hubbub.core import rights as gate
from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER, Connection, Protocol
from hubbub.core.gate import Admission, Opening
from hubbub.core.limits import HEAD_BYTES, PACKETS_LOOKED, RUN_LOOKED
from hubbub.core.link import Link
from hubbub.core.message import Run
from hubbub.core.past import split
from hubbub.core.quotas import SUBTOPICS, TOPICS
from hubbub.core.rights import verb_of
from hubbub.core.route import Route
from hubbub.core.session import NO_ROUTES, Subscription
from hubbub.core.topics import CLIENT, QUEUE, is_name
from hubbub.core.turns import Stint
from hubbub.errors import ProtocolError
from hubbub.protocols.smq import codec
from hubbub.protocols.smq.session import SmqEncoding, SmqRaw, SmqSession, SmqWebSocket
from hubbub.schema import name_from_wire
from hubbub.wire.http import Request, authorization, is_jwt
from hubbub.wire.websocket import frame

log = logging.getLogger("hubbub.smq")

NAME_BYTES: Final = codec.FRAME_BYTES - 8  # its ack must fit a frame

# States
OPEN: Final = 0  # Init was sent
ASKING: Final = 1  # the credentials are being looked at
CONNECTED: Final = 2

# Why a gate says no, as a code of Connack; every other reason is about credentials.
_REFUSALS: Final = {
    gate.BAD_CLIENT: codec.BAD_CONNECT,
    gate.TOO_BUSY: codec.UNAVAILABLE,
    gate.TOO_MANY: codec.UNAVAILABLE,
    gate.TOO_FAST: codec.UNAVAILABLE,
    gate.CERTIFICATE_REQUIRED: codec.CERTIFICATE_REQUIRED,
    gate.CERTIFICATE_REFUSED: codec.CERTIFICATE_REFUSED,
    gate.DENIED: codec.DENIED_ACCESS,
}

# No Content-Length and no end: what follows is Init. Java looks for the SmqBroker header.
_ACCEPTED: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Cache-Control: no-store\r\nSmqBroker: true\r\n\r\n"
)


class Smq(Protocol):
    """SMQ inside one hub: what its connections share, and the two encodings.

    `stalled`: clients whose links were too full for more of a queue. `retained`: a new
    subscription gets the retained message. `newest`: the row of the newest topic or sub-topic
    id; an id is told only once its row is durable.
    """

    name = "smq"
    any_text = True  # ids are in it: real clients send them as text all the same
    login_bytes = HEAD_BYTES + codec.FRAME_BYTES  # a Connect is one frame, and ends as one likes

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.raw = SmqRaw(broker)
        self.websocket = SmqWebSocket(broker)
        self.stalled: set[SmqSession] = set()
        self.retained = True
        self.connect_seconds = 4.0
        self.newest = 0

    def apply(self, settings: Settings) -> None:
        for pool in (TOPICS, SUBTOPICS):
            self.broker.quotas.most[pool] = settings.smq.max_topics
        self.retained = settings.smq.retained
        self.connect_seconds = settings.smq.connect_seconds

    def takes(self, request: Request) -> bool:
        """Its header with any value and method, and every WebSocket that nobody else wants.

        Who asks for the 200 of a plain socket gets that, though it may look like a WebSocket.
        """
        request.raw = request.headers.get("sendsmqhttpresponse", "") == "true"
        return request.websocket or "simplemq" in request.headers

    def connect(self, link: Link, opening: Opening) -> SmqConnection:
        return SmqConnection(self, link, opening)

    def wake(self, now: float) -> None:
        for session in list(self.stalled):
            session.resume()

    def topic_id(self, name: str, session: SmqSession) -> int:
        known = name in self.broker.state.topics.numbers
        number = self.broker.topic_id(name, session)
        if not known:
            self.newest = self.broker.log.position
        return number

    def subtopic_id(self, name: str, session: SmqSession) -> int:
        known = name in self.broker.state.subtopics.numbers
        number = self.broker.subtopic_id(name, session)
        if not known:
            self.newest = self.broker.log.position
        return number


class SmqConnection(Connection):
    """One client, raw or over a WebSocket."""

    def __init__(self, smq: Smq, link: Link, opening: Opening) -> None:
        super().__init__(smq.broker, link, opening)
        self._costly = False
        self.smq = smq
        self.encoding: SmqEncoding = smq.websocket if opening.websocket else smq.raw
        # Images are made in WebSocket frames, once for all receivers; none is added per link.
        link.framing = None
        self.state = OPEN
        self.session: SmqSession | None = None
        # What arrived and is not worked on yet. Most connections are idle, so what is empty
        # takes no memory.
        self._rest = b""
        self._body_left = _body_bytes(opening.request)
        # Connecting.
        self._deadline = self.broker.clock.now() + smq.connect_seconds
        self._wanted: codec.Connect | None = None
        # Publishing: own number, routes by topic id as it stands in the message, fragments.
        self._etid = b""
        self._routes = NO_ROUTES
        self._fragments: bytearray | None = None

    # Called by the listener

    def start(self) -> None:
        request = self.opening.request
        if request is not None and not self.opening.websocket:
            if request.headers.get("sendsmqhttpresponse", "") == "true":
                # A piece of its own: Java reads on only if Init is in another TLS record.
                self.link.write(_ACCEPTED)
        address = self.opening.address.removeprefix("::ffff:").encode()
        if len(address) < codec.ADDRESS_BYTES:
            address = b"0.0.0.0"
        seed = self.opening.challenge = secrets.randbits(32)
        self._write(codec.message(codec.INIT, 1, seed, rest=address))

    def feed(self, data: bytes) -> None:
        if self.link.closing:
            return
        try:
            if self.asking:
                client.keep(self, data)
            elif self.opening.websocket:
                self._take_message(data)
            else:
                self._take_bytes(data)
        except ProtocolError as error:
            error.reply += self.encoding.last
            raise

    def waiting(self) -> int:
        return len(self._rest) + (len(self._fragments) if self._fragments is not None else 0)

    def wake(self, now: float) -> float:
        if self.state != OPEN or self.link.closing:
            return NEVER
        if now >= self._deadline:
            self._refuse(codec.UNAVAILABLE, f"no Connect within {self.smq.connect_seconds:g} s")
            return NEVER
        return self._deadline

    def drained(self) -> None:
        if self.session is not None:
            self.session.resume()

    def goodbye(self) -> None:
        """No Disconnect: it would tell devices never to come back."""
        if self.encoding.last:
            self.link.write(self.encoding.last)

    def lost(self, reason: str) -> None:
        self.state = OPEN
        self.asking = False
        self.broker.shortcuts.forget(self._routes)
        if self.session is not None:
            self.session.leave(reason)

    # Frames and messages

    def _take_bytes(self, data: bytes) -> None:
        """Whole frames of a raw socket. Publishes in a row to one topic are one run."""
        if self._body_left:
            data, self._body_left = data[self._body_left :], max(0, self._body_left - len(data))
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if self.working:  # what was read before reading stopped
            self._rest = data
            return
        at, size = 0, len(data)
        left, stint, late = PACKETS_LOOKED, None, False
        while not (self.link.closing or self.asking or late):
            end = codec.next_frame(data, at)
            if not end:
                break
            if data[at + 2] == codec.PUBLISH and self.state == CONNECTED:
                step = end - at
                # The same length, type, topic and sender: the same as far as the hub looks.
                alike = data[at : at + 11]
                if end + step <= size and data.startswith(alike, end):
                    most = at + RUN_LOOKED * step
                    last = min(size, most) - step
                    while end <= last and data.startswith(alike, end):
                        end += step
                    self._costly = self._costly or end == most
                if step < codec.PUBLISH_HEAD:
                    raise ProtocolError(f"a Publish has at least 15 bytes, this one {step}")
                self._publish(alike[3:7], alike[7:11], data[at:end], (end - at) // step)
            else:
                self._handle(data[at + 2], data[at + 3 : end])
            at = end
            if at == size:  # as a rule: nothing is left that might wait for another turn
                break
            left -= 1
            if not left or self._costly:
                left, self._costly = PACKETS_LOOKED, False
                if stint is None:
                    stint = Stint(self.broker.clock)
                late = stint.over()
        if late and at < size and not (self.asking or self.link.closing):
            self.put_off()
        if at < size and self.asking:
            client.keep(self, data[at:])
        elif at < size:
            self._rest = data[at:]

    def proceed(self) -> None:
        self.feed(b"")

    def _take_message(self, data: bytes) -> None:
        """One message of a WebSocket."""
        if not data:
            raise ProtocolError("an empty message")
        kind = data[0]
        if kind == codec.PUBLISH and self.state == CONNECTED:
            codec.numbers_of(kind, data[1:13])
            self._publish(data[1:5], data[5:9], frame(data), 1)
        elif kind == codec.PUBFRAG:
            raise ProtocolError("PubFrag is for raw sockets only")
        else:
            self._handle(kind, data[1:])

    def _handle(self, kind: int, body: bytes) -> None:
        handler = _HANDLERS[self.state].get(kind)
        if handler is not None:
            handler(self, body)
        elif self.state == CONNECTED:
            known = codec.LAYOUTS.get(kind)
            raise ProtocolError(f"no client sends {known.name if known else f'type {kind}'} here")
        else:
            self._refuse(codec.BAD_CONNECT, f"expected Connect, got type {kind}")

    def _write(self, message: bytes) -> None:
        self.link.write(self.encoding.wrap(message))

    # Connecting

    def _connect(self, body: bytes) -> None:
        try:
            wanted = self._wanted = codec.parse_connect(body)
        except ProtocolError as error:
            self._refuse(codec.BAD_CONNECT, error.reason)
            return
        user, colon, secret = wanted.credentials.partition(b":")
        if not colon or not user:  # a hash may well begin with a colon
            user, secret = b"", wanted.credentials or self._token()
        self.state = ASKING
        uid = name_from_wire(wanted.uid)
        self.opening.info = name_from_wire(wanted.info)
        client.admit(self, uid, name_from_wire(user), secret, self._admit)

    def _token(self) -> bytes:
        """A signed token that came with the HTTP request: most are longer than 255 bytes."""
        request = self.opening.request
        if request is None:
            return b""
        user, secret = authorization(request.headers.get("authorization", ""))
        return secret if is_jwt(secret) else b""

    def _admit(self, admission: Admission | None, reason: str) -> None:
        """The gate has decided, at once or later; an older connection of this uid is gone."""
        self.state = OPEN
        if admission is None:
            code = _REFUSALS.get(gate.kind_of(reason), codec.BAD_CREDENTIALS)
            self._refuse(code, gate.words_of(reason))
            return
        wanted, smq = self._wanted, self.smq
        assert wanted is not None
        self._wanted = None
        if wanted.info:
            self.lasting = len(wanted.info)  # applications may ask for it at any time
        session = SmqSession(smq, admission, self.link, self.encoding, wanted.largest)
        self.session = session
        self.broker.connect(session, admission)
        self._etid = session.number.to_bytes(4, "big")
        self.state = CONNECTED
        session.send(codec.CONNACK, 0, session.number)

    def _refuse(self, code: int, reason: str) -> None:
        self._write(codec.message(codec.CONNACK, code, 0, rest=reason.encode()))
        if self.encoding.last:
            self.link.write(self.encoding.last)
        self.broker.metrics.connections_refused += 1
        self.link.close(reason)

    # Names

    def _subscribe(self, body: bytes) -> None:
        session = self._me()
        self._costly = True  # as many as observe the name hear of it
        try:
            past, name = split(_name_in(body), self.broker.clock.stamp())
        except ValueError as error:
            log.info("%s: %s", session.client, error)
            self._acknowledge(codec.SUBACK, 0, body)
            return
        known = name in session.subscriptions
        if known and past is None:
            self._acknowledge(codec.SUBACK, self.smq.topic_id(name, session), body)
            return
        subscription = Subscription(session, name, 0, session.encodings, literal=True)
        session.settled = False  # nothing of a queue leaves before the Suback
        number = 0
        with contextlib.suppress(client.Refused):
            client.subscribe(self.broker, subscription, past)
            number = self.smq.topic_id(name, session)
        if not (number or known):
            self.broker.unsubscribe(session, name)
        self._acknowledge(codec.SUBACK, number, body)
        session.settled = True
        if number and (self.smq.retained or past is not None or name.startswith(QUEUE)):
            client.catch_up(self.broker, subscription, past)

    def _create(self, body: bytes) -> None:
        session = self._me()
        name = _name_in(body)
        number = 0
        if _may_be_named(name):
            if self.broker.may_publish(session, name):
                number = self.smq.topic_id(name, session)
            else:
                self.broker.refuse(session, verb_of(name), name)
        self._acknowledge(codec.CREATEACK, number, body)

    def _create_sub(self, body: bytes) -> None:
        number = self.smq.subtopic_id(_name_in(body), self._me())
        self._acknowledge(codec.CREATESUBACK, number, body)

    def _acknowledge(self, kind: int, number: int, name: bytes) -> None:
        """An ack promises the id: it waits until the row of the newest id is durable."""
        status = codec.ACCEPTED if number else codec.DENIED
        ack = self.encoding.wrap(codec.message(kind, status, number, rest=name))
        if self.smq.newest > self.broker.log.durable:
            self.link.hold(ack, barrier=True)
        else:
            self._me().write(ack)

    def _unsubscribe(self, body: bytes) -> None:
        self._costly = True
        name = self._named(codec.UNSUBSCRIBE, body)
        if name:
            self.broker.unsubscribe(self._me(), name)

    def _observe(self, body: bytes) -> None:
        """A topic answers at once; a client only when it is gone, or if there is none."""
        session = self._me()
        self._costly = True  # those that a topic reaches are counted
        number = codec.numbers_of(codec.OBSERVE, body)[0]
        if number in (session.number, self.broker.itself.number):
            return
        name = self._name_of(number)
        if name is None:
            session.observing.pop(f"{CLIENT}{number}", None)  # it hears here that this is gone
        count = 0
        if name is not None:
            with contextlib.suppress(client.Refused):  # no room for the reason, so the log has it
                count = client.observe(self.broker, session, name)
                session.observe(name)
        if not (self.broker.reachable(number) and name in session.observing):
            session.send(codec.CHANGE, number, count)

    def _unobserve(self, body: bytes) -> None:
        session = self._me()
        number = codec.numbers_of(codec.UNOBSERVE, body)[0]
        name = self._name_of(number) or f"{CLIENT}{number}"  # that is gone: of which it hears yet
        session.observing.pop(name, None)
        self.broker.observers.unobserve(session, name)

    def _named(self, kind: int, body: bytes) -> str | None:
        return self.broker.state.topics.names.get(codec.numbers_of(kind, body)[0])

    def _name_of(self, number: int) -> str | None:
        """The topic or the client that has this number."""
        name = self.broker.state.topics.names.get(number)
        if name is None and self.broker.reachable(number):
            name = f"{CLIENT}{number}"
        return name

    # Messages

    def _publish(self, tid: bytes, sender: bytes, image: bytes, count: int) -> None:
        session = self._me()
        if sender != self._etid:
            raise ProtocolError(
                f"a Publish from {int.from_bytes(sender, 'big'):#x}, expected {session.number:#x}",
                self.encoding.wrap(codec.message(codec.DISCONNECT, rest=codec.CORRUPT)),
            )
        route = self._routes.get(tid)
        if route is None or route.age != self.broker.age:
            route = self._find_route(tid)
            if route is None:
                self.broker.metrics.drop("unknown topic", count)
                self._report_lost(tid, image, count)
                return
        run = Run(session, route, 0, count, self.encoding, image)
        if not session.requests or not session.answer(run):
            self.broker.publish(run)

    def _report_lost(self, tid: bytes, image: bytes, count: int) -> None:
        """To a number that is nobody's, for who wants to know."""
        if self.broker.inspector is not None:
            route = Route(f"{CLIENT}{int.from_bytes(tid, 'big')}", 0)
            run = Run(self._me(), route, 0, count, self.encoding, image)
            self.broker.inspector.undelivered(run)

    def _find_route(self, tid: bytes) -> Route | None:
        number = int.from_bytes(tid, "big")
        name = self._name_of(number)
        if name is None:
            return self._me().route_to_asker(f"{CLIENT}{number}")
        route = self.broker.route(self._me(), name)
        self._costly = True  # a name that thousands of filters match takes longer than a turn
        if number not in self.broker.replies:
            if self._routes is NO_ROUTES:
                self._routes = {}
            self.broker.shortcuts.keep(self._routes, tid, route, route.weight)
        return route

    def _fragment(self, body: bytes) -> None:
        """Parts with topic id 0, then one with the topic id, whose numbers count."""
        tid, _, _ = codec.numbers_of(codec.PUBFRAG, body)
        fragments = self._fragments
        if fragments is None:
            fragments = self._fragments = bytearray()
        fragments += codec.rest_of(codec.PUBFRAG, body)
        if len(fragments) > codec.PAYLOAD_BYTES:
            raise ProtocolError(f"fragments of more than {codec.PAYLOAD_BYTES} bytes")
        if not tid:
            return
        payload = bytes(fragments)
        self._fragments = None
        if len(payload) > codec.FRAGMENTED_BYTES:
            self.broker.metrics.drop("too large for fragments")
            return
        image = codec.framed(bytes((codec.PUBLISH,)) + body[:12] + payload)
        self._publish(body[:4], body[4:8], image, 1)

    # The rest

    def _ping(self, body: bytes) -> None:
        self._write(codec.message(codec.PONG))

    def _pong(self, body: bytes) -> None:
        """An answer to nothing; some clients send it."""

    def _disconnect(self, body: bytes) -> None:
        if self.encoding.last:
            self.link.write(self.encoding.last)
        self.link.close("")
        self._me().leave("")

    def _me(self) -> SmqSession:
        assert self.session is not None
        return self.session


def _body_bytes(request: Request | None) -> int:
    """A POST may have a body, which is for an application; SMQ begins behind it."""
    length = request.headers.get("content-length", "") if request is not None else ""
    return int(length) if length.isdecimal() else 0


def _name_in(body: bytes) -> str:
    if len(body) > NAME_BYTES:
        raise ProtocolError(f"a name of {len(body)} bytes, expected at most {NAME_BYTES}")
    return name_from_wire(body)


def _may_be_named(name: str) -> bool:
    """Clients are reached by their numbers, and a queue's name is for everybody."""
    if name.startswith(QUEUE):
        return is_name(name)
    return not name.startswith(CLIENT)


Handler = Callable[[SmqConnection, bytes], None]

# What a client may send in each state. Publish (and what the listener splits) comes first in
# the two `_take_…` above, because it is nearly everything.
_HANDLERS: Final[dict[int, dict[int, Handler]]] = {
    OPEN: {codec.CONNECT: SmqConnection._connect},
    ASKING: {},
    CONNECTED: {
        codec.SUBSCRIBE: SmqConnection._subscribe,
        codec.CREATE: SmqConnection._create,
        codec.CREATESUB: SmqConnection._create_sub,
        codec.UNSUBSCRIBE: SmqConnection._unsubscribe,
        codec.OBSERVE: SmqConnection._observe,
        codec.UNOBSERVE: SmqConnection._unobserve,
        codec.PUBFRAG: SmqConnection._fragment,
        codec.PING: SmqConnection._ping,
        codec.PONG: SmqConnection._pong,
        codec.DISCONNECT: SmqConnection._disconnect,
    },
}
