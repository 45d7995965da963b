"""What crosses between SMQ and the other protocols, and how: the SMQ rows of the design's table."""

from __future__ import annotations

import json
from typing import cast

import pytest

from hubbub.core.message import Message
from hubbub.core.turns import Stint, Turns
from hubbub.protocols.mqtt import Mqtt
from hubbub.protocols.mqtt import codec as mqtt
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.smq import codec
from hubbub.protocols.switch import Switch
from tests.protocols.mqtt.conversation import Device as Plain
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told
from tests.protocols.smq.device import Device, Heard, Hub
from tests.wire import Far

POST = "POST {path} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n{body}"


class Town(Hub):
    """A hub in memory that speaks all three."""

    mount = ""  # of MQTT's listener; as in its own stage

    def __init__(self) -> None:
        super().__init__()
        self.mqtt = Mqtt(self.broker)
        self.switch = Switch(self.broker)

    def modern(self, client: str, *wishes: str | int) -> Modern:
        device = Modern(cast(Stage, self), client)
        if wishes:
            device.subscribe(*wishes)
        device.hear()
        return device

    def plain(self, client: str, *wishes: str | int) -> Plain:
        """A client of 3.1.1."""
        device = Plain(cast(Stage, self))
        device.say(mqtt.connect(client.encode(), True, 60))
        if wishes:
            device.subscribe(*wishes)
        device.hear()
        return device

    def clerk(self, token: str) -> Far:
        """A client of message-switch."""
        far = self.dial(self.switch, f"GET /login/{token} HTTP/1.1\r\n\r\n".encode())
        far.hear()
        return far

    def number_of(self, client: str) -> int:
        [number] = [n for n, session in self.broker.clients.items() if session.client == client]
        return number

    def waiting(self, queue: str) -> list[bytes]:
        """What lies in a queue."""
        found = self.broker.state.queues[queue].messages.values()
        return [message.payload for seq in found if (message := self.broker.log.read(seq))]


def post(far: Far, path: str, body: str) -> str:
    far.say(POST.format(path=path, size=len(body), body=body).encode())
    return far.hear().partition(b"\r\n\r\n")[2].decode()


def publish(tid: int, sender: int, subtid: int, payload: bytes) -> Heard:
    return ("Publish", tid, sender, subtid, payload)


@pytest.fixture
def town() -> Town:
    return Town()


# SMQ publishes to a topic


def test_mqtt_5_sees_the_subtopic_and_whom_to_answer(town: Town) -> None:
    ann = town.modern("ann", "door", 1)
    device = town.device(b"device-1")
    door = device.create(b"door")
    device.publish(door, b"open?", device.create_sub(b"front"))
    device.publish(door, b"open?", 4711)
    asker = f"response-topic=$client/{device.etid}"
    assert ann.hear() == [
        f"door=open? {asker} smq-subtopic:front",
        f"door=open? {asker} smq-subtid:4711",
    ]


def test_mqtt_311_sees_topic_and_payload(town: Town) -> None:
    bob = town.plain("bob", "door", 1)
    device = town.device(b"device-1")
    device.publish(device.create(b"door"), b"open?", device.create_sub(b"front"))
    assert bob.hear() == ["door=open?"]


@pytest.mark.parametrize("asks", [False, True])
def test_a_queue_takes_it_as_a_request_if_the_subtopic_says_so(town: Town, asks: bool) -> None:
    device, clerk = town.device(b"device-1"), town.clerk("clerk")
    jobs = device.create(b"$queue/jobs")
    device.publish(jobs, b"2+2", device.create_sub(b"request") if asks else 0)
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["jobs"]}'))
    [[(queue, number), message]] = answer["messages"]
    assert (queue, number, message["payload"]) == ("jobs", 0, "2+2")
    assert message["kind"] == ["Request", "reply~0" if asks else ""]
    if asks:
        post(clerk, "/response/reply~0/jobs/0", "4")
        [reply] = device.hear()
        assert reply[0] == "Publish" and reply[1] == device.etid and reply[-1] == b"4"


# Others publish to a topic


