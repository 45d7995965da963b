"""TLS on a connection, without sockets: any split of the bytes, ends and errors, and its room."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.limits import TLS_EMPTY
from hubbub.runtime.farewell import Leaving
from hubbub.runtime.records import PART, RECORD
from hubbub.runtime.tls import AT_ONCE, IN_TURN, Secured
from tests.certificates import Authority
from tests.runtime.sealing import ALERT, Sealing


class Outer:
    """The loop's transport: what was written, and what was asked of it."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.done: list[str] = []
        self.protocol: Any = None
        self.waiting = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5)}.get(name, default)

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)

    def taken(self) -> bytes:
        data, self.written = self.written, b""
        return data


class Inner:
    """Who speaks inside: each call is a line."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.said: list[bytes] = []
        self.calls: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.said.append(data)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.append(f"lost {error or ''}".strip())

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Line:
    """Both ends. `shaken`: what was said of the handshake."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self.outer, self.inner, self.leaving = Outer(), Inner(), Leaving()
        self.leaving.open = True
        self.shaken: list[BaseException | None] = []
        self.later: list[Callable[[], None]] = []
        self.secured = Secured(
            cast(asyncio.Transport, self.outer), server, cast(asyncio.Protocol, self.inner),
            self.leaving, self.shaken.append, self.later.append,
        )  # fmt: skip
        self._to_peer, self._from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.peer = client.wrap_bio(self._to_peer, self._from_peer, server_hostname="localhost")

    def shake(self) -> None:
        """Both shake hands, a flight at a time."""
        begun = False
        for _ in range(5):
            try:
                self.peer.do_handshake()
            except ssl.SSLWantReadError:
                pass
            flight = self._from_peer.read()
            if not begun:
                self.secured.begin(flight)
            elif flight:
                self.secured.data_received(flight)
            begun = True
            self._to_peer.write(self.outer.taken())
        assert self.shaken == [None]

    def turn(self) -> None:
        """What was put off is done."""
        later = self.later.copy()
        self.later.clear()
        for call in later:
            call()

    def sealed(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self.peer.write(view) :]
        return self._from_peer.read()

    def heard(self) -> bytes:
        """All that the peer can open of what was written so far."""
        self._to_peer.write(self.outer.taken())
        found = b""
        try:
            while piece := self.peer.read(RECORD):
                found += piece
        except ssl.SSLWantReadError:
            pass
        return found

    def goodbye(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.peer.unwrap()
        return self._from_peer.read()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(Path(authority.sign("localhost", server=True)))
    client = ssl.create_default_context(cafile=str(authority.file))
    client.keylog_filename = str(authority.folder / "secrets")
    return server, client


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def begun(contexts: Contexts) -> Line:
    """One whose handshake is done; its timer needs a loop."""
    line = Line(*contexts)

    async def shake() -> None:
        line.shake()

    asyncio.run(shake())
    return line


def by_hand(line: Line, contexts: Contexts) -> Sealing:
    return Sealing(Path(contexts[1].keylog_filename), line.peer)


def hear(line: Line, data: bytes, seconds: float = 0.0) -> None:
    """With a loop for so long: what ends by itself has a time."""

    async def main() -> None:
        line.secured.data_received(data)
        await asyncio.sleep(seconds)

    asyncio.run(main())


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(0, 2000), max_size=5))
def test_any_split_of_the_bytes_is_the_same_stream(
    contexts: Contexts, said: list[bytes], cuts: list[int]
) -> None:
    line = begun(contexts)
    whole = b"".join(map(line.sealed, said))
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    for start, end in zip(places, places[1:], strict=False):
        line.secured.data_received(whole[start:end])
    assert b"".join(line.inner.said) == b"".join(said)
    assert line.inner.calls == ["made"]


def test_what_came_in_one_read_is_given_on_at_once(contexts: Contexts) -> None:
    """Who reads it may want no more behind that: it gets no second call that it did not ask for."""
    line = begun(contexts)
    line.secured.data_received(line.sealed(b"x" * 5 * PART) + line.sealed(b"y"))
    assert line.inner.said == [b"x" * 5 * PART + b"y"]


