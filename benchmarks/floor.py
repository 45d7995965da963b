"""A floor: the least that a Python program does to pass a message on.

One `epoll.poll`, one `recv`, one lookup and one `send` a message, on plain sockets, without a frame
of the interpreter beside. It speaks just enough of MQTT 3.1.1 for `load.c` where all messages of a
publisher have one topic: it looks at the first packet of what it received only, and checks nothing.
What a hub written in Python costs beyond it is what it does for its users; less cannot be had.

`python -m benchmarks.floor PORT`. Called by floors.py.
"""

from __future__ import annotations

import select
import socket
import sys
from typing import Final

INPUT: Final = 256 * 1024


def topic_of(data: bytes) -> bytes:
    body = 2 + (data[1] > 127) + (data[1] > 127 and data[2] > 127)
    return data[body + 2 : body + 2 + (data[body] << 8 | data[body + 1])]


def serve(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    peers: dict[int, socket.socket] = {}
    readers: dict[bytes, list[socket.socket]] = {}
    every: list[socket.socket] = []  # who reads a level of +
    while True:
        for fd, _ in poll.poll():
            peer = peers.get(fd)
            if peer is None:
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[peer.fileno()] = peer
                poll.register(peer, select.EPOLLIN)
                continue
            data = peer.recv(INPUT)
            kind = data[0] >> 4 if data else 14
            if kind == 3:
                topic = topic_of(data)
                for reader in readers.get(topic) or every:
                    reader.sendall(data)
                if data[0] & 2:
                    at, step = 4 + len(topic), 2 + data[1]  # packets of less than 128 bytes
                    ids = (data[n : n + 2] for n in range(at, len(data), step))
                    peer.sendall(b"".join([b"\x40\x02" + one for one in ids]))
            elif kind == 1:
                peer.sendall(b"\x20\x02\x00\x00")
            elif kind == 8:
                wanted = data[6 : 6 + (data[4] << 8 | data[5])]
                (every if wanted.endswith(b"+") else readers.setdefault(wanted, [])).append(peer)
                peer.sendall(b"\x90\x03" + data[2:4] + data[-1:])
            elif kind == 14:
                poll.unregister(fd)
                peers.pop(fd).close()
                for some in (every, *readers.values()):
                    if peer in some:
                        some.remove(peer)
                readers = {name: some for name, some in readers.items() if some}


if __name__ == "__main__":
    serve(int(sys.argv[1]))
