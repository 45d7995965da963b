"""Rows of the journal, and the deliveries that must come of them, in whatever batches they come."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.core.session import Backlog
from hubbub.core.state import State
from hubbub.journal.table import SCHEMA
from hubbub.pipeline.carry import Pieces, Whole, carried
from hubbub.pipeline.tables.deliveries import _OPENED, TABLE
from hubbub.pipeline.tables.table import Folding
from hubbub.schema import ACK, AUDIENCE, CONNECT, DROP, PUBLISH, QUEUED, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Event = dict[str, Any]


def event(seq: int, kind: str, **columns: Any) -> Event:
    empty = {"protocol": "", "client": "", "topic": "", "qos": 0, "payload": None, "ref": 0,
             "number": 0, "properties": ""}  # fmt: skip
    time = NOON + timedelta(milliseconds=seq)
    return {"seq": seq, "time": time, "kind": kind, **empty, **columns}


def audience(seq: int, *names: tuple[str, int]) -> Event:
    said = json.dumps([["mqtt", client, qos] for client, qos in names]).encode()
    return event(seq, "audience", payload=said)


def publish(seq: int, ref: int, qos: int = 1) -> Event:
    return event(seq, "publish", topic="t", qos=qos, ref=ref)


def ack(seq: int, client: str, ref: int, number: int = 1, properties: str = "") -> Event:
    return event(
        seq, "ack", protocol="mqtt", client=client, ref=ref, number=number, properties=properties
    )


def folded(*events: Event) -> Folding:
    return TABLE.fold(_arrow(list(events)), Whole(_OPENED.empty_table()), 0)


def fold(*events: Event) -> list[tuple[Any, ...]]:
    folding = folded(*events)
    rows = [*folding.closed.to_pylist(), *folding.opened.to_pylist()]
    return [(row["seq"], row["receiver"], row["status"], row["latency_ms"]) for row in rows]


def _arrow(events: list[Event]) -> pa.Table:
    return pa.Table.from_pylist(events, SCHEMA)


TO_TWO = (audience(1, ("a", 1), ("b", 2)), publish(2, 1), publish(3, 1))


def test_each_session_of_the_audience_has_its_own() -> None:
    assert fold(*TO_TWO, ack(9, "a", 2)) == [
        (2, "a", "acknowledged", 7.0),
        (3, "a", "open", None),
        (2, "b", "open", None),
        (3, "b", "open", None),
    ]


def test_an_ack_of_two_means_the_next_one_too() -> None:
    found = fold(*TO_TWO, ack(9, "b", 2, number=2))
    assert [row for row in found if row[1] == "b"] == [
        (2, "b", "acknowledged", 7.0),
        (3, "b", "acknowledged", 6.0),
    ]


def test_a_name_that_is_another_text_in_a_column() -> None:
    found = fold(audience(1, ("a%41\udcff", 1)), publish(2, 1), ack(3, "a%2541%FF", 2))
    assert found == [(2, "a%2541%FF", "acknowledged", 1.0)]


def test_qos_0_waits_for_nobody() -> None:
    assert fold(audience(1, ("a", 1)), publish(2, 1, qos=0)) == []


def test_the_newest_are_dropped_and_their_places_used_again() -> None:
    drop = event(4, "drop", protocol="mqtt", client="a", ref=3, number=1)
    assert fold(audience(1, ("a", 1)), publish(2, 1), publish(3, 1), drop, publish(5, 1),
                ack(6, "a", 2, number=2)) == [
        (3, "a", "dropped", None),
        (2, "a", "acknowledged", 4.0),
        (5, "a", "acknowledged", 1.0),
    ]  # fmt: skip


def test_the_end_of_a_session() -> None:
    end = event(9, "end", protocol="mqtt", client="a")
    assert fold(audience(1, ("a", 1)), publish(2, 1), end) == [(2, "a", "ended", None)]


def test_the_same_message_twice() -> None:
    again = event(4, "queued", protocol="mqtt", client="a", ref=2, qos=1)
    named = ack(5, "a", 2, properties='{"delivery":1}')
    found = fold(audience(1, ("a", 1)), publish(2, 1), again, named)
    assert found == [(2, "a", "acknowledged", 1.0), (2, "a", "open", None)]


def test_a_queue() -> None:
    queue = {"topic": "$queue/q"}
    events = [
        event(1, "send", **queue, qos=1, number=0),
        event(2, "deliver", **queue, client="c", ref=1),
        event(3, "deliver", **queue, client="d", ref=1),
        event(4, "queued", protocol="queue", client="$queue/q", ref=99, number=1),
    ]
    first, second = folded(*events).opened.to_pylist()
    assert (first["attempts"], first["handed"]) == (2, NOON + timedelta(milliseconds=2))
    assert (second["seq"], second["topic"]) == (99, None)
    done = event(5, "ack", **queue, protocol="switch", client="d", ref=1, number=0)
    assert fold(*events, done, event(6, "destroy", **queue)) == [
        (1, "$queue/q", "acknowledged", 4.0),
        (99, "$queue/q", "destroyed", None),
    ]


def test_what_a_queue_gives_up_is_dropped() -> None:
    queue = {"topic": "$queue/q"}
    sent = event(1, "send", **queue, qos=1, number=0)
    drop = event(5, "drop", **queue, protocol="queue", client="$queue/q", ref=1)
    assert fold(sent, drop) == [(1, "$queue/q", "dropped", None)]


@settings(deadline=None)
@given(st.data())
def test_batches_make_no_difference(data: st.DataObject) -> None:
    events, cut = _history(data), data.draw(st.integers(0, 40))
    nothing = Whole(_OPENED.empty_table())
    whole = TABLE.fold(_arrow(events), nothing, 0)
    first = TABLE.fold(_arrow(events[:cut]), nothing, 0)
    second = TABLE.fold(_arrow(events[cut:]), Whole(nothing.after(first)), 0)
    again = Whole(Whole(nothing.after(first)).after(second))
    assert _told(first.closed, second.closed) == _told(whole.closed)
    assert _told(again.rows("all")) == _told(nothing.after(whole))


@settings(deadline=None)
@given(st.data())
def test_it_agrees_with_the_hubs_own_fold(data: st.DataObject) -> None:
    state = State()
    events = _history(data)
    state.apply(Row(0, 0, CONNECT, b"mqtt", b"a", properties=b'{"lasting":true}'))
    for one in events:
        state.apply(_row(one))
    waiting = _waiting(state.sessions["mqtt", "a"].backlog)
    assert sorted(waiting) == sorted(folded(*events).opened["seq"].to_pylist())


def _history(data: st.DataObject) -> list[Event]:
    """What may happen to one session: messages, acknowledgements in and out of order, drops."""
    steps = st.sampled_from(["publish", "queued", "lease", "ack", "acks", "drop"])
    events = [audience(1, ("a", 1))]
    state = State()
    state.apply(Row(0, 0, CONNECT, b"mqtt", b"a", properties=b'{"lasting":true}'))
    backlog = state.sessions["mqtt", "a"].backlog
    for seq, step in enumerate(data.draw(st.lists(steps, max_size=40)), 2):
        waiting = _waiting(backlog)
        one = publish(seq, 1)
        if step == "queued":
            one = event(seq, "queued", protocol="mqtt", client="a", ref=1000 + seq, qos=1)
        elif step == "lease":
            one = event(seq, "queued", protocol="mqtt", client="a")
        elif step == "drop" and backlog.entries:
            one = event(seq, "drop", protocol="mqtt", client="a", ref=1, number=1)
        elif step in ("ack", "acks") and waiting:
            place = data.draw(st.integers(0, len(waiting) - 1))
            count = data.draw(st.integers(1, 3)) if step == "acks" else 1
            number = backlog.number_of(waiting[place])
            one = ack(seq, "a", waiting[place], min(count, backlog.next - number))
        state.apply(_row(events[0]) if seq == 2 else _row(one))
        if seq == 2:
            state.apply(_row(one))
        events.append(one)
    return events


def _waiting(backlog: Backlog) -> list[int]:
    places = range(backlog.first, backlog.next)
    return [backlog.seq(place) for place in places if backlog.holds(place)]


def _row(event: Event) -> Row:
    kinds = {"publish": PUBLISH, "queued": QUEUED, "ack": ACK, "drop": DROP, "audience": AUDIENCE}
    return Row(
        event["seq"], 0, kinds[event["kind"]], event["protocol"].encode(),
        event["client"].encode(), event["topic"].encode(), qos=event["qos"],
        payload=event["payload"] or b"", ref=event["ref"], number=event["number"],
        properties=event["properties"].encode(),
    )  # fmt: skip


def _told(*tables: pa.Table) -> list[tuple[Any, ...]]:
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(
        (row["seq"], row["status"], str(row["ended"])) for row in rows if row["seq"] is not None
    )


@pytest.mark.parametrize("segment", [0, 2])
def test_audiences_of_a_segment_that_is_over_are_forgotten(segment: int) -> None:
    folding = TABLE.fold(_arrow([audience(1, ("a", 1))]), Whole(_OPENED.empty_table()), segment)
    assert folding.memory is not None and len(folding.memory) == (segment == 0)


THREE_TIMES = (
    audience(1, ("a", 1)),
    publish(2, 1),
    event(3, "queued", protocol="mqtt", client="a", ref=2, qos=1),
    event(4, "queued", protocol="mqtt", client="a", ref=2, qos=1),
)


def comes(seq: int, number: int) -> Event:
    return event(
        seq, "connect", protocol="mqtt", client="a", number=number, properties='{"lasting":true}'
    )


@pytest.mark.parametrize("first", [0, 40])
def test_the_middle_one_of_three_ends_its_own_row(first: int) -> None:
    """The hub names it by its number, and said at the connect which one comes first."""
    middle = ack(9, "a", 2, properties=json.dumps({"delivery": first + 1}))
    found = folded(comes(0, first), *THREE_TIMES, middle)
    assert found.closed["offer"].to_pylist() == [3]
    assert found.opened["offer"].to_pylist() == [2, 4]


def test_so_it_does_batches_later() -> None:
    held = Whole(_OPENED.empty_table())
    held = Whole(held.after(TABLE.fold(_arrow([comes(0, 40), *THREE_TIMES]), held, 0)))
    middle = ack(9, "a", 2, properties='{"delivery":41}')
    folding = TABLE.fold(_arrow([middle]), held, 0)
    assert folding.closed["offer"].to_pylist() == [3]
    assert sorted(held.after(folding)["offer"].drop_null().to_pylist()) == [2, 4]


def test_a_journal_cut_before_the_session_began_learns_its_numbers() -> None:
    middle = ack(9, "a", 2, properties='{"delivery":71}')
    found = folded(*THREE_TIMES, comes(5, 73), middle)
    assert found.closed["offer"].to_pylist() == [3]


@pytest.mark.slow
def test_a_batch_costs_what_it_changes(tmp_path: Path) -> None:
    """Among 300,000 open deliveries one is acknowledged: the other pieces are not written."""
    count = 300_000
    backlog = [audience(1, ("a", 1), ("b", 1))]
    first = TABLE.fold(_arrow([*backlog, *(publish(n, 1) for n in range(2, count // 2))]),
                       Whole(_OPENED.empty_table()), 0)  # fmt: skip
    carried(Pieces([], _OPENED), first, tmp_path / "0")
    files = sorted((tmp_path / "0").iterdir())
    begun = time.process_time()
    held = Pieces(files, _OPENED)
    folding = TABLE.fold(_arrow([ack(count, "b", 70_000, 3)]), held, 0)
    staying = carried(held, folding, tmp_path / "1")
    took = time.process_time() - begun
    assert [row["seq"] for row in folding.closed.to_pylist()] == [70_000, 70_001, 70_002]
    written = [file for file in (tmp_path / "1").iterdir() if pq.read_metadata(file).num_rows > 9]
    assert len(files) >= 15 and len(staying) == len(files) - 2 and len(written) == 1
    assert took < 1.0, f"{took} s; a fold of all takes several"


def test_what_came_of_a_dead_node_waits_here_and_is_acknowledged() -> None:
    """Rows of the kind `adopt` are those that they will be."""
    asked = {"protocol": "mqtt", "client": "ann", "subtopic": "connect", "content_type": "dead"}
    waits = {**asked, "subtopic": "queued", "ref": 1, "qos": 1}
    rows = [
        event(1, "publish", topic="t", qos=1),
        event(2, "adopt", properties='{"lasting":true}', number=7, **asked),
        event(3, "adopt", **waits),
        event(4, "adopt", **{**waits, "protocol": "node", "client": "b"}),
        event(5, "adopt", content_type="dead", number=1),
        ack(9, "ann", 1),
    ]
    (batch,) = _arrow(rows).to_batches()
    found = TABLE.fold(
        pa.Table.from_batches([TABLE.events(batch)]), Whole(_OPENED.empty_table()), 0
    )
    assert [(row["receiver"], row["status"]) for row in found.closed.to_pylist()] == [
        ("ann", "acknowledged")
    ]
    assert found.opened.num_rows == 0
