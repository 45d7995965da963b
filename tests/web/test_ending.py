"""What is ended by hand: clients, sessions, queues and what is kept, by those who may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import hubbub
from hubbub.auth.passwords import add_user
from hubbub.core.message import Message
from hubbub.core.session import Silent
from hubbub.errors import HubbubError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.schema import name_from_wire
from tests.web.test_looking import served


async def test_only_who_may_manage_ends_anything(tmp_path: Path) -> None:
    for name, secret in (("ann", b"secret"), ("eve", b"nosy")):
        add_user(tmp_path / "users", name, secret)
    rules = "user ann\ntopic manage $SYS/#\ntopic manage $queue/#\nuser eve\ntopic readwrite #\n"
    (tmp_path / "acl").write_text(rules)
    files = {"password_file": str(tmp_path / "users"), "acl_file": str(tmp_path / "acl")}
    async with served(tmp_path / "data", **files) as browser:
        broker = browser.node.broker
        broker.post(Message("$queue/jobs", b"job", 1))
        ann, eve = httpx.BasicAuth("ann", "secret"), httpx.BasicAuth("eve", "nosy")
        panel, jobs = {"protocol": "mqtt", "client": "panel"}, {"name": "jobs"}
        for path, asked in (
            ("clients", panel), ("queue", jobs), ("sessions", panel), ("retained", {"topic": "a"}),
            ("delayed", {"seq": "1"}),
        ):  # fmt: skip
            answer = await browser.http.delete(f"/api/v1/{path}", params=asked, auth=eve)
            assert answer.status_code == 403
        assert "jobs" in broker.state.queues
        answer = await browser.http.delete("/api/v1/queue", params=jobs, auth=ann)
        assert answer.json() == {"destroyed": "jobs"} and "jobs" not in broker.state.queues
        nothing, unsaid = {"topic": "$SYS/broker/version"}, {"client": "panel"}
        for path, asked, status in (
            ("queue", jobs, 404), ("clients", panel, 404), ("clients", unsaid, 400),
            ("clients", {"protocol": "", "client": "hub"}, 404),
            ("sessions", panel, 404), ("sessions", unsaid, 400),
            ("sessions", {"protocol": "bridge", "client": "up"}, 404),
            ("retained", nothing, 404), ("delayed", {"seq": "7"}, 404), ("delayed", {}, 400),
        ):  # fmt: skip
            answer = await browser.http.delete(f"/api/v1/{path}", params=asked, auth=ann)
            assert answer.status_code == status, asked


async def test_a_client_is_told_and_ended(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        host, _, port = str(browser.node.listeners[0].address).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(codec.connect(b"panel", True, 60, properties=Properties()))
        head = await reader.readexactly(2)
        await reader.readexactly(head[1])
        asked = {"protocol": "mqtt", "client": "panel"}
        answer = await browser.http.delete("/api/v1/clients", params=asked)
        assert answer.json() == {"ended": "panel"}
        said = await reader.read()
        writer.close()
        assert (said[0] >> 4, said[2]) == (codec.DISCONNECT, spec.ADMINISTRATIVE)
        assert ("mqtt", "panel") not in broker.sessions
        assert broker.audit.gone[-1].reason == "ended by hand"


async def test_a_session_is_over_here_and_away(tmp_path: Path) -> None:
    """With what waits for it; its client begins anew. The hub remembers that after a restart."""
    lasting: dict[str, Any] = {"session_expiry": 3600, "clean": False}
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        url = f"mqtt://{browser.node.listeners[0].address}"

        async def end(client: str) -> int:
            asked = {"protocol": "mqtt", "client": client}
            return (await browser.http.delete("/api/v1/sessions", params=asked)).status_code

        for name in ("away", "kept"):
            async with hubbub.mqtt(url, client_id=name, **lasting) as client:
                await client.subscribe("jobs/#", 1)
        broker.post(Message("jobs/1", b"x", 1))
        assert len(broker.state.sessions["mqtt", "away"].backlog.entries) == 1
        assert await end("away") == 200
        assert ("mqtt", "away") not in broker.sessions
        assert await end("away") == 404
        async with hubbub.mqtt(url, client_id="here", reconnect=False, **lasting) as client:
            assert await end("here") == 200
            with pytest.raises(HubbubError, match="ended by hand"):
                async for _ in client.messages():
                    pass
        assert not {("mqtt", "away"), ("mqtt", "here")} & set(broker.sessions)
    async with served(tmp_path) as browser:
        assert set(browser.node.broker.state.sessions) == {("mqtt", "kept")}


async def test_what_is_retained_is_cleared_and_who_is_subscribed_hears_it(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        broker.post(Message("a/b", b"x", 0, True))
        url = f"mqtt://{browser.node.listeners[0].address}"
        async with hubbub.mqtt(url) as client:
            await client.subscribe("a/#")
            messages = client.messages()
            assert (await anext(messages)).payload == b"x"
            for status in (200, 404):
                answer = await browser.http.delete("/api/v1/retained", params={"topic": "a/b"})
                assert answer.status_code == status
            assert (await anext(messages)).payload == b"" and "a/b" not in broker.state.retained


async def test_who_is_away_hears_later_that_a_retained_message_is_cleared(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        browser.node.broker.post(Message("a/b", b"x", 1, True))
        url = f"mqtt://{browser.node.listeners[0].address}"
        lasting: dict[str, Any] = {"client_id": "away", "clean": False, "session_expiry": 60}
        async with hubbub.mqtt(url, **lasting) as client:
            await client.subscribe("a/#", qos=1)
            assert (await anext(client.messages())).payload == b"x"
        await browser.http.delete("/api/v1/retained", params={"topic": "a/b"})
        async with hubbub.mqtt(url, **lasting) as client:
            assert (await anext(client.messages())).payload == b""


async def test_a_delayed_message_is_cancelled_for_good(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        for name in ("first", "second"):
            broker.post(Message(f"$delayed/3600/{name}", b"x", 1))
        first = (await browser.http.get("/api/v1/ls/delayed")).json()["delayed"][0]
        assert first["topic"] == "$delayed/3600/first"
        answer = await browser.http.delete("/api/v1/delayed", params={"seq": first["seq"]})
        assert answer.json() == {"cancelled": str(first["seq"])}
        assert first["seq"] not in broker.state.delayed and len(broker.state.delayed) == 1
    async with served(tmp_path) as browser:
        [left] = (await browser.http.get("/api/v1/ls/delayed")).json()["delayed"]
        assert left["topic"] == "$delayed/3600/second"


async def test_what_is_cancelled_is_not_published_when_it_is_due(tmp_path: Path) -> None:
    """Nor does what was cancelled stay in memory until then."""
    async with served(tmp_path) as browser:
        delays, state = browser.node.broker.delays, browser.node.broker.state
        for _ in range(3):
            for _ in range(1_000):
                browser.node.broker.post(Message("$delayed/1/never", b"x", 0))
            for seq in list(state.delayed):
                assert delays.cancel(seq) and not delays.cancel(seq)
        assert len(delays._heap) <= 1_000 + 1
        browser.node.broker.post(Message("$delayed/1/then", b"x", 0, True))
        async with asyncio.timeout(20):
            while "then" not in state.retained:
                await asyncio.sleep(0.05)
        assert not state.delayed and browser.node.broker.metrics.dropped.get("gone", 0) == 0


async def test_names_of_any_bytes_are_listed_apart_and_ended(tmp_path: Path) -> None:
    """Two that look alike are two; what `exact` says goes into the query as it is."""
    async with served(tmp_path) as browser:
        broker, http = browser.node.broker, browser.http
        names = [name_from_wire(raw) for raw in (b"caf\xe9", b"caf\xe8", "é".encode())]
        for name in names:
            broker.queues.named(name)
            broker.connect(Silent("smq", name, broker.open), broker.own("smq", name))
        for kind, key in (("queues", "queue"), ("clients", "client")):
            rows = (await http.get(f"/api/v1/ls/{kind}")).json()[kind]
            said = {(row[key], row.get("exact", {}).get(key, "")) for row in rows}
            assert said == {("caf?", "caf%E9"), ("caf?", "caf%E8"), ("é", "")}
            found = (await http.get(f"/api/v1/ls/{kind}?search=%E9")).json()[kind]
            assert [row["exact"][key] for row in found] == ["caf%E9"]
        assert (await http.get("/api/v1/queue?name=caf%E9")).json()["exact"] == {"name": "caf%E9"}
        assert (await http.delete("/api/v1/queue?name=caf%E9")).json() == {"destroyed": "caf?"}
        assert (await http.delete("/api/v1/queue?name=caf%E9")).status_code == 404
        assert set(broker.state.queues) == set(names[1:])


async def test_a_node_of_a_cluster_is_not_removed_by_a_hub_that_is_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        answer = await browser.http.delete("/api/v1/nodes", params={"name": "b"})
        assert answer.status_code == 404 and "no node of a cluster" in answer.text
