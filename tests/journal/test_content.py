"""A file read by calls that can fail: windows, files that change meanwhile, unreadable blocks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hubbub.errors import JournalError, UnreadableError
from hubbub.journal import content, frame
from hubbub.journal.content import HEADER_BYTES, Content, Header, Index, told, unreadable
from hubbub.journal.frame import DAMAGED, TORN, WHOLE
from tests.journal.rows import BLOCK, bad_blocks, message, numbered


def written(path: Path, *sizes: int, tail: bytes = b"") -> list[tuple[int, int]]:
    """A segment with a frame of one row of each size; where they lie: place, end."""
    data = bytearray(Header(1, 0, 1).encode())
    found = []
    for seq, size in enumerate(sizes, 1):
        at = len(data)
        data += frame.encode(numbered([message(bytes([seq % 251]) * size)], seq))
        found.append((at, len(data)))
    path.write_bytes(data + tail)
    return found


def whole(path: Path, check: bool = True) -> list[int]:
    with Content(path) as opened:
        return [one.first for one in opened.frames(check=check) if one.verdict == WHOLE]


# Windows


@pytest.mark.parametrize("window", [HEADER_BYTES, 1500, 4096, 10_000, 1 << 20])
def test_frames_over_the_edge_of_every_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(content, "_WINDOW", window)
    monkeypatch.setattr(content, "_GLANCE", window)
    path = tmp_path / "file"
    sizes = [1, 3000, 0, 9000, 700, 40_000, 2]
    places = written(path, *sizes, tail=bytes(20_000))
    for check in (True, False):
        with Content(path) as opened:
            found = list(opened.frames(check=check))
            assert [(one.at, one.at + one.size) for one in found] == places
            assert all(one.verdict == WHOLE for one in found)
            rows = [opened.rows(one)[0] for one in reversed(found)]
        assert [len(row.payload) for row in reversed(rows)] == sizes


@pytest.mark.parametrize("window", [1500, 4096])
def test_damage_is_gone_around_over_the_edge_of_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(content, "_WINDOW", window)
    path = tmp_path / "file"
    places = written(path, 1000, 1000, 5000, 1000)
    data = bytearray(path.read_bytes())
    data[places[1][0] : places[1][0] + 50] = b"x" * 50  # no length any more: it is searched for
    path.write_bytes(data)
    with Content(path) as opened:
        found = [(one.verdict, one.at, one.size) for one in opened.frames()]
    at, end = places[1]
    assert (DAMAGED, at, end - at) in found
    assert whole(path) == [1, 3, 4]


def test_a_file_that_is_cut_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_WINDOW", 2000)
    path = tmp_path / "file"
    places = written(path, *[1000] * 20)
    with Content(path) as opened:
        frames = opened.frames()
        first = [next(frames).first for _ in range(3)]
        os.truncate(path, places[9][0] + 100)
        rest = list(frames)
        assert opened.size <= places[9][0] + 100
    assert first == [1, 2, 3]
    assert [one.first for one in rest if one.verdict == WHOLE] == list(range(4, 10))
    assert rest[-1].verdict == TORN


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_file_shorter_than_its_header(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(Header(1, 0, 1).encode()[:size])
    with Content(path) as opened:
        assert opened.header() is None
        assert list(opened.frames()) == []


def test_views_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path, 10)
    with Content(path) as opened:
        view = opened.view(0, 8)
    opened.close()
    assert bytes(view) == content.MAGIC


def test_what_a_damaged_length_says_is_not_believed(tmp_path: Path) -> None:
    """A row of a frame that says it has four gigabytes: damage, and not so much memory."""
    path = tmp_path / "file"
    ((at, _),) = written(path, 100)
    index = Index(path, os.open(path, os.O_RDWR))
    index.add(1, at)
    os.pwrite(index.fd, b"\xf8\xff\xff\xff", at)
    with pytest.raises(JournalError, match=f"is damaged at byte {at}"):
        index.columns(index.place(1))
    index.close()


# Blocks that the disk cannot read


def test_a_read_says_which_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    written(path, 9000)
    bad_blocks(monkeypatch, path, 1)
    with Content(path) as opened:
        assert opened.header() is not None, "that lies in a block which can be read"
        with pytest.raises(OSError, match="Input/output error") as caught:
            list(opened.frames())
    assert caught.value.filename == str(path)


def saved(path: Path) -> list[int]:
    with Content(path) as opened:
        return [one.first for one in opened.readable()]


@pytest.mark.parametrize("sizes", [[100] * 40, [2000] * 20, [9000] * 8, [100, 9000, 700, 5000] * 4])
def test_nothing_is_lost_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    path = tmp_path / "file"
    places = written(path, *sizes, tail=bytes(5000))
    for block in range(1, path.stat().st_size // BLOCK + 1):
        bad = range(block * BLOCK, (block + 1) * BLOCK)
        with monkeypatch.context() as patched:
            bad_blocks(patched, path, block)
            good = [
                seq for seq, (at, end) in enumerate(places, 1)
                if end <= bad.start or at >= bad.stop
            ]  # fmt: skip
            assert saved(path) == good, block


def test_two_bad_blocks_one_after_the_other_and_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    places = written(path, *[1500] * 30)
    bad = (3, 4, path.stat().st_size // BLOCK)
    bad_blocks(monkeypatch, path, *bad)
    spoilt = [range(one * BLOCK, (one + 1) * BLOCK) for one in bad]
    good = [
        seq for seq, (at, end) in enumerate(places, 1)
        if all(end <= one.start or at >= one.stop for one in spoilt)
    ]  # fmt: skip
    assert saved(path) == good


@pytest.mark.parametrize("pad", range(0, 96, 8))
def test_a_frame_of_which_the_mark_lies_over_the_edge_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pad: int
) -> None:
    """The first frame behind the bad block is found wherever it begins."""
    path = tmp_path / "file"
    ((_, end),) = written(path, 0)
    begins = 3 * BLOCK - frame.HEADER.size - 24 + pad  # of the second frame
    size = (begins - end) & -8
    while True:
        places = written(path, size, 100, 100)
        if places[1][0] <= begins:
            break
        size -= 8
    assert abs(places[1][0] - begins) < 8
    data = bytearray(path.read_bytes())
    data[places[0][0] : places[0][0] + 16] = bytes(16)  # nor does it say its length
    path.write_bytes(data)
    bad_blocks(monkeypatch, path, 1)
    assert saved(path) == [2, 3]


def test_an_error_of_the_machine_is_no_unreadable_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    written(path, 100)

    def no_memory(*_: object) -> bytes:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, "pread", no_memory)
    with pytest.raises(OSError, match="no memory"):
        saved(path)


# What a user is told


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EIO, "repair --dry-run"), (errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "make room"),
     (errno.ELOOP, "mend that")],
)  # fmt: skip
def test_each_error_comes_with_advice_and_the_file(number: int, advice: str) -> None:
    told_so = str(unreadable(OSError(number, os.strerror(number), "/a/file")))
    assert told_so.startswith(f"/a/file: {os.strerror(number)}; ") and advice in told_so


def test_an_error_without_a_file_is_of_the_directory() -> None:
    with pytest.raises(UnreadableError, match="^/data: "), told(Path("/data")):
        raise OSError(errno.ENOMEM, "no memory")
