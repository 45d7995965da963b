"""One call at a time on a connection of its own: what comes to its number is the reply.

SMQ carries no correlation; who asked is all that an answer says. Made and kept by the client.
"""

from __future__ import annotations

import asyncio
import contextlib

from hubbub.client.smq.connection import Connection
from hubbub.client.smq.message import SmqMessage
from hubbub.client.usage import ERROR, failed
from hubbub.errors import Refused
from hubbub.protocols.smq import codec


class Caller:
    """A connection for one call at a time: what is published to its number is the reply.

    Of a client that was asked by its number nobody else can answer.
    """

    def __init__(self) -> None:
        self.connection = Connection(self)
        self._numbers: dict[tuple[int, str], int] = {}
        self._names: dict[int, str] = {}
        self._reply: asyncio.Future[SmqMessage] | None = None
        self._asked = 0  # the client that was asked, 0 if it may be anybody

    async def call(self, to: str | int, payload: bytes, subtopic: str) -> SmqMessage:
        connection = self.connection
        self._reply = asyncio.get_running_loop().create_future()
        self._asked = to if isinstance(to, int) else 0
        tid = to if isinstance(to, int) else await self._number(codec.CREATE, to)
        subtid = await self._number(codec.CREATESUB, subtopic) if subtopic else 0
        with contextlib.suppress(Refused):  # then an error is an answer like any other
            await self._number(codec.CREATESUB, ERROR)
        connection.write(codec.message(codec.PUBLISH, tid, connection.number, subtid, rest=payload))
        await asyncio.wait((self._reply, connection.over), return_when="FIRST_COMPLETED")
        if not self._reply.done():
            raise connection.over.result() or ConnectionError("the SMQ client was closed")
        reply = self._reply.result()
        if reply.subtopic == ERROR != subtopic:  # answers have the sub-topic of their request
            raise failed(reply.payload)
        return reply

    async def _number(self, kind: int, name: str) -> int:
        number = self._numbers.get((kind, name))
        if number is None:
            number = self._numbers[kind, name] = await self.connection.ask(kind, name)
        return number

    def named(self, ack: int, name: str, number: int) -> None:
        if ack == codec.CREATESUBACK:
            self._names[number] = name

    def published(self, tid: int, sender: int, subtid: int, payload: bytes) -> None:
        if self._asked not in (0, sender):
            return
        if self._reply is not None and not self._reply.done():
            subtopic = self._names.get(subtid, "")
            self._reply.set_result(SmqMessage(f"$client/{tid}", payload, subtopic, sender, subtid))

    def changed(self, number: int, count: int) -> None:
        """It observes nobody."""
