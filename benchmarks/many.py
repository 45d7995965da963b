"""What thousands of connections cost that hardly say anything: memory, connecting, idling, leaving.

`python -m benchmarks.many` (three minutes) connects MQTT clients with a subscription, a keep-alive
and a will to mosquitto and to Hubbub, one broker after the other: lets them be, but for a PINGREQ
of each a minute, and ends all at once, so that somebody who reads all wills gets them. Then the
same over TLS with fewer. A floor (`greeter.py`) lets the same clients in and does nothing else for
them; others (`floor_connect`) have no loop of others, in Python, the same compiled, and in C, or do
in Python what no hub can leave out.
Memory is the resident set with them, less the one without; what the
kernel keeps for a socket is not in it. Never judges.
"""

from __future__ import annotations

import argparse
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, Missing, free_port, hubbub, mosquitto
from benchmarks.floors import running
from benchmarks.generator import built, compiled
from benchmarks.mqtt import COMPILED
from hubbub.protocols.mqtt import codec

KEEP_ALIVE: Final = 60
IDLE_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 2.0
LEAVE_SECONDS: Final = 60.0
TOGETHER: Final = 100  # connect at the same moment
PATIENCE: Final = 60.0  # seconds
PING_SECONDS: Final = 0.001  # from one answer to the next question
WARM: Final = 200  # connections before it is measured, so that what is made once is there

Start = Callable[[str, Path, Path | None], AbstractContextManager[Broker]]


class Found(NamedTuple):
    """Bytes and CPU µs a connection, CPU of all while idle in %, CPU µs a will, seconds for all."""

    memory: float
    connect: float
    rate: float
    idle: float
    will: float
    leaving: float

    def cells(self) -> str:
        return (f"{self.memory / 1024:.1f} | {self.connect:.0f} | {self.rate:,.0f} | "
                f"{self.idle:.1f} | {self.will:.0f} | {self.leaving:.2f}")  # fmt: skip


def dialed(
    broker: Broker, names: list[bytes], tls: ssl.SSLContext | None, wills: bool
) -> list[socket.socket]:
    """Clients that are connected and have subscribed, as many at once; a will of each has a topic
    of its own.
    """
    found = [socket.create_connection(("127.0.0.1", broker.port), 20) for _ in names]
    if tls is not None:
        found = [tls.wrap_socket(sock, server_hostname="localhost") for sock in found]
    for sock, name in zip(found, names, strict=True):
        will = codec.Will(b"will/" + name, b"gone", 0, False) if wills else None
        asked = codec.connect(name, True, KEEP_ALIVE, will)
        sock.sendall(asked + codec.subscribe(1, [(b"device/" + name + b"/set", 1)]))
    for sock in found:
        received(sock, 4 + 5)
    return found


def all_dialed(
    broker: Broker, kind: bytes, count: int, tls: ssl.SSLContext | None, wills: bool
) -> list[socket.socket]:
    names = [b"%b%06d" % (kind, number) for number in range(count)]
    found = []
    for at in range(0, count, TOGETHER):
        found += dialed(broker, names[at : at + TOGETHER], tls, wills)
    return found


def entered(broker: Broker, client: bytes, clean: bool = True) -> socket.socket:
    """A client that was let in and may be silent for as long as it likes."""
    sock = socket.create_connection(("127.0.0.1", broker.port), PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(codec.connect(client, clean, 0))
    received(sock, 4)
    return sock


def waits(broker: Broker, work: Callable[[], None]) -> list[float]:
    """Seconds that another client waited for each answer while that was done, ascending."""
    found: list[float] = []
    worker = Thread(target=work)
    with entered(broker, b"other") as other:
        worker.start()
        while worker.is_alive():
            asked = time.monotonic()
            other.sendall(codec.PINGREQ_PACKET)
            received(other, 2)
            found.append(time.monotonic() - asked)
            time.sleep(PING_SECONDS)
    return sorted(found)


def received(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(size))
        if not got:
            raise RuntimeError("a broker closed a connection")
        size -= got


def idle(broker: Broker, clients: list[socket.socket]) -> float:
    """Seconds of CPU a second while each says PINGREQ once in a keep-alive, evenly spread."""
    began, spent, at = time.monotonic(), broker.cpu(), 0
    while (passed := time.monotonic() - began) < IDLE_SECONDS:
        due = int(passed * len(clients) / KEEP_ALIVE)
        for client in clients[at:due]:
            client.sendall(b"\xc0\x00")
            received(client, 2)
        at = due
        time.sleep(0.01)
    return (broker.cpu() - spent) / IDLE_SECONDS


def left(
    broker: Broker, clients: list[socket.socket], tls: ssl.SSLContext | None, wills: bool
) -> float:
    """Seconds until a reader of all wills has those of all clients, which go at once."""
    with dialed(broker, [b"reader"], tls, False)[0] as reader:
        reader.sendall(codec.subscribe(2, [(b"will/#", 0)]))
        received(reader, 5)
        began = time.monotonic()
        for client in clients:
            client.close()
        reader.settimeout(LEAVE_SECONDS)
        received(reader, wills * len(clients) * (2 + 2 + len(b"will/0000000") + 4))
        return time.monotonic() - began


def measure(broker: Broker, count: int, tls: ssl.SSLContext | None, wills: bool) -> Found:
    warm = all_dialed(broker, b"w", WARM, tls, wills)
    time.sleep(SETTLE_SECONDS)
    memory, spent, began = broker.resident(), broker.cpu(), time.monotonic()
    clients = all_dialed(broker, b"c", count, tls, wills)
    connect, seconds = broker.cpu() - spent, time.monotonic() - began
    time.sleep(SETTLE_SECONDS)
    memory = broker.resident() - memory
    idling = idle(broker, clients)
    spent = broker.cpu()
    leaving = left(broker, clients, tls, wills)
    will = broker.cpu() - spent
    for client in warm:
        client.close()
    each = 1e6 / count
    return Found(
        memory / count, connect * each, count / seconds, 100 * idling, will * each, leaving
    )


def certificate(folder: Path) -> tuple[Path, Path]:
    """One of its own, and its key."""
    file, key = folder / "cert.pem", folder / "key.pem"
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
               "subjectAltName=DNS:localhost", "-keyout", key, "-out", file)  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    for one in (file, key):
        one.chmod(0o644)  # mosquitto, started by root, reads as another user
    return file, key


