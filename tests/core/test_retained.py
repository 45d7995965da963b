"""Retained messages: the tree of names against the naive `matches`, and feeds in slices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.retained import SLICE, NameTree
from hubbub.core.topics import is_filter, matches
from tests.core.recording import Ear, folded, recording

LEVEL = st.sampled_from(["", "a", "b", "$x", "$"])
NAME = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = (
    st.lists(st.one_of(LEVEL, st.sampled_from(["+", "#"])), min_size=1, max_size=4)
    .map("/".join)
    .filter(is_filter)
)


@given(st.lists(NAME, unique=True), st.lists(NAME), FILTER)
def test_the_tree_finds_what_matches(names: list[str], gone: list[str], wanted: str) -> None:
    tree = NameTree()
    for name in names:
        tree.add(name)
        tree.add(name)
    for name in gone:
        tree.discard(name)
    left = [name for name in names if name not in gone]
    assert len(tree) == len(left)
    found = list(tree.match(wanted))
    assert sorted(found) == sorted(name for name in left if matches(wanted, name))
    for name in left:
        tree.discard(name)
    assert not tree._root.below


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


def test_many_come_in_slices() -> None:
    broker = broker_with(2 * SLICE + 1)
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    subscribed(broker, ann, "a/#")
    assert len(ann.hear()) == SLICE
    subscribed(broker, bob, "#")
    assert len(bob.hear()) == SLICE
    broker.retained.feed_on()
    assert (len(ann.hear()), len(bob.hear())) == (SLICE // 2, SLICE // 2)
    while broker.retained.feeding:
        broker.retained.feed_on()
    assert (len(ann.hear()), len(bob.hear())) == (SLICE // 2 + 1, SLICE // 2 + 1)


def test_a_feed_sees_no_newer_message_and_ends_with_its_subscription() -> None:
    broker = broker_with(2 * SLICE)
    ann = Ear(broker, "ann")
    subscribed(broker, ann, "a/#")
    seen = {topic for topic, _, _ in ann.hear()}
    later = next(f"a/{n}" for n in range(2 * SLICE) if f"a/{n}" not in seen)
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