@pytest.mark.parametrize("modern", [False, True], ids=["3.1.1", "5"])
def test_a_publish_of_mqtt_has_the_senders_number(town: Town, modern: bool) -> None:
    device = town.device(b"device-1")
    door = device.subscribe(b"door")
    sender = town.modern("ann") if modern else town.plain("ann")
    sender.publish("door", b"open")
    assert device.hear() == [publish(door, town.number_of("ann"), 0, b"open")]
    device.publish(town.number_of("ann"), b"thanks")
    assert sender.hear() == []  # it has not subscribed to its own address
    sender.subscribe("$client/self", 0)
    sender.hear()
    device.publish(town.number_of("ann"), b"thanks")
    [heard] = sender.hear()
    assert heard.startswith(f"$client/{town.number_of('ann')}=thanks")


def test_a_subtopic_comes_back_from_mqtt_5(town: Town) -> None:
    device = town.device(b"device-1")
    door, front = device.subscribe(b"door"), device.create_sub(b"front")
    ann = town.modern("ann")
    number = town.number_of("ann")
    ann.publish("door", b"1", properties=mqtt.Properties(user=[(b"smq-subtopic", b"front")]))
    ann.publish("door", b"2", properties=mqtt.Properties(user=[(b"smq-subtid", b"77")]))
    ann.publish("door", b"3", properties=mqtt.Properties(user=[(b"smq-subtopic", b"new")]))
    new = town.broker.state.subtopics.numbers["new"]
    assert device.hear() == [
        publish(door, number, front, b"1"),
        publish(door, number, 77, b"2"),
        publish(door, number, new, b"3"),
    ]
    assert device.create_sub(b"new") == new


@pytest.mark.parametrize("websocket", [False, True])
def test_what_a_raw_frame_cannot_carry_is_dropped_for_raw_sockets(
    town: Town, websocket: bool
) -> None:
    device = town.device(b"device-1", websocket)
    device.subscribe(b"film")
    town.plain("ann").publish("film", b"x" * (codec.PAYLOAD_BYTES + 1))
    assert len(device.hear()) == websocket
    assert town.dropped("too large for a raw SMQ socket") == (not websocket)


def test_a_request_of_mqtt_5_on_a_topic_is_answered_with_its_correlation(town: Town) -> None:
    """SMQ answers to a number; the asker hears on its response topic."""
    ann = town.modern("ann", "answers/ann", 1)
    device = town.device(b"device-1")
    door = device.subscribe(b"door")
    asked = told(None, {spec.RESPONSE_TOPIC: b"answers/ann", spec.CORRELATION: b"42"})
    ann.publish("door", b"open?", properties=asked)
    [(_, tid, reply_id, _, payload)] = device.hear()
    assert (tid, payload) == (door, b"open?")
    assert isinstance(reply_id, int) and reply_id != town.number_of("ann")
    device.publish(reply_id, b"yes")
    assert ann.hear() == [
        f"answers/ann=yes response-topic=$client/{device.etid} correlation-data=42"
    ]
    device.publish(reply_id, b"yes, I said")
    assert ann.hear() == [] and town.dropped("unknown topic") == 1


def test_a_request_to_be_answered_at_a_number_keeps_its_correlation(town: Town) -> None:
    """As our own client asks; a number alone does not say which of its requests is meant."""
    ann = town.modern("ann", "$client/self", 0)
    device = town.device(b"device-1")
    door = device.subscribe(b"door")
    number = town.number_of("ann")
    own = b"$client/%d" % number
    for to in ("door", f"$client/{device.etid}"):
        asked = told(None, {spec.RESPONSE_TOPIC: own, spec.CORRELATION: b"42"})
        ann.publish(to, b"open?", properties=asked)
        [(_, tid, reply_id, _, _)] = device.hear()
        assert tid in (door, device.etid) and isinstance(reply_id, int)
        device.publish(reply_id, b"yes")
        [heard] = ann.hear()
        assert heard.endswith("correlation-data=42") and "=yes " in heard
    ann.publish("door", b"open?", properties=told(None, {spec.RESPONSE_TOPIC: own}))
    assert device.hear()[0][2] == number


def test_a_publish_over_http_is_seen(town: Town) -> None:
    device = town.device(b"device-1")
    door = device.subscribe(b"door")
    far = town.dial(town.switch)
    post(far, "/publish/door", "open")
    [(_, tid, _, subtid, payload)] = device.hear()
    assert (tid, subtid, payload) == (door, 0, b"open")


