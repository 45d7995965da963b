"""The journal of a hub: what is durable when, what a start finds, and what trouble does."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.limits import COMMIT_BYTES, GROUP_ROWS, GROWTH_BEHIND_BYTES
from hubbub.core.log import Log
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.session import Silent
from hubbub.core.state import lasting_properties
from hubbub.errors import JournalError
from hubbub.journal import disk, gathered, group, intake, readback
from hubbub.journal.content import HEADER_BYTES, Header
from hubbub.journal.segments import Directory, committed_bytes
from hubbub.journal.writer import LATEST, LATEST_BYTES
from hubbub.schema import Row
from tests.journal.rows import SOURCE, Desk, end_of, frames_of, message, payloads, places


class Gate:
    """A sync that waits until it is let through, and may fail first."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def sync(self, fd: int) -> None:
        self.entered.release()
        self.open.acquire(timeout=10)
        if self.failures:
            raise OSError(self.failures.pop(0), "injected")
        os.fdatasync(fd)


def run_of(*payloads: bytes, number: int = 0) -> Run:
    sender = Silent("mqtt", "ann", cast(Any, None))
    run = Run(sender, cast(Any, None), 1, len(payloads), SPELLED, b"", False)
    run.replace([Message("a/b", payload, 1, protocol="mqtt", client="ann") for payload in payloads])
    run.number = number
    return run


class Late(Clock):
    """A quarter of an hour later than another one."""

    def __init__(self, before: Clock) -> None:
        super().__init__()
        self.before = before

    def stamp(self) -> int:
        return self.before.stamp() + 900_000_000


def folded(path: Path) -> tuple[list[Row], Desk]:
    rows: list[Row] = []
    return rows, Desk(path, rows.append)


# Appending and committing


def test_what_was_read_back_last_is_not_made_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal = desk.journal
    for number in range(2 * LATEST):
        journal.append(message(b"%d" % number))
    large = journal.append(message(bytes(LATEST_BYTES + 1)))
    first = journal.read(1)
    assert [one.payload for one in map(journal.read, range(1, 10)) if one] == [
        b"%d" % number for number in range(9)
    ]
    assert journal.read(1) is first, "others were read in between"
    whole = journal.read(large)
    assert journal.read(large) is whole and journal.read(1) is not first
    for number in range(1, 2 * LATEST):
        journal.read(number)
    assert len(journal._latest) <= LATEST
    desk.close()


