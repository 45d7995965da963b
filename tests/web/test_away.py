"""Sessions whose clients have been away for long: which they are, and that they end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import hubbub
from hubbub import schema
from hubbub.auth.passwords import add_user
from hubbub.core.batch import LEFT, left_at
from hubbub.core.message import Message
from hubbub.core.session import FOR_EVER
from hubbub.core.state import State, lasting_properties
from hubbub.schema import Row
from hubbub.web import away
from hubbub.web.away import ENDED
from tests.command import hubbub as command
from tests.process import StartHub
from tests.web.test_login import Browser
from tests.web.test_looking import served

DAY = 86_400
AWAY = "/api/v1/sessions/away"


async def left(browser: Browser, *names: str) -> None:
    url = f"mqtt://{browser.node.listeners[0].address}"
    for name in names:
        async with hubbub.mqtt(url, client_id=name, session_expiry=3600, clean=False) as client:
            await client.subscribe("jobs/#", 1)


def long_ago(browser: Browser, days: float, *names: str) -> None:
    for name in names:
        browser.node.broker.state.sessions["mqtt", name].left -= int(days * DAY * 1e6)


async def asked(browser: Browser, method: str, **more: Any) -> dict[str, Any]:
    given = {"protocol": "mqtt", "seconds": 10 * DAY, **more}
    answer = await browser.http.request(method, AWAY, params=given)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_those_that_have_been_away_for_long_end_and_no_others(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        await left(browser, "old", "older", "young")
        long_ago(browser, 11, "old", "older")
        long_ago(browser, 9, "young")
        url = f"mqtt://{browser.node.listeners[0].address}"
        lasting: dict[str, Any] = {"session_expiry": 3600, "clean": False}
        async with hubbub.mqtt(url, client_id="here", **lasting):
            browser.node.broker.post(Message("jobs/1", b"x", 1))
            looked = await asked(browser, "GET")
            assert [one["client"] for one in looked["sessions"]] == ["old", "older"]
            assert looked["count"] == 2 and looked["sessions"][0]["left"] > 0
            second = await asked(browser, "GET", limit=1, offset=1)
            assert [one["client"] for one in second["sessions"]] == ["older"]
            assert (await asked(browser, "DELETE"))["count"] == 2
            names = {client for _, client in browser.node.broker.state.sessions}
            assert names == {"young", "here"}
            assert (await asked(browser, "DELETE"))["count"] == 0
        for wrong in ({"seconds": "x"}, {"seconds": "0"}, {"seconds": "5", "protocol": ""}):
            given = {"protocol": "mqtt", **wrong}
            assert (await browser.http.delete(AWAY, params=given)).status_code == 400


async def test_a_restart_does_not_forget_since_when(tmp_path: Path) -> None:
    """Neither from the row itself, nor from what a segment was folded into."""
    async with served(tmp_path) as browser:
        await left(browser, "old")
        since = browser.node.broker.state.sessions["mqtt", "old"].left
    await asyncio.sleep(1.1)
    for _ in range(2):
        async with served(tmp_path) as browser:
            state = browser.node.broker.state
            assert abs(state.sessions["mqtt", "old"].left - since) < 100_000
            rows = [row for row in state.rows() if row.kind == b"disconnect"]
            assert [left_at(row.properties, 0) for row in rows] == [
                state.sessions["mqtt", "old"].left
            ]
            browser.node.broker.log.append(rows[0])


@pytest.mark.parametrize(("said", "time"), [
    (LEFT % 5, 5), (b"", 7), (b'{"reason":"left"}', 7), (b'{"left":"x"}', 7), (b'{"left":', 7),
    (b'{"left":%d}' % 10**30, 7),
])  # fmt: skip
def test_since_when_by_a_row(said: bytes, time: int) -> None:
    assert left_at(said, 7) == time


@pytest.mark.parametrize(("expiry", "expires", "left"), [
    (3600, 9_000_000_000, 5_400_000_000), (3600, 0, 0), (3600, 5, 0), (FOR_EVER, 0, 0),
])  # fmt: skip
def test_a_snapshot_of_before_says_it_by_when_a_session_ends(
    expiry: int, expires: int, left: int
) -> None:
    """Those that were away when the hub became this version were never away for long."""
    state = State()
    said = lasting_properties(expiry)
    state.apply(Row(0, 0, schema.CONNECT, b"mqtt", b"old", properties=said))
    state.apply(Row(0, 0, schema.DISCONNECT, b"mqtt", b"old", expires=expires))
    assert state.sessions["mqtt", "old"].left == left


async def test_who_may_not_manage_ends_none_and_sees_none(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "eve", b"nosy")
    (tmp_path / "acl").write_text("user eve\ntopic readwrite #\ntopic read $SYS/#\n")
    files = {"password_file": str(tmp_path / "users"), "acl_file": str(tmp_path / "acl")}
    async with served(tmp_path / "data", **files) as browser:
        for method in ("GET", "DELETE"):
            answer = await browser.http.request(
                method, AWAY, params={"protocol": "mqtt", "seconds": "5"},
                auth=httpx.BasicAuth("eve", "nosy"),
            )  # fmt: skip
            assert answer.status_code == 403


async def test_very_many_end_part_by_part(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        await left(browser, "one")
        broker = browser.node.broker
        protocol = next(one for one in browser.node.protocols if one.name == "mqtt")
        for number in range(ENDED + 10):
            row = next(iter(broker.state.rows()))._replace(client=b"d%d" % number)
            broker.change(row)
            broker.take_up(broker.state.sessions["mqtt", f"d{number}"], protocol)
        long_ago(browser, 11, *(f"d{number}" for number in range(ENDED + 10)))
        assert [(await asked(browser, "DELETE"))["count"] for _ in range(3)] == [ENDED, 10, 0]
        assert set(broker.state.sessions) == {("mqtt", "one")}


async def test_a_request_is_answered_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(away, "SECONDS", -1.0)
    async with served(tmp_path) as browser:
        await left(browser, "old", "older", "young")
        long_ago(browser, 11, "old", "older")
        assert [(await asked(browser, "DELETE"))["count"] for _ in range(3)] == [1, 1, 0]


@pytest.mark.interop
@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_command(start_hub: StartHub, processes: str) -> None:
    hub = start_hub("--set", f"processes={processes}")
    for name in ("ann", "bob", "cid"):
        words = "-i", name, "-c", "-q", "1", "-W", "1", "--url", hub.url("mqtt")
        command("sub", "jobs/#", *words)
    time.sleep(3)
    at = "--url", hub.url("http")
    asks = "end", "session", "--away", "0.00002"
    looked = command(*asks, "--dry-run", *at).stdout.splitlines()
    assert sorted(line.partition(": away since 20")[0] for line in looked[:-1]) == [
        "ann", "bob", "cid"
    ]  # fmt: skip
    assert looked[-1] == "3 sessions would be over"
    assert command("end", "session", "--away", "1", *at).stdout == (
        "0 sessions are over, with what waited for them\n"
    )
    assert command(*asks, *at).stdout == "3 sessions are over, with what waited for them\n"
    assert "none" in command("ls", "away", *at).stdout
    for wrong in (("end", "session"), ("end", "queue", "--away", "1"),
                  ("end", "session", "x", "--dry-run"), ("end", "session", "--away", "nan"),
                  ("end", "session", "--away", "inf")):  # fmt: skip
        assert command(*wrong, *at).returncode == 2, wrong
