"""Tables that a run leaves out (`--tables`), and what becomes of them when one takes them in again.
One that is gone and begins anew (`--anew`) lacks rows in the same way.

    _left.json    {"calls": 12}: no batch after 12 wrote it; -1 = none ever did

A table that is taken in again goes on with the next batch. What was open when it was left is open
still: with rows of the journal missing between, as where they were lost. Which batches it lacks is
said, with what makes them, if anything does. Tables of the user that have open rows are not taken
in so (`tables.typed`): repetitions and windows would be wrong. Called by `run` and `backfill`, for
tables in a data directory. Knows no Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from hubbub.pipeline.layout import BATCH, Layout, read_json, sync
from hubbub.pipeline.tables import ALL
from hubbub.pipeline.tables.table import CARRIED, AnyTable, Derived

_ADVICE: Final = "remove it, then nobody is told which tables were left out of a run"


def take_in(
    layout: Layout,
    tables: tuple[AnyTable, ...],
    own: Collection[str],
    anew: Collection[str] = (),
) -> list[str]:
    """Note which tables this run writes; what is to be said of those that it takes in again.

    `own`: the user's tables that were declared before. `anew`: those that begin anew.
    """
    progress = layout.progress()
    stands = progress.batch if progress is not None else -1
    left = _read(layout)
    written = {table.name for table in tables}
    known = {table.name for table in ALL if not isinstance(table, Derived)} | {*own}
    said = []
    for table in tables:
        if isinstance(table, CARRIED):
            _carry_on(layout, table.name, stands)
        new = -1 if table.name not in known and not isinstance(table, Derived) else stands
        last = left.get(table.name, new)
        if table.name in anew:
            why = f"was gone, with what batches 0 to {stands} wrote"
        elif last < stands:
            why = f"was left out of batches {last + 1} to {stands}"
        else:
            continue
        opened = isinstance(table, CARRIED) and table.name not in anew
        said.append(layout.home.lacks_rows(table.name, why, opened))
    _write(layout, {name: left.get(name, stands) for name in known - written})
    return said


def made_again(layout: Layout, name: str) -> None:
    """Note that a table lacks nothing any more, if a run left it out."""
    left = _read(layout)
    if name in left:
        _write(layout, {**left, name: layout.stands().batch})


def _carry_on(layout: Layout, name: str, stands: int) -> None:
    """What was open when it was left is open after the last batch, too."""
    place = layout.root / "_open" / name
    if stands < 0 or (place / f"{BATCH}{stands}").is_dir():
        return
    fresh = layout.scratch(f"open-{name}")
    fresh.mkdir(parents=True)
    for file in _newest(place):
        os.link(file, fresh / file.name)
    fresh.rename(place / f"{BATCH}{stands}")
    sync(place)


def _newest(place: Path) -> Iterator[Path]:
    found = [one for one in place.glob(f"{BATCH}*") if one.is_dir()]
    if found:
        newest = max(found, key=lambda one: int(one.name.removeprefix(BATCH)))
        yield from newest.glob("*.parquet")


def _file(layout: Layout) -> Path:
    return layout.root / "_left.json"


def _read(layout: Layout) -> dict[str, int]:
    try:
        return {name: int(batch) for name, batch in read_json(_file(layout), _ADVICE).items()}
    except FileNotFoundError:
        return {}


def _write(layout: Layout, left: dict[str, int]) -> None:
    file = _file(layout)
    if left or file.exists():
        fresh = file.with_suffix(".tmp")
        fresh.write_text(json.dumps(left) + "\n")
        sync(fresh)
        fresh.replace(file)
        sync(layout.root)
