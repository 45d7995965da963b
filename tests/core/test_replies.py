"""Reply ids: who was asked by number answers to a number, and the asker hears in its own terms."""

from __future__ import annotations

from itertools import count

import pytest

from hubbub.auth.acl import AclRights
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.quotas import REQUESTS
from hubbub.core.replies import LATE, LOOKED, NOT_ASKED, UNCLAIMED
from hubbub.core.session import Subscription
from tests.core.recording import Ear, Hasty, Recording, StillClock, settle
from tests.rights import ruled


class Consumer(Ear):
    """Sees each request with a number to answer to, as a protocol of numbers must show it."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__(broker, client)
        self.broker = broker
        self.asked: list[int] = []

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        self.asked.append(self.broker.replies.id_of(message, self))


def test_one_user_takes_no_more_than_a_fifth_of_the_ids() -> None:
    """Of what it asks a topic; in a queue a request waits for who answers, some at a time."""
    office = Office()
    broker = office.broker
    broker.quotas.most[REQUESTS] = 10
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    ann.user, bob.user = "ann", "bob"
    worker, seqs = Consumer(broker, "hears"), count(1_000)

    def ask(asker: Ear) -> int:
        message = Message("t", b"?", reply_to="answers", protocol="test", client=asker.client)
        message.seq = next(seqs)
        return broker.replies.id_of(message, worker)

    assert [ask(ann) > 0 for _ in range(3)] == [True, True, False]
    assert "user 'ann' has 2 open requests" in broker.replies.lacks(ann)
    assert ask(bob) and not broker.replies.lacks(bob)
    office.clock.seconds += 61
    broker.replies.wake()
    assert not broker.quotas.used[REQUESTS] and ask(ann)
    assert broker.quotas.used[REQUESTS] == {"user 'ann'": 1}
    broker.post(Message(f"$client/{next(iter(broker.replies.open))}", b"!"), worker)
    assert not broker.quotas.used[REQUESTS]


@pytest.mark.parametrize("ttl", [0.5, 3_600.0])
def test_a_new_time_for_answers_changes_nothing_in_how_long_one_took(ttl: float) -> None:
    """The setting may change while a call is open (SIGHUP)."""
    office = Office()
    broker, worker = office.broker, Consumer(office.broker, "hears")
    number = broker.replies.id_of(Message("t", b"?", reply_to="answers", seq=1_000), worker)
    office.clock.seconds += 1.5
    broker.replies.ttl = ttl
    broker.post(Message(f"$client/{number}", b"!"), worker)
    taken = broker.queues.calls.seconds
    assert sum(taken.counts) == 1
    assert taken.seconds == pytest.approx(1.5)


class Office:
    """A queue `work` with a consumer, and a queue `replies`."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.log = Recording(self.clock)
        self.broker = Broker(self.clock, self.log)
        self.worker = self.consumer("worker")
        self.broker.queues.named("replies")

    def consumer(self, name: str) -> Consumer:
        made = Consumer(self.broker, name)
        self.broker.subscribe(made.wish("$queue/work"))
        self.broker.queues.dispatch(self.broker.queues.named("work"))
        return made

    def ask(self, address: str = "$queue/replies", correlation: bytes = b"") -> int:
        message = Message("$queue/work", b"?", reply_to=address, correlation=correlation)
        self.broker.post(message)
        return self.worker.asked[-1]

    def answer(self, number: int, text: bytes = b"!") -> None:
        self.broker.post(Message(f"$client/{number}", text), self.worker)

    @property
    def waiting(self) -> list[int]:
        return list(self.broker.state.queues["work"].messages)

    def replies(self) -> list[Message]:
        found = [self.log.read(s) for s in self.broker.state.queues["replies"].messages.values()]
        return [message for message in found if message is not None]

    def dropped(self, reason: str) -> int:
        return self.broker.metrics.dropped.get(reason, 0)

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.broker.replies.wake()


@pytest.fixture
def office() -> Office:
    return Office()


