"""The directory: who holds it, and how damaged files are healed without a wrong row."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hubbub.errors import DirectoryError
from hubbub.journal import content, frame
from hubbub.journal.content import HEADER_BYTES, Content, Header
from hubbub.journal.files import Replacement, write_whole
from hubbub.journal.healing import heal, whole_snapshot
from hubbub.journal.segments import Directory
from tests.journal.rows import SOURCE, frames_of, header_of, message, numbered

ROWS = numbered([message(b"row %d" % n) for n in range(1, 7)])
FRAMES = [bytes(frame.encode(ROWS[at : at + 2])) for at in (0, 2, 4)]
SEGMENT = Header(1, 0, 1).encode() + b"".join(FRAMES)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "data")
    directory.acquire()
    directory.release()
    return directory


def found_in(data: bytes) -> tuple[list[int], list[str]]:
    """Last seqs of the whole frames, and the verdicts on the rest."""
    fd = os.memfd_create("rows")
    os.write(fd, data)
    with Content(Path(f"/proc/self/fd/{fd}")) as opened:
        found = list(opened.frames())
    os.close(fd)
    return (
        [one.last for one in found if one.verdict == frame.WHOLE],
        [one.verdict for one in found if one.verdict != frame.WHOLE],
    )


def rows_in(directory: Directory, first: int) -> list[int]:
    return [one.last for one in frames_of(directory.segment(first))]


@pytest.mark.parametrize(
    ("last", "time"),
    [(b"", 6), (bytes(4096), 6), (FRAMES[0][:-3], 6), (FRAMES[0][:-8] + b"damaged!", 6)],
    ids=["whole", "zeros", "torn", "damaged"],
)
def test_the_last_row_that_is_whole_says_the_newest_time(
    directory: Directory, last: bytes, time: int
) -> None:
    rows = [row._replace(time=row.seq) for row in ROWS]
    assert directory.newest() == 0
    frames = [bytes(frame.encode(rows[at : at + 2])) for at in (0, 2, 4)]
    directory.segment(1).write_bytes(Header(1, 0, 1).encode() + b"".join(frames) + last)
    assert directory.newest() == time
    directory.segment(7).write_bytes(Header(7, 6, 7).encode())
    assert directory.newest() == time, "nothing is in the last one yet"


# Who holds it

HOLD = """
import sys, pathlib
from hubbub.journal.segments import Directory
Directory(pathlib.Path(sys.argv[1])).acquire()
"""


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    holder = Directory(tmp_path)
    holder.acquire()
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
    pid = (tmp_path / "lock").read_text().strip()
    assert f"DirectoryError: {tmp_path} is used by the hub with process id {pid};" in done.stderr
    holder.release()
    subprocess.run(command, cwd=SOURCE, check=True)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DirectoryError, match="make it writable or choose another"):
        Directory(tmp_path / "file" / "data").acquire()


def test_another_format_is_refused_and_let_go(directory: Directory) -> None:
    (directory.path / "format").write_text("hubbub journal 99\n")
    with pytest.raises(DirectoryError, match="journal 99.*expected 'hubbub journal 1'"):
        directory.acquire()
    (directory.path / "format").write_text("hubbub journal 1\n")
    directory.acquire()
    directory.release()


def test_a_replacement_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"before")
    with pytest.raises(RuntimeError), Replacement(path):
        raise RuntimeError
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_header_of_the_future_is_refused() -> None:
    data = bytearray(Header(1, 0, 1).encode())
    data[8] = 99
    data[48:52] = bytes(4)
    data[48:52] = zlib.crc32(data).to_bytes(4, "little")
    with pytest.raises(DirectoryError, match="newer hubbub"):
        content.header_of(memoryview(data))


def test_a_flipped_bit_of_a_header_is_damage_and_nothing_else() -> None:
    for at in range(HEADER_BYTES):
        data = bytearray(Header(1, 0, 1).encode())
        data[at] ^= 1 << at % 8
        assert content.header_of(memoryview(data)) is None


# Damage


ZEROS = pytest.mark.parametrize("zeros", [0, 1000])


@ZEROS
def test_a_cut_at_any_byte_leaves_the_frames_before_it(zeros: int) -> None:
    for cut in range(HEADER_BYTES, len(SEGMENT)):
        whole = (cut - HEADER_BYTES) // len(FRAMES[0])
        data = SEGMENT[:cut] + bytes(zeros)
        begun = HEADER_BYTES + whole * len(FRAMES[0])
        if zeros and data.startswith(SEGMENT[: begun + len(FRAMES[0])]):
            whole, begun = whole + 1, cut  # its last bytes are zeros
        torn = cut > begun
        assert found_in(data) == ([2, 4, 6][:whole], [frame.TORN] * torn)


@ZEROS
def test_a_flipped_bit_takes_only_its_own_frame(zeros: int) -> None:
    for at in range(HEADER_BYTES, len(SEGMENT)):
        data = bytearray(SEGMENT + bytes(zeros))
        data[at] ^= 1 << at % 8
        hit = (at - HEADER_BYTES) // len(FRAMES[0])
        verdict = frame.TORN if hit == 2 else frame.DAMAGED
        kept = [last for last in (2, 4, 6) if last != 2 * hit + 2]
        assert found_in(bytes(data)) == (kept, [verdict]), at


def test_frames_inside_the_payload_of_a_torn_frame_are_no_rows() -> None:
    inner = bytes(frame.encode(numbered([message(b"forged")], 99)))
    outer = bytes(frame.encode(numbered([message(inner * 3)])))
    data = Header(1, 0, 1).encode() + outer[:-8]
    assert found_in(data) == ([], [frame.TORN])
    data = Header(1, 0, 1).encode() + outer[:-1] + b"!" + FRAMES[1]
    assert found_in(data) == ([4], [frame.DAMAGED])


@pytest.mark.parametrize("zeros", [1, 71, 72, 5000, 200_000])
def test_zeros_at_the_end_are_nothing(directory: Directory, zeros: int) -> None:
    path = directory.segment(1)
    path.write_bytes(SEGMENT + bytes(zeros))
    assert found_in(SEGMENT + bytes(zeros)) == ([2, 4, 6], [])
    assert heal(directory, 1, 6, 0) == heal(directory, 1, 6, 7) == ""
    assert path.stat().st_size == len(SEGMENT) + zeros
    assert not directory.quarantine.exists()


def test_a_frame_that_reached_the_disk_in_parts_is_torn() -> None:
    """Any of its parts, for they take the place of zeros in any order."""
    size, parts = len(FRAMES[2]), 7
    at = len(SEGMENT) - size
    lines = [range(n * size // parts, (n + 1) * size // parts) for n in range(parts)]
    for chosen in range(1, 2**parts - 1):
        data = bytearray(SEGMENT + bytes(5000))
        for number, line in enumerate(lines):
            if chosen >> number & 1:
                data[at + line.start : at + line.stop] = bytes(len(line))
        # Whole if what is missing was zeros anyway.
        torn = data[: len(SEGMENT)] != SEGMENT
        assert found_in(bytes(data)) == ([2, 4] + [6] * (not torn), [frame.TORN] * torn), chosen


@pytest.mark.parametrize("missing", [8, 72, 512, 1100])
def test_frames_inside_the_payload_of_a_frame_without_its_beginning_are_no_rows(
    directory: Directory, missing: int
) -> None:
    """Nothing of that write may be there, or a later one would go on with it."""
    inner = b"".join(bytes(frame.encode(numbered([message(b"forged")], 9 + n))) for n in range(5))
    written = frame.encode(numbered([message(inner + bytes(pad)) for pad in range(8)], 7))
    written[:missing] = bytes(missing)
    path = directory.segment(1)
    begun = frame.encode(numbered([message(b"begun")], 7), frame.MORE)
    for before in (b"", begun):
        path.write_bytes(SEGMENT + before + written + bytes(5000))
        assert "was damaged" in heal(directory, 1, 6, 0)
        assert path.read_bytes() == SEGMENT


def test_frames_behind_one_that_says_its_length_are_rows(directory: Directory) -> None:
    """What was committed last may not have reached the disk with them."""
    data = bytearray(SEGMENT + bytes(5000))
    data[HEADER_BYTES + len(FRAMES[0]) + 1100] ^= 1
    directory.segment(1).write_bytes(data)
    assert "was damaged" in heal(directory, 1, 2, 0)
    assert rows_in(directory, 1) == [2, 6]


def test_zeros_in_the_middle_are_damage(directory: Directory) -> None:
    data = bytearray(SEGMENT + bytes(5000))
    data[HEADER_BYTES : HEADER_BYTES + 600] = bytes(600)
    directory.segment(1).write_bytes(data)
    assert "was damaged" in heal(directory, 1, 6, 0)
    assert rows_in(directory, 1) == [4, 6]


def test_a_sealed_file_does_not_end_with_zeros(directory: Directory) -> None:
    """A snapshot without its last frame would be one without that state."""
    path = directory.snapshot(6)
    data = Header(6, 0, 6, len(SEGMENT)).encode() + b"".join(FRAMES)
    path.write_bytes(data)
    assert whole_snapshot(path) is not None
    for kept in (1, 2):
        path.write_bytes(data[: -kept * len(FRAMES[0])] + bytes(kept * len(FRAMES[0])))
        assert whole_snapshot(path) is None


def test_a_tail_that_was_committed_is_kept_aside(directory: Directory) -> None:
    path = directory.segment(1)
    path.write_bytes(SEGMENT[:-8])
    assert "was damaged" in heal(directory, 1, 6, 0)
    assert rows_in(directory, 1) == [2, 4]
    assert (directory.quarantine / path.name).read_bytes() == SEGMENT[:-8]


@ZEROS
@pytest.mark.parametrize("at", range(0, len(SEGMENT), 97))
def test_after_healing_a_file_is_whole_and_the_damage_is_kept(
    directory: Directory, at: int, zeros: int
) -> None:
    damaged = bytearray(SEGMENT + bytes(zeros))
    damaged[at] ^= 1 << at % 8
    path = directory.segment(1)
    path.write_bytes(damaged)
    assert "was damaged" in heal(directory, 1, 6, 0)
    assert header_of(path) == Header(1, 0, 1)
    with Content(path) as healed:
        assert all(found.verdict == frame.WHOLE for found in healed.frames())
    hit = (at - HEADER_BYTES) // len(FRAMES[0])
    assert rows_in(directory, 1) == [last for last in (2, 4, 6) if last != 2 * hit + 2]
    assert (directory.quarantine / path.name).read_bytes() == damaged
    assert heal(directory, 1, 4, 0) == ""


def test_the_end_of_an_earlier_segment_is_missed(directory: Directory) -> None:
    directory.segment(1).write_bytes(SEGMENT[:-8])
    directory.segment(7).write_bytes(Header(7, 6, 7).encode())
    assert "was damaged" in heal(directory, 1, 6, 7)
    assert rows_in(directory, 1) == [2, 4]


def test_what_a_failed_write_left_before_the_next_file_is_no_damage(directory: Directory) -> None:
    directory.segment(1).write_bytes(SEGMENT[:-8])
    directory.segment(5).write_bytes(Header(5, 4, 1).encode())
    assert heal(directory, 1, 4, 5) == ""
    assert [one.last for one in frames_of(directory.segment(1), 5)] == [2, 4]