# To a client's own address


@pytest.mark.parametrize("sender", ["smq", "mqtt 3.1.1", "mqtt 5"])
@pytest.mark.parametrize("receiver", ["smq raw", "smq websocket", "mqtt 3.1.1", "mqtt 5"])
def test_a_publish_to_a_client_reaches_that_client(town: Town, sender: str, receiver: str) -> None:
    heard: Device | Plain
    if receiver.startswith("smq"):
        heard = town.device(b"receiver", receiver.endswith("websocket"))
    else:
        make = town.modern if receiver.endswith("5") else town.plain
        heard = make("receiver", "$client/self", 0)
    number = town.number_of("receiver")
    if sender == "smq":
        town.device(b"sender").publish(number, b"psst")
    else:
        (town.modern if sender.endswith("5") else town.plain)("sender").publish(
            f"$client/{number}", b"psst"
        )
    if isinstance(heard, Device):
        assert heard.hear() == [publish(number, town.number_of("sender"), 0, b"psst")]
    else:
        assert [one.partition(" ")[0] for one in heard.hear()] == [f"$client/{number}=psst"]


# message-switch requests, served over SMQ


def test_an_answer_over_smq_is_a_response_in_the_reply_queue(town: Town) -> None:
    clerk, service = town.clerk("clerk"), town.device(b"service")
    town.broker.queues.named("jobs")
    town.broker.queues.named("replies")
    jobs = service.subscribe(b"$queue/jobs")
    post(clerk, "/request/jobs/replies", "2+2")
    [(_, tid, reply_id, _, payload)] = service.hear()
    assert (tid, payload) == (jobs, b"2+2") and isinstance(reply_id, int)
    assert town.waiting("jobs") == [b"2+2"]
    service.publish(reply_id, b"4")
    assert town.waiting("jobs") == []
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["replies"]}'))
    [[_, message]] = answer["messages"]
    assert message["payload"] == "4" and message["kind"] == ["Response", ["jobs", 0]]


def test_a_request_whose_service_left_is_given_to_another_protocol(town: Town) -> None:
    clerk, service = town.clerk("clerk"), town.device(b"service")
    town.broker.queues.named("jobs")
    service.subscribe(b"$queue/jobs")
    post(clerk, "/request/jobs/replies", "2+2")
    assert len(service.hear()) == 1
    worker = town.modern("worker", "$queue/jobs", 1)
    assert worker.hear() == []
    service.hang_up()
    [heard] = worker.hear()
    assert heard.startswith("$queue/jobs=2+2")


def test_an_acknowledgement_elsewhere_is_the_end_of_a_request(town: Town) -> None:
    clerk, service = town.clerk("clerk"), town.device(b"service")
    town.broker.queues.named("jobs")
    town.broker.queues.named("replies")
    service.subscribe(b"$queue/jobs")
    post(clerk, "/request/jobs/replies", "2+2")
    [(_, _, reply_id, *_)] = service.hear()
    clerk.say(b"GET /ack/jobs/0 HTTP/1.1\r\n\r\n")
    assert town.waiting("jobs") == []
    assert isinstance(reply_id, int)
    service.publish(reply_id, b"4")
    assert town.waiting("replies") == [b"4"], "the answer is wanted nevertheless"


# Observing


def test_observe_counts_each_connected_client_once(town: Town) -> None:
    """Wildcard and shared subscriptions count, an offline session and a queue do not."""
    watcher = town.device(b"watcher")
    kitchen = watcher.create(b"rooms/kitchen")
    assert watcher.observe(kitchen) == [("Change", kitchen, 0, b"")]

    def count() -> int:
        *_, last = watcher.hear()
        number = last[2]
        assert isinstance(number, int)
        return number

    town.device(b"device-1").subscribe(b"rooms/kitchen")
    assert count() == 1
    ann = town.modern("ann", "rooms/kitchen", 0)
    assert count() == 2
    ann.subscribe("rooms/#", 1)
    assert watcher.hear() == [], "each once"
    town.plain("bob", "rooms/+", 0)
    assert count() == 3
    town.modern("cy", "$share/group/rooms/kitchen", 0)
    assert count() == 4
    kept = Plain(cast(Stage, town))
    kept.say(mqtt.connect(b"kept", False, 60))
    kept.subscribe("rooms/kitchen", 1)
    assert count() == 5
    kept.far.hang_up()
    assert count() == 4
    post(town.clerk("clerk"), "/bind/inbox", "rooms/#")
    assert watcher.hear() == []
    ann.disconnect()
    assert count() == 3


