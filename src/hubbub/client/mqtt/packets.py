"""The packets a client sends and reads, in every version, in terms of messages.

`level` is the protocol level: 3 is MQTT 3.1, 4 is 3.1.1, 5 is 5.0. Bytes and tables are the
codec's; this says which property is which field. Called by the connection.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from hubbub.client.mqtt.message import Limits, Message, User, Will
from hubbub.errors import Refused
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import Properties, specification

LEVELS: Final = {"3.1": 3, "3.1.1": 4, "5": 5, "5.0": 5, "3": 3, "4": 4}
VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}
ANSWERS: Final = frozenset(
    (codec.PUBACK, codec.PUBREC, codec.PUBCOMP, codec.SUBACK, codec.UNSUBACK)
)
MOVED: Final = frozenset((specification.USE_ANOTHER, specification.MOVED))
FAILURE: Final = 0x80  # reason codes from here on

# Properties by the field of `Limits` that they fill.
_LIMIT_NUMBERS: Final = {
    "receive_maximum": specification.RECEIVE_MAXIMUM,
    "maximum_qos": specification.MAXIMUM_QOS,
    "maximum_packet_size": specification.MAXIMUM_PACKET,
    "topic_alias_maximum": specification.TOPIC_ALIAS_MAXIMUM,
    "keep_alive": specification.SERVER_KEEP_ALIVE,
    "session_expiry": specification.SESSION_EXPIRY,
}
_LIMIT_FLAGS: Final = {
    "retain_available": specification.RETAIN_AVAILABLE,
    "wildcard_subscription_available": specification.WILDCARDS_AVAILABLE,
    "subscription_identifier_available": specification.SUBSCRIPTION_IDS_AVAILABLE,
    "shared_subscription_available": specification.SHARED_AVAILABLE,
}
_LIMIT_TEXTS: Final = {
    "assigned_client_id": specification.ASSIGNED_CLIENT,
    "response_information": specification.RESPONSE_INFORMATION,
    "server_reference": specification.SERVER_REFERENCE,
    "reason": specification.REASON_STRING,
}


class Refusal(Refused):
    """A broker said no. `code` is MQTT's reason code; `reference` another server to use."""

    def __init__(
        self, what: str, code: int, reason: str = "", reference: str = "", level: int = 5
    ) -> None:
        self.code = code
        self.reference = reference
        where = f": {reference}" if reference else ""
        super().__init__(f"{what}: {reason or _reason(code, level)}{where}")


def _reason(code: int, level: int) -> str:
    # Before MQTT 5 a CONNACK has codes of its own (3.1.1: 3.2.2.3), all below 0x80.
    if 0 < code < len(codec.RETURN_CODES):
        return codec.RETURN_CODES[code]
    known = specification.REASONS.get(code)
    return known.name if known is not None and level >= 5 else f"code {code:#04x}"


class Exchange(Protocol):
    """The client's side of an enhanced authentication (MQTT 5, 4.12)."""

    method: str

    def step(self, data: bytes) -> bytes:
        """What to say next, after the broker said `data`; b"" begins. Refused to give up."""


class Opening(NamedTuple):
    """Everything a CONNECT says. `clean` is `clean start` in MQTT 5."""

    level: int
    client_id: str
    clean: bool
    keep_alive: int
    will: Will | None
    user: str | None
    password: bytes | None
    session_expiry: int = 0
    receive_maximum: int = 0
    topic_alias_maximum: int = 0
    exchange: Exchange | None = None


