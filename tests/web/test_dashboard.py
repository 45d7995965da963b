"""The page in a real browser: every view at two widths, the login, what is lost and comes again.

With `HUBBUB_PICTURES=DIR` each view leaves its picture there, to be looked at.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import hubbub
from hubbub.auth.passwords import add_user
from hubbub.cluster.engine import Engine
from hubbub.cluster.switchboard import Switchboard
from hubbub.config.settings import Journal, Settings
from hubbub.core.limits import FIGURES_SECONDS
from hubbub.core.message import Message
from hubbub.core.queue import QueueSettings
from hubbub.core.session import Silent
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from hubbub.schema import name_from_wire
from hubbub.web.app import Application, _attention
from tests.process import StartHub
from tests.web.chromium import Chromium, Page

pytestmark = pytest.mark.interop

HOSTILE: Final = "<img src=x onerror=hacked()>"
VIEWS: Final = (
    "overview", "clients", "topics", "queues", "calls", "journal", "pipeline", "bridges",
    "security",
)  # fmt: skip
PICTURES: Final = os.environ.get("HUBBUB_PICTURES", "")

PIPELINE: Final[dict[str, Any]] = {
    "name": "tables", "state": "behind", "started": 1_795_364_407_000_000, "process": 7,
    "tables": "/data/tables", "spark": "", "seq": 100, "behind_rows": 1_234, "behind_seconds": 61.5,
    "batches": 3, "rows": 100, "messages": 90, "quarantined": 1, "lost_rows": 0,
    "rows_per_second": 20.5, "quarantine_rate": 0.011,
    "last_batch": {
        "batch": 2, "time": 1_795_364_407_000_000, "seconds": 1.5, "rows": 50, "messages": 45,
    },
    "by_table": [
        {"name": "messages", "seconds": 0.5, "files": 3, "bytes": 70_000},
        {"name": "readings", "seconds": None},
    ],
    "last_error": {"time": 1_795_364_407_000_000, "text": f"{HOSTILE} is no number"},
}  # fmt: skip

PLOTS: Final[list[dict[str, Any]]] = [
    {
        "title": f"Messages a minute {HOSTILE}", "unit": "", "time": [],
        "lines": [{"name": HOSTILE, "values": [7, 30, 12]}, {"name": "b", "values": [1, 2, 3]}],
    },
    {"title": "Behind", "unit": "s", "time": [], "lines": [{"name": "b", "values": [None] * 3}]},
]  # fmt: skip

# What each page of these tests has at hand: `until` waits for something, `find` is by its words.
BEGIN = """
    window.trouble = [];
    window.hacked = () => trouble.push("a name became HTML");
    addEventListener("error", ({ message }) => trouble.push(message));
    addEventListener("unhandledrejection", ({ reason }) => trouble.push(String(reason)));
    document.addEventListener("securitypolicyviolation", ({ blockedURI, violatedDirective }) =>
        trouble.push(`${violatedDirective} ${blockedURI}`));
    window.until = async (done) => {
        for (let found; ; await new Promise((go) => setTimeout(go, 20)))
            if ((found = done())) return found;
    };
    window.find = (selector, words = "") => [...document.querySelectorAll(selector)].find(
        (one) => one.textContent.includes(words) && one.offsetParent !== null);
    window.view = async (name) => {
        location.hash = `#/${name}`;
        await until(() => find(`.view[data-fresh='${name}']`));
    };
"""
# What is wrong with how a view lies there: too wide, panels over one another, words cut off.
LAID_OUT = """
    const found = [], wide = document.documentElement;
    if (wide.scrollWidth > wide.clientWidth) found.push(`${wide.scrollWidth} wide`);
    const boxes = [...document.querySelectorAll(".panel, .tiles > div, .bar, .side, .head")]
        .map((one) => [one, one.getBoundingClientRect()]);
    for (const [one, a] of boxes) for (const [other, b] of boxes)
        if (one !== other && !one.contains(other) && !other.contains(one)
            && getComputedStyle(one).position !== "sticky" && getComputedStyle(other).position !== "sticky"
            && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
            found.push(`${one.textContent.slice(0, 30)} lies over ${other.textContent.slice(0, 30)}`);
    for (const one of document.querySelectorAll("button, h1, h2, th, td.number, .tiles dd, .meters span, .facts dt"))
        if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth) found.push(`cut: ${one.textContent}`);
    return [...found, ...trouble];
