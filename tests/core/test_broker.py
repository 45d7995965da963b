"""Who gets what, what becomes a row, and who is told: the broker with sessions that only listen."""

from __future__ import annotations

import pytest

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.quotas import TOPICS
from hubbub.core.session import Silent
from tests.core.recording import Ear, folded, recording, shape
from tests.rights import ruled


def post(
    broker: Broker, topic: str, payload: bytes = b"x", qos: int = 0, retain: bool = False
) -> None:
    broker.post(Message(topic, payload, qos, retain))


def retained(broker: Broker, ear: Ear, topic_filter: str) -> list[tuple[str, bytes]]:
    ear.hear()
    wish = ear.wish(topic_filter)
    broker.subscribe(wish)
    broker.offer_retained(wish)
    broker.unsubscribe(ear, topic_filter)
    return sorted((topic, payload) for topic, payload, _ in ear.hear())


# Routing


def test_overlapping_filters_are_one_copy_at_the_highest_qos() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    for topic_filter, qos in (("a/+", 1), ("a/b", 0), ("#", 2)):
        broker.subscribe(ear.wish(topic_filter, qos))
    post(broker, "a/b", qos=2)
    assert ear.hear() == [("a/b", b"x", 2)]
    broker.unsubscribe(ear, "#")
    post(broker, "a/b", qos=2)
    assert ear.hear() == [("a/b", b"x", 1)]


def test_a_change_of_subscriptions_changes_known_routes() -> None:
    broker, _ = recording()
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    post(broker, "a")
    assert broker.subscribe(ann.wish("a"))
    assert not broker.subscribe(ann.wish("a", 1)), "the same filter again replaces it"
    post(broker, "a", qos=1)
    assert ann.hear() == [("a", b"x", 1)]
    broker.subscribe(bob.wish("a"))
    broker.unsubscribe(ann, "a")
    assert not broker.unsubscribe(ann, "a")
    post(broker, "a")
    broker.disconnect(bob, "")
    post(broker, "a")
    assert (ann.hear(), bob.hear()) == ([], [("a", b"x", 0)])


def test_an_address_reaches_that_client_alone() -> None:
    broker, _ = recording()
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(bob.wish("#"))
    post(broker, f"$client/{ann.number}")
    assert (len(ann.hear()), len(bob.hear())) == (1, 0)
    number = ann.number
    broker.disconnect(ann, "")
    post(broker, f"$client/{number}")
    assert ann.hear() == []
    for nobody in ("$client/", "$client/x", "$client/-1", "$client/٣"):
        post(broker, nobody)


def test_names_that_look_alike_in_the_journal_have_routes_of_their_own() -> None:
    """`%41` is written `%2541` there, and a byte 0xFF `%FF`."""
    broker, _ = recording()
    ear = Ear(broker, "ann")
    for name in ("a%41", "a%2541", "aA", "%FF", "\udcff"):
        broker.subscribe(ear.wish(name, literal=True))
        post(broker, name)
        assert [topic for topic, _, _ in ear.hear()] == [name]


def test_rights_share_routes_and_decide_who_may_publish() -> None:
    broker, log = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    rows = len(log.rows)
    mute = Silent("test", "mute", ruled("read #"))
    broker.post(Message("a", b"x", 1, True), mute)
    assert ear.hear() == []
    assert [row.kind for row in log.rows[rows:]] == [schema.REFUSED]
    assert broker.metrics.dropped == {"not allowed": 1}
    assert broker.state.retained == {}
    post(broker, "a")
    assert len(ear.hear()) == 1


def test_nobody_publishes_under_sys() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("$SYS/#"))
    post(broker, "$SYS/broker/uptime")
    assert ear.hear() == []
    assert broker.metrics.dropped == {"not allowed": 1}


# Rows


def test_everything_is_recorded() -> None:
    broker, log = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    post(broker, "a")
    broker.unsubscribe(ear, "a")
    broker.disconnect(ear, "gone")
    assert log.kinds() == ["connect", "subscribe", "publish", "unsubscribe", "disconnect"]
    assert log.rows[-1].properties == b'{"reason":"gone"}'


