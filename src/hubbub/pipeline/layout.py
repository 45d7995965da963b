"""Where the tables lie, and how a batch puts its files there. Knows no Spark and no rows.

    DIR/tables/<table>/[day=D/]batch_id=K/part-N-I.parquet   final rows; for any reader of Parquet
    DIR/tables/_open/<table>/batch_id=N/part-N-I.parquet     rows still open after batch N
    DIR/tables/_progress.json                                the last whole batch: "batch_id": N,
                                                             and "tables" that were ever written
    DIR/tables/_again.json                                   how often `backfill` made a table
    DIR/tables/_left.json                                    tables that a run left out
    DIR/tables/_closing.json                                 when minutes were closed: see `closing`
    DIR/tables/_tmp/  _checkpoint/  _lock  _trial.json       work of the pipeline
    DIR/tables/_typed.json                                   declarations of the user's tables
    DIR/tables/_anew/made/                                   a table made again: see `handover`
    DIR/tables/_replaced/                                    directories from before an exchange
    DIR/alerts.json                                          up to where alerts were published

K is the first batch of a group, a day of the journal or GROUP_ROWS of it. A file appears whole,
by a rename within one file system. A batch that was cut short runs again: what it left is
removed first. `compact` merges the files of a group into one, `part-N-to-M.parquet`, by exchanging
the whole directory at once. So a directory of a group never has a row twice or lacks one, and a
row keeps its `batch_id`. The directory from before stays REPLACED_SECONDS more: whoever is listing
it would else find the half that is not removed yet, and take it for all there is.

`part-none.parquet` has the columns and no rows: a table that is empty can be read as well.
Readers of Parquet skip what begins with `_`. Who wants all tables as of one moment takes files of
batches up to `_progress.json` and the open rows of that batch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from hubbub.errors import DirectoryError
from hubbub.pipeline.absence import Home
from hubbub.spark.plan import Ends, Span, by_rows, cuts_in

VERSION: Final = 2
BATCH: Final = "batch_id="
AHEAD: Final = 60.0  # seconds that a row may be ahead of this machine's clock unsaid
KEPT: Final = 16  # open rows of so many batches stay for readers that are a little late
REPLACED_SECONDS: Final = 60.0  # far longer than the listing of a directory takes
GROUP_ROWS: Final = 100_000_000  # of the journal: some hundred merged files
LOCKED: Final = "_lock"  # only in the tables of a data directory
FENCED: Final = "_writer"  # only in tables at a URL: see `places`
NO_ROWS: Final = "part-none.parquet"
FULL: Final = "No space left on device"  # as the system, and so Java, says it
NO_ROOM: Final = (
    "the disk is full: make room, or let the tables lie elsewhere with --to; the next run goes on "
    "from the last whole batch"
)
NO_DAY: Final = "1970-01-01"  # where a table that lies by days has that file
# Other in each row: files have their differences. A dictionary is five times as large, and slow.
RISING: Final = ("seq", "time", "event_time")


class Progress(NamedTuple):
    """How far the tables stand: the last whole batch, the last seq it read, and its group."""

    batch: int
    seq: int
    time: str  # of that row, ISO 8601
    group: int  # the first batch of it
    since: str  # time of the last row of that first batch
    rows: int  # of the journal in the group so far
    lost: int = 0  # rows of the journal that were gone or damaged before they were read
    largest: int = 0  # bytes of the largest payload so far: readers take fewer rows at a time


def grown(
    before: Progress | None, batch: int, seq: int, time: str, rows: int, largest: int = 0,
    start: int | None = None,
) -> Progress:
    """What `batch` makes of the progress before it. `start`: the row before the first of all, by
    which the first batch sees what went while it was read."""
    if before is None:
        lost = max(seq - start - rows, 0) if start is not None else 0
        return Progress(batch, seq, time, batch, time, rows, lost, largest)
    lost = before.lost + max(seq - before.seq - rows, 0)
    largest = max(before.largest, largest)
    if before.rows >= GROUP_ROWS or before.since[:10] != time[:10]:
        return Progress(batch, seq, time, batch, time, rows, lost, largest)
    rows += before.rows
    return Progress(batch, seq, time, before.group, before.since, rows, lost, largest)


def ahead(time: str) -> str:
    """What is to be said of a row of that time if it is in the future, "" if it is not."""
    before = datetime.fromisoformat(time).replace(tzinfo=UTC) - datetime.now(UTC)
    if before.total_seconds() < AHEAD:
        return ""
    return (
        f"the newest row says {time} UTC, {before} ahead of this machine's clock: rows have that "
        "time, and minutes of traffic stay open, until the hub's clock is put right and it starts"
    )


def ends_at(plan: str) -> int:
    """The last row of a batch, by what Spark's checkpoint says of it; 0 if it says nothing."""
    return max(_seqs(plan).values(), default=0)


