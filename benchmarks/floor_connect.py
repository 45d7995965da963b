"""A floor: the least that a Python program does to let a client in, to keep it and to see it go.

One loop of its own around `epoll`, descriptors without socket objects, one object with slots for
each client. A CONNECT is read to its end (client id, will, keep-alive), and so is a SUBSCRIBE; both
are answered in one write, the name and the filter have their place in a table, and a will is
published to whoever reads `will/#`. It checks no rights and bounds nobody, has no log, no metrics
and no journal: what a hub written in Python costs beyond it is what it does for its users.

`python -m benchmarks.floor_connect PORT`. Called by many.py, which also compiles it with mypyc.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from typing import Final

INPUT: Final = 64 * 1024
BACKLOG: Final = 512


class Client:
    __slots__ = ("fd", "name", "filter", "will", "payload", "heard", "alive")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.name = b""
        self.filter = b""
        self.will = b""
        self.payload = b""
        self.heard = 0.0
        self.alive = 0


class Floor:
    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.sessions: dict[bytes, Client] = {}
        self.readers: dict[bytes, Client] = {}

    def hear(self, client: Client, data: bytes) -> None:
        client.heard = time.monotonic()
        at, said = 0, b""
        while at < len(data):
            end = at + 2 + data[at + 1]  # packets of less than 128 bytes, which come whole
            kind = data[at] >> 4
            if kind == 1:
                said += self.connect(client, data, at + 2)
            elif kind == 8:
                said += self.subscribe(client, data, at + 2, end)
            elif kind == 12:
                said += b"\xd0\x00"
            at = end
        os.write(client.fd, said)

    def connect(self, client: Client, data: bytes, at: int) -> bytes:
        at += 2 + (data[at] << 8 | data[at + 1])
        flags = data[at + 1]
        client.alive = data[at + 2] << 8 | data[at + 3]
        client.name, at = text(data, at + 4)
        if flags & 4:
            client.will, at = text(data, at)
            client.payload, at = text(data, at)
        self.sessions[client.name] = client
        return b"\x20\x02\x00\x00"

    def subscribe(self, client: Client, data: bytes, at: int, end: int) -> bytes:
        packet, codes = data[at : at + 2], b""
        at += 2
        while at < end:
            client.filter, at = text(data, at)
            codes += data[at : at + 1]
            at += 1
            self.readers[client.filter] = client
        return b"\x90" + bytes((2 + len(codes),)) + packet + codes

    def leave(self, client: Client) -> None:
        os.close(client.fd)
        del self.clients[client.fd]
        self.sessions.pop(client.name, None)
        self.readers.pop(client.filter, None)
        reader = self.readers.get(b"will/#")
        if client.will and reader is not None:
            topic = len(client.will).to_bytes(2, "big") + client.will
            head = bytes((0x30, len(topic) + len(client.payload)))
            os.write(reader.fd, head + topic + client.payload)


def text(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    return data[at + 2 : end], end


def serve(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # whoever is accepted has it
    poll, floor, door = select.epoll(), Floor(), listener.fileno()
    poll.register(door, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == door:
                fd, _ = listener._accept()  # type: ignore[attr-defined]
                floor.clients[fd] = Client(fd)
                poll.register(fd, select.EPOLLIN)
                continue
            client = floor.clients[fd]
            try:
                data = os.read(fd, INPUT)
            except ConnectionResetError:
                data = b""
            if data:
                floor.hear(client, data)
            else:
                floor.leave(client)


def main() -> None:
    serve(int(sys.argv[1]))


if __name__ == "__main__":
    main()
