"""`/api/v1`: who may use it, the journal's frames, and messages that are published once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Api, Journal, Limits, Queue, Settings
from hubbub.core.limits import COMMIT_ROWS
from hubbub.core.quotas import POOLS, SINKS
from hubbub.errors import SettingError
from hubbub.journal.frames import Frames, Segment
from hubbub.journal.table import Table, frames_in
from hubbub.runtime.node import Node
from hubbub.web import guarded
from hubbub.web import publish as publishing
from hubbub.web.app import Application
from hubbub.web.publish import SLICE
from tests.process import StartHub

PUBLISH = "/api/v1/publish"
JOURNAL = "/api/v1/journal"
TOKEN = {"Authorization": "Bearer sesame"}

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A hub in this process and a client that asks it; `node` is its attribute."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        settings.setdefault("journal", Journal(durability="os"))
        node = Node(Settings(data=str(tmp_path / "data"), listen=("127.0.0.1:0",), **settings))
        node.web = Application(node)
        async with node:
            url = f"http://{node.listeners[0].address}"
            async with httpx.AsyncClient(timeout=30, base_url=url, trust_env=False) as client:
                client.node = node  # type: ignore[attr-defined]
                yield client

    return start


def lines(*messages: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, messages)).encode()


def counted(first: int, count: int, topic: str = "a/b") -> bytes:
    return lines(*({"topic": topic, "payload": str(n)} for n in range(first, first + count)))


async def post(
    client: httpx.AsyncClient, body: bytes, batch: str = "", first: int = 0
) -> tuple[int, Any]:
    headers = {"Hubbub-Batch": batch, "Hubbub-First": str(first)} if batch else {}
    answer = await client.post(PUBLISH, content=body, headers=headers)
    return answer.status_code, answer.json()


def rows_in(tmp_path: Path) -> list[dict[str, Any]]:
    table = Table(str(tmp_path / "data"))
    return [row for batch in table.read(0, table.committed()) for row in batch.to_pylist()]


def payloads(tmp_path: Path) -> list[int]:
    """Of all messages in the journal, but for what the hub notes for itself."""
    return [
        int(row["payload"])
        for row in rows_in(tmp_path)
        if row["kind"] in ("publish", "send") and not row["topic"].startswith("$hub/")
    ]


# The status


async def test_clients_and_queues_come_in_pages(serve: Serve) -> None:
    async with serve() as client:
        for name in ("a", "b", "c"):
            client.node.broker.queues.named(name)  # type: ignore[attr-defined]
        for asked, names in (
            ("", ["a", "b", "c"]),
            ("?limit=2", ["a", "b"]),
            ("?limit=2&offset=2", ["c"]),
            ("?limit=0", []),
        ):
            status = (await client.get(f"/api/v1/status{asked}")).json()
            assert [queue["name"] for queue in status["queues"]] == names
            assert (status["queue_count"], status["client_count"]) == (3, 0)
            assert (status["connections"], status["connections_made"]) == (1, 1), "this one"


@pytest.mark.parametrize("asked", ["limit=x", "limit=-1", "limit=1001", "offset=", "offset=1e9"])
async def test_a_page_that_cannot_be(serve: Serve, asked: str) -> None:
    async with serve() as client:
        answer = await client.get(f"/api/v1/status?{asked}")
        assert answer.status_code == 400
        assert "expected a number from 0 to" in answer.json()["error"]


async def test_figures_are_the_same_for_everybody_and_go_on_from_a_time(serve: Serve) -> None:
    async with serve() as client:
        node = client.node  # type: ignore[attr-defined]
        for now in (1e6, 2e6, 3e6):
            node.figures.wake(now)
        answer = (await client.get("/api/v1/figures")).json()
        times = answer["figures"]["time"]
        assert answer["seconds"] == 10.0 and len(times) == 3
        assert (await client.get("/api/v1/figures")).json() == answer
        newer = await client.get("/api/v1/figures", params={"since": int(times[1])})
        assert newer.json()["figures"]["time"] == times[2:]
        few = await client.get("/api/v1/figures?most=2")
        assert few.json()["figures"]["time"] == times[1:]
        assert (await client.get("/api/v1/figures?since=x")).status_code == 400


# Who may


async def test_a_token_opens_everything_and_nothing_else_does(serve: Serve) -> None:
    async with serve(api=Api(token="sesame")) as client:
        for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}):
            for path in ("/api/v1/status", JOURNAL, "/api/v1/nothing"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401
                assert "api.token" in answer.json()["error"]
                assert answer.headers["www-authenticate"].startswith("Bearer")
            assert (await client.post(PUBLISH, headers=headers)).status_code == 401
        for path in ("/api/v1/status", JOURNAL):
            assert (await client.get(path, headers=TOKEN)).status_code == 200
        assert (await client.get("/metrics")).status_code == 200  # as its listener says


async def test_a_token_may_lie_in_a_file_and_change(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sesame\n")
    async with serve(api=Api(token_file=str(file))) as client:
        assert (await client.get(JOURNAL, headers=TOKEN)).status_code == 200
        file.write_text("other\n")
        client.node.web.apply(client.node.settings)  # type: ignore[attr-defined]
        assert (await client.get(JOURNAL, headers=TOKEN)).status_code == 401


def test_a_token_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for api, words in (
        (Api(token_file=str(tmp_path / "none")), "cannot read"),
        (Api(token_file=str(tmp_path / "empty")), "is empty"),
        (Api(token="a", token_file="b"), "are both set"),
    ):
        with pytest.raises(SettingError, match=words):
            guarded.token_of(api)


async def test_without_a_token_the_permissions_of_users_hold(serve: Serve, tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    for user in ("ann", "bob"):
        add_user(users, user, b"secret")
    acl.write_text("user ann\ntopic #\ntopic $SYS/#\ntopic $queue/#\nuser bob\ntopic in/bob\n")
    async with serve(password_file=str(users), acl_file=str(acl)) as client:
        assert (await client.get(JOURNAL)).status_code == 401
        assert (await client.get(JOURNAL, auth=("ann", "wrong"))).status_code == 401
        assert (await client.get(JOURNAL, auth=("ann", "secret"))).status_code == 200
        refused = await client.get(JOURNAL, auth=("bob", "secret"))
        assert refused.status_code == 403 and "every topic" in refused.json()["error"]
        client.auth = httpx.BasicAuth("bob", "secret")
        assert await post(client, counted(0, 1, "in/bob")) == (200, {"taken": 1, "skipped": 0})
        both = counted(1, 1, "in/bob") + b"\n" + counted(2, 1, "in/ann")
        why = "user 'bob' (client '') may not publish 'in/ann': no rule allows it"
        assert await post(client, both) == (
            403,
            {"title": "Forbidden", "status": 403, "detail": why, "error": why},
        )
    assert payloads(tmp_path) == [0]


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/figures", "/metrics"])
async def test_the_state_of_the_hub_is_for_who_may_read_all_of_it(
    serve: Serve, tmp_path: Path, path: str
) -> None:
    """One name under `$SYS` is not everything that the pages show."""
    users, acl = tmp_path / "users", tmp_path / "acl"
    for user in ("ann", "bob"):
        add_user(users, user, b"secret")
    acl.write_text("user ann\ntopic read $SYS/#\nuser bob\ntopic read $SYS/broker/uptime\n")
    async with serve(password_file=str(users), acl_file=str(acl)) as client:
        assert (await client.get(path, auth=("ann", "secret"))).status_code == 200
        assert (await client.get(path, auth=("bob", "secret"))).status_code == 403


async def test_queries_of_users_are_their_own(serve: Serve, tmp_path: Path) -> None:
    """Who may publish anything can neither skip nor repeat what another one sends."""
    users = tmp_path / "users"
    for user in ("ann", "bob", "q"):
        add_user(users, user, b"secret")
    async with serve(password_file=str(users)) as client:
        client.auth = httpx.BasicAuth("ann", "secret")
        assert await post(client, counted(0, 4), "q/1/0") == (200, {"taken": 4, "skipped": 0})
        for user in ("bob", "q"):
            client.auth = httpx.BasicAuth(user, "secret")
            assert (await client.delete(f"{PUBLISH}/q")).json() == {"forgotten": 0}
            assert await post(client, counted(9, 1), "q/9/0") == (200, {"taken": 1, "skipped": 0})
        client.auth = httpx.BasicAuth("ann", "secret")
        assert await post(client, counted(0, 6), "q/1/0") == (200, {"taken": 2, "skipped": 4})
        assert (await client.delete(f"{PUBLISH}/q")).json() == {"forgotten": 1}
    assert payloads(tmp_path) == [0, 1, 2, 3, 9, 9, 4, 5]
    # A query that nobody ever sent is no row: whoever comes in could fill the journal with them.
    assert [row["topic"] for row in rows_in(tmp_path) if row["kind"] == "managed"] == ["q"]


async def test_one_user_does_not_take_the_room_of_all_queries(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(POOLS, SINKS, 10)
    users = tmp_path / "users"
    for user in ("ann", "bob"):
        add_user(users, user, b"secret")
    async with serve(password_file=str(users)) as client:
        client.auth = httpx.BasicAuth("ann", "secret")
        codes = [(await post(client, counted(0, 1), f"q{one}/0/0"))[0] for one in range(3)]
        assert codes == [200, 200, 507]
        code, said = await post(client, counted(0, 1), "q2/0/0")
        assert code == 507 and "user 'ann' has 2 sink partitions" in said["detail"]
        told = [one.message for one in caplog.records if "sink partitions" in one.message]
        assert len(told) == 1, "a line a minute"
        metrics = (await client.get("/metrics")).text
        assert 'hubbub_quota_refused_total{pool="sink partitions"} 2' in metrics
        client.auth = httpx.BasicAuth("bob", "secret")
        assert (await post(client, counted(0, 1), "q/0/0"))[0] == 200
    async with serve(password_file=str(users)) as client:  # the journal says whose they are
        client.auth = httpx.BasicAuth("ann", "secret")
        assert (await post(client, counted(0, 1), "q2/0/0"))[0] == 507
        assert (await client.delete(f"{PUBLISH}/q0")).json() == {"forgotten": 1}
        codes = [(await post(client, counted(0, 1), f"q{one}/0/0"))[0] for one in (2, 3)]
        assert codes == [200, 507]


async def test_names_that_nobody_checks_have_one_part_of_the_room_of_all_queries(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POOLS, SINKS, 10)
    async with serve() as client:
        codes = []
        for one in range(4):
            client.auth = httpx.BasicAuth(f"made-up-{one}", "secret")
            codes.append((await post(client, counted(0, 1), "q/0/0"))[0])
        assert codes == [200, 200, 507, 507]


def with_properties(count: int, topic: str = "a/b") -> dict[str, Any]:
    return {"topic": topic, "properties": {"user": [["a1", "b2"]] * count}}


async def test_a_body_is_never_decoded_as_a_whole(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it took twenty times its bytes, and nobody else was heard for seconds."""
    turns, body = 0, lines(*[with_properties(500)] * 300)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serve() as client:
        client.timeout = httpx.Timeout(100)  # it is traced, on a machine that may be busy
        counting = asyncio.create_task(count())
        tracemalloc.start()
        try:
            answer = await post(client, body[:-1] + b"!")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            counting.cancel()
    assert answer[0] == 400 and "line 300: " in answer[1]["error"]
    assert peak < 6 * len(body) and turns > 50


