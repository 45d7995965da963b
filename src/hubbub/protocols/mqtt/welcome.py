"""What a CONNECT asks and a CONNACK answers: lifetimes, the will, limits, refusals. No I/O.

Called by the connection. Section numbers are those of MQTT 5.0.
"""

from __future__ import annotations

import secrets
from typing import Final

from hubbub.core import rights
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission
from hubbub.core.log import SYSTEM
from hubbub.core.session import FOR_EVER, Session
from hubbub.core.topics import is_name
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError, Properties
from hubbub.protocols.mqtt.dialect import Dialect
from hubbub.protocols.mqtt.incoming import check_message
from hubbub.protocols.mqtt.session import ANY_PACKET, MqttSession
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.protocols.mqtt.wills import Will
from hubbub.schema import Row, name_from_wire, name_to_wire
from hubbub.wire.text import is_plain

# Why a gate says no, as a reason code; every other reason is "not authorised".
REFUSALS: Final = {
    rights.BAD_CREDENTIALS: spec.BAD_LOGIN,
    rights.BAD_CLIENT: spec.BAD_CLIENT,
    rights.TOO_BUSY: spec.BUSY,
    rights.TOO_MANY: spec.QUOTA,
    rights.TOO_FAST: spec.TOO_MANY_CLIENTS,
}
REASON_OVERHEAD: Final = 16  # what a packet with a reason string has besides, at most
# What is wrong with a CONNECT that ends the connection without a CONNACK, as mosquitto has it.
UNANSWERED: Final = (spec.MALFORMED, spec.PROTOCOL, spec.BAD_TOPIC, spec.BAD_PAYLOAD)


def asked_will(
    mqtt: Sessions, asked: codec.Connect, dialect: Dialect, sender: Session
) -> Will | None:
    """The will of a CONNECT, in the name of the session."""
    will = asked.will
    if will is None:
        return None
    qos = mqtt.broker.counts_as[will.qos]
    values = will.topic, will.payload, qos, will.retain, False, 0, will.properties
    packet = tuple.__new__(codec.Publish, values)
    message = dialect.message(packet, sender, will.retain)
    numbers = will.properties.numbers if will.properties is not None else {}
    return Will(message, numbers.get(spec.WILL_DELAY, 0), numbers.get(spec.MESSAGE_EXPIRY, -1))


def permitted(will: Will | None, session: Session, broker: Broker) -> Will | None:
    """Asked now: after a restart nobody knows any more what the client may do."""
    if will is None:
        return None
    topic = will.message.topic  # a command is never kept: it may have secrets in it
    if topic not in broker.controls and broker.may_publish(session, topic):
        return will
    broker.refuse(session, rights.PUBLISH, will.message.topic)
    broker.metrics.drop("not allowed")
    return None


def check(mqtt: Sessions, asked: codec.Connect) -> None:
    """Whether a client that asks so can be let in, whoever it is; a PacketError if not."""
    v5 = asked.properties is not None
    if not mqtt.connects.takes(mqtt.broker.clock.now(), 1):
        reply = refusal(v5, spec.TOO_MANY_CLIENTS, Properties())
        raise PacketError("too many clients in a second", spec.TOO_MANY_CLIENTS, reply)
    if mqtt.server_reference:
        code, properties = referral(mqtt, mqtt.server_reference)
        reason = f"sent on to {mqtt.server_reference}"
        raise PacketError(reason, code, refusal(v5, code, properties))
    if not asked.client and not v5 and (not asked.clean or asked.version == "3.1"):
        reason = "no client id, which only clean sessions of 3.1.1 may leave"
        reply = refusal(False, spec.BAD_CLIENT, Properties())
        raise PacketError(reason, spec.BAD_CLIENT, reply)
    most = mqtt.max_keepalive
    if not v5 and mqtt.refuse_keepalive and asked.keep_alive > most:
        reason = f"a keep alive of {asked.keep_alive} s; mqtt.max_keepalive is {most}"
        reply = refusal(False, spec.BAD_CLIENT, Properties())
        raise PacketError(reason, spec.BAD_CLIENT, reply)
    _check_size(mqtt, asked)
    _check_names(asked)
    will = asked.will
    if will is None:
        return
    if not is_name(name_from_wire(will.topic)):
        reason = f"a will to {name_from_wire(will.topic)[:80]!r}, which is not a topic name"
        raise PacketError(reason, spec.BAD_TOPIC)
    if 0 < mqtt.payload_bytes < len(will.payload):
        reason = f"a will of {len(will.payload)} bytes; mqtt.payload_bytes is {mqtt.payload_bytes}"
        raise PacketError(reason, spec.TOO_LARGE, refusal(v5, spec.TOO_LARGE, Properties()))
    check_offered(mqtt, "a will", will.qos, will.retain)
    if will.properties is not None:
        check_message(will.properties, will.payload)


