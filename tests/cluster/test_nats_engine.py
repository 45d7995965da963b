"""NATS as an engine by itself: whether it says that it carries when it does, and its marks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from hubbub.cluster.nats import PING_SECONDS, Nats
from hubbub.config.cluster import Cluster
from tests.cluster.test_nats import PATIENCE, PROGRAM, Server, server

__all__ = ["server"]
pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]
TRIED = b"x"  # until one is heard


class Ends:
    """Two engines. `heard`: what the first one gave to its hub; `ups`: what it said of itself."""

    def __init__(self, server: Server) -> None:
        self.a, self.b = (Nats(Cluster(url=(server.url,), name=name)) for name in "ab")
        self.heard: list[bytes] = []
        self.ups: list[bool] = []

    async def hears(self) -> None:
        """What the second one says, from some moment on."""
        count = len(self.heard)
        async with asyncio.timeout(PATIENCE):
            while len(self.heard) == count:
                self.b.send("a", [TRIED])
                await asyncio.sleep(0.05)


@asynccontextmanager
async def ends(server: Server) -> AsyncIterator[Ends]:
    found = Ends(server)
    await until(lambda: server.process.poll() is None)
    await found.a.open(found.heard.append, lambda: found.ups.append(found.a.up))
    await found.b.open(lambda frame: None, lambda: None)
    try:
        await until(lambda: found.a.up and found.b.up)
        yield found
    finally:
        await found.a.close()
        await found.b.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.02)


async def test_who_has_lost_nats_does_not_say_that_it_is_there(server: Server) -> None:
    """A hub that believes so says wills as one that heard nobody in five seconds."""
    async with ends(server) as found:
        server.kill()
        await until(lambda: not found.a.up)
        found.ups.clear()
        await asyncio.sleep(2 * PING_SECONDS + 0.5)  # it looked twice
        assert not any(found.ups) and not found.a.up
        server.again()
        await until(lambda: found.a.up and found.b.up)
        await found.hears()


async def test_a_server_that_answers_late_is_heard_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer is to a question that was given up: nats-py read nothing more after it."""
    async with ends(server) as found:
        for engine in (found.a, found.b):  # whose own pings may end the connection just before
            assert engine._client is not None and engine._client._ping_interval_task is not None
            engine._client._ping_interval_task.cancel()
        server.hang()
        await until(lambda: not found.a.up)
        server.go_on()
        await until(lambda: found.a.up and found.b.up)
        await found.hears()
    assert "encountered error" not in caplog.text


async def test_what_a_new_connection_was_asked_is_not_given_up(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """By who gives up what the one before was asked: nothing more was read of it either."""
    async with ends(server) as found:
        client = found.a._client
        assert client is not None
        flush, pings = client.flush, []

        async def flushed(timeout: int = 10) -> None:
            """As nats-py does before it says that it is back; then its server stands still."""
            client.flush = flush  # type: ignore[method-assign]
            await flush(timeout)
            server.hang()
            pings.append(found.a._ping(client))

        client.flush = flushed  # type: ignore[method-assign]
        server.kill()
        await until(lambda: not found.a.up)
        server.again()
        await until(lambda: found.a.up)
        server.go_on()
        await until(lambda: pings[0].done())
        assert not pings[0].cancelled()
        await until(lambda: found.b.up)
        await found.hears()
    assert "encountered error" not in caplog.text


async def test_frames_stay_in_order_whether_they_wait_or_not(server: Server) -> None:
    """Small ones go past all that waits for nothing; a socket that is full makes others wait."""
    async with ends(server) as found:
        await found.hears()
        found.heard.clear()
        said: list[bytes] = []
        server.hang()
        while found.b.send("a", [b"%d " % len(said) + bytes(60_000)]):
            said.append(b"%d " % len(said) + bytes(60_000))
            await asyncio.sleep(0)
        server.go_on()
        while len(said) < 2_000:
            if found.b.send("a", [b"%d" % len(said)]):
                said.append(b"%d" % len(said))
            await asyncio.sleep(0)
        await until(lambda: said[-1] in found.heard)
        assert [one for one in found.heard if one != TRIED] == said


async def test_a_frame_that_breaks_the_hub_takes_nothing_with_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with ends(server) as found:
        await found.hears()

        def heard(frame: bytes) -> None:
            found.heard.append(frame)
            if frame == b"bad":
                raise ValueError(frame)

        found.a._heard = heard
        found.b.send("a", [b"bad", b"good"])
        await until(lambda: b"good" in found.heard)
        assert found.a.up
    assert caplog.text.count("broke the hub's own code") == 1


async def test_what_the_server_does_not_take_is_said_and_keeps_nothing_back(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with ends(server) as found:
        await found.hears()
        found.heard.clear()
        found.b.send("a", [bytes(2 * 1024 * 1024), b"small"])
        await until(lambda: b"small" in found.heard)
    assert "NATS did not take 2097152 bytes" in caplog.text


async def test_a_mark_is_behind_all_that_was_said_before(server: Server) -> None:
    """Also where the hub stood still, and reads all of it at once."""
    said = [b"%d" % number + bytes(2_000) for number in range(2_000)]
    async with ends(server) as found:
        await found.hears()
        found.heard.clear()
        passed: list[int] = []
        found.b.send("a", said)
        await until(lambda: not found.b.waiting())
        assert found.b._client is not None
        asked = asyncio.ensure_future(found.b._client.flush())
        await asyncio.sleep(0)
        time.sleep(0.5)  # the server has all, and this loop has read what it happened to
        found.a.mark(lambda: passed.append(len(found.heard)))
        assert not passed
        await asked
        await until(lambda: bool(passed))
        assert passed == [len(said)]
        assert found.heard == said


async def test_no_mark_is_passed_where_nothing_is_read_any_more(server: Server) -> None:
    """nats-py asks nothing then, and answers at once."""
    async with ends(server) as found:
        await found.hears()
        assert found.a._client is not None and found.a._client._reading_task is not None
        found.a._client._reading_task.cancel()
        await asyncio.wait([found.a._client._reading_task])
        passed: list[int] = []
        found.a.mark(lambda: passed.append(1))
        await until(lambda: not found.a.up)
        assert not passed
        await until(lambda: found.a.up)
        await found.hears()


async def test_of_who_waits_for_a_mark_nothing_is_left_when_the_connection_is_lost(
    server: Server,
) -> None:
    async with ends(server) as found:
        server.hang()
        passed: list[int] = []
        found.a.mark(lambda: passed.append(1))
        await asyncio.sleep(0.2)
        assert not passed
        server.go_on()
        server.kill()
        await until(lambda: not found.a.up)
        server.again()
        await until(lambda: found.a.up)
        await asyncio.sleep(PING_SECONDS / 2)
        assert len(found.a._pings) <= 1, "the one of its own watch"
