"""What one user may take of what is there for all: asked at each door, given back, said."""

from __future__ import annotations

import pytest

from hubbub.core.audit import Audit
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.limits import ENDED_QUEUES, REFUSALS_KEPT
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.metrics import Metrics
from hubbub.core.quotas import (
    BEFORE,
    DELAYED,
    NAMED,
    POOLS,
    REQUESTS,
    RETAINED,
    SESSIONS,
    SUBSCRIBED,
    SUBTOPICS,
    TOPICS,
    Quotas,
    size_of,
)
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Silent
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as codes
from tests.core.recording import Ear, StillClock, folded, recording
from tests.protocols.mqtt.conversation import Stage, restarted
from tests.protocols.mqtt.modern import Modern
from tests.protocols.smq.device import Hub as SmqHub
from tests.protocols.switch.journaled import Hub, get, post, said


def client(user: str = "", address: str = "") -> Session:
    one = Silent("any", f"client of {user or address}", Rights())
    one.user, one.address = user, address
    return one


def quotas(most: int = 50) -> Quotas:
    clock = Clock()
    found = Quotas(clock, Metrics(), Audit(clock, Log(clock)))
    found.most[NAMED] = most
    return found


def test_a_user_has_a_fifth_and_others_have_theirs() -> None:
    pools, ann, bob = quotas(), client("ann"), client("bob")
    for _ in range(10):
        assert not pools.lacks(NAMED, ann)
        pools.take(NAMED, ann)
    assert "user 'ann' has 10 queues, and 10 of 50 are the most" in pools.lacks(NAMED, ann)
    assert not pools.lacks(NAMED, bob)
    pools.give(NAMED, ann.payer)
    assert not pools.lacks(NAMED, ann) and pools.total[NAMED] == 9


def test_who_is_nobody_counts_as_its_address() -> None:
    pools = quotas()
    for number in range(10):
        assert not pools.lacks(NAMED, client(address=f"2001:db8::{number}"))
        pools.take(NAMED, client(address=f"2001:db8::{number}"))
    assert "address" in pools.lacks(NAMED, client(address="2001:db8::99")), "one /64 is one"
    assert not pools.lacks(NAMED, client(address="192.0.2.1"))


def test_the_pool_ends_for_all_and_the_hub_itself_has_no_share() -> None:
    pools = quotas()
    assert not pools.lacks(NAMED, client(), there=49)
    assert "there are 50 queues" in pools.lacks(NAMED, client("ann"), there=50)
    before = client("ann")
    before.payer = BEFORE
    assert pools.take(NAMED, before, 40) == "" and pools.total[NAMED] == 0


def test_a_refusal_is_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    pools, ann, bob = quotas(5), client("ann"), client("bob")
    for one in (ann, bob):
        pools.take(NAMED, one)
    for _ in range(20):
        assert pools.lacks(NAMED, ann)
    assert pools.lacks(NAMED, bob)
    assert pools._metrics.refused == {NAMED: 21}
    assert len(caplog.records) == 2
    [kept] = pools._audit.refusals.last("ann", None)
    assert "for want of room: user 'ann' has 1 queues" in kept.text


# At the doors: what comes and goes leaves the pools as they were


def bounded(stage: Stage, **most: int) -> Stage:
    for pool, number in most.items():
        stage.broker.quotas.most[pool.replace("_", " ")] = number
    return stage


def test_queues_by_mqtt() -> None:
    stage = bounded(Stage(), queues=10)
    ann = Modern(stage)
    ann.hear()
    for number, name in enumerate(("$queue/a", "$queue/b", "$queue/c", "$queue/a"), 1):
        ann.publish(name, qos=1, packet_id=number)
    refused = [word.split()[1] for word in ann.hear() if "0x97" in word]
    assert refused == ["3"]
    ann.subscribe("$queue/c", 1)
    assert "0x97" in ann.hear()[0]
    stage.broker.queues.destroy("a")
    ann.publish("$queue/c", qos=1, packet_id=5)
    assert "0x97" not in ann.hear()[0]


