"""Server sockets: bound to an address or a path, with what accepted connections inherit.

The node makes them before it opens anything else, its listeners accept on them. SettingError says
what to do if that fails. And what the kernel is told about a connection that asyncio has made.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Sequence
from typing import Final

from hubbub.config.settings import DEFAULT_LISTEN, UNIX, Address, Listener, parse_address
from hubbub.core.limits import KEEP_ALIVE_SECONDS, SEND_BUFFER
from hubbub.errors import SettingError

BACKLOG: Final = 4096  # connections that wait to be accepted
KEEP_ALIVE_MOST: Final = 32_767  # seconds: more Linux does not take
ALONE: Final = "; a file with [[listener]] sections has this one, too, unless it says `listen = []`"


class ServerSocket:
    """What one listener accepts on: bound from the beginning, listening when it is told to.

    `address` says the real port. Whoever made it closes it. `beside` are the others of this hub.
    `shared`: other processes of this hub are bound to the same port, and listen too.
    """

    def __init__(
        self, place: Listener, beside: Sequence[ServerSocket] = (), shared: bool = False
    ) -> None:
        address = parse_address(place.address)
        self._beside = beside
        self._file: os.stat_result | None = None
        if address.path:
            self.socket = _bound_path(address.path, int(place.mode, 8))
            self._file = os.stat(address.path)
        else:
            try:
                self.socket = _bound_socket(address, shared)
            except OSError as error:
                raise SettingError(self._trouble(address, error)) from None
            keep_alive(self.socket, KEEP_ALIVE_SECONDS)
            address = address._replace(port=self.socket.getsockname()[1])
        self.address = address

    def inherited(self) -> ServerSocket:
        """The same in a process that was forked: its file is the parent's to remove."""
        self._file = None
        return self

    def listen(self) -> None:
        """Take connections. Another program that bound the same address may have been faster."""
        try:
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
        except OSError as error:
            raise SettingError(self._trouble(self.address, error)) from None

    def _trouble(self, address: Address, error: OSError) -> str:
        ours = [one.address for one in self._beside if one is not self]
        for other in ours if error.errno == errno.EADDRINUSE else ():
            if _overlap(address, other):
                return (
                    f"{address} and {other} are both addresses of this hub, and one is part of the "
                    f"other. Leave one out: `listen` is {', '.join(DEFAULT_LISTEN)} unless it is "
                    "set, and may be []"
                )
        return _bind_trouble(address, error)

    def close(self) -> None:
        self.socket.close()
        if self._file is not None:
            _remove(self.address.path, self._file)
            self._file = None


def _bound_socket(address: Address, shared: bool) -> socket.socket:
    """[::] means every address of both versions, and 0.0.0.0 where there is no version 6."""
    try:
        return _bound(address, shared)
    except OSError as error:
        missing = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
        if not (missing and address.host == "::"):
            raise
    return _bound_socket(address._replace(host="0.0.0.0"), shared)


def _bound(address: Address, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Inherited by accepted sockets: or the kernel buffers megabytes for a dead reader.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        sock.bind((address.host, address.port))
    except OSError:
        sock.close()
        raise
    return sock


def _overlap(one: Address, other: Address) -> bool:
    """Whether connections to one may be connections to the other: 0.0.0.0 and [::] are several."""
    hosts = {one.host, other.host}
    every = "::" in hosts or ("0.0.0.0" in hosts and ":" not in one.host + other.host)
    return one.port == other.port and (every or len(hosts) == 1)


def _bind_trouble(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{address} is in use by another program or hub. Stop that one, or choose another "
            f"port: --listen {address.host}:0 takes a free one"
            + ALONE * (str(address) in DEFAULT_LISTEN)
        )
    if error.errno == errno.EACCES:
        return (
            f"{address}: ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher one "
            "with --listen"
        )
    return f"cannot listen on {address}: {error.strerror or error}"


def keep_alive(sock: socket.socket, idle: float, interval: float = 0.0) -> None:
    """Let TCP ask a peer that is silent for `idle` seconds whether it is there.

    It asks again after each `interval`; 0 means a tenth of `idle`, but not below 3 s. A Unix socket
    needs none of it.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = interval or max(3, idle / 10)
    for option, seconds in ((socket.TCP_KEEPIDLE, idle), (socket.TCP_KEEPINTVL, every)):
        possible = round(min(KEEP_ALIVE_MOST, max(1, seconds)))
        sock.setsockopt(socket.IPPROTO_TCP, option, possible)


def peer_of(transport: asyncio.BaseTransport, address: Address) -> tuple[str, int] | None:
    """Who is at the other end. Of a Unix socket nobody knows: it is called what its owner likes, a
    path, any bytes or nothing.
    """
    if address.path:
        return None
    found: tuple[str, int] | None = transport.get_extra_info("peername")
    return found


def unheard(transport: asyncio.Transport | None) -> bool:
    """Whether a peer has said something that the loop has not come to."""
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or found.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(found.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def hung_up(transport: asyncio.Transport | None) -> int:
    """Whether a peer that is not read from has gone: 0 = no, 1 = it says no more, 2 = for good."""
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or found.fileno() < 0:
        return 0
    poll = select.poll()
    poll.register(found.fileno(), select.POLLRDHUP)
    said = sum(events for _, events in poll.poll(0))
    if said & (select.POLLHUP | select.POLLERR):
        return 2
    return 1 if said & select.POLLRDHUP else 0


def acknowledge(transport: asyncio.Transport) -> None:
    """Let the kernel acknowledge what was read at once, and go on so until something is sent.

    A loop's own object for the socket would copy the descriptor each time: four times as dear.
    """
    if transport.is_closing():
        return
    lent = transport.get_extra_info("socket")
    if lent is None or lent.family == socket.AF_UNIX:
        return
    sock = socket.SocketType(lent.family, lent.type, lent.proto, lent.fileno())
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        sock.detach()


def _bound_path(path: str, mode: int) -> socket.socket:
    """A Unix socket bound to a path; a file that a dead hub left there is replaced.

    SettingError if somebody listens there, or something else has that name.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        mask = os.umask(0o777 & ~mode)  # so that nobody else ever gets in, not even for a moment
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        sock.listen(BACKLOG)  # or it would be taken for that of a dead hub
    except OSError as error:
        sock.close()
        raise SettingError(f"cannot listen on {UNIX}{path}: {error.strerror or error}") from None
    except SettingError:
        sock.close()
        raise
    return sock


def _clear(path: str) -> None:
    """Remove the socket of a process that is no more, and nothing else."""
    try:
        kind = os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise SettingError(f"cannot listen on {UNIX}{path}: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # somebody has it, and as many wait there as may
            pass
    raise SettingError(f"{UNIX}{path} is in use by another program; stop that one first")


def _remove(path: str, ours: os.stat_result) -> None:
    """Leave no file behind, but do not touch that of a hub which has come after us."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), ours):
            os.unlink(path)
