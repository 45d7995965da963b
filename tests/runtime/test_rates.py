"""How fast clients may send, over real sockets: slower, never ended, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Limits, Listener, Settings, Tls
from hubbub.core.clock import Clock
from hubbub.core.limits import GONE_MOST, MIB
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.node import Node
from hubbub.runtime.rates import BYTES, GONE, MESSAGES, Rates, Toll
from hubbub.web.app import Application
from hubbub.wire.websocket import masked_frame as masked
from tests.certificates import Authority
from tests.client.smq.here import until
from tests.protocols.smq.device import HEAD
from tests.runtime.turns import watched

pytestmark = pytest.mark.slow  # rates are seconds that pass

SHORT = codec.publish(b"t", b"x" * 20, 0)
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@asynccontextmanager
async def serving(limits: Limits, *places: Listener, **more: Any) -> AsyncIterator[Node]:
    places = places or (Listener(address="127.0.0.1:0"),)
    settings = Settings(
        listen=(), listener=places, limits=limits, journal=Journal(record="none"), **more
    )
    async with Node(settings) as node:
        yield node


class Peer:
    """A client that writes as fast as it can; `said` is how much the kernel took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, node: Node, tls: ssl.SSLContext | None = None) -> Peer:
        address = node.listeners[0].address
        if address.path:
            return cls(*await asyncio.open_unix_connection(address.path))
        return cls(*await asyncio.open_connection("127.0.0.1", address.port, ssl=tls))

    async def log_in(
        self, client: bytes, user: bytes = b"", secret: bytes = b"", alive: int = 1,
        will: codec.Will | None = None,
    ) -> Peer:  # fmt: skip
        shown = (user, secret) if user else (None, None)
        self.writer.write(codec.connect(client, True, alive, will, *shown))
        assert await asyncio.wait_for(self.reader.readexactly(4), 5) == b"\x20\x02\0\0"
        return self

    async def push(self, piece: bytes) -> None:
        """Until it is cancelled, or ended by the hub."""
        while True:
            self.writer.write(piece)
            await self.writer.drain()


async def heard(node: Node, seconds: float) -> int:
    before = node.broker.metrics.messages_in
    await asyncio.sleep(seconds)
    return node.broker.metrics.messages_in - before


@pytest.fixture
def pushing() -> Any:
    tasks: list[asyncio.Task[None]] = []

    def push(peer: Peer, piece: bytes) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(peer.push(piece)))
        return tasks[-1]

    yield push
    for task in tasks:
        task.cancel()


