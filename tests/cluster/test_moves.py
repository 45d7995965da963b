"""A session has one home and is reached from every node: real hubs and clients of one process.

What the failure table of docs/design/cluster.md says of it is tested here; over NATS, with hubs
that are killed, in `test_nats_moves`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub, Settings, connect
from hubbub.auth.passwords import add_user
from hubbub.client.mqtt import Scram
from hubbub.cluster.membership import Membership
from hubbub.config.cluster import Cluster
from hubbub.config.identity import Jwt
from hubbub.config.settings import Journal, Limits, Listener
from hubbub.core.limits import CLUSTER_WAY_BYTES
from hubbub.protocols.mqtt import specification as spec
from tests.auth.tokens import signed, write
from tests.clients import PATIENCE
from tests.cluster.roaming import Roaming, roaming
from tests.cluster.test_two_hubs import LISTEN, Pair, until

HOME = 10.0  # seconds for what takes the five of CLUSTER_DEAD_SECONDS


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(stack)


def member(hub: Hub) -> Membership:
    assert hub.node.membership is not None
    return hub.node.membership


def at_home(hub: Hub, client: str = "device-1", node: str = "a") -> Callable[[], bool]:
    """Whether a hub has heard that this node is a session's home."""
    return lambda: member(hub).directory.home("mqtt", client) == node


def has_ended(hub: Hub, client: str) -> Callable[[], bool]:
    return lambda: ("mqtt", client) not in member(hub).directory.here


def is_new(hub: Hub, client: str = "device-1") -> Callable[[], bool]:
    return lambda: member(hub).directory.home("mqtt", client) == "" and (
        ("mqtt", client) not in member(hub).directory.here
    )


async def left_at(
    a: Hub, b: Hub, topic: str = "news", client: str = "device-1", **options: Any
) -> None:
    """A session whose home is `a`, and `b` knows."""
    async with roaming(a, client, **options) as device:
        await device.subscribe(topic)
    await until(at_home(b, client))


@pytest.mark.parametrize("v5", [True, False], ids=["5.0", "3.1.1"])
async def test_what_waits_at_home_is_delivered_at_another_node(pair: Pair, v5: bool) -> None:
    a, b = await pair.both()
    await left_at(a, b, v5=v5)
    async with roaming(b, "writer", expiry=0, clean=True) as writer:
        for number in range(5):
            assert await writer.publish("news", b"%d" % number) == 0
        async with roaming(b, v5=v5) as device:
            assert device.present
            assert await device.take(5) == [b"0", b"1", b"2", b"3", b"4"]
            # It is a's client, by way of b, with its own address.
            (client,) = [one for one in (await a.node.status())["clients"]
                         if one["client"] == "device-1"]  # fmt: skip
            assert (client["via"], client["address"]) == ("b", "127.0.0.1")
            counts = [member(hub).status() for hub in (a, b)]
            assert [one["relayed"] for one in counts] == [0, 1]
            assert [one["relayed_home"] for one in counts] == [1, 0]
            assert "device-1" not in {one.client for one in b.node.broker.clients.values()}
            # And everything else goes on there, both ways, in every QoS.
            await device.subscribe("more/#")
            for qos in (0, 1, 2):
                device.send("news", b"own %d" % qos, qos)
                assert await device.take(1) == [b"own %d" % qos]
                writer.send(f"more/{qos}", b"more %d" % qos, qos)
                assert await device.take(1) == [b"more %d" % qos]
    await until(lambda: not (member(a).relays.far or member(b).relays.near))


