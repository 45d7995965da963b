"""Which files of a journal are as they were written, and how a damaged one is mended.

    whole_snapshot   a snapshot in which everything is right
    diagnose         what is wrong with a segment, and what of it can be kept
    heal             the same, done: the torn tail of the last segment is cut; any other damage
                     goes to quarantine, and a file with the frames that are whole takes its place
    choose           what a start begins from, or why it cannot

All of them look at what was read. A file that the machine cannot read now (no descriptor, no
memory, a block that the disk does not give) is judged by nobody: OSError goes through, and
nothing is changed. Only `choose` goes around a block that cannot be read, by an older snapshot,
and leaves the newer one where it is. The start, the roller, `verify` and `repair` decide by these
functions and no others, so that they agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import frame
from hubbub.journal.content import HEADER_BYTES, UNREADABLE, Content, Header
from hubbub.journal.files import Replacement, make_folder, sync_folder, write_at
from hubbub.journal.frame import DAMAGED, TORN, WHOLE, Frame
from hubbub.journal.segments import Directory


def forged(error: JournalError) -> str:
    """What a start says of a frame that it needs and whose checksum alone is right."""
    return (
        f"{error}. No damage leaves it so: put a backup back, or move that file away, and the rows "
        "in it are lost"
    )


def whole_snapshot(path: Path) -> list[Frame] | None:
    """The frames of a snapshot in which everything is right; else None."""
    with Content(path) as content:
        header = content.header()
        if header is None or header.sealed != content.size:
            return None
        found = list(content.frames())
        end = HEADER_BYTES + sum(one.size for one in found)
        sound = all(one.verdict == WHOLE for one in found) and end == header.sealed
    return found if sound else None


def judged(
    paths: Iterable[tuple[int, Path]],
) -> Iterator[tuple[int, Path, list[Frame] | OSError | None]]:
    """Snapshots, each with its frames if it is whole, None if it is damaged, or the error with
    which the disk refuses it. Any other error of the machine ends the walk.
    """
    for seq, path in paths:
        try:
            yield seq, path, whole_snapshot(path)
        except FileNotFoundError:
            continue  # a roller removed it since it was listed
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            yield seq, path, error


class Choice(NamedTuple):
    """What a start begins from: the snapshot `seq`, which lies at `path`; 0 if there is none yet.

    `notes`: what is wrong with newer ones; `unread`: which of them cannot be read now. `refusal`:
    why no start is possible, "" if one is.
    """

    seq: int
    path: Path
    frames: list[Frame]
    notes: list[str]
    unread: list[str]
    refusal: str = ""


def choose(directory: Directory) -> Choice:
    """The newest snapshot that is whole; one in quarantine if no other is left.

    Raises OSError if no snapshot can be used and one cannot be read.
    """
    notes: list[str] = []
    unread: list[str] = []
    trouble: OSError | None = None
    for seq, path, frames in judged(chain(directory.newest_first(), _in_quarantine(directory))):
        if isinstance(frames, OSError):
            trouble = frames
            unread.append(f"{path.name}: {frames.strerror}; it stays where it is, another is used")
        elif frames is not None:
            if path.parent == directory.quarantine:
                notes.append(f"{path}: reads well, and is used again")
            return _fitting(directory, Choice(seq, path, frames, notes, unread))
        elif path.parent != directory.quarantine:
            notes.append(f"{path.name}: a damaged snapshot, the one before it is used")
    if trouble is not None:
        raise trouble
    return _fitting(directory, Choice(0, directory.state, [], notes, unread))


def _in_quarantine(directory: Directory) -> Iterator[tuple[int, Path]]:
    """What may be snapshots there, newest first; looked at only when no other is left."""
    if directory.quarantine.is_dir():
        paths = [path for path in directory.quarantine.iterdir() if path.is_file()]
        found = ((_snapshot_in(path), path) for path in paths)
        yield from sorted(((seq, path) for seq, path in found if seq), reverse=True)


def _snapshot_in(path: Path) -> int:
    """Of which row a file in quarantine is the snapshot; 0 if it is none that can be used."""
    try:
        with Content(path) as content:
            header = content.header()
            sealed = header is not None and header.sealed and not _is_packed(content)
            return header.first if header is not None and sealed else 0
    except DirectoryError:
        return 0
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return 0


def _is_packed(content: Content) -> bool:
    """Whether this is a compressed segment, which is sealed as snapshots are."""
    first = next(content.frames(check=False), None)
    return first is not None and bool(first.flags & frame.COMPRESSED)


def _fitting(directory: Directory, choice: Choice) -> Choice:
    """The same, with what refuses a start if the segments do not go on from that snapshot."""
    if not choice.seq and (headless := without_beginning(directory)):
        return choice._replace(refusal=headless)
    for first, following in directory.spans():
        if following and following <= choice.seq + 1:
            continue
        with Content(directory.segment(first)) as content:
            if _is_packed(content):
                return choice._replace(
                    refusal=f"{content.path} is compressed, but no whole snapshot covers it: "
                    f"restore {directory.state} from a backup, or let `hubbub journal repair` "
                    "fold the log again"
                )
    return choice


def without_beginning(directory: Directory) -> str:
    """Why what the log says cannot be known without a snapshot, "" if it begins with row 1."""
    if directory.segments()[:1] <= [1]:
        return ""
    return (
        f"the log begins after row 1 and {directory.state} has no whole snapshot: restore the "
        "directory from a backup, let `hubbub journal repair` save what can be saved, or move it "
        "away to start empty"
    )


class Diagnosis(NamedTuple):
    """What is wrong with a segment: `text` in words, "" if nothing.

    `cut`: where an unfinished write begins that may be cut off, else 0. Any other damage leaves
    `whole`, the frames that can be kept, and `header` if that is whole.
    """

    text: str
    cut: int
    header: Header | None
    whole: list[Frame]


def diagnose(directory: Directory, first: int, committed: int, following: int) -> Diagnosis:
    """Look at the segment `first`, of which `following` is the first seq of the next, or 0.

    The torn tail of the last segment is no damage, and the beginning of an unfinished group goes
    with it; but what was committed must be there.
    """
    with Content(directory.segment(first)) as content:
        header = content.header()
        found = list(content.frames())
    if not following:
        found = _without_unfinished(_without_doubtful(found, committed), committed)
    whole = [one for one in found if one.verdict == WHOLE]
    last = whole[-1].last if whole else first - 1
    damaged = header is None or any(one.verdict == DAMAGED for one in found)
    tail = bool(found) and found[-1].verdict == TORN
    if following:
        damaged |= tail and last < _after(directory, following)
    elif tail and not damaged and last >= committed:
        text = f"an unfinished write of {found[-1].size} bytes was cut"
        return Diagnosis(text, found[-1].at, header, whole)
    else:
        damaged |= tail
    return Diagnosis("was damaged" if damaged else "", 0, header, whole)


def heal(directory: Directory, first: int, committed: int, following: int) -> str:
    """Make the segment `first` readable from end to end; return what was wrong, "" if nothing."""
    path = directory.segment(first)
    found = diagnose(directory, first, committed, following)
    if found.cut and committed:
        os.truncate(path, found.cut)
        return f"{path.name}: {found.text}"
    if not found.text:
        return ""
    kept = replace(directory, path, found.header or Header(first, 0, first), found.whole)
    if found.cut:  # nobody knows whether it was promised
        return f"{path.name}: {found.text}; the file as it was is {kept}"
    return f"{path.name} was damaged; what could be read is there again, the file is {kept}"


def replace(directory: Directory, path: Path, header: Header, whole: list[Frame]) -> Path:
    """Put a segment of these frames in the place of a damaged one; return where that is now."""
    kept = set_aside(directory, path)
    with Content(path) as content, Replacement(path) as new:
        at = HEADER_BYTES
        for one in whole:
            write_at(new.fd, content.view(one.at, one.size), at)
            at += one.size
        write_at(new.fd, header._replace(sealed=at if header.sealed else 0).encode(), 0)
    return kept


def _without_doubtful(found: list[Frame], committed: int) -> list[Frame]:
    """Without what seems to follow a stretch that does not say its length, unless it is committed.

    Of the last write the disk may have got any parts, also without the first one: what looks like
    a frame there may be a piece of a payload.
    """
    ours = [one.verdict == WHOLE and one.first <= committed for one in found]
    for index, one in enumerate(found):
        if one.verdict == DAMAGED and not one.first and not any(ours[index:]):
            return found[: index + 1]
    return found


def _without_unfinished(found: list[Frame], committed: int) -> list[Frame]:
    """Frames of a group of which the end is missing are torn: a group is written as one thing."""
    bad = found[-1].verdict if found and found[-1].verdict != WHOLE else ""
    count = kept = len(found) - bool(bad)
    while kept and found[kept - 1].flags & frame.MORE and found[kept - 1].first > committed:
        kept -= 1
    if kept == count:
        return found
    size = sum(one.size for one in found[kept:])
    return [*found[:kept], found[kept]._replace(verdict=bad or TORN, size=size)]


def _after(directory: Directory, first: int) -> int:
    with Content(directory.segment(first)) as content:
        header = content.header()
    return header.after if header else first - 1


def set_aside(directory: Directory, path: Path) -> Path:
    """Give a damaged file a second name in quarantine; return that name."""
    make_folder(directory.quarantine)
    kept = directory.quarantine / path.name
    while kept.exists():
        kept = kept.with_name(kept.name + "~")
    os.link(path, kept)
    sync_folder(directory.quarantine)
    return kept


def take_back(directory: Directory, choice: Choice) -> None:
    """Give a snapshot from quarantine its place again."""
    if choice.path.parent == directory.quarantine:
        path = directory.snapshot(choice.seq)
        if path.exists():
            set_aside(directory, path)
            os.unlink(path)
        os.link(choice.path, path)
        sync_folder(directory.state)
