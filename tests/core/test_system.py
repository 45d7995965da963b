"""`$SYS`: what the hub says about itself, to whom, and that no row is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hubbub.core.broker import Broker
from hubbub.core.gate import Gate, Opening
from hubbub.core.message import Message
from hubbub.core.quotas import ROOM
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.core.system import TOLD, System
from tests.core.recording import Ear, StillClock, recording, settle

DOCUMENT = Path(__file__).parents[2] / "docs/reference/sys-topics.md"


class Host:
    """A broker, what it says, and a clock that the test moves."""

    def __init__(self, interval: float = 10.0) -> None:
        self.broker, self.log = recording()
        self.system = System(self.broker, "9.9")
        self.system.apply(interval)

    def after(self, seconds: float) -> None:
        clock = self.broker.clock
        assert isinstance(clock, StillClock)
        clock.seconds += seconds
        self.system.wake(clock.now())


def told(ear: Ear) -> dict[str, str]:
    return {topic.removeprefix("$SYS/broker/"): text.decode() for topic, text, _ in ear.hear()}


def listener(broker: Broker, topic_filter: str = "$SYS/#", name: str = "ann") -> Ear:
    ear = Ear(broker, name)
    wish = ear.wish(topic_filter, 1)
    broker.subscribe(wish)
    broker.offer_retained(wish)
    return ear


def test_a_new_subscriber_gets_the_present_values() -> None:
    host = Host()
    host.after(3)
    said = told(listener(host.broker))
    assert (said["version"], said["uptime"]) == ("hubbub version 9.9", "3 seconds")
    assert (said["clients/connected"], said["subscriptions/count"]) == ("1", "1")
    assert said["load/messages/received/1min"] == "0.00"


def test_values_come_every_interval_and_no_row_is_written() -> None:
    host = Host()
    ear = listener(host.broker, "$SYS/broker/publish/messages/received")
    ear.hear()
    host.after(9)
    assert ear.hear() == []
    host.broker.post(Message("a", b"x"))
    rows = len(host.log.rows)
    host.after(1)
    assert told(ear) == {"publish/messages/received": "1"}
    host.after(10)
    assert told(ear) == {"publish/messages/received": "1"}
    assert len(host.log.rows) == rows


def test_a_load_is_a_rate_per_minute() -> None:
    host = Host()
    ear = listener(host.broker, "$SYS/broker/load/messages/received/+")
    ear.hear()
    for _ in range(6):
        for _ in range(10):
            host.broker.post(Message("a", b"x"))
        host.after(10)
        said = told(ear)
    loads = {name[-5:].strip("/"): float(value) for name, value in said.items()}
    assert 60 * 0.63 < loads["1min"] < 60 * 0.64, "1 - 1/e after as long as it averages"
    assert loads["1min"] > loads["5min"] > loads["15min"] > 0


def test_what_was_dropped_or_refused_is_told_by_reason() -> None:
    host = Host()
    ear = listener(host.broker, "$SYS/broker/+/+")
    ear.hear()
    host.broker.metrics.drop("slow consumer", 3)
    host.broker.quotas.refuse(ROOM, ear, "it is full")
    host.after(10)
    said = told(ear)
    assert (said["dropped/slow consumer"], said["refused/room in a queue"]) == ("3", "1")


def test_clients_cannot_publish_there() -> None:
    host = Host()
    ear = listener(host.broker, "$SYS/broker/version")
    ear.hear()
    host.broker.post(Message("$SYS/broker/version", b"mine", retain=True))
    assert ear.hear() == []
    assert told(listener(host.broker, name="bob"))["version"] == "hubbub version 9.9"
    assert host.broker.metrics.dropped == {"not allowed": 1}


def test_a_bridge_from_elsewhere_says_its_state_there() -> None:
    """Kept like any retained message; that of a bridge of our own cannot be set."""
    host = Host()
    theirs, ours = (f"$SYS/broker/connection/{name}/state" for name in ("edge", "own"))
    host.broker.readings[ours] = lambda: "1"
    ear = listener(host.broker, "$SYS/broker/connection/+/state")
    ear.hear()
    for name in (theirs, ours, theirs + "/more", "$SYS/broker/connection/edge"):
        host.broker.post(Message(name, b"0", retain=True))
    assert told(ear) == {"connection/edge/state": "0"}
    assert told(listener(host.broker, "$SYS/broker/connection/+/state", "bob")) == {
        "connection/edge/state": "0", "connection/own/state": "1",
    }  # fmt: skip


def test_what_mosquitto_s_dashboards_ask_for() -> None:
    host = Host()
    away = Ear(host.broker, "away", lasting=True)
    host.broker.subscribe(away.wish("a", 1))
    host.broker.disconnect(away, "")
    host.broker.subscribe(Ear(host.broker, "one").wish("$share/g/b", 0))
    host.broker.post(Message("a", b"1234567", 1, retain=True))
    said = told(listener(host.broker))
    assert (said["clients/active"], said["clients/inactive"]) == ("2", "1")
    assert (said["messages/stored"], said["store/messages/count"]) == ("2", "2")
    assert (said["store/messages/bytes"], said["shared_subscriptions/count"]) == ("7", "1")
    assert said["clients/expired"] == "0"


def test_a_wildcard_at_the_front_does_not_match() -> None:
    host = Host()
    ear = listener(host.broker, "#")
    host.after(10)
    assert ear.hear() == []


def test_an_interval_of_0_says_nothing() -> None:
    host = Host()
    ear = listener(host.broker)
    ear.hear()
    host.system.apply(0)
    host.after(100)
    assert ear.hear() == []
    assert listener(host.broker, name="bob").hear() == []


def test_a_client_that_is_away_counts_as_disconnected() -> None:
    host = Host()
    away = Ear(host.broker, "away", lasting=True)
    host.broker.subscribe(away.wish("a", 1))
    host.broker.disconnect(away, "")
    said = told(listener(host.broker))
    counts = ("clients/connected", "clients/disconnected", "clients/total", "clients/maximum")
    assert [said[name] for name in counts] == ["1", "1", "2", "2"]
    assert said["subscriptions/count"] == "2"


def test_the_document_names_them_all() -> None:
    text = DOCUMENT.read_text("utf-8")
    documented = {name for name in re.findall(r"`\$SYS/broker/([^`<]+)`", text)}
    averaged = set(re.findall(r"`(load/[^`]+)`", text))
    documented |= {f"{name}/{minutes}min" for name in averaged for minutes in (1, 5, 15)}
    assert documented == set(told(listener(Host().broker)))


def turn(broker: Broker) -> None:
    unsettled, broker.unsettled = broker.unsettled, []
    for session in unsettled:
        session.settle()


@pytest.mark.pure
def test_very_many_hear_it_in_turns() -> None:
    """All of it to 5,000 was one turn of 0.2 s, every ten seconds; and to find out who they are
    was another one, where somebody had subscribed to whatever: for 2,000 of them 0.15 s.
    """
    host = Host()
    ears = [listener(host.broker, name=f"ann{number}") for number in range(2 * TOLD + 1)]
    for ear in ears:
        ear.hear()
    built: list[str] = []
    find = host.broker.routing.find

    def counted(sender: Session, name: str) -> Route:
        built.append(name)
        return find(sender, name)

    host.broker.routing.find = counted  # type: ignore[method-assign]
    host.after(10)
    assert len(built) == 1
    host.after(10)
    assert len(built) == 1, "the last time is not over"
    while not (heard := [len(ear.hear()) for ear in ears])[0]:
        turn(host.broker)
    assert min(heard[:TOLD]) > 40 and not any(heard[TOLD:])
    host.broker.subscribe(ears[0].wish("a"))
    ears[-1].opening = Opening(Gate(host.broker.open), "127.0.0.1")
    host.broker.unsubscribe(ears[-1], "$SYS/#")
    settle(host.broker)
    assert all(len(ear.hear()) > 40 for ear in ears[TOLD:-1])
    assert not ears[-1].hear(), "it has let go of it meanwhile"
    assert len(built) == len(host.broker.readings), "each is found once"
