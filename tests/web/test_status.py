"""The page of the status as a browser shows it, and the status on a terminal."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hubbub import connect
from tests.process import RunningHub
from tests.web.chromium import Chromium

pytestmark = pytest.mark.interop

SHOWN = """
    const shown = (id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => row.textContent);
    while (!shown("clients").length) await new Promise((go) => setTimeout(go, 20));
"""


async def test_the_page_shows_clients_by_the_names_they_say(
    hub: RunningHub, browser: Chromium
) -> None:
    async with connect(hub.url("mqtt"), client_id="<b>panel</b>") as client:
        await client.subscribe("telemetry/#")
        await client.publish("$queue/<jobs>", b"x", qos=1)
        async with browser.page(hub.url("http")) as page:
            assert await page.run(SHOWN + "return shown('clients')") == [
                "ClientProtocolAddressSubscriptionsLost",
                "<b>panel</b>mqtt127.0.0.110",
            ]
            queue = (await page.run(SHOWN + "return shown('queues')"))[1]
            assert re.fullmatch(r"<jobs>1, the oldest for .* snever came", queue)
            figures = await page.run("return document.getElementById('figures').innerText")
            assert re.search(r"clients\s+1\s+connections\s+\d", figures)
            assert await page.run("return document.getElementById('trouble').innerText") == ""


def test_the_terminal_says_how_many_are_left_out(hub: RunningHub) -> None:
    for number in range(3):
        call("pub", f"$queue/q{number}", "-m", "x", "--url", hub.url("mqtt"))
    said = call("status", "--url", hub.url("http"), "--limit", "2")
    assert "queues (2 of 3)" in said
    assert "clients (" not in said


def call(*options: str) -> str:
    command = (sys.executable, "-m", "hubbub", *options)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