def test_an_answer_reaches_the_asker_with_its_correlation_and_acknowledges(office: Office) -> None:
    first, second = office.ask(correlation=b"c1"), office.ask(correlation=b"c2")
    office.answer(second, b"later asked, sooner done")
    assert office.waiting == [0]
    office.answer(first, b"done")
    assert office.waiting == []
    assert [(m.payload, m.correlation, m.properties, m.client) for m in office.replies()] == [
        (b"later asked, sooner done", b"c2", {"answers": ["work", 1]}, "worker"),
        (b"done", b"c1", {"answers": ["work", 0]}, "worker"),
    ]
    assert office.worker.leases == {}


def test_the_journal_pairs_the_answer_with_its_request(office: Office) -> None:
    office.answer(office.ask())
    request, reply = [row for row in office.log.rows if row.kind == b"send"]
    assert reply.ref == request.seq and reply.topic == b"$queue/replies"
    assert not any(row.topic.startswith(b"$client/") for row in office.log.rows)


def test_an_id_is_of_the_space_of_clients_and_topics(office: Office) -> None:
    number = office.ask()
    assert 1 < number < 1 << 32
    assert number not in office.broker.clients
    assert office.broker.state.topics.names.get(number) is None


def test_an_asker_with_a_number_needs_no_id(office: Office) -> None:
    asker = Ear(office.broker, "asker")
    assert office.ask(f"$client/{asker.number}") == asker.number
    assert not office.broker.replies.open


def test_an_id_lives_until_its_first_reply(office: Office) -> None:
    number = office.ask()
    office.answer(number)
    office.answer(number, b"once more")
    assert len(office.replies()) == 1
    assert number not in office.broker.replies
    assert office.dropped("nobody has this address") == 1


def test_the_reply_may_be_observed_until_it_is_given(office: Office) -> None:
    """A service sees that nobody waits any more as it sees that a client is gone."""
    number = office.ask()
    assert office.broker.observers.observe(office.worker, f"$client/{number}") == 1
    office.answer(number)
    assert office.worker.counts == [(f"$client/{number}", 0)]
    assert not office.broker.observers.names


def test_a_late_reply_is_dropped_and_counted_and_takes_its_request_along(office: Office) -> None:
    listener = Ear(office.broker, "asker")
    office.broker.subscribe(listener.wish("answers"))
    number = office.ask("answers")
    office.pass_time(61)
    assert office.waiting == [0]
    office.answer(number)
    assert office.waiting == [] and listener.hear() == []
    assert office.dropped(LATE) == 1


@pytest.mark.parametrize("here", [True, False])
def test_a_late_reply_reaches_an_asker_that_is_still_here(office: Office, here: bool) -> None:
    asker = Ear(office.broker, "asker")
    opening = Opening(Gate(office.broker.open))
    office.broker.connect(asker, office.broker.own("test", "asker", opening))
    watcher = Ear(office.broker, "watcher")
    office.broker.subscribe(watcher.wish("answers"))
    office.broker.post(Message("$queue/work", b"?", reply_to="answers"), asker)
    office.pass_time(61)
    if not here:
        office.broker.disconnect(asker, "")
    office.answer(office.worker.asked[-1])
    assert bool(watcher.hear()) is here and office.dropped(LATE) == (not here)
    assert office.waiting == []


def test_an_answer_has_the_qos_of_its_request(office: Office) -> None:
    asker = Ear(office.broker, "asker")
    office.broker.subscribe(asker.wish("answers", qos=2))
    for qos in (0, 1, 2):
        office.broker.post(Message("$queue/work", b"?", qos, reply_to="answers"), asker)
        office.answer(office.worker.asked[-1])
    assert [heard[2] for heard in asker.hear()] == [0, 1, 2]


def test_a_reply_queue_takes_its_answer_however_late(office: Office) -> None:
    number = office.ask()
    office.pass_time(3600)
    office.answer(number)
    assert len(office.replies()) == 1 and office.waiting == []


def test_an_answer_to_a_reply_queue_that_is_gone_makes_no_queue(office: Office) -> None:
    number = office.ask()
    office.broker.queues.destroy("replies")
    office.answer(number)
    assert "replies" not in office.broker.state.queues
    assert office.dropped(UNCLAIMED) == 1 and office.waiting == []


