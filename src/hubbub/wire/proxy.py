"""The PROXY protocol, versions 1 and 2: what a balancer says before the bytes of its client.

    1   PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\\r\\n                       at most 107 bytes
    2   0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A | version, command | family | length | addresses, more

Written from HAProxy's `proxy-protocol.txt`. The socket asks this of connections from addresses
that are trusted to say it, and of no others: whoever may say it may say to be anybody. Nothing of
what follows the addresses (TLVs) is used, nor believed. No I/O.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from hubbub.errors import ProtocolError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
LINE_BYTES: Final = 107  # the longest header of version 1, its line end included
MOST_BYTES: Final = 2048  # of version 2: balancers put certificates' names and ids behind addresses
_START: Final = b"PROXY "
_HEAD: Final = len(SIGNATURE) + 4
_FAMILIES: Final = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}
_STREAMS: Final = {0x11: 4, 0x21: 16}  # the families that are TCP, and the bytes of an address
_LOCAL_FAMILIES: Final = (0x00, 0x31)  # unspecified; a Unix socket at the balancer


class Header(NamedTuple):
    """Who a connection is from: address "" is who opened it. `size`: bytes of the header."""

    address: str
    port: int
    size: int


def is_one(data: bytes) -> bool:
    """Whether this is meant as a header, where none is expected."""
    return data.startswith((b"PROXY TCP", b"PROXY UNKNOWN", SIGNATURE))


def parse(data: bytes) -> Header | None:
    """The header that `data` begins with, None if it is not whole; ProtocolError if it is none."""
    if data.startswith(SIGNATURE[: len(data)]):
        return _binary(data)
    if data.startswith(_START[: len(data)]):
        return _line(data)
    raise _bad(f"none came, but {data[:20]!r}")


def _line(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, LINE_BYTES)
    if end < 0:
        if len(data) >= LINE_BYTES:
            raise _bad(f"no end of line within {LINE_BYTES} bytes")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return Header("", 0, end + 2)
    if len(words) != 6 or words[1] not in _FAMILIES:
        raise _bad(f"cannot read {data[:end]!r}")
    kind = _FAMILIES[words[1]]
    if b"%" in data[:end]:  # the zone of an address may be any text, and is no part of this format
        raise _bad(f"an address with a zone: {data[:end]!r}")
    try:
        source, _ = kind(words[2]), kind(words[3])
    except ValueError:
        raise _bad(f"no addresses of {words[1]}: {data[:end]!r}") from None
    port, _ = (_port(word) for word in words[4:])
    return Header(_text(source), port, end + 2)


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 5 and int(word) < 65_536):
        raise _bad(f"{word!r} is no port")
    return int(word)


def _binary(data: bytes) -> Header | None:
    if len(data) < _HEAD:
        return None
    command, family = data[12], data[13]
    size = _HEAD + int.from_bytes(data[14:16], "big")
    if size > MOST_BYTES:
        raise _bad(f"it says to have {size} bytes, and {MOST_BYTES} are the most")
    if command not in (0x20, 0x21):
        raise _bad(f"version and command are {command:#04x}")
    if len(data) < size:
        return None
    if command == 0x20 or family in _LOCAL_FAMILIES:  # LOCAL: the balancer looks after us
        return Header("", 0, size)
    width = _STREAMS.get(family)
    if width is None:
        raise _bad(f"the family {family:#04x} is not TCP")
    at = _HEAD + 2 * width
    if size < at + 4:
        raise _bad(f"{size - _HEAD} bytes have no room for the addresses")
    source = ipaddress.ip_address(data[_HEAD : _HEAD + width])
    return Header(_text(source), int.from_bytes(data[at : at + 2], "big"), size)


def _text(address: object) -> str:
    """As the kernel would say it; one of version 4 inside version 6 is the one it is."""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _bad(reason: str) -> ProtocolError:
    return ProtocolError(f"PROXY header expected from a balancer (`proxies`): {reason}")
