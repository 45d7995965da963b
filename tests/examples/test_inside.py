"""The examples of a hub inside a web application, run as their first lines say."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from hubbub import connect
from hubbub.errors import Refused
from tests.clients import PATIENCE, message
from tests.ports import free_port
from tests.process import ROOT

pytestmark = pytest.mark.interop

Start = Callable[[str], str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run an example on a free port; gives HOST:PORT."""
    running: list[subprocess.Popen[bytes]] = []

    def run(example: str) -> str:
        port = free_port()
        command = [sys.executable, str(ROOT / "examples" / example), str(port)]
        running.append(
            subprocess.Popen(
                command,
                env={"PYTHONPATH": str(ROOT / "src")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return f"127.0.0.1:{port}"
            time.sleep(0.05)
        raise AssertionError(f"{example} did not start")

    yield run
    for process in running:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


async def test_rooms(start: Start) -> None:
    place = start("inside_fastapi/rooms.py")
    async with httpx.AsyncClient(base_url=f"http://{place}") as person:
        async with connect(f"smq+ws://{place}/hub", client_id="kitchen") as room:
            await room.publish("temperature", b"21.5")
            while (await person.get("/rooms")).json() != {"kitchen": 21.5}:
                pass
            await person.put("/rooms/kitchen", params={"degrees": 19})
            assert (await message(room)).payload == b'{"degrees":19.0}'
            absent = await person.put("/rooms/cellar", params={"degrees": 8})
            assert absent.status_code == 404


async def test_doorbell(start: Start) -> None:
    place = start("inside_aiohttp/doorbell.py")
    async with httpx.AsyncClient(base_url=f"http://{place}") as person:
        assert (await person.get("/")).text == "Nobody rang."
        for scheme in ("smq", "smq+ws"):
            url = f"{scheme}://bell:ding-dong@{place}/"
            async with connect(url, client_id="gate-bell") as bell:
                await bell.subscribe("door")
                await bell.publish("bell", b"the postman")
                assert (await message(bell)).payload == b"somebody is coming"
                await person.post("/open")
                assert (await message(bell)).payload == b"open"
        assert (await person.get("/")).text == "\n".join(["gate-bell: the postman"] * 2)
        with pytest.raises(Refused, match="bells only"):
            async with connect(f"smq://{place}", client_id="stranger"):
                pass
