"""TLS: a listener's context from its settings, and who a client's certificate says it is.

Called by the listener, when it opens and when the files are to be read again (a renewed
certificate). Nothing here touches a socket.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from hubbub.auth.keys import keyed_context
from hubbub.config.settings import Tls
from hubbub.config.sought import reason
from hubbub.errors import SettingError

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

# Short names of what a subject is made of (RFC 4514, 3, and what OpenSSL prints).
_SHORT: Final = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "streetAddress": "street",
    "domainComponent": "DC", "userId": "UID",
}  # fmt: skip

Subject = Iterable[Iterable[tuple[str, str]]]


def context(tls: Tls) -> ssl.SSLContext:
    """The server's context; SettingError names the file or setting that cannot be used."""
    if tls.psk_file:
        found: ssl.SSLContext = keyed_context(tls.psk_file, tls.psk_hint)
    else:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = _VERSIONS[tls.version]
    if tls.certificate:
        _load_own(found, tls)
        if tls.psk_file and tls.version == "1.2":
            # In 1.3 OpenSSL takes a cipher that keys do not fit wherever there is a certificate.
            found.maximum_version = ssl.TLSVersion.TLSv1_2
    if tls.chain:
        take = _folder(found) if Path(tls.chain).is_dir() else found.load_verify_locations
        _load("tls.chain", tls.chain, take)
    if tls.ciphers:
        _load("tls.ciphers", tls.ciphers, found.set_ciphers)
    if tls.client_ca:
        take = _folder(found) if Path(tls.client_ca).is_dir() else found.load_verify_locations
        _load("tls.client_ca", tls.client_ca, take)
        found.verify_mode = ssl.CERT_REQUIRED if tls.require_certificate else ssl.CERT_OPTIONAL
    if tls.crl:
        _load("tls.crl", tls.crl, found.load_verify_locations)
        found.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return found


def _load_own(found: ssl.SSLContext, tls: Tls) -> None:
    key = tls.key or tls.certificate
    load = partial(found.load_cert_chain, keyfile=key, password=_no_password)
    try:
        _load("tls.certificate", tls.certificate, load)
    except SettingError as error:
        if complaint := _lacking(tls) or _not_its_key(tls, error):
            raise SettingError(complaint) from None
        raise


def _lacking(tls: Tls) -> str:
    """Which of the two files is not what it is to be: OpenSSL says "PEM lib" and not of which."""
    for setting, file, mark, what in (
        ("tls.certificate", tls.certificate, b"BEGIN CERTIFICATE", "certificate"),
        ("tls.key", tls.key or tls.certificate, b"PRIVATE KEY", "private key"),
    ):
        try:
            text = Path(file).read_bytes()
        except OSError as error:
            return f"{setting} = {file!r} cannot be used: {reason(file, error)}"
        if mark not in text and setting == "tls.key" and not tls.key:
            return (
                f"tls.certificate = {file!r} has no private key in it: name the file of the key "
                "with tls.key (keyfile in mosquitto.conf)"
            )
        if mark not in text:
            return f"{setting} = {file!r} has no {what} in it"
    return ""


def _not_its_key(tls: Tls, error: SettingError) -> str:
    """OpenSSL names one of two files: which is of yesterday it cannot know."""
    if "KEY_VALUES_MISMATCH" not in str(error):
        return ""
    return (
        f"tls.certificate = {tls.certificate!r} cannot be used: the key in "
        f"{tls.key or tls.certificate!r} is not that of this certificate: put both of the same "
        "renewal there (the hub's own certificate comes first in its file, then its chain)"
    )


def _folder(found: ssl.SSLContext) -> Callable[[str], None]:
    return lambda path: found.load_verify_locations(capath=path)


def _load(setting: str, value: str, load: Callable[[str], None]) -> None:
    try:
        load(value)
    except (OSError, ssl.SSLError) as error:  # an SSLError without text says only "[X509] PEM lib"
        why = error.strerror or str(error)
        raise SettingError(f"{setting} = {value!r} cannot be used: {why}") from None


def _no_password() -> bytes:
    """Instead of OpenSSL's prompt on the terminal, where nobody may be."""
    raise ssl.SSLError("the key is encrypted; store it without a pass phrase")


def identity(kind: str, certificate: dict[str, Any] | None) -> str:
    """The name of the client in its certificate, as the setting `tls.identity` wants it.

    "" if there is no certificate, or not that name in it.
    """
    subject: Subject = (certificate or {}).get("subject", ())
    names = [pair for part in subject for pair in part]
    if kind == "common_name":
        return next((value for name, value in names if name == "commonName"), "")
    return ",".join(f"{_SHORT.get(n, n)}={_escaped(v)}" for n, v in reversed(names))


def _escaped(value: str) -> str:
    """A value as RFC 4514, 2.4 writes it."""
    text = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text
