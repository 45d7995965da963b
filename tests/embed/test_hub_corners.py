"""Corners of the hub API where a program would be surprised: each is as in the reference."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub, connect
from tests.clients import PATIENCE, smq


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_cannot_be_called_is_said_at_once() -> None:
    wrong: Any = 5
    for option in (
        "authenticate", "permittop", "onpublish", "ondrop", "onconnect", "onclose", "onmsg", "log",
    ):  # fmt: skip
        with pytest.raises(TypeError, match="expected a function"):
            Hub(**{option: wrong})
    async with Hub() as hub:
        for call in (
            lambda: hub.subscribe("a", wrong), lambda: hub.onmsg(wrong),
            lambda: hub.observe("a", wrong), lambda: hub.observe("a", None),  # type: ignore[arg-type]
        ):  # fmt: skip
            with pytest.raises(TypeError, match="expected a function"):
                call()
        assert hub.subscribe("a", print), "nothing was left behind by what failed"


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_a_function_that_fails_drops_none_of_those_that_wait(
    error: type[BaseException],
) -> None:
    """Nor does one that hears of it, and fails too."""
    heard: list[bytes] = []

    def fails(data: bytes, *rest: object) -> None:
        heard.append(data)
        raise error(data)

    def hears(text: str) -> None:
        raise RuntimeError(text)

    async with Hub(log=hears) as hub:
        hub.subscribe("a", fails)
        for number in range(5):
            hub.publish(b"%d" % number, "a")
        await soon(lambda: len(heard) == 5)


async def test_slow_functions_let_others_be_heard_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that waited was called in one turn of the loop: a queue's 1,000 of 1 ms took 2 s. But no
    more than that waits, or the memory of this program would be the bound.
    """
    monkeypatch.setattr("hubbub.embed.callbacks.CALLS_WAITING", 100)
    heard: list[bytes] = []

    def slow(data: bytes, *rest: object) -> None:
        heard.append(data)
        time.sleep(0.002)

    async with Hub() as hub:
        hub.subscribe("a", slow)
        for number in range(120):
            hub.publish(b"%d" % number, "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 20 <= len(heard) < 30
        await soon(lambda: len(heard) > 50)
        assert len(heard) < 100
    assert heard == [b"%d" % number for number in range(120)], "the rest when the hub ends"


async def test_who_publishes_faster_than_functions_are_called_is_held_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where over a thousand waited all were called in one piece: 20,000 of one client, 1 ms each,
    kept all others waiting for 6 s.
    """
    monkeypatch.setattr("hubbub.embed.callbacks.CALLBACKS", 100)
    heard: list[bytes] = []

    def slow(data: bytes, *rest: object) -> None:
        heard.append(data)
        time.sleep(0.001)

    async with Hub(listen="127.0.0.1:0") as hub, connect(f"mqtt://{hub.addresses[0]}") as flood:
        hub.subscribe("a", slow)
        worst = 0.0
        async with connect(f"mqtt://{hub.addresses[0]}") as other:
            for number in range(1_500):
                await flood.publish("a", b"%d" % number)
            while len(heard) < 1_000:
                began = time.monotonic()
                await other.publish("b", b"", qos=1)
                worst = max(worst, time.monotonic() - began)
        assert worst < 0.7
        assert any(sock.held for sock in hub.node.sockets)
        await soon(lambda: len(heard) == 1_500)
        await soon(lambda: not any(sock.held for sock in hub.node.sockets))
        assert heard == [b"%d" % number for number in range(1_500)]
        assert not hub.node.broker.metrics.dropped


async def test_what_waits_in_a_queue_stays_there_while_no_more_functions_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was dropped as too slow, and yet had by the program for good."""
    monkeypatch.setattr("hubbub.embed.callbacks.CALLBACKS", 2)
    gate, heard = asyncio.Event(), list[bytes]()

    async def waits(*rest: object) -> None:
        await gate.wait()

    async with Hub() as hub:
        hub.subscribe("a", waits)
        hub.subscribe("$queue/q", lambda data, *rest: heard.append(data))
        for _ in range(2):
            hub.publish(b"", "a")
        await asyncio.sleep(0.01)
        hub.publish(b"job", "$queue/q")
        await asyncio.sleep(0.01)
        queue = hub.node.broker.state.queues["q"]
        assert (heard, list(queue.waiting), queue.leased) == ([], [0], {})
        gate.set()
        await soon(lambda: heard == [b"job"] and not queue.messages)
        assert not hub.node.broker.metrics.dropped


async def test_what_slow_functions_did_as_the_hub_ended_is_not_done_again(tmp_path: Path) -> None:
    """It was called when the journal was closed, and what it acknowledged was lost: all that waited
    for a function came again with the next start.
    """
    heard: list[bytes] = []

    def slow(data: bytes, *rest: object) -> None:
        heard.append(data)
        time.sleep(0.001)

    async with Hub(data=tmp_path) as hub:
        for number in range(50):
            hub.publish(b"%d" % number, "$queue/q")
        await asyncio.sleep(0)
        hub.subscribe("$queue/q", slow)
        await asyncio.sleep(0.01)
    assert heard
    async with Hub(data=tmp_path) as hub:
        hub.subscribe("$queue/q", slow)
        await soon(lambda: not hub.node.broker.state.queues["q"].messages)
    assert heard == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_queue_is_not_forgotten_because_another_one_was_full(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """Only the queue of what was done was looked at: the other one waited for ever."""
    monkeypatch.setattr("hubbub.embed.callbacks.CALLBACKS", 5)
    heard: list[bytes] = []

    async def later(data: bytes, *rest: object) -> None:
        await asyncio.sleep(0.001)
        heard.append(data)

    def at_once(data: bytes, *rest: object) -> None:
        heard.append(data)

    async with Hub() as hub:
        for name in ("a", "b"):
            for _ in range(12):
                hub.publish(name.encode(), f"$queue/{name}")
        for name in ("a", "b"):
            hub.subscribe(f"$queue/{name}", later if slow else at_once)
        await soon(lambda: len(heard) == 24)
        assert not any(one.messages for one in hub.node.broker.state.queues.values())


async def test_numbers_where_names_are_taken() -> None:
    heard: list[bytes] = []
    async with Hub() as hub:
        tid = hub.create("a")
        assert hub.subscribe(tid, lambda data, *rest: heard.append(data)) == tid
        hub.publish(b"1", "a")
        await soon(lambda: heard == [b"1"])
        hub.unsubscribe(tid)
        hub.publish(b"2", tid)
        assert hub.subscribe(hub.gettid(), lambda data, *rest: heard.append(data)) == hub.gettid()
        hub.publish(b"3", hub.gettid())
        await soon(lambda: heard == [b"1", b"3"])
        with pytest.raises(ValueError, match="no topic has the number"):
            hub.subscribe(12345)


async def test_what_the_hub_itself_publishes_is_decided_about_too() -> None:
    decided: list[bytes] = []
    dropped: list[tuple[bytes, int]] = []
    heard: list[bytes] = []

    def onpublish(data: bytes, *rest: object) -> bool:
        decided.append(data)
        if data == b"again":
            hub.publish(b"from inside", "a")  # is not asked about: it would never end
        return data != b"no"

    def ondrop(data: bytes, ptid: int, tid: int, *rest: object) -> None:
        dropped.append((data, tid))

    hub = Hub(listen="127.0.0.1:0", onpublish=onpublish, ondrop=ondrop)
    async with hub:
        tid = hub.subscribe("a", lambda data, *rest: heard.append(data))
        for data in (b"yes", b"no", b"again"):
            hub.publish(data, tid)
        await soon(lambda: len(heard) == 3)
        assert set(heard) == {b"yes", b"again", b"from inside"}
        assert decided == [b"yes", b"no", b"again"]
        number = hub.create("nobody")
        hub.publish(b"lost", "nobody")
        await soon(lambda: dropped == [(b"lost", number)])


async def test_zero_is_nobodys_number_and_gone_is_zero() -> None:
    dropped: list[int] = []
    gone: list[object] = []
    hub = Hub(listen="127.0.0.1:0", ondrop=lambda data, ptid, tid, *rest: dropped.append(tid))
    async with hub:
        assert hub.publish(b"x", 0) is False
        async with smq(hub) as device:
            assert await device.create("$SYSTEM/x") > 1, "only $SYS/… is the hub's"
            before = len(hub.topics())
            await device.publish(0, b"x")
            await soon(lambda: dropped == [0])
            assert len(hub.topics()) == before
            hub.observe(device.number, lambda count, number: gone.append(count))
        await soon(lambda: len(gone) == 1)
        assert gone == [0] and type(gone[0]) is int
