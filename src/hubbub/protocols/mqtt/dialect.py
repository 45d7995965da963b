"""How messages look in each version of MQTT: the encodings of runs, and single PUBLISH packets.

`Dialect` is that of 3.1 and 3.1.1, `Dialect5` that of 5.0; a hub has one of each, and of each
mount point (a prefix that clients of a listener neither say nor see). A publisher's
bytes are the image of its run, so what has no property and goes from 5.0 to 5.0 is never taken
apart. What 5.0 says and the hub's message has a field for (content type, response topic,
correlation, expiry) lies in that field, the rest in `Message.properties`:

    user             [[name, value], …] in their order
    payload_format   1 = UTF-8
    smq-subtid       the number of a sub-topic without a name

The sub-topic of an SMQ message is the user property `smq-subtopic`, its sender the response
topic. Called by the session and the connection; no I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.clock import Clock
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.session import FOR_EVER, Session
from hubbub.core.topics import CLIENT, QUEUE, SHARE, is_text
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.schema import name_from_wire, name_to_wire

SUBTOPIC: Final = b"smq-subtopic"
SUBTID: Final = "smq-subtid"
USER: Final = "user"
PAYLOAD_FORMAT: Final = "payload_format"
SECOND: Final = 1_000_000
KEPT_ENCODINGS: Final = 10_000  # of subscription identifiers and aliases; all go when full

Ids = tuple[int, ...]
Encodings = tuple[Encoding, Encoding, Encoding]


class Packets(Encoding):
    """PUBLISH packets of one QoS; the packet ids in an image are placeholders."""

    def __init__(self, dialect: Dialect, qos: int) -> None:
        self.dialect = dialect
        self.qos = qos

    def parts(self, run: Run) -> tuple[bytes, bytes, bytes]:
        """Of a run of one: its topic behind the length of that, its properties without theirs, and
        its payload. Nothing of them is looked at.
        """
        raise NotImplementedError

    def parts_for(self, dialect: Dialect, run: Run) -> tuple[bytes, bytes, bytes] | None:
        """The same, if clients of that dialect know the topic by the same name."""
        if run.count > 1 or dialect.mount != self.dialect.mount:
            return None
        return self.parts(run)


class PublishEncoding(Packets):
    """Those of 3.1 and 3.1.1."""

    def encode(self, run: Run) -> bytes:
        came = run.encoding
        parts = came.parts_for(self.dialect, run) if isinstance(came, Packets) else None
        if parts is not None:
            topic, _, payload = parts
            return codec.put_together(self.qos << 1, topic, b"\0\0" if self.qos else b"", payload)
        topic = self.dialect.shown(run.route.name)
        payloads = came.payloads(run)
        if payloads is not None:
            return _alike(codec.publish(topic, payloads[0], self.qos), payloads)
        return b"".join(
            [codec.publish(topic, message.payload, self.qos) for message in run.messages()]
        )

    def parts(self, run: Run) -> tuple[bytes, bytes, bytes]:
        image = run.image
        at, end = codec.topic_at(image)
        return image[at:end], b"", image[end + 2 :] if self.qos else image[end:]

    def decode(self, run: Run) -> list[Message]:
        return _messages(run, self.payloads(run))

    def payloads(self, run: Run) -> list[bytes]:
        """All packets of a run have the same topic and length, so the first tells where to cut,
        unless whoever read them has said it.
        """
        return _cut(run, run.step - run.size if run.size >= 0 else _behind_id(run, self.qos))


class PublishEncoding5(Packets):
    """The same of 5.0. `ids` are the subscription identifiers that every packet carries.

    `alias` stands for the topic (0 = none); `named`: the packet says the topic too.
    """

    def __init__(
        self, dialect: Dialect5, qos: int, as_published: bool, ids: Ids, alias: int, named: bool
    ) -> None:
        super().__init__(dialect, qos)
        self.as_published = as_published
        self.ids = ids
        self.alias = alias
        self.named = named
        self._more = _more(ids, alias)

    def aliased(self, alias: int, named: bool) -> Encoding:
        """The same with a topic alias."""
        return self.dialect.encoding(self.qos, self.as_published, self.ids, alias, named)

    def encode(self, run: Run) -> bytes:
        retain = run.retain and self.as_published
        if self.as_published and not retain:
            plain = self.dialect.encoding(self.qos, False, self.ids, self.alias, self.named)
            return run.seen_as(plain)
        came = run.encoding
        parts = came.parts_for(self.dialect, run) if isinstance(came, Packets) else None
        if parts is not None:
            return self._around(parts, retain)
        payloads = came.payloads(run)
        if payloads is not None:
            first = _messages(run, payloads[:1])[0]
            packet = self.dialect.publish(
                first, self.qos, retain, 0, False, self.ids, self.alias, self.named
            )
            return _alike(packet, payloads)
        return b"".join(
            [
                self.dialect.publish(
                    message, self.qos, retain, 0, False, self.ids, self.alias, self.named
                )
                for message in run.messages()
            ]
        )

    def _around(self, parts: tuple[bytes, bytes, bytes], retain: bool) -> bytes:
        """A packet as its publisher said it: what differs is put around its own properties and
        payload, which nobody takes apart.
        """
        topic, said, payload = parts
        more = self._more
        begin = codec.length(len(more) + len(said)) + more + said
        if self.qos:
            begin = b"\0\0" + begin
        topic = topic if self.named else b"\0\0"
        return codec.put_together(self.qos << 1 | retain, topic, begin, payload)

    def parts(self, run: Run) -> tuple[bytes, bytes, bytes]:
        image = run.image
        at, end = codec.topic_at(image)
        size, begin = codec.properties_size(image, end + 2 if self.qos else end)
        return image[at:end], image[begin : begin + size], image[begin + size :]

    def payloads(self, run: Run) -> list[bytes] | None:
        """Only packets without properties come in runs of several."""
        start = _behind_id(run, self.qos) + 1
        if run.image[start - 1]:
            return None
        return _cut(run, start)

    def decode(self, run: Run) -> list[Message]:
        payloads = self.payloads(run)
        if payloads is not None:
            return _messages(run, payloads)
        image = run.image
        body, end = codec.extent(image, 0)
        packet = codec.parse_publish(image[0], image[body:end], True)
        # By the setting mqtt.upgrade_qos a message counts for more than its packet said.
        packet = packet._replace(qos=run.qos)
        return [self.dialect.message(packet, run.sender, run.retain)]


def _more(ids: Ids, alias: int) -> bytes:
    """The properties of a delivery, without their length."""
    if not (ids or alias):
        return b""
    said = Properties(subscriptions=list(ids))
    if alias:
        said.numbers[spec.TOPIC_ALIAS] = alias
    return said.listed()


def _alike(packet: bytes, payloads: list[bytes]) -> bytes:
    """Packets like the one of the first payload, for payloads that are all equally long."""
    if len(payloads) == 1:
        return packet
    head = packet[: len(packet) - len(payloads[0])]
    return head + head.join(payloads)


def _behind_id(run: Run, qos: int) -> int:
    """Where the topic and the packet id of each message in an image end."""
    return codec.topic_at(run.image)[1] + (2 if qos else 0)


def _cut(run: Run, start: int) -> list[bytes]:
    """What lies from `start` to the end in each packet of a run."""
    image, step = run.image, run.step
    if step == len(image):  # as most are: it is one
        return [image[start:]]
    found, at = [], 0
    while at < len(image):  # a range with a step is no loop in C
        found.append(image[at + start : at + step])
        at += step
    return found


def _messages(run: Run, payloads: list[bytes]) -> list[Message]:
    """The messages of a run of which sender, topic, QoS and retain say the rest."""
    sender, name, qos, retain = run.sender, run.route.name, run.qos, run.retain
    found = [
        Message(name, payload, qos, retain, sender.protocol, sender.client, sender.number)
        for payload in payloads
    ]
    if sender.asks_by_number:
        for message in found:
            message.answers_sender = True
    return found


class Dialect:
    """3.1 and 3.1.1: a message is a topic and a payload.

    `mount`: what the hub's names have before those that the clients say.
    """

    v5 = False

    def __init__(self, mount: str = "") -> None:
        self.mount = mount
        zero, one, two = [PublishEncoding(self, qos) for qos in range(3)]
        self._encodings = (zero, one, two)
        self._together = ((zero, zero, zero), (zero, one, one), (zero, one, two))

    def full(self, name: str) -> str:
        """The hub's name for what a client says; addresses of clients are for all."""
        return name if name.startswith(CLIENT) else self.mount + name

    def full_filter(self, name: str) -> str:
        """The hub's filter for what a client says."""
        if self.mount and name.startswith(SHARE):
            group, slash, inner = name.removeprefix(SHARE).partition("/")
            return f"{SHARE}{group}/{self.full_filter(inner)}" if slash and inner else name
        if name == "#" and self.mount.endswith("/"):
            return f"{self.mount}+/#"  # `plant/#` would mean `plant` too, which is outside
        return self.full(name)

    def shown(self, name: str) -> bytes:
        """The hub's name as the client knows it."""
        return name_to_wire(name.removeprefix(self.mount))

    def encoding(
        self, qos: int, as_published: bool = False, ids: Ids = (), alias: int = 0,
        named: bool = True,
    ) -> Encoding:  # fmt: skip
        return self._encodings[qos]

    def encodings(self, qos: int, as_published: bool = False, ids: Ids = ()) -> Encodings:
        """Those of a subscription with this QoS, by the QoS of the message. Kept, and shared."""
        return self._together[qos]

    def publish(
        self, message: Message, qos: int, retain: bool, packet_id: int = 0, dup: bool = False,
        ids: Ids = (), alias: int = 0, named: bool = True, apart: bool = False,
    ) -> bytes:  # fmt: skip
        """Its packet; if `apart` without the payload, which is written behind it."""
        topic = self.shown(message.topic)
        none = b""
        return codec.publish(topic, message.payload, qos, retain, packet_id, dup, none, apart)

    def message(self, packet: codec.Publish, sender: Session, retain: bool) -> Message:
        """A message from the wire."""
        return Message(
            self.full(name_from_wire(packet.topic)), packet.payload, packet.qos, retain,
            sender.protocol, sender.client, sender.number,
        )  # fmt: skip


