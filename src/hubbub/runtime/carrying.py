"""A socket as its opening and its link see it: what the broker and the protocols may ask of a
connection, and what a link tells it.

The socket makes one with its link. Holds nothing and decides nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

from hubbub.core.gate import Carrier, Credentials, Opening
from hubbub.runtime.farewell import leave

if typing.TYPE_CHECKING:
    from hubbub.runtime.socket import Socket


class SocketCarrier(Carrier):
    """Each call goes on to the socket, or to who counts for all of them."""

    __slots__ = ("_socket",)

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    def run(self, action: Callable[[], None]) -> None:
        self._socket.run(action)

    def close_for(self, reason: str) -> None:
        self._socket.close(reason)

    def let_in(self, whose: str, client: str) -> None:
        self._socket.let_in(whose, client)

    def lacks(self, shown: Credentials) -> str:
        socket = self._socket  # web pages count by address
        return socket.hub.arrivals.lacks(shown) if socket.protocol is not None else ""

    def refused(self, opening: Opening, user: str, client: str, reason: str) -> None:
        self._socket.hub.broker.audit.turned_away(opening, user, client, reason)

    def until(self, when: float) -> None:
        self._socket.until(when)

    def hold(self) -> Callable[[], None] | None:
        return self._socket.hold()

    def listens(self, listens: bool) -> None:
        self._socket.listens(listens)

    def turn(self, call: Callable[[], None]) -> None:
        self._socket.take_turn(call)

    def charge(self, messages: int) -> None:
        self._socket.pay(messages, 0)

    def grown(self) -> None:
        self._socket.weigh()

    def relieved(self) -> None:
        self._socket.relieve()

    def hang_up(self) -> None:
        leave(self._socket, self._socket.hub.leaving)
