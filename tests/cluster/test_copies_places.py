"""Copies of nodes that are several processes, and on servers with TLS and accounts."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from hubbub import connect
from tests.certificates import Authority
from tests.cluster.quorum import ROOT, Quorum, has_program
from tests.cluster.roaming import Place, Roaming
from tests.cluster.test_heirs import flow, is_heir, know, pair, read, status
from tests.cluster.test_jetstream import Hubs, hubs, quorum
from tests.process import RunningHub, StartHub
from tests.test_processes import (
    MANY,
    TWO,
    comes_in,
    killed_in_turn,
    more,
    processes,
    publish,
    until,
)

__all__ = ["hubs", "quorum"]
PATIENCE = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    has_program,
]


def copied(hub: RunningHub) -> set[str]:
    """Of which processes the log is copied."""
    page = httpx.get(hub.url("http") + "/metrics", timeout=PATIENCE).text
    lines = [line.split() for line in page.splitlines() if "cluster_copies_ready{" in line]
    return {name for name, value in lines if value == "1.0"}


async def lasting(hub: RunningHub) -> None:
    """Sessions at both processes, away."""
    for n in range(MANY):
        one = Roaming(Place(hub.address), f"away-{n}")
        await comes_in(one)
        assert await one.want("jobs", 1) == 1
        await one.close()
    await asyncio.sleep(0.5)


async def have_all(place: Place, acknowledged: list[bytes]) -> None:
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        await comes_in(one)
        assert one.present, f"away-{n}"
        missing = set(acknowledged)
        async with asyncio.timeout(PATIENCE):
            while missing:
                missing.discard((await one.message())[1])
        await one.close()


async def test_each_process_of_a_machine_has_copies_of_its_own(hubs: Hubs) -> None:
    """One is killed and back before anybody is its heir; nothing acknowledged is lost."""
    a = await asyncio.to_thread(hubs.hub, "a", *TWO)
    await until(lambda: len(copied(a)) == 2)
    await lasting(a)
    acknowledged: list[bytes] = []
    over = asyncio.Event()
    publishing = asyncio.create_task(publish(Place(a.address), acknowledged, over))
    await killed_in_turn(a, acknowledged, 1, 2)
    over.set()
    await publishing
    await have_all(Place(a.address), acknowledged)
    await until(lambda: len(copied(a)) == 2)
    assert "heir of" not in (hubs.root / "a" / "hub.log").read_text()
    assert await asyncio.to_thread(a.stop) == 0


async def test_a_machine_of_two_processes_dies_and_another_one_has_all(hubs: Hubs) -> None:
    a = await asyncio.to_thread(hubs.hub, "a", *TWO)
    b = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("b")))
    await asyncio.to_thread(know, b, "a-1", "a-2")
    await until(lambda: len(copied(a)) == 2)
    await lasting(a)
    acknowledged: list[bytes] = []
    over = asyncio.Event()
    publishing = asyncio.create_task(publish(Place(a.address), acknowledged, over))
    await more(acknowledged)
    children = list(processes(a).values())
    a.process.send_signal(signal.SIGSTOP)  # or it would start them again
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    a.process.kill()
    frozen = list(acknowledged)
    publishing.cancel()
    for dead in ("a-1", "a-2"):
        await asyncio.to_thread(is_heir, hubs, "b", dead)
    assert len(frozen) > 20
    await have_all(Place(b.address), frozen)


# Servers with TLS, and an account that may do no more than it must

GUIDE = (ROOT / "docs/guide/cluster.md").read_text("utf-8")
(CONFIGURED,) = re.findall(r"```\n(tls \{.*?)```", GUIDE, re.DOTALL)


class Guarded(Quorum):
    """As the guide says: TLS with certificates of both sides, and a user that may do what a node
    must, but `without`.
    """

    def __init__(self, root: Path, without: str = "") -> None:
        authority = Authority(root / "tls")
        place, self.own = authority.sign("localhost", server=True), authority.sign("node")
        self.authority = authority.file
        extra = CONFIGURED.replace(f'"{without}", ', "") if without else CONFIGURED
        files = {"server.pem": place, "server.key": place, "ca.pem": self.authority}
        for said, file in files.items():
            extra = extra.replace(f"/etc/nats/{said}", str(file))
        super().__init__(root, extra=extra)

    @property
    def urls(self) -> list[str]:
        return [f"tls://plant:secret@127.0.0.1:{port}" for port in self.ports]

    def options(self) -> tuple[str, ...]:
        ca, own = f"cluster.ca={self.authority}", f"cluster.certificate={self.own}"
        return "--set", ca, "--set", own


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    found = Guarded(tmp_path)
    found.wait()
    yield found
    found.end()


def guarded_hubs(start: StartHub, root: Path, servers: Guarded) -> Hubs:
    found = Hubs(start, root, servers)
    begin: Callable[..., RunningHub] = found.hub
    found.hub = lambda name, *more: begin(name, *servers.options(), *more)  # type: ignore[method-assign]
    return found


async def test_an_account_that_may_do_what_it_must_over_tls(
    start_hub: StartHub, tmp_path: Path, guarded: Guarded
) -> None:
    """Copies, a leader's death, an heir that stops and reads, and the dead one back."""
    hubs = guarded_hubs(start_hub, tmp_path, guarded)
    a, b = await asyncio.to_thread(pair, hubs)
    async with connect(a.url("mqtt"), client_id="away", clean=False) as client:
        await client.subscribe("kept", qos=1)
    acked: set[bytes] = set()
    writing = asyncio.create_task(flow(a, "kept", 1, acked, "w"))
    await asyncio.sleep(1.0)
    guarded.kill(0)
    began = len(acked)
    async with asyncio.timeout(PATIENCE):
        while len(acked) < began + 50:
            await asyncio.sleep(0.1)
    a.process.kill()
    frozen = set(acked)
    await asyncio.wait([writing], timeout=10)
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    assert frozen <= set(await read(b, "away"))
    guarded.start(0)
    again = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    await asyncio.to_thread(know, again, "b")
    assert status(again)["cluster"]["frames_refused"] == 0
    said = "".join((tmp_path / name / "hub.log").read_text() for name in "ab")
    assert "ermissions" not in said and "must grant" not in said
    assert "eof_received" not in said, "TLS ends when a server does"
    assert "secret" not in said


async def test_an_account_that_may_not_make_streams_is_said(
    start_hub: StartHub, tmp_path: Path
) -> None:
    servers = Guarded(tmp_path, without="$JS.API.STREAM.CREATE.*")
    servers.wait()
    try:
        hub = await asyncio.to_thread(guarded_hubs(start_hub, tmp_path, servers).hub, "a")
        until = time.monotonic() + PATIENCE
        while True:
            found = (await asyncio.to_thread(status, hub))["cluster"]["copies"]
            if 'must grant publish: "$JS.API.STREAM.CREATE.*"' in found["trouble"]:
                break
            assert time.monotonic() < until, found
            await asyncio.sleep(0.2)
        assert not found["ready"]
    finally:
        servers.end()
