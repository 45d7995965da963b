"""Two and three hubs of one process as one: SMQ's cluster functions, and what crosses.

The hubs are real ones with sockets, the clients too; only what carries frames between the hubs is a
switchboard. Over NATS the same is tested in `test_nats`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub, Settings, Switchboard
from hubbub.cluster.switchboard import Seat
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Journal
from hubbub.core.limits import LINK_CHOKED
from hubbub.errors import SettingError
from hubbub.journal.table import Table
from tests.clients import PATIENCE, Heard, http, message, mqtt, smq

LISTEN = "127.0.0.1:0"


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.01)


class Pair:
    """Hubs `a` and `b`, which know one another, and a stack for clients."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.board = Switchboard()
        self.stack = stack
        self.seats: dict[str, Seat] = {}

    async def hub(self, name: str, **options: Any) -> Hub:
        self.seats[name] = self.board.join(name)
        options = {"listen": LISTEN, **options}
        return await self.stack.enter_async_context(Hub(cluster=self.seats[name], **options))

    async def both(self, **options: Any) -> tuple[Hub, Hub]:
        a, b = await self.hub("a", **options), await self.hub("b", **options)
        await until(lambda: nodes(a) and nodes(b))
        return a, b

    async def enter(self, client: Any) -> Any:
        return await self.stack.enter_async_context(client)


def nodes(hub: Hub) -> dict[str, int]:
    assert hub.cluster is not None
    return hub.cluster.nodes()


def knows(hub: Hub, node: str, name: str, literal: bool = True) -> Callable[[], bool]:
    """Whether a hub has heard of a subscription at another node."""
    membership = hub.node.membership
    assert membership is not None
    return lambda: (name, literal) in membership.estates[node].wants


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(stack)


# SMQ's cluster functions


async def test_the_server_publishes_to_all_other_servers_and_to_one(pair: Pair) -> None:
    a, b = await pair.both()
    c = await pair.hub("c")
    await until(lambda: len(nodes(a)) == 2)
    heard = {}
    for name, hub in (("a", a), ("b", b), ("c", c)):
        heard[name] = Heard()
        hub.subscribe("self", heard[name])
    assert a.cluster is not None
    assert a.cluster.publish({"load": 3}, "state") == 2
    for name, hub in (("b", b), ("c", c)):
        data, ptid, tid, subtid, peer = (await heard[name].until())[0]
        assert (data, tid, hub.tid2subtopic(subtid)) == (b'{"load":3}', 1, "state")
        assert ptid == nodes(hub)["a"] and peer.phantom and peer.uid == "SMQ server client"
    assert a.cluster.publish(b"only you", node="c") == 1
    assert (await heard["c"].until(2))[1][0] == b"only you"
    assert a.cluster.publish(b"nobody", node="d") == 0
    # The answer finds the way back, to the number that came with it.
    b.publish(b"thanks", heard["b"].calls[0][1])
    assert (await heard["a"].until())[0][:3] == (b"thanks", nodes(a)["b"], 1)
    assert len(heard["b"].calls) == 1


async def test_a_message_to_all_servers_can_be_a_clients(pair: Pair) -> None:
    a, b = await pair.both()
    heard = Heard()
    b.subscribe("self", heard)
    device = await pair.enter(smq(a))
    assert a.cluster is not None
    await until(lambda: b.etid2peer(device.number))
    assert a.cluster.publish(b"from the device", "x", device.number) == 1
    data, ptid, _, _, peer = (await heard.until())[0]
    assert (data, ptid, peer.uid, peer.phantom) == (
        b"from the device", device.number, "device-1", True,
    )  # fmt: skip
    b.publish(b"to the device", ptid)
    assert (await message(device)).payload == b"to the device"


async def test_pubon_reaches_the_subscribers_of_other_nodes_only(pair: Pair) -> None:
    a, b = await pair.both()
    device, here, there = [
        await pair.enter(smq(hub, uid))
        for hub, uid in ((a, "device-1"), (a, "reader-1"), (b, "reader-2"))
    ]
    for reader in (here, there):
        await reader.subscribe("news")
    await until(knows(a, "b", "news"))
    assert a.cluster is not None
    assert a.cluster.pubon(b"elsewhere", device.number, "news", "today") == 1
    assert a.cluster.pubon(b"by nobody", 4711, "news") == 0
    got = await message(there)
    assert (got.payload, got.sender) == (b"elsewhere", device.number)
    a.publish(b"everywhere", "news")
    assert (await message(here)).payload == b"everywhere"
    assert (await message(there)).payload == b"everywhere"