@pytest.mark.parametrize("size", [0, 1, RECORD, RECORD + 1, 3 * PART + 7])
def test_what_is_written_arrives(contexts: Contexts, size: int) -> None:
    line = begun(contexts)
    line.inner.transport.write(b"x" * size)
    line.turn()
    assert line.outer.writes == 2 + (size > 0) + size // PART  # two flights of the handshake
    assert line.heard() == b"x" * size


def test_each_piece_begins_a_record(contexts: Contexts) -> None:
    """All in one write: a client that reads it record by record has each by itself."""
    line = begun(contexts)
    before = line.outer.writes
    line.inner.transport.writelines([b"one", b"", b"two"])
    assert line.outer.writes == before + 1
    line._to_peer.write(line.outer.taken())
    assert [line.peer.read(100), line.peer.read(100)] == [b"one", b"two"]


def test_the_peer_leaves_in_order(contexts: Contexts) -> None:
    line = begun(contexts)
    line.secured.data_received(line.sealed(b"last") + line.goodbye())
    assert (line.inner.said, line.inner.calls) == ([b"last"], ["made", "eof"])
    assert line.outer.done == ["close"]
    line._to_peer.write(line.outer.taken())
    line.peer.unwrap()  # the hub has answered it
    line.secured.data_received(b"what comes behind it")
    line.secured.connection_lost(None)
    assert line.inner.calls == ["made", "eof", "lost"]


def test_the_hub_closes(contexts: Contexts) -> None:
    line = begun(contexts)
    line.inner.transport.write(b"last")
    line.inner.transport.close()
    line.inner.transport.write(b"never")
    assert line.outer.done == ["close"] and line.inner.transport.is_closing()
    line._to_peer.write(line.outer.taken())
    assert (line.peer.read(100), line.peer.read(100)) == (b"last", b"")


async def test_the_end_waits_until_what_came_before_it_was_heard(contexts: Contexts) -> None:
    """Who is inside may hear in turns: what it had put off was lost with the connection."""
    line = Line(*contexts)
    line.shake()
    last = line.sealed(b"the last") + line.goodbye()
    line.inner.data_received = lambda data: line.secured.pause_reading()  # type: ignore[method-assign]
    line.secured.data_received(last)
    await asyncio.sleep(0)
    assert line.inner.calls == ["made"] and not line.secured.is_closing()
    line.secured.resume_reading()
    line.secured.pause_reading()  # not all of it yet
    await asyncio.sleep(0)
    assert line.inner.calls == ["made"]
    line.secured.resume_reading()
    await asyncio.sleep(0)
    assert line.inner.calls == ["made", "eof"] and line.outer.done[-1] == "close"


def test_rubbish_inside_ends_it_with_an_alert(contexts: Contexts) -> None:
    line = begun(contexts)
    torn = bytearray(line.sealed(b"first") + line.sealed(b"hello"))
    torn[-1] ^= 1
    hear(line, bytes(torn))
    assert line.inner.said == [b"first"] and line.outer.done == ["write_eof", "resume_reading"]
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC|bad record mac"):
        line.heard()
    assert line.inner.calls[1].startswith("lost TLS: ") and len(line.inner.calls) == 2
    assert line.outer.protocol is not line.secured and line.leaving.transports


def test_answers_behind_rubbish_are_not_written(contexts: Contexts) -> None:
    """OpenSSL refuses to seal anything by then: who answered broke, with a traceback in the log."""
    line = begun(contexts)
    torn = bytearray(line.sealed(b"first") + line.sealed(b"hello"))
    torn[-1] ^= 1

    def answer(data: bytes) -> None:
        assert data == b"first" and line.secured.is_closing()
        line.secured.write(b"answer")
        line.secured.writelines([b"answer"])

    line.inner.data_received = answer  # type: ignore[method-assign]
    hear(line, bytes(torn))
    assert line.inner.calls[1].startswith("lost TLS: ")


