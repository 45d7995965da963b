"""History over HTTP, MQTT and SMQ, in a program and on the command line: who gets what."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from hubbub import Hub
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Settings
from hubbub.core.link import Link
from hubbub.core.session import Session
from hubbub.protocols.mqtt import codec
from hubbub.runtime import archive, guests
from hubbub.web.app import Application
from tests.clients import PATIENCE, Mqtt, message, mqtt, smq
from tests.command import hubbub

API = "/api/v1/history/"
ACL = "user ann\ntopic #\nuser bob\ntopic read open/#\n"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Hub]:
    """ann may everything, bob may read below open/."""
    users, acl = tmp_path / "users", tmp_path / "acl"
    for user in ("ann", "bob"):
        add_user(users, user, b"secret")
    acl.write_text(ACL)
    settings = Settings(
        data=str(tmp_path / "data"), listen=("127.0.0.1:0",), password_file=str(users),
        acl_file=str(acl),
    )  # fmt: skip
    hub = Hub(settings=settings)
    hub.node.web = Application(hub.node)
    async with hub:
        yield hub


def fill(hub: Hub, *topics: str) -> None:
    for number, topic in enumerate(topics):
        hub.publish(b"%d" % number, topic)


async def ask(hub: Hub, query: str, user: str = "") -> httpx.Response:
    auth = httpx.BasicAuth(user, "secret") if user else None
    async with httpx.AsyncClient(base_url=f"http://{hub.addresses[0]}", trust_env=False) as web:
        return await web.get(API + query, auth=auth, timeout=30)


def payloads(answer: httpx.Response) -> list[str | None]:
    return [one.get("payload") for one in answer.json()["messages"]]


async def begin(client: Mqtt, topic: str, qos: int = 0, **user: str) -> int:
    said = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    said.UserProperty = [(f"hubbub-{name}", value) for name, value in user.items()]
    client.paho.subscribe(topic, options=SubscribeOptions(qos), properties=said)
    return await client.code("subscribe")


async def heard(client: Mqtt, count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE):
        return [(await client.heard.get())[1] for _ in range(count)]


async def test_over_http(web_hub: Hub) -> None:
    fill(web_hub, *["a/b", "a/c"] * 5)
    web_hub.publish(b"\xff\0", "a/b", qos=1, retain=True, properties={"user": [["k", "v"]]})
    assert payloads(await ask(web_hub, "a/c")) == list("13579")
    assert payloads(await ask(web_hub, "a/c?last=2")) == ["7", "9"]
    assert payloads(await ask(web_hub, "a/+?last=3&since=1h")) == ["8", "9", None]
    [said] = (await ask(web_hub, "a/%23?last=1")).json()["messages"]
    assert int(said.pop("seq")) > 10 and said.pop("time").startswith("20")
    assert said == {
        "topic": "a/b", "protocol": "", "client": "hub", "base64": "/wA=", "qos": 1, "retain": True,
        "properties": {"user": [["k", "v"]]},
    }  # fmt: skip
    everything = (await ask(web_hub, "%23?since=2020-01-01")).json()
    assert everything["complete"] and len(everything["messages"]) == 11
    for query, status in (
        ("a?last=0", 400), ("a?since=never", 400), ("a?first=1", 400), ("a/%23/b", 400),
        ("$queue/a", 404), ("$SYS/%23", 404), ("$client/self", 404), ("$share/g/a", 404),
    ):  # fmt: skip
        assert (await ask(web_hub, query)).status_code == status, query


async def test_who_may_not_subscribe_gets_nothing(guarded: Hub) -> None:
    fill(guarded, "open/a", "shut/a", "open/b", "shut/b")
    assert payloads(await ask(guarded, "%23", "ann")) == list("0123")
    assert payloads(await ask(guarded, "open/%23", "bob")) == list("02")
    assert payloads(await ask(guarded, "%23", "bob")) == list("02")
    assert payloads(await ask(guarded, "+/b", "bob")) == ["2"]
    assert payloads(await ask(guarded, "%23?last=2", "bob")) == list("02"), "of those it may have"
    assert (await ask(guarded, "shut/a", "bob")).status_code == 403
    assert (await ask(guarded, "shut/%23", "bob")).status_code == 403
    assert (await ask(guarded, "open/a")).status_code == 401
    bob = Mqtt(guarded, "bob-1", "bob", "secret")
    assert await bob.open() == 0
    assert await begin(bob, "shut/a", last="5") == 0x87
    assert await begin(bob, "#", last="2") == 0
    assert await heard(bob, 2) == [b"0", b"2"]
    bob.paho.disconnect()
    bob.paho.loop_stop()


async def test_others_are_heard_while_very_many_names_are_held_against_the_rights(
    guarded: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand names and a thousand rules were one turn of 0.15 s, in plain Python of 0.5 s."""
    asked: list[str] = []

    def takes_long(session: Session, name: str) -> bool:
        asked.append(name)
        time.sleep(0.002)
        return name == "open/7"

    monkeypatch.setattr(archive, "_may_have_one", takes_long)
    fill(guarded, *(f"open/{number}" for number in range(600)))
    answering = asyncio.create_task(ask(guarded, "open/%23?last=1", "bob"))
    longest, before = 0.0, time.monotonic()
    while not answering.done():
        await asyncio.sleep(0)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    assert payloads(await answering) == ["7"]
    assert len(asked) > 500 and longest < 0.4, "it was 1.2 s"


