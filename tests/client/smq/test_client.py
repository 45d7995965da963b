"""Our SMQ client and a hub, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import hubbub
from hubbub.client import blocking
from hubbub.client.smq import SmqClient, SmqMessage, connect
from hubbub.client.smq.client import CONCURRENT
from hubbub.errors import CallFailed, CallTimeout, Refused, SettingError
from hubbub.protocols.smq import codec
from hubbub.runtime.node import Node
from tests.certificates import Authority
from tests.client.smq.here import serving, until, url

T = TypeVar("T")


@pytest.fixture
async def hub() -> AsyncIterator[Node]:
    async with serving() as node:
        yield node


async def soon(waited: AsyncIterator[T]) -> T:
    async with asyncio.timeout(10):
        return await anext(waited)


async def first(client: SmqClient) -> SmqMessage:
    return await soon(client.messages())


# Connecting


@pytest.mark.parametrize("scheme", ["smq", "smq+ws", "ws"])
async def test_publish_subscribe_and_answer(hub: Node, scheme: str) -> None:
    async with connect(url(hub, scheme)) as a, connect(url(hub)) as b:
        await a.createsub("temp")
        await a.subscribe("rooms/kitchen")
        await b.publish("rooms/kitchen", b"21", subtopic="temp")
        message = await first(a)
        assert message[:4] == ("rooms/kitchen", b"21", "temp", b.number)
        assert message.subtid == await b.createsub("temp")
        await a.publish(message.sender, "thanks")
        assert await first(b) == (f"$client/{b.number}", b"thanks", "", a.number, 0)


@pytest.mark.parametrize("scheme", ["smqs", "smq+wss", "wss"])
async def test_over_tls(tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path / "tls")
    certificate = str(authority.sign("localhost", server=True))
    trust = ssl.create_default_context(cafile=authority.file)
    async with serving(tls=hubbub.config.settings.Tls(certificate=certificate)) as hub:
        async with connect(url(hub, scheme), tls=trust) as secure, connect(url(hub)) as plain:
            await secure.publish(plain.number, b"from behind TLS")
            assert (await first(plain)).payload == b"from behind TLS"
        with pytest.raises(ssl.SSLError):
            await connect(url(hub, scheme)).open()


async def test_connect_of_the_package_finds_it(hub: Node) -> None:
    async with hubbub.connect(url(hub, "smq+ws")) as client:
        assert isinstance(client, SmqClient)


async def test_the_authenticator_gets_the_seed_and_our_address(tmp_path: Path) -> None:
    heard: list[tuple[int, str]] = []

    def authenticate(seed: int, address: str) -> bytes:
        heard.append((seed, address))
        return seed.to_bytes(4, "little")

    async with serving() as hub, connect(url(hub), credentials=authenticate, info="a device"):
        [(seed, address)] = heard
        assert 0 <= seed < 1 << 32 and address == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "text"),
    [("mqtt://h", "begins with smq"), ("smq://h", "expected a client_id of 6 to 255 bytes")],
)
def test_what_cannot_be_is_said_at_once(given: str, text: str) -> None:
    with pytest.raises(SettingError, match=text):
        connect(given, client_id="short")


async def test_a_server_that_is_no_smq_hub_is_named() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for serve, error, text in (
        (page, Refused, "no SMQ hub: HTTP/1.1 404"),
        (rude, OSError, "answers no HTTP|reset"),
    ):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(error, match=text):
                await connect(f"smq://127.0.0.1:{port}").open()
    with pytest.raises(OSError):
        await connect(f"smq://127.0.0.1:{port}").open()


@pytest.mark.pure
async def test_a_refusal_has_the_hubs_text_and_nobody_tries_again(hub: Node) -> None:
    hub.protocols[1].broker.open.may = lambda verb, name: False  # type: ignore[method-assign]
    async with connect(url(hub)) as client:
        with pytest.raises(Refused, match="refused the topic 'x'"):
            await client.create("x")


# Publishing and subscribing


async def test_messages_keep_their_order(hub: Node) -> None:
    async with connect(url(hub)) as a, connect(url(hub)) as b:
        await a.subscribe("many")
        for number in range(500):
            await b.publish("many", b"%d" % number)
        stream = a.messages()
        assert [(await soon(stream)).payload for _ in range(500)] == [b"%d" % n for n in range(500)]


async def test_each_subtopic_has_its_callback_and_one_is_for_the_rest(hub: Node) -> None:
    heard: list[tuple[str, bytes]] = []

    async def slowly(message: SmqMessage) -> None:
        await asyncio.sleep(0.01)
        heard.append(("temp", message.payload))

    async with connect(url(hub)) as a, connect(url(hub)) as b:
        await a.subscribe("room", slowly, subtopic="temp")
        await a.subscribe("room", lambda message: heard.append(("rest", message.payload)))
        for number, subtopic in enumerate(("temp", "", "other", "temp")):
            await b.publish("room", b"%d" % number, subtopic)
        await b.publish("room", b"4", 77)
        await until(lambda: len(heard) == 5)
    assert heard == [
        ("temp", b"0"), ("rest", b"1"), ("rest", b"2"), ("temp", b"3"), ("rest", b"4"),
    ]  # fmt: skip


async def test_what_no_callback_takes_comes_out_of_messages(hub: Node) -> None:
    async with connect(url(hub)) as a:
        await a.subscribe("room", lambda message: None, subtopic="temp")
        await a.publish("room", b"other", "other")
        assert (await first(a)).payload == b"other"


async def test_self_is_our_own_number(hub: Node) -> None:
    heard: list[SmqMessage] = []
    async with connect(url(hub)) as a, connect(url(hub)) as b:
        assert await a.subscribe("self", heard.append) == a.number
        await b.publish(a.number, b"psst")
        await until(lambda: bool(heard))
        assert heard == [(f"$client/{a.number}", b"psst", "", b.number, 0)]
        await a.unsubscribe("self")
        await b.publish(a.number, b"again")
        assert (await first(a)).payload == b"again"
    assert "self" not in hub.broker.state.topics.numbers


async def test_unsubscribe_ends_all_callbacks_of_the_topic(hub: Node) -> None:
    heard: list[SmqMessage] = []
    async with connect(url(hub)) as a:
        await a.subscribe("room", heard.append)
        await a.subscribe("room", heard.append, subtopic="temp")
        await a.unsubscribe("room")
        await a.publish("room", b"x", "temp")
        await a.publish(a.number, b"last")
        assert (await first(a)).payload == b"last"
    assert heard == []


async def test_what_is_taken_back_before_the_hub_has_answered_is_not_there(hub: Node) -> None:
    async with connect(url(hub)) as a, connect(url(hub)) as b:
        subscribing = asyncio.create_task(a.subscribe("news"))
        changes: list[int] = []
        observing = asyncio.create_task(
            a.observe("watched", lambda count, _: changes.append(count))
        )
        await asyncio.sleep(0)
        await a.unsubscribe("news")
        await a.unobserve("watched")
        await asyncio.gather(subscribing, observing)
        await b.subscribe("watched")
        await b.publish("news", b"lost")
        await b.create("after that")
        assert hub.broker.state.topics.numbers.keys() >= {"news", "watched"}
        await a.publish(a.number, b"found")
        assert (await first(a)).payload == b"found"
        assert not any("news" in one.subscriptions for one in hub.broker.clients.values())
        assert changes == []


async def test_what_is_taken_back_while_the_client_comes_back_is_not_set_up(
    hub: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(url(hub), backoff=(0.01, 0.1)) as a, connect(url(hub)) as b:
        for topic in ("one", "two", "three"):
            await a.subscribe(topic)
            await a.observe(topic, print)
        subscribe = a._subscribe

        async def and_lose_interest(connection: Any, topic: str) -> int:
            if topic == "one":
                leaving.append(asyncio.create_task(a.unsubscribe("two")))
                leaving.append(asyncio.create_task(a.unobserve("two")))
                await asyncio.sleep(0)
            return await subscribe(connection, topic)

        leaving: list[asyncio.Task[None]] = []
        monkeypatch.setattr(a, "_subscribe", and_lose_interest)
        before = a.number
        for sock in list(hub.sockets):
            if sock.transport is not None:
                sock.transport.abort()
        await until(lambda: len(leaving) == 2)
        await asyncio.gather(*leaving)
        assert a.number != before
        for topic in ("two", "three"):
            await b.publish(topic, topic)
        assert (await first(a)).payload == b"three"


async def test_a_callback_that_fails_is_logged_and_the_next_message_comes(
    hub: Node, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def fails(message: SmqMessage) -> None:
        heard.append(message.payload)
        raise LookupError("no such lamp")

    async with connect(url(hub)) as a:
        await a.subscribe("room", fails)
        await a.publish("room", b"1")
        await a.publish("room", b"2")
        await until(lambda: heard == [b"1", b"2"])
    assert "no such lamp" in caplog.text


async def test_a_callback_may_ask_the_hub(hub: Node) -> None:
    async with connect(url(hub)) as a:

        async def answer(message: SmqMessage) -> None:
            await a.publish(f"answers/{message.payload.decode()}", b"done")

        await a.subscribe("answers/1")
        await a.subscribe("room", answer)
        await a.publish("room", b"1")
        assert (await first(a)).topic == "answers/1"


async def test_a_refused_topic_and_a_payload_too_large_are_errors(hub: Node) -> None:
    async with connect(url(hub)) as a:
        with pytest.raises(Refused, match=r"refused the topic '\$SYS/x'"):
            await a.publish("$SYS/x", b"forged")
        with pytest.raises(ValueError, match="at most 65535 bytes"):
            await a.publish("big", bytes(codec.PAYLOAD_BYTES + 1))
        await a.publish("big", bytes(codec.PAYLOAD_BYTES))


async def test_parts_become_one_message(hub: Node) -> None:
    async with connect(url(hub)) as a, connect(url(hub)) as b:
        await a.createsub("photo")
        await a.subscribe("camera")
        picture = bytes(range(256)) * 250
        await b.publish_parts("camera", (picture[at : at + 900] for at in range(0, 64_000, 900)),
                              "photo")  # fmt: skip
        assert (await first(a))[:4] == ("camera", picture, "photo", b.number)
        await b.publish_parts("camera", [b"x" * codec.FRAGMENTED_BYTES])
        assert len((await first(a)).payload) == codec.FRAGMENTED_BYTES


async def test_parts_that_are_too_large_or_fail_reach_nobody(hub: Node) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the camera is gone")

    async with connect(url(hub)) as a:
        await a.subscribe("camera")
        with pytest.raises(ValueError, match="65507 bytes at most"):
            await a.publish_parts("camera", [bytes(codec.FRAGMENTED_BYTES + 1)])
        with pytest.raises(OSError, match="the camera is gone"):
            await a.publish_parts("camera", failing())
        await a.publish_parts("camera", [b"whole"])
        assert (await first(a)).payload == b"whole"
    async with connect(url(hub, "ws")) as web:
        with pytest.raises(SettingError, match="raw sockets"):
            await web.publish_parts("camera", [b"x"])


async def test_observe_tells_the_subscribers_of_a_topic_and_the_end_of_a_client(hub: Node) -> None:
    seen: list[tuple[int, str | int]] = []
    async with connect(url(hub)) as a, connect(url(hub)) as b, connect(url(hub)) as c:
        await a.observe("observed", lambda count, name: seen.append((count, name)))
        await a.observe(c.number, lambda count, name: seen.append((count, name)))
        await b.subscribe("observed")
        await until(lambda: len(seen) == 2)
        await c.close()
        await until(lambda: len(seen) == 3)
        await a.unobserve("observed")
        await b.unsubscribe("observed")
        await b.publish(b.number, b"the hub is through with it")
        await first(b)
    assert seen == [(0, "observed"), (1, "observed"), (0, c.number)]


# Ending and coming back


async def test_the_same_client_id_again_ends_the_older_client(hub: Node) -> None:
    async with connect(url(hub), client_id="client-a") as old:
        async with connect(url(hub), client_id="client-a") as new:
            assert new.number == old.number
            with pytest.raises(Refused, match="reconnect"):
                await first(old)
            with pytest.raises(Refused, match="reconnect"):
                await old.publish("x", b"")


async def test_after_close_the_messages_end(hub: Node) -> None:
    async with connect(url(hub)) as a:
        await a.publish(a.number, b"last")
        await until(lambda: len(a._unread._items) == 1)
    assert [message.payload async for message in a.messages()] == [b"last"]


async def test_without_reconnect_the_end_of_the_connection_is_the_end() -> None:
    async with serving() as hub:
        a = connect(url(hub), reconnect=False)
        await a.open()
    with pytest.raises(ConnectionError, match="the hub closed the connection"):
        await first(a)
    await a.close()


async def test_everything_is_set_up_again_at_another_hub(caplog: pytest.LogCaptureFixture) -> None:
    """Its numbers are others; the names are the same."""
    caplog.set_level(logging.WARNING)
    heard: list[SmqMessage] = []
    counts: list[int] = []
    async with serving() as hub:
        port = hub.listeners[0].address.port
        client = connect(url(hub), backoff=(0.05, 0.2))
        await client.open()
        await client.subscribe("room", heard.append, subtopic="temp")
        await client.subscribe("self", heard.append)
        await client.observe("room", lambda count, name: counts.append(count))
        before = await client.create("elsewhere")
    waiting = asyncio.create_task(client.publish("elsewhere", b"waits for a hub"))
    async with serving(port=port) as hub:
        async with connect(url(hub)) as other:
            await other.subscribe("elsewhere")
            async with asyncio.timeout(10):
                await waiting
            assert (await first(other)).payload == b"waits for a hub"
            await other.publish("room", b"21", "temp")
            await other.publish(client.number, b"psst")
            await until(lambda: len(heard) == 2)
        assert [message.subtopic for message in heard] == ["temp", ""]
        assert await client.create("elsewhere") != before
        await until(lambda: counts == [1, 1])
        await client.close()
    assert "connecting again" in caplog.text


async def test_credentials_that_fail_when_the_client_comes_back_are_told(hub: Node) -> None:
    asked: list[int] = []

    def credentials(seed: int, address: str) -> bytes:
        asked.append(seed)
        if len(asked) > 1:
            raise LookupError("the key is gone")
        return b""

    async with connect(url(hub), credentials=credentials, backoff=(0.01, 0.1)) as a:
        for sock in list(hub.sockets):
            if sock.transport is not None:
                sock.transport.abort()
        with pytest.raises(LookupError, match="the key is gone"):
            await first(a)


async def test_close_while_there_is_no_hub_is_at_once() -> None:
    async with serving() as hub:
        client = connect(url(hub), backoff=(30, 30))
        await client.open()
    async with asyncio.timeout(5):
        await client.close()
    with pytest.raises(ConnectionError, match="closed"):
        await client.publish("x", b"")


async def test_a_hub_that_says_nothing_is_left() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hubbub.client.smq.connection.ANSWER_SECONDS", 0.1)
        with pytest.raises(ConnectionError, match="is it an SMQ hub"):
            await connect(f"smq://127.0.0.1:{silent.getsockname()[1]}").open()


async def test_a_hub_that_answers_no_ping_is_left() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nSmqBroker: true\r\n\r\n")
        writer.write(codec.framed(codec.message(codec.INIT, 1, 7, rest=b"127.0.0.1")))
        writer.write(codec.framed(codec.message(codec.CONNACK, 0, 4711)))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hubbub.client.smq.connection.PING_SECONDS", 0.05)
            port = server.sockets[0].getsockname()[1]
            client = connect(f"smq://127.0.0.1:{port}", reconnect=False)
            await client.open()
            patch.setattr("hubbub.client.smq.connection.ANSWER_SECONDS", 0.05)
            with pytest.raises(ConnectionError, match="no answer to a ping"):
                await first(client)
            await client.close()


async def test_what_nobody_takes_is_bounded_and_counted(hub: Node) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hubbub.client.inbox.UNREAD_MESSAGES", 3)
        async with connect(url(hub)) as a:
            for number in range(5):
                await a.publish(a.number, b"%d" % number)
            await until(lambda: a.dropped == 2)
            assert (await first(a)).payload == b"0"


# Calls


@pytest.mark.parametrize("scheme", ["smq", "smq+ws"])
async def test_call_and_serve_over_a_topic_a_number_and_a_queue(hub: Node, scheme: str) -> None:
    async def upper(message: SmqMessage) -> bytes:
        return message.payload.upper()

    async with connect(url(hub, scheme)) as service, connect(url(hub)) as caller:
        serving_all = [
            asyncio.create_task(service.serve(name, upper))
            for name in ("service/upper", "self", "$queue/upper")
        ]
        await service.create("x")  # what was asked before is answered
        for to in ("service/upper", service.number, "$queue/upper"):
            assert (await caller.call(to, "hello")).payload == b"HELLO"
        replies = await asyncio.gather(
            *(caller.call("$queue/upper", b"q%d" % number) for number in range(40))
        )
        assert [reply.payload for reply in replies] == [b"Q%d" % number for number in range(40)]
        for task in serving_all:
            task.cancel()
    assert hub.broker.state.queues["upper"].messages == {}


async def test_a_late_reply_meets_nobody(hub: Node) -> None:
    asked = asyncio.Event()
    answered = asyncio.Event()

    async def slow(message: SmqMessage) -> bytes:
        if message.payload == b"slow":
            asked.set()
            await asyncio.sleep(0.2)
            answered.set()
        return message.payload

    async with connect(url(hub)) as service, connect(url(hub)) as caller:
        task = asyncio.create_task(service.serve("service", slow))
        await service.create("x")
        with pytest.raises(CallTimeout, match="no reply from service within 0.1 s"):
            await caller.call("service", b"slow", timeout=0.1)
        assert asked.is_set()
        async with asyncio.timeout(10):
            await answered.wait()
        assert (await caller.call("service", b"quick")).payload == b"quick"
        task.cancel()


async def test_of_several_answers_the_first_counts_and_no_other_call_meets_the_rest(
    hub: Node,
) -> None:
    async def echo(message: SmqMessage) -> None:
        for _ in range(3):
            await a.publish(message.sender, message.payload)

    async with connect(url(hub)) as a, connect(url(hub)) as b, connect(url(hub)) as caller:
        tasks = [asyncio.create_task(b.serve(name, lambda m: m.payload)) for name in ("t", "self")]
        await a.subscribe("t", echo)
        await a.subscribe("self", echo)
        await b.create("x")  # what was asked before is answered
        targets: list[str | int] = ["t", a.number, b.number, "t", b.number]
        for number, to in enumerate(targets):
            assert (await caller.call(to, b"%d" % number)).payload == b"%d" % number
        for task in tasks:
            task.cancel()


async def test_an_answer_has_the_subtopic_of_its_request_with_or_without_a_name(hub: Node) -> None:
    async with connect(url(hub)) as service, connect(url(hub)) as device:
        task = asyncio.create_task(service.serve("self", lambda message: b"yes"))
        await service.create("x")
        named = await device.createsub("doors")  # a name that the service has never heard
        for subtid in (named, 4711, 0):
            await device.publish(service.number, b"open?", subtid)
            answer = await first(device)
            assert (answer.payload, answer.subtid) == (b"yes", subtid)
        task.cancel()


@pytest.mark.parametrize("topic", ["$queue/lamp", "lamp", "self"])
async def test_a_handler_that_fails_is_an_answer(
    hub: Node, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    def fails(message: SmqMessage) -> bytes:
        raise LookupError("no such lamp")

    async with connect(url(hub)) as caller, connect(url(hub)) as service:
        task = asyncio.create_task(service.serve(topic, fails))
        await service.create("x")
        to = service.number if topic == "self" else topic
        for _ in range(2):
            with pytest.raises(CallFailed, match="^the handler failed: LookupError$"):
                await caller.call(to, b"on")
        assert "no such lamp" in caplog.text
        with pytest.raises(CallFailed):
            await caller.call(to, b"on", subtopic="switch")
        assert b"LookupError" in (await caller.call(to, b"on", subtopic="error")).payload
        task.cancel()


@pytest.mark.parametrize("topic", ["$queue/lamp", "lamp"])
async def test_an_answer_that_is_too_large_to_be_sent_is_told(hub: Node, topic: str) -> None:
    async with connect(url(hub)) as caller, connect(url(hub)) as service:
        task = asyncio.create_task(service.serve(topic, lambda _: b"x" * 65_521))
        await service.create("x")
        for _ in range(25):  # more than one consumer of a queue may have open
            with pytest.raises(CallFailed, match="^the answer of 65521 bytes is too large"):
                await caller.call(topic, b"on", timeout=10)
        task.cancel()


async def test_at_most_so_many_requests_are_worked_on(hub: Node) -> None:
    now: list[int] = []
    most = 0
    go = asyncio.Event()

    async def wait(message: SmqMessage) -> bytes:
        nonlocal most
        now.append(1)
        most = max(most, len(now))
        await go.wait()
        now.pop()
        return b""

    async with connect(url(hub)) as service:
        task = asyncio.create_task(service.serve("service", wait))
        await service.create("x")
        for _ in range(CONCURRENT + 50):
            await service.publish("service", b"")
        await until(lambda: len(now) == CONCURRENT)
        go.set()
        await until(lambda: not now)
        task.cancel()
    assert most == CONCURRENT


# Without a loop


def test_the_blocking_twin(tmp_path: Path) -> None:
    async def serve(ready: asyncio.Future[str], done: asyncio.Event) -> None:
        async with serving() as hub:
            ready.set_result(url(hub))
            await done.wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[str] = loop.create_future()
        done = asyncio.Event()
        task = asyncio.create_task(serve(ready, done))
        await asyncio.to_thread(_blocking, await ready)
        done.set()
        await task

    asyncio.run(main())


def _blocking(address: str) -> None:
    heard: list[bytes] = []
    with blocking.connect(address) as a, blocking.connect(address) as b:

        def answer(message: SmqMessage) -> None:
            heard.append(message.payload)
            b.publish(message.sender, b"got it")

        b.subscribe("room", answer)
        a.publish("room", b"hello")
        assert next(a.messages()).payload == b"got it"
    assert heard == [b"hello"]
