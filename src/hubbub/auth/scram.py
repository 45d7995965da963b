"""SCRAM-SHA-256, the server's side: the password never crosses the wire (RFC 5802, RFC 7677).

    client                                              server
      n,,n=USER,r=NONCE                        ->                     client-first
                                               <-  r=NONCE+MORE,s=SALT,i=ROUNDS
      c=BASE64(n,,),r=NONCE+MORE,p=PROOF       ->                     client-final
                                               <-  v=SIGNATURE        and the client is in

    StoredKey = H(ClientKey), Signature = HMAC(StoredKey, the three messages before the proof)
    PROOF = ClientKey XOR Signature: it gives back a ClientKey whose hash must be StoredKey

The server keeps `Verifier`s (salt, rounds, StoredKey, ServerKey), from which neither the password
nor the ClientKey follows. The gate makes an `Exchange` of this for MQTT 5; no I/O.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stringprep
import unicodedata
from collections.abc import Callable
from hashlib import pbkdf2_hmac, sha256
from typing import Final, NamedTuple

from hubbub.auth.guesses import Guesses
from hubbub.core.gate import Exchange, Step
from hubbub.core.rights import BAD_CREDENTIALS, TOO_BUSY, Rights

METHOD: Final = "SCRAM-SHA-256"
ROUNDS: Final = 20_000  # RFC 7677 asks for 4,096; a small device does these in a second or two
_MESSAGE_BYTES: Final = 1024  # honest messages have about a hundred
_MALFORMED: Final = Step(True, reason=f"not a {METHOD} message")
_BINDING: Final = Step(True, reason=f"{METHOD} here has no channel binding")

# SASLprep (RFC 4013, 2.3): tables of what a password may not contain.
_PROHIBITED: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6,
    stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9,
    stringprep.in_table_a1,
)  # fmt: skip


class Verifier(NamedTuple):
    """What the server keeps of a password."""

    rounds: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        """The form of RFC 5803, the one PostgreSQL writes."""
        salt, stored, server = (base64.b64encode(part).decode() for part in self[1:])
        return f"{METHOD}${self.rounds}:{salt}${stored}:{server}"


def read_verifier(text: str) -> Verifier:
    """The verifier that `str` wrote; ValueError if it is none."""
    method, parameters, keys = text.split("$")
    rounds, salt = parameters.split(":")
    stored, server = keys.split(":")
    if method != METHOD or int(rounds) < 1:
        raise ValueError(text)
    found = Verifier(int(rounds), _decode(salt), _decode(stored), _decode(server))
    if len(found.stored_key) != 32 or len(found.server_key) != 32:
        raise ValueError(text)
    return found


def make_verifier(secret: bytes, rounds: int = ROUNDS) -> Verifier | None:
    """The verifier of a password; None if it has characters that SASLprep forbids."""
    password = prepare(secret)
    if password is None:
        return None
    salt = os.urandom(16)
    salted = pbkdf2_hmac("sha256", password, salt, rounds)
    client_key, server_key = _hmac(salted, b"Client Key"), _hmac(salted, b"Server Key")
    return Verifier(rounds, salt, sha256(client_key).digest(), server_key)


def prepare(secret: bytes) -> bytes | None:
    """SASLprep (RFC 4013): different keyboards' bytes for one password become the same bytes."""
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        return None
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(table(c) for c in found for table in _PROHIBITED):
        return None
    right_to_left = [stringprep.in_table_d1(c) for c in found]
    if any(right_to_left):  # RFC 3454, 6: then it is so from end to end
        if any(stringprep.in_table_d2(c) for c in found):
            return None
        if not (right_to_left[0] and right_to_left[-1]):
            return None
    return found.encode()


class Accounts:
    """What an exchange asks about a user; `auth.passwords` answers it."""

    def verifier(self, user: str) -> Verifier:
        """The user's verifier; one that nobody's password fits if there is none."""
        raise NotImplementedError


def _nobody_listens(user: str) -> None:
    """Who was refused is of no interest."""


