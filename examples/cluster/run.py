"""Three hubs as one: `make cluster`, or `python examples/cluster/run.py`.

    mqtt client ──▶ hub a ──▶ nats-server 1 ┐
     smq client ──▶ hub b ──▶ nats-server 2 ├ one NATS cluster
  switch client ──▶ hub c ──▶ nats-server 3 ┘

Each client says something five times a second and hears what all three say. In the middle hub b is
killed with `kill -9`, and comes back. Everything is on the loopback, keeps nothing, and ends by
itself, or with Ctrl-C; the exit code is 1 if at the end somebody does not hear somebody.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from hubbub import connect

PROTOCOLS: Final = {"a": "mqtt", "b": "smq", "c": "switch"}  # by node
EACH: Final = 0.2  # seconds from one message of a client to the next
VICTIM: Final = "b"
START_SECONDS: Final = 20.0


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


class Servers:
    """Three nats-servers that are one."""

    def __init__(self) -> None:
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if program is None:
            raise SystemExit("no nats-server: on Debian, apt install nats-server")
        ports, routes = free_ports(3), free_ports(3)
        urls = [f"nats://127.0.0.1:{port}" for port in routes]
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports]
        self.processes = [
            subprocess.Popen(
                [program, "-a", "127.0.0.1", "-p", str(port), "--cluster_name", "demo",
                 "--cluster", url, "--routes", ",".join(urls)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for port, url in zip(ports, urls, strict=True)
        ]  # fmt: skip

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait()


class Node:
    """One hub, a process of its own, always at the same port."""

    def __init__(self, name: str, urls: list[str], folder: Path) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        servers = [word for url in urls for word in ("--cluster", url)]
        self.command = [
            sys.executable, "-m", "hubbub", "serve", "--listen", f"127.0.0.1:{self.port}",
            "--set", "journal.record=none", "--cluster-name", name, *servers,
        ]  # fmt: skip
        self.log = folder / f"{name}.log"
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self.command, stdout=log, stderr=log, env=dict(os.environ))

    def start(self) -> None:
        self.process = self._started()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def sees(self) -> list[str] | None:
        """The other nodes that it knows, None while it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/status", timeout=1) as answer:
                cluster = json.load(answer)["cluster"]
        except (OSError, ValueError):
            return None
        return sorted(node["name"] for node in cluster["nodes"])


class Screen:
    """What is known now: a table on a terminal, lines elsewhere."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.began = time.monotonic()
        self.sees: dict[str, list[str] | None] = {}
        self.heard: Counter[tuple[str, str]] = Counter()
        self.events: list[str] = []
        self.console = Console()
        self.live = Live(console=self.console, refresh_per_second=4)

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:5.1f} s  {text}"
        self.events = [*self.events[-7:], line]
        if not self.console.is_terminal:
            self.console.print(line)

    def draw(self) -> Group:
        table = Table("client", "at hub", "hub sees", title="How often each client heard of each")
        for protocol in PROTOCOLS.values():
            table.add_column(protocol, justify="right")
        for name, protocol in PROTOCOLS.items():
            sees = self.sees.get(name)
            shown = "down" if sees is None else ", ".join(sees) or "nobody"
            counts = (str(self.heard[protocol, other]) for other in PROTOCOLS.values())
            table.add_row(protocol, f"{name} :{self.nodes[name].port}", shown, *counts)
        return Group(table, *self.events)

    async def watch(self) -> None:
        while True:
            for name, node in self.nodes.items():
                self.sees[name] = await asyncio.to_thread(node.sees)
            if self.console.is_terminal:
                self.live.update(self.draw())
            await asyncio.sleep(0.25)


async def hear(client: Any, protocol: str) -> AsyncIterator[str]:
    """The protocols whose clients said something."""
    topics = [f"demo/{one}" for one in PROTOCOLS.values()]
    if protocol == "switch":
        await client.create("inbox")
        await client.bind("inbox", "demo/+")
        after = "-1"
        while True:
            got = await client.transfer("inbox", after)
            after = got.next
            for message in got.messages:
                await client.ack("inbox", message.number)
                yield message.payload.decode()
    for topic in topics:
        await client.subscribe(topic)
    async for message in client.messages():
        yield message.payload.decode()


async def converse(node: Node, protocol: str, screen: Screen) -> None:
    """One client: it speaks and hears, and begins again when its hub was away."""
    name = {"token" if protocol == "switch" else "client_id": f"{protocol}-demo"}
    while True:
        try:
            async with (
                connect(f"{protocol}://127.0.0.1:{node.port}", **name) as client,
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(speak(client, protocol))
                async for other in hear(client, protocol):
                    screen.heard[protocol, other] += 1
        except* Exception:
            await asyncio.sleep(0.5)


async def speak(client: Any, protocol: str) -> None:
    while True:
        await client.publish(f"demo/{protocol}", protocol.encode())
        await asyncio.sleep(EACH)


async def until_all_know(screen: Screen, names: set[str]) -> None:
    async with asyncio.timeout(START_SECONDS):
        while any(set(screen.sees.get(name) or ()) != names - {name} for name in names):
            await asyncio.sleep(0.1)


async def all_hear(screen: Screen, least: float) -> list[tuple[str, str]]:
    """Who did not hear whom, once all did or the time is over: clients come back by themselves."""
    before = screen.heard.copy()
    pairs = [(one, other) for one in PROTOCOLS.values() for other in PROTOCOLS.values()]
    silent = pairs
    until = time.monotonic() + START_SECONDS
    await asyncio.sleep(least)
    while silent and time.monotonic() < until:
        await asyncio.sleep(0.25)
        silent = [pair for pair in pairs if screen.heard[pair] == before[pair]]
    return silent


async def show(screen: Screen, duration: float) -> bool:
    """The play; True if at its end everybody hears everybody."""
    nodes, names = screen.nodes, set(screen.nodes)
    tasks = [asyncio.create_task(screen.watch())]
    try:
        await until_all_know(screen, names)
        screen.say("three hubs are one")
        for name, protocol in PROTOCOLS.items():
            tasks.append(asyncio.create_task(converse(nodes[name], protocol, screen)))
        await asyncio.sleep(duration / 4)
        nodes[VICTIM].kill()
        screen.say(f"hub {VICTIM} is killed; the other two go on")
        await until_all_know(screen, names - {VICTIM})
        screen.say(f"the others have noticed that {VICTIM} is gone")
        await asyncio.sleep(duration / 4)
        nodes[VICTIM].start()
        await until_all_know(screen, names)
        screen.say(f"hub {VICTIM} is back")
        silent = await all_hear(screen, max(1.0, duration / 4))
        screen.say("everybody hears everybody" if not silent else f"silent: {silent}")
        return not silent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--duration", type=float, default=20.0, help="seconds, about [20]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = Servers()
        stack.callback(servers.stop)
        nodes = {}
        for turn, name in enumerate(PROTOCOLS):
            urls = servers.urls[turn:] + servers.urls[:turn]
            nodes[name] = Node(name, urls, Path(folder))
            stack.callback(nodes[name].stop)
        screen = Screen(nodes)
        live = screen.live if screen.console.is_terminal else contextlib.nullcontext()
        with live, contextlib.suppress(KeyboardInterrupt):
            fine = asyncio.run(show(screen, given.duration))
            screen.console.print(screen.draw())
            return 0 if fine else 1
    return 130


if __name__ == "__main__":
    raise SystemExit(main())
