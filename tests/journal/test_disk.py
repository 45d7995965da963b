"""The writer thread: the file that is opened ahead, folders, `committed`, and trouble with each."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.core.limits import COMMIT_BYTES
from hubbub.errors import JournalError
from hubbub.journal import disk
from hubbub.journal.disk import AHEAD
from hubbub.journal.segments import Directory, committed_bytes
from tests.journal.rows import Desk, descriptors, flip, message, payloads


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PAUSES", (0.01,))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Every group is a segment."""
    made = Desk(tmp_path / "data", segment_seconds=0.0)
    yield made
    made.close()


def fails_once(
    monkeypatch: pytest.MonkeyPatch, call: str, concerns: Callable[..., bool], error: Exception
) -> list[tuple[object, ...]]:
    """The first call that concerns us fails; the list then has its arguments."""
    real = getattr(os, call)
    failed: list[tuple[object, ...]] = []

    def failing(*given: object) -> object:
        if concerns(*given) and not failed:
            failed.append(given)
            raise error
        return real(*given)

    monkeypatch.setattr(os, call, failing)
    return failed


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def all_there(desk: Desk, count: int) -> None:
    """For readers, for the hub that runs, and for the next one."""
    assert payloads(desk.journal.directory.path) == [b"%d" % n for n in range(count)]
    for seq in range(1, count + 1):
        read = desk.journal.read(seq)
        assert read is not None and read.payload == b"%d" % (seq - 1)
    desk.close()
    again = Desk(desk.journal.directory.path)
    assert again.journal.reports == [] and again.journal.position == count
    again.close()


def test_without_descriptors_the_next_segment_is_begun_all_the_same(desk: Desk) -> None:
    desk.write(message(b"0"))
    until((desk.journal.directory.log / AHEAD).exists)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open("/", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        assert desk.write(message(b"1")) == 2
        desk.journal.append(message(b"2"))
        desk.journal.commit()
        until(lambda: desk.journal.trouble)
        assert "Too many open files" in desk.journal.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    desk.settle()
    assert desk.journal.trouble == "" and desk.journal.directory.segments() == [1, 2, 3]
    all_there(desk, 3)


def test_a_file_opened_ahead_of_which_the_sync_failed_is_not_used(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(message(b"0"))
    until((desk.journal.directory.log / AHEAD).exists)
    ahead = desk.journal.directory.log / AHEAD
    suspect = ahead.stat().st_ino
    error = OSError(errno.EIO, "injected")
    failed = fails_once(monkeypatch, "fsync", lambda fd: os.fstat(fd).st_ino == suspect, error)
    held = os.open(ahead, os.O_RDONLY)  # else the system may give the next file its number
    desk.write(message(b"1"))
    assert failed and desk.journal.directory.segment(2).stat().st_ino != suspect
    os.close(held)
    all_there(desk, 2)


def test_a_folder_of_which_the_sync_failed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may not last: the file is begun again, and the rows are promised only then."""
    desk.write(message(b"0"))
    folder = desk.journal.directory.log.stat().st_ino
    inodes: list[int] = []

    def concerns(fd: int) -> bool:
        if os.fstat(fd).st_ino != folder:
            return False
        inodes.append(desk.journal.directory.segment(2).stat().st_ino)
        return desk.durable.empty()

    ahead = (desk.journal.directory.log / AHEAD).exists
    until(ahead)
    before = descriptors()
    failed = fails_once(monkeypatch, "fsync", concerns, OSError(errno.EIO, "injected"))
    desk.write(message(b"1"))
    assert failed and len(set(inodes)) == 2, "another file has the name"
    until(ahead)
    assert descriptors() == before + 1, "the first one is closed"
    all_there(desk, 2)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_rename_that_fails(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(disk, "FULL_PAUSE", 0.01)
    error = OSError(number, "injected")
    assert fails_once(monkeypatch, "replace", lambda *paths: True, error) == []
    desk.write(message(b"0"))
    desk.write(message(b"1"))
    all_there(desk, 2)


def test_the_file_opened_ahead_is_tidied_away(desk: Desk) -> None:
    """By somebody who removes what ends with .new."""
    desk.write(message(b"0"))
    until((desk.journal.directory.log / AHEAD).exists)
    os.unlink(desk.journal.directory.log / AHEAD)
    desk.write(message(b"1"))
    assert desk.journal.trouble == ""
    all_there(desk, 2)


def test_what_a_killed_hub_had_opened_ahead_is_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"0"))
    desk.close()
    assert not (desk.journal.directory.log / AHEAD).exists()
    (desk.journal.directory.log / AHEAD).write_bytes(b"a header that never was one" * 100)
    desk = Desk(tmp_path, segment_seconds=0.0)
    assert desk.journal.reports == []
    desk.write(message(b"1"))
    desk.write(message(b"2"))
    all_there(desk, 3)


@pytest.mark.parametrize("call", ["pwrite", "open", "fsync"])
def test_the_thread_outlives_a_want_of_memory(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failed = fails_once(monkeypatch, call, lambda *_: True, MemoryError())
    desk.write(message(b"0"))
    desk.write(message(b"1"))
    assert failed
    all_there(desk, 2)


def test_the_loop_is_told_again_if_there_was_no_memory_for_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def on_durable(seq: int) -> None:
        told.append(seq)
        if len(told) == 1:
            raise MemoryError
        desk.durable.put(seq)

    monkeypatch.setattr(desk.journal.disk, "on_durable", on_durable)
    desk.write(message(b"0"))
    assert told == [1, 1]
    all_there(desk, 1)


# How far the journal may be read


def committed(path: Path, data: bytes | bytearray) -> int:
    directory = Directory(path)
    directory.log.mkdir(exist_ok=True)
    (directory.log / "committed").write_bytes(data)
    return directory.committed()


def test_the_halves_are_written_in_turns(desk: Desk) -> None:
    path = desk.journal.directory.log / "committed"
    halves = []
    for number in range(4):
        desk.write(message(b"%d" % number))
        data = path.read_bytes()
        assert len(data) == 32
        halves.append((data[:16], data[16:]))
    expected = [committed_bytes(seq) for seq in range(5)]
    pairs = zip(expected, expected[1:], strict=False)
    assert list(map(frozenset, halves)) == list(map(frozenset, pairs))
    assert [before[0] == after[0] for before, after in zip(halves, halves[1:], strict=False)] in (
        [True, False, True], [False, True, False],
    )  # fmt: skip


def test_a_write_that_was_cut_leaves_the_number_before(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is of the same half, however many there are."""
    desk.write(message(b"0"))
    real, directory = os.pwrite, desk.journal.directory
    places: list[int] = []
    inode = (directory.log / "committed").stat().st_ino

    def cut(fd: int, data: bytes, at: int) -> int:
        if os.fstat(fd).st_ino == inode and len(places) < 3:
            places.append(at)
            real(fd, bytes(data)[:5] + b"\xff\xff\xff", at)
            assert directory.committed() == 1
            raise OSError(errno.EIO, "injected")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", cut)
    desk.write(message(b"1"))
    assert len(places) == 3 and len(set(places)) == 1
    assert directory.committed() == 2


def test_every_flipped_byte_of_one_half_leaves_the_other(tmp_path: Path) -> None:
    whole = committed_bytes(300) + committed_bytes(299)
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x55
        behind = 12 <= at % 16  # of that nothing depends
        assert committed(tmp_path, data) == (300 if at >= 16 or behind else 299), at


@pytest.mark.parametrize("size", range(33))
def test_a_file_that_was_cut(tmp_path: Path, size: int) -> None:
    whole = committed_bytes(300) + committed_bytes(299)
    if 0 < size < 12 and size != 8:
        with pytest.raises(JournalError, match="works it out from the rows"):
            committed(tmp_path, whole[:size])
    else:
        assert committed(tmp_path, whole[:size]) == (300 if size else 0)


def test_both_halves_are_damaged_and_the_rows_say_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"0"), message(b"1"))
    desk.close()
    path = desk.journal.directory.log / "committed"
    for at in (0, 16):
        flip(path, at)
    with pytest.raises(JournalError, match="is damaged"):
        desk.journal.directory.committed()
    desk = Desk(tmp_path)
    assert desk.journal.position == desk.journal.directory.committed() == 2
    (report,) = desk.journal.reports
    assert "committed is damaged" in report
    desk.close()


