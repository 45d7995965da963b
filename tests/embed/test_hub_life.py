"""How a hub begins and ends, with or without a loop, and the idioms of the original manual."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from hubbub import Hub
from hubbub.client import blocking
from hubbub.client.smq import SmqClient
from hubbub.errors import HubbubError, Refused
from tests.clients import PATIENCE, Heard, Mqtt, http, message, mqtt, smq

LISTEN = "127.0.0.1:0"


# The three idioms; the third, one URL for devices and people, is in tests/web/test_upgrade.py.


async def test_a_loop_over_peers_says_address_and_uid() -> None:
    async with Hub(listen=LISTEN) as hub, smq(hub), mqtt(hub):
        lines = [f"{sock.peername()[0]} {peer.uid}" for sock, peer in hub.peers()]
    assert lines == [" SMQ server client", "127.0.0.1 device-1", "127.0.0.1 panel-1"]


async def test_a_loop_over_topics_and_subtopics() -> None:
    async with Hub() as hub:
        hub.create("a", 10)
        hub.create("b", 11)
        hub.createsub("s", 12)
        assert [f"{tid}: {topic}" for tid, topic in hub.topics()] == ["10: a", "11: b"]
        assert [f"{stid}: {name}" for stid, name in hub.subtopics()] == ["12: s"]


# Without a loop


def test_blocking_use() -> None:
    heard = threading.Event()
    threads = set()

    def onmsg(data: bytes, ptid: int, tid: int, subtid: int, peer: Any) -> None:
        threads.add(threading.current_thread().name)
        hub.publish(data.upper(), ptid)
        heard.set()

    with Hub(listen=LISTEN) as hub:
        hub.subscribe("a", onmsg)
        with blocking.connect(f"smq://{hub.addresses[0]}", client_id="device-1") as device:
            device.publish("a", b"hello")
            assert heard.wait(PATIENCE)
            assert next(device.messages()).payload == b"HELLO"
            ((_, server), (_, peer)) = hub.peers()
            assert (server.tid, peer.uid) == (1, "device-1")
    assert threads == {"hubbub"}
    assert not [one for one in threading.enumerate() if one.name == "hubbub" and not one.daemon]


def test_many_threads_at_once() -> None:
    with Hub() as hub:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(hub.create(f"{n % 4}")))
            for n in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(found) == 32 and len(set(found)) == 4 == len(hub.topics())


# The disk


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_ends_the_program_ends_the_hub_in_order(
    leaving: BaseException, tmp_path: Path
) -> None:
    def onmsg(*arguments: Any) -> None:
        hub.publish(b"the last", "told", retain=True)
        raise leaving

    closed = threading.Event()
    hub = Hub(listen=LISTEN, data=tmp_path, onclose=lambda *arguments: closed.set())
    with pytest.raises(type(leaving)), hub:
        with blocking.connect(f"smq://{hub.addresses[0]}"):
            hub.subscribe("leave", onmsg)
            hub.publish(b"", "leave")
            assert closed.wait(PATIENCE)
        with pytest.raises(HubbubError, match="does not run"):
            while True:
                hub.create("a")
    heard: list[bytes] = []
    with Hub(data=tmp_path) as again:
        again.subscribe("told", lambda data, *rest: heard.append(data))
        again.create("a")
    assert heard == [b"the last"]


async def test_flush_waits_until_what_was_published_is_on_the_disk(tmp_path: Path) -> None:
    async with Hub(data=tmp_path) as hub:
        log = hub.node.broker.log
        for _ in range(2):
            hub.publish(b"kept", "a", qos=1, retain=True)
            position = log.position
            assert log.durable < position
            await hub.flush()
            assert log.durable >= position
        await hub.flush()  # nothing to wait for
        hub.publish(b"more", "a", qos=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hub.flush(), 0)
        hub.publish(b"later", "a", qos=1)
        waiting = hub.flush()
    await waiting  # the last commit
    async with Hub() as hub:
        hub.publish(b"nowhere", "a")
        await hub.flush()


@pytest.mark.pure
async def test_flush_of_a_hub_that_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(data=tmp_path)
    await hub.start()
    log = hub.node.journal
    assert log is not None
    monkeypatch.setattr(type(log), "commit", lambda *_: None)
    monkeypatch.setattr(type(log), "close", lambda *_: None)
    hub.publish(b"lost", "a", qos=1)
    waiting = hub.flush()
    await hub.stop()
    with pytest.raises(HubbubError, match="ended before it was on the disk"):
        await waiting
    monkeypatch.undo()
    log.close()


def test_flush_from_another_thread(tmp_path: Path) -> None:
    with Hub(data=tmp_path) as hub:
        hub.publish(b"kept", "a", qos=1)
        hub.flush()
        log = hub.node.broker.log
        assert log.durable == log.position > 0
    with pytest.raises(HubbubError, match="does not run"):
        hub.flush()


# shutdown


async def test_shutdown_brings_clients_back_to_the_same_hub() -> None:
    came = Heard()
    async with Hub(listen=LISTEN, onconnect=came) as hub:
        async with smq(hub, reconnect=True, backoff=(0.05, 0.1)) as device:
            tid = await device.subscribe("a")
            first = device.number
            hub.shutdown()
            await came.until(2)
            async with asyncio.timeout(PATIENCE):
                while device.number == first:
                    await asyncio.sleep(0.01)
            await device.subscribe("a")  # answered once it is set up again
            hub.publish(b"again", tid)
            assert (await message(device)).payload == b"again"


async def test_clients_come_back_to_a_hub_that_takes_over(tmp_path: Path) -> None:
    async with Hub(listen=LISTEN, data=tmp_path) as hub:
        address = hub.addresses[0]
        device: SmqClient = smq(hub, reconnect=True, backoff=(0.05, 0.1))
        await device.open()
        tid = await device.subscribe("a")
        stid = await device.createsub("s")
        hub.shutdown()
    came = Heard()
    async with Hub(listen=address, data=tmp_path, onconnect=came) as again:
        await came.until()
        assert (again.topic2tid("a"), again.subtopic2tid("s")) == (tid, stid)
        changes = Heard()
        again.observe("a", changes)
        async with asyncio.timeout(PATIENCE):
            while not changes.calls or changes.calls[-1][0] == 0:
                await asyncio.sleep(0.01)
        again.publish(b"from the new one", tid, stid)
        assert (await message(device)).payload == b"from the new one"
        assert await device.createsub("s") == stid
        await device.close()


async def test_shutdown_with_a_text_sends_clients_away_for_good() -> None:
    async with Hub(listen=LISTEN) as hub:
        async with mqtt(hub) as panel, http(hub) as service:
            await service.get("/login/svc")
            device = smq(hub, reconnect=True, backoff=(0.05, 0.1))
            await device.open()
            hub.shutdown("closed for ever")
            with pytest.raises(Refused, match="closed for ever"):
                await message(device)
            assert await panel.code("disconnect") == 0x98
            panel.paho.loop_stop()  # it would come back, as paho does
            async with asyncio.timeout(PATIENCE):
                while hub.node.broker.clients:
                    await asyncio.sleep(0.01)


async def test_shutdown_of_one_client_leaves_the_others_alone() -> None:
    """With and without a text; without one the reference ends everybody."""
    went = Heard()
    async with Hub(listen=LISTEN, onclose=went) as hub:
        async with smq(hub, "stays-1") as stays, smq(hub, "goes-1") as one:
            hub.shutdown("you", one.number)
            with pytest.raises(Refused, match="you"):
                await message(one)
            async with smq(hub, "goes-2") as other:
                hub.shutdown(None, other.number)
                with pytest.raises(ConnectionError):
                    await message(other)
            assert [call[2].uid for call in await went.until(2)] == ["goes-1", "goes-2"]
            hub.publish(b"still here", stays.number)
            assert (await message(stays)).payload == b"still here"


async def test_transient_queues_wait_for_clients_that_shutdown_ended() -> None:
    async with Hub(listen=LISTEN) as hub:
        async with http(hub) as service:
            await service.get("/login/svc")
            await service.get("/transient/q")
            hub.shutdown()
        async with asyncio.timeout(PATIENCE):
            while hub.node.broker.clients:
                await asyncio.sleep(0.01)
        assert "q" in hub.node.broker.state.queues
        async with http(hub) as service:
            await service.get("/login/svc")
            await service.get("/transient/q")
        async with asyncio.timeout(PATIENCE):
            while "q" in hub.node.broker.state.queues:
                await asyncio.sleep(0.01)


async def test_the_end_of_the_hub_ends_its_async_functions() -> None:
    ended = Heard()

    async def slow(*rest: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended()

    async with Hub(listen=LISTEN) as hub:
        hub.subscribe("a", slow)
        hub.publish(b"", "a")
        await asyncio.sleep(0.01)
        assert ended.calls == []
    await ended.until()


async def test_functions_may_use_the_hub_to_its_very_end() -> None:
    sent: list[bool] = []
    async with Hub(
        listen=LISTEN, onclose=lambda tid, *_: sent.append(hub.publish(b"bye", "gone"))
    ) as hub:
        panel = Mqtt(hub, "panel-1")
        await panel.open()
    assert sent == [True]
    await panel.close()
