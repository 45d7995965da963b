"""The PROXY protocol: every header of the paper, any split, and what is none."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.wire.proxy import MOST_BYTES, SIGNATURE, Header, parse

SOURCES = st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)) | st.tuples(
    st.ip_addresses(v=6), st.ip_addresses(v=6)
)
PORTS = st.integers(0, 65_535)


def binary(family: int, body: bytes, command: int = 0x21, size: int = -1) -> bytes:
    said = len(body) if size < 0 else size
    return SIGNATURE + struct.pack(">BBH", command, family, said) + body


def plain(address: object) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


@settings(deadline=None)
@given(SOURCES, PORTS, PORTS, st.binary(max_size=40), st.binary(max_size=200), st.data())
def test_both_versions_round_trip_at_any_split(
    ends: tuple[ipaddress.IPv4Address, ipaddress.IPv4Address], port: int, other: int, rest: bytes,
    more: bytes, data: st.DataObject,
) -> None:  # fmt: skip
    source, target = ends
    line = f"PROXY TCP{source.version} {source} {target} {port} {other}\r\n".encode()
    body = source.packed + target.packed + struct.pack(">HH", port, other) + more
    for header in (line, binary(0x11 if source.version == 4 else 0x21, body)):
        assert parse(header + rest) == Header(plain(source), port, len(header))
        assert parse(header[: data.draw(st.integers(0, len(header) - 1))]) is None


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        binary(0x00, b"", 0x20),
        binary(0x11, bytes(12), 0x20),
        binary(0x00, b"anything"),
        binary(0x31, bytes(216)),
    ],
)
def test_who_opened_it_is_who_it_is(header: bytes) -> None:
    assert parse(header + b"x") == Header("", 0, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n", b"\x10\x0c\x00\x04MQTT", b"\x16\x03\x01", b"PROXY\r\n",
        b"\r\n\r\nGET",
        b"PROXY  TCP4\r\n", b"PROXY TCP4\r\n", b"PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n", b"PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1 2.2.2.2 1 2\r\n", b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 -1 2\r\n", b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 \u0661 2\r\n".encode(), b"PROXY TCP4 " + b"1" * 96,
        b"PROXY TCP6 fe80::1%\x1b[2J ::1 1 2\r\n", b"PROXY TCP6 ::1 fe80::1%eth0 1 2\r\n",
        binary(0x11, bytes(11)), binary(0x21, bytes(35)), binary(0x12, bytes(12)),
        binary(0x11, bytes(12), 0x22), binary(0x11, bytes(12), 0x11), binary(0x41, bytes(12)),
        binary(0x11, b"", size=MOST_BYTES), binary(0x11, b"", size=65_535),
    ],
)  # fmt: skip
def test_what_is_no_header_says_so(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="PROXY header expected"):
        parse(data)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from((b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11\x00\x0c")), st.binary())
@example(b"PROXY ", b"TCP4 " + b"\xff" * 90 + b"\r\n")
def test_garbage_is_refused_or_waits_within_the_bound(start: bytes, rest: bytes) -> None:
    data = start + rest
    try:
        found = parse(data)
    except ProtocolError:
        return
    assert found is not None or len(data) < MOST_BYTES
    assert found is None or found.size <= len(data)
