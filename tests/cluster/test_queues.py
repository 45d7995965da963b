"""A queue has one home and is reached from every node: real hubs and clients of one process.

What the failure table of docs/design/cluster.md says of queues is tested here; over NATS, with hubs
that are killed, in `test_nats_queues`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import Hub, Settings
from hubbub.auth.passwords import add_user
from hubbub.cluster.membership import Membership
from hubbub.config.settings import Journal, Listener
from tests.clients import http, mqtt, smq
from tests.cluster.test_two_hubs import LISTEN, Pair, until


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(stack)


def member(hub: Hub) -> Membership:
    assert hub.node.membership is not None
    return hub.node.membership


def knows(hub: Hub, name: str, node: str = "a") -> Callable[[], bool]:
    """Whether a hub has heard that this node is a queue's home."""
    return lambda: member(hub).directory.home("queue", f"$queue/{name}") == node


def names(hub: Hub) -> list[str]:
    return sorted(hub.node.broker.state.queues)


class Switch:
    """A client of message-switch, of one connection."""

    def __init__(self, web: httpx.AsyncClient) -> None:
        self.web = web
        self.cursor: dict[tuple[str, ...], str] = {}

    async def get(self, path: str) -> str:
        answer = await self.web.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    async def post(self, path: str, body: bytes) -> Any:
        answer = await self.web.post(path, content=body)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    async def send(self, queue: str, body: bytes, reply_to: str = "replies") -> Any:
        return json.loads(await self.post(f"/request/{queue}/{reply_to}", body))

    async def take(self, *queues: str, timeout: float = 0, most: int = 0) -> list[Any]:
        """Oldest first: (queue, id), payload."""
        asked: dict[str, Any] = {"timeout": timeout, "queues": queues}
        if queues in self.cursor:
            asked["from"] = self.cursor[queues]
        if most:
            asked["max"] = most
        said = json.loads(await self.post("/transfer", json.dumps(asked).encode()))
        self.cursor[queues] = said["next"]
        return [(tuple(one), message["payload"]) for one, message in reversed(said["messages"])]


@asynccontextmanager
async def switch(hub: Hub, token: str = "worker") -> AsyncIterator[Switch]:
    async with http(hub) as web:
        client = Switch(web)
        await client.get(f"/login/{token}")
        yield client