async def test_rights_are_asked_before_a_line_is_decoded(serve: Serve, tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    add_user(users, "ann", b"secret")
    acl.write_text("user ann\ntopic read only/this\n")
    async with serve(password_file=str(users), acl_file=str(acl)) as client:
        client.auth = httpx.BasicAuth("ann", "secret")
        assert (await post(client, lines({"topic": "a", "qos": "what"})))[0] == 403
        assert (await post(client, lines({"topic": "a/+"})))[0] == 400


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ([["", ""]] * 501, "501 user properties, expected no more than 500"),
        ([["", ""]] * 70_000, "properties of more than 393216 bytes"),
        ([["\0", ""]], "NUL in a text"),
        ([["", 1]], "Expected `str`"),
    ],
)
async def test_properties_have_their_bounds(serve: Serve, user: list[Any], words: str) -> None:
    async with serve() as client:
        found = await post(client, lines({"topic": "a", "properties": {"user": user}}))
        assert found[0] == 400 and words in found[1]["error"]
        assert (await post(client, lines(with_properties(500))))[0] == 200
        assert (await post(client, lines({"topic": "a", "properties": None})))[0] == 200


@pytest.mark.pure
async def test_what_is_published_goes_on_in_turns_that_others_make_long(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken in none of them, for as long as they came."""
    monkeypatch.setattr("hubbub.web.publish.Stint.over", lambda stint: True)
    async with serve() as client, asyncio.timeout(20):
        assert await post(client, counted(0, 5)) == (200, {"taken": 5, "skipped": 0})
    assert payloads(tmp_path) == list(range(5))


async def test_who_is_ended_while_it_is_taken_sends_the_same_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = publishing.PublishApi._publish
    async with serve() as client:
        waiting = client.node.waiting  # type: ignore[attr-defined]

        def crowded(*args: Any) -> tuple[int, Response | None]:
            found = taken(*args)
            for upload in list(waiting._all.weights):
                upload.crowd_out("no room")
            return found

        body = counted(0, 3 * SLICE)
        monkeypatch.setattr(publishing.PublishApi, "_publish", crowded)
        code, found = await post(client, body, "q/0/0")
        assert code == 503 and "no room; send the same again later" in found["error"]
        monkeypatch.undo()
        code, found = await post(client, body, "q/0/0")
        assert code == 200 and found["skipped"] > 0
        assert found["taken"] + found["skipped"] == 3 * SLICE
    assert payloads(tmp_path) == list(range(3 * SLICE))


async def test_without_a_quorum_what_the_answer_would_promise_is_refused(
    serve: Serve, tmp_path: Path
) -> None:
    """Also where nobody lasts whom it is for: so MQTT does."""
    lines = [{"topic": "t", "payload": str(qos), "qos": qos} for qos in (0, 1)]
    bodies = [json.dumps(line).encode() + b"\n" for line in lines]
    async with serve() as client:
        node = client.node  # type: ignore[attr-defined]
        node.broker.no_quorum = "no quorum of the NATS servers answers"
        assert (await post(client, bodies[0]))[0] == 200
        code, found = await post(client, bodies[1])
        assert (code, "no quorum of the NATS servers" in found["error"]) == (503, True)
        node.broker.no_quorum = ""
        assert (await post(client, bodies[1]))[0] == 200
    assert payloads(tmp_path) == [0, 1]


@pytest.mark.parametrize("header", [{"Origin": "http://evil"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_pages_of_other_sites_publish_nothing(
    serve: Serve, header: dict[str, str], tmp_path: Path
) -> None:
    async with serve() as client:
        await client.get(JOURNAL)  # the listener looks at the first request of a connection
        answer = await client.post(PUBLISH, content=counted(0, 1), headers=header)
        assert answer.status_code == 403
    assert payloads(tmp_path) == []


# The journal


async def test_ranges_are_the_frames_of_the_disk(serve: Serve, tmp_path: Path) -> None:
    async with serve() as client:
        assert (await client.get(JOURNAL)).json()["committed"] == "0"
        for first in range(0, 40, 10):
            await post(client, counted(first, 10))
        listing = (await client.get(JOURNAL)).json()
        shelf = Frames(tmp_path / "data")
        assert listing["id"] == shelf.identity() and len(listing["id"]) == 16
        assert (listing["format"], listing["first"], listing["committed"]) == (1, "1", "40")
        assert [one["first"] for one in listing["segments"]] == ["1"]
        answer = await client.get(JOURNAL, params={"from": 15, "to": 24})
        found = [(one.first, one.last) for one in frames_in(answer.content)]
        assert found == [(one.first, one.last) for _, one in shelf.between(14, 24)]
        assert answer.headers["hubbub-upto"] == "24"
        assert answer.headers["hubbub-journal"] == listing["id"]
        beyond = await client.get(JOURNAL, params={"from": 41, "to": 90})
        assert (beyond.content, beyond.headers["hubbub-upto"]) == (b"", "40")
        for wrong in ({"from": "x"}, {"to": "x"}, {"from": "-1"}, {"from": "1", "to": "²"}):
            assert (await client.get(JOURNAL, params=wrong)).status_code == 400


async def test_who_looks_which_rows_there_are_stands_in_no_way(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year has ten thousand files: to list them kept all clients waiting for 0.1 s, and each
    batch of Spark asked for it three times.
    """
    listed: list[str] = []
    plain = Frames.segments

    def segments(frames: Frames) -> list[Segment]:
        listed.append(threading.current_thread().name)
        return plain(frames)

    monkeypatch.setattr(Frames, "segments", segments)
    async with serve() as client:
        await post(client, counted(0, 10))
        answer = await client.get(JOURNAL, params={"from": 1, "to": 0})
        assert (answer.content, answer.headers["hubbub-committed"]) == (b"", "10")
        assert listed == []
        assert (await client.get(JOURNAL)).json()["committed"] == "10"
        (name,) = listed
        assert name != threading.current_thread().name


async def test_what_is_no_number_is_said(serve: Serve) -> None:
    async with serve() as client:
        for number in ("", "x", "-1", "1.0", "1_0", "1 0", "٣", "²", "9" * 5_000, str(2**63)):
            for query in ("status?limit=", "status?offset=", "journal?from=", "journal?from=1&to="):
                answer = await client.get(f"/api/v1/{query}{number}")
                assert answer.status_code == 400
                assert "expected a number from 0 to " in answer.json()["error"]
            headers = {b"Hubbub-Batch": b"q/0/0", b"Hubbub-First": number.encode()}
            answer = await client.post(PUBLISH, content=counted(0, 1), headers=headers)
            assert "Hubbub-First: expected a number from 0 to " in answer.json()["error"]
            headers = {b"Hubbub-Batch": f"q/{number}/0".encode()}
            answer = await client.post(PUBLISH, content=counted(0, 1), headers=headers)
            assert "Hubbub-Batch: expected" in answer.json()["error"]


async def test_the_largest_numbers(serve: Serve) -> None:
    async with serve() as client:
        await post(client, counted(0, 1))
        answer = await client.get(JOURNAL, params={"from": 2**63 - 1, "to": 2**63 - 1})
        assert (answer.status_code, answer.content) == (200, b"")
        answer = await client.get("/api/v1/status", params={"limit": 1_000, "offset": 999_999_999})
        assert answer.json()["clients"] == []


async def test_an_answer_has_an_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.web.journal.ANSWER_BYTES", 1000)
    async with serve() as client:
        for first in range(0, 30, 10):
            await post(client, counted(first, 10))
        at = 1
        seen: list[int] = []
        while at <= 30:
            answer = await client.get(JOURNAL, params={"from": at, "to": 30})
            (one,) = frames_in(answer.content)
            seen += range(at, min(one.last, 30) + 1)
            at = int(answer.headers["hubbub-upto"]) + 1
        assert seen == list(range(1, 31))


async def test_a_hub_without_journal_says_so(serve: Serve) -> None:
    async with serve(journal=Journal(record="none")) as client:
        answer = await client.get(JOURNAL)
        assert answer.status_code == 404 and "keeps no journal" in answer.json()["error"]
        assert await post(client, counted(0, 3), "q/0/0") == (200, {"taken": 3, "skipped": 0})
        assert await post(client, counted(0, 3), "q/0/0") == (200, {"taken": 0, "skipped": 3})


# Publishing


async def test_every_part_of_a_message_arrives(serve: Serve, tmp_path: Path) -> None:
    message = {
        "topic": "a/ü", "base64": "AP8=", "qos": 2, "retain": True, "content_type": "x/y",
        "reply_to": "back/here", "correlation": "AQI=", "subtopic": "temp", "expires": 60,
        "properties": {"user": [["k", "v"]]},
    }  # fmt: skip
    async with serve() as client:
        assert (await post(client, lines(message)))[0] == 200
        node: Node = client.node  # type: ignore[attr-defined]
        assert "a/ü" in node.broker.state.retained
    table = Table(str(tmp_path / "data"))
    (row,) = [
        row
        for batch in table.read(0, table.committed())
        for row in batch.to_pylist()
        if row["kind"] == "publish"
    ]
    assert (row["payload"], row["qos"], row["retain"]) == (b"\x00\xff", 2, True)
    assert (row["content_type"], row["reply_to"], row["correlation"]) == (
        "x/y", "back/here", b"\x01\x02",
    )  # fmt: skip
    assert row["subtopic"] == "temp" and json.loads(row["properties"]) == message["properties"]
    assert 59 < (row["expires"] - row["time"]).total_seconds() <= 60
    assert row["protocol"] == "http"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "line 2: "),
        (b'{"payload": "x"}', "line 2: .*topic"),
        (b'{"topic": "a"}\n{"topic": "a/#"}', "line 3: 'a/#' is no topic"),
        (b'{"topic": "a\\u0007"}', "is no topic"),
        (b'{"topic": "$SYS/x"}', "is no topic"),
        (b'{"topic": "$hub/taken/q/0"}', "is no topic"),
        (b'{"topic": "a", "qos": 3}', "line 2: .*qos"),
        (b'{"topic": "a", "payloud": ""}', "payloud"),
        (b'{"topic": "a", "properties": {"user": 5}}', "line 2: .*user"),
        (b'{"topic": "a"}\n' * 10_000, "more than 10000 lines in one request"),
        (b"\n" * 20_000, "more than 10000 lines in one request"),
        (b'{"topic": "a", "reply_to": "b/#"}', "line 2: 'b/#' is no topic to answer to"),
        (b'{"topic": "a", "content_type": "x\\u0000"}', "line 2: NUL"),
        (b'{"topic": "a", "properties": {"user": [["k", "\\u0000"]]}}', "line 2: NUL"),
        (b'{"topic": "\xff"}', "line 2: "),
    ],
)
async def test_a_line_that_is_wrong_takes_nothing(
    serve: Serve, tmp_path: Path, body: bytes, words: str
) -> None:
    async with serve() as client:
        status, answer = await post(client, counted(0, 1) + b"\n" + body)
        assert status == 400
        assert re.search(words, answer["error"]), answer
    assert payloads(tmp_path) == []


