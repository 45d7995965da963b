"""From when until when a certificate is good: of a file in PEM, that of the one which ends first.

Called by the listener, which says in time that one has to be renewed, and by `hubbub doctor`.
Python tells the dates of a peer's certificate only, so the few bytes are looked for here:

    Certificate { TBSCertificate { [0] version, serial, algorithm, issuer, validity { from, until }

(RFC 5280, 4.1). A file that cannot be understood has no dates: OpenSSL has the last word about it.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

SOON: Final = timedelta(days=14)  # or a fourth of its time, of one that is made for a week
_DAY: Final = timedelta(days=1)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # two digits of the year; all others here have four
_BEFORE_VALIDITY: Final = 3  # serial, algorithm, issuer
_LONG: Final = 0x80
_TURN: Final = 50  # years below are of this century (RFC 5280, 4.1.2.5.1)


class Validity(NamedTuple):
    begins: datetime
    ends: datetime

    def complaint(self, now: datetime) -> str:
        """What is wrong with it, or soon will be; "" if nothing is."""
        until = self.ends.isoformat(" ", "seconds")
        if now >= self.ends:
            return f"is over since {until}: clients refuse it; renew it and send SIGHUP"
        if now < self.begins:
            since = self.begins.isoformat(" ", "seconds")
            return f"is not good before {since}: clients refuse it; is this clock right?"
        left = self.ends - now
        if left >= min(SOON, (self.ends - self.begins) / 4):
            return ""
        days = f"{left // _DAY} days" if left >= 2 * _DAY else f"{left // timedelta(hours=1)} hours"
        return f"is over in {days}, at {until}: renew it and send SIGHUP"


def validity(file: str) -> Validity | None:
    """Of all certificates in it together; None if there is none that says when."""
    try:
        text = Path(file).read_text("ascii", "replace")
        found = [_dates(ssl.PEM_cert_to_DER_cert(one)) for one in _PEM.findall(text)]
    except (OSError, ValueError, IndexError):
        return None
    if not found:
        return None
    return Validity(max(one.begins for one in found), min(one.ends for one in found))


def _dates(der: bytes) -> Validity:
    """ValueError or IndexError if it is no certificate."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in range(_BEFORE_VALIDITY):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    begins, at = _time(der, at)
    return Validity(begins, _time(der, at)[0])


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