async def test_a_queue_of_another_node_is_used_as_if_it_were_here(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two:
        assert await one.get("/persistent/jobs") == "jobs"
        await until(knows(b, "jobs"))
        assert await two.get("/persistent/jobs") == "jobs"
        assert await one.send("jobs", b"first") == [["jobs", 0]]
        assert await two.send("jobs", b"second") == [["jobs", 1]]
        assert await two.take("jobs") == [(("jobs", 0), "first"), (("jobs", 1), "second")]
        assert await two.get("/ack/jobs/0?tell=1") == "1"
        assert await one.take("jobs") == [(("jobs", 1), "second")]
        assert await one.get("/ack/jobs/0?tell=1") == "0"
        assert names(a) == ["jobs"] and names(b) == []
        assert await two.get("/destroy/jobs?tell=1") == "1"
        await until(lambda: names(a) == [])
        assert await one.send("jobs", b"third") == []


async def test_a_long_poll_at_one_node_is_answered_by_a_message_at_another(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two:
        await one.get("/persistent/jobs")
        await until(knows(b, "jobs"))
        waits = asyncio.create_task(two.take("jobs", timeout=20))
        await until(lambda: a.node.broker.state.queues["jobs"].readers)
        await one.send("jobs", b"now")
        assert await waits == [(("jobs", 0), "now")]


async def test_an_answer_that_is_half_here_is_weighed_and_goes_with_its_connection(
    pair: Pair,
) -> None:
    """Of a poll at two homes, too, whose errands are for that request alone."""
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two, switch(b, "other") as other:
        await one.get("/persistent/jobs")
        await other.get("/persistent/own")
        await until(knows(b, "jobs"))
        waits = asyncio.create_task(two.take("jobs", "own", timeout=20))
        await until(lambda: a.node.broker.state.queues["jobs"].readers)
        (connection,) = [found for sock in b.node.sockets if (found := busy(sock))]
        before = connection.waiting()
        for errand in connection.open:
            errand.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n" + bytes(40_000))
        assert len(connection.open) == 2 and connection.waiting() - before > 80_000
        assert b.node.waiting.total >= connection.waiting()
        waits.cancel()
    await until(lambda: not connection.open and not b.node.waiting.total)


def busy(sock: Any) -> Any:
    connection = sock.connection
    return connection if getattr(connection, "open", None) else None


async def test_mqtt_and_smq_publishes_at_another_node_end_in_the_queue(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, mqtt(b) as panel, smq(b) as device:
        await one.get("/persistent/jobs")
        await until(knows(b, "jobs"))
        for number in range(5):
            panel.paho.publish("$queue/jobs", b"%d" % number, number % 3)
        tid = await device.create("$queue/jobs")
        await device.publish(tid, b"smq")
        b.publish(b"program", "$queue/jobs")
        queue = a.node.broker.state.queues["jobs"]
        await until(lambda: queue.next == 7)
        one.cursor.clear()
        said = [said for _, said in await one.take("jobs")]
        assert sorted(said) == [*"01234", "program", "smq"] and said.index("0") < said.index("4")
        assert names(b) == []


async def test_each_message_goes_to_one_of_the_consumers_at_two_nodes(pair: Pair) -> None:
    a, b = await pair.both()
    count = 60
    async with switch(a, "one") as one, switch(b, "two") as two, switch(b, "three") as three:
        await one.post("/create/jobs", b'{"lease": 30}')
        await until(knows(b, "jobs"))
        got: list[str] = []

        async def consume(client: Switch) -> int:
            mine = 0
            while len(got) < count:
                for (_, number), payload in await client.take("jobs", timeout=0.3, most=3):
                    got.append(payload)
                    mine += 1
                    await client.get(f"/ack/jobs/{number}")
            return mine

        tasks = [asyncio.create_task(consume(one)) for one in (one, two, three)]
        async with switch(b, "sender") as sender:
            for number in range(count):
                await sender.send("jobs", b"%d" % number)
        took = await asyncio.gather(*tasks)
        assert sorted(map(int, got)) == list(range(count)) and all(took)
        assert not a.node.broker.state.queues["jobs"].messages


async def test_who_goes_while_its_transfer_waits_at_the_home_gets_nothing(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one:
        await one.post("/create/jobs", b'{"lease": 60}')
        await until(knows(b, "jobs"))
        queue = a.node.broker.state.queues["jobs"]
        async with switch(b, "two") as two:
            await one.send("jobs", b"held")
            assert await two.take("jobs") == [(("jobs", 0), "held")]
            waits = asyncio.create_task(two.take("jobs", timeout=20))
            await until(lambda: queue.readers)
            waits.cancel()
        # What it held is given back, and what comes now is for who is there.
        await until(lambda: not queue.readers and not queue.leased)
        await one.send("jobs", b"next")
        assert await one.take("jobs", most=2) == [(("jobs", 0), "held"), (("jobs", 1), "next")]


async def test_a_service_at_one_node_answers_who_asks_at_another(pair: Pair) -> None:
    """The queue at a, its service at b, who asks at c: the answer finds its queue there."""
    a, b = await pair.both()
    c = await pair.hub("c")
    async with switch(a, "one") as one, switch(b, "service") as service, switch(c, "asks") as asks:
        await one.get("/persistent/jobs")
        await asks.get("/transient/asks")
        await until(lambda: knows(b, "jobs")() and knows(c, "jobs")() and knows(a, "asks", "c")())
        assert await asks.send("jobs", b"2+2", "asks") == [["jobs", 0]]
        assert await service.take("jobs", timeout=5) == [(("jobs", 0), "2+2")]
        assert await service.post("/response/asks/jobs/0", b"4") == '[["asks",0]]'
        await service.get("/ack/jobs/0")
        body = json.dumps({"timeout": 5, "queues": ["asks"]}).encode()
        ((identity, said),) = json.loads(await asks.post("/transfer", body))["messages"]
        assert said == {"payload": "4", "kind": ["Response", ["jobs", 0]]}
        # The caller's queue goes with it, also when it was used from elsewhere.
    await until(lambda: names(c) == [] and not knows(a, "asks", "c")())


async def test_while_the_home_is_away_it_is_said_so(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two:
        await one.get("/persistent/jobs")
        await until(knows(b, "jobs"))
        body = json.dumps({"timeout": 60, "queues": ["jobs"]}).encode()
        waits = asyncio.create_task(two.web.post("/transfer", content=body))
        await until(lambda: a.node.broker.state.queues["jobs"].readers)
        pair.seats["a"].up = False  # or it is met again before the answer is there
        member(b).forget(member(b).nodes["a"], "silent for 5 s")
        answer = await waits
        assert answer.status_code == 503 and "'a'" in answer.text
        again = await two.web.post("/request/jobs/replies", content=b"x")
        assert again.status_code == 503
        assert "at node 'a', which cannot be reached since 20" in again.text


async def test_of_two_queues_of_one_name_the_older_one_stays(pair: Pair) -> None:
    a = await pair.hub("a")
    async with switch(a, "one") as one:
        await one.get("/persistent/jobs")
        await one.send("jobs", b"a0")
        a.node.membership.engine.up = False  # type: ignore[union-attr]
        b = await pair.hub("b")
        async with switch(b, "two") as two:
            await two.get("/persistent/jobs")
            for number in range(3):
                await two.send("jobs", b"b%d" % number)
            assert await two.take("jobs") != []
            assert names(b) == ["jobs"]
            a.node.membership.engine.up = True  # type: ignore[union-attr]
            await until(lambda: names(b) == [])
            queue = a.node.broker.state.queues["jobs"]
            await until(lambda: queue.next == 4)
            found = [said for _, said in await one.take("jobs")]
            assert found == ["a0", "b0", "b1", "b2"]
            moved = "moved to the older queue of its name at another node"
            assert b.node.broker.metrics.dropped[moved] == 3
            # Its ids are those of other messages now: who has read it begins anew.
            with pytest.raises(AssertionError):
                await two.get("/ack/jobs/0")
        assert list(queue.messages) == [0, 1, 2, 3]


async def test_consumers_of_mqtt_and_the_program_at_other_nodes_compete(pair: Pair) -> None:
    a, b = await pair.both()
    heard: list[bytes] = []
    async with switch(a, "one") as one, mqtt(a, "pa") as near, mqtt(b, "pb") as far:
        await one.get("/persistent/jobs")
        await until(knows(b, "jobs"))
        b.subscribe("$queue/jobs", lambda data, *rest: heard.append(data))
        for panel in (near, far):
            await panel.subscribe("$queue/jobs")
        await until(lambda: len(a.node.broker.state.queues["jobs"].consumers) == 2)
        for number in range(90):
            await one.send("jobs", b"%d" % number, "")
        queue = a.node.broker.state.queues["jobs"]
        await until(lambda: not queue.messages)
        parts = [[panel.heard.get_nowait()[1] for _ in range(panel.heard.qsize())]
                 for panel in (near, far)]  # fmt: skip
        assert sorted(map(int, sum(parts, heard))) == list(range(90))
        assert all(parts) and heard
        assert names(b) == []


async def test_what_a_consumer_at_another_node_had_and_did_not_acknowledge_is_given_to_others(
    pair: Pair,
) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, smq(b, "service") as service:
        await one.get("/persistent/jobs")
        await until(knows(b, "jobs"))
        await service.subscribe("$queue/jobs")
        queue = a.node.broker.state.queues["jobs"]
        await until(lambda: queue.consumers)
        await one.send("jobs", b"a request", "replies")  # only its answer acknowledges it
        await until(lambda: queue.leased)
        pair.seats["b"].cut = True
        member(a).forget(member(a).nodes["b"], "silent for 5 s")
        assert not queue.leased and not queue.consumers and len(queue.messages) == 1
        pair.seats["b"].cut = False
        await until(lambda: queue.leased)
    await until(lambda: not queue.consumers and not queue.leased)


async def test_who_asks_at_one_node_is_answered_by_an_mqtt_or_smq_service_at_another(
    pair: Pair,
) -> None:
    a, b = await pair.both()
    async with switch(a, "asks") as asks, smq(b, "service") as service:
        await asks.get("/persistent/jobs")
        await asks.get("/transient/asks")
        await until(lambda: knows(b, "jobs")() and knows(b, "asks")())
        await service.subscribe("$queue/jobs")
        for number in range(3):
            assert await asks.send("jobs", b"%d" % number, "asks") == [["jobs", number]]
            got = await anext(aiter(service.messages()))
            await service.publish(got.sender, b"re:" + got.payload)
            body = json.dumps({"timeout": 5, "queues": ["asks"], "from": str(number - 1)}).encode()
            (_, said), = json.loads(await asks.post("/transfer", body))["messages"]
            assert said == {"payload": f"re:{number}", "kind": ["Response", ["jobs", number]]}
        await until(lambda: not a.node.broker.state.queues["jobs"].messages)


async def test_a_transfer_reads_queues_of_several_homes(pair: Pair) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two:
        await one.get("/persistent/x")
        await two.get("/persistent/y")
        await until(lambda: knows(b, "x")() and knows(a, "y", "b")())
        assert await two.take("x", "y") == []
        await one.send("x", b"x0")
        await one.send("y", b"y0")
        got: list[str] = []
        while len(got) < 2:
            got += [said for _, said in await two.take("x", "y", timeout=5)]
        assert sorted(got) == ["x0", "y0"]
        for queue, sender in (("x", one), ("y", one), ("x", one)):
            waits = asyncio.create_task(two.take("x", "y", timeout=20))
            await until(lambda: a.node.broker.state.queues["x"].readers)
            await until(lambda: b.node.broker.state.queues["y"].readers)
            await sender.send(queue, b"next")
            ((identity, _),) = await waits
            assert identity[0] == queue
            await two.get(f"/ack/{queue}/{identity[1]}")
        assert await two.take("x", "y") == []
        await until(lambda: not a.node.broker.state.queues["x"].readers)


async def test_small_rights_are_as_small_at_the_other_nodes_door(
    pair: Pair, tmp_path: Path
) -> None:
    """Who it is is asked at b, and what it may at the queue's home."""
    users, rules = tmp_path / "users", tmp_path / "rules"
    for one in ("ada", "eve"):
        add_user(users, one, b"secret")
    rules.write_text("user ada\ntopic readwrite $queue/#\nuser eve\ntopic read $queue/other\n")
    place = Listener(address=LISTEN, password_file=str(users), acl_file=str(rules))
    settings = Settings(listener=(place,), journal=Journal(record="none"))
    a, b = await pair.both(listen=(), settings=settings)
    async with http(a) as ada, http(b) as eve, http(b) as far:
        ada.auth, eve.auth, far.auth = ("ada", "secret"), ("eve", "secret"), ("ada", "secret")
        assert (await ada.get("/login/one")).status_code == 200
        assert (await ada.get("/persistent/jobs")).status_code == 200
        await until(knows(b, "jobs"))
        assert (await eve.get("/login/two")).status_code == 200
        assert (await far.get("/login/three")).status_code == 200
        sent = await far.post("/request/jobs/r", content=b"x")
        assert (sent.status_code, sent.text) == (200, '[["jobs",0]]')
        body = json.dumps({"timeout": 0, "queues": ["jobs"]}).encode()
        for path, content in (
            ("/request/jobs/r", b"y"), ("/transfer", body), ("/ack/jobs/0", None),
            ("/destroy/jobs", None),
        ):  # fmt: skip
            method = "GET" if content is None else "POST"
            answer = await eve.request(method, path, content=content)
            assert answer.status_code == 403, (path, answer.text)
        assert list(a.node.broker.state.queues["jobs"].messages) == [0]
        # Nor is the token of another user to be had, at whichever node.
        assert (await eve.get("/login/one")).status_code == 200  # nobody has it at b
        assert (await eve.get("/ack/jobs/0")).status_code in (401, 403)


async def test_with_rules_a_token_is_its_users_by_way_of_every_node_and_nobody_elses(
    pair: Pair, tmp_path: Path
) -> None:
    """Its connections at its queue's node and those that come from elsewhere are one token's."""
    users, rules = tmp_path / "users", tmp_path / "rules"
    for one in ("ada", "bob"):
        add_user(users, one, b"secret")
    rules.write_text("user ada\ntopic readwrite $queue/#\nuser bob\ntopic readwrite $queue/#\n")
    place = Listener(address=LISTEN, password_file=str(users), acl_file=str(rules))
    a, b = await pair.both(
        listen=(), settings=Settings(listener=(place,), journal=Journal(record="none"))
    )

    async def come(hub: Hub, user: str, token: str) -> httpx.AsyncClient:
        web: httpx.AsyncClient = await pair.enter(http(hub))
        web.auth = (user, "secret")
        assert (await web.get(f"/login/{token}")).status_code == 200
        return web

    async def sends(web: httpx.AsyncClient, queue: str) -> int:
        return (await web.post(f"/request/{queue}/r", content=b"x")).status_code

    here = await come(a, "ada", "one")
    assert (await here.get("/persistent/x")).status_code == 200
    await until(knows(b, "x"))
    far, further = await come(b, "ada", "one"), await come(b, "ada", "one")
    assert (await far.get("/persistent/y")).status_code == 200
    await until(knows(a, "y", "b"))
    assert [await sends(one, "x") for one in (here, far, further)] == [200] * 3
    await here.aclose()  # the first of them, whose rights were the token's
    assert [await sends(one, "x") for one in (far, further)] == [200] * 2
    again = await come(a, "ada", "one")
    for reader, count in ((far, 5), (again, 5), (further, 5)):  # x is at a, y at b
        body = json.dumps({"timeout": 5, "queues": ["x", "y"]}).encode()
        answer = await reader.post("/transfer", content=body)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["messages"]) == count
    await come(a, "ada", "hers")
    thief = await come(b, "bob", "hers")  # nobody has it there
    assert await sends(thief, "y") == 200 and await sends(thief, "x") == 403
    assert (await thief.get("/login/one")).status_code == 403


async def beginning(pair: Pair) -> tuple[Hub, Hub, Switch, Switch]:
    """Queue x at a and y at b; a client at each."""
    a, b = await pair.both()
    one, two = [await pair.enter(switch(hub, token)) for hub, token in ((a, "one"), (b, "two"))]
    await one.get("/persistent/x")
    await two.get("/persistent/y")
    await until(lambda: knows(b, "x")() and knows(a, "y", "b")())
    return a, b, one, two


async def all_of(client: Switch, *queues: str) -> list[str]:
    """What a client gets until there is nothing more."""
    found: list[str] = []
    while got := await client.take(*queues):
        found += [said for _, said in got]
    return sorted(found)


async def test_a_cursor_of_several_homes_goes_on_at_every_node(pair: Pair) -> None:
    _, _, one, two = await beginning(pair)
    for number in range(10):
        await one.send("x", b"x%d" % number)
    assert await all_of(one, "x", "y") == [f"x{number}" for number in range(10)]
    for number in range(3):  # their rows are fewer than those that the cursor says of a
        await two.send("y", b"y%d" % number)
    two.cursor = dict(one.cursor)
    for reader in (two, one):
        assert await all_of(reader, "x", "y") == ["y0", "y1", "y2"]
    await one.send("x", b"more")
    for reader in (two, one):
        assert await all_of(reader, "x", "y") == ["more"]
        assert await all_of(reader, "x", "y") == []


async def test_a_cursor_of_several_homes_is_as_good_for_those_that_are_left(pair: Pair) -> None:
    a, b, one, two = await beginning(pair)
    await one.send("x", b"x0")
    await two.send("y", b"y0")
    assert await all_of(two, "x", "y") == ["x0", "y0"]
    await two.get("/destroy/y")
    await until(lambda: not knows(a, "y", "b")())
    assert await all_of(two, "x", "y") == []
    two.cursor["x",] = two.cursor["x", "y"]
    await one.send("x", b"x1")
    assert await all_of(two, "x", "y") == ["x1"]
    assert await all_of(two, "x") == ["x1"]  # the one that is left, alone
    # It begins again, at the other node, whose rows are more than those that were read at b.
    await one.get("/persistent/y")
    await until(knows(b, "y"))
    await one.send("y", b"y again")
    assert await all_of(two, "x", "y") == ["y again"]


async def test_of_a_node_that_a_cursor_does_not_name_everything_is_read(pair: Pair) -> None:
    _, _, one, two = await beginning(pair)
    await one.send("x", b"x0")
    await two.send("y", b"y0")
    for cursor in ("s1000", "nelsewhere=s1000", "na=s1000"):
        two.cursor["x", "y"] = cursor
        left = ["y0"] if cursor == "na=s1000" else ["x0", "y0"]
        assert await all_of(two, "x", "y") == left, cursor
    for cursor in ("n,", "n=", "n=s5"):
        body = json.dumps({"timeout": 0, "queues": ["x", "y"], "from": cursor}).encode()
        assert (await two.web.post("/transfer", content=body)).status_code == 400, cursor


async def test_requests_to_other_nodes_end_when_they_are_answered(pair: Pair) -> None:
    """One connection to a queue's home lasts for each of a token's: none more, whatever it asks."""
    a, b, one, two = await beginning(pair)
    for timeout in (0, -5, 5):
        await two.send("y", b"y")
        await one.send("x", b"x")
        assert await all_of(two, "x", "y") != []
        await two.take("x", "y", timeout=timeout)
        assert json.loads(await two.post("/request/x/r", b"z"))[0][0] == "x"
        assert await all_of(two, "x") != []
    async with http(b) as nobody:
        assert (await nobody.post("/publish/$queue/x", content=b"n")).status_code == 200
    await until(lambda: len(member(a).relays.far) == 1)
    assert not a.node.broker.state.queues["x"].readers


async def test_clients_of_the_first_switch_read_a_queue_of_another_node(pair: Pair) -> None:
    """A service at b reads a queue of a; who calls it is at a."""
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two, switch(b, "two") as beside:
        assert await two.get("/subscribe/late") == ""  # it is nowhere yet
        assert await two.get("/transfer/-1/0") == '{"messages":[]}'
        await one.get("/create/late")
        replies = await one.get("/create")
        await one.get(f"/subscribe/{replies}")
        await until(knows(b, "late"))
        waits = asyncio.create_task(two.get("/transfer/-1/20"))
        await until(lambda: a.node.broker.state.queues["late"].readers)
        await one.post(f"/send/late/7/{replies}", b"hello")
        ((number, said),) = json.loads(await waits)["messages"]
        assert said == {"payload": "hello", "correlation_id": 7, "reply_to": replies}
        assert await beside.post(f"/send/{replies}/7", b"thanks") == ""
        ((_, answer),) = json.loads(await one.get("/transfer/-1/5"))["messages"]
        assert answer == {"payload": "thanks", "correlation_id": 7}
        assert "hello" in await beside.get("/transfer/-1/0"), "any connection of the token reads"
        assert await two.get(f"/transfer/{number}/0") == '{"messages":[]}'
        assert await two.get(f"/ack/{number}") == ""
        assert not a.node.broker.state.queues["late"].messages
        assert await two.get("/transfer/-1/0") == '{"messages":[]}'
        own = await two.get("/create")
        assert own in names(a), "its reply queues are where it reads"


async def test_a_subscription_reaches_a_transfer_of_the_first_switch_that_waits_elsewhere(
    pair: Pair,
) -> None:
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two, switch(b, "two") as beside:
        for name in ("x", "y"):
            await one.get(f"/create/{name}")
        await one.post("/send/y/1/back", b"why")
        await until(lambda: knows(b, "x")() and knows(b, "y")())
        await two.get("/subscribe/x")
        waits = asyncio.create_task(two.get("/transfer/-1/20"))
        await until(lambda: a.node.broker.state.queues["x"].readers)
        await beside.get("/subscribe/y")
        assert "why" in await waits


async def test_a_token_of_the_first_switch_reads_at_one_node_and_begins_anew_at_another(
    pair: Pair,
) -> None:
    """It numbers messages by their node: those of two cannot be in one order."""
    a, b = await pair.both()
    async with switch(a, "one") as one, switch(b, "two") as two:
        await one.get("/create/far")
        await one.post("/send/far/1/back", b"there")
        await two.get("/create/near")
        await until(knows(b, "far"))
        await two.get("/subscribe/far")
        ((number, _),) = json.loads(await two.get("/transfer/-1/5"))["messages"]
        answer = await two.web.get("/subscribe/near")
        assert answer.status_code == 503 and "far is at node a, near is at node b" in answer.text
        await one.get("/destroy/far")
        await until(lambda: not knows(b, "far")())
        answer = await two.web.get(f"/ack/{number}")
        assert answer.status_code == 500, "a message of the same number here is another one"
        await two.get("/subscribe/near")
        await two.post("/send/near/2/back", b"here")
        assert "here" in await two.get(f"/transfer/{number + 1_000_000}/0")


async def test_a_token_at_two_nodes_is_no_client_that_moved(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "hubbub.cluster"):
        a, b, one, two = await beginning(pair)
        await two.send("x", b"relayed")
        async with switch(a, "two"), switch(b, "one"), smq(a, "device"):
            await until(lambda: len(a.node.broker.sessions) >= 3)
            async with smq(b, "device"):
                await until(lambda: "device is taken over by node" in caplog.text)
    assert "goes on at node" not in caplog.text
    assert caplog.text.count("is taken over by node") == 1