def test_who_somebody_is_stays_known_behind_rubbish(tmp_path: Path) -> None:
    """What came before it is heard, and asks for the certificate, which OpenSSL tells no more."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.sign("localhost", server=True))
    server.load_verify_locations(authority.file)
    server.verify_mode = ssl.CERT_REQUIRED
    line = begun((server, authority.client(authority.sign("ann"))))

    def ask(data: bytes) -> None:
        shown = line.secured.get_extra_info("peercert")
        line.inner.calls.append(str(shown["subject"]))

    line.inner.data_received = ask  # type: ignore[method-assign]
    hear(line, line.sealed(b"first") + b"\x17\x03\x03\x00\x20" + b"x" * 32)
    assert line.inner.calls[1] == "((('commonName', 'ann'),),)"


@pytest.mark.parametrize("asks", [True, False])
def test_changes_of_keys_without_end_are_ended(contexts: Contexts, asks: bool) -> None:
    """Each takes OpenSSL 44 us: a read of them kept all others waiting for half a second, and each
    answer waited in memory for a peer that reads nothing.
    """
    line = begun(contexts)
    sealing = by_hand(line, contexts)
    written = len(line.outer.written)
    hear(line, b"".join(sealing.change_of_keys(asks) for _ in range(1000)))
    assert line.inner.calls == ["made", "lost TLS: too many records without data"]
    assert len(line.outer.written) - written <= 3 * TLS_EMPTY * 27


def test_some_changes_of_keys_are_answered(contexts: Contexts) -> None:
    line = begun(contexts)
    sealing = by_hand(line, contexts)
    for _ in range(TLS_EMPTY // 2):
        line.secured.data_received(sealing.change_of_keys(True) + sealing.record(b"x"))
    line.secured.write(b"y")
    assert (b"".join(line.inner.said), line.heard()) == (b"x" * (TLS_EMPTY // 2), b"y")


def test_many_small_records_are_no_empty_ones(contexts: Contexts) -> None:
    line = begun(contexts)
    data = b"".join(line.sealed(b"%d " % one) for one in range(2000))
    for at in range(0, len(data), 7777):
        line.secured.data_received(data[at : at + 7777])
    assert b"".join(line.inner.said) == b"".join(b"%d " % one for one in range(2000))
    assert line.inner.calls == ["made"]


def test_a_record_is_read_at_once_whatever_is_behind_it(contexts: Contexts) -> None:
    """With the first byte of the next one behind it, it was read byte by byte: 13 ms for 16 KB."""
    line = begun(contexts)
    first, second = line.sealed(b"x" * RECORD), line.sealed(b"y" * RECORD)
    opened, secured = [], cast(Any, line.secured)
    tls = secured._tls

    class Counting:
        def read(self, size: int) -> bytes:
            opened.append(size)
            return cast(bytes, tls.read(size))

        def __getattr__(self, name: str) -> Any:
            return getattr(tls, name)

    secured._tls = Counting()
    line.secured.data_received(first[:-1])
    line.secured.data_received(first[-1:] + second[:1])
    line.secured.data_received(second[1:])
    assert b"".join(line.inner.said) == b"x" * RECORD + b"y" * RECORD
    assert len(opened) <= 6


def test_a_record_that_came_in_two_reads_is_given_on_whole(contexts: Contexts) -> None:
    """OpenSSL has the first part already: what is left in memory says nothing of how much it is."""
    line = begun(contexts)
    whole = line.sealed(b"x" * 10_000)
    line.secured.data_received(whole[:-100])
    line.secured.data_received(whole[-100:])
    assert b"".join(line.inner.said) == b"x" * 10_000


def test_many_pieces_leave_in_parts(contexts: Contexts) -> None:
    """What OpenSSL had in memory at once it keeps: 8 MB a connection of which much was read."""
    line = begun(contexts)
    before = line.outer.writes
    line.inner.transport.writelines([b"x" * RECORD] * 64)
    for _ in range(4):
        line.turn()
    assert line.outer.writes - before >= 32
    assert line.heard() == b"x" * RECORD * 64


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("count", [1, 64], ids=["one piece", "many"])
def test_what_is_large_is_sealed_in_turns(contexts: Contexts, count: int, closes: bool) -> None:
    """A kernel may take all of it: one message of 1 MB for 200 clients kept all others waiting for
    0.3 s.
    """
    line = begun(contexts)
    size = 64 * RECORD
    line.inner.transport.writelines([b"x" * (size // count)] * count)
    line.inner.transport.write(b"behind it")
    assert line.secured.get_write_buffer_size() == size + 9 - AT_ONCE
    assert line.inner.calls == ["made", "pause"], "who is inside may have more"
    if closes:
        asyncio.run(closing(line))
    else:
        for turn in range(1, 5):
            assert len(line.later) == 1, "all others have a turn between"
            line.turn()
            left = size + 9 - AT_ONCE - turn * IN_TURN
            assert line.secured.get_write_buffer_size() == max(0, left)
        assert not line.later and line.inner.calls == ["made", "pause", "resume"]
    assert line.heard() == b"x" * size + b"behind it"


async def closing(line: Line) -> None:
    line.secured.close()
    while line.later:
        assert "close" not in line.outer.done
        line.turn()
    await asyncio.sleep(0)
    assert line.outer.done[-1] == "close"


def test_what_is_a_little_large_tells_nobody_to_pause(contexts: Contexts) -> None:
    line = begun(contexts)
    line.inner.transport.write(b"x" * (AT_ONCE + RECORD))
    line.turn()
    assert line.inner.calls == ["made"] and line.heard() == b"x" * (AT_ONCE + RECORD)


def test_who_is_gone_is_sealed_nothing_in_the_next_turn(contexts: Contexts) -> None:
    line = begun(contexts)
    line.inner.transport.write(b"x" * 64 * RECORD)
    line.secured.connection_lost(None)
    sealed = len(line.outer.written)
    line.turn()
    assert len(line.outer.written) == sealed and line.inner.calls[-1] == "lost"


class Full(Outer):
    """Takes so much, and then says that it is full."""

    def __init__(self, secured: Secured, size: int) -> None:
        super().__init__()
        self.secured, self.size = secured, size

    def write(self, data: bytes) -> None:
        super().write(data)
        self.waiting = len(self.written)
        if self.waiting > self.size:
            self.secured.pause_writing()

    def empty(self) -> None:
        """The peer has read all of it."""
        self.waiting = 0
        self.secured.resume_writing()


@given(
    st.lists(st.lists(st.integers(0, 3 * PART), max_size=4), max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6), st.booleans(),
)  # fmt: skip
def test_what_waits_for_a_slow_reader_is_not_sealed_and_comes_in_order(
    contexts: Contexts, written: list[list[int]], reads: list[bool], closes: bool
) -> None:
    """Sealed it was a copy for each: 200 readers that are behind took 223 MB instead of 2."""
    asyncio.run(slowly(begun(contexts), written, reads, closes))


async def slowly(line: Line, written: list[list[int]], reads: list[bool], closes: bool) -> None:
    line._to_peer.write(line.outer.taken())
    full = line.outer = cast(Any, line.secured)._transport = Full(line.secured, PART)
    said, heard = b"", b""
    for number, (sizes, read) in enumerate(zip(written, reads, strict=False)):
        pieces = [bytes([65 + number]) * size for size in sizes]
        said += b"".join(pieces)
        line.secured.writelines(pieces)
        assert full.waiting <= PART + PART + RECORD + 1000
        waits = line.secured.get_write_buffer_size()
        assert waits >= len(said) - len(heard), "as without TLS"
        if read:
            heard += line.heard()
            full.empty()
    if closes:
        held = line.secured.get_write_buffer_size() > full.waiting
        line.secured.close()
        assert full.waiting <= PART + PART + RECORD + 1000, "nor is it sealed by closing"
        assert line.secured.is_closing() and ("close" in full.done) != held
        line.secured.write(b"too late")
    while line.outer.written:
        heard += line.heard()
        full.empty()
        await asyncio.sleep(0)
    full.empty()  # of the last word, too
    assert heard == said and not line.secured.get_write_buffer_size()
    assert full.done == ["pause_reading"] * ("pause_reading" in full.done) + ["close"] * closes
    told = [call for call in line.inner.calls if call in ("pause", "resume")]
    assert told == ["pause", "resume"] * (len(told) // 2) or closes


def test_what_is_written_when_told_to_pause_comes_behind_what_waits(contexts: Contexts) -> None:
    line = begun(contexts)
    line._to_peer.write(line.outer.taken())
    full = line.outer = cast(Any, line.secured)._transport = Full(line.secured, PART)
    line.inner.pause_writing = lambda: line.secured.write(b"late")  # type: ignore[method-assign]
    line.secured.write(b"x" * 3 * PART)
    heard = b""
    while full.written:
        heard += line.heard()
        full.empty()
    assert heard == b"x" * 3 * PART + b"late" * heard.count(b"late") != b"x" * 3 * PART


def test_who_says_no_more_gets_what_is_not_sealed_yet(contexts: Contexts) -> None:
    line = begun(contexts)
    line._to_peer.write(line.outer.taken())
    line.outer = cast(Any, line.secured)._transport = Full(line.secured, PART)
    line.secured.write(b"x" * 5 * PART)

    async def leave() -> bytes:
        assert line.secured.eof_received(), "or the loop would close it now"
        heard = b""
        while line.outer.written:
            assert "close" not in line.outer.done
            heard += line.heard()
            cast(Full, line.outer).empty()
        await asyncio.sleep(0)
        assert not line.secured.eof_received(), "nothing waits"
        return heard

    assert asyncio.run(leave()) == b"x" * 5 * PART and line.outer.done[-1] == "close"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_has_bytes_is_written(contexts: Contexts, kind: Callable[[bytes], Any]) -> None:
    """As to other transports: an answer of a mounted application may be a memoryview."""
    line = begun(contexts)
    line.inner.transport.write(kind(b"x" * 5))
    line.inner.transport.writelines([kind(b"y" * RECORD * 2)])
    assert line.heard() == b"x" * 5 + b"y" * RECORD * 2


@pytest.mark.pure
@pytest.mark.parametrize("how", ["in order", "cut", "alert"])
def test_who_left_and_reads_nothing_of_what_is_left_has_a_time(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("hubbub.runtime.tls.CLOSE_SECONDS", 0.01)
    monkeypatch.setattr("hubbub.runtime.farewell.LINGER_SECONDS", 0.01)
    line = begun(contexts)
    line.outer.waiting = 1000
    if how == "cut":

        async def cut() -> None:
            assert not line.secured.eof_received()
            await asyncio.sleep(0.05)

        asyncio.run(cut())
    elif how == "alert":
        hear(line, by_hand(line, contexts).record(b"\x02\x50", ALERT), 0.05)
    else:
        hear(line, line.goodbye(), 0.05)
    assert line.outer.done[-1] == "abort"


@given(st.binary(min_size=1, max_size=2000))
def test_rubbish_instead_of_a_handshake_breaks_nothing(contexts: Contexts, rubbish: bytes) -> None:
    line = Line(*contexts)

    async def begin() -> None:
        line.secured.begin(b"\x16\x03\x01" + rubbish)
        line.secured.connection_lost(None)

    asyncio.run(begin())
    assert len(line.shaken) == 1 and line.shaken[0] is not None
    assert line.inner.calls == []


@pytest.mark.pure
def test_a_handshake_without_an_end_has_a_time(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.runtime.tls.TLS_SECONDS", 0.01)
    line = Line(*contexts)

    async def begin() -> None:
        line.secured.begin(b"\x16\x03\x01\x00\x02\x01\x00")
        await asyncio.sleep(0.1)
        line.secured.connection_lost(None)

    asyncio.run(begin())
    assert [str(error) for error in line.shaken] == ["it was not done within 0.01 s"]
    assert line.outer.done == ["abort"] and line.inner.calls == []


def test_who_is_inside_asks_the_socket(contexts: Contexts) -> None:
    """And is asked to wait as without TLS, once it is there."""
    line = Line(*contexts)
    line.secured.pause_writing()
    line = begun(contexts)
    transport = line.inner.transport
    transport.pause_reading()
    transport.resume_reading()
    line.secured.pause_writing()
    line.secured.resume_writing()
    assert line.outer.done == ["pause_reading", "resume_reading"]
    assert line.inner.calls == ["made", "pause", "resume"]
    assert transport.get_extra_info("peername") == ("127.0.0.1", 5)
    assert transport.get_extra_info("peercert") is None
    assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert transport.get_protocol() is line.inner
