"""Rows of the journal, and the sessions that must come of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from hubbub.pipeline.tables.sessions import UNSEEN, folded

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(seq: int, kind: str, client: str, said: str = "", protocol: str = "mqtt") -> Any:
    return {
        "seq": seq, "time": NOON + timedelta(seconds=seq), "kind": kind, "protocol": protocol,
        "client": client, "properties": said,
    }  # fmt: skip


def fold(*events: Any) -> list[tuple[Any, ...]]:
    found = folded([pa.RecordBatch.from_pylist(list(events))])
    return [
        (row["seq"], row["client"], row["seconds"], row["reason"], row["open"])
        for batch in found
        for row in batch.to_pylist()
    ]


def test_from_connect_to_disconnect() -> None:
    came = event(1, "connect", "a", '{"address":"h:1","lasting":true}')
    assert fold(came) == [(1, "a", None, None, True)]
    assert fold(came, event(4, "disconnect", "a", "")) == [(1, "a", 3.0, "", False)]
    lost = event(4, "disconnect", "a", '{"reason":"keep-alive"}')
    assert fold(came, lost) == [(1, "a", 3.0, "keep-alive", False)]


def test_the_same_name_in_another_protocol_is_somebody_else() -> None:
    assert fold(event(1, "connect", "a"), event(2, "disconnect", "a", protocol="smq")) == [
        (1, "a", None, None, True)
    ]


def test_what_a_killed_hub_leaves() -> None:
    again = event(3, "disconnect", "", '{"reason":"hub restarted"}', protocol="")
    assert fold(event(1, "connect", "a"), event(2, "connect", "b"), again) == [
        (1, "a", 2.0, "hub restarted", False),
        (2, "b", 1.0, "hub restarted", False),
    ]
    assert fold(event(1, "connect", "a"), event(2, "connect", "a")) == [
        (1, "a", 1.0, UNSEEN, False),
        (2, "a", None, None, True),
    ]


def test_a_disconnect_of_somebody_unknown_is_nothing() -> None:
    assert fold(event(2, "disconnect", "a")) == []