def journal_of(plan: str) -> str:
    """The id of the journal whose rows that batch has, by the same; "" if it says nothing."""
    return next(iter(_seqs(plan)), "")


def cut_of(plan: str, span: Span) -> Ends:
    """The last row of each task of that batch, by the same; `span`: its rows."""
    said = _plan(plan)
    if "cuts" in said:
        return cuts_in(said["cuts"]).get(journal_of(plan), ())
    return by_rows([span], int(said.get("parts", 1)))[0]


def _seqs(plan: str) -> dict[str, int]:
    said = _plan(plan)
    return {name: seq for name, seq in said.items() if name not in ("v", "parts", "lost", "cuts")}


def _plan(plan: str) -> dict[str, Any]:
    try:
        return json.loads(plan.splitlines()[-1]) if plan else {}
    except ValueError as error:
        raise DirectoryError(
            f"the plan of a batch in _checkpoint/offsets is cut off ({error}): move the tables "
            "away, the next run makes them again from what the journal still has"
        ) from error


def read_json(file: Path, advice: str) -> dict[str, Any]:
    """A file of the pipeline's own. Raises FileNotFoundError, or DirectoryError with the advice if
    it is damaged: no row of the journal is to blame for that.
    """
    try:
        said = json.loads(file.read_bytes())
        if isinstance(said, dict):
            return said
        raise ValueError("no object")
    except ValueError as error:
        raise DirectoryError(f"{file} is damaged ({error}): {advice}") from error


def write_json(file: Path, said: dict[str, Any]) -> None:
    _replace(file, (json.dumps(said) + "\n").encode())


def _replace(file: Path, data: bytes) -> None:
    """A crash leaves it as it was before or as it is now."""
    fresh = file.with_suffix(".tmp")
    fresh.write_bytes(data)
    sync(fresh)
    fresh.replace(file)
    sync(file.parent)


_FENCE: Final = "remove it, then alerts of the last batch may be published once more"


