"""The browser example as its user sees it: one command, then a page in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hubbub.client.mqtt import connect
from tests.process import ROOT
from tests.web.chromium import Chromium

PICTURE: Final = ROOT / "build/browser-device.png"
WAIT: Final = """
    const until = async (done) => { while (!done()) await new Promise((go) => setTimeout(go, 20)) };
    const text = (id) => document.getElementById(id).textContent;
"""

pytestmark = [pytest.mark.interop, pytest.mark.slow]


class Example:
    """The running example: `page` and `hub` are the addresses that it printed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "examples/browser_device/run.py"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.search(r"Open (\S+).*--url (\S+)", said, re.DOTALL)
        assert found, said
        self.page, self.hub = found.groups()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def example() -> Iterator[Example]:
    running = Example()
    yield running
    if running.process.poll() is None:
        running.stop()


async def state(messages: Any, **wanted: Any) -> dict[str, Any]:
    """The first state of the lamp that says what is wanted."""
    async for message in messages:
        said: dict[str, Any] = json.loads(message.payload)
        if said.items() >= wanted.items():
            return said
    raise AssertionError("no more messages")


async def test_a_page_on_a_phone_drives_the_lamp(example: Example, browser: Chromium) -> None:
    async with browser.page(example.page, 390, 760) as page, connect(example.hub) as watching:
        await page.phone(390, 760)
        async with asyncio.timeout(60):
            await page.run(WAIT + "await until(() => text('status') === 'online')")
            await page.run(WAIT + "await until(() => text('about').startsWith('there since'))")
            await page.run(WAIT + "await until(() => text('celsius') !== '–')")
            await watching.subscribe("lamp/state")
            messages = watching.messages()

            await page.run("""
                const slider = document.getElementById("level");
                slider.value = 90;
                slider.dispatchEvent(new Event("input"));
            """)
            said = await state(messages, on=True, level=0.9)
            assert said["watts"] == 36
            await page.run(WAIT + "await until(() => text('watts') === '36.0')")

            await page.run("document.getElementById('lamp').click()")
            await state(messages, on=False, watts=0)
            await page.run("document.getElementById('lamp').click()")
            await state(messages, on=True)

            # The picture wants a line to show.
            await page.run(WAIT + "await until(() => Number(text('celsius')) > 70)")
            await page.screenshot(PICTURE)
        size = await page.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert size[0] <= size[1], "it fits on a phone"

    assert PICTURE.stat().st_size > 10_000
    assert example.stop() == 0
