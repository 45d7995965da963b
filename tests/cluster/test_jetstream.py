"""Copies of a node's log on real nats-servers that are killed and stopped, with real hubs.

What is acknowledged is frozen outside the hub, and looked for in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.cluster.copies import LOG, STATE, Piece
from hubbub.cluster.jetstream import OLDEST, JetStream, stream_of, version_of
from hubbub.config.cluster import Cluster as Settings
from hubbub.errors import HubbubError
from hubbub.journal.copied import Copy, folded
from tests.cluster.quorum import Quorum, has_program, program
from tests.process import RunningHub, StartHub

DEBIAN = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
PATIENCE = 40.0
pytestmark = [
    pytest.mark.interop,
    has_program,
]


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    quorum = Quorum(tmp_path)
    quorum.wait()
    yield quorum
    quorum.end()


class Hubs:
    def __init__(self, start: StartHub, root: Path, quorum: Quorum) -> None:
        self.start = start
        self.root = root
        self.quorum = quorum

    def hub(self, name: str, *options: str) -> RunningHub:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        places = [word for url in self.quorum.urls for word in ("--cluster", url)]
        copies = ("--set", "cluster.copies=auto")
        return self.start(
            *places, "--cluster-name", name, *copies, *options, data=folder / "data"
        )

    def copies(self, hub: RunningHub) -> dict[str, Any]:
        found = httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE).json()
        return dict(found["cluster"]["copies"])

    def until(self, hub: RunningHub, holds: Callable[[dict[str, Any]], object]) -> None:
        until = time.monotonic() + PATIENCE
        while not holds(found := self.copies(hub)):
            assert time.monotonic() < until, found
            time.sleep(0.1)

    def ready(self, hub: RunningHub) -> RunningHub:
        self.until(hub, lambda copies: copies["ready"])
        return hub


@pytest.fixture
def hubs(start_hub: StartHub, quorum: Quorum, tmp_path: Path) -> Hubs:
    return Hubs(start_hub, tmp_path, quorum)


async def pieces_of(quorum: Quorum, node: str) -> list[Piece]:
    """All of a node's stream, by nats-py alone; what is purged beside the reading is not there."""
    import nats
    from nats.js.errors import NotFoundError

    client = await nats.connect(quorum.urls)
    try:
        stream = client.jetstream()
        found: list[Piece] = []
        name = stream_of("hubbub", node)
        info = await stream.stream_info(name)
        for at in range(info.state.first_seq, info.state.last_seq + 1):
            try:
                message = await stream.get_msg(name, at)
            except NotFoundError:
                now = await stream.stream_info(name)
                assert at < now.state.first_seq, f"piece {at} of {now.state} is lost"
                continue
            assert message.headers is not None
            words = message.headers["Hubbub-Copy"].split()
            life, number, kind, upto, more = words
            data = message.data or b""
            found.append(Piece(int(life), int(number), kind, int(upto), more == "1", data))
        return found
    finally:
        await client.close()


async def copy_of(quorum: Quorum, node: str) -> Copy:
    """What comes of a stream that has one life."""
    pieces = await pieces_of(quorum, node)
    state = [piece for piece in pieces if piece.kind == STATE]
    assert len({piece.life for piece in pieces}) == 1
    groups, data = [], b""
    for piece in pieces:
        if piece.kind == LOG:
            data += piece.data
            if not piece.more:
                groups.append(data)
                data = b""
    return folded(state[-1].upto, b"".join(piece.data for piece in state), groups)


async def publish(hub: RunningHub, acked: set[bytes], stop: asyncio.Event, name: str) -> None:
    """QoS 1, 20 at a time, as long as it may; what was acknowledged is noted."""
    number = 0

    async def one(client: Any, payload: bytes) -> None:
        with contextlib.suppress(HubbubError):
            await client.publish("kept/x", payload, qos=1)
            acked.add(payload)

    async with connect(hub.url("mqtt"), client_id=name) as client:
        while not stop.is_set():
            payloads = [b"%s %d" % (name.encode(), number + n) for n in range(20)]
            number += 20
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(one(client, payload) for payload in payloads))
            await asyncio.sleep(0.01)


async def subscribed(hub: RunningHub, name: str = "away") -> None:
    async with connect(hub.url("mqtt"), client_id=name, clean=False) as client:
        await client.subscribe("kept/#", qos=1)


async def leader(quorum: Quorum, node: str) -> int:
    import nats

    client = await nats.connect(quorum.urls)
    try:
        info = await client.jetstream().stream_info(stream_of("hubbub", node))
        assert info.cluster is not None
        return int(str(info.cluster.leader)[1:])
    finally:
        await client.close()


