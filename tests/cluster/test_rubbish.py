"""What somebody does to the streams of copies on real servers: rubbish in them, pieces of another
time or node, messages taken away, the whole stream. Nobody loses a session of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.cluster.jetstream import HEADER, stream_of
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_heirs import is_heir, pair
from tests.cluster.test_jetstream import Hubs, subscribed
from tests.process import RunningHub, StartHub

PATIENCE = 40.0
OTHER = "hubbub.log.b"
pytestmark = [
    pytest.mark.interop,
    has_program,
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Quorum]:
    server = Quorum(tmp_path, 1)
    server.wait()
    yield server
    server.end()


@pytest.fixture
def hubs(start_hub: StartHub, server: Quorum, tmp_path: Path) -> Hubs:
    return Hubs(start_hub, tmp_path, server)


async def with_stream(server: Quorum, what: Callable[[Any, str], Awaitable[None]]) -> None:
    import nats

    client = await nats.connect(server.urls)
    try:
        await what(client.jetstream(), stream_of("hubbub", "a"))
    finally:
        await client.close()


async def rubbish(stream: Any, name: str) -> None:
    """More of it than is asked for one by one."""
    for payload in (b"", b"rubbish", b"\xff" * 1000, *[b"more"] * 20):
        await stream.publish("hubbub.log.a", payload)
    await stream.publish("hubbub.log.a", b"x", headers={HEADER: "1 2 log"})


async def one_message(stream: Any, name: str) -> None:
    await stream.publish("hubbub.log.a", b"rubbish")


async def said_again(stream: Any, name: str) -> None:
    """Its first piece and its last one, and one of an earlier life."""
    info = await stream.stream_info(name)
    for at in (info.state.first_seq, info.state.last_seq):
        found = await stream.get_msg(name, at)
        head = {HEADER: found.headers[HEADER]}
        await stream.publish("hubbub.log.a", found.data or b"", headers=head)
    await stream.publish("hubbub.log.a", b"old", headers={HEADER: "1 7 state 9 0"})


async def of_another(stream: Any, name: str) -> None:
    """A piece of node b."""
    other = stream_of("hubbub", "b")
    info = await stream.stream_info(other)
    found = await stream.get_msg(other, info.state.first_seq)
    words = found.headers[HEADER].split()
    words[0] = "17"  # whose lives are numbered by its clock
    await stream.publish("hubbub.log.a", found.data or b"", headers={HEADER: " ".join(words)})


async def purged(stream: Any, name: str) -> None:
    await stream.purge_stream(name)


async def deleted(stream: Any, name: str) -> None:
    await stream.delete_stream(name)


async def say(hub: RunningHub, payload: bytes) -> None:
    async with asyncio.timeout(PATIENCE), connect(hub.url("mqtt"), client_id="w") as client:
        await client.publish("kept/x", payload, qos=1)


def refused(hub: RunningHub) -> int:
    found = httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE).json()
    return int(found["cluster"]["frames_refused"])


def said_by(hubs: Hubs, name: str) -> str:
    return (hubs.root / name / "hub.log").read_text()


DONE = (one_message, rubbish, said_again, of_another, purged, deleted)


@pytest.mark.parametrize("done", DONE, ids=lambda one: one.__name__)
async def test_a_hub_goes_on_whatever_is_done_to_its_stream_and_has_an_heir(
    hubs: Hubs, server: Quorum, done: Callable[[Any, str], Awaitable[None]]
) -> None:
    a, b = await asyncio.to_thread(pair, hubs)
    await subscribed(a)
    await say(a, b"before")
    await with_stream(server, done)
    await say(a, b"after")
    until = time.monotonic() + PATIENCE
    while not (refused(a) or "all is copied again" in said_by(hubs, "a")):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    assert "has taken over" not in said_by(hubs, "a")
    await asyncio.to_thread(hubs.ready, a)
    if done in (one_message, rubbish):
        await with_stream(server, done)  # and it is the last thing that the stream says
    a.process.kill()
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    async with connect(b.url("mqtt"), client_id="away", clean=False) as client:
        got = [await anext(aiter(client.messages())) for _ in range(2)]
    assert [one.payload for one in got] == [b"before", b"after"]


async def test_a_purge_is_noticed_under_traffic(hubs: Hubs, server: Quorum) -> None:
    """Each message is taken as before: nothing says that what was before it is gone."""
    a, b = await asyncio.to_thread(pair, hubs)
    await subscribed(a)
    count, until = 0, time.monotonic() + PATIENCE
    async with connect(a.url("mqtt"), client_id="w") as client:
        while "all is copied again" not in said_by(hubs, "a"):
            await client.publish("kept/x", b"%d" % count, qos=1)
            count += 1
            if count == 20:
                await with_stream(server, purged)
            assert time.monotonic() < until
    await asyncio.to_thread(hubs.ready, a)
    a.process.kill()
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    async with connect(b.url("mqtt"), client_id="away", clean=False) as client:
        got = [await anext(aiter(client.messages())) for _ in range(count)]
    assert [one.payload for one in got] == [b"%d" % number for number in range(count)]


async def test_one_message_that_is_gone_is_noticed(hubs: Hubs, server: Quorum) -> None:
    """Streams of ours refuse it; one that somebody made before the hub was there does not."""

    async def made(stream: Any, name: str) -> None:
        await stream.add_stream(name=name, subjects=["hubbub.log.a"], first_seq=1 << 40)

    async def taken_out(stream: Any, name: str) -> None:
        last = (await stream.stream_info(name)).state.last_seq
        await stream.delete_msg(name, last - 2)

    async def refused(stream: Any, name: str) -> None:
        from nats.js.errors import APIError

        other = stream_of("hubbub", "b")
        with pytest.raises(APIError, match="not permitted"):
            await stream.delete_msg(other, (await stream.stream_info(other)).state.last_seq)

    await with_stream(server, made)
    a, b = await asyncio.to_thread(pair, hubs)
    await subscribed(a)
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        await say(a, payload)
    await with_stream(server, refused)
    await with_stream(server, taken_out)
    until = time.monotonic() + PATIENCE
    while "all is copied again" not in said_by(hubs, "a"):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    await asyncio.to_thread(hubs.ready, a)
    a.process.kill()
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    async with connect(b.url("mqtt"), client_id="away", clean=False) as client:
        got = [await anext(aiter(client.messages())) for _ in payloads]
    assert [one.payload for one in got] == payloads


async def test_who_is_back_sees_its_stop_behind_rubbish(hubs: Hubs, server: Quorum) -> None:
    a, _ = await asyncio.to_thread(pair, hubs)
    await subscribed(a)
    a.process.kill()
    await asyncio.to_thread(is_heir, hubs, "b", "a")
    await with_stream(server, rubbish)
    a = await asyncio.to_thread(hubs.hub, "a")
    until = time.monotonic() + PATIENCE
    while "has taken over the sessions" not in said_by(hubs, "a"):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    await asyncio.to_thread(hubs.ready, a)
    await subscribed(a)

    async def stopped(stream: Any, name: str) -> None:
        await stream.publish("hubbub.log.a", b"b", headers={HEADER: "17 1 fence 0 0"})
        await rubbish(stream, name)

    await with_stream(server, stopped)
    says = asyncio.create_task(say(a, b"waits"))
    until = time.monotonic() + PATIENCE
    while said_by(hubs, "a").count("node 'b' has taken over the sessions") < 2:  # a hub that runs
        assert time.monotonic() < until, said_by(hubs, "a")
        await asyncio.sleep(0.1)
    says.cancel()
