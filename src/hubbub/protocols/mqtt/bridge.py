"""A bridge: this hub as a client of another broker. The dialer connects it, the hub opens it.

    local name   here/a/b  ── out: local prefix off, remote prefix on ──>  there/a/b
                 here/a/b  <── in:  remote prefix off, local prefix on ──  there/a/b

What goes out is delivered to a lasting session, as to any client, so it waits in the journal
while the broker cannot be reached, and the session's own pump, window and QoS 2 serve it. What
comes in is published by that session, and is promised to the broker when it is durable.

Nothing returns where it came from: the session does not take what it published itself, and the
broker is asked not to send us our own (5.0: the option no local; before, a protocol level that
says "bridge", which mosquitto knows and other brokers refuse: then plain 3.1.1 is spoken, and
such a broker sends back what crosses in both directions).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from hubbub import schema
from hubbub.config.settings import Bridge as BridgeSettings
from hubbub.config.settings import BridgeTopic, parse_bridge_topic
from hubbub.core.broker import Broker
from hubbub.core.client import drop
from hubbub.core.connection import NEVER, Connection
from hubbub.core.gate import Gate, Opening
from hubbub.core.link import Link
from hubbub.core.message import SPELLED, Message, Run, properties_column, run_of
from hubbub.core.route import Route
from hubbub.core.session import FOR_EVER, Silent, Subscription, row_about
from hubbub.core.state import lasting_properties
from hubbub.core.system import announce
from hubbub.core.topics import SYSTEM, is_filter, is_name, matches
from hubbub.core.turns import Stint
from hubbub.errors import ProtocolError, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.dialect import PLAIN, Dialect5
from hubbub.protocols.mqtt.numbering import PACKET_IDS, packet_id
from hubbub.protocols.mqtt.session import ANY_PACKET, TOO_LARGE, MqttSession
from hubbub.schema import RELEASE, name_from_wire, name_to_wire
from hubbub.wire.bytes import Gathering

PROTOCOL: Final = "bridge"
NOT_CROSSING: Final = "no topic of the bridge"

log = logging.getLogger("hubbub.bridge")


class Speech:
    """One way to speak to the broker: a protocol level, and whether it is 5.0."""

    def __init__(self, name: str, level: int, v5: bool) -> None:
        self.name = name
        self.level = level
        self.v5 = v5


SPEECHES: Final = {
    "5.0": Speech("5.0", codec.V5, True),
    "bridge": Speech("3.1.1 as a bridge", codec.V311 | codec.BRIDGE, False),
    "3.1.1": Speech("3.1.1", codec.V311, False),
}


class Topics:
    """What crosses, and under which name. A name is matched by prefix; the first entry wins."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        topics = [parse_bridge_topic(text) for text in texts]
        for topic in topics:
            names = topic.local + topic.filter, topic.remote + topic.filter
            for name, ours in zip(names, (True, topic.out), strict=True):
                if not is_filter(name) or (ours and name.startswith("$")):
                    raise SettingError(
                        f"bridge.topics: {name!r} is not a topic filter, or under `$`, where "
                        "nothing crosses but what comes in from over there"
                    )
        self.out = [topic for topic in topics if topic.out]
        self.into = [topic for topic in topics if topic.into]

    def wishes(self) -> dict[str, int]:
        """What the bridge subscribes to here: filter -> QoS."""
        return _highest((topic.local + topic.filter, topic.qos) for topic in self.out)

    def wanted(self) -> dict[str, int]:
        """What it subscribes to over there."""
        return _highest((topic.remote + topic.filter, topic.qos) for topic in self.into)

    def outward(self, name: str) -> str:
        """The name over there, "" if nothing of that name goes out."""
        return _renamed([(t, t.local, t.remote) for t in self.out], name)

    def inward(self, name: str) -> str:
        return _renamed([(t, t.remote, t.local) for t in self.into], name)


