"""The open rows of a folded table on a local disk: pieces that stay, and pieces that change.

    _open/<table>/batch_id=N/part-….parquet      each a piece; most are those of batch N - 1, linked

A fold reads of a piece what it needs, and takes rows out. Only pieces it took rows from are
written again; so a batch costs what it changes, however many rows are open. Small pieces become
larger ones now and then. What is remembered beside the rows, with a null in the first column, is
a piece of its own, written with each batch. Called by `places`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hubbub.errors import DirectoryError
from hubbub.pipeline.compact import encoding
from hubbub.pipeline.tables.table import Folding

PIECE: Final = 20_000  # rows: written again in some 20 ms
SMALL: Final = 32  # pieces of less than half of that, then they are joined


class Pieces:
    """The files of one batch: what a fold is given (`table.Held`)."""

    def __init__(self, files: list[Path], schema: pa.Schema) -> None:
        self.files = {file.name: file for file in files}
        self._schema = schema
        self._open: dict[str, pq.ParquetFile] = {}

    def names(self) -> list[str]:
        return sorted(self.files)

    def rows(self, name: str, columns: tuple[str, ...] = ()) -> pa.Table:
        with readable(self.files[name]):
            found = self._file(name).read(columns=list(columns) or self._schema.names)
        return found.cast(pa.schema([self._schema.field(one) for one in found.column_names]))

    def count(self, name: str) -> int:
        return int(self._file(name).metadata.num_rows)

    def lowest(self, name: str) -> int | None:
        found = [said for said in self._said(name)]
        if not all(said is not None and said.has_min_max and not said.null_count for said in found):
            return None
        return min((said.min for said in found), default=0)

    def may_hold(self, name: str, wanted: pa.Array) -> bool:
        if self.lowest(name) is None:
            return True
        values = wanted.to_numpy(zero_copy_only=False)
        return any(
            np.searchsorted(values, said.min) < np.searchsorted(values, said.max, "right")
            for said in self._said(name)
        )

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _said(self, name: str) -> Iterator[Any]:
        """The statistics of the first column, by row group."""
        metadata = self._file(name).metadata
        for group in range(metadata.num_row_groups):
            yield metadata.row_group(group).column(0).statistics

    def _file(self, name: str) -> pq.ParquetFile:
        if name not in self._open:
            with readable(self.files[name]):
                self._open[name] = pq.ParquetFile(self.files[name])
        return self._open[name]


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """A file of ours that is damaged or gone is said as that: no row of the batch has done it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DirectoryError(
            f"{file} has open rows and cannot be read ({error}): put it back from a backup, or "
            "move the tables away, the next run makes them again from what the journal still has"
        ) from error


class Whole:
    """All open rows as one piece, where they cannot lie in pieces."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def names(self) -> list[str]:
        return ["all"]

    def rows(self, name: str, columns: tuple[str, ...] = ()) -> pa.Table:
        return self._rows.select(columns) if columns else self._rows

    def count(self, name: str) -> int:
        return len(self._rows)

    def lowest(self, name: str) -> int | None:
        return None

    def may_hold(self, name: str, wanted: pa.Array) -> bool:
        return True

    def after(self, folding: Folding) -> pa.Table:
        """What is open after the batch."""
        stays = folding.left.get("all")
        rest = self._rows if stays is None else self._rows.filter(stays)
        rest = rest.filter(pc.field(rest.column_names[0]).is_valid())
        memory = [folding.memory] if folding.memory is not None else []
        return pa.concat_tables([rest, folding.opened, *memory])


def carried(held: Pieces, folding: Folding, place: Path) -> list[Path]:
    """Write into `place` what changed of the open rows; return the files that stay as they are."""
    staying = [name for name in held.names() if name not in folding.left]
    staying = [name for name in staying if held.lowest(name) is not None or not held.count(name)]
    some = [(name, stays) for name, stays in folding.left.items() if pc.any(stays).as_py()]
    fresh = [held.rows(name).filter(stays) for name, stays in some]
    small = [name for name in staying if held.count(name) < PIECE // 2]
    if len(small) > SMALL:
        fresh.append(pa.concat_tables([held.rows(name) for name in small]))
        staying = [name for name in staying if name not in small]
    fresh.append(folding.opened)
    if folding.memory is not None:
        fresh.append(folding.memory)
    pieces = (rows.slice(at, PIECE) for rows in fresh for at in range(0, len(rows), PIECE))
    place.mkdir(parents=True)
    for number, piece in enumerate(pieces):
        write(piece, place / f"{number:06}.parquet")
    return [held.files[name] for name in staying]


def write(rows: pa.Table, file: Path) -> None:
    """A file as all those of the tables are."""
    pq.write_table(rows, file, compression="zstd", **encoding(rows.schema))
