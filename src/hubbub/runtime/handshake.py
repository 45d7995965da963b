"""How TLS begins: what its first bytes look like, and what is said of a handshake that fails.

Called by the sockets, which see the first byte of a connection, and by `tls`.
"""

from __future__ import annotations

import ssl
from typing import Final

from hubbub.errors import ProtocolError
from hubbub.runtime.records import RECORD
from hubbub.wire.http import looks_like_http, response

FIRST: Final = 0x16  # a TLS record with a handshake message (RFC 8446, 5.1)
REFUSED: Final = bytes.fromhex("15 0301 0002 02 28")  # the alert "handshake failure"


def first_record(data: bytes) -> bool:
    """Whether the first record is there whole: before that OpenSSL's buffers are not worth it, for
    which one byte is enough to ask. What says to be longer than one may be is left to OpenSSL.
    """
    size = int.from_bytes(data[3:5], "big")
    return len(data) >= 5 and (len(data) >= 5 + size or size > RECORD)


class Shaken(ssl.SSLObject):
    """The server's side; `identity`: whose key its client has, "" if it has none (`auth.keys`)."""

    identity = ""


def reason_of(error: BaseException | None) -> str:
    """OpenSSL's reason without its file and line numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error or "") or "the peer went away"


def not_in_clear(data: bytes) -> ProtocolError:
    """What a TLS-only listener says to those who do not use it, in words they understand."""
    reply = b""
    if looks_like_http(data):
        reply = response(400, b"This port speaks TLS only: use https or wss.\n", close=True)
    return ProtocolError("no TLS, and tls.only is set here", reply)
