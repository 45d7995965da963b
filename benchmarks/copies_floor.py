"""The least that a program in Python does for copies: the floor of `benchmarks.copies`.

`python -m benchmarks.copies_floor NATS-PORT FILE [--leave-it-unsynced]` says on which port it hears
one MQTT client at a time. It knows PUBLISH by its first byte and looks at nothing else: what came
in one read is one message of an R3 stream, with the number it must follow; the same bytes are
appended to the file and synced (or left to the system), in the same thread while the servers work;
then all of it is acknowledged. No session, no journal, no loop, no client library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Final

CONNECT: Final = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
CONFIG: Final = {
    "retention": "limits", "storage": "file",
    "discard": "new", "num_replicas": 3, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
    "deny_delete": True,
}  # fmt: skip
FRAME_BYTES: Final = 1100  # that a group of the journal has beside the payloads of its rows


class Stream:
    """One connection to NATS, whose answers are read where they are waited for."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.sock.sendall(CONNECT + f"SUB _INBOX.{name} 1\r\n".encode())
        said = json.dumps({**CONFIG, "name": name, "subjects": [f"{name}.log"]}).encode()
        subject = f"$JS.API.STREAM.CREATE.{name}".encode()
        asked = subject, name.encode(), len(said), said
        self.sock.sendall(b"PUB %b _INBOX.%b %d\r\n%b\r\n" % asked)
        found = json.loads(self.answer())
        self.last = int(found["state"]["last_seq"])

    def answer(self) -> bytes:
        while True:
            line, end, rest = self.rest.partition(b"\r\n")
            if end and not line.startswith(b"MSG "):
                self.rest = rest
                if line == b"PING":
                    self.sock.sendall(b"PONG\r\n")
            elif end and len(rest) >= (size := int(line.rpartition(b" ")[2])) + 2:
                self.rest = rest[size + 2 :]
                return rest[:size]
            else:
                self.rest += self.sock.recv(65536)

    def append(self, data: bytes) -> None:
        head = b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % self.last
        name, sizes = self.name.encode(), (len(head), len(head) + len(data))
        self.sock.sendall(
            b"HPUB %b.log _INBOX.%b %d %d\r\n%b%b\r\n" % (name, name, *sizes, head, data)
        )

    def appended(self) -> None:
        self.last = int(json.loads(self.answer())["seq"])


def body_of(data: bytes, at: int) -> tuple[int, int]:
    """Where the body of the packet begins and where it ends; (0, 0) if it is not whole."""
    size, shift, begin = 0, 0, at + 1
    while begin < len(data):
        size |= (data[begin] & 127) << shift
        shift, begin = shift + 7, begin + 1
        if data[begin - 1] < 128:
            return (begin, begin + size) if begin + size <= len(data) else (0, 0)
    return 0, 0


def answers(data: bytes) -> tuple[bytes, int, int]:
    """What the packets at the beginning are answered, how many bytes they are, and how many of them
    are messages.
    """
    found, at, count = [], 0, 0
    while (place := body_of(data, at))[1]:
        begin, end = place
        kind = data[at] >> 4
        if kind == 1:
            found.append(b"\x20\x02\x00\x00")
        elif kind == 8:
            found.append(b"\x90\x03" + data[begin : begin + 2] + b"\x01")
        elif kind == 3:
            number = begin + 2 + int.from_bytes(data[begin : begin + 2], "big")
            found.append(b"\x40\x02" + data[number : number + 2])
            count += 1
        at = end
    return b"".join(found), at, count


def serve(client: socket.socket, stream: Stream, file: int, syncs: bool) -> None:
    rest = b""
    while got := client.recv(65536):
        rest += got
        said, size, count = answers(rest)
        if count:
            data = bytes(FRAME_BYTES) + rest[:size]
            stream.append(data)
            os.write(file, data)
            if syncs:
                os.fdatasync(file)
            stream.appended()
        client.sendall(said)
        rest = rest[size:]


def main() -> None:
    syncs = "--leave-it-unsynced" not in sys.argv
    stream = Stream(int(sys.argv[1]), "synced" if syncs else "unsynced")
    file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o600)
    os.posix_fallocate(file, 0, 64 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}: the floor", flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(client, stream, file, syncs)


if __name__ == "__main__":
    main()
