"""What is ended by hand: clients and queues, by those who may."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from hubbub.auth.passwords import add_user
from hubbub.core.message import Message
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
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
        for path, asked in (("clients", panel), ("queue", jobs)):
            answer = await browser.http.delete(f"/api/v1/{path}", params=asked, auth=eve)
            assert answer.status_code == 403
        assert "jobs" in broker.state.queues
        answer = await browser.http.delete("/api/v1/queue", params=jobs, auth=ann)
        assert answer.json() == {"destroyed": "jobs"} and "jobs" not in broker.state.queues
        for path, asked, status in (
            ("queue", jobs, 404), ("clients", panel, 404), ("clients", {"client": "panel"}, 400),
            ("clients", {"protocol": "", "client": "hub"}, 404),
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
