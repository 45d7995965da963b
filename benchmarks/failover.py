"""How long a cluster is without what a killed program had: live traffic, a session, a queue.

`python -m benchmarks.failover` (two minutes) starts three nats-servers with JetStream and two hubs
with copies. A server is killed while one hub sends each 2 ms to a client of the other one: the
longest pause is printed. Then a hub is killed that has a session that lasts and a queue, with a
message in each that was acknowledged: how long until the other hub has given both to who asks it.
It measures and never judges; docs/benchmarks/cluster.md says how to read the result.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, hubbub, run_in_folder
from benchmarks.copies import SETTLE_SECONDS, dial, servers
from hubbub.protocols.mqtt import codec

EACH: Final = 0.002  # seconds from one message to the next
AROUND: Final = 8.0  # seconds that are looked at
PATIENCE: Final = 60.0
RETRY: Final = 0.1
SESSION: Final = b"device"


def killed(broker: Broker) -> float:
    """It is, and when."""
    os.kill(broker.pid, signal.SIGKILL)
    return time.monotonic()


def longest_pause(sender: Broker, reader: Broker, victim: Broker | None) -> float:
    """Seconds in which nothing came, the most, while somebody is killed."""
    with (
        dial(reader.port, b"reader", True) as near,
        dial(sender.port, b"sender", True) as far,
        ThreadPoolExecutor(1) as pool,
    ):
        near.sendall(codec.subscribe(1, [(b"live", 0)]))
        near.recv(100)
        time.sleep(1.0)  # until the other hub knows
        ends, packet = time.monotonic() + AROUND, codec.publish(b"live", b"x", 0)

        def send() -> None:
            while time.monotonic() < ends:
                far.sendall(packet)
                time.sleep(EACH)

        sending = pool.submit(send)
        longest, last, kill_at = 0.0, time.monotonic(), time.monotonic() + 1.0
        near.settimeout(0.05)
        while (now := time.monotonic()) < ends:
            if victim is not None and now >= kill_at:
                killed(victim)
                victim = None
            with suppress(TimeoutError):
                if not near.recv(65536):
                    raise RuntimeError("the hub closed a connection")
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
        sending.result()
        return max(longest, ends - last)


def leave(home: Broker, queue: bytes) -> None:
    """A session that lasts and a queue at that hub, and a message in each that is acknowledged."""
    with dial(home.port, SESSION, False) as device:
        device.sendall(codec.subscribe(1, [(b"for/device", 1)]))
        device.recv(100)
        device.sendall(codec.DISCONNECT_PACKET)
    with dial(home.port, b"writer", True) as writer:
        for number, topic in enumerate((b"for/device", queue), 1):
            writer.sendall(codec.publish(topic, b"kept", 1, False, number))
            if len(writer.recv(4)) != 4:
                raise RuntimeError("a message was not acknowledged")


def asked(other: Broker, client: bytes, clean: bool, wanted: bytes, since: float) -> float:
    """Seconds until that client gets the message at the other hub, which it asks ever again."""
    while time.monotonic() - since < PATIENCE:
        with suppress(OSError):
            with socket.create_connection(("127.0.0.1", other.port), 20) as sock:
                sock.settimeout(1.0)
                sock.sendall(codec.connect(client, clean, 60))
                if wanted:
                    sock.sendall(codec.subscribe(1, [(wanted, 1)]))
                got = b""
                while b"kept" not in got:
                    piece = sock.recv(1000)
                    if not piece:
                        raise OSError("it was sent away")
                    got += piece
                at = got.index(b"kept") - 2
                sock.sendall(b"\x40\x02" + got[at : at + 2])
                sock.sendall(codec.DISCONNECT_PACKET)
                return time.monotonic() - since
        time.sleep(RETRY)
    raise RuntimeError(f"{client!r} got nothing within {PATIENCE:g} s")


def moved(home: Broker, other: Broker) -> tuple[float, float]:
    """Seconds from the kill of a home until its session and its queue are at the other hub."""
    queue = b"$queue/" + home.name.encode()  # one of its own: it stays where it came to
    leave(home, queue)
    time.sleep(1.0)
    since = killed(home)
    with ThreadPoolExecutor(1) as pool:
        device = pool.submit(asked, other, SESSION, False, b"", since)
        worker = asked(other, b"worker", True, queue, since)
    with dial(other.port, SESSION, True):  # the next round begins anew
        return device.result(), worker


def said(name: str, times: list[float]) -> str:
    return f"| {name} | {statistics.median(times):.2f} | {max(times):.2f} |"


def run(rounds: int, folder: Path) -> None:
    with ExitStack() as stack:
        nats, _ = stack.enter_context(servers(folder))
        urls = ",".join(f"nats://127.0.0.1:{one.port}" for one in nats)

        def hub(name: str) -> Broker:
            settings = (f"cluster.url={urls}", f"cluster.name={name}", "cluster.copies=3")
            return stack.enter_context(hubbub(name, folder / name, *settings))

        stays = hub("stays")
        sessions, queues = [], []
        for number in range(rounds):
            home = hub(f"goes-{number}")
            time.sleep(SETTLE_SECONDS)
            session, queue = moved(home, stays)
            sessions.append(session)
            queues.append(queue)
        other = hub("other")
        time.sleep(SETTLE_SECONDS)
        nobody = longest_pause(other, stays, None)
        pauses = [longest_pause(other, stays, victim) for victim in nats[:2]]
    print("| killed | seconds, median | most |", "|---|---|---|", sep="\n")
    print(said("a hub: until its session is at another one", sessions))
    print(said("a hub: until its queue is at another one", queues))
    print(said("nobody: the longest pause of live traffic", [nobody]))
    print(said("two of three servers, one after the other: the longest pause", pauses))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.failover")
    parser.add_argument("--rounds", type=int, default=5, help="of the kill of a hub [5]")
    given = parser.parse_args()
    return run_in_folder(partial(run, given.rounds))


if __name__ == "__main__":
    sys.exit(main())
