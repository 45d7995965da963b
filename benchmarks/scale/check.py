"""Whether the model is right about one, two and three real hubs over a real nats-server."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, hubbub
from hubbub.cluster.nats import Nats
from hubbub.config.cluster import Cluster
from hubbub.protocols.mqtt import codec

CLIENTS: Final = 500
ALONE_SECONDS: Final = 0.003  # so no frame comes with another one
FRAMES: Final = 3  # that one of them is: it comes, it subscribes, it goes
MESSAGES: Final = 60_000
SINGLES: Final = 4_000
BURST: Final = 100
ROUNDS: Final = 5
TURNS: Final = 1_000


class Spent(NamedTuple):
    """Seconds of the processor for one event, at the node where it is and at another one."""

    here: float
    there: float


def dial(broker: Broker, name: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(codec.connect(name, True, 0))
    read(sock, 4)
    return sock


def read(sock: socket.socket, size: int) -> None:
    while size:
        got = sock.recv(min(size, 1 << 20))
        if not got:
            raise ConnectionError("the hub closed the connection")
        size -= len(got)


def spent(broker: Broker) -> float:
    """Seconds that its loop has run, to the nanosecond."""
    return int(Path(f"/proc/{broker.pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def nodes(url: str, folder: Path, count: int) -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        found = []
        for number in range(count):
            name = f"n{number}"
            settings = ["journal.record=none", "log.level=error"]
            if count > 1:
                settings += [f"cluster.url={url}", f"cluster.name={name}"]
            place = folder / f"{count}-{name}"
            found.append(stack.enter_context(hubbub(name, place, *settings)))
        time.sleep(2.5 if count > 1 else 0)
        yield found


def _measured(hubs: list[Broker], times: int, act: object) -> Spent:
    before = [spent(hub) for hub in hubs]
    act()  # type: ignore[operator]
    time.sleep(0.3)
    after = [spent(hub) - was for hub, was in zip(hubs, before, strict=True)]
    others = after[1:]
    return Spent(after[0] / times, statistics.mean(others) / times if others else 0.0)


def clients(hubs: list[Broker]) -> Spent:
    """Of a client that comes with one filter of its own, and goes."""

    def come_and_go() -> None:
        socks = []
        for number in range(CLIENTS):
            sock = dial(hubs[0], b"device-%07d" % number)
            time.sleep(ALONE_SECONDS)
            sock.sendall(codec.subscribe(1, [(b"devices/%07d/commands" % number, 0)]))
            read(sock, 5)
            time.sleep(ALONE_SECONDS)
            socks.append(sock)
        for sock in socks:
            sock.sendall(codec.DISCONNECT_PACKET)
            sock.close()
            time.sleep(ALONE_SECONDS)

    return _measured(hubs, CLIENTS, come_and_go)


def messages(hubs: list[Broker], burst: int) -> Spent:
    """Of a message of 128 bytes that each other node wants; so many are said together."""
    readers = [dial(hub, b"reader-%d" % n) for n, hub in enumerate(hubs[1:])]
    for reader in readers:
        reader.sendall(codec.subscribe(1, [(b"t", 0)]))
        read(reader, 5)
    time.sleep(0.5)
    sender = dial(hubs[0], b"sender")
    packets = [codec.publish(b"t", b"%0*d" % (128 - n % 7, n), 0) for n in range(burst)]
    said, each = b"".join(packets) + codec.PINGREQ_PACKET, sum(map(len, packets))
    times = MESSAGES if burst > 1 else SINGLES

    def say() -> None:
        for _ in range(times // burst):
            sender.sendall(said)
            read(sender, 2)
            for reader in readers:
                read(reader, each)

    found = _measured(hubs, times, say)
    for sock in (sender, *readers):
        sock.close()
    return found


def least(rounds: list[Spent]) -> Spent:
    """What other programs took least of."""
    return Spent(min(one.here for one in rounds), min(one.there for one in rounds))


async def sending(url: str) -> tuple[float, float]:
    """What NATS costs a node's loop: once a turn in which it says something, and for each frame."""
    engine = Nats(Cluster(url=(url,), name="sending"))
    await engine.open(lambda frame: None, lambda: None)
    frame = bytes(200)

    async def turns(frames: int) -> float:
        began = time.thread_time()
        for _ in range(TURNS):
            for number in range(frames):
                engine.send(f"nobody-{number}", [frame])
            await asyncio.sleep(0.0003)
        return (time.thread_time() - began) / TURNS

    rounds = [[await turns(frames) for frames in (0, 1, 11)] for _ in range(ROUNDS)]
    await engine.close()
    idle, one, eleven = (min(column) for column in zip(*rounds, strict=True))
    each = (eleven - one) / 10
    return one - idle - each, each
