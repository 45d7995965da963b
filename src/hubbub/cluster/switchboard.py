"""Hubs of one process as a cluster: for programs with several, and for tests.

    board = Switchboard()
    Hub(cluster=board.join("a")), Hub(cluster=board.join("b"))

All of them run on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hubbub.cluster.engine import Heard
from hubbub.core.limits import CLUSTER_FRAME_BYTES
from hubbub.errors import SettingError


class Seat:
    """The place of one node. `cut`: it hears nothing and nobody hears it, as without a network."""

    trouble = ""
    complete = True
    most = CLUSTER_FRAME_BYTES

    def __init__(self, board: Switchboard, name: str) -> None:
        self.board = board
        self.name = name
        self.up = False
        self.cut = False
        self.heard: Heard | None = None

    async def open(self, heard: Heard, changed: Callable[[], None]) -> None:
        if self.board.seats.get(self.name, self) is not self:
            raise SettingError(f"the switchboard has a node {self.name!r} already")
        self.board.seats[self.name] = self
        self.heard, self.up = heard, True

    def send(self, node: str, frames: list[bytes]) -> bool:
        if not self.up or self.cut:
            return False
        for seat in list(self.board.seats.values()):
            if seat is not self and node in ("", seat.name):
                for frame in frames:
                    self.board.later(seat.take, frame)
        return True

    def take(self, frame: bytes) -> None:
        if self.heard is not None and self.up and not self.cut:
            self.heard(frame)

    async def settle(self, met: Callable[[str], bool]) -> None:
        pass

    def mark(self, passed: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(passed)  # frames are called so, too

    def waiting(self, node: str = "") -> int:
        return 0

    async def close(self) -> None:
        self.up = False
        if self.board.seats.get(self.name) is self:
            del self.board.seats[self.name]


class Switchboard:
    """Carries frames between the hubs that joined it, each in a later turn of the loop."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}

    def join(self, name: str) -> Seat:
        """The engine of one node; SettingError at its start if the name is taken."""
        return Seat(self, name)

    def later(self, call: Callable[[bytes], None], frame: bytes) -> None:
        asyncio.get_running_loop().call_soon(call, frame)