async def test_shutdown_ends_the_clients_of_all_nodes_with_a_message(pair: Pair) -> None:
    a, b = await pair.both()
    here, there = await pair.enter(smq(a)), await pair.enter(smq(b, "device-2"))
    assert a.cluster is not None
    a.cluster.shutdown("closed for today")
    for device in (here, there):
        with pytest.raises(Exception, match="closed for today"):
            await message(device)
    await until(lambda: not a.node.broker.phantoms or len(b.node.broker.phantoms) == 1)
    assert nodes(a) and nodes(b)  # the nodes go on


async def test_remote_clients_are_phantoms_here(pair: Pair) -> None:
    a, b = await pair.both()
    device = await pair.enter(smq(a))
    panel = await pair.enter(mqtt(a))
    await until(lambda: len(b.peers()) == 4)
    found = {peer.uid: peer for _, peer in b.peers()}
    assert set(found) == {"SMQ server client", "device-1", "panel-1"}
    assert found["device-1"].phantom and found["device-1"].tid == device.number
    assert found["panel-1"].protocol == "mqtt" and panel
    assert not b.etid2peer(1).phantom  # type: ignore[union-attr]
    assert found["device-1"].sock.peername() == ("", 0)
    assert b.pubon(b"hello", device.number, 1)
    assert (await message(device)).payload == b"hello"


async def test_clients_of_two_nodes_write_to_each_other(pair: Pair) -> None:
    a, b = await pair.both()
    left, right = await pair.enter(smq(a)), await pair.enter(smq(b, "device-2"))
    await until(lambda: b.etid2peer(left.number) and a.etid2peer(right.number))
    await right.publish(left.number, b"who is it?", "ask")
    got = await message(left)
    assert (got.payload, got.sender) == (b"who is it?", right.number)
    assert a.tid2subtopic(got.subtid) == "ask"
    await left.publish(got.sender, b"me")
    assert (await message(right)).payload == b"me"


async def test_a_remote_client_that_goes_is_one_change_to_zero(pair: Pair) -> None:
    a, b = await pair.both()
    device = await pair.enter(smq(a))
    watcher = await pair.enter(smq(b, "watcher-1"))
    await until(lambda: b.etid2peer(device.number))
    seen, by_hub = Heard(), Heard()
    await watcher.observe(device.number, seen)
    b.observe(device.number, by_hub)
    await asyncio.sleep(0.05)
    assert not seen.calls and not by_hub.calls
    await device.close()
    await seen.until()
    await by_hub.until()
    await asyncio.sleep(0.1)
    assert [call[0] for call in seen.calls] == [0]
    assert by_hub.calls == [(0, device.number)]
    assert b.etid2peer(device.number) is None


async def test_a_node_that_goes_is_one_change_to_zero_for_each_of_its_clients(pair: Pair) -> None:
    a, b = await pair.both()
    devices = [await pair.enter(smq(a, f"device-{n}")) for n in range(3)]
    await until(lambda: all(b.etid2peer(device.number) for device in devices))
    heard = Heard()
    for device in devices:
        b.observe(device.number, heard)
    membership = b.node.membership
    assert membership is not None
    pair.seats["a"].cut = True  # as if the cable were out: five seconds of silence follow
    membership.nodes["a"].heard -= 60
    await heard.until(3)
    assert not b.node.broker.phantoms
    pair.seats["a"].cut = False
    await until(lambda: all(b.etid2peer(device.number) for device in devices))  # it is back
    await asyncio.sleep(0.1)
    assert sorted(heard.calls) == sorted((0, device.number) for device in devices)


async def test_a_topic_is_counted_here_as_the_reference_does(pair: Pair) -> None:
    a, b = await pair.both()
    reader, watcher = await pair.enter(smq(a)), await pair.enter(smq(b, "watcher-1"))
    await reader.subscribe("t")
    await until(knows(b, "a", "t"))
    heard = Heard()
    b.observe("t", heard)
    assert await heard.until() == [(0, "t")]
    await watcher.subscribe("t")
    assert (await heard.until(2))[1] == (1, "t")


async def test_a_topic_is_counted_everywhere_if_that_is_wished(pair: Pair) -> None:
    settings = Settings(
        listen=(LISTEN,), journal=Journal(record="none"), cluster=Cluster(counts="cluster")
    )
    a, b = await pair.both(settings=settings)
    reader = await pair.enter(smq(a))
    await reader.subscribe("t")
    heard = Heard()
    b.observe("t", heard)
    await until(lambda: heard.calls and heard.calls[-1] == (1, "t"))
    local = await pair.enter(smq(b, "device-2"))
    await local.subscribe("t")
    await until(lambda: heard.calls[-1] == (2, "t"))
    await reader.unsubscribe("t")
    await until(lambda: heard.calls[-1] == (1, "t"))
    pair.seats["a"].cut = True
    membership = b.node.membership
    assert membership is not None
    membership.nodes["a"].heard -= 60
    await until(lambda: not nodes(b))
    assert heard.calls[-1] == (1, "t")


