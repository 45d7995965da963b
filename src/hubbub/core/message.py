"""What travels: a `Message`, and the `Run` of messages that the hot path moves as one piece.

A run is n >= 1 messages in a row from one sender with one route and QoS. It keeps the sender's
own bytes (its image). A receiver whose `Encoding` is the same object gets these bytes as they
are; for any other encoding the image is made once and shared. The messages inside are decoded
only when somebody asks: the journal, a callback, another encoding. Protocols make runs, the
broker and the sessions read them; nothing here knows a protocol or does I/O.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from mypy_extensions import mypyc_attr

from hubbub.core.names import HUB
from hubbub.schema import PUBLISH, Row, column_of, name_of, protocol_column, protocol_of

if TYPE_CHECKING:
    from hubbub.core.route import Route
    from hubbub.core.session import Session


# A property of what names a request as answered (`answers`) and is not its answer: it goes
# elsewhere than the asker said, or its sender may not serve there.
ASIDE: Final = "aside"
ASKED: Final = "asked"  # the property of a copy: the seq of the request that it is one of
# The property of a copy: queue and id of the request as its asker sent it, which went to another
# queue since; and of its answer: there are protocols in which the asker knows no other name of it.
FIRST: Final = "first"
ANSWERS_FIRST: Final = "answers_first"
# The property of a retained message: the user who published it, and at which listener.
PUBLISHER: Final = "hub-publisher"
NODE: Final = "node"  # of a cluster, which took the message in: not the one that wrote this row
# json.dumps and json.loads make them anew for each message, or look what bytes they were given;
# and msgspec reads the short ones of rows in a sixth of the time.
_write: Final = json.JSONEncoder(separators=(",", ":")).encode
_read: Final = msgspec.json.Decoder().decode
_quoted: Final = encode_basestring_ascii


class Message:
    """One message, spelled out. Changing one that was published is a mistake.

    `sender` is the number of the client it came from (0 if unknown), `reply_to` an address:
    a topic, `$client/<number>` or `$queue/<name>`; `reply_id` the number that was made for it,
    if one was. `answers_sender`: whoever published can be answered at its number, because its
    protocol has no other way to ask. `expires` and `time` are UTC microseconds.
    """

    __slots__ = (
        "topic", "payload", "qos", "retain", "protocol", "client", "sender", "subtopic",
        "content_type", "reply_to", "correlation", "properties", "expires", "seq", "time",
        "reply_id", "answers_sender",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        protocol: str = "",
        client: str = "",
        sender: int = 0,
        subtopic: str = "",
        content_type: str = "",
        reply_to: str = "",
        correlation: bytes = b"",
        properties: dict[str, object] | None = None,
        expires: int = 0,
        seq: int = 0,
        time: int = 0,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.protocol = protocol
        self.client = client
        self.sender = sender
        self.subtopic = subtopic
        self.content_type = content_type
        self.reply_to = reply_to
        self.correlation = correlation
        self.properties = properties
        self.expires = expires
        self.seq = seq
        self.time = time
        self.reply_id = 0
        self.answers_sender = False

    def author(self) -> tuple[str, str, str, int, bool]:
        """To which name who said it."""
        return self.topic, self.protocol, self.client, self.sender, self.answers_sender

    def is_plain(self) -> bool:
        """Whether topic, payload, QoS, retain and who said it are all that is to be said of it."""
        more = self.subtopic or self.content_type or self.reply_to or self.correlation
        return not (more or self.properties or self.expires)

    def copied(self) -> Message:
        """Another one like it, which may be changed. (`copy` cannot make a compiled one.)"""
        found = Message(
            self.topic, self.payload, self.qos, self.retain, self.protocol, self.client,
            self.sender, self.subtopic, self.content_type, self.reply_to, self.correlation,
            self.properties, self.expires, self.seq, self.time,
        )  # fmt: skip
        found.reply_id, found.answers_sender = self.reply_id, self.answers_sender
        return found

    @property
    def answer_address(self) -> str:
        """Where an answer goes, "" if nobody asks for one."""
        if self.reply_to:
            return self.reply_to
        return f"$client/{self.sender}" if self.answers_sender and self.sender > HUB else ""


def asked_in(message: Message) -> int:
    """The seq of a request as its asker sent it: a copy that the hub made has another one."""
    found = (message.properties or {}).get(ASKED, message.seq)
    return found if isinstance(found, int) else 0


def first_in(message: Message) -> object:
    """Queue and id of a request as its asker sent it, None where it is there still."""
    return message.properties.get(FIRST) if message.properties else None


def answering(message: Message, request: list[object], first: object) -> dict[str, object]:
    """The properties of an answer to the request of that queue and id."""
    found = {**(message.properties or {}), "answers": request}
    if first is not None:
        found[ANSWERS_FIRST] = first
    return found


def copied_properties(message: Message) -> dict[str, object] | None:
    """The properties of a copy that the hub sends later: they say who asked, if somebody did."""
    if not message.reply_to:
        return message.properties
    return {**(message.properties or {}), ASKED: asked_in(message)}


def read_json(column: bytes) -> Any:
    """What `properties_column` wrote, or what else of a row is JSON. Raises ValueError.

    Half characters of names that are not UTF-8, and numbers without end, only Python's own reads.
    """
    try:
        return _read(column)
    except msgspec.DecodeError:
        return json.loads(column)


def properties_column(properties: dict[str, object] | None) -> bytes:
    if not properties:
        return b""
    answers = properties.get("answers") if len(properties) == 1 else None
    if isinstance(answers, list) and len(answers) == 2:  # of each answer to a call
        queue, number = answers
        if isinstance(queue, str) and type(number) is int:
            return b'{"answers":[%b,%d]}' % (_quoted(queue).encode(), number)
    return (_plainly(properties) or _write(properties)).encode()


def _plainly(properties: dict[str, object]) -> str:
    """The same text, in a third of the time, where all values are of these kinds; else ""."""
    said = []
    for name, value in cast("dict[object, object]", properties).items():
        if type(name) is not str:  # a program's, and compiled code believes what is declared
            return ""
        if type(value) is str:
            said.append(f"{_quoted(name)}:{_quoted(value)}")
        elif type(value) is int:
            said.append(f"{_quoted(name)}:{value}")
        elif value is True:
            said.append(f"{_quoted(name)}:true")
        else:
            return ""
    return "{" + ",".join(said) + "}"


def of_node(properties: bytes, node: str) -> bytes:
    """The column in a row of a message that another node took in, which says so: the first did."""
    said: dict[str, object] = read_json(properties) if properties else {}
    return properties_column({NODE: node, **said})


def message_of(row: Row) -> Message:
    """The message that a `publish` or `send` row carries."""
    (
        seq, time, _, protocol, client, topic, subtopic, qos, retain, payload, content_type,
        reply_to, correlation, _, _, expires, properties,
    ) = row  # fmt: skip
    return Message(
        name_of(topic), payload, qos, retain, protocol_of(protocol), name_of(client), 0,
        name_of(subtopic) if subtopic else "", name_of(content_type) if content_type else "",
        name_of(reply_to) if reply_to else "", correlation,
        read_json(properties) if properties else None, expires, seq, time,
    )  # fmt: skip


def row_of(message: Message, kind: bytes = PUBLISH, ref: int = 0, number: int = 0) -> Row:
    """The row that records a message; the log gives it seq and time."""
    return row_saying(message, kind, ref, number, message.properties)


def row_saying(
    message: Message, kind: bytes, ref: int, number: int, properties: dict[str, object] | None
) -> Row:
    """The same with these properties in the place of its own."""
    values = (
        0, 0, kind, protocol_column(message.protocol), column_of(message.client),
        column_of(message.topic), column_of(message.subtopic), message.qos, message.retain,
        message.payload, column_of(message.content_type), column_of(message.reply_to),
        message.correlation, ref, number, message.expires,
        properties_column(properties),
    )  # fmt: skip
    return tuple.__new__(Row, values)


def rows_of(run: Run, ref: int) -> list[Row]:
    """The rows that record a run; the log gives them seq and time."""
    rows = [row_of(message, PUBLISH, ref, run.number) for message in run.messages()]
    if node := run.sender.node:
        return [row._replace(properties=of_node(row.properties, node)) for row in rows]
    return rows


@mypyc_attr(allow_interpreted_subclasses=True)
class Encoding:
    """How messages look to a subscriber: protocol, version, QoS, options. Compared by `is`.

    `encode` makes the bytes of a whole run from its messages; `decode` is its reverse for runs
    that arrived in this encoding. Packet ids and aliases inside the image are placeholders that
    the receiving session patches.
    """

    def encode(self, run: Run) -> bytes:
        raise NotImplementedError

    def decode(self, run: Run) -> list[Message]:
        raise NotImplementedError

    def payloads(self, run: Run) -> list[bytes] | None:
        """The payloads, if sender, topic, QoS and retain say all the rest; None = decode it."""
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Run:
    """n >= 1 messages in a row from one sender with one route and one QoS.

    `first` is the seq of its first message once the log numbered it (0 before). `number` is the
    packet id of a durable QoS 2 publisher. `level`: what the answer to its publisher promises
    (`core.log`), 0 if nobody waits for one; where another node keeps it instead, it waits for
    `upto` there. `step` is the length of one message in the image when
    all are equally long, and `offset` where its packet id lies: for protocols that patch. `size`:
    the bytes of each payload, -1 if nobody has looked (`payload_size`).
    """

    __slots__ = (
        "sender", "route", "qos", "count", "encoding", "image", "retain", "first", "time",
        "number", "level", "upto", "step", "offset", "size", "_messages", "_images",
    )  # fmt: skip

    def __init__(
        self,
        sender: Session,
        route: Route,
        qos: int,
        count: int,
        encoding: Encoding,
        image: bytes,
        retain: bool = False,
    ) -> None:
        self.sender = sender
        self.route = route
        self.qos = qos
        self.count = count
        self.encoding = encoding
        self.image = image
        self.retain = retain
        self.first = 0
        self.time = 0
        self.number = 0
        self.level = 0
        self.upto = 0
        self.step = len(image) // count
        self.offset = 0
        self.size = -1
        self._messages: list[Message] | None = None
        self._images: dict[Encoding, bytes] | None = None

    def seen_as(self, encoding: Encoding) -> bytes:
        if encoding is self.encoding:
            return self.image
        images = self._images
        if images is None:
            images = self._images = {}
        image = images.get(encoding)
        if image is None:
            image = images[encoding] = encoding.encode(self)
        return image

    def part(self, index: int) -> Run:
        """One message of the run as a run of its own; all of one run are equally long."""
        step = self.step
        image = self.image[index * step : (index + 1) * step]
        run = Run(self.sender, self.route, self.qos, 1, self.encoding, image, self.retain)
        run.offset = self.offset
        run.size = self.size
        run.first = self.first + index if self.first else 0
        run.time = self.time
        if self._messages is not None:
            run.replace([self._messages[index]])
        return run

    def messages(self) -> list[Message]:
        if self._messages is None:
            self._messages = self.encoding.decode(self)
            self._number()
        return self._messages

    def spelled_out(self) -> list[Message]:
        """Those that somebody has asked for: only these can have been given a `reply_id`."""
        return self._messages or []

    def payload_size(self) -> int:
        """The bytes of the payload of each message; all of one run are equally long."""
        if self.size < 0:
            self.size = len(self.messages()[0].payload)
        return self.size

    def unasked_size(self) -> int:
        """The same of one that its publisher asked nobody about: of QoS 0. What was asked about is
        not refused for its size any more, as it is acknowledged then.
        """
        return 0 if self.qos else self.payload_size()

    def recorded(self, first: int, time: int) -> None:
        """The log gives its messages the numbers from `first` on, and the time."""
        self.first = first
        self.time = time
        self._number()

    def _number(self) -> None:
        if self.first and self._messages is not None:
            for seq, message in enumerate(self._messages, self.first):
                message.seq, message.time = seq, self.time

    def replace(self, messages: list[Message]) -> None:
        """Give the messages instead of decoding them; for runs made inside the hub."""
        self._messages = messages


class _Spelled(Encoding):
    """The encoding of runs that the hub itself makes: nothing but the messages."""

    def encode(self, run: Run) -> bytes:
        return b"".join(message.payload for message in run.messages())

    def decode(self, run: Run) -> list[Message]:
        raise AssertionError("a spelled run is made with its messages")


SPELLED: Final = _Spelled()


def run_of(message: Message, sender: Session, route: Route) -> Run:
    """A run of one message that came from no wire: a retained one, a will, the hub's own."""
    run = Run(sender, route, message.qos, 1, SPELLED, b"", message.retain)
    run.replace([message])
    run.first = message.seq
    return run
