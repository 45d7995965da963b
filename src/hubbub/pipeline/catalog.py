"""The tables in a catalog of Apache Iceberg, for all that open tables by their names.

    a batch is whole  ──▶  its files are a snapshot more of each table that has some
    files were merged ──▶  one snapshot with the merged file, without the small ones
    groups too old    ──▶  one snapshot without them

The catalog follows the tables, and is never part of a batch: it is told what is whole, and at each
start, or after trouble, what the tables have and it has not. So a batch that runs again, a process
that is killed at any moment or a catalog that is away lose nothing and double nothing. Every
snapshot says up to which batch and row of the journal it is. Called by `after` between batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError

from hubbub.errors import DirectoryError, HubbubError
from hubbub.pipeline import hive, postgres
from hubbub.pipeline.after import REST, Named
from hubbub.pipeline.iceberg import BATCH, IcebergTable
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.masked import masked
from hubbub.pipeline.rest import Rest
from hubbub.pipeline.tables.table import AnyTable

PLACE: Final = "_iceberg"  # below the tables
BESIDE: Final = "sqlite"  # the catalog that needs nothing: a file there
# What pyiceberg makes of these types wherever they are named, in its own settings too.
AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, settings: Rest(name, **settings)
AVAILABLE_CATALOGS[CatalogType.HIVE] = hive.load
AVAILABLE_CATALOGS[CatalogType.SQL] = postgres.load
_KINDS: Final = {"http": "rest", "https": "rest", "thrift": "hive"}


class Catalogued:
    """Follows the tables of a layout. `notice` is told in a line what goes wrong, once."""

    def __init__(
        self,
        named: Named,
        layout: Layout,
        tables: tuple[AnyTable, ...],
        notice: Callable[[str], None],
    ) -> None:
        self._named = named
        self._layout = layout
        self._tables = tables
        self._notice = notice
        self._catalog: Catalog | None = None
        self._open: dict[str, IcebergTable] = {}
        self._trouble: dict[str, str] = {}  # by table; "" = all of it
        self._until = 0.0  # when a catalog that is away is asked again at the earliest

    @property
    def trouble(self) -> str:
        """Why it is not where the tables are, "" if it is."""
        return next(iter(self._trouble.values()), "")

    def begin(self) -> None:
        """Bring the catalog to where the tables are. One that is away is waited for as later on.

        Raises SettingError or DirectoryError for what is no catalog, or has tables that are not
        ours to write.
        """
        self._each(lambda opened, now: None, self._layout.progress(), refuse=True)

    def follow(self, now: Progress) -> None:
        """A batch is whole."""
        self._each(self._add, now)

    def tidied(self, now: Progress) -> None:
        """Files may have been merged or dropped."""
        self._each(self._become, now)

    def end(self) -> None:
        """Raise DirectoryError if it is not where the tables are."""
        if self.trouble:
            raise DirectoryError(f"{self.trouble}; the tables are whole, the next run tells it all")

    def _each(
        self,
        change: Callable[[IcebergTable, Progress], None],
        now: Progress | None,
        refuse: bool = False,
    ) -> None:
        """The tables go on whatever happens to the catalog, which is brought up to them later; so
        do all its tables but the one that has trouble.
        """
        begun = time.monotonic()
        if "" in self._trouble and begun < self._until:
            return
        try:
            catalog = self._reached()
        except Exception as error:
            if refuse and not _away(error):
                raise self._error(error) from error
            self._lost(error, begun)
            return
        before = self.trouble
        self._trouble.pop("", None)
        for table in self._tables:
            try:
                self._one(catalog, table, change, now)
                self._trouble.pop(table.name, None)
            except Exception as error:
                if refuse and isinstance(error, HubbubError):
                    raise
                if _away(error):
                    self._lost(error, begun)
                    return
                self._open.pop(table.name, None)
                self._say(table.name, f"{table.name}: {self._error(error)}")
        if before and not self._trouble:
            self._notice("the catalog has all batches again")

    def _one(
        self,
        catalog: Catalog,
        table: AnyTable,
        change: Callable[[IcebergTable, Progress], None],
        now: Progress | None,
    ) -> None:
        opened = self._open.get(table.name)
        if opened is None:
            opened = self._opened(catalog, table)
            if now is not None:
                self._become(opened, now)
            self._open[table.name] = opened
        if now is not None:
            change(opened, now)

    def _lost(self, error: Exception, begun: float) -> None:
        """The catalog does not answer: all of it is opened again when it does."""
        self._catalog, self._open = None, {}
        ended = time.monotonic()
        self._until = ended + REST * (ended - begun)
        self._say("", str(self._error(error)))

    def _say(self, place: str, said: str) -> None:
        if self._trouble.get(place) != said:
            self._notice(f"{said}; the tables go on, the catalog follows when it can")
        self._trouble[place] = said

    def _reached(self) -> Catalog:
        place = self._layout.root / PLACE
        if self._catalog is None:
            place.mkdir(parents=True, exist_ok=True)
            catalog = _catalog(self._named, place)
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self._named.namespace)
            self._catalog = catalog
        # A file that was removed would be written on, and nobody would find it.
        if self._named.name == BESIDE and not (place / "catalog.db").exists():
            raise _Gone(f"the catalog {place / 'catalog.db'} is gone")
        return self._catalog

    def _opened(self, catalog: Catalog, table: AnyTable) -> IcebergTable:
        root, namespace = self._layout.root, self._named.namespace
        progress = self._layout.progress()
        stands = progress.batch if progress is not None else -1
        opened = IcebergTable(catalog, namespace, table, root / PLACE, self._notice)
        if opened.batch() > stands:
            raise DirectoryError(
                f"the catalog has batch {opened.batch()} of {opened.name}, the tables in "
                f"{root} end with batch {stands}: it is of other tables. Drop "
                "that table from the catalog, or name another pipeline.namespace"
            )
        return opened

    def _add(self, table: IcebergTable, now: Progress) -> None:
        if table.batch() < now.batch:
            name = table.name.rpartition(".")[2]
            files = self._layout.of_batch(name, now.batch, now.group)
            if files:
                table.add(files, _said(now, now.batch))
                table.expire()

    def _become(self, table: IcebergTable, now: Progress) -> None:
        parts = self._layout.files(table.name.rpartition(".")[2], -1, now.batch)
        first = min(table.batch() + 1, now.batch)
        table.become((part.file for part in parts), _said(now, first))
        table.expire()

    def _error(self, error: Exception) -> HubbubError:
        if isinstance(error, HubbubError):
            return error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = lines[0].partition(") ")[2] if lines[0].startswith("(") else lines[0]
        return DirectoryError(masked(f"the catalog {self._named.name} does not take it: {said}"))


class _Gone(DirectoryError):
    """The file of the catalog was removed: it is made again."""


# By their names, since which of their libraries are there depends on the catalog.
_AWAY: Final = {
    "_Gone", "OperationalError", "InterfaceError", "TTransportException", "RequestException",
    "ConnectionError", "TimeoutError", "ServerError", "ServiceUnavailableError",
    "TooManyRequestsError",
}  # fmt: skip


def _away(error: Exception) -> bool:
    """Whether the catalog is not there, or not for us, at the moment."""
    return any(kind.__name__ in _AWAY for kind in type(error).__mro__)


def _said(now: Progress, first: int) -> dict[str, str]:
    """The properties of a snapshot: the batches that are new in it, and how far it is then."""
    return {
        BATCH: str(now.batch),
        "hubbub.first-batch": str(first),
        "hubbub.seq": str(now.seq),
        "hubbub.time": now.time,
    }


def _catalog(named: Named, root: Path) -> Catalog:
    if named.name == BESIDE:
        return _sql(f"sqlite:///{root / 'catalog.db'}", root)
    scheme, colon, _ = named.name.partition("://")
    if not colon:
        return load_catalog(named.name)
    if kind := _KINDS.get(scheme):
        return load_catalog("hubbub", type=kind, uri=named.name)
    return _sql(named.name, root)


def _sql(uri: str, root: Path) -> Catalog:
    return load_catalog("hubbub", type="sql", uri=uri, warehouse=root.as_uri())
