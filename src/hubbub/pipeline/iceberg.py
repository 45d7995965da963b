"""One table of the pipeline as a table of Apache Iceberg: its snapshots, and the files they name.

    DIR/tables/_iceberg/<table>/data/part-N-…-<inode>.parquet    the files, each a second name
    DIR/tables/_iceberg/<table>/metadata/                        snapshots and lists, by pyiceberg

Iceberg says where a file is with its whole path, and a snapshot is readable as long as its files
are there. Ours go when they are merged or too old. So a snapshot names a hard link: no byte is
written twice, and the rows stay until the last snapshot that has them expires. A file is told
from all others by its inode, which its link keeps.

Called by `catalog`. Knows files and no rows, and neither Spark nor batches but by their numbers.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from hubbub.errors import DirectoryError
from hubbub.pipeline.layout import sync
from hubbub.pipeline.tables.table import AnyTable, clock

# How far back one can go: each snapshot more makes each commit dearer, since pyiceberg copies the
# list of all of them sixteen times for one (docs/decisions/0029).
RECENT: Final = 20  # batches
HOURS: Final = 24  # of which the last batch stays
DAYS: Final = 14
SLACK: Final = 20  # are forgotten at once: that reads all lists
BATCH: Final = "hubbub.batch"  # of a snapshot: the last batch whose rows it has
VERSION: Final = 1  # of what is said below; a table of a later one is not touched
_VERSION: Final = "hubbub.version"
_PROPERTIES: Final = {
    # A list a batch: they are joined, or each reader opens one for each batch there ever was.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "64",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "16",
    "commit.retry.num-retries": "0",  # nobody else writes it
    _VERSION: str(VERSION),
}
_TYPES: Final = {
    "bigint": LongType(),
    "int": IntegerType(),
    "tinyint": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestamptzType(),
    "date": DateType(),
}


class IcebergTable:
    """A table in the catalog, made if it is not there. `root`: where its files are named again.

    Raises DirectoryError if somebody else wrote it, or a later version of this.
    """

    def __init__(
        self,
        catalog: Catalog,
        namespace: str,
        table: AnyTable,
        root: Path,
        notice: Callable[[str], None],
    ) -> None:
        self.name = f"{namespace}.{table.name}"
        self._place = root / table.name
        self._links = self._place / "data"
        self._table = _opened(catalog, self.name, table, self._place, notice)
        self._links.mkdir(parents=True, exist_ok=True)
        self._unbounded = _unbounded(table)
        self._files = self._known()
        self._fewer = False  # rows were removed since snapshots were forgotten

    def batch(self) -> int:
        """The last batch that the table has; -1 for none."""
        now = self._table.current_snapshot()
        return int(_summary(now)[BATCH]) if now is not None else -1

    def _known(self) -> dict[int, str]:
        """The files of the newest snapshot by inode; what is gone has numbers below zero."""
        return {_inode(path, -1 - n): path for n, path in enumerate(self._newest())}

    def _newest(self) -> dict[str, DataFile]:
        return {task.file.file_path: task.file for task in self._table.scan().plan_files()}

    def add(self, files: Iterable[Path], said: dict[str, str]) -> None:
        """A snapshot more, with these files too. `said`: its properties."""
        self._commit([], [self._link(file) for file in files], said)

    def become(self, files: Iterable[Path], said: dict[str, str]) -> None:
        """A snapshot with these files and no others, if that is something new."""
        wanted = {file.stat().st_ino: file for file in files}
        gone = [inode for inode in self._files if inode not in wanted]
        fresh = [self._link(file) for inode, file in wanted.items() if inode not in self._files]
        if gone or fresh:
            self._commit(gone, fresh, said)

    def _commit(self, gone: list[int], fresh: list[Path], said: dict[str, str]) -> None:
        table = self._table.refresh()
        _check(table, self.name, self._place)  # pyiceberg would take over what others did
        sync(self._links)
        paths = [one.as_uri() for one in fresh]
        made = [self._described(path) for path in paths]
        known = self._newest() if gone else {}
        rows = sum(known[self._files[inode]].record_count for inode in gone)
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=said)
            with update.overwrite() if gone else update.merge_append() as change:
                for inode in gone:
                    change.delete_data_file(known[self._files[inode]])
                for file in made:
                    change.append_data_file(file)
        self._fewer |= rows > sum(file.record_count for file in made)
        for inode in gone:
            del self._files[inode]
        self._files |= {one.stat().st_ino: path for one, path in zip(fresh, paths, strict=True)}

    def _described(self, path: str) -> DataFile:
        """A file with the bounds of its columns; without those of times that Python has not."""
        table = self._table
        try:
            return parquet_file_to_data_file(table.io, table.metadata, path)
        except (OverflowError, ValueError):
            properties = table.metadata.properties | self._unbounded
            metadata = table.metadata.model_copy(update={"properties": properties})
            try:
                return parquet_file_to_data_file(table.io, metadata, path)
            except (OverflowError, ValueError) as error:
                raise ValueError(f"{_path(path).name}: {error}") from error

    def _link(self, file: Path) -> Path:
        """The second name of a file."""
        inode = file.stat().st_ino
        link = self._links / f"{file.stem}-{inode:x}.parquet"
        if link.exists() and link.stat().st_ino != inode:
            link.unlink()  # copied here with its name, of another disk: no snapshot finds it right
        if not link.exists():
            try:
                os.link(file, link)
            except OSError as error:
                raise DirectoryError(
                    f"{file} cannot have a second name in {self._links} ({error.strerror}): a "
                    "catalog needs a file system with hard links"
                ) from error
        return link

    def expire(self) -> int:
        """Forget snapshots that `staying` does not keep, if there are many; how many.

        What only they named is removed. All older ones go if rows were removed: who keeps rows
        for 90 days wants them gone then. One that somebody gave a name (a tag) stays as long.
        """
        snapshots = sorted(self._table.snapshots(), key=lambda one: -(one.sequence_number or 0))
        kept = staying([one.timestamp_ms // 1000 for one in snapshots])
        old = [one.snapshot_id for at, one in enumerate(snapshots) if at not in kept]
        if self._fewer:
            old = [one.snapshot_id for one in snapshots[1:]]
        named = {one.snapshot_id for one in self._table.refs().values()}
        old = [one for one in old if one not in named]
        if len(old) < (1 if self._fewer else SLACK):
            return 0
        before = self._named()
        self._table.maintenance.expire_snapshots().by_ids(old).commit()
        self._fewer = False
        for path in before - self._named():
            with suppress(OSError):
                self._table.io.delete(path)
        return len(old)

    def _named(self) -> set[str]:
        """The files that some snapshot names: lists of lists, lists, rows."""
        found: set[str] = set()
        for snapshot in self._table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path not in found:
                    found.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(self._table.io)
                    found.update(entry.data_file.file_path for entry in entries)
        return found


def staying(times: list[int]) -> set[int]:
    """Which of these snapshots stay, by their place: the newest is the first. `times`: seconds."""
    kept = set(range(min(RECENT, len(times))))
    for span, many in ((3600, HOURS), (86_400, DAYS)):
        seen: set[int] = set()
        for at, time in enumerate(times):
            if time // span not in seen and times[0] // span - time // span < many:
                seen.add(time // span)
                kept.add(at)
    return kept


def _summary(snapshot: object) -> dict[str, str]:
    summary = getattr(snapshot, "summary", None)
    return summary.additional_properties if summary is not None else {}


def _opened(
    catalog: Catalog, name: str, table: AnyTable, place: Path, notice: Callable[[str], None]
) -> Table:
    """From the catalog; else by what lies there, if the catalog was lost; else a new one."""
    found = _known(catalog, name, place)
    if found is None:
        newest = max((place / "metadata").glob("*.metadata.json"), default=None, key=_version)
        if newest is not None:
            found = catalog.register_table(name, newest.as_uri())
        else:
            found = _made(catalog, name, table, place)
    _check(found, name, place)
    if change := _changed(found, table):
        notice(f"{name} in the catalog begins anew, without its snapshots: {change}")
        catalog.drop_table(name)
        shutil.rmtree(place)  # its metadata, and second names of files
        return _made(catalog, name, table, place)
    _grow(found, table)
    return found


def _known(catalog: Catalog, name: str, place: Path) -> Table | None:
    """What the catalog has; not if that is what was removed from here."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        if str(place) not in unquote(str(error)):
            raise DirectoryError(
                f"{name} in the catalog is of files that are not there ({error}): give each hub a "
                f"pipeline.namespace of its own; if they were those of {place}, drop it from the "
                "catalog"
            ) from error
        catalog.drop_table(name)
        return None