def _check_names(asked: codec.Connect) -> None:
    """Control characters in names end the connection, as mosquitto has it (1.5.4)."""
    will = asked.will.topic if asked.will is not None else b""
    _check_name("client id", asked.client)
    _check_name("user name", asked.user or b"")
    _check_name("will topic", will)


def _check_name(what: str, name: bytes) -> None:
    if name and not is_plain(name_from_wire(name)):
        raise PacketError(f"a CONNECT with a control character in its {what}")


def check_offered(mqtt: Sessions, what: str, qos: int, retain: bool) -> None:
    """Whether it asks for what the hub does not do, and its CONNACK says (3.2.2.3)."""
    most = mqtt.maximum_qos
    if qos > most:
        raise PacketError(f"{what} of QoS {qos}; {most} is the most here", spec.NO_SUCH_QOS)
    if retain and not mqtt.retains:
        raise PacketError(f"{what} to be retained, which nothing is here", spec.NO_RETAIN)


def _check_size(mqtt: Sessions, asked: codec.Connect) -> None:
    """Whoever takes only tiny packets cannot be told what a CONNACK has to say."""
    if asked.properties is None:
        return
    most = asked.properties.numbers.get(spec.MAXIMUM_PACKET, ANY_PACKET)
    if most == ANY_PACKET:
        return
    said = greeting(mqtt, asked, FOR_EVER)
    if not asked.client:
        said.texts[spec.ASSIGNED_CLIENT] = new_client().encode()
    size = len(codec.connack(False, spec.SUCCESS, said.encode()))
    if size > most:
        reason = f"packets of {most} bytes at most; a CONNACK has {size}"
        raise PacketError(reason, spec.TOO_LARGE)


def new_client() -> str:
    """For a client that leaves the choice of its id to the hub."""
    return f"auto-{secrets.randbits(64):016x}"


def new_session(
    mqtt: Sessions, client: str, admission: Admission, expiry: int, v5: bool
) -> MqttSession:
    """A session begins; a PacketError if it is to last and there is no room for it."""
    session = MqttSession(mqtt.broker, client, admission.rights, expiry > 0)
    session.user, session.payer = admission.user, admission.owner
    session.address = admission.opening.address if admission.opening is not None else ""
    why_not = mqtt.broker.no_quorum or mqtt.broker.unmet
    if expiry and why_not:
        said = Properties()
        said.texts[spec.REASON_STRING] = why_not.encode()
        reply = refusal(v5, spec.UNREACHABLE, said)
        raise PacketError(why_not, spec.UNREACHABLE, reply)
    if expiry and not mqtt.broker.may_last(session):
        reply = refusal(v5, spec.QUOTA, Properties())
        raise PacketError("no room for a session that lasts", spec.QUOTA, reply)
    mqtt.sessions[client] = session
    return session


def lifetime(asked: codec.Connect, most: int) -> int:
    """How many seconds the session outlives its connection (3.1.2.11.2), FOR_EVER = always."""
    if asked.properties is None:
        expiry = 0 if asked.clean else FOR_EVER
    else:
        expiry = asked.properties.numbers.get(spec.SESSION_EXPIRY, 0)
    return min(expiry, most)


