"""Who is away since before the hub's start: what it may is asked of the files, not remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.auth.acl import Acl, AclRights
from hubbub.auth.gate import Gates
from hubbub.auth.passwords import add_user, remove_user
from hubbub.config.settings import Listener, Settings, Tls
from hubbub.core.gate import Credentials, Gate
from hubbub.core.message import PUBLISHER, Message
from hubbub.core.queue import PROTOCOL, Queue
from hubbub.core.quotas import RETAINED
from hubbub.core.rights import PUBLISH, RECEIVE, Absent, Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.schema import CREATE, SUBSCRIBE, WILL, Row
from tests.core.recording import folded, snapshot
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


class Door(Gate):
    """Lets everybody in as that user, "" as nobody in particular."""

    def __init__(self, rights: Rights, user: str) -> None:
        super().__init__(rights)
        self.user = user

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        credentials.user, credentials.proved = self.user, bool(self.user)
        done(self.rights, "")


def who_is_clean(user: str, *lines: str) -> Stage:
    """A client without a lasting session has left a will, and the hub was killed."""
    stage = Stage()
    stage.gate = Door(ruled(*lines) if lines else stage.broker.open, user)
    stage.device("ann", True, will=codec.Will(b"safe/will", b"gone", 1, True))
    return stage


@pytest.mark.parametrize("folded_once", [False, True])
@pytest.mark.parametrize(
    ("user", "gates", "done"),
    [
        ("ann", (), True),
        ("ann", (Town(ann=ruled("readwrite safe/#")),), True),
        ("ann", (Town(ann=ruled("read safe/#")),), False),
        ("ann", (Town(bob=ruled("readwrite safe/#")),), False),
        ("", (Town(**{"": ruled("readwrite safe/#")}),), True),
        ("", (Town(ann=ruled("readwrite safe/#")),), False),
        ("\udcff", (Town(**{"\udcff": ruled("readwrite safe/#")}),), True),
    ],
    ids=["no listener", "allowed", "narrowed", "removed", "anonymous", "no more", "no UTF-8"],
)
def test_a_will_of_a_client_that_was_clean_is_of_who_left_it(
    user: str, gates: tuple[Gate, ...], done: bool, folded_once: bool
) -> None:
    stage = who_is_clean(user, "readwrite safe/#")
    if folded_once:
        stage.log.rows = snapshot(folded(stage.log.rows), stage.log.rows)
    broker = after_a_kill(stage, *gates).broker
    assert list(broker.state.retained) == ["safe/will"] * done
    assert not broker.state.wills and not folded(broker.log.rows).wills  # type: ignore[attr-defined]
    if not done:
        return
    payer = f"user {user!r}" if user else "address 127.0.0.1"
    assert list(broker.quotas.used[RETAINED]) == [payer]
    message = broker.log.read(broker.state.retained_seq("safe/will"))
    assert message is not None and set(message.properties or {}) <= {PUBLISHER}
    assert not user or (message.properties or {})[PUBLISHER][0] == user  # type: ignore[index]


@pytest.mark.parametrize("old", [False, True])
def test_a_will_of_whom_nobody_had_to_know_is_said_as_ever(old: bool) -> None:
    """And one of a version that did not write down who had left it."""
    stage = who_is_clean("ann" if old else "", *["readwrite safe/#"] * old)
    rows = [row for row in stage.log.rows if row.kind == WILL]
    assert [b'"by"' in row.properties for row in rows] == [old]
    for row in rows:
        stage.log.rows[stage.log.rows.index(row)] = row._replace(properties=b"")
    after = after_a_kill(stage, Town(bob=ruled()))
    assert list(after.broker.state.retained) == ["safe/will"]


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
