"""Whether copies survive a loss of power of all NATS servers, as their monitoring ports say.

    cluster.monitor ── GET /varz ──→ server_name, jetstream.config.sync_always ──┐
    the stream ───────────────────→ which servers have it ───────────────────────┴──→ `Verdict`

What is acknowledged is on most of a stream's servers, and it may be any of them; a server that
does not sync each message may have lost what it acknowledged when power is back. So all of them
have to sync, and who is not asked, or answers with anything else, makes it unknown. Nothing hangs
on it: it is said. The runtime asks now and then. asyncio is here.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from hubbub.cluster.connecting import context_of
from hubbub.config.cluster import Cluster as Settings

SECONDS: Final = 2.0  # for the whole answer
MOST_BYTES: Final = 256 * 1024  # of one; that of a real server has three kilobytes
LONGEST: Final = 1 << 63  # nanoseconds: what Go has for them
NAME_CHARACTERS: Final = 100  # of a server's, which is shown
PAGE: Final = "/varz"

YES: Final = "yes"
NO: Final = "no"
UNKNOWN: Final = "unknown"


class Strange(Exception):
    """Not what a nats-server with JetStream says there."""


class Server(NamedTuple):
    """What one said. `sync`: "always", or how often; `trouble`: why it said nothing."""

    url: str
    name: str = ""
    sync: str = ""
    trouble: str = ""


class Verdict(NamedTuple):
    """`survives`: yes, no or unknown; `why`, in words."""

    survives: str
    why: str


def verdict(servers: Sequence[Server], holders: Collection[str] | None) -> Verdict:
    """`holders`: the names of those that have the stream, empty of a server that is alone; None if
    nobody says.
    """
    if not servers:
        return Verdict(UNKNOWN, "cluster.monitor does not say where the servers can be asked")
    if holders is None:
        return Verdict(UNKNOWN, "JetStream does not say just now which servers have the stream")
    heard = {one.name: one.sync for one in servers if not one.trouble}
    counted = {name: sync for name, sync in heard.items() if name in holders or not holders}
    for name, sync in sorted(counted.items()):
        if sync != "always":
            return Verdict(NO, f"{name} syncs {sync}")
    silent = [f"{one.url}: {one.trouble}" for one in servers if one.trouble]
    missing = sorted(set(holders) - set(heard))
    if missing:
        why = [f"{', '.join(missing)} did not say how often it syncs", *silent]
        return Verdict(UNKNOWN, "; ".join(why))
    if not holders and silent:
        return Verdict(UNKNOWN, "; ".join(silent))
    return Verdict(YES, f"{', '.join(sorted(counted))} sync each message")


class Monitor:
    """The servers of `cluster.monitor`, and what each said last."""

    def __init__(self, settings: Settings) -> None:
        self.servers = [Server(url, trouble="not asked yet") for url in settings.monitor]
        self._context = context_of(settings)

    async def look(self) -> None:
        """Ask all of them, each by itself."""
        asked = (ask(one.url, self._context) for one in self.servers)
        self.servers = list(await asyncio.gather(*asked))

    def figures(self) -> list[dict[str, str]]:
        return [one._asdict() for one in self.servers]


async def ask(url: str, context: ssl.SSLContext | None) -> Server:
    """What the server at a monitoring port says, or why that is not known."""
    try:
        async with asyncio.timeout(SECONDS):
            answer = await _fetch(url, context)
        name, sync = said(answer)
    except TimeoutError:
        return Server(url, trouble=f"no answer in {SECONDS:.0f} s")
    except (OSError, ValueError, Strange) as error:  # of a port or name that cannot be
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Server(url, trouble=reason[:200])
    return Server(url, name, sync)


async def _fetch(url: str, context: ssl.SSLContext | None) -> bytes:
    """One answer of HTTP/1.0, which ends with the connection. Nothing else is followed."""
    where = urlsplit(url)
    secure = where.scheme == "https"
    port = where.port or (443 if secure else 80)
    tls = (context or ssl.create_default_context()) if secure else None
    reader, writer = await asyncio.open_connection(where.hostname, port, ssl=tls)
    try:
        path = where.path.rstrip("/") + PAGE
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {where.netloc}\r\n\r\n".encode("ascii"))
        found = bytearray()
        while piece := await reader.read(MOST_BYTES):
            found += piece
            if len(found) > MOST_BYTES:
                raise Strange(f"an answer of more than {MOST_BYTES} bytes")
        return bytes(found)
    finally:
        writer.transport.abort()


def said(answer: bytes) -> tuple[str, str]:
    """The name of the server and how it syncs."""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Strange("no answer of HTTP")
    if words[1] != b"200":
        raise Strange(f"answered {words[1].decode()[:10]}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Strange("an answer that is no JSON") from None
    name = _part(found, "server_name")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        raise Strange("no nats-server")
    return name, _sync(_part(_part(found, "jetstream"), "config"))


def _part(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else None


def _sync(config: Any) -> str:
    always, interval = _part(config, "sync_always"), _part(config, "sync_interval")
    if always is True:
        return "always"
    if not isinstance(config, dict) or not config:
        raise Strange("a nats-server without JetStream")
    if always not in (None, False) or type(interval) is not int or not 0 < interval < LONGEST:
        raise Strange("does not say how often it syncs: nats-server 2.10 or later does")
    return f"every {interval / 1e9:g} s"