def changed_lifetime(mqtt: Sessions, expiry: int, properties: Properties) -> int:
    """What a DISCONNECT makes of it: only a session that lasts may last otherwise (3.14.2.2.2)."""
    said = properties.numbers.get(spec.SESSION_EXPIRY)
    if said is None:
        return expiry
    if said and not expiry:
        raise PacketError("a DISCONNECT that makes an ending session last", spec.PROTOCOL)
    return min(said, mqtt.max_session_expiry)


def _keep_alive(asked: int, most: int) -> int:
    """What the hub makes of the keep alive of a 5.0 client (3.2.2.3.14); 0 = none."""
    return most if most and (not asked or asked > most) else asked


def greeting(mqtt: Sessions, asked: codec.Connect, number: int) -> Properties:
    """The properties of a CONNACK; what is not said is available or as the client asked.

    `number`: the address of the client.
    """
    wants = asked.properties or Properties()
    found = Properties(
        {
            spec.RECEIVE_MAXIMUM: mqtt.receive_maximum,
            spec.MAXIMUM_PACKET: mqtt.message_bytes,
            spec.TOPIC_ALIAS_MAXIMUM: mqtt.topic_alias_maximum,
        }
    )
    expiry = lifetime(asked, mqtt.max_session_expiry)
    if expiry != wants.numbers.get(spec.SESSION_EXPIRY, 0):
        found.numbers[spec.SESSION_EXPIRY] = expiry
    alive = _keep_alive(asked.keep_alive, mqtt.max_keepalive)
    if alive != asked.keep_alive:
        found.numbers[spec.SERVER_KEEP_ALIVE] = alive
    if mqtt.maximum_qos < 2:
        found.numbers[spec.MAXIMUM_QOS] = mqtt.maximum_qos
    if not mqtt.retains:
        found.numbers[spec.RETAIN_AVAILABLE] = 0
    if not mqtt.broker.wildcards:
        found.numbers[spec.WILDCARDS_AVAILABLE] = 0
    if not mqtt.broker.sharing:
        found.numbers[spec.SHARED_AVAILABLE] = 0
    if wants.numbers.get(spec.REQUEST_RESPONSE):
        found.texts[spec.RESPONSE_INFORMATION] = b"$client/%d" % number
    return found


def in_words(text: str, wants: Properties) -> Properties:
    """A reason in words, if the client wants to hear them and takes packets so large."""
    numbers, said = wants.numbers, text.encode("utf-8", "replace")
    room = numbers.get(spec.MAXIMUM_PACKET, ANY_PACKET) - REASON_OVERHEAD
    if not said or len(said) > room or numbers.get(spec.REQUEST_PROBLEM) == 0:
        return Properties()
    return Properties(texts={spec.REASON_STRING: said})


def refusal(v5: bool, code: int, properties: Properties) -> bytes:
    """A CONNACK that refuses."""
    if v5:
        return codec.connack(False, code, properties.encode())
    return codec.connack(False, spec.RETURN_CODE_OF.get(code, codec.NOT_AUTHORISED))


def level_of(session: MqttSession, will: Row | None) -> int:
    """What a CONNACK promises: of who leaves nothing behind, no quorum need know."""
    assert session.link is not None
    return 0 if session.lasting or will is not None else max(SYSTEM, session.link.level)


def bound(session: MqttSession, wants: Properties, aliases: int) -> None:
    """What the client takes (3.1.2.11.3 to 3.1.2.11.5), of `aliases` no more than that."""
    numbers = wants.numbers
    session.limit(
        numbers.get(spec.RECEIVE_MAXIMUM, 65_535),
        numbers.get(spec.MAXIMUM_PACKET, session.packet_limit),
        min(numbers.get(spec.TOPIC_ALIAS_MAXIMUM, 0), aliases),
    )


def referral(mqtt: Sessions, place: str) -> tuple[int, Properties]:
    """Where clients shall go instead of here (4.11), and whether for good."""
    reference = name_to_wire(place)
    code = spec.MOVED if mqtt.server_moved else spec.USE_ANOTHER
    return code, Properties(texts={spec.SERVER_REFERENCE: reference})
