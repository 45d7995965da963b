"""What an SMQ client receives, whoever sent it; and what others see of an SMQ client."""

from __future__ import annotations

import pytest

from hubbub.core.clock import Clock
from hubbub.core.limits import LINK_CHOKED
from hubbub.core.log import Log
from hubbub.core.message import Message, row_of
from hubbub.core.queue import Queue
from hubbub.core.state import State
from hubbub.protocols.smq import codec
from hubbub.schema import Row
from tests.protocols.smq.device import Hub


@pytest.fixture
def hub() -> Hub:
    return Hub()


def publish(tid: int, sender: int, subtid: int, payload: bytes) -> tuple[object, ...]:
    return ("Publish", tid, sender, subtid, payload)


# Between transports


@pytest.mark.parametrize("size", [0, 112, 113, 65_519, 65_520])
def test_raw_and_websocket_see_the_same_message(hub: Hub, size: int) -> None:
    raw, web, ear = hub.device(b"raw..."), hub.device(b"web...", True), hub.listen("alpha")
    alpha = raw.subscribe(b"alpha")
    web.subscribe(b"alpha")
    for sender in (raw, web):
        sender.publish(alpha, b"p" * size, 9)
        expected = [publish(alpha, sender.etid, 9, b"p" * size)]
        assert raw.hear() == expected and web.hear() == expected
    assert [message.payload for message in ear.heard] == [b"p" * size] * 2


def test_a_run_of_a_raw_client_is_as_many_websocket_frames(hub: Hub) -> None:
    raw, web = hub.device(b"raw..."), hub.device(b"web...", True)
    alpha = web.subscribe(b"alpha")
    body = codec.message(codec.PUBLISH, alpha, raw.etid, 0, rest=b"x")
    raw.far.say(codec.framed(body) * 20)
    assert web.bodies() == [body] * 20


@pytest.mark.parametrize("size", [65_521, 65_536, 200_000])
def test_what_a_raw_socket_cannot_carry_is_dropped_for_it_alone(hub: Hub, size: int) -> None:
    raw, web = hub.device(b"raw..."), hub.device(b"web...", True)
    alpha = raw.subscribe(b"alpha")
    web.subscribe(b"alpha")
    web.publish(alpha, b"x" * size)
    web.publish(alpha, b"next")
    hub.broker.post(Message("alpha", b"x" * size))
    assert [len(heard[-1]) for heard in web.hear()] == [size, 4, size]  # type: ignore[arg-type]
    assert [heard[-1] for heard in raw.hear()] == [b"next"]
    assert hub.dropped("too large for a raw SMQ socket") == 2
    assert hub.broker.clients[raw.etid].dropped == {"too large for a raw SMQ socket": 2}


# From and to others


def test_others_see_topic_subtopic_and_sender(hub: Hub) -> None:
    a, ear = hub.device(b"client-a"), hub.listen("rooms/#")
    kitchen, temp = a.create(b"rooms/kitchen"), a.create_sub(b"temp")
    for subtid in (temp, 0, 77):
        a.publish(kitchen, b"21", subtid)
    assert [(m.subtopic, m.properties) for m in ear.heard] == [
        ("temp", None),
        ("", None),
        ("", {"smq-subtid": 77}),
    ]
    first = ear.heard[0]
    assert (first.topic, first.payload, first.qos, first.retain) == (
        "rooms/kitchen", b"21", 0, False,
    )  # fmt: skip
    assert (first.protocol, first.client, first.sender) == ("smq", "client-a", a.etid)
    assert first.reply_to == ""


@pytest.mark.parametrize("name", [b"rooms/+", b"rooms/a#", b"rooms/\0", b"rooms/\xff"])
def test_names_that_others_cannot_use_stay_among_smq_clients(hub: Hub, name: bytes) -> None:
    a, ear = hub.device(b"client-a"), hub.listen("rooms/#")
    a.publish(a.subscribe(name), b"x")
    assert [heard[-1] for heard in a.hear()] == [b"x"] and ear.heard == []


def test_a_message_from_elsewhere_is_a_publish_with_the_senders_number(hub: Hub) -> None:
    a, ear = hub.device(b"client-a"), hub.listen("other")
    alpha = a.subscribe(b"alpha")
    hub.broker.post(Message("alpha", b"one", subtopic="temp"), ear)
    hub.broker.post(Message("alpha", b"two", properties={"smq-subtid": 77}))
    hub.broker.post(Message(f"$client/{a.etid}", b"three"), ear)
    temp = hub.broker.state.subtopics.numbers["temp"]
    assert a.hear() == [
        publish(alpha, ear.number, temp, b"one"),
        publish(alpha, 1, 77, b"two"),
        publish(a.etid, ear.number, 0, b"three"),
    ]


def test_observe_counts_the_clients_of_every_protocol(hub: Hub) -> None:
    a, ear = hub.device(b"client-a"), hub.listen("rooms/#")
    kitchen = a.create(b"rooms/kitchen")
    assert a.observe(kitchen) == [("Change", kitchen, 1, b"")]
    number = ear.number
    assert a.observe(number) == []
    hub.broker.disconnect(ear, "")
    assert a.hear() == [("Change", kitchen, 0, b""), ("Change", number, 0, b"")]


