"""WebSocket frames, with the `websockets` library as the other side and as the judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.exceptions import ProtocolError as TheirError
from websockets.frames import CloseCode, Opcode
from websockets.frames import Frame as TheirFrame
from websockets.protocol import CLIENT, SERVER
from websockets.protocol import OPEN as THEIR_OPEN
from websockets.protocol import Protocol as Theirs
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from hubbub.errors import ProtocolError
from hubbub.wire.http import parse_head
from hubbub.wire.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Frames,
    accept_key,
    close_frame,
    frame,
    handshake_response,
    masked_frame,
)

MAX = 1 << 20
PAYLOADS = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([125, 126, 127, 65_535, 65_536]).map(lambda size: b"x" * size),
)


def heard(frames: Frames, data: bytes, step: int = 1 << 30) -> list[bytes]:
    return [
        message for at in range(0, len(data), step) for message in frames.feed(data[at : at + step])
    ]


def their_frame(opcode: int, payload: bytes, fin: bool = True, mask: bool = True) -> bytes:
    return TheirFrame(Opcode(opcode), payload, fin).serialize(mask=mask)


def refusal(data: bytes, max_bytes: int = MAX, masked: bool = True) -> tuple[int, str]:
    """The close code and the reason with which bytes are refused."""
    frames = Frames(max_bytes, masked)
    with pytest.raises(ProtocolError) as caught:
        heard(frames, data)
    assert caught.value.reply == b""
    assert frames.closed
    assert heard(frames, masked_frame(b"more")) == []
    last = frames.replies[-1]
    assert last[0] == 0x80 | CLOSE
    return int.from_bytes(last[2:4], "big"), caught.value.reason


# The handshake


def test_the_accept_key_is_the_one_of_the_standard() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("subprotocol", ["", "mqtt"])
def test_a_library_accepts_our_handshake(subprotocol: str) -> None:
    wanted = [Subprotocol(subprotocol)] if subprotocol else None
    client = ClientProtocol(parse_uri("ws://localhost/"), subprotocols=wanted)
    client.send_request(client.connect())
    request = parse_head(b"".join(client.data_to_send()))
    assert request is not None and request.websocket
    client.receive_data(handshake_response(request, subprotocol) + frame(b"first"))
    assert client.state is THEIR_OPEN
    assert (client.subprotocol or "") == subprotocol
    assert [event.data for event in client.events_received() if isinstance(event, TheirFrame)] == [
        b"first"
    ]


# What is sent


@settings(deadline=None)
@given(PAYLOADS, st.sampled_from([TEXT, BINARY]))
def test_a_library_reads_our_frames(payload: bytes, opcode: int) -> None:
    client = Theirs(CLIENT, state=THEIR_OPEN)
    client.receive_data(frame(payload, opcode))
    (event,) = client.events_received()
    assert isinstance(event, TheirFrame)
    assert (event.opcode, event.data, event.fin) == (opcode, payload, True)


@settings(deadline=None)
@given(PAYLOADS)
def test_a_library_reads_our_masked_frames(payload: bytes) -> None:
    server = Theirs(SERVER, state=THEIR_OPEN)
    server.receive_data(masked_frame(payload))
    (event,) = server.events_received()
    assert isinstance(event, TheirFrame) and event.data == payload


# What is received


@settings(deadline=None)
@given(st.lists(PAYLOADS, max_size=3), st.integers(7, 3000), st.booleans())
def test_messages_come_out_whole_however_they_were_split(
    payloads: list[bytes], step: int, masked: bool
) -> None:
    frames = Frames(MAX, masked)
    stream = b"".join(their_frame(BINARY, payload, mask=masked) for payload in payloads)
    assert heard(frames, stream, step) == payloads
    assert frames.replies == [] and not frames.closed


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.integers(1, 50))
def test_fragments_are_joined_and_pings_between_them_answered(
    parts: list[bytes], step: int
) -> None:
    stream = b""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        stream += their_frame(BINARY if index == 0 else 0, part, fin=last)
        if not last:
            stream += their_frame(PING, b"are you there")
    frames = Frames(MAX)
    assert heard(frames, stream, step) == [b"".join(parts)]
    assert frames.replies == [frame(b"are you there", PONG)] * (len(parts) - 1)


def test_text_is_checked_and_given_out_as_bytes() -> None:
    assert heard(Frames(MAX), their_frame(TEXT, "grüß".encode())) == ["grüß".encode()]
    split = their_frame(TEXT, b"gr\xc3", fin=False) + their_frame(0, b"\xbc")
    assert heard(Frames(MAX), split) == ["grü".encode()]
    assert refusal(their_frame(TEXT, b"gr\xfc")) == (1007, "WebSocket: text that is not UTF-8")
    frames = Frames(MAX, any_text=True)
    assert heard(frames, their_frame(TEXT, b"gr\xfc")) == [b"gr\xfc"]


def test_an_unsolicited_pong_is_ignored() -> None:
    frames = Frames(MAX)
    assert heard(frames, their_frame(PONG, b"hello") + masked_frame(b"x")) == [b"x"]
    assert frames.replies == []


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 4999])
def test_a_close_is_answered_with_its_code_and_ends_everything(code: int) -> None:
    frames = Frames(MAX)
    bye = their_frame(CLOSE, code.to_bytes(2, "big") + b"bye")
    assert heard(frames, masked_frame(b"a") + bye + masked_frame(b"b")) == [b"a"]
    assert frames.closed
    assert frames.replies == [close_frame(code)]


def test_a_close_without_a_code_is_answered_without_one() -> None:
    frames = Frames(MAX)
    assert heard(frames, their_frame(CLOSE, b"")) == []
    assert frames.replies == [frame(b"", CLOSE)] and frames.closed


def test_messages_before_an_error_are_given_out_first() -> None:
    frames = Frames(MAX)
    found = []
    with pytest.raises(ProtocolError):
        for message in frames.feed(masked_frame(b"good") + frame(b"not masked")):
            found.append(message)
    assert found == [b"good"]


LONG = (1 << 63).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"not masked"), CloseCode.PROTOCOL_ERROR),
        (b"\xc2\x80", CloseCode.PROTOCOL_ERROR),  # RSV1: an extension nobody agreed to
        (b"\x83\x80", CloseCode.PROTOCOL_ERROR),  # opcode 3 is reserved
        (b"\x8b\x80", CloseCode.PROTOCOL_ERROR),
        (their_frame(0, b"continues nothing"), CloseCode.PROTOCOL_ERROR),
        (their_frame(BINARY, b"a", fin=False) + masked_frame(b"b"), CloseCode.PROTOCOL_ERROR),
        (b"\x09\x80", CloseCode.PROTOCOL_ERROR),  # a ping in parts
        (b"\x89\xfe\x00\x7e", CloseCode.PROTOCOL_ERROR),  # a ping of 126 bytes
        (b"\x82\xfe\x00\x05", CloseCode.PROTOCOL_ERROR),  # 5 needs no two bytes
        (b"\x82\xff" + LONG, CloseCode.PROTOCOL_ERROR),
        (their_frame(CLOSE, b"\x03"), CloseCode.PROTOCOL_ERROR),
        (their_frame(CLOSE, (999).to_bytes(2, "big")), CloseCode.PROTOCOL_ERROR),
        (their_frame(CLOSE, (1005).to_bytes(2, "big")), CloseCode.PROTOCOL_ERROR),
        (their_frame(CLOSE, b"\x03\xe8\xff"), CloseCode.INVALID_DATA),
        (b"\x82\xff" + (1 << 40).to_bytes(8, "big"), CloseCode.MESSAGE_TOO_BIG),
    ],
    ids=lambda part: "frame" if isinstance(part, bytes) else "",  # masks are random
)
def test_what_must_not_be_sent_is_refused_before_more_is_read(data: bytes, code: int) -> None:
    assert refusal(data)[0] == code


def test_a_client_refuses_masked_frames_and_masks_its_own() -> None:
    frames = Frames(MAX, masked=False)
    with pytest.raises(ProtocolError, match="unmasked"):
        heard(frames, masked_frame(b"x"))
    server = Theirs(SERVER, state=THEIR_OPEN)
    server.receive_data(frames.replies[-1])
    assert server.close_rcvd is not None and server.close_rcvd.code == 1002


def test_fragments_count_together_against_the_bound() -> None:
    part = their_frame(BINARY, b"x" * 60, fin=False)
    assert refusal(part + their_frame(0, b"x" * 60), max_bytes=100)[0] == 1009
    assert heard(Frames(120), part + their_frame(0, b"x" * 60)) == [b"x" * 120]


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(1, 60))
def test_garbage_ends_in_a_protocol_error_at_most(data: bytes, step: int) -> None:
    frames = Frames(1000)
    try:
        heard(frames, data, step)
    except ProtocolError:
        assert frames.closed


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.binary(max_size=8)), max_size=6))
def test_the_library_agrees_about_any_frames(plan: list[tuple[int, bool, bytes]]) -> None:
    """Whatever frames a peer sends, what we accept and refuse is what `websockets` does."""
    stream = b"".join(
        bytes((fin << 7 | opcode, 0x80 | len(payload))) + bytes(4) + payload
        for opcode, fin, payload in plan
    )
    server = Theirs(SERVER, state=THEIR_OPEN)
    server.receive_data(stream)
    refused = isinstance(server.parser_exc, TheirError | UnicodeDecodeError)
    if str(server.parser_exc) == "incomplete fragmented message":
        refused = False  # a close may stand between fragments, as any control frame (5.4)
    frames = Frames(MAX)
    try:
        heard(frames, stream)
        ours = False
    except ProtocolError as error:
        ours = "not UTF-8" not in error.reason or refused
    assert ours == refused