def _changed(found: Table, table: AnyTable) -> str:
    """What `backfill` changed of its form that its snapshots cannot follow; "" for nothing."""
    wanted = {field.name: field.field_type for field in schema_of(table).fields}
    for field in found.schema().fields:
        if field.field_type != wanted.get(field.name, field.field_type):
            return f"{field.name} was {field.field_type}, is {wanted[field.name]}"
    if bool(found.spec().fields) != bool(table.by):
        return "by was day, is none" if found.spec().fields else "by was none, is day"
    return ""


def _unbounded(table: AnyTable) -> dict[str, str]:
    """The properties of a file without the bounds of its times, but that by which it lies."""
    times = [one.name for one in table.columns if one.type in ("timestamp", "date")]
    return {
        f"write.metadata.metrics.column.{name}": "counts"
        for name in times
        if not table.by or name != clock(table)
    }


def _check(found: Table, name: str, place: Path) -> None:
    """Raise DirectoryError if it is not ours to write: nothing of it was touched then."""
    if not _same(found.location(), place):
        raise DirectoryError(
            f"{name} in the catalog is of the tables in {_path(found.location()).parents[1]}, not "
            f"of those in {place.parents[1]}: give each hub a pipeline.namespace of its own. If "
            f"these tables were moved or copied from there, remove {place.parent}, and drop the "
            "tables from a catalog that lies elsewhere: the next run makes all of it again"
        )
    said = found.properties.get(_VERSION)
    if said != str(VERSION):
        whose = "another program" if said is None else f"version {said} of Hubbub's"
        raise DirectoryError(
            f"{name} in the catalog was made by {whose}, expected version {VERSION}: use "
            "the version of Hubbub that made it, or name another pipeline.namespace"
        )
    strange = [one for one in found.snapshots() if BATCH not in _summary(one)]
    if strange:
        raise DirectoryError(
            f"{name} in the catalog was changed by another program (snapshot "
            f"{strange[-1].snapshot_id}): only a pipeline writes it. Drop it from the "
            "catalog, the next run makes it again of the files of the tables"
        )


