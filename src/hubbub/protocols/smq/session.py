"""A connected SMQ client as a receiver of messages, and how messages look to it.

Between clients of the same transport a run passes as it came, byte for byte. Between a raw
socket and a WebSocket only the frame around each message changes. What comes from elsewhere is
spelled out as Publish messages: topic id, the sender's number, sub-topic id, payload.

Made by the connection, called by the broker; never reads a byte of the client's.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from hubbub.core.broker import Broker
from hubbub.core.client import drop, take_more
from hubbub.core.gate import Admission
from hubbub.core.limits import LINK_CHOKED, PREFETCH
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import CLIENT, QUEUE, client_number
from hubbub.protocols.smq import codec
from hubbub.wire.websocket import close_frame, frame

if TYPE_CHECKING:
    from hubbub.protocols.smq.connection import Smq

log = logging.getLogger("hubbub.smq")

PUBLISH_HEAD: Final = codec.PUBLISH_HEAD - 2  # without the length
TOO_LARGE: Final = "too large for a raw SMQ socket"
SUBTID: Final = "smq-subtid"  # property: the number of a sub-topic that has no name
NO_SUBTOPIC: Final = bytes(4)
NOTHING_OBSERVED: Final[dict[str, None]] = {}  # shared by all who observe nothing
REQUEST: Final = "request"  # sub-topic: what is published to a queue under it wants an answer


class SmqEncoding(Encoding):
    """Publish messages one behind the other, all of one run equally long.

    `payload_bytes` is the largest payload the transport can carry, `last` what it wants said
    before it is closed.
    """

    payload_bytes = codec.PAYLOAD_BYTES
    last = b""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.by_qos = (self, self, self)

    def wrap(self, body: bytes) -> bytes:
        """The bytes around a message."""
        raise NotImplementedError

    def head(self, step: int) -> int:
        """How many bytes stand before the message in a frame of `step` bytes."""
        raise NotImplementedError

    def bodies(self, run: Run) -> list[bytes]:
        """The messages (type and body) of a run in this encoding."""
        image, step = run.image, run.step
        head = self.head(step)
        return [image[at + head : at + step] for at in range(0, len(image), step)]

    def encode(self, run: Run) -> bytes:
        """What this transport can carry of the run."""
        source = run.encoding
        if isinstance(source, SmqEncoding):
            bodies = source.bodies(run)
        elif (payloads := source.payloads(run)) is not None:
            head = self._head(run)  # the same for all, which are payloads and no more
            bodies = [head + payload for payload in payloads]
        else:
            bodies = [self.body(message, run.sender) for message in run.messages()]
        most = self.payload_bytes + PUBLISH_HEAD
        return b"".join([self.wrap(body) for body in bodies if len(body) <= most])

    def body(self, message: Message, maker: Session) -> bytes:
        """A message from elsewhere as a Publish; ids that it needs are made for `maker`."""
        return codec.message(
            codec.PUBLISH,
            self._number(message.topic, maker),
            self._asker(message, maker),
            self._subtopic(message, maker),
            rest=message.payload,
        )

    def _head(self, run: Run) -> bytes:
        """What a message begins with that has nothing but a payload."""
        sender = run.sender.number or self.broker.itself.number
        number = self._number(run.route.name, run.sender)
        return codec.message(codec.PUBLISH, number, sender, 0)

    def _number(self, topic: str, maker: Session) -> int:
        if topic.startswith(CLIENT):
            return client_number(topic)
        return self.broker.topic_id(topic, maker)

    def _asker(self, message: Message, maker: Session) -> int:
        """Whom the message says it is from: for a request, where the answer goes."""
        number = self.broker.replies.id_of(message, maker) if message.reply_to else 0
        return number or message.sender or self.broker.itself.number

    def _subtopic(self, message: Message, maker: Session) -> int:
        if message.subtopic:
            return self.broker.subtopic_id(message.subtopic, maker)
        number = message.properties.get(SUBTID, 0) if message.properties else 0
        return number if isinstance(number, int) and 0 <= number < 1 << 32 else 0

    def decode(self, run: Run) -> list[Message]:
        """The messages of a run: one topic and sender, perhaps several sub-topics."""
        image, step, topic = run.image, run.step, run.route.name
        protocol, client = run.sender.protocol, run.sender.client
        subtid = self.head(step) + 9
        sender = int.from_bytes(image[subtid - 4 : subtid], "big")
        known = b""
        subtopic = reply_to = ""
        properties: dict[str, object] | None = None
        found = []
        for at in range(0, len(image), step):
            number = image[at + subtid : at + subtid + 4]
            if number != known:
                known = number
                subtopic, properties = self._subtopic_of(int.from_bytes(number, "big"))
                wants_answer = subtopic == REQUEST and topic.startswith(QUEUE)
                reply_to = f"{CLIENT}{sender}" if wants_answer else ""
            payload = image[at + subtid + 4 : at + step]
            message = Message(
                topic, payload, 0, False, protocol, client, sender, subtopic, "", reply_to, b"",
                properties,
            )  # fmt: skip
            message.answers_sender = run.sender.asks_by_number
            found.append(message)
        return found

    def payloads(self, run: Run) -> list[bytes] | None:
        """Without sub-topics there is nothing else in a message."""
        image, step = run.image, run.step
        subtid = self.head(step) + 9
        if run.count == 1:  # as most are
            plain = image[subtid : subtid + 4] == NO_SUBTOPIC
            return [image[subtid + 4 :]] if plain else None
        for at in range(subtid, len(image), step):
            if image[at : at + 4] != NO_SUBTOPIC:
                return None
        return [image[at + 4 : at - subtid + step] for at in range(subtid, len(image), step)]

    def _subtopic_of(self, number: int) -> tuple[str, dict[str, object] | None]:
        """The name of a sub-topic, or the property that says its number if it has none."""
        name = self.broker.state.subtopics.names.get(number, "")
        return name, None if name or not number else {SUBTID: number}


class SmqRaw(SmqEncoding):
    """Over a raw socket. Its length field cannot say more than 0xFFFF bytes."""

    def wrap(self, body: bytes) -> bytes:
        return codec.framed(body)

    def head(self, step: int) -> int:
        return 2


class SmqWebSocket(SmqEncoding):
    """Over a WebSocket: the frames are made here, once for all receivers."""

    payload_bytes = sys.maxsize
    last = close_frame()

    def wrap(self, body: bytes) -> bytes:
        return frame(body)

    def head(self, step: int) -> int:
        # A body of 125 bytes is the last with the short head, one of 0xFFFF with the middle one.
        return 2 if step <= 125 + 2 else 4 if step <= 0xFFFF + 4 else 10


class SmqSession(Session):
    """One connected client; it ends with its connection.

    `observing`: the names whose changes it wants. Of its `requests` are those whose asker has no
    reply id, but a number. `settled`: False while a subscription is being made. `largest` bounds
    single writes, 0 = none.
    """

    def __init__(
        self, smq: Smq, admission: Admission, link: Link, encoding: SmqEncoding, largest: int
    ) -> None:
        super().__init__(smq.name, admission.client, admission.rights)
        self.settled = True
        self.smq = smq
        self.broker = smq.broker
        self.link = link
        self.encoding = encoding
        self.encodings = encoding.by_qos
        self.largest = largest
        self.asks_by_number = True
        self.observing = NOTHING_OBSERVED
        self.direct = Subscription(self, CLIENT, 0, self.encodings, literal=True)

    # Sending

    def write(self, data: bytes) -> None:
        largest = self.largest
        if largest and len(data) > largest:
            for at in range(0, len(data), largest):
                self.link.write(data[at : at + largest])
        else:
            self.link.write(data)

    def send(self, kind: int, *numbers: int, rest: bytes = b"") -> None:
        self.write(self.encoding.wrap(codec.message(kind, *numbers, rest=rest)))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if self.link.choked and not self.broker.patience.has(self, self.link, run):
            drop(self.broker, self, "slow reader", run.count)
            return
        encoding = self.encoding
        image = run.seen_as(encoding)
        # Only what is encoded anew can be too large, and only if its image was; what the hub
        # itself made has none.
        if encoding is not run.encoding:
            self._encoded_anew(run)
        if image:
            self.write(image)
            self.traffic.delivered += run.count

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        """One message for this client alone; if it is from a queue, writing acknowledges it."""
        if len(message.payload) > self.encoding.payload_bytes:
            drop(self.broker, self, TOO_LARGE, 1)
        else:
            self.write(self.encoding.wrap(self.encoding.body(message, self)))
            self.traffic.delivered += 1
        if message.seq in self.leases:
            self._hand_over(message)

    def _encoded_anew(self, run: Run) -> None:
        """It is shown what it may answer, and not what is too large for it."""
        if not isinstance(run.encoding, SmqEncoding):
            for message in run.spelled_out():
                if message.reply_id:
                    self.broker.replies.hand(message, self)
        most = self.encoding.payload_bytes
        if 0 < len(run.image) <= most:
            return
        count = sum(len(message.payload) > most for message in run.messages())
        if count:
            drop(self.broker, self, TOO_LARGE, count)

    # Queues

    def ready(self) -> bool:
        """Room for one more. What is written at once acknowledges itself, so the link bounds it."""
        if self.link.size > LINK_CHOKED or self.broker.replies.full():
            self.smq.stalled.add(self)
            return False
        return self.number != 0 and self.settled and len(self.leases) < PREFETCH

    def hungry(self) -> bool:
        return self.link.size <= LINK_CHOKED

    def fits(self, message: Message, subscription: Subscription) -> bool:
        return len(message.payload) <= self.encoding.payload_bytes

    def resume(self) -> None:
        """There may be room again: take from the queues."""
        self.smq.stalled.discard(self)
        take_more(self.broker, self)

    def relieved(self) -> None:
        if self.turned_away:
            self.resume()

    def _hand_over(self, message: Message) -> None:
        """A queue message was written: that acknowledges it, unless it wants an answer."""
        queue, number = self.leases[message.seq]
        if not message.reply_to:
            self.broker.queues.acknowledge(queue, number, self)
            return
        if not message.reply_to.startswith(CLIENT):
            return  # who publishes to its reply id acknowledges it
        self.owes(message)

    def answer(self, run: Run) -> bool:
        """Publish a run as answers to the oldest open requests from there; False if none is."""
        answered = False
        for index in range(run.count):
            seq = self.answered(run.route.name)
            if seq:
                self.broker.queues.answer(self, seq, run.part(index))
                answered = True
            elif answered:
                self.broker.publish(run.part(index))
        return answered

    def route_to_asker(self, address: str) -> Route | None:
        """Where an answer goes whose asker is gone: to nobody, but it ends the request."""
        return self.broker.route(self, address) if self.answered(address) else None

    # Observing

    def observe(self, name: str) -> None:
        """It wants to hear of the changes of that name."""
        if self.observing is NOTHING_OBSERVED:
            self.observing = {}
        self.observing[name] = None

    def changed(self, name: str, count: int) -> None:
        if not self.number:
            return  # it is gone, and being forgotten
        number = self.broker.state.topics.numbers.get(name, 0)
        if not number:
            if name not in self.observing:
                return  # it has asked meanwhile, and heard then
            number = int(name[len(CLIENT) :])
            del self.observing[name]  # a client is gone once
        self.send(codec.CHANGE, number, count)

    # Ending

    def leave(self, reason: str) -> None:
        """The client is gone; a second call does nothing."""
        if not self.number:
            return
        self.broker.observers.forget(self, self.observing)
        self.observing = NOTHING_OBSERVED
        self.smq.stalled.discard(self)
        self.broker.disconnect(self, reason)

    def end(self, reason: str, text: bytes = b"") -> None:
        """Tell the client to go and not to come back by itself (a Disconnect says that)."""
        self.send(codec.DISCONNECT, rest=text)
        if self.encoding.last:
            self.link.write(self.encoding.last)
        self.link.close(reason)
        self.leave(reason)

    def taken_over(self) -> None:
        self.end("the same uid connected again", codec.RECONNECT)

    def goodbye(self, text: str = "") -> None:
        self.end(text or "ended by the hub", text.encode("utf-8", "replace"))
