"""Our client against a hub in a process of its own: calls, failures, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import hubbub.client
from hubbub.client.switch import Handler, SwitchClient, connect
from hubbub.errors import CallTimeout, Refused
from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path_factory.mktemp("hub") / "data")
    yield hub
    hub.stop(signal.SIGKILL)


async def upper(request: bytes) -> bytes:
    return request.upper()


@contextlib.asynccontextmanager
async def served(
    client: SwitchClient, queue: str, handler: Handler, concurrent: bool = False
) -> AsyncIterator[None]:
    task = asyncio.create_task(client.serve(queue, handler, concurrent))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def contents(client: SwitchClient, queue: str) -> list[object]:
    found = (await client.diagnostics())["permanent_queues"][queue]["queue_contents"]
    assert isinstance(found, list)
    return found


async def until_empty(client: SwitchClient, queue: str) -> None:
    async with asyncio.timeout(10):
        while await contents(client, queue):
            await asyncio.sleep(0.02)


async def test_calls(shared: RunningHub) -> None:
    async with connect(shared.url("switch")) as caller, connect(shared.url("http")) as service:
        assert caller.token != service.token
        async with served(service, "upper/é", upper):
            payload = bytes(range(97, 123)) + b'\n"\\' + "ü".encode()
            assert await caller.call("upper/é", payload, 10) == payload.upper()
            replies = await asyncio.gather(*(caller.call("upper/é", b"%d" % n) for n in range(20)))
            assert replies == [b"%d" % n for n in range(20)]
            await until_empty(caller, "upper/é")
            assert await caller.list("upper") == ["upper/é"]
            assert caller.token in await caller.list(all=True)
    async with connect(shared.url("switch")) as other:
        assert caller.token not in await other.list(all=True)  # reply queues go with their owners


async def test_bytes_that_are_no_text(shared: RunningHub) -> None:
    async def same(request: bytes) -> bytes:
        return request

    async with connect(shared.url("switch")) as client, served(client, "same", same):
        assert await client.call("same", bytes(range(256)), 10) == bytes(range(256))
        assert await client.call("same", b"", 10) == b""


async def test_a_request_waits_for_its_service(shared: RunningHub) -> None:
    async with connect(shared.url("switch")) as client:
        with pytest.raises(CallTimeout, match="nobody answered from later within 0.2 s"):
            await client.call("later", b"one", timeout=0.2)
        call = asyncio.create_task(client.call("later", b"two", timeout=10))
        async with served(client, "later", upper):
            assert await call == b"TWO"
            await until_empty(client, "later")  # the first one was answered too, for nobody


async def test_a_failing_handler_leaves_its_request(shared: RunningHub) -> None:
    async def fussy(request: bytes) -> bytes:
        if request == b"bad":
            raise ValueError("I do not like it")
        return b"fine"

    async with connect(shared.url("switch")) as client, served(client, "fussy", fussy):
        bad = asyncio.create_task(client.call("fussy", b"bad", timeout=0.5))
        assert await client.call("fussy", b"good", timeout=10) == b"fine"
        with pytest.raises(CallTimeout):
            await bad
        assert len(await contents(client, "fussy")) == 1


async def test_concurrent_requests_do_not_wait_for_each_other(shared: RunningHub) -> None:
    gate = asyncio.Event()

    async def handler(request: bytes) -> bytes:
        if request == b"slow":
            await gate.wait()
        else:
            gate.set()
        return request

    async with connect(shared.url("switch")) as client, served(client, "mixed", handler, True):
        slow = asyncio.create_task(client.call("mixed", b"slow", timeout=10))
        assert await client.call("mixed", b"quick", timeout=10) == b"quick"
        assert await slow == b"slow"


async def test_topics(shared: RunningHub) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(payload: bytes) -> bytes:
        await got.put(payload)
        return b"for nobody"

    async with connect(shared.url("switch")) as client:
        await client.bind("inbox", "sensors/#")
        async with served(client, "inbox", take):
            await client.publish("sensors/1 2/t", b"20.5", qos=1)
            assert await asyncio.wait_for(got.get(), 10) == b"20.5"
            await until_empty(client, "inbox")
        await client.unbind("inbox", "sensors/#")
        await client.publish("sensors/1", b"more")
        assert await contents(client, "inbox") == []
        with pytest.raises(Refused, match="400"):
            await client.publish("sensors/#", b"")


async def test_a_hub_that_comes_back(start_hub: StartHub, tmp_path: Path) -> None:
    """Killed and started again: service, caller and a waiting request go on by themselves."""
    first = start_hub()
    async with hubbub.client.connect(first.url("switch")) as client:
        with pytest.raises(CallTimeout):
            await client.call("q", b"kept", timeout=0.2)
        waiting = asyncio.create_task(client.call("other", b"x", timeout=30))
        while not await client.list("other", all=True):
            await asyncio.sleep(0.02)
        async with served(client, "q", upper):
            await until_empty(client, "q")
            first.stop(signal.SIGKILL)
            call = asyncio.create_task(client.call("q", b"again", timeout=30))
            await asyncio.sleep(0.1)
            start_hub("--listen", first.address)
            assert await call == b"AGAIN"
            async with served(client, "other", upper):
                assert await waiting == b"X"


async def test_no_hub(hub: RunningHub) -> None:
    hub.stop()
    with pytest.raises(OSError):
        async with connect(hub.url("switch")):
            pass


async def test_something_else_answers() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Refused, match="no message-switch"):
        async with connect(f"switch://127.0.0.1:{port}"):
            pass
    server.close()
