"""Real hubs as nodes, real nats-servers between them, real clients; and what may fail.

Each hub is a process of its own. Debian's nats-server will do: live traffic needs no JetStream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.cluster import frames
from hubbub.errors import HubbubError
from hubbub.protocols.mqtt import codec as mqtt
from hubbub.protocols.switch import codec
from tests.certificates import Authority
from tests.command import hubbub
from tests.ports import free_port
from tests.process import RunningHub, StartHub

PROGRAM = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
PATIENCE = 30.0
MEET_SECONDS = 2.0  # as the table of docs/design/cluster.md says, from when NATS is there
BACK_SECONDS = 1.0  # and a node that was killed, from when it is there
BUSY_SECONDS = 5.0  # more on a machine that does much else
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]


class Server:
    """One nats-server on the loopback, which can be killed and come back at its port."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.options = options
        self.process = self._start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        assert PROGRAM is not None
        command = [PROGRAM, "-a", "127.0.0.1", "-p", str(self.port), *self.options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def again(self) -> None:
        self.process = self._start()

    def hang(self) -> None:
        """It answers nothing more when this returns: some of its threads go on for a moment."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.go_on()
    server.kill()


class Nodes:
    """Starts hubs as nodes, and asks them how they are."""

    def __init__(self, start: StartHub, root: Path, *urls: str) -> None:
        self.start = start
        self.root = root
        self.urls = urls

    def hub(self, name: str, *options: str, called: str = "") -> RunningHub:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        places = [word for url in self.urls for word in ("--cluster", url)]
        named = ("--cluster-name", called or name)
        return self.start(*places, *named, *options, data=folder / "data")

    async def pair(self, *options: str) -> tuple[RunningHub, RunningHub]:
        a = await asyncio.to_thread(self.hub, "a", *options)
        b = await asyncio.to_thread(self.hub, "b", *options)
        await self.know(a, "b")
        await self.know(b, "a")
        return a, b

    def status(self, hub: RunningHub) -> dict[str, Any]:
        return dict(httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE).json())

    def cluster(self, hub: RunningHub) -> dict[str, Any]:
        return dict(self.status(hub)["cluster"])

    async def until(
        self, hub: RunningHub, holds: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while not holds(found := await asyncio.to_thread(self.cluster, hub)):
                await asyncio.sleep(0.05)
        return found

    async def know(self, hub: RunningHub, *names: str) -> None:
        await self.until(hub, lambda c: {node["name"] for node in c["nodes"]} == set(names))

    async def filters(self, hub: RunningHub, node: str, count: int) -> None:
        await self.until(
            hub, lambda c: [n["filters"] for n in c["nodes"] if n["name"] == node] == [count]
        )

    def log(self, name: str) -> str:
        return (self.root / name / "hub.log").read_text()


@pytest.fixture
def nodes(start_hub: StartHub, server: Server, tmp_path: Path) -> Nodes:
    return Nodes(start_hub, tmp_path, server.url)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def memory_of(hub: RunningHub) -> float:
    """MiB."""
    lines = Path(f"/proc/{hub.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


class Client:
    """Subscribes and publishes in one protocol; message-switch does so by a bound queue."""

    def __init__(self, hub: RunningHub, protocol: str, name: str) -> None:
        self.protocol = protocol
        options = {"token": name} if protocol == "switch" else {"client_id": name}
        if protocol != "switch":
            options["reconnect"] = False  # type: ignore[assignment]
        scheme = "switch" if protocol == "switch" else protocol
        self.client: Any = connect(hub.url(scheme), **options)

    async def __aenter__(self) -> Client:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.client.__aexit__(*error)

    async def subscribe(self, topic: str, qos: int = 0) -> None:
        if self.protocol == "mqtt":
            await self.client.subscribe(topic, qos=qos)
        elif self.protocol == "smq":
            await self.client.subscribe(topic)
        else:
            await self.client.create("inbox")
            await self.client.bind("inbox", topic)

    async def publish(self, topic: str, payload: bytes, qos: int = 0) -> None:
        if self.protocol == "smq":
            await self.client.publish(topic, payload)
        else:
            await self.client.publish(topic, payload, qos)

    async def read(self, count: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE):
            if self.protocol != "switch":
                messages = aiter(self.client.messages())
                return [(await anext(messages)).payload for _ in range(count)]
            found: list[bytes] = []
            after = codec.FIRST
            while len(found) < count:
                got = await self.client.transfer("inbox", after)
                found += [one.payload for one in got.messages]
                after = got.next
            return found


async def test_calls_by_topic_cross(nodes: Nodes, stack: AsyncExitStack) -> None:
    a, b = await nodes.pair()
    calls = (("mqtt", "mqtt"), ("smq", "mqtt"), ("smq", "smq"))
    tasks = []
    for pair in calls:
        serving = await stack.enter_async_context(Client(b, pair[1], f"responder-{'-'.join(pair)}"))
        answering = serving.client.serve("/".join(pair), lambda asked: b"re:" + asked.payload)
        tasks.append(asyncio.create_task(answering))
    await nodes.filters(a, "b", len(calls))
    for pair in calls:
        asking = await stack.enter_async_context(Client(a, pair[0], f"asker-{'-'.join(pair)}"))
        reply = await asking.client.call("/".join(pair), b"1", timeout=PATIENCE)
        assert getattr(reply, "payload", reply) == b"re:1", pair
    for task in tasks:
        task.cancel()


async def test_a_call_whose_responder_dies_with_its_node_ends_in_time(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """Of who asks by MQTT, and by SMQ; and the next one is answered by who serves instead."""
    a, b = await nodes.pair()
    askers = ("mqtt", "smq")
    asked, never = asyncio.Semaphore(0), asyncio.Event()

    async def answer(_: Any) -> bytes:
        asked.release()
        await never.wait()
        return b""

    tasks = []
    for name in askers:
        serving = await stack.enter_async_context(Client(b, "mqtt", f"responder-{name}"))
        tasks.append(asyncio.create_task(serving.client.serve(f"ask/{name}", answer)))
    await nodes.filters(a, "b", len(askers))
    asking = {name: Client(a, name, f"asker-{name}") for name in askers}
    calls = []
    for name, one in asking.items():
        await stack.enter_async_context(one)
        calls.append(asyncio.create_task(one.client.call(f"ask/{name}", b"1", timeout=4.0)))
    for _ in calls:
        await asyncio.wait_for(asked.acquire(), PATIENCE)
    b.stop(signal.SIGKILL)
    began = time.monotonic()
    for call in calls:
        with pytest.raises((TimeoutError, HubbubError)):
            await call
        assert time.monotonic() - began < 5.0
    for name, one in asking.items():
        here = await stack.enter_async_context(Client(a, "mqtt", f"responder-2-{name}"))
        answering = here.client.serve(f"ask/{name}", lambda asked: b"re:" + asked.payload)
        tasks.append(asyncio.create_task(answering))
        reply = None
        async with asyncio.timeout(PATIENCE):
            while reply is None:
                with contextlib.suppress(TimeoutError, HubbubError):
                    reply = await one.client.call(f"ask/{name}", b"2", timeout=1.0)
        assert getattr(reply, "payload", reply) == b"re:2", name
    for task in tasks:
        task.cancel()


async def test_an_smq_client_answers_at_a_response_topic_of_another_node(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """In the asker's own terms: its topic and its correlation data."""
    a, b = await nodes.pair()
    serving = await stack.enter_async_context(Client(b, "smq", "responder"))
    task = asyncio.create_task(serving.client.serve("ask", lambda asked: b"re:" + asked.payload))
    await nodes.filters(a, "b", 1)
    asking = await stack.enter_async_context(Client(a, "mqtt", "asker"))
    await asking.subscribe("replies/1", 1)
    await nodes.filters(b, "a", 1)
    await asking.client.publish("ask", b"1", 1, response_topic="replies/1", correlation=b"c-7")
    async with asyncio.timeout(PATIENCE):
        reply = await anext(aiter(asking.client.messages()))
    assert (reply.payload, reply.correlation) == (b"re:1", b"c-7")
    task.cancel()


async def test_a_server_that_takes_less_than_others(
    start_hub: StartHub, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """One message that is more than it takes, and many that are so together."""
    (tmp_path / "nats.conf").write_text("max_payload: 16KB\n")
    server = Server("-c", str(tmp_path / "nats.conf"))
    stack.callback(server.kill)
    nodes = Nodes(start_hub, tmp_path, server.url)
    a, b = await nodes.pair()
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("x", 1)
    await nodes.filters(a, "b", 1)
    writer = await stack.enter_async_context(Client(a, "mqtt", "writer"))
    sent = [bytes(100_000), *(b"%1000d" % number for number in range(100))]
    async with asyncio.TaskGroup() as all_sent:
        for payload in sent:
            all_sent.create_task(writer.publish("x", payload, 1))
    assert await reader.read(len(sent)) == sent


async def test_a_session_at_one_node_fills_from_the_other(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """A session that is away, of QoS 1, is served by the node that has it."""
    a, b = await nodes.pair()
    keeps: dict[str, Any] = {"client_id": "away", "clean": False, "session_expiry": 600}
    async with connect(b.url("mqtt"), **keeps) as client:
        await client.subscribe("kept/#", qos=1)
    await nodes.filters(a, "b", 1)
    writer = await stack.enter_async_context(Client(a, "mqtt", "writer"))
    await writer.publish("kept/x", b"while you were away", 1)
    await asyncio.sleep(0.5)
    b.stop(signal.SIGKILL)  # and it is in that node's journal
    again = await asyncio.to_thread(nodes.hub, "b")
    back = await stack.enter_async_context(connect(again.url("mqtt"), **keeps))
    async with asyncio.timeout(PATIENCE):
        assert (await anext(aiter(back.messages()))).payload == b"while you were away"


# What fails


async def observed(hub: RunningHub, number: int, stack: AsyncExitStack) -> list[int]:
    """The counts that an SMQ client hears of a client with that number."""
    watcher = await stack.enter_async_context(Client(hub, "smq", "watcher-1"))
    heard: list[int] = []
    await watcher.client.observe(number, lambda count, _: heard.append(count))
    await asyncio.sleep(0.2)
    assert not heard
    return heard


async def test_a_node_that_is_killed_is_one_change_to_zero_and_comes_back(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    a, b = await nodes.pair()
    device = Client(a, "smq", "device-1")
    await device.client.__aenter__()
    await nodes.until(b, lambda c: c["phantoms"] == 2)
    heard = await observed(b, device.client.number, stack)
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("live/#")
    began = time.monotonic()
    a.stop(signal.SIGKILL)
    local = await stack.enter_async_context(Client(b, "mqtt", "local"))
    await local.publish("live/x", b"not touched")  # while the other is not known to be dead
    assert await reader.read(1) == [b"not touched"]
    await nodes.know(b)
    assert time.monotonic() - began > 3
    await asyncio.sleep(0.3)
    assert heard == [0]
    again = await asyncio.to_thread(nodes.hub, "a")
    began = time.monotonic()
    await nodes.know(b, "a")
    await nodes.filters(again, "b", 1)
    assert time.monotonic() - began < BACK_SECONDS + BUSY_SECONDS
    writer = await stack.enter_async_context(Client(again, "mqtt", "writer"))
    await writer.publish("live/x", b"back")
    assert await reader.read(1) == [b"back"]
    with pytest.raises(Exception, match=r".+"):
        await device.client.publish("x", b"")


async def test_what_is_acknowledged_waits_for_a_node_that_was_killed(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """QoS 1 and 2 for a session that lasts and for a queue: both nodes are killed meanwhile."""
    a, b = await nodes.pair()
    lasting = {"client_id": "device", "clean": False, "session_expiry": 3600}
    async with connect(b.url("mqtt"), **lasting) as device:
        await device.subscribe("work/#", qos=2)
        inbox = await stack.enter_async_context(Client(b, "switch", "inbox-reader"))
        await inbox.subscribe("work/#")
        await nodes.filters(a, "b", 1)
    b.stop(signal.SIGKILL)
    said = [b"%d" % number for number in range(300)]
    async with Client(a, "mqtt", "writer") as writer:
        for number in range(150):
            await writer.publish(f"work/{number % 3}", said[number], 1 + number % 2)
        await nodes.know(a)
    a.stop(signal.SIGKILL)
    a = await asyncio.to_thread(nodes.hub, "a")
    async with Client(a, "mqtt", "writer") as writer:
        for number in range(150, 300):
            await writer.publish(f"work/{number % 3}", said[number], 1 + number % 2)
    [away] = nodes.cluster(a)["away"]
    assert (away["name"], away["waiting"]) == ("b", 300)
    b = await asyncio.to_thread(nodes.hub, "b")
    async with connect(b.url("mqtt"), **lasting) as device, asyncio.timeout(PATIENCE):
        messages = aiter(device.messages())
        got = [(await anext(messages)).payload for _ in range(300)]
        # A client has a message of QoS 2 when that is complete: the order is that of each QoS.
        assert sorted(got, key=int) == said
        assert [one for one in got if int(one) % 2] == said[1::2]
    again = Client(b, "switch", "inbox-reader-2")
    assert await (await stack.enter_async_context(again)).read(300) == said
    await nodes.until(a, lambda c: c["nodes"] and c["nodes"][0]["waiting"] == 0)


async def test_a_node_that_stops_is_gone_at_once(nodes: Nodes, stack: AsyncExitStack) -> None:
    a, b = await nodes.pair()
    began = time.monotonic()
    assert a.stop() == 0
    await nodes.know(b)
    assert time.monotonic() - began < 4.5  # silence would be noticed after 5
    assert "node 'a' is gone, and its 1 clients: it stopped" in nodes.log("b")


async def live(writer: Client, reader: Client) -> None:
    """What one publishes reaches the other, from some moment on."""
    for attempt in range(100):
        await writer.publish("live/x", b"%d" % attempt)
        try:
            async with asyncio.timeout(0.2):
                await anext(aiter(reader.client.messages()))
                return
        except TimeoutError:
            continue
    raise AssertionError("nothing came")


@pytest.mark.slow
async def test_nats_that_is_lost_and_found(
    nodes: Nodes, server: Server, stack: AsyncExitStack
) -> None:
    """Each side goes on; what changed meanwhile holds everywhere once NATS is back."""
    a, b = await nodes.pair()
    clients = {}
    for name, hub in (("a", a), ("b", b)):
        clients[name] = await stack.enter_async_context(Client(hub, "mqtt", f"client-{name}"))
        await clients[name].subscribe("live/#")
        await clients[name].client.publish("state", f"old {name}".encode(), 1, True)
    await nodes.filters(a, "b", 1)
    server.kill()
    for hub in (a, b):
        found = await nodes.until(hub, lambda c: not c["up"])
        assert "lost" in found["trouble"] or "cannot connect" in found["trouble"]
    await live(clients["a"], clients["a"])
    await clients["b"].client.publish("state", b"while apart", 1, True)
    await nodes.know(a)
    await nodes.know(b)
    dropped = (await asyncio.to_thread(nodes.status, a))["dropped"]
    assert dropped["the cluster cannot be reached"] >= 1
    server.again()
    began = time.monotonic()
    await nodes.know(a, "b")
    await nodes.know(b, "a")
    assert time.monotonic() - began < MEET_SECONDS + BUSY_SECONDS
    await live(clients["a"], clients["b"])
    async with Client(a, "mqtt", "late") as late:
        async with asyncio.timeout(PATIENCE):
            while True:
                await late.subscribe("state")
                if await late.read(1) == [b"while apart"]:
                    break
    for name in "ab":
        log = nodes.log(name)
        said = rf"connected to NATS at {server.url}, version \d+\.\d+\.\d+\n"
        assert "the connection to NATS is lost" in log and len(re.findall(said, log)) >= 2


@pytest.mark.slow
async def test_nats_that_hangs(nodes: Nodes, server: Server, stack: AsyncExitStack) -> None:
    a, b = await nodes.pair()
    writer = await stack.enter_async_context(Client(a, "mqtt", "writer"))
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("live/#")
    await nodes.filters(a, "b", 1)
    server.hang()
    await nodes.know(a)
    await nodes.know(b)
    local = await stack.enter_async_context(Client(b, "mqtt", "local"))
    await live(local, reader)
    server.go_on()
    await nodes.know(a, "b")
    await live(writer, reader)


@pytest.mark.slow
async def test_nats_that_hangs_while_much_is_said(
    nodes: Nodes, server: Server, stack: AsyncExitStack
) -> None:
    """Its own pings wait behind what is stuck; what waits is bounded, and comes to be let go."""
    a, b = await nodes.pair()
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("live/#")
    await nodes.filters(a, "b", 1)
    writer = await stack.enter_async_context(Client(a, "mqtt", "writer"))
    server.hang()
    until, up = time.monotonic() + PATIENCE, True
    async with connect(a.url("mqtt"), client_id="filler") as filler:
        while up and time.monotonic() < until:
            for number in range(20):
                await filler.publish(f"live/{number}", bytes(200_000), qos=1, retain=number < 5)
            up = (await asyncio.to_thread(nodes.cluster, a))["up"]
    assert not up, "it is said that nothing goes out"
    assert memory_of(a) < 250
    server.go_on()
    await nodes.know(a, "b")
    await nodes.know(b, "a")
    await nodes.filters(a, "b", 1)
    await live(writer, reader)


@pytest.mark.slow
async def test_a_hub_stops_while_nats_hangs(
    nodes: Nodes, server: Server, stack: AsyncExitStack
) -> None:
    a, b = await nodes.pair()
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("live/#")
    await nodes.filters(a, "b", 1)
    server.hang()
    async with connect(a.url("mqtt"), client_id="filler") as filler:
        for _ in range(100):
            await filler.publish("live/a", bytes(200_000), qos=1)
    began = time.monotonic()
    assert await asyncio.to_thread(a.stop) == 0
    assert time.monotonic() - began < 20


@pytest.mark.slow
async def test_a_hub_that_starts_without_nats_joins_later(
    nodes: Nodes, server: Server, stack: AsyncExitStack
) -> None:
    server.kill()
    a = await asyncio.to_thread(nodes.hub, "a")
    own = await stack.enter_async_context(Client(a, "mqtt", "own"))
    await own.subscribe("live/#")
    await live(own, own)
    found = await nodes.until(a, lambda c: "cannot connect to NATS" in c["trouble"])
    assert not found["up"]
    assert b"hubbub_cluster_up 0.0" in httpx.get(a.url("http") + "/metrics").content
    server.again()
    b = await asyncio.to_thread(nodes.hub, "b")
    await nodes.know(b, "a")
    await nodes.filters(b, "a", 1)
    writer = await stack.enter_async_context(Client(b, "smq", "writer-1"))
    await live(writer, own)


async def test_a_second_node_of_the_same_name_does_not_start(nodes: Nodes) -> None:
    a = await asyncio.to_thread(nodes.hub, "a")
    named = ("--cluster", *nodes.urls, "--cluster-name", "a")
    done = await asyncio.to_thread(
        hubbub, "serve", "-p", "0", "--data", str(nodes.root / "double"), *named
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "another node of the cluster has the name 'a'" in done.stderr
    assert not (await asyncio.to_thread(nodes.cluster, a))["nodes"]


async def test_foreign_damaged_and_strange_frames_are_refused(
    nodes: Nodes, server: Server, stack: AsyncExitStack
) -> None:
    from nats.aio.client import Client as NatsClient

    a, b = await nodes.pair()
    now = int(time.time() * 1_000_000)
    beat = frames.piece(frames.Beat("9.9", now))
    good = frames.frame("x", now, 0, 0, beat)
    skewed = frames.frame("y", now, 0, 0, frames.piece(frames.Beat("9.9", now - 3600_000_000)))
    bad = [
        b"hello", good[:-1], good[:20] + b"?" + good[21:], b"HBC\x63" + good[4:], skewed,
        frames.frame("z", now, 0, 0, b"\x00\x00\x00\x05junk!"),
        frames.frame("z", now, 0, 0, b"\xff\xff\xff\xff"),
    ]  # fmt: skip
    client = NatsClient()
    await client.connect(server.url)
    for frame in (b"", *bad):  # an empty one says nothing: `hubbub doctor` asks so whether it may
        await client.publish("hubbub.all", frame)
        await client.publish("hubbub.to.a", frame)
    await client.close()
    found = await nodes.until(a, lambda c: c["frames_refused"] >= 2 * len(bad))
    assert [node["name"] for node in found["nodes"]] == ["b"]
    log = nodes.log("a")
    for text in ("none of ours", "damaged", "version 99", "cannot be read", "its clock is -36"):
        assert text in log, text
    reader = await stack.enter_async_context(Client(b, "mqtt", "reader"))
    await reader.subscribe("live/#")
    writer = await stack.enter_async_context(Client(a, "mqtt", "writer"))
    await live(writer, reader)  # nothing else was touched
    large = bytes(range(256)) * 12_000  # three times what NATS takes at once
    await writer.publish("live/large", large, 1)
    while (got := await reader.read(1)) != [large]:
        assert got[0].isdigit()


async def test_credentials_and_tls(start_hub: StartHub, tmp_path: Path) -> None:
    """A user in the URL, TLS by `cluster.ca` and a certificate of the node's own."""
    authority = Authority(tmp_path / "tls")
    place, own = authority.sign("localhost", server=True), authority.sign("node")
    server = Server(
        "--user", "plant", "--pass", "secret", "--tlsverify", "--tlscert", str(place),
        "--tlskey", str(place), "--tlscacert", str(authority.file),
    )  # fmt: skip
    try:
        url = f"tls://plant:secret@127.0.0.1:{server.port}"
        nodes = Nodes(start_hub, tmp_path, url)
        options = ("--set", f"cluster.ca={authority.file}", "--set", f"cluster.certificate={own}")
        a, _ = await nodes.pair(*options)
        nodes.urls = (url.replace("secret", "wrong"),)
        c = await asyncio.to_thread(nodes.hub, "c", *options)
        found = await nodes.until(c, lambda c: "Authorization" in c["trouble"])
        assert not found["up"]
        assert "secret" not in nodes.log("a") + nodes.log("c")
        await nodes.know(a, "b")
    finally:
        server.kill()


def said_to(hub: RunningHub, *packets: bytes) -> socket.socket:
    """A bare connection of MQTT, that has been let in."""
    host, _, port = hub.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), 10)
    sock.sendall(packets[0])
    assert sock.recv(4)[0] >> 4 == mqtt.CONNACK
    sock.sendall(b"".join(packets[1:]))
    return sock


@pytest.mark.slow
async def test_a_hub_that_stood_still_says_no_will_of_who_has_gone_elsewhere(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """That its clients were lost is the first thing that it sees when it goes on; of who is
    nowhere else it says the will.
    """
    a, b = await nodes.pair()
    lost = []
    for name in (b"ann", b"bob"):
        will = mqtt.Will(b"state/" + name, b"offline", 1, True)
        lost.append(said_to(a, mqtt.connect(name, True, 600, will)))
    online = mqtt.publish(b"state/ann", b"online", 0, True)
    a.process.send_signal(signal.SIGSTOP)
    try:
        for one in lost:
            one.close()
        await nodes.know(b)
        there = said_to(b, mqtt.connect(b"ann", True, 600), online)
        stack.callback(there.close)
    finally:
        a.process.send_signal(signal.SIGCONT)
    await nodes.know(a, "b")
    await asyncio.sleep(8)
    for hub in (a, b):
        late = await stack.enter_async_context(Client(hub, "mqtt", f"late-{hub is a}"))
        for topic, state in (("state/ann", b"online"), ("state/bob", b"offline")):
            await late.subscribe(topic)
            assert await late.read(1) == [state], topic
    assert "stood still" in nodes.log("a")
