"""Devices that were away while much was said to each: what a message costs when they come back.

`python -m benchmarks.backlogs` (two minutes) has 500 sessions that last, to which a publisher says
1,000 messages of 200 bytes each, in turns: those of one device lie apart, as in life. The hub is
started again, so that nothing is in memory but where they lie (mosquitto is not: it keeps them
there), then each device takes what is its own, while another client says that it is alive.
It measures and never judges; docs/benchmarks/growth.md says how to read the result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, hubbub, mosquitto, packages, run_in_folder
from benchmarks.many import entered, received, waits
from benchmarks.mqtt import COMPILED
from hubbub.protocols.mqtt import codec

DEVICES: Final = 500
TOGETHER: Final = 100  # PUBLISHes on their way
Open = Callable[[], AbstractContextManager[Broker]]


def said(device: int, number: int, packet_id: int = 1) -> bytes:
    return codec.publish(b"to/%03d" % device, b"%0200d" % number, 1, packet_id=packet_id)


def fill(broker: Broker, messages: int) -> None:
    for device in range(DEVICES):
        with entered(broker, b"device-%03d" % device, clean=False) as sock:
            sock.sendall(codec.subscribe(1, [(b"to/%03d" % device, 1)]))
            received(sock, 5)
    with entered(broker, b"publisher", clean=True) as sock:
        for number in range(messages):
            for begin in range(0, DEVICES, TOGETHER):
                some = range(begin, begin + TOGETHER)
                sock.sendall(b"".join(said(one, number, one + 1) for one in some))
                received(sock, 4 * TOGETHER)


def take(broker: Broker, device: int, messages: int) -> None:
    """All that is there for it, each acknowledged as it comes."""
    size = len(said(device, 0))
    with entered(broker, b"device-%03d" % device, clean=False) as sock:
        got = acknowledged = 0
        while acknowledged < messages:
            got += len(sock.recv(1 << 18))
            ids = range(acknowledged + 1, got // size + 1)
            sock.sendall(b"".join(codec.acknowledgement(codec.PUBACK, one) for one in ids))
            acknowledged += len(ids)
        sock.sendall(codec.PINGREQ_PACKET)
        received(sock, 2)


def taken(broker: Broker, messages: int) -> str:
    """µs of CPU a message, ms a device took, and what 99 of 100 waits of another were below."""

    def all_of_them() -> None:
        for device in range(DEVICES):
            take(broker, device, messages)

    began, cpu = time.monotonic(), broker.cpu()
    waited = waits(broker, all_of_them)
    cost = (broker.cpu() - cpu) / DEVICES / messages * 1e6
    each = (time.monotonic() - began) / DEVICES * 1e3
    return f"{cost:.1f} | {each:.1f} | {waited[len(waited) * 99 // 100] * 1e3:.1f}"


def run(messages: int, compiled: Path, folder: Path) -> None:
    brokers: dict[str, Open] = {"mosquitto": partial(mosquitto, "mosquitto", True, folder)}
    for number, (form, package) in enumerate(packages(compiled).items()):
        name = f"Hubbub, {form}"
        brokers[name] = partial(hubbub, name, folder / f"data-{number}", package=package)
    print("| broker | µs of CPU a message | ms a device | another client waited, ms, 99 % |")
    print("|---|---|---|---|")
    for name, opened in brokers.items():
        with opened() as broker:
            fill(broker, messages)
            if name == "mosquitto":
                print(f"| {name} | {taken(broker, messages)} |", flush=True)
                continue
        with opened() as broker:
            print(f"| {name} | {taken(broker, messages)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.backlogs")
    parser.add_argument("--messages", type=int, default=1_000, help="for each device [1000]")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled package")
    given = parser.parse_args()
    return run_in_folder(partial(run, given.messages, given.compiled))


if __name__ == "__main__":
    sys.exit(main())
