"""Who has only docs/journal-format.md gets the same tables, every row and every column.

The journals are those of `tests.simulation`: hubs that are killed, lose power and roll, with
clients of all protocols.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hubbub.journal.table import Table
from hubbub.pipeline.tables import calls, deliveries, sessions
from tests.pipeline import stranger
from tests.pipeline.tables.test_cuts import Past, concerned, in_batches
from tests.simulation.test_simulation import MEMORY
from tests.simulation.world import World


@pytest.mark.parametrize("seed", range(1, 13))
def test_every_row_is_right(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        World(seed, Path(folder)).run()
        table = Table(folder)
        past = Past(Path(folder), table, pa.Table.from_batches(table.read(0, table.committed())))
        found = stranger.tables(stranger.rows_of(Path(folder)))
        for module in (calls, deliveries, sessions):
            closed, opened = in_batches(past, module.TABLE, concerned(past.rows, module), [])
            name = module.__name__.rpartition(".")[2]
            assert in_order(found[name]) == in_order(closed + opened), name


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A time is exact to a microsecond, however it was computed."""
    exact = ({name: exactly(row[name]) for name in sorted(row)} for row in rows)
    return sorted(exact, key=repr)


def exactly(cell: Any) -> Any:
    return round(cell, 6) if isinstance(cell, float) else cell
