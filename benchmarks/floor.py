"""A floor: the least that a Python program does to pass a message on.

One `epoll.poll` a turn, one `recv` and one lookup for what a publisher sent, and at the end of the
turn one `send` for each who gets something, on plain sockets. It speaks just enough of MQTT 3.1.1
for `load.c` where a publisher has one message out, or all have one topic and one length, and checks
nothing. What a hub written in Python costs beyond it is what it does for its users; less cannot be
had.

With a FILE it keeps a journal as well, of the least kind: what came in a turn is one append, with
its length and CRC before it, over zeros that were written before; and an acknowledgement leaves
when the disk has it. What nobody waits for gathers until it is GATHERED bytes, as in the hub.

With `--uvloop` the same program is a guest of the loop that the hub runs on, and its file is
written by a thread, as the loop of a server must not stand still: what comes during one sync is the
next append. What a hub costs beyond that is what it does for its users *on uvloop*.

`python -m benchmarks.floor [--uvloop] PORT [FILE]`. Called by floors.py, which also compiles it
with mypyc.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

INPUT: Final = 256 * 1024
GATHERED: Final = 256 * 1024
FILE: Final = 64 * 1024 * 1024  # bytes; then it begins anew
PUBACK: Final = 0x40
DISCONNECT: Final = 14


class Peer:
    """A client, and how it is written. `missing`: bytes to come of a message to `topic`, each of
    which has `step`.
    """

    __slots__ = ("send", "missing", "step", "topic", "out")

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self.send = send
        self.missing = 0
        self.step = 1
        self.topic = b""
        self.out: list[bytes] = []


class File:
    """Where what came goes, group by group; -1 keeps nothing."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.rows: list[bytes] = []
        self.size = self.at = 0

    def taken(self) -> list[bytes]:
        """All that is there, to be written."""
        rows, self.rows, self.size = self.rows, [], 0
        return rows

    def write(self, rows: list[bytes]) -> None:
        group = b"".join(rows)
        head = len(group).to_bytes(4, "little") + crc32(group).to_bytes(4, "little")
        if self.at + len(group) + len(head) > FILE:
            self.at = 0
        self.at += os.pwritev(self.fd, (head, group), self.at)
        os.fdatasync(self.fd)


