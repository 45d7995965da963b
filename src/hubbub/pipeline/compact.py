"""Merges small files of tables on a local disk, and removes groups that are old enough.

Called by `run` after a batch, and by `hubbub pipeline compact`. Files of one group become one file
in the order of their batches, so rows stay in the order of the journal. The directory of the group
is exchanged for the merged one by one system call (renameat2, RENAME_EXCHANGE): who lists it finds
the files from before or those from after, each row once (see `Layout.retire`). A reader that had
listed the files but not yet opened them is told that a file is gone, and asks again. Some readers
(DuckDB, Arrow, Hadoop) ask for each name after they listed them, and leave out in silence what is
gone by then: no exchange of directories can help them; a catalogue does.

    while a group grows    each MERGE small files become one
    when it is over        all small files become one

Only files of batches that are whole and will not run again are touched. Knows no Spark.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from hubbub.errors import DirectoryError
from hubbub.pipeline.layout import (
    BATCH,
    KEPT,
    NO_ROWS,
    RISING,
    Layout,
    Part,
    Progress,
    merged_name,
    parts_in,
    sync,
)

MERGE: Final = 64  # small files in a group that still grows
SMALL: Final = 16 << 20  # bytes; larger files are left as they are
ROW_GROUP: Final = 64 << 20  # bytes in memory: what a reader skips or reads as a whole
DAY: Final = 86_400.0  # seconds


def tidy(layout: Layout, keep: dict[str, float], now: Progress, before: Progress | None) -> None:
    """What there is to do after a batch: mostly nothing.

    `keep`: days by table. `before`: the progress before the batch, None at the first ever.
    """
    over = _over(now, before)
    for table in layout.root.iterdir():
        if table.name.startswith("_") or not table.is_dir():
            continue
        # Where directories cannot be exchanged small files stay, which is no reason to stop;
        # `hubbub pipeline compact` says so.
        with suppress(DirectoryError):
            if over:
                compact(layout, table.name, now)
            elif now.batch % MERGE == 0:
                _merge_grown(layout, table.name, now)
        if over and table.name in keep:
            drop(layout, table.name, now, keep[table.name])


def tidied(now: Progress, before: Progress | None) -> bool:
    """Whether `tidy` may have changed files."""
    return _over(now, before) or now.batch % MERGE == 0


def _over(now: Progress, before: Progress | None) -> bool:
    return before is None or before.group != now.group


def compact(layout: Layout, name: str, now: Progress) -> int:
    """Merge what can be merged in all groups of a table; return by how many files it has less."""
    less = 0
    for group, place in [*layout.groups(name)]:
        upto = now.batch - KEPT if group == now.group else now.batch - 1
        less += _merge(layout, place, upto)
    return less


def _merge_grown(layout: Layout, name: str, now: Progress) -> None:
    for group, place in [*layout.groups(name)]:
        if group == now.group:
            _merge(layout, place, now.batch - KEPT)


def _merge(layout: Layout, group: Path, upto: int) -> int:
    parts = [part for part in parts_in(group) if part.last <= upto]
    small = [part for part in parts if part.file.stat().st_size < SMALL]
    if len(small) < 2:
        return 0
    fresh = layout.scratch(f"merge-{group.parent.name}-{group.name}")
    fresh.mkdir(parents=True)
    for file in group.iterdir():
        if file not in {part.file for part in small}:
            os.link(file, fresh / file.name)
    _write(small, fresh / merged_name(small[0].first, small[-1].last))
    sync(fresh)
    exchange(fresh, group)
    sync(group.parent)
    layout.retire(fresh)
    return len(small) - 1


def _write(parts: list[Part], target: Path) -> None:
    """The rows of all parts in their order, in row groups of about ROW_GROUP bytes."""
    schema = pq.read_schema(parts[0].file)
    with pq.ParquetWriter(target, schema, compression="zstd", **encoding(schema)) as writer:
        for rows in _chunks(parts):
            named = rows.select(schema.names)  # a table of the user may have them in another order
            writer.write_table(named.cast(schema), row_group_size=max(rows.num_rows, 1))
    newest = max(part.file.stat().st_mtime for part in parts)
    os.utime(target, (newest, newest))  # by which it becomes old
    sync(target)


def encoding(schema: pa.Schema) -> dict[str, Any]:
    """How columns are laid out: what rises as differences, all else by a dictionary."""
    differences = {name: "DELTA_BINARY_PACKED" for name in RISING if name in schema.names}
    others = [name for name in schema.names if name not in RISING]
    return {"use_dictionary": others, "column_encoding": differences}


def _chunks(parts: list[Part]) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    size = 0
    for part in parts:
        with pq.ParquetFile(part.file) as file:
            for index in range(file.num_row_groups):
                gathered.append(file.read_row_group(index))
                size += gathered[-1].nbytes
                if size >= ROW_GROUP:
                    yield pa.concat_tables(gathered, promote_options="default")
                    gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered, promote_options="default")


def drop(layout: Layout, name: str, now: Progress, days: float) -> int:
    """Remove the groups of a table all of whose rows are older than that; return how many.

    A file is never older than its rows, so this keeps a row at least so long.
    """
    limit = time.time() - days * DAY
    dropped = 0
    for group, place in [*layout.groups(name)]:
        parts = parts_in(place)
        if group == now.group or not parts:
            continue
        if _old_day(place, days) or all(part.file.stat().st_mtime < limit for part in parts):
            _keep_columns(place, now)
            layout.retire(place)
            dropped += 1
    return dropped


def _keep_columns(group: Path, now: Progress) -> None:
    """The file without rows stays, in the group of now: it may be all that is left."""
    if (group / NO_ROWS).exists():
        place = group.with_name(f"{BATCH}{now.group}")
        place.mkdir(exist_ok=True)
        if not (place / NO_ROWS).exists():
            os.link(group / NO_ROWS, place / NO_ROWS)


def _old_day(group: Path, days: float) -> bool:
    """Whether the day in the path ended so long ago."""
    name, _, day = group.parent.name.partition("=")
    if name != "day":
        return False
    return datetime.now(UTC).date() - datetime.fromisoformat(day).date() > timedelta(days)


_libc: Final = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD: Final = -100  # "relative to the working directory"; our paths are absolute
_RENAME_EXCHANGE: Final = 2


def exchange(one: Path, other: Path) -> None:
    """Swap two directories at once. Raises DirectoryError where the file system cannot."""
    call = getattr(_libc, "renameat2", None)
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if call is None or call(*names, _RENAME_EXCHANGE):
        reason = os.strerror(ctypes.get_errno()) if call else "no renameat2 here"
        raise DirectoryError(
            f"{other} cannot be exchanged for its merged files: {reason}; "
            f"small files stay as they are, `hubbub pipeline compact --to` writes a tidy copy"
        )