class Scram(Exchange):
    """One conversation. `claimed(user)` hears who the client says it is, `admit(user)` gives the
    rights of a user who has proved it.
    """

    def __init__(
        self, accounts: Accounts, admit: Callable[[str], tuple[Rights | None, str]],
        guesses: Guesses, address: str = "", claimed: Callable[[str], None] = _nobody_listens,
    ) -> None:  # fmt: skip
        self._accounts = accounts
        self._admit = admit
        self._guesses = guesses
        self._address = address
        self._claimed = claimed
        self._user = ""
        self._verifier: Verifier | None = None
        self._header = b""
        self._nonce = b""
        self._messages = b""

    def step(self, data: bytes) -> Step:
        if len(data) > _MESSAGE_BYTES:
            return _MALFORMED
        try:
            return self._final(data) if self._nonce else self._first(data)
        except ValueError:  # of decoding, too
            return _MALFORMED

    def _first(self, data: bytes) -> Step:
        flag, name, bare = data.split(b",", 2)
        if flag.startswith(b"p="):
            return _BINDING
        if flag not in (b"n", b"y") or (name and not name.startswith(b"a=")):
            return _MALFORMED
        user, nonce, *_ = bare.split(b",")  # extensions may follow, and are ignored
        self._user = _user_in(_value(b"n", user))
        self._claimed(self._user)
        if name and _user_in(_value(b"a", name)) != self._user:
            return Step(True, reason="nobody may act for another user here")
        if self._guesses.blocked(self._address, self._user):
            return Step(True, reason=TOO_BUSY)
        verifier = self._verifier = self._accounts.verifier(self._user)
        self._header = data[: len(data) - len(bare)]
        self._nonce = _printable(_value(b"r", nonce)) + base64.b64encode(os.urandom(18))
        salt = base64.b64encode(verifier.salt)
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, salt, verifier.rounds)
        self._messages = bare + b"," + answer
        return Step(False, answer)

    def _final(self, data: bytes) -> Step:
        assert self._verifier is not None
        without_proof, _, proof = data.rpartition(b",")
        binding, nonce, *_ = without_proof.split(b",")
        if _value(b"r", nonce) != self._nonce:
            return _MALFORMED
        if _decode(_value(b"c", binding)) != self._header:
            return _BINDING
        messages = self._messages + b"," + without_proof
        if not self._proves(_decode(_value(b"p", proof)), messages):
            self._guesses.wrong(self._address, self._user)
            return Step(True, reason=BAD_CREDENTIALS)
        if self._accounts.verifier(self._user) != self._verifier:  # the file changed meanwhile
            return Step(True, reason=BAD_CREDENTIALS)
        self._guesses.right(self._address, self._user)
        rights, reason = self._admit(self._user)
        if rights is None:
            return Step(True, reason=reason)
        signature = _hmac(self._verifier.server_key, messages)
        return Step(True, b"v=" + base64.b64encode(signature), rights)

    def _proves(self, proof: bytes, messages: bytes) -> bool:
        verifier = self._verifier
        assert verifier is not None
        if len(proof) != 32:
            return False
        signature = _hmac(verifier.stored_key, messages)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(sha256(client_key).digest(), verifier.stored_key)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _value(name: bytes, part: bytes) -> bytes:
    """The value of an attribute `name=value`, which has to be the one expected here."""
    if not part.startswith(name + b"="):
        raise ValueError(part)
    return part[len(name) + 1 :]


def _user_in(value: bytes) -> str:
    """A user name: `=2C` stands for a comma, `=3D` for an equals sign (RFC 5802, 5.1)."""
    text = value.decode()
    if "=" in text.replace("=2C", "").replace("=3D", "") or not text:
        raise ValueError(text)
    return text.replace("=2C", ",").replace("=3D", "=")


def _printable(nonce: bytes) -> bytes:
    if not nonce or not all(0x21 <= byte <= 0x7E for byte in nonce):
        raise ValueError(nonce)
    return nonce


def _decode(text: str | bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
