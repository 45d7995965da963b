"""What a service manager wants to hear: that the hub is ready, is still reading, or stops.

systemd names a socket in NOTIFY_SOCKET where the unit says `Type=notify`; each message is one
datagram of NAME=VALUE (sd_notify(3)). Without the variable nothing happens. Called by the server;
an error here is never the hub's. One of several processes tells their parent, its `manager`, which
tells that one; and the parent hears that its loop turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

PATIENCE: Final = 60.0  # seconds that a start asks for, each time it says how far it has read
BEAT_SECONDS: Final = 1.0  # from one sign of life to the next: many in the time of one that hangs

manager: socket.socket | None = None  # of a process that has a parent


def notify(**said: str) -> None:
    """`notify(READY="1", STATUS="…")`."""
    message = "\n".join(f"{name}={value}" for name, value in said.items())
    if manager is not None:
        with contextlib.suppress(OSError):
            manager.send(message.encode())
        return
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode(), address)


def still_starting(status: str) -> None:
    """A start that reads a large journal is no start that hangs."""
    notify(STATUS=status, EXTEND_TIMEOUT_USEC=str(int(PATIENCE * 1e6)))


async def beat() -> None:
    """Tell the parent that the loop turns, for as long as it does. Never waits: a parent that is
    stopped itself hears nothing, and its processes go on.
    """
    while manager is not None:
        with contextlib.suppress(OSError):
            manager.send(b"WATCHDOG=1", socket.MSG_DONTWAIT)
        await asyncio.sleep(BEAT_SECONDS)