@pytest.mark.parametrize("cut", [False, True], ids=["in order", "cut"])
async def test_a_session_hops_while_messages_flow(pair: Pair, cut: bool) -> None:
    """Each message of QoS 2 comes once, in order, wherever the client is."""
    a, b = await pair.both()
    c = await pair.hub("c")
    await until(lambda: len(member(a).nodes) == len(member(c).nodes) == 2)
    done = 300

    async def write(writer: Roaming) -> None:
        for number in range(done):
            writer.send("news", b"%d" % number, 2)
            await asyncio.sleep(0.003)

    async with roaming(a) as device, roaming(c, "writer", expiry=0, clean=True) as writer:
        assert await device.want("news", 2) == 2
        await until(lambda: at_home(b)() and at_home(c)())
        task = asyncio.create_task(write(writer))
        for hop in range(12):
            await asyncio.sleep(0.1)
            assert await device.move((b, c, a)[hop % 3], cut) == 0
            assert device.present
        await task
        assert await device.take(done) == [b"%d" % number for number in range(done)]
        await asyncio.sleep(0.1)
        assert device.heard.empty()


async def test_large_messages_cross_in_parts_and_both_ways_are_bounded(pair: Pair) -> None:
    a, b = await pair.both()
    await left_at(a, b, "big/+")
    large = bytes(range(256)) * 4 * 4096  # 4 MiB
    assert len(large) > 8 * CLUSTER_WAY_BYTES
    async with roaming(b) as device:
        device.send("big/1", large, 1)
        assert await device.take(1) == [large]
        device.send("big/2", large[1:], 2)
        assert await device.take(1) == [large[1:]]


async def test_a_client_that_does_not_read_holds_back_its_home_alone(pair: Pair) -> None:
    """What a relay keeps is bounded at both nodes; the rest waits in the session's backlog."""
    a, b = await pair.both()
    await left_at(a, b)
    host, _, port = b.addresses[0].rpartition(":")
    reader, socket = await asyncio.open_connection(host, int(port), limit=1024)
    socket.write(b"\x10\x14\x00\x04MQTT\x04\x00\x00\x3c\x00\x08device-1")
    assert await reader.readexactly(4) == b"\x20\x02\x01\x00"
    (near,) = member(b).relays.near.values()
    (far,) = member(a).relays.far.values()
    async with roaming(a, "writer", expiry=0, clean=True) as writer:
        for _ in range(200):
            assert await writer.publish("news", bytes(100_000)) == 0
    # 20 MB were published: no more is between the nodes and at b than there is room for.
    assert near.kept <= CLUSTER_WAY_BYTES
    assert len(far.sending.out) + far.link.size < 8 * 1024 * 1024
    socket.close()
    await until(lambda: not member(a).relays.far)


async def test_half_messages_of_relayed_clients_are_in_the_budget_of_their_home(pair: Pair) -> None:
    """As those of sockets: the heaviest goes, and is gone from what is weighed."""
    a, b = await pair.both()
    waiting, names = a.node.waiting, ("device-1", "device-2", "device-3")
    waiting.apply(5 << 20)
    host, _, port = b.addresses[0].rpartition(":")
    open_ones = []
    for size, name in enumerate(names, 1):
        await left_at(a, b, client=name)
        reader, socket = await asyncio.open_connection(host, int(port))
        socket.write(b"\x10\x14\x00\x04MQTT\x04\x00\x00\x3c\x00\x08" + name.encode())
        assert await reader.readexactly(4) == b"\x20\x02\x01\x00"
        open_ones.append((reader, socket))
        socket.write(b"\x30\x80\x80\x80\x04\x00\x01t" + bytes(size << 20))  # of 8 MiB
    async with asyncio.timeout(PATIENCE):
        assert await open_ones[2][0].read() == b""
    assert sorted(far.opening.credentials.client for far in member(a).relays.far.values()
                  if far.opening.credentials is not None) == list(names[:2])  # fmt: skip
    await until(lambda: waiting.total > 3 << 20)
    for far in list(member(a).relays.far.values()):
        far.abort()
    assert waiting.total == 0


