"""`/api/v1/journal`: which rows there are, and the frames that hold a range of them.

    GET ?from=SEQ&to=SEQ         frames as they lie on the disk, until ANSWER_BYTES are passed
    GET ?from=SEQ&to=SEQ&most=N  no frames: only up to which row they carry so many bytes
    GET ?from=SEQ&to=SEQ&shares=N  no frames: where to cut them so that each piece costs as much

The bytes are only found here, in a thread and by the frames' headers: whoever reads them checks
and decodes them (`spark.remote`). Seqs are text in JSON: they pass 2^53.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hubbub.errors import HubbubError, UnreadableError
from hubbub.journal.content import told
from hubbub.journal.frames import Frames, Reach
from hubbub.journal.shares import PIECES, WALK_SECONDS
from hubbub.schema import FORMAT_VERSION
from hubbub.web.guarded import refused
from hubbub.web.numbers import MOST, number_in

ANSWER_BYTES: Final = 4 << 20  # an answer ends with the frame that passes this
MEDIA_TYPE: Final = "application/vnd.hubbub.frames"


class _Found(NamedTuple):
    """Frames in pieces, and the last seq of which nothing more will come.

    `reach`: of a question for no frames, how far it came.
    """

    pieces: list[bytes]
    upto: int
    reach: Reach | None = None


class JournalApi:
    """The journal of one hub, read as any other reader does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._frames = Frames(directory, allow_loss=True)
        self._one = asyncio.Lock()  # `Frames` is used by one thread at a time

    async def __call__(self, request: Request) -> Response:
        given = request.query_params
        asked = "from" in given or "to" in given
        try:
            begin = number_in(given, "from") if "from" in given else 0
            end = number_in(given, "to") if "to" in given else MOST
            most = number_in(given, "most") if "most" in given else 0
            shares = number_in(given, "shares", PIECES) if "shares" in given else 0
        except ValueError as error:
            return refused(400, str(error))
        try:
            with told(self._directory):
                if not asked:
                    async with self._one:
                        return await asyncio.to_thread(self._listing)
                if shares:
                    return await self._shares(begin, end, shares)
                return await self._range(begin, end, most)
        except UnreadableError as error:
            return refused(503, str(error))
        except HubbubError as error:
            return refused(500, str(error))

    def _listing(self) -> JSONResponse:
        """In a thread: a year has ten thousand files, and each is asked for its size."""
        frames = self._frames
        committed = frames.committed()  # first: what is listed then is there to be read
        segments = [{"first": str(one.first), "bytes": one.size} for one in frames.segments()]
        return JSONResponse(
            {
                "format": FORMAT_VERSION,
                "id": frames.identity(),
                "first": str(frames.first()),
                "committed": str(committed),
                "segments": segments,
            }
        )

    async def _shares(self, begin: int, end: int, count: int) -> Response:
        """Where to cut: ends[i] is the last row of a piece; all of them cost `cost`."""
        committed = self._frames.committed()
        after, upto = max(begin, 1) - 1, min(end, committed)
        async with self._one:
            found = await asyncio.to_thread(self._frames.shares, after, max(after, upto), count)
        return JSONResponse(
            {
                "format": FORMAT_VERSION,
                "id": self._frames.identity(),
                "cost": found.cost,
                "ends": [str(end) for end in found.ends],
            }
        )

    async def _range(self, begin: int, end: int, most: int) -> Response:
        committed = self._frames.committed()
        after, upto = max(begin, 1) - 1, min(end, committed)
        if after < upto or most:
            async with self._one:
                found = await asyncio.to_thread(self._find, after, upto, most)
        else:  # who looks which rows there are waits for nobody who reads some
            found = _Found([], max(after, upto))
        headers = {
            "hubbub-journal": self._frames.identity(),
            "hubbub-format": str(FORMAT_VERSION),
            "hubbub-first": str(self._frames.first()),
            "hubbub-upto": str(found.upto),
            "hubbub-committed": str(committed),
        }
        if found.reach is not None:
            headers["hubbub-carried"] = str(found.reach.carried)
            headers["hubbub-more"] = str(int(not found.reach.whole))
        return Response(b"".join(found.pieces), media_type=MEDIA_TYPE, headers=headers)

    def _find(self, after: int, upto: int, most: int) -> _Found:
        if most:
            reach = self._frames.reach(after, upto, most, WALK_SECONDS)
            return _Found([], max(after, reach.seq), reach)
        pieces, size = [], 0
        for data, found in self._frames.between(after, upto, check=False):
            pieces.append(data[found.at : found.at + found.size])
            size += found.size
            if size >= ANSWER_BYTES:
                return _Found(pieces, min(found.last, upto))
        return _Found(pieces, upto)