"""  # noqa: E501


@asynccontextmanager
async def running(
    data: Path, listen: str = "127.0.0.1:0", engine: Engine | None = None, **settings: Any
) -> AsyncIterator[Node]:
    journal = Journal(durability="os")
    said = Settings(data=str(data), listen=(listen,), journal=journal, **settings)
    node = Node(said, engine=engine)
    node.web = Application(node)
    async with node:
        node.broker.sampled.wake()
        yield node


def url(node: Node) -> str:
    return f"http://{node.listeners[0].address}"


@asynccontextmanager
async def opened(
    browser: Chromium, node: Node, width: int = 1280, shell: bool = True
) -> AsyncIterator[Page]:
    async with browser.page(url(node), width, 900) as page:
        if width < 500:
            await page.phone(width)
        await begin(page, shell)
        yield page


async def begin(page: Page, shell: bool = True) -> None:
    await page.run(BEGIN)
    await page.run("await until(() => find(a))", ".view[data-fresh]" if shell else ".login form")


def filled(node: Node) -> None:
    """Some of everything, with names that would be HTML; and figures of ten minutes."""
    broker = node.broker
    state = Path(node.settings.data) / "pipelines/tables.json"
    state.parent.mkdir(exist_ok=True)
    now = broker.clock.stamp()
    drawn = [one | {"time": [now - ago * 60_000_000 for ago in (9, 5, 1)]} for one in PLOTS]
    state.write_text(json.dumps(PIPELINE | {"time": now, "plots": drawn}))
    for number in range(40):
        name = f"plant/line{number % 4}/temperature"
        broker.post(Message(name, json.dumps({"celsius": number}).encode(), retain=True))
    for name in (f"plant/{HOSTILE}", HOSTILE, "$queue/jobs", f"$queue/{HOSTILE}"):
        broker.post(Message(name, HOSTILE.encode(), 1, not name.startswith("$")))
    ill = broker.own("mqtt", HOSTILE)
    ill.user = HOSTILE
    for reason in (f"{HOSTILE} was too slow", ""):
        gone = Silent("mqtt", HOSTILE, ill.rights)
        broker.connect(gone, ill)
        broker.disconnect(gone, reason)
    here = Silent("mqtt", HOSTILE, ill.rights)
    broker.connect(here, ill)
    broker.refuse(here, "publish", HOSTILE)
    for number in range(60):
        broker.metrics.messages_in += 100 * (number % 7)
        node.figures.wake(node.clock.now() + (number + 1) * FIGURES_SECONDS)
    node.broker.sampled.wake()


@pytest.mark.parametrize("width", [1280, 390])
async def test_every_view_lies_well_and_no_name_becomes_html(
    browser: Chromium, tmp_path: Path, width: int
) -> None:
    async with running(tmp_path) as node:
        filled(node)
        async with opened(browser, node, width) as page:
            for name in VIEWS:
                await page.run("await view(a)", name)
                if name in ("clients", "topics", "queues"):
                    await page.run(
                        "(await until(() => find('tbody tr', a))).click();"
                        "await until(() => find('.facts, .payload'))",
                        "jobs" if name == "queues" else "onerror",
                    )
                wrong = await page.run(LAID_OUT)
                assert wrong == [], f"{name} at {width}"
                assert await page.run("return document.querySelector('.view img') === null")
                if PICTURES:
                    await page.screenshot(Path(PICTURES) / f"{name}-{width}.png")
            await page.run("await view('pipeline'); await until(() => find('.legend b', '12'))")
            shown = await page.run("return find('.panel').innerText")
            assert "behind" in shown and "1,234 rows" in shown and "messages\t3" in shown
            # A full disk is warned of, too.
            said = "return (await until(() => find('li.warn', 'pipeline'))).textContent"
            warned = await page.run(f"await view('overview'); {said}")
            assert warned == "The pipeline tables is behind by 1 min"
            await page.run("await view('clients'); find('button', 'Why did it go').click()")
            assert await page.run("return (await until(() => find('td.wide', 'slow'))).textContent")
            assert await page.run(LAID_OUT) == []
            await page.run("find('button', 'Light / dark').click(); await view('overview')")
            if PICTURES:
                await page.screenshot(Path(PICTURES) / f"dark-{width}.png")


async def test_a_pipeline_that_is_stopped_says_where_it_goes_on_and_charts_begin_with_what_there_is(
    browser: Chromium, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        filled(node)
        state = Path(node.settings.data) / "pipelines/tables.json"
        said = json.loads(state.read_text()) | {"state": "stopped", "seq": 4, "behind_rows": 0}
        state.write_text(json.dumps(said))
        async with opened(browser, node, 1280) as page:
            await page.run("await view('pipeline'); await until(() => find('.facts', 'stopped'))")
            shown = await page.run("return find('.panel').innerText")
            assert "goes on at row 5 when it is started again; " in shown
            waits = int(shown.partition("again; ")[2].partition(" rows wait")[0].replace(",", ""))
            assert 40 < waits < 1_000 and "the oldest for" not in shown and "\nstopped\n20" in shown
            begins = """
                const { Chart } = await import("/admin/chart.js");
                const now = 1795364407, chart = new Chart("t", [["n", "n"]], String);
                const at = (ago) => {
                  const time = ago.map((one) => (now - one) * 1e6);
                  chart.update({ time, n: ago }, [now - 3600, now]);
                  return now - chart.span[0];
                };
                return [at([300, 290]), at([9000, 10]), at([]), at([5])];
            """
            assert await page.run(begins) == [300, 3600, 3600, 60]


async def test_queues_that_are_full_are_named_and_of_many_some(
    browser: Chromium, tmp_path: Path
) -> None:
    """They were named by nobody, or stood behind two hundred that only hold something."""
    async with running(tmp_path) as node:
        for number in range(250):
            node.broker.post(Message(f"$queue/q{number}", b"x", 1))
        for number in range(245, 250):
            queue = node.broker.state.queues[f"q{number}"]
            queue.settings = QueueSettings(max_messages=1)
        async with opened(browser, node, 1280) as page:
            found = "return [...document.querySelectorAll('li.bad')].map((one) => one.textContent)"
            await page.run("await view('overview'); await until(() => find('li.bad', 'is full'))")
            words = "is full: what comes is turned away. It holds 1"
            full = [f"Queue q{number} {words}" for number in (245, 246)]
            said = await page.run(found)
            assert said[:2] == full and said[3:] == ["2 other queues are full"]
            await page.run("await view('queues'); await until(() => find('tbody tr'))")
            assert not await page.run("return find('td', '1, full')")
            await page.run("const box = find('input[type=search]'); box.value = 'q249';"
                           "box.dispatchEvent(new Event('input'));"
                           "await until(() => find('td', '1, full'))")
        said_there = await node.status(1)
        assert _attention(said_there) == ["a queue is full: q245"]


UNSEEN: Final = "adm\u200bin\u202e"  # looks like another name, and turns what follows around


async def test_what_is_not_seen_is_shown(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        text = "1\n\u200d2\u202e"  # a payload has lines, and joins letters
        node.broker.post(Message(UNSEEN, text.encode(), retain=True))
        ill = node.broker.own("mqtt", UNSEEN)
        node.broker.connect(Silent("mqtt", UNSEEN, ill.rights), ill)
        async with opened(browser, node) as page:
            await page.run("await view('topics'); find('tbody tr', 'adm').click()")
            shown = await page.run("return (await until(() => find('.payload'))).textContent")
            assert shown == "1\n\u200d2\\u202e"
            name = await page.run("return find('tbody tr', 'adm').cells[0].lastChild.textContent")
            assert name == "adm\\u200bin\\u202e"
            await page.run("find('button', 'Show the last').click()")  # asks for the very name
            await page.run("await until(() => document.querySelectorAll('.payload').length === 2)")
            await page.run("await view('clients')")
            for _ in range(2):
                every = await page.run("return document.documentElement.innerHTML")
                assert UNSEEN not in every and "\u200b" not in every and "\u202e" not in every
                await page.run("await view('topics')")


# Text on its ground, by the relative luminance of WCAG 2.1.
CONTRAST = """
    const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((one) => {
        const part = one / 255;
        return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    const light = (colour) => parts(colour).reduce((sum, one, at) => sum + one * [.2126, .7152, .0722][at], 0);
    const ground = (one) => {
        const colour = getComputedStyle(one).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" ? ground(one.parentElement) : colour;
    };
    const poor = [];
    for (const one of document.querySelectorAll("body *")) {
        const text = [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!text || one.disabled || one.offsetParent === null) continue;
        const [a, b] = [getComputedStyle(one).color, ground(one)].map(light);
        const found = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (found < 4.5) poor.push([one.textContent.slice(0, 30), found.toFixed(2)]);
    }
    return poor;
"""  # noqa: E501


async def test_contrast_keys_and_what_is_chosen_stays(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        filled(node)
        for number in range(80):
            node.broker.queues.named(f"q{number:02}")
        async with opened(browser, node) as page:
            for _ in ("light", "dark"):
                for name in ("overview", "queues", "security"):
                    await page.run("await view(a)", name)
                    assert await page.run(CONTRAST) == []
                await page.run("find('button', 'Light / dark').click()")
            await page.run("""
                await view("queues");
                window.row = await until(() => find("tbody tr", "q40"));
                row.click();
                row.focus();
                window.box = row.closest(".scroll");
                box.scrollTop = 500;
                const down = { key: "ArrowDown", bubbles: true };
                row.dispatchEvent(new KeyboardEvent("keydown", down));
                window.next = document.activeElement;
                window.top0 = box.scrollTop;
            """)
            node.broker.post(Message("$queue/q41", b"x", 1))
            node.broker.queues.destroy("q10")
            assert await page.run("""
                await until(() => !find("tbody tr", "q10") && find("tbody tr", "q41").cells[1].textContent === "1");
                return [row.getAttribute("aria-selected"), document.activeElement === next,
                        next.cells[0].textContent, Math.abs(box.scrollTop - top0) < 60];
            """) == ["true", True, "q41", True]  # noqa: E501


async def test_a_topic_is_read_watched_and_published_to(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        filled(node)
        async with opened(browser, node) as page:
            await page.run("""
                await view("topics");
                const mark = (name) => find("tbody tr", name)?.querySelector(".fold:enabled");
                for (const name of ["plant", "line1"]) (await until(() => mark(name))).click();
                (await until(() => find("tbody tr", "temperature"))).click();
                (await until(() => find("button", "Watch live"))).click();
                await until(() => find("span", "live"));
            """)
            kept = await page.run("return (await until(() => find('.payload'))).textContent")
            assert kept == '{\n  "celsius": 37\n}'
            node.broker.post(Message("plant/line1/temperature", HOSTILE.encode()))
            shown = "return (await until(() => find('.tail .payload', a))).textContent"
            assert await page.run(shown, "onerror") == HOSTILE
            await page.run("""
                find("textarea").value = "from the page";
                find("form button", "Publish").click();
                await until(() => find(".good", "Published at"));
            """)
            assert await page.run(shown, "from the page") == "from the page"
            await page.run("find('button', 'Show the last 20').click()")
            past = """
                const place = "[aria-label^='What was'] .payload";
                const all = () => [...document.querySelectorAll(place)];
                return (await until(() => all().length > 2 && all())).map((one) => one.textContent);
            """
            assert (await page.run(past))[:3] == [
                "from the page", HOSTILE, '{\n  "celsius": 37\n}',
            ]  # fmt: skip
            await page.run("await view('overview')")
            async with asyncio.timeout(10):
                while any(one.protocol == "http" for one in node.broker.clients.values()):
                    await asyncio.sleep(0.02)
            assert await page.run("return [...trouble]") == []


async def test_what_is_ended_is_asked_twice(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        filled(node)
        jobs = node.broker.state.queues["jobs"]
        async with opened(browser, node) as page:
            await page.run("""
                await view("queues");
                (await until(() => find("tbody tr", "jobs"))).click();
                await until(() => find(".payload", "onerror"));
                find("button", "Purge").click();
            """)
            assert len(jobs.messages) == 1
            await page.run("""
                find("button", "Really purge 1?").click();
                await until(() => find("p", "It is empty."));
                find("button", "Delete").click();
            """)
            assert not jobs.messages and "jobs" in node.broker.state.queues
            await page.run("""
                find("button", "Really delete").click();
                await until(() => find("tbody tr", "onerror") && !find("tbody tr", "jobs"));
            """)
            assert "jobs" not in node.broker.state.queues
            host, _, port = str(node.listeners[0].address).rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(codec.connect(b"panel", True, 0, None))
            await reader.readexactly(4)
            await page.run("""
                await view("clients");
                (await until(() => find("tbody tr", "panel"))).click();
                (await until(() => find("button", "End …"))).click();
            """)
            assert ("mqtt", "panel") in node.broker.sessions
            await page.run("""
                find("button", "Really end").click();
                await until(() => !find("tbody tr", "panel"));
            """)
            assert await reader.read() == b""
            writer.close()
            assert any(left.reason == "ended by hand" for left in node.broker.audit.gone)


async def test_what_stays_is_ended_too(browser: Chromium, tmp_path: Path) -> None:
    """A session that is away, what is retained and delayed; and two names that look alike."""
    async with running(tmp_path) as node:
        broker = node.broker
        lasting: dict[str, Any] = {"clean": False, "session_expiry": 60}
        address = str(node.listeners[0].address)
        async with hubbub.mqtt(f"mqtt://{address}", client_id="away", **lasting) as client:
            await client.subscribe("work/#", qos=1)
            await client.publish("$delayed/3600/later", b"x", qos=1)
            await client.publish("kept", b"21", qos=1, retain=True)
        for raw in (b"caf\xe9", b"caf\xe8"):
            broker.queues.named(name_from_wire(raw))
        broker.post(Message(name_from_wire(b"caf\xe9"), b"x"))
        async with opened(browser, node) as page:
            await page.run("""
                await view("clients");
                find("button", "Subscriptions").click();
                await until(() => find("tbody tr", "work/#"));
                find("button", "Away").click();
                (await until(() => find("tbody tr", "away"))).click();
                (await until(() => find("button", "End session …"))).click();
                find("button", "Really end its session").click();
                await until(() => !find("tbody tr", "away"));
                await view("queues");
                await until(() => document.querySelectorAll("tbody tr").length === 3);
                find("tbody tr", "caf?").click();
                (await until(() => find("button", "Delete …"))).click();
                find("button", "Really delete").click();
                await until(() => document.querySelectorAll("tbody tr").length === 2);
                find("tbody tr", "later").click();
                (await until(() => find("button", "Cancel"))).click();
                find("button", "Really cancel").click();
                await until(() => !find("tbody tr", "later"));
                await view("topics");
                const topic = () => document.querySelector("form input.mono").value;
                (await until(() => find("tbody tr", "caf?"))).click();
                await until(() => topic() === "" && find("p", "JSON cannot say it"));
                find("tbody tr", "kept").click();
                await until(() => topic() === "kept" && !find("p", "JSON cannot say it"));
                (await until(() => find("button", "Clear …"))).click();
                find("button", "Really clear").click();
                await until(() => find("p", "nothing is retained"));
            """)
            assert await page.run("return [...trouble]") == []
        assert not broker.state.sessions and not broker.state.delayed
        assert "kept" not in broker.state.retained and len(broker.state.queues) == 1


async def test_a_login_and_its_end(browser: Chromium, tmp_path: Path) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    for name in ("ann", "eve"):
        add_user(users, name, b"secret")
    rules.write_text(
        "user ann\ntopic readwrite #\ntopic read $SYS/#\nuser eve\ntopic read $SYS/#\n"
    )
    files: dict[str, Any] = {"password_file": str(users), "acl_file": str(rules)}
    log_in = """
        const [user, secret] = document.querySelectorAll(".login input");
        [user.value, secret.value] = [a, b];
        find("form button").click();
        await until(() => find(c));
    """
    async with running(tmp_path / "data", **files) as node:
        filled(node)
        async with opened(browser, node, 390, shell=False) as page:
            if PICTURES:
                await page.screenshot(Path(PICTURES) / "login-390.png")
            await page.run(log_in, "ann", "wrong", ".bad:not(:empty)")
            assert "wrong user name" in await page.run("return find('.bad').textContent")
            await page.run(log_in, "ann", "secret", ".view[data-fresh='overview']")
            assert await page.run("return document.cookie") == "", "no script sees it"
            send = """
                const said = { topic: "a/b", payload: "x" };
                const headers = a === null ? {} : { "hubbub-csrf": a };
                const sent = { method: "POST", body: JSON.stringify(said), headers };
                return (await fetch("/api/v1/publish", sent)).status;
            """
            word = await page.run("return (await (await fetch('/admin/session')).json()).csrf")
            assert [await page.run(send, one) for one in (None, "wrong", word)] == [403, 403, 200]
            await page.open(url(node))
            await begin(page)
            assert await page.run("return find('.who').textContent.startsWith('ann')"), "still in"
            await page.run("find('button', 'Log out').click(); await until(() => find('.login'))")
            asked = "return (await fetch(a, { headers: { 'hubbub-csrf': '' } })).status"
            assert await page.run(asked, "/api/v1/status") == 401
            await page.run(log_in, "eve", "secret", ".view[data-fresh='overview']")
            await page.run("""
                await view("topics");
                (await until(() => find("tbody tr", "onerror"))).click();
                await until(() => find("p", "may not receive"));
            """)
            assert await page.run("return find('.payload') === undefined"), "eve may not read it"


async def test_figures_are_there_after_a_reload(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        filled(node)
        points = """
            const { figures } = await (await fetch("/api/v1/figures", { headers: {} })).json();
            const shown = await until(() => find(".legend b"));
            await until(() => shown.textContent !== "–");
            return [figures.time.length, shown.textContent];
        """
        async with opened(browser, node) as page:
            first = await page.run(points)
            assert first[0] >= 60
            await page.open(url(node))
            await begin(page)
            assert await page.run(points) == first


async def test_the_other_nodes_of_a_cluster(browser: Chromium, tmp_path: Path) -> None:
    """One that is away stays in sight."""
    board = Switchboard()
    async with running(tmp_path / "a", engine=board.join("a")) as node:
        async with opened(browser, node) as page:
            await page.run("await view('bridges')")
            async with (
                running(tmp_path / "b", engine=board.join("b")) as other,
                hubbub.mqtt(
                    url(other).replace("http", "mqtt"), client_id="dev", clean=False,
                    session_expiry=60,
                ) as client,
            ):
                await client.subscribe("work/#", qos=1)
                said = "return (await until(() => find('td', 'up'))).closest('tr').innerText"
                assert (await page.run(said)).split("\t")[:2] == ["b", "up"]
            away = "return (await until(() => find('td', 'away'))).closest('tr').innerText"
            name, state = (await page.run(away)).split("\t")[:2]
            assert name == "b" and state.startswith("away since 20")
            node.broker.post(Message("work/1", b"x", 1))
            said = "return (await until(() => find('li.warn', 'Node'))).textContent"
            warned = await page.run(f"await view('overview'); {said}")
            assert warned == "Node b is away, and 1 messages wait for it"
            await page.run("await view('bridges')")
            assert await page.run(LAID_OUT) == []
            loaded = "const { copied } = await import('/admin/views/bridges.js');"
            said = "{ mode: 'copied', servers: 3, survives_power_loss: 'no', power_loss: 'n1' }"
            text = await page.run(f"{loaded} return copied({said})")
            assert "on 3 servers" in text and "do not survive a loss of power" in text
            if PICTURES:
                await page.screenshot(Path(PICTURES) / "nodes.png")


async def test_a_lost_hub_is_shown_and_comes_again(browser: Chromium, tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        place = str(node.listeners[0].address)
        page_of = opened(browser, node)
        page = await page_of.__aenter__()
    try:
        lost = "await until(() => find('.notice', 'does not answer') && find('.view.stale'))"
        await page.run(lost)
        assert "not now" in await page.run("return find('.when').textContent")
        async with running(tmp_path, place):
            await page.run("await until(() => find('.view[data-fresh]:not(.stale)'))")
            assert await page.run("return document.querySelector('.notice').hidden")
    finally:
        await page_of.__aexit__(None, None, None)


async def test_a_hub_that_says_nothing_is_told_apart(
    browser: Chromium, start_hub: StartHub
) -> None:
    """It is stopped, and its sockets stay: nothing comes, and no error either."""
    hub = start_hub("--set", "journal.durability=os")
    async with browser.page(hub.url("http"), 1280, 900) as page:
        await begin(page)
        hub.process.send_signal(signal.SIGSTOP)
        try:
            words = await page.run(
                "return (await until(() => find('.notice', 'nothing for'))).textContent"
            )
            assert re.fullmatch(r"The hub does not answer: nothing for \d s\.", words)
            assert "not now" in await page.run("return find('.when').textContent")
        finally:
            hub.process.send_signal(signal.SIGCONT)
        await page.run("await until(() => find('.view[data-fresh]:not(.stale)'))")
        assert await page.run("return document.querySelector('.notice').hidden")
