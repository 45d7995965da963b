"""Asks a running hub over HTTP, and waits for one that is away.

A hub that restarts refuses connections for a second or two: what was asked is asked again until
`reconnectSeconds` are over. Everything asked here may be repeated: rows never change, and what is
published carries its batch. Used by the source (`remote`) and the sink; decodes nothing.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from hubbub.errors import HubbubError, JournalError, Refused, SettingError
from hubbub.spark.options import Access

FIRST_PATIENCE: Final = 5.0  # for a hub that never answered: likely its address is wrong
PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_AWAY: Final = (502, 503, 504)


class AwayError(JournalError):
    """The hub did not answer in time."""


class TooLargeError(Refused):
    """A body is larger than the hub takes; in parts it may take it."""


class Answer(NamedTuple):
    """What a hub said: headers by their lower-case names."""

    headers: Mapping[str, str]
    body: bytes


class Hub:
    """One connection to the hub at `url`, which may have USER:PASSWORD in it.

    `known`: somebody has reached it before, so it is worth waiting for.
    """

    def __init__(self, url: str, access: Access, known: bool = False) -> None:
        parts = urlsplit(url)
        self.name = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._patience, self._silence = access.patience, access.silence
        self._known = known
        self._host, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._query = parts.query  # which process is meant, of several
        self._tls = _context(access.ca) if parts.scheme == "https" else None
        self._headers = {}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        elif parts.username is not None:
            shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + b64encode(shown.encode()).decode()
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer, with status 200.

        Raises SettingError if the hub does not let us in, Refused if it does not take what was
        sent, AwayError if it does not answer in time.
        """
        begun, tries = time.monotonic(), 0
        while True:
            try:
                return self._once(method, path, body, {**self._headers, **(headers or {})})
            except ssl.SSLCertVerificationError as error:
                raise SettingError(
                    f"{self.name}: {error.verify_message}: name its authority with caFile"
                ) from None
            except (OSError, http.client.HTTPException, _Away) as error:
                self._drop()
                patience = self._patience if self._known else min(FIRST_PATIENCE, self._patience)
                if time.monotonic() - begun >= patience:
                    raise self._gone(error, patience) from error
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._connection is None:
            self._connection = self._open()
        if self._query:
            path += f"{'&' if '?' in path else '?'}{self._query}"
        self._connection.request(method, self._path + path, body or None, dict(headers))
        response = self._connection.getresponse()
        data = response.read()
        if response.status in _AWAY:
            raise _Away(f"it answers {response.status}")
        self._known = True
        if response.status != 200:
            raise self._refusal(response.status, data)
        return Answer({name.lower(): value for name, value in response.getheaders()}, data)

    def _open(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, timeout=self._silence, context=self._tls)
        return http.client.HTTPConnection(self._host, timeout=self._silence)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _gone(self, error: Exception, patience: float) -> JournalError:
        if isinstance(error, _Full):
            return JournalError(f"{self.name}: {error}")
        return AwayError(
            f"the hub at {self.name} did not answer for {patience:g} s ({error}): start it, or "
            "correct the url; a stream goes on from its checkpoint when it is started again"
        )

    def _refusal(self, status: int, data: bytes) -> HubbubError:
        text = _error_in(data)
        if status == 401:
            return SettingError(
                f"the hub at {self.name} does not let us in: {text}. Set the option token (or "
                "tokenFile) to its api.token; without one, name a user in the url"
            )
        if status in (403, 404):
            return SettingError(f"the hub at {self.name} says {status}: {text}")
        if status == 507:
            return _Full(text)
        refused = TooLargeError if status == 413 else Refused
        return refused(f"the hub at {self.name} says {status}: {text}")


class _Away(HubbubError):
    """The hub cannot answer now; soon it may."""


class _Full(_Away):
    """A queue is full; soon it may not be."""


def _context(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise SettingError(f"caFile: cannot use {ca}: {error}") from None


def _error_in(data: bytes) -> str:
    """The `error` of a JSON answer, else what it says."""
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace").strip()