def test_a_refused_queue_is_refused_to_its_asker_alone() -> None:
    """Clients with equal rights share their routes."""
    stage = bounded(Stage(), queues=5)
    ann, bob = Modern(stage, "ann"), Modern(stage, "bob")
    for one, user in ((ann, "ann"), (bob, "bob")):
        session = stage.mqtt.sessions[user]
        session.user, session.payer = user, ""
        one.hear()
    ann.publish("$queue/a", qos=1)
    ann.publish("$queue/x", qos=1, packet_id=2)
    bob.publish("$queue/x", qos=1)
    assert [("0x97" in word) for word in ann.hear()] == [False, True]
    assert "0x97" not in bob.hear()[0]


def test_queues_by_message_switch() -> None:
    hub = Hub()
    hub.broker.quotas.most[NAMED] = 5
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    a.say(get("/persistent/r"))
    assert a.hear().startswith(b"HTTP/1.1 507 ")
    said(a, get("/destroy/q"))
    assert said(a, get("/persistent/r")) == b"r"


def test_what_is_for_later() -> None:
    stage = bounded(Stage(), delayed_messages=5)
    ann = Modern(stage)
    ann.hear()
    ann.publish("$delayed/5/a", qos=1)
    ann.publish("$delayed/5/b", qos=1, packet_id=2)
    assert [("0x97" in word) for word in ann.hear()] == [False, True]
    stage.pass_time(6)
    stage.broker.delays.wake()
    assert not stage.broker.quotas.used[DELAYED]
    ann.publish("$delayed/5/b", qos=1, packet_id=3)
    assert "0x97" not in ann.hear()[0]


def test_ids_of_names() -> None:
    hub = SmqHub()
    hub.broker.quotas.most[TOPICS] = hub.broker.quotas.most[SUBTOPICS] = 5
    device = hub.device(b"device")
    for kind in (codes.CREATE, codes.CREATESUB):
        for name in (b"a", b"b", b"a"):
            device.say(kind, rest=name)
        assert [one[1] for one in device.hear()] == [0, 1, 0]


def test_subscriptions_in_bytes() -> None:
    stage = bounded(Stage())
    stage.broker.quotas.most[SUBSCRIBED] = 5 * 1_200
    ann = stage.device("ann")
    ann.subscribe("a", 0, "b", 0, "c" * 900, 0)
    assert ann.hear()[-1] == "SUBACK 5: 0 0 128"
    ann.say(codec.unsubscribe(6, [b"a", b"b"]))
    ann.subscribe("c" * 700, 0)
    assert ann.hear()[-1] == "SUBACK 5: 0"
    ann.far.hang_up()
    assert not stage.broker.quotas.used[SUBSCRIBED] and not stage.broker.quotas.total[SUBSCRIBED]


@pytest.mark.parametrize("v5", [True, False])
def test_sessions_that_last(v5: bool) -> None:
    stage = bounded(Stage())
    stage.broker.quotas.most[SESSIONS] = 5
    first = stage.device("first", clean=False)
    assert first.hear() == ["CONNACK 0"]
    first.far.hang_up("lost")
    again = stage.device("first", clean=False)
    assert again.hear() == ["CONNACK 0 present"]
    if v5:
        asked = codec.Properties({17: 60})
        second = Modern(stage, "second", clean=False, properties=asked)
        assert second.hear()[0].startswith("CONNACK 0x97")
    else:
        assert stage.device("second", clean=False).hear() == ["CONNACK 3"]
    assert stage.device("third").hear() == ["CONNACK 0"], "that one does not last"
    again.far.hang_up("lost")
    stage.device("first", clean=True)
    assert not stage.broker.quotas.used[SESSIONS]
    assert stage.device("second", clean=False).hear() == ["CONNACK 0"]


def refused(one: Modern) -> list[str]:
    """The packet ids that were refused for want of room."""
    return [word.split()[1] for word in one.hear() if "0x97" in word]


def named(stage: Stage, client: str) -> Modern:
    """A client whose user has its name."""
    one = Modern(stage, client)
    session = stage.mqtt.sessions[client]
    session.user, session.payer = client, ""
    one.hear()
    return one


