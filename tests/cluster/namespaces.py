"""Three machines in one: each network namespace has a nats-server and a hub, a bridge joins them.

    root ── 10.213.a.0/30 ──┐                       clients of the tests
                         [ns a] nats-server, hub
                            │ 10.214.0.1
    [ns switch] ═══ bridge ═╪═ [ns b] ... 10.214.0.2
                            ╪═ [ns c] ... 10.214.0.3

`cut` pulls the plug of one machine, `heal` puts it in again: nobody is told, packets just do not
arrive. Needs root and iproute2; `missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.process import RunningHub

NAMES: Final = ("a", "b", "c")
BRIDGE: Final = "10.214.0"  # between the nats-servers
DOOR: Final = "10.213"  # from the tests to each hub
CLIENTS, ROUTES = 4222, 6222
NATS: Final = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")

# A route whose other end is gone is given up after two of these: else it would be four minutes.
PINGS: Final = 'ping_interval: "1s"\nping_max: 2\n'


_NUMBERS: Final = itertools.count()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def missing() -> str:
    """Why there can be no namespaces here, "" if there can."""
    if NATS is None:
        return "no nats-server (apt install nats-server)"
    if shutil.which("ip") is None:
        return "no `ip` (apt install iproute2)"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    probe = f"hubbub-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return ""


class Apart(RunningHub):
    """A hub in a namespace, which clients reach by its own door."""

    def __init__(self, under: tuple[str, ...], door: str, data: Path, *options: str) -> None:
        self.under = under
        super().__init__(data, "--listen", f"{door}:0", "--set", "allow_anonymous=true", *options)

    def _read_address(self) -> str:
        super()._read_address()  # that of its loopback
        return super()._read_address()


class Machines:
    """The namespaces of one test; `begin` starts a machine's server and hub. `jetstream`: the
    program of a server that can keep copies, instead of the system's without them.
    """

    def __init__(self, root: Path, jetstream: str = "") -> None:
        self.root = root
        self.jetstream = jetstream
        # What the last test had goes by and by, so this one has names and addresses of its own.
        self.number = os.getpid() + next(_NUMBERS)
        self.prefix = f"hub{self.number % 10_000}"
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.hubs: dict[str, Apart] = {}

    def space(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def door(self, name: str) -> str:
        return f"{DOOR}.{self._third()}.{2 + 4 * NAMES.index(name)}"

    def _third(self) -> int:
        return self.number % 250 + 1

    def build(self) -> None:
        switch = self.space("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(NAMES, 1):
            space, door = self.space(name), f"{self.prefix}{name}"
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            pair = ("type", "veth", "peer", "name", "net", "netns", space)
            _ip("-n", switch, "link", "add", "name", name, *pair)
            _ip("-n", switch, "link", "set", "dev", name, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{BRIDGE}.{number}/24", "dev", "net")
            _ip("-n", space, "link", "set", "net", "up")
            pair = ("type", "veth", "peer", "name", "door", "netns", space)
            _ip("link", "add", "name", door, *pair)
            here = f"{DOOR}.{self._third()}.{1 + 4 * (number - 1)}/30"
            _ip("address", "add", here, "dev", door)
            _ip("link", "set", door, "up")
            _ip("-n", space, "address", "add", f"{self.door(name)}/30", "dev", "door")
            _ip("-n", space, "link", "set", "door", "up")

    def begin(self, name: str, *options: str) -> Apart:
        """Its nats-server and its hub, which only knows its own server."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        under = ("ip", "netns", "exec", self.space(name))
        if name not in self.servers:
            number = NAMES.index(name) + 1
            routes = [
                f"nats://{BRIDGE}.{n}:{ROUTES}" for n in range(1, len(NAMES) + 1) if n != number
            ]
            (folder / "nats.conf").write_text(
                f'listen: "127.0.0.1:{CLIENTS}"\n{PINGS}cluster {{ name: "apart", '
                f'listen: "{BRIDGE}.{number}:{ROUTES}", routes: {routes} }}\n'.replace("'", '"')
            )
            if self.jetstream:
                with (folder / "nats.conf").open("a") as file:
                    file.write(f'server_name: {name}\njetstream {{ store_dir: "{folder}/js" }}\n')
            server = self.jetstream or NATS
            assert server is not None
            self.servers[name] = subprocess.Popen(
                [*under, server, "-c", str(folder / "nats.conf"), "-l", str(folder / "nats.log")]
            )
        hub = Apart(
            under, self.door(name), folder / "data",
            "--cluster", f"nats://127.0.0.1:{CLIENTS}", "--cluster-name", name, *options,
        )  # fmt: skip
        self.hubs[name] = hub
        return hub

    def cut(self, name: str) -> None:
        _ip("-n", self.space("switch"), "link", "set", "dev", name, "down")

    def heal(self, name: str) -> None:
        _ip("-n", self.space("switch"), "link", "set", "dev", name, "up")

    def end(self) -> None:
        for hub in self.hubs.values():
            hub.stop()
        for server in self.servers.values():
            server.terminate()
            server.wait(10)
        for name in (*NAMES, "switch"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.space(name))


@contextlib.contextmanager
def machines(root: Path, jetstream: str = "") -> Iterator[Machines]:
    found = Machines(root, jetstream)
    try:
        found.build()
        yield found
    finally:
        found.end()
