"""A floor: the least that a Python program does to pass a message on.

One `epoll.poll` a turn, one `recv` and one lookup for what a publisher sent, and at the end of the
turn one `send` for each who gets something, on plain sockets. It speaks just enough of MQTT 3.1.1
for `load.c` where all messages of a publisher have one topic and one length, and checks nothing.
What a hub written in Python costs beyond it is what it does for its users; less cannot be had.

With a FILE it keeps a journal as well, of the least kind: what came in a turn is one append, with
its length and CRC before it, over zeros that were written before; and an acknowledgement leaves
when the disk has it. What nobody waits for gathers until it is GATHERED bytes, as in the hub.

`python -m benchmarks.floor PORT [FILE]`. Called by floors.py, which also compiles it with mypyc.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

INPUT: Final = 256 * 1024
GATHERED: Final = 256 * 1024
FILE: Final = 64 * 1024 * 1024  # bytes; then it begins anew


class Peer:
    """A client. `missing`: bytes to come of a message to `topic` that was cut."""

    __slots__ = ("sock", "missing", "topic", "out")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.missing = 0
        self.topic = b""
        self.out: list[bytes] = []


class Floor:
    """All clients, and what is to be sent and written at the end of a turn."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.peers: dict[int, Peer] = {}
        self.readers: dict[bytes, list[Peer]] = {}
        self.every: list[Peer] = []  # who reads a level of +
        self.touched: list[Peer] = []
        self.rows: list[bytes] = []
        self.size = self.at = 0

    def send(self, peer: Peer, data: bytes) -> None:
        if not peer.out:
            self.touched.append(peer)
        peer.out.append(data)

    def publish(self, peer: Peer, data: bytes) -> None:
        missing = peer.missing
        if not missing:
            peer.topic, step = topic_of(data), step_of(data)
            peer.missing = -len(data) % step
            if data[0] & 2:
                at = 4 + len(peer.topic)  # packets of less than 128 bytes, which come whole
                ids = [data[n : n + 2] for n in range(at, len(data), step)]
                self.send(peer, b"".join([b"\x40\x02" + one for one in ids]))
        else:
            peer.missing = max(missing - len(data), 0)
        for reader in self.readers.get(peer.topic) or self.every:
            self.send(reader, data)
        if self.file >= 0:
            self.rows.append(data)
            self.size += len(data)

    def hear(self, peer: Peer, data: bytes) -> None:
        kind = 3 if peer.missing else data[0] >> 4
        if kind == 3:
            self.publish(peer, data)
        elif kind == 1:
            self.send(peer, b"\x20\x02\x00\x00")
        elif kind == 8:
            wanted = data[6 : 6 + (data[4] << 8 | data[5])]
            many = wanted.endswith(b"+")
            (self.every if many else self.readers.setdefault(wanted, [])).append(peer)
            self.send(peer, b"\x90\x03" + data[2:4] + data[-1:])

    def leave(self, peer: Peer) -> None:
        del self.peers[peer.sock.fileno()]
        peer.sock.close()
        for some in (self.every, *self.readers.values()):
            if peer in some:
                some.remove(peer)
        self.readers = {name: some for name, some in self.readers.items() if some}

    def end_turn(self) -> None:
        touched, self.touched = self.touched, []
        waits = any(peer.out[0][0] == 0x40 for peer in touched)
        if self.rows and (waits or self.size >= GATHERED):
            self.write()
        for peer in touched:
            out, peer.out = peer.out, []
            if peer.sock.fileno() >= 0:
                peer.sock.sendall(out[0] if len(out) == 1 else b"".join(out))

    def write(self) -> None:
        group = b"".join(self.rows)
        head = len(group).to_bytes(4, "little") + crc32(group).to_bytes(4, "little")
        if self.at + len(group) + len(head) > FILE:
            self.at = 0
        self.at += os.pwritev(self.file, (head, group), self.at)
        os.fdatasync(self.file)
        self.rows, self.size = [], 0


def step_of(data: bytes) -> int:
    """The length of the packet that begins so, of less than 2 MiB."""
    size, more, most = data[1], data[2], data[3]
    if size < 128:
        return 2 + size
    size = size & 127 | (more & 127) << 7
    return 3 + size if more < 128 else 4 + (size | most << 14)


def topic_of(data: bytes) -> bytes:
    body = 2 + (data[1] > 127) + (data[1] > 127 and data[2] > 127)
    return data[body + 2 : body + 2 + (data[body] << 8 | data[body + 1])]


def serve(port: int, file: int = -1) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    poll, floor = select.epoll(), Floor(file)
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            peer = floor.peers.get(fd)
            if peer is None:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                floor.peers[sock.fileno()] = Peer(sock)
                poll.register(sock, select.EPOLLIN)
                continue
            data = peer.sock.recv(INPUT)
            if data and data[0] >> 4 != 14 or data and peer.missing:
                floor.hear(peer, data)
            else:
                poll.unregister(fd)
                floor.leave(peer)
        if floor.touched or floor.size >= GATHERED:
            floor.end_turn()


def main() -> None:
    kept = -1
    if len(sys.argv) > 2:
        kept = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(kept, bytes(FILE))
        os.fsync(kept)
    serve(int(sys.argv[1]), kept)


if __name__ == "__main__":
    main()
