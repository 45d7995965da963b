"""docs/guide/browser.md: its page works as it stands, and its tables name all there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import httpx
import pytest

from hubbub.client.smq import connect
from tests.process import ROOT, StartHub
from tests.web.chromium import Chromium

GUIDE: Final = (ROOT / "docs/guide/browser.md").read_text("utf-8")
SCRIPT: Final = (ROOT / "src/hubbub/web/static/hubbub.js").read_text("utf-8")

MEMBERS: Final = """
    const { Client, connect } = await import("/hubbub.js");
    const methods = Object.getOwnPropertyNames(Client.prototype);
    return [...methods, ...Object.keys(connect())].filter((name) => name !== "constructor");
"""
SHOWN: Final = """
    const shown = document.getElementById("temperature");
    while (shown.textContent !== a) await new Promise((again) => setTimeout(again, 5));
"""


def first_column(heading: str) -> set[str]:
    """The names in the first column of the table that has this heading, without arguments."""
    table = GUIDE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)", table, re.M))


@pytest.mark.interop
async def test_the_page_works_and_the_table_names_all_there_is(
    browser: Chromium, start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_file, pages = re.findall(r"<!-- page -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text(page_file, "utf-8")
    (tmp_path / "pages.py").write_text(pages, "utf-8")
    monkeypatch.chdir(tmp_path)
    hub = start_hub("--app", "pages:app")

    async with connect(hub.url("smq")) as device, asyncio.timeout(20):
        counts: asyncio.Queue[int] = asyncio.Queue()
        await device.observe("rooms/kitchen", lambda count, _: counts.put_nowait(count))
        await device.subscribe("rooms/kitchen/bell")
        async with httpx.AsyncClient(trust_env=False) as web:
            assert (await web.get(hub.url("http") + "/none.html")).status_code == 404
        async with browser.page(hub.url("http") + "/") as page:
            while not await counts.get():
                pass
            await device.publish("rooms/kitchen", b'{"celsius": 21.5}')
            await page.run(SHOWN, "21.5")
            await page.run("document.getElementById('ring').click()")
            message = await anext(device.messages())
            assert (message.topic, message.payload) == ("rooms/kitchen/bell", b"ring")
            members = await page.run(MEMBERS)
    assert first_column("of a client") == set(members)


def test_the_guide_names_every_option_and_every_export() -> None:
    options = re.findall(r"@param .*? \[options\.(\w+)\]", SCRIPT)
    assert first_column("option of `connect`") == set(options)
    for name in re.findall(r"^export (?:function|class) (\w+)", SCRIPT, re.M):
        assert re.search(rf"`{name}\b", GUIDE), name
