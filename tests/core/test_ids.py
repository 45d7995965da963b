"""Numbers of names can be taken away: who uses them then, what a restart knows, who pays."""

from __future__ import annotations

from hubbub import schema
from hubbub.core.ids import IN_USE, UNKNOWN
from hubbub.core.quotas import SUBTOPICS, TOPICS
from hubbub.core.state import State
from hubbub.protocols.smq import codec
from hubbub.schema import changes_state
from tests.core.recording import folded, recording, shape, snapshot
from tests.protocols.smq.device import Hub


def test_a_name_without_a_number_gets_another_one() -> None:
    broker, _ = recording()
    me = broker.itself
    first, sub = broker.topic_id("a", me), broker.subtopic_id("s", me)
    assert broker.ids.remove("a", me) == broker.ids.remove_subtopic("s", me) == ""
    assert broker.state.topics.numbers == broker.state.subtopics.numbers == {}
    assert broker.state.topics.names == broker.state.subtopics.names == {}
    assert broker.ids.remove("a", me) == broker.ids.remove_subtopic("s", me) == UNKNOWN
    assert broker.topic_id("a", me) != first and broker.subtopic_id("s", me) != sub


def test_a_restart_knows_it_and_nothing_else_is_touched() -> None:
    broker, log = recording()
    me = broker.itself
    names = ("a", "b", "$queue/q", "", "\udcff")
    for name in names:
        broker.topic_id(name, me)
        broker.subtopic_id(name, me)
    broker.queues.named("q")
    for name in ("a", "$queue/q", "\udcff"):
        assert not broker.ids.remove(name, me)
    for name in ("b", ""):
        assert not broker.ids.remove_subtopic(name, me)
    state = folded(log.rows)
    assert shape(state) == shape(broker.state)
    assert sorted(state.topics.numbers) == ["", "b"]
    assert sorted(state.subtopics.numbers) == ["$queue/q", "a", "\udcff"]
    assert "q" in state.queues, "the queue is no number"
    assert shape(folded(snapshot(state, log.rows))) == shape(state)
    gone = [row for row in log.rows if row.kind == schema.FORGET]
    assert len(gone) == 5 and all(changes_state(row) and row.number for row in gone)


def test_a_row_about_a_name_that_is_gone_is_no_error() -> None:
    broker, log = recording()
    broker.topic_id("a", broker.itself)
    broker.ids.remove("a", broker.itself)
    state = State()
    state.apply(log.rows[-1])
    assert state.topics.numbers == {}


def test_who_only_publishes_by_a_number_that_is_gone_reaches_nobody() -> None:
    hub = Hub()
    ear, device = hub.listen("a"), hub.device(b"device")
    device.say(codec.CREATE, rest=b"a")
    number = hub.broker.state.topics.numbers["a"]
    device.hear()
    device.say(codec.PUBLISH, number, device.etid, 0, rest=b"1")
    assert len(ear.heard) == 1
    assert not hub.broker.ids.remove("a", hub.broker.itself)
    device.say(codec.PUBLISH, number, device.etid, 0, rest=b"2")
    assert len(ear.heard) == 1 and hub.dropped("unknown topic") == 1
    assert not device.far.closed
    device.say(codec.CREATE, rest=b"a")
    [(_, _, again, _)] = device.hear()
    assert again != number
    device.say(codec.PUBLISH, int(again), device.etid, 0, rest=b"3")
    assert len(ear.heard) == 2


def test_one_that_is_in_use_stays() -> None:
    hub = Hub()
    device, me = hub.device(b"device"), hub.broker.itself
    device.say(codec.SUBSCRIBE, rest=b"a")
    number = hub.broker.state.topics.numbers["a"]
    assert hub.broker.ids.remove("a", me) == IN_USE
    device.say(codec.UNSUBSCRIBE, number)
    device.say(codec.OBSERVE, number)
    assert hub.broker.ids.remove("a", me) == IN_USE
    device.say(codec.UNOBSERVE, number)
    assert hub.broker.ids.remove("a", me) == ""
    assert hub.broker.metrics.refused == {}


def test_a_queue_that_is_consumed_by_its_number_keeps_it() -> None:
    hub = Hub()
    device = hub.device(b"device")
    device.say(codec.SUBSCRIBE, rest=b"$queue/q")
    assert hub.broker.ids.remove("$queue/q", hub.broker.itself) == IN_USE


def test_who_asked_for_it_has_room_again() -> None:
    hub = Hub()
    quotas = hub.broker.quotas
    quotas.most[TOPICS] = quotas.most[SUBTOPICS] = 5
    device, me = hub.device(b"device"), hub.broker.itself
    for kind in (codec.CREATE, codec.CREATESUB):
        for name in (b"a", b"b"):
            device.say(kind, rest=name)
    assert [one[1] for one in device.hear()] == [0, 1, 0, 1]
    hub.broker.ids.remove("a", me)
    hub.broker.ids.remove_subtopic("a", me)
    assert not quotas.used[TOPICS] and not quotas.used[SUBTOPICS]
    for kind in (codec.CREATE, codec.CREATESUB):
        device.say(kind, rest=b"b")
    assert [one[1] for one in device.hear()] == [0, 0]


def test_it_is_told_who_did() -> None:
    broker, log = recording()
    broker.topic_id("a", broker.itself)
    broker.ids.remove("a", broker.itself)
    broker.ids.remove("a", broker.itself)
    told = [row for row in log.rows if row.kind == schema.MANAGED]
    assert [row.topic for row in told] == [b"a", b"a"]
    assert [b"trouble" in row.properties for row in told] == [False, True]