async def test_take_over_keep_alive_and_will_hold_at_home(pair: Pair) -> None:
    a, b = await pair.both()
    c = await pair.hub("c")
    await until(lambda: len(member(a).nodes) == len(member(c).nodes) == 2)
    await left_at(a, b)
    await until(at_home(c))
    async with roaming(a, "watcher", expiry=0, clean=True) as watcher:
        await watcher.subscribe("wills")
        first = Roaming(b)
        assert await first.open() == 0
        async with roaming(c, will=("wills", b"gone")) as second:
            assert await first.code("disconnect") == spec.TAKEN_OVER
            assert second.present
            async with roaming(a) as third:
                assert await second.code("disconnect") == spec.TAKEN_OVER
                assert third.present
        assert await watcher.take(1) == [b"gone"]
        # A connection that is cut is lost at home, and so is one that says nothing.
        device = Roaming(b, will=("wills", b"cut"))
        assert await device.open() == 0
        await device.drop()
        assert await watcher.take(1) == [b"cut"]
        silent = Roaming(b, will=("wills", b"silent"), keepalive=1)
        assert await silent.open() == 0
        silent.paho.loop_stop()
        assert await watcher.take(1) == [b"silent"]


async def test_who_begins_anew_elsewhere_ends_the_session_at_home(pair: Pair) -> None:
    a, b = await pair.both()
    for expiry in (0, 3600):
        name = f"device-{expiry}"
        await left_at(a, b, client=name)
        async with roaming(b, name, clean=True, expiry=expiry) as device:
            assert device.present is False
            await until(has_ended(a, name))
            assert ("mqtt", name) not in a.node.broker.state.sessions
    await until(at_home(a, "device-3600", "b"))
    await until(is_new(a, "device-0"))
    async with roaming(a, "device-3600") as device:
        assert device.present


async def test_it_begins_where_its_client_comes_when_it_has_ended(pair: Pair) -> None:
    a, b = await pair.both()
    await left_at(a, b, expiry=1)
    async with asyncio.timeout(PATIENCE):
        while not is_new(b)():
            await asyncio.sleep(0.05)
    async with roaming(b) as device:
        assert device.present is False
        await until(at_home(a, node="b"))


@pytest.mark.slow
@pytest.mark.parametrize("v5", [True, False], ids=["5.0", "3.1.1"])
async def test_while_its_home_is_away_no_other_session_begins(pair: Pair, v5: bool) -> None:
    a, b = await pair.both()
    await left_at(a, b, v5=v5)
    pair.seats["a"].cut = True
    device = Roaming(b, v5=v5)  # relayed into nothing, until a is gone for b
    assert await device.open() == spec.UNREACHABLE  # paho's word for 3, too
    assert not v5 or "is gone" in device.reason
    await device.close()
    again = Roaming(b, v5=v5)
    assert await again.open() == spec.UNREACHABLE
    assert not v5 or "cannot be reached" in again.reason
    await again.close()
    pair.seats["a"].cut = False
    await until(lambda: "a" in member(b).nodes)
    async with roaming(b, v5=v5) as third:
        assert third.present


@pytest.mark.slow
async def test_when_it_is_away_for_too_long_a_session_begins_elsewhere(pair: Pair) -> None:
    """When the old home is back after all, the later session stays and the other one is ended."""
    a = await pair.hub("a")
    forgets = Settings(cluster=Cluster(keep=1), journal=Journal(record="none"))
    b = await pair.hub("b", settings=forgets)
    await until(lambda: member(a).nodes and member(b).nodes)
    await left_at(a, b)
    pair.seats["a"].cut = True
    async with asyncio.timeout(2 * HOME):
        while not is_new(b)():
            await asyncio.sleep(0.1)
    async with roaming(a, "writer", expiry=0, clean=True) as writer:
        await writer.publish("news", b"waits in the old one")
    async with roaming(b) as device:
        assert device.present is False
        pair.seats["a"].cut = False
        await until(at_home(a, node="b"))
        assert ("mqtt", "device-1") not in a.node.broker.state.sessions
        assert a.node.broker.metrics.dropped["session began anew at another node"] == 1
    async with roaming(a) as device:
        assert device.present


