"""What is done between two batches on a local disk: the catalog follows, small files are merged.

Called by `run`. A catalog is asked for by its name, and pyiceberg is loaded only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub.errors import SettingError
from hubbub.pipeline.compact import tidied, tidy
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.tables.table import AnyTable

if TYPE_CHECKING:
    from hubbub.pipeline.catalog import Catalogued


class Named(NamedTuple):
    """Which catalog, as the settings `pipeline.…` say it: "sqlite", a URL, or what pyiceberg's
    own settings call one. "" = none.
    """

    name: str = ""
    namespace: str = "hubbub"


NOWHERE: Final = Named()


def need_local(named: Named, far: bool) -> None:
    """Raise SettingError if there is to be a catalog of tables that are `far`."""
    if named.name and far:
        raise SettingError(
            "pipeline.catalog: only tables in a data directory, written without --remote, can be "
            "in a catalog: a snapshot names its files a second time, by hard links"
        )


class After:
    """Called with the progress of a batch that is whole, and the one before; None = the first."""

    def __init__(
        self,
        named: Named,
        layout: Layout,
        tables: tuple[AnyTable, ...],
        keep: dict[str, float],
        notice: Callable[[str], None],
    ) -> None:
        self._layout = layout
        self._keep = keep
        self._catalogued = _catalogued(named, layout, tables, notice) if named.name else None

    def __call__(self, now: Progress, before: Progress | None) -> None:
        if self._catalogued is not None:
            self._catalogued.follow(now)
        tidy(self._layout, self._keep, now, before)
        if self._catalogued is not None and tidied(now, before):
            self._catalogued.tidied(now)

    def end(self) -> None:
        """Raise DirectoryError if the catalog is not where the tables are."""
        if self._catalogued is not None:
            self._catalogued.end()


def _catalogued(
    named: Named,
    layout: Layout,
    tables: tuple[AnyTable, ...],
    notice: Callable[[str], None],
) -> Catalogued:
    from hubbub.pipeline.catalog import Catalogued

    made = Catalogued(named, layout, tables, notice)
    made.begin()
    return made