@pytest.mark.pure
def test_rows_are_numbered_and_stamped(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal = desk.journal
    assert [journal.append(message(b"x")) for _ in range(3)] == [1, 2, 3]
    run = run_of(b"p", b"q", number=7)
    assert journal.append_run(run, 3) == 4
    assert [one.seq for one in run.messages()] == [4, 5]
    assert (journal.position, journal.durable, journal.pending) == (5, 0, 5)
    journal.commit()
    assert (journal.pending, journal.flying) == (0, True)
    desk.settle()
    assert (journal.durable, journal.flying) == (5, False)
    desk.close()
    rows, desk = folded(tmp_path)
    found = [(row.payload, row.ref, row.number) for row in rows[3:]]
    assert found == [(b"p", 3, 7), (b"q", 3, 7)]
    desk.close()


def test_a_row_that_cannot_be_written_is_not_taken(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal = desk.journal
    journal.append(message(b"1", retain=True))
    for wrong in ({"qos": 1.5}, {"number": 1.5}, {"retain": 7}):
        # Compiled, what has another type is refused by the type.
        with pytest.raises((ValueError, TypeError), match="cannot be written|expected"):
            journal.append(message(b"wrong")._replace(**wrong))
    assert (journal.position, journal.pending) == (1, 1)
    journal.append(message(b"2", retain=True))
    journal.commit()
    desk.settle()
    desk.close()
    rows, desk = folded(tmp_path)
    assert [row.payload for row in rows] == [b"1", b"2"]
    desk.close()


def test_what_arrives_during_a_sync_is_the_next_group(tmp_path: Path) -> None:
    gate = Gate()
    desk = Desk(tmp_path, sync=gate.sync)
    journal = desk.journal
    journal.append(message(b"one"))
    journal.commit()
    gate.entered.acquire()
    assert b"one" in journal.directory.segment(1).read_bytes()  # the sync comes after the write
    journal.append(message(b"two"))
    journal.append(message(b"three"))
    journal.commit()
    assert journal.pending == 2 and journal.durable == 0 and desk.durable.empty()
    assert payloads(tmp_path) == []
    gate.open.release(9)
    desk.settle()
    assert journal.durable == 1
    journal.commit()
    desk.settle()
    assert journal.durable == 3
    assert payloads(tmp_path) == [b"one", b"two", b"three"]
    desk.close()


def test_it_says_when_enough_has_gathered(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal, now = desk.journal, desk.journal.clock.now()
    assert not journal.due(now + 9)
    journal.append(message(b"x"))
    assert not journal.due(now) and journal.due(now + 9)
    for _ in range(999):
        journal.append(message(b""))
    assert journal.due(now)
    desk.write()
    journal.append(message(bytes(300_000)))
    assert journal.due(journal.clock.now())
    desk.close()


def test_a_large_group_becomes_several_frames(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(*[message(b"%d" % n) for n in range(2500)])
    desk.write(*[message(bytes(3 << 20)) for _ in range(3)])
    assert len(places(desk.journal.directory, 1)) == 3 + 3
    assert desk.journal.read(2400) is not None
    desk.close()
    assert len(payloads(tmp_path)) == 2503


def test_durability_os_does_not_sync(tmp_path: Path) -> None:
    desk = Desk(tmp_path, durability="os", sync=Gate(errno.EIO).sync)
    desk.write(message(b"x"))
    desk.close()
    assert payloads(tmp_path) == [b"x"]


def test_closing_writes_what_is_pending_behind_what_is_on_its_way(tmp_path: Path) -> None:
    gate = Gate()
    gate.open.release(9)
    desk = Desk(tmp_path, sync=gate.sync)
    desk.journal.append(message(b"one"))
    desk.journal.commit()
    desk.journal.append(message(b"two"))
    desk.close()
    assert desk.journal.durable == 2
    desk.journal.arrived(1)
    assert payloads(tmp_path) == [b"one", b"two"]


# Reading


@pytest.mark.pure
def test_a_message_is_read_wherever_it_is(tmp_path: Path) -> None:
    gate = Gate()
    gate.open.release(9)
    desk = Desk(tmp_path, sync=gate.sync)
    journal = desk.journal
    desk.write(message(b"disk"), Row(0, 0, schema.ACK))
    while gate.open.acquire(blocking=False):
        pass
    journal.append(message(b"flying"))
    journal.commit()
    journal.append(message(b"pending"))
    found = [journal.read(seq) for seq in range(6)]
    texts = [one.payload if one else None for one in found]
    assert texts == [None, b"disk", None, b"flying", b"pending", None]
    assert journal.read(journal.keep(run_of(b"kept"))) is not None
    gate.open.release(9)
    desk.close()
    _, desk = folded(tmp_path)
    read = desk.journal.read(1)
    assert read is not None and (read.topic, read.payload, read.seq) == ("room/temp", b"disk", 1)
    desk.close()


def test_the_cache_of_frames_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "FRAME_CACHE_BYTES", 10_000)
    desk = Desk(tmp_path)
    for n in range(20):
        desk.write(message(bytes(1000) + b"%d" % n))
    for _ in range(2):
        for seq in range(1, 21):
            read = desk.journal.read(seq)
            assert read is not None and read.payload.endswith(b"%d" % (seq - 1))
    assert desk.journal._read._cached <= 10_000
    desk.close()


@pytest.mark.pure
def test_what_was_written_last_is_read_without_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    for number in range(3):
        desk.write(message(b"%d" % number))
    desk.write(message(bytes(COMMIT_BYTES)))
    monkeypatch.setattr(desk.journal._read, "_frame", lambda index, seq: None)
    found = [desk.journal.read(seq) for seq in (1, 2, 3)]
    assert [read and read.payload for read in found] == [b"0", b"1", b"2"]
    assert desk.journal.read(4) is None, "large ones take no memory"
    desk.close()


def test_damage_met_while_reading_is_reported_and_the_message_gone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"precious"))
    path = desk.journal.directory.segment(1)
    path.write_bytes(path.read_bytes().replace(b"precious", b"precioux"))
    desk.journal._read.recent.clear()  # as after some more groups
    assert desk.journal.read(1) is None
    assert "row 1 is lost" in desk.journal.reports[0]
    desk.close()


# Starting


def test_a_start_folds_only_frames_that_change_state(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"passing"))
    desk.write(message(b"passing too"), message(b"kept", retain=True))
    desk.write(Row(0, 0, schema.ACK))
    desk.close()
    rows, desk = folded(tmp_path)
    assert [row.seq for row in rows] == [2, 3, 4]
    assert desk.write(message(b"next")) == 5
    assert desk.journal.clock.stamp() >= rows[-1].time
    desk.close()
    assert len(payloads(tmp_path)) == 5


