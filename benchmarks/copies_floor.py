"""The least that a program in Python does for copies: the floor of `benchmarks.copies`.

    client ──→ floor ──→ R3 stream, file                        where nothing is far
    client ──→ near ── a request ──→ far ──→ R3 stream, file    where who keeps is another one

`python -m benchmarks.copies_floor NATS-PORT FILE [--leave-it-unsynced] [--near|--far]` says on
which port it hears one MQTT client at a time. It knows PUBLISH by its first byte and looks at
nothing else: what came in one read is one message of an R3 stream, with the number it must follow;
the same bytes are appended to the file and synced (or left to the system), in the same thread while
the servers work; then all of it is acknowledged. No session, no journal, no loop, no library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

CONNECT: Final = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
CONFIG: Final = {
    "retention": "limits", "storage": "file",
    "discard": "new", "num_replicas": 3, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
    "deny_delete": True,
}  # fmt: skip
FRAME_BYTES: Final = 1100  # that a group of the journal has beside the payloads of its rows
FAR: Final = "floor.far"
IDLE_SECONDS: Final = 600.0  # the other columns have their turns first


class Nats:
    """One connection to NATS, which hears one subject where it is waited for."""

    def __init__(self, port: int, subject: str) -> None:
        self.inbox = subject.encode()
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.sock.settimeout(IDLE_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.sock.sendall(CONNECT + b"SUB %b 1\r\n" % self.inbox)

    def hear(self) -> tuple[bytes, bytes]:
        """To which subject an answer goes, if one is wanted, and what was said."""
        while True:
            line, end, rest = self.rest.partition(b"\r\n")
            if end and not line.startswith(b"MSG "):
                self.rest = rest
                if line == b"PING":
                    self.sock.sendall(b"PONG\r\n")
            elif end and len(rest) >= (size := int((words := line.split())[-1])) + 2:
                self.rest = rest[size + 2 :]
                return words[3] if len(words) == 5 else b"", rest[:size]
            else:
                self.rest += self.sock.recv(65536)

    def say(self, subject: bytes, data: bytes) -> None:
        self.sock.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject, self.inbox, len(data), data))

    def ask(self, subject: str, data: bytes) -> bytes:
        self.say(subject.encode(), data)
        return self.hear()[1]


class Keeper:
    """A stream and a file that have all that is kept."""

    def __init__(self, port: int, name: str, file: str, syncs: bool) -> None:
        self.name = name
        self.syncs = syncs
        self.nats = Nats(port, f"_INBOX.{self.name}")
        said = json.dumps({**CONFIG, "name": self.name, "subjects": [f"{self.name}.log"]})
        found = json.loads(self.nats.ask(f"$JS.API.STREAM.CREATE.{self.name}", said.encode()))
        self.last = int(found["state"]["last_seq"])
        self.file = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(self.file, 0, 64 << 20)

    def keep(self, said: bytes) -> None:
        data = bytes(FRAME_BYTES) + said
        self._append(data)
        os.write(self.file, data)
        if self.syncs:
            os.fdatasync(self.file)
        self.last = int(json.loads(self.nats.hear()[1])["seq"])

    def _append(self, data: bytes) -> None:
        head = b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % self.last
        name, sizes = self.name.encode(), (len(head), len(head) + len(data))
        self.nats.sock.sendall(
            b"HPUB %b.log _INBOX.%b %d %d\r\n%b%b\r\n" % (name, name, *sizes, head, data)
        )


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


def serve(client: socket.socket, keep: Callable[[bytes], object]) -> None:
    rest = b""
    while got := client.recv(65536):
        rest += got
        said, size, count = answers(rest)
        if count:
            keep(rest[:size])
        client.sendall(said)
        rest = rest[size:]


def serve_all(keep: Callable[[bytes], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}: the floor", flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(client, keep)


def be_far(nats: Nats, keeper: Keeper) -> None:
    print("listening on 127.0.0.1:0: who keeps for another one", flush=True)
    while True:
        reply, said = nats.hear()
        keeper.keep(said)
        nats.say(reply, b"")


def main() -> None:
    port, options = int(sys.argv[1]), sys.argv[3:]
    if "--near" in options:
        nats = Nats(port, "_INBOX.near")
        serve_all(lambda said: nats.ask(FAR, said))
        return
    name = "floor" + "".join(options)
    keeper = Keeper(port, name, sys.argv[2], "--leave-it-unsynced" not in options)
    if "--far" in options:
        be_far(Nats(port, FAR), keeper)
    else:
        serve_all(keeper.keep)


if __name__ == "__main__":
    main()