async def test_a_subscription_of_mqtt_5_begins_in_the_past(web_hub: Hub) -> None:
    """History first, then what is live: none is missing, none comes twice."""
    fill(web_hub, *["a"] * 9)
    web_hub.publish(b"9", "a", retain=True)
    async with mqtt(web_hub, "ann") as ann:
        assert await begin(ann, "a", 1, last="3") == 1
        assert await heard(ann, 3) == [b"7", b"8", b"9"]
        web_hub.publish(b"10", "a", qos=1)
        assert await heard(ann, 1) == [b"10"]
        assert await begin(ann, "a", 0, since="1h") == 0
        assert await heard(ann, 11) == [b"%d" % n for n in range(11)]
        assert await begin(ann, "a", 0, last="x") == 0x83
        assert await begin(ann, "$queue/a", 0, last="1") == 0x83
        assert ann.heard.empty()


async def test_where_there_are_no_properties_the_name_says_it(web_hub: Hub) -> None:
    fill(web_hub, *["a/b"] * 5)
    async with smq(web_hub) as device:
        await device.subscribe("$history/2/a/b")
        assert [(await message(device)).payload for _ in range(2)] == [b"3", b"4"]
        web_hub.publish(b"5", "a/b")
        assert (await message(device)).payload == b"5"
        with pytest.raises(Exception, match="a/b"):
            await device.subscribe("$history/0/a/b")
    async with mqtt(web_hub, "old") as old:
        assert await old.subscribe("$history/1h/a/#") == 1
        assert await heard(old, 6) == [b"%d" % n for n in range(6)]


async def test_of_a_program(web_hub: Hub) -> None:
    fill(web_hub, *["a"] * 5)
    found: asyncio.Queue[bytes] = asyncio.Queue()
    web_hub.subscribe("a", lambda data, *rest: found.put_nowait(data), last=2)
    async with asyncio.timeout(PATIENCE):
        assert [await found.get() for _ in range(2)] == [b"3", b"4"]
    with pytest.raises(ValueError, match="last"):
        web_hub.subscribe("b", print, last=-1)
    async with Hub() as memory:
        with pytest.raises(ValueError, match="keeps no history"):
            memory.subscribe("a", print, last=1)


async def test_a_session_that_lasts_and_what_is_over(web_hub: Hub) -> None:
    """What comes from the past is in no backlog: a restart has nothing to send again."""
    fill(web_hub, *["a"] * 3)
    async with mqtt(web_hub, "ann") as ann:
        await begin(ann, "a", 2, last="3")
        assert await heard(ann, 3) == [b"0", b"1", b"2"]
        [session] = [one for one in web_hub.node.broker.clients.values() if one.client == "ann"]
        assert session.unacknowledged() == 0


