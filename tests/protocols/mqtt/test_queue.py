"""MQTT clients as consumers of `$queue/…`."""

from __future__ import annotations

import pytest

from hubbub.core.limits import PREFETCH
from hubbub.core.message import Message
from hubbub.core.queue import QueueSettings
from hubbub.core.quotas import DELAYED, NAMED
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern, told


def send(stage: Stage, *payloads: str, qos: int = 1, queue: str = "q") -> None:
    for payload in payloads:
        stage.broker.post(Message(f"$queue/{queue}", payload.encode(), qos))
    stage.tick()


def waiting(stage: Stage, queue: str = "q") -> list[int]:
    return list(stage.broker.state.queues[queue].messages)


def consumer(stage: Stage, client: str = "ann", clean: bool = True, qos: int = 1) -> Device:
    device = stage.device(client, clean)
    device.subscribe("$queue/q", qos)
    device.hear()
    return device


def test_suback_comes_before_what_waits() -> None:
    stage = Stage()
    send(stage, "0", "1")
    ann = stage.device()
    ann.subscribe("$queue/q", 1)
    assert ann.hear() == ["CONNACK 0", "SUBACK 5: 1", "$queue/q=0 q1 #1", "$queue/q=1 q1 #2"]


@pytest.mark.parametrize("clean", [True, False])
def test_puback_takes_it_from_the_queue(clean: bool) -> None:
    stage = Stage()
    ann = consumer(stage, clean=clean)
    send(stage, "0", "1")
    assert ann.hear() == ["$queue/q=0 q1 #1", "$queue/q=1 q1 #2"]
    assert waiting(stage) == [0, 1]
    ann.answer(codec.PUBACK, 2)
    assert waiting(stage) == [0]
    ann.answer(codec.PUBACK, 1)
    assert waiting(stage) == []


def test_a_queue_has_a_name() -> None:
    """Who is told by the end of its connection would say it again on the next one."""
    stage = Stage()
    new, old = Modern(stage), stage.device("old")
    for device in (new, old):
        device.hear()
        for qos in (1, 2):
            device.publish("$queue/", qos=qos, packet_id=qos)
        device.subscribe("$queue/", 1)
    assert new.hear() == ["PUBACK 1 0x90", "PUBREC 2 0x90", "SUBACK 5: 0x8f"]
    assert old.hear() == ["PUBACK 1", "PUBREC 2", "SUBACK 5: 128"]
    assert not stage.broker.state.queues and sum(stage.broker.metrics.dropped.values()) == 4
    told = stage.broker.audit.refusals.last(None, None)
    assert told[0].text.endswith("'$queue/': refused by the rule that a queue has a name")


def test_qos_2_takes_it_with_pubcomp_and_qos_0_at_once() -> None:
    stage = Stage()
    ann = consumer(stage, qos=2)
    send(stage, "2", qos=2)
    assert ann.hear() == ["$queue/q=2 q2 #1"]
    ann.answer(codec.PUBREC, 1)
    ann.answer(codec.PUBCOMP, 1)
    send(stage, "0", qos=0)
    assert ann.hear() == ["PUBREL 1", "$queue/q=0"]
    assert waiting(stage) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_consumer_that_disconnects_gives_back(clean: bool, qos: int) -> None:
    stage = Stage()
    ann = consumer(stage, clean=clean, qos=qos)
    send(stage, "0", "1", qos=qos)
    ann.far.hang_up("lost")
    assert waiting(stage) == [0, 1]
    bob = consumer(stage, "bob")
    assert bob.open == [(codec.PUBACK, 1), (codec.PUBACK, 2)]
    ann = stage.device("ann", clean)
    assert ann.hear() == ["CONNACK 0" + " present" * (not clean)], "it does not come twice"
    bob.answer(codec.PUBACK, 1, 2)
    assert waiting(stage) == []


def test_a_lasting_consumer_finds_what_came_meanwhile() -> None:
    stage = Stage()
    consumer(stage, clean=False).say(codec.DISCONNECT_PACKET)
    send(stage, "0")
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "$queue/q=0 q1 #1"]
    ann.answer(codec.PUBACK, 1)
    assert waiting(stage) == []