def _highest(wishes: Iterator[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic_filter, qos in wishes:
        found[topic_filter] = max(qos, found.get(topic_filter, 0))
    return found


def _renamed(rules: list[tuple[BridgeTopic, str, str]], name: str) -> str:
    """Its name on the other side. Of names with `$` it is one only where the settings say `$`."""
    for topic, old, new in rules:
        if matches(old + topic.filter, name):
            found = new + name[len(old) :]
            return found if matches(new + topic.filter, found) else ""
    return ""


class BridgeSession(MqttSession):
    """The lasting session of one bridge; not a client, so nobody observes or addresses it.

    `qos_limit`, `retains` and `packet_limit` are what the broker said it can take; `keeps`:
    whether it shall retain what is retained here. `cut`: it is cut off by hand.
    """

    def __init__(self, broker: Broker, name: str, topics: Topics, keeps: bool = True) -> None:
        super().__init__(broker, name, broker.open, True)
        self.protocol = PROTOCOL
        self.traffic = broker.metrics.of(PROTOCOL)
        self.topics = topics
        self.qos_limit = 2
        self.retains = True
        self.keeps = keeps
        self.cut = False
        self.began = 0
        self.asks_all = False
        self._begin()

    def _begin(self) -> None:
        """Take up what the journal remembers, and subscribe to what the settings say now."""
        broker, wishes = self.broker, self.topics.wishes()
        state = broker.state.sessions.get((PROTOCOL, self.client))
        if state is None:
            broker.change(self.connect_row())
            broker.change(row_about(self, schema.DISCONNECT))
            state = broker.state.sessions[PROTOCOL, self.client]
        self.remember(state)
        self.began, self.asks_all = state.began, not state.began
        known = dict(state.subscriptions)
        for topic_filter, (qos, _) in known.items():
            self.subscriptions[topic_filter] = self._wish(topic_filter, qos)
        broker.revive(self, state)
        for topic_filter in known:
            if topic_filter not in wishes:
                broker.unsubscribe(self, topic_filter)
        for topic_filter, qos in wishes.items():
            if known.get(topic_filter, (-1, b""))[0] != qos:
                wish = self._wish(topic_filter, qos)
                broker.subscribe(wish)
                broker.offer_retained(wish)
        broker.age += 1

    def _wish(self, topic_filter: str, qos: int) -> Subscription:
        return Subscription(self, topic_filter, qos, (SPELLED, SPELLED, SPELLED), no_local=True)

    def connect_row(self) -> schema.Row:
        said = lasting_properties(FOR_EVER, self.address, began=self.began)
        return row_about(self, schema.CONNECT, number=self.backlog.next, properties=said)

    def join(self, link: Link, window: int) -> None:
        """The broker has accepted us."""
        self.link = link
        self.window = min(self.broker.inflight, window)
        self.resume()

    # Deliveries

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if min(run.qos, subscription.qos):
            self.pump()  # the broker has put it into the backlog of a lasting session
            return
        for message in run.messages():
            self._pass(message)

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        if min(message.qos, subscription.qos):
            self.pump()
        else:
            self._pass(message)

    def _pass(self, message: Message) -> None:
        """QoS 0: now or never."""
        link = self.link
        if link is None or link.choked:
            drop(self.broker, self, "bridge is down" if link is None else "slow consumer", 1)
            return
        if not self.topics.outward(message.topic):
            drop(self.broker, self, NOT_CROSSING, 1)
            return
        packet = self._packet(message, 0)
        if len(packet) > self.packet_limit:
            drop(self.broker, self, TOO_LARGE, 1)
        else:
            self.traffic.delivered += 1
            link.write(packet)

    def asks_little(self) -> bool:
        return False  # names, QoS and RETAIN are others over there

    def _send(self, link: Link, number: int) -> None:
        backlog = self.backlog
        seq, qos = backlog.seq(number), self.sent_qos(number)
        message = self.broker.log.read(seq)
        if message is None or 0 < message.expires <= self.broker.clock.stamp():
            self._skip(number, seq, "gone" if message is None else "expired")
            return
        if not self.topics.outward(message.topic):
            self._skip(number, seq, NOT_CROSSING)
            return
        packet = self._packet(message, qos, packet_id(number), number < backlog.tried)
        if len(packet) > self.packet_limit:
            self._skip(number, seq, TOO_LARGE)
            return
        backlog.sent += 1
        self.traffic.delivered += 1
        if qos == 2:
            link.hold(packet)
        else:
            link.write(packet)
        if not qos:
            self._over(number, seq)  # the broker over there takes no more, so nobody will answer

    def sent_qos(self, number: int) -> int:
        return min(self.backlog.qos(number), self.qos_limit)

    def _packet(self, message: Message, qos: int, identifier: int = 0, dup: bool = False) -> bytes:
        """The PUBLISH under its name over there."""
        encoded = b""
        if isinstance(self.dialect, Dialect5):
            properties = self.dialect.properties(message)
            answer = properties.texts.pop(spec.RESPONSE_TOPIC, b"")
            if answer and not answer.startswith(b"$"):  # our $client/… is nobody over there
                name = self.topics.outward(name_from_wire(answer))
                properties.texts[spec.RESPONSE_TOPIC] = name_to_wire(name) or answer
            encoded = properties.encode()
        return codec.publish(
            name_to_wire(self.topics.outward(message.topic)), message.payload, qos,
            message.retain and self.retains and self.keeps, identifier, dup and qos > 0, encoded,
        )  # fmt: skip

    def received(self, packet: codec.Publish) -> Message | None:
        """A message from over there under its name here; None if it has none."""
        name = self.topics.inward(name_from_wire(packet.topic))
        if not is_name(name):
            return None
        message = self.dialect.message(packet, self, packet.retain)
        message.topic, message.qos = name, self.broker.counts_as[packet.qos]
        if message.reply_to.startswith("$"):
            message.reply_to = ""
        elif message.reply_to:
            message.reply_to = self.topics.inward(message.reply_to) or message.reply_to
        return message


class Bridge:
    """One `[[bridge]]`: its session, and how to speak to its broker."""

    def __init__(self, broker: Broker, settings: BridgeSettings, hostname: str) -> None:
        self.broker = broker
        self.settings = settings
        self.client_id = settings.client_id or f"{hostname}.{settings.name}"
        self.topics = Topics(settings.topics)
        self.session = BridgeSession(broker, settings.name, self.topics, settings.retain)
        self.up = False
        self.reading = f"{SYSTEM}/broker/connection/{settings.name}/state"
        broker.readings[self.reading] = lambda: str(int(self.up))
        self._speeches = [
            speech for name, speech in SPEECHES.items()
            if (settings.version == "5.0" or not speech.v5)
            and (settings.try_private or name != "bridge")
        ]  # fmt: skip
        self._turn = 0
        self._connection: BridgeConnection | None = None

    @property
    def speech(self) -> Speech:
        return self._speeches[self._turn % len(self._speeches)]

    def speak_otherwise(self) -> None:
        """The broker does not know this version: the next attempt takes another."""
        self._turn += 1
        log.info("bridge %s: trying MQTT %s", self.settings.name, self.speech.name)

    def connect(self, link: Link, address: str) -> Connection:
        self._connection = BridgeConnection(self, link, address)
        return self._connection

    def goodbye(self, reason: str) -> None:
        """Its connection, if there is one, is to end."""
        if self._connection is not None:
            self._connection.leave(reason)

    def change(self, up: bool) -> None:
        if self.up != up:
            self.up = up
            if not up:
                self._turn = 0  # the broker may be a newer one when it comes back
            announce(self.broker, self.reading)


def open_bridges(
    broker: Broker, settings: tuple[BridgeSettings, ...], hostname: str
) -> list[Bridge]:
    """All bridges of the settings. What was kept for one that is there no more is let go."""
    names = [one.name for one in settings]
    if len(set(names)) < len(names):
        raise SettingError("bridge.name: two bridges have the same name")
    for protocol, name in list(broker.state.sessions):
        if protocol == PROTOCOL and name not in names:
            broker.end(Silent(protocol, name, broker.open))
    return [Bridge(broker, one, hostname) for one in settings]


class BridgeConnection(Connection):
    """One conversation with the broker, in which we are the client."""

    def __init__(self, bridge: Bridge, link: Link, address: str) -> None:
        super().__init__(bridge.broker, link, Opening(Gate(bridge.broker.open), address))
        self.bridge = bridge
        self.session = bridge.session
        self.speech = bridge.speech
        self.welcome = False
        self._gathering = Gathering()
        self._heard = self._pinged = self.broker.clock.now()
        self._patience: float = float(bridge.settings.keep_alive)
        self._over = False
        self._answers = {
            codec.CONNACK: self._connack,
            codec.SUBACK: self._suback,
            codec.PUBACK: self._puback,
            codec.PUBREC: self._pubrec,
            codec.PUBREL: self._pubrel,
            codec.PUBCOMP: self._pubcomp,
            codec.PINGREQ: self._pingreq,
            codec.PINGRESP: self._pingresp,
            codec.DISCONNECT: self._disconnect,
        }

    def start(self) -> None:
        settings, properties = self.bridge.settings, None
        if self.speech.v5:
            expiry = 0 if settings.clean else FOR_EVER
            properties = codec.Properties({spec.SESSION_EXPIRY: expiry})
        packet = codec.connect(
            self.bridge.client_id.encode(), settings.clean, settings.keep_alive, None,
            settings.user.encode() if settings.user else None,
            settings.password.encode() if settings.password else None, properties,
        )  # fmt: skip
        at = packet.index(b"MQTT") + 4
        self.link.write(packet[:at] + bytes((self.speech.level,)) + packet[at + 1 :])

    # Bytes

    def feed(self, data: bytes) -> None:
        """A broker that has much for us may say thirteen thousand packets in one read."""
        self._heard = now = self.broker.clock.now()
        gathered = self._gathering.add(data)
        if gathered is None or self._over or self.link.closing:
            return  # behind what was wrong nothing is known to begin
        stint, at = Stint(self.broker.clock, now), 0
        for start, body, end in codec.packets(gathered):
            self._packet(gathered[start], gathered[body:end])
            at = end
            if self._over:
                return
            if stint.over() and at < len(gathered):
                self.put_off()
                self._gathering.block(gathered[at:])
                return
        if at < len(gathered):
            _, end = codec.extent(gathered, at)
            self._gathering.keep(gathered[at:], end - at)

    def proceed(self) -> None:
        self.feed(self._gathering.unblock())

    def _packet(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.PUBLISH and self.welcome:
            self._publish(head, body)
            return
        answer = self._answers.get(kind)
        if answer is None or self.welcome == (kind == codec.CONNACK):
            raise ProtocolError(f"an unexpected {codec.NAMES[kind]} from the broker")
        answer(body)

    def _answer(self, kind: int, body: bytes) -> tuple[int, int]:
        """The packet id and the reason code of an acknowledgement."""
        if not self.speech.v5:
            return codec.parse_packet_id(kind, body), 0
        answer = codec.parse_answer(kind, body)
        return answer.packet_id, answer.codes[0]

    # Connecting

    def _connack(self, body: bytes) -> None:
        if len(body) < 2:
            raise ProtocolError("a CONNACK of less than two bytes")
        present, code = body[0] & 1 == 1, body[1]
        if code in (codec.BAD_VERSION, spec.BAD_LEVEL):
            self.bridge.speak_otherwise()
        if code:
            raise ProtocolError(self._refusal(code))
        self.welcome = True
        window = 65_535
        if self.speech.v5:
            window = self._take_limits(codec.parse_answer(codec.CONNACK, body).properties)
        session = self.session
        session.dialect = Dialect5(self.broker.clock) if self.speech.v5 else PLAIN
        if not present:
            self._forget_open_ids()
        session.address = self.opening.address
        session.began = session.began or self.broker.clock.stamp()
        self.broker.change(session.connect_row())
        self._subscribe()
        session.join(self.link, window)
        self.bridge.change(True)
        log.info(
            "bridge %s: connected to %s with MQTT %s",
            session.client, self.opening.address, self.speech.name,
        )  # fmt: skip

    def _refusal(self, code: int) -> str:
        """Why the broker does not let the bridge in. A line of the log, but where it only asks for
        another version.
        """
        plain = codec.RETURN_CODES[code] if code < len(codec.RETURN_CODES) else "no reason"
        reason = spec.REASONS.get(code)
        why = f"refused: {reason.name if reason is not None else plain} ({code:#04x})"
        if code not in (codec.BAD_VERSION, spec.BAD_LEVEL):
            user = self.bridge.settings.user
            log.warning(
                "bridge %s: %s at %s, which was shown %s", self.session.client, why,
                self.opening.address, f"user {user!r}" if user else "no user name",
            )  # fmt: skip
        return why

    def _take_limits(self, properties: codec.Properties) -> int:
        """What the broker allows; its receive maximum is the window."""
        numbers, session = properties.numbers, self.session
        session.qos_limit = numbers.get(spec.MAXIMUM_QOS, 2)
        session.retains = numbers.get(spec.RETAIN_AVAILABLE, 1) == 1
        session.packet_limit = numbers.get(spec.MAXIMUM_PACKET, ANY_PACKET)
        patience = numbers.get(spec.SERVER_KEEP_ALIVE, self.bridge.settings.keep_alive)
        self._patience = float(patience) or NEVER  # [MQTT-3.1.2.10]: 0 turns it off
        return numbers.get(spec.RECEIVE_MAXIMUM, 65_535)

    def _forget_open_ids(self) -> None:
        """The broker's session is new: its packet ids of QoS 2 mean other messages now."""
        for identifier in sorted(self.session.state.open_ids):
            self.broker.change(row_about(self.session, RELEASE, number=identifier))

    def _subscribe(self) -> None:
        options = 0
        if self.speech.v5:
            # Retained messages come with a new subscription only, not with each reconnection; and
            # at first, for the broker may have a session of that name: a bridge took it over.
            handling = 0 if self.session.asks_all else 1
            options = codec.NO_LOCAL | codec.AS_PUBLISHED | handling << codec.HANDLING_SHIFT
        properties = codec.NO_PROPERTIES if self.speech.v5 else b""
        wanted = [
            (name.encode(), qos | options) for name, qos in self.bridge.topics.wanted().items()
        ]
        if wanted:
            # Far ahead of all that is in flight, and another one each time (2.3.1).
            identifier = packet_id(self.session.backlog.next + PACKET_IDS // 2)
            self.link.write(codec.subscribe(identifier, wanted, properties))

    def _suback(self, body: bytes) -> None:
        self.session.asks_all = False
        codes = codec.parse_answer(codec.SUBACK, body).codes if self.speech.v5 else body[2:]
        for name, code in zip(self.bridge.topics.wanted(), codes, strict=False):
            if code & codec.FAILURE:
                log.warning("bridge %s: the broker refuses %s", self.session.client, name)

    # What comes in

    def _publish(self, head: int, body: bytes) -> None:
        session = self.session
        packet = codec.parse_publish(head, body, self.speech.v5)
        if packet.qos == 2 and packet.packet_id in session.state.open_ids:
            self.link.hold(codec.acknowledgement(codec.PUBREC, packet.packet_id))
            return
        message = session.received(packet)
        level, code = 0, spec.SUCCESS
        if message is not None:
            route = self.broker.route(session, message.topic)
            if packet.qos and self._lacks_room(route, message):
                code = spec.QUOTA
            run = run_of(message, session, route)
            run.number = packet.packet_id if packet.qos == 2 and not code else 0
            self.broker.publish(run)
            level = route.level
        else:
            self.broker.metrics.drop(NOT_CROSSING)
        if packet.qos:
            kind = codec.PUBACK if packet.qos == 1 else codec.PUBREC
            said = codec.acknowledgement(kind, packet.packet_id, code if self.speech.v5 else 0)
            self.link.hold(said, level=level)

    def _lacks_room(self, route: Route, message: Message) -> bool:
        """Whether another node does not get it, as it is full: it is let go, for to withhold an
        acknowledgement is to withhold all behind it. A full disk here is another matter.
        """
        qos, size = message.qos, len(message.payload)
        if not self.broker.lacks_room(self.session, route, 1, False, qos, size):
            return False
        if self.broker.no_room:
            raise ProtocolError(f"{self.broker.no_room}: what would stay here stays there")
        return True

    def _pubrel(self, body: bytes) -> None:
        identifier, _ = self._answer(codec.PUBREL, body)
        if identifier in self.session.state.open_ids:
            self.broker.change(row_about(self.session, RELEASE, number=identifier))
        self.link.hold(codec.acknowledgement(codec.PUBCOMP, identifier))

    # Acknowledgements of what went out

    def _puback(self, body: bytes) -> None:
        identifier, code = self._answer(codec.PUBACK, body)
        self._count_refusal(code)
        self.session.puback(identifier)

    def _pubrec(self, body: bytes) -> None:
        identifier, code = self._answer(codec.PUBREC, body)
        if code >= codec.FAILURE:
            self._count_refusal(code)
            self.session.declined(identifier)
        else:
            self.session.pubrec(identifier)

    def _pubcomp(self, body: bytes) -> None:
        identifier, _ = self._answer(codec.PUBCOMP, body)
        self.session.pubcomp(identifier)

    def _count_refusal(self, code: int) -> None:
        if code >= codec.FAILURE:
            self.broker.metrics.drop("refused by the bridge's broker")

    # Life

    def _pingreq(self, body: bytes) -> None:
        """Brokers do not say it, but for some that are bridges themselves."""
        self.link.write(codec.PINGRESP_PACKET)

    def _pingresp(self, body: bytes) -> None:
        """Having heard it is all there is to it."""

    def _disconnect(self, body: bytes) -> None:
        code = body[0] if body else 0
        raise ProtocolError(f"disconnected by the broker with code {code:#04x}")

    def listens(self, now: float) -> None:
        self._heard = now

    def wake(self, now: float) -> float:
        if self._over:
            return NEVER
        patience = self._patience
        if now - self._heard >= 1.5 * patience:
            self._finish(f"the broker said nothing for {now - self._heard:.0f} s")
        elif self.welcome and now - self._pinged >= patience / 2:
            self._pinged = now
            self.link.write(codec.PINGREQ_PACKET)
        return self._pinged + patience / 2

    def drained(self) -> None:
        self.session.resume()

    def goodbye(self) -> None:
        self.leave("the hub is stopping")

    def leave(self, reason: str) -> None:
        if self.welcome and not self._over:
            self.link.write(codec.DISCONNECT_PACKET)
        self._finish(reason)

    def lost(self, reason: str) -> None:
        if not self.welcome and not self._over and not reason:
            self.bridge.speak_otherwise()  # some close without a word
        self._finish(reason or "the broker closed the connection")

    def _finish(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self.link.close(reason)
        if self.welcome:
            self.session.detach()
            said = properties_column({"reason": reason})
            self.broker.change(row_about(self.session, schema.DISCONNECT, properties=said))
            self.bridge.change(False)