async def test_questions_are_bounded_and_the_process_that_answers_ends(
    web_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(web_hub, "a")
    monkeypatch.setattr(archive, "HISTORY_IDLE", 0.05)
    monkeypatch.setattr(archive, "HISTORY_ASKED", 10)
    answers = await asyncio.gather(*(ask(web_hub, "a") for _ in range(8)))
    assert [answer.status_code for answer in answers if answer.status_code != 429][:1] == [200]
    assert any("of one user" in answer.text for answer in answers if answer.status_code == 429)
    one = web_hub.node.archive
    assert one is not None
    async with asyncio.timeout(PATIENCE):
        while one._child is not None:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(archive, "HISTORY_IDLE", 60.0)
    assert payloads(await ask(web_hub, "a")) == ["0"], "it starts again"
    assert one._child is not None
    one._child.process.kill()
    one._child.process.wait()
    assert payloads(await ask(web_hub, "a")) == ["0"], "asked again by itself"


async def test_one_packet_goes_not_round_the_bound(
    web_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two hundred filters those are taken for which there is room; who left asks no more."""
    fill(web_hub, "a/1")
    monkeypatch.setattr(archive, "HISTORY_ASKED", 10)
    said = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    said.UserProperty = [("hubbub-last", "1")]
    asked = web_hub.node.archive
    assert asked is not None
    async with mqtt(web_hub, "ann") as ann:
        codes: asyncio.Queue[list[int]] = asyncio.Queue()

        def subscribed(client: object, user: object, n: int, all_: Any, more: object) -> None:
            ann.loop.call_soon_threadsafe(codes.put_nowait, [code.value for code in all_])

        ann.paho.on_subscribe = subscribed
        filters = [(f"a/{n}", SubscribeOptions(0)) for n in range(200)]
        ann.paho.subscribe(filters, properties=said)
        async with asyncio.timeout(PATIENCE):
            assert await codes.get() == [0, 0] + [0x97] * 198
            assert await heard(ann, 1) == [b"0"]
            while asked._asked:
                await asyncio.sleep(0.01)


async def test_who_has_gone_asks_no_more(web_hub: Hub) -> None:
    asked = web_hub.node.archive
    assert asked is not None
    fill(web_hub, "a")
    await asked._turns.begin("another")
    async with mqtt(web_hub, "ann") as ann:
        for n in range(10):
            assert await begin(ann, f"a/{n}", last="1") == 0
        assert await begin(ann, "a", last="1") == 0x97
    child = asked._child
    asked._turns.end()
    async with asyncio.timeout(PATIENCE):
        while asked._asked:
            await asyncio.sleep(0.01)
    assert asked._child is child is None, "nothing was looked for"


async def test_the_past_ends_where_the_subscription_begins(
    web_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published between its beginning and the question is live, and comes once."""
    fill(web_hub, "a", "a")
    recall = archive.JournalArchive.recall

    def late(*given: Any) -> None:
        web_hub.publish(b"live", "a")
        recall(*given)

    monkeypatch.setattr(archive.JournalArchive, "recall", late)
    async with mqtt(web_hub, "ann") as ann:
        await begin(ann, "a", last="5")
        got = await heard(ann, 3)
        web_hub.publish(b"end", "a")
        assert sorted([*got, *await heard(ann, 1)]) == [b"0", b"1", b"end", b"live"]


async def test_who_does_not_read_keeps_its_question_and_is_ended(
    web_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        web_hub.publish(b"x" * 60_000, "a")
    web_hub.publish(b"0", "b")
    monkeypatch.setattr(archive, "HISTORY_ASKED", 5)
    host, _, port = web_hub.addresses[0].rpartition(":")
    for patience in (60.0, 0.5):
        monkeypatch.setattr(guests, "HALF_SECONDS", patience)
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, (host, int(port)))
            await loop.sock_sendall(
                idle, b"GET %sa HTTP/1.1\r\nhost: localhost\r\n\r\n" % API.encode()
            )
            assert b"200" in await loop.sock_recv(idle, 20)
            if patience > 1:
                assert (await ask(web_hub, "b")).status_code == 429
                idle.close()
            async with asyncio.timeout(PATIENCE):
                while (await ask(web_hub, "b")).status_code == 429:
                    await asyncio.sleep(0.05)


async def test_who_reads_nothing_over_mqtt_makes_room_while_others_want_it(
    web_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(80):
        web_hub.publish(b"x" * 60_000, "a")
    monkeypatch.setattr(archive, "HISTORY_ASKED", 5)
    monkeypatch.setattr(archive, "HISTORY_STALLED", 0.2)
    asked = web_hub.node.archive
    assert asked is not None
    host, _, port = web_hub.addresses[0].rpartition(":")
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(idle, (host, int(port)))
        last = b"\x26\x00\x0bhubbub-last\x00\x02%d" % 80
        subscribe = b"\x00\x05" + bytes((len(last),)) + last + b"\x00\x01a\x00"
        await loop.sock_sendall(
            idle, codec.connect(b"idle", True, 0, properties=codec.Properties())
            + b"\x82" + bytes((len(subscribe),)) + subscribe,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            while not any(link.choked for link in links(web_hub)):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        [whose] = asked._asked  # there is room for others: it may take its time
        asked._asked["others"] = 4
        async with asyncio.timeout(PATIENCE):
            while whose in asked._asked:
                await asyncio.sleep(0.01)


def links(hub: Hub) -> list[Link]:
    return [sock.link for sock in hub.node.sockets if sock.link is not None]


async def test_over_http_nothing_comes_that_has_expired(web_hub: Hub) -> None:
    """`last` counts what is left."""
    fill(web_hub, "a")
    async with mqtt(web_hub, "ann") as ann:
        soon = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        soon.MessageExpiryInterval = 1
        await ann.publish("a", b"soon over", properties=soon)
    assert payloads(await ask(web_hub, "a")) == ["0", "soon over"]
    async with asyncio.timeout(PATIENCE):
        while payloads(await ask(web_hub, "a?last=1")) != ["0"]:
            await asyncio.sleep(0.1)


@pytest.mark.interop
async def test_on_a_terminal(web_hub: Hub) -> None:
    fill(web_hub, "a", "b", "a")
    url = f"http://{web_hub.addresses[0]}"

    def said(*options: str) -> subprocess.CompletedProcess[str]:
        done = hubbub("history", *options, "--url", url)
        assert done.returncode == 0, done.stderr
        return done

    lines = (await asyncio.to_thread(said, "a", "--last", "5")).stdout.splitlines()
    assert [line.split(" ")[2:] for line in lines] == [["a", "0"], ["a", "2"]]
    assert (await asyncio.to_thread(said, "#", "-F", "%t=%p")).stdout == "a=0\nb=1\na=2\n"
    assert "Nothing of that" in (await asyncio.to_thread(said, "none")).stderr
    answer = json.loads((await asyncio.to_thread(said, "b", "--since", "1h", "--json")).stdout)
    assert [one["payload"] for one in answer["messages"]] == ["1"]
