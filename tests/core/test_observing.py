"""Very many names that are observed, and very many filters that change: in turns, and bounded."""

from __future__ import annotations

import pytest

from hubbub.core.broker import Broker
from hubbub.core.quotas import SUBSCRIBED, size_of
from tests.core.recording import Ear, Hasty, Recording, StillClock, recording, settle

MANY = 3_000


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


def test_who_is_gone_is_forgotten_in_turns() -> None:
    clock = Hasty()
    broker = Broker(clock, Recording(clock))
    ear = observing(broker)
    broker.observers.forget(ear, list(broker.observers.names))
    assert MANY - 100 < len(broker.observers.names) < MANY
    assert settle(broker) > 20 and broker.observers.names == {}


def watching(broker: Broker, name: str, many: int) -> list[Ear]:
    ears = [Ear(broker, f"observer {number}") for number in range(many)]
    for ear in ears:
        broker.observers.observe(ear, name)
    return ears


def test_very_many_who_observe_a_client_hear_in_turns_that_it_is_gone() -> None:
    """Ten thousand took 40 ms of everybody."""
    broker, _ = recording()
    ann = Ear(broker, "ann")
    address = f"$client/{ann.number}"
    ears = watching(broker, address, MANY)
    broker.observers.unobserve(ears[0], address)
    broker.disconnect(ann, "")
    assert not any(ear.counts for ear in ears), "nothing of it is done at once"
    assert address not in broker.observers.names, "and nobody else observes it by mistake"
    broker.disconnect(ears[1], "")
    settle(broker)
    assert [ear.counts for ear in ears[2:]] == [[(address, 0)]] * (MANY - 2), "once each"
    assert ears[0].counts == []
    assert broker.quotas.total[SUBSCRIBED] == 0 and not broker.unsettled


def test_very_many_clients_that_go_at_once_are_told_of_in_turns() -> None:
    broker, _ = recording()
    clients, ears = [Ear(broker, f"c{number}") for number in range(100)], []
    for number in range(50):
        ears.append(ear := Ear(broker, f"observer {number}"))
        for client in clients:
            broker.observers.observe(ear, f"$client/{client.number}")
    numbers = [client.number for client in clients]
    for client in clients:
        broker.disconnect(client, "")
    assert len(ears[0].counts) == 20, "so many at once"
    settle(broker)
    for ear in ears:
        assert sorted(ear.counts) == sorted((f"$client/{number}", 0) for number in numbers)
    assert broker.observers.names == {} and broker.quotas.total[SUBSCRIBED] == 0
    address = f"$client/{ears[0].number}"
    broker.observers.observe(ears[1], address)
    broker.disconnect(ears[0], "")
    assert ears[1].counts[-1] == (address, 0), "and then one is told of at once again"


@pytest.mark.pure
def test_a_name_that_very_many_subscribe_to_is_not_counted_as_often_as_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _ = recording()
    ear = Ear(broker, "observer")
    broker.observers.observe(ear, "a")
    clients = [Ear(broker, f"c{number}") for number in range(MANY)]
    counted: list[str] = []
    count = broker.observers.count

    def counting(name: str) -> int:
        counted.append(name)
        return count(name)

    monkeypatch.setattr(broker.observers, "count", counting)
    for client in clients:
        broker.subscribe(client.wish("a"))
        settle(broker)
    assert ear.counts == [("a", number) for number in range(1, 1_001)]
    broker.observers.wake()
    settle(broker)
    assert ear.counts[-1] == ("a", MANY)
    assert len(counted) < 1_100


def counted_again(broker: Broker) -> None:
    """What very many subscribe to, too."""
    settle(broker)
    assert isinstance(broker.clock, StillClock)
    broker.clock.seconds += 10
    broker.observers.wake()
    settle(broker)


@pytest.mark.parametrize("left", [1_101, 900])
def test_who_asks_how_many_there_are_does_not_keep_others_from_hearing_it(left: int) -> None:
    """What was to be counted for them passed for counted with that."""
    broker, _ = recording()
    ear, other = Ear(broker, "observer"), Ear(broker, "other")
    broker.observers.observe(ear, "a")
    clients = [Ear(broker, f"c{number}") for number in range(1_100)]
    for client in clients:
        broker.subscribe(client.wish("a"))
    counted_again(broker)
    assert ear.counts[-1] == ("a", 1_100)
    for client in clients[left:]:
        broker.disconnect(client, "")
    if left > len(clients):
        broker.subscribe(other.wish("a"))
    settle(broker)
    assert broker.observers.observe(other, "a") == left
    broker.observers.wake()
    settle(broker)
    assert ear.counts[-1] == ("a", left)
    broker.disconnect(clients[0], "")
    counted_again(broker)
    assert ear.counts[-1] == other.counts[-1] == ("a", left - 1)


def test_what_some_have_heard_is_not_said_to_others_behind_what_came_next() -> None:
    """Enough observers went meanwhile for the name to be told of at once again."""
    clock = Hasty()
    broker = Broker(clock, Recording(clock))
    clients = [Ear(broker, f"c{number}") for number in range(502)]
    for client in clients[:500]:
        broker.subscribe(client.wish("a"))
    ears = watching(broker, "a", 600)
    broker.subscribe(clients[500].wish("a"))
    broker.observers.wake()
    told = [ear for ear in ears if ear.counts]
    assert 0 < len(told) < 300, "some of them"
    for ear in ears[300:]:
        broker.observers.unobserve(ear, "a")
    assert broker.observers.observe(clients[0], "a") == 501
    broker.subscribe(clients[501].wish("a"))
    for _ in range(2):
        counted_again(broker)
    assert {ear.counts[-1] for ear in [*ears[:300], clients[0]]} == {("a", 502)}


def test_a_client_is_there_once_whatever_other_nodes_say_of_its_address() -> None:
    """They may have been told to watch it, and then say that they reach it, too."""
    broker, _ = recording()
    ear, ann = Ear(broker, "observer"), Ear(broker, "ann")
    address = f"$client/{ann.number}"
    broker.observers.elsewhere = lambda name: 1
    assert broker.observers.observe(ear, address) == 1
    broker.observers.tell(address, literal=True)
    settle(broker)
    assert ear.counts == []
    broker.disconnect(ann, "")
    assert ear.counts == [(address, 0)]