# Retained messages


def retain(hub: Hub, topic: str, payload: bytes, expires: int = 0) -> None:
    hub.broker.post(Message(topic, payload, retain=True, expires=expires))


@pytest.mark.parametrize("websocket", [False, True])
def test_the_retained_message_comes_right_after_the_suback_once(hub: Hub, websocket: bool) -> None:
    retain(hub, "alpha", b"kept")
    a = hub.device(b"client-a", websocket)
    for expected in (["Suback", "Publish"], ["Suback"]):
        a.say(codec.SUBSCRIBE, rest=b"alpha")
        assert [heard[0] for heard in a.hear()] == expected
    a.say(codec.UNSUBSCRIBE, hub.broker.state.topics.numbers["alpha"])
    a.say(codec.SUBSCRIBE, rest=b"alpha")
    suback, kept = a.hear()
    assert kept == publish(suback[2], 1, 0, b"kept")  # type: ignore[arg-type]


def test_retained_messages_can_be_switched_off_and_expire(hub: Hub) -> None:
    retain(hub, "alpha", b"kept")
    retain(hub, "beta", b"old", expires=1)
    hub.smq.retained = False
    a = hub.device(b"client-a")
    a.subscribe(b"alpha")
    hub.smq.retained = True
    a.subscribe(b"beta")
    assert a.hear() == []


# Queues


def send(hub: Hub, payload: bytes, reply_to: str = "", correlation: bytes = b"") -> None:
    message = Message("$queue/jobs", payload, reply_to=reply_to, correlation=correlation)
    hub.broker.post(message)


def jobs(hub: Hub) -> Queue:
    return hub.broker.state.queues["jobs"]


def waiting(hub: Hub) -> int:
    return len(jobs(hub).messages)


def test_a_subscriber_of_a_queue_gets_what_waits_after_its_suback(hub: Hub) -> None:
    send(hub, b"one")
    send(hub, b"two")
    a = hub.device(b"client-a")
    a.say(codec.SUBSCRIBE, rest=b"$queue/jobs")
    suback, *messages = a.hear()
    assert suback[:2] == ("Suback", 0)
    assert [heard[-1] for heard in messages] == [b"one", b"two"]
    assert waiting(hub) == 0  # written to the socket: acknowledged


def test_an_id_for_a_queues_name_is_not_a_queue(hub: Hub) -> None:
    a = hub.device(b"client-a")
    number = a.create(b"$queue/jobs")
    assert hub.broker.state.queues == {}
    a.publish(number, b"one")
    a.publish(number, b"two")
    assert list(jobs(hub).messages) == [0, 1]
    assert a.create(b"$queue/jobs") == number


