"""What NATS says is cut into messages: answers to copies stay here, all else goes on as it came."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.cluster.shortcut import Ears, Shortcut

SUBJECTS = (b"_INBOX.x.", b"hubbub.to.b")
INFO = b'INFO {"server_name":"n0"}\r\n'
OTHERS = (
    INFO,
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"-ERR 'Slow Consumer'\r\n",
    b"MSG hubbub.to.a 3 reply 4\r\nMSG \r\n",
    b"MSG _INBOX.other 7 11\r\n\r\nMSG _INBO\r\n",
    b"HMSG _INBOX.other 7 12 14\r\nNATS/1.0\r\n\r\nxy\r\n",
)
OURS = (
    (b"MSG _INBOX.x.1-2-3 1 2\r\n{}\r\n", (b"_INBOX.x.1-2-3", b"{}")),
    (b"MSG _INBOX.x.1-2-4 1 0\r\n\r\n", (b"_INBOX.x.1-2-4", b"")),
    (b"HMSG _INBOX.x.1-2-5 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", (b"_INBOX.x.1-2-5", b"")),
    (b"MSG _INBOX.x.1-2-6 1 4\r\n\r\n\r\n\r\n", (b"_INBOX.x.1-2-6", b"\r\n\r\n")),
    (b"MSG hubbub.to.b 3 4\r\nMSG \r\n", (b"hubbub.to.b", b"MSG ")),
)


def heard(pieces: list[bytes]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """What went on, and what stayed."""

    async def hear() -> tuple[bytes, list[tuple[bytes, bytes]]]:
        found: list[tuple[bytes, bytes]] = []
        shortcut = Shortcut(found.extend)
        shortcut.subjects = SUBJECTS
        reader = asyncio.StreamReader()
        ears = Ears(reader, shortcut)
        for piece in pieces:
            ears.data_received(piece)
        ears.eof_received()
        return await reader.read(), found

    return asyncio.run(hear())


@given(
    st.lists(st.one_of(st.sampled_from(OTHERS), st.sampled_from(OURS)), max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
)
def test_any_order_in_any_pieces(
    said: list[bytes | tuple[bytes, tuple[bytes, bytes]]], sizes: list[int]
) -> None:
    stream = b"".join(one if isinstance(one, bytes) else one[0] for one in said)
    pieces: list[bytes] = []
    at = 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    theirs, ours = heard(pieces)
    assert theirs == b"".join(one for one in said if isinstance(one, bytes))
    assert ours == [one[1] for one in said if not isinstance(one, bytes)]


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8))
def test_what_is_no_message_goes_on_or_waits_for_its_end(pieces: list[bytes]) -> None:
    """nats-py says what is wrong with it: nothing is lost before a line without an end."""
    theirs, ours = heard(pieces)
    assert b"".join(pieces).startswith(theirs)
    assert not ours


@pytest.mark.parametrize("wrong", [b"MSG a 1 x\r\n", b"MSG a 1 -12\r\n", b"MSG \r\n"])
def test_what_cannot_be_cut_goes_on_and_all_behind_it(wrong: bytes) -> None:
    theirs, ours = heard([OURS[0][0] + INFO, INFO[:4], INFO[4:] + wrong, OURS[1][0]])
    assert theirs == INFO * 2 + wrong + OURS[1][0]
    assert ours == [OURS[0][1]]
