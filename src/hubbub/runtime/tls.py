"""TLS on an accepted connection: between the loop's transport and who speaks inside.

    loop ── records ──> data_received ── OpenSSL ──> inner.data_received    what it reads, opened
    loop <── records ── transport.write <── OpenSSL ── write, writelines    what it writes, sealed

To the loop it is the connection's protocol, to who speaks inside it is a transport. OpenSSL works
in memory: what came in one read is given on as one piece, what is written leaves in one write. The
loops have such a class, too, documented in neither. It costs four times what OpenSSL takes: an
exception to learn that a read is over, a handle of the loop for each write, 190 KB for a handshake.

The first byte of a connection says whether it speaks TLS, so its first bytes were read before it
begins here. A handshake that fails ends with OpenSSL's alert, and is read until the peer had time
to see it.

What is large is sealed in turns: a kernel may take megabytes at once, and one message may be for
hundreds. Made by the listener. Knows no protocol, asks nobody's rights.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from hubbub.auth.keys import KeyedContext
from hubbub.core.limits import CLOSE_SECONDS, SEND_BUFFER, TLS_SECONDS
from hubbub.runtime.farewell import Farewell, Leaving
from hubbub.runtime.handshake import Shaken, reason_of
from hubbub.runtime.records import PART, RECORD, Records

NOBODY: Final = asyncio.Protocol()
AT_ONCE: Final = 4 * RECORD  # bytes of what is written that are sealed before anything else is done
IN_TURN: Final = 16 * RECORD  # of the rest, each time: 0.2 ms
Bytes = bytes | bytearray | memoryview  # what other transports take, too


class Secured:
    """One connection. `shaken` is called once: with None when the handshake is done and the inner
    protocol has its transport, with the error when it came to nothing. `later` makes a call in
    another turn of the loop.
    """

    __slots__ = (
        "_transport", "_context", "_inner", "_leaving", "_shaken", "_incoming", "_outgoing", "_tls",
        "_records", "_timer", "_shaking", "_made", "_closing", "_ended", "_error",
        "_certificate", "_paused", "_behind", "_held", "_held_bytes", "_last",
        "_resting", "_later", "_put_off", "_left",
    )  # fmt: skip

    def __init__(
        self, transport: asyncio.Transport, context: ssl.SSLContext, inner: asyncio.Protocol,
        leaving: Leaving, shaken: Callable[[BaseException | None], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._transport = transport
        self._context = context
        self._inner = inner
        self._leaving = leaving
        self._shaken = shaken
        self._later = later
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        context.sslobject_class = Shaken
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = Records()
        self._timer: asyncio.TimerHandle | None = None
        self._shaking = True
        self._made = False  # who is inside has its transport
        self._closing = False
        self._ended = False  # the peer has said that nothing more comes
        self._resting = False  # who is inside wants to hear nothing just now
        self._error: Exception | None = None
        self._paused = False  # the loop has enough for now,
        self._behind = False  # and who is inside was told so
        self._held: deque[Bytes] | None = None  # not sealed yet
        self._held_bytes = 0
        self._left = 0  # bytes that may be sealed in this turn
        self._put_off = False  # the next turn goes on with what is held
        self._last: Callable[[], None] | None = None  # what is done behind all that is held
        self._certificate: dict[str, Any] | None = None  # OpenSSL tells none behind an error

    def begin(self, data: bytes) -> None:
        """These bytes came already."""
        self._timer = asyncio.get_running_loop().call_later(TLS_SECONDS, self._too_slow)
        self._transport.set_protocol(cast(asyncio.Protocol, self))
        self.data_received(data)

    # The handshake

    def _shake(self) -> bool:
        """Go on with it; whether it is done."""
        context = self._context
        keyed = context if isinstance(context, KeyedContext) else None
        try:
            if keyed is not None:
                keyed.asking = cast(Shaken, self._tls)
            self._tls.do_handshake()
            if keyed is not None:
                keyed.shaken(cast(Shaken, self._tls))
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        finally:
            if keyed is not None:
                keyed.asking = None
        self._send()
        if context.verify_mode != ssl.CERT_NONE:
            self._certificate = self._tls.getpeercert()
        self._settle(None)
        return True

    def _settle(self, error: BaseException | None) -> None:
        self._shaking = False
        self._stop_timer()
        if error is None:
            self._made = True
            self._inner.connection_made(cast(asyncio.Transport, self))
        self._shaken(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: Exception) -> None:
        """Say OpenSSL's alert, and let the peer read it."""
        alert = self._outgoing.read()
        self._closing = True
        self._settle(error)
        if alert and not self._transport.is_closing():
            self._transport.write(alert)
            self._linger()
        else:
            self._transport.abort()

    def _linger(self) -> None:
        """The alert was the last word. What peers send behind their mistake must not undo it."""
        if self._leaving.open:
            Farewell(self._transport, self._leaving)
        else:
            self._transport.abort()

    def _too_slow(self) -> None:
        self._timer = None
        self._fail(TimeoutError(f"it was not done within {TLS_SECONDS:g} s"))

    # Called by the loop

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        said: list[bytes] = []
        records, at, size = self._records, 0, len(data)
        while at < size:
            end = records.part(data, at)
            self._open(data if end - at == size else memoryview(data)[at:end], said)
            if self._closing or self._ended or self._error is not None:
                break
            at = end
        if self._error is not None:  # nothing is sealed any more
            self._closing = True
            self._forget_held()
        if said:  # at once, as without TLS: who reads it may want no more behind that
            self._inner.data_received(said[0] if len(said) == 1 else b"".join(said))
        if self._error is not None:
            self._break_off()
        elif self._ended:
            self._end()

    def _end(self) -> None:
        """Nothing more comes. Who is inside may have put off some of what came before: as without
        TLS it hears of the end when it wants to hear more.
        """
        if not (self._resting or self._closing):
            self._inner.eof_received()
            self.close()
            self._hurry()

    def _open(self, data: bytes | memoryview, said: list[bytes]) -> None:
        """Add all that is whole of what came so far."""
        incoming, tls, before = self._incoming, self._tls, len(said)
        incoming.write(data)
        if self._shaking and not self._shake():
            return
        try:
            while size := tls.pending() or incoming.pending:  # of a record that has begun its rest
                piece = tls.read(min(size, RECORD))
                if not piece:
                    self._ended = True
                    break
                said.append(piece)
        except ssl.SSLWantReadError:  # the beginning of a record
            pass
        except ssl.SSLError as error:
            self._error = ConnectionError(f"TLS: {reason_of(error)}")
        if self._outgoing.pending:  # of OpenSSL's own: an answer to a change of keys, an alert
            self._send()
        empty = self._records.ended - (len(said) - before)
        if empty > 0 and self._records.too_many_empty(empty):
            self._error = self._error or ConnectionError("TLS: too many records without data")

    def _break_off(self) -> None:
        """What came is no TLS any more, or too much of it."""
        self.connection_lost(self._error)
        if self._transport.is_closing():
            self._hurry()
        else:
            self._linger()

    def _hurry(self) -> None:
        """The peer says nothing more: as without TLS, it reads what is left soon or never."""
        if self._timer is None and self.get_write_buffer_size():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def eof_received(self) -> bool:
        """TLS knows no half-closed connections."""
        if self._made and not self._closing:
            self._inner.eof_received()
            self.close()
        self._hurry()
        return bool(self._held)  # which is sent all the same; the loop would close it now

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._forget_held()
        self._stop_timer()
        if self._shaking:
            self._settle(error or ConnectionError())
        elif self._made:
            inner, self._inner = self._inner, NOBODY  # or each would keep the other
            inner.connection_lost(self._error or error)

    def pause_writing(self) -> None:
        self._paused = True
        self._fall_behind()

    def _fall_behind(self) -> None:
        if self._made and not self._behind:
            self._behind = True
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def _go_on(self) -> None:
        """Seal what waits, as much as a turn may take or until that is enough again."""
        held = self._held
        self._left = IN_TURN
        while held and not self._paused and self._left > 0:
            rest = self._seal(held[0])
            self._held_bytes += len(rest) - len(held[0])
            if rest:
                held[0] = rest
            else:
                held.popleft()
            if self._outgoing.pending >= PART or not held:
                self._send()
        if self._last is not None and not held:
            self._say_goodbye()  # the rest a turn later: asyncio's loop may be amid a write
            asyncio.get_running_loop().call_soon(self._end_with, self._last)
            self._last = None
        self._put_off_rest()
        if self._behind and not (self._paused or self._held):
            self._behind = False
            self._inner.resume_writing()

    def _put_off_rest(self) -> None:
        """What this turn had no time for is sealed in the next ones."""
        if not self._held or self._paused:
            return
        if self._held_bytes > SEND_BUFFER:  # as the loop does with what its kernel does not take
            self._fall_behind()
        if not self._put_off:
            self._put_off = True
            self._later(self._take_turn)

    def _take_turn(self) -> None:
        self._put_off = False
        if not self._paused:  # else it goes on when it is not
            self._go_on()

    # A transport, to who is inside

    def write(self, data: Bytes) -> None:
        if self._closing or not data:
            return
        if len(data) <= RECORD and not (self._paused or self._held):  # nearly always
            self._tls.write(data)
            self._transport.write(self._outgoing.read())
        else:
            self._left = AT_ONCE
            self._take(data)
            self._send()
            self._put_off_rest()

    def writelines(self, pieces: Sequence[Bytes]) -> None:
        """Each begins a record: some clients take what they read at once for one message."""
        if self._closing:
            return
        self._left = AT_ONCE
        for piece in pieces:
            if piece:
                self._take(piece)
                if self._outgoing.pending >= PART:
                    self._send()
        self._send()
        self._put_off_rest()

    def _take(self, data: Bytes) -> None:
        """Seal it; or keep it as it is while the peer is behind, or this turn has done enough. A
        message for many is one object, and sealed it is one for each.
        """
        waits = self._paused or self._held or self._left <= 0
        rest = data if waits else self._seal(data)
        if rest:
            if self._held is None:
                self._held = deque()
            # Who is inside may write when it is told to pause, which is amid sealing.
            (self._held.append if waits else self._held.appendleft)(rest)
            self._held_bytes += len(rest)

    def _seal(self, data: Bytes) -> Bytes:
        """Up to where the loop has enough, or this turn: the rest of it."""
        size = len(data)
        if size <= RECORD:
            self._tls.write(data)
            self._left -= size
            return b""
        view = memoryview(data)
        at = 0
        while at < size and not self._paused and self._left > 0:
            sealed = self._tls.write(view[at : at + RECORD])
            at += sealed
            self._left -= sealed
            if self._outgoing.pending >= PART:
                self._send()
        return view[at:]

    def _send(self) -> None:
        data = self._outgoing.read()
        if data:
            self._transport.write(data)

    def close(self) -> None:
        if self._held and not self._transport.is_closing():
            self._transport.pause_reading()
        self._end_with(self._transport.close)

    def write_eof(self) -> None:
        """The last that is written; what comes from now on is discarded."""
        self._end_with(self._transport.write_eof)

    def _end_with(self, last: Callable[[], None]) -> None:
        """Say goodbye and do that, behind all that is held: it is sealed as the peer reads it."""
        if self._held:
            self._closing, self._last = True, last
            return
        if not self._closing:
            self._say_goodbye()
        if not self._transport.is_closing():
            last()

    def _say_goodbye(self) -> None:
        """TLS's own: that nothing more comes, and the connection was not cut."""
        self._closing = True
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):  # it waits for the peer's, which is not waited for
            pass
        self._send()

    def can_write_eof(self) -> bool:
        return False

    def _forget_held(self) -> None:
        self._held, self._held_bytes, self._last = None, 0, None

    def abort(self) -> None:
        self._closing = True
        self._forget_held()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._resting = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._resting = False
        if self._ended:
            asyncio.get_running_loop().call_soon(self._end)
        else:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._held_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._inner = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self._inner

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of TLS what it knows, all else of the socket."""
        if name == "ssl_object":
            return self._tls
        if name == "peercert":
            return self._certificate
        if name == "sslcontext":
            return self._context
        return self._transport.get_extra_info(name, default)