async def test_a_node_that_was_started_again_knows_nothing_of_who_is_away(pair: Pair) -> None:
    """There a session begins; the later one stays when the old home is back."""
    a = await pair.hub("a")
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(Hub(cluster=pair.board.join("b"), listen=LISTEN))
        await until(lambda: member(a).nodes and member(b).nodes)
        await left_at(a, b)
        pair.seats["a"].cut = True
    b = await pair.hub("b")
    async with roaming(b) as device:
        assert device.present is False
        await device.subscribe("later")
    pair.seats["a"].cut = False
    await until(at_home(a, node="b"))
    await until(has_ended(a, "device-1"))
    async with roaming(a) as device:
        assert device.present


@pytest.mark.slow
async def test_a_client_that_began_anew_meanwhile_ends_what_comes_back(pair: Pair) -> None:
    a, b = await pair.both()
    await left_at(a, b)
    pair.seats["a"].cut = True
    async with asyncio.timeout(2 * HOME):
        while "a" in member(b).nodes:
            await asyncio.sleep(0.1)
    async with roaming(b, clean=True, expiry=0) as device:
        assert device.present is False
    pair.seats["a"].cut = False
    await until(lambda: ("mqtt", "device-1") not in a.node.broker.state.sessions)
    async with roaming(b) as device:
        assert device.present is False


async def test_a_frame_lost_between_the_nodes_ends_the_connection(pair: Pair) -> None:
    a, b = await pair.both()
    await left_at(a, b)
    for seat in ("a", "b"):
        device = Roaming(b)
        assert await device.open() == 0
        pair.seats[seat].cut = True
        (a if seat == "a" else b).node.broker.age += 1
        device.send("news", b"into the gap")
        member(a).beat()
        member(b).beat()
        await asyncio.sleep(0.1)
        pair.seats[seat].cut = False
        assert await device.code("disconnect") in (spec.UNSPECIFIED, 7)
        await device.close()
        await until(lambda: not member(a).relays.far and not member(b).relays.near)
    async with roaming(b) as device:
        assert device.present


@pytest.mark.parametrize("killed", [False, True])
async def test_when_its_node_stops_the_session_stays_and_the_client_is_told(
    pair: Pair, killed: bool
) -> None:
    """And its will is published at home; `killed`: its node says no word."""
    a = await pair.hub("a")
    watcher = await pair.enter(roaming(a, "watcher", expiry=0, clean=True))
    await watcher.subscribe("wills")
    async with AsyncExitStack() as stack:
        seat = pair.board.join("b")
        b = await stack.enter_async_context(Hub(cluster=seat, listen="127.0.0.1:0"))
        await until(lambda: member(a).nodes and member(b).nodes)
        await left_at(a, b)
        device = Roaming(b, will=("wills", b"gone"))
        assert await device.open() == 0
        if killed:
            seat.cut = True
            member(a).forget(member(a).nodes["b"], "silent for 5 s")
            assert await watcher.take(1) == [b"gone"]
    assert await device.code("disconnect") == spec.STOPPING
    await device.close()
    await until(lambda: not member(a).relays.far)
    async with roaming(a) as device:
        assert device.present
    if not killed:
        assert await watcher.take(1) == [b"gone"]
    assert watcher.heard.empty()


async def test_who_it_is_is_asked_where_it_connects_and_what_it_may_at_home(
    pair: Pair, tmp_path: Path
) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    for one in ("ada", "eve"):
        add_user(users, one, b"secret")
    rules.write_text("user ada\ntopic readwrite news\n")
    place = Listener(address=LISTEN, password_file=str(users), acl_file=str(rules))
    settings = Settings(listener=(place,), journal=Journal(record="none"))
    a, b = await pair.both(listen=(), settings=settings)
    known: dict[str, Any] = {"user": "ada", "password": "secret"}
    await left_at(a, b, **known)
    wrong = Roaming(b, user="ada", password="wrong")
    assert await wrong.open() == spec.BAD_LOGIN
    await wrong.close()
    async with roaming(b, **known) as device:
        assert device.present
        (far,) = member(a).relays.far.values()
        assert far.opening.credentials is not None and far.opening.credentials.user == "ada"
        assert await device.publish("news", b"allowed") == 0
        assert await device.take(1) == [b"allowed"]
        assert await device.publish("secret", b"no") == spec.NOT_ALLOWED
        # Another user has no part of it: it gets a session of its own, as on one node.
    async with roaming(b, user="eve", password="secret") as other:
        assert other.present is False


