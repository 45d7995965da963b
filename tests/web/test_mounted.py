"""`hubbub serve --app MODULE:NAME`: an application on the hub's ports, and what stays the hub's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect as connect_websocket

from hubbub import connect
from tests.clients import message
from tests.process import ROOT, StartHub

pytestmark = pytest.mark.interop

APPLICATION = """
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, WebSocket


@asynccontextmanager
async def life(app):
    app.state.hub.subscribe("greet", lambda data, ptid, *rest: app.state.hub.publish(b"hi", ptid))
    yield
    Path("ended").write_text("in order")


app = FastAPI(lifespan=life)


@app.get("/")
async def page():
    return "the application's page"


@app.post("/say/{topic}")
async def say(topic: str, request: Request):
    return request.state.hub.publish(await request.body(), topic)


@app.websocket("/echo")
async def echo(websocket: WebSocket):
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text() + str(websocket.state.hub.gettid()))


async def bare(scope, receive, send):
    assert scope["type"] == "http", "no lifespan, no WebSockets"
    body = str(scope["state"]["hub"].gettid()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def broken_life(app):
    raise RuntimeError("the application's own mistake")
    yield


broken = FastAPI(lifespan=broken_life)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)


async def test_an_application_uses_the_hub_and_the_hub_keeps_its_own(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub("--app", "shop:app")
    async with httpx.AsyncClient(base_url=hub.url("http")) as browser:
        assert (await browser.get("/", headers={"accept": "text/html"})).json() == (
            "the application's page"
        )
        assert (await browser.get("/api/v1/status")).json()["listeners"]
        assert "Hubbub" in (await browser.get("/admin/")).text
        assert (await browser.get("/nothing")).json() == {"detail": "Not Found"}
        async with connect(hub.url("smq"), client_id="device-1") as device:
            await device.subscribe("news")
            assert (await browser.post("/say/news", content=b"it works")).json() is True
            assert (await message(device)).payload == b"it works"
            await device.publish("greet", b"")
            assert (await message(device)).payload == b"hi"
    async with connect_websocket(hub.url("ws") + "/echo") as socket:
        await socket.send("number ")
        assert await socket.recv() == "number 1"
    async with connect(hub.url("smq+ws") + "/elsewhere", client_id="device-1") as device:
        await device.subscribe("news")
    async with connect(hub.url("ws") + "/mqtt") as client:
        await client.publish("news", b"", qos=1)
    assert hub.stop() == 0
    assert (tmp_path / "ended").read_text() == "in order"


async def test_an_application_without_lifespan_and_routes(start_hub: StartHub) -> None:
    hub = start_hub("--app", "shop:bare")
    async with httpx.AsyncClient(base_url=hub.url("http")) as browser:
        assert (await browser.get("/any/path")).text == "1"
    async with connect(hub.url("smq+ws") + "/any/path", client_id="device-1") as device:
        await device.subscribe("news")
    assert hub.stop() == 0
    assert "uvicorn" not in (hub.data.parent / "hub.log").read_text()


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("nowhere:app", "nowhere"),
        ("shop:nothing", "nothing"),
        ("shop", "shop"),
        ("shop:APPLICATION_IS_NO", "APPLICATION_IS_NO"),
        ("shop:broken", "failed to start"),
    ],
)
def test_an_application_that_cannot_be_started(place: str, complaint: str, tmp_path: Path) -> None:
    with (tmp_path / "shop.py").open("a") as file:
        file.write("\nAPPLICATION_IS_NO = 7\n")
    options: list[Any] = ["--listen", "127.0.0.1:0", "--set", "journal.record=none"]
    done = subprocess.run(
        [sys.executable, "-m", "hubbub", "serve", *options, "--app", place],
        env={"PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode in (1, 2) and not done.stdout
    assert complaint in done.stderr.splitlines()[-1]


async def test_files_at_the_root_leave_the_hub_its_websockets(
    start_hub: StartHub, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("a page")
    (tmp_path / "files.py").write_text(
        "from starlette.applications import Starlette\n"
        "from starlette.routing import Mount\n"
        "from starlette.staticfiles import StaticFiles\n"
        'app = Starlette(routes=[Mount("/", StaticFiles(directory="site", html=True))])\n'
    )
    hub = start_hub("--app", "files:app")
    async with httpx.AsyncClient(base_url=hub.url("http"), trust_env=False) as web:
        assert (await web.get("/index.html")).text == "a page"
        assert (await web.get("/none.html")).status_code == 404
    for scheme in ("smq+ws", "ws"):
        async with connect(hub.url(scheme)) as client:
            await client.publish("a", b"said")
