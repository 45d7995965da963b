"""Retained messages: the list of names against the naive `matches`, and feeds in slices."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.kept import Kept
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.retained import FETCHED, MESSAGE, PART, SLICE, NameList
from hubbub.core.topics import is_filter, matches
from tests.core.recording import Ear, Hasty, Recording, folded, recording, settle

LEVEL = st.sampled_from(["", "a", "b", "a!", "a0", "$x", "$"])
NAME = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = (
    st.lists(st.one_of(LEVEL, st.sampled_from(["+", "#"])), min_size=1, max_size=4)
    .map("/".join)
    .filter(is_filter)
)


def found(names: NameList, wanted: str) -> list[str]:
    return [name for name in names.match(wanted) if name]


@given(st.lists(NAME), st.lists(NAME), st.lists(NAME), FILTER)
def test_the_list_finds_what_matches(
    first: list[str], more: list[str], gone: list[str], wanted: str
) -> None:
    names = NameList(dict.fromkeys(first))
    for name in more:
        names.add(name)
    for name in gone:
        names.discard(name)
    left = {*first, *more} - set(gone)
    assert len(names) == len(left)
    assert found(names, wanted) == sorted(name for name in left if matches(wanted, name))


MANY = ["/".join(levels) for n in (1, 2, 3) for levels in product("abcdefghijklmnopqr", repeat=n)]


@pytest.mark.parametrize("wanted", ["#", "a/#", "+/b", "+/+/c", "a/+/#", "+/c/#", "r/r/r", "x/+"])
def test_a_list_of_many_parts(wanted: str) -> None:
    expected = sorted(name for name in MANY if matches(wanted, name))
    names = NameList()
    for name in MANY:
        names.add(name)
    assert len(MANY) > 10 * PART and found(names, wanted) == expected
    assert found(NameList(MANY), wanted) == expected
    for name in MANY[::2]:
        names.discard(name)
    left = set(MANY[1::2])
    assert found(names, wanted) == [name for name in expected if name in left]
    for name in left:
        names.discard(name)
    assert not names and found(names, wanted) == []


def test_a_list_that_is_filled_in_pieces() -> None:
    names = NameList()
    pieces = names.fill(random.sample(MANY, len(MANY)))
    for _ in pieces:
        assert not names, "as it was until the last piece"
    assert found(names, "#") == sorted(MANY)
    deque(names.fill(["b", "a"]), maxlen=0)
    assert found(names, "#") == ["a", "b"]
    deque(names.fill([]), maxlen=0)
    assert not names and found(names, "#") == []


def test_a_search_passes_over_what_cannot_match() -> None:
    names = NameList(MANY)
    assert len(list(names.match("r/+"))) < 50
    assert len(list(names.match("+/b"))) < 100
    assert list(names.match("x/+")) == []


def test_names_that_come_and_go_during_a_search() -> None:
    names = NameList(MANY)
    search = names.match("#")
    seen = [next(search) for _ in range(PART + 1)]
    for name in MANY[::3]:
        names.discard(name)
        names.add(f"new/{name}")
    seen += search
    assert seen == sorted(set(seen)) and set(seen) >= set(MANY) - set(MANY[::3])


def broker_with(count: int) -> Broker:
    clock = Clock()
    broker = Broker(clock, Log(clock), "none")
    for number in range(count):
        broker.post(Message(f"a/{number}", b"%d" % number, retain=True))
    return broker


def subscribed(broker: Broker, ear: Ear, topic_filter: str) -> None:
    wish = ear.wish(topic_filter)
    broker.subscribe(wish)
    broker.offer_retained(wish)


def restarted(count: int) -> Broker:
    """With so many retained messages that the journal remembers."""
    broker = broker_with(0)
    for number in range(count):
        broker.state.retain(f"a/{number}", Kept(number + 1, 1, 0, ""))
    broker.retained.recover()
    return broker


def a_turn(broker: Broker) -> None:
    unsettled, broker.unsettled = broker.unsettled, []
    for session in unsettled:
        session.settle()


def test_after_a_start_names_are_put_in_order_by_and_by() -> None:
    broker = restarted(5 * PART)
    filling = broker.retained._fill()
    next(filling)
    broker.state.retain("b", Kept(1, 1, 0, ""))  # what comes and goes meanwhile is not missed
    broker.retained.note("b")
    broker.state.retain("a/0")
    broker.retained.note("a/0")
    assert not broker.retained._names
    deque(filling, maxlen=0)
    assert list(broker.retained.below("")) == sorted(broker.state.retained)


def test_who_asks_before_they_are_in_order_waits_and_gets_all() -> None:
    broker = broker_with(5)
    broker.retained.recover()
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    subscribed(broker, ann, "a/#")
    subscribed(broker, bob, "a/1")
    broker.retained.feed_on()
    assert (len(ann.hear()), len(bob.hear())) == (0, 1), "no wildcard, no wait"
    while broker.unsettled:
        a_turn(broker)
    broker.retained.feed_on()
    assert len(ann.hear()) == 5 and not broker.retained.feeding


def slices(broker: Broker, *ears: Ear) -> Iterator[list[int]]:
    """How many came to each, tick by tick."""
    while broker.retained.feeding:
        broker.retained.feed_on()
        yield [len(ear.hear()) for ear in ears]


def test_many_come_in_slices() -> None:
    count = 2 * SLICE + 1
    broker = broker_with(count)
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    subscribed(broker, ann, "a/#")
    subscribed(broker, bob, "#")
    assert ann.hear() == bob.hear() == [], "this turn has had its slice: of names"
    turns = list(slices(broker, ann, bob))
    assert max(map(sum, turns)) == SLICE // MESSAGE and [SLICE // MESSAGE // 2] * 2 in turns
    assert list(map(sum, zip(*turns, strict=True))) == [count, count]


def test_they_come_in_the_order_in_which_they_lie_on_the_disk() -> None:
    broker = broker_with(0)
    for number in (3, 1, 2):
        broker.post(Message(f"a/{number}", b"x", retain=True))
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "a/#")
    assert [topic for topic, _, _ in ann.hear()] == ["a/3", "a/1", "a/2"]


@pytest.mark.pure
def test_what_is_read_from_the_disk_takes_more_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of 300 KB for each of them: a thousand in a turn held everybody up for a second."""
    broker = broker_with(100)
    ann, reads, read = Ear(broker, "ann"), [0], broker.log.read

    def counted(seq: int) -> Message | None:
        reads[0] += 1
        return read(seq)

    monkeypatch.setattr(broker.log, "read", counted)
    monkeypatch.setattr(broker.log, "fetched", lambda: reads[0] * SLICE // 10 * FETCHED)
    subscribed(broker, ann, "a/#")
    turns = [[len(ann.hear())], *slices(broker, ann)]
    assert max(turns) == [10] and sum(map(sum, turns)) == 100


def test_who_had_none_of_a_slice_is_first_the_next_time() -> None:
    broker = broker_with(SLICE)
    ears = [Ear(broker, f"ear-{number}") for number in range(2 * SLICE // MESSAGE)]
    for ear in ears:
        subscribed(broker, ear, "a/+")
    broker.retained.feed_on()
    served = ears[: SLICE // MESSAGE]
    assert list(broker.retained.feeding)[: len(served)] == ears[SLICE // MESSAGE :]


@pytest.mark.pure
def test_the_filters_of_one_packet_have_one_slice_together() -> None:
    """Four thousand of them, each of which looks at all that is retained, froze everybody."""
    broker = broker_with(SLICE // 8)
    ann, looks = Ear(broker, "ann"), [0]
    match = broker.retained._names.match

    def counted(topic_filter: str) -> Iterator[str]:
        for name in match(topic_filter):
            looks[-1] += 1
            yield name

    broker.retained._names.match = counted  # type: ignore[method-assign]
    for number in range(100):
        subscribed(broker, ann, f"+/+{number * '/+'}")
    while broker.retained.feeding:
        looks.append(0)
        broker.retained.feed_on()
    assert max(looks) <= SLICE and len(ann.hear()) == SLICE // 8


def test_what_matches_nothing_takes_no_longer_in_a_turn() -> None:
    broker = broker_with(5 * SLICE)
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "+/+/b")
    turns = 0
    while broker.retained.feeding:
        broker.retained.feed_on()
        turns += 1
    assert ann.hear() == [] and 5 <= turns <= 10


def test_after_a_restart_the_first_slice_comes_at_once() -> None:
    broker = broker_with(SLICE // 2)
    again = Broker(broker.clock, broker.log, "none")
    again.state = broker.state
    again.retained.recover()
    a_turn(again)
    ann = Ear(again, "ann")
    subscribed(again, ann, "a/+")
    assert len(ann.hear()) == SLICE // MESSAGE // 2


def test_a_feed_that_waits_for_the_tick_is_left_to_it() -> None:
    broker = broker_with(5 * SLICE)
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "a/+")
    ann.hear()
    broker.retained.feed(ann)
    subscribed(broker, ann, "a/#")
    assert ann.hear() == []


def test_a_feed_sees_no_newer_message_and_ends_with_its_subscription() -> None:
    broker = broker_with(SLICE // 2)
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "a/#")
    seen = {topic for topic, _, _ in ann.hear()}
    later = next(f"a/{n}" for n in range(SLICE // 2) if f"a/{n}" not in seen)
    assert seen
    broker.post(Message(later, b"new", retain=True))
    broker.post(Message("a/another", b"new", retain=True))
    assert len(ann.hear()) == 2
    while broker.retained.feeding:
        broker.retained.feed_on()
    assert later not in {topic for topic, _, _ in ann.hear()}
    subscribed(broker, ann, "a/#")
    ann.hear()
    broker.unsubscribe(ann, "a/#")
    broker.retained.feed_on()
    assert not broker.retained.feeding and ann.hear() == []


def test_expired_ones_go_when_they_are_looked_at() -> None:
    broker, log = recording()
    broker.post(Message("a", b"x", retain=True, expires=broker.clock.stamp() + 5))
    broker.clock.seconds += 1  # type: ignore[attr-defined]
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "#")
    assert ann.hear() == [] and broker.state.retained == {}
    assert folded(log.rows).retained == {}
    assert broker.metrics.dropped == {"expired": 1}


def test_very_many_that_expire_together_go_in_turns() -> None:
    """A thousand a look were 20 ms of everybody, and a quarter of a second passed behind each."""
    clock = Hasty()
    broker = Broker(clock, Recording(clock), "all")
    for number in range(2_000):
        broker.post(Message(f"a/{number}", b"x", retain=True, expires=clock.stamp() + 10**7))
    clock.seconds += 11
    broker.retained.wake()
    left = len(broker.state.retained)
    assert 0 < 2_000 - left < 200
    broker.retained.wake()
    assert len(broker.state.retained) == left  # that goes on already
    settle(broker)
    assert broker.state.retained == {} and broker.metrics.dropped == {"expired": 2_000}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("$sparkplug/certificates/g/n", True), ("$else", True),
        ("$queue/q", False), ("$client/5", False), ("$delayed/5/a", False), ("$SYS/mine", False),
        ("$hub/taken/x", False), ("$share/g/a", False),
    ],
)  # fmt: skip
def test_names_under_a_dollar_that_are_not_ours_are_kept(name: str, kept: bool) -> None:
    broker, _ = recording()
    broker.post(Message(name, b"x", retain=True))
    assert (name in broker.state.retained) is kept
    ear = Ear(broker, "ann")
    wish = ear.wish("$sparkplug/#")
    broker.subscribe(wish)
    broker.offer_retained(wish)
    assert len(ear.hear()) == (name.startswith("$sparkplug"))
