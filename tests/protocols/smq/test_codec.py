"""Every message can be built and read back, and no bytes raise anything but ProtocolError."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.protocols.smq import codec

KINDS = st.sampled_from(sorted(codec.LAYOUTS))
SHORT = st.binary(max_size=255)


@settings(deadline=None)
@given(KINDS, st.data(), st.binary(max_size=50))
def test_numbers_and_rest_come_back(kind: int, data: st.DataObject, rest: bytes) -> None:
    fields = codec.LAYOUTS[kind].numbers.format.lstrip(">")
    limits = {"B": 0xFF, "I": 0xFFFFFFFF}
    numbers = tuple(data.draw(st.integers(0, limits[field])) for field in fields)
    message = codec.message(kind, *numbers, rest=rest)
    assert message[0] == kind
    assert codec.numbers_of(kind, message[1:]) == numbers
    assert codec.rest_of(kind, message[1:]) == rest


@settings(deadline=None)
@given(KINDS, st.binary(max_size=20))
def test_a_body_that_is_too_short_is_a_protocol_error(kind: int, body: bytes) -> None:
    size = codec.LAYOUTS[kind].numbers.size
    if len(body) >= size:
        assert len(codec.rest_of(kind, body)) == len(body) - size
    else:
        with pytest.raises(ProtocolError, match=f"at least {size} bytes"):
            codec.numbers_of(kind, body)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 50))
def test_frames_come_out_whole_however_they_were_split(bodies: list[bytes], step: int) -> None:
    stream = b"".join(map(codec.framed, bodies))
    rest, found = b"", []
    for at in range(0, len(stream), step):
        rest, start = rest + stream[at : at + step], 0
        while end := codec.next_frame(rest, start):
            found.append(rest[start + 2 : end])
            start = end
        rest = rest[start:]
    assert found == bodies
    assert rest == b""


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_frame_shorter_than_its_own_head_is_a_protocol_error(size: int) -> None:
    with pytest.raises(ProtocolError, match="at least 3 bytes"):
        codec.next_frame(bytes((0, size)), 0)


def test_the_largest_frame_is_what_the_length_can_say() -> None:
    assert len(codec.framed(bytes(0xFFFD))) == 0xFFFF
    with pytest.raises(ValueError, match="at most 65535 bytes"):
        codec.framed(bytes(0xFFFE))


def test_the_connect_of_a_c_client_is_version_2_with_a_number_more() -> None:
    body = bytes.fromhex("0200000a632d636c69656e742d4100696e666f2041")
    assert codec.parse_connect(body) == codec.Connect(b"c-client-A", b"", b"info A", 0)
    assert codec.parse_connect(body[:1] + b"\x05\x8c" + body[3:]).largest == 1420


def test_the_connect_of_a_python_client_is_version_1() -> None:
    body = bytes.fromhex("010b70792d636c69656e742d4100696e666f2070792d636c69656e742d41")
    expected = codec.Connect(b"py-client-A", b"", b"info py-client-A", 0)
    assert codec.parse_connect(body) == expected


def test_uids_and_credentials_are_any_bytes() -> None:
    uid, credentials = bytes.fromhex("02fc00000001"), bytes(range(236, 256))
    wanted = codec.parse_connect(codec.build_connect(uid, credentials)[1:])
    assert (wanted.uid, wanted.credentials) == (uid, credentials)


def test_a_missing_credentials_field_counts_as_empty() -> None:
    assert codec.parse_connect(b"\x01\x06abcdef") == codec.Connect(b"abcdef", b"", b"", 0)


@settings(deadline=None)
@given(st.binary(min_size=6, max_size=255), SHORT, st.binary(max_size=100))
def test_connect_round_trip(uid: bytes, credentials: bytes, info: bytes) -> None:
    message = codec.build_connect(uid, credentials, info)
    assert codec.parse_connect(message[1:]) == codec.Connect(uid, credentials, info, 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "version 0"),
        (b"\x03", "version 3"),
        (b"\x01", "at least 6 bytes, this one 0"),
        (b"\x01\x05abcde\x00", "at least 6 bytes, this one 5"),
        (b"\x01\x20abcdef", "uid of Connect is cut off"),
        (b"\x01\x06abcdef\x05xy", "credentials of Connect is cut off"),
        (b"\x02\x00", "at least 6 bytes"),
    ],
)
def test_a_malformed_connect_says_what_is_wrong(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        codec.parse_connect(body)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_connect_is_read_or_refused(body: bytes) -> None:
    try:
        wanted = codec.parse_connect(body)
    except ProtocolError:
        return
    assert len(wanted.uid) >= codec.UID_BYTES