def test_a_lasting_consumer_gets_back_what_it_held() -> None:
    stage = Stage()
    ann = consumer(stage, clean=False)
    send(stage, "0", "1")
    ann.answer(codec.PUBACK, 1)
    ann.far.hang_up("lost")
    ann = stage.device("ann", clean=False)
    (welcome, again) = ann.hear()
    assert again.startswith("$queue/q=1 q1")
    ann.answer_one()
    assert waiting(stage) == []


@pytest.mark.parametrize("clean", [True, False])
def test_who_subscribes_to_a_queue_again_keeps_what_it_has(clean: bool) -> None:
    """It got each a second time, and if it lasts the first one again when it came back."""
    stage = Stage()
    ann = consumer(stage, clean=clean)
    send(stage, "0", "1")
    assert ann.hear() == ["$queue/q=0 q1 #1", "$queue/q=1 q1 #2"]
    ann.subscribe("$queue/q", 0)
    send(stage, "2")
    assert ann.hear() == ["SUBACK 5: 0", "$queue/q=2"]
    ann.answer(codec.PUBACK, 1)
    assert waiting(stage) == [1]
    ann.far.hang_up("lost")
    assert len(stage.broker.state.queues["q"].consumers) == (not clean)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_leased_for_too_long_does_not_come_back_with_its_client(qos: int) -> None:
    """Another one has done it meanwhile."""
    stage = Stage()
    stage.broker.queues.configure(stage.broker.queues.named("q"), QueueSettings(lease=5.0))
    ann = consumer(stage, clean=False, qos=qos)
    send(stage, "0", qos=qos)
    if qos == 2:
        ann.answer(codec.PUBREC, 1)
    ann.say(codec.unsubscribe(6, [b"$queue/q"]))
    bob = consumer(stage, "bob")
    assert bob.open == [(codec.PUBACK, 1)]
    bob.answer(codec.PUBACK, 1)
    assert waiting(stage) == []
    ann.far.hang_up("lost")
    assert stage.device("ann", clean=False).hear() == ["CONNACK 0 present"]
    assert folded(stage.log.rows).sessions["mqtt", "ann"].backlog.received == set()


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_what_was_leased_is_not_taken_for_what_is_its_own(from_snapshot: bool) -> None:
    """The same message twice: a late acknowledgement of the one ended the other."""
    stage = Stage()
    stage.broker.queues.bind(stage.broker.queues.named("q"), "a/b")
    ann = consumer(stage, clean=False)
    stage.device("bob").publish("a/b", b"x", 1, retain=True)
    ann.subscribe("a/#", 1)
    assert ann.hear() == ["a/b=x q1 #1", "SUBACK 5: 1", "a/b=x q1 #2 retain"]
    ann.say(codec.unsubscribe(6, [b"$queue/q"]))
    ann.answer(codec.PUBACK, 1)
    stage.tick()
    stage = restarted(stage, from_snapshot)
    (_, again) = stage.device("ann", clean=False).hear()
    assert again == "a/b=x q1 #2 dup retain"


@pytest.mark.parametrize("clean", [False, True])
def test_what_is_its_own_is_not_taken_for_what_was_leased(clean: bool) -> None:
    """The same message twice: to acknowledge the one took the other from the queue."""
    stage = Stage()
    stage.broker.queues.bind(stage.broker.queues.named("q"), "a/b")
    ann = consumer(stage, clean=clean)
    ann.subscribe("a/b", 1)
    bob = stage.device("bob")
    bob.publish("a/b", b"x", 1)
    assert ann.hear() == ["SUBACK 5: 1", "a/b=x q1 #1", "a/b=x q1 #2"]
    own = 2 if clean else 1  # that of a lasting session is in its backlog before it is queued
    ann.answer(codec.PUBACK, own)
    assert waiting(stage) == [0]
    ann.answer(codec.PUBACK, 3 - own)
    assert waiting(stage) == []
    bob.publish("a/b", b"y", 1, retain=True)
    ann.hear()
    ann.subscribe("a/+", 0)
    assert ann.hear() == ["SUBACK 5: 0", "a/b=y retain"]
    assert waiting(stage) == [1]


