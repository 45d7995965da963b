"""A retained message is given to a new subscriber only if its publisher may still write there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.auth.gate import Gates
from hubbub.config.settings import Listener
from hubbub.core.broker import Broker
from hubbub.core.gate import Gate
from hubbub.core.limits import PUBLISHERS
from hubbub.core.log import Log
from hubbub.core.message import PUBLISHER, Message
from hubbub.core.session import Silent
from hubbub.protocols.mqtt import Mqtt, codec
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern
from tests.rights import ruled

EVERYTHING = "user ann\ntopic readwrite #\ntopic readwrite $delayed/#\n"
NOTHING = "user bob\ntopic readwrite #\n"


class Town:
    """A hub whose one listener, or two, have permissions by user; a name is believed."""

    def __init__(self, folder: Path, *listeners: str) -> None:
        self.folder = folder
        self.acls = [folder / f"acl{number}" for number, _ in enumerate(listeners)]
        for acl, text in zip(self.acls, listeners, strict=True):
            acl.write_text(text)
        self.take(Stage())

    def take(self, stage: Stage) -> None:
        self.stage = stage
        self.files = Gates(stage.broker.open)
        self.gates = [
            self.files.gate(Listener(address=f"h:{n}", acl_file=str(acl), allow_anonymous=True))
            for n, acl in enumerate(self.acls)
        ]
        stage.broker.gates = list(self.gates)
        stage.gate = self.gates[0]

    def device(self, user: str, will: codec.Will | None = None) -> Device:
        device = self.stage.silent()
        name = f"{user}'s".encode()
        device.say(codec.connect(name, True, 0, will, user.encode()))
        assert device.hear() == ["CONNACK 0"]
        return device

    def follow(self, *listeners: str) -> None:
        for acl, text in zip(self.acls, listeners, strict=True):
            acl.write_text(text)
        for file in self.files.files():
            file.read()
        self.stage.broker.rules_changed()

    def guest(self, modern: bool = False) -> Device:
        """Somebody who may everything, at another door."""
        self.stage.gate = Gate(self.stage.broker.open)
        device = Modern(self.stage, "guest") if modern else self.stage.device("guest")
        self.stage.gate = self.gates[0]
        device.hear()
        return device

    def given(self, topic_filter: str = "#") -> list[str]:
        """What a new subscriber is given that may read everything."""
        device = self.guest()
        device.subscribe(topic_filter, 0)
        heard = device.hear()
        device.far.hang_up()
        return sorted(heard[1:])


def by_will(town: Town) -> None:
    town.device("ann", codec.Will(b"a/b", b"x", 0, True)).far.hang_up()


def delayed(town: Town) -> None:
    town.device("ann").publish("$delayed/5/a/b", retain=True)
    town.stage.pass_time(6)
    town.stage.broker.delays.wake()


def over_a_restart(town: Town) -> None:
    town.device("ann").publish("a/b", retain=True)
    town.take(restarted(town.stage))


def over_a_snapshot(town: Town) -> None:
    town.device("ann").publish("a/b", retain=True)
    town.take(restarted(town.stage, from_snapshot=True))


def without_a_journal(town: Town) -> None:
    stage = Stage("none")
    stage.broker = Broker(stage.clock, Log(stage.clock), "none")
    stage.mqtt = Mqtt(stage.broker)
    town.take(stage)
    town.device("ann").publish("a/b", retain=True)


def in_qos_2(town: Town) -> None:
    device = town.device("ann")
    device.publish("a/b", b"x", 2, True, 7)
    device.say(codec.acknowledgement(codec.PUBREL, 7))


def mounted(town: Town) -> None:
    town.stage.mount = "a/"
    town.device("ann").publish("b", retain=True)
    town.stage.mount = ""


WAYS: dict[str, Callable[[Town], None]] = {
    "published": lambda town: town.device("ann").publish("a/b", retain=True),
    "QoS 2": in_qos_2, "will": by_will, "delayed": delayed, "after a restart": over_a_restart,
    "from a snapshot": over_a_snapshot, "on a mount point": mounted,
    "without a journal": without_a_journal,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_it_is_asked_each_time_that_one_is_handed_out(tmp_path: Path, way: str) -> None:
    town = Town(tmp_path, EVERYTHING)
    WAYS[way](town)
    assert town.given() == town.given("a/b") == ["a/b=x retain"]
    town.follow(NOTHING)
    assert town.given() == town.given("a/b") == []
    assert list(town.stage.broker.state.retained) == ["a/b"], "it stays"
    town.stage.broker.check_source = False
    assert town.given() == ["a/b=x retain"]
    town.stage.broker.check_source = True
    town.follow(EVERYTHING)
    assert town.given() == ["a/b=x retain"]


def test_no_client_sees_who_it_was(tmp_path: Path) -> None:
    town = Town(tmp_path, EVERYTHING)
    live = town.guest(modern=True)
    live.subscribe("a/b", 0)
    live.hear()
    town.device("ann").publish("a/b", retain=True)
    (row,) = [row for row in town.stage.log.rows if row.retain]
    assert json.loads(row.properties) == {PUBLISHER: ["ann", "h:0"]}
    assert live.hear() == ["a/b=x"]
    live.subscribe("a/b", 0)
    assert live.hear()[1:] == ["a/b=x retain"]


def test_it_is_asked_of_the_listener_that_it_came_in_by(tmp_path: Path) -> None:
    town = Town(tmp_path, EVERYTHING, NOTHING)
    town.device("ann").publish("a/b", retain=True)
    assert town.given() == ["a/b=x retain"], "the other listener's rules are not hers"
    town.follow(NOTHING, EVERYTHING)
    assert town.given() == []
    for gate in town.gates:
        gate.place = "elsewhere"
    assert town.given() == [], "a listener that is gone: all must permit it"


def unsigned(town: Town) -> list[object]:
    return [row.properties for row in town.stage.log.rows if row.retain]


def test_who_is_not_asked(tmp_path: Path) -> None:
    """The hub itself and who may everything; who has its rights from a token; an answer."""
    town = Town(tmp_path, EVERYTHING)
    broker = town.stage.broker
    broker.post(Message("of/hub", b"x", retain=True))
    open_to_all = Silent("test", "c", broker.open)
    broker.post(Message("of/all", b"x", retain=True), open_to_all)
    by_token = Silent("test", "t", ruled("readwrite #"))
    by_token.user, by_token.rights.found_by_name = "ann", False
    broker.post(Message("of/token", b"x", retain=True), by_token)
    responder = Silent("test", "r", ruled("read #"))
    broker.answer(Message("of/answer", b"x", retain=True), responder)
    assert unsigned(town) == [b""] * 4
    town.follow(NOTHING)
    assert len(town.given()) == 4


def test_what_is_no_name_of_a_publisher_is_passed_over(tmp_path: Path) -> None:
    """A program may give its messages any properties."""
    town = Town(tmp_path, NOTHING)
    for number, said in enumerate(("x", ["x"], [1, 2, 3], {"a": 1}, None)):
        message = Message(f"n/{number}", b"x", retain=True, properties={PUBLISHER: said})
        town.stage.broker.post(message)
    assert len(town.given()) == 5


def test_the_permissions_at_hand_are_bounded(tmp_path: Path) -> None:
    town = Town(tmp_path, "pattern readwrite u/%u\n")
    retained = town.stage.broker.retained
    for number in range(PUBLISHERS + 5):
        message = Message("u/x", b"", properties={PUBLISHER: [f"{number}", "h:0"]})
        assert not retained._stands(message, "u/x")
    assert len(retained._publishers) == 5


def test_a_clients_own_pattern(tmp_path: Path) -> None:
    """`%c` is the client id that the message was published under."""
    town = Town(tmp_path, "pattern readwrite %c/#\n")
    town.device("ann").publish("ann's/b", retain=True)
    assert town.given() == ["ann's/b=x retain"]
    town.follow("pattern readwrite x/%c/#\n")
    assert town.given() == []
