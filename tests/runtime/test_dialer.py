"""Sockets out: attempts come in growing waits, short again once a connection has lasted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from hubbub.config.settings import Bridge
from hubbub.runtime import dialer
from tests.core.recording import StillClock


class Hub:
    """What a dialer needs of one; time goes on only when the test says so."""

    def __init__(self) -> None:
        self.clock = StillClock()


async def waits(
    monkeypatch: pytest.MonkeyPatch, count: int, attempt: Callable[[Hub], None], chance: float = 1.0
) -> tuple[list[float], list[str]]:
    """How long a dialer waits between attempts, and whom it calls."""
    hub, slept, called = Hub(), list[float](), list[str]()
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == count:
            enough.set()
            await asyncio.Event().wait()

    async def call(self: Any, host: str, port: int) -> None:
        called.append(f"{host}:{port}")
        attempt(hub)

    class Slept:
        """asyncio, but for the time it takes."""

        def __getattr__(self, name: str) -> Any:
            return sleep if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr(dialer, "asyncio", Slept())
    monkeypatch.setattr(random, "uniform", lambda low, high: low + (high - low) * chance)
    monkeypatch.setattr(dialer.Dialer, "_attempt", call)
    settings = Bridge(name="b", addresses=("a:1", "b:2"), topics=(), retry_seconds=10.0)
    one = dialer.Dialer(cast(Any, hub), settings, cast(Any, None))
    async with asyncio.timeout(10):
        await enough.wait()
    one.stop()
    return slept, called


def refuse(hub: Hub) -> None:
    raise ConnectionRefusedError(111, "refused")


@pytest.mark.pure
async def test_the_waits_grow_up_to_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, called = await waits(monkeypatch, 6, refuse)
    assert slept == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert called == ["a:1", "b:2"] * 3


@pytest.mark.pure
async def test_chance_makes_them_shorter_by_half_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, _ = await waits(monkeypatch, 5, refuse, 0.0)
    assert slept == [0.5, 1.0, 2.0, 4.0, 5.0]


@pytest.mark.pure
@pytest.mark.parametrize(("lasts", "third"), [(10.5, 1.0), (9.5, 4.0)])
async def test_a_connection_that_lasted_makes_the_next_wait_short(
    monkeypatch: pytest.MonkeyPatch, lasts: float, third: float
) -> None:
    attempts: list[int] = []

    def third_works(hub: Hub) -> None:
        attempts.append(1)
        if len(attempts) != 3:
            refuse(hub)
        hub.clock.seconds += lasts

    slept, _ = await waits(monkeypatch, 4, third_works)
    assert slept == [1.0, 2.0, third, 2 * third]
