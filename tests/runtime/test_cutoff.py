"""A bridge is cut off by hand and connected again, while the hub runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import hubbub
from hubbub.auth.passwords import add_user
from hubbub.cli import doctor
from hubbub.config.settings import Bridge, Journal, Settings
from hubbub.core.message import Message
from hubbub.runtime.cutoff import REASON
from hubbub.runtime.node import Node
from hubbub.web import prometheus
from hubbub.web.app import Application

TOPICS = ("up/# out 1", "down/# in 1")


@asynccontextmanager
async def serving(data: Path, port: int = 0, **settings: Any) -> AsyncIterator[Node]:
    """A hub with a bridge to that port, if one is said."""
    far = Bridge(name="far", addresses=(f"127.0.0.1:{port}",), topics=TOPICS)
    given: dict[str, Any] = {
        "data": str(data), "listen": ("127.0.0.1:0",), "journal": Journal(durability="os"),
        "bridge": (far,) if port else (), **settings,
    }  # fmt: skip
    node = Node(Settings(**given))
    node.web = Application(node)
    async with node:
        yield node


def port_of(node: Node) -> int:
    return node.listeners[0].address.port


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def asked(node: Node, deed: str, name: str = "far", **more: Any) -> httpx.Response:
    url = f"http://{node.listeners[0].address}/api/v1/bridges/{deed}"
    async with httpx.AsyncClient(timeout=20, trust_env=False) as web:
        return await web.post(url, params={"name": name}, **more)


async def test_what_goes_out_waits_and_crosses_when_it_is_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path / "far") as far, serving(tmp_path / "near", port_of(far)) as near:
        (bridge,) = near.bridges
        await until(lambda: bridge.up)
        async with hubbub.mqtt(f"mqtt://{far.listeners[0].address}") as ear:
            await ear.subscribe("up/#", 1)
            answer = await asked(near, "cut-off")
            assert answer.json() == {"bridge": "far", "cut_off": True, "kept": True}
            assert not bridge.up
            await until(lambda: all(one.protocol != "mqtt" or one.client == ear.client_id
                                    for one in far.broker.clients.values()))  # fmt: skip
            assert far.broker.audit.gone[-1].reason == "", "it said goodbye"
            near.broker.post(Message("up/1", b"while away", 1))
            near.schedule()
            await asyncio.sleep(2.5)  # longer than the wait before an attempt
            assert not bridge.up
            said = (await near.status())["bridges"]
            assert said == [{"name": "far", "up": False, "cut_off": True}]
            page = prometheus.page(await near.metrics()).decode()
            assert 'hubbub_bridge_cut_off{name="far"} 1.0' in page
            assert (await asked(near, "cut-off")).status_code == 200
            assert (await asked(near, "resume")).json()["cut_off"] is False
            assert (await anext(ear.messages())).payload == b"while away"
            await until(lambda: bridge.up)
            assert (await asked(near, "resume", "none")).status_code == 404
        reasons = [one.reason for one in near.broker.audit.gone]
        assert not reasons or REASON in reasons


async def test_a_restart_keeps_it_cut_off_and_the_doctor_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "far") as far:
        port = port_of(far)
        async with serving(tmp_path / "near", port) as near:
            await until(lambda: near.bridges[0].up)
            await asked(near, "cut-off")
        async with serving(tmp_path / "near", port) as near:
            assert "bridge far is cut off by hand: hubbub bridge resume far" in caplog.text
            found = [one for one in doctor.bridges(near.settings)]
            assert [one.found for one in found] == ["far is cut off by hand"]
            await asyncio.sleep(1.5)
            assert not near.bridges[0].up
            await asked(near, "resume")
            await until(lambda: near.bridges[0].up)
            assert not [*doctor.bridges(near.settings)]
        async with serving(tmp_path / "near", port) as near:
            await until(lambda: near.bridges[0].up)


async def test_a_broker_that_takes_nothing_more_is_cut_off_all_the_same(tmp_path: Path) -> None:
    """It reads no goodbye; and one that is just being dialled is left alone."""
    came: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        writer.write(b"\x20\x03\0\0\0")  # CONNACK, and nothing is read
        await asyncio.sleep(60)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1)
    port = server.sockets[0].getsockname()[1]
    async with serving(tmp_path, port) as near:
        (bridge,), (dialer,) = near.bridges, near.dialers
        await until(lambda: bridge.up)
        for _ in range(400):
            near.broker.post(Message("up/1", b"x" * 65_536, 0))
        near.schedule()
        await asyncio.sleep(0.2)
        await asked(near, "cut-off")
        assert not bridge.up
        await until(lambda: dialer.line is None or dialer.line.ended.is_set())
        await asked(near, "resume")
        await until(lambda: len(came) == 2 and bridge.up)
        await asked(near, "cut-off")
        await asked(near, "resume")
        await asked(near, "cut-off")
        await asyncio.sleep(2)
        assert not bridge.up
    for writer in came:
        writer.close()
    server.close()


def test_of_several_processes_the_doctor_asks_the_one_that_has_bridges(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "bridges-cut-off").write_text('["far"]')
    bridges = (Bridge(name="far", addresses=("far.example.org",), topics=TOPICS),)
    settings = Settings(data=str(tmp_path), processes=2, bridge=bridges)
    assert [one.found for one in doctor.bridges(settings)] == ["far is cut off by hand"]


async def test_a_file_that_cannot_be_read_cuts_nothing_off(tmp_path: Path) -> None:
    async with serving(tmp_path / "far") as far:
        (tmp_path / "near").mkdir()
        for text in ("nonsense", '{"far": 1}', "[1]", "[]"):
            (tmp_path / "near" / "bridges-cut-off").write_text(text)
            async with serving(tmp_path / "near", port_of(far)) as near:
                await until(lambda near=near: near.bridges[0].up)  # type: ignore[misc]


async def test_who_may_do_it(tmp_path: Path) -> None:
    for name in ("ann", "eve"):
        add_user(tmp_path / "users", name, b"secret")
    rules = "user ann\ntopic manage $SYS/#\nuser eve\ntopic readwrite #\ntopic read $SYS/#\n"
    (tmp_path / "acl").write_text(rules)
    files = {"password_file": str(tmp_path / "users"), "acl_file": str(tmp_path / "acl")}
    async with serving(tmp_path / "near", 1, **files) as near:
        for user, status in (("eve", 403), ("ann", 200)):
            answer = await asked(near, "cut-off", auth=httpx.BasicAuth(user, "secret"))
            assert answer.status_code == status
