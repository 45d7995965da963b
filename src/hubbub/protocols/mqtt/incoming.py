"""What a client publishes: in 5.0 topic aliases, the receive maximum, what it says.

Called by the connection. No I/O.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hubbub.core.limits import PLAIN_PROPERTIES
from hubbub.core.route import Route
from hubbub.core.topics import QUEUE, is_name
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError, Properties, Publish
from hubbub.protocols.mqtt.session import MqttSession
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.schema import name_from_wire
from hubbub.wire.text import is_plain

_UNKNOWN: Final = (0, b"")  # properties that were not read yet


class Incoming:
    """Of one connection. `unreleased`: its QoS 2 publishes that wait for a PUBREL. `kept`: bytes of
    its will, and of the topics that it has aliases for.
    """

    __slots__ = ("_aliases", "_due", "_log", "_mqtt", "_owed", "kept", "unreleased")

    def __init__(self, mqtt: Sessions) -> None:
        self.unreleased = self.kept = 0
        self._mqtt = mqtt
        self._log = mqtt.broker.log
        self._aliases: dict[int, bytes] | None = None  # until it says one
        self._due: deque[tuple[int, int, int]] | None = None  # until something is
        self._owed = 0

    def check_window(self, count: int) -> None:
        """A client may leave so many publishes unanswered and no more (3.3.4)."""
        due, safe = self._due, self._log.safe
        while due and due[0][0] <= safe(due[0][1]):
            self._owed -= due.popleft()[2]
        most = self._mqtt.receive_maximum
        if self._owed + self.unreleased + count > most:
            raise PacketError(f"more than {most} publishes that are not answered", spec.TOO_MANY)

    def owe(self, count: int, level: int, upto: int = 0) -> None:
        """So many PUBACKs wait until the rows made so far are as safe as that level says, or those
        up to `upto` (`Link.hold`).
        """
        log = self._log
        position = upto or log.position
        if position > log.safe(level):
            if self._due is None:
                self._due = deque()
            self._due.append((position, level, count))
            self._owed += count

    def named(self, packet: Publish, properties: Properties) -> Publish:
        """The packet with its topic instead of an alias (3.3.2.3.4)."""
        if properties.subscriptions:
            raise PacketError("a PUBLISH of a client with a subscription identifier", spec.PROTOCOL)
        alias = properties.numbers.pop(spec.TOPIC_ALIAS, None)
        if alias is not None:
            if not 0 < alias <= self._mqtt.topic_alias_maximum:
                raise PacketError(f"a PUBLISH with topic alias {alias}", spec.BAD_ALIAS)
            known = self._aliases = self._aliases or {}
            if packet.topic:
                self.kept += len(packet.topic) - len(known.get(alias, b""))
                known[alias] = packet.topic
            elif alias in known:
                return Publish(known[alias], *packet[1:])
        if not packet.topic:
            raise PacketError("a PUBLISH without a topic", spec.PROTOCOL)
        return packet

    def spelled_out(
        self, buf: bytes, pos: int, body: int, start: int, begin: int, end: int
    ) -> bytes:  # fmt: skip
        """The PUBLISH at `pos`, with the topic that its alias stands for: b"" if properties like
        these, from `start` to `begin`, were not read yet, or would end in the next packet.
        """
        if begin > end:
            return b""
        alias, rest = self._mqtt.aliased_properties.get(buf[start:begin], _UNKNOWN)
        topic = self._aliases.get(alias) if self._aliases else None
        if topic is None:
            return b""
        said = buf[body + 2 : start] + rest
        return codec.put_together(buf[pos] & 15, codec.string(topic), said, buf[begin:end])

    def learn(self, body: bytes, packet: Publish, properties: Properties, alias: int) -> None:
        """Remember what it says, if the next message that says the same need not be looked at.

        `alias`: what stands for its topic, and is not in its properties any more; 0 = nothing.
        """
        start = 2 + (0 if alias else len(packet.topic)) + (2 if packet.qos else 0)
        said = body[start]
        if not 0 < said < 128 or spec.PAYLOAD_FORMAT in properties.numbers:
            return
        if spec.RESPONSE_TOPIC in properties.texts or spec.CORRELATION in properties.texts:
            return
        plain, aliased = self._mqtt.plain_properties, self._mqtt.aliased_properties
        if len(plain) + len(aliased) >= PLAIN_PROPERTIES:
            plain.clear()
            aliased.clear()
        if alias:
            aliased[body[start : start + 1 + said]] = alias, properties.encode()
        else:
            plain.add(body[start : start + 1 + said])

    def verdict(self, packet: Publish, properties: Properties, route: Route) -> int:
        """The reason code of the answer; from 0x80 on the message is not taken."""
        if packet.qos:
            self.check_window(1)
        code = check_message(properties, packet.payload, packet.qos)
        if code:
            return code
        if route.full:
            return spec.QUOTA
        if not route.allowed:
            if route.takes:
                return spec.SUCCESS
            return spec.BAD_TOPIC if route.name == QUEUE else spec.NOT_ALLOWED
        return spec.SUCCESS if route.subscriptions or not packet.qos else spec.NO_SUBSCRIBERS

    def check_answer_address(
        self, session: MqttSession, properties: Properties, route: Route
    ) -> None:
        """A response topic to which nobody here may publish is left out."""
        broker, said = self._mqtt.broker, properties.texts.get(spec.RESPONSE_TOPIC)
        if said is None or session.rights is broker.open:
            return
        address = session.dialect.full(name_from_wire(said))
        if not broker.replies.possible(session, address, route):
            del properties.texts[spec.RESPONSE_TOPIC]

    def lacks_room(self, sender: MqttSession, packet: Publish, route: Route) -> str:
        """Why a bound would lose the message, which 0x97 says; "" if none does.

        Before 5.0 a PUBACK cannot refuse, and one for what was lost would be a lie: the
        connection is closed, and the client repeats the message on its next one (4.4).
        """
        broker, retain = self._mqtt.broker, packet.retain and packet.payload != b""
        size, properties = len(packet.payload), packet.properties
        if properties is not None and spec.RESPONSE_TOPIC in properties.texts:
            lacks = broker.replies.lacks(sender)
            if lacks:
                return lacks
        lacks = broker.lacks_room(sender, route, 1, retain, size=size)
        if lacks and properties is None:
            broker.metrics.drop(spec.REASONS[spec.QUOTA].name)
            raise PacketError(f"no room for a message to {route.name[:80]!r}: {lacks}", spec.QUOTA)
        return lacks


def topic_name(topic: bytes) -> str:
    """What a PUBLISH may name; a PacketError says what is wrong."""
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        raise PacketError("a PUBLISH whose topic is not UTF-8") from None
    if _is_topic(name):
        return name
    if "\0" in name:
        raise PacketError("a PUBLISH whose topic contains U+0000")
    if not is_plain(name):
        raise PacketError(f"a PUBLISH to {name[:80]!r}, which has a control character")
    reason = f"a PUBLISH to {name[:80]!r}, which is not a topic name"
    raise PacketError(reason, spec.BAD_TOPIC)


def _is_topic(name: str) -> bool:
    """Whether MQTT has such a topic. Of what is none a client would say the same again on its next
    connection; of what only this hub has no use for it is told in the answer.
    """
    return is_name(name) or name == QUEUE


def check_message(properties: Properties, payload: bytes, qos: int = 0) -> int:
    """What a PUBLISH or a will may not say is a PacketError, with QoS 1 and 2 an answer."""
    topic = properties.texts.get(spec.RESPONSE_TOPIC)
    if topic is not None and not is_plain(name_from_wire(topic)):
        raise PacketError("a response topic with a control character")
    if topic is not None and not _is_topic(name_from_wire(topic)):
        raise PacketError("a response topic that is not a topic name", spec.PROTOCOL)
    if properties.numbers.get(spec.PAYLOAD_FORMAT):
        try:
            payload.decode()
        except UnicodeDecodeError:
            if not qos:
                raise PacketError("a payload that is not UTF-8", spec.BAD_PAYLOAD) from None
            return spec.BAD_PAYLOAD
    return spec.SUCCESS


def acknowledgements_of(image: bytes, offset: int, step: int, count: int, qos: int) -> bytes:
    """The PUBACKs or PUBRECs of a run, made from the packet ids in its image."""
    head = b"\x40\x02" if qos == 1 else b"\x50\x02"
    if count == 1:
        identifier = image[offset : offset + 2]
        if identifier == b"\0\0":
            raise PacketError("a PUBLISH with packet id 0", spec.PROTOCOL)
        return head + identifier
    high, low = image[offset::step], image[offset + 1 :: step]
    if 0 in low and (0, 0) in zip(high, low, strict=True):
        raise PacketError("a PUBLISH with packet id 0", spec.PROTOCOL)
    answers = bytearray((head + b"\0\0") * count)
    answers[2::4] = high
    answers[3::4] = low
    return bytes(answers)