def test_a_client_of_another_protocol_can_be_observed(town: Town) -> None:
    watcher, ann = town.device(b"watcher"), town.modern("ann")
    number = town.number_of("ann")
    assert watcher.observe(number) == []
    ann.disconnect()
    assert watcher.hear() == [("Change", number, 0, b"")]


def test_a_reply_id_can_be_observed_like_the_client_it_stands_for(town: Town) -> None:
    clerk, service = town.clerk("clerk"), town.device(b"service")
    town.broker.queues.named("jobs")
    town.broker.queues.named("replies")
    service.subscribe(b"$queue/jobs")
    post(clerk, "/request/jobs/replies", "2+2")
    [(_, _, reply_id, *_)] = service.hear()
    assert isinstance(reply_id, int)
    assert service.observe(reply_id) == []
    service.publish(reply_id, b"4")
    assert service.hear() == [("Change", reply_id, 0, b"")]


def test_an_answer_waits_for_a_lasting_caller_that_is_away(town: Town) -> None:
    lasting = told({spec.SESSION_EXPIRY: 3600})
    device = town.device(b"device-1")
    device.subscribe(b"$queue/jobs")
    caller = Modern(cast(Stage, town), "caller", properties=lasting)
    caller.subscribe("answers", 1)
    asked = told(None, {spec.RESPONSE_TOPIC: b"answers", spec.CORRELATION: b"7"})
    caller.publish("$queue/jobs", b"2+2", 1, properties=asked)
    [(_, _, asker, _, _)] = device.hear()
    caller.far.hang_up("cable cut")
    assert isinstance(asker, int)
    device.publish(asker, b"4")
    caller = Modern(cast(Stage, town), "caller", clean=False, properties=lasting)
    [_, answer] = caller.hear()
    assert answer.startswith("answers=4 q1 #1 ") and answer.endswith(" correlation-data=7")


# Too large

LARGE = b"x" * 70_000


def test_what_is_too_large_for_one_consumer_goes_to_another(town: Town) -> None:
    device, panel = town.device(b"device-1"), town.modern("panel", "$queue/jobs", 1)
    device.subscribe(b"$queue/jobs")
    clerk = town.clerk("clerk")
    for payload in ("one", LARGE.decode(), "two", LARGE.decode(), "three"):
        post(clerk, "/publish/$queue/jobs", payload)
    small = [heard[-1] for heard in device.hear()]
    large = [heard.partition(" ")[0] for heard in panel.hear()]
    assert LARGE not in small and large.count(f"$queue/jobs={LARGE.decode()}") == 2
    assert len(small) + len(large) == 5


def test_what_is_too_large_waits_without_stopping_the_others(town: Town) -> None:
    device, clerk = town.device(b"device-1"), town.clerk("clerk")
    device.subscribe(b"$queue/jobs")
    for payload in ("one", LARGE.decode(), "two"):
        post(clerk, "/publish/$queue/jobs", payload)
    assert [heard[-1] for heard in device.hear()] == [b"one", b"two"]
    assert town.waiting("jobs") == [LARGE]
    second = town.device(b"device-2", websocket=True)
    second.say(codec.SUBSCRIBE, rest=b"$queue/jobs")
    assert [heard[-1] for heard in second.hear()][1:] == [LARGE]
    assert town.waiting("jobs") == []