def test_a_start_says_how_far_it_is(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for number in range(5):
        desk.write(message(b"%d" % number, retain=True))
    desk.close()
    done: list[int] = []
    desk = Desk(tmp_path, progress=done.append)
    assert len(done) == 5
    assert sum(done) == end_of(desk.journal.directory, 1) - HEADER_BYTES
    desk.close()


CHILD = """
import sys, pathlib
from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.schema import Row, PUBLISH
durable = __import__("queue").SimpleQueue()
journal = Journal(pathlib.Path(sys.argv[1]), Clock(), "disk", durable.put)
journal.recover(lambda batch: None)
while True:
    for n in range(17):
        journal.append(Row(0, 0, PUBLISH, retain=True, payload=b"%d" % (journal.position + 1)))
    journal.commit()
    journal.arrived(durable.get())
    print(journal.durable, flush=True)
"""


def test_kill_9_loses_nothing_that_was_said_to_be_durable(tmp_path: Path) -> None:
    for rounds in (1, 40):
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        with subprocess.Popen(command, cwd=SOURCE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            durable = [int(child.stdout.readline()) for _ in range(rounds)][-1]
            child.send_signal(signal.SIGKILL)
            durable = max([durable, *map(int, child.stdout.read().split())])
        rows, desk = folded(tmp_path)
        assert desk.journal.position >= durable
        assert [int(row.payload) for row in rows] == list(range(1, desk.journal.position + 1))
        desk.close()
    assert [int(one) for one in payloads(tmp_path)] == list(range(1, desk.journal.position + 1))


@pytest.mark.parametrize(("zeros", "size"), [(b"", 500), (bytes(9000), 1320)])
def test_a_torn_tail_is_cut_and_its_numbers_are_used_again(
    tmp_path: Path, zeros: bytes, size: int
) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one", retain=True))
    desk.close()
    path = Directory(tmp_path).segment(1)
    whole = path.read_bytes()[: end_of(Directory(tmp_path), 1)]
    path.write_bytes(whole + whole[HEADER_BYTES : HEADER_BYTES + 500] + zeros)
    rows, desk = folded(tmp_path)
    assert [row.payload for row in rows] == [b"one"]
    assert desk.journal.reports == [f"{path.name}: an unfinished write of {size} bytes was cut"]
    assert desk.write(message(b"two")) == 2
    desk.close()
    assert payloads(tmp_path) == [b"one", b"two"]


@pytest.mark.pure
@pytest.mark.parametrize("zeros", [b"", bytes(9000)])
def test_an_unfinished_group_is_cut_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: bytes
) -> None:
    """At any byte: what one publish made, its row and those of the queues it enters, stays one."""
    monkeypatch.setattr(gathered, "COMMIT_ROWS", 2)
    desk = Desk(tmp_path / "data")
    desk.write(message(b"before", retain=True))
    before = end_of(desk.journal.directory, 1)
    committed = (desk.journal.directory.log / "committed").read_bytes()
    desk.write(*[message(b"%d" % number, retain=True) for number in range(5)])
    directory = desk.journal.directory
    desk.close()
    ends = [at + size for at, size in places(directory, 1)]
    data = directory.segment(1).read_bytes()
    assert len(ends) == 4 and ends[0] == before
    for cut in [*ends[:-1], *(end + 99 for end in ends[:-1]), ends[-1] - 300]:
        directory.segment(1).write_bytes(data[:cut] + zeros)
        (directory.log / "committed").write_bytes(committed)
        rows, desk = folded(tmp_path / "data")
        assert [row.payload for row in rows] == [b"before"]
        assert desk.journal.position == 1
        assert not any("lost" in text for text in desk.journal.reports)
        desk.close()
    directory.segment(1).write_bytes(data)
    rows, desk = folded(tmp_path / "data")
    assert len(rows) == 6
    desk.close()


def test_a_frame_is_durable_before_the_next_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "COMMIT_ROWS", 2)
    ends: list[int] = []
    desk = Desk(tmp_path, sync=lambda fd: ends.append(end_of(Directory(tmp_path), 1)))
    desk.write(*[message(b"%d" % number) for number in range(5)])
    assert ends == [at + size for at, size in places(desk.journal.directory, 1)]
    desk.close()


