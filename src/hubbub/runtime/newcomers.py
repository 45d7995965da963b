"""The kernel's line of connections, taken at once while strangers have to wait.

The loop accepts one connection in each of its turns, first come, first served. Beside a flood whose
connections come back as they are closed, an honest client from elsewhere would stand behind all of
them. So while strangers stand at the door (`door`), all that the kernel has is accepted as soon as
the loop accepts one. None is made a connection: each stands in the line of its address and of what
it says first, which is only looked at. That is cheap. In its turn it is made one, and heard.

    the loop accepts one ──> does somebody stand at the door? ──> take the kernel's line
        in line by address, counted among the strangers ──> its turn ──> a socket
                                └──> the room is full, or its time over: closed

Owned by a listener.
"""

from __future__ import annotations

import asyncio
import socket
import typing
from collections.abc import Callable
from typing import Final, cast

from hubbub.core.limits import MADE_SECONDS
from hubbub.runtime.arriving import kind_of
from hubbub.runtime.strangers import Stranger
from hubbub.wire.source import source_of

if typing.TYPE_CHECKING:
    from hubbub.runtime.socket import Place, Socket

AT_ONCE: Final = 256  # in one turn of the loop: some milliseconds
LOOKED_AT: Final = 1_024  # bytes: they tell TLS and HTTP from others, and who shows credentials
NEW: Final = "new"  # the line of those of an address who have said nothing


class Newcomer:
    """One of them; the room for strangers and the door know it by this."""

    __slots__ = ("_all", "_sock", "_making", "stranger", "kind")

    def __init__(self, all_of_them: Newcomers, sock: socket.socket, address: str) -> None:
        self._all = all_of_them
        self._sock = sock
        self._making: asyncio.Task[None] | None = None
        self.kind = _kind(sock)
        self.stranger = Stranger(self, source_of(address), all_of_them.place.hub.clock.now())

    def occupied(self) -> bool:
        return self._making is not None or self._all.place.hub.door.soon(self)

    def turn_away(self) -> None:
        self._all.gone(self)
        if self._making is None:
            self._sock.close()
            self._all.place.departed("")

    def come_in(self) -> None:
        """It is its turn: make it a connection, as if the loop had accepted it now."""
        self._all.place.hub.door.charge(self.stranger, MADE_SECONDS)
        self._making = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        loop, place = asyncio.get_running_loop(), self._all.place
        try:
            become = cast(Callable[[], asyncio.Protocol], self._become)
            transport, _ = await loop.connect_accepted_socket(become, self._sock)
        except OSError:  # it has gone
            self._sock.close()
            place.hub.strangers.discard(self.stranger)
            place.departed("")
        else:
            if self not in self._all:  # nobody wants it any more
                transport.abort()
        self._all.gone(self)

    def _become(self) -> Socket:
        made = self._all.make()
        made.stranger, made.invited = self.stranger, self.kind != NEW
        return made


def _kind(sock: socket.socket) -> str:
    """Its line, from what the kernel has of it."""
    try:
        said = sock.recv(LOOKED_AT, socket.MSG_PEEK)
    except OSError:
        said = b""
    return kind_of(said) if said else NEW


class Newcomers:
    """Those of one listener. `make` makes a socket of it."""

    def __init__(self, place: Place, make: Callable[[], Socket]) -> None:
        self.place = place
        self.make = make
        self._all: dict[Newcomer, None] = {}

    def __contains__(self, one: Newcomer) -> bool:
        return one in self._all

    def __len__(self) -> int:
        return len(self._all)

    def take(self, server: socket.socket) -> None:
        """All that the kernel has, or what there is room for."""
        hub, place = self.place.hub, self.place
        metrics = hub.broker.metrics
        for _ in range(AT_ONCE):
            if metrics.connections - metrics.connections_ended >= hub.most_connections:
                return
            try:
                sock, peer = server.accept()
            except OSError:  # nobody waits any more
                return
            sock.setblocking(False)
            metrics.connections += 1
            place.connections += 1
            one = Newcomer(self, sock, peer[0])
            self._all[one] = None
            hub.strangers.add(one.stranger)
            if hub.door.open_to(one, (one.stranger.address, one.kind)):
                one.come_in()

    def gone(self, one: Newcomer) -> None:
        """It is a connection now, or none."""
        self._all.pop(one, None)
        self.place.hub.door.forget(one)

    def close(self) -> None:
        """The listener accepts nobody any more."""
        for one in list(self._all):
            self.place.hub.strangers.discard(one.stranger)
            one.turn_away()