class Fence:
    """Up to which row alerts were published, in a file that outlives the tables; None = nowhere.

    Tables that are made again must not publish again what they published before. While it is the
    same query that publishes, the hub knows what it took.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def of(self, query: str) -> int:
        """Up to which row others than this query published; 0 if nobody did."""
        said = self._read()
        return int(said["before"] if said.get("query") == query else said.get("seq", 0))

    def note(self, query: str, seq: int) -> None:
        """The query has published all that it found up to `seq`."""
        if self._file is not None:
            said = {"query": query, "seq": seq, "before": self.of(query)}
            write_json(self._file, said)

    def _read(self) -> dict[str, Any]:
        try:
            return read_json(self._file, _FENCE) if self._file is not None else {}
        except FileNotFoundError:
            return {}


class Part(NamedTuple):
    """A file of a table: the batches whose rows it has."""

    first: int
    last: int
    file: Path


class Layout:
    """The tables of one data directory."""

    def __init__(self, data: str | Path) -> None:
        self.data = Path(data).absolute()
        self.root = self.data / "tables"
        self.home = Home(str(self.root), f"move {self.root} away", True)
        self.checkpoint = self.root / "_checkpoint"
        self.trial = self.root / "_trial.json"
        self.declared = self.root / "_typed.json"
        self.published = self.data / "alerts.json"
        self._progress = self.root / "_progress.json"
        self._again = self.root / "_again.json"
        self._metadata = self.checkpoint / "metadata"
        self._lock = -1
        self._begun = False  # so there is a checkpoint
        self._stood = False  # and _progress.json
        self._ever: set[str] = set()  # that a batch wrote; before there was this note, none
        self._tables: list[Path] = []

    # One writer

    def prepare(self, names: tuple[str, ...], anew: Collection[str] = ()) -> list[str]:
        """Make the directories and keep other pipelines out until this process ends.

        Raises DirectoryError if another one is at work here, if nothing can be written, if the
        tables are there but a part of them is gone, or if they were written as at a URL. Returns
        those of `anew`, which may be gone, that are.
        """
        if (self.root / FENCED).exists():
            raise DirectoryError(
                f"{self.root} was written with --to, as at a URL, and lies otherwise: name it so "
                "again, or choose another directory with --data"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.root / LOCKED, os.O_RDWR | os.O_CREAT, 0o644)
            self._hold()
            self._resume()
            gone = self.lacking(names)
            if lacks := [name for name in gone if name not in anew]:
                self.release()
                raise self.lacks_tables(lacks)
            for name in names:
                self._begin(name)
            self._tables = [self.root / name for name in names]
            return gone
        except OSError as error:
            raise DirectoryError(
                f"cannot write tables in {self.root}: {error.strerror}; "
                f"make it writable or choose another directory with --data"
            ) from error

    def _resume(self) -> None:
        """Refuse tables of which a part is gone; let no checkpoint be without its tables."""
        stands, plans = self.progress() is not None, self.checkpoint / "offsets"
        checkpoint = self._metadata.exists() and plans.is_dir()
        if not stands and not (checkpoint and (plans / "0").exists()) and not self._has_rows():
            # What Spark wrote for tables that were removed from under it, or nothing.
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            return
        opened = self.root / "_open"
        parts = {
            self.checkpoint: checkpoint,
            opened: opened.is_dir() or not stands,
            self._progress: stands or not self._was_whole(),
        }
        for place in [one for one, there in parts.items() if not there]:
            self.release()
            what = "their checkpoint" if place == self.checkpoint else str(place)
            raise self.home.lacks_part(what)
        self._begun, self._stood = True, stands
        self._ever = {*self._said().get("tables", ())}

    def _was_whole(self) -> bool:
        """Whether a batch with rows was: Spark says so after its progress was written."""
        commits = (self.checkpoint / "commits").glob("*")
        last = max((int(one.name) for one in commits if one.name.isdigit()), default=-1)
        return any(
            part.first <= last
            for table in self.root.iterdir() if table.name[0] not in "_."
            for _, group in self.groups(table.name)
            for part in parts_in(group)
        )  # fmt: skip

    def lacking(self, names: Collection[str]) -> list[str]:
        """Those that batches wrote, and that are not there: not even their file without rows."""
        ever = self._ever or {*self._said().get("tables", ())}
        return [name for name in names if name in ever and not _holds(self.root / name)]

    def lacks_tables(self, names: list[str]) -> DirectoryError:
        progress = self.progress()
        if progress is None:
            return self.home.lacks_part(str(self.root / names[0]))
        return self.home.lacks_tables(names, progress.batch)

    def _has_rows(self) -> bool:
        tables = [place for place in self.root.iterdir() if place.name[0] not in "_."]
        return any(parts_in(one) for table in tables for _, one in self.groups(table.name))

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

    def writer(self) -> int | None:
        """The process that writes these tables now, None if nobody does."""
        try:
            lock = os.open(self.root / LOCKED, os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(lock, 32, 0).decode().strip() or 0)
        finally:
            os.close(lock)
        return None

    def need(self) -> None:
        """Raise DirectoryError if the tables were removed, or others put there, since `prepare`;
        or a part of them.
        """
        try:
            same = os.path.samestat(os.stat(self.root / LOCKED), os.fstat(self._lock))
        except FileNotFoundError:
            same = False
        if not same:
            raise DirectoryError(
                f"{self.root} was removed, moved or replaced while this pipeline wrote there: put "
                "it back, or remove what is left of it, then the next run makes the tables again "
                "from what the journal still has"
            )
        self.need_own()
        gone = {*self.lacking([table.name for table in self._tables])}
        if lacks := [one.name for one in self._tables if one.name in gone or not one.exists()]:
            raise self.lacks_tables(lacks)

    def need_own(self) -> None:
        """What says how far they are. No batch becomes whole without: put back, the checkpoint
        would be older than the tables.
        """
        if self._begun and not self._metadata.exists():
            raise self.home.lacks_part("their checkpoint")
        if self._stood and not self._progress.exists():
            raise self.home.lacks_part(str(self._progress))

    def release(self) -> None:
        os.close(self._lock)

    # How far

    def progress(self) -> Progress | None:
        """How far the tables stand, None if no batch was ever written."""
        said = self._said()
        if not said:
            return None
        if said["version"] != VERSION:
            raise DirectoryError(
                f"{self.root} is of version {said['version']}, expected {VERSION}: "
                f"use the version of Hubbub that wrote it, or move it away"
            )
        said |= {name: said.get(name, 0) for name in ("lost", "largest")}  # older ones do not say
        names = ("batch_id", "seq", "time", "group", "since", "rows", "lost", "largest")
        return Progress(*(said[name] for name in names))

    def _said(self) -> dict[str, Any]:
        try:
            return read_json(self._progress, self.home.all_again())
        except FileNotFoundError:
            return {}

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
        self._ever |= {table.name for table in self._tables}
        said = {
            "version": VERSION,
            "batch_id": progress.batch,
            "seq": progress.seq,
            "time": progress.time,
            "group": progress.group,
            "since": progress.since,
            "rows": progress.rows,
            "lost": progress.lost,
            "largest": progress.largest,
            "open": f"_open/*/batch_id={progress.batch}",
            "tables": sorted(self._ever),
        }
        write_json(self._progress, said)
        self._begun = self._stood = True
        self._tidy(progress.batch)

    def _tidy(self, batch: int) -> None:
        shutil.rmtree(self.root / "_tmp", ignore_errors=True)
        self.sweep()
        for table in (self.root / "_open").iterdir():
            found = _batches(table)
            newest = max((number for number, _ in found), default=0)  # of one that was left out
            for number, place in found:
                if number <= batch - KEPT and number < newest:
                    shutil.rmtree(place, ignore_errors=True)

    # Spark's plan of a batch

    def planned(self, batch: int) -> str:
        """What Spark's checkpoint says of a batch, "" if nothing: see `ends_at`."""
        try:
            return (self.checkpoint / "offsets" / str(batch)).read_text()
        except FileNotFoundError:
            return ""

    def query(self) -> str:
        """The id of Spark's query: as long as its checkpoint lives, batches have one numbering."""
        return str(json.loads(self._metadata.read_text())["id"])

    def forget_plan(self, batch: int) -> None:
        """Let Spark plan that batch anew. It must not be whole."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "offsets" / name).unlink(missing_ok=True)
        sync(self.checkpoint / "offsets")

    # Tables that are made again

    def made(self, name: str) -> int:
        """How often a table was made again since its first batch."""
        try:
            return int(json.loads(self._again.read_text()).get(name, 0))
        except FileNotFoundError:
            return 0

    def make_again(self, name: str) -> None:
        """Count one time more, before its files are exchanged: who has its rows takes all anew."""
        said = json.loads(self._again.read_text()) if self._again.exists() else {}
        write_json(self._again, {**said, name: said.get(name, 0) + 1})

    # A batch writes

    def scratch(self, name: str) -> Path:
        """An empty place to write the rows of a table, on the same file system."""
        place = self.root / "_tmp" / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        return place

    def written_to(self, name: str) -> Path:
        """The same for Spark, which is to append there, with the directories that it works in.

        Hadoop starts a program (`chmod`) for each directory it makes.
        """
        place = self.scratch(name)
        (place / "_temporary" / "0" / "_temporary").mkdir(parents=True)
        return place

    def declare(self, said: bytes) -> None:
        """Keep the declarations of the user's tables."""
        _replace(self.declared, said)

    def retire(self, place: Path) -> None:
        """Put a directory aside that is no part of a table any more. `sweep` removes it."""
        aside = self.root / "_replaced"
        aside.mkdir(exist_ok=True)
        place.rename(aside / str(time.time_ns()))

    def sweep(self) -> None:
        """Remove what nobody can be listing any more."""
        aside = self.root / "_replaced"
        late = time.time_ns() - REPLACED_SECONDS * 1e9
        for place in [*aside.iterdir()] if aside.exists() else []:
            if int(place.name) < late:
                shutil.rmtree(place, ignore_errors=True)

    def empty(self, name: str, days: bool, write: Callable[[Path], None]) -> None:
        """Let `write` make the file without rows, if the table has none yet."""
        place = self.root / name / (f"day={NO_DAY}" if days else "") / f"{BATCH}0"
        if not (place / NO_ROWS).exists():
            fresh = self.scratch(name)
            write(fresh)
            place.mkdir(parents=True, exist_ok=True)
            fresh.replace(place / NO_ROWS)

    def undo(self, batch: int) -> None:
        """Remove what a batch that did not become whole has left in the tables."""
        for table in self.root.iterdir():
            if table.name.startswith("_") or not table.is_dir():
                continue
            for group, place in self.groups(table.name):
                if group <= batch:
                    for part in parts_in(place):
                        if part.first == batch:
                            part.file.unlink()

    def append(self, name: str, batch: int, group: int, written: Path) -> int:
        """Put what Spark wrote into the table; return the number of files."""
        return self._place(written, self.root / name, batch, group)

    def carry(self, name: str, batch: int, written: Path) -> int:
        """Put what Spark wrote beside the table, as the open rows after the batch."""
        (self.root / "_open" / name / f"{BATCH}{batch}").mkdir(exist_ok=True)
        return self._place(written, self.root / "_open" / name, batch, batch)

    def carry_pieces(self, name: str, batch: int, staying: list[Path], written: Path) -> None:
        """The same, beside files that stay as they are; nothing else is open after the batch."""
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in staying:
            os.link(file, place / file.name)
        self._place(written, self.root / "_open" / name, batch, batch)

    def carry_on(self, name: str, batch: int) -> None:
        """The open rows of the batch before are those of this one too: it said nothing new."""
        files = self.carried(name, batch - 1)
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in files:
            os.link(file, place / file.name)

    def _place(self, written: Path, table: Path, batch: int, group: int) -> int:
        """Move files, keeping the directories Spark made (day=D) above batch_id=K."""
        if not (self.root / "_tmp").is_dir():  # where it is; else nothing would be all there was
            raise DirectoryError(
                f"{self.root}/_tmp was removed while batch {batch} wrote there: run it again, it "
                "begins that batch anew"
            )
        if table in self._tables and not table.is_dir():
            raise self.lacks_tables([table.name])
        files: dict[Path, list[Path]] = {}
        for file in sorted(written.rglob("*.parquet")):
            files.setdefault(table / file.parent.relative_to(written), []).append(file)
        for parent, parts in files.items():
            place = parent / f"{BATCH}{group}"
            place.mkdir(parents=True, exist_ok=True)
            for number, part in enumerate(parts):
                sync(part)
                part.replace(place / f"part-{batch:010}-{number:03}.parquet")
            for made in (place, parent, table):
                sync(made)
        return sum(map(len, files.values()))

    # Reading

    def carried(self, name: str, batch: int) -> list[Path]:
        """The files with the rows that were open after the batch; none before the first.

        Raises DirectoryError if they are gone.
        """
        if batch < 0:
            return []
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        if not place.is_dir():
            raise self.home.lacks_open(name, batch)
        return sorted(place.glob("*.parquet"))

    def opened(self, name: str, batch: int) -> list[Path]:
        """The same for who only reads: none if no pipeline writes that table now."""
        place = self.root / "_open" / name / f"{BATCH}{batch}"
        return sorted(place.glob("*.parquet"))

    def groups(self, name: str) -> Iterator[tuple[int, Path]]:
        """The directories batch_id=K of a table with their K, in no order."""
        table = self.root / name
        yield from _batches(table)
        for day in table.glob("day=*"):
            yield from _batches(day)

    def of_batch(self, name: str, batch: int, group: int) -> list[Path]:
        """The final files that one batch wrote."""
        table, leaf = self.root / name, f"{BATCH}{group}"
        # Asked for with each batch: the days are not looked into, there may be years of them.
        days = [day for day in os.listdir(table) if day.startswith("day=")]
        parts = [part for day in ("", *days) for part in parts_in(table / day / leaf)]
        return [part.file for part in parts if part.first == part.last == batch]

    def files(self, name: str, after: int, upto: int) -> list[Part]:
        """The final files of a table with rows of batches after < N <= upto, in their order."""
        parts = [
            part
            for group, place in self.groups(name)
            if group <= upto
            for part in parts_in(place)
            if part.last > after and part.first <= upto
        ]
        return sorted(parts)


