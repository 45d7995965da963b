"""An MQTT connection of 3.1 or 3.1.1: packets in, calls on the broker and acknowledgements out.

    new ── CONNECT ──> asking ── accepted ──> connected ── DISCONNECT, error, silence ──> over

Nothing but a CONNECT is taken first, and only one (3.1). While the gate thinks about the
credentials the bytes wait. A publish is acknowledged by `hold`: when its row is durable.

PUBLISH packets that follow each other with the same first bytes (type, length, topic) form one
run, found with one `startswith` a message, and travel as one slice of what was received.
"""

from __future__ import annotations

import random
from typing import Final

from hubbub.config import Settings
from hubbub.core.broker import Broker, row_about
from hubbub.core.connection import NEVER, Connection, Opening, Protocol
from hubbub.core.limits import KIB, SUBSCRIPTIONS
from hubbub.core.link import Link
from hubbub.core.message import Message, Run
from hubbub.core.rights import Rights
from hubbub.core.route import Route
from hubbub.core.session import Session, SessionState, Subscription
from hubbub.core.topics import CLIENT, QUEUE, has_wildcard, is_filter, is_name
from hubbub.errors import ProtocolError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.session import ENCODINGS, NAME, SELF, MqttSession, granted
from hubbub.schema import RELEASE, WILL, name_from_wire
from hubbub.wire.bytes import Gathering
from hubbub.wire.http import Request

CONNECT_BYTES: Final = 512 * KIB  # its six strings have at most 64 KiB each
EARLY_BYTES: Final = 256 * KIB  # what comes while the gate thinks; a read of the socket
CONNECT_SECONDS: Final = 10.0  # to send a whole CONNECT after the first byte
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
QOS0: Final = 0x30
QOS1: Final = 0x32


class Mqtt(Protocol):
    """MQTT in one hub: the sessions by client id, connected or away."""

    name = NAME
    streams = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.sessions: dict[str, MqttSession] = {}
        self.exchanging: set[MqttSession] = set()
        self.qos2_serial = True

    def apply(self, settings: Settings) -> None:
        self.qos2_serial = settings.mqtt.qos2_serial
        self.message_bytes = settings.limits.message_bytes

    def opens(self, data: bytes) -> bool | None:
        return data[0] == 0x10

    def takes(self, request: Request) -> bool:
        if not request.websocket:
            return False
        asked = request.listed("sec-websocket-protocol")
        for subprotocol in SUBPROTOCOLS:
            if subprotocol in asked:
                request.subprotocol = subprotocol
                return True
        return request.path == b"/mqtt"

    def connect(self, link: Link, opening: Opening) -> Connection:
        return MqttConnection(self, link, opening)

    def wake(self, now: float) -> None:
        for session in list(self.exchanging):
            session.exclusive_timeout(now)

    def revive(self, state: SessionState) -> Session | None:
        session = MqttSession(self.broker, state.client, self.broker.open, True, self.exchanging)
        session.remember(state)
        for topic_filter, (qos, options) in state.subscriptions.items():
            session.subscriptions[topic_filter] = Subscription(
                session, topic_filter, qos, granted(qos), options=options
            )
        self.sessions[state.client] = session
        return session


