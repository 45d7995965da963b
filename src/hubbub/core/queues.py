"""The queues of a broker: how they begin and end, what comes in, and who gets it.

    publish -> enqueue -> a row -> tell readers, dispatch to consumers -> acknowledge

A `Queue` holds what there is; here it is decided, and becomes rows. What ends by itself in a
queue is in `overdue`. The broker owns it, protocols call it; no I/O.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from hubbub import schema
from hubbub.core.caches import weight_of
from hubbub.core.context import Context
from hubbub.core.homes import Home
from hubbub.core.latency import Calls
from hubbub.core.limits import (
    ENDED_QUEUES,
    IDS_AHEAD,
    PREFETCH,
    QUEUE_BYTES,
    QUEUE_MESSAGES,
    READER_SECONDS,
)
from hubbub.core.message import ASIDE, SPELLED, Message, Run, answering, row_of, run_of
from hubbub.core.overdue import Overdue
from hubbub.core.queue import PLAIN, PROTOCOL, Queue, QueueSettings, Reader
from hubbub.core.quotas import NAMED, ROOM, SUBSCRIBED, size_of
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription, row_about
from hubbub.core.state import queue_properties
from hubbub.core.topics import QUEUE
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of, name_to_wire, row_without_message

log = logging.getLogger("hubbub.queues")

HANDED: Final = 500  # messages of a turn that consumers have at once: 5 ms; the rest have turns
TOO_LARGE: Final = "too large for all who take from the queue"

# A request that nobody can take, its queue and id there, and who was offered it.
Failed = Callable[[Queue, int, Message, Session], None]


class Queues:
    """Their bounds, and who waits for queues that are not there.

    `expecting`: consumers of destroyed ones, `awaiting`: readers of any that may yet begin. `fail`
    tells an asker that nobody can take its request; the replies set it. `ahead`: the seq of the row
    that says that ids are told before they are durable, 0 = none of this hub says so.
    `moved`: who hears that a queue is another node's now.
    """

    fail: Failed

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self.calls = Calls(broker.clock)
        self.overdue = Overdue(broker, self._offer_again)
        self.max_messages = QUEUE_MESSAGES
        self.max_bytes = QUEUE_BYTES
        self.expecting: dict[str, deque[Subscription]] = {}
        self.awaiting: dict[str, dict[Reader, None]] = {}
        self.ahead = 0
        self.moved: list[Callable[[Queue], None]] = []
        # In which more waits than a turn had time for: each once, and the first one is next.
        self._line: OrderedDict[Queue, None] = OrderedDict()
        self._going_on = False
        self._handed, self._handed_in = 0, 0.0  # messages in this turn; which one it is
        self._ended = 0  # what the names of those weigh at the most whose next id is remembered
        self._cached_in: dict[str, dict[int, dict[bytes, Route]]] = {}  # by the queue's topic

    def named(
        self, name: str, maker: Session | None = None, asker: Session | None = None
    ) -> Queue:
        """The queue of that name; it begins, persistent or its maker's, if it does not exist.

        It counts as that of `asker`, or its maker (`core.quotas`).
        """
        queue = self.broker.state.queues.get(name)
        if queue is None:
            number = self.broker.state.ended_queues.get(name, self.broker.state.queue_floor)
            owner, user = (maker.client, maker.user) if maker is not None else ("", "")
            began = 0 if self.broker.homes.alone else self.broker.clock.stamp()
            properties = queue_properties(owner, user, PLAIN, read=False, began=began)
            self._create(name, number, properties)
            queue = self.adopt(self.broker.state.queues[name])
            queue.made_for(maker)
            queue.payer = self.broker.quotas.take(NAMED, asker or maker, weight_of(name))
            queue.row = self.broker.log.position
        return queue

    def configure(self, queue: Queue, settings: QueueSettings) -> None:
        """What is asked of a queue from now on; messages that it has keep their expiry."""
        self._change(queue, settings, queue.read)
        self.overdue.changed(queue)

    def polled(self, queue: Queue, until: float) -> None:
        """Somebody reads the queue. The first time is a row: who never did is not missed."""
        queue.polled = until
        if not (queue.read or queue.owner):
            self._change(queue, queue.settings, True)

    def left(self, queue: Queue) -> None:
        """Its reader went in order with nothing left to do, so it is not missed either."""
        queue.polled = None
        if queue.read:
            self._change(queue, queue.settings, False)

    def _change(self, queue: Queue, settings: QueueSettings, read: bool) -> None:
        properties = queue_properties(queue.owner, queue.user, settings, read, queue.began)
        self._create(queue.name, queue.next, properties)

    def _create(self, name: str, number: int, properties: bytes) -> None:
        topic = column_of(QUEUE + name)
        row = row_without_message(
            schema.CREATE, b"", b"", topic, number=number, properties=properties
        )
        self.broker.change(row)

    def runs_ahead(self, queue: Queue) -> bool:
        """Whether ids of messages in the queue may be told before their rows are durable.

        A crash loses such rows, and then nobody may ever get these ids: the next start passes
        over as many as may have been told (`State._ahead`). So that is in the journal before.
        """
        log = self.broker.log
        if not self.ahead:
            self.ahead = self._say_ahead(IDS_AHEAD)
        durable = log.durable
        return max(self.ahead, queue.row) <= durable and log.position - durable <= IDS_AHEAD

    def recover(self) -> None:
        """Before anything enters a queue: pass over ids that may have been told and were lost.
        After a crash what was answered is over: that it was acknowledged too may have been lost.
        """
        self._ended = sum(map(weight_of, self.broker.state.ended_queues))
        if not self.broker.state.ahead:
            return
        self.ahead = self._say_ahead(IDS_AHEAD)
        for queue in self.broker.state.queues.values():
            for number in list(queue.answers):
                self.acknowledge(queue, number, self.broker.itself)

    def is_over(self, queue: Queue, number: int) -> bool:
        """Whether a crash that loses its acknowledgement gives a message to nobody again.

        It was answered for good, which the next start then goes by (`recover`); or who had it for
        itself alone is gone with the crash.
        """
        durable = self.broker.log.durable
        answered = 0 < queue.answers.get(number, 0) <= durable and 0 < self.ahead <= durable
        return answered or queue.owner != ""

    def close(self) -> None:
        """The hub ends in order: no id was told but of rows before this one."""
        if self.ahead:
            self._say_ahead(0)

    def _say_ahead(self, number: int) -> int:
        return self.broker.change(Row(0, 0, schema.AHEAD, number=number))

    def wait_at(self, name: str, reader: Reader) -> None:
        """Tell the reader what comes into the queue of that name, now or when it exists."""
        queue = self.broker.state.queues.get(name)
        if queue is not None:
            queue.readers[reader] = None
        else:
            self.awaiting.setdefault(name, {})[reader] = None

    def wait_no_more(self, name: str, reader: Reader) -> None:
        queue = self.broker.state.queues.get(name)
        if queue is not None:
            queue.readers.pop(reader, None)
        elif name in self.awaiting:
            self.awaiting[name].pop(reader, None)
            if not self.awaiting[name]:
                del self.awaiting[name]

    def room(self, queue: Queue, sender: Session, again: bool = False, size: int = 0) -> int:
        """How many more messages a queue takes of this client, which have so many bytes together.
        None is a refusal, but of who asks `again`.
        """
        if self.broker.tight and self.broker.lacks_disk(sender, again, size):
            return 0
        left = queue.room(self.max_messages, self.max_bytes)
        if not (left or again):
            self.broker.quotas.refuse(ROOM, sender, queue.holds())
        return left

    def is_full(self, queue: Queue) -> bool:
        """Whether what comes to it is turned away."""
        return queue.room(self.max_messages, self.max_bytes) == 0

    def waits(self, queue: Queue) -> float:
        """For how many seconds its oldest message has been there, 0 if it is empty."""
        seq = next(iter(queue.messages.values()), 0)
        message = self.broker.log.look(seq) if seq else None
        sent = message.time if message is not None else 0
        return (self.broker.clock.stamp() - sent) / 1e6 if sent else 0.0

    def away(self, queue: Queue) -> float:
        """For how many seconds nobody has read it: 0 = somebody does, -1 = nobody ever has.

        Who read it last may be busy with what it got, so this alone is not a fault.
        """
        if queue.readers or queue.consumers:
            return 0.0
        return -1.0 if queue.polled is None else max(0.0, self.broker.clock.now() - queue.polled)

    def lacks(self, name: str, asker: Session) -> str:
        """Why this client may not have a queue of that name begin; "" if it may, or is there."""
        queues, quotas = self.broker.state.queues, self.broker.quotas
        there = max(len(queues), quotas.total[NAMED])
        return "" if name in queues else quotas.lacks(NAMED, asker, there, weight_of(name))

    def adopt(self, queue: Queue) -> Queue:
        """Make a queue of the fold a living one; who consumed one of that name does again."""
        queue.enter = self.enqueue
        if queue.owner and queue.maker is None:  # until that is here again, with its rights
            queue.rights = self.broker.absent(queue.user, queue.owner)
        queue.consumers = self.expecting.pop(queue.name, queue.consumers)
        queue.readers = self.awaiting.pop(queue.name, {})
        if queue.read:
            queue.polled = self.broker.clock.now()  # before a restart; who lives comes back soon
        self.overdue.watch(queue)
        for topic_filter in queue.bindings:
            self.broker.enter(self.entrance(queue, topic_filter))
        self.broker.homes.began(queue, queue.began)
        return queue

    def _ended_are_many(self, queue: Queue) -> bool:
        """Whether one that ends is too many among those whose next id is remembered by name."""
        name, ended = queue.name, self.broker.state.ended_queues
        if queue.next <= self.broker.state.queue_floor:
            return False  # nothing ever came into it: no id of it must be remembered
        if len(ended) < ENDED_QUEUES and self._ended < ENDED_QUEUES:
            self._ended += weight_of(name)
            return False
        self._ended = sum(map(weight_of, ended)) + weight_of(name)  # some came again meanwhile
        if len(ended) < ENDED_QUEUES and self._ended < ENDED_QUEUES:
            return False
        self._ended = 0
        return True

    def destroy(self, name: str) -> None:
        """End a queue with all it holds, which goes in turns; nothing happens if there is none."""
        queue = self.broker.state.queues.get(name)
        if queue is None:
            return
        for subscription in queue.subscriptions.values():
            self.broker.filters.remove(subscription)
        if queue.consumers:
            self.expecting[name] = queue.consumers
        self.broker.quotas.give(NAMED, queue.payer, weight_of(name))
        for topic_filter in list(queue.binders):
            self._bound_no_more(queue, topic_filter)
        floor = 0
        if self._ended_are_many(queue):
            floor = max(queue.next, *self.broker.state.ended_queues.values(), 0)
        self.broker.change(Row(0, 0, schema.DESTROY, topic=column_of(queue.client), number=floor))
        self.broker.age += 1
        for routes in self._cached_in.pop(queue.client, {}).values():
            routes.pop(name_to_wire(queue.client), None)
        if queue.readers:
            self.awaiting[name] = queue.readers
        self.broker.homes.ended(queue)
        self.broker.in_turns(self._emptied(queue))

    def _emptied(self, queue: Queue) -> Iterator[None]:
        """It has ended, and nobody has anything of it any more; of much of it in a moment."""
        yield from self.overdue.let_go(queue)
        while queue.messages:
            self.broker.log.unpin(queue.messages.popitem()[1])
            yield

    def move(self, name: str, keep: Callable[[Message], None], most: int) -> int:
        """Another node is the home of the queue of that name: what waits in this one goes there, so
        many at once, the oldest first. With the last one the queue ends; until then it is as ever.

        Its ids mean other messages there, so who has read some of them must begin anew (`moved`).
        UnreadableError: some cannot be read now, and stay until this is called again.
        """
        queue, count, first = self.broker.state.queues[name], 0, self.broker.log.position + 1
        try:
            for seq, number, _ in list(islice(queue.above(-1), most)):
                message = self.broker.log.read(seq) if number not in queue.answers else None
                if message is not None:
                    keep(message)
                    count += 1
                self.acknowledge(queue, number, self.broker.itself)
            over = not queue.messages
            if over:
                self.destroy(name)
        finally:
            self.broker.log.together(first)
        for hear in self.moved if over else ():
            hear(queue)
        return count

    def home_of(self, name: str) -> Home | None:
        """The other node that is the home of the queue of that name; None: here, or nowhere."""
        homes = self.broker.homes
        if homes.alone or name in self.broker.state.queues:
            return None
        return homes.of(PROTOCOL, QUEUE + name)

    def known(self, topic: str) -> bool:
        """Whether that is a queue's name, and there is one, here or at another node."""
        if self.broker.state.queue_at(topic) is not None:
            return True
        return topic.startswith(QUEUE) and self.home_of(topic[len(QUEUE) :]) is not None

    def lead_away(self, route: Route, sender: Session) -> bool:
        """Whether the queue is at home at another node; what a node sent goes to none."""
        home = None if sender.far else self.home_of(route.name[len(QUEUE) :])
        if home is None:
            return False
        route.subscriptions = [self.broker.homes.outlet(home)]
        route.must = route.bounded = True
        route.age = -1  # its home may become another one
        return True

    def cached(self, name: str, routes: dict[bytes, Route]) -> None:
        """The route to a queue is kept there: it goes with the queue, of which it keeps all."""
        if self.broker.state.queue_at(name) is not None:
            self._cached_in.setdefault(name, {})[id(routes)] = routes

    def uncached(self) -> None:
        """No route is kept anywhere any more."""
        self._cached_in.clear()

    def lacks_binding(self, queue: Queue, topic_filter: str, asker: Session, most: int) -> str:
        """Why this client may not bind a filter; "" if it may, or it is bound. `most`: to a queue.

        It takes what a subscription takes, so it counts as one.
        """
        bound = queue.subscriptions
        if topic_filter in bound:
            return ""
        if len(bound) >= most:
            return f"{len(bound)} filters are bound to {queue.name}, and {most} are the most"
        return self.broker.quotas.lacks(SUBSCRIBED, asker, more=size_of(topic_filter))

    def bind(self, queue: Queue, topic_filter: str, asker: Session | None = None) -> None:
        """Every publish that matches the filter enters the queue from now on."""
        if topic_filter not in queue.subscriptions:
            whose = self.broker.quotas.take(SUBSCRIBED, asker, size_of(topic_filter))
            if whose:
                queue.binders[topic_filter] = whose
            self.broker.change(row_about(queue, schema.SUBSCRIBE, topic_filter, qos=2))
            self.broker.enter(self.entrance(queue, topic_filter))

    def unbind(self, queue: Queue, topic_filter: str) -> None:
        subscription = queue.subscriptions.pop(topic_filter, None)
        if subscription is not None:
            self._bound_no_more(queue, topic_filter)
            self.broker.change(row_about(queue, schema.UNSUBSCRIBE, topic_filter))
            self.broker.filters.remove(subscription)
            self.broker.age += 1

    def _bound_no_more(self, queue: Queue, topic_filter: str) -> None:
        whose = queue.binders.pop(topic_filter, "")
        self.broker.quotas.give(SUBSCRIBED, whose, size_of(topic_filter))

    def entrance(self, queue: Queue, topic_filter: str) -> Subscription:
        subscription = Subscription(queue, topic_filter, 2, (SPELLED, SPELLED, SPELLED))
        if topic_filter != queue.client:
            queue.subscriptions[topic_filter] = subscription
        return subscription

    def enqueue(self, queue: Queue, run: Run, subscription: Subscription) -> None:
        """Messages enter a queue: sent to it (a `send` row), or through a binding (`queued`).

        What the fold does with these rows, and with an `ack`, is one call of the queue's: it is
        made here too, and the row only where rows lead somewhere. Both happen per message.
        """
        log, direct = self.broker.log, subscription.filter == queue.client
        sent = direct and log.records
        if not sent and not run.first:
            run.first = log.number(run) if direct else log.keep(run)
        room = self.room(queue, run.sender, size=run.unasked_size())
        for index, message in enumerate(run.messages()):
            if index >= room:
                self.broker.metrics.drop("queue full")
            elif sent:
                self._send(queue, message)
            else:
                self._put(queue, message, run.first + index)
        if queue.expiring:
            self.overdue.watch(queue)
        queue.tell()
        self.dispatch(queue, run.count)

    def _send(self, queue: Queue, message: Message) -> None:
        """The message is only here, so its row is that of the queue too."""
        number = queue.next
        asked = self._asked(message)
        answered = asked[0].messages[asked[1]] if asked is not None else 0
        if answered:
            self.calls.answered(answered)
        row = row_of(message, schema.SEND, answered, number)
        expires = self._expiry(queue, message)
        if message.topic != queue.client or message.expires != expires:
            row = row._replace(topic=column_of(queue.client), expires=expires)
        seq = self.broker.log.append(row)
        queue.add(number, seq, len(message.payload), expires)
        if asked is not None:
            asked[0].answers[asked[1]] = seq
        if message.reply_to:
            self.calls.asked(seq)

    def _put(self, queue: Queue, message: Message, seq: int) -> None:
        """The message is in the log already."""
        log, number, size = self.broker.log, queue.next, len(message.payload)
        expires = self._expiry(queue, message)
        log.pin(seq, message if seq < 0 else None)
        if log.records:
            client, said = column_of(queue.client), b'{"bytes":%d}' % size
            kind, protocol = schema.QUEUED, PROTOCOL.encode()
            log.append(
                row_without_message(kind, protocol, client, b"", seq, number, expires, said)
            )
        queue.add(number, seq, size, expires)
        if message.reply_to:
            self.calls.asked(seq)

    def _expiry(self, queue: Queue, message: Message) -> int:
        """When a message that enters the queue now expires, 0 = never."""
        if not queue.settings.expires:
            return message.expires
        latest = self.broker.clock.stamp() + int(queue.settings.expires * 1e6)
        return min(message.expires or latest, latest)

    def _asked(self, message: Message) -> tuple[Queue, int] | None:
        """Queue and id of the request that a message answers, None if it is none or long gone."""
        answers = message.properties.get("answers") if message.properties else None
        if not isinstance(answers, list) or (message.properties and ASIDE in message.properties):
            return None
        queue = self.broker.state.queues.get(answers[0])
        return (queue, answers[1]) if queue is not None and answers[1] in queue.messages else None

    def consume(self, name: str, subscription: Subscription) -> None:
        """A session takes part in the competition for a queue, which begins if there is none."""
        if self.home_of(name) is not None:
            self.broker.homes.consume(name, subscription)
            return
        queue = self.named(name, asker=subscription.session)
        queue.consumers.append(subscription)
        queue.recall()

    def back(self, session: Session) -> None:
        """A consumer is here again, and may take more or less than before."""
        for name in session.subscriptions:
            if name.startswith(QUEUE):
                session.turn_away(name[len(QUEUE) :])
                queue = self.broker.state.queue_at(name)
                if queue is not None:
                    queue.recall()

    def consume_instead(self, name: str, old: Subscription, new: Subscription) -> bool:
        """A consumer wishes something else, and keeps what it has. False if it is elsewhere."""
        queue = self.broker.state.queues.get(name)
        consumers = queue.consumers if queue is not None else self.expecting.get(name)
        if consumers is None or old not in consumers:
            return False
        consumers[consumers.index(old)] = new
        if queue is not None:
            queue.recall()
        return True

    def consume_no_more(self, name: str, subscription: Subscription) -> None:
        subscription.session.turned_away.pop(name, None)
        queue = self.broker.state.queues.get(name)
        if queue is None and self.broker.homes.consume_no_more(name, subscription):
            return
        consumers = queue.consumers if queue is not None else self.expecting.get(name)
        if consumers is not None and subscription in consumers:
            consumers.remove(subscription)
        if queue is not None:
            queue.give_back(subscription.session)
            self.offer(queue)
            self.overdue.relieve([subscription.session])
        elif not consumers:
            self.expecting.pop(name, None)

    def expect(self, name: str, subscription: Subscription) -> None:
        """It takes part once there is a queue of that name: the one it knew was destroyed."""
        self.expecting.setdefault(name, deque()).append(subscription)

    def offer(self, queue: Queue, most: int = 0) -> None:
        """Messages wait again: hand them out, or tell those who come for them."""
        if self.overdue.lives(queue):
            self.dispatch(queue, most)
            if queue.settings.lease:
                queue.tell()

    def _offer_again(self, queue: Queue) -> None:
        self.offer(queue, 0 if self.broker.lags() else PREFETCH)  # whatever others had

    def _look_on(self, queue: Queue) -> None:
        """Offer in another turn what waits there, behind the others of which that is so."""
        self._line.setdefault(queue)
        self._go_on()

    def _go_on(self) -> None:
        """Those in the line have their turns."""
        if self._line and not self._going_on:
            self._going_on = True
            self.broker.later(partial(self.broker.in_turns, self._through_the_line()))

    def _through_the_line(self) -> Iterator[None]:
        try:
            while self._line:
                self._offer_again(self._line.popitem(last=False)[0])
                yield
        finally:
            self._going_on = False
            self._go_on()

    def begin(self, name: str) -> None:
        """Its consumer has its answer: hand out what waits, if the queue is here."""
        queue = self.broker.state.queues.get(name)
        if queue is not None:
            self.dispatch(queue)
        else:
            self.broker.homes.resume(name)

    def dispatch(self, queue: Queue, came: int = 0) -> None:
        """Hand waiting messages to consumers that have room, in turn.

        What is not acknowledged has no window but that of the link: all that waits goes out, which
        may be very much. So it is PREFETCH now, or as many as `came`, so that who publishes is no
        faster than who takes. The rest has its turns, and so has all where this one has had much.
        """
        if not queue.consumers:
            return
        broker = self.broker
        left = -1  # as a rule nobody has room, and nothing else is asked
        while queue.consumers:
            number = self.overdue.first_waiting(queue)
            if number < 0:
                return
            subscription = queue.next_consumer(number)
            if subscription is None:
                queue.turn_all_away()
                return
            if left < 0:
                left = came if self._has_handed_enough() else max(came, PREFETCH)
            if left == 0 or broker.has_fetched_enough():
                self._look_on(queue)
                return
            left -= 1
            try:
                message = self.broker.log.read(queue.messages[number])
            except UnreadableError:
                self.broker.again(queue, partial(self._offer_again, queue))
                return
            if message is not None and not subscription.session.fits(message, subscription):
                other = queue.other_consumer(message)
                if other is None:
                    if queue.somebody_fits(message, away=False):
                        queue.turn_all_away()
                        return
                    self._too_large(queue, number, message, subscription.session)
                    self._look_on(queue)  # there may be many
                    return
                subscription = other
            session = subscription.session
            self._lease(queue, number, message, session)
            self._handed += 1
            if message is None:
                continue
            if session.lasting and min(message.qos, subscription.qos):
                # It takes a delivery number and nothing more: after a restart the lease is over,
                # and the queue has the message.
                self.broker.log.append(row_about(session, schema.QUEUED))
            session.offer(message, subscription, retained=False)

    def _has_handed_enough(self) -> bool:
        """Whether consumers of all queues had so much in this turn that others are heard first."""
        turn = self.broker.clock.turned
        if turn != self._handed_in:
            self._handed, self._handed_in = 0, turn
        return self._handed >= HANDED or self.broker.lags()

    def take(self, queue: Queue, session: Session) -> tuple[int, Message] | None:
        """Lease the oldest waiting message to a session that asks for one: its id and itself."""
        if queue.aside:
            queue.recall()
        while (number := self.overdue.first_waiting(queue)) >= 0:
            if queue.messages[number] in session.leases:
                break  # it has it from another queue, and must be done with that first
            try:
                message = self.broker.log.read(queue.messages[number])
            except UnreadableError:
                self.broker.again(queue, partial(self._offer_again, queue))
                break
            self._lease(queue, number, message, session)
            if message is not None:
                return number, message
        return None

    def _lease(self, queue: Queue, number: int, message: Message | None, session: Session) -> None:
        """Hand over the message that waits first; one that is None, which is lost, is done with."""
        queue.waiting.popleft()
        if message is None:
            self.broker.metrics.drop("memory full")
            self.acknowledge(queue, number, session)
        else:
            self.overdue.leased(queue, number, session)

    def _too_large(self, queue: Queue, number: int, message: Message, reader: Session) -> None:
        """None of its consumers can take the message that waits first.

        It stays for who reads by a cursor, is away, or may yet come. But who asks for an answer
        hears at once that there will be none; and dead letters have their place.
        """
        read = queue.readers or self._was_read(queue)
        hopeless = not (read or queue.somebody_fits(message, away=True))
        if not (hopeless and (message.reply_to or queue.settings.dead_letter)):
            if not queue.aside:
                log.warning("%s: message %d is %s, and waits", queue.client, number, TOO_LARGE)
            queue.set_aside()
            return
        try:
            self.overdue.dead_letter(queue, number, TOO_LARGE)
        except UnreadableError:
            queue.set_aside()
            return
        if message.reply_to:
            self.fail(queue, number, message, reader)

    def _was_read(self, queue: Queue) -> bool:
        """Whether somebody read it by a cursor not long ago, and may be busy."""
        polled = queue.polled
        return polled is not None and self.broker.clock.now() < polled + READER_SECONDS

    def answer(self, session: Session, seq: int, run: Run) -> None:
        """Publish a run of one message as the answer to a request that the session took."""
        queue, number = session.leases[seq]
        self.calls.answered(seq)
        message = run.messages()[0]
        _, correlation, first = session.requests.pop(seq)
        message.correlation = correlation or message.correlation
        message.properties = answering(message, [queue.name, queue.known_as(number)], first)
        answer = run_of(message, run.sender, run.route)  # the image does not say what it answers
        answer.number = run.number
        self.broker.publish(answer)
        self.finish(queue, number, session)

    def finish(self, queue: Queue, number: int, session: Session) -> None:
        """A message is done with: who had it may have the next one, of this queue or of another."""
        holder = queue.leased.get(number, session)
        self.acknowledge(queue, number, session)
        if self.overdue.lives(queue):
            self.dispatch(queue)
        holder.relieved()

    def acknowledge(self, queue: Queue, number: int, session: Session) -> bool:
        """A message is done with; False if it was already gone."""
        seq = queue.messages.get(number)
        if seq is None:
            return False
        log = self.broker.log
        if log.records:
            protocol, client = session.protocol.encode(), column_of(session.client)
            topic = column_of(queue.client)
            log.append(row_without_message(schema.ACK, protocol, client, topic, seq, number))
        before, holder = queue.bytes, queue.leased.get(number)
        queue.remove(number)
        log.unpin(seq)
        if not queue.subscriptions:  # what a binding brings may be in others, too
            log.gone(seq, before - queue.bytes)
        if holder is not None and holder is not session:
            self.broker.later(partial(self.overdue.relieve, [holder]))  # all of it may be taken out
        return True
