"""Conversations with clients of 5.0: the words of `conversation`, and behind them properties.

    CONNACK 0 present assigned-client-identifier=auto-1     a/b=x q1 #3 topic-alias=1 k:v id=7
"""

from __future__ import annotations

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from tests.protocols.mqtt.conversation import Device, Stage

ALWAYS = (spec.RECEIVE_MAXIMUM, spec.MAXIMUM_PACKET, spec.TOPIC_ALIAS_MAXIMUM)


def told(
    numbers: dict[int, int] | None = None, texts: dict[int, bytes] | None = None, **user: str
) -> Properties:
    """Properties by identifier, and user properties."""
    pairs = [(name.encode(), value.encode()) for name, value in user.items()]
    return Properties(dict(numbers or {}), dict(texts or {}), pairs)


class Modern(Device):
    """A client of 5.0, connected; what the hub answered is the first thing to hear."""

    def __init__(
        self, stage: Stage, client: str = "ann", clean: bool = True,
        properties: Properties | None = None, will: codec.Will | None = None,
        keep_alive: int = 30,
    ) -> None:  # fmt: skip
        super().__init__(stage)
        asked = properties or Properties()
        self.say(codec.connect(client.encode(), clean, keep_alive, will, properties=asked))

    def publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, retain: bool = False,
        packet_id: int = 1, dup: bool = False, properties: Properties | None = None,
    ) -> None:  # fmt: skip
        said = (properties or Properties()).encode()
        self.say(codec.publish(topic.encode(), payload, qos, retain, packet_id, dup, said))

    def subscribe(self, *wishes: str | int, identifier: int = 0) -> None:
        """`subscribe("a/+", 1 | codec.NO_LOCAL)`, packet id 5."""
        pairs = zip(wishes[::2], wishes[1::2], strict=True)
        properties = Properties(subscriptions=[identifier] if identifier else [])
        wanted = [(str(name).encode(), int(options)) for name, options in pairs]
        self.say(codec.subscribe(5, wanted, properties.encode()))

    def unsubscribe(self, *names: str) -> None:
        self.say(codec.unsubscribe(6, [name.encode() for name in names], codec.NO_PROPERTIES))

    def disconnect(self, code: int = 0, properties: Properties | None = None) -> None:
        self.say(codec.disconnect(code, (properties or Properties()).encode()))
        self.far.hang_up()

    def hear(self) -> list[str]:
        data = self.far.hear()
        words = []
        for start, body, end in codec.packets(data):
            self._note(data[start], data[body:end])
            words.append(_word(data[start], data[body:end]))
        return words


def _word(head: int, body: bytes) -> str:
    kind = head >> 4
    if kind == codec.PUBLISH:
        packet = codec.parse_publish(head, body, True)
        assert packet.properties is not None
        words = f"{packet.topic.decode()}={packet.payload.decode(errors='replace')}"
        words += f" q{packet.qos} #{packet.packet_id}" if packet.qos else ""
        words += " dup" * packet.dup + " retain" * packet.retain
        return words + in_words(packet.properties)
    if kind == codec.PINGRESP:
        return "PINGRESP"
    if kind in (codec.DISCONNECT, codec.AUTH):
        ending = codec.parse_ending(kind, body)
        return f"{codec.NAMES[kind]} {ending.code:#04x}{in_words(ending.properties)}"
    answer = codec.parse_answer(kind, body)
    if kind == codec.CONNACK:
        for key in ALWAYS:
            answer.properties.numbers.pop(key, None)
        words = f"CONNACK {answer.codes[0]:#04x}" + " present" * answer.packet_id
        return words + in_words(answer.properties)
    codes = " ".join(f"{code:#04x}" for code in answer.codes)
    if kind in (codec.SUBACK, codec.UNSUBACK):
        return f"{codec.NAMES[kind]} {answer.packet_id}: {codes}{in_words(answer.properties)}"
    words = f"{codec.NAMES[kind]} {answer.packet_id}" + f" {codes}" * any(answer.codes)
    return words + in_words(answer.properties)


def in_words(properties: Properties) -> str:
    """The properties, except reason strings, each behind a space."""
    said = [(spec.PROPERTIES[key].name, str(value)) for key, value in properties.numbers.items()]
    said += [
        (spec.PROPERTIES[key].name, value.decode(errors="replace"))
        for key, value in properties.texts.items()
        if key != spec.REASON_STRING
    ]
    words = [f"{name.replace(' ', '-')}={value}" for name, value in said]
    words += [f"{name.decode()}:{value.decode()}" for name, value in properties.user]
    words += [f"id={number}" for number in properties.subscriptions]
    return "".join(" " + word for word in words)
