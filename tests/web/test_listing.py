"""`GET /api/v1/ls/KIND` and `hubbub ls`: what there is, those away included, page by page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.core.clock import Clock
from hubbub.core.limits import GONE_KEPT, PEEKED_BYTES
from hubbub.core.message import Message
from hubbub.core.session import Silent
from hubbub.web import listing
from hubbub.web.listing import KINDS, LOOKED, Thing, lightness, page
from tests.command import hubbub
from tests.process import RunningHub
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern


def rows(stage: Stage, kind: str, search: str = "") -> list[dict[str, Any]]:
    return asyncio.run(page(KINDS[kind](stage.broker), stage.clock, search, 100, 0)).items


def test_what_is_large_is_not_read_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    broker, large = stage.broker, bytes(PEEKED_BYTES + 1)
    broker.post(Message("$delayed/60/large", large, 1))
    broker.post(Message("$delayed/60/small", b"x", 1))
    broker.post(Message("$queue/jobs", large, 1, reply_to="$queue/mine"))
    monkeypatch.setattr(broker.log, "look", _no_large(broker.log.look))
    assert [(row["topic"], row["bytes"]) for row in rows(stage, "delayed")] == [
        ("", len(large)), ("$delayed/60/small", 1),
    ]  # fmt: skip
    assert rows(stage, "calls") == []
    stage.pass_time(61)
    broker.delays.wake()
    assert not broker.state.large and not broker.state.delayed


def _no_large(look: Callable[[int], Message | None]) -> Callable[[int], Message | None]:
    def looked(seq: int) -> Message | None:
        message = look(seq)
        assert message is None or len(message.payload) <= PEEKED_BYTES
        return message

    return looked


async def test_what_takes_long_is_done_in_turns() -> None:
    """Each row takes 2 ms of work; somebody else has its turn after two or three of them."""

    def slow() -> dict[str, Any]:
        clock, began = Clock(), Clock().spent()
        while clock.spent() - began < 0.002:
            pass
        return {}

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await page((Thing("x", slow) for _ in range(30)), Clock(), "", 100, 0)
    task.cancel()
    assert turns >= 9


def test_sessions_with_those_that_are_away() -> None:
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), stage.device("bob")
    ann.subscribe("a", 1, "b/#", 0)
    ann.far.hang_up("lost")
    bob.publish("a", b"12345", 1)
    found = {row["client"]: row for row in rows(stage, "sessions")}
    assert set(found) == {"ann", "bob"}
    assert (found["ann"]["connected"], found["bob"]["connected"]) == (False, True)
    assert (found["ann"]["waiting"], found["ann"]["waiting_bytes"]) == (1, 5)
    assert found["ann"]["subscriptions"] == 2 and found["ann"]["lasting"]
    said = [(row["client"], row["filter"], row["qos"]) for row in rows(stage, "subscriptions")]
    assert said == [("ann", "a", 1), ("ann", "b/#", 0)]
    assert [row["filter"] for row in rows(stage, "subscriptions", "B/")] == ["b/#"]


def test_who_sends_most_is_the_first() -> None:
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.broker.sampled.wake()
    ann.publish("a", b"secret", 0)
    for _ in range(9):
        bob.publish("b", b"secret", 0)
    stage.pass_time(0.25)
    stage.broker.sampled.wake()
    first, second = rows(stage, "senders")
    assert (first["client"], first["topic"], first["messages_per_second"]) == ("bob", "b", 9)
    assert (second["client"], second["address"]) == ("ann", "127.0.0.1")
    assert first["bytes_per_second"] > 9 * 6 and lightness(first) < lightness(second)
    assert "secret" not in repr([first, second])


async def test_who_sends_at_another_process_is_said_by_that_one() -> None:
    stage = Stage()
    far = Silent("mqtt", "far", stage.broker.itself.rights)
    far.far, far.node = True, "process-2"
    stage.broker.sampled.wake()
    stage.broker.post(Message("a", b"x"), far)
    stage.broker.sampled.wake()
    found = [await page(KINDS["senders"](stage.broker), Clock(), "", 10, 0, beside)
             for beside in ((), ("process-2",))]
    assert [one.total for one in found] == [1, 0]


def test_topics_retained_queues_and_what_is_for_later() -> None:
    stage = Stage()
    broker, ann = stage.broker, Modern(stage, "ann")
    number = broker.topic_id("plant/t", broker.itself)
    ann.publish("kept", b"secret", 1, True)
    ann.publish("$queue/jobs", b"secret", 1, packet_id=2)
    ann.publish("$delayed/60/later", b"secret", 1, packet_id=3)
    assert rows(stage, "topics") == [{"topic": "plant/t", "id": number}]
    [kept] = rows(stage, "retained")
    assert (kept["topic"], kept["bytes"], kept["of"]) == ("kept", 6, "address 127.0.0.1")
    [queue] = rows(stage, "queues")
    assert (queue["queue"], queue["messages"], queue["bytes"]) == ("jobs", 1, 6)
    [late] = rows(stage, "delayed")
    assert (late["topic"], late["bytes"]) == ("$delayed/60/later", 6)
    assert late["due"] > stage.broker.clock.stamp()
    assert rows(stage, "bridges") == []
    assert "secret" not in repr([rows(stage, kind) for kind in KINDS])


def test_who_is_here_who_is_away_and_who_went_and_why() -> None:
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), stage.device("bob")
    stage.device("cid")
    stage.pass_time(5)
    ann.far.hang_up("the line broke")
    bob.say(b"\xe0\0")
    assert [row["client"] for row in rows(stage, "clients")] == ["cid"]
    assert [row["client"] for row in rows(stage, "away")] == ["ann"]
    gone = rows(stage, "gone")
    said = [(row["client"], row["reason"]) for row in gone]
    assert said == [("bob", ""), ("ann", "the line broke")]
    assert gone[1]["time"] - gone[1]["since"] == 5_000_000
    assert rows(stage, "clients")[0]["since"] == gone[1]["since"]
    for number in range(GONE_KEPT + 5):
        stage.device(f"d{number}").far.hang_up("")
    assert rows(stage, "gone")[0]["client"] == f"d{GONE_KEPT + 4}"
    assert len(stage.broker.audit.gone) == GONE_KEPT


def test_calls_that_wait_for_their_answer() -> None:
    stage = Stage()
    broker, asked = stage.broker, stage.broker.clock.stamp()
    for payload, answer_to in ((b"secret", "answers/ann"), (b"no call", "")):
        broker.post(Message("$queue/jobs", payload, 1, reply_to=answer_to))
    stage.pass_time(3)
    [call] = rows(stage, "calls")
    assert (call["asker"], call["queue"], call["handed"]) == ("hub", "jobs", "")
    assert (call["answer_to"], call["since"]) == ("answers/ann", asked)
    request = broker.log.read(next(iter(broker.state.queues["jobs"].messages.values())))
    assert request is not None
    number = broker.replies.id_of(request, Silent("mqtt", "reader", broker.open))
    [call] = rows(stage, "calls")
    assert number and (call["number"], call["handed"]) == (number, "reader")
    assert call["since"] == broker.clock.stamp(), "it has its number since now"


def test_names_of_any_bytes_are_json() -> None:
    stage = Stage()
    stage.broker.topic_id("\udcff<b>", stage.broker.itself)
    stage.broker.queues.named("\udcff")
    for kind in KINDS:
        assert json.dumps(rows(stage, kind), ensure_ascii=False).encode()


def test_pages() -> None:
    things = [Thing(f"Name{number}", dict) for number in range(100)]
    found = asyncio.run(page(iter(things), Clock(), "name1", 3, 2))
    assert (len(found.items), found.total) == (3, 11)
    assert asyncio.run(page(iter(things), Clock(), "", 10, 95)) == ([{}] * 5, 100)


def test_a_million_things_are_no_long_turn() -> None:
    """Others have their turn in between, and what changes meanwhile breaks nothing."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        task = asyncio.create_task(others())
        things = (Thing("x", dict) for _ in range(20 * LOOKED))
        assert (await page(things, Clock(), "", 1, 0)).total == 20 * LOOKED
        task.cancel()

    asyncio.run(both())
    assert turns >= 20
    stage = Stage()
    for number in range(3):
        stage.broker.queues.named(f"q{number}")
    things = listing.KINDS["queues"](stage.broker)
    next(things)
    stage.broker.queues.destroy("q1")
    assert len(list(things)) == 2


@pytest.mark.interop
async def test_over_http_and_on_a_terminal(hub: RunningHub) -> None:
    async with connect(hub.url("mqtt"), client_id="panel") as client:
        await client.subscribe("telemetry/#")
        api = hub.url("http") + "/api/v1/ls/"
        async with httpx.AsyncClient() as web:
            for kind in KINDS:
                answer = (await web.get(api + kind)).json()
                assert answer["count"] == len(answer[kind])
            assert (await web.get(api + "secrets")).status_code == 404
            assert (await web.get(api + "sessions?limit=x")).status_code == 400
        said = await asyncio.to_thread(call, "ls", "sessions", "PAN", "--url", hub.url("http"))
        assert "panel" in said and "1 to 1 of 1" in said
        for kind in KINDS:
            answer = json.loads(
                await asyncio.to_thread(call, "ls", kind, "--json", "--url", hub.url("http"))
            )
            assert kind in answer
        nothing = await asyncio.to_thread(call, "ls", "retained", "--url", hub.url("http"))
        assert nothing == "none\n"


def call(*options: str) -> str:
    done = hubbub(*options)
    assert done.returncode == 0, done.stderr
    return done.stdout
