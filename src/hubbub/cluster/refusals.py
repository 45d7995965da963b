"""What NATS servers refuse, in words: whom they do not let in, and what an account may not do.

    a login that failed    -> `refusal`: which server, who came, what it said, what to do
    a subject that is kept -> `Denied`: once which right is missing and what to grant; as long as
                              servers say so it is trouble

The connections ask, `hubbub doctor` too. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import ParseResult, urlsplit

from hubbub.config.cluster import Cluster as Settings
from hubbub.errors import without_user

TO_DO: Final = "What to do: "
SPOKEN: Final = "nats: "  # before what a server said, as nats-py has it
# Of whom a server has let in before; what it said is the other one.
FAILED: Final = "authorization failed"
VIOLATION: Final = "Authorization Violation"
# As nats-py says it, all in small letters.
DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
LASTS_SECONDS: Final = 30.0  # what is refused is tried more often: a new stream every 12 s
MOST: Final = 100  # rights, and troubles, that are remembered: there are some twenty

# What an account must grant, `guide/cluster.md` has it; without copies the first ones.
LIVE: Final = 2
PUBLISH: Final = (
    "{group}.all", "{group}.to.*", "{group}.log.*", "$JS.API.INFO", "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*",
    "$JS.API.STREAM.PURGE.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>",
)  # fmt: skip
SUBSCRIBE: Final = ("{group}.all", "{group}.to.{name}", "_INBOX.>")


class Refusal(Exception):
    """A server said no to this node, or what it is to be shown cannot be used."""


def refusal(settings: Settings, where: ParseResult | None, error: BaseException) -> Refusal:
    """`where`: the server, None if it is not known."""
    if isinstance(error, OSError) and error.filename is not None:
        return Refusal(
            f"cluster.credentials {error.filename}: {error.strerror}, and NATS lets nobody in "
            f"without. {TO_DO}put the file there as `nsc` writes it, and so that the hub's user "
            "may read it"
        )
    said = str(error) or type(error).__name__
    said = said.removeprefix(SPOKEN).strip("'")
    if said == FAILED:
        said = VIOLATION
    at = f" at {without_user(where.geturl())}" if where is not None else ""
    shown, mend = _shown(settings, where)
    return Refusal(f"NATS{at} refuses this node, {shown}: {said}. {_advice(said, mend)}")


def _shown(settings: Settings, where: ParseResult | None) -> tuple[str, str]:
    """As who it comes, and what is to be mended if that is wrong."""
    if settings.credentials:
        file = settings.credentials
        return f"with the credentials of {file}", "renew that file, or its keys at the server"
    user, password = (where.username, where.password) if where is not None else (None, None)
    if user is None:
        user, password = login(settings)
    if user is not None and password is None:
        return "with the token of cluster.url", "mend it there, or at the server"
    if user is not None:
        return f"as user {user!r}", "mend user and password in cluster.url, or at the server"
    if settings.certificate:
        file = settings.certificate
        return f"with the certificate {file}", "have it one that the server knows"
    return "without a user", "name one: nats://USER:PASSWORD@HOST:PORT, or cluster.credentials"


def _advice(said: str, mend: str) -> str:
    low = said.lower()
    if "certificate_verify_failed" in low:
        return (f"{TO_DO}cluster.ca is to be the authority of that server's certificate, and "
                "the host of cluster.url one that it names")  # fmt: skip
    if "ssl" in low or "certificate" in low:
        return (f"{TO_DO}the server wants a certificate that it knows, cluster.certificate "
                "and cluster.key, or speaks no TLS there")  # fmt: skip
    if "authoriz" in low or "authentic" in low or "credential" in low:
        return f"{TO_DO}{mend}"
    return f"{TO_DO}see the server's log; if it does not know who this is, {mend}"


def login(settings: Settings) -> tuple[str | None, str | None]:
    """User and password that all URLs have; servers that are heard of later are shown them too."""
    try:
        places = [urlsplit(whole(url)) for url in settings.url]
    except ValueError:  # nats-py says which is none
        return None, None
    found = {(where.username, where.password) for where in places}
    return found.pop() if len(found) == 1 else (None, None)


def whole(url: str) -> str:
    """As nats-py takes it: `HOST:PORT` is one of NATS."""
    return url if "://" in url else f"nats://{url}"


class Denied:
    """`lost_at`: when each right was last refused, by what is to be granted."""

    def __init__(self, settings: Settings, now: Callable[[], float]) -> None:
        self.settings = settings
        self._now = now
        self._last: dict[tuple[str, str], float] = {}

    def hears(self, text: str) -> str | None:
        """None if a server said something else; a line to be logged, "" of what was said before."""
        found = DENIED.search(text)
        if found is None:
            return None
        right = "publish" if found[1] == "publish" else "subscribe"
        key = right, self._grant(right, found[2])
        known = self._lasts(key)
        if len(self._last) >= MOST:
            self._last.clear()
        self._last[key] = self._now()
        if known:
            return ""
        return f"{self._says(key)}: this node may not {right} {found[2]} (guide/cluster.md)"

    def _grant(self, right: str, subject: str) -> str:
        """The subject to be granted; servers say it in small letters here."""
        for grant in PUBLISH if right == "publish" else SUBSCRIBE:
            wanted = grant.format(group=self.settings.group, name=self.settings.name)
            if matches(wanted.lower(), subject.lower()):
                return wanted
        return subject

    def _lasts(self, key: tuple[str, str]) -> bool:
        return key in self._last and self._now() - self._last[key] <= LASTS_SECONDS

    def _says(self, *keys: tuple[str, str]) -> str:
        rights = ", ".join(f'{right}: "{subject}"' for right, subject in keys)
        return f"the NATS account must grant {rights}"

    def unheard(self) -> list[str]:
        """What may not be subscribed to: servers do not say when it is granted, it is to be tried
        again.
        """
        return [subject for right, subject in self._last
                if right == "subscribe" and self._lasts((right, subject))]  # fmt: skip

    def trouble(self) -> str:
        keys = sorted(key for key in self._last if self._lasts(key))
        return self._says(*keys) if keys else ""


def matches(wanted: str, subject: str) -> bool:
    """Whether a subject of NATS, which may have `*` and `>`, has that one."""
    words, others = wanted.split("."), subject.split(".")
    for at, word in enumerate(words):
        if word == ">":
            return len(others) > at
        if at >= len(others) or word not in ("*", others[at]):
            return False
    return len(words) == len(others)