async def test_what_is_acknowledged_is_in_the_stream_also_after_its_leader_was_killed(
    hubs: Hubs, quorum: Quorum
) -> None:
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    assert hubs.copies(hub)["servers"] == 3
    await subscribed(hub)
    acked: set[bytes] = set()
    stop = asyncio.Event()
    task = asyncio.create_task(publish(hub, acked, stop, "w"))
    await asyncio.sleep(1.0)
    victim = await leader(quorum, "a")
    quorum.kill(victim)
    before = len(acked)
    async with asyncio.timeout(PATIENCE):
        while len(acked) < before + 200:
            await asyncio.sleep(0.1)
    hub.process.kill()
    frozen = set(acked)
    stop.set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    copy = await copy_of(quorum, "a")
    kept = {message.payload for message in copy.messages.values()}
    assert len(frozen) > 200
    assert frozen <= kept


async def test_without_a_quorum_nothing_that_lasts_is_acknowledged_and_live_traffic_goes_on(
    hubs: Hubs, quorum: Quorum
) -> None:
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    unsynced = hubs.hub("b", "--set", "journal.durability=os")  # the copies are all the more needed
    await asyncio.to_thread(hubs.ready, unsynced)
    await subscribed(hub)
    await subscribed(unsynced, "there")
    for number in (0, 1):
        quorum.kill(number)
    async with (
        connect(hub.url("mqtt"), client_id="w") as writer,
        connect(unsynced.url("mqtt"), client_id="v") as other,
    ):
        kept = asyncio.create_task(writer.publish("kept/x", b"kept", qos=1))
        too = asyncio.create_task(other.publish("kept/x", b"kept", qos=1))
        async with connect(hub.url("mqtt"), client_id="r") as reader:
            await reader.subscribe("live")
            await writer.publish("live", b"now")
            async with asyncio.timeout(PATIENCE):
                assert (await anext(aiter(reader.messages()))).payload == b"now"
        await asyncio.to_thread(hubs.until, hub, lambda copies: "quorum" in copies["trouble"])
        assert not kept.done() and not too.done()
        with pytest.raises(HubbubError, match="quorum"):
            async with connect(hub.url("mqtt"), client_id="new", clean=False, reconnect=False):
                pass
        answer = await asyncio.to_thread(
            httpx.post, hub.url("http") + "/publish/kept/y?qos=1", content=b"x", timeout=PATIENCE
        )
        assert (answer.status_code, "quorum" in answer.text) == (503, True)
        for number in (0, 1):
            quorum.start(number)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(kept, too)
    await asyncio.to_thread(hubs.until, hub, lambda copies: not copies["trouble"])
    await subscribed(hub, "new")


async def test_all_servers_are_killed_and_come_back(hubs: Hubs, quorum: Quorum) -> None:
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    await subscribed(hub)
    acked: set[bytes] = set()
    stop = asyncio.Event()
    task = asyncio.create_task(publish(hub, acked, stop, "w"))
    await asyncio.sleep(1.0)
    for number in range(3):
        quorum.kill(number)
    await asyncio.sleep(1.0)
    before = len(acked)
    for number in range(3):
        quorum.start(number)
    async with asyncio.timeout(PATIENCE):
        while len(acked) < before + 100:
            await asyncio.sleep(0.1)
    stop.set()
    await task
    copy = await copy_of(quorum, "a")
    assert acked <= {message.payload for message in copy.messages.values()}


async def test_who_had_copies_serves_live_traffic_only_until_it_can_ask(
    hubs: Hubs, quorum: Quorum
) -> None:
    hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
    await subscribed(hub)
    hub.stop(signal.SIGKILL)
    for number in range(3):
        quorum.kill(number)
    hub = await asyncio.to_thread(hubs.hub, "a")
    assert hubs.copies(hub)["trouble"]
    with pytest.raises(HubbubError, match="JetStream"):
        async with connect(hub.url("mqtt"), client_id="new", clean=False, reconnect=False):
            pass
    async with connect(hub.url("mqtt"), client_id="live") as client:
        await client.publish("live", b"x")
    for number in range(3):
        quorum.start(number)
    await asyncio.to_thread(hubs.ready, hub)
    async with asyncio.timeout(10):  # it looks a few times a second whether it may promise again
        while True:
            with contextlib.suppress(HubbubError):
                await subscribed(hub, "new")
                break
            await asyncio.sleep(0.1)
    log = (hubs.root / "a" / "hub.log").read_text()
    assert "what lasts is acknowledged again" in log
    assert "a quorum of the NATS servers answers again" not in log, "none was lost"


