"""The fold: what the rows say is what the hub knows, whatever happened, and so says a snapshot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hubbub import schema
from hubbub.core import state as state_module
from hubbub.core.message import Message
from hubbub.core.state import State, adopted, adopting
from hubbub.errors import DirectoryError
from hubbub.protocols.mqtt import codec
from hubbub.schema import Row
from tests.core.recording import folded, recording, seqs, shape, snapshot
from tests.protocols.mqtt.conversation import Device, Stage

CLIENTS = st.sampled_from(["ann", "bob", "cid"])
TOPICS = st.sampled_from(["a/b", "a/c", "b", "$queue/q", "$x", "bound/x"])
WISHES = st.sampled_from(
    ["a/b", "a/+", "a/#", "b", "$queue/q", "$queue/r", "$client/self", "bound/x", "$share/g/a/#"]
)


def test_every_kind_has_its_fold() -> None:
    assert State()._fold.keys() == schema.KINDS.keys()


@pytest.mark.parametrize("kind", sorted(schema.KINDS))
def test_rows_about_what_is_unknown_change_nothing(kind: bytes) -> None:
    if kind in (schema.CONNECT, schema.WILL, schema.CREATE, schema.AUDIENCE, schema.TAKEN,
                schema.AHEAD):  # fmt: skip
        return
    state = State()
    number = 0 if kind == schema.DESTROY else 1  # there it says where all new queues begin
    state.apply(Row(7, 0, kind, b"mqtt", b"nobody", b"$queue/none", ref=3, number=number))
    state.apply(Row(8, 0, kind, b"queue", b"$queue/none", b"a/b", ref=3, number=number))
    assert shape(state) == shape(State())


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(DirectoryError, match="does not know: a newer one wrote it"):
        State().apply(Row(1, 0, b"rumour"))


def test_names_of_any_bytes_come_back() -> None:
    broker, log = recording()
    for name in ("\udcff/a%41", "%FF", "é"):
        broker.topic_id(name, broker.itself)
        broker.subtopic_id(name, broker.itself)
        broker.post(Message(f"$queue/{name}", b"x"))
    assert shape(folded(log.rows)) == shape(broker.state)
    assert shape(folded(snapshot(broker.state, log.rows))) == shape(broker.state)


def test_a_message_that_only_a_session_waits_for_does_not_come_back_into_its_queue() -> None:
    broker, log = recording()
    broker.post(Message("$queue/q", b"x", 1))
    state = broker.state
    state.apply(Row(0, 0, schema.CONNECT, b"mqtt", b"ann", properties=b'{"lasting":true}'))
    seq = state.queues["q"].messages[0]
    state.apply(Row(0, 0, schema.QUEUED, b"mqtt", b"ann", qos=1, ref=seq))
    broker.queues.acknowledge(broker.queues.named("q"), 0, broker.itself)
    again = folded(snapshot(state, log.rows))
    assert again.queues["q"].messages == {}
    assert shape(again) == shape(state)


def test_a_retained_message_that_was_cleared_is_not_retained_again_by_a_snapshot() -> None:
    """A session still waits for it, so the message itself is carried."""
    broker, log = recording()
    state = broker.state
    state.apply(Row(0, 0, schema.CONNECT, b"mqtt", b"ann", properties=b'{"lasting":true}'))
    broker.post(Message("a", b"x", 1, True))
    seq = state.retained_seq("a")
    state.apply(Row(0, 0, schema.QUEUED, b"mqtt", b"ann", qos=1, ref=seq))
    assert seqs(folded(snapshot(state, log.rows))) == {"a": seq}
    broker.post(Message("a", b"", 1, True))
    again = folded(snapshot(state, log.rows))
    assert again.retained == {} and shape(again) == shape(state)
    assert seq in again.needed()


def test_what_a_dead_node_had_is_nobodys_until_all_of_it_has_come() -> None:
    """A snapshot in between leads to the same; and what is let go leaves nothing."""
    dead, dead_log = recording()
    dead.state.apply(Row(0, 0, schema.CONNECT, b"mqtt", b"ann", properties=b'{"lasting":true}'))
    for number in range(3):
        dead.post(Message("$queue/q", b"%d" % number, 1))
    seqs = list(dead.state.queues["q"].messages.values())
    dead.state.apply(Row(0, 0, schema.QUEUED, b"mqtt", b"ann", qos=1, ref=seqs[0], number=1))
    rows = [row for row in dead_log.rows if row.seq in seqs]
    coming = [*rows, *(adopting("dead", row) for row in dead.state.rows())]
    coming = [row._replace(seq=number, kind=schema.PUBLISH if row in rows else row.kind)
              for number, row in enumerate(coming, 1)]  # fmt: skip
    for upto in range(len(coming)):
        state = folded(coming[:upto])
        assert state.sessions == {} == state.queues
        again = folded(snapshot(state, coming[:upto]))
        assert shape(again) == shape(state)
        state.apply(adopted("dead", live=False))
        assert shape(state) == shape(State())
        for row in (*coming[upto:], adopted("dead", live=True)):
            again.apply(row)
        assert list(again.queues["q"].messages) == [0, 1, 2]
        assert len(again.sessions["mqtt", "ann"].backlog.entries) == 1
        assert again.adopting == {}


def test_how_far_what_other_nodes_kept_was_taken_is_in_the_snapshot() -> None:
    state = folded([Row(1, 0, schema.TAKEN, client=b"north", number=500)])
    assert folded(state.rows()).taken == {"north": 500}


class Traffic(RuleBasedStateMachine):
    """Clients that come, go, subscribe, publish and acknowledge in any order, on small bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.stage.broker.backlog_messages = 5
        self.stage.broker.inflight = 3
        self.stage.broker.queues.max_messages = 3
        self.devices: dict[str, Device] = {}
        self.ids = 0

    def device(self, client: str) -> Device:
        if client not in self.devices or self.devices[client].far.closed:
            self.devices[client] = self.stage.device(client, clean=client == "cid")
        return self.devices[client]

    @rule(client=CLIENTS, clean=st.booleans(), will=st.booleans())
    def connect(self, client: str, clean: bool, will: bool) -> None:
        """Also while it is connected: it takes over."""
        last_will = codec.Will(b"a/b", b"will", 1, True) if will else None
        self.devices[client] = self.stage.device(client, clean, will=last_will)

    @rule(client=CLIENTS, in_order=st.booleans())
    def leave(self, client: str, in_order: bool) -> None:
        device = self.device(client)
        if in_order:
            device.say(codec.DISCONNECT_PACKET)
        device.far.hang_up("lost")

    @rule(client=CLIENTS, wish=WISHES, qos=st.integers(0, 2))
    def subscribe(self, client: str, wish: str, qos: int) -> None:
        self.device(client).subscribe(wish, qos)

    @rule(client=CLIENTS, wish=WISHES)
    def unsubscribe(self, client: str, wish: str) -> None:
        self.device(client).say(codec.unsubscribe(9, [wish.encode()]))

    @rule(
        client=CLIENTS, topic=TOPICS, qos=st.integers(0, 2), retain=st.booleans(),
        payload=st.sampled_from([b"", b"x"]),
    )  # fmt: skip
    def publish(self, client: str, topic: str, qos: int, retain: bool, payload: bytes) -> None:
        self.ids = self.ids % 4 + 1  # ids that were not released come again: repetitions
        self.device(client).publish(topic, payload, qos, retain, self.ids)

    @rule(client=CLIENTS, packet_id=st.integers(1, 4))
    def release(self, client: str, packet_id: int) -> None:
        self.device(client).say(codec.acknowledgement(codec.PUBREL, packet_id))

    @rule(client=CLIENTS, newest=st.booleans())
    def answer(self, client: str, newest: bool) -> None:
        """Out of order only if no message is there twice (the fold tells them apart by seq)."""
        device = self.device(client)
        device.hear()
        session = self.stage.mqtt.sessions[client]
        seqs = [entry >> 35 for entry in session.backlog.entries if entry]
        device.answer_one(-1 if newest and len(set(seqs)) == len(seqs) else 0)

    @rule(wish=st.sampled_from(["bound/+", "bound/x"]), bound=st.booleans())
    def bind(self, wish: str, bound: bool) -> None:
        broker = self.stage.broker
        (broker.queues.bind if bound else broker.queues.unbind)(broker.queues.named("q"), wish)

    @rule()
    def take(self) -> None:
        queue = self.stage.broker.queues.named("q")
        for number in list(queue.messages)[:1]:
            self.stage.broker.queues.acknowledge(queue, number, self.stage.broker.itself)

    @rule(name=st.sampled_from(["q", "r"]))
    def destroy(self, name: str) -> None:
        self.stage.broker.queues.destroy(name)

    @rule(name=st.sampled_from(["a/b", "new"]))
    def name(self, name: str) -> None:
        self.stage.broker.topic_id(name, self.stage.broker.itself)

    @rule()
    def begin_a_segment(self) -> None:
        self.stage.broker.log.segment += 1

    @invariant()
    def the_rows_say_what_the_hub_knows(self) -> None:
        self.stage.tick()
        rows = self.stage.log.rows
        live = shape(self.stage.broker.state)
        state = folded(rows)
        assert shape(state) == live
        assert shape(folded(snapshot(state, rows))) == live


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


CHANGED = re.compile(
    r"\bstate\.(sessions|queues|ended_queues|retained|delayed|on_loan|wills|taken|(sub)?topics)"
    r"(\[[^\]]+\] = |\.(add|discard|pop|popitem|clear|update|setdefault)\()"
)


def test_nobody_but_the_fold_changes_what_it_holds() -> None:
    """Else what lives and what a restart would find are two things."""
    source = Path(state_module.__file__).parents[1]
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in sorted(source.rglob("*.py"))
        if path.name != "state.py"
        for line in path.read_text("utf-8").splitlines()
        if CHANGED.search(line)
    ]
    assert found == []


def test_a_binding_to_a_group_in_a_journal_is_ignored_with_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A group gives each message to one member; a queue would be one that nobody can take out."""
    rows = [
        Row(1, 0, schema.CREATE, topic=b"$queue/q"),
        Row(2, 0, schema.SUBSCRIBE, b"queue", b"$queue/q", b"$share/g/a", qos=2),
        Row(3, 0, schema.SUBSCRIBE, b"queue", b"$queue/q", b"a", qos=2),
    ]
    state = folded(rows)
    assert state.queues["q"].bindings == {"a": 2}
    assert "q was bound to $share/g/a" in caplog.text
