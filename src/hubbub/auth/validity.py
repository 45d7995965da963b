"""From when until when certificates and revocation lists are good.

Of a file in PEM that has several, that of the one which ends first; of authorities each by itself,
for an old one may stay beside its successor and hide when that ends. Called by the listener, which
says in time that one has to be renewed, and by `hubbub doctor`. Python tells the dates of a peer's
certificate only, so the few bytes are looked for here:

    Certificate { TBSCertificate { [0] version, serial, algorithm, issuer, { from, until }
    CertificateList { TBSCertList { version, algorithm, issuer, this update, next update

(RFC 5280, 4.1 and 5.1). A file that cannot be understood has no dates: OpenSSL has the last word.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

SOON: Final = timedelta(days=14)  # or a fourth of its time, of one that is made for a week
_DAY: Final = timedelta(days=1)
# No `-` in between: of a file with very many beginnings each would look for its end in all of it.
_PEM: Final = re.compile(r"-----BEGIN (CERTIFICATE|X509 CRL)-----([^-]+)-----END \1-----")
_LIST: Final = "X509 CRL"
# The names by which OpenSSL finds authorities in a directory; it reads no others.
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
CERTIFICATES: Final = "clients refuse it; renew it and send SIGHUP"
AUTHORITIES: Final = (
    "clients with a certificate of that authority are refused; put its successor there, take it "
    "out, and send SIGHUP"
)
LISTS: Final = (
    "who has a certificate of that authority is refused; fetch the new list and send SIGHUP"
)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # two digits of the year; all others here have four
_BEFORE_VALIDITY: Final = 3  # serial, algorithm, issuer
_BEFORE_UPDATE: Final = 2  # algorithm, issuer
_INTEGER: Final = 0x02
_TIMES: Final = (0x17, 0x18)
_LONG: Final = 0x80
_TURN: Final = 50  # years below are of this century (RFC 5280, 4.1.2.5.1)


class Validity(NamedTuple):
    """`means`: what it means that it is over, and what to do."""

    begins: datetime
    ends: datetime
    means: str = CERTIFICATES

    def complaint(self, now: datetime) -> str:
        """What is wrong with it, or soon will be; "" if nothing is."""
        until = self.ends.isoformat(" ", "seconds")
        if now >= self.ends:
            return f"is over since {until}: {self.means}"
        if now < self.begins:
            since = self.begins.isoformat(" ", "seconds")
            return f"is not good before {since}: is this clock right?"
        left = self.ends - now
        if left >= min(SOON, (self.ends - self.begins) / 4):
            return ""
        days = f"{left // _DAY} days" if left >= 2 * _DAY else f"{left // timedelta(hours=1)} hours"
        return f"is over in {days}, at {until}: renew it, and send SIGHUP"


def validity(file: str) -> Validity | None:
    """Of all that is in it together; None if there is nothing that says when."""
    try:
        known = [one for one in _found(Path(file)) if one is not None]
    except (OSError, ValueError, IndexError):
        return None
    if not known:
        return None
    begins, ends = max(one.begins for one in known), min(one.ends for one in known)
    return Validity(begins, ends, known[0].means)


def authorities(place: str) -> list[tuple[str, Validity]]:
    """Each of a file or a directory, by a name for people; those that nobody can read are none."""
    known: list[tuple[str, Validity]] = []
    for file in _files(Path(place)):
        try:
            found = _found(file)
        except (OSError, ValueError, IndexError):
            continue
        for number, one in enumerate(found, 1):
            if one is not None and one.means is CERTIFICATES:
                which = f" ({number} of {len(found)} in it)" if len(found) > 1 else ""
                known.append((f"{str(file)!r}{which}", one._replace(means=AUTHORITIES)))
    return known


def _files(place: Path) -> list[Path]:
    try:
        return sorted(one for one in place.iterdir() if _HASHED.fullmatch(one.name))
    except NotADirectoryError:
        return [place]
    except OSError:
        return []


def _found(file: Path) -> list[Validity | None]:
    text = file.read_text("ascii", "replace")
    return [_READ[kind](b64decode(body)) for kind, body in _PEM.findall(text)]


def _of_list(der: bytes) -> Validity | None:
    """None if the list does not say when the next one comes: it is good for ever."""
    at, end = _behind(der, _INTEGER, _BEFORE_UPDATE)
    begins, at = _time(der, at)
    if at >= end or der[at] not in _TIMES:
        return None
    return Validity(begins, _time(der, at)[0], LISTS)


def _of_certificate(der: bytes) -> Validity | None:
    """ValueError or IndexError if it is none."""
    _, at, _ = _element(der, _behind(der, _VERSION, _BEFORE_VALIDITY)[0])
    begins, at = _time(der, at)
    return Validity(begins, _time(der, at)[0])


def _behind(der: bytes, version: int, count: int) -> tuple[int, int]:
    """Where what is signed goes on behind its version, if it says one, and so many elements more;
    and where it ends.
    """
    _, at, _ = _element(der, 0)
    _, at, end = _element(der, at)
    tag, _, behind = _element(der, at)
    if tag == version:
        at = behind
    for _ in range(count):
        _, _, at = _element(der, at)
    return at, end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Its tag, where its content begins, and where it ends."""
    tag, size, at = der[at], der[at + 1], at + 2
    if size >= _LONG:
        more = at + size - _LONG
        size, at = int.from_bytes(der[at:more], "big"), more
    return tag, at, at + size


def _time(der: bytes, at: int) -> tuple[datetime, int]:
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _TURN else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC), end


_READ: Final[dict[str, Callable[[bytes], Validity | None]]] = {
    _LIST: _of_list, "CERTIFICATE": _of_certificate,
}  # fmt: skip
