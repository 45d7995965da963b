"""The hub API, function by function, with real clients of every protocol."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub
from hubbub.config.settings import Journal, Settings, Smq
from hubbub.errors import HubbubError
from tests.clients import PATIENCE, Heard, http, message, mqtt, smq, user_property


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(listen="127.0.0.1:0") as hub:
        yield hub


# Names


async def test_create_gives_a_number_for_good(hub: Hub) -> None:
    tid = hub.create("a/b")
    assert hub.create("a/b") == tid == hub.topic2tid("a/b")
    assert hub.tid2topic(tid) == "a/b"
    assert hub.topic2tid("none") is None and hub.tid2topic(2) is None
    assert (tid, "a/b") in hub.topics()


async def test_create_takes_the_number_that_is_asked_for_if_it_is_free(hub: Hub) -> None:
    assert hub.create("a", 77) == 77
    assert hub.create("b", 77) not in (77, 0)
    assert hub.create("a", 78) == 77
    async with smq(hub) as device:
        assert hub.create("c", device.number) != device.number


@pytest.mark.parametrize("rndtid", [False, True])
async def test_no_name_gets_the_number_that_is_the_hubs_on_any_start(rndtid: bool) -> None:
    async with Hub(listen="127.0.0.1:0", rndtid=rndtid) as hub:
        assert hub.create("a", 1) not in (0, 1) and hub.createsub("a", 1) not in (0, 1)


async def test_one_wrong_value_of_the_program_is_its_own(tmp_path: Path) -> None:
    """The call says so; everything else goes on, and nothing of it reaches the journal."""
    async with Hub(listen="127.0.0.1:0", data=tmp_path / "data") as hub:
        wrong: list[Callable[[], object]] = [
            lambda: hub.create("a", 1.5),  # type: ignore[arg-type]
            lambda: hub.createsub("a", 1.5),  # type: ignore[arg-type]
            lambda: hub.create("a", "7"),  # type: ignore[arg-type]
            *(functools.partial(hub.publish, b"x", "a", qos=qos) for qos in (-1, 1.5, 9, "1")),  # type: ignore[arg-type]
            *(functools.partial(hub.publish, b"x", "a", retain=one) for one in (7, "x", 2)),  # type: ignore[arg-type]
            lambda: hub.publish(b"x", "a", content_type=5),  # type: ignore[arg-type]
            lambda: hub.publish(b"x", "a", content_type=b"text/plain"),  # type: ignore[arg-type]
            lambda: hub.publish(b"x", "a", properties={"a": object()}),
            lambda: hub.publish(b"x", "a", properties=[1]),  # type: ignore[arg-type]
            lambda: hub.publish(b"x", "a", 1.5),  # type: ignore[arg-type]
        ]
        for call in wrong:
            with pytest.raises((TypeError, ValueError)):
                call()
        assert hub.publish(b"x", "a", qos=True, retain=1)  # type: ignore[arg-type]
        await asyncio.wait_for(hub.flush(), PATIENCE)
        async with mqtt(hub) as panel:
            assert await panel.publish("a", b"y") == 0x10, "nobody subscribes, and it is taken"
    async with Hub(listen="127.0.0.1:0", data=tmp_path / "data") as hub:
        assert [name for _, name in hub.topics() if name == "a"] == ["a"]


async def test_createsub_has_numbers_of_its_own(hub: Hub) -> None:
    assert hub.createsub(None) == 0
    stid = hub.createsub("temp", 77)
    assert stid == 77 == hub.createsub("temp") == hub.subtopic2tid("temp")
    assert hub.tid2subtopic(77) == "temp" and hub.tid2topic(77) is None
    assert hub.subtopics() == [(77, "temp")]
    assert hub.subtopic2tid("none") is None


async def test_too_many_names() -> None:
    settings = Settings(listen=(), smq=Smq(max_topics=1), journal=Journal(record="none"))
    async with Hub(settings) as hub:
        hub.create("a")
        with pytest.raises(HubbubError, match="max_topics"):
            hub.create("b")


# Publishing


async def test_publish_reaches_clients_of_every_protocol(hub: Hub) -> None:
    async with smq(hub) as device, mqtt(hub) as panel, http(hub) as service:
        await device.subscribe("a")
        await panel.subscribe("a")
        await service.get("/login/svc")
        await service.post("/bind/q", content="a")
        assert hub.publish(b"\x00raw", "a")
        assert (await message(device)).payload == b"\x00raw"
        assert await panel.message() == ("a", b"\x00raw")
        waiting = await service.post("/transfer", json={"queues": ["q"], "timeout": 1.0})
        assert "raw" in waiting.text


@pytest.mark.parametrize(
    ("data", "payload"),
    [(b"x", b"x"), ("é", "é".encode()), ({"a": [1]}, b'{"a":[1]}'), (7, b"7"), (None, b"null")],
)
async def test_publish_takes_bytes_text_and_json(hub: Hub, data: Any, payload: bytes) -> None:
    async with smq(hub) as device:
        await device.subscribe("a")
        hub.publish(data, "a")
        assert (await message(device)).payload == payload


async def test_publish_creates_names_and_goes_to_numbers(hub: Hub) -> None:
    async with smq(hub) as device:
        await device.subscribe("a")
        await device.createsub("s")
        hub.publish(b"1", "a", "s")
        hub.publish(b"2", hub.topic2tid("a") or 0, hub.subtopic2tid("s"))
        hub.publish(b"3", device.number)
        hub.publish(b"", "new", "newer")
        found = [await message(device) for _ in range(3)]
    assert [(one.topic, one.payload, one.subtopic, one.sender) for one in found[:2]] == [
        ("a", b"1", "s", 1),
        ("a", b"2", "s", 1),
    ]
    assert found[2].payload == b"3"
    assert hub.topic2tid("new") and hub.subtopic2tid("newer")


async def test_publish_on_behalf_of_a_client(hub: Hub) -> None:
    """Documented, but ignored by the reference."""
    async with smq(hub) as device, mqtt(hub):
        await device.subscribe("a")
        (panel,) = [peer.tid for _, peer in hub.peers() if peer.protocol == "mqtt"]
        assert hub.publish(b"x", "a", ptid=panel)
        assert (await message(device)).sender == panel
        assert not hub.publish(b"x", "a", ptid=2)


async def test_publish_to_nobody_is_false(hub: Hub) -> None:
    for nobody in (123456, "$client/123456", "$client/x"):
        assert not hub.publish(b"x", nobody)
    async with smq(hub) as device:
        assert hub.publish(b"x", f"$client/{device.number}")
        assert (await message(device)).payload == b"x"


async def test_publish_with_what_other_protocols_know(hub: Hub) -> None:
    hub.publish("kept", "a", retain=True, qos=1)
    async with mqtt(hub) as panel, smq(hub) as device:
        await panel.subscribe("a")
        assert await panel.message() == ("a", b"kept")
        await device.subscribe("a")
        assert (await message(device)).payload == b"kept"


async def test_what_is_not_retained_for_want_of_room_is_false(hub: Hub) -> None:
    assert hub.publish("kept", "a", retain=True, qos=1)
    hub.node.broker.keep_room("the disk has 1 MB left")
    assert not hub.publish("kept", "b", retain=True, qos=1)
    assert hub.publish("", "b", retain=True) and hub.publish("", "a", retain=True)
    assert not hub.node.broker.state.retained


async def test_a_payload_too_large_for_raw_sockets_is_for_all_others(hub: Hub) -> None:
    """The reference makes it an error."""
    async with smq(hub) as device, mqtt(hub) as panel:
        await device.subscribe("a")
        await panel.subscribe("a")
        assert hub.publish(b"x" * 0x10000, "a") and hub.publish(b"small", "a")
        assert len((await panel.message())[1]) == 0x10000
        assert (await message(device)).payload == b"small"


async def test_numbers_can_be_taken_away_but_of_what_is_in_use(hub: Hub) -> None:
    number, sub = hub.create("a"), hub.createsub("s")
    async with smq(hub) as device:
        await device.subscribe("a")
        with pytest.raises(HubbubError, match="stays: a client is subscribed"):
            hub.remove("a")
        assert hub.tid2topic(number) == "a"
    async with asyncio.timeout(PATIENCE):
        while device.number in hub.node.broker.clients:
            await asyncio.sleep(0.01)
    assert hub.remove("a") and hub.removesub("s")
    assert not hub.remove("a") and not hub.removesub("s")
    assert hub.tid2topic(number) is None and hub.tid2subtopic(sub) is None
    assert hub.create("a") != number


async def test_pubon_needs_two_connected_clients(hub: Hub) -> None:
    async with smq(hub) as one, smq(hub, "device-2") as other:
        assert hub.pubon(b"x", one.number, other.number, 0)
        heard = await message(one)
        assert (heard.payload, heard.sender) == (b"x", other.number)
        assert not hub.pubon(b"x", one.number, 2, 0)
        assert not hub.pubon(b"x", 2, one.number, 0)


# Subscribing


async def test_subscribe_hears_every_protocol(hub: Hub) -> None:
    heard = Heard()
    tid = hub.subscribe("a", heard)
    assert tid == hub.topic2tid("a")
    async with smq(hub) as device, mqtt(hub) as panel, http(hub) as service:
        await device.publish("a", b"1", "s")
        await heard.until()
        await panel.publish("a", b"2", properties=user_property("smq-subtopic", "s"))
        await heard.until(2)
        await service.post("/publish/a", content=b"3")
        calls = await heard.until(3)
        stid = hub.subtopic2tid("s")
        peers = {peer.tid: peer for _, peer in hub.peers()}
        assert calls[0] == (b"1", device.number, tid, stid, peers[device.number])
        assert calls[1][0] == b"2" and calls[1][3] == stid and calls[1][4].protocol == "mqtt"
        assert calls[2][0] == b"3" and calls[2][2] == tid


async def test_subscriptions_differ_by_subtopic(hub: Hub) -> None:
    named, rest, default = Heard(), Heard(), Heard()
    hub.onmsg(default)
    hub.subscribe("a", named, "s")
    async with smq(hub) as device:
        await device.publish("a", b"1", "s")
        await device.publish("a", b"2", "t")
        await default.until()
        hub.subscribe("a", rest)
        await device.publish("a", b"3", "s")
        await device.publish("a", b"4", "t")
        await device.publish("a", b"5", 99)
        await rest.until(2)
    assert [call[0] for call in named.calls] == [b"1", b"3"]
    assert [call[0] for call in default.calls] == [b"2"]
    assert [call[0] for call in rest.calls] == [b"4", b"5"]
    assert rest.calls[1][3] == 99


async def test_self_is_the_hubs_own_number(hub: Hub) -> None:
    heard = Heard()
    assert hub.subscribe("self", heard) == hub.gettid() == 1
    async with smq(hub) as device, mqtt(hub) as panel:
        await device.publish(1, b"from a device", "s")
        await heard.until()
        await panel.publish("$client/1", b"from a panel")
        calls = await heard.until(2)
        assert {call[0]: call[2] for call in calls} == {b"from a device": 1, b"from a panel": 1}
        hub.publish(b"back", calls[0][1])
        assert (await message(device)).payload == b"back"


async def test_json_is_decoded_and_what_is_none_goes_to_the_default(hub: Hub) -> None:
    heard, default = Heard(), Heard()
    hub.onmsg(default)
    hub.subscribe("a", heard, json=True)
    async with mqtt(hub) as panel:
        await panel.publish("a", b'{"x": 1}')
        await panel.publish("a", b"{")
        await panel.publish("a", b"[" * 100_000)  # deeper than Python decodes
        assert (await heard.until())[0][0] == {"x": 1}
        assert [call[0] for call in await default.until(2)] == [b"{", b"[" * 100_000]


async def test_a_subscription_begins_in_the_past(tmp_path: Path) -> None:
    async with Hub(listen="127.0.0.1:0", data=tmp_path / "data") as hub:
        for number in range(5):
            hub.publish(str(number), "a/b", qos=1)
        await asyncio.wait_for(hub.flush(), PATIENCE)
        named, wide = Heard(), Heard()
        assert hub.subscribe("a/b", named, last=2) == hub.topic2tid("a/b")
        assert [call[0] for call in await named.until(2)] == [b"3", b"4"]
        assert hub.subscribe("a/+", wide, filter=True, since="1h") == 0
        assert [call[0] for call in await wide.until(5)] == [b"0", b"1", b"2", b"3", b"4"]
        hub.publish("5", "a/b")
        assert (await named.until(3))[-1][0] == (await wide.until(6))[-1][0] == b"5"
        with pytest.raises(ValueError, match="subscribed to already"):
            hub.subscribe("a/b", wide, "s", last=2)
        with pytest.raises(ValueError):
            hub.subscribe("c", wide, since="yesterday")
        hub.unsubscribe("a/b")
        hub.subscribe("a/b", named, last=1)
        assert (await named.until(4))[-1][0] == b"5"


async def test_without_a_journal_there_is_no_past(hub: Hub) -> None:
    with pytest.raises(ValueError):
        hub.subscribe("a", Heard(), last=1)
    hub.subscribe("a", Heard())


async def test_unsubscribe_removes_every_function_of_a_topic(hub: Hub) -> None:
    heard = Heard()
    hub.subscribe("a", heard)
    hub.subscribe("a", heard, "s")
    hub.unsubscribe("a")
    hub.unsubscribe("never")
    async with smq(hub) as device:
        await device.publish("a", b"1", "s")
        await device.publish("a", b"2")
        await device.subscribe("a")  # answered after both
    assert heard.calls == []


async def test_names_are_literal_and_filters_are_not(hub: Hub) -> None:
    literal, wide, all_of_a = Heard(), Heard(), Heard()
    hub.subscribe("a/+", literal)
    assert hub.subscribe("a/#", wide, filter=True) == 0
    hub.subscribe("a/b", all_of_a)
    with pytest.raises(ValueError, match="as a name or as a filter"):
        hub.subscribe("a/+", wide, filter=True)
    with pytest.raises(ValueError, match="not a topic filter"):
        hub.subscribe("a/#/b", wide, filter=True)
    with pytest.raises(ValueError, match="'self'"):
        hub.subscribe("$client/7", wide)
    async with smq(hub) as device:
        await device.publish("a/+", b"1")
        await device.publish("a/b", b"2")
        await all_of_a.until()
    assert [call[0] for call in literal.calls] == [b"1"]
    assert [call[0] for call in wide.calls] == [b"2"]
    assert hub.tid2topic(wide.calls[0][2]) == "a/b"


async def test_retained_messages_come_with_a_subscription(hub: Hub) -> None:
    heard = Heard()
    hub.publish(b"kept", "a", retain=True)
    hub.subscribe("a", heard)
    assert (await heard.until())[0][0] == b"kept"


async def test_a_queue_message_is_acknowledged_when_the_function_returns(hub: Hub) -> None:
    failed, heard = Heard(lambda *_: 1 / 0), Heard()
    hub.publish(b"job", "$queue/q")
    hub.subscribe("$queue/q", failed)
    await failed.until()
    hub.unsubscribe("$queue/q")
    hub.subscribe("$queue/q", heard)
    assert (await heard.until())[0][0] == b"job"
    await asyncio.sleep(0)
    assert not hub.node.broker.state.queues["q"].messages
    with pytest.raises(ValueError, match="queue"):
        hub.subscribe("$queue/a+", heard)
    with pytest.raises(ValueError, match="queue"):
        hub.publish(b"job", "$queue/")


async def test_a_request_in_a_queue_is_answered_by_its_ptid(hub: Hub) -> None:
    hub.subscribe("$queue/q", lambda data, ptid, *rest: hub.publish(data.upper(), ptid))
    async with smq(hub) as device:
        await device.publish("$queue/q", b"ask", "request")
        assert (await message(device)).payload == b"ASK"
    assert not hub.node.broker.state.queues["q"].messages


async def test_async_functions_run_side_by_side(hub: Hub) -> None:
    done = Heard()
    gate = asyncio.Event()

    async def slow(data: bytes, *rest: Any) -> None:
        if data == b"1":
            await gate.wait()
        done(data)

    hub.subscribe("a", slow)
    hub.publish(b"1", "a")
    hub.publish(b"2", "a")
    assert await done.until() == [(b"2",)]
    gate.set()
    assert await done.until(2) == [(b"2",), (b"1",)]


async def test_async_functions_that_are_too_many(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.embed.callbacks.CALLBACKS", 2)

    async def never(*rest: Any) -> None:
        await asyncio.Event().wait()

    hub.subscribe("a", never)
    for _ in range(5):
        hub.publish(b"", "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert hub.node.broker.metrics.dropped["callbacks too slow"] == 3


@pytest.mark.parametrize("how", ["plain", "async"])
async def test_a_function_that_raises_harms_nothing(
    hub: Hub, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def later(*rest: Any) -> None:
        raise RuntimeError("the program's own mistake")

    def now(*rest: Any) -> None:
        raise RuntimeError("the program's own mistake")

    heard = Heard()
    hub.subscribe("a", later if how == "async" else now)
    hub.subscribe("#", heard, filter=True)
    async with smq(hub) as device:
        await device.publish("a", b"1")
        await heard.until()
        await device.subscribe("still there")
        await asyncio.sleep(0)
    (record,) = [one for one in caplog.records if one.name == "hubbub.program"]
    assert record.exc_info and "own mistake" in str(record.exc_info[1])


async def test_a_function_may_publish_to_itself_for_ever(hub: Hub) -> None:
    """No limit of recursion is needed: each call is a turn of the loop, and others have theirs."""
    hub.subscribe("a", lambda *_: hub.publish(b"", "a"))
    hub.publish(b"", "a")
    async with smq(hub) as device:
        await device.subscribe("b")
    hub.unsubscribe("a")


# Observing


async def test_observe_counts_clients_of_every_protocol(hub: Hub) -> None:
    changes = Heard()
    hub.observe("a", changes)
    assert await changes.until() == [(0, "a")]
    async with smq(hub) as device, mqtt(hub) as panel:
        await device.subscribe("a")
        await panel.subscribe("#")
        hub.subscribe("a")
        assert await changes.until(4) == [(0, "a"), (1, "a"), (2, "a"), (3, "a")]
        hub.unobserve("a")
        hub.unobserve("a")
    assert len(changes.calls) == 4


async def test_observe_by_number(hub: Hub) -> None:
    changes = Heard()
    tid = hub.create("a")
    hub.observe(tid, changes)
    hub.observe(123456, changes)
    assert await changes.until(2) == [(0, tid), (0, 123456)]


async def test_an_observed_client_answers_once(hub: Hub) -> None:
    changes = Heard()
    async with smq(hub) as device, mqtt(hub):
        numbers = [peer.tid for _, peer in hub.peers()[1:]]
        for number in numbers:
            hub.observe(number, changes)
        await device.subscribe("a")
        assert changes.calls == []
    assert sorted(await changes.until(2)) == sorted((0, number) for number in numbers)


# Management


async def test_peers_and_their_ways_back(hub: Hub) -> None:
    async with smq(hub, info="a box") as device, mqtt(hub), http(hub) as service:
        await service.get("/login/svc")
        await device.subscribe("a")
        found = hub.peers()
        assert [(peer.uid, peer.protocol) for _, peer in found] == [
            ("SMQ server client", ""),
            ("device-1", "smq"),
            ("panel-1", "mqtt"),
            ("svc", "switch"),
        ]
        sock, peer = found[1]
        assert peer.sock is sock and sock.peername()[0] == "127.0.0.1"
        assert peer.tid == device.number and not peer.phantom
        assert peer.topics == {hub.topic2tid("a"): sock} and found[2][1].topics is None
        assert peer.info is not None and peer.info.info == "a box"
        assert hub.sock2peer(sock) is hub.etid2peer(peer.tid) is peer
        peer.room = "kitchen"  # type: ignore[attr-defined]
        assert hub.peers()[1][1].room == "kitchen"  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        while len(hub.peers()) > 1:
            await asyncio.sleep(0.01)
    assert hub.sock2peer(sock) is None and hub.etid2peer(peer.tid) is None
    assert hub.etid2peer(1) is hub.peers()[0][1]


async def test_a_sock_can_be_closed(hub: Hub) -> None:
    async with smq(hub) as device:
        hub.peers()[1][0].close()
        with pytest.raises(ConnectionError):
            await message(device)


async def test_setkeepalive_is_for_connections_from_now_on(hub: Hub) -> None:
    import socket

    async def seconds() -> tuple[int, int]:
        async with smq(hub):
            (sock,) = hub.node.sockets
            assert sock.transport is not None
            raw = sock.transport.get_extra_info("socket")
            return (
                raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            )

    assert await seconds() == (230, 23)
    hub.setkeepalive(60)
    await asyncio.sleep(0.05)
    assert await seconds() == (60, 6)
    hub.setkeepalive(60, 7)
    await asyncio.sleep(0.05)
    assert await seconds() == (60, 7)


# Other threads


async def test_calls_from_other_threads_are_made_on_the_loop(hub: Hub) -> None:
    heard = Heard()

    def elsewhere() -> tuple[int, str | None]:
        hub.subscribe("a", heard)
        assert hub.publish(b"1", "a")
        return hub.create("b"), hub.tid2topic(hub.create("b"))

    tid, name = await asyncio.to_thread(elsewhere)
    assert (hub.topic2tid("b"), name) == (tid, "b")
    await heard.until()
    assert heard.threads == {threading.get_ident()}


async def test_what_a_call_raises_is_raised_in_the_calling_thread(hub: Hub) -> None:
    with pytest.raises(ValueError, match="not a topic filter"):
        await asyncio.to_thread(hub.subscribe, "#a", filter=True)


async def test_the_hand_over_queue_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with Hub(queuesize=3) as hub:
        assert hub.queuesize() == (3, 0)
        taken: list[bool] = []

        def elsewhere() -> None:
            taken.extend(hub.publish(b"", "a") for _ in range(5))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()  # the loop stands still meanwhile
        assert taken == [True, True, True, False, False]
        assert hub.queuesize() == (0, 3)
        assert hub.node.broker.metrics.dropped["hand-over queue full"] == 2
        await asyncio.sleep(0.05)
        assert hub.queuesize() == (3, 0)
    assert "hand-over queue is full" in caplog.text


async def test_a_hub_that_does_not_run_says_so() -> None:
    hub = Hub()
    with pytest.raises(HubbubError, match="does not run"):
        hub.create("a")
    async with hub:
        with pytest.raises(HubbubError, match="runs already"):
            await hub.start()
    with pytest.raises(HubbubError, match="does not run"):
        await hub.connect(None)


async def test_a_hub_may_run_again() -> None:
    """As the tests of a web application start it again and again."""
    hub = Hub(listen="127.0.0.1:0")
    for _ in range(2):
        async with hub:
            heard = Heard()
            hub.subscribe("a", heard)
            async with smq(hub) as device:
                await device.publish("a", b"1")
                await heard.until()


def test_several_hubs_share_nothing() -> None:
    with Hub(listen="127.0.0.1:0") as one, Hub(listen="127.0.0.1:0") as other:
        one.create("a")
        assert other.topics() == [] and one.addresses != other.addresses


def test_errors_of_starting_are_raised_in_the_program(tmp_path: Any) -> None:
    from hubbub.errors import DirectoryError

    with Hub(data=tmp_path / "data"):
        with pytest.raises(DirectoryError):
            with Hub(data=tmp_path / "data"):
                pass


async def test_the_log_goes_to_a_function() -> None:
    lines: list[str] = []
    async with Hub(log=lines.append) as hub:
        hub.subscribe("a", lambda *_: 1 / 0)
        hub.publish(b"", "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert "ZeroDivisionError" in "".join(lines)
    logging.getLogger("hubbub").warning("not any more")
    assert len(lines) == 1
