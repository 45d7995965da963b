"""What an MQTT client sends and receives: messages, a will, and what a broker says of itself."""

from __future__ import annotations

from typing import Final, NamedTuple

from hubbub.client.usage import ERROR, failed

AT_MOST_ONCE: Final = 0
AT_LEAST_ONCE: Final = 1
EXACTLY_ONCE: Final = 2

User = tuple[tuple[str, str], ...]

# The user property by which an answer says that it is an error; it is a sub-topic to SMQ.
FAILED: Final = ("smq-subtopic", ERROR)


class Message(NamedTuple):
    """A message as it arrived, or as it will be sent.

    `retain`, on arrival: it was published before the subscription. What follows `retain` exists
    in MQTT 5 only; `expiry` is in seconds, None = never; `text` says that the payload is UTF-8.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    content_type: str = ""
    response_topic: str = ""
    correlation: bytes = b""
    expiry: int | None = None
    user: User = ()
    text: bool = False
    subscription_ids: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it says nothing that only MQTT 5 can say."""
        return self[4:10] == _PLAIN


def answer_in(message: Message) -> Message:
    """An answer as it is; CallFailed if it says why there is none."""
    if FAILED in message.user:
        raise failed(message.payload)
    return message


_PLAIN: Final = Message("", b"")[4:10]


class Will(NamedTuple):
    """What the broker publishes for this client if it vanishes.

    From `delay` on (seconds after the client vanished) it is for MQTT 5 only.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay: int = 0
    content_type: str = ""
    expiry: int | None = None
    user: User = ()


class Limits(NamedTuple):
    """What the broker said when it took the connection. Brokers before MQTT 5 say nothing."""

    receive_maximum: int = 65_535  # QoS 1 and 2 messages that may be on their way to it
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int | None = None  # bytes; None = no limit
    topic_alias_maximum: int = 0
    wildcard_subscription_available: bool = True
    subscription_identifier_available: bool = True
    shared_subscription_available: bool = True
    keep_alive: int = 0  # seconds, as agreed; 0 = none
    session_expiry: int = 0  # seconds, as agreed
    assigned_client_id: str = ""
    response_information: str = ""
    server_reference: str = ""
    authentication_data: bytes = b""
    reason: str = ""
    user: User = ()
