"""The ways into a hub that MQTT has: plain or TLS, as a stream or over WebSocket."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests.certificates import Authority
from tests.process import RunningHub, StartHub

SCHEMES: Final = ("mqtt", "mqtts", "ws", "wss")


class Door(NamedTuple):
    """`authority` is the file of who signed the hub's certificate."""

    hub: RunningHub
    scheme: str
    authority: Path

    @property
    def secure(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def url(self) -> str:
        path = "/mqtt" if self.scheme.startswith("ws") else ""
        return f"{self.scheme}://localhost:{self.hub.port}{path}"


def open_door(start_hub: StartHub, folder: Path, scheme: str) -> Door:
    """A hub with a certificate for localhost; all schemes lead to its one port."""
    authority = Authority(folder / "tls")
    certificate = authority.sign("localhost", server=True)
    hub = start_hub("--set", f"tls.certificate={certificate}")
    return Door(hub, scheme, authority.file)