class Floor:
    """Who reads what, and what is to be sent and written at the end of a turn."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.readers: dict[bytes, list[Peer]] = {}
        self.every: list[Peer] = []  # who reads a level of + or below #
        self.touched: list[Peer] = []
        self.promised: list[tuple[Peer, bytes]] = []  # what waits for the disk

    def send(self, peer: Peer, data: bytes) -> None:
        if not peer.out:
            self.touched.append(peer)
        peer.out.append(data)

    def publish(self, peer: Peer, data: bytes) -> None:
        missing = peer.missing
        if not missing:
            peer.topic, peer.step = topic_of(data), step_of(data)
            step = peer.step
            if data[0] & 2:
                at = body_of(data) + 2 + len(peer.topic)  # each comes whole
                ids = [data[n : n + 2] for n in range(at, len(data), step)]
                self.promise(peer, b"".join([b"\x40\x02" + one for one in ids]))
        peer.missing = (missing - len(data)) % peer.step
        for reader in self.readers.get(peer.topic) or self.every:
            self.send(reader, data)
        if self.file.fd >= 0:
            self.file.rows.append(data)
            self.file.size += len(data)

    def promise(self, peer: Peer, data: bytes) -> None:
        if self.file.fd < 0:
            self.send(peer, data)
        else:
            self.promised.append((peer, data))

    def hear(self, peer: Peer, data: bytes) -> None:
        kind = 3 if peer.missing else data[0] >> 4
        if kind == 3:
            self.publish(peer, data)
        elif kind == 1:
            self.send(peer, b"\x20\x02\x00\x00")
        elif kind == 8:
            wanted = data[6 : 6 + (data[4] << 8 | data[5])]
            many = wanted.endswith((b"+", b"#"))
            (self.every if many else self.readers.setdefault(wanted, [])).append(peer)
            self.send(peer, b"\x90\x03" + data[2:4] + data[-1:])

    def leave(self, peer: Peer) -> None:
        for some in (self.every, *self.readers.values()):
            if peer in some:
                some.remove(peer)
        self.readers = {name: some for name, some in self.readers.items() if some}

    def due(self) -> bool:
        """Whether something has to be written to the file now."""
        return len(self.promised) > 0 or self.file.size >= GATHERED

    def kept(self, promised: list[tuple[Peer, bytes]]) -> None:
        for peer, data in promised:
            self.send(peer, data)

    def flush(self) -> None:
        touched, self.touched = self.touched, []
        for peer in touched:
            out, peer.out = peer.out, []
            peer.send(out[0] if len(out) == 1 else b"".join(out))


def step_of(data: bytes) -> int:
    """The length of the packet that begins so, of less than 2 MiB."""
    size, more, most = data[1], data[2], data[3]
    if size < 128:
        return 2 + size
    size = size & 127 | (more & 127) << 7
    return 3 + size if more < 128 else 4 + (size | most << 14)


def body_of(data: bytes) -> int:
    return 2 + (data[1] > 127) + (data[1] > 127 and data[2] > 127)


def topic_of(data: bytes) -> bytes:
    body = body_of(data)
    return data[body + 2 : body + 2 + (data[body] << 8 | data[body + 1])]


def ends(peer: Peer, data: bytes) -> bool:
    return not data or (not peer.missing and data[0] >> 4 == DISCONNECT)


# Without a loop of others


def serve(port: int, file: File) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    poll, floor = select.epoll(), Floor(file)
    there: dict[int, tuple[socket.socket, Peer]] = {}
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            known = there.get(fd)
            if known is None:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                there[sock.fileno()] = sock, Peer(sock.sendall)
                poll.register(sock, select.EPOLLIN)
                continue
            sock, peer = known
            data = sock.recv(INPUT)
            if ends(peer, data):
                poll.unregister(fd)
                del there[fd]
                floor.leave(peer)
                sock.close()
            else:
                floor.hear(peer, data)
        if floor.due():
            file.write(file.taken())
            promised, floor.promised = floor.promised, []
            floor.kept(promised)
        if floor.touched:
            floor.flush()


# A guest of uvloop


class Host:
    """The loop, the floor, and the thread that writes its file."""

    def __init__(self, loop: Any, file: File) -> None:
        self.loop = loop
        self.floor = Floor(file)
        self.scheduled = self.flying = False
        self.groups: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self.waiting: list[tuple[Peer, bytes]] = []
        if file.fd >= 0:
            threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        """The thread."""
        while True:
            self.floor.file.write(self.groups.get())
            self.loop.call_soon_threadsafe(self.landed)

    def schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.tick)

    def tick(self) -> None:
        self.scheduled = False
        floor = self.floor
        if not self.flying and floor.due():
            self.flying = True
            self.waiting, floor.promised = floor.promised, []
            self.groups.put(floor.file.taken())
        if floor.touched:
            floor.flush()

    def landed(self) -> None:
        self.flying = False
        self.floor.kept(self.waiting)
        self.tick()


class Guest:
    """One connection, as the loop sees it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.peer = Peer(print)
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peer = Peer(transport.write)

    def data_received(self, data: bytes) -> None:
        if ends(self.peer, data):
            self.transport.close()
        else:
            self.host.floor.hear(self.peer, data)
            self.host.schedule()

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.host.floor.leave(self.peer)


async def welcome(port: int, file: File) -> None:
    loop: Any = asyncio.get_running_loop()
    host = Host(loop, file)
    server = await loop.create_server(lambda: Guest(host), "127.0.0.1", port, backlog=512)
    await server.serve_forever()


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--uvloop"]
    kept = -1
    if len(words) > 1:
        kept = os.open(words[1], os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(kept, bytes(FILE))
        os.fsync(kept)
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(welcome(int(words[0]), File(kept)))
    else:
        serve(int(words[0]), File(kept))


if __name__ == "__main__":
    main()
