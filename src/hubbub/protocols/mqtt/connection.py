"""An MQTT connection: packets in, calls on the broker and acknowledgements out.

    NEW ── CONNECT ──> accepted ──> CONNECTED ── DISCONNECT, error, silence ──> OVER
      └── CONNECT that names a method (5.0) ──> PROVING ── AUTH <──> AUTH ──> CONNECTED

What a client may send in which state is the table at the end of this file; anything else closes
the connection. While the gate thinks about the credentials the bytes wait. A publish is
acknowledged by `hold`: when its row is durable.

PUBLISH packets that follow each other with the same first bytes (type, length, topic) and, in
5.0, without properties form one run, found with one `startswith` a message, and travel as one
slice of what was received. Properties that say the same as those of a message before, and nothing
that is for the hub, are not read again (`Incoming.learn`); one that says its topic by an alias goes
the same way with the topic in its place (`Incoming.spelled_out`). 5.0 differs from 3.1.1 by the
dialect of the session, and here by `_v5` where packets have more to say. What a client of 5.0 does
wrong is told to it in a DISCONNECT with the reason code of the PacketError; before 5.0 the
connection is just closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hubbub.core.caches import weight_of
from hubbub.core.client import keep
from hubbub.core.connection import NEVER
from hubbub.core.gate import Admission, Opening
from hubbub.core.limits import (
    CONNECT_BYTES,
    LONG_BYTES,
    PACKETS_LOOKED,
    RUN_LOOKED,
    STRANGER_SECONDS,
    WEIGHED_BYTES,
)
from hubbub.core.link import Link
from hubbub.core.message import Run
from hubbub.core.rights import verb_of
from hubbub.core.route import Route
from hubbub.core.session import NO_ROUTES, row_about
from hubbub.core.turns import Stint
from hubbub.protocols.mqtt import codec, twofold
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.arriving import (
    CONNECTED,
    NEW,
    OVER,
    PROVING,
    Arriving,
)
from hubbub.protocols.mqtt.codec import PacketError, Properties
from hubbub.protocols.mqtt.incoming import Incoming, acknowledgements_of, topic_name
from hubbub.protocols.mqtt.session import MqttSession
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.protocols.mqtt.subscribing import subscribe, unsubscribe
from hubbub.protocols.mqtt.welcome import (
    asked_will,
    bound,
    changed_lifetime,
    check_offered,
    greeting,
    level_of,
    lifetime,
    new_client,
    new_session,
    permitted,
    referral,
)
from hubbub.schema import RELEASE, Row
from hubbub.wire.bytes import Gathering

HEAVY: Final = 7  # packets that one counts for, beside itself, which is no message: a SUBSCRIBE

QOS0: Final = 0x30
QOS1: Final = 0x32
QOS2: Final = 0x34


class MqttConnection(Arriving):
    """One conversation."""

    def __init__(self, protocol: Sessions, link: Link, opening: Opening) -> None:
        super().__init__(protocol, link, opening)
        link.prompt = False  # until the session says otherwise
        link.joins = True
        self._gathering: Gathering | None = None  # until a packet comes in parts
        self._limit = CONNECT_BYTES
        self._heard = self.broker.clock.now()
        self._patience = STRANGER_SECONDS
        self._work: Iterator[None] | None = None
        self._incoming: Incoming | None = None  # until it publishes
        self._bounded = protocol.payload_bytes > 0
        self._will: Row | None = None

    # Bytes

    def feed(self, data: bytes) -> None:
        try:
            if self.asking:
                keep(self, data)
                return
            if self._way is not None:
                self._way.feed(data)
                return
            parts = self._gathering
            gathered = data if parts is None else parts.add(data)
            if gathered is None:
                self._hear_part()
            elif self.state != OVER and not self.link.closing:
                self._feed(gathered)
        except PacketError as error:
            self._blame(error)
            raise

    def _blame(self, error: PacketError) -> None:
        if not error.reply:
            self._say_last(error.code, error.reason)

    def _feed(self, buf: bytes) -> None:
        n = len(buf)
        pos = 0
        looked, stint = 0, None
        session = self.session
        short = min(self._limit - 2, 127)  # what needs no further look at its length
        now = self.broker.clock.now()
        while n - pos >= 2:
            head = buf[pos]
            size = buf[pos + 1]
            body = pos + 2
            end = body + size
            if size > short:
                body, end = codec.extent(buf, pos, codec.most(head, self._limit))
                if end < 0:
                    break
                if self._v5 and size > 127 and not buf[body - 1]:
                    raise PacketError("a remaining length that is longer than it need be")
            if end > n:
                break
            if session is None:
                self._packet(head, buf[body:end])
                pos = end
                self._heard = now
                if self.asking or self._way is not None:
                    if pos < n and self._way is not None:
                        self._way.feed(buf[pos:])
                    elif pos < n:
                        keep(self, buf[pos:])
                    return
                session = self.session
                short = min(self._limit - 2, 127)
            elif head == QOS0 or head == QOS1 or head == QOS2:
                pos = self._publishes(session, buf, pos, body, end)
                if pos == n:  # as a rule: nothing is left that might wait for another turn
                    break
            else:
                plain = size == 2 and head in twofold.ANSWERS
                stop = twofold.answered(session, self._incoming, buf, pos) if plain else pos
                if stop == pos:
                    self._packet(head, buf[body:end])
                    looked += HEAVY
                    stop = end
                pos = stop
                if pos == n:
                    break
            looked += 1
            if looked >= PACKETS_LOOKED or self._costly:
                looked, self._costly = 0, False
                if stint is None:
                    stint = Stint(self.broker.clock, now)
                if stint.over() and pos < n and self.state == CONNECTED:
                    self.put_off()
            if self.working:
                break
            if self.state == OVER:
                return
        if pos:
            self._heard = now
        if self.working:  # what comes now is heard when that is done
            self._parts().block(buf[pos:])
        elif pos < n:
            body, end = codec.extent(buf, pos, codec.most(buf[pos], self._limit))
            if end - n > WEIGHED_BYTES and session is not None and buf[pos] >> 4 == codec.PUBLISH:
                self._begun(buf[pos:], body - pos, end - pos)
            else:
                self._parts().keep(buf[pos:], end - pos)
            self._hear_part()

    def _begun(self, part: bytes, body: int, size: int) -> None:
        """A large PUBLISH begins. Its rights are asked before its payload comes.

        What is not allowed is answered now, as if it had none, and its payload is thrown away.
        """
        header = codec.publish_header(part, body, self._v5)
        topic = codec.topic_of(part, body) if header else b""
        route = self._route_to(topic) if topic else None
        if route is None or route.takes:
            self._parts().keep(part, size if header else min(size, len(part) + 1))
            return
        self._publish(part[0], part[body:header], route)
        self._parts().skip(size - len(part))

    def _parts(self) -> Gathering:
        """What is not a whole packet yet."""
        if self._gathering is None:
            self._gathering = Gathering()
        return self._gathering

    def _publisher(self) -> Incoming:
        """What is known of it as one that publishes."""
        if self._incoming is None:
            self._incoming = Incoming(self.protocol)
            self._incoming.kept = self.lasting
        return self._incoming

    def _hear_part(self) -> None:
        """Whole packets are signs of life (3.1.2.10), and parts of what takes a while to come."""
        if self._gathering is not None and self._gathering.missing > LONG_BYTES:
            self._heard = self.broker.clock.now()

    def _begin(self, work: Iterator[None]) -> None:
        """Do what may take several turns."""
        assert self._work is None, "one at a time"
        self.broker.shortcuts.forget(self._routes)
        self._routes, self._work = NO_ROUTES, work
        self._work_on()

    def _work_on(self) -> None:
        for _ in self._work or ():
            self.put_off()
            return
        self._work = None

    def proceed(self) -> None:
        if self.state == OVER:
            return
        self._heard = self.broker.clock.now()
        try:
            self._work_on()
            if not self.working:
                self._feed(self._parts().unblock())
        except PacketError as error:
            self._blame(error)
            raise

    def waiting(self) -> int:
        kept = self._gathering.size if self._gathering is not None else 0
        return kept + super().waiting()

    def missing(self) -> int:
        return 0 if self.working or self._gathering is None else self._gathering.missing

    def crowded_out(self, reason: str) -> None:
        self._gathering = None
        self._finish(reason, spec.QUOTA)

    def _packet(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.PUBLISH and self.state == CONNECTED:
            self._publish(head, body)
            return
        answer = _FOLLOWS[self.state].get(kind)
        if answer is None or (kind == codec.AUTH and not self._v5):
            code = spec.PROTOCOL if kind else spec.MALFORMED
            raise PacketError(f"a {codec.NAMES[kind]} {_WHERE[self.state]}", code)
        if head & 15 != codec.FLAGS[kind] and not (self._old and head in codec.REPEATED):
            # 3.1.1 [2.2.2-2], 5.0 [2.1.3-1]
            raise PacketError(f"a {codec.NAMES[kind]} with the flags {head & 15:04b}")
        answer(self, body)

    # Connecting

    def _accept(self, admission: Admission, proof: Properties) -> None:
        """Take the client in; `proof` is what the exchange of credentials says to it.

        A session that another user left, or under another mount point, is another one, and over; so
        is one whose time is over and was not looked at yet, as just behind a start (4.1.0-2).
        """
        asked, broker, mqtt = self._asked, self.broker, self.protocol
        assert asked is not None
        client = self._client or new_client()
        self._expiry = lifetime(asked, mqtt.max_session_expiry)
        session = mqtt.sessions.get(client)
        if session is not None and (
            asked.clean or not admission.continues(session.user, session.mount)
            or mqtt.is_over(session)
        ):  # fmt: skip
            mqtt.end(session)
            session = None
        present = session is not None
        if session is None:
            session = new_session(mqtt, client, admission, self._expiry, self._v5)
        mqtt.publish_due_will(session)
        broker.connect(session, admission, self._expiry)
        serial = mqtt.serial(client, self.link, self._v5)
        session.attach(self.link, self._dialect, serial, self)
        self.session = session
        self.state = CONNECTED
        self._limit = mqtt.message_bytes
        will = permitted(asked_will(mqtt, asked, self._dialect, session), session, broker)
        if will is not None:
            checked = session.user != "" or session.rights is not broker.open
            broker.change(will.row(session, checked))
            self._will = mqtt.kept_will(session)
            self.lasting = len(will.message.payload)
            broker.scarce.spend(session, self.lasting)
        self._welcome(session, present and not self._old, asked, proof)  # in 3.1 it is reserved
        self._asked = None
        if asked.bridge:
            self._bridge = True
        session.resume()

    def _welcome(
        self, session: MqttSession, present: bool, asked: codec.Connect, proof: Properties
    ) -> None:
        mqtt, properties, alive = self.protocol, b"", asked.keep_alive
        if self._v5:
            said = greeting(mqtt, asked, session.number)
            said.texts.update(proof.texts)
            if not self._client:
                said.texts[spec.ASSIGNED_CLIENT] = session.client.encode()
            alive = said.numbers.get(spec.SERVER_KEEP_ALIVE, alive)
            properties = said.encode()
            bound(session, self._wants, mqtt.topic_aliases_sent)
        self._patience = alive * 1.5 if alive else NEVER
        packet = codec.connack(present, codec.ACCEPTED, properties)
        self.link.hold(packet, True, level_of(session, self._will))

    def _second_connect(self, body: bytes) -> None:
        raise PacketError("a second CONNECT", spec.PROTOCOL)  # [3.1.0-2]

    # Publishing

    def _route_to(self, topic: bytes) -> Route:
        """The route of a topic as it is now: rules and subscriptions may have changed."""
        route = self._routes.get(topic)
        return route if route is not None and route.age == self.broker.age else self._route(topic)

    def _route(self, topic: bytes) -> Route:
        """The route of a topic; its name is checked here, once."""
        session = self.session
        assert session is not None
        name = topic_name(topic)
        route = self.broker.route(session, self._dialect.full(name))
        self._costly = True  # a name that thousands of filters match takes longer than a turn
        if not self._dialect.mount:
            self._routes = session.routes if session.no_local else session.rights.routes
            return route
        if self._routes is NO_ROUTES:
            self._routes = {}
        weight = route.weight + weight_of(topic)
        self.broker.shortcuts.keep(self._routes, topic, route, weight)
        return route

    def _publishes(self, session: MqttSession, buf: bytes, pos: int, body: int, end: int) -> int:
        """A run of publishes that begin with the same bytes; where it ends."""
        if not session.talks:
            session.speak()
        mark = body + 2 + ((buf[body] << 8) | buf[body + 1]) if end - body >= 2 else end + 1
        qos = (buf[pos] >> 1) & 3
        start = mark + 2 if qos else mark
        v5 = self._v5
        if start + v5 > end:
            raise PacketError("a PUBLISH that ends inside its topic")
        said = 0  # bytes of properties
        if v5:
            said = buf[start]
            begin = start + 1 + said
            plain = self.protocol.plain_properties
            known = not said or (begin <= end and buf[start:begin] in plain)
            if mark == body + 2 or session.requests or not known:
                packet = b""
                if mark == body + 2:  # no topic: an alias stands for it
                    packet = self._publisher().spelled_out(buf, pos, body, start, begin, end)
                if packet:
                    self._publishes(session, packet, 0, codec.topic_at(packet)[0], len(packet))
                else:
                    self._publish(buf[pos], buf[body:end])
                return end
        topic = buf[body + 2 : mark]
        route = self._routes.get(topic)
        if route is None or route.age != self.broker.age:
            route = self._route(topic)
        long = v5 and qos and not (route.allowed and route.subscriptions)
        if long or (qos == 2 and not twofold.fits(session, route, buf, mark)):
            self._publish(buf[pos], buf[body:end], route)
            return end
        step = end - pos
        stop = end
        n = len(buf) if qos < 2 else min(len(buf), pos + twofold.LONGEST * step)
        if end + step <= n and not said and buf.startswith(same := buf[pos:mark], stop):
            most = pos + RUN_LOOKED * step
            n = min(n, most)
            while stop + step <= n and buf.startswith(same, stop):
                stop += step
            self._costly = self._costly or stop == most
        count = (stop - pos) // step
        if v5 and count > 1:
            lengths = buf[start:stop:step]
            count -= len(lengths.lstrip(b"\0"))  # from the first one with properties on
            stop = pos + count * step
        ids = twofold.fresh(session, buf, mark, step, count) if qos == 2 else []
        if qos == 2:
            count = len(ids)
            stop = pos + count * step
        if qos and route.bounded and self.broker.lacks_room(
            session, route, count, False, size=count * step, again=True
        ):
            self._publish(buf[pos], buf[body:end], route)
            return end
        if self._bounded and 0 < self.protocol.payload_bytes < end - start - v5 - said:
            self._publish(buf[pos], buf[body:end], route)
            return end
        as_qos = self.broker.counts_as[qos]
        run = Run(session, route, as_qos, count, self._encodings[qos], buf[pos:stop])
        run.size = end - start - v5 - said
        if not qos:
            self.broker.publish(run)
            return stop
        if qos > self.protocol.maximum_qos:
            check_offered(self.protocol, "a PUBLISH", qos, False)
        run.offset = mark - pos
        acknowledgements = acknowledgements_of(run.image, run.offset, step, count, qos)
        if v5:
            self._publisher().check_window(count)
        if ids:
            session.open(ids)
            self._publisher().unreleased += count
        run.level = route.level or self.link.level
        self.broker.publish(run)
        self.link.hold(acknowledgements, False, run.level, run.upto)
        if v5 and not ids:
            self._publisher().owe(count, run.level, run.upto)
        return stop

    def _publish(self, head: int, body: bytes, route: Route | None = None) -> None:
        """Any other PUBLISH: retained, repeated, QoS 2, with properties. Its `route` if known."""
        session = self.session
        assert session is not None
        if not session.talks:
            session.speak()
        packet = codec.parse_publish(head, body, self._v5)
        check_offered(self.protocol, "a PUBLISH", packet.qos, packet.retain)
        properties, said, incoming = packet.properties, 0, self._publisher()
        alias = 0  # that stands for the topic
        if properties is not None:
            said = properties.count()
            alias = 0 if packet.topic else properties.numbers.get(spec.TOPIC_ALIAS, 0)
            packet = incoming.named(packet, properties)
            self.lasting = incoming.kept
        route = route or self._route_to(packet.topic)
        if packet.qos == 2 and packet.packet_id in session.state.open_ids:
            answer = codec.acknowledgement(codec.PUBREC, packet.packet_id)
            session.receive(packet.packet_id, answer)
            return
        code, why, most = spec.SUCCESS, "", self.protocol.payload_bytes
        if 0 < most < len(packet.payload):
            code, why = spec.QUOTA, f"mqtt.payload_bytes = {most} ({len(packet.payload)} bytes)"
            self.broker.refuse(session, verb_of(route.name), route.name, why)
        if properties is not None and not code:
            incoming.check_answer_address(session, properties, route)
            code = incoming.verdict(packet, properties, route)
            why = route.full if code == spec.QUOTA else ""
        if code < spec.UNSPECIFIED and packet.qos:
            why = incoming.lacks_room(session, packet, route)
            code = spec.QUOTA if why else code
        level, upto = route.level or self.link.level, 0
        if packet.qos == 2 and any(one.session is session for one in route.subscriptions):
            session.put_aside()
        if code < spec.UNSPECIFIED:
            taken_out = said - properties.count() if properties is not None else 0
            if properties is not None and taken_out == (alias > 0):
                incoming.learn(body, packet, properties, alias)
            body = codec.publish_body(packet) if taken_out else body
            level, upto = self._take(session, packet, route, body)
        else:
            self.broker.metrics.drop(spec.REASONS[code].name)
        if packet.qos:
            kind = codec.PUBACK if packet.qos == 1 else codec.PUBREC
            reason = b""
            if code >= spec.UNSPECIFIED:
                reason = self._reason(why or spec.REASONS[code].name).encode()
            answer = codec.acknowledgement(kind, packet.packet_id, code, reason)
            if packet.qos == 2:
                session.receive(packet.packet_id, answer, level)
            else:
                self.link.hold(answer, False, level, upto)
            if self._v5 and packet.qos == 1:
                incoming.owe(1, level, upto)

    def _take(
        self, session: MqttSession, packet: codec.Publish, route: Route, body: bytes
    ) -> tuple[int, int]:
        """Publish it; the level of its answer, and what that waits for (`Link.hold`)."""
        head = bytes((codec.PUBLISH << 4 | packet.qos << 1,)) + codec.length(len(body))
        encoding = self._encodings[packet.qos]
        as_qos = self.broker.counts_as[packet.qos]
        run = Run(session, route, as_qos, 1, encoding, head + body, packet.retain)
        run.size = len(packet.payload)
        run.level = route.level or self.link.level
        if packet.qos:
            run.offset = len(head) + 2 + len(packet.topic)
        if packet.qos == 2:
            self._publisher().unreleased += 1
            if session.serial is not None:
                session.serial.take(packet.packet_id)
            session.open((packet.packet_id,))
            if session.lasting:
                run.number = packet.packet_id
        if session.requests and route.allowed:
            session.publish_answer(run)
        else:
            self.broker.publish(run)
        return run.level, run.upto

    def _pubrel(self, body: bytes) -> None:
        """The publisher may reuse its packet id once this is durable (PUBCOMP is held)."""
        session = self.session
        assert session is not None
        packet_id, _ = codec.parse_acknowledgement(codec.PUBREL, body, self._v5)
        known = packet_id in session.state.open_ids
        if known:
            incoming = self._publisher()
            incoming.unreleased = max(0, incoming.unreleased - 1)
            if session.lasting:
                self.broker.change(row_about(session, RELEASE, number=packet_id))
            else:
                session.state.open_ids.discard(packet_id)
        code = spec.ID_UNKNOWN if self._v5 and not known else spec.SUCCESS
        session.complete(packet_id, codec.acknowledgement(codec.PUBCOMP, packet_id, code))

    # Acknowledgements of what the client received

    def _puback(self, body: bytes) -> None:
        assert self.session is not None
        self.session.puback(codec.parse_acknowledgement(codec.PUBACK, body, self._v5)[0])

    def _pubrec(self, body: bytes) -> None:
        """With a reason code of a failure the exchange is over (5.0, 4.3.3)."""
        assert self.session is not None
        packet_id, code = codec.parse_acknowledgement(codec.PUBREC, body, self._v5)
        if code < spec.UNSPECIFIED:
            self.session.pubrec(packet_id)
        else:
            self.session.declined(packet_id)

    def _pubcomp(self, body: bytes) -> None:
        assert self.session is not None
        self.session.pubcomp(codec.parse_acknowledgement(codec.PUBCOMP, body, self._v5)[0])

    # Subscribing

    def _subscribe(self, body: bytes) -> None:
        assert self.session is not None
        self._begin(subscribe(self.protocol, self.session, body, self._old, self._bridge))

    def _unsubscribe(self, body: bytes) -> None:
        assert self.session is not None
        self._begin(unsubscribe(self.protocol, self.session, body))

    # Life

    def _pingreq(self, body: bytes) -> None:
        if body:
            raise PacketError("a PINGREQ with a body")
        self.link.write(codec.PINGRESP_PACKET)

    def _disconnect(self, body: bytes) -> None:
        """The will is forgotten, unless a client of 5.0 says that something is wrong."""
        code = spec.SUCCESS
        if self._v5:
            code, properties = codec.parse_ending(codec.DISCONNECT, body)
            self._expiry = changed_lifetime(self.protocol, self._expiry, properties)
        if code == spec.SUCCESS:
            self._will = None
        self._finish(spec.REASONS[code].name if code else "")

    def wake(self, now: float) -> float:
        session = self.session
        if self._way is not None:  # whoever has its session sees to that
            self.restless = False
            return NEVER
        self.restless = session is None  # from then on it only ever waits longer
        if now - self._heard >= self._patience and self.state != OVER:
            said = "no CONNECT" if session is None else "nothing"
            told = self._v5 and self._patience == 1.5 * (most := self.protocol.max_keepalive)
            why = f"; it was told {most} s, mqtt.max_keepalive" if told else ""
            self._finish(f"keep alive: {said} for {now - self._heard:.1f} s{why}", spec.SILENCE)
        return self._heard + self._patience

    def drained(self) -> None:
        if self.session is not None:
            self.session.resume()
        elif self._way is not None:
            self._way.drained()

    def listens(self, now: float) -> None:
        self._heard = now

    def goodbye(self) -> None:
        """Before 5.0 there is no word for it. The will is published as ever (5.0, 3.1.2.5)."""
        if self._v5 and (place := self.protocol.elsewhere(self.session)):
            code, properties = referral(self.protocol, place)
            self.link.hold(codec.disconnect(code, properties.encode()))
            self._finish("the hub is stopping")
        else:
            self._finish("the hub is stopping", spec.STOPPING)

    def show_out(self, reason: str) -> None:
        self._finish(reason, spec.NOT_ALLOWED)

    def lost(self, reason: str) -> None:
        self._finish(reason or "connection lost")

    def _finish(self, reason: str, code: int = spec.SUCCESS) -> None:
        """The session leaves the connection: once, whoever ends it first.

        A `code` is told to a client of 5.0.
        """
        if self.state == OVER:
            return
        if code and (self.session is not None or self._way is not None):
            self._say_last(code, reason)
        self.state = OVER
        way, self._way = self._way, None
        if way is not None:
            way.lost(reason)
        self.asking = False
        self.link.close(reason)
        self.broker.shortcuts.forget(self._routes)
        session, self.session = self.session, None
        if session is not None:
            session.detach()
            will, self._will = self._will, None
            self.protocol.leave(session, reason, self._expiry, will)


Handler = Callable[[MqttConnection, bytes], None]

# What a client may send in each state. PUBLISH is taken by `_packet`, because it is nearly all.
_FOLLOWS: Final[dict[int, dict[int, Handler]]] = {
    NEW: {codec.CONNECT: MqttConnection._connect},  # [3.1.0-1]
    PROVING: {  # [3.1.2-30]
        codec.AUTH: MqttConnection._auth,
        codec.DISCONNECT: MqttConnection._give_up,
    },
    CONNECTED: {
        codec.CONNECT: MqttConnection._second_connect,
        codec.PUBACK: MqttConnection._puback,
        codec.PUBREC: MqttConnection._pubrec,
        codec.PUBREL: MqttConnection._pubrel,
        codec.PUBCOMP: MqttConnection._pubcomp,
        codec.SUBSCRIBE: MqttConnection._subscribe,
        codec.UNSUBSCRIBE: MqttConnection._unsubscribe,
        codec.PINGREQ: MqttConnection._pingreq,
        codec.DISCONNECT: MqttConnection._disconnect,
        codec.AUTH: MqttConnection._auth,  # to authenticate again: [4.12.1-1]
    },
    OVER: {},
}
_WHERE: Final = {
    NEW: "before the CONNECT", PROVING: "instead of an AUTH", CONNECTED: "from a client",
    OVER: "after the end",
}  # fmt: skip
