"""The lines at the door: what strangers say costs them time, and each place has its turn."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Listener, Settings
from hubbub.core.limits import HEARD_SECONDS, STRANGERS_BURST, STRANGERS_SHARE
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.runtime import door
from hubbub.runtime.door import HTTP, LATE, OTHER, SHORT, Door, OwnTime, Place, Turn
from hubbub.runtime.loop import new_event_loop
from hubbub.runtime.node import Node
from hubbub.runtime.strangers import Stranger
from hubbub.web.app import Application
from tests.runtime.test_strangers import Visitor

REFUSED = b"GET /login/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAGE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\n\r\n"  # is looked at
A, B = ("a", HTTP), ("b", HTTP)


class Clocked(Door):
    """A door whose time is said, and whose timer is this test."""

    def __init__(self) -> None:
        self.time = 100.0
        super().__init__(Metrics(), lambda: self.time)
        self.heard: list[str] = []

    def _serve_later(self, now: float) -> None:
        pass

    def said(self, name: str, place: Place, seconds: float = 0.001) -> Turn:
        stranger = Stranger(Visitor(), place[0], 0.0)

        def come() -> None:
            self.heard.append(name)
            self.charge(stranger, seconds)

        turn = Turn(come)
        if self.open_to(turn, place):
            come()
        return turn

    def serve(self, until: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if until():
                return
            self.time += 0.001
            self._serve()
        raise AssertionError(f"heard only {self.heard}")


def test_strangers_have_a_part_of_the_time() -> None:
    door = Clocked()
    for number in range(1_000):
        door.said(f"a{number}", A)
    began = door.time
    assert 4 <= len(door.heard) <= 8, "what was saved up"
    door.serve(lambda: not len(door))
    assert len(door.heard) == 1_000
    assert 1_000 * 0.001 / STRANGERS_SHARE - STRANGERS_BURST == pytest.approx(
        door.time - began, rel=0.1
    )
    assert door._metrics.slowed[LATE] >= 990


def test_each_place_has_its_turn() -> None:
    door = Clocked()
    for number in range(500):
        door.said(f"a{number}", A)
    door.said("honest", B)
    door.said("mqtt", ("a", OTHER))
    so_far = len(door.heard)
    door.serve(lambda: {"honest", "mqtt"} <= set(door.heard))
    assert len(door.heard) - so_far <= 4


def test_in_a_long_line_the_last_who_came_is_next() -> None:
    """As those of a flood come back when they are answered, nobody honest waits for all of it."""
    door = Clocked()
    for number in range(500):
        door.said(f"a{number}", A)
    for number in range(100):
        name = f"honest{number}"
        door.said(name, A)
        so_far = len(door.heard)
        door.serve(partial(door.heard.__contains__, name))
        assert len(door.heard) - so_far <= 4, "the first of those, which saved time may let in"
        door.said(f"back{number}", A)
    door.serve(lambda: not len(door))
    assert len(door.heard) == len(set(door.heard)) == 700, "all are heard in the end"


def test_in_a_short_line_who_came_first_is_first() -> None:
    door = Clocked()
    door.said("busy", B, 1.0)
    names = [f"a{number}" for number in range(SHORT)]
    for name in names:
        door.said(name, A)
    door.serve(lambda: not len(door))
    assert door.heard == ["busy", *names]


def test_who_was_let_in_paid_nothing() -> None:
    door = Clocked()
    for _ in range(1_000):
        stranger = Stranger(Visitor(), "a", 0.0)
        turn = Turn(lambda: None)
        assert door.open_to(turn, A), "nobody stands in line"
        door.charge(stranger, 0.001)
        door.refund(stranger)
        door.refund(stranger)


def test_nobody_pays_for_what_other_programs_took() -> None:
    door = Clocked()
    door.said("slow", A, 60.0)
    door.time += HEARD_SECONDS / STRANGERS_SHARE + 0.001
    door.said("next", B)
    assert door.heard == ["slow", "next"]


def test_who_is_gone_stands_in_no_line() -> None:
    door = Clocked()
    turns = [door.said(f"a{number}", A) for number in range(200)]
    assert not door.soon(turns[-1])
    heard = len(door.heard)
    for turn in turns[:-SHORT]:
        door.forget(turn)
    assert len(door) == SHORT and door.soon(turns[-1])
    for turn in turns:
        door.forget(turn)
    assert not len(door) and not door._lines
    door.serve(lambda: True)
    assert len(door.heard) == heard


# Over sockets


async def asked(port: int, said: bytes, times: int) -> list[bytes]:
    """The heads of the answers, if it is said so often on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for _ in range(times):
        writer.write(said)
        answers.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", answers[-1])[0]))
    writer.close()
    return answers


@pytest.mark.parametrize(("said", "times"), [(REFUSED, 1), (PAGE, 3)])
async def test_all_are_answered_however_many(tmp_path: Path, said: bytes, times: int) -> None:
    """In turns, with what came meanwhile in its order; who logs in beside them is let in."""
    users = tmp_path / "users"
    add_user(users, "ann", b"secret", scram=False)
    settings = Settings(
        listen=(), listener=(Listener(address="127.0.0.1:0"),), password_file=str(users),
        journal=Journal(record="none"),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node, asyncio.timeout(60):
        port = node.listeners[0].address.port
        node.door.charge(Stranger(Visitor(), "c", 0.0), HEARD_SECONDS)
        node.door._due += 0.2  # as if a flood were under way
        login = codec.connect(b"c", True, 60, None, b"ann", b"secret")
        flood = [asyncio.create_task(asked(port, said, times)) for _ in range(60)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in (login[:9], login[9:]):
            writer.write(part)
            await asyncio.sleep(0.05)
        assert await reader.readexactly(4) == b"\x20\2\0\0"
        writer.close()
        answers = sum(await asyncio.gather(*flood), [])
        assert len(answers) == 60 * times and {one.split()[1] for one in answers} == {b"401"}
        assert node.broker.metrics.slowed[LATE] > 0 and not len(node.door)


def test_the_loop_sleeps_until_the_next_may_be_heard() -> None:
    """Also where that is less than it can wait: it would look in each of its turns instead."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return time.perf_counter()

    async def stand_in_line() -> int:
        at_the_door, heard, waits = Door(Metrics(), clock), asyncio.Event(), 0
        stranger = Stranger(Visitor(), "a", 0.0)
        for _ in range(200):
            at_the_door.charge(stranger, 0.0001)
            if not at_the_door.open_to(Turn(heard.set), A):
                waits += 1
                await heard.wait()
                heard.clear()
        return waits

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        waits = runner.run(stand_in_line())
    assert waits > 5 and looks < 4 * 200  # fewer where others have the processor meanwhile


@pytest.mark.pure
def test_time_that_others_had_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clock of the lines stands still while this thread waits for a processor."""
    counts, now = tmp_path / "schedstat", [100.0]
    monkeypatch.setattr(door, "_WAITED", counts)
    monkeypatch.setattr("hubbub.runtime.door.time.perf_counter", lambda: now[0])
    clock = OwnTime()
    assert clock() == 100.0, "nobody counts here"
    counts.write_bytes(b"5 2000000000 7\n")
    now[0] += 1.0
    assert clock() == 99.0
    counts.write_bytes(b"5 2900000000 8\n")
    now[0] += 1.0
    assert clock() == pytest.approx(99.1)


def test_the_kernel_counts_for_this_thread() -> None:
    assert door._WAITED.read_bytes().split()[1].isdigit() or not door._WAITED.exists()
