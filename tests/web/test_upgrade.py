"""A hub behind other web servers: aiohttp, and ASGI under uvicorn and hypercorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import hypercorn.asyncio
import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI, WebSocket
from hypercorn.config import Config as HypercornConfig
from starlette.types import ASGIApp

from hubbub import Hub, connect, is_smq
from hubbub.errors import Refused
from tests.certificates import Authority
from tests.clients import PATIENCE, Heard, message

Serving = Callable[[ASGIApp], AbstractAsyncContextManager[str]]


# aiohttp


@asynccontextmanager
async def aiohttp_serving(
    hub: Hub, context: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[str]:
    """One URL for devices and people: the third idiom of the original manual."""

    async def anything(request: web.Request) -> web.StreamResponse:
        if is_smq(request):
            response: web.StreamResponse = await hub.connect(request, "by aiohttp")
            return response
        return web.Response(text="an ordinary page")

    async def nothing_else(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await hub.connect(request)
        return response

    app = web.Application()
    app.router.add_route("*", "/", anything)
    app.router.add_route("*", "/hub", nothing_else)
    app.router.add_get("/hubbub.js", hub.connect)

    async def life(app: web.Application) -> AsyncIterator[None]:
        async with hub:
            yield

    app.cleanup_ctx.append(life)
    runner = web.AppRunner(app, **options)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock, ssl_context=context).start()
    try:
        yield f"localhost:{sock.getsockname()[1]}"
    finally:
        async with asyncio.timeout(PATIENCE):
            await runner.cleanup()


@pytest.mark.parametrize("scheme", ["smq", "smq+ws"])
async def test_devices_connect_through_aiohttp(scheme: str) -> None:
    seen, heard = Heard(0), Heard()
    hub = Hub(authenticate=seen)
    async with aiohttp_serving(hub) as place:
        hub.subscribe("a", heard)
        async with connect(f"{scheme}://{place}/?room=7", client_id="device-1") as device:
            await device.publish("a", b"x" * 60_000)
            hub.publish(b"back", (await heard.until())[0][1])
            assert (await message(device)).payload == b"back"
            assert len(heard.calls[0][0]) == 60_000
    info = seen.calls[0][1]
    assert (info.arg, info.data, info.url) == ("by aiohttp", {"room": "7"}, "/?room=7")
    assert info.sock.peername()[0] == "127.0.0.1"


async def test_people_get_a_page_at_the_same_url() -> None:
    async with aiohttp_serving(Hub()) as place, httpx.AsyncClient() as browser:
        page = await browser.get(f"http://{place}/")
        assert page.text == "an ordinary page"
        other = await browser.get(f"http://{place}/hub")
        assert other.status_code == 404
        script = await browser.get(f"http://{place}/hubbub.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert "export function connect" in script.text
        again = await browser.get(f"http://{place}/")
        assert again.text == "an ordinary page"


async def test_a_device_that_posts() -> None:
    """SMQ takes any method; the body is the application's."""
    async with aiohttp_serving(Hub()) as place:
        host, _, port = place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /hub HTTP/1.1\r\nHost: {place}\r\nSimpleMQ: 1\r\nContent-Length: 2\r\n\r\nhi"
        writer.write(head.encode())
        async with asyncio.timeout(PATIENCE):
            init = await reader.readexactly(8)
        assert init[2:4] == b"\x01\x01"
        writer.close()


@pytest.mark.parametrize("scheme", ["smqs", "smq+wss"])
async def test_devices_connect_through_aiohttps_tls(scheme: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.sign("localhost", server=True))
    hub = Hub()
    async with aiohttp_serving(hub, context) as place:
        url = f"{scheme}://{place}/hub"
        async with connect(url, client_id="device-1", tls=authority.client()) as device:
            await device.subscribe("a")
            hub.publish(b"over TLS", "a")
            assert (await message(device)).payload == b"over TLS"


@pytest.mark.parametrize("options", [{}, {"handler_cancellation": True}])
async def test_the_end_of_the_application_does_not_wait_for_devices(
    options: dict[str, Any],
) -> None:
    hub = Hub()
    async with aiohttp_serving(hub, **options) as place:
        device = await connect(f"smq://{place}/hub", client_id="device-1", reconnect=False)
        await asyncio.sleep(0.05)
        hub.publish(b"still connected", device.number)
        assert (await message(device)).payload == b"still connected"
    with pytest.raises(ConnectionError):
        await message(device)


async def test_pages_of_other_sites_are_refused_unless_they_are_named() -> None:
    head = (
        "GET /hub HTTP/1.1\r\nHost: {}\r\nOrigin: https://example.org\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AA==\r\n\r\n"
    )
    named = "https://example.org"
    for origins, status in ((), b"403"), ((named,), b"101"), (named, b"101"):
        async with aiohttp_serving(Hub(origins=origins)) as place:
            host, _, port = place.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.format(place).encode())
            async with asyncio.timeout(PATIENCE):
                line = await reader.readline()
            assert line.split()[1] == status
            writer.close()


# ASGI