def test_who_has_answered_gets_what_waits_in_another_queue() -> None:
    """Only that of the request was looked at, and nothing else comes of an answer."""
    stage = Stage()
    asker, ann = Modern(stage, "asker"), Modern(stage, "ann")
    ann.subscribe("$queue/a", 1, "$queue/b", 1)
    ann.hear()
    for n in range(PREFETCH):
        asked = told(texts={spec.RESPONSE_TOPIC: b"r", spec.CORRELATION: b"%d" % n})
        asker.publish("$queue/a", qos=1, packet_id=n + 1, properties=asked)
    send(stage, "job", queue="b")
    assert len(ann.hear()) == PREFETCH
    for n in range(PREFETCH):
        ann.answer(codec.PUBACK, n + 1)
    assert ann.hear() == []
    ann.publish("r", properties=told(texts={spec.CORRELATION: b"0"}))
    assert ann.hear() == [f"$queue/b=job q1 #{PREFETCH + 1}"]


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_restart_ends_leases(from_snapshot: bool) -> None:
    stage = Stage()
    ann = consumer(stage, clean=False)
    ann.subscribe("a", 1)
    send(stage, "0")
    stage.device("bob").publish("a", b"between", 1)
    send(stage, "1")
    assert ann.hear()[1:] == ["$queue/q=0 q1 #1", "a=between q1 #2", "$queue/q=1 q1 #3"]

    stage = restarted(stage, from_snapshot)
    ann = stage.device("ann", clean=False)
    heard = ann.hear()
    assert sorted(word.split(" ")[0] for word in heard) == [
        "$queue/q=0", "$queue/q=1", "CONNACK", "a=between",
    ]  # fmt: skip
    assert heard[1] == "a=between q1 #2 dup", "its id is what it was"
    while ann.open:
        ann.answer_one()
    assert waiting(stage) == []
    stage.tick()
    assert restarted(stage).device("ann", clean=False).hear() == ["CONNACK 0 present"]


def test_a_window_full_of_other_messages_only_delays_it() -> None:
    stage = Stage()
    stage.broker.inflight = 20
    ann = consumer(stage)
    ann.subscribe("a", 1)
    bob = stage.device("bob")
    for number in range(20):
        bob.publish("a", b"x", 1, packet_id=number + 1)
    send(stage, "0")
    assert len(ann.hear()) == 21
    ann.answer(codec.PUBACK, *range(1, 21))
    assert ann.hear() == ["$queue/q=0 q1 #21"]


def test_messages_that_are_no_queues_do_not_keep_a_client_from_its_queue() -> None:
    stage = Stage()
    ann = consumer(stage)
    ann.subscribe("a", 1)
    bob = stage.device("bob")
    for number in range(2 * PREFETCH):
        bob.publish("a", b"x", 1, packet_id=number + 1)
    send(stage, "0")
    assert ann.hear()[-1] == f"$queue/q=0 q1 #{2 * PREFETCH + 1}"


def test_a_queue_gives_no_more_than_a_member_may_have_ahead() -> None:
    stage = Stage()
    ann, bob = consumer(stage), consumer(stage, "bob")
    send(stage, *(str(number) for number in range(45)))
    assert (len(ann.hear()), len(bob.hear())) == (20, 20)
    ann.answer(codec.PUBACK, *range(1, 21))
    assert len(ann.hear()) == 5
    ann.answer(codec.PUBACK, *range(21, 26))
    bob.answer(codec.PUBACK, *range(1, 21))
    assert waiting(stage) == []


def test_a_choked_consumer_does_not_lose_what_a_queue_has() -> None:
    stage = Stage()
    ann = consumer(stage, qos=0)
    ann.far.link.choked = True
    send(stage, "0", qos=0)
    assert (ann.hear(), waiting(stage)) == ([], [0])
    ann.far.link.choked = False
    ann.far.connection.drained()
    assert (ann.hear(), waiting(stage)) == (["$queue/q=0"], [])


