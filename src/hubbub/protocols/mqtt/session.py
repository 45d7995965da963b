"""What an MQTT client receives: packet ids, the window, topic aliases, and QoS 2 toward it.

    deliver   a run arrives    -> written at once if the window has room, else it waits
    pump      room appeared    -> the oldest waiting deliveries are read from the log and sent
    PUBACK / PUBREC / PUBCOMP  -> the delivery is over, or half over

The packet id of a delivery is 1 + its number mod 65,535, so it needs no table and survives a
restart. A client that accepts nothing else during a QoS 2 exchange is served one after the other
(`serial`). Called by the broker and by the connection; writes to the link only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.caches import weight_of
from hubbub.core.client import drop, take_more
from hubbub.core.connection import Connection
from hubbub.core.limits import PREFETCH
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.rights import CONSUME, RECEIVE, Rights
from hubbub.core.session import (
    FULL,
    NO_REQUESTS,
    PASSING,
    Backlog,
    Session,
    SessionState,
    Subscription,
    lent,
    row_about,
)
from hubbub.core.topics import CLIENT, QUEUE, SELF
from hubbub.errors import UnreadableError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError
from hubbub.protocols.mqtt.dialect import PLAIN, Dialect, Ids, PublishEncoding5
from hubbub.protocols.mqtt.numbering import (
    APART,
    PACKET_IDS,
    hand_over,
    in_order,
    in_two,
    packet_id,
    releases,
    waiting,
)
from hubbub.protocols.mqtt.options import unpack
from hubbub.protocols.mqtt.serial import Serial
from hubbub.protocols.mqtt.wishes import Wishes, asked_by, those_for
from hubbub.schema import ACK, RECEIVED, Row, counted

NAME: Final = "mqtt"
ANY_PACKET: Final = 2 * codec.MAX_LENGTH  # more than there can be
ALIAS_BYTES: Final = 3  # what a topic alias adds to a packet that says the topic too
REPLY_ID_BYTES: Final = 18  # $client/ and ten digits, in the place of a reply queue
NOTHING_ASKED: Final[tuple[bool, Ids]] = (False, ())
# Shared by all who have none, as those in core.session.
NO_ALIASES: Final[dict[str, int]] = {}
NOT_ASKED: Final[dict[tuple[str, bool], tuple[bool, Ids]]] = {}
NOT_OFFERED: Final[dict[int, tuple[bool, Ids]]] = {}
TOO_LARGE: Final = "packet too large for the client"

# What a delivery in flight waits for, by its QoS, and one more once a PUBREC came.
ONE: Final = 1
TWO: Final = 2
RELEASED: Final = 3
_WAITS_FOR: Final = {ONE: "PUBACK", TWO: "PUBREC", RELEASED: "PUBCOMP"}


class MqttSession(Session):
    """The session of one client id. It lives as long as the connection, or is `lasting`.

    `link`, and `here`, its connection, are None while the client is away. `serial`: its QoS 2
    exchanges, if they are served one after the other. On the present connection it `talks`, the
    client has published something, and is `twofold`, something of QoS 2 was sent to it. `dialect`:
    the version of that one, or of its last. `packet_limit` and `alias_limit`: the largest packet
    and the number of topic aliases that the client takes. `_offered`: what the subscription asked
    that a retained message is sent for, by its number.
    """

    def __init__(self, broker: Broker, client: str, rights: Rights, lasting: bool) -> None:
        super().__init__(NAME, client, rights)
        self.talks = False  # beside what is true or not of every session
        self.twofold = False
        self._settling = False
        self.lasting = lasting
        self.broker = broker
        self.state = PASSING
        self.backlog = Backlog()
        self.link: Link | None = None
        self.window = broker.inflight
        self.dialect: Dialect = PLAIN
        self.packet_limit = ANY_PACKET
        self.alias_limit = 0
        self.here: Connection | None = None
        self.serial: Serial | None = None
        self._aliases = NO_ALIASES
        self._asked = NOT_ASKED
        self._wishes: Wishes | None = None  # of 5.0
        self._offered = NOT_OFFERED
        self._acknowledged: list[tuple[int, int, Row]] | None = None

    def remember(self, state: SessionState) -> None:
        """What it knows: its own, or for a lasting session what the journal's fold holds."""
        self.state = state
        self.user, self.mount = state.user, state.mount
        self.backlog = state.backlog
        self.shared = state.shared

    def open(self, ids: Iterable[int]) -> None:
        """The client has begun QoS 2 exchanges under these."""
        if self.state is PASSING:
            self.state = SessionState(NAME, self.client, 0, passing=True)
        self.state.open(ids)

    # The connection comes and goes

    def attach(
        self, link: Link, dialect: Dialect, serial: Serial | None, here: Connection
    ) -> None:
        """The client is here and speaks this dialect, within the limits of before 5.0."""
        if self.lasting:
            self.remember(self.broker.state.sessions[NAME, self.client])
        self.link = link
        self.talks = False
        self._hurry(link)
        self.serial = serial
        if serial is not None:
            serial.freed = self.resume
        self.here = here
        self.window = self.broker.inflight
        self.packet_limit = ANY_PACKET
        self.alias_limit = 0
        if dialect is not self.dialect:
            self._translate(dialect)
        self.listen_to_self()

    def limit(self, window: int, packet_bytes: int, aliases: int) -> None:
        """What a client of 5.0 said it can take."""
        self.window = min(self.broker.inflight, window)
        self.packet_limit = packet_bytes
        self.alias_limit = aliases

    def _translate(self, dialect: Dialect) -> None:
        """It came back with another version: what it subscribed to looks different now."""
        self.dialect = dialect
        for subscription in self.subscriptions.values():
            subscription.encodings = self.encodings(subscription.qos, subscription.options)
        self.broker.age += 1

    def encodings(self, qos: int, options: bytes) -> tuple[Encoding, Encoding, Encoding]:
        asked = unpack(options)
        ids = (asked.identifier,) if asked.identifier else ()
        return self.dialect.encodings(qos, asked.as_published, ids)

    def changes(self, topic_filter: str) -> None:
        """One of its subscriptions is about to change, begin or end."""
        if self.dialect.v5:
            old = self.subscriptions.get(topic_filter)
            if self._wishes is None:
                self._wishes = Wishes()
            self._wishes.change(topic_filter, old, self.backlog.first, self.backlog.next)

    def subscribed(self) -> None:
        """Its subscriptions changed."""
        self.broker.shortcuts.forget(self._asked)
        self.listen_to_self()
        if self.link is not None:
            self._hurry(self.link)

    def speak(self) -> None:
        """The client publishes, for the first time on this connection."""
        self.talks = True
        if self.link is not None:
            self._hurry(self.link)

    def _hurry(self, link: Link) -> None:
        """Its small packets wait for one another where no answer of ours comes between them.

        A PUBACK gets none, and what it delays, a publish or a PUBREC, somebody waits for. Who only
        publishes is answered, and who only has PUBACKs to send may take its time.
        """
        if self.talks and self.subscriptions:
            link.prompt = True

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
        self.link = self.here = None
        if self.direct is not None:
            self.direct = None
            self.broker.age += 1
        if self.serial is not None:
            self.serial.leave()
            self.serial = None
        self._aliases = NO_ALIASES
        self.requests = NO_REQUESTS
        self.broker.shortcuts.forget(self._asked)
        self.backlog.end_leases(self.window)  # no more waited when one was added
        self.backlog.rewind()

    def taken_over(self) -> None:
        self._close("another connection came with the same client id", spec.TAKEN_OVER)

    def goodbye(self, text: str = "") -> None:
        self._close(text or "ended by the hub", spec.ADMINISTRATIVE)

    def _close(self, reason: str, code: int) -> None:
        if self.here is not None:
            self.here.end_for(reason, code)

    # Deliveries

    def merge(self, matching: list[Subscription]) -> Subscription:
        """One copy of the highest QoS, which carries the identifiers of all that match."""
        best = super().merge(matching)
        if not any(one.options for one in matching):
            return best
        as_published, ids = asked_by(matching)
        encodings = self.dialect.encodings(best.qos, as_published, ids)
        return Subscription(self, best.filter, best.qos, encodings, options=best.options)

    def unacknowledged(self) -> int:
        return len(self.backlog.entries)

    def chosen(self, group: str) -> bool:
        self.share(self.backlog.next, group)
        return True

    def lent(self) -> Iterator[tuple[int, str]]:
        return lent(self.backlog, self.shared)

    def ready(self) -> bool:
        theirs = max(len(self.leases), len(self.shared))
        return theirs < PREFETCH and len(self.requests) < self.window and self.hungry()

    def fits(self, message: Message, subscription: Subscription) -> bool:
        if self.packet_limit == ANY_PACKET:
            return True
        qos, ids = min(message.qos, subscription.qos), asked_by([subscription])[1]
        frame = self.dialect.publish(message, qos, message.retain, 1, False, ids)
        return len(frame) + ALIAS_BYTES + REPLY_ID_BYTES <= self.packet_limit

    def way_out(self) -> Link | None:
        return self.link

    def hungry(self) -> bool:
        link = self.link
        return link is not None and not link.choked and len(self.backlog.entries) < self.window

    def deliver(self, run: Run, subscription: Subscription) -> None:
        qos = run.qos if run.qos < subscription.qos else subscription.qos
        link = self.link
        if qos:
            self._deliver_acknowledged(run, subscription, qos)
        elif link is None:
            return
        elif link.choked and not self.broker.patience.has(self, link, run):
            drop(self.broker, self, "slow consumer", run.count)
        else:
            self._pass_on(link, run, subscription.encodings[run.qos])

    def _pass_on(self, link: Link, run: Run, encoding: Encoding) -> None:
        if self._fits(run, encoding):
            link.write(run.seen_as(self._aliased(run.route.name, encoding)))
            self.traffic.delivered += run.count
            return
        image = run.seen_as(encoding)
        for start, _, end in codec.packets(image):
            if end - start > self.packet_limit:
                drop(self.broker, self, TOO_LARGE, 1)
            else:
                link.write(image[start:end])
                self.traffic.delivered += 1

    def _fits(self, run: Run, encoding: Encoding) -> bool:
        """Whether the client takes packets as large as these, with a topic alias besides."""
        most = self.packet_limit - ALIAS_BYTES
        if most >= codec.MAX_LENGTH:
            return True
        image = run.seen_as(encoding)
        return len(image) <= most or all(
            end - start <= most for start, _, end in codec.packets(image)
        )

    def _aliased(self, name: str, encoding: Encoding, first: bool = True) -> Encoding:
        """The encoding that says the topic by its alias, if it has one or there is one left.

        Only what leaves in order may be the `first` to say it.
        """
        if not self.alias_limit or not isinstance(encoding, PublishEncoding5):
            return encoding
        alias = self._aliases.get(name, 0)
        if alias:
            return encoding.aliased(alias, False)
        if not first or len(self._aliases) >= self.alias_limit:
            return encoding
        if self._aliases is NO_ALIASES:
            self._aliases = {}
        alias = self._aliases[name] = len(self._aliases) + 1
        return encoding.aliased(alias, True)

    def _deliver_acknowledged(self, run: Run, subscription: Subscription, qos: int) -> None:
        """Into the backlog, where the deliveries of a lasting session already are."""
        backlog, count, link = self.backlog, run.count, self.link
        waiting = backlog.next - (count if self.lasting else 0)
        at_once = (
            link is not None
            and not link.choked
            and backlog.sent == waiting
            and waiting + count - backlog.first <= self.window
            and (not self.broker.inflight_bytes or self._flying_little())
            and self.serial is None
            and (
                self.packet_limit == ANY_PACKET or self._fits(run, subscription.encodings[run.qos])
            )
        )
        if not self.lasting:
            if not at_once and not run.first:
                run.first = self.broker.log.keep(run)
            if not at_once and self.lacks_room(run.sender, count, count * run.payload_size()):
                if group := self.shared.pop(backlog.next, ""):
                    self.broker.groups.give_again(run.first, group, True)
                else:
                    drop(self.broker, self, FULL, count)
                return
            backlog.add(run.first, count, qos, False, run.payload_size())
        if at_once and link is not None:
            encoding = subscription.encodings[run.qos]
            if self.alias_limit:
                encoding = self._aliased(run.route.name, encoding, first=qos == 1)
            if qos == 2:
                self.twofold = True
            hand_over(link, run, encoding, backlog.sent, qos == 2)
            backlog.sent += count
            self.traffic.delivered += count
        else:
            self.pump()

    def _flying_little(self) -> bool:
        """Whether more bytes may be in flight; one message may, whatever its size."""
        return self.backlog.bytes_in_flight() < self.broker.inflight_bytes

    def lacks_room(self, sender: Session, count: int, size: int) -> str:
        there, more = len(self.backlog.entries), self.backlog.bytes + size
        full = there + count > self.broker.backlog_messages
        return FULL if full or (there and more > self.broker.backlog_bytes) else ""

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        if message.reply_to:
            self._remember_request(message)
        qos = min(message.qos, subscription.qos)
        if qos:
            if message.seq in self.leases and not retained:
                self.backlog.lease(message.seq, qos, len(message.payload))
            elif not self.lasting or not retained:
                self.backlog.add(message.seq, 1, qos, retained, len(message.payload))
            if retained and self.dialect.v5:
                self._offered = self._offered or {}
                self._offered[self.backlog.next - 1] = asked_by([subscription])
            self.pump()
        elif self.link is not None:
            if self.link.choked:
                drop(self.broker, self, "slow consumer", 1)
                return
            as_published, ids = NOTHING_ASKED
            if subscription.options:
                as_published, ids = asked_by([subscription])
            retain = retained or (as_published and message.retain)
            self._show_reply_id(message)
            frame = self.dialect.publish(message, 0, retain, ids=ids)
            if len(frame) > self.packet_limit:
                drop(self.broker, self, TOO_LARGE, 1)
            else:
                self.link.write(frame)
                self.traffic.delivered += 1
            self._taken_from_queue(0 if retained else message.seq)

    def pump(self) -> None:
        """Send what waits, oldest first, as far as the window and the link allow."""
        backlog, link, log = self.backlog, self.link, self.broker.log
        alike = self.asks_little()
        while (
            link is not None
            and backlog.sent < backlog.next
            and backlog.sent - backlog.first < self.window
            and not link.choked
            and (self.serial is None or not self.serial.busy)
            and (not self.broker.inflight_bytes or self._flying_little())
        ):
            if self.broker.has_fetched_enough():
                self.broker.catch_up_later(self, self.resume)
                return
            number = backlog.sent
            frames = waiting(backlog, log, self.window, self.dialect, self.rights) if alike else []
            if frames:
                backlog.sent += len(frames)
                self.traffic.delivered += len(frames)
                link.write(b"".join(frames))
                continue
            if not backlog.holds(number):
                backlog.sent += 1
            elif number in backlog.received:
                alone = self.serial is not None or self.broker.inflight_bytes > 0
                self._send_qos_2(link, number, releases(backlog, 1 if alone else self.window))
            elif not self._sent(link, number):
                self.broker.again(self, self.resume)
                return

    def asks_little(self) -> bool:
        """Whether a message of QoS 1 that waited may just be sent: nothing depends on anything."""
        bounded = self.packet_limit != ANY_PACKET or self.broker.inflight_bytes
        return not (bounded or self.dialect.v5 or self.leases or self.serial is not None)

    def _sent(self, link: Link, number: int) -> bool:
        """Whether it is on its way, or never will be; False if it cannot be read now."""
        try:
            self._send(link, number)
        except UnreadableError:
            return False
        return True

    def _send(self, link: Link, number: int) -> None:
        backlog = self.backlog
        seq, qos = backlog.seq(number), backlog.qos(number)
        message = self.broker.log.read(seq)
        begun = qos == 2 and number < backlog.tried  # and past expiring (5.0, 4.3.3)
        if message is None or (self._expired(message) and not begun):
            self._skip(number, seq, "gone" if message is None else "expired")
            return
        if not self._may_have(message):
            self._skip(number, seq, "not allowed")
            return
        as_published, ids = self._offered.get(number) or self._asked_for(number, message)
        retain = backlog.retained(number) or (as_published and message.retain)
        alias = self._aliases.get(message.topic, 0)
        self._show_reply_id(message)
        payload = message.payload if self.serial is None and len(message.payload) >= APART else b""
        frame = self.dialect.publish(
            message, qos, retain, packet_id(number), number < backlog.tried, ids, alias, not alias,
            payload != b"",
        )  # fmt: skip
        if len(frame) + len(payload) > self.packet_limit:
            self._skip(number, seq, TOO_LARGE)
            return
        backlog.sent += 1
        self.traffic.delivered += 1
        if qos == 2:
            self.twofold = True
            self._send_qos_2(link, number, frame, payload)
        else:
            in_two(link, frame, payload, False)

    def _send_qos_2(self, link: Link, number: int, packet: bytes, payload: bytes = b"") -> None:
        link.prompt = True
        if self.serial is not None:
            self.serial.deliver(packet_id(number), packet)
        else:
            in_two(link, packet, payload, True)

    def _expired(self, message: Message) -> bool:
        return 0 < message.expires <= self.broker.clock.stamp()

    def _may_have(self, message: Message) -> bool:
        """While it was away its rights may not have been known, or were others."""
        rights = self.rights
        if rights is self.broker.open:
            return True
        if message.seq in self.leases:
            return self.broker.may(self, CONSUME, self.leases[message.seq][0].client)
        return rights.may(RECEIVE, message.topic)

    def _skip(self, number: int, seq: int, reason: str) -> None:
        """It is never sent; for the publisher it is as if it had been."""
        drop(self.broker, self, reason, 1)
        self.broker.passed_over()
        self._over(number, seq)
        self.backlog.sent = max(self.backlog.sent, self.backlog.first)

    def _asked_for(self, number: int, message: Message) -> tuple[bool, Ids]:
        """What the subscriptions that matched a message asked, when it came."""
        if not self.dialect.v5:
            return NOTHING_ASKED
        own = message.client == self.client and message.protocol == self.protocol
        before = self._wishes
        if before is not None and before.changed_since(number, self.backlog.first):
            wishes = before.at(number, self.subscriptions)
            return asked_by(those_for(wishes, message.topic, own))
        asked = self._asked.get(key := (message.topic, own))
        if asked is None:
            self._asked = self._asked or {}
            asked = asked_by(those_for(list(self.subscriptions.values()), message.topic, own))
            self.broker.shortcuts.keep(self._asked, key, asked, weight_of(key[0]))
        return asked

    # What the client answers

    def acknowledge_run(self, data: bytes, at: int) -> int:
        """Take the PUBACKs at `at`, all that come in order at once; return where they end."""
        backlog, first = self.backlog, packet_id(self.backlog.first)
        count = min(backlog.in_flight(), (len(data) - at) >> 2, PACKET_IDS + 1 - first)
        count = in_order(data, at, codec.PUBACKS, first, count)
        if count and self.plain() and not backlog.received:
            if not (self.lasting or self.twofold) or backlog.are_there(count):
                self.over(count)
                return at + 4 * count  # others one by one: a PUBACK for QoS 2 is an error
        self.puback(codec.parse_packet_id(codec.PUBACK, data[at + 2 : at + 4]))
        return at + 4

    def plain(self) -> bool:
        """Whether nobody but the journal and a group has to hear that a delivery is over."""
        return not (self.leases or self._offered)

    def over(self, count: int) -> None:
        """The oldest deliveries are over, of a session that is `plain`; there is each of them."""
        if self.lasting:
            self._acknowledge(self.backlog.first, count)
        if self.shared:
            first = self.backlog.first
            for number, entry in enumerate(self.backlog.some(first, count), first):
                self.broker.groups.done(self, number, entry >> 35)
        self.backlog.shift(count)
        if self.backlog.sent < self.backlog.next or self.turned_away or self.feeds:
            self.resume()

    def _number(self, identifier: int) -> int:
        """The number of the delivery in flight with that packet id, or -1."""
        backlog = self.backlog
        number = backlog.first + (identifier - 1 - backlog.first) % PACKET_IDS
        return number if number < backlog.sent and backlog.holds(number) else -1

    def sent_qos(self, number: int) -> int:
        """The QoS with which a delivery is sent."""
        return self.backlog.qos(number)

    def _in_flight(self, kind: int, identifier: int, *states: int) -> int:
        """The number of the delivery that is answered so, or -1 if there is none of that packet id.

        PacketError if it is in another state: 3.1.1 [4.8.0-1], 5.0 4.13.
        """
        number = self._number(identifier)
        if number < 0:
            return number
        state = self.sent_qos(number) + (number in self.backlog.received)
        if state not in states:
            reason = f"a {codec.NAMES[kind]} for a message that waits for a {_WAITS_FOR[state]}"
            raise PacketError(reason, spec.PROTOCOL)
        return number

    def puback(self, identifier: int) -> None:
        self._done(self._in_flight(codec.PUBACK, identifier, ONE))

    def declined(self, identifier: int) -> None:
        """A PUBREC that says no (5.0, 4.3.3)."""
        self._done(self._in_flight(codec.PUBREC, identifier, TWO, RELEASED))

    def _done(self, number: int) -> None:
        if number >= 0:
            self._over(number, self.backlog.seq(number))
            self.resume()

    def pubrec(self, identifier: int) -> None:
        """The client has it; from now on only PUBREL is sent, whatever happens (4.3.3)."""
        link = self.link
        if link is None:
            return
        number = self._in_flight(codec.PUBREC, identifier, TWO, RELEASED)
        if number >= 0 and number not in self.backlog.received:
            if self.lasting:
                self.broker.change(self.row_of_delivery(RECEIVED, number))
            else:
                self.backlog.receive((number,))
        code = spec.ID_UNKNOWN if number < 0 and self.dialect.v5 else spec.SUCCESS
        link.pass_aside(codec.acknowledgement(codec.PUBREL, identifier, code))

    def pubcomp(self, identifier: int) -> None:
        number = self._in_flight(codec.PUBCOMP, identifier, RELEASED)
        if number >= 0:
            self._over(number, self.backlog.seq(number))
            if self.serial is not None:
                self.serial.delivered(identifier)
            self.resume()

    def put_aside(self) -> None:
        """What the client publishes with QoS 2 comes to itself: after the PUBREC, as mosquitto's.

        Simple clients read the answer next, and take what comes before it for nonsense.
        """
        if self.link is not None and self.serial is None:
            self.link.shut()

    def receive(self, identifier: int, packet: bytes, level: int = 0) -> None:
        """The PUBREC for a publish of the client's, to be sent as soon as it may be."""
        link = self.link
        if self.serial is not None:
            self.serial.receive(identifier, packet, level)
        elif link is not None and link.aside is not None:
            link.pass_aside(packet, barrier=True, level=level)
            link.reopen()
        elif link is not None:
            link.hold(packet, level=level)

    def complete(self, identifier: int, packet: bytes) -> None:
        """The PUBCOMP for it."""
        link = self.link
        if self.serial is not None:
            self.serial.complete(identifier, packet)
            self.resume()
        elif link is not None:
            link.hold(packet)

    def _over(self, number: int, seq: int) -> None:
        """Nobody waits for this delivery any more; the queue or the journal it came from hears."""
        leased = self.backlog.leased(number)
        if self.lasting and not leased:
            self._acknowledge(number, 1)
        self.backlog.remove(number)
        self._offered.pop(number, None)
        if leased:
            self._taken_from_queue(seq)
        elif self.shared:
            self.broker.groups.done(self, number, seq)

    def _acknowledge(self, number: int, count: int) -> None:
        """The journal will hear that these are over, from that one on."""
        if self._acknowledged is None:
            self._acknowledged = []
        self._acknowledged.append((number, count, self.row_of_delivery(ACK, number)))
        if not self._settling:
            self._settling = True
            self.broker.unsettled.append(self)

    def _taken_from_queue(self, seq: int) -> None:
        """A client of 5.0 can answer a request, so only its answer is an acknowledgement."""
        if seq in self.requests:
            return
        lease = self.leases.pop(seq, None)
        if lease is not None:
            self.broker.queues.acknowledge(lease[0], lease[1], self)

    def _remember_request(self, message: Message) -> None:
        if self.dialect.v5 and message.reply_to and message.seq in self.leases:
            self.owes(message)

    def _show_reply_id(self, message: Message) -> None:
        """A reply queue is shown as a number, so that each answer finds its own request."""
        if message.reply_to.startswith(QUEUE) and message.seq in self.leases:
            self.broker.replies.id_of(message, self)

    def publish_answer(self, run: Run) -> None:
        """Publish a run of one message, which may be the acknowledgement of a request."""
        message = run.messages()[0]
        seq = self.answered(message.topic, message.correlation)
        if seq:
            self.broker.queues.answer(self, seq, run)
        else:
            self.broker.publish(run)

    def settle(self) -> None:
        """One `ack` row for each run of consecutive deliveries."""
        self._settling, acknowledged, self._acknowledged = False, self._acknowledged, None
        if not acknowledged:
            return  # it has ended
        (first, _, begun), so_many = acknowledged[0], 0
        for number, count, row in acknowledged:
            if number != first + so_many:
                self.broker.log.append(counted(begun, so_many))
                first, begun, so_many = number, row, 0
            so_many += count
        self.broker.log.append(counted(begun, so_many))

    def row_of_delivery(self, kind: bytes, number: int) -> Row:
        """A row about a delivery that is there. Until `settle` a fold has older ones, too."""
        name = self.backlog.name_of(number, kind == RECEIVED and self._acknowledged is not None)
        return row_about(self, kind, ref=self.backlog.seq(number), number=1, properties=name)

    def resume(self) -> None:
        """There is room: send what waits, then what is retained, then take from the queues."""
        self.pump()
        if self.feeds:
            self.broker.retained.feed(self)
        if self.turned_away:
            take_more(self.broker, self)

    def relieved(self) -> None:
        self.resume()