def test_names_and_versions() -> None:
    assert version_of("v2.9.10") < OLDEST <= version_of("<nats server v2.10.27>")
    settings = Settings(url=("nats://127.0.0.1:1",), name="a", group="g")
    assert json.dumps(JetStream(settings).name) == '"hubbub_g_a"'


class Without(Quorum):
    """One server that can have no copies, by another program or by what its file says."""

    def __init__(self, root: Path, called: str, extra: str, *options: str) -> None:
        self.command = [called, *options]
        super().__init__(root, 1, extra)

    def start(self, number: int) -> None:
        file = self.root / "nats.conf"
        file.write_text(self.extra[number])
        place = ["-a", "127.0.0.1", "-p", str(self.ports[number])]
        self.processes[number] = subprocess.Popen(
            [*self.command, "-c", str(file), *place],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def unable(root: Path, how: str) -> Without:
    if how == "old":
        if DEBIAN is None:
            pytest.skip("no nats-server (apt install nats-server)")
        said = subprocess.run([DEBIAN, "-v"], capture_output=True, text=True, check=True).stdout
        if version_of(said) >= OLDEST:
            pytest.skip(f"{said.strip()} is not old")
        return Without(root, DEBIAN, "", "-js", "-sd", str(root / "store"))
    if how == "none":
        return Without(root, program(), "")
    if how == "small":
        return Without(root, program(), "max_payload: 64KB\n", "-js", "-sd", str(root / "store"))
    user = "{ user: plant, password: right }"
    extra = f"accounts {{ PLANT: {{ users: [ {user} ] }} }}\nno_auth_user: plant\n"
    return Without(root, program(), extra, "-js", "-sd", str(root / "store"))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("old", r"NATS 2\.\d+\.\d+ is too old for copies: 2.10.23 or later"),
        ("none", "the NATS servers have no JetStream"),
        ("small", r"the NATS servers take 65,536 bytes \(max_payload\), copies need 525,312"),
        ("not for the account", "the NATS servers have no JetStream for this account"),
    ],
)
async def test_servers_that_can_have_no_copies_are_named_and_all_is_as_without(
    start_hub: StartHub, tmp_path: Path, how: str, why: str
) -> None:
    server = unable(tmp_path, how)
    try:
        server.wait()
        hubs = Hubs(start_hub, tmp_path, server)
        hub = await asyncio.to_thread(hubs.hub, "a")
        await asyncio.to_thread(hubs.until, hub, lambda copies: re.match(why, copies["trouble"]))
        found = hubs.copies(hub)
        assert (found["mode"], found["servers"], found["ready"]) == ("live", 0, False)
        other = await asyncio.to_thread(hubs.hub, "b", "--set", "cluster.copies=0")
        await subscribed(hub)
        async with connect(other.url("mqtt"), client_id="w") as writer:
            async with connect(hub.url("mqtt"), client_id="r") as reader:
                await reader.subscribe("live")
                await live(writer, reader)
            await writer.publish("kept/x", b"kept", qos=1)
        async with connect(hub.url("mqtt"), client_id="away", clean=False) as client:
            async with asyncio.timeout(PATIENCE):
                assert (await anext(aiter(client.messages()))).payload == b"kept"
    finally:
        server.end()
    log = (tmp_path / "a" / "hub.log").read_text()
    assert re.search(f"W hubbub.cluster: copies: {why}.*; this node's disk alone keeps", log), log


async def live(writer: Any, reader: Any) -> None:
    """What one says reaches the other, from some moment on."""
    messages = aiter(reader.messages())
    arrives = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(PATIENCE):
        while not arrives.done():
            await writer.publish("live", b"now")
            await asyncio.wait([arrives], timeout=0.1)
    assert arrives.result().payload == b"now"


async def test_numbers_of_a_stream_that_is_made_anew_go_on(hubs: Hubs, quorum: Quorum) -> None:
    """Journals know those of the old one: a stop under one of them would be taken for answered."""
    import nats

    client = await nats.connect(quorum.urls)
    name, stream = stream_of("hubbub", "a"), client.jetstream()
    last: list[int] = []
    try:
        for _ in range(2):
            hub = await asyncio.to_thread(lambda: hubs.ready(hubs.hub("a")))
            await asyncio.to_thread(hub.stop)
            state = (await stream.stream_info(name)).state
            assert state.first_seq > max(last, default=1 << 40)
            last.append(state.last_seq)
            await stream.delete_stream(name)
    finally:
        await client.close()