def hub(package: Path | None) -> Start:
    def start(name: str, folder: Path, tls: Path | None) -> AbstractContextManager[Broker]:
        settings = ["journal.record=none"]
        if tls is not None:
            settings += [f"tls.certificate={tls}", f"tls.key={tls.with_name('key.pem')}"]
        return hubbub(name, folder / "data", *settings, package=package)

    return start


@contextmanager
def floor(name: str, folder: Path, tls: Path | None) -> Iterator[Broker]:
    port = free_port()
    files = [tls, tls.with_name("key.pem")] if tls is not None else []
    command = (sys.executable, "-m", "benchmarks.greeter", str(port), *map(str, files))
    with running(name, port, *command) as broker:
        yield broker


def without_a_loop(command: Sequence[str | Path], *more: str) -> Start:
    def start(name: str, folder: Path, tls: Path | None) -> AbstractContextManager[Broker]:
        port = free_port()
        return running(name, port, *command, str(port), *more)

    return start


def peer(name: str, folder: Path, tls: Path | None) -> AbstractContextManager[Broker]:
    more = (f"certfile {tls}", f"keyfile {tls.with_name('key.pem')}") if tls else ()
    return mosquitto(name, True, folder, *more)


COLUMNS: Final[dict[str, Start]] = {
    "mosquitto": peer, "Hubbub, plain": hub(None), "Hubbub, compiled": hub(COMPILED),
    "floor, Python on uvloop": floor,
}  # fmt: skip
PLAIN: Final = (sys.executable, "-m", "benchmarks.floor_connect")


def columns(secure: bool) -> dict[str, Start]:
    """The floors without a loop of others speak no TLS."""
    if secure:
        return COLUMNS
    return {
        **COLUMNS,
        "floor, Python": without_a_loop(PLAIN),
        "floor, compiled": without_a_loop(compiled("floor_connect")),
        "floor, C": without_a_loop([built("floor_connect")]),
        "duties, Python": without_a_loop(PLAIN, "duties"),
        "duties, compiled": without_a_loop(compiled("floor_connect"), "duties"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.many")
    parser.add_argument("--count", type=int, default=9000, help="connections [9000]")
    parser.add_argument("--tls", type=int, default=2000, help="connections over TLS [2000]")
    parser.add_argument("--wills", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=2, help="of each [2]")
    parser.add_argument("--only", default="", help="those whose name has this text")
    chosen = parser.parse_args()
    if not (COMPILED / "hubbub").is_dir():
        raise Missing("no compiled hub: make compiled")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # brokers inherit it
    print("| | connections | KiB each | CPU µs a connect | connects/s | CPU while idle, % | "
          "CPU µs a will | all wills in s |")  # fmt: skip
    print("|---" * 8 + "|")
    for secure, count in ((False, chosen.count), (True, chosen.tls)):
        for name, start in columns(secure).items():
            if chosen.only not in name or not count:
                continue
            found = []
            for _ in range(chosen.rounds):
                with tempfile.TemporaryDirectory(prefix="hubbub-many-") as folder:
                    Path(folder).chmod(0o755)
                    tls = certificate(Path(folder))[0] if secure else None
                    context = ssl.create_default_context(cafile=tls) if tls else None
                    with start(name, Path(folder), tls) as broker:
                        found.append(measure(broker, count, context, chosen.wills))
            median = Found(*(statistics.median(column) for column in zip(*found, strict=True)))
            print(f"| {name}{', TLS' * secure} | {count:,} | {median.cells()} |", flush=True)


if __name__ == "__main__":
    main()
