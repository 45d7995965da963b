"""Where the tables lie: what a batch that was cut short leaves, and nothing else, is removed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import DirectoryError
from hubbub.pipeline.layout import Layout, room
from hubbub.pipeline.places import Remote


def test_undo_removes_what_one_batch_wrote_and_nothing_else(tmp_path: Path) -> None:
    def file(name: str) -> Path:
        place = tmp_path / "tables" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        return place

    kept = [
        file("messages/day=2026-01-01/batch_id=3/part-0000000003-000.parquet"),
        file("messages/day=2026-01-01/batch_id=3/part-0000000003-to-0000000006.parquet"),
        file("messages/day=2026-01-01/batch_id=3/part-0000000008-000.parquet"),
        file("messages/day=1970-01-01/batch_id=0/part-none.parquet"),
        file("traffic/batch_id=8/part-0000000008-000.parquet"),
        file("_open/calls/batch_id=7/part-0000000007-000.parquet"),
        file("_tmp/batch_id=7/part-0000000007-000.parquet"),
        file("_checkpoint/offsets"),
        file("_progress.json"),
    ]
    gone = [
        file("messages/day=2026-01-01/batch_id=3/part-0000000007-000.parquet"),
        file("messages/day=2026-01-01/batch_id=3/part-0000000007-001.parquet"),
        file("messages/day=2026-01-02/batch_id=7/part-0000000007-000.parquet"),
        file("traffic/batch_id=0/part-0000000007-000.parquet"),
        file("traffic/batch_id=7/part-0000000007-000.parquet"),
    ]
    Layout(tmp_path).undo(7)
    assert all(place.exists() for place in kept)
    assert not any(place.exists() for place in gone)


def test_tables_of_a_directory_and_those_of_a_url_are_not_taken_for_one_another(
    tmp_path: Path,
) -> None:
    """One place may be named both ways, and each has a checkpoint to go on with."""
    nothing: Any = None
    layout = Layout(tmp_path)
    layout.prepare(("messages",))
    layout.release()

    class Here(Remote):
        def _there(self, path: str) -> bool:
            return (layout.root / path).exists()

    for url in (layout.root.as_uri(), str(layout.root)):
        with pytest.raises(DirectoryError, match="are the tables of a data directory.* leave --to"):
            Here(nothing, url)._begin(False)
    (layout.root / "_writer").mkdir()
    with pytest.raises(DirectoryError, match="was written with --to, as at a URL"):
        layout.prepare(("messages",))


def test_a_full_disk_is_said_with_what_to_do() -> None:
    with pytest.raises(DirectoryError, match="the disk is full: make room"), room():
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), room():
        raise PermissionError(errno.EACCES, "no")
