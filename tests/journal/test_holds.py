"""Retention waits for readers that hold rows: not for ever, and not beyond its bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.cli import app
from hubbub.errors import DirectoryError, SettingError
from hubbub.journal import holds
from hubbub.journal.roll import main, remove, roll
from hubbub.journal.segments import Directory
from tests.journal.rows import Desk, message


def rolled(path: Path, **keep: float) -> int:
    """Roll all that is finished, which is old by then; return the first row that is left."""
    directory = Directory(path)
    for base in directory.segments()[:-1]:
        roll(directory, base)
    time.sleep(0.01)
    remove(directory, keep.get("keep_seconds", 0), int(keep.get("keep_bytes", 0)))
    return directory.segments()[0]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Eight segments of one row."""
    desk = Desk(tmp_path, segment_seconds=0.0)
    for number in range(8):
        desk.write(message(b"%d" % number))
    desk.close()
    return tmp_path


def test_rows_that_were_not_read_do_not_go_for_their_age(journal: Path) -> None:
    holds.hold(journal, "slow", 2)
    holds.hold(journal, "fast", 5)
    assert rolled(journal, keep_seconds=0.001) == 3
    holds.hold(journal, "slow", 4)
    assert rolled(journal, keep_seconds=0.001) == 5
    holds.release(journal, "slow")
    holds.release(journal, "fast")
    assert rolled(journal, keep_seconds=0.001) > 5


def test_a_clock_that_is_set_ahead_lets_go_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's rows go on as before, and so does their age: a week of them, and what nobody had
    read yet, went with the first segment that ended while the machine's clock was wrong.
    """
    desk, now = Desk(tmp_path, segment_seconds=0.0), time.time()
    directory = desk.journal.directory
    holds.hold(tmp_path, "reader", 3)
    desk.journal.keep_seconds = 3600
    monkeypatch.setattr(time, "time", lambda: now + 365 * 86_400)
    for _ in range(3):
        for number in range(4):
            desk.write(message(b"%d" % number))
        command = desk.journal.roll_due()
        assert command is not None
        assert main(command[4:]) == 0
        desk.journal.rolled()
    assert len(directory.snapshots()) == 2
    assert directory.segments() == list(range(1, 13))
    desk.close()


def test_one_who_went_away_holds_nothing_and_bytes_count_more(journal: Path) -> None:
    holds.hold(journal, "gone", 0, days=1e-9)
    (journal / "holds/broken.json").write_text("{")
    holds.hold(journal, "there", 3)
    assert [(one.name, one.over()) for one in holds.holds(journal)] == [
        ("gone", True), ("there", False),
    ]  # fmt: skip
    assert rolled(journal, keep_seconds=0.001) == 4
    assert rolled(journal, keep_bytes=1) > 4


def test_the_command(journal: Path) -> None:
    def said(*options: str) -> str:
        done = CliRunner().invoke(app, ["journal", "hold", *options, "--data", str(journal)])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "Rows after 0 wait for spark" in said("spark")
    assert "Rows after 5 wait for spark, for 3 days" in said("spark", "--at", "5", "--days", "3")
    assert said() == "spark: read up to row 5, for 3 days\n"
    holds.hold(journal, "spark", 6)  # as a run of the pipeline that has read more
    assert said() == "spark: read up to row 6, for 3 days\n"
    assert "not wait" in said("spark", "--release")
    assert said() == ""


def test_two_pipelines_do_not_move_one_hold(journal: Path) -> None:
    holds.hold(journal, "lake", 2)  # by hand, before there was a pipeline
    holds.hold(journal, "lake", 3, reader="/a/tables")
    with pytest.raises(SettingError, match="the pipeline whose tables are /a/tables: give"):
        holds.hold(journal, "lake", 5, reader="/b/tables")
    holds.hold(journal, "lake", 4, days=1e-9)  # by hand again: it stays whose it is, and is over
    assert [(one.seq, one.reader) for one in holds.holds(journal)] == [(4, "/a/tables")]
    holds.hold(journal, "lake", 5, reader="/b/tables")
    assert [(one.seq, one.reader) for one in holds.holds(journal)] == [(5, "/b/tables")]
    holds.release(journal, "lake")
    holds.hold(journal, "lake", 6, reader="/a/tables")


def test_names_and_how_many(tmp_path: Path) -> None:
    for name in ("../x", "", "a b"):
        with pytest.raises(SettingError, match="a name is of"):
            holds.hold(tmp_path, name, 1)
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="cannot hold .* for x: Not a directory"):
        holds.hold(tmp_path / "file", "x", 1)
    with pytest.raises(SettingError, match="nobody of the name 'x'"):
        holds.release(tmp_path, "x")
    for number in range(holds.MOST):
        holds.hold(tmp_path, f"r{number}", number)
    holds.hold(tmp_path, "r0", 7)
    with pytest.raises(SettingError, match="release one of them first"):
        holds.hold(tmp_path, "more", 1)


@pytest.mark.parametrize("days", [float("inf"), float("nan"), 1e9])
def test_nobody_holds_for_ever(journal: Path, days: float) -> None:
    with pytest.raises(SettingError, match="at most 3652 days"):
        holds.hold(journal, "slow", 2, days)
    assert not holds.holds(journal)
