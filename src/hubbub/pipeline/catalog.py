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

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError

from hubbub.errors import DirectoryError, HubbubError
from hubbub.pipeline.after import Named
from hubbub.pipeline.iceberg import BATCH, IcebergTable
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.tables.table import AnyTable

PLACE: Final = "_iceberg"  # below the tables
BESIDE: Final = "sqlite"  # the catalog that needs nothing: a file there
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
        self._open: dict[str, IcebergTable] = {}
        self.trouble = ""

    def begin(self) -> None:
        """Bring the catalog to where the tables are. Raises DirectoryError, SettingError."""
        progress = self._layout.progress()
        try:
            self._begin()
            if progress is not None:
                self._become(progress)
        except Exception as error:
            raise self._error(error) from error

    def follow(self, now: Progress) -> None:
        """A batch is whole."""
        self._do(self._add, now)

    def tidied(self, now: Progress) -> None:
        """Files may have been merged or dropped."""
        self._do(self._become, now)

    def end(self) -> None:
        """Raise DirectoryError if it is not where the tables are."""
        if self.trouble:
            raise DirectoryError(f"{self.trouble}; the tables are whole, the next run tells it all")

    def _do(self, change: Callable[[Progress], None], now: Progress) -> None:
        """The tables go on whatever happens to the catalog, which is brought up to them later."""
        try:
            if self.trouble:
                self._begin()
                self._become(now)
                self._notice("the catalog has all batches again")
                self.trouble = ""
            change(now)
        except Exception as error:
            said = str(self._error(error))
            if said != self.trouble:
                self._notice(f"{said}; the tables go on, the catalog follows when it can")
            self.trouble = said

    def _begin(self) -> None:
        self._open = {}
        root = self._layout.root / PLACE
        root.mkdir(parents=True, exist_ok=True)
        catalog = _catalog(self._named, root)
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self._named.namespace)
        progress = self._layout.progress()
        stands = progress.batch if progress is not None else -1
        for table in self._tables:
            opened = IcebergTable(catalog, self._named.namespace, table, root)
            if opened.batch() > stands:
                raise DirectoryError(
                    f"the catalog has batch {opened.batch()} of {opened.name}, the tables in "
                    f"{self._layout.root} end with batch {stands}: it is of other tables. Drop "
                    "that table from the catalog, or name another pipeline.namespace"
                )
            self._open[table.name] = opened

    def _add(self, now: Progress) -> None:
        self._here()
        for name, table in self._open.items():
            files = self._layout.of_batch(name, now.batch, now.group)
            if files and table.batch() < now.batch:
                table.add(files, _said(now, now.batch))
                table.expire()

    def _become(self, now: Progress) -> None:
        self._here()
        for name, table in self._open.items():
            parts = self._layout.files(name, -1, now.batch)
            first = min(table.batch() + 1, now.batch)
            table.become((part.file for part in parts), _said(now, first))
            table.expire()

    def _here(self) -> None:
        """A file that was removed would be written on, and nobody would find it."""
        place = self._layout.root / PLACE / "catalog.db"
        if self._named.name == BESIDE and not place.exists():
            raise DirectoryError(f"the catalog {place} is gone")

    def _error(self, error: Exception) -> HubbubError:
        if isinstance(error, HubbubError):
            return error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = lines[0].partition(") ")[2] if lines[0].startswith("(") else lines[0]
        return DirectoryError(f"the catalog {self._named.name} does not take it: {said}")


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
