"""Queues used from every node, over real nats-servers, by real clients, with killed hubs."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal

import httpx
import pytest

from tests.cluster.test_nats import PROGRAM, Nodes, nodes, server
from tests.cluster.test_queues import Switch
from tests.command import hubbub
from tests.process import RunningHub
from tests.test_rpc import PEERS, peer, until_empty

__all__ = ["nodes", "server"]
PATIENCE = 60.0
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]


class Client(Switch):
    """A connection to a hub of another process."""

    def __init__(self, hub: RunningHub) -> None:
        limits = httpx.Limits(max_connections=1)
        super().__init__(
            httpx.AsyncClient(base_url=hub.url("http"), limits=limits, timeout=PATIENCE)
        )


async def client(hub: RunningHub, token: str) -> Client:
    found = Client(hub)
    await found.get(f"/login/{token}")
    return found


async def reached(hub: RunningHub, path: str, token: str = "looks") -> httpx.Response:
    """The answer as soon as the queue's home can be reached."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await client(hub, token)
            answer = await found.web.get(path)
            await found.web.aclose()
            if answer.status_code != 503:
                return answer
            await asyncio.sleep(0.2)


async def lists(hub: RunningHub, one: Client, name: str) -> None:
    """Until that node has heard of a queue: it answers for it, and makes none of its own."""
    async with asyncio.timeout(PATIENCE):
        while json.loads(await one.post(f"/request/{name}/none", b"?")) == []:
            await asyncio.sleep(0.05)


async def test_consumers_of_two_nodes_and_one_that_is_killed(nodes: Nodes) -> None:
    """Each message is acknowledged by one; what the killed node's consumer held comes again."""
    a, b = await nodes.pair()
    count = 200
    one, two = await client(a, "one"), await client(b, "two")
    await one.post("/create/jobs", b'{"lease": 60}')
    await lists(b, two, "jobs")
    for number in range(count):
        await (one, two)[number % 2].send("jobs", b"%d" % number)
    acknowledged: list[str] = []
    held = await two.take("jobs", most=20)
    assert len(held) == 20
    for (_, number), payload in held[:10]:
        await two.get(f"/ack/jobs/{number}")
        acknowledged.append(payload)
    b.process.send_signal(signal.SIGKILL)  # and with it the consumer's connection
    await asyncio.to_thread(b.process.wait, 10)
    async with asyncio.timeout(PATIENCE):
        while len(acknowledged) < count + 1:
            for (_, number), payload in await one.take("jobs", timeout=1, most=50):
                assert await one.get(f"/ack/jobs/{number}?tell=1") == "1"
                acknowledged.append(payload)
    assert sorted(acknowledged) == sorted(["?", *map(str, range(count))])


async def test_the_home_is_killed_while_a_consumer_waits_elsewhere(nodes: Nodes) -> None:
    a, b = await nodes.pair()
    one, two = await client(a, "one"), await client(b, "two")
    await one.get("/persistent/jobs")
    await lists(b, two, "jobs")
    sent = [json.loads(await two.post("/request/jobs/replies", b"%d" % n)) for n in range(50)]
    assert sent == [[["jobs", number]] for number in range(1, 51)]
    first = await two.take("jobs")
    for _, number in [one for one, _ in first[:11]]:
        await two.get(f"/ack/jobs/{number}")
    body = json.dumps({"from": "50", "timeout": 60, "queues": ["jobs"]}).encode()
    waits = asyncio.create_task(two.web.post("/transfer", content=body))
    await asyncio.sleep(0.5)
    a.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(a.process.wait, 10)
    answer = await waits
    assert answer.status_code == 503 and "'a'" in answer.text
    refused = await two.web.post("/request/jobs/replies", content=b"x")
    assert refused.status_code == 503
    assert "$queue/jobs is at node 'a', which cannot be reached since 20" in refused.text
    # What is published, and not asked, waits here.
    published = hubbub("pub", "--url", b.url("mqtt"), "-q", "1", "-t", "$queue/jobs", "-m", "kept")
    assert published.returncode == 0, published.stderr
    await asyncio.to_thread(nodes.hub, "a")
    assert (await reached(b, "/ack/jobs/9999?tell=1")).text == "0"
    again = await client(b, "three")
    async with asyncio.timeout(PATIENCE):
        while (found := [said for _, said in await again.take("jobs")])[-1:] != ["kept"]:
            again.cursor.clear()
            await asyncio.sleep(0.1)
    assert found == [*map(str, range(10, 50)), "kept"]


async def test_all_nine_calls_cross_whichever_node_has_the_queue(nodes: Nodes) -> None:
    """From callers at node a to responders at b, with queues at either and at a third one."""
    hubs = {name: await asyncio.to_thread(nodes.hub, name) for name in "abc"}
    for name, hub in hubs.items():
        await nodes.know(hub, *set(hubs) - {name})
    every = list(itertools.product(hubs, PEERS, PEERS))
    for name, hub in hubs.items():
        maker = await client(hub, f"maker-{name}")
        for home, caller, responder in every:
            if home == name:
                await maker.get(f"/persistent/{home}-{caller}-{responder}")
        await maker.get(f"/persistent/last-{name}")
    for name, other in itertools.permutations(hubs, 2):
        await lists(hubs[name], await client(hubs[name], "looks"), f"last-{other}")
    for home, caller, responder in every:
        queue = f"{home}-{caller}-{responder}"
        async with (
            peer(caller, hubs["a"].port, queue) as asking,
            peer(responder, hubs["b"].port, queue) as answering,
        ):
            await answering.respond()
            for payload in (b"one", b"two"):
                await asking.ask(payload)
                asked = await answering.taken()
                assert asked.payload == payload, queue
                await answering.answer(asked, payload.upper())
                assert await asking.heard() == payload.upper(), queue
            await until_empty(hubs[home], queue)
    for home, _, _ in every:
        found = await (await client(hubs[home], "counts")).get("/")
        assert set(json.loads(found)["permanent_queues"]) == {
            f"last-{home}", *("-".join(one) for one in every if one[0] == home)
        }
