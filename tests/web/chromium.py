"""A headless Chromium for tests, driven over its DevTools protocol. No more than the tests need.

    browser = Chromium(folder)
    async with browser.page("http://127.0.0.1:1883/") as page:
        assert await page.run("return document.title") == "Hubbub"

Each page has a browser context of its own: nothing is shared, and all of it goes with the page.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

PROGRAM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING: Final = "needs Chromium (as root, tests/setup.sh installs Debian's)"
START_SECONDS: Final = 60.0
LARGEST: Final = 64 * 1024 * 1024  # bytes of one DevTools message, such as a screenshot
OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",  # root has none; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--ignore-certificate-errors",  # those of the tests are signed by nobody
    "--remote-debugging-port=0",
)


class Chromium:
    """A browser process. `stop` ends it with all its children."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._url = self._devtools_url(folder / "DevToolsActivePort")

    def _devtools_url(self, file: Path) -> str:
        """Chromium writes the port that it chose, and a path, when it is ready."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if file.exists() and len(lines := file.read_text().splitlines()) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        self._process.kill()
        raise AssertionError(f"Chromium did not start within {START_SECONDS:g} s")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)

    @asynccontextmanager
    async def page(self, url: str, width: int = 800, height: int = 600) -> AsyncIterator[Page]:
        """A page of its own at a URL, loaded."""
        async with connect(self._url, max_size=LARGEST) as socket:
            tools = DevTools(socket)
            context = (await tools.ask("Target.createBrowserContext"))["browserContextId"]
            page = Page(tools, await self._open(tools, context, width, height))
            try:
                await page.start(url)
                yield page
            finally:
                await tools.ask("Target.disposeBrowserContext", browserContextId=context)
                tools.stop()

    async def _open(self, tools: DevTools, context: str, width: int, height: int) -> str:
        target = await tools.ask(
            "Target.createTarget",
            url="about:blank", browserContextId=context, width=width, height=height,
        )  # fmt: skip
        found = await tools.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session: str = found["sessionId"]
        return session


class DevTools:
    """Questions and answers by number; an event wakes who waits for its name."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif (waiting := self._events.pop(message["method"], None)) is not None:
                waiting.set_result(message.get("params", {}))

    async def ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        question = {"id": number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(question | ({"sessionId": session} if session else {})))
        async with asyncio.timeout(30):
            message = await answer
        assert "error" not in message, f"{method}: {message['error']['message']}"
        result: dict[str, Any] = message["result"]
        return result

    def event(self, name: str) -> asyncio.Future[dict[str, Any]]:
        """Done at the next event of that name, with what it says."""
        return self._events.setdefault(name, asyncio.get_running_loop().create_future())

    def stop(self) -> None:
        self._reading.cancel()


class PageError(AssertionError):
    """What a script in the page threw."""


class Page:
    """One tab. `run` is how a test does something in it, and reads what came of it."""

    def __init__(self, tools: DevTools, session: str) -> None:
        self._tools = tools
        self._session = session

    async def start(self, url: str) -> None:
        await self._tools.ask("Page.enable", self._session)
        await self.open(url)

    async def open(self, url: str) -> None:
        loaded = self._tools.event("Page.loadEventFired")
        done = await self._tools.ask("Page.navigate", self._session, url=url)
        assert not done.get("errorText"), f"{url}: {done['errorText']}"
        async with asyncio.timeout(30):
            await loaded

    async def run(self, code: str, *values: Any) -> Any:
        """Run the body of an async function and get what it returns, as JSON can say it.

        `values` are its arguments `a`, `b`, `c`. Raises PageError if it throws.
        """
        given = ", ".join(map(json.dumps, values))
        names = ", ".join("abc"[: len(values)])
        done = await self._tools.ask(
            "Runtime.evaluate",
            self._session,
            expression=f"(async ({names}) => {{ {code} }})({given})",
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if failure := done.get("exceptionDetails"):
            raise PageError(failure.get("exception", {}).get("description", failure["text"]))
        return done["result"].get("value")

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[list[float]]:
        """In the end: processor time of each task of the page's main thread, in ms.

        That is the task itself; the Long Tasks API counts what other programs take meanwhile.
        """
        found: list[float] = []
        await self._tools.ask("Tracing.start", transferMode="ReturnAsStream", traceConfig={
            "includedCategories": ["toplevel", "blink.user_timing"], "excludedCategories": ["*"],
        })  # fmt: skip
        await self.run("performance.mark('of this page')")
        yield found
        complete = self._tools.event("Tracing.tracingComplete")
        await self._tools.ask("Tracing.end")
        stream, text, ended = (await complete)["stream"], "", False
        while not ended:
            part = await self._tools.ask("IO.read", handle=stream)
            text, ended = text + part["data"], part["eof"]
        events = json.loads(text)["traceEvents"]
        main = {(one["pid"], one["tid"]) for one in events if one["name"] == "of this page"}
        found += [
            one["tdur"] / 1000 for one in events
            if "tdur" in one and (one["pid"], one["tid"]) in main
        ]  # fmt: skip

    async def screenshot(self, file: Path) -> None:
        """Write what the page shows as PNG."""
        done = await self._tools.ask("Page.captureScreenshot", self._session, format="png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(done["data"]))

    async def phone(self, width: int = 390, height: int = 844) -> None:
        """Look like a phone: its size, its density, and a finger instead of a mouse."""
        await self._tools.ask(
            "Emulation.setDeviceMetricsOverride",
            self._session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=True,
        )