def test_unsubscribe_gives_back() -> None:
    stage = Stage()
    ann, bob = consumer(stage), None
    send(stage, "0")
    ann.say(codec.unsubscribe(6, [b"$queue/q"]))
    bob = consumer(stage, "bob")
    assert bob.open == [(codec.PUBACK, 1)]
    bob.answer_one()
    ann.answer(codec.PUBACK, 1)
    assert waiting(stage) == []


def test_a_queue_made_again_finds_its_consumers() -> None:
    stage = Stage()
    ann = consumer(stage)
    ann.subscribe("a", 1)
    send(stage, "0")
    stage.broker.queues.destroy("q")
    ann.hear()
    ann.answer(codec.PUBACK, 1)
    ann.publish("a", qos=1)
    ann.answer(codec.PUBACK, 2)
    assert "q" not in stage.broker.state.queues, "acknowledging does not make it"
    ann.hear()
    send(stage, "1")
    assert ann.hear() == ["$queue/q=1 q1 #3"]
    assert waiting(stage) == [1]
    ann.answer(codec.PUBACK, 3)
    assert waiting(stage) == []


def test_a_restart_does_not_bring_a_destroyed_queue_back() -> None:
    stage = Stage()
    consumer(stage, clean=False)
    stage.broker.queues.destroy("q")
    stage = restarted(stage)
    ann = stage.device("ann", clean=False)
    assert "q" not in stage.broker.state.queues
    send(stage, "0")
    assert ann.hear() == ["CONNACK 0 present", "$queue/q=0 q1 #1"]


def test_a_consumer_that_is_gone_is_not_expected() -> None:
    stage = Stage()
    ann, bob = consumer(stage), consumer(stage, "bob")
    stage.broker.queues.destroy("q")
    ann.say(codec.unsubscribe(6, [b"$queue/q"]))
    bob.far.hang_up("lost")
    assert stage.broker.queues.expecting == {}
    send(stage, "0")
    assert ann.hear() == ["UNSUBACK 6"]
    assert waiting(stage) == [0]


@pytest.mark.parametrize("clean", [True, False])
def test_one_message_in_two_queues_is_two_messages(clean: bool) -> None:
    stage = Stage()
    for name in ("q", "r"):
        stage.broker.queues.bind(stage.broker.queues.named(name), "a")
    ann = stage.device("ann", clean)
    ann.subscribe("$queue/q", 1, "$queue/r", 1)
    stage.device("bob").publish("a", qos=1)
    heard = ann.hear()[2:]
    while ann.open:
        ann.answer_one()
        heard += ann.hear()
    assert sorted(word.split(" ")[0] for word in heard) == ["a=x", "a=x"]
    assert (waiting(stage, "q"), waiting(stage, "r")) == ([], [])


def test_retain_is_ignored_and_wildcards_are_refused() -> None:
    stage = Stage()
    ann = stage.device()
    ann.publish("$queue/q", b"x", 1, retain=True)
    assert (waiting(stage), stage.broker.state.retained) == ([0], {})
    ann.publish("$queue/+")
    assert ann.far.closed


# A publisher whose message has no room


