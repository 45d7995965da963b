"""A log as it is copied: read from its files to be sent, and folded from what came.

What is sent is what lies in the files: a snapshot without its header, and groups of frames. What
changes no state is left out, and no number of a row is looked for. Called by the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from hubbub.core.limits import CLUSTER_COPY_PIECE
from hubbub.core.state import State
from hubbub.errors import JournalError
from hubbub.journal import frame
from hubbub.journal.content import HEADER_BYTES, Content
from hubbub.journal.frame import Frame
from hubbub.journal.segments import Directory
from hubbub.schema import PUBLISH, SEND, Row

Part = tuple[int, bool, bytes]  # the last row, whether more of the same follows, bytes

MESSAGES: Final = frozenset((PUBLISH, SEND))


class Files:
    """The newest snapshot of a journal and the rows behind it up to `landed`, as they are now: a
    roll may rename what it likes meanwhile. OSError if the machine cannot read them.
    """

    def __init__(self, directory: Directory, landed: int) -> None:
        self.snapshot = Snapshot(directory)
        self._landed = landed
        behind = self.snapshot.upto + 1
        self._segments = [
            (Content(directory.segment(first)), following)
            for first, following in directory.spans()
            if first <= landed and (not following or following > behind)
        ]

    def log(self) -> Iterator[Part]:
        """What changes state behind it: several groups together, the frames of one never apart."""
        for content, following in self._segments:
            with content:
                data, last = bytearray(), 0
                for group in _groups(content.rows_frames(following)):
                    if not self._counts(group):
                        continue
                    last = group[-1].last
                    for one in group:
                        data += content.view(one.at, one.size)
                    if len(data) >= CLUSTER_COPY_PIECE // 2:
                        yield from _cut(last, data)
                        data = bytearray()
                if data:
                    yield from _cut(last, data)

    def _counts(self, group: list[Frame]) -> bool:
        here = self.snapshot.upto < group[-1].last and group[0].first <= self._landed
        return here and any(one.flags & frame.STATE for one in group)


class Snapshot:
    """The newest one, up to the row `upto`; 0 where there is none yet."""

    def __init__(self, directory: Directory) -> None:
        self.upto = max(directory.snapshots(), default=0)
        self._content = Content(directory.snapshot(self.upto)) if self.upto else None

    def parts(self) -> Iterator[Part]:
        if self._content is None:
            yield 0, False, b""
            return
        with self._content as content:
            for at in range(HEADER_BYTES, content.size, CLUSTER_COPY_PIECE):
                more = at + CLUSTER_COPY_PIECE < content.size
                yield self.upto, more, bytes(content.view(at, CLUSTER_COPY_PIECE))


def _groups(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    group: list[Frame] = []
    for found in frames:
        group.append(found)
        if not found.flags & frame.MORE:
            yield group
            group = []


def _cut(upto: int, data: bytearray) -> Iterator[Part]:
    for at in range(0, len(data), CLUSTER_COPY_PIECE):
        following = at + CLUSTER_COPY_PIECE
        yield upto, following < len(data), bytes(data[at:following])


class Copy(NamedTuple):
    """What a copied log leads to. `messages`: those that state refers to, as a snapshot has them,
    by their seq and in its order; `missing`: how many of them are not there.
    """

    state: State
    messages: dict[int, Row]
    missing: int


def folded(upto: int, snapshot: bytes, groups: Iterable[bytes]) -> Copy:
    """The fold of a checkpoint, which says all up to the row `upto`, and of groups behind it.

    Raises JournalError for what no hub wrote.
    """
    state, messages = State(), dict[int, Row]()
    for rows, _ in _frames(snapshot):
        for row in rows:
            state.apply(row)
            if row.kind in MESSAGES:
                messages[row.seq] = row
    for group in groups:
        for rows, changes in _frames(group):
            for row in rows:
                if row.seq <= upto:
                    continue
                if changes:
                    state.apply(row)
                if row.kind in MESSAGES:
                    messages[row.seq] = row
    needed = state.needed()  # not sorted: that would hold all threads up for as long as it takes
    found = {seq: state.carried(row) for seq, row in messages.items() if seq in needed}
    return Copy(state, found, len(needed) - len(found))


def _frames(data: bytes) -> Iterator[tuple[list[Row], bool]]:
    view, at = memoryview(data), 0
    while at < len(view):
        found = frame.scan(view, at)
        if found.verdict != frame.WHOLE:
            raise JournalError(f"byte {at} of what was copied is no frame of rows")
        yield frame.decode(view, at), found.flags & frame.STATE != 0
        at += found.size
