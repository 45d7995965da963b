"""A log as it is copied: what comes of the copy is what a start makes of the files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from hubbub.core.state import State
from hubbub.errors import JournalError
from hubbub.journal.copied import Copy, Files, Part, folded
from hubbub.journal.roll import bases, roll
from hubbub.journal.segments import Directory
from hubbub.schema import PUBLISH
from tests.journal.history import BOB, FIRST, SECOND, row, written
from tests.journal.rows import Desk


def joined(parts: Iterable[Part]) -> list[bytes]:
    found, data = [], b""
    for _, more, piece in parts:
        data += piece
        if not more:
            found.append(data)
            data = b""
    assert not data
    return found


def copied(directory: Directory, landed: int) -> Copy:
    files = Files(directory, landed)
    groups = joined(files.log())
    (snapshot,) = joined(files.snapshot.parts())
    return folded(files.snapshot.upto, snapshot, groups)


def started(path: Path) -> tuple[State, dict[int, bytes]]:
    state = State()
    desk = Desk(path, state.apply)
    found = {seq: desk.journal.read(seq) for seq in state.needed()}
    desk.close()
    return state, {seq: message.payload for seq, message in found.items() if message is not None}


def agree(copy: Copy, path: Path) -> None:
    state, payloads = started(path)
    assert list(copy.state.rows()) == list(state.rows())
    assert {seq: message.payload for seq, message in copy.messages.items()} == payloads
    assert payloads
    assert not copy.missing


def test_rows_without_a_snapshot(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(*FIRST)
    desk.write(*SECOND)
    landed = desk.journal.position
    desk.close()
    agree(copied(Directory(tmp_path), landed), tmp_path)


def test_a_snapshot_and_the_rows_behind_it(tmp_path: Path) -> None:
    written(tmp_path)
    agree(copied(Directory(tmp_path), 1000), tmp_path)


def test_rows_behind_the_last_one_that_landed_are_left_to_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(*FIRST)
    landed = desk.journal.position
    desk.write(row(PUBLISH, **BOB, topic=b"late", retain=True, payload=b"x"))
    desk.close()
    assert "late" not in copied(Directory(tmp_path), landed).state.retained


def test_what_changes_no_state_is_not_copied(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(*FIRST)
    for _ in range(20):
        desk.write(row(PUBLISH, topic=b"passing", payload=b"nobody needs this"))
    landed = desk.journal.position
    desk.close()
    sent = b"".join(joined(Files(Directory(tmp_path), landed).log()))
    assert b"nobody needs this" not in sent


def test_files_are_read_as_they_were_when_a_roll_replaces_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(*FIRST)
    desk.write(*SECOND)
    directory = desk.journal.directory
    files = Files(directory, desk.journal.position)
    for base in bases(directory)[:-1]:
        roll(directory, base)
    desk.close()
    copy = folded(0, joined(files.snapshot.parts())[0], joined(files.log()))
    agree(copy, tmp_path)


@pytest.mark.parametrize("at", [0, 40, 1200])
def test_damage_is_refused(tmp_path: Path, at: int) -> None:
    desk = Desk(tmp_path)
    desk.write(*FIRST)
    landed = desk.journal.position
    desk.close()
    (group,) = joined(Files(Directory(tmp_path), landed).log())
    wrong = bytearray(group)
    wrong[at] ^= 0x55
    with pytest.raises(JournalError):
        folded(0, b"", [bytes(wrong)])
