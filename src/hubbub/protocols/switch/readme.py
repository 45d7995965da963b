"""Dialect A, which the README of message-switch describes and its Python client speaks.

    GET  /create                          -> a name of its own, which goes with the session
    GET  /create/QUEUE, /subscribe/QUEUE
    POST /send/QUEUE/CORRELATION[/REPLYTO]      body = payload
    GET  /transfer/FROM/TIMEOUT           -> {"messages":[[17,{"payload":"..","correlation_id":3,
                                                             "reply_to":"client-4"}]]}
    GET  /ack/17

Who reads subscribes first, for all connections of its token. One counter numbers the messages of
all queues, which here is the journal's seq. The correlation is a number that the caller chose;
to a request from elsewhere, which has none, it is the message's own number. A connection whose
token has used one of the first four sees diagnostics and trace in this dialect too. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hubbub.core.message import Message
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import shown
from hubbub.protocols.switch.session import PROTOCOL, SwitchSession
from hubbub.protocols.switch.trace import Event
from hubbub.protocols.switch.transfer import Polls, Read, Reading

IN_MEMORY: Final = 1 << 48  # seqs of a hub without a journal begin at minus this


def identity_of(seq: int) -> int:
    """The number of a message, by its seq."""
    return seq if seq > 0 else seq + IN_MEMORY


def seq_of(identity: int, recorded: bool) -> int:
    """The reverse, on a hub that has a journal or none."""
    return identity if recorded else identity - IN_MEMORY


def correlation_of(message: Message) -> int:
    """What the caller chose; a request from elsewhere is known by its own number."""
    if message.reply_to and message.protocol != PROTOCOL:
        return identity_of(message.seq)
    try:
        return codec.integer(message.correlation.decode("ascii"))
    except ValueError:
        return identity_of(message.seq)


def message(payload: bytes, correlation: int, reply_to: str) -> bytes:
    to = b',"reply_to":' + codec.quoted_name(reply_to) if reply_to else b""
    return b'{"payload":%b,"correlation_id":%d%b}' % (codec.quoted(payload), correlation, to)


def entry(number: int, found: Message, payload_bytes: int) -> bytes:
    """A message in the diagnostics; its time was never filled in."""
    client = found.client
    origin = b'"Name",%b' % codec.quoted_name(client) if client else b'"Anonymous",0'
    reply_to = shown(found.reply_to, number)
    said = message(found.payload[:payload_bytes], correlation_of(found), reply_to)
    identity = identity_of(found.seq)
    return b'[%d,{"origin":[%b],"time":0.0,"message":%b}]' % (identity, origin, said)


def said(event: Event) -> bytes:
    """What happened, for the trace."""
    if event.message is None:
        return b'"Ack",%d' % identity_of(event.seq)
    one = event.message
    told = message(one.payload, correlation_of(one), shown(one.reply_to, event.id))
    return b'"Message",%d,%b' % (identity_of(event.seq), told)


class ReadmePoll(Reading):
    """A transfer from all that the token subscribed to, also to what it does while this waits."""

    def __init__(
        self, polls: Polls, session: SwitchSession, identity: int, timeout: float, now: float
    ) -> None:
        super().__init__(polls, session, now + timeout, 0)
        self._after = seq_of(identity, polls.broker.log.records)
        self.expect()

    def names(self) -> Iterable[str]:
        return list(self.session.subscribed)

    def begin(self) -> None:
        self.session.reading[self] = self.subscribed
        super().begin()

    def end(self) -> None:
        self.session.reading.pop(self, None)
        super().end()

    def subscribed(self, name: str) -> None:
        self.broker.queues.wait_at(name, self)
        self.expect()
        self.wake()

    def empty(self) -> bytes:
        return b'{"messages":[]}'

    def answer(self) -> bytes | None:
        chosen, _ = self.read(self._after, by_seq=True)
        if not chosen:
            return None
        chosen.sort(key=_seq, reverse=True)
        return b'{"messages":[%b]}' % b",".join(self._said(one) for one in chosen)

    def _said(self, one: Read) -> bytes:
        queue, number, found = one
        self.session.got_answer(queue.name)
        reply_to, correlation = shown(found.reply_to, number), correlation_of(found)
        if reply_to:
            self.session.remember(reply_to, correlation, queue.name, number)
        return b"[%d,%b]" % (
            identity_of(found.seq),
            message(found.payload, correlation, reply_to),
        )


def _seq(one: Read) -> int:
    return one[2].seq