class Options(NamedTuple):
    """What a subscription asks for. All but `qos` is for MQTT 5 (3.8.3.1)."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @property
    def bits(self) -> int:
        return (
            self.qos | self.no_local << 2 | self.retain_as_published << 3
            | self.retain_handling << 4
        )  # fmt: skip


class Answer(NamedTuple):
    """An acknowledgement: one code, or for SUBACK and UNSUBACK one for each filter."""

    kind: int
    packet_id: int
    codes: bytes = b"\0"
    reason: str = ""

    @property
    def code(self) -> int:
        return self.codes[0]

    @property
    def failed(self) -> bool:
        return self.codes[0] >= FAILURE


# To be sent


def connect(opening: Opening) -> bytes:
    will, user, five = None, opening.user, opening.level >= 5
    if opening.will is not None:
        topic, payload, qos, retain, *_ = opening.will
        properties = _will_properties(opening.will) if five else None
        will = codec.Will(topic.encode(), payload, qos, retain, properties)
    sent = codec.connect(
        opening.client_id.encode(), opening.clean, opening.keep_alive, will,
        user.encode() if user is not None else None, opening.password,
        _connect_properties(opening) if five else None,
    )  # fmt: skip
    if opening.level > codec.V31:
        return sent
    # 3.1 differs from 3.1.1 in its name only (3.1.2.1).
    _, _, rest = sent.partition(b"\0\4MQTT\4")
    return codec.packet(codec.CONNECT, codec.string(b"MQIsdp") + b"\3" + rest)


def _connect_properties(opening: Opening) -> Properties:
    numbers = {
        specification.SESSION_EXPIRY: opening.session_expiry,
        specification.RECEIVE_MAXIMUM: opening.receive_maximum,
        specification.TOPIC_ALIAS_MAXIMUM: opening.topic_alias_maximum,
        specification.REQUEST_RESPONSE: 1,
    }
    properties = Properties({key: number for key, number in numbers.items() if number})
    if opening.exchange is not None:
        properties.texts[specification.AUTH_METHOD] = opening.exchange.method.encode()
        properties.texts[specification.AUTH_DATA] = opening.exchange.step(b"")
    return properties


def _will_properties(will: Will) -> Properties:
    message = Message("", b"", content_type=will.content_type, expiry=will.expiry, user=will.user)
    properties = _message_properties(message)
    if will.delay:
        properties.numbers[specification.WILL_DELAY] = will.delay
    return properties


def _message_properties(message: Message) -> Properties:
    properties = Properties(user=[(name.encode(), value.encode()) for name, value in message.user])
    if message.text:
        properties.numbers[specification.PAYLOAD_FORMAT] = 1
    if message.expiry is not None:
        properties.numbers[specification.MESSAGE_EXPIRY] = message.expiry
    if message.content_type:
        properties.texts[specification.CONTENT_TYPE] = message.content_type.encode()
    if message.response_topic:
        properties.texts[specification.RESPONSE_TOPIC] = message.response_topic.encode()
    if message.correlation:
        properties.texts[specification.CORRELATION] = message.correlation
    return properties


def publish(
    level: int, message: Message, packet_id: int = 0, dup: bool = False, alias: int = 0,
    topic: str | None = None,
) -> bytes:  # fmt: skip
    """A PUBLISH; `topic`, if given, instead of the message's own: "" where an alias says it."""
    name = (message.topic if topic is None else topic).encode()
    encoded = b""
    if level >= 5:
        encoded = codec.NO_PROPERTIES
        if alias or not message.plain:
            properties = _message_properties(message)
            if alias:
                properties.numbers[specification.TOPIC_ALIAS] = alias
            encoded = properties.encode()
    return codec.publish(
        name, message.payload, message.qos, message.retain, packet_id, dup, encoded
    )


def subscribe(
    level: int, packet_id: int, filters: list[tuple[str, Options]], identifier: int = 0
) -> bytes:
    properties = Properties(subscriptions=[identifier] if identifier else [])
    return codec.subscribe(
        packet_id,
        [(name.encode(), options.bits if level >= 5 else options.qos) for name, options in filters],
        properties.encode() if level >= 5 else b"",
    )


def unsubscribe(level: int, packet_id: int, filters: list[str]) -> bytes:
    properties = codec.NO_PROPERTIES if level >= 5 else b""
    return codec.unsubscribe(packet_id, [name.encode() for name in filters], properties)


