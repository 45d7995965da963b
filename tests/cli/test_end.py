"""`hubbub end`: a session, a queue, its messages, what is retained and delayed, by any name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import hubbub
from hubbub.cli import app
from hubbub.errors import HubbubError
from hubbub.schema import name_from_wire
from tests.process import RunningHub

pytestmark = pytest.mark.interop


def typed(hub: RunningHub, *words: str) -> str:
    more = () if "--url" in words else ("--url", hub.url("http"))
    done = CliRunner().invoke(app, [*words, *more])
    if isinstance(done.exception, HubbubError):
        raise done.exception
    assert done.exit_code == 0, (words, done.output)
    return done.output.strip()


def listed(hub: RunningHub, kind: str) -> list[Any]:
    found: list[Any] = json.loads(typed(hub, "ls", kind, "--json"))[kind]
    return found


async def test_what_is_there_is_ended_by_its_name(hub: RunningHub) -> None:
    url = hub.url("mqtt")
    async with hubbub.mqtt(url, client_id="billing", clean=False, session_expiry=60) as client:
        await client.subscribe("orders/#", 1)
        for topic in ("$queue/jobs", "$queue/jobs", "$delayed/3600/later", "orders/1"):
            await client.publish(topic, b"x", qos=1)
        await client.publish("plant/1", b"21", qos=1, retain=True)
    row = str(listed(hub, "delayed")[0]["seq"])
    for words, answer in (
        (("messages", "jobs"), "jobs: 2 messages of the queue are gone"),
        (("queue", "jobs"), "jobs: the queue is gone, with what was in it"),
        (("retained", "plant/1"), "plant/1: nothing is retained there any more"),
        (("delayed", row), f"{row}: it will not be published"),
        (("session", "billing"), "billing: its session is over, with what waited for it"),
    ):
        assert typed(hub, "end", *words) == answer
        if words[0] != "messages":
            with pytest.raises(HubbubError, match="404"):
                typed(hub, "end", *words)
    assert not any(listed(hub, kind) for kind in ("sessions", "queues", "retained", "delayed"))


def test_a_filter_is_no_name_and_what_clears_all_is_said(hub: RunningHub) -> None:
    for topic in ("plant/1", "plant/2"):
        typed(hub, "pub", topic, "-m", "1", "--retain", "--url", hub.url("mqtt"))
    with pytest.raises(HubbubError, match="hubbub sub FILTER --retained-only --remove-retained"):
        typed(hub, "end", "retained", "plant/#")
    words = ("sub", "plant/#", "--retained-only", "--remove-retained", "-W", "2")
    CliRunner().invoke(app, [*words, "--url", hub.url("mqtt")])
    assert not listed(hub, "retained")


def test_a_name_that_is_no_text(hub: RunningHub) -> None:
    """As the bytes that the shell gave, or as `ls` shows it."""
    raw = name_from_wire(b"caf\xe9")
    for name in (raw, name_from_wire(b"caf\xe8"), "plain"):
        typed(hub, "switch", "create", name)
    shown = typed(hub, "ls", "queues", "caf")
    assert "caf%E9" in shown and "caf%E8" in shown and "plain" not in shown
    assert "caf%E9" in typed(hub, "ls", "queues", raw)
    assert shown.count("--exact") == 2, "how `end` is told so"
    assert "--exact" not in typed(hub, "ls", "queues", "plain")
    typed(hub, "end", "queue", raw)
    with pytest.raises(HubbubError, match="no queue"):
        typed(hub, "end", "queue", "caf%E8")
    typed(hub, "end", "queue", "caf%E8", "--exact")
    assert [one["queue"] for one in listed(hub, "queues")] == ["plain"]


def test_one_that_is_not_there_keeps_no_other(hub: RunningHub) -> None:
    for name in ("one", "three"):
        typed(hub, "switch", "create", name)
    with pytest.raises(HubbubError, match="1 of 3 were not ended"):
        typed(hub, "end", "queue", "one", "two", "three")
    assert listed(hub, "queues") == []
