"""MQTT in one hub: the sessions by client id, what ends by itself, and the settings.

A session without a connection is kept here until it expires; so is a will that is due later.
Both survive a restart in the journal's fold, from which `revive` takes them up. `wake` does what
is due. Called by the hub and the connections; how one begins is in `protocol`. No I/O.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.connection import Protocol
from hubbub.core.limits import CONNECT_BYTES, HEAD_BYTES
from hubbub.core.link import Link
from hubbub.core.session import FOR_EVER, Session, SessionState, Silent, Subscription, row_about
from hubbub.protocols.mqtt.dialect import PLAIN, SECOND, Dialect, Dialect5
from hubbub.protocols.mqtt.options import unpack
from hubbub.protocols.mqtt.rate import Rate
from hubbub.protocols.mqtt.serial import CLIENTS, Serial
from hubbub.protocols.mqtt.session import NAME, MqttSession
from hubbub.protocols.mqtt.wills import left_by, will_of
from hubbub.schema import WILL, Row, name_of


class Sessions(Protocol):
    """What the conversations of one hub share; they take the settings from here.

    `exchanging`: who is in an exclusive exchange now.
    """

    name = NAME
    streams = True
    login_bytes = HEAD_BYTES + CONNECT_BYTES

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._dialects: dict[tuple[bool, str], Dialect] = {(False, ""): PLAIN}
        self.sessions: dict[str, MqttSession] = {}
        self.exchanging: set[Serial] = set()
        # Of messages, with their length before them: read once, and for receivers alone.
        self.plain_properties: set[bytes] = set()
        # With an alias in the place of a topic: which one, and what else they say.
        self.aliased_properties: dict[bytes, tuple[int, bytes]] = {}
        self._due: list[tuple[int, str]] = []
        self._further: list[tuple[int, str]] = []  # which are not among those yet
        self._take(Settings())

    def apply(self, settings: Settings) -> None:
        self._take(settings)

    def _take(self, settings: Settings) -> None:
        mqtt = settings.mqtt
        self.message_bytes = settings.limits.message_bytes
        self.payload_bytes = mqtt.payload_bytes
        self.qos2_serial = mqtt.qos2_serial
        self.maximum_qos = mqtt.maximum_qos
        self.retains = settings.limits.retained_messages > 0
        self.max_keepalive = mqtt.max_keepalive
        self.refuse_keepalive = mqtt.refuse_keepalive
        self.receive_maximum = mqtt.receive_maximum
        self.topic_alias_maximum = mqtt.topic_alias_maximum
        self.topic_aliases_sent = mqtt.topic_aliases_sent
        self.max_session_expiry = mqtt.max_session_expiry
        self.broker.wildcards = mqtt.wildcard_subscriptions
        self.broker.sharing = mqtt.shared_subscriptions
        self.broker.counts_as = (2, 2, 2) if mqtt.upgrade_qos else (0, 1, 2)
        self.connects = Rate(mqtt.connect_rate)
        self.server_reference = mqtt.server_reference
        self.server_moved = mqtt.server_moved

    def elsewhere(self, session: Session | None) -> str:
        """Where a client of 5.0 may go instead of here, "" for nowhere; several in any order.

        Who has a session that lasts has it here: it goes only where the settings say.
        """
        if session is None:
            return ""
        if self.server_reference or session.lasting:
            return self.server_reference
        places = self.broker.elsewhere()
        return " ".join(random.sample(places, len(places)))

    def dialect(self, version: str, mount: str) -> Dialect:
        """What a client of that version is told, and tells, on a listener with that mount point."""
        key = version == "5.0", mount
        found = self._dialects.get(key)
        if found is None:
            found = Dialect5(self.broker.clock, mount) if key[0] else Dialect(mount)
            self._dialects[key] = found
        return found

    def serial(self, client: str, link: Link, v5: bool) -> Serial | None:
        """How QoS 2 is served to clients that accept nothing else meanwhile; None for the others.

        They are of before 5.0, which lets a client say how much it takes at a time.
        """
        if v5 or not (self.qos2_serial or client.startswith(CLIENTS)):
            return None
        return Serial(link, self.broker.clock, self.exchanging)

    # Sessions that are away

    def revive(self, state: SessionState) -> Session | None:
        rights = self.broker.absent(state.user, state.client)
        session = MqttSession(self.broker, state.client, rights, True)
        session.remember(state)
        for topic_filter, (qos, options) in state.subscriptions.items():
            session.subscriptions[topic_filter] = Subscription(
                session, topic_filter, qos, PLAIN.encodings(qos), options=options,
                no_local=unpack(options).no_local,
            )  # fmt: skip
        self.sessions[state.client] = session
        self.expect(state)
        return session

    def expect(self, state: SessionState) -> None:
        """Look at a session again when its will is due, and when it ends."""
        will = state.will.expires if state.will is not None else 0
        for stamp in (will, state.expires):
            if stamp:
                self._further.append((stamp, state.client))

    def wake(self, now: float) -> None:
        for serial in list(self.exchanging):
            serial.wake(now)
        if self._is_due():
            self.broker.one_in_turns(self, self._ended)

    def _put_in_order(self) -> None:
        """At a start they are very many: in one go that takes a fourth of the time."""
        due, further = self._due, self._further
        if len(further) > len(due):
            due += further
            heapq.heapify(due)
        else:
            for one in further:
                heapq.heappush(due, one)
        further.clear()

    def _is_due(self) -> bool:
        if self._further:
            self._put_in_order()
        due, broker = self._due, self.broker
        return bool(due) and due[0][0] <= broker.clock.stamp() and not broker.undecided

    def _ended(self) -> Iterator[None]:
        """In turns: those whose connections broke with one switch end in the same second."""
        waiting = []
        try:
            while self._is_due():
                due = heapq.heappop(self._due)
                if (NAME, due[1]) in self.broker.lost:
                    waiting.append(due)
                else:
                    self._look_at(due[1])
                yield
        finally:
            for due in waiting:
                heapq.heappush(self._due, due)

    def _look_at(self, client: str) -> None:
        away = self.sessions.get(client)
        if away is None or away.number:
            return
        self.publish_due_will(away)
        if self.is_over(away):
            self.broker.metrics.expired += 1
            self.end(away)

    def is_over(self, session: MqttSession) -> bool:
        """Whether it has lasted without a connection for as long as it was to."""
        return not session.number and 0 < session.state.expires <= self.broker.clock.stamp()

    def kept_will(self, session: MqttSession) -> Row | None:
        """The will of a client that is here: its row, which is all that is kept of it."""
        if session.lasting:
            return session.state.will
        return self.broker.state.wills.get((NAME, session.client))

    def leave(self, session: MqttSession, reason: str, expiry: int, row: Row | None) -> None:
        """Its connection is over: it ends now, or lasts `expiry` seconds; with it, or before, the
        will of that row, if it is still this hub's to publish. One that waits outlives a session
        that ends, as those of before a start do: due since its connection began.
        """
        broker, stamp = self.broker, self.broker.clock.stamp()
        kept_here = row is not None and row is self.kept_will(session)
        will = will_of(row) if row is not None and kept_here else None
        ends = not session.lasting or not expiry
        expires = 0 if expiry == FOR_EVER else stamp + expiry * SECOND
        kept = session.state.will
        if will is not None and (ends or not will.delay) and not self._may_be_elsewhere(session):
            broker.post(will.published(stamp), session)
            will = None
        first = broker.log.position + 1
        if not session.lasting:
            self.sessions.pop(session.client, None)
        broker.disconnect(session, reason, expires if session.lasting else 0)
        if ends and session.lasting:
            self.end(session)
        elif session.lasting:
            if will is not None and kept is not None:
                broker.postpone(kept, stamp, expires)
            self.expect(session.state)
        if will is not None and row is not None:
            if ends:
                broker.change(row._replace(expires=session.came))
            broker.log.together(first)  # that it is gone, and that its will is to come

    def _may_be_elsewhere(self, session: MqttSession) -> bool:
        """This hub stood still, if only for a moment, and nobody has said so far where its client
        is: a will would come behind what that has said there.
        """
        broker = self.broker
        broker.look_awake()
        return session.came < broker.stood or broker.may_be_elsewhere(session)

    def end(self, session: MqttSession) -> None:
        """A lasting session is over: its will, if it still waits, is published now."""
        self._publish_will(session)
        session.settle()  # behind the end a fold would give what was acknowledged to others
        self.broker.end(session)
        self.sessions.pop(session.client, None)

    def end_away(self, client: str) -> bool:
        session = self.sessions.get(client)
        if session is None or session.number:
            return False
        self.end(session)
        return True

    def publish_will(self, will: Row) -> None:
        """The client's session ended with the hub, and with it any delay; or it is one that waited,
        of who is known to be gone. What it may is asked now, as whoever it had logged in.
        """
        client = self.broker.lost.get((NAME, name_of(will.client))) or self._who_left(will)
        self.broker.post(will_of(will).published(self.broker.clock.stamp()), client)
        if will.expires:
            self.broker.change(row_about(client, WILL))
        else:
            self.broker.disconnect(client, "hub restarted")

    def _who_left(self, will: Row) -> Session:
        """Of before a start, of a dead node, or of before this hub stood still: its row says it."""
        name, by = name_of(will.client), left_by(will)
        if by is None:
            return Silent(NAME, name, self.broker.open)
        client = Silent(NAME, name, self.broker.absent(by[0], name))
        client.user, client.payer = by
        return client

    def was_lost(self, client: str) -> None:
        session = self.sessions.get(client)
        waits = self.broker.state.wills.get((NAME, client))
        if session is None and waits is not None and waits.expires:
            self.publish_will(waits)
        elif session is not None and not session.number:
            self.publish_due_will(session)

    def publish_due_will(self, session: MqttSession) -> None:
        will = session.state.will
        if will is not None and 0 < will.expires <= self.broker.clock.stamp():
            self._publish_will(session)
        waits = self.broker.state.wills.get((NAME, session.client))
        if waits is not None and waits.expires:
            self.publish_will(waits)

    def _publish_will(self, session: MqttSession) -> None:
        row = session.state.will
        if row is not None and row.expires:
            self.broker.change(row_about(session, WILL))
            self.broker.post(will_of(row).published(self.broker.clock.stamp()), session)
