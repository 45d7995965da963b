"""The journal as readers see it: exact ranges, also while a hub writes, and never in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest

from hubbub.errors import JournalError, OffsetError
from hubbub.journal.backup import backup
from hubbub.journal.content import Content, Header
from hubbub.journal.frame import Frame
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.journal.table import SCHEMA, Table
from tests.journal.rows import SOURCE, Desk, message, payloads, places
from tests.journal.test_writer import CHILD


def seqs(table: Table, after: int, upto: int) -> list[int]:
    return [seq.as_py() for batch in table.read(after, upto) for seq in batch.column("seq")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Rows 1 to 60 in frames of 3, in segments of about 5 frames."""
    desk = Desk(tmp_path, segment_bytes=8000)
    for n in range(20):
        desk.write(*[message(b"%d" % (3 * n + k)) for k in (1, 2, 3)])
    desk.close()
    assert len(Directory(tmp_path).segments()) > 3
    return tmp_path


def test_there_need_not_be_a_journal_yet(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "later"))
    assert (table.first(), table.committed()) == (1, 0)
    assert list(table.read(0, 0)) == [] and table.first_at(0) == 1


def test_a_segment_may_go_on_in_another_file(tmp_path: Path) -> None:
    """As it does after a failed write; only where the segment begins are audiences named anew."""
    directory = Directory(tmp_path)
    directory.log.mkdir()
    for header in (Header(1, 0, 1), Header(5, 4, 1), Header(9, 8, 9)):
        directory.segment(header.first).write_bytes(header.encode())
    table = Table(str(tmp_path))
    assert [table.segment_of(seq) for seq in (0, 4, 5, 8, 9, 99)] == [1, 1, 1, 1, 9, 9]
    assert Table(str(tmp_path / "later")).segment_of(7) == 1


def test_names_are_listed_again_only_when_they_have_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year has ten thousand, and each file that is opened asks for them."""
    listed: list[int] = []
    look = Directory.segments

    def noted(directory: Directory) -> list[int]:
        listed.append(1)
        return look(directory)

    monkeypatch.setattr(Directory, "segments", noted)
    table, log = Table(str(path)), path / "log"
    os.utime(log, (0, 0))
    assert seqs(table, 0, 60) == [*range(1, 61)]
    assert table.first() == 1 and table.segment_of(60) > 1
    assert [*table.shelf.spans(0, 60, lambda topics: True)] == [(0, 60)]
    assert len(listed) == 1
    first, second, *_ = look(Directory(path))
    Directory(path).segment(first).unlink()
    os.utime(log, (0, 0))  # as if the same tick of the clock had seen both
    with pytest.raises(OffsetError, match=f"the oldest one kept is {second}"):
        seqs(table, 0, 60)
    assert (table.first(), len(listed)) == (second, 2)
    Directory(path).segment(second).unlink()
    assert table.first() > second  # its time is now: it may change once more in the same tick
    assert table.first() > second and len(listed) == 4


@pytest.mark.pure
def test_nothing_behind_the_committed_row_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub may write there, or cut the file."""
    looked: list[int] = []
    look = Content._scan

    def noted(content: Content, at: int, check: bool) -> Frame:
        looked.append(at)
        return look(content, at, check)

    monkeypatch.setattr(Content, "_scan", noted)
    desk = Desk(tmp_path)
    for _ in range(3):
        desk.write(message(b"row"))
    desk.close()
    assert seqs(Table(str(tmp_path)), 1, 3) == [2, 3]
    assert looked
    assert max(looked) == places(Directory(tmp_path), 1)[-1][0]


def test_any_range_gives_exactly_its_rows(path: Path) -> None:
    table = Table(str(path))
    for after in range(0, 60, 7):
        for upto in (after, after + 1, after + 2, 41, 60):
            assert seqs(table, after, upto) == list(range(after + 1, upto + 1))


def test_batches_have_the_schema_and_are_views(path: Path) -> None:
    before = pyarrow.total_allocated_bytes()
    for batch in Table(str(path)).read(0, 60):
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
    assert pyarrow.total_allocated_bytes() == before