def test_a_group_is_no_more_than_the_loop_makes_at_once(tmp_path: Path) -> None:
    """What waits beyond goes with the next ones, in order."""
    desk = Desk(tmp_path)
    for number in range(2 * GROUP_ROWS + 1):
        desk.journal.append(message(b"%d" % number))
    for handed in (GROUP_ROWS, 2 * GROUP_ROWS + 1):  # one row is no group of its own
        desk.journal.commit()
        assert desk.journal.handed == handed
        assert desk.journal.pending == 2 * GROUP_ROWS + 1 - handed
        for seq in (1, handed, min(handed + 1, desk.journal.position)):
            found = desk.journal.read(seq)
            assert found is not None and found.payload == b"%d" % (seq - 1)
        desk.settle()
    desk.journal.append(message(b"last"))
    for number in range(GROUP_ROWS):
        desk.journal.append(message(b"more %d" % number))
    desk.close()  # all of it
    assert len(payloads(tmp_path)) == 3 * GROUP_ROWS + 2


def test_what_waits_for_the_disk_goes_onto_the_shelf(tmp_path: Path) -> None:
    """A group's worth each, in order; no turn asks for it but the one that fills one."""
    desk = Desk(tmp_path)
    journal = desk.journal
    journal.append(message(b"first"))
    journal.commit()
    for number in range(3 * GROUP_ROWS):
        assert not journal.pressing()
        journal.append(message(b"%d" % number))
        if journal.pressing():
            assert not journal.commit()  # one is on its way: it only tidies up
    size = journal.pending_bytes
    assert journal.pending == 3 * GROUP_ROWS and size > journal.pending
    for seq in (1, 2, GROUP_ROWS + 2, 3 * GROUP_ROWS + 1):
        found = journal.read(seq)
        assert found is not None and found.payload == (b"%d" % (seq - 2) if seq > 1 else b"first")
    for handed in (1, *(1 + n * GROUP_ROWS for n in (1, 2, 3))):
        assert journal.handed == handed
        desk.settle()
        assert journal.due(0.0) == (journal.pending > 0)
        journal.commit()
    assert (journal.pending, journal.pending_bytes) == (0, 0)
    desk.close()
    assert payloads(tmp_path) == [b"first", *(b"%d" % number for number in range(3 * GROUP_ROWS))]


def test_what_a_start_makes_of_very_many_is_many_groups(tmp_path: Path) -> None:
    """Of clients with wills, of a hub that was killed: each group was taken out of all the rows,
    and its frames held against all that belongs together.
    """
    many, rows = 4 * GROUP_ROWS, []
    for number in range(many):
        client, lasting = b"%d" % number, lasting_properties(300)
        rows.append(Row(0, 0, schema.CONNECT, b"mqtt", client, properties=lasting))
        rows.append(Row(0, 0, schema.WILL, b"mqtt", client, b"w", payload=b"gone"))
    desk = Desk(tmp_path / "data")
    desk.write(*rows)
    desk.close()
    broker = Broker(Clock(), Log(Clock()))
    desk = Desk(tmp_path / "data", broker.state.apply)
    journal, before = desk.journal, desk.journal.position
    broker.log = journal
    broker.recover([])
    assert journal.position - before > 2 * many, "each has an end and a will that waits"
    while journal.pending:
        journal.commit()
        assert journal.handed - before <= 2 * GROUP_ROWS, "a group, and not much more"
        before = journal.handed
        desk.settle()
    desk.close()



