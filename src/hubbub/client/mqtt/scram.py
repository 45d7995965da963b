"""SCRAM-SHA-256, the client's side: the password never crosses the wire (RFC 5802, RFC 7677).

    we                                                  broker
      n,,n=USER,r=NONCE                        ->
                                               <-  r=NONCE+MORE,s=SALT,i=ROUNDS
      c=BASE64(n,,),r=NONCE+MORE,p=PROOF       ->
                                               <-  v=SIGNATURE     it knows the verifier, too

    async with connect(url, exchange=partial(Scram, "ann", "secret")) as client: …

Used by the connection, a new one each time. No I/O.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import unicodedata
from hashlib import pbkdf2_hmac, sha256
from typing import Final

from hubbub.errors import Refused

ROUNDS_MAX: Final = 1_000_000  # a broker that asks for more wants to keep us busy
_HEADER: Final = b"n,,"  # no channel binding, no other user


class Scram:
    """One conversation; `step` is called with what the broker said, first with nothing.

    Refused if the broker does not know the password either, or says what it should not.
    """

    method = "SCRAM-SHA-256"

    def __init__(self, user: str, password: str) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._password = unicodedata.normalize("NFKC", password).encode()
        self._nonce = base64.b64encode(secrets.token_bytes(18))
        self._first = b"n=" + name.encode() + b",r=" + self._nonce
        self._steps = iter((self._begin, self._prove, self._check))
        self._signature = b""

    def step(self, data: bytes) -> bytes:
        try:
            return next(self._steps)(data)
        except (ValueError, KeyError, StopIteration):
            raise Refused(f"the broker said what does not belong into {self.method}") from None

    def _begin(self, data: bytes) -> bytes:
        return _HEADER + self._first

    def _prove(self, data: bytes) -> bytes:
        said = _attributes(data)
        nonce, rounds = said[b"r"], int(said[b"i"])
        if not nonce.startswith(self._nonce) or not 0 < rounds <= ROUNDS_MAX:
            raise ValueError
        salted = pbkdf2_hmac("sha256", self._password, base64.b64decode(said[b"s"]), rounds)
        client_key = _hmac(salted, b"Client Key")
        final = b"c=" + base64.b64encode(_HEADER) + b",r=" + nonce
        messages = b",".join((self._first, data, final))
        signature = _hmac(sha256(client_key).digest(), messages)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = _hmac(_hmac(salted, b"Server Key"), messages)
        return final + b",p=" + base64.b64encode(proof)

    def _check(self, data: bytes) -> bytes:
        if not hmac.compare_digest(base64.b64decode(_attributes(data)[b"v"]), self._signature):
            raise Refused("this is not the broker that knows our password")
        return b""


def _attributes(data: bytes) -> dict[bytes, bytes]:
    return {part[:1]: part[2:] for part in data.split(b",") if part[1:2] == b"="}


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