def test_a_moment_is_found_by_looking_at_a_few_frames(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(str(path))
    columns = [batch.column("time").cast("int64") for batch in table.read(0, 60)]
    times = [time for column in columns for time in column.to_pylist()]
    looks: list[int] = []
    around = Table._around

    def counted(table: Table, seq: int, upto: int) -> pyarrow.RecordBatch | None:
        looks.append(seq)
        return around(table, seq, upto)

    monkeypatch.setattr(Table, "_around", counted)
    for seq in (1, 2, 17, 30, 45, 60):
        looks.clear()
        assert table.first_at(times[seq - 1]) == times.index(times[seq - 1]) + 1
        assert len(looks) <= 8
    assert table.first_at(times[-1] + 1) == 61
    assert table.first_at(0) == 1


def test_marks_shorten_the_search_and_change_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.journal.frames.MARK_BYTES", 0)
    monkeypatch.setattr("hubbub.journal.frames.MARKED", 2)
    table = Table(str(path))
    for after in (50, 3, 27, 28, 0, 11, 50):
        assert seqs(table, after, 60) == list(range(after + 1, 61))
    shelf = table.shelf
    assert isinstance(shelf, Frames)
    assert len(shelf._marks) == 2
    content, marks = shelf._content(Directory(path).segments()[-1])
    with content, Content(content.path) as whole:
        (last,) = [one.at for one in whole.frames() if one.first <= 58 <= one.last]
        assert next(content.frames(marks.before(58), check=False)).at == last


def test_every_journal_has_a_name_of_its_own(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Desk(other).close()
    names = [Table(str(one)).shelf.identity() for one in (path, other, tmp_path / "none")]
    assert len(names[0]) == 16 and names[0] != names[1] and names[2] == ""
    backup(path, tmp_path / "copy", link=False)
    assert Table(str(tmp_path / "copy")).shelf.identity() == names[0]


def test_a_choice_leaves_out_frames_and_rows(path: Path) -> None:
    class Ends:
        def among(self, topics: list[bytes]) -> bool:
            raise AssertionError("no names are listed")

        def mask(self, batch: pyarrow.RecordBatch) -> pyarrow.BooleanArray | None:
            assert batch.schema.names == ["kind", "topic"]
            seen.append(batch.num_rows)
            return pyarrow.array([len(seen) == 2] * batch.num_rows)

    seen: list[int] = []
    (batch,) = Table(str(path)).read(1, 9, Ends())
    assert batch.column("seq").to_pylist() == [4, 5, 6] and seen == [2, 3, 3]


def test_rows_behind_the_committed_one_do_not_exist(path: Path) -> None:
    (path / "log" / "committed").write_bytes((50).to_bytes(8, "little"))
    table = Table(str(path))
    assert seqs(table, 40, 50) == list(range(41, 51))
    with pytest.raises(OffsetError, match="up to 51 were asked for, the last one is 50"):
        list(table.read(0, 51))


def test_damage_is_an_error_or_left_out_on_request(path: Path) -> None:
    segment = Directory(path).segment(1)
    data = segment.read_bytes()
    at = data.index(b"456")
    segment.write_bytes(data[:at] + b"!" + data[at + 1 :])
    with pytest.raises(JournalError, match="after 3 are damaged"):
        seqs(Table(str(path)), 0, 60)
    assert seqs(Table(str(path)), 6, 60) == list(range(7, 61))
    assert seqs(Table(str(path), allow_loss=True), 0, 9) == [1, 2, 3, 7, 8, 9]


def test_a_missing_segment_is_an_error_or_left_out_on_request(path: Path) -> None:
    first, second, third, *_ = Directory(path).segments()
    Directory(path).segment(second).unlink()
    with pytest.raises(OffsetError, match=f"rows {second} to {third - 1} are lost"):
        seqs(Table(str(path)), 0, 60)
    kept = seqs(Table(str(path), allow_loss=True), 0, 60)
    assert kept == [*range(1, second), *range(third, 61)]
    assert seqs(Table(str(path)), third - 1, 60) == list(range(third, 61))


def test_segments_that_go_while_reading_are_looked_for_again(path: Path) -> None:
    table = Table(str(path), allow_loss=True)
    batches = table.read(0, 60)
    first = next(batches)
    directory = Directory(path)
    for one in directory.segments()[:-1]:
        directory.segment(one).unlink()
    rest = [seq.as_py() for batch in batches for seq in batch.column("seq")]
    assert first.num_rows == 3 and rest[-1] == 60
    assert table.first() == directory.segments()[0]


@pytest.mark.timeout(30)
def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    table = Table(str(tmp_path))
    read: list[int] = []
    with subprocess.Popen(command, cwd=SOURCE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        while len(read) < 2000:
            child.stdout.readline()
            read += seqs(table, len(read), table.committed())
        child.kill()
    assert read == list(range(1, len(read) + 1))
    assert [int(one) for one in payloads(tmp_path)][:2000] == read[:2000]