def test_what_is_retained_later_is_its_publishers_too() -> None:
    stage = bounded(Stage())
    pools, retained = stage.broker.quotas, stage.broker.state.retained
    pools.most[RETAINED] = 500
    ann = named(stage, "ann")
    for number in range(1, 4):
        ann.publish(f"$delayed/5/{number}", b"x" * 50, 1, True, number)
    assert isinstance(stage.broker.clock, StillClock)
    stage.broker.clock.seconds += 5
    stage.broker.delays.wake()
    assert list(retained) == ["1", "2"] and pools.used[RETAINED] == {"user 'ann'": 100}


def test_retained_bytes_are_their_publishers() -> None:
    stage = bounded(Stage())
    pools = stage.broker.quotas
    pools.most[RETAINED] = 500
    ann, bob = named(stage, "ann"), named(stage, "bob")
    ann.publish("a", b"x" * 60, 1, True, 1)
    ann.publish("b", b"x" * 50, 1, True, 2)
    bob.publish("b", b"x" * 50, 1, True, 3)
    assert (refused(ann), refused(bob)) == (["2"], [])
    ann.publish("a", b"x" * 100, 1, True, 4)  # the same name: what it had counts no more
    ann.publish("a", b"x" * 101, 1, True, 5)
    assert refused(ann) == ["5"] and pools.used[RETAINED] == {"user 'ann'": 100, "user 'bob'": 50}
    bob.publish("a", b"yyy", 1, True, 6)  # replaced: it is bob's now
    assert pools.used[RETAINED] == {"user 'bob'": 53} and stage.broker.state.kept_bytes() == 53
    for number, name in enumerate(("a", "b"), 7):
        ann.publish(name, b"", 1, True, number)
    assert not pools.used[RETAINED] and not stage.broker.state.kept_bytes()
    assert not refused(bob) and stage.broker.metrics.refused == {RETAINED: 2}


def test_a_retained_message_of_qos_0_over_the_quota_is_delivered_and_not_kept() -> None:
    stage = bounded(Stage())
    stage.broker.quotas.most[RETAINED] = 50
    ann, ear = named(stage, "ann"), stage.device("ear")
    ear.subscribe("a", 0)
    ear.hear()
    ann.publish("a", b"x" * 11, 0, True)
    assert len(ear.hear()) == 1
    assert "a" not in stage.broker.state.retained and stage.broker.metrics.refused[RETAINED] == 1


def test_what_expires_gives_back_its_bytes_by_itself() -> None:
    stage = bounded(Stage())
    ann = named(stage, "ann")
    for number in range(3):
        ann.publish(f"a{number}", b"xyz", 1, True, 1, properties=codec.Properties({2: 10 + number}))
    ann.publish("a0", b"new", 1, True, 2)
    stage.pass_time(11.5)
    stage.broker.retained.wake()
    assert sorted(stage.broker.state.retained) == ["a0", "a2"], "one that was replaced stays"
    assert stage.broker.quotas.used[RETAINED] == {"user 'ann'": 6}
    for _ in range(3_000):
        ann.publish("a0", b"new", 0, True, properties=codec.Properties({2: 1000}))
    assert len(stage.broker.retained._expiring) < 1_100, "those that are replaced are forgotten"


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_restart_knows_whose_bytes_they_are(from_snapshot: bool) -> None:
    stage = bounded(Stage())
    ann, nobody = named(stage, "ann"), Modern(stage, "nobody")
    ann.publish("a", b"x" * 60, 1, True, properties=codec.Properties({2: 10}))
    nobody.publish("b", b"x" * 40, 1, True)
    used = stage.broker.quotas.used[RETAINED]
    assert used == {"user 'ann'": 60, "address 127.0.0.1": 40}
    after = restarted(stage, from_snapshot)
    pools = after.broker.quotas
    assert pools.used[RETAINED] == {"user 'ann'": 60} and after.broker.state.kept_bytes() == 100
    after.pass_time(11)
    after.broker.retained.wake()
    assert not pools.used[RETAINED] and after.broker.state.kept_bytes() == 40
    Modern(after, "other").publish("b", b"", 1, True)
    assert after.broker.state.kept_bytes() == pools.total[RETAINED] == 0