def parts_in(group: Path) -> list[Part]:
    """The files of a group that have rows, in the order of their batches."""
    try:
        found = sorted(os.listdir(group))
    except FileNotFoundError:
        return []  # removed by retention since it was listed
    return [_part(group / name) for name in found if name[5:6].isdigit()]


def _part(file: Path) -> Part:
    """From the name: part-N-I or part-N-to-M."""
    _, first, *rest = file.stem.split("-")
    return Part(int(first), int(rest[1] if rest[0] == "to" else first), file)


def merged_name(first: int, last: int) -> str:
    return f"part-{first:010}-to-{last:010}.parquet"


def beyond(batch: int) -> str:
    """The names of files with rows of later batches are not below this."""
    return f"part-{batch + 1:010}"


def _batches(folder: Path) -> list[tuple[int, Path]]:
    """The directories batch_id=N right in a folder. There may be many: no glob."""
    if not folder.is_dir():
        return []
    names = (name for name in os.listdir(folder) if name.startswith(BATCH))
    return [(int(name.removeprefix(BATCH)), folder / name) for name in names]


def _holds(folder: Path) -> bool:
    """Whether anything is in a directory, which may not be there."""
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except FileNotFoundError:
        return False


@contextmanager
def room() -> Iterator[None]:
    """A disk that is full is said as that, with what to do."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DirectoryError(NO_ROOM) from error


def sync(path: Path) -> None:
    """After a power loss a renamed file must not be empty, nor a rename forgotten."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
