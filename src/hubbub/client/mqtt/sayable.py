"""What a program may say in MQTT. A SettingError says what it may not, before anything is sent.

For most of it a broker would end the connection, and a message of QoS 1 or 2 would end the next
one, too: the client would repeat it for ever. Asked by `connect` and the client.
"""

from __future__ import annotations

from typing import Final

from hubbub.client.mqtt.message import Message, Will
from hubbub.errors import SettingError
from hubbub.wire.text import is_plain

_MOST: Final = 65_535  # bytes of a text (1.5.4) and of binary data (1.5.6)


def checked_qos(qos: int) -> int:
    if qos not in (0, 1, 2):
        raise SettingError(f"expected a QoS of 0, 1 or 2, got {qos!r}")
    return int(qos)


def checked_topic(topic: str) -> str:
    """What can be published to."""
    _check_name("a topic", topic)
    if "+" in topic or "#" in topic:
        raise SettingError(f"nobody can publish to the wildcards of {topic!r}; name one topic")
    return topic


def checked_filter(topic_filter: str) -> str:
    """A filter by the rules of 4.7.1."""
    _check_name("a filter", topic_filter)
    levels = topic_filter.split("/")
    wild = [level for level in levels if "+" in level or "#" in level]
    if not set(wild) <= {"+", "#"} or "#" in levels[:-1]:
        raise SettingError(
            f"expected a filter whose + fills a level and whose # the last, got {topic_filter!r}"
        )
    return topic_filter


def _check_name(what: str, name: str) -> None:
    if not name or not _fits(name) or not is_plain(name):
        raise SettingError(
            f"expected {what} of 1 to {_MOST:,} bytes of UTF-8 without control characters, "
            f"got {name[:80]!r}"
        )


def _fits(text: str) -> bool:
    try:
        return "\0" not in text and len(text.encode()) <= _MOST
    except UnicodeEncodeError:  # half of a pair
        return False


def check_identity(what: str, name: str) -> None:
    """A client id or a user name, which may be empty."""
    if name:
        _check_name(what, name)


def check_message(message: Message) -> None:
    """All but topic and QoS."""
    if message.response_topic:
        checked_topic(message.response_topic)
    _check_texts(message.content_type, *(one for two in message.user for one in two))
    if len(message.correlation) > _MOST:
        raise SettingError(f"correlation data has at most {_MOST:,} bytes")
    _check_expiry(message.expiry)
    if message.text:
        try:
            message.payload.decode()
        except UnicodeDecodeError:
            raise SettingError("text=True, but the payload is not UTF-8") from None


def check_will(will: Will) -> None:
    if not will.topic:
        raise SettingError("a will needs a topic")
    checked_topic(will.topic)
    checked_qos(will.qos)
    _check_texts(will.content_type, *(one for two in will.user for one in two))
    _check_expiry(will.expiry)
    if len(will.payload) > _MOST:
        raise SettingError(f"the payload of a will has at most {_MOST:,} bytes")


def _check_texts(*texts: str) -> None:
    for text in texts:
        if not _fits(text):
            raise SettingError(
                f"a property has at most {_MOST:,} bytes of UTF-8, and no NUL; got {text[:80]!r}"
            )


def _check_expiry(expiry: int | None) -> None:
    if expiry is not None and not 0 <= expiry <= 0xFFFF_FFFF:
        raise SettingError(f"expected an expiry of 0 to 4294967295 seconds, got {expiry}")
