"""The journal of a running hub, read over HTTP: the shelf behind the option `url`.

    GET /api/v1/journal                which segments there are
    GET /api/v1/journal?from=&to=      frames as they lie on the hub's disk, some MiB an answer;
                                       of no rows, which there are
    … &most=BYTES, &shares=COUNT       no frames: where so many bytes end, where to cut

The next answer is on its way while the frames of this one are used. Each frame's CRC is checked
here. Which journal answers is compared every time: another hub may have taken the address.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from hubbub.errors import DirectoryError, JournalError, OffsetError, SettingError
from hubbub.journal.table import Frame, Segment, Shares, State, frames_in
from hubbub.schema import FORMAT_VERSION
from hubbub.spark.hub import Answer, Hub

PATH: Final = "/api/v1/journal"


class _Piece(NamedTuple):
    """Frames, the last seq of which nothing more comes, and the newest one there was."""

    data: bytes
    upto: int
    committed: int


class Remote:
    """The frames of a hub's journal. `journal` is its id, if it is to be that one and no other.

    `allow_loss`: damaged frames are left out; without it they raise JournalError.
    """

    def __init__(self, hub: Hub, journal: str = "", allow_loss: bool = False) -> None:
        self._hub = hub
        self._journal = journal
        self._allow_loss = allow_loss

    @property
    def name(self) -> str:
        return self._hub.name

    def state(self) -> State:
        """As the hub says it beside no rows: to list segments takes it long where they are many."""
        headers, _ = self._asked(1, 0)
        first, committed = int(headers["hubbub-first"]), int(headers["hubbub-committed"])
        return State(headers["hubbub-journal"], first, committed)

    def identity(self) -> str:
        return self.state().id

    def first(self) -> int:
        return self.state().first

    def committed(self) -> int:
        return self.state().committed

    def segments(self) -> list[Segment]:
        found = self._listing()["segments"]
        return [Segment(int(one["first"]), one["bytes"]) for one in found]

    def between(self, after: int, upto: int, check: bool = True) -> Iterator[tuple[bytes, Frame]]:
        """See `Frames.between`; here the CRC is always looked at."""
        if after >= upto:
            return
        with ThreadPoolExecutor(1) as ahead:
            position = after
            coming = ahead.submit(self._piece, position, upto)
            while position < upto:
                piece = coming.result()
                if piece.committed < upto:
                    raise OffsetError(
                        f"rows up to {upto} were asked for, the last one of {self.name} is "
                        f"{piece.committed}: is this the checkpoint of another hub?"
                    )
                if piece.upto <= position:
                    raise JournalError(f"{self.name} does not get beyond row {position}")
                if piece.upto < upto:
                    coming = ahead.submit(self._piece, piece.upto, upto)
                for found in self._frames(piece.data, position):
                    yield piece.data, found
                position = piece.upto

    def spans(
        self, after: int, upto: int, among: Callable[[list[bytes]], bool]
    ) -> Iterator[tuple[int, int]]:
        """See `Frames.spans`. A hub does not tell which topics a segment has."""
        yield after, upto

    def within(self, after: int, upto: int, most: int) -> int:
        """See `Frames.within`. A hub that does not know the question answers with some frames."""
        left, position = most, after
        while True:
            headers, _ = self._asked(position + 1, upto, f"&most={max(left, 1)}")
            left -= int(headers.get("hubbub-carried", 0))
            if left < 0 and position > after:
                return position  # the first frame always fits, but that was another one
            position = max(int(headers["hubbub-upto"]), position)
            if left <= 0 or headers.get("hubbub-more", "0") == "0":
                return position  # else it has looked as long as it may at once

    def shares(self, after: int, upto: int, count: int) -> Shares | None:
        """See `Frames.shares`. A hub that does not know the question answers with some frames."""
        asked = f"{PATH}?from={after + 1}&to={upto}&shares={count}"
        headers, body = self._hub.ask("GET", asked)
        if not headers.get("content-type", "").startswith("application/json"):
            return None
        answer = json.loads(body)
        self._check(answer["id"], answer["format"])
        return Shares(int(answer["cost"]), tuple(map(int, answer["ends"])))

    def _frames(self, data: bytes, position: int) -> Iterator[Frame]:
        try:
            for found in frames_in(data, self._allow_loss):
                yield found
                position = found.last
        except JournalError as error:
            raise JournalError(
                f"rows after {position} come damaged from {self.name} ({error}): "
                "`hubbub journal repair` there sets the file aside; failOnDataLoss=false goes on"
            ) from None

    def _piece(self, after: int, upto: int) -> _Piece:
        headers, data = self._asked(after + 1, upto)
        return _Piece(data, int(headers["hubbub-upto"]), int(headers["hubbub-committed"]))

    def _asked(self, begin: int, end: int, more: str = "") -> Answer:
        answer = self._hub.ask("GET", f"{PATH}?from={begin}&to={end}{more}")
        if "hubbub-journal" not in answer.headers:
            raise SettingError(f"{self.name} answers, and is no hub: correct the url")
        self._check(answer.headers["hubbub-journal"], int(answer.headers["hubbub-format"]))
        return answer

    def _listing(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._hub.ask("GET", PATH).body)
        self._check(answer["id"], answer["format"])
        return answer

    def _check(self, journal: str, version: int) -> None:
        if version > FORMAT_VERSION:
            raise DirectoryError(
                f"the journal of {self.name} has format {version}, this hubbub knows "
                f"{FORMAT_VERSION}: install the same version of Hubbub where Spark runs"
            )
        if self._journal and journal != self._journal:
            raise OffsetError(
                f"another hub than before answers at {self.name}: its journal is {journal}, "
                f"not {self._journal}. Start with a new checkpoint, or put the old journal back"
            )