@pytest.mark.parametrize("batch", ["q", "q/1", "a/b/1/2", "q/x/0", "q/0/-1", "#/0/0", "/0/0"])
async def test_a_batch_that_is_none_is_refused(serve: Serve, batch: str) -> None:
    async with serve() as client:
        status, answer = await post(client, counted(0, 1), batch)
        assert status == 400 and "Hubbub-Batch" in answer["error"]


async def test_a_batch_is_taken_once_and_in_order(serve: Serve, tmp_path: Path) -> None:
    async with serve() as client:
        assert await post(client, counted(0, 10), "q/1/0") == (200, {"taken": 10, "skipped": 0})
        assert await post(client, counted(0, 10), "q/1/0") == (200, {"taken": 0, "skipped": 10})
        assert await post(client, counted(0, 15), "q/1/0") == (200, {"taken": 5, "skipped": 10})
        assert await post(client, counted(15, 5), "q/1/0", 15) == (200, {"taken": 5, "skipped": 0})
        assert await post(client, counted(12, 8), "q/1/0", 12) == (200, {"taken": 0, "skipped": 8})
        status, answer = await post(client, counted(30, 5), "q/1/0", 30)
        assert status == 409 and "message 20 of this partition is to be next" in answer["error"]
        status, answer = await post(client, counted(1, 20), "q/1/0")
        assert status == 409 and "another order" in answer["error"]
        assert await post(client, counted(20, 5), "q/2/0") == (200, {"taken": 5, "skipped": 0})
        assert await post(client, counted(7, 5), "q/1/0") == (200, {"taken": 0, "skipped": 5})
        for other in ("q/1/1", "r/1/0"):  # another partition, another query
            assert (await post(client, counted(25, 1), other))[1]["taken"] == 1
    assert payloads(tmp_path) == [*range(25), 25, 25]