def test_the_example_of_the_guide() -> None:
    text = (Path(__file__).parents[2] / "docs/guide/cluster.md").read_text("utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)  # the others are for Spark
    exec(compile(code, "docs/guide/cluster.md", "exec"), {})


# What else the nodes share


async def test_two_nodes_of_one_name_are_refused(pair: Pair) -> None:
    await pair.hub("a")
    with pytest.raises(SettingError, match="'a' already"):
        await pair.hub("a")


async def test_a_retained_message_is_on_all_nodes_and_the_last_one_wins(pair: Pair) -> None:
    a, b = await pair.both()
    a.publish(b"one", "state", retain=True, qos=1)
    await until(lambda: "state" in b.node.broker.state.retained)
    late = await pair.enter(mqtt(b))
    await late.subscribe("state")
    assert await late.message() == ("state", b"one")
    b.publish(b"two", "state", retain=True)
    assert await late.message() == ("state", b"two")
    other = await pair.enter(mqtt(a, "panel-2"))
    async with asyncio.timeout(PATIENCE):
        while True:  # the message is on its way
            await other.subscribe("state")
            if await other.message() == ("state", b"two"):
                break
    a.publish(b"", "state", retain=True)
    await until(lambda: not b.node.broker.state.retained)


async def test_what_was_retained_while_nodes_were_apart_is_one_again(pair: Pair) -> None:
    a, b = await pair.both()
    a.publish(b"old", "x", retain=True)
    a.publish(b"gone", "y", retain=True)
    await until(lambda: len(b.node.broker.state.retained) == 2)
    pair.seats["a"].cut = True
    for hub, other in ((a, "b"), (b, "a")):
        assert hub.node.membership is not None
        hub.node.membership.nodes[other].heard -= 60
    await until(lambda: not nodes(a) and not nodes(b))
    a.publish(b"of a", "x", retain=True)
    await asyncio.sleep(0.01)
    b.publish(b"of b", "x", retain=True)  # the later one
    a.publish(b"", "y", retain=True)
    b.publish(b"new", "z", retain=True)
    pair.seats["a"].cut = False

    def kept(hub: Hub) -> dict[str, bytes]:
        broker = hub.node.broker
        found = {name: broker.log.look(kept.seq) for name, kept in broker.state.retained.items()}
        return {name: one.payload for name, one in found.items() if one is not None}

    await until(lambda: kept(a) == kept(b) == {"x": b"of b", "z": b"new"})


async def test_one_member_of_a_shared_group_gets_a_message_wherever_it_is(pair: Pair) -> None:
    a, b = await pair.both()
    members = [await pair.enter(mqtt(hub, f"m{n}")) for n, hub in enumerate((a, a, b))]
    for member in members:
        await member.subscribe("$share/g/work/#")
    await until(knows(a, "b", "$share/g/work/#", False))
    await until(knows(b, "a", "$share/g/work/#", False))
    for n in range(30):
        a.publish(b"%d" % n, "work/x")
        b.publish(b"%d" % (100 + n), "work/x")
    await until(lambda: sum(member.heard.qsize() for member in members) >= 60)
    await asyncio.sleep(0.1)
    got = [member.heard.get_nowait()[1] for member in members for _ in range(member.heard.qsize())]
    assert sorted(map(int, got)) == [*range(30), *range(100, 130)]


async def test_a_client_that_connects_at_another_node_ends_its_older_connection(
    pair: Pair,
) -> None:
    a, b = await pair.both()
    old = await pair.enter(mqtt(a, "dev"))
    await asyncio.sleep(0.01)
    new = await pair.enter(mqtt(b, "dev"))
    assert await old.code("disconnect") == 0x8E
    await until(lambda: not a.node.broker.clients)
    await new.subscribe("still/here")
    assert len(b.node.broker.clients) == 1


async def test_who_may_not_read_gets_nothing_from_another_node(pair: Pair, tmp_path: Any) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite open/#\n")
    a = await pair.hub("a")
    settings = Settings(
        listen=(LISTEN,), journal=Journal(record="none"), acl_file=str(rules), allow_anonymous=True
    )
    b = await pair.hub("b", settings=settings)
    await until(lambda: nodes(a) and nodes(b))
    reader = await pair.enter(mqtt(b))
    await reader.subscribe("#")
    await until(knows(a, "b", "#", False))
    a.publish(b"secret", "closed/x")
    a.publish(b"plain", "open/x")
    assert await reader.message() == ("open/x", b"plain")
    await reader.publish("closed/x", b"not allowed")  # and who may not write reaches no node
    writer = await pair.enter(mqtt(a, "panel-2"))
    await writer.subscribe("closed/#")
    a.publish(b"the first", "closed/y")
    assert await writer.message() == ("closed/y", b"the first")


async def test_names_of_the_hubs_own_do_not_cross(pair: Pair) -> None:
    a, b = await pair.both()
    reader = await pair.enter(mqtt(b))
    for name in ("$SYS/#", "$queue/jobs", "$client/self"):
        await reader.subscribe(name)
    await reader.subscribe("plain")
    await until(knows(a, "b", "plain"))  # told after the others would have been
    membership = a.node.membership
    assert membership is not None
    assert list(membership.estates["b"].wants) == [("plain", True)]
    async with http(a) as web:
        await web.post("/publish/$queue/jobs", content=b"stays")
    # The queue began with its consumer: what is published there goes to its home.
    while (heard := await reader.message())[0] != "$queue/jobs":
        pass
    assert heard[1] == b"stays"
    assert "jobs" not in a.node.broker.state.queues


async def test_a_request_is_answered_across_nodes(pair: Pair) -> None:
    """By topic, and by the number of an SMQ client, from every kind of responder."""
    a, b = await pair.both()
    asked = Heard(lambda data, ptid, *rest: b.publish(b"re:" + data, ptid, "answer"))
    b.subscribe("ask", asked)
    asker = await pair.enter(smq(a))
    await until(knows(a, "b", "ask"))
    await asker.publish("ask", b"1")
    got = await message(asker)
    assert got.payload == b"re:1"
    assert a.tid2subtopic(got.subtid) == "answer"


async def test_a_large_message_crosses_in_parts(pair: Pair) -> None:
    a, b = await pair.both()
    reader = await pair.enter(mqtt(b))
    await reader.subscribe("big")
    await until(knows(a, "b", "big"))
    data = bytes(range(256)) * 12_000  # three megabytes
    a.publish(data, "big")
    a.publish(b"after", "big")
    assert await reader.message() == ("big", data)
    assert await reader.message() == ("big", b"after")


async def test_a_lone_publisher_is_held_back_while_the_engine_takes_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await pair.both()
    reader, writer = await pair.enter(mqtt(b, "reader")), await pair.enter(mqtt(a, "writer"))
    await reader.subscribe("file")
    await until(knows(a, "b", "file"))
    metrics, count = a.node.broker.metrics, 400
    with monkeypatch.context() as full:
        full.setattr(pair.seats["a"], "waiting", lambda node="": LINK_CHOKED + 1)
        for _ in range(count):
            writer.paho.publish("file", bytes(10_000))
        await until(lambda: metrics.held_back)
        heard = metrics.messages_in
        await asyncio.sleep(0.2)
        assert metrics.messages_in == heard < count
    await until(lambda: metrics.messages_in == count)
    assert not metrics.dropped


# What the journals say


async def test_a_row_says_from_which_node_a_message_came(pair: Pair, tmp_path: Path) -> None:
    """So who reads both journals can have each message once."""
    a = await pair.hub("a", data=str(tmp_path / "a"))
    b = await pair.hub("b", data=str(tmp_path / "b"))
    await until(lambda: nodes(a) and nodes(b))
    reader, writer = await pair.enter(mqtt(b)), await pair.enter(mqtt(a, "writer"))
    await reader.subscribe("t/#")
    await until(knows(a, "b", "t/#", False))
    for number in range(5):
        writer.paho.publish("t/0", b"%d" % number)
    await writer.publish("t/1", b"5")
    await writer.publish("t/2", b"6", retain=True)
    a.publish(b"7", "t/3", content_type="text/plain")
    found = [await reader.message() for _ in range(8)]
    assert sorted(payload for _, payload in found) == [b"%d" % number for number in range(8)]
    await pair.stack.aclose()
    rows = {name: published(tmp_path / name) for name in ("a", "b")}
    assert sorted(rows["a"]) == [(b"%d" % number, "") for number in range(8)]
    assert sorted(rows["b"]) == [(b"%d" % number, "a") for number in range(8)]


def published(directory: Path) -> list[tuple[bytes, str]]:
    """The messages in a journal, each with the node that its row names."""
    journal = Table(str(directory))
    return [
        (row["payload"], json.loads(row["properties"] or "{}").get("node", ""))
        for rows in journal.read(journal.first() - 1, journal.committed())
        for row in rows.to_pylist()
        if row["kind"] == "publish" and row["topic"].startswith("t/")
    ]
