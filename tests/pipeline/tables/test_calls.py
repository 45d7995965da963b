"""Rows of the journal, and the calls that must come of them, in whatever batches they come."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.pipeline.carry import Whole
from hubbub.pipeline.tables import calls
from hubbub.pipeline.tables.calls import folded
from hubbub.pipeline.tables.table import arrow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Event = dict[str, Any]


def event(
    seq: int, kind: str, topic: str, client: str = "", ref: int = 0, reply_to: str = "",
    answers: str | None = None,
) -> Event:  # fmt: skip
    time = NOON + timedelta(milliseconds=seq)
    return {
        "seq": seq, "time": time, "kind": kind, "client": client, "topic": f"$queue/{topic}",
        "reply_to": reply_to, "ref": ref, "number": seq % 80,
        "properties": f'{{"answers":{answers}}}' if answers is not None else "",
    }  # fmt: skip


def request(seq: int, topic: str = "foo") -> Event:
    return event(seq, "send", topic, "cli", reply_to="$queue/cli")


def fold(*batches: list[Event]) -> list[tuple[int, str, float | None, str | None]]:
    found = folded(pa.RecordBatch.from_pylist(batch) for batch in batches if batch)
    return [
        (row["seq"], row["status"], row["latency_ms"], row["responder"])
        for batch in found
        for row in batch.to_pylist()
    ]


ANSWER = event(82, "send", "cli", "svc", ref=80)
PUBLISHED = event(82, "publish", "x", "smq:1", answers='["foo",0]')
LATE = event(86, "send", "cli", "svc", ref=80)
ACK = event(85, "ack", "foo", "svc", ref=80)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([request(80)], (80, "open", None, None)),
        ([request(80), ANSWER], (80, "answered", 2.0, "svc")),
        ([request(80), ANSWER, ACK], (80, "answered", 2.0, "svc")),
        ([request(80), PUBLISHED], (80, "answered", 2.0, "smq:1")),
        ([request(80), PUBLISHED, ACK, LATE], (80, "answered", 2.0, "smq:1")),
        ([request(81), PUBLISHED], (81, "open", None, None)),
        ([request(80), event(82, "publish", "x", answers="[1]")], (80, "open", None, None)),
        ([request(80), event(82, "publish", "x", answers='["foo",[]]')], (80, "open", None, None)),
        ([request(80), event(82, "publish", "x")], (80, "open", None, None)),
        ([request(80), ACK], (80, "unanswered", None, "svc")),
        ([request(80), ACK, LATE], (80, "unanswered", None, "svc")),
        ([request(80), event(81, "drop", "foo", "$queue/foo", 80)], (80, "unanswered", None, None)),
        ([request(80), event(81, "destroy", "foo")], (80, "unanswered", None, None)),
        ([request(80), event(81, "destroy", "cli")], (80, "open", None, None)),
        ([request(80), event(81, "ack", "other", ref=80)], (80, "open", None, None)),
    ],
)  # fmt: skip
def test_how_a_call_ends(events: list[Event], expected: tuple[Any, ...]) -> None:
    assert fold(events) == [expected]


def test_what_is_no_call() -> None:
    assert fold([event(80, "send", "foo", "cli"), ACK, event(90, "send", "cli", ref=70)]) == []


def test_an_answer_may_itself_ask() -> None:
    reply = event(81, "send", "cli", "svc", ref=80, reply_to="$queue/svc")
    assert fold([request(80), reply]) == [
        (80, "answered", 1.0, "svc"),
        (81, "open", None, None),
    ]


@given(st.data())
def test_any_rows_make_calls(data: st.DataObject) -> None:
    """Also such as a hub never writes: an id that is given twice."""
    kinds = st.sampled_from(["request", "answer", "reply", "ack", "destroy"])
    chosen = data.draw(st.lists(st.tuples(kinds, st.integers(1, 30)), max_size=30))
    makers = {
        "request": lambda seq, ref: {**request(seq, f"q{ref % 3}"), "number": ref},
        "answer": lambda seq, ref: event(seq, "send", "cli", "svc", ref=ref),
        "reply": lambda seq, ref: event(
            seq, "publish", "t", "svc", answers=json.dumps([f"q{ref % 3}", ref])
        ),
        "ack": lambda seq, ref: event(seq, "ack", f"q{ref % 3}", "svc", ref=ref),
        "destroy": lambda seq, ref: event(seq, "destroy", f"q{ref % 3}"),
    }
    found = fold([makers[kind](seq, ref) for seq, (kind, ref) in enumerate(chosen, 1)])
    asked = [seq for seq, (kind, _) in enumerate(chosen, 1) if kind == "request"]
    assert sorted(call[0] for call in found) == asked


def test_carried_calls_close_in_a_later_batch() -> None:
    open_call = [80, "foo", 3, "cli", NOON, None, None, None, "open"]
    columns = [column.name for column in calls.COLUMNS]
    held = Whole(
        pa.Table.from_pylist([dict(zip(columns, open_call, strict=True))], arrow(calls.COLUMNS))
    )
    batch = [
        event(82, "send", "cli", "svc", ref=80),
        event(83, "send", "foo", "cli"),
        {**request(84), "number": 4},
        {**request(85), "number": 5, "reply_to": "reply/here", "properties": '{"x":1}'},
        event(89, "publish", "x", "svc", answers='["foo",5]'),
    ]
    events = pa.Table.from_batches([calls.events(pa.RecordBatch.from_pylist(batch))])
    assert events["seq"].to_pylist() == [82, 84, 85, 89]
    folding = calls.TABLE.fold(events, held, 0)
    assert [
        (row["seq"], row["status"], row["latency_ms"]) for row in folding.closed.to_pylist()
    ] == [(80, "answered", 82.0), (85, "answered", 4.0)]
    assert folding.opened["seq"].to_pylist() == [84]
    assert held.after(folding)["seq"].to_pylist() == [84]