def test_the_file_of_an_older_hub(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"0"))
    desk.write(message(b"1"))
    desk.close()
    (desk.journal.directory.log / "committed").write_bytes((2).to_bytes(8, "little"))
    assert payloads(tmp_path) == [b"0", b"1"]
    desk = Desk(tmp_path)
    assert desk.journal.position == 2 and desk.journal.reports == []
    desk.write(message(b"2"))
    assert len((desk.journal.directory.log / "committed").read_bytes()) == 32
    all_there(desk, 3)


@pytest.fixture
def unsynced(tmp_path: Path) -> Iterator[Desk]:
    """Nothing is synced, and the first segment has begun, with one row."""
    made = Desk(tmp_path / "data", durability="os")
    made.write(message(b"0"))
    yield made
    made.close()


def test_where_nothing_is_synced_the_loop_writes_at_once(unsynced: Desk) -> None:
    journal = unsynced.journal
    journal.append(message(b"1"))
    assert journal.commit(here=True) and not journal.flying and journal.durable == 2
    assert unsynced.durable.empty(), "the thread had nothing to do"
    assert unsynced.write(message(b"2")) == 3, "nor has it lost its place"
    all_there(unsynced, 3)


@pytest.mark.parametrize("which", ["the file of the rows", "committed"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), MemoryError()])
def test_what_the_loop_could_not_write_is_the_threads(
    unsynced: Desk, monkeypatch: pytest.MonkeyPatch, which: str, error: Exception
) -> None:
    journal = unsynced.journal
    fd = journal.disk._committed if which == "committed" else journal.disk._fd
    failed = fails_once(monkeypatch, "pwrite", lambda given, *_: given == fd, error)
    journal.append(message(b"1"))
    assert not journal.commit(here=True) and failed and journal.flying
    unsynced.settle()
    journal.append(message(b"2"))
    assert journal.commit(here=True)
    all_there(unsynced, 3)


@pytest.mark.pure
def test_the_loop_leaves_alone_what_may_take_long(
    unsynced: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = unsynced.journal
    journal.append(message(b"1" * (COMMIT_BYTES + 1)))
    assert not journal.commit(here=True)
    unsynced.settle()
    monkeypatch.setattr(disk, "SLOW", -1.0)  # this write is, and so the next ones are not tried
    for payload, here in ((b"2", True), (b"3", False)):
        journal.append(message(payload))
        assert journal.commit(here=True) is here
    unsynced.settle()
    journal.disk._rests = 0.0
    journal.disk.trouble = "it is in trouble"
    journal.append(message(b"4"))
    assert not journal.commit(here=True)
    unsynced.settle()
    synced = Desk(tmp_path / "synced")
    synced.write(message(b"0"))
    synced.journal.append(message(b"1"))
    assert not synced.journal.commit(here=True)
    synced.settle()
    synced.close()