def test_an_id_whose_time_is_over_and_whose_request_is_gone_is_forgotten(office: Office) -> None:
    number = office.ask()
    office.broker.queues.acknowledge(office.broker.queues.named("work"), 0, office.worker)
    office.pass_time(59)
    assert number in office.broker.replies
    office.pass_time(2)
    assert number not in office.broker.replies
    held = office.ask()
    office.pass_time(61)
    assert held in office.broker.replies
    office.broker.queues.acknowledge(office.broker.queues.named("work"), 1, office.worker)
    office.pass_time(1)
    assert held not in office.broker.replies and not office.broker.replies.late


def test_very_many_ids_end_in_turns_each_as_fast_as_a_few() -> None:
    """20,000 of one user kept all others waiting for 140 ms, 100,000 for 8 s: the first one was
    looked for behind all that were there before it.
    """
    broker = Broker(clock := Hasty(), Log(clock), "none")
    ann, worker = Ear(broker, "ann"), Consumer(broker, "hears")
    broker.quotas.most[REQUESTS] = 5 * (3 * LOOKED)
    for seq in range(1, 2 * LOOKED + 1):
        message = Message("t", b"?", reply_to="answers", protocol="test", client=ann.client)
        message.seq = seq
        assert broker.replies.id_of(message, worker)
    clock.seconds += 61
    broker.replies.wake()
    left = len(broker.replies.open)
    assert 0 < 2 * LOOKED - left < 200
    broker.replies.wake()
    assert len(broker.replies.open) == left  # that goes on already
    settle(broker)
    assert len(broker.replies.open) == LOOKED
    broker.replies.wake()
    settle(broker)
    assert not broker.replies.open and not broker.quotas.used[REQUESTS]


def test_ids_that_are_late_for_weeks_are_gone_round(office: Office) -> None:
    for _ in range(LOOKED + 10):
        office.ask()
    for _ in range(4):
        office.pass_time(61)
    replies, queue = office.broker.replies, office.broker.queues.named("work")
    assert len(replies.late) == LOOKED + 10 and not replies.open
    for number in list(queue.messages):
        office.broker.queues.acknowledge(queue, number, office.worker)
    for _ in range(3):
        office.pass_time(1)
    assert not replies.late and not office.broker.quotas.used[REQUESTS]


def test_the_next_consumer_of_a_request_sees_the_same_id(office: Office) -> None:
    number = office.ask()
    office.broker.disconnect(office.worker, "cable cut")
    other = office.consumer("other")
    assert other.asked == [number]
    office.broker.post(Message(f"$client/{number}", b"!"), other)
    assert office.waiting == [] and [m.client for m in office.replies()] == ["other"]


def test_there_are_only_so_many(office: Office) -> None:
    office.broker.replies.most = 2
    first, second = office.ask(), office.ask()
    assert office.broker.replies.full() and office.ask() == 0
    office.answer(first)
    assert office.ask() not in (0, second)


def test_many_calls_leave_no_routes_behind(office: Office) -> None:
    before = len(office.broker.open.routes)
    for _ in range(50):
        office.answer(office.ask())
    assert len(office.broker.open.routes) <= before + 2  # the two queues
    assert not office.broker.replies.open and not office.broker.replies._by_request


def test_a_request_to_a_topic_is_answered_with_its_correlation(office: Office) -> None:
    asker = Ear(office.broker, "asker")
    office.broker.subscribe(asker.wish("answers/1"))
    message = Message("door", b"?", reply_to="answers/1", correlation=b"c")
    number = office.broker.replies.id_of(message, office.worker)
    assert office.broker.replies.id_of(message, office.worker) == number
    office.answer(number, b"open")
    assert asker.hear() == [("answers/1", b"open", 0)]


# Who may answer, and where to


def test_only_who_was_handed_the_request_may_answer_it(office: Office) -> None:
    number = office.ask()
    stranger = Ear(office.broker, "stranger")
    office.broker.post(Message(f"$client/{number}", b"FORGED"), stranger)
    assert office.replies() == [] and office.waiting == [0]
    assert office.dropped(NOT_ASKED) == 1
    office.answer(number, b"real")
    assert [message.payload for message in office.replies()] == [b"real"]