def _same(location: str, place: Path) -> bool:
    """Whether a table's location is that directory, by whatever links its path goes."""
    return os.path.realpath(_path(location)) == os.path.realpath(place)


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _made(catalog: Catalog, name: str, table: AnyTable, place: Path) -> Table:
    schema = schema_of(table)
    mapping = {"schema.name-mapping.default": schema.name_mapping.model_dump_json()}
    return catalog.create_table(
        name, schema, place.as_uri(), _days(table, schema),
        properties=_PROPERTIES | mapping | {"comment": table.grain},
    )  # fmt: skip


def schema_of(table: AnyTable) -> Schema:
    """Its columns without those that are directories: Iceberg parts by day itself."""
    columns = [column for column in table.columns if column.name not in table.by]
    return Schema(
        *(
            NestedField(number, column.name, _TYPES[column.type], doc=column.meaning)
            for number, column in enumerate(columns, 1)
        )
    )


def _days(table: AnyTable, schema: Schema) -> PartitionSpec:
    if not table.by:
        return UNPARTITIONED_PARTITION_SPEC
    name = clock(table)
    number = schema.find_field(name).field_id
    return PartitionSpec(PartitionField(number, 1000, DayTransform(), f"{name}_day"))


def _grow(found: Table, table: AnyTable) -> None:
    """Columns that came with a later version of Hubbub."""
    fresh = [field for field in schema_of(table).fields if field.name not in _names(found)]
    if not fresh:
        return
    with found.transaction() as transaction:
        with transaction.update_schema() as change:
            for field in fresh:
                change.add_column(field.name, field.field_type, field.doc)
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})


def _names(table: Table) -> set[str]:
    return set(table.schema().column_names)


def _version(file: Path) -> tuple[int, float]:
    """Of 00012-….metadata.json the number; the later one of two that were begun."""
    found = re.match(r"\d+", file.name)
    return int(found[0]) if found else -1, file.stat().st_mtime


def _inode(path: str, otherwise: int) -> int:
    try:
        return os.stat(_path(path)).st_ino
    except OSError:
        return otherwise