class MqttConnection(Connection):
    """One conversation. `session` is None until the CONNECT is accepted."""

    def __init__(self, protocol: Mqtt, link: Link, opening: Opening) -> None:
        super().__init__(protocol.broker, link, opening)
        self.protocol = protocol
        self.session: MqttSession | None = None
        self._gathering = Gathering()
        self._asking = False
        self._early: list[bytes] = []
        self._routes: dict[bytes, Route] = {}
        self._limit = CONNECT_BYTES
        self._heard = self.broker.clock.now()
        self._patience = CONNECT_SECONDS
        self._will: codec.Will | None = None
        self._over = False
        self._answers = {
            codec.CONNECT: self._second_connect,
            codec.PUBACK: self._puback,
            codec.PUBREC: self._pubrec,
            codec.PUBREL: self._pubrel,
            codec.PUBCOMP: self._pubcomp,
            codec.SUBSCRIBE: self._subscribe,
            codec.UNSUBSCRIBE: self._unsubscribe,
            codec.PINGREQ: self._pingreq,
            codec.DISCONNECT: self._disconnect,
        }

    # Bytes

    def feed(self, data: bytes) -> None:
        if self._asking:
            self._wait_for_the_gate(data)
            return
        self._heard = self.broker.clock.now()
        gathered = self._gathering.add(data)
        if gathered is not None and not self._over and not self.link.closing:
            self._feed(gathered)

    def _feed(self, buf: bytes) -> None:
        n = len(buf)
        pos = 0
        session = self.session
        while n - pos >= 2:
            head = buf[pos]
            size = buf[pos + 1]
            body = pos + 2
            end = body + size
            if size > 127:
                body, end = codec.extent(buf, pos, self._limit)
                if end < 0:
                    break
            if end > n:
                break
            if session is None:
                self._first(head, buf[body:end])
                pos = end
                if self._asking:
                    self._early.append(buf[pos:])
                    return
                session = self.session
            elif head == QOS0 or head == QOS1:
                pos = self._publishes(session, buf, pos, body, end)
            elif head == 0x40 and size == 2:
                pos = session.acknowledge_run(buf, pos)
            else:
                self._packet(head, buf[body:end])
                pos = end
            if self._over:
                return
        if pos < n:
            _, end = codec.extent(buf, pos, self._limit)
            self._gathering.keep(buf[pos:], end - pos)

    def _wait_for_the_gate(self, data: bytes) -> None:
        self._early.append(data)
        if sum(map(len, self._early)) > EARLY_BYTES:
            raise ProtocolError(f"more than {EARLY_BYTES} bytes before the CONNECT is answered")

    def _packet(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.PUBLISH:
            self._publish(head, body)
            return
        answer = self._answers.get(kind)
        if answer is None:
            raise ProtocolError(f"a {codec.NAMES[kind]} from a client")
        if head & 15 != codec.FLAGS[kind]:
            raise ProtocolError(f"a {codec.NAMES[kind]} with the flags {head & 15:04b}")
        answer(body)

    # Connecting

    def _first(self, head: int, body: bytes) -> None:
        if head != codec.CONNECT << 4:
            raise ProtocolError(f"a {codec.NAMES[head >> 4]} before the CONNECT")
        asked = codec.parse_connect(body)
        if asked.version == "5.0":
            raise ProtocolError("MQTT level 5", b"\x20\x03\x00\x84\x00")
        client = name_from_wire(asked.client)
        if not client and (not asked.clean or asked.version == "3.1"):
            reply = codec.connack(False, codec.BAD_IDENTIFIER)
            raise ProtocolError("no client id, which only clean sessions of 3.1.1 may leave", reply)
        if asked.will is not None and not is_name(name_from_wire(asked.will.topic)):
            raise ProtocolError("a will whose topic has wildcards")
        self._asking = True
        user = name_from_wire(asked.user or b"")
        self.opening.authenticate(
            client,
            user,
            asked.password or b"",
            lambda rights, reason: self._judged(asked, client, rights, reason),
        )

    def _judged(
        self, asked: codec.Connect, client: str, rights: Rights | None, reason: str
    ) -> None:
        """The gate has decided; what came meanwhile is taken now."""
        self._asking = False
        if self._over:
            return
        if rights is None:
            self.link.write(codec.connack(False, codec.NOT_AUTHORISED))
            self._finish(f"refused: {reason}")
            return
        self._accept(asked, client or f"auto-{random.getrandbits(64):016x}", rights)
        early, self._early = self._early, []
        rest = b"".join(early)
        if rest:
            self._feed(rest)

    def _accept(self, asked: codec.Connect, client: str, rights: Rights) -> None:
        number = self._take_over(client)
        session = self.protocol.sessions.get(client)
        if session is not None and asked.clean:
            self.broker.end(session)
            session = None
        present = session is not None
        if session is None:
            exchanging = self.protocol.exchanging
            session = MqttSession(self.broker, client, rights, not asked.clean, exchanging)
            self.protocol.sessions[client] = session
        session.rights = rights
        session.address = self.opening.address
        self.broker.connect(session, number)
        session.attach(self.link, self.protocol.qos2_serial, self._finish)
        self.session = session
        self._limit = self.protocol.message_bytes
        self._will = asked.will
        if asked.will is not None:
            self._note_will(session, asked.will)
        self._patience = asked.keep_alive * 1.5 if asked.keep_alive else NEVER
        self.link.hold(codec.connack(present, codec.ACCEPTED), barrier=True)
        session.resume()

    def _take_over(self, client: str) -> int:
        """End another connection of the same client; its address stays (0 = there is none)."""
        session = self.protocol.sessions.get(client)
        if session is None or not session.number:
            return 0
        number = session.number
        session.taken_over()
        return number

    def _note_will(self, session: MqttSession, will: codec.Will) -> None:
        row = row_about(session, WILL, name_from_wire(will.topic))
        row = row._replace(qos=will.qos, retain=will.retain, payload=will.payload)
        if session.lasting:
            self.broker.change(row)
        else:
            self.broker.note(row)

    def _second_connect(self, body: bytes) -> None:
        raise ProtocolError("a second CONNECT")

    # Publishing

    def _route(self, topic: bytes) -> Route:
        """The route of a topic; its name is checked here, once."""
        assert self.session is not None
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            raise ProtocolError("a PUBLISH whose topic is not UTF-8") from None
        if not is_name(name):
            raise ProtocolError(f"a PUBLISH to {name[:80]!r}, which is not a topic name")
        route = self.broker.route(self.session.rights, name)
        self._routes = self.session.rights.routes
        return route

    def _publishes(self, session: MqttSession, buf: bytes, pos: int, body: int, end: int) -> int:
        """A run of QoS 0 or QoS 1 publishes that begin with the same bytes; where it ends."""
        mark = body + 2 + ((buf[body] << 8) | buf[body + 1]) if end - body >= 2 else end + 1
        qos = (buf[pos] >> 1) & 1
        if mark + 2 * qos > end:
            raise ProtocolError("a PUBLISH that ends inside its topic")
        topic = buf[body + 2 : mark]
        route = self._routes.get(topic)
        if route is None or route.age != self.broker.age:
            route = self._route(topic)
        step = end - pos
        stop = end
        n = len(buf)
        if end + step <= n:
            same = buf[pos:mark]
            while stop + step <= n and buf.startswith(same, stop):
                stop += step
        count = (stop - pos) // step
        run = Run(session, route, qos, count, ENCODINGS[qos], buf[pos:stop])
        if not qos:
            self.broker.publish(run)
            return stop
        run.offset = mark - pos
        acknowledgements = _pubacks(run.image, run.offset, step, count)
        self.broker.publish(run)
        self.link.hold(acknowledgements)
        return stop

    def _publish(self, head: int, body: bytes) -> None:
        """Any other PUBLISH: retained, repeated, or QoS 2. One at a time."""
        session = self.session
        assert session is not None
        packet = codec.parse_publish(head, body)
        route = self._routes.get(packet.topic)
        if route is None or route.age != self.broker.age:
            route = self._route(packet.topic)
        if packet.qos == 2 and packet.packet_id in session.state.open_ids:
            self.link.hold(codec.acknowledgement(codec.PUBREC, packet.packet_id))
            return
        image = codec.publish(
            packet.topic, packet.payload, packet.qos, packet_id=packet.packet_id
        )
        run = Run(session, route, packet.qos, 1, ENCODINGS[packet.qos], image, packet.retain)
        if packet.qos:
            run.offset = len(image) - len(packet.payload) - 2
        if packet.qos == 2:
            session.open_exchange()
            session.state.open_ids.add(packet.packet_id)
            if session.lasting:
                run.number = packet.packet_id
        self.broker.publish(run)
        if packet.qos:
            kind = codec.PUBACK if packet.qos == 1 else codec.PUBREC
            self.link.hold(codec.acknowledgement(kind, packet.packet_id))

    def _pubrel(self, body: bytes) -> None:
        """The publisher may reuse its packet id once this is durable (PUBCOMP is held)."""
        session = self.session
        assert session is not None
        packet_id = codec.parse_packet_id(codec.PUBREL, body)
        known = packet_id in session.state.open_ids
        if known:
            session.state.open_ids.discard(packet_id)
            if session.lasting:
                self.broker.change(row_about(session, RELEASE)._replace(number=packet_id))
        # A barrier: what stood aside until now must not overtake it.
        self.link.hold(codec.acknowledgement(codec.PUBCOMP, packet_id), barrier=session.serial)
        if known:
            session.close_exchange()

    # Acknowledgements of what the client received

    def _puback(self, body: bytes) -> None:
        assert self.session is not None
        self.session.puback(codec.parse_packet_id(codec.PUBACK, body))

    def _pubrec(self, body: bytes) -> None:
        assert self.session is not None
        self.session.pubrec(codec.parse_packet_id(codec.PUBREC, body))

    def _pubcomp(self, body: bytes) -> None:
        assert self.session is not None
        self.session.pubcomp(codec.parse_packet_id(codec.PUBCOMP, body))

    # Subscribing

    def _subscribe(self, body: bytes) -> None:
        """SUBACK leaves before anything of the new subscriptions (3.8.4)."""
        session = self.session
        assert session is not None
        packet_id, wanted, _ = codec.parse_subscribe(body)
        room = SUBSCRIPTIONS - len(session.subscriptions)
        made = [
            self._subscription(session, name_from_wire(name), qos) if index < room else None
            for index, (name, qos) in enumerate(wanted)
        ]
        for subscription in made:
            if subscription is not None:
                self.broker.subscribe(subscription)
        session.listen_to_self()
        codes = [made_one.qos if made_one is not None else codec.FAILURE for made_one in made]
        if session.lasting:
            self.link.hold(codec.suback(packet_id, codes), barrier=True)
        else:
            self.link.write(codec.suback(packet_id, codes))
        for subscription in made:
            if subscription is not None:
                self._first_deliveries(subscription)

    def _subscription(self, session: MqttSession, name: str, qos: int) -> Subscription | None:
        """A subscription that may be made; None is answered with a failure code."""
        if not is_filter(name):
            raise ProtocolError(f"a SUBSCRIBE to {name[:80]!r}, which is not a topic filter")
        closed = name.startswith((CLIENT, "$share/")) and name != SELF
        if closed or (name.startswith(QUEUE) and has_wildcard(name)):
            return None
        if not session.rights.may_subscribe(name):
            return None
        return Subscription(session, name, qos, granted(qos))

    def _first_deliveries(self, subscription: Subscription) -> None:
        name = subscription.filter
        if name.startswith(QUEUE):
            self.broker.dispatch(self.broker.queue(name[len(QUEUE) :]))
            return
        self.broker.offer_retained(subscription)

    def _unsubscribe(self, body: bytes) -> None:
        session = self.session
        assert session is not None
        packet_id, names, _ = codec.parse_unsubscribe(body)
        for name in names:
            self.broker.unsubscribe(session, name_from_wire(name))
        session.listen_to_self()
        answer = codec.acknowledgement(codec.UNSUBACK, packet_id)
        if session.lasting:
            self.link.hold(answer)
        else:
            self.link.write(answer)

    # Life

    def _pingreq(self, body: bytes) -> None:
        self.link.write(codec.PINGRESP_PACKET)

    def _disconnect(self, body: bytes) -> None:
        self._will = None
        self._finish("")

    def wake(self, now: float) -> float:
        session = self.session
        if now - self._heard >= self._patience and not self._over:
            said = "no CONNECT" if session is None else "nothing"
            self._finish(f"keep alive: {said} for {now - self._heard:.1f} s")
        return self._heard + self._patience

    def drained(self) -> None:
        if self.session is not None:
            self.session.resume()

    def goodbye(self) -> None:
        """3.1.1 has no word for it; the connection is just closed, and no will is published."""
        self._will = None
        self._finish("the hub is stopping")

    def lost(self, reason: str) -> None:
        self._finish(reason or "connection lost")

    def _finish(self, reason: str) -> None:
        """The session leaves the connection: once, whoever ends it first."""
        if self._over:
            return
        self._over = True
        self.link.close(reason)
        session, self.session = self.session, None
        if session is None:
            return
        session.detach()
        will, self._will = self._will, None
        if will is not None:
            topic = name_from_wire(will.topic)
            self.broker.post(Message(topic, will.payload, will.qos, will.retain), session)
        if not session.lasting:
            self.protocol.sessions.pop(session.client, None)
        self.broker.disconnect(session, reason)


def _pubacks(image: bytes, offset: int, step: int, count: int) -> bytes:
    """The PUBACKs of a run, made from the packet ids in its image."""
    if count == 1:
        identifier = image[offset : offset + 2]
        if identifier == b"\0\0":
            raise ProtocolError("a PUBLISH with packet id 0")
        return b"\x40\x02" + identifier
    high, low = image[offset::step], image[offset + 1 :: step]
    if 0 in low and (0, 0) in zip(high, low, strict=True):
        raise ProtocolError("a PUBLISH with packet id 0")
    answers = bytearray(b"\x40\x02\0\0" * count)
    answers[2::4] = high
    answers[3::4] = low
    return bytes(answers)