def test_open_requests() -> None:
    """Who has too many that nobody answered is refused the next one, and nobody else is."""
    stage = bounded(Stage())
    pools = stage.broker.quotas
    pools.most[REQUESTS] = 5
    ann, bob = named(stage, "ann"), named(stage, "bob")
    where = codec.Properties(texts={8: b"answers"})
    pools.take(REQUESTS, stage.mqtt.sessions["ann"])
    for one in (ann, bob):
        one.publish("$queue/q", b"?", 1, packet_id=7, properties=where)
    assert (refused(ann), refused(bob)) == (["7"], [])
    ann.publish("$queue/q", b"no request", 1, packet_id=8)
    pools.give(REQUESTS, "user 'ann'")
    ann.publish("$queue/q", b"?", 1, packet_id=9, properties=where)
    assert refused(ann) == []


def test_open_requests_of_message_switch() -> None:
    hub = Hub()
    hub.broker.quotas.most[REQUESTS] = 5
    a = hub.log_in("a")
    for name in ("q", "r"):
        said(a, get(f"/persistent/{name}"))
    hub.broker.quotas.take(REQUESTS, hub.broker.sessions["switch", "a"])
    a.say(post("/request/q/r", b"?"))
    assert a.hear().startswith(b"HTTP/1.1 507 ")


def test_after_a_restart_what_users_left_counts_and_what_others_left_does_not() -> None:
    stage = Stage()
    ann, other = stage.device("ann", clean=False), stage.device("other", clean=False)
    stage.broker.state.sessions["mqtt", "ann"].user = "ann"
    ann.subscribe("a", 1)
    other.subscribe("b", 1)
    after = restarted(stage)
    assert after.broker.quotas.total[SESSIONS] in (0, 1)
    assert set(POOLS) == set(after.broker.quotas.used)
    stage.device("other", clean=True)
    assert after.broker.quotas.total[SUBSCRIBED] >= 0


def test_who_is_nobody_and_was_there_before_counts_once_it_is_back() -> None:
    """Else a lasting session could subscribe for ever to what counts for nobody."""
    stage = Stage()
    stage.device("other", clean=False).subscribe("b", 1)
    after = restarted(stage)
    pools = after.broker.quotas
    assert pools.total[SESSIONS] == pools.total[SUBSCRIBED] == 0
    other = after.device("other", clean=False)
    other.subscribe("c", 1)
    assert pools.used[SESSIONS] == {"address 127.0.0.1": 1}
    assert pools.used[SUBSCRIBED] == {"address 127.0.0.1": size_of("b") + size_of("c")}
    other.far.hang_up("lost")
    assert pools.total[SESSIONS] == 1, "it lasts"
    after.device("other", clean=True)
    assert pools.total[SESSIONS] == pools.total[SUBSCRIBED] == 0


def test_what_is_refused_for_want_of_room_is_not_pushed_out_by_strangers() -> None:
    clock = Clock()
    audit = Audit(clock, Log(clock))
    pools, refusals = Quotas(clock, Metrics(), audit), audit.refusals
    pools.most[NAMED] = 0
    assert pools.lacks(NAMED, client("ann"))
    for _ in range(REFUSALS_KEPT + 1):
        refusals.keep_login("", "stranger", "was not let in")
    assert [one.user for one in refusals.last("ann", None)] == ["ann"]


def test_a_queue_refused_is_counted_once_over_mqtt() -> None:
    stage = Stage()
    stage.broker.quotas.most[NAMED] = 0
    ann = Modern(stage)
    for number in range(1, 4):
        ann.publish(f"$queue/q{number}", qos=1, packet_id=number)
    assert sum("0x97" in word for word in ann.hear()) == 3
    assert stage.broker.metrics.refused == {NAMED: 3}


LONG_NAME = "n" * 60_000
WEIGHT = 1 + 60_000 // 512


