"""What a CONNECT asks and a CONNACK answers: lifetimes, wills, limits, refusals. No I/O.

Called by the connection. Section numbers are those of MQTT 5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hubbub.core import rights
from hubbub.core.message import Message, message_of, properties_column, row_of
from hubbub.core.session import FOR_EVER, Session
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.protocols.mqtt.dialect import SECOND, Dialect
from hubbub.schema import WILL, Row, name_to_wire

if TYPE_CHECKING:
    from hubbub.protocols.mqtt.protocol import Mqtt

# Why a gate says no, as a reason code; every other reason is "not authorised".
REFUSALS: Final = {
    rights.BAD_CREDENTIALS: spec.BAD_LOGIN,
    rights.BAD_CLIENT: spec.BAD_CLIENT,
    rights.TOO_BUSY: spec.BUSY,
}


class Will:
    """A will: what is published, after how many seconds, and how long that is worth sending.

    `life` -1 = for ever.
    """

    __slots__ = ("delay", "life", "message")

    def __init__(self, message: Message, delay: int = 0, life: int = -1) -> None:
        message.expires = 0  # its time begins when it is published
        self.message = message
        self.delay = delay
        self.life = life

    def published(self, stamp: int) -> Message:
        """The message as it is published now."""
        message = self.message
        message.expires = stamp + self.life * SECOND if self.life >= 0 else 0
        message.seq = 0
        return message

    def row(self) -> Row:
        """The row that keeps it."""
        properties = dict(self.message.properties or {})
        if self.delay:
            properties["delay"] = self.delay
        if self.life >= 0:
            properties["expiry"] = self.life
        return row_of(self.message, WILL)._replace(properties=properties_column(properties))


def will_of(row: Row) -> Will:
    """The will that a row keeps."""
    message = message_of(row)
    properties = message.properties or {}
    delay, life = properties.pop("delay", 0), properties.pop("expiry", -1)
    message.properties = properties or None
    assert isinstance(delay, int) and isinstance(life, int)
    return Will(message, delay, life)


def asked_will(asked: codec.Connect, dialect: Dialect, sender: Session) -> Will | None:
    """The will of a CONNECT, in the name of the session."""
    will = asked.will
    if will is None:
        return None
    packet = codec.Publish(
        will.topic, will.payload, will.qos, will.retain, False, 0, will.properties
    )
    message = dialect.message(packet, sender, will.retain)
    numbers = will.properties.numbers if will.properties is not None else {}
    return Will(message, numbers.get(spec.WILL_DELAY, 0), numbers.get(spec.MESSAGE_EXPIRY, -1))


def lifetime(asked: codec.Connect, most: int) -> int:
    """How many seconds the session outlives its connection (3.1.2.11.2), FOR_EVER = always."""
    if asked.properties is None:
        expiry = 0 if asked.clean else FOR_EVER
    else:
        expiry = asked.properties.numbers.get(spec.SESSION_EXPIRY, 0)
    return min(expiry, most)


def keep_alive(asked: int, most: int) -> int:
    """What the hub makes of the keep alive of a 5.0 client (3.2.2.3.14); 0 = none."""
    return most if most and (not asked or asked > most) else asked


def greeting(mqtt: Mqtt, asked: Properties, expiry: int, alive: int, number: int) -> Properties:
    """The properties of a CONNACK; what is not said is available or as the client asked."""
    found = Properties(
        {
            spec.RECEIVE_MAXIMUM: mqtt.receive_maximum,
            spec.MAXIMUM_PACKET: mqtt.message_bytes,
            spec.TOPIC_ALIAS_MAXIMUM: mqtt.topic_alias_maximum,
        }
    )
    if expiry != asked.numbers.get(spec.SESSION_EXPIRY, 0):
        found.numbers[spec.SESSION_EXPIRY] = expiry
    if alive >= 0:
        found.numbers[spec.SERVER_KEEP_ALIVE] = alive
    if mqtt.maximum_qos < 2:
        found.numbers[spec.MAXIMUM_QOS] = mqtt.maximum_qos
    if not mqtt.retains:
        found.numbers[spec.RETAIN_AVAILABLE] = 0
    if asked.numbers.get(spec.REQUEST_RESPONSE):
        found.texts[spec.RESPONSE_INFORMATION] = b"$client/%d" % number
    return found


def refusal(v5: bool, code: int, properties: Properties) -> bytes:
    """A CONNACK that refuses."""
    if v5:
        return codec.connack(False, code, properties.encode())
    return codec.connack(False, spec.RETURN_CODE_OF.get(code, codec.NOT_AUTHORISED))


def referral(mqtt: Mqtt) -> tuple[int, Properties]:
    """Where clients shall go instead of here (4.11), and whether for good."""
    reference = name_to_wire(mqtt.server_reference)
    code = spec.MOVED if mqtt.server_moved else spec.USE_ANOTHER
    return code, Properties(texts={spec.SERVER_REFERENCE: reference})
