"""A table that was made again takes the place of the old one: its rows, its open rows and its
declaration, all three or none, whenever the machine stops.

    _anew/<table>/closed/        ──one exchange of directories──▶   <table>/
    _anew/<table>/open/          ──another, if it has open rows──▶  _open/<table>/batch_id=N/
    _anew/<table>/intent.json    N, and the declarations of the user's tables for `_typed.json`

One rename decides: `_tmp/backfill` becomes `_anew/<table>`. Before it nothing was begun; after it
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


def hand_over(layout: Layout, name: str, made: Path, batch: int, declared: str) -> None:
    """Put `made`, with `closed` and perhaps `open` in it, in the place of a table.

    `batch`: the one after which the open rows are open; `declared`: what `_typed.json` says then,
    "" = as it does. Raises DirectoryError, with all as it was, where directories cannot be
    exchanged.
    """
    _try(made)
    for part in ("closed", "open"):
        if (made / part).exists():
            (made / part / MARK).touch()
            sync(made / part)
    intent = made / "intent.json"
    intent.write_text(json.dumps({"batch": batch, "declared": declared}))
    sync(intent)
    sync(made)
    (layout.root / ANEW).mkdir(exist_ok=True)
    made.rename(layout.root / ANEW / name)
    sync(layout.root / ANEW)
    finish(layout)


def finish(layout: Layout) -> None:
    """End what was begun, perhaps by a process that is gone. Its caller has the tables' lock."""
    for made in sorted((layout.root / ANEW).glob("*")):
        said = read_json(made / "intent.json", f"move {made} away and run the backfill again")
        if said["declared"]:
            layout.declare(said["declared"].encode())
        layout.make_again(made.name)
        _exchanged(made / "closed", layout.root / made.name)
        opened = layout.root / "_open" / made.name / f"{BATCH}{said['batch']}"
        _exchanged(made / "open", opened)
        layout.retire(made)


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
