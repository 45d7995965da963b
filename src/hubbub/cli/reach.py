"""What every command says when nothing answers where it looks for a hub."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror
from typing import Final

from hubbub.errors import HubbubError, without_user

_NOBODY = (ConnectionRefusedError, FileNotFoundError, gaierror, TimeoutError, ssl.SSLError)
_UNKNOWN: Final = (
    "its authority has to be one that the system trusts, or in the file of --cafile"
)
_OTHER_NAME: Final = "ask it by a name that is in its certificate, or say --insecure"
_UNTRUSTED: Final = {  # by OpenSSL's X509_V_ERR_…
    9: "its certificate is not good yet: one of the two clocks is wrong",
    10: "renew its certificate where it runs (`hubbub doctor` there says until when one is good)",
    62: _OTHER_NAME, 64: _OTHER_NAME,
}  # fmt: skip
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """HubbubError with advice instead of the OSError of a connection that cannot be made."""
    try:
        yield
    except OSError as error:
        if isinstance(error, _NOBODY) or error.errno in _NO_WAY:
            raise no_hub(url, error) from None
        raise


def no_hub(url: str, reason: object) -> HubbubError:
    """The error to raise; what the URL says of user and password is not shown."""
    where = without_user(url)
    if isinstance(reason, ssl.SSLCertVerificationError):
        advice = _UNTRUSTED.get(getattr(reason, "verify_code", 0), _UNKNOWN)
        return HubbubError(f"{where} is not trusted ({reason.verify_message}): {advice}")
    if isinstance(reason, ssl.SSLError):
        return HubbubError(
            f"no TLS with {where} ({(reason.reason or str(reason)).lower().replace('_', ' ')}): a "
            "hub has none without a certificate, and it may ask for one of ours"
        )
    if isinstance(reason, OSError) and reason.errno:  # asyncio's text repeats the address
        reason = os.strerror(reason.errno) if reason.errno > 0 else reason.strerror
    return HubbubError(
        f"no hub answers at {where} ({reason}); start one with `hubbub serve` or say --url"
    )
