"""Small files become one while strangers read them; what is old enough goes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import duckdb
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hubbub.errors import DirectoryError
from hubbub.pipeline.compact import compact, drop, tidy
from hubbub.pipeline.layout import Layout, Progress, grown, parts_in

FILES = 40


def progress(batch: int, group: int) -> Progress:
    return Progress(batch, 0, "2026-01-01 13:00:00", group, "2026-01-01 13:00:00", 0)


def written(layout: Layout, name: str, batch: int, group: int, rows: range) -> None:
    """A batch puts a file with these numbers into a table that lies by days."""
    place = layout.scratch(name) / "day=2026-01-01"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"seq": list(rows)}), place / "part-0.parquet")
    layout.append(name, batch, group, place.parent)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.root.mkdir()
    for batch in range(FILES):
        written(made, "readings", batch, 0, range(batch * 10, batch * 10 + 10))
    written(made, "readings", FILES, FILES, range(FILES * 10, FILES * 10 + 5))
    return made


def test_a_group_that_is_over_becomes_one_file_in_order(layout: Layout) -> None:
    group = layout.root / "readings/day=2026-01-01/batch_id=0"
    assert compact(layout, "readings", progress(FILES, FILES)) == FILES - 1
    assert [file.name for file in group.iterdir()] == ["part-0000000000-to-0000000039.parquet"]
    assert pandas.read_parquet(layout.root / "readings")["seq"].tolist() == [*range(405)]
    seq = pq.ParquetFile(next(group.iterdir())).metadata.row_group(0).column(0)
    assert (seq.compression, "DELTA_BINARY_PACKED" in seq.encodings) == ("ZSTD", True)
    assert compact(layout, "readings", progress(FILES, FILES)) == 0
    assert [part.last for part in layout.files("readings", -1, FILES)] == [FILES - 1, FILES]


def test_files_whose_columns_stand_in_another_order_become_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.root.mkdir()
    for batch, names in enumerate((("x", "y"), ("x", "y"), ("y", "x"), ("y", "x"))):
        place = layout.scratch("t")
        place.mkdir(parents=True)
        rows = pa.table({name: [f"{name}{batch}" * 10_000_000] for name in names})
        pq.write_table(rows, place / "part-0.parquet", compression="zstd")
        layout.append("t", batch, 0, place)
    assert compact(layout, "t", progress(4, 4)) == 3
    found = pq.read_table(layout.root / "t/batch_id=0")
    assert [text[:2] for text in found["x"].to_pylist()] == ["x0", "x1", "x2", "x3"]
    assert found.column_names[:2] == ["x", "y"]


def test_files_that_could_be_written_again_are_left(layout: Layout) -> None:
    assert compact(layout, "readings", progress(FILES, 0)) == FILES - 16
    parts = parts_in(layout.root / "readings/day=2026-01-01/batch_id=0")
    assert (parts[0].first, parts[0].last, len(parts)) == (0, 24, 16)


def test_who_is_listing_a_directory_finds_all_of_it(layout: Layout) -> None:
    group = os.open(layout.root / "readings/day=2026-01-01/batch_id=0", os.O_RDONLY)
    try:
        assert compact(layout, "readings", progress(FILES, FILES)) == FILES - 1
        assert len(os.listdir(group)) == FILES
        layout.sweep()
        assert len(os.listdir(group)) == FILES
        (kept,) = (layout.root / "_replaced").iterdir()
        kept.rename(kept.with_name(str(int(kept.name) - 61 * 10**9)))
        layout.sweep()
        assert os.listdir(group) == []
    finally:
        os.close(group)


def test_a_reader_meanwhile_finds_no_row_twice_and_all_where_the_names_stayed(
    layout: Layout,
) -> None:
    """DuckDB lists a directory and then asks for each file by name: it leaves out what is gone."""
    wrong: list[object] = []
    over = threading.Event()

    def names() -> list[str]:
        return sorted(map(str, (layout.root / "readings").rglob("*.parquet")))

    def read() -> None:
        files = f"{layout.root}/readings/**/*.parquet"
        while not over.is_set():
            before = names()
            try:
                query = f"select count(*), count(distinct seq) from '{files}'"
                found = duckdb.connect().execute(query).fetchone()
            except duckdb.IOException:
                continue  # listed before, opened after: it is told that the file is gone
            assert found is not None
            if found[0] != found[1] or (found[0] != 405 and names() == before):
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for upto in range(16, FILES + 16, 2):
            compact(layout, "readings", progress(upto, 0))
        compact(layout, "readings", progress(FILES, FILES))
    finally:
        over.set()
        reader.join()
    assert not wrong
    assert len(layout.files("readings", -1, FILES)) == 2


def test_retention_takes_whole_groups_but_never_the_newest(layout: Layout) -> None:
    for part in layout.files("readings", -1, FILES):
        os.utime(part.file, (0, 0))
    day = layout.root / "readings/day=2026-01-01"
    day.rename(layout.root / "readings/day=2999-01-01")  # by the age of files, not by the day
    assert drop(layout, "readings", progress(FILES, FILES), 1.0) == 1
    assert [part.first for part in layout.files("readings", -1, FILES)] == [FILES]


def test_retention_goes_by_the_day_too(layout: Layout) -> None:
    assert drop(layout, "readings", progress(FILES, FILES), 1e4) == 0
    assert drop(layout, "readings", progress(FILES, FILES), 1.0) == 1


def test_after_a_batch_mostly_nothing_is_done(layout: Layout) -> None:
    before, now = progress(FILES - 1, 0), progress(FILES, 0)
    tidy(layout, {"readings": 1.0}, now, before)
    assert len(layout.files("readings", -1, FILES)) == FILES + 1
    tidy(layout, {"readings": 1.0}, progress(FILES, FILES), before)
    assert [part.first for part in layout.files("readings", -1, FILES)] == [FILES]


def test_a_group_is_a_day_or_so_many_rows() -> None:
    first = grown(None, 0, 10, "2026-01-01 12:00:00", 10)
    assert (first.group, first.rows) == (0, 10)
    same = grown(first, 1, 20, "2026-01-01 23:59:59", 10)
    assert (same.group, same.rows, same.since) == (0, 20, "2026-01-01 12:00:00")
    assert grown(same, 2, 30, "2026-01-02 00:00:00", 10).group == 2
    assert grown(same._replace(rows=100_000_000), 2, 30, "2026-01-01 12:59:59", 10).group == 2


def test_where_directories_cannot_be_exchanged_nothing_is_lost(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.pipeline.compact._libc", object())
    tidy(layout, {}, progress(FILES, FILES), progress(FILES - 1, 0))
    assert len(layout.files("readings", -1, FILES)) == FILES + 1
    with pytest.raises(DirectoryError, match="small files stay as they are"):
        compact(layout, "readings", progress(FILES, FILES))
