"""What people look at one by one: topics and rates, what is retained, queues, a live topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Settings
from hubbub.core.limits import (
    LEVEL_BYTES,
    MIB,
    PEEKED_BYTES,
    SAMPLED_NAME,
    SHARE,
    TAIL_BYTES,
    TAILED,
    TAILED_BYTES,
    TAILS,
)
from hubbub.core.message import Message
from hubbub.runtime.node import Node
from hubbub.web import looking
from hubbub.web.app import Application
from hubbub.web.looking import PURGED, Tail, spoken
from tests.web.test_login import Browser

HOSTILE = "<img src=x onerror=alert(1)>"
TRAFFIC = "/api/v1/traffic"


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncIterator[Browser]:
    journal = Journal(durability="os")
    node = Node(Settings(data=str(tmp_path), listen=("127.0.0.1:0",), journal=journal, **settings))
    node.web = Application(node)
    async with node:
        url = f"http://{node.listeners[0].address}"
        async with httpx.AsyncClient(timeout=30, base_url=url, trust_env=False) as client:
            yield Browser(node, client)


async def level(browser: Browser, **asked: str) -> dict[str, dict[str, Any]]:
    answer = (await browser.http.get(TRAFFIC, params=asked)).json()
    return {row["name"]: row for row in answer["levels"]}


async def test_a_tree_of_topics_level_by_level(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        broker.sampled.wake()
        for name in ("plant/1/t", "plant/1/t", "plant/2/t", "plant", f"odd/{HOSTILE}"):
            broker.post(Message(name, b"1"))
        broker.post(Message("plant/3/kept", b"1", retain=True))
        broker.post(Message("plants", b"1", retain=True))
        broker.sampled.wake()
        top = await level(browser)
        assert set(top) == {"plant", "odd", "plants"}
        assert (top["plant"]["topics"], top["plant"]["messages"]) == (4, 5)
        assert top["plant"]["own"] and top["plant"]["retained"] == 1
        below = await level(browser, under="plant/")
        assert {name: row["messages"] for name, row in below.items()} == {"1": 2, "2": 1, "3": 1}
        assert set(await level(browser, under="odd/")) == {HOSTILE}
        assert set(await level(browser, search="ODD")) == {f"odd/{HOSTILE}"}
        assert set(await level(browser, search="/T")) == {"plant/1/t", "plant/2/t"}
        assert set(await level(browser, under="plant/", search="T")) == {"1/t", "2/t", "3/kept"}
        assert len(await level(browser, limit="1")) == 1


async def test_what_is_retained_is_for_who_may_read_it(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ann", b"secret")
    add_user(tmp_path / "users", "eve", b"nosy")
    (tmp_path / "acl").write_text("user ann\ntopic readwrite #\nuser eve\ntopic read open/#\n")
    files = {"password_file": str(tmp_path / "users"), "acl_file": str(tmp_path / "acl")}
    async with served(tmp_path / "data", **files) as browser:
        for name in ("open/door", "safe"):
            browser.node.broker.post(Message(name, b'{"a": 1}', 1, True))
        browser.node.broker.post(Message("$queue/jobs", b"job", 1))
        ann, eve = httpx.BasicAuth("ann", "secret"), httpx.BasicAuth("eve", "nosy")
        for who, name, status in (
            (ann, "safe", 200), (eve, "open/door", 200), (eve, "safe", 403),
            (ann, "nothing", 404), (eve, "nothing", 403),
        ):  # fmt: skip
            asked = {"topic": name}
            answer = await browser.http.get("/api/v1/retained", params=asked, auth=who)
            assert answer.status_code == status, (who, name)
            assert (answer.json().get("text") == '{"a": 1}') == (status == 200)
        for path, asked in (("tail", {"topic": "safe"}), ("queue", {"name": "jobs"})):
            answer = await browser.http.get(f"/api/v1/{path}", params=asked, auth=eve)
            assert answer.status_code == 403 and "job" not in answer.text.replace("jobs", "")
        purge = await browser.http.delete("/api/v1/queue/messages?name=jobs", auth=eve)
        assert purge.status_code == 403
        assert len(browser.node.broker.state.queues["jobs"].messages) == 1


async def test_a_queue_is_looked_into_and_emptied(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        for number in range(1_200):
            broker.post(Message("$queue/jobs", b"%d" % number, 1))
        said = (await browser.http.get("/api/v1/queue?name=jobs&limit=2")).json()
        assert (said["count"], said["bytes"], said["takers"]) == (1_200, 3_690, 0)
        assert [one["text"] for one in said["messages"]] == ["0", "1"]
        assert len(broker.state.queues["jobs"].messages) == 1_200, "they stay"
        gone = await browser.http.delete("/api/v1/queue/messages?name=jobs")
        assert gone.json() == {"purged": 1_200}
        assert not broker.state.queues["jobs"].messages
        assert (await browser.http.get("/api/v1/queue?name=none")).status_code == 404


async def test_what_two_empty_at_once_is_counted_once(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        for number in range(3 * PURGED):
            browser.node.broker.post(Message("$queue/jobs", b"%d" % number, 1))
        purge = browser.http.delete
        gone = await asyncio.gather(*[purge("/api/v1/queue/messages?name=jobs") for _ in range(2)])
        assert sum(one.json()["purged"] for one in gone) == 3 * PURGED


async def test_one_topic_live(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        async with browser.http.stream("GET", "/api/v1/tail?topic=a/b") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith(":")
            [client] = broker.clients.values()
            assert client.protocol == "http" and list(client.subscriptions) == ["a/b"]
            for name in ("a/b", "a/c", "a/b"):
                broker.post(Message(name, HOSTILE.encode()))
            got: list[dict[str, Any]] = []
            async for line in lines:
                if line.startswith("data: "):
                    got += json.loads(line[6:])["messages"]
                if len(got) >= 2:
                    break
            assert [(one["topic"], one["text"]) for one in got] == [("a/b", HOSTILE)] * 2
            for _ in range(5 * TAILED):
                broker.post(Message("a/b", b"x"))
            async for line in lines:
                if line.startswith("data: "):
                    said = json.loads(line[6:])
                    break
            assert len(said["messages"]) == TAILED and said["left_out"] == 4 * TAILED
        async with asyncio.timeout(10):
            while broker.clients:
                await asyncio.sleep(0.01)
        assert not broker.filters.match("a/b")
        said = (await browser.http.get("/api/v1/ls/gone")).json()["gone"]
        assert said[0]["protocol"] == "http"


@pytest.mark.pure
async def test_of_large_messages_in_a_queue_only_the_size_is_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker, reads, busy = browser.node.broker, list[int](), 0
        for size in (5, PEEKED_BYTES + 1, 3 * MIB, 2 * MIB, 7):
            broker.post(Message("$queue/jobs", b"x" * size, 1))
        look = broker.log.look

        def over() -> None:
            nonlocal busy
            busy = 0

        def counted(seq: int) -> Message | None:
            nonlocal busy
            busy += 1
            reads.append(busy)
            asyncio.get_running_loop().call_soon(over)
            return look(seq)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.log, "look", counted)
            path = "/api/v1/queue?name=jobs"
            answers = await asyncio.gather(browser.http.get(path), browser.http.get(path))
        for answer in answers:
            said = answer.json()["messages"]
            assert [one["size"] for one in said] == [5, PEEKED_BYTES + 1, 3 * MIB, 2 * MIB, 7]
            assert ["text" in one for one in said] == [True, False, True, False, True]
        assert reads == [1] * 6, "one a turn of the loop"


async def test_an_answer_about_topics_is_bounded_in_bytes(tmp_path: Path) -> None:
    count = 2 * LEVEL_BYTES // SAMPLED_NAME
    async with served(tmp_path) as browser:
        for number in range(count):
            browser.node.broker.sampled._count(f"{number:0{SAMPLED_NAME}}", 1)
        browser.node.broker.post(Message("r" * 60_000, b"1", retain=True))
        answer = await browser.http.get(TRAFFIC, params={"limit": "10000"})
        assert answer.json()["count"] == count + 1 and len(answer.content) < 2 * LEVEL_BYTES
        kept = await level(browser, search="r")
        assert {len(name) for name in kept} == {SAMPLED_NAME}


async def test_who_watches_and_does_not_read_keeps_what_it_shows(tmp_path: Path) -> None:
    """And what two watch is made once."""
    made = []

    def counted(message: Message) -> dict[str, Any]:
        made.append(message)
        return spoken(message)

    async with served(tmp_path) as browser:
        broker = browser.node.broker
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(looking, "spoken", counted)
            async with watched(browser, 2):
                tails: list[Tail] = [one for one in broker.clients.values() if type(one) is Tail]
                for number in range(TAILED):
                    broker.post(Message("a/b", b"%d" % number + b"\n" * MIB))
                for tail in tails:
                    waits = sum(map(len, tail.messages))
                    assert TAIL_BYTES < waits < TAIL_BYTES + 3 * TAILED_BYTES
                    said = json.loads(tail.taken())
                    assert [one["text"][0] for one in said["messages"]][:3] == ["0", "1", "2"]
                    assert said["left_out"] == TAILED - len(said["messages"])
                assert len(tails) == 2 and len(made) == len(said["messages"])


@asynccontextmanager
async def watched(browser: Browser, count: int) -> AsyncIterator[list[int]]:
    """So many tails of one topic; the status of each."""
    async with AsyncExitStack() as stack:
        stream = browser.http.stream
        asked = [stream("GET", "/api/v1/tail?topic=a/b") for _ in range(count)]
        answers = [await stack.enter_async_context(one) for one in asked]
        yield [one.status_code for one in answers]


async def test_one_address_has_a_part_of_the_tails(tmp_path: Path) -> None:
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.9")
    async with served(tmp_path) as browser, watched(browser, TAILS // SHARE + 1) as found:
        assert found == [200] * (TAILS // SHARE) + [429]
        elsewhere = httpx.AsyncClient(base_url=browser.http.base_url, transport=transport)
        async with elsewhere as other, other.stream("GET", "/api/v1/tail?topic=a/b") as answer:
            assert answer.status_code == 200


@pytest.mark.parametrize("topic", ["", "#", "a/+", "$queue/jobs"])
async def test_nobody_watches_everything(tmp_path: Path, topic: str) -> None:
    async with served(tmp_path) as browser:
        answer = await browser.http.get("/api/v1/tail", params={"topic": topic})
        assert answer.status_code == 400


async def test_who_watches_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        async with browser.http.stream("GET", "/api/v1/tail?topic=a/b") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            browser.node.web._looking.end()  # type: ignore[union-attr]
            async with asyncio.timeout(5):
                async for _ in lines:
                    pass


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", {"text": ""}),
        ("grüß".encode(), {"text": "grüß"}),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"x" * (TAILED_BYTES + 5), {"text": "x" * TAILED_BYTES}),
        (b"x" + "ü".encode() * TAILED_BYTES, {"text": "x" + "ü" * (TAILED_BYTES // 2 - 1)}),
    ],
)
def test_payloads_as_json(payload: bytes, said: dict[str, str]) -> None:
    shown = spoken(Message("t", payload))
    assert {key: shown[key] for key in ("text", "base64") if key in shown} == said
    assert shown["size"] == len(payload)
