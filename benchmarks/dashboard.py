"""Whether the page stays smooth: the longest tasks of a real Chromium while much goes on.

`python -m benchmarks.dashboard` starts a hub, publishes MESSAGES a second to TOPICS topics, and
looks at each view for some seconds, at the width of a desk and of a phone, using it as people do.
A task of more than LONG is what somebody feels. What is measured is processor time of the page's
thread, so that other programs on the machine do not count. Prints a table; docs/guide/dashboard.md
has the result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import hubbub
from tests.process import RunningHub
from tests.web.chromium import Chromium, Page
from tests.web.test_dashboard import VIEWS, begin

TOPICS: Final = 5_000
MESSAGES: Final = 2_000  # a second
PARTS: Final = 50  # of a second: what comes comes evenly
WIDTHS: Final = (1280, 390)
LONG: Final = 50  # ms: what somebody feels
# What somebody does there, beside looking; the rest of the time the page asks by itself.
USED: Final = {
    "topics": """
        const fold = (name) => find("tbody tr", name)?.querySelector(".fold:not([disabled])");
        for (const name of ["plant", ...[..."0123456789"].map((one) => `line${one}`), "cell0"])
            (await until(() => fold(name))).click();
        (await until(() => find("tbody tr", "sensor0"))).click();
        (await until(() => find("button", "Watch live"))).click();
        const search = document.querySelector("input[type=search]");
        for (const text of ["s", "se", "sensor", ""]) {
            search.value = text;
            search.dispatchEvent(new Event("input"));
            await new Promise((go) => setTimeout(go, 1000));
        }
    """,
    "clients": "find('button', 'Subscriptions').click();",
}


async def load(url: str, ended: asyncio.Event) -> int:
    """Publish until then; how many a second it really were."""
    names = [f"plant/line{n % 25}/cell{n // 25 % 20}/sensor{n // 500}" for n in range(TOPICS)]
    loop, number = asyncio.get_running_loop(), 0
    async with hubbub.mqtt(url, client_id="load") as client:
        began = loop.time()
        while not ended.is_set():
            for _ in range(MESSAGES // PARTS):
                await client.publish(names[number % TOPICS], b'{"celsius": %d}' % number)
                number += 1
            await asyncio.sleep(max(0.0, began + number / MESSAGES - loop.time()))
        return round(number / (loop.time() - began))


async def look(page: Page, view: str, seconds: float) -> list[float]:
    async with page.tasks() as found:
        await page.run("await view(a);" + USED.get(view, ""), view)
        await asyncio.sleep(seconds)
    return found


async def measure(hub: RunningHub, browser: Chromium, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for width in WIDTHS:
        async with browser.page(hub.url("http"), width, 900) as page:
            if width < 500:
                await page.phone(width)
            await begin(page)
            await asyncio.sleep(2)  # or it is the loading that is measured
            for view in VIEWS:
                found[f"{view} at {width}"] = await look(page, view, seconds)
    return found


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hub, browser = RunningHub(Path(folder) / "data"), Chromium(Path(folder) / "browser")
        ended = asyncio.Event()
        try:
            sending = asyncio.create_task(load(hub.url("mqtt"), ended))
            await asyncio.sleep(TOPICS / MESSAGES + 1)  # each topic was there
            found = await measure(hub, browser, seconds)
            ended.set()
            rate = await sending
        finally:
            browser.stop()
            hub.stop()
    print(f"{TOPICS:,} topics, {rate:,} messages a second, load {os.getloadavg()[0]:.1f}")
    for name, tasks in found.items():
        long = sum(one > LONG for one in tasks)
        longest = max(tasks, default=0)
        print(f"{name:20} {long} of {len(tasks):6,} over {LONG} ms, the longest {longest:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="at each view")
    asyncio.run(main(parser.parse_args().seconds))
