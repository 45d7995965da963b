"""Keys that the hub and its clients share (TLS-PSK): who shows the right one is known by its name.

    ann:5d41402abc4b2a76b9719d911017c592      mosquitto's format: identity, `:`, the key in hex

OpenSSL asks for the key of an identity in the middle of a handshake and does not say whose it is.
But it asks from within `do_handshake` of that connection, so the connection says before that it is
the one (`asking`): one context a listener is enough. A context for each connection would be the
other way, at 0.4 ms each.

A session that is resumed asks for no key. Tickets to do that are not given out; sessions of 1.2
have a number, by which OpenSSL finds them again and we the identity. No sockets here.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, Protocol, cast

from hubbub.config.sought import reason
from hubbub.errors import SettingError

_KEY_BYTES: Final = 64  # what a key may have: OpenSSL's bound for TLS 1.3 is that of the hash
_SESSIONS: Final = 20_480  # as many as OpenSSL keeps
# Key exchanges with forward secrecy first; without it for small devices, as mosquitto has it.
CIPHERS: Final = "kECDHEPSK:kDHEPSK:kPSK:DEFAULT:!eNULL:!aNULL:!3DES:!RC4"


class Shaking(Protocol):
    """A connection whose handshake is under way; `identity`: what its client said, if it did."""

    identity: str

    @property
    def session(self) -> ssl.SSLSession | None: ...
    @property
    def session_reused(self) -> bool | None: ...
    def version(self) -> str | None: ...


class Keys:
    """One file. `read` again when it changed; SettingError leaves the old keys."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.by_identity: dict[str, bytes] = {}
        self.read()

    def read(self) -> None:
        try:
            text = self.file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = reason(self.file, error) if isinstance(error, OSError) else "not UTF-8 text"
            raise SettingError(f"cannot read the keys {self.file}: {why}") from None
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                identity, key = _parse(line.strip(), f"{self.file}:{number}")
                found[identity] = key
        self.by_identity = found


def _parse(line: str, place: str) -> tuple[str, bytes]:
    identity, _, digits = line.rpartition(":")
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    if not identity or not 1 <= len(key) <= _KEY_BYTES:
        raise SettingError(f"{place}: expected IDENTITY:KEY, the key as hex of 1 to 64 bytes")
    return identity, key


class KeyedContext(ssl.SSLContext):
    """The context of a listener whose clients may have keys; `asking` as above."""

    asking: Shaking | None
    keys: Keys
    resumable: dict[bytes, str]

    def key_of(self, identity: str | None) -> bytes:
        """For OpenSSL: an empty key ends the handshake."""
        key = self.keys.by_identity.get(identity or "", b"")
        if key and self.asking is not None:
            self.asking.identity = identity or ""
        return key

    def shaken(self, made: Shaking) -> None:
        """A handshake is done: whose session it is stays known as long as OpenSSL may resume it.

        In 1.3 OpenSSL asks for the key before it looks whether that fits the cipher. If not it
        goes on with a certificate, and nobody has shown the key.
        """
        if made.version() == "TLSv1.3" and not made.session_reused:
            made.identity = ""
        session = made.session
        if session is None or made.version() != "TLSv1.2":
            return
        if made.identity:
            if len(self.resumable) >= _SESSIONS:
                self.resumable.clear()
            self.resumable[session.id] = made.identity
        elif made.session_reused:
            made.identity = self.resumable.get(session.id, "")


def keyed_context(file: str, hint: str) -> KeyedContext:
    """A server's context that knows the keys of a file, and says that hint to clients of TLS 1.2.

    SettingError if the file cannot be used, or Python is older than 3.13.
    """
    if not getattr(ssl, "HAS_PSK", False):
        raise SettingError(
            f"tls.psk_file = {file!r} cannot be used: keys that are shared need Python 3.13 or "
            "later; start the hub with such a Python, or use tls.certificate and password_file"
        )
    found = KeyedContext(ssl.PROTOCOL_TLS_SERVER)
    found.asking, found.keys, found.resumable = None, Keys(Path(file)), {}
    cast(Any, found).set_psk_server_callback(found.key_of, hint or None)
    found.options |= ssl.OP_NO_TICKET
    found.num_tickets = 0
    found.set_ciphers(CIPHERS)
    return found
