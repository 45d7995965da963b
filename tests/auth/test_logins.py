"""Passwords that are looked at: a flood waits for itself, and who comes from elsewhere is next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hubbub.auth import logins
from hubbub.auth.guesses import Guesses
from hubbub.auth.logins import Logins
from hubbub.auth.passwords import Passwords, add_user
from hubbub.core.gate import Credentials, Gate, Opening
from hubbub.core.rights import BAD_CREDENTIALS, TOO_BUSY, Rights


class Slow(Passwords):
    """Looks at one password at a time, when it is told to."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.free = threading.Semaphore(0)
        self.looked: list[tuple[str, bytes]] = []

    def verify(self, user: str, secret: bytes) -> bool:
        assert self.free.acquire(timeout=10)
        self.looked.append((user, secret))
        return secret == b"secret"


class Desk:
    """Asks, and knows what was answered."""

    def __init__(self, passwords: Slow) -> None:
        self.passwords = passwords
        self.logins = Logins(Guesses(lambda: 0.0))
        self.answers: dict[str, list[str]] = {}

    def ask(
        self, name: str, user: str, secret: bytes = b"secret", address: str = "192.0.2.1"
    ) -> Opening:
        opening = Opening(Gate(Rights()))
        asks = Credentials("c", user, secret, address, "", opening)
        heard = self.answers.setdefault(name, [])
        self.logins.verify(self.passwords, asks, heard.append)
        return opening

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not what():
                await asyncio.sleep(0.005)

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self.passwords.free.release()
        await self.until(lambda: len(self.passwords.looked) >= count)


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(logins, "THREADS", 1)
    add_user(tmp_path / "users", "ann", b"secret")
    desk = Desk(Slow(tmp_path / "users"))
    yield desk
    for _ in range(1000):
        desk.passwords.free.release()
    desk.logins.close()


@pytest.mark.pure
async def test_addresses_take_turns(desk: Desk) -> None:
    for number in range(20):
        desk.ask("flood", f"user{number}", b"wrong")
    desk.ask("honest", "ann", address="192.0.2.2")
    await desk.finish(3)
    await desk.until(lambda: desk.answers["honest"] == [""])
    assert ("ann", b"secret") in desk.passwords.looked[:3]


@pytest.mark.pure
async def test_a_flood_of_one_name_costs_no_work_after_a_few(desk: Desk) -> None:
    """14,550 guesses at once, and an honest client of the same address that is not known yet."""
    for number in range(14_550):
        desk.ask("flood", "ann", b"%d" % number)
    desk.ask("honest", "bob")
    for _ in range(12):
        desk.passwords.free.release()
    await desk.until(lambda: desk.answers["honest"] == [""])
    flood = desk.answers["flood"]
    await desk.until(lambda: len(flood) == 14_550)
    assert len(desk.passwords.looked) <= 11
    assert flood.count(BAD_CREDENTIALS) == 10 and flood.count(TOO_BUSY) == 14_540


@pytest.mark.pure
async def test_the_same_user_and_password_are_looked_at_once(desk: Desk) -> None:
    for _ in range(500):
        desk.ask("fleet", "ann")
    await desk.finish(1)
    await desk.until(lambda: desk.answers["fleet"] == [""] * 500)
    assert desk.passwords.looked == [("ann", b"secret")]


@pytest.mark.pure
async def test_who_left_is_passed_over(desk: Desk) -> None:
    desk.ask("first", "x")
    gone = [desk.ask("gone", f"user{number}", address="192.0.2.3") for number in range(50)]
    desk.ask("last", "ann", address="192.0.2.3")
    for opening in gone:
        opening.gone = True
    await desk.finish(2)
    await desk.until(lambda: desk.answers["last"] == [""])
    assert [user for user, _ in desk.passwords.looked] == ["x", "ann"]


@pytest.mark.pure
async def test_when_all_wait_that_may_the_longest_queue_gives_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "WAITING", 10)
    for number in range(20):
        desk.ask("flood", f"user{number}", b"wrong")
    desk.ask("honest", "ann", address="192.0.2.2")
    assert desk.answers["flood"] == [TOO_BUSY] * 10 and desk.answers["honest"] == []
    await desk.finish(3)
    await desk.until(lambda: desk.answers["honest"] == [""])
