"""Rolling: the snapshot says what the rows said, readers and a running hub notice nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubbub import schema
from hubbub.core.limits import GROUP_ROWS, MIB, RESERVE_BYTES
from hubbub.core.state import State
from hubbub.errors import DirectoryError, JournalError, OffsetError
from hubbub.journal import frame, names
from hubbub.journal import roll as rolling
from hubbub.journal.compact import compact
from hubbub.journal.content import Content
from hubbub.journal.roll import bases, roll
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.schema import Row
from tests.journal.rows import SOURCE, Desk, frames_of, header_of, message, payloads

ANN = Row(0, 0, schema.CONNECT, b"mqtt", b"ann", properties=b'{"lasting":true}')
WATCH = Row(0, 0, schema.SUBSCRIBE, b"mqtt", b"ann", b"room/#", qos=1)
JOBS = Row(0, 0, schema.CREATE, topic=b"$queue/jobs")


def send(number: int) -> Row:
    return Row(
        0, 0, schema.SEND, b"switch", b"cli", b"$queue/jobs", payload=b"job %d" % number,
        number=number,
    )  # fmt: skip


def audience() -> Row:
    return Row(0, 0, schema.AUDIENCE, topic=b"room/temp", payload=b'[["mqtt","ann",1]]')


def snapshot_rows(path: Path) -> tuple[list[Row], set[int]]:
    """State as rows, and the messages it refers to, after a start from the directory."""
    state = State()
    desk = Desk(path, state.apply)
    for seq in state.needed():
        assert desk.journal.read(seq) is not None, seq
    desk.close()
    return list(state.rows()), state.needed()


def filled(path: Path) -> Desk:
    """Three finished segments and the beginning of a fourth: every group is a segment."""
    desk = Desk(path, segment_seconds=0.0)
    desk.write(ANN, WATCH, audience(), message(b"1")._replace(ref=3), JOBS, send(0))
    desk.write(message(b"kept", b"room/last", retain=True), message(b"passing"), send(1))
    sent = Row(0, 0, schema.ACK, b"mqtt", b"ann", ref=4, number=1)
    again = message(b"2")._replace(ref=10)
    desk.write(audience(), again, sent, Row(0, 0, schema.ACK, topic=b"$queue/jobs"))
    desk.write(message(b"last"))
    return desk


def roll_all(desk: Desk) -> None:
    for base in bases(desk.journal.directory)[:-1]:
        roll(desk.journal.directory, base)
        desk.journal.rolled()


def test_state_is_the_same_from_the_snapshot(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    desk.close()
    expected = snapshot_rows(tmp_path)
    assert expected[1] == {7, 9, 11}
    before = payloads(tmp_path)
    for base in (1, 7, 10):
        roll(Directory(tmp_path), base)
        assert snapshot_rows(tmp_path) == expected
        assert payloads(tmp_path) == before
    assert Directory(tmp_path).snapshots() == [9, 13]


def test_the_command_of_the_hub(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    commands = []
    while command := desk.journal.roll_due():
        commands.append(command[5:6] + command[15:])
        done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        desk.journal.rolled()
    assert commands == [["10"]]
    for seq, expected in ((7, b"kept"), (9, b"job 1"), (11, b"2"), (14, b"last")):
        read = desk.journal.read(seq)
        assert read is not None and read.payload == expected
    desk.close()


def test_a_running_hub_reads_on_while_files_are_replaced(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    for base in (1, 7, 10):
        roll(Directory(tmp_path), base)
        assert [bool(desk.journal.read(seq)) for seq in (4, 6, 7, 8, 9)] == [True] * 5
    desk.journal.rolled()
    assert desk.journal.roll_due() is None
    assert desk.journal.read(9) is not None
    assert desk.write(message(b"on")) == 15
    desk.close()


def test_compacting_writes_two_snapshots_however_many_segments_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each of 22 was 20 minutes for 1.4 GB of which a fourth lasts, and is 90 s now."""
    desk = filled(tmp_path)
    for number in range(6):
        desk.write(message(b"more %d" % number))
    desk.close()
    expected, before = snapshot_rows(tmp_path), payloads(tmp_path)
    directory = Directory(tmp_path)
    written: list[int] = []
    done: list[int] = []
    sizes = sum(directory.segment(first).stat().st_size for first in directory.segments())
    write = rolling._write_snapshot

    def writes(
        directory: Directory, before: int, seq: int, state: State, sources: list[rolling.Source]
    ) -> None:
        written.append(seq)
        write(directory, before, seq, state, sources)

    monkeypatch.setattr(rolling, "_write_snapshot", writes)
    compact(directory, progress=done.append)
    assert written == directory.snapshots() == [19, 20]
    assert (snapshot_rows(tmp_path), payloads(tmp_path)) == (expected, before)
    headers = [header_of(directory.segment(first)) for first in directory.segments()]
    sealed = [header is not None and header.sealed > 0 for header in headers]
    assert sealed == [True] * (len(sealed) - 2) + [False] * 2
    assert len(done) > len(sealed) and sum(done) <= sizes