@pytest.mark.pure
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["commit", "arrive", "later"]))))
def test_rows_lie_in_the_segment_in_which_they_were_appended(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[int | str],
) -> None:
    """However much waits when a segment ends; and what belongs together is one frame."""
    monkeypatch.setattr(gathered, "COMMIT_ROWS", 2)
    monkeypatch.setattr(group, "GROUP_ROWS", 4)
    monkeypatch.setattr(group, "COMMIT_ROWS", 2)
    monkeypatch.setattr(intake, "GROUP_ROWS", 4)
    path = tmp_path_factory.mktemp("journal")
    desk = Desk(path, segment_bytes=6_000)
    journal, segments, belong = desk.journal, {}, []
    for step in [*steps, 3, "commit", "arrive", "commit"]:
        if isinstance(step, int):
            first = journal.position + 1
            for _ in range(step):
                segment = journal.segment
                segments[journal.append(message(b"x", retain=True))] = segment
            if step % 3 == 0:
                journal.together(first + 1)  # a part of what belongs together, of who made it
                journal.together(first)
                belong.append((first, journal.position))
        elif step == "commit":
            journal.commit()
        elif step == "later":
            journal.clock = Late(journal.clock)
        elif journal.flying:
            desk.settle()
    if journal.flying:
        desk.settle()
    last = journal.position
    desk.close()
    directory, found = Directory(path), dict[int, int]()
    for first, following in directory.spans():
        for frame_found in frames_of(directory.segment(first), following):
            for seq in range(frame_found.first, frame_found.last + 1):
                found[seq] = first
            for begins, ends in belong:
                assert not begins < frame_found.first <= ends
    assert list(found) == list(range(1, last + 1))
    files = sorted(set(found.values()))
    assert [files.index(found[seq]) for seq in found] == [segments[seq] for seq in found]


def test_numbers_that_were_seen_are_never_used_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one", retain=True))
    desk.write(message(b"two", retain=True))
    desk.close()
    directory = Directory(tmp_path)
    os.truncate(directory.segment(1), places(directory, 1)[1][0])
    _, desk = folded(tmp_path)
    assert desk.journal.reports == ["rows 2 to 2 are lost"]
    assert desk.write(message(b"three", retain=True)) == 3
    desk.close()
    rows, desk = folded(tmp_path)
    assert [row.seq for row in rows] == [1, 3]
    desk.close()
    assert payloads(tmp_path, allow_loss=True) == [b"one", b"three"]
    with pytest.raises(JournalError, match="rows 2 to 2 are lost"):
        payloads(tmp_path)


def test_damage_in_the_middle_loses_that_frame_and_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for text in (b"one", b"two", b"three"):
        desk.write(message(text, retain=True))
    desk.close()
    path = Directory(tmp_path).segment(1)
    path.write_bytes(path.read_bytes().replace(b"two", b"twx"))
    rows, desk = folded(tmp_path)
    assert [row.payload for row in rows] == [b"one", b"three"]
    assert [report for report in desk.journal.reports if "damaged" in report]
    assert desk.journal.reports[-1] == "rows 2 to 2 are lost"
    assert desk.write(message(b"four")) == 4
    desk.close()


# Trouble


def test_after_a_failed_sync_a_new_file_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PAUSES", (0.01,))
    gate = Gate()
    gate.open.release(99)
    desk = Desk(tmp_path, sync=gate.sync)
    desk.write(message(b"one"))
    gate.failures = [errno.EIO, errno.EIO]
    desk.write(message(b"two"))
    assert desk.journal.trouble == ""
    desk.write(message(b"three"))
    assert desk.journal.directory.segments() == [1, 2]
    assert [one.base for one in desk.journal._read.files] == [1, 1]
    assert desk.journal.segment == 0 and desk.journal.roll_due() is None
    assert desk.journal.read(2) is not None
    desk.close()
    assert payloads(tmp_path) == [b"one", b"two", b"three"]
    _, desk = folded(tmp_path)
    assert desk.journal.reports == [] and desk.journal.position == 3
    assert desk.write(message(b"four")) == 4
    desk.close()


def test_a_sync_that_fails_on_the_first_group_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PAUSES", (0.01,))
    gate = Gate(errno.EIO)
    gate.open.release(99)
    desk = Desk(tmp_path, sync=gate.sync)
    desk.write(message(b"one"))
    desk.close()
    assert payloads(tmp_path) == [b"one"]


