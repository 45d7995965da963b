"""Spark's classes as Java wants them in memory, kept on the disk: no start has to check them again.

    ~/.cache/hubbub/spark-<digest of Java and PySpark>.jsa

Java itself writes such an archive at its end, if told so at its start, and maps it into the next
one. It looks whether the archive is of the same classes, and goes on without if it is not. `start`
names it to each Spark on this machine; `hubbub pipeline run`, which lives long enough not to mind,
has it written once. HUBBUB_CACHE names another directory; empty, there is none.

An archive is code: so it lies where nobody else may write. What Java could not write is an empty
file, and is not tried again for a week.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

FOLDER: Final = "HUBBUB_CACHE"
KEPT: Final = 3  # of several Javas or versions of PySpark; each has 170 MB
WRITE_SECONDS: Final = 60.0  # that writing may take at the end: ten of a processor
AGAIN_SECONDS: Final = 7 * 86_400.0  # after a try that came to nothing
LEFT_SECONDS: Final = 3600.0  # nobody writes for so long
_QUIET: Final = "-Xlog:cds*=off"  # what is wrong with an archive is no news to anybody


def archive_of(java: Path) -> Path | None:
    """Where the archive of this Java and PySpark is or would be; None where there can be none."""
    folder = _folder()
    with suppress(OSError):
        if folder is not None and _is_ours(folder):
            real = java.resolve()
            said = f"{real} {real.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
            digest = hashlib.sha256(said.encode()).hexdigest()[:16]
            return folder / f"spark-{digest}.jsa"
    return None


def _folder() -> Path | None:
    said = os.environ.get(FOLDER)
    if said is not None:
        return Path(said) if said else None
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # who has no home has none
        return Path(cache or Path.home() / ".cache") / "hubbub"
    return None


def _is_ours(folder: Path) -> bool:
    """Make it if it is not there; whether nobody else may write in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def taking(archive: Path | None) -> str:
    """What Java is told so that it takes it, if it is there."""
    if archive is None or not archive.exists() or not archive.stat().st_size:
        return ""
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_QUIET}"


def writing(archive: Path | None) -> str:
    """What Java is told so that it writes it at its end, if nobody has tried lately."""
    if archive is None or _tried(archive):
        return ""
    return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={_fresh(archive)}')} {_QUIET}"


def _tried(archive: Path) -> bool:
    try:
        found = archive.stat()
    except OSError:
        return False
    return found.st_size > 0 or found.st_mtime > time.time() - AGAIN_SECONDS


def begin(archive: Path) -> None:
    """Java is about to end: whoever cannot wait for it, and kills it, is not to wait again."""
    with suppress(OSError):
        archive.touch()
        os.utime(archive)


def keep(archive: Path, whole: bool) -> None:
    """Java has ended, and if it did so in order what it wrote is `whole` and counts from now on."""
    with suppress(OSError):
        fresh = _fresh(archive)
        if whole and fresh.exists():
            fresh.replace(archive)
        else:
            fresh.unlink(missing_ok=True)
        others = sorted(archive.parent.glob("spark-*.jsa"), key=lambda one: -one.stat().st_mtime)
        for old in (*others[KEPT:], *_left(archive.parent)):
            old.unlink()


def _left(folder: Path) -> Iterator[Path]:
    """What a Java that was killed has left."""
    for file in folder.glob("spark-*"):
        if file.suffix != ".jsa" and file.stat().st_mtime < time.time() - LEFT_SECONDS:
            yield file


def _fresh(archive: Path) -> Path:
    return archive.with_suffix(f".{os.getpid()}")
