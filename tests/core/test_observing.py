"""Very many names that are observed, and very many filters that change: in turns, and bounded."""

from __future__ import annotations

from hubbub.core.broker import Broker
from hubbub.core.quotas import SUBSCRIBED, size_of
from tests.core.recording import Ear, Recording, StillClock, recording

MANY = 3_000


def settle(broker: Broker) -> int:
    """The ends of as many ticks as it takes; how many."""
    ticks = 0
    while broker.unsettled:
        unsettled, broker.unsettled = broker.unsettled, []
        for session in unsettled:
            session.settle()
        ticks += 1
    return ticks


def observing(broker: Broker, names: int = MANY) -> Ear:
    ear = Ear(broker, "observer")
    for number in range(names):
        broker.observers.observe(ear, f"a/{number}")
    return ear


def test_a_filter_is_held_against_very_many_names_later_and_once_for_all_filters() -> None:
    """A name took a microsecond of whoever subscribed to `#`, and of all others meanwhile."""
    broker, _ = recording()
    ear, ann = observing(broker), Ear(broker, "ann")
    for number in range(100):
        broker.subscribe(ann.wish(f"+/{number}/#"))
    broker.subscribe(ann.wish("b/#"))
    assert ear.counts == [], "nothing of it is done while somebody subscribes"
    settle(broker)
    assert sorted(ear.counts) == sorted((f"a/{number}", 1) for number in range(100))
    broker.disconnect(ann, "")
    settle(broker)
    assert sorted(ear.counts[100:]) == sorted((f"a/{number}", 0) for number in range(100))


def test_what_changes_while_filters_are_held_against_names_is_told_too() -> None:
    broker, _ = recording()
    ear, ann = observing(broker), Ear(broker, "ann")
    broker.subscribe(ann.wish("+/1"))
    unsettled, broker.unsettled = broker.unsettled, []
    broker.subscribe(ann.wish("+/2"))
    for session in unsettled:
        session.settle()
    broker.subscribe(ann.wish("+/3"))
    settle(broker)
    assert sorted(ear.counts) == [("a/1", 1), ("a/2", 1), ("a/3", 1)]
    assert not broker.unsettled


def test_a_few_names_are_told_at_once() -> None:
    broker, _ = recording()
    ear, ann = observing(broker, 10), Ear(broker, "ann")
    broker.subscribe(ann.wish("a/#"))
    assert len(ear.counts) == 10


def test_what_is_observed_counts_as_subscriptions_do_until_it_ends() -> None:
    broker, _ = recording()
    ear, ann = Ear(broker, "observer"), Ear(broker, "ann")
    ear.payer, used = "user 'eve'", broker.quotas.used[SUBSCRIBED]
    address = f"$client/{ann.number}"
    for name in ("a", "b", "b", address):
        broker.observers.observe(ear, name)
    assert used["user 'eve'"] == size_of("a") + size_of("b") + size_of(address)
    broker.quotas.most[SUBSCRIBED] = 5 * 1_400
    assert "user 'eve' has" in broker.observers.lacks(ear, "c")
    assert broker.observers.lacks(ear, "a") == "", "it has that"
    broker.observers.unobserve(ear, "a")
    broker.disconnect(ann, "")
    broker.observers.unobserve(ear, "b")
    assert used.get("user 'eve'", 0) == 0 and broker.observers.names == {}


class Hasty(StillClock):
    """Whoever asks has worked for a tenth of a millisecond since."""

    def now(self) -> float:
        self.seconds += 0.0001
        return self.seconds

    def spent(self) -> float:
        return self.seconds


def test_who_is_gone_is_forgotten_in_turns() -> None:
    clock = Hasty()
    broker = Broker(clock, Recording(clock))
    ear = observing(broker)
    broker.observers.forget(ear, list(broker.observers.names))
    assert MANY - 100 < len(broker.observers.names) < MANY
    assert settle(broker) > 20 and broker.observers.names == {}
