"""How a node connects to NATS, for whatever purpose: servers, credentials, TLS, and at what pace.

    Entry ── nats-py tries one server after the other ──┬─→ in
                                                        ├─→ nobody is there: the next one, at once
                                                        └─→ refused: said, and a pause that grows

Whoever speaks to NATS asks here: what is live, the copies, who looks for a namesake, and who knocks
for `hubbub doctor`. asyncio is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import math
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import ParseResult, urlsplit

from hubbub.cluster.refusals import Refusal, login, refusal, whole
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.limits import CLUSTER_REFUSED_SECONDS
from hubbub.errors import SettingError, without_user

if TYPE_CHECKING:
    from nats.aio.client import Client

    from hubbub.cluster.transport import Way

SCHEMES: Final = ("nats", "tls", "ws", "wss")  # those of nats-py
CONNECT_SECONDS: Final = 2  # for which a start waits; then it goes on trying beside
# Without a try, while there is no connection: nats-py's own task waits for what never comes.
STUCK_SECONDS: Final = 2 * CLUSTER_REFUSED_SECONDS
RETRY_SECONDS: Final = 0.25  # a server of several that died is left for another at once

A_URL: Final = "nats://HOST:PORT, or tls://, ws:// or wss:// so, one server in each"
HOST: Final = re.compile(r"[^\s,;/?#@\\\"'<>]+")  # that may be a machine's name, or an address
SILENT: Final = "expecting INFO message"  # how nats-py ends what it says of who is no server
CREDENTIALS: Final = ("NATS USER JWT", "USER NKEY SEED")  # the parts of such a file

Complain = Callable[[Exception], Awaitable[None]]
Called = Callable[[], Awaitable[None]]
Attempt = Callable[["Client"], Awaitable[bool]]


def client_options(settings: Settings, name: str) -> dict[str, Any]:
    """How a node connects, for whatever purpose."""
    options: dict[str, Any] = {
        "servers": list(settings.url), "name": name, "max_reconnect_attempts": -1,
        "allow_reconnect": True, "connect_timeout": CONNECT_SECONDS,
        "reconnect_time_wait": RETRY_SECONDS,
    }  # fmt: skip
    user, password = login(settings)
    if user is not None:  # else servers that others tell of are not shown it
        options |= {"token": user} if password is None else {"user": user, "password": password}
    if settings.credentials:
        options["user_credentials"] = settings.credentials
    context = context_of(settings)
    if context is not None:
        options["tls"] = context
    return options


class Entry:
    """How one purpose comes in, and stays: one client of nats-py after the other, where a server
    has ended what it had for good. nats-py waits while it complains here, before it tries the next
    server.
    """

    def __init__(self, settings: Settings, name: str, complain: Complain) -> None:
        self.settings = settings
        self.name = name
        self._complain = complain
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._pause = 0.0
        self._refused = -math.inf  # when it was last, by the loop's clock
        self._tried = 0.0

    async def stay(self, attempt: Attempt, over: Called) -> None:
        """Connected, each time with another client: a server ends one for good when a user has
        another password than before. `attempt` connects it, and says no where that is not wanted
        any more; `over` is called when what it had is over.
        """
        from nats.aio.client import Client

        while True:
            client = Client()
            try:
                if not await attempt(client):
                    return
                await self.ended()
                await over()
                await self.wait()
            except Exception as error:  # nats-py has many kinds, and passes those of sockets on
                await self._complain(error)
                await asyncio.sleep(4 * RETRY_SECONDS)
                await close(client)

    async def connect(
        self, client: Client, lost: Called | None = None, back: Called | None = None,
        way: Way | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """`lost`, `back`: when there is no connection, and one again, of the same client. `way`:
        its transport, where it is one of bytes.
        """
        self._client, closed = client, asyncio.Event()
        self._closed = closed

        async def ends() -> None:
            closed.set()

        await enter(
            client, self.settings, self.name, way, error_cb=self._failed, closed_cb=ends,
            disconnected_cb=self._of(client, lost), reconnected_cb=self._of(client, back),
            **options,
        )  # fmt: skip
        if not client.is_connected:  # nats-py takes what it did not expect for a yes
            raise ConnectionResetError("the server has ended what it had begun")

    def _of(self, client: Client, call: Called | None) -> Called:
        """Of one that was given up nothing is heard: it may end long after another one has come."""

        async def called() -> None:
            if self._client is client and call is not None:
                await call()

        return called

    async def _failed(self, error: Exception) -> None:
        assert self._client is not None
        self._tried = asyncio.get_running_loop().time()
        if self._client.is_connected or not self._refuses(error):
            await self._complain(error)
            return
        if is_refusal(error):
            await self._complain(refusal(self.settings, where_is(self._client), error))
        await self.wait()

    def _refuses(self, error: Exception) -> bool:
        """Of TLS a server's no comes now and then, and its end always."""
        return is_refusal(error) or (isinstance(error, ConnectionResetError) and self._is_refused())

    async def wait(self) -> None:
        """Longer each time, as long as there is no longer time without a refusal."""
        if not self._is_refused():
            self._pause = RETRY_SECONDS
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, CLUSTER_REFUSED_SECONDS)
        self._refused = asyncio.get_running_loop().time()

    def _is_refused(self) -> bool:
        since = asyncio.get_running_loop().time() - self._refused
        return since <= 2 * CLUSTER_REFUSED_SECONDS

    async def ended(self) -> None:
        """Until a server has ended it for good, or nats-py is stuck: it does not come back by
        itself then, and not always says so.
        """
        loop, client = asyncio.get_running_loop(), self._client
        assert client is not None
        self._tried = loop.time()
        while not (self._closed.is_set() or client.is_closed):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._closed.wait()
            if client.is_connected:
                self._tried = loop.time()
            elif _is_dead(client) or loop.time() - self._tried > STUCK_SECONDS:
                break
        await close(client)

    def why(self) -> Refusal | None:
        """What the server said that ended it for good, None if none did."""
        client = self._client
        error = client.last_error if client is not None and client.is_closed else None
        if client is None or error is None or not is_refusal(error):
            return None
        return refusal(self.settings, where_is(client), error)


