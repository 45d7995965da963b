"""Our client against a hub in a process of its own: calls, failures, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import hubbub
import hubbub.client
from hubbub.auth.passwords import add_user
from hubbub.client import blocking
from hubbub.client.switch import Handler, SwitchClient, connect
from hubbub.config.settings import Journal, Listener, Settings, Tls
from hubbub.errors import CallFailed, CallTimeout, Refused, SettingError
from hubbub.runtime.node import Node
from tests.certificates import Authority
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
    client: SwitchClient, queue: str, handler: Handler, concurrent: int = 1
) -> AsyncIterator[None]:
    task = asyncio.create_task(client.serve(queue, handler, concurrent))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def contents(client: SwitchClient, queue: str) -> list[object]:
    said: Any = await client.diagnostics()
    found = said["permanent_queues"][queue]["queue_contents"]
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


async def fussy(request: bytes) -> bytes:
    if request == b"bad":
        raise ValueError("I do not like it")
    if request == b"unknown":
        raise CallFailed("there is no such thing")
    return b"fine"


async def test_a_failing_handler_is_an_answer(shared: RunningHub) -> None:
    """Of what asks for no answer nobody can be told: it stays."""
    async with connect(shared.url("switch")) as client, served(client, "fussy", fussy):
        with pytest.raises(CallFailed, match="^the handler failed: ValueError$"):
            await client.call("fussy", b"bad", timeout=10)
        with pytest.raises(CallFailed, match="^there is no such thing$"):
            await client.call("fussy", b"unknown", timeout=10)
        assert await client.call("fussy", b"good", timeout=10) == b"fine"
        await until_empty(client, "fussy")
        await client.send("fussy", b"bad")
        assert await client.call("fussy", b"good", timeout=10) == b"fine"
        assert len(await contents(client, "fussy")) == 1


async def test_a_failure_reaches_who_asked_in_another_protocol(shared: RunningHub) -> None:
    service, device, phone = (
        connect(shared.url("switch")), hubbub.smq(shared.url("smq")),
        hubbub.mqtt(shared.url("mqtt")),
    )  # fmt: skip
    why = "^the handler failed: ValueError$"
    async with service as answers, device as smq, phone as mqtt, served(answers, "mixed up", fussy):
        for call in (smq.call, mqtt.call):
            with pytest.raises(CallFailed, match=why):
                await call("$queue/mixed up", b"bad", timeout=10)
            assert (await call("$queue/mixed up", b"good", timeout=10)).payload == b"fine"


@pytest.mark.parametrize("scheme", ["smq", "mqtt"])
async def test_a_failure_in_another_protocol_reaches_us(shared: RunningHub, scheme: str) -> None:
    async def handler(message: Any) -> bytes:
        return await fussy(message.payload)

    name = f"of {scheme}"
    async with (
        hubbub.connect(shared.url(scheme)) as service,
        connect(shared.url("switch")) as client,
    ):
        task = asyncio.create_task(service.serve(f"$queue/{name}", handler))
        with pytest.raises(CallFailed, match="^the handler failed: ValueError$"):
            await client.call(name, b"bad", timeout=10)
        assert await client.call(name, b"good", timeout=10) == b"fine"
        task.cancel()


async def test_concurrent_requests_do_not_wait_for_each_other(shared: RunningHub) -> None:
    gate = asyncio.Event()

    async def handler(request: bytes) -> bytes:
        if request == b"slow":
            await gate.wait()
        else:
            gate.set()
        return request

    async with connect(shared.url("switch")) as client, served(client, "mixed", handler, 10):
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


async def test_by_hand(shared: RunningHub) -> None:
    """What `call` and `serve` do, in single steps."""
    async with connect(shared.url("switch")) as client:
        await client.create("answers", transient=True)
        assert await client.send("by hand", b"plain") == ("by hand", 0)
        sent = await client.send("by hand", b"question", reply_to="answers")
        messages, cursor = await client.transfer("by hand", timeout=0)
        assert [(one.payload, one.reply_to) for one in messages] == [
            (b"plain", ""), (b"question", "answers"),
        ]  # fmt: skip
        assert await client.transfer("by hand", cursor, timeout=0) == ([], cursor)
        await client.respond(messages[1], b"answer")
        assert await client.ack("by hand", 0)
        [answer], _ = await client.transfer(["answers", "by hand"], timeout=10)
        assert (answer.payload, answer.answers) == (b"answer", sent)
        numbers = [number for number, _ in await client.trace()]
        assert numbers == sorted(numbers) and numbers


async def test_a_transfer_may_be_given_up(shared: RunningHub) -> None:
    async with connect(shared.url("switch")) as client:
        waiting = asyncio.create_task(client.transfer("given up", timeout=60))
        await asyncio.sleep(0.1)
        waiting.cancel()
        assert await client.send("given up", b"1") == ("given up", 0)
        messages, _ = await client.transfer("given up", timeout=10)
        assert [one.payload for one in messages] == [b"1"]


async def test_a_call_that_is_given_up_disturbs_no_other(shared: RunningHub) -> None:
    async with connect(shared.url("switch")) as client, served(client, "calm", upper, 10):
        calls = [asyncio.create_task(client.call("calm", b"%d" % n, 10)) for n in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        assert await asyncio.gather(*calls[1::2]) == [b"%d" % n for n in range(1, 20, 2)]


def test_without_a_loop(shared: RunningHub) -> None:
    with blocking.connect(shared.url("switch")) as client:
        thread = threading.Thread(target=serve_blocking, args=(shared,), daemon=True)
        thread.start()
        assert client.call("blocking", b"hello", timeout=10) == b"HELLO"
        assert client.send("blocking kept", b"x") == ("blocking kept", 0)
        [message], _ = client.transfer("blocking kept")
        assert client.ack(message.queue, message.number)
        assert client.list("blocking", all=True) == ["blocking kept", "blocking"]
        assert "blocking" in client.diagnostics()["permanent_queues"]


def serve_blocking(hub: RunningHub) -> None:
    with blocking.connect(hub.url("switch"), token="blocking service") as service:
        service.serve("blocking", bytes.upper, concurrent=2)


async def test_names_in_the_url(shared: RunningHub) -> None:
    async with connect(shared.url("switch") + "/my%20token") as client:
        assert client.token == "my token"
        await client.create("q", transient=True)
        said: Any = await client.diagnostics()
        assert said["transient_queues"]["q"] is not None


@pytest.mark.parametrize(
    "url", ["switch://h:x", "switch://h:99999", "switch://h:0", "switch:/h", "mqtt:h", "ftp://h"]
)
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(SettingError):
        hubbub.client.connect(url)


async def test_a_hub_that_forgot_everything(start_hub: StartHub) -> None:
    """Calls and services go on at a hub that comes back empty."""
    memory = ("--set", "journal.record=none")
    first = start_hub(*memory)
    async with connect(first.url("switch")) as client, served(client, "q", upper):
        assert await client.call("q", b"one", timeout=10) == b"ONE"
        first.stop(signal.SIGKILL)
        call = asyncio.create_task(client.call("q", b"two", timeout=30))
        await asyncio.sleep(0.1)
        start_hub("--listen", first.address, *memory)
        assert await call == b"TWO"


async def test_credentials_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    add_user(tmp_path / "users", "ann", b"se:cret")
    listener = Listener(
        address="127.0.0.1:0",
        password_file=str(tmp_path / "users"),
        tls=Tls(certificate=str(authority.sign("localhost", server=True))),
    )
    async with Node(
        Settings(listener=(listener,), listen=(), journal=Journal(record="none"))
    ) as hub:
        port = hub.listeners[0].address.port
        good = f"switchs://ann:se%3Acret@localhost:{port}"
        async with connect(good, tls=authority.client()) as client:
            assert await client.list() == []
        with pytest.raises(Refused, match="401"):
            async with connect(f"switch://ann:wrong@localhost:{port}"):
                pass


async def test_a_dead_line_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What accepts connections and says nothing is no hub."""
    monkeypatch.setattr("hubbub.client.switch.channel.ANSWER_SECONDS", 0.1)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    with pytest.raises(ConnectionError, match="does not answer any more"):
        async with connect(f"switch://127.0.0.1:{server.sockets[0].getsockname()[1]}"):
            pass
    server.close()
