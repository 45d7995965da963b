"""What every command says when nothing answers where it looks for a hub."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror
from urllib.parse import urlsplit

from hubbub.errors import HubbubError

_NOBODY = (ConnectionRefusedError, FileNotFoundError, gaierror, TimeoutError)
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
    parts = urlsplit(url)
    where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return HubbubError(
        f"no hub answers at {where} ({reason}); start one with `hubbub serve` or say --url"
    )