async def test_a_client_is_heard_at_its_rate(pushing: Any, caplog: Any) -> None:
    """It asked for a keep alive of one second and sends nothing else: it stays."""
    async with serving(Limits(client_messages_per_second=500)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann")
        with caplog.at_level(logging.WARNING, "hubbub.rates"):
            task = pushing(peer, SHORT * 1_000)
            await asyncio.sleep(1.5)  # its burst
            assert 0.8 * 1_500 < await heard(node, 3.0) < 1.2 * 1_500
        assert not task.done()
        name = "client_messages_per_second"
        assert node.broker.metrics.slowed[name] > 10 and len(node.broker.metrics.slowed) == 1
        said = [one.getMessage() for one in caplog.records if one.name == "hubbub.rates"]
        assert said == [
            f"client 'ann' of address 127.0.0.1 sends more than limits.{name} = 500 and is read "
            "from more slowly"
        ]


async def test_bytes_are_counted_whatever_they_say(pushing: Any) -> None:
    async with serving(Limits(client_bytes_per_second=200_000)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann")
        task = pushing(peer, codec.publish(b"t", b"x" * 50_000, 0))
        await asyncio.sleep(1.5)
        before = node.broker.metrics.bytes_received
        await asyncio.sleep(3)
        assert 0.7 * 600_000 < node.broker.metrics.bytes_received - before < 1.3 * 600_000 + MIB / 4
        assert not task.done()


async def test_nothing_is_lost_and_all_is_in_order() -> None:
    async with serving(Limits(client_messages_per_second=2_000, burst_seconds=0)) as node:
        reader = await (await Peer.open(node)).log_in(b"reader", alive=60)
        reader.writer.write(codec.subscribe(1, [(b"t", 0)]))
        await reader.reader.readexactly(5)
        peer = await (await Peer.open(node)).log_in(b"ann")
        sent = b"".join(codec.publish(b"t", b"%08d" % one, 0) for one in range(4_000))
        began = time.monotonic()
        peer.writer.write(sent + codec.DISCONNECT_PACKET)
        peer.writer.close()
        assert await asyncio.wait_for(reader.reader.readexactly(len(sent)), 10) == sent
        assert 1.5 < time.monotonic() - began < 4


async def test_a_burst_may_be_sent_at_once() -> None:
    async with serving(Limits(client_messages_per_second=100, burst_seconds=10)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann")
        peer.writer.write(SHORT * 1_000)
        await until(lambda: node.broker.metrics.messages_in == 1_000)
        assert node.broker.metrics.slowed == {}


async def test_what_waits_is_not_the_memory_of_the_hub(pushing: Any) -> None:
    async with serving(Limits(client_messages_per_second=10)) as node:
        for number in range(5):
            pushing(await (await Peer.open(node)).log_in(b"c%d" % number), SHORT * 10_000)
        await asyncio.sleep(1)
        kept = [sock.toll.left for sock in node.sockets if sock.toll is not None]
        assert len(kept) == 5 and max(kept) <= 256 * 1024
        assert sum(sock.weight() for sock in node.sockets) >= sum(kept) > 0


@pytest.mark.pure
async def test_one_user_has_its_rate_with_ten_connections_and_another_is_not_slowed(
    pushing: Any, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    for name in ("ann", "bob"):
        add_user(users, name, b"secret")
    limits = Limits(user_messages_per_second=500)
    async with serving(limits, password_file=str(users)) as node:
        counts: dict[str, int] = {}
        publish = node.broker.publish

        def counting(run: Any) -> Any:
            counts[run.sender.client] = counts.get(run.sender.client, 0) + run.count
            return publish(run)

        node.broker.publish = counting  # type: ignore[method-assign]
        for number in range(10):
            one = await (await Peer.open(node)).log_in(b"a%d" % number, b"ann", b"secret")
            pushing(one, SHORT * 1_000)
        bob = await (await Peer.open(node)).log_in(b"b", b"bob", b"secret", 60)
        await asyncio.sleep(3)
        counts.clear()
        began = time.monotonic()
        for _ in range(400):
            bob.writer.write(SHORT)
            await asyncio.sleep(0.01)
        await until(lambda: counts.get("b") == 400)
        seconds = time.monotonic() - began
        anns = [counts.get(f"a{number}", 0) for number in range(10)]
        assert 0.7 * 500 * seconds < sum(anns) < 1.3 * 500 * seconds
        assert min(anns) > 0.4 * sum(anns) / 10, anns


async def test_names_that_nobody_checks_share_the_rate_of_their_address(pushing: Any) -> None:
    async with serving(Limits(user_messages_per_second=500)) as node:
        for number in range(10):
            name = b"made-up-%d" % number
            pushing(await (await Peer.open(node)).log_in(name, name, b""), SHORT * 1_000)
        await asyncio.sleep(3)
        assert await heard(node, 3.0) < 1.3 * 1_500
        assert len(node.rates) == 11  # clients and the address


async def test_who_comes_back_owes_what_it_owed(pushing: Any) -> None:
    async with serving(Limits(client_messages_per_second=100)) as node:
        for _ in range(5):
            peer = await (await Peer.open(node)).log_in(b"ann")
            task = pushing(peer, SHORT * 1_000)
            await asyncio.sleep(0.3)
            task.cancel()
            peer.writer.transport.abort()
        # A second's worth at once, that of the time, and a few parts.
        assert node.broker.metrics.messages_in < 100 + 150 + 5 * 30


async def test_smq(pushing: Any) -> None:
    async with serving(Limits(client_messages_per_second=500)) as node:
        peer = await Peer.open(node)
        peer.writer.write(HEAD + smq.framed(smq.build_connect(b"device-1")))
        await peer.reader.readexactly(17)
        number = int.from_bytes((await peer.reader.readexactly(8))[4:], "big")
        frame = smq.framed(smq.message(smq.PUBLISH, number, number, 0, rest=b"x" * 20))
        pushing(peer, frame * 1_000)
        await asyncio.sleep(1.5)
        assert 0.8 * 1_500 < await heard(node, 3.0) < 1.2 * 1_500


async def test_message_switch(pushing: Any) -> None:
    async with serving(Limits(client_messages_per_second=300)) as node:
        peer = await Peer.open(node)
        peer.writer.write(b"GET /login/ann HTTP/1.1\r\n\r\n")
        await peer.reader.readuntil(b"\r\n\r\n")
        body = b"x" * 20
        peer.writer.write(b"GET /create/q HTTP/1.1\r\n\r\n")
        head = b"POST /send/q/1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        pushing(peer, (head + body) * 100)

        async def drain() -> None:
            while await peer.reader.read(100_000):
                pass

        task = asyncio.create_task(drain())
        await asyncio.sleep(2)
        assert 0.7 * 900 < await heard(node, 3.0) < 1.3 * 900
        task.cancel()


async def test_tls(pushing: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = Tls(certificate=str(authority.sign("localhost", server=True)))
    async with serving(Limits(client_messages_per_second=500), tls=tls) as node:
        peer = await (await Peer.open(node, authority.client())).log_in(b"ann")
        task = pushing(peer, SHORT * 1_000)
        await asyncio.sleep(1.5)
        assert 0.8 * 1_500 < await heard(node, 3.0) < 1.2 * 1_500
        assert not task.done()


async def test_websocket(pushing: Any) -> None:
    async with serving(Limits(client_messages_per_second=500)) as node:
        peer = await Peer.open(node)
        peer.writer.write(UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write(masked(codec.connect(b"ann", True, 1)))
        await peer.reader.readexactly(6)
        task = pushing(peer, masked(SHORT * 50) * 20)
        await asyncio.sleep(1.5)
        assert 0.8 * 1_500 < await heard(node, 3.0) < 1.2 * 1_500
        assert not task.done()


async def test_unix_socket(pushing: Any, tmp_path: Path) -> None:
    place = Listener(address=f"unix:{tmp_path}/s")
    async with serving(Limits(user_messages_per_second=500), place) as node:
        for name in (b"a", b"b"):
            pushing(await (await Peer.open(node)).log_in(name), SHORT * 1_000)
        await asyncio.sleep(1.5)
        assert 0.8 * 1_500 < await heard(node, 3.0) < 1.3 * 1_500


async def test_publishing_over_http() -> None:
    settings = Settings(
        listen=("127.0.0.1:0",), limits=Limits(user_messages_per_second=1_000, burst_seconds=0),
        journal=Journal(record="none"),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node, httpx.AsyncClient(timeout=20) as client:
        url = f"http://127.0.0.1:{node.listeners[0].address.port}/api/v1/publish"
        began = time.monotonic()
        for _ in range(3):
            answer = await client.post(url, content=b'{"topic":"t"}\n' * 1_000)
            assert answer.json() == {"taken": 1_000, "skipped": 0}
        assert 2.5 < time.monotonic() - began < 6
        assert node.broker.metrics.slowed["user_messages_per_second"] > 2


async def test_a_rate_that_is_set_later_holds_for_who_is_here(pushing: Any) -> None:
    async with serving(Limits()) as node:
        peer = await (await Peer.open(node)).log_in(b"ann")
        assert [sock.toll for sock in node.sockets] == [None]
        node.apply(replace(node.settings, limits=Limits(client_messages_per_second=500)))
        pushing(peer, SHORT * 1_000)
        await asyncio.sleep(1.5)
        assert 0.8 * 1_000 < await heard(node, 2.0) < 1.2 * 1_000
        node.apply(replace(node.settings, limits=Limits()))
        await asyncio.sleep(0.5)
        assert await heard(node, 1.0) > 10_000


def rates(most: Limits) -> tuple[Rates, list[float]]:
    now = [1_000.0]
    clock = Clock()
    clock.now = lambda: now[0]  # type: ignore[method-assign]
    found = Rates(clock, Metrics())
    found.apply(most)
    return found, now


@pytest.mark.pure
async def test_buckets_of_who_left_are_forgotten_when_all_is_paid() -> None:
    found, now = rates(Limits(client_messages_per_second=10))
    for number in range(3_000):
        toll = found.toll(f"user {number}", "c", lambda: None)
        toll.spend(30, 0)
        found.leave(toll)
        found.leave(toll)
    assert len(found) == 6_000
    now[0] += 3.1
    for _ in range(6):
        found.sweep(now[0])
    assert len(found) == 0


@pytest.mark.pure
async def test_thousands_in_line_may_leave_at_once() -> None:
    """Each looked through the whole line for its place."""
    found, _ = rates(Limits(user_messages_per_second=10))
    tolls = [found.toll("user 'ann'", "", lambda: None) for _ in range(30_000)]
    tolls[0].spend(1_000, 0)
    assert not any(toll.enter() for toll in tolls)
    began = time.process_time()
    for toll in reversed(tolls):
        found.leave(toll)
    assert time.process_time() - began < 1  # it took 10 s
    assert not any(bucket.line for bucket in found._buckets.values())


@pytest.mark.pure
async def test_who_may_go_on_together_do_so_in_turns() -> None:
    """A second's worth is saved up: all who stood in line were heard in one turn."""
    found = Rates(Clock(), Metrics())
    found.apply(Limits(user_messages_per_second=100_000))
    heard: list[Toll] = []

    def toll_of() -> Toll:
        def turn() -> None:
            until = time.thread_time() + 0.0002
            while time.thread_time() < until:
                pass
            toll.spend(1, 0)
            toll.entered = False
            heard.append(toll)

        toll = found.toll("user 'ann'", "", turn)
        return toll

    first, *others = (toll_of() for _ in range(2_001))
    first.spend(100_000, 0)  # what it has in a second
    first.spend(20_000, 0)
    assert not any(toll.enter() for toll in others)
    first.buckets[1].due[MESSAGES] -= 1.0  # nobody said anything for a while
    with watched() as turns:
        await until(lambda: len(heard) == 2_000)
    assert heard == others
    assert turns.longest < 0.1, "it was 0.4 s"


async def test_what_came_together_is_heard_without_a_pause() -> None:
    """In parts, and each in the next turn of the loop: not when it looks at what is due."""
    async with serving(Limits(client_messages_per_second=1_000)) as node:
        peers = [await Peer.open(node) for _ in range(20)]
        began = time.monotonic()
        for number, peer in enumerate(peers):
            login = codec.connect(b"c%d" % number, True, 60)
            peer.writer.write(login + SHORT * 20 + codec.PINGREQ_PACKET)
            await asyncio.wait_for(peer.reader.readexactly(6), 5)
        assert time.monotonic() - began < 2.5, "a quarter of a second for each"


def work() -> None:
    until = time.thread_time() + 0.0002
    while time.thread_time() < until:
        pass


class Stands:
    """A socket that stands in line; to hear it takes 0.2 ms."""

    def __init__(self, found: Rates, client: str, heard: list[Stands]) -> None:
        self.toll = found.toll("user 'ann'", client, self._turn)
        self.heard = heard

    def look_at_rates(self) -> None:
        """It pays already."""

    def _turn(self) -> None:
        work()
        self.toll.spend(1, 0)
        self.toll.entered = False
        self.heard.append(self)


@pytest.mark.pure
@pytest.mark.parametrize("most", [0, 1_000_000], ids=["no more", "higher"])
@pytest.mark.parametrize("whose", ["client", "user"])
async def test_those_who_wait_for_a_rate_that_is_raised_go_on_in_turns(
    whose: str, most: int
) -> None:
    """All of them were heard in the turn in which the settings were read."""
    found, heard = Rates(Clock(), Metrics()), list[Stands]()
    limits = {f"{whose}_messages_per_second": 1}
    found.apply(Limits(**limits))  # type: ignore[arg-type]
    here = [Stands(found, f"c{number}", heard) for number in range(1_000)]
    for one in here:
        one.toll.spend(60, 0)
    assert not any(one.toll.enter() for one in here)
    limits = {f"{whose}_messages_per_second": most}
    with watched() as turns:
        loop = asyncio.get_running_loop()
        loop.call_soon(found.apply, Limits(**limits), here)  # type: ignore[arg-type]
        await until(lambda: len(heard) == 1_000)
    assert heard == here, "in their order"
    assert turns.longest < 0.06, "it was 0.2 s"


class Fails:
    """A socket that a first rate is set for; it takes 0.2 ms, and the hub's own code breaks."""

    toll = None

    def __init__(self, looked: list[Fails]) -> None:
        self.looked = looked

    def look_at_rates(self) -> None:
        work()
        self.looked.append(self)
        if len(self.looked) == 2:
            raise ValueError


@pytest.mark.pure
async def test_those_who_are_here_when_a_rate_is_set_pay_it_in_turns() -> None:
    """All in the turn in which the settings were read, 20 ms for 3,000."""
    found, looked = Rates(Clock(), Metrics()), list[Fails]()
    found.apply(Limits())
    here = [Fails(looked) for _ in range(1_000)]
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *said: None)
    with watched() as turns:
        limits = Limits(client_messages_per_second=1)
        loop.call_soon(found.apply, limits, here)  # type: ignore[arg-type]
        await until(lambda: len(looked) == 1_000)
    assert looked == here, "in their order, also behind one that broke"
    assert turns.longest < 0.06, "it was 0.2 s"


@pytest.mark.pure
async def test_messages_and_bytes_are_owed_apart() -> None:
    found, now = rates(Limits(user_messages_per_second=10, user_bytes_per_second=1_000))
    toll: Toll = found.toll("user 'ann'", "", lambda: None)
    toll.spend(20, 0)
    toll.spend(0, 2_000)
    bucket = toll.buckets[1]
    assert bucket.due == {MESSAGES: now[0] + 1, BYTES: now[0] + 1}


async def test_what_follows_a_login_in_the_same_segment_is_paid_for(pushing: Any) -> None:
    async with serving(Limits(user_messages_per_second=10)) as node:
        said = codec.connect(b"ann", True, 60) + SHORT * 2_000
        for _ in range(20):
            peer = await Peer.open(node)
            peer.writer.write(said)
            await peer.reader.readexactly(4)
            await asyncio.sleep(0.02)
            peer.writer.close()
        assert node.broker.metrics.messages_in < 10 + 20 + 20 * 5


async def test_who_is_slowed_and_dies_is_noticed_and_its_will_comes() -> None:
    async with serving(Limits(client_messages_per_second=1)) as node:
        reader = await (await Peer.open(node)).log_in(b"reader", alive=60)
        reader.writer.write(codec.subscribe(1, [(b"gone", 0)]))
        await reader.reader.readexactly(5)
        peer = await (await Peer.open(node)).log_in(
            b"ann", alive=60, will=codec.Will(b"gone", b"ann", 0, False)
        )
        peer.writer.write(SHORT * 5_000)
        await until(lambda: any(sock.slowed() for sock in node.sockets))
        peer.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        peer.writer.transport.abort()
        will = codec.publish(b"gone", b"ann", 0)
        assert await asyncio.wait_for(reader.reader.readexactly(len(will)), 5) == will
        await until(lambda: len(node.sockets) == 1)
        assert not any(bucket.line for bucket in node.rates._buckets.values())


async def test_a_lower_bound_is_forgotten_when_the_settings_say_so() -> None:
    async with serving(Limits(client_messages_per_second=1)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann", alive=60)
        peer.writer.write(SHORT * 5_000)
        await until(lambda: any(sock.slowed() for sock in node.sockets))
        node.apply(replace(node.settings, limits=Limits()))
        await until(lambda: node.broker.metrics.messages_in == 5_000)


async def test_many_uploads_at_once_have_one_rate() -> None:
    settings = Settings(
        listen=("127.0.0.1:0",), limits=Limits(user_messages_per_second=1_000),
        journal=Journal(record="none"),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node, httpx.AsyncClient(timeout=3) as client:
        url = f"http://127.0.0.1:{node.listeners[0].address.port}/api/v1/publish"

        async def post() -> None:
            with contextlib.suppress(httpx.TimeoutException):
                await client.post(url, content=b'{"topic":"t"}\n' * 500)

        tasks = [asyncio.create_task(post()) for _ in range(40)]
        await asyncio.sleep(2)
        assert node.broker.metrics.messages_in <= 1_000 + 2_500 + 500
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("before", ["pings", "large"])
async def test_what_is_heard_at_once_is_bounded_whatever_came_before(before: str) -> None:
    """Packets worth nothing, or one large message, made the part 256 KiB: 50,000 messages."""
    async with serving(Limits(client_messages_per_second=10)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann", alive=60)
        large = codec.publish(b"t", b"x" * 2_000_000, 1, packet_id=1)
        for _ in range(25 if before == "pings" else 5):
            peer.writer.write(b"\xc0\0" if before == "pings" else large)
            await asyncio.wait_for(peer.reader.readexactly(2 if before == "pings" else 4), 5)
        peer.writer.write(codec.publish(b"t", b"", 0) * 20_000)
        await asyncio.sleep(1)
        assert node.broker.metrics.messages_in < 10 + 10 + 2 * 64 / 5


async def test_a_websocket_message_with_thousands_of_packets_is_heard_in_parts() -> None:
    """And when the peer has closed, all of it is heard before."""
    limits = Limits(client_messages_per_second=500, burst_seconds=0)
    async with serving(limits) as node:
        peer = await Peer.open(node)
        peer.writer.write(UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        packets = codec.publish(b"t", b"", 0) * 1_000
        sent = masked(codec.connect(b"ann", True, 60) + packets) + b"\x88\x80\0\0\0\0"
        peer.writer.write(sent)
        await asyncio.sleep(0.5)
        assert 50 < node.broker.metrics.messages_in < 500
        await until(lambda: node.broker.metrics.messages_in == 1_000)
        await until(lambda: not node.sockets)
        assert len(sent) <= node.broker.metrics.bytes_received < len(sent) + 1_000


async def test_what_a_websocket_said_before_nonsense_is_heard_at_its_rate() -> None:
    """It was out of its frame, and waited: it was lost, and not paid for."""
    async with serving(Limits(client_messages_per_second=20)) as node:
        peer = await Peer.open(node)
        peer.writer.write(UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write(masked(codec.connect(b"ann", True, 60)))
        await peer.reader.readexactly(6)
        began = time.monotonic()
        peer.writer.write(masked(SHORT * 60) + masked(SHORT * 3) + b"\xff" * 10)
        await until(lambda: node.broker.metrics.messages_in == 63)
        assert 1 < time.monotonic() - began < 5
        await until(lambda: not node.sockets)


async def test_a_large_message_is_heard_in_large_parts() -> None:
    async with serving(Limits(client_messages_per_second=10)) as node:
        peer = await (await Peer.open(node)).log_in(b"ann", alive=60)
        [sock] = node.sockets
        assert sock.toll is not None
        parts, cut = [], Toll.cut

        def counting(toll: Toll, missing: int = 0) -> bytes:
            parts.append(cut(toll, missing))
            return parts[-1]

        Toll.cut = counting  # type: ignore[method-assign,assignment]
        try:
            peer.writer.write(codec.publish(b"t", b"x" * 20_000_000, 1, packet_id=1))
            await asyncio.wait_for(peer.reader.readexactly(4), 10)
        finally:
            Toll.cut = cut  # type: ignore[method-assign]
        assert len(parts) < 2_000


async def test_who_comes_again_and_again_has_one_rate() -> None:
    async with serving(Limits(user_messages_per_second=10)) as node:
        began = time.monotonic()
        for number in range(300):
            peer = await (await Peer.open(node)).log_in(b"c%d" % number)
            peer.writer.write(codec.publish(b"t", b"", 0) * 20)
            peer.writer.close()
        await asyncio.sleep(3)
        allowed = 10 + 10 * (time.monotonic() - began)
        assert allowed / 2 < node.broker.metrics.messages_in < 2 * allowed + 20


async def test_of_who_closed_and_waits_the_oldest_goes(caplog: Any) -> None:
    async with serving(Limits(user_messages_per_second=1)) as node:
        peer = await (await Peer.open(node)).log_in(b"debt", alive=60)
        peer.writer.write(SHORT * 100)
        await until(lambda: any(sock.slowed() for sock in node.sockets))
        stays = await (await Peer.open(node)).log_in(b"stays", alive=60)
        for number in range(GONE_MOST + 50):
            one = await (await Peer.open(node)).log_in(b"c%d" % number)
            one.writer.write(SHORT)
            one.writer.close()
            await one.writer.wait_closed()
        await until(lambda: len(node.sockets) <= GONE_MOST + 2)
        assert node.broker.metrics.refused[GONE] >= 45
        assert not stays.reader.at_eof()
        said = [one for one in caplog.records if "connections that wait" in one.getMessage()]
        assert len(said) == 1


async def test_an_upload_pays_before_it_is_published() -> None:
    """Five hundred lines at two a second: two of them at once, however many are in the body."""
    settings = Settings(
        listen=("127.0.0.1:0",), limits=Limits(user_messages_per_second=2, burst_seconds=0),
        journal=Journal(record="none"),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node, httpx.AsyncClient(timeout=20) as client:
        url = f"http://127.0.0.1:{node.listeners[0].address.port}/api/v1/publish"
        body = b'{"topic":"t"}\n' * 500
        post = asyncio.create_task(client.post(url, content=body))
        await until(lambda: node.broker.metrics.messages_in > 0)
        assert node.broker.metrics.messages_in <= 4, "two, and perhaps those of the next second"
        node.apply(replace(node.settings, limits=Limits()))
        assert (await post).json() == {"taken": 500, "skipped": 0}


# Behind a balancer


def says(address: str) -> bytes:
    return f"PROXY TCP4 {address} 127.0.0.1 4711 1883\r\n".encode()


async def test_behind_a_balancer_each_address_has_a_rate_of_its_own(pushing: Any) -> None:
    """Who is slowed down is the client that the header names, and neither the balancer nor who
    else is behind it.
    """
    place = Listener(address="127.0.0.1:0", proxies=("127.0.0.1",))
    async with serving(Limits(user_messages_per_second=10), place) as node:
        fast, calm = await Peer.open(node), await Peer.open(node)
        fast.writer.write(says("192.0.2.1"))
        calm.writer.write(says("192.0.2.2"))
        await fast.log_in(b"fast", alive=600)
        await calm.log_in(b"calm", alive=600)
        pushing(fast, SHORT * 1_000)
        buckets = {bucket.whose: bucket for bucket in node.rates._buckets.values()}
        assert not any("127.0.0.1" in whose for whose in buckets)
        await until(lambda: len(buckets["address 192.0.2.1"].line) > 0)
        calm.writer.write(codec.publish(b"t", b"x", 1, packet_id=7))
        async with asyncio.timeout(20):
            assert await calm.reader.readexactly(4) == b"\x40\x02\0\x07"
        assert not buckets["address 192.0.2.2"].line


async def test_behind_a_balancer_uploads_count_for_the_address_of_the_client() -> None:
    place = Listener(address="127.0.0.1:0", proxies=("127.0.0.1",))
    settings = Settings(
        listen=(), listener=(place,), limits=Limits(user_messages_per_second=1),
        journal=Journal(record="none"),
    )  # fmt: skip
    node = Node(settings)
    node.web = Application(node)
    async with node, asyncio.timeout(20):
        peer = await Peer.open(node)
        body = b'{"topic":"t"}'
        head = "POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        peer.writer.write(says("192.0.2.7") + (head % len(body)).encode() + body)
        assert (await peer.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        assert ("address 192.0.2.7",) in node.rates._buckets
        assert ("address 127.0.0.1",) not in node.rates._buckets