def test_durable_records_only_what_the_promise_needs() -> None:
    broker, log = recording("durable")
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a", 1))
    post(broker, "a")
    post(broker, "a", qos=1)
    assert log.kinds() == [], "a session that ends with its connection is promised nothing"
    post(broker, "a", retain=True)
    assert log.kinds() == ["publish"]
    away = Ear(broker, "bob", lasting=True)
    broker.subscribe(away.wish("b", 1))
    post(broker, "b", qos=0)
    post(broker, "b", qos=1)
    assert log.kinds()[1:] == ["connect", "subscribe", "audience", "publish"]
    broker.post(Message("$queue/q", b"x"))
    assert log.kinds()[5:] == ["create", "send"]
    assert shape(folded(log.rows)) == shape(broker.state)


def test_excluded_topics_are_not_recorded() -> None:
    broker, log = recording(exclude=("noise/#",))
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("#", 1))
    post(broker, "noise/a")
    post(broker, "noise/b", qos=1)
    post(broker, "signal")
    assert log.kinds() == ["connect", "subscribe", "publish"]
    assert len(ear.hear()) == 3


def test_an_audience_is_named_once_a_segment() -> None:
    broker, log = recording()
    away = Ear(broker, "ann", lasting=True)
    broker.subscribe(away.wish("a", 1))
    post(broker, "a", qos=1)
    post(broker, "a", qos=1)
    assert log.kinds().count("audience") == 1
    log.segment += 1
    post(broker, "a", qos=1)
    assert log.kinds().count("audience") == 2
    assert shape(folded(log.rows)) == shape(broker.state)
    assert len(broker.state.sessions["test", "ann"].backlog.entries) == 3


def test_an_audience_of_many_names_is_written_once_a_segment() -> None:
    broker, log = recording()
    for name in ("ann", "bob"):
        away = Ear(broker, name, lasting=True)
        broker.subscribe(away.wish("a/#", 1))
    for number in range(50):
        post(broker, f"a/{number}", qos=1)
    assert log.kinds().count("audience") == 1
    log.segment += 1
    post(broker, "a/1", qos=1)
    post(broker, "a/2", qos=1)
    assert log.kinds().count("audience") == 2
    assert shape(folded(log.rows)) == shape(broker.state)


def test_an_audience_is_written_again_only_when_it_is_another() -> None:
    broker, log = recording()
    ann, bob = (Ear(broker, name, lasting=True) for name in ("ann", "bob"))
    broker.subscribe(ann.wish("a", 1))
    post(broker, "a", qos=1)
    broker.subscribe(bob.wish("b", 1))
    broker.subscribe(ann.wish("c", 1))
    post(broker, "a", qos=1)
    assert log.kinds().count("audience") == 1
    broker.subscribe(bob.wish("a", 1))
    post(broker, "a", qos=1)
    assert log.kinds().count("audience") == 2
    broker.end(bob)
    broker.connect(bob, broker.own("test", bob.client))
    broker.subscribe(bob.wish("a", 1))
    post(broker, "a", qos=1)
    assert log.kinds().count("audience") == 3, "the same name, but not the same session"
    assert shape(folded(log.rows)) == shape(broker.state)


def test_a_session_is_deaf_while_one_of_its_subscriptions_is() -> None:
    broker, _ = recording()
    ann = Ear(broker, "ann")
    deaf, plain = ann.wish("a"), ann.wish("b")
    deaf.no_local = True
    for wish, heard in ((deaf, 0), (deaf, 0), (plain, 0), (ann.wish("a"), 1), (deaf, 0)):
        broker.subscribe(wish)
        broker.post(Message("a", b"x"), ann)
        assert len(ann.hear()) == heard
    assert ann.no_local
    broker.unsubscribe(ann, "a")
    assert not ann.no_local


