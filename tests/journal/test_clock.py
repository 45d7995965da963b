"""A journal whose last rows were written by a clock that was wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hubbub import schema
from hubbub.core.state import State, lasting_properties
from hubbub.journal.repair import repair
from hubbub.journal.roll import bases, roll
from hubbub.schema import PUBLISH, Row
from tests.journal.history import ANN, row
from tests.journal.rows import Desk

SECOND = 1_000_000
HOUR, YEAR = 3600 * SECOND, 365 * 86_400 * SECOND


class Wall:
    """The machine's clock, as far ahead as `ahead` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, real = 0, time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self.ahead * 1000)

    def now(self) -> int:
        return time.time_ns() // 1000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


def rows(now: int) -> list[Row]:
    """A session, a delay of a minute, a message that expires in one, and a session's end in one."""
    return [
        row(schema.CONNECT, **ANN, properties=lasting_properties(60)),
        row(PUBLISH, **ANN, topic=b"$delayed/60/a", payload=b"later", retain=True),
        row(PUBLISH, **ANN, topic=b"r", payload=b"short", retain=True, expires=now + 60 * SECOND),
        row(schema.DISCONNECT, **ANN, expires=now + 60 * SECOND),
    ]


def written(path: Path, wall: Wall, ahead: int) -> None:
    wall.ahead = ahead
    desk = Desk(path, segment_seconds=0.0)
    desk.write(*rows(wall.now()))
    desk.write(row(PUBLISH, **ANN, topic=b"b", payload=b"passing"))
    desk.close()
    wall.ahead = 0


def times(path: Path, wall: Wall) -> tuple[list[float], Desk]:
    """In how many seconds from now: the delay, the message's and the session's end."""
    state = State()
    desk = Desk(path, state.apply)
    message = desk.journal.read(state.retained_seq("r"))
    assert message is not None
    ends = [state.delayed[2], message.expires, state.sessions["mqtt", "ann"].expires]
    return [(end - wall.now()) / SECOND for end in ends], desk


@pytest.mark.parametrize("ahead", [0, HOUR // 2, 2 * HOUR, YEAR])
def test_what_was_to_come_or_to_end_does(tmp_path: Path, wall: Wall, ahead: int) -> None:
    """A clock that was half an hour ahead is waited for, one that was further is not."""
    written(tmp_path, wall, ahead)
    found, desk = times(tmp_path, wall)
    waited = ahead / SECOND if ahead <= HOUR else 0
    assert all(55 < seconds - waited <= 61 for seconds in found), found
    assert abs((desk.journal.clock.stamp() - wall.now()) / SECOND - waited) < 5
    begun = [report for report in desk.journal.reports if "ahead of the machine's clock" in report]
    assert len(begun) == (ahead > HOUR)
    desk.close()


def test_messages_are_of_now_also_from_a_snapshot_among_others(tmp_path: Path, wall: Wall) -> None:
    """Before and after them are rows of the right clock, in the same frame."""
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(row(PUBLISH, **ANN, topic=b"x", payload=b"", retain=True))
    desk.close()
    wall.ahead = YEAR
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(row(PUBLISH, **ANN, topic=b"$delayed/60/a", payload=b"later"))
    desk.close()
    wall.ahead = 0
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(row(PUBLISH, **ANN, topic=b"y", payload=b"y", retain=True))
    desk.write(row(PUBLISH, **ANN, topic=b"z", payload=b"z", retain=True))
    desk.close()
    roll(desk.journal.directory, 3)
    state = State()
    desk = Desk(tmp_path, state.apply)
    assert 55 < (state.delayed[2] - wall.now()) / SECOND <= 61
    desk.close()


def test_what_ends_does_also_from_a_snapshot(tmp_path: Path, wall: Wall) -> None:
    """A snapshot has no times: who folds takes the rows as the hub did, or nobody can later."""
    written(tmp_path, wall, YEAR)
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(row(PUBLISH, **ANN, topic=b"y", payload=b"y", retain=True))
    desk.write(row(PUBLISH, **ANN, topic=b"z", payload=b"z", retain=True))
    roll(desk.journal.directory, bases(desk.journal.directory)[-2], righting=desk.journal.righting)
    desk.close()
    found, desk = times(tmp_path, wall)
    assert all(50 < seconds <= 61 for seconds in found), found
    desk.close()


def test_what_ends_does_also_after_a_repair(tmp_path: Path, wall: Wall) -> None:
    """That folds the log anew where its beginning is gone, and no snapshot says what was there."""
    desk = Desk(tmp_path, segment_seconds=0.0)
    for name in (b"first", b"second"):  # the next start goes on in the last segment
        desk.write(row(PUBLISH, **ANN, topic=name, payload=b"x"))
    desk.close()
    written(tmp_path, wall, YEAR)
    desk = Desk(tmp_path, segment_seconds=0.0)
    for name in (b"y", b"z"):
        desk.write(row(PUBLISH, **ANN, topic=name, payload=name, retain=True))
    directory = desk.journal.directory
    desk.close()
    directory.segment(1).unlink()
    said: list[str] = []
    repair(directory, False, said.append)
    assert any("fold the log again" in line for line in said) and directory.snapshots()
    state = State()
    Desk(tmp_path, state.apply).close()
    end = state.sessions["mqtt", "ann"].expires
    assert 50 < (end - wall.now()) / SECOND <= 61
