"""The client's side of a TLS 1.3 connection by hand, for what no library would say.

OpenSSL shakes hands and writes down the secret of its application data; from there on the records
are made here (RFC 8446, 5 and 7.1).
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HANDSHAKE, DATA, ALERT = 22, 23, 21


class Sealing:
    """The records of one connection whose handshake is done, from the first on."""

    def __init__(self, log: Path, made: ssl.SSLObject) -> None:
        lines = [line.split() for line in log.read_text().splitlines()]
        secrets = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        cipher = made.cipher()
        assert cipher is not None and cipher[0].startswith("TLS_AES_")
        self._hash, self._size = ("sha384", 32) if "256" in cipher[0] else ("sha256", 16)
        self._begin(bytes.fromhex(secrets[-1]))

    def _begin(self, secret: bytes) -> None:
        self._secret, self._count = secret, 0
        self._key = AESGCM(self._expand(b"key", self._size))
        self._start = int.from_bytes(self._expand(b"iv", 12), "big")

    def _expand(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label; one block of it is enough."""
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\x01"
        return hmac.new(self._secret, info, self._hash).digest()[:size]

    def record(self, data: bytes, kind: int = DATA) -> bytes:
        head = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        nonce = (self._start ^ self._count).to_bytes(12, "big")
        self._count += 1
        return head + self._key.encrypt(nonce, data + bytes([kind]), head)

    def change_of_keys(self, asks: bool) -> bytes:
        """KeyUpdate: with an answer, or without."""
        record = self.record(b"\x18\0\0\x01" + bytes([asks]), HANDSHAKE)
        self._begin(self._expand(b"traffic upd", hashlib.new(self._hash).digest_size))
        return record
