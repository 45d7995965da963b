"""What is done between two batches on a local disk: the catalog and sinks follow, small files are
merged.

Called by `run`. A catalog is asked for by its name, and pyiceberg is loaded only then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.compact import tidied, tidy
from hubbub.pipeline.jdbc import JdbcSink
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.rules import Sink
from hubbub.pipeline.tables.table import AnyTable

if TYPE_CHECKING:
    from hubbub.pipeline.catalog import Catalogued


class Named(NamedTuple):
    """Which catalog, as the settings `pipeline.…` say it: "sqlite", a URL, or what pyiceberg's
    own settings call one. "" = none.
    """

    name: str = ""
    namespace: str = "hubbub"


class _Trouble(NamedTuple):
    """Why a sink does not follow, and when it is tried again at the earliest."""

    said: str
    until: float


NOWHERE: Final = Named()
LATER: Final = 5.0  # seconds between two looks at who is behind
REST: Final = 9.0  # times as long as it took to fail: a database that hangs takes a tenth of a day


def need_local(named: Named, sinks: tuple[Sink, ...], far: bool) -> None:
    """Raise SettingError if a catalog or sinks are to follow tables that are `far`."""
    if sinks and far:
        raise SettingError(
            "sink: only tables in a data directory, written without --remote, have sinks"
        )
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
        sinks: tuple[Sink, ...] = (),
        spark: Callable[[], SparkSession | None] = lambda: None,
    ) -> None:
        self._layout = layout
        self._keep = keep
        self._notice = notice
        named_so = {table.name: table for table in tables}
        for sink in sinks:
            if sink.table not in named_so:
                raise SettingError(f"sink {sink.name!r}: {sink.table} is not among --tables")
        self._sinks = [JdbcSink(one, layout, named_so[one.table], spark, notice) for one in sinks]
        self._trouble: dict[str, _Trouble] = {}
        self._looked = time.monotonic()
        self._catalogued = _catalogued(named, layout, tables, notice) if named.name else None

    def __call__(self, now: Progress, before: Progress | None) -> None:
        if self._catalogued is not None:
            self._catalogued.follow(now)
        self._sink(now)
        tidy(self._layout, self._keep, now, before)
        if self._catalogued is not None and tidied(now, before):
            self._catalogued.tidied(now)

    def begin(self) -> None:
        """Bring the sinks to where the tables are: there may be nothing new for long."""
        now = self._layout.progress()
        if now is not None:
            self._sink(now)

    def _sink(self, now: Progress) -> None:
        """The tables go on whatever happens to a database, which gets what it lacks later."""
        self._tell(self._sinks, now)

    def _tell(self, sinks: list[JdbcSink], now: Progress) -> None:
        for sink in sinks:
            before = self._trouble.get(sink.name)
            begun = time.monotonic()
            if before is not None and begun < before.until:
                continue
            try:
                sink.follow(now)
            except DirectoryError as error:
                ended = time.monotonic()
                self._trouble[sink.name] = _Trouble(str(error), ended + REST * (ended - begun))
                if before is None or str(error) != before.said:
                    self._notice(f"{error}; the tables go on, it gets what it lacks later")
                continue
            if self._trouble.pop(sink.name, None):
                self._notice(f"{sink.name} has all batches again")

    def later(self, least: float = LATER) -> None:
        """Bring up who is behind, at times: batches do it, and none comes while nothing comes.

        `least`: seconds since it was looked at last.
        """
        catalog = self._catalogued if self._catalogued and self._catalogued.trouble else None
        behind = [sink for sink in self._sinks if sink.name in self._trouble]
        if time.monotonic() - self._looked < least or not (behind or catalog):
            return
        now = self._layout.progress()
        if now is not None:
            self._tell(behind, now)
            if catalog is not None:
                catalog.follow(now)
        self._looked = time.monotonic()

    def end(self) -> None:
        """Raise DirectoryError if the catalog or a sink is not where the tables are, and is not to
        be asked now.
        """
        self.later(0)
        for trouble in self._trouble.values():
            raise DirectoryError(f"{trouble.said}; the tables are whole, the next run tells it all")
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