def test_a_sync_that_fails_on_the_first_group_of_a_file_that_was_found_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a crash leaves it that came between the header and the first rows."""
    monkeypatch.setattr(disk, "PAUSES", (0.01,))
    desk = Desk(tmp_path)
    desk.write(message(b"one"))
    desk.close()
    Directory(tmp_path).segment(2).write_bytes(Header(2, 1, 2).encode())
    gate = Gate()
    gate.open.release(99)
    desk = Desk(tmp_path, sync=gate.sync)
    gate.failures = [errno.EIO]
    desk.write(message(b"two"))
    read = [desk.journal.read(seq) for seq in (1, 2)]
    assert [one.payload if one else None for one in read] == [b"one", b"two"]
    assert [one.first for one in desk.journal._read.files] == [1, 2]
    desk.close()
    assert payloads(tmp_path) == [b"one", b"two"]


def test_the_trouble_is_said_while_it_lasts(tmp_path: Path) -> None:
    gate = Gate(errno.EIO)
    desk = Desk(tmp_path, sync=gate.sync)
    desk.journal.append(message(b"one"))
    desk.journal.commit()
    gate.open.release()
    gate.entered.acquire()
    gate.entered.acquire()  # the second try
    assert desk.journal.trouble == "the journal cannot be written: injected"
    assert desk.durable.empty()
    gate.open.release(9)
    desk.settle()
    assert desk.journal.trouble == ""
    desk.close()


def test_a_disk_that_hangs_is_told_of_as_long_as_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No call fails, and none comes back: nothing else would say why nobody is answered."""
    gate = Gate()
    desk = Desk(tmp_path, sync=gate.sync)
    desk.journal.append(message(b"one"))
    desk.journal.commit()
    gate.entered.acquire()
    desk.journal.watch()
    assert not desk.journal.stalled and desk.journal.complaint() == ""
    desk.journal._launched -= 6.0
    desk.journal.watch()
    desk.journal.watch()
    assert desk.journal.stalled
    assert desk.journal.complaint() == "the disk has not taken rows for 6 s"
    gate.open.release(9)
    desk.settle()
    desk.journal.watch()
    assert not desk.journal.stalled and desk.journal.complaint() == ""
    assert [one.message for one in caplog.records] == [
        "journal: the disk has not taken rows for 6 s", "journal: the disk takes rows again"
    ]  # fmt: skip
    desk.close()


def test_closing_in_trouble_ends_and_promises_nothing(tmp_path: Path) -> None:
    gate = Gate(*[errno.EIO] * 99)
    gate.open.release(99)
    desk = Desk(tmp_path, sync=gate.sync)
    desk.journal.append(message(b"one"))
    desk.close()
    assert desk.journal.durable == 0 and desk.durable.empty()
    rows, desk = folded(tmp_path)
    assert rows == []
    desk.close()