def test_who_was_handed_it_may_answer_after_it_came_back(office: Office) -> None:
    number = office.ask()
    office.broker.disconnect(office.worker, "gone")
    office.broker.connect(office.worker, office.broker.own("test", "worker"))
    office.answer(number)
    assert [message.payload for message in office.replies()] == [b"!"]


def test_another_user_of_the_same_client_id_was_not_handed_it(office: Office) -> None:
    number = office.ask()
    office.broker.disconnect(office.worker, "gone")
    admission = Admission("test", "worker", "eve", office.broker.open)
    office.broker.connect(office.worker, admission)
    office.answer(number)
    assert office.replies() == [] and office.dropped(NOT_ASKED) == 1


class Ruled(Office):
    """`asker` and `worker` have the given rights, and ask and answer over a reply id."""

    def __init__(self, asker: AclRights, worker: AclRights) -> None:
        super().__init__()
        broker = self.broker
        opening = Opening(Gate(asker))
        self.asker = Ear(broker, "asker")
        broker.connect(self.asker, Admission("test", "asker", "a", asker, opening))
        broker.entitle(self.worker, Admission("test", "worker", "", worker))
        self.safe = Ear(broker, "safe")
        broker.subscribe(self.safe.wish("house/safe"))
        broker.queues.named("safe")

    def call(self, address: str) -> None:
        message = Message("$queue/work", b"?", reply_to=address)
        self.broker.post(message, self.asker)
        self.answer(self.worker.asked[-1], b"opened")

    @property
    def opened(self) -> bool:
        self.clock.seconds += 10
        self.broker.delays.wake()
        return bool(self.safe.heard or self.broker.state.queues["safe"].messages)


PLACES = ["house/safe", "$queue/safe", "$delayed/5/house/safe"]
ASKS = ("write $queue/work",)
WORKS = ("read $queue/work",)
RIGHT = ("write house/safe", "write $queue/safe")


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_goes_where_neither_may_write_never(place: str) -> None:
    hall = Ruled(ruled(*ASKS), ruled(*WORKS))
    hall.call(place)
    assert not hall.opened and hall.dropped("not allowed") == 1
    assert hall.waiting == [], "it is answered all the same"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("asker", [True, False])
def test_an_answer_goes_where_one_of_them_may_write(place: str, asker: bool) -> None:
    hall = Ruled(ruled(*ASKS, *RIGHT * asker), ruled(*WORKS, *RIGHT * (not asker)))
    hall.call(place)
    assert hall.opened


def test_what_the_asker_may_is_asked_when_the_answer_comes(office: Office) -> None:
    rights = ruled(*ASKS, *RIGHT)
    hall = Ruled(rights, ruled(*WORKS))
    hall.broker.post(Message("$queue/work", b"?", reply_to="house/safe"), hall.asker)
    rights.follow([])
    hall.answer(hall.worker.asked[-1])
    assert not hall.opened


def test_an_asker_that_is_gone_may_nothing() -> None:
    hall = Ruled(ruled(*ASKS, *RIGHT), ruled(*WORKS))
    hall.broker.post(Message("$queue/work", b"?", reply_to="house/safe"), hall.asker)
    hall.broker.disconnect(hall.asker, "gone")
    hall.answer(hall.worker.asked[-1])
    assert not hall.opened


@pytest.mark.parametrize("namesake", [False, True])
def test_a_delayed_request_is_its_askers(namesake: bool) -> None:
    """Who connects under its name meanwhile has not asked, whatever it may."""
    hall = Ruled(ruled(*ASKS, *RIGHT), ruled(*WORKS))
    broker = hall.broker
    broker.post(Message("$delayed/5/$queue/work", b"?", reply_to="house/safe"), hall.asker)
    if namesake:
        broker.disconnect(hall.asker, "gone")
        opening = Opening(Gate(broker.open))
        broker.connect(hall.asker, Admission("test", "asker", "b", broker.open, opening))
    hall.clock.seconds += 10
    broker.delays.wake()
    hall.answer(hall.worker.asked[-1])
    assert hall.opened != namesake


def test_an_id_is_never_the_hubs_own(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.broker.itself.number = 4711
    monkeypatch.setattr("hubbub.core.names._drawn", [4712, 4711])  # from the end
    assert office.ask() == 4712
