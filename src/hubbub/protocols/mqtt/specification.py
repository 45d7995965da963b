"""The tables of the MQTT standards: packets, properties, reason codes. Read beside MQTT 5.0.

Section numbers are those of MQTT 5.0. Nothing here does anything; `fields` and `codec` obey it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Packet types (2.1.2).
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15
WILL: Final = 16  # no packet: the will's properties inside a CONNECT (3.1.3.2)

NAMES: Final = (
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
    "will",
)  # fmt: skip

# Flags that each packet must carry (2.1.3); PUBLISH has its own.
FLAGS: Final = {
    CONNECT: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBSCRIBE: 2, UNSUBSCRIBE: 2,
    PINGREQ: 0, DISCONNECT: 0, CONNACK: 0, SUBACK: 0, UNSUBACK: 0, PINGRESP: 0, AUTH: 0,
}  # fmt: skip

# Protocol levels (3.1.2.2), and what a CONNECT calls them.
V31: Final = 3
V311: Final = 4
V5: Final = 5
VERSIONS: Final = {(b"MQIsdp", V31): "3.1", (b"MQTT", V311): "3.1.1", (b"MQTT", V5): "5.0"}

# Types of property values (2.2.2.2).
BYTE: Final = "byte"
U16: Final = "two byte integer"
U32: Final = "four byte integer"
VARIABLE: Final = "variable byte integer"
BINARY: Final = "binary data"
STRING: Final = "UTF-8 string"
PAIR: Final = "UTF-8 string pair"

# Property identifiers (2.2.2.2).
PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET: Final = 0x27
WILDCARDS_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

NEVER: Final = 0xFFFF_FFFF  # a session expiry interval: the session does not end by itself


class Property(NamedTuple):
    """What an identifier means: its name, the type of its value, the packets that may carry it.

    `least` and `most` bound the value of a number.
    """

    name: str
    type: str
    packets: frozenset[int]
    least: int = 0
    most: int = 0xFFFF_FFFF


def _in(*packets: int) -> frozenset[int]:
    return frozenset(packets)


_ANSWERS: Final = (
    CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH,
)  # fmt: skip

# Table 2-4.
PROPERTIES: Final = {
    PAYLOAD_FORMAT: Property("payload format indicator", BYTE, _in(PUBLISH, WILL), 0, 1),
    MESSAGE_EXPIRY: Property("message expiry interval", U32, _in(PUBLISH, WILL)),
    CONTENT_TYPE: Property("content type", STRING, _in(PUBLISH, WILL)),
    RESPONSE_TOPIC: Property("response topic", STRING, _in(PUBLISH, WILL)),
    CORRELATION: Property("correlation data", BINARY, _in(PUBLISH, WILL)),
    SUBSCRIPTION_ID: Property(
        "subscription identifier", VARIABLE, _in(PUBLISH, SUBSCRIBE), 1, 268_435_455
    ),
    SESSION_EXPIRY: Property(
        "session expiry interval", U32, _in(CONNECT, CONNACK, DISCONNECT)
    ),
    ASSIGNED_CLIENT: Property("assigned client identifier", STRING, _in(CONNACK)),
    SERVER_KEEP_ALIVE: Property("server keep alive", U16, _in(CONNACK)),
    AUTH_METHOD: Property("authentication method", STRING, _in(CONNECT, CONNACK, AUTH)),
    AUTH_DATA: Property("authentication data", BINARY, _in(CONNECT, CONNACK, AUTH)),
    REQUEST_PROBLEM: Property("request problem information", BYTE, _in(CONNECT), 0, 1),
    WILL_DELAY: Property("will delay interval", U32, _in(WILL)),
    REQUEST_RESPONSE: Property("request response information", BYTE, _in(CONNECT), 0, 1),
    RESPONSE_INFORMATION: Property("response information", STRING, _in(CONNACK)),
    SERVER_REFERENCE: Property("server reference", STRING, _in(CONNACK, DISCONNECT)),
    REASON_STRING: Property("reason string", STRING, _in(*_ANSWERS)),
    RECEIVE_MAXIMUM: Property("receive maximum", U16, _in(CONNECT, CONNACK), 1),
    TOPIC_ALIAS_MAXIMUM: Property("topic alias maximum", U16, _in(CONNECT, CONNACK)),
    TOPIC_ALIAS: Property("topic alias", U16, _in(PUBLISH)),  # 0 has a reason of its own (0x94)
    MAXIMUM_QOS: Property("maximum QoS", BYTE, _in(CONNACK), 0, 1),
    RETAIN_AVAILABLE: Property("retain available", BYTE, _in(CONNACK), 0, 1),
    USER_PROPERTY: Property(
        "user property", PAIR, _in(CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_ANSWERS)
    ),
    MAXIMUM_PACKET: Property("maximum packet size", U32, _in(CONNECT, CONNACK), 1),
    WILDCARDS_AVAILABLE: Property("wildcard subscription available", BYTE, _in(CONNACK), 0, 1),
    SUBSCRIPTION_IDS_AVAILABLE: Property(
        "subscription identifier available", BYTE, _in(CONNACK), 0, 1
    ),
    SHARED_AVAILABLE: Property("shared subscription available", BYTE, _in(CONNACK), 0, 1),
}  # fmt: skip

# Reason codes (2.4).
SUCCESS: Final = 0x00
WITH_WILL: Final = 0x04
NO_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION: Final = 0x11
CONTINUE: Final = 0x18
REAUTHENTICATE: Final = 0x19
UNSPECIFIED: Final = 0x80
MALFORMED: Final = 0x81
PROTOCOL: Final = 0x82
IMPLEMENTATION: Final = 0x83
BAD_LEVEL: Final = 0x84
BAD_CLIENT: Final = 0x85
BAD_LOGIN: Final = 0x86
NOT_ALLOWED: Final = 0x87
UNREACHABLE: Final = 0x88
BUSY: Final = 0x89
STOPPING: Final = 0x8B
BAD_METHOD: Final = 0x8C
SILENCE: Final = 0x8D
TAKEN_OVER: Final = 0x8E
BAD_FILTER: Final = 0x8F
BAD_TOPIC: Final = 0x90
ID_IN_USE: Final = 0x91
ID_UNKNOWN: Final = 0x92
TOO_MANY: Final = 0x93
BAD_ALIAS: Final = 0x94
TOO_LARGE: Final = 0x95
QUOTA: Final = 0x97
ADMINISTRATIVE: Final = 0x98
BAD_PAYLOAD: Final = 0x99
NO_RETAIN: Final = 0x9A
NO_SUCH_QOS: Final = 0x9B
USE_ANOTHER: Final = 0x9C
MOVED: Final = 0x9D
NO_SHARED: Final = 0x9E
TOO_MANY_CLIENTS: Final = 0x9F
NO_WILDCARDS: Final = 0xA2


class Reason(NamedTuple):
    """A reason code: its name, and the packets that may carry it."""

    name: str
    packets: frozenset[int]


_ACKS: Final = (PUBACK, PUBREC)
_SUBS: Final = (SUBACK, UNSUBACK)

# Table 2-6. Granted QoS 0, 1 and 2 in a SUBACK, and a normal DISCONNECT, are 0 to 2 too.
REASONS: Final = {
    SUCCESS: Reason(
        "success",
        _in(CONNACK, *_ACKS, PUBREL, PUBCOMP, *_SUBS, DISCONNECT, AUTH),
    ),
    0x01: Reason("granted QoS 1", _in(SUBACK)),
    0x02: Reason("granted QoS 2", _in(SUBACK)),
    WITH_WILL: Reason("disconnect with will message", _in(DISCONNECT)),
    NO_SUBSCRIBERS: Reason("no matching subscribers", _in(*_ACKS)),
    NO_SUBSCRIPTION: Reason("no subscription existed", _in(UNSUBACK)),
    CONTINUE: Reason("continue authentication", _in(AUTH)),
    REAUTHENTICATE: Reason("re-authenticate", _in(AUTH)),
    UNSPECIFIED: Reason("unspecified error", _in(CONNACK, *_ACKS, *_SUBS, DISCONNECT)),
    MALFORMED: Reason("malformed packet", _in(CONNACK, DISCONNECT)),
    PROTOCOL: Reason("protocol error", _in(CONNACK, DISCONNECT)),
    IMPLEMENTATION: Reason(
        "implementation specific error", _in(CONNACK, *_ACKS, *_SUBS, DISCONNECT)
    ),
    BAD_LEVEL: Reason("unsupported protocol version", _in(CONNACK)),
    BAD_CLIENT: Reason("client identifier not valid", _in(CONNACK)),
    BAD_LOGIN: Reason("bad user name or password", _in(CONNACK)),
    NOT_ALLOWED: Reason("not authorised", _in(CONNACK, *_ACKS, *_SUBS, DISCONNECT)),
    UNREACHABLE: Reason("server unavailable", _in(CONNACK)),
    BUSY: Reason("server busy", _in(CONNACK, DISCONNECT)),
    0x8A: Reason("banned", _in(CONNACK)),
    STOPPING: Reason("server shutting down", _in(DISCONNECT)),
    BAD_METHOD: Reason("bad authentication method", _in(CONNACK, DISCONNECT)),
    SILENCE: Reason("keep alive timeout", _in(DISCONNECT)),
    TAKEN_OVER: Reason("session taken over", _in(DISCONNECT)),
    BAD_FILTER: Reason("topic filter invalid", _in(*_SUBS, DISCONNECT)),
    BAD_TOPIC: Reason("topic name invalid", _in(CONNACK, *_ACKS, DISCONNECT)),
    ID_IN_USE: Reason("packet identifier in use", _in(*_ACKS, *_SUBS)),
    ID_UNKNOWN: Reason("packet identifier not found", _in(PUBREL, PUBCOMP)),
    TOO_MANY: Reason("receive maximum exceeded", _in(DISCONNECT)),
    BAD_ALIAS: Reason("topic alias invalid", _in(DISCONNECT)),
    TOO_LARGE: Reason("packet too large", _in(CONNACK, DISCONNECT)),
    0x96: Reason("message rate too high", _in(DISCONNECT)),
    QUOTA: Reason("quota exceeded", _in(CONNACK, *_ACKS, SUBACK, DISCONNECT)),
    ADMINISTRATIVE: Reason("administrative action", _in(DISCONNECT)),
    BAD_PAYLOAD: Reason("payload format invalid", _in(CONNACK, *_ACKS, DISCONNECT)),
    NO_RETAIN: Reason("retain not supported", _in(CONNACK, DISCONNECT)),
    NO_SUCH_QOS: Reason("QoS not supported", _in(CONNACK, DISCONNECT)),
    USE_ANOTHER: Reason("use another server", _in(CONNACK, DISCONNECT)),
    MOVED: Reason("server moved", _in(CONNACK, DISCONNECT)),
    NO_SHARED: Reason("shared subscriptions not supported", _in(SUBACK, DISCONNECT)),
    TOO_MANY_CLIENTS: Reason("connection rate exceeded", _in(CONNACK, DISCONNECT)),
    0xA0: Reason("maximum connect time", _in(DISCONNECT)),
    0xA1: Reason("subscription identifiers not supported", _in(SUBACK, DISCONNECT)),
    NO_WILDCARDS: Reason("wildcard subscriptions not supported", _in(SUBACK, DISCONNECT)),
}

# Return codes of CONNACK before 5.0 (MQTT 3.1.1, 3.2.2.3), by the reason code that means it.
RETURN_CODE_OF: Final = {
    SUCCESS: 0, BAD_LEVEL: 1, BAD_CLIENT: 2, UNREACHABLE: 3, BUSY: 3, USE_ANOTHER: 3, MOVED: 3,
    TOO_MANY_CLIENTS: 3, QUOTA: 3, BAD_LOGIN: 4, NOT_ALLOWED: 5, BAD_METHOD: 5,
}  # fmt: skip
