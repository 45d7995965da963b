"""What `_progress` at a URL says beside how far the tables stand: which batch wrote a table last.

    wrote       {"messages": 12, "calls": 7}     no batch after 7 wrote `calls`
    declared    the declarations of the user's tables, as `_typed.json` has them
    closed      {"traffic": 60.0}                with how much patience: see `closing`

It is written with the batch itself, so it is never ahead of the tables nor behind. By it a table
that a run left out (`--tables`) is taken in again as it was: see `places.Remote`. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hubbub.errors import SettingError
from hubbub.pipeline import closing
from hubbub.pipeline.absence import Home
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables import ALL, typed
from hubbub.pipeline.tables.table import CARRIED, AnyTable, Derived
from hubbub.pipeline.typed import Typed


class Noted(NamedTuple):
    """As of the last whole batch, -1 = there is none.

    `sure`: a version wrote it that notes this; else all tables are taken to be of that batch.
    """

    batch: int = -1
    wrote: dict[str, int] = {}  # noqa: RUF012  # it never changes
    declared: tuple[Typed, ...] = ()
    sure: bool = True
    closed: dict[str, float] = {}  # noqa: RUF012  # nor does it

    def last(self, name: str) -> int:
        """The last batch that wrote a table, -1 if none did."""
        return self.wrote.get(name, -1)

    def out(self, name: str) -> bool:
        """Whether the last batch left out a table that one before it wrote."""
        return 0 <= self.last(name) < self.batch

    def left_by(self, tables: tuple[AnyTable, ...]) -> list[str]:
        """The tables of the last batch that those who write `tables` leave out."""
        last = {name for name, batch in self.wrote.items() if batch == self.batch}
        return sorted(last - {table.name for table in tables})

    def after(self, batch: int, tables: tuple[AnyTable, ...]) -> dict[str, int]:
        """What is noted with a batch that wrote `tables`."""
        return {**self.wrote, **dict.fromkeys((table.name for table in tables), batch)}

    def take_in(
        self, tables: tuple[AnyTable, ...], rules: Rules, home: Home, anew: Collection[str] = ()
    ) -> list[str]:
        """What is to be said of tables that were left out, and of those that begin anew.

        Raises SettingError for one of the user whose rows would not be alike, or whose open rows
        would be wrong, or whose minutes would be there twice.
        """
        advice = "name a new table, or another --to"
        kept = [table for table in tables if table.name not in anew]
        closing.need(self.closed, closing.closed_by(kept, rules), home)
        typed.joined(self.declared, rules, advice)
        spans = {one.name for one in rules.table if one.window or one.dedupe_by}
        missing = []
        for table in tables:
            wrote = self.last(table.name)
            said = f"was left out of batches {wrote + 1} to {self.batch}"
            if table.name in anew:
                said = f"was gone, with what batches 0 to {wrote} wrote"
            elif isinstance(table, Derived) or wrote >= self.batch or not self.sure:
                continue
            if table.name in spans and self.out(table.name):
                raise SettingError(
                    f"{table.name} {said}, so what is open of it is not known: {advice}"
                )
            opened = isinstance(table, CARRIED) and table.name not in anew
            missing.append(home.lacks_rows(table.name, said, opened))
        return missing

    def declares(self, rules: Rules) -> str:
        """The declarations to note with a batch."""
        return typed.coded(typed.joined(self.declared, rules, ""))


def noted(
    batch: int,
    wrote: dict[str, int] | None,
    declared: str | None,
    closed: dict[str, float] | None = None,
) -> Noted:
    """What a line of `_progress` says."""
    own = typed.decoded((declared or "[]").encode())
    if wrote is None:
        return Noted(batch, dict.fromkeys((table.name for table in ALL), batch), own, sure=False)
    return Noted(batch, wrote, own, closed=closed or {})