def test_a_backlog_that_is_full_takes_the_newest_back() -> None:
    broker, log = recording()
    broker.backlog_messages = 2
    away = Ear(broker, "ann", lasting=True)
    broker.subscribe(away.wish("a", 1))
    backlog = broker.state.sessions["test", "ann"].backlog
    for _ in range(4):
        post(broker, "a", qos=1)
    assert len(backlog.entries) == 2
    assert broker.metrics.dropped == {"backlog full": 2}
    assert shape(folded(log.rows)) == shape(broker.state)


def test_what_was_sent_is_never_taken_back() -> None:
    """A bound that was lowered while more was in flight: the row says what really went."""
    broker, log = recording()
    away = Ear(broker, "ann", lasting=True)
    broker.subscribe(away.wish("a", 1))
    backlog = broker.state.sessions["test", "ann"].backlog
    for _ in range(4):
        post(broker, "a", qos=1)
    backlog.sent = 4
    broker.backlog_messages = 2
    post(broker, "a", qos=1)
    assert len(backlog.entries) == 4
    assert shape(folded(log.rows)) == shape(broker.state)


# Retained


def test_retained_set_replaced_and_cleared() -> None:
    broker, log = recording()
    ear = Ear(broker, "ann")
    post(broker, "a/b", b"1", retain=True)
    post(broker, "a/b", b"2", retain=True)
    post(broker, "a/c", b"3", retain=True)
    post(broker, "a/c", b"not retained")
    assert retained(broker, ear, "a/+") == [("a/b", b"2"), ("a/c", b"3")]
    assert retained(broker, ear, "a/b") == [("a/b", b"2")]
    post(broker, "a/b", b"", retain=True)
    post(broker, "a/b", b"", retain=True)
    assert retained(broker, ear, "#") == [("a/c", b"3")]
    assert shape(folded(log.rows)) == shape(broker.state)


def test_names_that_mean_something_here_are_not_retained() -> None:
    broker, log = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("$hub/x"))
    post(broker, "$hub/x", retain=True)
    post(broker, "$queue/q", retain=True)
    assert len(ear.hear()) == 1, "but delivered"
    assert broker.state.retained == {}
    assert shape(folded(log.rows)) == shape(broker.state)
    assert not any(row.retain for row in log.rows)


def test_names_that_only_one_protocol_can_say_are_not_retained() -> None:
    broker, log = recording()
    for name in ("", "a/+", "\udcff"):
        post(broker, name, retain=True)
    assert broker.state.retained == {}
    assert shape(folded(log.rows)) == shape(broker.state)


@pytest.mark.pure
def test_retained_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.core.retained.RETAINED", 2)
    broker, log = recording()
    for name in ("a", "b", "c", "a"):
        post(broker, name, name.encode(), retain=True)
    assert sorted(broker.state.retained) == ["a", "b"]
    post(broker, "a", b"", retain=True)
    post(broker, "c", retain=True)
    assert sorted(broker.state.retained) == ["b", "c"]
    assert shape(folded(log.rows)) == shape(broker.state)


def test_expired_messages_are_not_seen() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    broker.post(Message("a", b"x", retain=True, expires=broker.clock.stamp() - 1))
    broker.post(Message("b", b"x", retain=True, expires=broker.clock.stamp() + 1))
    assert retained(broker, ear, "#") == [("b", b"x")]


def test_a_literal_subscription_sees_its_own_name_only() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    post(broker, "a/b", retain=True)
    broker.offer_retained(ear.wish("a/+", literal=True))
    assert ear.hear() == []
    broker.offer_retained(ear.wish("a/b", literal=True))
    assert ear.hear() == [("a/b", b"x", 0)]


def test_retained_messages_of_a_hub_in_memory() -> None:
    clock = Clock()
    broker = Broker(clock, Log(clock), "none")
    ear = Ear(broker, "ann")
    post(broker, "a", b"1", retain=True)
    assert retained(broker, ear, "a") == [("a", b"1")]
    post(broker, "a", b"2", retain=True)
    assert retained(broker, ear, "#") == [("a", b"2")]
    post(broker, "a", b"", retain=True)
    assert retained(broker, ear, "#") == []
    assert broker.log._pinned == {}


