"""Server sockets: bound to an address or a path, with what accepted connections inherit.

Called by the listener; accepts nothing. SettingError says what to do if that fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from hubbub.core.limits import SEND_BUFFER
from hubbub.errors import SettingError
from hubbub.settings import UNIX, Address, parse_address


def bound_socket(text: str) -> socket.socket:
    """A TCP socket bound to "ADDR:PORT"; SettingError says what to do if that fails.

    [::] means every address of both versions, and 0.0.0.0 where there is no version 6.
    """
    address = parse_address(text)
    try:
        return _bound(address)
    except OSError as error:
        missing = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
        if not (missing and address.host == "::"):
            raise SettingError(_bind_trouble(address, error)) from None
    return bound_socket(f"0.0.0.0:{address.port}")


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by accepted sockets: or the kernel buffers megabytes for a dead reader.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        sock.bind((address.host, address.port))
        # Listening now and not later: a second hub may bind the same address, not listen on it.
        sock.listen(4096)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_trouble(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{address} is in use by another program. Stop that one, or choose another port: "
            f"--listen {address.host}:0 takes a free one"
        )
    if error.errno == errno.EACCES:
        return f"{address}: ports below 1024 need root; choose a higher one with --listen"
    return f"cannot listen on {address}: {error.strerror or error}"


def keep_alive(sock: socket.socket, idle: float, interval: float = 0.0) -> None:
    """Let TCP ask a peer that is silent for `idle` seconds whether it is there.

    It asks again after each `interval`; 0 means a tenth of `idle`, but not below 3 s.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_option: int = getattr(socket, "TCP_KEEPIDLE", 0x10)  # macOS has another name for it
    sock.setsockopt(socket.IPPROTO_TCP, idle_option, max(1, round(idle)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(interval or max(3, idle / 10)))


def bound_path(path: str, mode: int) -> socket.socket:
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
        sock.listen(4096)
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
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise SettingError(f"{UNIX}{path} is in use by another program; stop that one first")


def remove(path: str, ours: os.stat_result) -> None:
    """Leave no file behind, but do not touch that of a hub which has come after us."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), ours):
            os.unlink(path)