@pytest.mark.pure
def test_many_that_are_too_large_are_looked_at_in_turns(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read from the log: no turn of the hub reads a thousand of them."""
    device, clerk = town.device(b"device-1"), town.clerk("clerk")
    device.subscribe(b"$queue/jobs")
    for _ in range(50):
        post(clerk, "/publish/$queue/jobs", LARGE.decode())
    reads: list[int] = [0]
    read, settle = town.broker.log.read, Turns.settle

    def counted(seq: int) -> Message | None:
        reads[-1] += 1
        return read(seq)

    def turn(turns: Turns) -> None:
        settle(turns)
        reads.append(0)

    monkeypatch.setattr(town.broker.log, "read", counted)
    monkeypatch.setattr(Turns, "settle", turn)
    monkeypatch.setattr(Stint, "over", lambda stint: True)  # each piece takes a turn's time
    again = town.device(b"device-2")
    again.subscribe(b"$queue/jobs")
    post(clerk, "/publish/$queue/jobs", "small")
    assert sum(reads) >= 50 and max(reads) <= 2
    assert [heard[-1] for one in (device, again) for heard in one.hear()][-1] == b"small"


def test_a_reader_gets_what_is_too_large_for_the_consumers(town: Town) -> None:
    device, clerk = town.device(b"device-1"), town.clerk("clerk")
    device.subscribe(b"$queue/jobs")
    post(clerk, "/transfer", '{"timeout":0,"queues":["jobs"]}')
    post(clerk, "/create/clerk", "")
    post(clerk, "/request/jobs/clerk", LARGE.decode())
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["jobs"]}'))
    assert [message["payload"] for _, message in answer["messages"]] == [LARGE.decode()]
    post(clerk, "/create/leased", '{"lease":60}')
    device.say(codec.SUBSCRIBE, rest=b"$queue/leased")
    post(clerk, "/publish/$queue/leased", LARGE.decode())
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["leased"]}'))
    assert [message["payload"] for _, message in answer["messages"]] == [LARGE.decode()]


def test_who_asks_too_much_of_all_services_hears_so_at_once(town: Town) -> None:
    device, clerk = town.device(b"device-1"), town.clerk("clerk")
    device.subscribe(b"$queue/jobs")
    post(clerk, "/create/jobs", '{"dead_letter":"dead"}')
    post(clerk, "/create/mine", "")
    asked = told(None, {spec.RESPONSE_TOPIC: b"answers", spec.CORRELATION: b"7"})
    panel = town.modern("panel", "answers", 1)
    panel.publish("$queue/jobs", LARGE, 1, properties=asked)
    text = "70000 bytes are too large for all who serve jobs"
    assert panel.hear() == [
        f"answers={text} q1 #1 correlation-data=7 smq-subtopic:error",
        "PUBACK 1",
    ]
    post(clerk, "/request/jobs/mine", LARGE.decode())
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["mine"]}'))
    [[_, message]] = answer["messages"]
    assert message == {"payload": text, "kind": ["Response", ["jobs", 1]], "error": True}
    page = town.device(b"page-1", websocket=True)
    jobs = page.create(b"$queue/jobs")
    error, request = page.create_sub(b"error"), page.create_sub(b"request")
    page.publish(jobs, LARGE, request)
    assert page.hear() == [("Publish", page.etid, 1, error, text.encode())]
    assert device.hear() == [] and town.waiting("jobs") == []
    answer = json.loads(post(clerk, "/transfer", '{"timeout":0,"queues":["dead"]}'))
    assert [len(message["payload"]) for _, message in answer["messages"]] == [70_000] * 3


def test_the_largest_packet_of_a_client_of_mqtt_5_counts_too(town: Town) -> None:
    small = Modern(cast(Stage, town), "small", properties=told({spec.MAXIMUM_PACKET: 100}))
    small.subscribe("$queue/jobs", 1)
    small.hear()
    clerk = town.clerk("clerk")
    post(clerk, "/create/mine", "")
    post(clerk, "/publish/$queue/jobs?qos=1", "x" * 100)
    post(clerk, "/request/jobs/mine", "fits")
    post(clerk, "/request/jobs/mine", "y" * 100)
    assert [heard.partition(" ")[0] for heard in small.hear()] == ["$queue/jobs=fits"]
    assert len(town.waiting("mine")) == 1
    assert town.waiting("jobs") == [b"x" * 100, b"fits"]
    large = town.modern("large", "$queue/jobs", 1)
    assert town.broker.sessions["mqtt", "large"].leases
    large.disconnect()
    assert town.waiting("jobs") == [b"x" * 100, b"fits"]
