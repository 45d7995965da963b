"""Settings of how a listener knows who comes: certificates, tokens.

Part of `settings`, which has all others; declared here because `auth` reads them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hubbub.errors import SettingError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def because(reason: str) -> Any:
    """The reason of a setting, which the manual prints."""
    return Meta(description=reason)


def networks(texts: Iterable[str]) -> list[Network]:
    """Addresses and networks as settings name them; SettingError if one is neither."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise SettingError(
            f"proxies: {error}: expected addresses or networks, as 192.0.2.7 or 10.0.0.0/24"
        ) from None


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on the same port as everything else: the first byte of a connection tells."""

    certificate: Annotated[
        str, because("the hub's own, with its chain, in a PEM file; without one there is no TLS")
    ] = ""
    key: Annotated[
        str, because("its private key without a pass phrase; empty means in the same file")
    ] = ""
    only: Annotated[
        bool, because("refuse connections that do not use TLS, so that no password is in clear")
    ] = False
    chain: Annotated[
        str,
        because(
            "a file or directory of authorities from which the chain of the certificate is "
            "completed, if its own file does not have it whole"
        ),
    ] = ""
    client_ca: Annotated[
        str, because("a file or directory of authorities; certificates of clients are theirs")
    ] = ""
    require_certificate: Annotated[
        bool, because("refuse clients that have no certificate of these authorities")
    ] = False
    identity: Annotated[
        Literal["none", "common_name", "subject"],
        because(
            "who has a certificate needs no password, and its user name is what that says: "
            '"common_name", or the whole "subject"'
        ),
    ] = "none"
    crl: Annotated[
        str, because("a PEM file of revocation lists, one of each of these authorities")
    ] = ""
    psk_file: Annotated[
        str,
        because(
            "keys that clients share with the hub instead of certificates, as `IDENTITY:HEX` "
            "lines; read again by SIGHUP. Needs Python 3.13. The identity is the user name if "
            "`identity` is not none"
        ),
    ] = ""
    psk_hint: Annotated[
        str, because("what clients of 1.2 are told, so that they choose a key of theirs")
    ] = ""
    version: Annotated[
        Literal["1.2", "1.3"], because("the oldest version; 1.2 is what many devices have")
    ] = "1.2"
    ciphers: Annotated[
        str, because("OpenSSL's list for 1.2, for those who must; empty takes OpenSSL's own")
    ] = ""

    def complaint(self) -> str:
        """What does not fit together, "" if all does."""
        given = [f for f in self.__struct_fields__ if getattr(self, f) != getattr(Tls(), f)]
        if not self.offered:
            return f"tls.{given[0]} needs tls.certificate" if given else ""
        needs = {"key": "certificate", "chain": "certificate", "client_ca": "certificate"}
        needs |= dict.fromkeys(("require_certificate", "crl"), "client_ca")
        if not self.psk_file:
            needs |= {"identity": "client_ca", "psk_hint": "psk_file"}
        missing = ((name, needs[name]) for name in given if name in needs)
        return next((f"tls.{a} needs tls.{b}" for a, b in missing if not getattr(self, b)), "")

    @property
    def offered(self) -> bool:
        """Whether there is TLS."""
        return bool(self.certificate or self.psk_file)

    @property
    def names(self) -> bool:
        """Whether it says who a client is that has a key."""
        return bool(self.psk_file) and self.identity != "none"


class Jwt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that others sign (JWT): who shows one needs no password here."""

    keys: Annotated[
        str,
        because(
            "a file with the keys of who signs: a JWKS, or public keys in PEM. Read again by "
            "SIGHUP; empty takes no tokens"
        ),
    ] = ""
    algorithms: Annotated[
        tuple[
            Literal[
                "RS256",
                "RS384",
                "RS512",
                "PS256",
                "PS384",
                "PS512",
                "ES256",
                "ES384",
                "ES512",
                "EdDSA",
                "HS256",
                "HS384",
                "HS512",
            ],
            ...,
        ],
        because("the only ones taken, each with keys of its own kind; HS ones need a JWKS"),
    ] = ("RS256", "ES256", "EdDSA")
    issuer: Annotated[str, because("what the claim `iss` must be; empty does not look")] = ""
    audience: Annotated[
        str,
        because("what the claim `aud` must have; empty refuses tokens that are for somebody"),
    ] = ""
    user_claim: Annotated[str, because("the claim that is the user name here")] = "sub"
    acl_claim: Annotated[
        str,
        because(
            'the claim that says what its user may, as lines of acl_file do: ["readwrite a/#", '
            '"deny a/safe"]; a token without it is refused then. Empty leaves it to acl_file'
        ),
    ] = ""
    leeway_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=300)],
        because("what clocks may differ where `exp` and `nbf` are looked at"),
    ] = 5.0

    def complaint(self) -> str:
        """What does not fit together, "" if all does."""
        if not self.keys and self != Jwt():
            unused = [f for f in self.__struct_fields__ if getattr(self, f) != getattr(Jwt(), f)]
            return f"jwt.{unused[0]} needs jwt.keys"
        if self.keys and not self.algorithms:
            return "jwt.algorithms is empty: expected those that the keys are for"
        return "" if self.user_claim else "jwt.user_claim is empty: expected the name of a claim"