class Dialect5(Dialect):
    """5.0: messages have properties. The clock says what is left of an expiry interval."""

    v5 = True

    def __init__(self, clock: Clock, mount: str = "") -> None:
        super().__init__(mount)
        self.clock = clock
        self._made: dict[tuple[int, bool, Ids, int, bool], Encoding] = {}
        self._of_subscriptions: dict[tuple[int, bool, Ids], Encodings] = {}

    def encoding(
        self, qos: int, as_published: bool = False, ids: Ids = (), alias: int = 0,
        named: bool = True,
    ) -> Encoding:  # fmt: skip
        key = qos, as_published, ids, alias, named
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= KEPT_ENCODINGS:
                self._made.clear()
            made = PublishEncoding5(self, qos, as_published, ids, alias, named)
            self._made[key] = made
        return made

    def encodings(self, qos: int, as_published: bool = False, ids: Ids = ()) -> Encodings:
        key = qos, as_published, ids
        found = self._of_subscriptions.get(key)
        if found is None:
            if len(self._of_subscriptions) >= KEPT_ENCODINGS:
                self._of_subscriptions.clear()
            zero, one, two = [self.encoding(min(n, qos), as_published, ids) for n in range(3)]
            found = self._of_subscriptions[key] = (zero, one, two)
        return found

    def publish(
        self, message: Message, qos: int, retain: bool, packet_id: int = 0, dup: bool = False,
        ids: Ids = (), alias: int = 0, named: bool = True, apart: bool = False,
    ) -> bytes:  # fmt: skip
        topic = self.shown(message.topic) if named else b""
        if not (ids or alias or _has_properties(message)):
            said = codec.NO_PROPERTIES
            return codec.publish(topic, message.payload, qos, retain, packet_id, dup, said, apart)
        properties = self.properties(message)
        properties.subscriptions.extend(ids)
        if alias:
            properties.numbers[spec.TOPIC_ALIAS] = alias
        return codec.publish(
            topic, message.payload, qos, retain, packet_id, dup, properties.encode(), apart
        )

    def message(self, packet: codec.Publish, sender: Session, retain: bool) -> Message:
        message = super().message(packet, sender, retain)
        if packet.properties is not None:
            self._fill(message, packet.properties)
        return message

    def _fill(self, message: Message, properties: Properties) -> None:
        """What the properties of a PUBLISH or a will say about a message."""
        numbers, texts = properties.numbers, properties.texts
        message.content_type = name_from_wire(texts.get(spec.CONTENT_TYPE, b""))
        if spec.RESPONSE_TOPIC in texts:
            message.reply_to = self.full(name_from_wire(texts[spec.RESPONSE_TOPIC]))
        message.correlation = texts.get(spec.CORRELATION, b"")
        if spec.MESSAGE_EXPIRY in numbers:
            message.expires = self.clock.stamp() + numbers[spec.MESSAGE_EXPIRY] * SECOND
        rest: dict[str, object] = {}
        if numbers.get(spec.PAYLOAD_FORMAT):
            rest[PAYLOAD_FORMAT] = 1
        pairs: list[list[str]] = []
        for name, value in properties.user:
            if name == SUBTOPIC:
                message.subtopic = name_from_wire(value)
            elif name == SUBTID.encode() and value.isdigit():
                rest[SUBTID] = int(value)
            else:
                pairs.append([name_from_wire(name), name_from_wire(value)])
        if pairs:
            rest[USER] = pairs
        message.properties = rest or None

    def properties(self, message: Message) -> Properties:
        """The properties of a message as a PUBLISH says them."""
        found = Properties()
        if message.expires:
            left = message.expires - self.clock.stamp()
            found.numbers[spec.MESSAGE_EXPIRY] = min(max(0, -(-left // SECOND)), FOR_EVER)
        if message.content_type:
            found.texts[spec.CONTENT_TYPE] = name_to_wire(message.content_type)
        reply_to = _answers_to(message)
        if reply_to:
            found.texts[spec.RESPONSE_TOPIC] = self.shown(reply_to)
        if message.correlation:
            found.texts[spec.CORRELATION] = message.correlation
        if is_text(message.subtopic):  # those of SMQ may be any bytes
            found.user.append((SUBTOPIC, name_to_wire(message.subtopic)))
        if message.properties:
            self._say_rest(message.properties, found)
        return found

    def _say_rest(self, properties: dict[str, object], found: Properties) -> None:
        if properties.get(PAYLOAD_FORMAT):
            found.numbers[spec.PAYLOAD_FORMAT] = 1
        if SUBTID in properties:
            found.user.append((SUBTID.encode(), str(properties[SUBTID]).encode()))
        pairs = properties.get(USER)
        for name, value in pairs if isinstance(pairs, list) else ():
            found.user.append((name_to_wire(name), name_to_wire(value)))


def _has_properties(message: Message) -> bool:
    return bool(
        message.expires
        or message.content_type
        or message.reply_to
        or message.correlation
        or message.subtopic
        or message.properties
        or message.answer_address
    )


def _answers_to(message: Message) -> str:
    """Where an answer goes: by its reply id to who asked through a queue."""
    if message.reply_id and message.topic.startswith(QUEUE):
        return f"{CLIENT}{message.reply_id}"
    return message.answer_address


PLAIN: Final = Dialect()