@asynccontextmanager
async def uvicorn_serving(app: ASGIApp) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        task = asyncio.create_task(server.serve([sock]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        async with asyncio.timeout(PATIENCE):
            await task


@asynccontextmanager
async def hypercorn_serving(app: ASGIApp) -> AsyncIterator[str]:
    config, ending = HypercornConfig(), asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    place = f"127.0.0.1:{sock.getsockname()[1]}"
    config.bind = [f"fd://{sock.detach()}"]
    config.loglevel = "warning"
    serve: Any = hypercorn.asyncio.serve
    task = asyncio.create_task(serve(app, config, shutdown_trigger=ending.wait))
    async with httpx.AsyncClient() as browser:
        for _ in range(100):
            with contextlib.suppress(httpx.ConnectError):
                await browser.get(f"http://{place}/")
                break
    yield place
    ending.set()
    async with asyncio.timeout(PATIENCE):
        await task


@pytest.fixture(params=[uvicorn_serving, hypercorn_serving], ids=["uvicorn", "hypercorn"])
def serving(request: pytest.FixtureRequest) -> Serving:
    found: Serving = request.param
    return found


def application(hub: Hub) -> FastAPI:
    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with hub:
            yield

    app = FastAPI(lifespan=life)
    app.mount("/mounted", hub.asgi)

    @app.websocket("/endpoint")
    async def endpoint(websocket: WebSocket) -> None:
        await hub.connect(websocket, "by FastAPI")

    return app


@pytest.mark.parametrize(("path", "arg"), [("mounted/", None), ("endpoint", "by FastAPI")])
async def test_devices_connect_through_asgi(serving: Serving, path: str, arg: str | None) -> None:
    seen, heard, went = Heard(0), Heard(), Heard()
    hub = Hub(authenticate=seen, onclose=went)
    async with serving(application(hub)) as place:
        hub.subscribe("a", heard)
        url = f"smq+ws://{place}/{path}?room=7"
        async with connect(url, client_id="device-1") as device:
            await device.publish("a", b"x" * 60_000)
            hub.publish(b"y" * 200_000, (await heard.until())[0][1])
            assert len((await message(device)).payload) == 200_000
        await went.until()
    info = seen.calls[0][1]
    assert (info.arg, info.data) == (arg, {"room": "7"})
    assert info.sock.peername()[0] == "127.0.0.1" and len(heard.calls[0][0]) == 60_000


async def test_mqtt_comes_through_asgi_too(serving: Serving) -> None:
    """By its sub-protocol, which the server confirms."""
    hub, heard = Hub(), Heard()
    async with serving(application(hub)) as place:
        hub.subscribe("a", heard)
        async with connect(f"ws://{place}/mounted/") as client:
            await client.publish("a", b"1", qos=1)
        assert (await heard.until())[0][0] == b"1"


async def test_a_refused_client_and_a_page_through_asgi(serving: Serving) -> None:
    hub = Hub(authenticate=lambda credentials, info: (3, "the door is locked"))
    async with serving(application(hub)) as place:
        with pytest.raises(Refused, match="the door is locked"):
            async with connect(f"smq+ws://{place}/endpoint", client_id="device-1"):
                pass
        async with httpx.AsyncClient() as browser:
            assert (await browser.get(f"http://{place}/mounted/")).status_code == 404
        with pytest.raises(Refused, match="403"):  # a foreign origin, before the handshake
            head = {"origin": "https://example.org"}
            async with httpx.AsyncClient(headers=head) as browser:
                found = await browser.get(
                    f"http://{place}/endpoint",
                    headers={
                        "connection": "upgrade", "upgrade": "websocket",
                        "sec-websocket-version": "13",
                        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
                    },
                )  # fmt: skip
                raise Refused(str(found.status_code))


async def test_the_hub_ends_connections_of_asgi(serving: Serving) -> None:
    hub = Hub()
    async with serving(application(hub)) as place:
        async with connect(
            f"smq+ws://{place}/endpoint", client_id="device-1", reconnect=False
        ) as device:
            hub.shutdown("that was it")
            with pytest.raises(Refused, match="that was it"):
                await message(device)


async def test_a_slow_reader_behind_asgi_loses_messages_and_slows_nobody() -> None:
    """The bound of its link holds, although there is no socket of ours."""
    hub = Hub()
    taken: list[int] = []
    gate, connected = asyncio.Event(), asyncio.Event()
    came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    came.put_nowait({"type": "websocket.connect"})

    async def send(event: Any) -> None:
        if event["type"] == "websocket.accept":
            connected.set()
        elif taken or event["type"] != "websocket.send" or event["bytes"][0] == 8:
            await gate.wait()
            taken.append(len(event.get("bytes", b"")))

    async with hub:
        scope = {
            "type": "websocket", "path": "/", "headers": [], "client": ("127.0.0.1", 1),
        }  # fmt: skip
        task = asyncio.create_task(hub.asgi(scope, came.get, send))
        await connected.wait()
        uid = b"device-1"
        hello = b"\x02\x01" + bytes((len(uid),)) + uid + b"\0"
        came.put_nowait({"type": "websocket.receive", "bytes": hello})
        came.put_nowait({"type": "websocket.receive", "bytes": b"\x04a"})
        while hub.topic2tid("a") is None:
            await asyncio.sleep(0.01)
        for _ in range(100):
            hub.publish(b"x" * 50_000, "a")
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert hub.node.broker.metrics.dropped["slow reader"] > 50
        gate.set()
        came.put_nowait({"type": "websocket.disconnect"})
        await task
    assert 10 < len(taken) < 50
