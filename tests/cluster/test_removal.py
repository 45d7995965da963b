"""A node is removed for good, and comes back all the same: real hubs, with copies and without."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from hubbub import connect
from hubbub.runtime import directory
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_heirs import is_heir, know, pair, read, status
from tests.cluster.test_jetstream import Hubs, hubs, pieces_of, quorum
from tests.cluster.test_nats import Nodes, nodes, server
from tests.command import hubbub
from tests.process import RunningHub

__all__ = ["hubs", "nodes", "quorum", "server"]

PATIENCE = 40.0
pytestmark = [
    pytest.mark.interop,
    has_program,
]


def end(hub: RunningHub, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return hubbub("end", "node", name, *options, "--url", hub.url("http"))


def away(hub: RunningHub) -> list[str]:
    return [one["name"] for one in status(hub)["cluster"]["away"]]


async def test_without_copies_it_is_forgotten_by_all_and_back_with_another_directory(
    nodes: Nodes,
) -> None:
    a, b = await nodes.pair()
    async with connect(b.url("mqtt"), client_id="bob", clean=False) as client:
        await client.subscribe("kept", qos=1)
    await nodes.until(a, lambda c: c["nodes"] and c["nodes"][0]["filters"] == 1)
    refused = await asyncio.to_thread(end, a, "b")
    assert refused.returncode == 1 and "is there: stop it first" in refused.stderr
    b.stop(signal.SIGKILL)
    await nodes.know(a)
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"lost", qos=1)
    page = await asyncio.to_thread(httpx.get, a.url("http") + "/metrics")
    assert 'hubbub_cluster_node{name="b"} 0.0' in page.text
    refused = await asyncio.to_thread(end, a, "b")
    assert refused.returncode == 1 and "1 session, 1 message" in refused.stderr
    done = await asyncio.to_thread(end, a, "b", "--force")
    assert done.stdout == (
        "b: removed for good, with 1 sessions, 0 queues and 1 messages that nobody had taken over\n"
    )
    assert away(a) == [] and status(a)["cluster"]["kept"] == 0
    a.stop(signal.SIGKILL)
    a = await asyncio.to_thread(nodes.hub, "a")
    assert away(a) == []
    with pytest.raises(AssertionError, match="did not start"):
        await asyncio.to_thread(nodes.hub, "b")
    assert "node 'b' was removed for good" in nodes.log("b") and "Traceback" not in nodes.log("b")
    shutil.rmtree(nodes.root / "b" / "data")
    b = await asyncio.to_thread(nodes.hub, "b")
    await nodes.know(a, "b")
    async with connect(b.url("mqtt"), client_id="bob", clean=False) as client:
        await client.subscribe("kept", qos=1)
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept", b"new", qos=1)
    assert await read(b, "bob") == [b"new"]


async def test_a_directory_does_not_change_its_node_by_a_start(nodes: Nodes) -> None:
    await asyncio.to_thread(lambda: nodes.hub("a").stop())
    named = ("--cluster", *nodes.urls, "--cluster-name", "b")
    data = str(nodes.root / "a" / "data")
    done = await asyncio.to_thread(hubbub, "serve", "-p", "0", "--data", data, *named)
    assert done.returncode == 2 and "is that of node 'a' of a cluster" in done.stderr
    (nodes.root / "a" / "data" / directory.FILE).unlink()
    b = await asyncio.to_thread(nodes.hub, "a", called="b")
    assert (await asyncio.to_thread(nodes.cluster, b))["name"] == "b"


async def test_with_copies_a_removed_node_is_its_heirs_and_a_backup_of_it_can_be_put_back(
    hubs: Hubs, quorum: Quorum, tmp_path: Path
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    for name in ("bob", "past"):
        async with connect(b.url("mqtt"), client_id=name, clean=False) as client:
            await client.subscribe(f"kept/{name}", qos=1)
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept/past", b"in the backup", qos=1)
        await client.publish("kept/bob", b"taken over", qos=1)
    data, backup = str(hubs.root / "b" / "data"), str(tmp_path / "backup")
    assert hubbub("journal", "backup", backup, "--data", data).returncode == 0
    assert await read(b, "past", until=b"in the backup") == [b"in the backup"]
    async with connect(b.url("mqtt"), client_id="past", clean=True):
        """It is over."""
    b.stop(signal.SIGKILL)
    refused = await asyncio.to_thread(end, a, "b")
    assert refused.returncode == 1
    await asyncio.to_thread(is_heir, hubs, "a", "b")
    assert [one["heir"] for one in status(a)["cluster"]["away"] if one["name"] == "b"] == ["a"]
    done = await asyncio.to_thread(end, a, "b")
    assert done.returncode == 0 and "with 0 sessions" in done.stdout, done
    assert away(a) == []
    [stop] = await pieces_of(quorum, "b")
    assert stop.for_good
    with pytest.raises(AssertionError, match="did not start"):
        await asyncio.to_thread(hubs.hub, "b")
    log = (hubs.root / "b" / "hub.log").read_text()
    assert "node 'b' was removed for good" in log and "Traceback" not in log
    assert len(await pieces_of(quorum, "b")) == 1
    shutil.rmtree(data)
    restored = hubbub("journal", "restore", backup, "--data", data)
    assert restored.returncode == 0, restored
    b = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("b")))
    await asyncio.to_thread(know, a, "b")
    assert await read(b, "past", until=b"in the backup") == [b"in the backup"]
    async with connect(a.url("mqtt"), client_id="w") as client:
        await client.publish("kept/past", b"after", qos=1)
        await client.publish("kept/bob", b"more", qos=1)
    assert await read(a, "past") == [b"after"]
    assert (await read(a, "bob"))[-2:] == [b"taken over", b"more"]
    # It is a node like others: it dies, and has an heir, and so has its heir.
    async with connect(b.url("mqtt"), client_id="w") as client:
        await client.publish("kept/past", b"last", qos=1)
    b.stop(signal.SIGKILL)
    await asyncio.to_thread(is_heir, hubs, "a", "b")
    until = asyncio.get_running_loop().time() + PATIENCE
    while status(a)["cluster"]["away"] == [] and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.1)
    log_of_a = hubs.root / "a" / "hub.log"
    while log_of_a.read_text().count("this node is the heir of node 'b'") < 2:
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.1)
    assert await read(a, "past") == [b"last"]