def full(stage: Stage) -> None:
    stage.broker.queues.max_messages = 2
    send(stage, "0", "1")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_queue_refuses_a_publisher_of_5_0(qos: int) -> None:
    stage = Stage()
    full(stage)
    bob = Modern(stage, "bob")
    bob.publish("$queue/q", b"2", qos)
    bob.publish("$queue/q", b"2", 0)
    kind = "PUBACK" if qos == 1 else "PUBREC"
    assert bob.hear() == ["CONNACK 0x00", f"{kind} 1 0x97"]
    assert waiting(stage) == [0, 1]
    assert stage.broker.metrics.dropped == {"quota exceeded": 1, "queue full": 1}
    ann = consumer(stage)
    ann.answer(codec.PUBACK, 1)
    bob.publish("$queue/q", b"2", qos, packet_id=2)
    assert bob.hear() == [f"{kind} 2"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_of_5_0_is_told_what_has_no_room(qos: int) -> None:
    stage = Stage()
    full(stage)
    stage.broker.quotas.most[DELAYED], stage.broker.retained.most = 0, 0
    stage.broker.quotas.most[NAMED] = 1
    bob = Modern(stage, "bob")
    for topic, why in {
        "$queue/q": "$queue/q holds 2 messages with 2 bytes",
        "$queue/r": "there are 1 queues, and 1 are the most",
        "$delayed/5/a": "there are 0 delayed messages, and 0 are the most",
        "a": "there are 0 retained messages, which are the most",
    }.items():
        bob.far.hear()
        bob.publish(topic, b"2", qos, retain=topic == "a")
        assert why.encode() in bob.far.hear()
    quiet = Modern(stage, "quiet", properties=Properties(numbers={spec.REQUEST_PROBLEM: 0}))
    quiet.publish("$queue/q", b"2", qos)
    assert b"holds" not in quiet.far.hear(), "who does not want to hear that does not"


@pytest.mark.parametrize("qos", [1, 2])
def test_before_5_0_a_full_queue_ends_the_connection(qos: int) -> None:
    """An acknowledgement would promise what is not so; the client will try again."""
    stage = Stage()
    full(stage)
    bob = stage.device("bob")
    bob.publish("$queue/q", b"2", 0)
    assert not bob.far.closed
    bob.publish("$queue/q", b"2", qos)
    assert bob.hear() == ["CONNACK 0"]
    assert bob.far.closed
    assert waiting(stage) == [0, 1]


def test_of_several_messages_as_many_as_fit_are_taken() -> None:
    stage = Stage()
    stage.broker.queues.max_messages = 2
    packets = [codec.publish(b"$queue/q", b"%d" % n, 1, packet_id=n + 1) for n in range(4)]
    bob = stage.device("bob")
    bob.say(*packets)
    assert bob.hear() == ["CONNACK 0", "PUBACK 1", "PUBACK 2"]
    assert (bob.far.closed, waiting(stage)) == (True, [0, 1])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_waits_for_later_is_bounded_too(qos: int) -> None:
    stage = Stage()
    stage.broker.quotas.most[DELAYED] = 1
    bob, old = Modern(stage, "bob"), stage.device("old")
    bob.publish("$delayed/5/a", qos=qos)
    bob.publish("$delayed/5/a", qos=qos, packet_id=2)
    old.publish("$delayed/5/a", qos=qos)
    heard = {0: [], 1: ["PUBACK 1", "PUBACK 2 0x97"], 2: ["PUBREC 1", "PUBREC 2 0x97"]}
    assert bob.hear()[1:] == heard[qos]
    assert (len(stage.broker.state.delayed), old.far.closed) == (1, qos > 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_retained_is_bounded_too(qos: int) -> None:
    stage = Stage()
    stage.broker.retained.most = 1
    bob, old, ann = Modern(stage, "bob"), stage.device("old"), stage.device("ann")
    ann.subscribe("#", 0)
    bob.publish("a", b"1", qos, retain=True)
    bob.publish("a", b"2", qos, retain=True, packet_id=2)
    bob.publish("b", b"3", qos, retain=True, packet_id=3)
    bob.publish("b", b"", qos, retain=True, packet_id=4)
    old.publish("b", b"5", qos, retain=True)
    kind = {0: "", 1: "PUBACK", 2: "PUBREC"}[qos]
    codes = {1: "", 2: "", 3: " 0x97", 4: ""}
    assert bob.hear()[1:] == [f"{kind} {n}{code}" for n, code in codes.items() if qos]
    assert (list(stage.broker.state.retained), old.far.closed) == (["a"], qos > 0)
    heard = ["a=1", "a=2", "b="] if qos else ["a=1", "a=2", "b=3", "b=", "b=5"]
    assert ann.hear()[2:] == heard, "of QoS 0 it is delivered, and not kept"