async def enter(
    client: Client, settings: Settings, name: str, way: Way | None = None, **options: Any
) -> None:  # fmt: skip
    _prepare(client, settings, way)
    await client.connect(**client_options(settings, name) | options)


async def close(client: Client) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.close()


def _is_dead(client: Client) -> bool:
    """Whether the task that brings it back has died of an error. A private attribute: nats-py says
    so to nobody.
    """
    task = client._reconnection_task
    return task is not None and task.done() and not client.is_connected


def _prepare(client: Client, settings: Settings, way: Way | None) -> None:
    """Give it our transport, unless it needs one of its own for WebSockets; and have it say which
    file it cannot use. Private attributes: nats-py has no option for either.
    """
    from hubbub.cluster.transport import Way

    if not is_websocket(settings.url[0]):
        client._transport = way or Way()
    if settings.credentials:
        client._connect_command = partial(  # type: ignore[method-assign]
            _introduction, client._connect_command, settings.credentials
        )


def _introduction(command: Callable[[], bytes], file: str) -> bytes:
    """What it shows is read anew each time, perhaps while somebody writes it. Of what it cannot
    read nats-py would end its task that comes back, or look for the end of the file for ever.
    """
    try:
        text = Path(file).read_text("ascii", "replace")
        if not all(f"BEGIN {part}" in text for part in CREDENTIALS):
            raise ValueError(f"no {' and '.join(CREDENTIALS)} in it")
        return command()
    except OSError:
        raise
    except Exception as error:  # those of keys are of many kinds
        said = str(error) or type(error).__name__
        raise OSError(errno.EINVAL, f"it cannot be used ({said})", file) from None


def where_is(client: Client) -> ParseResult | None:
    """A private attribute: `connected_url` says nothing of a server that has not let it in."""
    server = client._current_server
    return server.uri if server is not None else None


def server_of(client: Client) -> str:
    """Whom a client that is connected speaks with, in words: where it is, its name if it was given
    one, its version. Private attributes: nats-py tells nobody what else a server has said.
    """
    where, said = where_is(client), client._server_info
    place = without_user(where.geturl()) if where is not None else "?"
    name, version = said.get("server_name", ""), client.connected_server_version
    called = f", server {name!r}" if name != said.get("server_id") else ""
    return f"{place}{called}, version {version.major}.{version.minor}.{version.patch}"


def is_refusal(error: Exception) -> bool:
    """Whether somebody is there and does not let this node in, or nobody ever will."""
    from nats import errors

    if isinstance(error, errors.StaleConnectionError | TimeoutError):  # it is lost, or silent
        return False
    if str(error).endswith(SILENT):  # a server that goes, or what is before one that is not there
        return False
    unread = isinstance(error, OSError) and error.filename is not None
    return unread or isinstance(error, errors.Error | ssl.SSLError)


def context_of(settings: Settings) -> ssl.SSLContext | None:
    """TLS as the settings say; None leaves it to the URL."""
    if not (settings.ca or settings.certificate):
        return None
    reading = f"cluster.ca {settings.ca!r}"
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            reading = f"cluster.certificate {settings.certificate!r}, cluster.key {settings.key!r}"
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"{reading}: {error}") from None
    return context


def check_urls(settings: Settings) -> None:
    """What can never work is said at once: nats-py would try it for ever."""
    for url in settings.url:
        if wrong := _wrong(url):
            shown = without_user(url)
            raise SettingError(f"cluster.url: {shown!r} cannot be used, {wrong}: expected {A_URL}")
    kinds = [is_websocket(url) for url in settings.url]
    if any(kinds) and not all(kinds):
        raise SettingError(
            "cluster.url: some are ws:// or wss:// and some are not: expected all of one kind"
        )
    if any(kinds) and importlib.util.find_spec("aiohttp") is None:
        raise SettingError("cluster.url: ws:// and wss:// need aiohttp: run `pip install aiohttp`")
    if any(kinds) and settings.copies != "0":
        raise SettingError(
            f"cluster.copies = {settings.copies!r} needs nats:// or tls:// in cluster.url: nothing "
            'is copied over ws:// or wss://; or set cluster.copies = "0"'
        )


def _wrong(url: str) -> str:
    """Why that is no URL of a server, "" if it is one. It says nothing of a password in it."""
    scheme, is_said, _ = url.partition("://")
    if is_said and scheme not in SCHEMES:
        return f"its scheme is none of {', '.join(f'{one}://' for one in SCHEMES)}"
    if set("/?#") & set(whole(url).partition("://")[2].rpartition("@")[0]):
        return "its user or password has one of / ? # in it"
    try:
        where = urlsplit(whole(url))
        host = where.hostname or ""
    except ValueError:
        return "its host is none"
    if not HOST.fullmatch(host):
        return "its host is none" if host else "it names no host"
    try:
        port = where.port
    except ValueError:
        port = 0
    return "its port is none of 1 to 65535" if port == 0 else ""


def is_websocket(url: str) -> bool:
    return url.startswith(("ws://", "wss://"))
