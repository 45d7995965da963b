"""Whose web pages may use a listener, and by which names: browsers carry strangers to us. No I/O.

Any page that a user of this machine or network looks at can make the browser send requests here.
What the browser adds tells on it, and a page cannot change that:

    Origin, Sec-Fetch-Site, Referer   which page asks; one of another site is answered 403
    Host                              which name it used. Whoever owns a name can let it mean our
                                      address (DNS rebinding): the page is then of that same site.
                                      A name that nobody gave us is answered 421

The listener asks about the first request of each connection; who speaks HTTP after that, about
every one. Programs that are no browsers send none of it but Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from hubbub.wire.http import response

PLAIN_TEXT: Final = (
    ("content-type", "text/plain; charset=utf-8"),
    ("x-content-type-options", "nosniff"),
)
_OWN: Final = ("same-origin", "none")  # its own page, or the user who typed the address
_KNOWN_HOSTS: Final = 100  # as they are written, with their ports: a listener has a few

Headers = Mapping[str, str]
"""Names in lower case."""


class Refusal(NamedTuple):
    """Why a request is not answered, for who sent it."""

    status: int
    text: str

    def response(self) -> bytes:
        return response(self.status, self.text.encode() + b"\n", PLAIN_TEXT, close=True)


def _not_at_all(host: str) -> None:
    """Nobody wants to know."""


class Site:
    """What one listener is called, and whose pages may use it beside its own.

    `origins` are sites like "https://app.example". `hosts`: what it is called beside addresses and
    `localhost`, ".example.org" means all names below; None asks for no name. `misdirected` is
    told each name that was refused.
    """

    def __init__(
        self,
        origins: Iterable[str] = (),
        hosts: Iterable[str] | None = None,
        misdirected: Callable[[str], None] = _not_at_all,
    ) -> None:
        self._origins = frozenset(origins)
        self._asks = hosts is not None
        named = {host.lower().removesuffix(".") for host in hosts or ()}
        named |= {host_of(origin) for origin in self._origins}
        self._hosts = named
        self._below = (".localhost", *(host for host in named if host.startswith(".")))
        self._misdirected = misdirected
        self._known = {""}

    def refusal(self, headers: Headers, changes: bool = False) -> Refusal | None:
        """Why a request is refused, None if it is not.

        What `changes` something is taken from a browser only if that says which page asks:
        without TLS it says nothing when it loads a picture, say.
        """
        host = headers.get("host", "")
        if self._asks and host not in self._known and not self._is_ours(host):
            self._misdirected(host)
            return Refusal(
                421, f"this hub is not called {host_of(host)}: its setting `hosts` does not name it"
            )
        page = headers.get("origin") or _origin_of(headers.get("referer", ""))
        if page and page in self._origins:
            return None
        relation = headers.get("sec-fetch-site", "")
        if relation:  # it knows better than the names do, behind a proxy that has another
            elsewhere = relation not in _OWN
        else:
            elsewhere = page != "" and (page == "null" or page.partition("://")[2] != host)
        if elsewhere:
            asks = page or "another site"
            return Refusal(403, f"pages of {asks} may not use this hub: see its setting `origins`")
        if changes and not relation and not page and is_browser(headers):
            return Refusal(403, "a browser that does not say which page asks may change nothing")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host_of(host)
        ours = name == "localhost" or name in self._hosts or name.endswith(self._below)
        if not ours and not _is_address(name):
            return False
        if len(self._known) < _KNOWN_HOSTS:
            self._known.add(host)
        return True


def is_browser(headers: Headers) -> bool:
    """Whether a browser says that it is one, as all do: it may run what it is answered."""
    browser = headers.get("user-agent", "").startswith("Mozilla/")
    return browser or "sec-fetch-site" in headers or "origin" in headers


def host_of(place: str) -> str:
    """The host of an origin or of a Host header: lower case, without port and final dot."""
    place = place.rpartition("://")[2].lower()
    address, bracket, rest = place.removeprefix("[").partition("]")
    if bracket and rest[:1] in ("", ":"):
        return address
    return place.partition(":")[0].removesuffix(".")


def _origin_of(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    return scheme + separator + rest.partition("/")[0] if separator else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
