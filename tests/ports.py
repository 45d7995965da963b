"""Ports of the loopback for servers that cannot be told to take any free one, as mosquitto.

What the kernel gives away as free it gives to the next one that asks, too: to another test's hub,
before the server is up, or while it is restarted. So these lie below those that the kernel gives
by itself, where only who names a port gets it.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_port() -> int:
    """One that nobody listens at, that no test has had, and that nobody gets unasked."""
    end = max(int(_RANGE.read_text().split()[0]), 2 * FIRST)
    while True:
        port = FIRST + secrets.randbelow(end - FIRST)  # by no seed: other processes have the same
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
