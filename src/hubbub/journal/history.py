"""What was published before: `python -m hubbub.journal.history DIR FD`, a child of the hub.

    hub ──── question, a line of JSON ───→ child     on the socket FD, one after the other
    hub ←─── frames of rows … , the end ── child
    hub ←─── these names: which may it have? ─── child    where who asks may not have all
    hub ──── of each whether ─────────────→ child

It goes back from the newest row that the hub has asked for, segment by segment and frame by frame,
until it has found as many messages as are wanted of those that may be had, and answers with them in
the order in which they were published. What lies between is passed over without being decoded:

    segment   its list of names has none that is wanted; `names` says who makes such lists
    frame     the column `topic` has none

A process of its own: what Python does in a thread stalls the hub's loop, and compressed segments
need pyarrow, which stays out of the hub. Reads as every reader of the journal does (no lock, only
committed rows), writes nothing but those lists, and ends when the hub closes the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Final, NamedTuple

from hubbub.core.limits import (
    COMMIT_BYTES,
    COMMIT_ROWS,
    HISTORY_BYTES,
    HISTORY_ROW,
    HISTORY_SECONDS,
)
from hubbub.core.topics import OWN, has_wildcard, matches
from hubbub.errors import HubbubError
from hubbub.journal import frame, names, packing
from hubbub.journal.content import HEADER_BYTES, Content
from hubbub.journal.frame import WHOLE, Frame
from hubbub.journal.question import END, NAMES, NAMES_ASKED, PIECE, ROWS, YES, Question
from hubbub.journal.segments import Directory
from hubbub.schema import PUBLISH, Row, column_of, name_of

FRAMES_KEPT: Final = 100_000  # places of frames that are remembered: ten megabytes
NAMES_KEPT: Final = 100_000  # topics of which it is remembered whether they are wanted
OPEN_ENDED: Final = 2**62


class Found(NamedTuple):
    """The rows, oldest first. `complete`: none is missing but what the journal has let go.
    `reaches`: the time of the oldest row that was looked at, 0 if there was none. `damaged`: the
    first row of a segment of which frames could not be read, 0 = all could.
    """

    rows: list[Row]
    complete: bool
    reaches: int
    damaged: int = 0


Rights = Callable[[set[bytes]], set[bytes]]  # of some names those that may be had


class _Wanted:
    """Which names are meant, asked of the bytes in which a journal has them. `rights`: who asks may
    not have all of them.
    """

    def __init__(self, topic: str, literal: bool, rights: Rights | None) -> None:
        self._filter = topic
        self._rights = rights
        self._wild = has_wildcard(topic) and not literal
        levels = topic.split("/")
        fixed = next((at for at, one in enumerate(levels) if one in ("+", "#")), 0)
        start = "/".join(levels[:fixed])  # all that match begin so, `a/#` also with `a` alone
        self._part = column_of(start if self._wild else topic)
        self._known: dict[bytes, bool] = {}

    def among(self, listed: bytes) -> bool:
        """Whether any of the names, each between zeros, is meant; b"" = any name may be there."""
        if not listed:
            return True
        if not self._wild:
            return b"\0%s\0" % self._part in listed
        if self._part and b"\0" + self._part not in listed:
            return False
        if self._rights is not None:
            return bool(self.of(listed.split(b"\0")))
        return any(map(self.takes, listed.split(b"\0")))

    def of(self, names: Iterable[bytes]) -> set[bytes]:
        """Those of them that are wanted, and may be had."""
        meant = set(filter(self.takes, names))
        return self._rights(meant) if meant and self._rights is not None else meant

    def takes(self, column: bytes) -> bool:
        known = self._known.get(column)
        if known is None:
            if len(self._known) >= NAMES_KEPT:
                self._known.clear()
            known = self._known[column] = self._matches(column)
        return known

    def _matches(self, column: bytes) -> bool:
        if not self._wild:
            return column == self._part
        name = name_of(column)
        return column != b"" and not name.startswith(OWN) and matches(self._filter, name)


class History:
    """The journal in a directory, looked at from its end. Remembers where frames lie."""

    def __init__(self, directory: Path) -> None:
        self._directory = Directory(directory)
        self._places: dict[tuple[int, int], list[Frame]] = {}

    def find(self, question: Question, rights: Rights | None = None) -> Found:
        """Look no longer than HISTORY_SECONDS, and for no more than HISTORY_BYTES. A message that
        is larger than that is left out. `rights`: of who may not have all names.
        """
        until = time.monotonic() + HISTORY_SECONDS
        wanted = _Wanted(question.topic, question.literal, rights)
        committed = self._directory.committed()
        names.tidy(self._directory)
        upto = min(question.upto, committed)
        found: list[Row] = []
        reaches = size = damaged = 0
        complete = True
        for look in self._back(wanted, committed, upto, question.since):
            reaches = look.begin or reaches
            damaged = look.damaged or damaged
            complete = complete and not damaged
            for row in reversed(look.rows):
                if row.seq > upto or row.time < question.since or _over(row, question.now):
                    continue
                if size_of(row) > HISTORY_BYTES:
                    complete = False
                    continue
                size += size_of(row)
                if size > HISTORY_BYTES:
                    return Found(found[::-1], False, found[-1].time, damaged)
                found.append(row)
                if len(found) == question.last:
                    return Found(found[::-1], complete, row.time, damaged)
            if time.monotonic() > until:
                complete = False
                break
        return Found(found[::-1], complete, reaches, damaged)

    def _back(self, wanted: _Wanted, committed: int, upto: int, since: int) -> Iterator[_Look]:
        """What is wanted of each frame, the newest first. Nothing of segments that were over before
        `since`. What was not whole makes no list of names: it may be put back.
        """
        for first, following in reversed(list(self._directory.spans())):
            if first > upto:
                continue
            listed = names.read(self._directory, first, following)
            if listed is not None and not wanted.among(listed.listed):
                yield _Look([], set(), listed.time)
                if listed.time < since:
                    return
                continue
            try:
                content = Content(self._directory.segment(first))
            except FileNotFoundError:
                return  # retention took it since it was listed, and all before it
            with content:
                there: set[bytes] = set()
                begin, damaged = OPEN_ENDED, 0
                for one in reversed(self._frames(content, first, following, committed)):
                    if one.first > upto:
                        continue
                    look = _look(content, one, wanted, first)
                    yield look
                    there |= look.names
                    damaged = look.damaged or damaged
                    begin = look.begin or begin
                    if begin < since:
                        return
            if following and following <= upto and begin < OPEN_ENDED and not damaged:
                with contextlib.suppress(OSError):  # it is looked through again
                    names.write(self._directory, first, following, there, begin)

    def _frames(self, content: Content, first: int, following: int, committed: int) -> list[Frame]:
        """The frames of a file. What is committed stays where it is; the rest may be cut.

        A stretch that is none, with rows that are missing, is there as what it is, and the file is
        looked at again next time.
        """
        if sum(map(len, self._places.values())) > FRAMES_KEPT:
            self._places.clear()
        place = first, content.inode()
        known = self._places.pop(place, [])
        at = known[-1].at + known[-1].size if known else HEADER_BYTES
        last = known[-1].last if known else first - 1
        holes: list[Frame] = []
        whole = True
        for found in content.frames(at, check=False):
            if found.verdict != WHOLE:
                holes = [found._replace(first=last + 1, last=last)]
                continue
            if found.last > committed or (following and found.first >= following):
                break
            known += [*holes, found]
            whole, holes, last = whole and not holes, [], found.last
        if holes and last < (following - 1 if following else committed):
            return known + holes
        if whole:
            self._places[place] = known
        return known


class _Look(NamedTuple):
    """What a frame has: the rows that are wanted, all its names, the time of its first row (0:
    nobody has looked), and if it is damaged where its segment begins.
    """

    rows: list[Row]
    names: set[bytes]
    begin: int
    damaged: int = 0


def _look(content: Content, found: Frame, wanted: _Wanted, first: int) -> _Look:
    """Damaged frames have nothing: the hub's log and `hubbub journal verify` say so. `first`: of
    the segment.
    """
    if found.verdict != WHOLE:
        return _Look([], set(), 0, first)
    content.around(found.at, found.size, found.size)
    if content.check(found).verdict != WHOLE:
        return _Look([], set(), 0, first)
    packed = found.flags & frame.COMPRESSED != 0
    if packed:
        there, begin = packing.topics(content, found)
    else:
        there, begin = names.topics_of(content.view(found.at, found.size))
    meant = wanted.of(there)
    rows: list[Row] = []
    if meant:
        rows = packing.rows_of_topics(content, found, meant) if packed else content.rows(found)
        rows = [row for row in rows if row.kind == PUBLISH and row.topic in meant]
    return _Look(rows, there, begin)


def size_of(row: Row) -> int:
    """What it takes in an answer: a message without a payload may have 64 KiB of properties."""
    return HISTORY_ROW + sum(len(one) for one in row if isinstance(one, bytes))


def _over(row: Row, now: int) -> bool:
    return 0 < row.expires <= now


def pieces(found: Found) -> Iterator[bytes]:
    """An answer as it is sent: frames that the loop decodes in a moment each, and the end."""
    part: list[Row] = []
    size = 0
    for row in found.rows:
        more = size_of(row)
        if part and (len(part) == COMMIT_ROWS // 4 or size + more > COMMIT_BYTES):
            yield _piece(ROWS, bytes(frame.encode(part)))
            part, size = [], 0
        part.append(row)
        size += more
    if part:
        yield _piece(ROWS, bytes(frame.encode(part)))
    yield _end({"complete": found.complete, "reaches": found.reaches, "damaged": found.damaged})


def _piece(kind: int, data: bytes) -> bytes:
    return PIECE.pack(kind, len(data)) + data


def _end(said: dict[str, object]) -> bytes:
    return _piece(END, json.dumps(said).encode())


class _Asked:
    """What the hub says of names, for one question. BrokenPipeError: it has gone."""

    def __init__(self, questions: IO[bytes], answers: IO[bytes]) -> None:
        self._questions = questions
        self._answers = answers
        self._known: dict[bytes, bool] = {}

    def __call__(self, names: set[bytes]) -> set[bytes]:
        if len(self._known) > NAMES_KEPT:
            self._known.clear()
        unknown = iter([name for name in names if name not in self._known])
        while some := list(islice(unknown, NAMES_ASKED)):
            self._ask(some)
        return {name for name in names if self._known[name]}

    def _ask(self, names: list[bytes]) -> None:
        self._answers.write(_piece(NAMES, b"\0".join(names)))
        self._answers.flush()
        said = self._questions.readline()
        if len(said) != len(names) + 1:
            raise BrokenPipeError
        self._known.update(zip(names, [one == YES[0] for one in said[:-1]], strict=True))


def answer(history: History, line: bytes, rights: Rights) -> Iterator[bytes]:
    """What cannot be read now is said in the end of the answer."""
    question = Question(**json.loads(line))
    try:
        yield from pieces(history.find(question, rights if question.asks else None))
    except BrokenPipeError:
        raise
    except (HubbubError, OSError) as error:
        yield _end({"error": str(error)})


def serve(history: History, questions: IO[bytes], answers: IO[bytes]) -> None:
    while line := questions.readline():
        for piece in answer(history, line, _Asked(questions, answers)):
            answers.write(piece)
        answers.flush()


def main(arguments: list[str]) -> int:
    directory, fd = arguments
    try:
        with os.fdopen(int(fd), "rb") as questions, os.fdopen(os.dup(int(fd)), "wb") as answers:
            serve(History(Path(directory)), questions, answers)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return 0  # the hub has gone
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