async def test_messages_that_come_again_in_several_requests_are_compared(
    serve: Serve, tmp_path: Path
) -> None:
    """Spark sends 2,000 at a time: a longer partition in another order was skipped unseen."""
    async with serve() as client:
        await post(client, counted(0, 10), "q/1/0")
        await post(client, counted(10, 10), "q/1/0", 10)
        assert await post(client, counted(10, 10), "q/1/0") == (200, {"taken": 0, "skipped": 10})
        status, answer = await post(client, counted(0, 20), "q/1/0", 10)
        assert status == 409 and "the first 20 messages are not those" in answer["error"]
        for begin in (0, 7, 14):  # in the order that they had, in other pieces
            count = 7 if begin < 14 else 8
            status, answer = await post(client, counted(begin, count), "q/1/0", begin)
            assert status == 200
        assert answer == {"taken": 2, "skipped": 6}
        await post(client, counted(30, 5), "q/1/0")
        await post(client, counted(22, 5), "q/2/0")  # what came of the batch before says nothing
        assert (await post(client, counted(27, 5), "q/2/0", 5))[1]["taken"] == 5
    assert payloads(tmp_path) == [*range(32)]


async def test_what_was_taken_is_known_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    async with serve() as client:
        await post(client, counted(0, 10), "q/3/0")
        await post(client, counted(10, 4), "r/1/0")
        assert (await client.delete(f"{PUBLISH}/r")).json() == {"forgotten": 1}
    async with serve() as client:
        assert await post(client, counted(0, 12), "q/3/0") == (200, {"taken": 2, "skipped": 10})
        status, answer = await post(client, counted(5, 12), "q/3/0")
        assert status == 409
        assert (await post(client, counted(12, 4), "r/1/0"))[1]["taken"] == 4
    assert payloads(tmp_path) == [*range(14), 10, 11, *range(12, 16)]


