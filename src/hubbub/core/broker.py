"""The broker: who gets what. Protocols call it, the hub owns it; it does no I/O.

    connect -> session -> subscribe -> route -> publish -> deliver

`publish` is the one door: every message of every protocol passes it, and every receiver, be it a
client, a queue or a callback, gets it through `Session.deliver`. What a restart must not forget
becomes a row: it is logged, then folded into `state` by the function that replay uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from hubbub import schema
from hubbub.core.audit import who
from hubbub.core.caches import Caches, weight_of
from hubbub.core.clock import Clock
from hubbub.core.context import Context
from hubbub.core.delayed import Delays
from hubbub.core.gate import Admission, Opening, owner
from hubbub.core.ids import Ids
from hubbub.core.limits import (
    AUDIENCES,
    BACKLOG_BYTES,
    BACKLOG_MESSAGES,
    INFLIGHT,
    ROUTES,
    SHORTCUTS,
    SUBSCRIPTIONS,
)
from hubbub.core.link import Outgoing
from hubbub.core.log import DISK, Log
from hubbub.core.message import Message, Run, properties_column, read_json, run_of
from hubbub.core.names import free_among
from hubbub.core.observing import Observers
from hubbub.core.patience import Patience
from hubbub.core.queues import Queues
from hubbub.core.quotas import BEFORE, KEPT, SESSIONS, SUBSCRIBED, size_of
from hubbub.core.replies import Replies
from hubbub.core.retained import Retained
from hubbub.core.rights import OF_ITS_OWN, RECEIVE, verb_of
from hubbub.core.route import Route
from hubbub.core.routing import Routing
from hubbub.core.sampled import Sampled
from hubbub.core.session import (
    FOR_EVER,
    FULL,
    NO_ROUTES,
    NO_SHARED,
    Revival,
    Session,
    SessionState,
    Silent,
    Subscription,
    longer,
    publish_wills,
    row_about,
)
from hubbub.core.share import Groups
from hubbub.core.state import LENT, Key, connect_row
from hubbub.core.staying import places_of, stays
from hubbub.core.topics import (
    CLIENT,
    DELAYED,
    QUEUE,
    delayed_topic,
    is_bridge_state,
    is_group,
    is_system,
)
from hubbub.schema import Row, column_of, timed

RESTARTED: Final = b'{"reason":"hub restarted"}'


class Broker(Context):
    """Sessions, routes, queues and names of one hub.

    `record`: "all", "durable" or "none" (design: journal.record).
    """

    def __init__(
        self, clock: Clock, log: Log, record: str = "all", exclude: tuple[str, ...] = ()
    ) -> None:
        super().__init__(clock, log, record)
        self.outgoing = Outgoing(log)
        self.exclude = exclude
        self._named: dict[tuple[tuple[SessionState, int], ...], int] = {}  # the audiences
        self._named_in = -1  # this segment
        self.handing: dict[Key, Session] = {}  # by which something is handed on just now
        self.groups = Groups(self)
        self.retained = Retained(self)
        self.observers = Observers(self)
        self.delays = Delays(self)
        self.backlog_messages = BACKLOG_MESSAGES
        self.subscriptions = SUBSCRIPTIONS
        self.backlog_bytes = BACKLOG_BYTES
        self.queues = Queues(self)
        self.wildcards = True  # whether clients may subscribe with them
        self.sharing = True  # and share subscriptions
        self.counts_as = 0, 1, 2  # by the QoS of a PUBLISH, that of the message it makes
        self.inflight = INFLIGHT
        self.inflight_bytes = 0  # of payload on their way to one client; 0 = any number
        self.stop: Callable[[], None] | None = None  # where a client may end the whole process
        self.replies = Replies(self, self.queues, self.observers)
        self.patience = Patience(clock, self.metrics)
        self.routes = Caches(ROUTES, self.queues.uncached)
        self.shortcuts = Caches(SHORTCUTS)
        self.routing = Routing(self, self.routes, self.shortcuts, self.queues, self.replies)
        self.ids = Ids(self, self.observers)
        self.sampled = Sampled(self)

    def _writes(self, session: Session) -> bool:
        """Whether what it does becomes a row: else none is made, which is a part of a connect."""
        return session.lasting or self.record == "all"

    def _write(self, session: Session, row: Row) -> None:
        (self.change if session.lasting else self.note)(row)

    # Clients

    def address(self) -> int:
        """A free number for a client; addresses and topic ids share one space."""
        replies = self.replies
        taken = self.clients, self.phantoms, self.state.topics.names, (self.itself.number,)
        return free_among((*taken, replies.open, replies.late))

    def own(self, protocol: str, client: str, opening: Opening | None = None) -> Admission:
        """For what the hub itself connects, and no gate has to let in: it may everything."""
        return Admission(protocol, client, "", self.open, opening)

    def keep_room(self, reason: str) -> None:
        """From now on nothing is taken that stays on the disk; "" and it is again."""
        self.no_room = reason
        self._count_tight()

    def share_room(self, left: int, zone: int) -> bool:
        """So many bytes are left until nothing is taken that stays: less than `zone` is shared out
        (`core.scarce`). Whether that begins or ends now.
        """
        changed = self.scarce.look(left, zone)
        if changed:
            self._count_tight()
        return changed

    def _count_tight(self) -> None:
        self.tight = self.no_room != "" or self.scarce.on
        self.age += 1  # routes know who must be asked

    def take_over(self, admission: Admission) -> None:
        """End an older connection of the same client. Its address is its user's."""
        old = self.sessions.get((admission.protocol, admission.client))
        if old is not None and old.number:
            admission.number = old.number if admission.continues(old.user, old.mount) else 0
            old.taken_over()

    def entitle(self, session: Session, admission: Admission) -> None:
        """From now on a session has the rights of this admission."""
        session.user, session.rights = admission.user, admission.rights
        session.payer = session.payer or admission.owner
        self._drop_routes(session)
        admission.stays()
        if session.subscriptions:
            self.age += 1
        if self.hooks is not None:
            self.hooks.entitled(session)

    def connect(self, session: Session, admission: Admission, expiry: int = FOR_EVER) -> None:
        """A client is here, with what it was admitted to; nobody gets rights in another way.

        `expiry`: how many seconds a lasting session outlives its connection. The row written
        here is what its welcome promises: hold it, as a barrier.
        """
        if session.rights is not admission.rights or session.user != admission.user:
            self.entitle(session, admission)
        else:
            admission.stays()
        session.opening, session.mount = admission.opening, admission.mount
        if admission.opening is not None:
            admission.opening.client = session.client
        session.address = admission.opening.address if admission.opening is not None else ""
        if session.payer == BEFORE and session.address:
            self._count(session, admission.owner)
        session.number = admission.number or self.address()
        session.came = self.clock.stamp()
        session.traffic = self.metrics.of(session.protocol)
        self.clients[session.number] = session
        self.metrics.clients += 1
        key = session.protocol, session.client
        if self.sessions.get(key) is not session:
            session.since = self.log.position
        self.sessions[key] = session
        before = self.state.sessions.get(key)
        if session.lasting and before is None:
            self.quotas.take(SESSIONS, session, weight_of(session.client))
        elif before is not None and not session.lasting:
            self.change(row_about(session, schema.END))
        began = before.began if before is not None else self.homes.since(session)
        if self._writes(session):
            row = connect_row(session, who(session).listener, expiry, before, began)
            self._write(session, row)
        if session.lasting and before is None:
            self.homes.began(session, began)
        if admission.credentials is not None:
            self.audit.connected(session)
        self.observers.tell_all(session)
        self.queues.back(session)
        if self.hooks is not None:
            self.hooks.connected(session)

    def disconnect(self, session: Session, reason: str, expires: int = 0) -> None:
        """A client is gone; the subscriptions of a session that does not last go with it.

        Messages of queues that it holds go back. `reason` "" = it left in order.
        """
        number, key = session.number, (session.protocol, session.client)
        if self.clients.get(number) is session:
            del self.clients[number]
        session.number = 0
        self._drop_routes(session)
        self.audit.left(session, reason)
        tried = self.state.sessions[key].backlog.tried if session.lasting else 0
        changes = session.lasting or key in self.state.wills
        if changes or self.record == "all":
            said = properties_column({"reason": reason} if reason else None)
            row = row_about(session, schema.DISCONNECT, "", 0, tried, expires, said)
            row = timed(row, self.clock.stamp())
            (self.change if changes else self.note)(row)
        if session.leases:
            self.queues.overdue.left(session)
        if session.lasting:
            self.observers.tell_all(session)
        else:
            self._forget(session)
            if self.sessions.get(key) is session:
                del self.sessions[key]
        self.observers.left(number)
        if self.hooks is not None:
            self.hooks.disconnected(session, number, reason)
        if self.watcher is not None:
            self.watcher.disconnected(session, number, reason)

    def end(self, session: Session) -> None:
        """A lasting session is over for good."""
        self.change(row_about(session, schema.END, properties=LENT if session.shared else b""))
        self._forget(session)
        self.quotas.give(SESSIONS, session.payer, weight_of(session.client))
        self.sessions.pop((session.protocol, session.client), None)
        self.homes.ended(session)

    def _forget(self, session: Session) -> None:
        """Take all subscriptions of a session out of the routes."""
        subscriptions = list(session.subscriptions.values())
        session.subscriptions, session.direct = {}, None
        size = sum(size_of(one.filter) for one in subscriptions)
        self.quotas.give(SUBSCRIBED, session.payer, size)
        for subscription in subscriptions:
            self._leave(subscription)
        self.age += 1
        for subscription in subscriptions:
            self.observers.tell(subscription.filter, subscription.literal)
        lent, session.shared = session.lent(), NO_SHARED
        self.groups.give_all_again(lent)

    def may_last(self, session: Session) -> bool:
        """Whether there is room for one more session that outlives its connection."""
        there = max(len(self.state.sessions), self.quotas.total[SESSIONS])
        weight = weight_of(session.client)
        lacks = self.lacks_disk(session) or self.quotas.lacks(SESSIONS, session, there, weight)
        return lacks == ""

    # Subscriptions

    def subscribe(self, subscription: Subscription) -> bool:
        """Add or replace a session's subscription; True if it is new.

        Permission was asked before. A filter `$queue/<name>` makes the session a consumer of
        that queue, which begins if it does not exist; `dispatch` it once the answer is written.
        """
        session, name = subscription.session, subscription.filter
        old = session.subscriptions.get(name)
        session.subscriptions[name] = subscription
        if old is None:
            self.quotas.take(SUBSCRIBED, session, size_of(name))
        if self._writes(session):
            options, qos = subscription.options, subscription.qos
            row = row_about(session, schema.SUBSCRIBE, name, properties=options, qos=qos)
            self._write(session, row)
        self._take_place(old, subscription)
        self._hear(session, subscription.no_local - (old is not None and old.no_local))
        if old is None:
            self.observers.tell(name, subscription.literal)
        if self.watcher is not None:
            self.watcher.subscribed(subscription)
        return old is None

    def _take_place(self, old: Subscription | None, new: Subscription) -> None:
        """At no moment is there none: other nodes would hear so, and what is published there before
        they hear more would go another way, or none.
        """
        name = new.filter
        if old is None:
            self.enter(new)
        elif name.startswith(QUEUE):
            if not self.queues.consume_instead(name[len(QUEUE) :], old, new):
                self._leave(old)
                self.enter(new)
        elif old.literal != new.literal:
            self._leave(old)
            self.enter(new)
        elif is_group(name, new.literal):
            self.enter(new)
            self._leave(old)
        else:
            self.filters.replace(old, new)
            self.age += 1

    def unsubscribe(self, session: Session, name: str) -> bool:
        """Remove a subscription; False if there was none."""
        subscription = session.subscriptions.pop(name, None)
        if subscription is None:
            return False
        self.quotas.give(SUBSCRIBED, session.payer, size_of(name))
        self._leave(subscription)
        self._write(session, row_about(session, schema.UNSUBSCRIBE, name))
        self._hear(session, -subscription.no_local)
        self.age += 1
        self.observers.tell(name, subscription.literal)
        if self.watcher is not None:
            self.watcher.unsubscribed(session, name)
        return True

    def _hear(self, session: Session, more: int) -> None:
        """So many more of its subscriptions do not bring back what it publishes itself."""
        session.no_local += more
        self._drop_routes(session)

    def _drop_routes(self, session: Session) -> None:
        """Those of its own: it is another now, or gone."""
        if session.routes is not NO_ROUTES:
            self.routes.forget(session.routes)
            session.routes = NO_ROUTES

    def enter(self, subscription: Subscription) -> None:
        """Give a subscription its place: in a queue, in a group or among the filters."""
        name = subscription.filter
        if name.startswith(QUEUE):
            self.queues.consume(name[len(QUEUE) :], subscription)
        elif is_group(name, subscription.literal):
            self.groups.join(subscription)
            self.age += 1
        else:
            self.filters.add(subscription)
            self.age += 1

    def _leave(self, subscription: Subscription) -> None:
        name = subscription.filter
        if is_group(name, subscription.literal):
            self.groups.leave(subscription)
            return
        if not name.startswith(QUEUE):
            self.filters.remove(subscription)
            return
        self.queues.consume_no_more(name[len(QUEUE) :], subscription)

    # A restart

    def recover(self, protocols: Iterable[Revival], late: int = 0) -> None:
        """The journal is folded into `state`: make it live. Nobody is connected any more.

        Sessions that are away are made by their protocols; what is due was due meanwhile. Of that
        time so many microseconds were no time, but a clock that was set (`late`).
        """
        by_name, now = {protocol.name: protocol for protocol in protocols}, self.clock.stamp()
        self.queues.recover()
        for queue in list(self.state.queues.values()):
            self.queues.adopt(queue)
        self.delays.recover()
        self.retained.recover()
        if self.log.position:
            self.note(Row(0, 0, schema.DISCONNECT, properties=RESTARTED))
        for state in list(self.state.sessions.values()):
            if late or state.left > now:
                self._lengthen(state, late, now)
            self.take_up(state, by_name.get(state.protocol))
            self.log.shelve()  # a hub that was killed has a row for each, and one for its will
        self.groups.give_all_again(sorted(self.state.on_loan))
        if not self.undecided:
            publish_wills(self.state.wills.values(), by_name)

    def _lengthen(self, state: SessionState, late: int, now: int) -> None:
        first = self.log.position + 1
        for row in longer(state, late, now):
            self.change(row)
        self.log.together(first)  # its end takes its will away

    def take_up(self, state: SessionState, protocol: Revival | None) -> None:
        """A session of another time, or of another node, is one that is away here."""
        if state.connected:
            self._interrupt(state)
        session = protocol.revive(state) if protocol is not None else None
        if session is not None:
            self.revive(session, state)

    def revive(self, session: Session, state: SessionState) -> None:
        """A session that is away takes its place in the routes again."""
        self.sessions[session.protocol, session.client] = session
        named = session.user != "" and self.checks_names()
        self._count(session, owner(session.user, "") if named else "")
        session.since = self.log.position
        for subscription in session.subscriptions.values():
            name = subscription.filter.removeprefix(QUEUE)
            if subscription.filter.startswith(QUEUE) and name not in self.state.queues:
                self.queues.expect(name, subscription)
            else:
                self.enter(subscription)
        self._hear(session, sum(one.no_local for one in session.subscriptions.values()))
        self.homes.began(session, state.began)

    def _count(self, session: Session, whose: str) -> None:
        """What a session of before this start has counts as its user's, or its address's."""
        session.payer = whose or BEFORE
        if not whose:  # it counts as nobody's
            return
        self.quotas.take(SESSIONS, session, weight_of(session.client))
        self.quotas.take(SUBSCRIBED, session, sum(map(size_of, session.subscriptions)))

    def _interrupt(self, state: SessionState) -> None:
        """A lasting session was connected when the hub ended.

        Its time runs from now on; its will is due after its delay, but not after its end.
        """
        now, will, first = self.clock.stamp(), state.will, self.log.position + 1
        expires = 0 if state.expiry == FOR_EVER else now + state.expiry * 1_000_000
        gone = Silent(state.protocol, state.client, self.open)
        # So much may have been on its way, nobody knows how much was.
        tried = min(state.backlog.next, state.backlog.first + self.inflight)
        row = row_about(
            gone, schema.DISCONNECT, number=tried, expires=expires, properties=RESTARTED
        )
        self.change(timed(row, now))
        if will is not None:
            self.postpone(will, now, expires)
            self.log.together(first)

    def postpone(self, will: Row, now: int, expires: int) -> int:
        """The connection of a lasting session is lost: when its will is due."""
        delay = read_json(will.properties or b"{}").get("delay", 0)
        due: int = now + delay * 1_000_000
        if expires:
            due = min(due, expires)
        self.change(will._replace(expires=max(due, 1)))
        return due

    # Routes

    def may(self, session: Session, verb: str, name: str) -> bool:
        """Whether a client may do one of `rights.VERBS` now. The one place where that is asked."""
        return session.rights.may(verb, name) or (verb in OF_ITS_OWN and self.owns(session, name))

    def owns(self, session: Session, name: str) -> bool:
        """Whether it is a queue that was made for this session."""
        queue = self.state.queue_at(name)
        return queue is not None and queue.maker is session

    def refuse(self, session: Session, verb: str, name: str, rule: str = "") -> str:
        """Say in the log that a client may not do this; returns the reason for its own ears."""
        return self.audit.refused(session, verb, name, rule)

    def may_publish(self, session: Session, name: str) -> bool:
        """Whether what it publishes there is taken: into a queue, to a topic, now or later."""
        if name.startswith(DELAYED):
            seconds, name = delayed_topic(name)
            if not seconds or name in self.controls:  # commands have secrets in them
                return False
        if is_system(name) and not self._is_anothers_state(name):
            return False
        return self.may(session, verb_of(name), name)

    def _is_anothers_state(self, name: str) -> bool:
        """Of a bridge that comes from elsewhere; those of our own say themselves how they are."""
        return is_bridge_state(name) and name not in self.readings

    def route(self, sender: Session, name: str) -> Route:
        """The route of a name for a client with these rights; built again when out of date."""
        return self.routing.find(sender, name)

    def reachable(self, number: int) -> bool:
        """Whether an address is somebody's: a client's, an open request's or the hub's own."""
        return number in self.replies or number == self.itself.number or bool(self.client(number))

    def matching(self, name: str) -> list[Subscription]:
        """The subscriptions that match, of those who may receive the name."""
        return [
            found
            for found in self.filters.match(name)
            if found.session.rights is self.open or found.session.rights.may(RECEIVE, name)
        ]

    # Publishing

    def lacks_room(
        self, sender: Session, route: Route, count: int, retain: bool, qos: int = 1, size: int = 0,
        again: bool = False,
    ) -> str:  # fmt: skip
        """Why a bound would lose some of `count` more messages there, of `size` bytes together, or
        not retain them; "" if none does. For who can tell the publisher; `publish` itself drops and
        counts. `again`: who asks will ask again for each of them, so nothing counts as refused.
        """
        if not (retain or route.bounded):
            return ""
        if route.full:
            return route.full
        if route.delay:
            return self.delays.lacks_room(sender, count, again, size)
        if route.name.startswith(QUEUE):
            queue = self.state.queue_at(route.name)
            if queue is not None:
                full = self.queues.room(queue, sender, again, size) < count
                return (self.lacks_disk(sender, True, size) or queue.holds()) if full else ""
            lacks = self.lacks_disk(sender, again, size)
            return lacks or self._lacks_room_elsewhere(sender, route, count, size, again)
        tight = self.tight and stays(route, qos, count)
        lacks = self.lacks_disk(sender, again, size) if tight else ""
        if qos and route.bounded and not lacks:
            lacks = self._lacks_room_elsewhere(sender, route, count, size, again)
        return lacks or (self.retained.lacks_room(sender, route.name, size) if retain else "")

    def _lacks_room_elsewhere(
        self, sender: Session, route: Route, count: int, size: int, again: bool
    ) -> str:
        """Why no more may wait for another node, of all or of one user. A group may choose the
        node that gets it anyway, so each has room for all that they get together.
        """
        place = self.replies.place_of(route.name) if route.name.startswith(CLIENT) else ""
        found = (self.route(self.itself, place) if place else route).elsewhere()
        for session in found:
            lacks = session.lacks_room(sender, count * len(found), size)
            if lacks:
                if not again:
                    self.quotas.refuse(KEPT, sender, lacks)
                return lacks
        return ""

    def publish(self, run: Run) -> None:
        """The one door. Afterwards `run.first` is its seq, if it was recorded."""
        if self.inspector is not None and not self.inspector.passes(run):
            return
        route = run.route
        metrics = self.metrics
        metrics.messages_in += run.count
        run.sender.traffic.published += run.count
        metrics.bytes_in += len(run.image)
        if not route.allowed:
            if route.delay:
                self.delays.take(run)
            elif route.control is not None:
                route.control(run)
            else:
                metrics.drop("not allowed", run.count)
            return
        if run.retain and not self.retained.may_keep(run):
            run.retain = False
            for message in run.messages():
                message.retain = False
        if (
            route.record or run.retain or route.must or run.number
            or (run.qos and (route.audience or route.shared))
        ):  # fmt: skip
            if route.way is None or not self._handed_on(run):
                self._record(run)
        for subscription in route.subscriptions:
            subscription.session.deliver(run, subscription)
        if not route.subscriptions:
            self._reach_nobody(run)
        # Not before all have it: who was let in with the last of a share is let in everywhere.
        if self.scarce.on and (run.retain or stays(route, run.qos)):
            places = () if run.retain else places_of(route)
            self.scarce.spend(run.sender, run.payload_size(), run.count, places)

    def _reach_nobody(self, run: Run) -> None:
        """An address is meant for one: if it is nobody's (any more), that is worth a number."""
        if run.route.name.startswith(CLIENT):
            self.metrics.drop("nobody has this address", run.count)
        if self.inspector is not None:
            self.inspector.undelivered(run)

    def post(self, message: Message, sender: Session | None = None) -> None:
        """Publish one message that came from no wire: a will, an HTTP request, the hub's own."""
        sender = sender or self.itself
        message.protocol, message.client = sender.protocol, sender.client
        sender.traffic = self.metrics.of(sender.protocol)
        message.sender, message.answers_sender = sender.number, sender.asks_by_number
        route = self.route(sender, message.topic)
        if message.reply_to and not self.replies.possible(sender, message.reply_to, route):
            message.reply_to = ""
        self.publish(run_of(message, sender, route))

    def answer(self, message: Message, responder: Session) -> Route:
        """Publish the answer to a request: `replies.may_answer` has allowed it, no other right."""
        message.protocol, message.client = responder.protocol, responder.client
        message.sender, message.answers_sender = responder.number, responder.asks_by_number
        route = self.route(self.itself, message.topic)
        self.publish(run_of(message, responder, route))
        return route

    def _handed_on(self, run: Run) -> bool:
        """Whether it is on its way to the node that keeps it for the only one who lasts, so that
        nobody needs it here: its publisher is answered when that node has it.
        """
        way = run.route.way
        plain = run.qos == 1 and not run.retain and run.level == DISK and self.log.records
        return plain and way is not None and way.hand_on(run)

    def _take_back(self, audience: list[tuple[SessionState, int]]) -> None:
        """What must be kept here for one of these does not overtake what was handed on."""
        for state, _ in audience:
            session = self.handing.get((state.protocol, state.client))
            if session is not None:
                session.take_back()

    def keep_after_all(self, run: Run) -> None:
        """What was handed on becomes rows here: it was let in, so no bound applies any more."""
        run.first = self.log.append_run(run, self._audience(run.route))
        size = run.payload_size()
        self.state.published(run.route.audience, run.first, run.count, run.qos, size)

    def _record(self, run: Run) -> None:
        audience = run.route.audience if run.qos else []
        if self.handing and audience:
            self._take_back(audience)
        kept = self.signed(run) if run.retain else run
        if self.log.records:
            run.first = self.log.append_run(kept, self._audience(run.route) if audience else 0)
        else:
            run.first = self.log.keep(run)
        if audience:
            self.state.published(audience, run.first, run.count, run.qos, run.payload_size())
            self._bound_backlogs(audience, run)
        if run.retain:
            self.retained.keep(run)
        if run.number:
            self.state.opened((run.sender.protocol, run.sender.client), run.number)

    def _audience(self, route: Route) -> int:
        """The seq of the row that names the route's audience; one a segment and audience.

        Many names have the same one: ten thousand sessions are three hundred thousand bytes.
        """
        segment = self.log.segment
        if route.audience_segment != segment:
            if self._named_in != segment or len(self._named) >= AUDIENCES:
                self._named_in, self._named = segment, {}
            key = tuple(route.audience)
            if key not in self._named:
                names = [[state.protocol, state.client, qos] for state, qos in key]
                payload = json.dumps(names).encode()
                row = Row(0, 0, schema.AUDIENCE, topic=column_of(route.name), payload=payload)
                self._named[key] = self.log.append(row)
            route.audience_seq, route.audience_segment = self._named[key], segment
        return route.audience_seq

    def _bound_backlogs(self, audience: list[tuple[SessionState, int]], run: Run) -> None:
        size = run.payload_size() * run.count
        keeps = self.tight and any(state.keeps(size) for state, _ in audience)
        lacks = keeps and self.lacks_disk(run.sender) != ""
        for state, _ in audience:
            if lacks and state.keeps(size):
                excess = run.count
            elif state.most:
                excess = self.sessions[state.protocol, state.client].excess(run)
            else:
                excess = state.backlog.excess(self.backlog_messages, self.backlog_bytes)
            if excess:
                self.metrics.drop(FULL, excess)
                ref = state.backlog.seq(state.backlog.next - excess)
                row = Row(
                    0, 0, schema.DROP, state.protocol.encode(), column_of(state.client),
                    ref=ref, number=excess, properties=b'{"reason":"backlog full"}',
                )  # fmt: skip
                self.change(row)

    def offer_retained(self, subscription: Subscription) -> None:
        """Hand a new subscription what was retained before it, at once or by and by."""
        self.retained.offer(subscription)

    # Names

    def topic_id(self, name: str, session: Session, wanted: int = 0) -> int:
        """The durable number of a topic name (`core.ids`); 0 when there are too many."""
        return self.ids.topic(name, session, wanted)

    def subtopic_id(self, name: str, session: Session, wanted: int = 0) -> int:
        """The same for a sub-topic; their numbers have a space of their own."""
        return self.ids.subtopic(name, session, wanted)
