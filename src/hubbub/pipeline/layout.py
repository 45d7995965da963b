"""Where the tables lie, and how a batch puts its files there. Knows no Spark and no rows.

    DIR/tables/<table>/[day=D/]batch_id=N/part-I.parquet   final rows; for any reader of Parquet
    DIR/tables/_open/<table>/batch_id=N/part-I.parquet     rows still open after batch N
    DIR/tables/_progress.json                              the last whole batch: {"batch_id": N, …}
    DIR/tables/_tmp/  _checkpoint/  _lock                  work of the pipeline

A file appears whole, by a rename within one file system, and never changes: a batch that runs
again writes the same rows under the same names. Readers of Parquet skip what begins with `_`. Who
wants all tables as of one moment takes batches up to `_progress.json` and the open rows of that
batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import DirectoryError

VERSION: Final = 1
BATCH: Final = "batch_id="
KEPT: Final = 16  # open rows of so many batches stay for readers that are a little late


class Progress(NamedTuple):
    """How far the tables stand: the last whole batch and the last seq it read."""

    batch: int
    seq: int
    time: str  # of that row, ISO 8601


class Layout:
    """The tables of one data directory."""

    def __init__(self, data: str | Path) -> None:
        self.data = Path(data).absolute()
        self.root = self.data / "tables"
        self.checkpoint = self.root / "_checkpoint"
        self._progress = self.root / "_progress.json"
        self._lock = -1

    def prepare(self, names: tuple[str, ...]) -> None:
        """Make the directories and keep other pipelines out until this process ends.

        Raises DirectoryError if another one is at work here, if nothing can be written, or if
        the tables are there but their checkpoint is gone.
        """
        try:
            for name in names:
                self._begin(name)
            self._lock = os.open(self.root / "_lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DirectoryError(
                f"cannot write tables in {self.root}: {error.strerror}; "
                f"make it writable or choose another directory with --data"
            ) from error
        self._hold()
        if self.progress() is not None and not (self.checkpoint / "offsets").is_dir():
            self.release()
            raise DirectoryError(
                f"{self.root} has tables but their checkpoint is gone: move {self.root} away, "
                f"the next run makes the tables again from what the journal still has"
            )

    def _begin(self, name: str) -> None:
        """Make room for a table; one that is new here has nothing open so far."""
        (self.root / name).mkdir(parents=True, exist_ok=True)
        place = self.root / "_open" / name
        if not place.exists():
            place.mkdir(parents=True)
            progress = self.progress()
            if progress is not None:
                (place / f"{BATCH}{progress.batch}").mkdir()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 32, 0).decode().strip() or "?"
            os.close(self._lock)
            raise DirectoryError(
                f"another pipeline (process {holder}) writes {self.root}: stop it first"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._lock)

    def progress(self) -> Progress | None:
        """How far the tables stand, None if no batch was ever written."""
        try:
            said = json.loads(self._progress.read_text())
        except FileNotFoundError:
            return None
        if said["version"] != VERSION:
            raise DirectoryError(
                f"{self.root} is of version {said['version']}, expected {VERSION}: "
                f"use the version of Hubbub that wrote it, or move it away"
            )
        return Progress(said["batch_id"], said["seq"], said["time"])

    def stands(self) -> Progress:
        """The same for who wants to read. Raises DirectoryError if no pipeline ever ran here."""
        progress = self.progress()
        if progress is None:
            raise DirectoryError(
                f"there are no tables in {self.root} yet: run `hubbub pipeline run` first"
            )
        return progress

    def advance(self, progress: Progress) -> None:
        """Say that the batch is whole; drop open rows that nobody needs any more."""
        said = {
            "version": VERSION,
            "batch_id": progress.batch,
            "seq": progress.seq,
            "time": progress.time,
            "open": f"_open/*/batch_id={progress.batch}",
        }
        fresh = self._progress.with_suffix(".tmp")
        fresh.write_text(json.dumps(said) + "\n")
        _sync(fresh)
        fresh.replace(self._progress)
        _sync(self.root)
        self._tidy(progress.batch)

    def _tidy(self, batch: int) -> None:
        shutil.rmtree(self.root / "_tmp", ignore_errors=True)
        for table in (self.root / "_open").iterdir():
            for number, place in _batches(table):
                if number <= batch - KEPT:
                    shutil.rmtree(place, ignore_errors=True)

    def scratch(self, name: str) -> Path:
        """An empty place for Spark to write the rows of a table, on the same file system."""
        place = self.root / "_tmp" / name
        shutil.rmtree(place, ignore_errors=True)
        return place

    def append(self, name: str, batch: int, written: Path) -> int:
        """Put what Spark wrote into the table; return the number of files."""
        return self._place(written, self.root / name, batch)

    def carry(self, name: str, batch: int, written: Path) -> int:
        """Put what Spark wrote beside the table, as the open rows after the batch."""
        (self.root / "_open" / name / f"{BATCH}{batch}").mkdir(exist_ok=True)
        return self._place(written, self.root / "_open" / name, batch)

    def carry_on(self, name: str, batch: int) -> None:
        """The open rows of the batch before are those of this one too: it had no rows at all."""
        files = self.carried(name, batch - 1)
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in files:
            os.link(file, place / file.name)

    def _place(self, written: Path, table: Path, batch: int) -> int:
        """Move files, keeping the directories Spark made (day=D) above batch_id=N."""
        files: dict[Path, list[Path]] = {}
        for file in sorted(written.rglob("*.parquet")):
            files.setdefault(table / file.parent.relative_to(written), []).append(file)
        for parent, parts in files.items():
            place = parent / f"{BATCH}{batch}"
            place.mkdir(parents=True, exist_ok=True)
            for number, part in enumerate(parts):
                _sync(part)
                part.replace(place / f"part-{number}.parquet")
            for stale in place.glob("part-*.parquet"):
                if int(stale.stem.removeprefix("part-")) >= len(parts):
                    stale.unlink()
            for made in (place, parent, table):
                _sync(made)
        return sum(map(len, files.values()))

    def carried(self, name: str, batch: int) -> list[Path]:
        """The files with the rows that were open after the batch; none before the first.

        Raises DirectoryError if they are gone.
        """
        if batch < 0:
            return []
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        if not place.is_dir():
            raise DirectoryError(
                f"{place} is gone, so open rows of {name} cannot be closed: move {self.root} "
                f"away, the next run makes the tables again from what the journal still has"
            )
        return sorted(place.glob("*.parquet"))

    def files(self, name: str, after: int, upto: int) -> list[Path]:
        """The final files of a table that batches after < N <= upto wrote, in their order."""
        table = self.root / name
        places = [*_batches(table)]
        for day in table.glob("*=*"):
            if not day.name.startswith(BATCH):
                places += _batches(day)
        wanted = sorted(place for place in places if after < place[0] <= upto)
        return [file for _, place in wanted for file in sorted(place.glob("part-*.parquet"))]


def _batches(folder: Path) -> list[tuple[int, Path]]:
    """The directories batch_id=N right in a folder. There may be many: no glob."""
    if not folder.is_dir():
        return []
    names = (name for name in os.listdir(folder) if name.startswith(BATCH))
    return [(int(name.removeprefix(BATCH)), folder / name) for name in names]


def _sync(path: Path) -> None:
    """After a power loss a renamed file must not be empty, nor a rename forgotten."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
