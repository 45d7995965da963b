"""A floor: the least that a Python program does to let a client in, to keep it and to see it go.

One loop of its own around `epoll`, descriptors without socket objects, one object with slots for
each client. A CONNECT is read to its end (client id, will, keep-alive), and so is a SUBSCRIBE; both
are answered in one write, the name and the filter have their place in a table, and a will is
published to whoever reads `will/#`. It checks no rights and bounds nobody, has no log, no metrics
and no journal: what a hub written in Python costs beyond it is what it does for its users.

With DUTIES it does for them what a hub cannot leave out, each in the shortest form there is and
with nothing to be set: names are checked, strangers have room by address and pay for their time,
somebody is asked who may come in and subscribe, a session is apart from its connection, has a
random address, its own window, a quota, and a row for its will; silence has a deadline.

`python -m benchmarks.floor_connect PORT [DUTIES]`. Called by many.py, which also compiles it.
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import sys
import time
from collections import OrderedDict
from typing import Final

INPUT: Final = 64 * 1024
BACKLOG: Final = 512
ROOM: Final = 10_000  # strangers
DRAWN: Final = 1024
SILENT: Final = 10.0  # seconds before a login
QUOTA: Final = 1 << 30


class Client:
    __slots__ = ("fd", "address", "name", "filter", "will", "payload", "heard", "alive", "session")

    def __init__(self, fd: int, address: str) -> None:
        self.fd = fd
        self.address = address
        self.session: Session | None = None
        self.name = b""
        self.filter = b""
        self.will = b""
        self.payload = b""
        self.heard = 0.0
        self.alive = 0


class Subscription:
    __slots__ = ("session", "filter", "qos")

    def __init__(self, session: Session, name: str, qos: int) -> None:
        self.session = session
        self.filter = name
        self.qos = qos


class Session:
    """What a client is owed; it may outlive the connection."""

    __slots__ = (
        "client", "name", "user", "address", "number", "came", "subscriptions", "first", "sent",
        "next", "delivered", "dropped",
    )  # fmt: skip

    def __init__(self, client: Client, name: str, number: int) -> None:
        self.client: Client | None = client
        self.name = name
        self.user = ""
        self.address = client.address
        self.number = number
        self.came = time.time_ns() // 1000
        self.subscriptions: dict[str, Subscription] = {}
        self.first = self.sent = self.next = self.delivered = self.dropped = 0


class Rights:
    """Whoever comes may everything, as in the hub that is measured; but it is asked."""

    def admits(self, user: str, name: str, address: str) -> bool:
        return True

    def may(self, verb: str, name: str) -> bool:
        return True


class Floor:
    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.sessions: dict[bytes, Client] = {}
        self.readers: dict[bytes, Client] = {}

    def enter(self, fd: int, address: str) -> None:
        self.clients[fd] = Client(fd, address)

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


class Duties(Floor):
    """The same, and what a hub cannot leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.rights = Rights()
        self.strangers: OrderedDict[Client, float] = OrderedDict()
        self.at: dict[str, OrderedDict[Client, None]] = {}
        self.due = 0.0
        self.deadlines: list[tuple[float, int, Client]] = []
        self.numbers: dict[int, Session] = {}
        self.known: dict[str, Session] = {}
        self.filters: dict[str, dict[Session, Subscription]] = {}
        self.wills: dict[str, tuple[object, ...]] = {}
        self.used: dict[str, int] = {}
        self.drawn: list[int] = []
        self.connections = self.received = self.order = 0

    def enter(self, fd: int, address: str) -> None:
        self.connections += 1
        if len(self.strangers) >= ROOM:
            self.leave(next(iter(self.strangers)))
        client = self.clients[fd] = Client(fd, address)
        now = time.monotonic()
        self.strangers[client] = now
        here = self.at.get(address)
        if here is None:
            here = self.at[address] = OrderedDict()
        here[client] = None
        self.wake(client, now + SILENT)

    def wake(self, client: Client, when: float) -> None:
        self.order += 1
        heapq.heappush(self.deadlines, (when, self.order, client))

    def hear(self, client: Client, data: bytes) -> None:
        self.received += len(data)
        if client not in self.strangers:
            super().hear(client, data)
            return
        began = time.thread_time()
        super().hear(client, data)
        if client in self.strangers:
            self.due += time.thread_time() - began

    def admit(self, client: Client) -> None:
        if self.strangers.pop(client, None) is not None:
            here = self.at[client.address]
            del here[client]
            if not here:
                del self.at[client.address]

    def draw(self) -> int:
        while True:
            if not self.drawn:
                self.drawn.extend(memoryview(os.urandom(4 * DRAWN)).cast("I"))
            number = self.drawn.pop()
            if number > 1 and number not in self.numbers:
                return number

    def connect(self, client: Client, data: bytes, at: int) -> bytes:
        said = super().connect(client, data, at)
        name = checked(client.name)
        if not self.rights.admits("", name, client.address):
            return b"\x20\x02\x00\x05"
        old = self.known.get(name)
        if old is not None and old.client is not None:
            self.leave(old.client)
        self.admit(client)
        session = client.session = Session(client, name, self.draw())
        self.known[name] = self.numbers[session.number] = session
        if client.will:
            topic = checked(client.will)
            if self.rights.may("publish", topic):
                self.wills[name] = (
                    0, session.came, b"will", b"mqtt", client.name, client.will, b"", 0, False,
                    client.payload, b"", b"", b"", 0, 0, 0, b"",
                )  # fmt: skip
        self.wake(client, client.heard + 1.5 * client.alive)
        return said

    def subscribe(self, client: Client, data: bytes, at: int, end: int) -> bytes:
        said = super().subscribe(client, data, at, end)
        session, name = client.session, checked(client.filter)
        if session is None or not self.rights.may("subscribe", name):
            return said[:-1] + b"\x80"
        used = self.used.get(session.address, 0) + len(name)
        if used > QUOTA:
            return said[:-1] + b"\x80"
        self.used[session.address] = used
        subscription = session.subscriptions[name] = Subscription(session, name, said[-1])
        self.filters.setdefault(name, {})[session] = subscription
        return said

    def leave(self, client: Client) -> None:
        self.admit(client)
        session, client.session = client.session, None
        if session is not None:
            del self.numbers[session.number], self.known[session.name]
            self.wills.pop(session.name, None)
            for name in session.subscriptions:
                del self.filters[name][session]
                self.used[session.address] -= len(name)
        super().leave(client)


def checked(name: bytes) -> str:
    said = name.decode()
    if not said.isprintable():
        raise ValueError(said)
    return said


def text(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    return data[at + 2 : end], end


def serve(port: int, floor: Floor) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # whoever is accepted has it
    poll, door = select.epoll(), listener.fileno()
    poll.register(door, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == door:
                fd, peer = listener._accept()  # type: ignore[attr-defined]
                floor.enter(fd, peer[0])
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
    serve(int(sys.argv[1]), Duties() if len(sys.argv) > 2 else Floor())


if __name__ == "__main__":
    main()
