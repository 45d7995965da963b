"""What is said of tables that are gone, of parts of them, and of rows that a table lacks.

The same wherever the tables lie: put back what was there; what is made of messages `backfill` makes
again, where it reaches; `--anew` goes on without the rows before; a run that begins elsewhere makes
all tables again. Called by `layout` and `places`, which see what is gone, and by `left_out` and
`noted`, which know what a table was left out of. Reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hubbub.errors import DirectoryError


class Home(NamedTuple):
    """Where tables lie. `elsewhere`: how a run is told to begin with no tables; `backfills`:
    whether `backfill` reaches there.
    """

    root: str
    elsewhere: str
    backfills: bool

    def all_again(self) -> str:
        """What makes any table again."""
        return (
            f"{self.elsewhere}, then the next run makes all tables again from what the journal "
            "still has"
        )

    def lacks_part(self, part: str) -> DirectoryError:
        """Of tables that stand something is gone that all of them need."""
        return DirectoryError(
            f"{self.root} has tables but {part} is gone: put it back, or {self.all_again()}"
        )

    def strays(self, checkpoint: str, does: str, stand: str, *ways: str) -> DirectoryError:
        """Spark's checkpoint is of another moment than the tables, as one from a backup is."""
        return DirectoryError(
            f"{checkpoint} is not of the tables as they are: {does}, and they stand at {stand}. "
            + "; or ".join(["Put back both as they were at one moment", *ways, self.all_again()])
        )

    def lacks_tables(self, names: Sequence[str], batch: int) -> DirectoryError:
        """Tables are gone that batches up to `batch` wrote."""
        ways = ["put back what was there"]
        made = [name for name in names if self._makes_again(name) and "messages" not in names]
        if made:
            ways.append(f"`hubbub pipeline backfill NAME` makes {', '.join(made)} again")
        ways.append(
            f"`hubbub pipeline run --anew {','.join(names)}` goes on without the rows before"
        )
        if len(made) < len(names):
            ways.append(self.all_again())
        return DirectoryError(
            f"{self.root} lacks {', '.join(names)}, which batches up to {batch} wrote: "
            + "; or ".join(ways)
        )

    def lacks_open(self, name: str, batch: int) -> DirectoryError:
        """What is open of a table is gone, so that it would never close."""
        ways = [f"`hubbub pipeline backfill {name}` makes it again"] * self._makes_again(name)
        return DirectoryError(
            f"the open rows of {name} after batch {batch} are gone from {self.root}: "
            + "; or ".join(["put back what was there", *ways, self.all_again()])
        )

    def lacks_rows(self, name: str, why: str, opened: bool) -> str:
        """A table lacks what was not written to it, or went. `opened`: rows of it were open when
        it was left, and may never close."""
        head = f"{name} {why}: their rows are missing in it"
        if self._makes_again(name):
            rules = "" if _is_shipped(name) else " --rules FILE"
            return f"{head} until `hubbub pipeline backfill {name}{rules}` makes it again"
        stay = ", and what was open then may stay so" * opened
        return f"{head}{stay}. To have them {self.all_again()}"

    def _makes_again(self, name: str) -> bool:
        return self.backfills and made_of_messages(name)


def _is_shipped(name: str) -> bool:
    from hubbub.pipeline.tables import ALL  # with Spark, which who looks at a `Layout` may lack

    return any(table.name == name for table in ALL)


def made_of_messages(name: str) -> bool:
    """Whether `backfill` can make that table; one of the user's own always is."""
    from hubbub.pipeline.tables import TABLES, messages

    made = [one.name for one in TABLES if one.of_messages and one is not messages.TABLE]
    return name in made or not _is_shipped(name)