def test_only_what_two_snapshots_cover_is_compressed(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    roll_all(desk)
    directory = desk.journal.directory
    flags = {}
    for first, following in directory.spans():
        path = directory.segment(first)
        header = header_of(path)
        packed = [found.flags & frame.COMPRESSED for found in frames_of(path, following)]
        flags[first] = any(packed)
        assert header is not None and header.sealed == (path.stat().st_size if any(packed) else 0)
    assert flags == {1: True, 7: True, 10: False, 14: False}
    desk.close()


def test_compression_joins_small_frames_and_readers_see_the_same(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for n in range(300):
        desk.write(message(b"%d" % n, retain=True))
    directory = desk.journal.directory
    size = directory.segment(1).stat().st_size
    desk.journal._full = True
    desk.journal._segment_time = 0
    for n in range(300, 303):
        desk.write(message(b"%d" % n))
    roll_all(desk)
    packed = frames_of(directory.segment(1), 301)
    assert [(found.first, found.last, found.rows) for found in packed] == [(1, 300, 300)]
    assert directory.segment(1).stat().st_size * 20 < size
    assert payloads(tmp_path) == [b"%d" % n for n in range(303)]
    batches = list(Table(str(tmp_path)).read(99, 302))
    assert [batch.num_rows for batch in batches] == [201, 1, 1]
    desk.close()


def test_the_newest_snapshot_may_be_damaged(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    roll_all(desk)
    desk.close()
    expected = snapshot_rows(tmp_path)
    path = Directory(tmp_path).snapshot(13)
    path.write_bytes(path.read_bytes()[:-8])
    assert snapshot_rows(tmp_path) == expected
    desk = Desk(tmp_path)
    assert desk.journal.reports == [f"{path.name}: a damaged snapshot, the one before it is used"]
    roll_all(desk)
    assert (tmp_path / "quarantine" / path.name).exists()
    desk.close()
    assert snapshot_rows(tmp_path) == expected
    assert Directory(tmp_path).snapshots() == [9, 13]


def test_without_any_whole_snapshot_a_start_is_refused(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    roll_all(desk)
    desk.close()
    for seq in Directory(tmp_path).snapshots():
        Directory(tmp_path).snapshot(seq).write_bytes(b"")
    with pytest.raises(DirectoryError, match="restore"):
        Desk(tmp_path)


def test_a_segment_that_is_still_written_is_not_rolled(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    with pytest.raises(JournalError, match="still being written"):
        roll(desk.journal.directory, 14)
    desk.close()


def test_a_segment_that_goes_on_after_a_failed_sync_is_folded_whole(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(ANN, audience())
    desk.journal.disk._suspect = True  # as a failed sync leaves it
    desk.journal._segment_time = 0
    desk.write(message(b"x")._replace(ref=2))
    desk.write(message(b"next segment"))
    assert desk.journal.directory.segments() == [1, 3, 4]
    roll_all(desk)
    assert desk.journal.directory.snapshots() == [3]
    desk.close()
    assert snapshot_rows(tmp_path)[1] == {3}


def test_retention_by_bytes_keeps_what_state_needs(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    for base in (1, 7, 10):
        roll(Directory(tmp_path), base, keep_bytes=1)
        desk.journal.rolled()
    assert desk.journal.directory.segments() == [10, 14]
    kept = desk.journal.read(7)
    assert kept is not None and kept.payload == b"kept"
    desk.close()
    table = Table(str(tmp_path))
    assert (table.first(), table.committed()) == (10, 14)
    with pytest.raises(OffsetError, match="row 5 was asked for, the oldest one kept is 10"):
        list(table.read(4, 14))
    assert snapshot_rows(tmp_path)[1] == {7, 9, 11}


def test_the_list_of_names_goes_with_its_segment(tmp_path: Path) -> None:
    """Nobody asks for history here, which tidied up behind the roller."""
    desk = filled(tmp_path)
    roll_all(desk)
    directory = desk.journal.directory
    assert names.path_of(directory, 1).exists() and names.path_of(directory, 7).exists()
    stray, written = names.path_of(directory, 5), names.path_of(directory, 14)
    stray.touch()
    written = written.with_name(f"{written.name}.new")  # by who answers questions, just now
    written.touch()
    size = sum(directory.segment(first).stat().st_size for first in directory.segments())
    removed = directory.segments()[0]
    roll(directory, 0, keep_bytes=size - 1)
    assert removed not in directory.segments()
    left = sorted(path.name for path in stray.parent.iterdir())
    assert left == [names.path_of(directory, 7).name, written.name]
    desk.close()


def test_retention_by_age(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    for base in (1, 7, 10):
        roll(Directory(tmp_path), base, keep_seconds=3600)
    assert desk.journal.directory.segments() == [1, 7, 10, 14]
    time.sleep(0.01)
    roll(Directory(tmp_path), 10, keep_seconds=0.005)
    assert desk.journal.directory.segments() == [10, 14]
    desk.close()


def test_a_segment_of_small_frames_is_packed_anew_for_readers_and_for_a_start(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    for n in range(200):
        desk.write(message(b"%d" % n, b"kept/%d" % (n % 7), retain=True))
    directory = desk.journal.directory
    desk.journal._full = True
    desk.journal._segment_time = 0
    desk.write(message(b"200"))
    desk.write(message(b"201"))
    size = directory.segment(1).stat().st_size
    roll(directory, 1)
    packed = frames_of(directory.segment(1), 201)
    assert [(one.first, one.last, one.rows) for one in packed] == [(1, 200, 200)]
    assert not packed[0].flags & (frame.COMPRESSED | frame.MORE)
    assert directory.segment(1).stat().st_size * 10 < size
    assert payloads(tmp_path) == [b"%d" % n for n in range(202)]
    kept = desk.journal.read(5)  # from the file that was open
    assert kept is not None and kept.payload == b"4"
    desk.close()
    with_it = snapshot_rows(tmp_path)
    directory.snapshot(200).unlink()  # a start without it folds the segment itself
    state = State()
    desk = Desk(tmp_path, state.apply)
    desk.close()
    assert {kept.seq for kept in state.retained.values()} == with_it[1]


BARE = """
import sys
sys.modules["pyarrow"] = None  # as where the extra is not installed
from hubbub.journal.roll import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_pyarrow_all_is_done_but_compressing(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    directory = desk.journal.directory
    for base, keep in (("1", "0"), ("7", "0"), ("10", "0.001")):
        command = [sys.executable, "-c", BARE, str(tmp_path), base, "--keep-seconds", keep]
        done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        desk.journal.rolled()
    desk.close()
    assert directory.snapshots() == [9, 13]
    assert directory.segments() == [10, 14], "what two snapshots cover was too old"
    assert snapshot_rows(tmp_path)[1] == {7, 9, 11}


@pytest.mark.parametrize(
    ("days", "due"), [(-8, True), (-6, False), (6, False), (8, True), (-400, True)]
)
def test_all_is_read_again_after_some_days(tmp_path: Path, days: int, due: bool) -> None:
    """Also where it was read last by a clock that was a year ahead: not again for that year."""
    desk = filled(tmp_path)
    when = time.time() - days * 86_400
    desk.journal.directory.scrubbed.touch()
    os.utime(desk.journal.directory.scrubbed, (when, when))
    assert desk.journal.scrub_due(7) == due
    assert not desk.journal.scrub_due(7), "asked once an hour"
    desk.close()


@pytest.mark.parametrize("which", ["roll", "scrub"])
def test_a_child_imports_nothing_from_where_the_hub_was_started(tmp_path: Path, which: str) -> None:
    """A random.py there would run as the hub's user."""
    place = tmp_path / "place"
    place.mkdir()
    for name in ("random", "json", "pyarrow", "hubbub"):
        (place / f"{name}.py").write_text("open('it-ran', 'w')\nraise SystemExit(9)\n")
    desk = filled(tmp_path / "data")
    command = desk.journal.roll_due() if which == "roll" else desk.journal.scrub_command()
    assert command is not None
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    desk.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert not (place / "it-ran").exists()


def test_on_a_full_disk_what_retention_lets_go_goes_before_a_segment_is_folded(
    tmp_path: Path,
) -> None:
    """Else the fold has no room, and would fail for ever."""
    desk = filled(tmp_path)
    assert "--make-room" not in (desk.journal.roll_due() or ["none"])
    desk.journal.disk.full = True
    command = desk.journal.roll_due()
    assert command is not None and command[-1] == "--make-room" and command[5] == "10"
    desk.journal.disk.full = False
    desk.journal.keep_bytes = 1
    command = desk.journal.roll_due()
    assert command is not None and command[-1] == "--make-room" and command[5] == "10"
    desk.close()


def test_no_segment_ends_early_while_rows_of_it_lie_on_the_shelf(tmp_path: Path) -> None:
    """They refer to rows before them: in the next segment nobody would find these."""
    desk = Desk(tmp_path)
    journal = desk.journal
    journal.shortage = "short"
    desk.write(ANN, WATCH, audience())
    journal.append(message(b"flies")._replace(ref=3))
    journal.commit()
    for number in range(GROUP_ROWS):
        journal.append(message(b"%d" % number)._replace(ref=3))
    assert not journal.commit()  # onto the shelf
    desk.settle()  # and now the sweep comes, before the next tick
    assert journal.pending == GROUP_ROWS and journal.pressing()
    assert not journal.early_end_due()
    desk.write()
    assert journal.early_end_due()
    desk.close()


def test_where_room_is_short_a_segment_ends_early_until_two_snapshots_know_what_changed(
    tmp_path: Path,
) -> None:
    """What is refused writes no row, so no segment would get full ever again."""
    desk = Desk(tmp_path)
    desk.write(ANN, WATCH, audience(), message(b"1")._replace(ref=3))
    assert not desk.journal.early_end_due(), "there is room"
    desk.journal.shortage = "short"
    for _ in range(2):
        assert desk.journal.roll_due() is None
        assert desk.journal.early_end_due()
        desk.journal.append(message(b"of this segment, and not written yet"))
        assert not desk.journal.early_end_due()
        desk.journal.commit()
        desk.settle()
        desk.journal.end_early()
        desk.journal.commit()
        desk.settle()
        assert not desk.journal.early_end_due(), "one is finished: that is folded first"
        command = desk.journal.roll_due()
        assert command is not None and command[-1] == "--make-room"
        roll(desk.journal.directory, int(command[5]))
        desk.journal.rolled()
    assert not desk.journal.early_end_due()
    desk.write(message(b"stays nowhere"))
    assert not desk.journal.early_end_due()
    desk.write(Row(0, 0, schema.ACK, b"mqtt", b"ann", ref=4, number=1))
    assert desk.journal.early_end_due()
    desk.close()
    desk = Desk(tmp_path)
    desk.journal.shortage = "short"
    assert desk.journal.early_end_due(), "a start finds what changed"
    desk.close()


def test_where_a_new_snapshot_cannot_be_opened_all_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roll compressed a segment that only the snapshot before tells the hub to leave alone."""
    desk = filled(tmp_path)
    *_, last = folded = bases(desk.journal.directory)[:-1]
    for base in folded:
        roll(desk.journal.directory, base)
        if base != last:
            desk.journal.rolled()

    def no_descriptor(*_: object) -> Path:
        raise OSError(errno.EMFILE, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(desk.journal.directory, "snapshot", no_descriptor)
        with pytest.raises(OSError, match="injected"):
            desk.journal.rolled()
        kept = desk.journal.read(7)
    assert kept is not None and kept.payload == b"kept"
    desk.journal.rolled()
    assert desk.journal.read(7) is not None
    desk.close()


def looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of a snapshot stay, at each look at the disk's room; it is short."""
    looks: list[int] = []

    def look(snapshot: int, stays: int, *_: object) -> str:
        assert snapshot >= stays
        looks.append(stays)
        return "short"

    monkeypatch.setattr(desk.journal.room, "look", look)
    return looks


def test_what_passes_through_is_in_no_snapshot_and_needs_no_room_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a small disk is short for as long as a publisher is quick, whatever it has left."""
    desk = Desk(tmp_path, segment_bytes=100_000)
    looks = looked_at(desk, monkeypatch)
    desk.write(ANN, WATCH, audience(), message(bytes(5_000))._replace(ref=3))
    for _ in range(40):
        desk.write(message(bytes(9_000)))
    desk.journal.no_room()
    stays = looks[-1]
    assert 5_000 < stays < 40_000, "one message waits; files have their beginnings"
    command = desk.journal.roll_due()
    assert command is not None
    roll(desk.journal.directory, int(command[5]))
    desk.journal.rolled()
    desk.journal.no_room()
    assert 5_000 < looks[-1] <= stays
    desk.write(*(message(bytes(9_000))._replace(ref=3) for _ in range(5)))
    desk.journal.no_room()
    assert looks[-1] > 45_000
    desk.close()
    desk = Desk(tmp_path, segment_bytes=100_000)
    before, looks = looks[-1], looked_at(desk, monkeypatch)
    desk.journal.no_room()
    assert looks[-1] > before, "after a start all that is not folded counts"
    desk.close()


def test_where_one_user_has_no_more_a_large_snapshot_is_not_made_for_each_segment(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, segment_bytes=10_000)
    journal = desk.journal
    for number in range(20):
        desk.write(message(bytes(9_000), b"room/%d" % number, retain=True))
    roll_all(desk)
    assert journal.roll_due() is None
    journal.room.wanted = True
    for number in range(2):
        desk.write(message(bytes(9_000), b"room/%d" % number, retain=True))
    assert journal.roll_due() is None, "it would be for each of the days on which that user waits"
    assert journal.early_end_due(), "but now and then: upkeep says how often"
    journal.end_early()
    assert not journal.early_end_due()
    journal.commit()
    desk.settle()
    command = journal.roll_due()
    assert command is not None and command[-1] == "--make-room"
    roll(journal.directory, int(command[5]))
    journal.rolled()
    desk.write(message(bytes(9_000), b"room/1", retain=True))
    assert journal.roll_due() is None and journal.early_end_due()
    desk.close()


def test_of_small_messages_a_snapshot_has_more_than_the_segments_and_that_is_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one user fills a disk for all, with its share: the next fold took what was left."""
    desk = Desk(tmp_path, segment_bytes=100_000)
    looks = looked_at(desk, monkeypatch)
    desk.write(JOBS)
    for first in range(0, 3_000, 100):
        desk.write(*(send(number) for number in range(first, first + 100)))
    desk.journal.no_room()
    command = desk.journal.roll_due()
    assert command is not None
    roll(desk.journal.directory, int(command[5]))
    desk.journal.rolled()
    directory = desk.journal.directory
    snapshot = directory.snapshot(directory.snapshots()[-1]).stat().st_size
    folded = [directory.segment(base) for base in bases(directory)[:-1]]
    assert snapshot > sum(path.stat().st_size for path in folded) * 5 // 4
    desk.journal.no_room()
    assert looks[-1] <= looks[-2] < looks[-1] * 5 // 4
    desk.close()


def test_what_is_taken_from_a_queue_at_once_is_in_no_snapshot_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, segment_bytes=100_000)
    looks = looked_at(desk, monkeypatch)

    def stays() -> int:
        desk.journal.no_room()
        return looks[-1]

    job = send(0)._replace(payload=bytes(9_000))
    seqs = [desk.write(job) for _ in range(18)]
    all_of_them = stays()
    for seq in seqs[-13:]:  # two segments
        desk.journal.gone(seq, 9_000)
    there = stays()
    assert all_of_them - 13 * 9_400 < there < all_of_them - 13 * 9_000
    seqs += [desk.write(job) for _ in range(14)]
    before = stays()
    desk.journal.gone(seqs[0], 9_000)
    assert before - 300 < stays() < before, "it waited for longer: the next fold knows of it"
    command = desk.journal.roll_due()
    assert command is not None
    desk.journal.gone(seqs[20], 9_000)
    assert stays() > before - 600, "it may be in the snapshot that is being written"
    desk.journal.gone(seqs[-1], 9_000)
    assert stays() < before - 9_000
    desk.close()


def test_a_segment_that_ended_by_itself_ends_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, segment_seconds=0.0)
    desk.write(ANN)
    desk.journal.shortage = "short"
    assert desk.journal.early_end_due(), "nobody writes the row that would begin the next one"
    segment = desk.journal.segment
    desk.journal.end_early()
    assert desk.journal.segment == segment
    desk.journal.commit()
    desk.settle()
    assert desk.journal.roll_due() is not None
    desk.close()


def test_the_reserve_is_cut_when_snapshots_are_much_smaller(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    reserve = desk.journal.directory.reserve
    with reserve.open("wb") as file:
        file.truncate(30 * MIB)
    roll(desk.journal.directory, 1)
    size = desk.journal.directory.reserve.stat().st_size
    assert RESERVE_BYTES < size < RESERVE_BYTES + 10_000
    os.truncate(reserve, 10 * MIB)
    roll(desk.journal.directory, 7)
    assert reserve.stat().st_size == 10 * MIB
    desk.close()


def test_what_a_killed_roller_left_unfinished_is_removed(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    left = desk.journal.directory.state / "00000000000000000005.rows.new"
    left.write_bytes(bytes(1000))
    roll(desk.journal.directory, 1)
    assert not left.exists() and desk.journal.directory.snapshots() == [6]
    desk.close()


def test_packing_anew_comes_after_what_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes; on a full disk it must not keep retention from its work."""
    desk = filled(tmp_path)
    directory = desk.journal.directory
    for base in (1, 7):
        roll(directory, base)
        desk.journal.rolled()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room in this test")

    monkeypatch.setattr("hubbub.journal.roll.repack", no_room)
    with pytest.raises(OSError, match="no room"):
        roll(directory, 10, keep_bytes=1)
    desk.close()
    assert directory.segments() == [10, 14]
    assert directory.snapshots() == [9, 13]


def open_files(desk: Desk) -> list[os.stat_result]:
    return [os.fstat(file.places.fd) for file in desk.journal._read.files]


def small_frames(path: Path) -> Desk:
    """A finished segment of many small frames, the beginning of the next one."""
    desk = Desk(path)
    for n in range(200):
        desk.write(message(b"%d" % n, b"kept/%d" % n, retain=True))
    desk.journal._full = True
    desk.write(message(b"200"))
    return desk


def test_after_a_roll_the_hub_has_no_file_open_that_another_took_the_place_of(
    tmp_path: Path,
) -> None:
    """On a small disk the old ones were half of it."""
    desk = small_frames(tmp_path)
    roll(desk.journal.directory, 1)
    assert [one.st_nlink for one in open_files(desk)] == [0, 1], "it was packed anew"
    desk.journal.rolled()
    assert [one.st_nlink for one in open_files(desk)] == [1, 1]
    for seq in (1, 77, 200, 201):
        kept = desk.journal.read(seq)
        assert kept is not None and kept.payload == b"%d" % (seq - 1)
    desk.write(message(b"on"))
    desk.close()
    assert payloads(tmp_path) == [b"%d" % n for n in range(201)] + [b"on"]


def test_a_roll_that_failed_behind_its_snapshot_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = filled(tmp_path)
    for base in (1, 7):
        roll(desk.journal.directory, base)
    desk.journal.rolled()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room in this test")

    monkeypatch.setattr("hubbub.journal.roll.compress", no_room)
    with pytest.raises(OSError, match="no room"):
        roll(desk.journal.directory, 10)
    assert desk.journal.directory.snapshots() == [9, 13], "the old ones make room first"
    desk.journal.rolled(complete=False)
    assert desk.journal._read.snapshot_seq == 13
    assert [file.first for file in desk.journal._read.files] == [10, 14]
    desk.close()


def test_a_roll_that_failed_before_its_snapshot_is_due_again(tmp_path: Path) -> None:
    desk = filled(tmp_path)
    due = desk.journal.roll_due()
    desk.journal.rolled(complete=False)
    again = desk.journal.roll_due()
    assert due is not None and again is not None and again[:14] == due[:14]
    desk.close()


@pytest.mark.parametrize("room", [True, False])
def test_a_roll_writes_nothing_anew_for_which_there_is_no_room_beside_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    desk = small_frames(tmp_path)
    directory = desk.journal.directory
    monkeypatch.setattr("hubbub.journal.roll._has_room", lambda *_: room)
    before = directory.segment(1).stat().st_size
    roll(directory, 1)
    assert (directory.segment(1).stat().st_size < before) == room, "packed anew"
    packed = directory.segment(1).stat().st_size
    desk.journal._full = True
    desk.write(message(b"201"))
    roll(directory, 201)
    assert len(directory.snapshots()) == 2
    with Content(directory.segment(1)) as content:
        header = content.header()
        assert header is not None and bool(header.sealed) == room, "compressed"
    assert (directory.segment(1).stat().st_size != packed) == room
    desk.close()


def full_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Two snapshots, a finished segment, and no room for a third snapshot beside them."""
    desk = filled(path)
    for base in (1, 7):
        roll(desk.journal.directory, base)
        desk.journal.rolled()
    desk.journal.directory.reserve.unlink(missing_ok=True)
    monkeypatch.setattr("hubbub.journal.roll._has_room", lambda *_: False)
    return desk


def test_on_a_full_disk_a_snapshot_takes_the_room_of_the_older_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = full_for(tmp_path, monkeypatch)
    directory = desk.journal.directory
    older = directory.snapshot(6).stat().st_ino
    roll(directory, 10)
    assert directory.snapshots() == [9, 13]
    assert directory.snapshot(13).stat().st_ino == older
    assert "takes the room of 00000000000000000006.rows" in capsys.readouterr().err
    desk.journal.rolled()
    desk.close()
    assert snapshot_rows(tmp_path)[1] == {7, 9, 11}


def test_a_hub_starts_when_not_even_that_was_room_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = full_for(tmp_path, monkeypatch)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room in this test")

    monkeypatch.setattr("hubbub.journal.roll._portion", no_room)
    with pytest.raises(OSError, match="no room"):
        roll(desk.journal.directory, 10)
    desk.journal.rolled(complete=False)
    assert desk.journal.directory.snapshots() == [9]
    desk.close()
    assert snapshot_rows(tmp_path)[1] == {7, 9, 11}


def test_the_only_snapshot_gives_its_room_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = filled(tmp_path)
    directory = desk.journal.directory
    roll(directory, 1)
    directory.reserve.unlink(missing_ok=True)
    monkeypatch.setattr("hubbub.journal.roll._has_room", lambda *_: False)
    roll(directory, 7)
    assert directory.snapshots() == [6, 9]
    desk.close()
