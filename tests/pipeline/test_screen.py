"""A live view of tables that change while it looks. What it shows is in `test_run`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hubbub.pipeline.layout import Layout, Part, Progress
from hubbub.pipeline.screen import HISTORY, TRIES, Screen

PROGRESS = Progress(HISTORY, 9, "2026-01-01T00:00:00", 0, "2026-01-01T00:00:00", 9)


def merging(monkeypatch: pytest.MonkeyPatch, place: Path, times: int) -> None:
    """So many times a file is listed and has been merged with others before it is opened."""
    pq.write_table(pa.table({"seq": [1, 2, 3]}), place / "merged.parquet")
    listed = iter(["gone"] * times)

    def files(layout: Layout, name: str, after: int, upto: int) -> list[Part]:
        found = Part(0, 0, place / f"{next(listed, 'merged')}.parquet")
        return [found] if name == "messages" else []

    monkeypatch.setattr(Layout, "progress", lambda layout: PROGRESS)
    monkeypatch.setattr(Layout, "files", files)
    monkeypatch.setattr(Layout, "carried", lambda layout, name, batch: [])


def test_a_file_that_is_merged_before_it_is_opened_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging(monkeypatch, tmp_path, 2)
    view = Screen(tmp_path).look()
    assert view is not None and view.counts["messages"] == 3


def test_a_look_ends_where_files_go_faster_than_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging(monkeypatch, tmp_path, TRIES)
    screen = Screen(tmp_path)
    assert screen.look() is None
    view = screen.look()
    assert view is not None and view.counts["messages"] == 3
