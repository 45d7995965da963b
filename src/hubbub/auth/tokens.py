"""Tokens that somebody else signs (JWT, RFC 7519): who is it, until when, and what may it do.

    eyJ…  .  eyJ…  .  SIGNATURE          the key:        its `kid` or, without one, of its kind
    header   claims                      the algorithm:  one of the settings', for that key's kind
                                         the claims:     exp, nbf, iss, aud, user, permissions

The keys come from a file, and nothing in a token ever says where a key is (`jku`, `x5u` and `jwk`
are not looked at). Each key has its kind, and each algorithm the kind of key it is for, so a
public key is never taken for the secret of an HMAC. `none` is no algorithm here.

Checking is quick (0.1 ms), so it is done on the loop. The gate calls it, and imports it only where
there are tokens: PyJWT is not part of every hub. No I/O but `read`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from hubbub.auth.acl import rules_of
from hubbub.config.identity import Jwt
from hubbub.config.sought import reason
from hubbub.core.limits import TOKEN_BYTES, TOKEN_KEYS, TOKEN_LINES
from hubbub.errors import SettingError

# The kind of key (RFC 7518, 6.1, and the curve) that an algorithm is for.
_KEYS: Final = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "OKP",
    "HS256": "oct", "HS384": "oct", "HS512": "oct",
}  # fmt: skip
_LEAST: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # bytes of a secret (RFC 7518, 3.2)
_RSA_BITS: Final = 2048  # RFC 7518, 3.3


class BadToken(Exception):
    """A token that lets nobody in; the text says why. `forged`: no key of ours made it."""

    def __init__(self, reason: str, forged: bool = False) -> None:
        super().__init__(reason)
        self.forged = forged


class Key(NamedTuple):
    """One key of the file. Equal if it is the same key under the same name."""

    name: str
    kind: str
    algorithm: str  # the only one that it is for, "" if its file does not say
    material: bytes  # what tells it from others
    usable: Any  # as PyJWT takes it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self[:4] == other[:4]

    def __hash__(self) -> int:
        return hash(self[:4])

    def fits(self, algorithm: str, name: str | None) -> bool:
        if _KEYS[algorithm] != self.kind or self.algorithm not in ("", algorithm):
            return False
        if len(self.material) < _LEAST.get(algorithm, 0):
            return False
        return name is None or self.name in ("", name)


class Token(NamedTuple):
    """What a token says: until when (seconds since 1970), and the lines of what its user may.

    `lines` is None where the listener does not go by them; `key` made it, None if another process
    has seen that.
    """

    user: str
    expires: float
    lines: tuple[str, ...] | None
    key: Key | None


class Tokens:
    """The keys of one file, and what the settings ask of tokens.

    `read` again when the file changed; SettingError leaves the old keys.
    """

    def __init__(self, settings: Jwt) -> None:
        self.file = Path(settings.keys)
        self._settings = settings
        self.keys: list[Key] = []
        self.read()

    def read(self) -> None:
        try:
            text = self.file.read_text("utf-8")
        except OSError as error:
            why = reason(self.file, error)
            raise SettingError(f"jwt.keys: cannot read {self.file}: {why}") from None
        except UnicodeDecodeError:
            raise SettingError(f"jwt.keys: {self.file} is neither a JWKS nor PEM") from None
        keys = self._of_set(text) if text.lstrip().startswith("{") else self._of_pem(text)
        wanted = {_KEYS[one] for one in self._settings.algorithms}
        self._refuse(len(keys) > TOKEN_KEYS, f"has more than {TOKEN_KEYS} keys")
        self._refuse(
            not any(one.kind in wanted for one in keys),
            f"has no key for {', '.join(self._settings.algorithms)} (jwt.algorithms)",
        )
        self.keys = keys

    def check(self, secret: bytes) -> Token:
        """What a token says that is good now; BadToken if it is not."""
        if len(secret) > TOKEN_BYTES:
            raise BadToken(f"a token of {len(secret)} bytes, and {TOKEN_BYTES} are the most")
        key, claims = self._verified(secret)
        token = self._read(claims, key)
        self._judge(claims, token)
        return token

    def still(self, token: Token) -> bool:
        """Whether the key that made it is still one of ours, and its time has not come."""
        return (token.key is None or token.key in self.keys) and not self._over(token)

    # Who made it

    def _verified(self, secret: bytes) -> tuple[Key, dict[str, Any]]:
        """The key that signed it, and its claims."""
        algorithm, name = self._header(secret)
        keys = [key for key in self.keys if key.fits(algorithm, name)]
        for key in keys:
            try:
                signed = jwt.PyJWS().decode(secret, key.usable, algorithms=[algorithm])
                claims = json.loads(signed)
            except jwt.InvalidSignatureError:
                continue
            except _UNREADABLE:
                raise BadToken("its claims are not JSON") from None
            except jwt.PyJWTError as error:
                raise BadToken(f"not a token: {error}") from None
            if not isinstance(claims, dict):
                raise BadToken("its claims are no JSON object")
            return key, claims
        named = f" of the name {name[:40]!r}" if name is not None else ""
        raise BadToken(
            f"no key here{named} is for {algorithm}" if not keys else "its signature is wrong",
            forged=True,
        )

    def _header(self, secret: bytes) -> tuple[str, str | None]:
        """The algorithm, which is one of the settings', and the name of the key if it says one."""
        try:
            header = jwt.get_unverified_header(secret)
        except _UNREADABLE:
            raise BadToken("not a token: its header is not JSON", forged=True) from None
        except jwt.PyJWTError as error:
            raise BadToken(f"not a token: {error}", forged=True) from None
        algorithm, name = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise BadToken(f"its algorithm {algorithm!r:.40} is not taken here", forged=True)
        if "crit" in header:  # RFC 7515, 4.1.11: what is not understood must be refused
            raise BadToken("it has critical headers", forged=True)
        return algorithm, name if isinstance(name, str) else None

    # What it says

    def _read(self, claims: dict[str, Any], key: Key) -> Token:
        wanted = self._settings
        user = claims.get(wanted.user_claim)
        if not isinstance(user, str) or not user or not user.isprintable():
            raise BadToken(f"its claim {wanted.user_claim!r} is no user name")
        lines = self._lines(claims) if wanted.acl_claim else None
        return Token(user, _number(claims, "exp"), lines, key)

    def _lines(self, claims: dict[str, Any]) -> tuple[str, ...]:
        name = self._settings.acl_claim
        lines = claims.get(name)
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise BadToken(f"its claim {name!r} is no list of lines")
        if len(lines) > TOKEN_LINES:
            raise BadToken(f"its claim {name!r} has more than {TOKEN_LINES} lines")
        try:
            rules_of(tuple(lines))
        except SettingError as error:
            raise BadToken(str(error)) from None
        return tuple(lines)

    def _judge(self, claims: dict[str, Any], token: Token) -> None:
        wanted, now = self._settings, time.time()
        if self._over(token):
            raise BadToken(f"the token of {token.user!r} has expired")
        if "nbf" in claims and _number(claims, "nbf") > now + wanted.leeway_seconds:
            raise BadToken(f"the token of {token.user!r} is not valid yet")
        if wanted.issuer and claims.get("iss") != wanted.issuer:
            raise BadToken(f"its issuer (iss) is not {wanted.issuer!r}")
        meant = claims.get("aud", [])
        meant = meant if isinstance(meant, list) else [meant]
        if wanted.audience and wanted.audience not in meant:
            raise BadToken(f"it is not for {wanted.audience!r} (aud)")
        if meant and not wanted.audience:  # RFC 7519, 4.1.3
            raise BadToken("it is for somebody (aud), and jwt.audience does not say who this is")

    def _over(self, token: Token) -> bool:
        return token.expires + self._settings.leeway_seconds <= time.time()

    # The file

    def _of_set(self, text: str) -> list[Key]:
        """A JWKS (RFC 7517, 5), or one JWK. Keys of unknown kinds are passed over."""
        try:
            found = json.loads(text)
        except _UNREADABLE:
            raise SettingError(f"jwt.keys: {self.file} is not JSON") from None
        members = found.get("keys", [found])
        self._refuse(not isinstance(members, list), "is no JWKS: `keys` is no list")
        return [
            self._of_member(one)
            for one in members
            if isinstance(one, dict) and one.get("kty") in _KINDS and one.get("use") != "enc"
        ]

    def _of_member(self, member: dict[str, Any]) -> Key:
        name, algorithm = member.get("kid", ""), member.get("alg", "")
        try:
            usable = jwt.PyJWK(member).key
        except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError) as error:
            raise SettingError(f"jwt.keys: {self.file}: key {name!r}: {error}") from None
        return self._made(usable, str(name), str(algorithm))

    def _of_pem(self, text: str) -> list[Key]:
        """Public keys one after the other."""
        end = "-----END PUBLIC KEY-----"
        blocks = [part[part.find("-----BEGIN") :] + end for part in text.split(end)[:-1]]
        self._refuse(not blocks, "is neither a JWKS nor has a PUBLIC KEY in PEM")
        try:
            return [self._made(load_pem_public_key(one.encode()), "", "") for one in blocks]
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise SettingError(f"jwt.keys: {self.file}: {error}") from None

    def _made(self, usable: Any, name: str, algorithm: str) -> Key:
        """A private key in a JWKS counts as its public one."""
        if isinstance(usable, bytes):
            return Key(name, "oct", algorithm, usable, usable)
        public = usable.public_key() if hasattr(usable, "public_key") else usable
        kind = _kind(public)
        self._refuse(not kind, f"has a {type(public).__name__}, which signs no tokens")
        bits = getattr(public, "key_size", _RSA_BITS)
        self._refuse(
            kind == "RSA" and bits < _RSA_BITS,
            f"has an RSA key of {bits} bits, and {_RSA_BITS} are the least",
        )
        material = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return Key(name, kind, algorithm, material, public)

    def _refuse(self, wrong: bool, complaint: str) -> None:
        if wrong:
            raise SettingError(f"jwt.keys: {self.file} {complaint}")


def _kind(public: object) -> str:
    """As `_KEYS` has it, "" for what signs no tokens."""
    if isinstance(public, EllipticCurvePublicKey):
        return _CURVES.get(public.curve.name, "")
    if isinstance(public, RSAPublicKey):
        return "RSA"
    return "OKP" if isinstance(public, Ed25519PublicKey | Ed448PublicKey) else ""


_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_KINDS: Final = ("RSA", "EC", "OKP", "oct")
_UNREADABLE: Final = (ValueError, RecursionError)  # of json; Unicode's errors are ValueErrors


def _number(claims: dict[str, Any], name: str) -> float:
    """A time of the claims (RFC 7519, 2: NumericDate)."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e11:
        raise BadToken(f"its claim {name!r} is no time in seconds since 1970")
    return float(value)
