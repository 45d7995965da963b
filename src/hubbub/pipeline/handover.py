"""Tables that were made again take the place of the old ones: their rows, their open rows and the
declarations, all or none, whenever the machine stops.

    _anew/made/<table>/closed/   ──one exchange of directories──▶   <table>/
    _anew/made/<table>/open/     ──another, if it has open rows──▶  _open/<table>/batch_id=N/
    _anew/made/intent.json       N, and the declarations of the user's tables for `_typed.json`

One rename decides: `_tmp/backfill` becomes `_anew/made`. Before it nothing was begun; after it
who next takes the lock of the tables ends what was begun. A directory that waits for its exchange
holds a file MARK: where that lies says whether it was done. Called by `backfill` and `places`.
Never writes a row, and knows no Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from hubbub.pipeline.compact import exchange
from hubbub.pipeline.layout import BATCH, Layout, read_json, sync

ANEW: Final = "_anew"
MARK: Final = "_new"  # readers of Parquet skip what begins with _


def hand_over(layout: Layout, made: Path, batch: int, declared: str) -> None:
    """Put the tables in `made`, each with `closed` and perhaps `open` in it, in their places.

    `batch`: the one after which the open rows are open; `declared`: what `_typed.json` says then,
    "" = as it does. Raises DirectoryError, with all as it was, where directories cannot be
    exchanged.
    """
    _try(made)
    for table in _tables(made):
        for part in ("closed", "open"):
            if (table / part).exists():
                (table / part / MARK).touch()
                sync(table / part)
        sync(table)
    intent = made / "intent.json"
    intent.write_text(json.dumps({"batch": batch, "declared": declared}))
    sync(intent)
    sync(made)
    place = _begun(layout)
    place.parent.mkdir(exist_ok=True)
    made.rename(place)
    sync(place.parent)
    finish(layout)


def finish(layout: Layout) -> None:
    """End what was begun, perhaps by a process that is gone. Its caller has the tables' lock."""
    made = _begun(layout)
    if not made.exists():
        return
    said = read_json(made / "intent.json", f"move {made} away and run the backfill again")
    if said["declared"]:
        layout.declare(said["declared"].encode())
    for table in _tables(made):
        layout.make_again(table.name)
        _exchanged(table / "closed", layout.root / table.name)
        opened = layout.root / "_open" / table.name / f"{BATCH}{said['batch']}"
        _exchanged(table / "open", opened)
    layout.retire(made)
    sync(made.parent)


def _begun(layout: Layout) -> Path:
    return layout.root / ANEW / "made"


def _tables(made: Path) -> list[Path]:
    return sorted(place for place in made.iterdir() if place.is_dir())


def _exchanged(fresh: Path, place: Path) -> None:
    if (fresh / MARK).exists():
        place.mkdir(parents=True, exist_ok=True)  # a run that left the table out carried nothing on
        exchange(fresh, place)
        sync(place.parent)
    (place / MARK).unlink(missing_ok=True)


def _try(made: Path) -> None:
    """Once it is begun it must be possible."""
    one, other = made / "_one", made / "_other"
    one.mkdir()
    other.mkdir()
    try:
        exchange(one, other)
    finally:
        one.rmdir()
        other.rmdir()