def test_consumers_take_turns(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b", websocket=True)
    a.subscribe(b"$queue/jobs")
    b.subscribe(b"$queue/jobs")
    for payload in (b"1", b"2", b"3", b"4"):
        send(hub, payload)
    got = [[heard[-1] for heard in device.hear()] for device in (a, b)]
    assert sorted(map(len, got)) == [2, 2] and sorted(sum(got, [])) == [b"1", b"2", b"3", b"4"]


def test_only_the_subtopic_request_makes_a_request(hub: Hub) -> None:
    a = hub.device(b"client-a")
    number, request = a.create(b"$queue/jobs"), a.create_sub(b"request")
    a.publish(number, b"plain", a.create_sub(b"other"))
    a.publish(number, b"asking", request)
    read = [hub.broker.log.read(seq) for seq in jobs(hub).messages.values()]
    assert [message and message.reply_to for message in read] == ["", f"$client/{a.etid}"]


@pytest.mark.parametrize("websocket", [False, True])
def test_a_request_is_acknowledged_by_its_reply(hub: Hub, websocket: bool) -> None:
    asker, service = hub.device(b"asker.", not websocket), hub.device(b"service", websocket)
    queue, request = asker.create(b"$queue/jobs"), asker.create_sub(b"request")
    service.subscribe(b"$queue/jobs")
    asker.publish(queue, b"2+2", request)
    assert service.hear() == [publish(queue, asker.etid, request, b"2+2")]
    assert waiting(hub) == 1
    service.publish(asker.etid, b"4", request)
    assert asker.hear() == [publish(asker.etid, service.etid, request, b"4")]
    assert waiting(hub) == 0
    service.publish(asker.etid, b"not an answer any more")
    assert [heard[-1] for heard in asker.hear()] == [b"not an answer any more"]


def test_a_reply_goes_into_the_askers_queue_with_its_correlation(hub: Hub) -> None:
    service = hub.device(b"service")
    service.subscribe(b"$queue/jobs")
    hub.broker.queues.named("asker")
    send(hub, b"ask1", "$queue/asker", b"c1")
    send(hub, b"ask2", "$queue/asker", b"c2")
    first, second = (number for _, _, number, *_ in service.hear())
    assert isinstance(first, int) and isinstance(second, int)
    service.publish(second, b"answer2")
    assert waiting(hub) == 1
    service.publish(first, b"answer1")
    assert waiting(hub) == 0
    answers = hub.broker.state.queues["asker"]
    read = [hub.broker.log.read(seq) for seq in answers.messages.values()]
    assert [(m.payload, m.correlation, m.properties) for m in read if m] == [
        (b"answer2", b"c2", {"answers": ["jobs", 1]}),
        (b"answer1", b"c1", {"answers": ["jobs", 0]}),
    ]


def test_a_request_whose_consumer_left_goes_to_the_next(hub: Hub) -> None:
    first, second = hub.device(b"first."), hub.device(b"second")
    first.subscribe(b"$queue/jobs")
    send(hub, b"ask", "$queue/asker")
    assert len(first.hear()) == 1
    second.subscribe(b"$queue/jobs")
    assert second.hear() == []
    first.hang_up()
    assert [heard[-1] for heard in second.hear()] == [b"ask"]


def test_a_consumer_that_unsubscribes_gives_back_and_may_come_again(hub: Hub) -> None:
    a = hub.device(b"client-a")
    number = a.subscribe(b"$queue/jobs")
    send(hub, b"ask", "$queue/asker")
    for _ in range(30):  # more often than it may hold requests
        a.say(codec.UNSUBSCRIBE, number)
        a.say(codec.SUBSCRIBE, rest=b"$queue/jobs")
        a.hear()
    assert len(hub.broker.clients[a.etid].leases) == 1


def test_at_most_20_requests_are_open_at_one_consumer(hub: Hub) -> None:
    a = hub.device(b"client-a")
    a.subscribe(b"$queue/jobs")
    for number in range(25):
        send(hub, b"%d" % number, "$queue/asker")
    heard = a.hear()
    assert len(heard) == 20
    a.publish(heard[0][2], b"done")  # type: ignore[arg-type]
    assert [one[-1] for one in a.hear()] == [b"20"]


# Slow readers


def test_a_full_link_drops_messages_and_says_so(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    hub.broker.patience.seconds = 0  # else so little would still be written
    a.far.link.choked = True
    b.publish(alpha, b"lost")
    a.far.link.choked = False
    b.publish(alpha, b"seen")
    assert [heard[-1] for heard in a.hear()] == [b"seen"]
    assert hub.dropped("slow reader") == 1


@pytest.mark.parametrize("how", ["drained", "wake"])
def test_a_queue_waits_for_a_slow_reader(hub: Hub, how: str) -> None:
    a = hub.device(b"client-a")
    a.subscribe(b"$queue/jobs")
    a.far.link.size = LINK_CHOKED + 1
    send(hub, b"job")
    assert a.hear() == [] and waiting(hub) == 1
    a.far.link.size = 0
    if how == "drained":
        a.far.connection.drained()
    else:
        hub.smq.wake(hub.clock.now())
    assert [heard[-1] for heard in a.hear()] == [b"job"]
    assert hub.smq.stalled == set()


def test_the_largest_write_of_a_c_client_bounds_writes_and_drops_nothing(hub: Hub) -> None:
    device = hub.device()
    device.hear()
    device.raw(b"\x02\x02\x00\x40\x08client-a\x00")
    etid = device.expect("Connack")
    other = hub.device(b"client-b")
    other.publish(etid, b"x" * 200)
    pieces = device.far.pieces()
    assert [len(piece) for piece in pieces] == [64, 64, 64, 23]
    assert b"".join(pieces)[15:] == b"x" * 200


# After a restart


class Remembering(Log):
    """Keeps the rows it numbers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.rows: list[Row] = []

    def append(self, row: Row) -> int:
        self.rows.append(row)
        return super().append(row)


def test_names_keep_their_numbers_through_journal_and_snapshot(hub: Hub) -> None:
    log = hub.broker.log = Remembering(hub.clock)
    a = hub.device(b"client-a")
    names = [b"alpha", b"", b"\xff%41", b"$queue/jobs"]
    numbers = [a.create(name) for name in names]
    subs = {name: a.create_sub(name.encode()) for name in ("temp", "")}
    a.publish(numbers[-1], b"job")
    for replayed in (log.rows, list(hub.broker.state.rows())):
        state = State()
        for seq, row in enumerate(replayed, 1):
            state.apply(row._replace(seq=seq))
        assert list(state.topics.numbers.values()) == numbers
        assert state.subtopics.numbers == subs
        assert list(state.queues) == ["jobs"]


def test_what_the_journal_records_of_a_publish(hub: Hub) -> None:
    a, ear = hub.device(b"client-a"), hub.listen("alpha")
    a.publish(a.create(b"alpha"), b"x", a.create_sub(b"temp"))
    row = row_of(ear.heard[0])
    assert (row.protocol, row.client, row.topic, row.subtopic, row.payload) == (
        b"smq", b"client-a", b"alpha", b"temp", b"x",
    )  # fmt: skip