async def test_when_its_home_stops_in_order_the_client_is_told_and_the_will_published(
    pair: Pair,
) -> None:
    b = await pair.hub("b")
    async with AsyncExitStack() as stack:
        seat = pair.board.join("a")
        a = await stack.enter_async_context(Hub(cluster=seat, listen=LISTEN))
        await until(lambda: member(a).nodes and member(b).nodes)
        await left_at(a, b)
        watcher = await stack.enter_async_context(roaming(b, "watcher", expiry=0, clean=True))
        await watcher.subscribe("wills")
        await until(lambda: ("wills", True) in member(a).estates["b"].wants)
        device = Roaming(b, will=("wills", b"gone"))
        assert await device.open() == 0
        await a.stop()
        assert await device.code("disconnect") == spec.STOPPING
        assert await watcher.take(1) == [b"gone"]
        await device.close()
    away = Roaming(b)
    assert await away.open() == spec.UNREACHABLE
    await away.close()


async def test_how_it_showed_who_it_is_is_not_told_to_its_home(pair: Pair, tmp_path: Path) -> None:
    """By password, and step by step (SCRAM): neither crosses, nor can anything be shown again."""
    users = tmp_path / "users"
    add_user(users, "ada", b"very-secret-word")
    place = Listener(address=LISTEN, password_file=str(users))
    settings = Settings(listener=(place,), journal=Journal(record="none"))
    a, b = await pair.both(listen=(), settings=settings)
    crossed: list[bytes] = []
    take = pair.seats["a"].take
    pair.seats["a"].take = lambda frame: (crossed.append(frame), take(frame))[1]  # type: ignore
    known: dict[str, Any] = {"user": "ada", "password": "very-secret-word"}
    await left_at(a, b, **known)
    async with roaming(b, **known) as device:
        assert device.present
    proves = functools.partial(Scram, "ada", "very-secret-word")
    url = f"mqtt://{b.addresses[0]}"
    known = {"client_id": "device-1", "clean": False, "session_expiry": 3600}
    async with connect(url, exchange=proves, **known) as client:
        assert client.session_present
        (far,) = member(a).relays.far.values()
        assert far.opening.credentials is not None and far.opening.credentials.user == "ada"
    assert any(b"device-1" in frame for frame in crossed)
    assert not any(b"very-secret-word" in frame for frame in crossed)


async def test_the_rates_of_a_client_hold_where_it_connects(pair: Pair) -> None:
    a = await pair.hub("a")
    slow = Settings(limits=Limits(client_messages_per_second=50), journal=Journal(record="none"))
    b = await pair.hub("b", settings=slow)
    await until(lambda: member(a).nodes and member(b).nodes)
    await left_at(a, b)
    async with roaming(b) as device:
        for number in range(150):
            device.send("other", b"%d" % number, 0)
        await until(lambda: b.node.broker.metrics.slowed.get("client_messages_per_second"))
        assert a.node.broker.metrics.messages_in >= 100


async def test_what_a_token_lets_its_user_do_holds_at_home(pair: Pair, tmp_path: Path) -> None:
    keys = write(tmp_path / "jwks.json", "HS256")
    jwt = Jwt(keys=keys, algorithms=("HS256",), acl_claim="acl")
    place = Listener(address=LISTEN, jwt=jwt)
    settings = Settings(listener=(place,), journal=Journal(record="none"))
    a, b = await pair.both(listen=(), settings=settings)
    token = signed("HS256", acl=["readwrite news"]).decode()
    known: dict[str, Any] = {"user": "ann", "password": token}
    await left_at(a, b, **known)
    async with roaming(b, **known) as device:
        assert device.present
        assert await device.publish("news", b"allowed") == 0
        assert await device.take(1) == [b"allowed"]
        assert await device.publish("secret", b"no") == spec.NOT_ALLOWED