@contextmanager
def no_file_above(limit: int) -> Iterator[None]:
    """What a full disk looks like to a writer: a short write, then an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.pure
def test_a_full_disk_stops_acknowledgements_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FULL_PAUSE", 0.02)
    desk = Desk(tmp_path)
    desk.write(message(b"one"))
    size = end_of(desk.journal.directory, 1)
    tries = threading.Semaphore(0)
    monkeypatch.setattr(desk.journal.disk, "_retreat", counted(desk.journal.disk._retreat, tries))
    with no_file_above(size + 1000):
        desk.journal.append(message(bytes(50_000)))
        desk.journal.commit()
        for _ in range(3):
            assert tries.acquire(timeout=10)
        assert desk.durable.empty()
        assert "File too large" in desk.journal.trouble
    desk.settle()
    desk.write(message(b"three"))
    assert desk.journal.directory.segments() == [1]
    desk.close()
    assert payloads(tmp_path) == [b"one", bytes(50_000), b"three"]


def test_what_fits_on_a_full_disk_is_written_though_zeros_do_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one"))
    directory = desk.journal.directory
    size = directory.segment(1).stat().st_size
    with no_file_above(size + 3000):
        while end_of(directory, 1) < size + 1000:
            desk.write(message(b"more"))
            assert desk.journal.trouble == ""
    desk.write(message(b"last"))
    assert directory.segment(1).stat().st_size > size + 3000
    desk.close()
    assert {payload: payloads(tmp_path).count(payload) for payload in (b"one", b"last")} == {
        b"one": 1, b"last": 1
    }  # fmt: skip


def test_a_segment_grows_in_steps(tmp_path: Path) -> None:
    """A sync of a file that keeps its size is faster."""
    sizes: list[int] = []

    def sync(fd: int) -> None:
        sizes.append(os.fstat(fd).st_size)
        os.fdatasync(fd)

    desk = Desk(tmp_path, sync=sync, segment_bytes=300_000)
    for _ in range(100):
        desk.write(message(bytes(1000)))
    assert len(set(sizes)) < 8 and max(sizes) == 300_000
    desk.close()
    desk = Desk(tmp_path, durability="os")
    before = desk.journal.directory.segment(1).stat().st_size
    desk.write(message(bytes(1_000_000)))
    directory = desk.journal.directory
    assert directory.segment(1).stat().st_size == end_of(directory, 1) > before
    desk.close()
    assert len(payloads(tmp_path)) == 101


def test_behind_a_large_frame_there_are_no_zeros(tmp_path: Path) -> None:
    """A flood would be written twice for few syncs; small groups take their place as before."""
    desk = Desk(tmp_path)
    segment = desk.journal.directory.segment(1)
    desk.write(message(bytes(GROWTH_BEHIND_BYTES)))
    assert segment.stat().st_size == end_of(desk.journal.directory, 1)
    desk.write(message(b"small"))
    assert segment.stat().st_size > end_of(desk.journal.directory, 1) + GROWTH_BEHIND_BYTES
    desk.close()
    assert len(payloads(tmp_path)) == 2


def test_a_start_goes_on_where_the_zeros_begin(tmp_path: Path) -> None:
    for number in range(5):
        desk = Desk(tmp_path)
        desk.write(message(b"%d" % number))
        desk.close()
        assert desk.journal.reports == []
    assert Directory(tmp_path).segments() == [1]
    assert len(places(Directory(tmp_path), 1)) == 5
    assert payloads(tmp_path) == [b"0", b"1", b"2", b"3", b"4"]


def counted(call: Any, counter: threading.Semaphore) -> Any:
    def counting() -> None:
        call()
        counter.release()

    return counting


# Segments


def test_a_segment_ends_with_a_group_and_the_next_rows_know(tmp_path: Path) -> None:
    desk = Desk(tmp_path, segment_bytes=6000)
    journal = desk.journal
    for _ in range(4):
        before = journal.segment
        journal.append(message(bytes(3000)))
        assert journal.segment == before
        journal.commit()
        journal.append(message(b"appended after the hand-off"))
        desk.settle()
    assert journal.segment == 2
    assert journal.directory.segments() == [1, 4]
    desk.close()
    assert len(payloads(tmp_path)) == 8


def test_a_segment_ends_by_age(tmp_path: Path) -> None:
    desk = Desk(tmp_path, segment_seconds=0.0)
    for text in (b"one", b"two", b"three"):
        desk.write(message(text))
    assert desk.journal.directory.segments() == [1, 2, 3]
    assert desk.journal.segment == 3
    desk.close()


def test_it_says_how_it_does(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one"), message(b"two"))
    desk.write(message(b"three"))
    figures = {name: figure() for name, figure in desk.journal.figures().items()}
    assert (figures["commits"], figures["rows"], figures["group rows"]) == ("2", "3", "1.5")
    assert float(figures["commit ms/50"]) <= float(figures["commit ms/99"])
    assert float(figures["syncs per second"]) > 0 and figures["trouble"] == ""
    text = (Path(__file__).parents[2] / "docs/reference/sys-topics.md").read_text("utf-8")
    assert all(f"`{name}`" in text for name in figures)
    desk.close()


@pytest.mark.parametrize("known", [1, 3])
def test_what_is_not_known_to_be_durable_is_written_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """A sync may have failed before it: another one alone would say nothing."""
    desk = Desk(tmp_path)
    for number in range(3):
        desk.write(message(b"%d" % number))
    desk.close()
    directory = Directory(tmp_path)
    (directory.log / "committed").write_bytes(committed_bytes(known) * 2)
    begins = [at for at, _ in places(directory, 1)]
    data = directory.segment(1).read_bytes()
    written: list[tuple[int, bytes]] = []
    write = os.pwrite

    def noted(fd: int, what: bytes, at: int) -> int:
        written.append((at, bytes(what)))
        return write(fd, what, at)

    monkeypatch.setattr(os, "pwrite", noted)
    synced: list[int] = []
    Desk(tmp_path, sync=synced.append).close()
    again = [(begins[known], data[begins[known] :])] if known < 3 else []
    assert [one for one in written if one[0] >= HEADER_BYTES] == again
    assert synced, "and it is synced, whatever was written"