async def test_messages_and_how_far_they_were_taken_share_a_frame(
    serve: Serve, tmp_path: Path
) -> None:
    """A crash between two frames must not leave messages that the hub does not remember."""
    async with serve() as client:
        await post(client, counted(0, COMMIT_ROWS - SLICE // 2))  # so that a cut would fall within
        await post(client, counted(0, 3 * SLICE), "q/0/0")
    table = Table(str(tmp_path / "data"))
    pending = 0
    for _, found in table.shelf.between(0, table.committed()):
        (batch,) = table.read(found.first - 1, found.last)
        for row in batch.to_pylist():
            if row["client"] == "q":
                pending += 1
            elif row["topic"] == "$hub/taken/q/0":
                pending = 0
        assert pending == 0, "messages of the query after its last note in this frame"


async def test_a_full_queue_takes_the_rest_later(serve: Serve, tmp_path: Path) -> None:
    async with serve(queue=Queue(max_messages=4)) as client:
        body = counted(0, 6, "$queue/jobs")
        status, answer = await post(client, body, "q/0/0")
        assert status == 507
        assert answer["error"].startswith("$queue/jobs holds 4 messages with 4 bytes; send")
        node: Node = client.node  # type: ignore[attr-defined]
        node.broker.queues.max_messages = 100
        assert await post(client, body, "q/0/0") == (200, {"taken": 2, "skipped": 4})
    assert sorted(payloads(tmp_path)) == list(range(6))


async def test_what_is_taken_is_kept_whatever_its_characters_take(serve: Serve) -> None:
    """Room is asked for by bytes; a message that clears what is retained takes none."""
    async with serve() as client:
        node: Node = client.node  # type: ignore[attr-defined]
        node.broker.share_room(600_000 - 1, 600_000)
        large = lines({"topic": "kept", "payload": "\N{EURO SIGN}" * 8_000, "retain": True})
        assert (await post(client, large))[0] == 507 and not node.broker.state.retained
        node.broker.keep_room("the disk is full")
        status, answer = await post(client, lines({"topic": "k", "payload": "x", "retain": True}))
        assert status == 507 and answer["error"].startswith("the disk is full; send")
        clear = lines({"topic": "other", "retain": True})
        assert (await post(client, clear))[0] == 200


async def test_a_body_has_a_bound(serve: Serve) -> None:
    async with serve(limits=Limits(message_bytes=1000)) as client:
        assert (await client.post(PUBLISH, content=b"x" * 3000)).status_code == 413
        status, answer = await post(client, lines({"topic": "a", "payload": "x" * 1001}))
        assert status == 400 and "larger than limits.message_bytes" in answer["error"]
        status, answer = await post(
            client, b'{"topic": "a", "payload": "%s"}' % ("ü" * 501).encode()
        )
        assert status == 400 and "larger than limits.message_bytes" in answer["error"]


# What a client does not finish, and what no parser should be given


async def test_uploads_that_are_broken_off_are_counts(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
    async with serve() as client:
        node = client.node  # type: ignore[attr-defined]
        address = node.listeners[0].address
        for _ in range(200):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(head)
            await writer.drain()
            writer.close()
        async with asyncio.timeout(20):
            while node.broker.metrics.dropped.get("upload broken off", 0) < 200:
                await asyncio.sleep(0.02)
        assert (await post(client, counted(0, 1))) == (200, {"taken": 1, "skipped": 0})
    assert not caplog.records


async def test_answers_to_who_has_gone_are_counts(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Of pipelined requests uvicorn tells the last one only, and complained of each other one."""

    async def answers_half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    async with serve() as client:
        node = client.node  # type: ignore[attr-defined]
        node.web.asgi = answers_half
        address = node.listeners[0].address
        for count in range(1, 6):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(20):
                while node.broker.metrics.dropped.get("answer not taken", 0) < count:
                    await asyncio.sleep(0.02)
            writer.close()
    assert not caplog.records


DEEP = 200_000


@pytest.mark.parametrize(
    "line",
    [
        "[" * DEEP,
        '{"a":' * DEEP,
        '{"topic":"a","x":' + "[" * DEEP,
        '{"topic":"a","properties":' + "[" * DEEP,
        '{"topic":"a","properties":{"user":' + "[" * DEEP,
        '{"topic":"a","properties":{"x":' + "[" * DEEP,
        '{"topic":"a","payload":' + "[" * DEEP,
        '{"topic":"a","expires":' + "9" * DEEP + "}",
    ],
    ids=range(8),
)
async def test_json_without_end_is_a_bad_request(
    serve: Serve, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as client:
        assert (await post(client, line.encode()))[0] == 400
        assert (await post(client, counted(0, 1)))[0] == 200
    assert not [one for one in caplog.records if one.exc_info]


async def test_what_looks_after_the_process_needs_no_login(serve: Serve, tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "ann", b"secret")
    async with serve(password_file=str(users), allow_anonymous=False) as client:
        node: Node = client.node  # type: ignore[attr-defined]
        assert (await client.get("/metrics")).status_code == 401
        for path, said in (("/healthz", "alive\n"), ("/readyz", "ready\n")):
            answer = await client.get(path)
            assert (answer.status_code, answer.text) == (200, said)
        node.broker.keep_room("the disk has 1 MB left")
        answer = await client.get("/readyz")
        assert answer.status_code == 503 and "short of room" in answer.text
        assert "1 MB" not in answer.text, "figures are for those who are let in"
        node.broker.keep_room("")
        assert node.journal is not None
        while node.journal.durable < node.journal.position:
            await asyncio.sleep(0.01)  # a row that is written now would say that all is well
        node.journal.disk.trouble = "/somewhere: No space left on device"
        answer = await client.get("/readyz")
        assert answer.status_code == 503 and "cannot be written" in answer.text
        assert (await client.get("/healthz")).status_code == 200
        node.journal.disk.trouble = ""


@pytest.mark.interop
@pytest.mark.parametrize(("count", "answered"), [(100, 100), (3000, 0)])
def test_so_many_requests_wait_for_their_answers(
    count: int, answered: int, start_hub: StartHub
) -> None:
    """uvicorn keeps what is pipelined: 200,000 requests of a stranger were 430 MB."""
    hub = start_hub()
    with socket.create_connection(("127.0.0.1", hub.port), 20) as sock:
        last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * (count - 1) + last)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(65536):
                heard += piece
    assert heard.count(b"alive\n") == answered
    assert httpx.get(f"http://{hub.address}/healthz").text == "alive\n"
    said = (hub.data.parent / "hub.log").read_text()
    assert ("requests wait for their answers" in said) == (not answered)


@pytest.mark.interop
def test_who_asks_too_much_at_once_leaves_no_traceback(
    start_hub: StartHub, tmp_path: Path
) -> None:
    """Each login takes a while: the connection is gone when its refusal is written."""
    users = tmp_path / "users"
    add_user(users, "ann", b"secret")
    hub = start_hub("--set", f"password_file={users}")
    head = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YTpi\r\n\r\n"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", hub.port), 20) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(head * 250)
                while sock.recv(65536):
                    pass
    log = hub.data.parent / "hub.log"
    until = time.monotonic() + 30
    while log.read_text().count("was not let in") < 3 and time.monotonic() < until:
        time.sleep(0.1)
    hub.stop(signal.SIGTERM)
    assert "requests wait for their answers" in log.read_text()
    assert "Traceback" not in log.read_text()