def test_long_names_are_as_many_as_they_weigh() -> None:
    """A user with its 200,000 ids, queues or sessions had 13 GB of names: they may have 64 KiB."""
    broker, _ = recording()
    ear = Ear(broker, "ear")
    ear.payer, used = "user 'eve'", broker.quotas.used
    name = f"a/{LONG_NAME}"
    assert broker.topic_id(name, ear) and broker.subtopic_id(name, ear)
    broker.queues.named(name, asker=ear)
    for pool in (TOPICS, SUBTOPICS, NAMED):
        assert used[pool]["user 'eve'"] == WEIGHT
        broker.quotas.most[pool] = 5 * 2 * WEIGHT - 1
    assert broker.topic_id(f"b/{LONG_NAME}", ear) == broker.subtopic_id(f"b/{LONG_NAME}", ear) == 0
    assert "user 'eve' has" in broker.queues.lacks(f"b/{LONG_NAME}", ear)
    assert broker.topic_id("short", ear) and not broker.queues.lacks("short", ear)
    broker.ids.remove(name, ear)
    broker.ids.remove_subtopic(name, ear)
    broker.queues.destroy(name)
    assert used[TOPICS]["user 'eve'"] == 1 and not used[SUBTOPICS] and not used[NAMED]
    assert broker.state.topics.weight == 1 and broker.state.subtopics.weight == 0


def test_a_long_client_id_is_many_sessions() -> None:
    broker, _ = recording()
    ear = Ear(broker, LONG_NAME, lasting=True)
    assert sum(broker.quotas.used[SESSIONS].values()) in (0, WEIGHT)  # the hub's own count not
    ear.payer = "user 'eve'"
    broker.quotas.most[SESSIONS] = 5 * WEIGHT - 1
    assert not broker.may_last(ear)
    broker.quotas.most[SESSIONS] = 5 * WEIGHT
    assert broker.may_last(ear)


def test_the_long_name_of_a_retained_message_counts_as_its_payload_does() -> None:
    broker, log = recording()
    ear = Ear(broker, "ear")
    ear.payer, used = "user 'eve'", broker.quotas.used[RETAINED]
    name = f"a/{LONG_NAME}"
    broker.post(Message(name, b"x", retain=True), ear)
    broker.post(Message("short", b"x", retain=True), ear)
    assert 60_000 - 512 < used["user 'eve'"] - 2 <= 60_000
    assert folded(log.rows).kept_bytes() == broker.state.kept_bytes() == used["user 'eve'"]
    assert broker.retained.lacks_room(ear, "b" * 60_000, broker.quotas.most[RETAINED] // 5)
    for known in (name, "short"):
        broker.post(Message(known, b"", retain=True), ear)
    assert broker.state.kept_bytes() == 0 and not used


def begin_and_end(broker: Broker, name: str, used: bool = True) -> None:
    queue = broker.queues.named(name)
    if used:
        broker.post(Message(queue.client, b"x"))
    broker.queues.destroy(name)


def test_long_names_of_ended_queues_are_not_all_remembered() -> None:
    """Ten thousand of them were 600 MB that nobody had any more, and each snapshot wrote them."""
    broker, log = recording()
    for number in range(ENDED_QUEUES // WEIGHT + 2):
        begin_and_end(broker, f"{number}/{LONG_NAME}")
    assert len(broker.state.ended_queues) <= 2
    assert folded(log.rows).ended_queues == broker.state.ended_queues
    assert broker.queues.named("another").next == broker.state.queue_floor == 1


def test_a_queue_that_was_never_used_is_not_remembered() -> None:
    """There were any number of them: the next id of all was the same, 0, which ended none."""
    broker, log = recording()
    for number in range(20):
        begin_and_end(broker, f"{number}", used=False)
    begin_and_end(broker, "used")
    assert folded(log.rows).ended_queues == broker.state.ended_queues == {"used": 1}


def test_a_name_that_ends_again_and_again_is_one() -> None:
    broker, _ = recording()
    for _ in range(ENDED_QUEUES + 10):
        begin_and_end(broker, "again")
    assert broker.state.ended_queues == {"again": ENDED_QUEUES + 10}
