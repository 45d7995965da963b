"""What an MQTT client receives: encodings, packet ids, the window, and QoS 2 toward the client.

    deliver   a run arrives    -> written at once if the window has room, else it waits
    pump      room appeared    -> the oldest waiting deliveries are read from the log and sent
    PUBACK / PUBREC / PUBCOMP  -> the delivery is over, or half over

The packet id of a delivery is 1 + its number mod 65,535, so it needs no table and survives a
restart. Toward clients of 3.1 and 3.1.1 an open QoS 2 exchange is exclusive: deliveries stay
aside until it is done (some clients accept nothing else in between), but not longer than
EXCLUSIVE_SECONDS. Called by the broker and by the connection; writes to the link only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.core.broker import Broker, row_about
from hubbub.core.limits import LINK_CHOKED
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.rights import Rights
from hubbub.core.session import Session, SessionState, Subscription
from hubbub.core.topics import CLIENT, QUEUE
from hubbub.protocols.mqtt import codec
from hubbub.schema import ACK, RECEIVED, Row, name_to_wire

NAME: Final = "mqtt"
EXCLUSIVE_SECONDS: Final = 5.0
PACKET_IDS: Final = 65_535
SELF: Final = "$client/self"


class PublishEncoding(Encoding):
    """PUBLISH packets of one QoS; the packet ids in an image are placeholders."""

    def __init__(self, qos: int) -> None:
        self.qos = qos

    def encode(self, run: Run) -> bytes:
        topic = name_to_wire(run.route.name)
        return b"".join(
            [codec.publish(topic, message.payload, self.qos) for message in run.messages()]
        )

    def decode(self, run: Run) -> list[Message]:
        sender, name, qos, retain = run.sender, run.route.name, run.qos, run.retain
        return [
            Message(name, payload, qos, retain, sender.protocol, sender.client, sender.number)
            for payload in self.payloads(run)
        ]

    def payloads(self, run: Run) -> list[bytes]:
        """All packets of a run have the same topic and length, so the first tells where to cut."""
        image, step = run.image, run.step
        body, _ = codec.extent(image, 0)
        head = body + 2 + int.from_bytes(image[body : body + 2], "big") + (2 if self.qos else 0)
        return [image[at + head : at + step] for at in range(0, len(image), step)]


ENCODINGS: Final = (PublishEncoding(0), PublishEncoding(1), PublishEncoding(2))


def granted(qos: int) -> tuple[Encoding, Encoding, Encoding]:
    """The encodings of a subscription with this QoS, by the QoS of the message."""
    return ENCODINGS[0], ENCODINGS[min(1, qos)], ENCODINGS[min(2, qos)]


class MqttSession(Session):
    """The session of one client id. It lives as long as the connection, or is `lasting`.

    `link` is None while the client is away. `exclusive`: QoS 2 exchanges that are open now.
    `starved`: a queue was, or may have been, turned away for want of room. `exchanging`: the
    sessions of this hub with an exclusive exchange, which may take too long.
    """

    def __init__(
        self, broker: Broker, client: str, rights: Rights, lasting: bool,
        exchanging: set[MqttSession],
    ) -> None:  # fmt: skip
        super().__init__(NAME, client, rights)
        self._exchanging = exchanging
        self.broker = broker
        self.lasting = lasting
        self.remember(SessionState(NAME, client))
        self.link: Link | None = None
        self.window = broker.inflight
        self.end: Callable[[str], None] | None = None
        self.serial = False
        self.exclusive = 0
        self.exclusive_until = 0.0
        self.starved = True
        self._aside: list[bytes] = []
        self._aside_bytes = 0
        self._acknowledged: list[tuple[int, int]] = []
        self._settling = False

    def remember(self, state: SessionState) -> None:
        """What it knows: its own, or for a lasting session what the journal's fold holds."""
        self.state = state
        self.backlog = state.backlog

    # The connection comes and goes

    def attach(self, link: Link, serial: bool, end: Callable[[str], None]) -> None:
        if self.lasting:
            self.remember(self.broker.state.sessions[NAME, self.client])
        self.link = link
        self.serial = serial
        self.end = end
        self.window = self.broker.inflight
        self.listen_to_self()

    def listen_to_self(self) -> None:
        """Subscribed to $client/self: what is published to its address reaches it."""
        wish = self.subscriptions.get(SELF)
        if wish is None and self.direct is None:
            return
        self.direct = None
        if wish is not None and self.number:
            self.direct = Subscription(self, CLIENT + str(self.number), wish.qos, wish.encodings)
        self.broker.age += 1

    def detach(self) -> None:
        """The connection is gone; what is not acknowledged will be sent again."""
        self.link = None
        self.end = None
        if self.direct is not None:
            self.direct = None
            self.broker.age += 1
        self.exclusive = 0
        self._exchanging.discard(self)
        self._aside = []
        self._aside_bytes = 0
        for seq in self.leases:
            number = self.backlog.number_of(seq)
            if number >= 0:
                self.backlog.remove(number)
        self.backlog.rewind()

    def taken_over(self) -> None:
        self._close("another connection came with the same client id")

    def goodbye(self) -> None:
        self._close("ended by the hub")

    def _close(self, reason: str) -> None:
        if self.end is not None:
            self.end(reason)

    # Deliveries

    def ready(self) -> bool:
        link = self.link
        if link is not None and not link.choked and len(self.backlog.entries) < self.window:
            return True
        self.starved = True
        return False

    def deliver(self, run: Run, subscription: Subscription) -> None:
        qos = run.qos if run.qos < subscription.qos else subscription.qos
        link = self.link
        if qos:
            self._deliver_acknowledged(run, subscription, qos)
        elif link is None:
            return
        elif link.choked:
            self._drop("slow consumer", run.count)
        elif self.exclusive:
            self._set_aside(run.seen_as(subscription.encodings[run.qos]), run.count)
        else:
            link.write(run.seen_as(subscription.encodings[run.qos]))
            self.broker.metrics.messages_out += run.count

    def _deliver_acknowledged(self, run: Run, subscription: Subscription, qos: int) -> None:
        """Into the backlog, where the deliveries of a lasting session already are."""
        backlog, count, link = self.backlog, run.count, self.link
        waiting = backlog.next - (count if self.lasting else 0)
        at_once = (
            link is not None
            and not link.choked
            and backlog.sent == waiting
            and waiting + count - backlog.first <= self.window
            and not self.exclusive
            and (qos == 1 or not self.serial)
        )
        if not self.lasting:
            if not at_once and not run.first:
                run.first = self.broker.log.keep(run)
            if len(backlog.entries) + count > self.broker.backlog_messages:
                self._drop("backlog full", count)
                return
            backlog.add(run.first, count, qos)
        if at_once and link is not None:
            image = numbered(run, subscription.encodings[run.qos], backlog.sent)
            backlog.sent += count
            self.broker.metrics.messages_out += count
            if qos == 2:
                link.hold(image)
            else:
                link.write(image)
        else:
            self.pump()

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        qos = min(message.qos, subscription.qos)
        if qos:
            if not self.lasting or not retained:
                self.backlog.add(message.seq, 1, qos, retained)
            self.pump()
        elif self.link is not None:
            if self.link.choked:
                self._drop("slow consumer", 1)
                return
            topic = name_to_wire(message.topic)
            self.link.write(codec.publish(topic, message.payload, 0, retained))
            self.broker.metrics.messages_out += 1
            self._taken_from_queue(message.seq)

    def pump(self) -> None:
        """Send what waits, oldest first, as far as the window and the link allow."""
        backlog, link = self.backlog, self.link
        while (
            link is not None
            and backlog.sent < backlog.next
            and backlog.sent - backlog.first < self.window
            and not link.choked
            and not self.exclusive
        ):
            number = backlog.sent
            if not backlog.holds(number):
                backlog.sent += 1
            elif number in backlog.received:
                backlog.sent += 1
                self.open_exchange()
                link.hold(codec.acknowledgement(codec.PUBREL, packet_id(number)))
            else:
                self._send(link, number)

    def _send(self, link: Link, number: int) -> None:
        backlog = self.backlog
        seq, qos = backlog.seq(number), backlog.qos(number)
        message = self.broker.log.read(seq)
        if message is None or 0 < message.expires <= self.broker.clock.stamp():
            self._drop("gone" if message is None else "expired", 1)
            self._over(number, seq)
            backlog.sent = max(backlog.sent, backlog.first)
            return
        frame = codec.publish(
            name_to_wire(message.topic), message.payload, qos, backlog.retained(number),
            packet_id(number), number < backlog.tried,
        )  # fmt: skip
        backlog.sent += 1
        self.broker.metrics.messages_out += 1
        if qos == 2:
            self.open_exchange()
            link.hold(frame)
        else:
            link.write(frame)

    def _drop(self, reason: str, count: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.broker.metrics.drop(reason, count)

    # What the client answers

    def acknowledge_run(self, data: bytes, at: int) -> int:
        """Take the PUBACKs at `at`, all that come in order at once; return where they end."""
        backlog = self.backlog
        flying = backlog.sent - backlog.first
        count = min(flying, (len(data) - at) >> 2)
        first = packet_id(backlog.first)
        count = min(count, PACKET_IDS + 1 - first)
        while count and data[at : at + 4 * count] != codec.PUBACKS[4 * first : 4 * (first + count)]:
            count >>= 1
        if count and not self.lasting and not self.leases and not backlog.received:
            backlog.shift(count)
            at += 4 * count
            if backlog.sent < backlog.next or self.starved:
                self.resume()
            return at
        self.puback(codec.parse_packet_id(codec.PUBACK, data[at + 2 : at + 4]))
        return at + 4

    def _number(self, identifier: int) -> int:
        """The number of the delivery in flight with that packet id, or -1."""
        backlog = self.backlog
        number = backlog.first + (identifier - 1 - backlog.first) % PACKET_IDS
        return number if number < backlog.sent and backlog.holds(number) else -1

    def puback(self, identifier: int) -> None:
        number = self._number(identifier)
        if number >= 0:
            self._over(number, self.backlog.seq(number))
            self.resume()

    def pubrec(self, identifier: int) -> None:
        """The client has it; from now on only PUBREL is sent, whatever happens (4.3.3)."""
        link = self.link
        if link is None:
            return
        number = self._number(identifier)
        if number >= 0 and number not in self.backlog.received:
            self.backlog.received.add(number)
            if self.lasting:
                row = self._row(RECEIVED, self.backlog.seq(number), 1)
                self.broker.log.append(row)
        link.hold(codec.acknowledgement(codec.PUBREL, identifier))

    def pubcomp(self, identifier: int) -> None:
        number = self._number(identifier)
        if number >= 0:
            self._over(number, self.backlog.seq(number))
            self.close_exchange()
            self.resume()

    def _over(self, number: int, seq: int) -> None:
        """Nobody waits for this delivery any more; the queue or the journal it came from hears."""
        self.backlog.remove(number)
        if seq in self.leases:
            self._taken_from_queue(seq)
        elif self.lasting:
            self._acknowledged.append((number, seq))
            if not self._settling:
                self._settling = True
                self.broker.unsettled.append(self)

    def _taken_from_queue(self, seq: int) -> None:
        lease = self.leases.pop(seq, None)
        if lease is not None:
            self.broker.acknowledge(lease[0], lease[1], self)
            self.starved = True  # the same message may wait for it in another queue

    def settle(self) -> None:
        """One `ack` row for each run of consecutive deliveries."""
        self._settling = False
        first = count = ref = 0
        for number, seq in self._acknowledged:
            if count and number == first + count:
                count += 1
                continue
            if count:
                self.broker.log.append(self._row(ACK, ref, count))
            first, count, ref = number, 1, seq
        self._acknowledged = []
        self.broker.log.append(self._row(ACK, ref, count))

    def _row(self, kind: bytes, ref: int, count: int) -> Row:
        return row_about(self, kind)._replace(ref=ref, number=count)

    def resume(self) -> None:
        """There is room: send what waits, then take from the queues that were turned away."""
        self.pump()
        starved, self.starved = self.starved, False
        for topic_filter in self.subscriptions if starved else ():
            queue = self.broker.state.queues.get(topic_filter.removeprefix(QUEUE))
            if queue is not None and topic_filter.startswith(QUEUE):
                self.broker.dispatch(queue)

    # Exclusive exchanges

    def open_exchange(self) -> None:
        if self.serial:
            self._exchanging.add(self)
            self.exclusive += 1
            self.exclusive_until = self.broker.clock.now() + EXCLUSIVE_SECONDS

    def close_exchange(self) -> None:
        """A QoS 2 exchange, to or from the client, is done."""
        if self.exclusive:
            self.exclusive -= 1
            if not self.exclusive:
                self._end_exclusive()

    def exclusive_timeout(self, now: float) -> None:
        """The client did not finish in time: the others shall not wait for ever."""
        if self.exclusive and now >= self.exclusive_until:
            self.exclusive = 0
            self._end_exclusive()

    def _set_aside(self, image: bytes, count: int) -> None:
        if self._aside_bytes > LINK_CHOKED:
            self._drop("slow consumer", count)
            return
        self._aside.append(image)
        self._aside_bytes += len(image)
        self.broker.metrics.messages_out += count

    def _end_exclusive(self) -> None:
        self._exchanging.discard(self)
        aside, self._aside = self._aside, []
        self._aside_bytes = 0
        if self.link is not None:
            for image in aside:
                self.link.write(image)
            self.resume()


def packet_id(number: int) -> int:
    return 1 + number % PACKET_IDS


def numbered(run: Run, encoding: Encoding, number: int) -> bytes:
    """The image of a run for one receiver, with packet ids from the delivery `number` on."""
    image = run.seen_as(encoding)
    first = packet_id(number)
    if encoding is not run.encoding or not run.offset:
        return _numbered_slowly(image, number)
    offset, step, count = run.offset, run.step, run.count
    if count == 1:
        return b"".join((image[:offset], codec.IDS[2 * first : 2 * first + 2], image[offset + 2 :]))
    if first + count > PACKET_IDS + 1:
        return _numbered_slowly(image, number)
    patched = bytearray(image)
    patched[offset::step] = codec.IDS[2 * first : 2 * (first + count) : 2]
    patched[offset + 1 :: step] = codec.IDS[2 * first + 1 : 2 * (first + count) : 2]
    return bytes(patched)


def _numbered_slowly(image: bytes, number: int) -> bytes:
    """Packets of any length, or ids that wrap around."""
    patched = bytearray(image)
    for index, (_, body, _end) in enumerate(codec.packets(image)):
        at = body + 2 + int.from_bytes(image[body : body + 2], "big")
        patched[at : at + 2] = packet_id(number + index).to_bytes(2, "big")
    return bytes(patched)

