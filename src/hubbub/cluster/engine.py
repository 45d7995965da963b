"""What carries frames between the nodes of a cluster: a port, which NATS and a process fill in.

An engine keeps the order of what one node sends to another. It may lose frames and repeat them:
the membership notices both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Heard = Callable[[bytes], None]


class Engine(Protocol):
    """`name`: of this node; `up`: whether what is sent now leaves. `complete`: whether all nodes
    were met when `settle` is over.
    """

    name: str
    up: bool
    complete: bool

    @property
    def most(self) -> int:
        """The bytes of records that one frame may have just now."""

    @property
    def trouble(self) -> str:
        """Why what is sent does not leave, or not all of it, in words."""

    async def open(self, heard: Heard, changed: Callable[[], None]) -> None:
        """Connect, and go on trying. `heard` gets each frame, `changed` is called when `up` is
        another one, or when much that waited has left.
        """

    def send(self, node: str, frames: list[bytes]) -> bool:
        """To one node, or with "" to all others. False if none was taken. Never waits.

        All that is given in one call is taken, or nothing: a message may have any size.
        """

    async def settle(self, met: Callable[[str], bool]) -> None:
        """Wait until this node knows what it must before it hears clients: whether another has
        its name. `met`: whether a node has said all that holds there.
        """

    def mark(self, passed: Callable[[], None]) -> None:
        """Call `passed` when `heard` has got all that was on its way to this node and near it now:
        a hub that stood still has not read it so far. In a later turn, or never, if that cannot be
        known any more.
        """

    def waiting(self, node: str = "") -> int:
        """The bytes that were taken and have not left; for one node, if each has its own way."""

    async def close(self) -> None:
        """Send what waits, and end."""
