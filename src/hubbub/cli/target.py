"""Which broker `pub`, `sub` and `rr` talk to, and as whom: mosquitto's flags, or one URL."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from hubbub.cli import profile
from hubbub.cli.options import OF_TLS, Cafile, Cert, Insecure, Key, tls_of
from hubbub.cli.payload import typed
from hubbub.cli.reach import reaching
from hubbub.client import connect, split_url
from hubbub.client.mqtt import Will
from hubbub.errors import SettingError, without_user
from hubbub.terminal import log_to_stderr

DEFAULT_URL: Final = "mqtt://127.0.0.1:1883"
NEVER: Final = 0xFFFF_FFFF
VERSIONS: Final = {
    "": "", "mqttv31": "3.1", "31": "3.1", "mqttv311": "3.1.1", "311": "3.1.1",
    "mqttv5": "5", "5": "5", "3.1": "3.1", "3.1.1": "3.1.1",
}  # fmt: skip


class Target(NamedTuple):
    """The options as they were given."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            "-L",
            metavar="URL",
            help="mqtt(s)://, ws(s)://, smq(s):// or smq+ws(s)://, then HOST:PORT, or "
            "USER:PASSWORD@ before it.",
        ),
    ] = ""
    host: Annotated[
        str, typer.Option("--host", "-h", help="The broker; else HUBBUB_URL, a profile, 127.0.0.1.")
    ] = ""
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", show_default=False, help="1883, or 8883 with TLS."
        ),
    ] = 0
    username: Annotated[str | None, typer.Option("--username", "-u", help="User name.")] = None
    password: Annotated[str | None, typer.Option("--pw", "-P", help="Password.")] = None
    client_id: Annotated[str, typer.Option("--id", "-i", help="Client id; else random.")] = ""
    version: Annotated[
        str, typer.Option("--protocol-version", "-V", help="mqttv31, mqttv311 or mqttv5.")
    ] = ""
    keep_alive: Annotated[int, typer.Option("--keepalive", "-k", help="Seconds.")] = 60
    lasting: Annotated[
        bool,
        typer.Option("--disable-clean-session", "-c", help="Keep the session; needs --id."),
    ] = False
    session_expiry: Annotated[
        int | None,
        typer.Option("--session-expiry-interval", "-x", help="MQTT 5: keep it so many seconds."),
    ] = None
    window: Annotated[
        int, typer.Option("--max-inflight", "-M", min=1, help="QoS 1 and 2 under way at a time.")
    ] = 20
    will_topic: Annotated[str, typer.Option(help="The will: where.")] = ""
    will_payload: Annotated[str | None, typer.Option(help="The will: what; else empty.")] = None
    will_qos: Annotated[int, typer.Option(min=0, max=2, help="The will: 0, 1 or 2.")] = 0
    will_retain: Annotated[bool, typer.Option("--will-retain", help="The will is kept.")] = False
    cafile: Cafile = None
    cert: Cert = None
    key: Key = None
    insecure: Insecure = False
    system_certificates: Annotated[
        bool, typer.Option("--tls-use-os-certs", help="TLS, with the system's authorities.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", "-d", help="Say what the client does.")] = False

    def placed(self) -> Target:
        """With the URL that the surroundings say, if none was typed."""
        if self.url or self.host or self.port:
            return self
        where = profile.place(profile.MQTT)
        return self._replace(url=where.url, cafile=self.cafile or where.trusted())

    @property
    def scheme(self) -> str:
        return split_url(self.url).scheme if self.url else "mqtt"

    @property
    def smq(self) -> bool:
        """Whether it speaks SMQ, over whatever transport; else MQTT."""
        return self.scheme in ("smq", "smqs", "smq+ws", "smq+wss")

    @property
    def topic(self) -> str:
        """The topic in the path of a URL, as mosquitto has it; "" elsewhere."""
        return split_url(self.url).path[1:] if self.scheme in ("mqtt", "mqtts") else ""

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Any]:
        """The client, connected. `options` are of this client, beside what was typed.

        HubbubError if nobody answers there.
        """
        async with contextlib.AsyncExitStack() as stack:
            with reaching(self.url if self.smq else self._mqtt_url()):
                client = await stack.enter_async_context(self._client(options))
            yield client

    def _client(self, options: dict[str, Any]) -> Any:
        if self.debug:
            log_to_stderr(logging.DEBUG, logging.BASIC_FORMAT)
        if self.url and (self.host or self.port):
            raise SettingError("expected --url, or --host and --port, not both")
        if self.smq:
            return connect(self.url, **self._smq_options())
        if self.scheme in ("switch", "switchs"):
            shown = without_user(self.url)
            raise SettingError(f"cannot use {shown!r} here: see `hubbub switch --help`")
        return connect(self._mqtt_url(), **self._mqtt_options(), **options)

    def _smq_options(self) -> dict[str, Any]:
        secure = self.scheme in ("smqs", "smq+wss")
        self.refuse_but(_FOR_SMQ | _FOR_TLS if secure else _FOR_SMQ, self.scheme)
        options: dict[str, Any] = {"client_id": self.client_id}
        if secure:
            options["tls"] = tls_of(self)
        if self.username is not None:
            options["credentials"] = f"{self.username}:{self.password or ''}"
        return options

    def refuse_but(self, allowed: frozenset[str], scheme: str) -> None:
        """SettingError if an option was given that this protocol has no words for."""
        for name, value in self._asdict().items():
            if name not in allowed and value != self._field_defaults[name]:
                flag = _FLAGS.get(name) or f"--{name.replace('_', '-')}"
                raise SettingError(f"{flag} says nothing over {scheme}://; leave it out")

    def _mqtt_url(self) -> str:
        if self.url:
            parts = split_url(self.url)
            return parts._replace(path="").geturl() if self.topic else self.url
        scheme = "mqtts" if self._wants_tls() else "mqtt"
        host = f"[{self.host}]" if ":" in self.host else self.host or "127.0.0.1"
        return f"{scheme}://{host}" + (f":{self.port}" if self.port else "")

    def _wants_tls(self) -> bool:
        return self.cafile is not None or self.system_certificates or self.port == 8883

    def _mqtt_options(self) -> dict[str, Any]:
        if self.version not in VERSIONS:
            raise SettingError(f"expected -V mqttv31, mqttv311 or mqttv5, got {self.version!r}")
        options: dict[str, Any] = {
            "client_id": self.client_id,
            "clean": not self.lasting,
            "keep_alive": self.keep_alive,
            "will": self._will(),
            "version": VERSIONS[self.version],
            "username": self.username,
            "password": self.password,
            "window": self.window,
        }
        if self.session_expiry is not None:
            options["session_expiry"] = self.session_expiry if self.session_expiry >= 0 else NEVER
        if self._wants_tls() or self.scheme in ("mqtts", "wss"):
            options["tls"] = tls_of(self)
        return options

    def _will(self) -> Will | None:
        if self.will_topic:
            payload = typed(self.will_payload or "")
            return Will(self.will_topic, payload, self.will_qos, self.will_retain)
        if self.will_payload is not None or self.will_qos or self.will_retain:
            raise SettingError("a will needs a topic: --will-topic")
        return None


_FOR_SMQ: Final = frozenset(("url", "client_id", "username", "password", "debug"))
_FOR_TLS: Final = frozenset((*OF_TLS, "system_certificates"))
_FLAGS: Final = {
    "client_id": "--id", "version": "--protocol-version", "keep_alive": "--keepalive",
    "lasting": "--disable-clean-session", "session_expiry": "--session-expiry-interval",
    "window": "--max-inflight", "system_certificates": "--tls-use-os-certs",
}  # fmt: skip
