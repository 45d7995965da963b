"""`hubbub journal`: look at a data directory, check it, copy it, move rows out and in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Shown

from hubbub.cli.options import DATA, Data
from hubbub.errors import SettingError
from hubbub.journal import backup as copies
from hubbub.journal import examine, holds, lock

# What `verify` ends with, and a start that meets the same.
_DAMAGED: Final = 1
_REFUSED: Final = 2
_UNREAD: Final = 3

app = typer.Typer(no_args_is_help=True, add_completion=False)


class Format(StrEnum):
    lines = "jsonl"
    arrow = "arrow"


# What a file is by the end of its name; every other is of lines.
_ENDINGS: Final = {".arrow": Format.arrow, ".arrows": Format.arrow}
_OTHERS: Final = (".csv", ".tsv", ".parquet", ".avro", ".xlsx")  # nobody means lines by these


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; the function moves it on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


@app.command()
def hold(
    name: Annotated[str, typer.Argument(help="Of the reader; without one all are shown.")] = "",
    data: Data = DATA,
    at: Annotated[
        int | None, typer.Option(metavar="SEQ", min=0, help="It has read up to this row.")
    ] = None,
    days: Annotated[
        float, typer.Option(metavar="DAYS", min=0.01, help="If it does not move on, it ends.")
    ] = holds.DAYS,
    release: Annotated[bool, typer.Option("--release", help="Wait for it no more.")] = False,
) -> None:
    """Let retention wait for a reader: rows that it has not read do not go for their age."""
    directory = examine.directory_of(data)
    if not name:
        for one in holds.holds(directory.path):
            state = "over" if one.over() else f"for {one.days:g} days"
            print(f"{one.name}: read up to row {one.seq}, {state}")
        return
    if release:
        holds.release(directory.path, name)
        print(f"Retention does not wait for {name} any more.")
        return
    seq = at if at is not None else max(examine.inventory(directory).first - 1, 0)
    holds.hold(directory.path, name, seq, days)
    print(
        f"Rows after {seq} wait for {name}, for {days:g} days from now; say it again, with --at, "
        "when it has read more."
    )


@app.command()
def info(data: Data = DATA) -> None:
    """What lies in the directory, and who uses it."""
    directory = examine.directory_of(data)
    found = examine.inventory(directory)
    user = lock.holder(directory.path / "lock")
    console = Console()
    console.print(f"{data.resolve()}: {decimal(found.bytes)}, rows {found.first} to "
                  f"{found.committed}, {f'used by process {user}' if user else 'not in use'}",
                  soft_wrap=True, highlight=False)  # fmt: skip
    shown = Shown("file", "rows", "from", "to", "bytes", "frames", "", box=None)
    for one in found.files:
        shown.add_row(
            f"{one.path.parent.name}/{one.path.name}", f"{one.rows:,}", str(one.first),
            str(one.last), f"{one.bytes:,}", f"{one.frames:,}",
            "compressed" if one.compressed else one.kind,
        )  # fmt: skip
    console.print(shown)
    for path in found.quarantine:
        console.print(f"damaged, set aside: {path}", soft_wrap=True, highlight=False)


@app.command()
def verify(data: Data = DATA) -> None:
    """Read every byte, and say what a start would do.

    Exit code 0: all is right; 1: something is damaged or lost, a hub starts all the same; 2: a hub
    does not start here; 3: not everything could be read now.
    """
    directory = examine.suspect_of(data)
    with _bar("verifying", examine.total_bytes(directory)) as progress:
        verdict = examine.verify(directory, progress)
    print(f"{verdict.rows:,} rows in {verdict.frames:,} frames, {decimal(verdict.bytes)}")
    _tell(verdict)


def _tell(verdict: examine.Verdict) -> None:
    """Print what was found, and end with the code that says how bad it is."""
    for text in verdict.noted:
        print(f"note: {text}")
    for text in verdict.wrong:
        print(f"wrong: {text}")
    for text in verdict.unread:
        print(f"not read: {text}")
    if verdict.refusal:
        print(f"a hub does not start here: {verdict.refusal}")
        raise typer.Exit(_REFUSED)
    if verdict.unread:
        raise typer.Exit(_UNREAD)
    if verdict.wrong:
        raise typer.Exit(_DAMAGED)
    print("all is right")


@app.command()
def scrub(
    data: Data = DATA,
    rate: Annotated[
        float, typer.Option(metavar="MB/S", min=0.1, help="How fast to read, on average.")
    ] = 20,
) -> None:
    """`verify` at a bounded rate, beside a hub at work, which does the same once a week.

    What the disk cannot read any more is found before it is needed. Exit codes as of `verify`.
    """
    from hubbub.journal.scrub import paced

    _tell(examine.verify(examine.suspect_of(data), paced(rate * 1e6)))


@app.command()
def repair(
    data: Data = DATA,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
    ] = False,
) -> None:
    """Make a directory usable again that `verify` finds damaged, or that a hub refuses.

    Nothing is thrown away: what is replaced lies in `quarantine` afterwards.
    """
    from hubbub.journal.repair import repair as mend  # pyarrow, only here
    from hubbub.journal.segments import Directory

    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        print(text)

    mend(Directory(data), dry_run, say)
    if not said:
        print("nothing to repair")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A directory to be made.")],
    data: Data = DATA,
    link: Annotated[
        bool, typer.Option("--link", help="Hard links to finished files instead of copies.")
    ] = False,
) -> None:
    """Copy the journal, also while a hub writes it; the copy is checked."""
    with _bar("copying", examine.total_bytes(examine.directory_of(data))) as progress:
        last = copies.backup(data, target, link, progress)
    print(f"rows up to {last} are in {target}")
    _tell(examine.verify(examine.directory_of(target)))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `backup` made.")],
    data: Data = DATA,
    force: Annotated[
        bool, typer.Option("--force", help="Also a damaged one: what is missing is listed.")
    ] = False,
) -> None:
    """Put a backup into an empty directory."""
    with _bar("copying", examine.total_bytes(examine.directory_of(source))) as progress:
        restored = copies.restore(source, data, progress, force)
    for text in restored.missing:
        print(f"wrong: {text}")
    print(f"rows up to {restored.last} are in {data}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is stdout.")],
    data: Data = DATA,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="JSON lines, or an Arrow IPC stream; else by FILE's ending."),
    ] = None,
    after: Annotated[
        int | None, typer.Option(metavar="SEQ", min=0, help="Only rows after this one.")
    ] = None,
    upto: Annotated[
        int | None, typer.Option(metavar="SEQ", min=0, help="Only rows up to this one.")
    ] = None,
) -> None:
    """Write rows to a file."""
    from hubbub.journal import exchange
    from hubbub.journal.frames import Frames

    if after is not None and upto is not None and upto < after:
        raise SettingError(f"expected --upto to be no less than --after, got {upto} and {after}")
    if form is None and file.suffix in _OTHERS:
        raise SettingError(
            f"expected a file of JSON lines (.jsonl) or of Arrow (.arrow), got {file}; `hubbub "
            "pipeline sql --format csv` writes tables, `--format jsonl` rows whatever the name"
        )
    examine.directory_of(data)
    frames = Frames(data)
    start = frames.first() - 1 if after is None else after
    end = frames.committed() if upto is None else upto
    form = form or _ENDINGS.get(file.suffix, Format.lines)
    write = exchange.export_lines if form == Format.lines else exchange.export_arrow
    if str(file) == "-":
        count = write(frames, start, end, sys.stdout.buffer)
    else:
        with exchange.replaced(file) as out:
            count = write(frames, start, end, out)
    which = f"{start + 1} to {end}" if count else f"since there is none after {start}"
    print(f"{count:,} rows, {which}", file=sys.stderr)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote; - is stdin.")],
    data: Data = DATA,
) -> None:
    """Make a journal of exported rows, in an empty directory.

    Every row is checked. If one is wrong the exit code is 1, and nothing is left.
    """
    from hubbub.journal import exchange

    with _opened(file) as source:
        first, last = exchange.import_rows(exchange.rows_in(source), data)
    print(f"rows {first} to {last} are in {data}")
    if first > 1:
        print(f"note: sessions, queues and retained messages from before row {first} are not there")


def _opened(file: Path) -> BufferedReader:
    try:
        return open(0 if str(file) == "-" else file, "rb", closefd=str(file) != "-")
    except OSError as error:
        raise SettingError(
            f"cannot read {file}: {error.strerror}; name a file that `hubbub journal export` "
            "wrote, or - for stdin"
        ) from None


@app.command()
def compact(
    data: Data = DATA,
    keep_days: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Remove older rows; 0 keeps all.")
    ] = 0,
) -> None:
    """Fold and compress everything now. A running hub does it by itself."""
    from hubbub.journal.compact import compact as fold_all

    directory = examine.directory_of(data)
    before = examine.total_bytes(directory)
    with _bar("compacting", before) as progress:
        fold_all(directory, keep_days * 86_400, progress=progress)
    print(f"{decimal(before)} before, {decimal(examine.total_bytes(directory))} now")