def test_a_consumer_in_memory_does_not_rename_what_others_see() -> None:
    clock = Clock()
    broker = Broker(clock, Log(clock), "none")
    consumer, ear = Ear(broker, "ann"), Ear(broker, "bob")
    broker.queues.bind(broker.queues.named("q"), "a")
    broker.subscribe(consumer.wish("$queue/q"))
    post(broker, "a", retain=True)
    assert len(consumer.hear()) == 1
    assert retained(broker, ear, "#") == [("a", b"x")]


# Observing


def test_observers_hear_of_every_change() -> None:
    broker, _ = recording()
    ear, ann, bob = Ear(broker, "observer"), Ear(broker, "ann"), Ear(broker, "bob")
    assert broker.observers.observe(ear, "a/b") == 0
    broker.subscribe(ann.wish("a/b"))
    broker.subscribe(ann.wish("a/+"))
    broker.subscribe(bob.wish("#"))
    broker.subscribe(bob.wish("other"))
    assert ear.counts == [("a/b", 1), ("a/b", 2)], "each client once"
    broker.unsubscribe(ann, "a/b")
    broker.unsubscribe(ann, "a/+")
    broker.disconnect(bob, "")
    assert ear.counts[2:] == [("a/b", 1), ("a/b", 0)]
    broker.observers.unobserve(ear, "a/b")
    broker.observers.unobserve(ear, "a/b")
    broker.subscribe(ann.wish("a/b"))
    assert len(ear.counts) == 4
    assert broker.observers.names == {}


def test_sessions_that_are_away_do_not_count() -> None:
    broker, _ = recording()
    ear, ann = Ear(broker, "observer"), Ear(broker, "ann", lasting=True)
    broker.observers.observe(ear, "a")
    broker.subscribe(ann.wish("a"))
    broker.disconnect(ann, "")
    broker.connect(ann, broker.own("test", ann.client))
    assert ear.counts == [("a", 1), ("a", 0), ("a", 1)]


def test_an_observed_client_that_leaves_is_told_once() -> None:
    broker, _ = recording()
    ear, ann = Ear(broker, "observer"), Ear(broker, "ann")
    name = f"$client/{ann.number}"
    assert broker.observers.observe(ear, name) == 1
    broker.disconnect(ann, "")
    assert ear.counts == [(name, 0)]
    assert name not in broker.observers.names


# Names


def test_ids_are_made_once_and_bounded() -> None:
    broker, log = recording()
    broker.quotas.most[TOPICS] = 2
    ear = Ear(broker, "ann")
    first = broker.topic_id("a", ear)
    assert broker.topic_id("a", ear) == first
    assert broker.topic_id("b", ear) not in (0, first, ear.number)
    assert broker.topic_id("c", ear) == 0
    sub = broker.subtopic_id("a", ear)
    assert broker.subtopic_id("a", ear) == sub
    assert log.kinds().count("create") == 3
    assert shape(folded(log.rows)) == shape(broker.state)


# A restart


def test_a_session_that_was_away_is_routed_to_again() -> None:
    broker, log = recording()
    ann = Ear(broker, "ann", lasting=True)
    broker.subscribe(ann.wish("a", 1))
    post(broker, "a", b"1", qos=1)
    after, _ = recording()
    after.state = folded(log.rows)
    again = Ear.__new__(Ear)
    Silent.__init__(again, "test", "ann", after.open)
    again.lasting, again.heard = True, []
    again.subscriptions["a"] = again.wish("a", 1)
    after.revive(again, after.state.sessions["test", "ann"])
    post(after, "a", b"2", qos=1)
    assert again.hear() == [("a", b"2", 1)]
    assert len(after.state.sessions["test", "ann"].backlog.entries) == 2