def disconnect(level: int, code: int = 0) -> bytes:
    """A DISCONNECT; in MQTT 5 it may say what went wrong."""
    return codec.disconnect(code) if level >= 5 and code else codec.DISCONNECT_PACKET


def auth(method: str, data: bytes) -> bytes:
    texts = {specification.AUTH_METHOD: method.encode(), specification.AUTH_DATA: data}
    return codec.auth(specification.CONTINUE, Properties(texts=texts).encode())


# To be read


def parse_connack(level: int, body: bytes) -> tuple[bool, int, Limits]:
    """Session present, code, and what the broker says of itself."""
    if level < 5 or len(body) == 2:
        # Also from a broker that does not know MQTT 5, to a CONNECT of it.
        reader = codec.Reader(body, "CONNACK")
        return reader.byte("flags") & 1 == 1, reader.byte("return code"), Limits()
    present, codes, properties = codec.parse_answer(codec.CONNACK, body)
    return present & 1 == 1, codes[0], _limits(properties)


def _limits(properties: Properties) -> Limits:
    numbers, texts = properties.numbers, properties.texts
    found: dict[str, Any] = {
        name: numbers[key] for name, key in _LIMIT_NUMBERS.items() if key in numbers
    }
    found |= {name: numbers[key] != 0 for name, key in _LIMIT_FLAGS.items() if key in numbers}
    found |= {name: texts[key].decode() for name, key in _LIMIT_TEXTS.items() if key in texts}
    data = texts.get(specification.AUTH_DATA, b"")
    return Limits(**found, authentication_data=data, user=_user(properties))


def _user(properties: Properties) -> User:
    return tuple((name.decode(), value.decode()) for name, value in properties.user)


def parse_publish(level: int, head: int, body: bytes) -> tuple[Message, int, int]:
    """The message, its packet id and the topic alias; an alias may stand for the topic."""
    packet = codec.parse_publish(head, body, level >= 5)
    message = Message(packet.topic.decode(), packet.payload, packet.qos, packet.retain)
    properties = packet.properties
    if properties is None or properties == _NONE:
        return message, packet.packet_id, 0
    numbers, texts = properties.numbers, properties.texts
    message = message._replace(
        content_type=_text(properties, specification.CONTENT_TYPE),
        response_topic=_text(properties, specification.RESPONSE_TOPIC),
        correlation=texts.get(specification.CORRELATION, b""),
        expiry=numbers.get(specification.MESSAGE_EXPIRY),
        text=numbers.get(specification.PAYLOAD_FORMAT, 0) == 1,
        user=_user(properties),
        subscription_ids=tuple(properties.subscriptions),
    )
    return message, packet.packet_id, numbers.get(specification.TOPIC_ALIAS, 0)


_NONE: Final = Properties()


def parse_answer(level: int, kind: int, body: bytes) -> Answer:
    """PUBACK, PUBREC, PUBCOMP, SUBACK or UNSUBACK."""
    if level < 5:
        reader = codec.Reader(body, codec.NAMES[kind])
        return Answer(kind, reader.packet_id(), body[2:] or b"\0")
    packet_id, codes, properties = codec.parse_answer(kind, body)
    return Answer(kind, packet_id, codes or b"\0", _text(properties, specification.REASON_STRING))


def _text(properties: Properties, key: int) -> str:
    return properties.texts.get(key, b"").decode()


def parse_disconnect(body: bytes) -> tuple[int, str, str]:
    """The code, its reason and another server, of the DISCONNECT that MQTT 5 brokers send."""
    code, properties = codec.parse_ending(codec.DISCONNECT, body)
    reference = _text(properties, specification.SERVER_REFERENCE)
    return code, _text(properties, specification.REASON_STRING), reference


def parse_auth(body: bytes) -> tuple[str, bytes]:
    """Method and data of an AUTH."""
    _, properties = codec.parse_ending(codec.AUTH, body)
    data = properties.texts.get(specification.AUTH_DATA, b"")
    return _text(properties, specification.AUTH_METHOD), data
