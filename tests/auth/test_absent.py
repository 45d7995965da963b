"""Who is away since before the hub's start: what it may is asked of the files, not remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.auth.acl import Acl, AclRights
from hubbub.auth.gate import Gates
from hubbub.auth.passwords import add_user, remove_user
from hubbub.config.settings import Listener, Settings, Tls
from hubbub.core.gate import Gate
from hubbub.core.message import Message
from hubbub.core.queue import PROTOCOL, Queue
from hubbub.core.rights import PUBLISH, RECEIVE, Absent, Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.schema import CREATE, SUBSCRIBE, Row
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told
from tests.rights import ruled


class Town(Gate):
    """Knows what its users may; nobody else comes in."""

    def __init__(self, **by_user: AclRights) -> None:
        super().__init__(Rights())
        self.by_user = by_user

    def rights_of(self, user: str, client: str) -> Rights | None:
        return self.by_user.get(user)


def after_a_kill(stage: Stage, *gates: Gate, more: tuple[Row, ...] = ()) -> Stage:
    after = Stage()
    after.log.rows = [*stage.log.rows, *more]
    after.log.position = len(after.log.rows)
    after.log.sync()
    after.broker.state = folded(after.log.rows)
    after.broker.gates = list(gates)
    after.broker.recover([after.mqtt])
    return after


def of_ann(stage: Stage) -> Stage:
    """She has a lasting session with a subscription, a backlog and a will."""
    will = codec.Will(b"safe/will", b"gone", 1, True)
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 1000}), will)
    ann.subscribe("safe/#", 1)
    for row in list(stage.log.rows):
        if b'"lasting"' in row.properties:  # the stage's gate asks nobody's name
            named = row.properties.replace(b'"lasting":true', b'"lasting":true,"user":"ann"')
            stage.log.rows[stage.log.rows.index(row)] = row._replace(properties=named)
    return stage


@pytest.mark.parametrize(
    ("gates", "done"),
    [
        ((), True),
        ((Town(ann=ruled("readwrite safe/#")),), True),
        ((Town(ann=ruled("readwrite safe/#")), Town(bob=ruled())), True),
        ((Town(ann=ruled()),), False),
        ((Town(),), False),
        ((Town(ann=ruled("readwrite safe/#")), Town(ann=ruled())), False),
    ],
    ids=["no listener", "allowed", "another listener", "narrowed", "removed", "not by all"],
)
def test_wills_and_what_waits_after_a_kill(gates: tuple[Gate, ...], done: bool) -> None:
    stage = after_a_kill(of_ann(Stage()), *gates)
    stage.mqtt.wake(0)
    stage.pass_time(1)
    stage.mqtt.wake(0)
    assert list(stage.broker.state.retained) == ["safe/will"] * done
    stage.broker.post(Message("safe/a", b"x", 1))
    waits = stage.broker.state.sessions["mqtt", "ann"].backlog
    assert waits.bytes == (len(b"gone") + len(b"x")) * done


@pytest.mark.parametrize("may", [True, False])
def test_bindings_of_a_transient_queue_before_its_maker_is_back(may: bool) -> None:
    name = b"$queue/mine"
    rows = (
        Row(1, 0, CREATE, topic=name, properties=b'{"owner":"token","user":"ann"}'),
        Row(2, 0, SUBSCRIBE, PROTOCOL.encode(), name, b"safe/#", qos=2),
    )
    rights = ruled("read safe/#" if may else "read other/#")
    stage = after_a_kill(Stage(), Town(ann=rights), more=rows)
    queue = stage.broker.state.queues["mine"]
    assert isinstance(queue, Queue)
    for allowed in (may, False):
        before = len(queue.messages)
        stage.broker.post(Message("safe/a", b"x", 1))
        assert len(queue.messages) == before + allowed
        rights.follow([])  # the file was read again
        stage.broker.age += 1


def test_its_rights_are_looked_up_once_until_the_rules_change() -> None:
    """Ten thousand that are away are asked about each new name."""
    asked = []

    class Counting(Town):
        def rights_of(self, user: str, client: str) -> Rights | None:
            asked.append(user)
            return super().rights_of(user, client)

    gate = Counting(ann=ruled("readwrite safe/#"))
    stage = after_a_kill(of_ann(Stage()), gate)
    for number in range(50):
        stage.broker.post(Message(f"safe/{number}", b"x", 1))
    assert asked == ["ann"]
    waits = stage.broker.state.sessions["mqtt", "ann"].backlog
    assert len(waits.entries) == 50
    gate.by_user = {}
    stage.broker.rules_changed()
    stage.broker.post(Message("safe/0", b"x", 1))
    assert asked == ["ann", "ann"] and len(waits.entries) == 50


def test_rights_found_for_who_came_by_way_of_another_node_are_those_that_gates_give() -> None:
    """Two connections of one token are compared: found twice, here and elsewhere, by a token."""
    acl = Acl(None)
    wide, narrow = ("readwrite safe/#",), ("read safe/#",)

    def far(*lines: tuple[str, ...]) -> Absent:
        return Absent(lambda: [acl.rights("ann", "c", one) for one in lines], lambda: 0)

    here = acl.rights("ann", "c", wide)
    for one in (here, far(wide), far(wide, wide)):
        assert one.same_as(far(wide)) and far(wide).same_as(one)
        for other in (far(narrow), far(wide, narrow), far(), acl.rights("ann", "c", narrow)):
            assert not one.same_as(other) and not other.same_as(one)


@pytest.fixture
def gates() -> Iterator[Gates]:
    gates = Gates(Rights())
    yield gates
    gates.close()


def test_what_a_listener_would_give(gates: Gates, tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    add_user(users, "ann", b"secret")
    acl.write_text("user ann\ntopic a\nuser device\ntopic read a\n")

    def gate(**rules: object) -> Gate:
        made = Listener(address="127.0.0.1:1883", acl_file=str(acl), **rules)  # type: ignore[arg-type]
        return gates.gate(Settings(listen=(), listener=(made,)).listeners()[0])

    checked = gate(password_file=str(users))
    rights = checked.rights_of("ann", "x")
    assert rights is not None and rights.may(PUBLISH, "a") and not rights.may(PUBLISH, "b")
    assert checked.rights_of("device", "x") is None and checked.rights_of("", "x") is None
    believing = gate().rights_of("ann", "x")
    assert believing is not None and believing.may(PUBLISH, "a")
    tls = Tls(certificate="x", client_ca="y", identity="common_name")
    certified = gate(tls=tls, password_file=str(users)).rights_of("device", "x")
    assert certified is not None and certified.may(RECEIVE, "a") and not certified.may(PUBLISH, "a")
    add_user(users, "bob", b"secret")
    remove_user(users, "ann")
    for file in gates.files():
        file.read()
    assert checked.rights_of("ann", "x") is None
