"""Dead letters go back to where they died: who asked gets its answer, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub.auth.passwords import add_user
from hubbub.core.message import Message
from hubbub.core.queue import QueueSettings
from hubbub.core.session import Silent
from hubbub.web import requeueing
from hubbub.web.guarded import MISTAKE
from hubbub.web.requeueing import LOOKED, REQUEUE
from tests.command import hubbub
from tests.process import StartHub
from tests.test_rpc import PEERS, peer
from tests.web.test_login import Browser
from tests.web.test_looking import served


async def requeued(browser: Browser, **asked: object) -> dict[str, Any]:
    answer = await browser.http.post(REQUEUE, params={"name": "dead", **asked})  # type: ignore[dict-item]
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def died(browser: Browser, payload: bytes, place: str = "jobs", **more: Any) -> None:
    dead = {"queue": place, "id": 7, "reason": "given up"}
    message = Message("$queue/dead", payload, 1, properties={"dead": dead}, **more)
    browser.node.broker.post(message)


def payloads(browser: Browser, name: str) -> list[bytes]:
    broker = browser.node.broker
    found = [broker.log.look(seq) for seq in broker.state.queues[name].messages.values()]
    return [one.payload for one in found if one is not None]


@pytest.mark.interop
@pytest.mark.parametrize(("caller", "responder"), list(itertools.product(PEERS, PEERS)))
async def test_who_asked_gets_the_answer_of_who_serves_again(
    start_hub: StartHub, caller: str, responder: str
) -> None:
    """By correlation, by number, and by the id that the request had when it was sent."""
    hub = start_hub()
    at = "--url", hub.url("http")
    hubbub("switch", "create", "jobs", "--expires", "0.2", "--dead-letter", "dead", *at)
    async with peer(caller, hub.port, "jobs") as asking:
        await asking.ask(b"who?")
        async with asyncio.timeout(20):
            while "1" not in hubbub("requeue", "dead", "--dry-run", *at).stdout:
                await asyncio.sleep(0.05)
        hubbub("switch", "create", "jobs", "--expires", "0", *at)
        done = hubbub("requeue", "dead", *at)
        assert (done.stdout, done.returncode) == ("dead: 1 messages went to jobs\n", 0)
        async with peer(responder, hub.port, "jobs") as serving:
            await serving.respond()
            asked = await serving.taken()
            assert asked.payload == b"who?"
            await serving.answer(asked, b"me")
            assert await asking.heard() == b"me"


@pytest.mark.interop
@pytest.mark.parametrize("responder", PEERS)
async def test_who_serves_the_dead_letters_may_answer_whoever_asked(
    start_hub: StartHub, responder: str
) -> None:
    """An asker of message-switch got an answer to an id that it had never heard of."""
    hub = start_hub()
    at = "--url", hub.url("http")
    hubbub("switch", "create", "jobs", "--expires", "0.2", "--dead-letter", "dead", *at)
    async with peer("switch", hub.port, "jobs") as asking:
        async with peer(responder, hub.port, "dead") as serving:
            await serving.respond()
            await asking.ask(b"who?")
            asked = await serving.taken()
            await serving.answer(asked, b"the undertaker")
            assert await asking.heard() == b"the undertaker"


async def test_each_goes_where_it_died_and_what_cannot_stays(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        for name in ("jobs", "small", "other"):
            broker.queues.named(name)
        small = broker.state.queues["small"]
        broker.queues.configure(small, QueueSettings(max_messages=1))
        for payload, place in ((b"1", "jobs"), (b"2", "small"), (b"3", "small"), (b"4", "gone"),
                               (b"5", "dead"), (b"6", "jobs"), (b"7", "jobs")):  # fmt: skip
            died(browser, payload, place)
        broker.post(Message("$queue/dead", b"8", 1))
        ann = Silent("http", "ann", broker.open)
        broker.connect(ann, broker.own("http", "ann"))
        dead = broker.state.queues["dead"]
        assert broker.queues.take(dead, ann) is not None
        stays = {
            "somebody has it": 1, "'small' has no room": 1, "there is no queue 'gone'": 1,
            "would come back here": 1, "is no dead letter: say where it is to go": 1,
        }  # fmt: skip
        looked = (await browser.http.get(REQUEUE, params={"name": "dead"})).json()
        assert looked["moved"] == {"small": 2, "jobs": 2}, "each by itself"
        assert len(dead.messages) == 8
        assert await requeued(browser) == {
            "moved": {"small": 1, "jobs": 2}, "stayed": stays, "next": -1, "before": 8
        }  # fmt: skip
        assert payloads(browser, "jobs") == [b"6", b"7"] and payloads(browser, "small") == [b"2"]
        assert payloads(browser, "dead") == [b"1", b"3", b"4", b"5", b"8"]
        found = await requeued(browser, to="other")
        assert found["moved"] == {"other": 4} and found["stayed"] == {"somebody has it": 1}
        message = broker.log.look(next(iter(broker.state.queues["jobs"].messages.values())))
        assert message is not None and not (message.properties or {}).get("dead")
        assert (await requeued(browser, to="dead"))["moved"] == {}
        for asked, status in (({"name": "none"}, 404), ({"name": "dead", "limit": "x"}, 400),
                              ({}, 404)):  # fmt: skip
            assert (await browser.http.post(REQUEUE, params=asked)).status_code == status, asked


async def test_part_by_part_and_what_dies_meanwhile_is_not_taken_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as browser:
        browser.node.broker.queues.named("jobs")
        for number in range(5):
            died(browser, b"%d" % number)
        first = await requeued(browser, limit=2)
        assert (first["moved"], first["next"], first["before"]) == ({"jobs": 2}, 2, 5)
        died(browser, b"again")
        goes_on = {"limit": 2, "from": first["next"], "before": first["before"]}
        second = await requeued(browser, **goes_on)
        third = await requeued(browser, **{**goes_on, "from": second["next"]})
        assert (second["next"], third["next"]) == (4, -1)
        assert payloads(browser, "dead") == [b"again"]
        assert payloads(browser, "jobs") == [b"%d" % number for number in range(5)]


async def test_a_request_is_answered_in_time_and_says_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 of 1 MB took 20 s, and `hubbub requeue` said after ten that no hub answers."""
    monkeypatch.setattr(requeueing, "SECONDS", -1.0)
    async with served(tmp_path) as browser:
        for name in ("dead", "jobs", "other"):
            browser.node.broker.queues.named(name)
        for number in range(6):
            died(browser, b"%d" % number, "other" if number % 2 else "jobs")
        found, moved = await requeued(browser), []
        while True:
            moved.append(found["moved"])
            if found["next"] < 0:
                break
            more = {"from": found["next"], "before": found["before"]}
            found = await requeued(browser, **more)
        assert moved == [{"jobs": 1}, {"other": 1}] * 3
        assert payloads(browser, "other") == [b"1", b"3", b"5"]


async def test_who_may_do_it(tmp_path: Path) -> None:
    """The rights that it takes to give a queue a place for its dead letters."""
    for name in ("ann", "bob", "eve"):
        add_user(tmp_path / "users", name, b"secret")
    (tmp_path / "acl").write_text(
        "user ann\ntopic manage $queue/dead\ntopic write $queue/jobs\n"
        "user bob\ntopic readwrite $queue/#\nuser eve\ntopic manage $queue/dead\n"
    )
    files = {"password_file": str(tmp_path / "users"), "acl_file": str(tmp_path / "acl")}
    async with served(tmp_path / "data", **files) as browser:
        for name in ("jobs", "others"):
            browser.node.broker.queues.named(name)
        died(browser, b"1")
        died(browser, b"2", "others")
        for user, asked, status, moved in (
            ("bob", {}, 403, None), ("eve", {}, 200, {}), ("eve", {"to": "jobs"}, 403, None),
            ("ann", {"to": "others"}, 403, None), ("ann", {}, 200, {"jobs": 1}),
        ):  # fmt: skip
            answer = await browser.http.post(
                REQUEUE, params={"name": "dead", **asked}, auth=httpx.BasicAuth(user, "secret")
            )
            assert answer.status_code == status, (user, asked)
            assert answer.json().get("moved") == moved
        assert payloads(browser, "dead") == [b"2"] and payloads(browser, "jobs") == [b"1"]


@pytest.mark.interop
@pytest.mark.slow
def test_a_kill_in_the_midst_loses_none(start_hub: StartHub) -> None:
    """It may come twice: it enters there before it goes here."""
    hub = start_hub()
    count, rounds = 20_000, 3
    hubbub("switch", "create", "jobs", "--url", hub.url("http"))
    lines = "".join(f"{number}\n" for number in range(count))
    hubbub("pub", "$queue/dead", "-l", "-q", "1", "--url", hub.url("mqtt"), stdin=lines)
    for _ in range(rounds):
        with httpx.Client(timeout=30) as web:
            for _ in range(2):
                url = f"{hub.url('http')}{REQUEUE}?name=dead&to=jobs&limit={LOOKED}"
                assert web.post(url).json()["moved"] == {"jobs": LOOKED}
        done = asyncio.run(_killed(hub.url("http"), hub))
        assert done
        hub = start_hub()
    seen: list[str] = []
    for name in ("dead", "jobs"):
        words = "-q", "1", "-W", "3", "-F", "%p", "--url", hub.url("mqtt")
        seen += hubbub("sub", f"$queue/{name}", *words).stdout.split()
    assert len(set(seen)) == count
    assert len(seen) - count <= rounds * LOOKED


async def _killed(url: str, hub: Any) -> bool:
    """In the midst of a request."""
    async with httpx.AsyncClient(timeout=30) as web:
        asking = asyncio.create_task(web.post(f"{url}{REQUEUE}?name=dead&to=jobs&limit={LOOKED}"))
        await asyncio.sleep(0.02)
        hub.stop(signal.SIGKILL)
        answer = await asyncio.gather(asking, return_exceptions=True)
    return isinstance(answer[0], Exception)


async def test_what_breaks_on_the_way_is_said_and_what_was_done_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was answered as if all were well, and that somebody moved them was told nowhere."""
    async with served(tmp_path) as browser:
        broker = browser.node.broker
        for name in ("jobs", "dead"):
            broker.queues.named(name)
        for number in range(3):
            died(browser, b"%d" % number)
        read, bad = broker.log.read, list(broker.state.queues["dead"].messages.values())[2]

        def breaks(seq: int) -> Message | None:
            if seq == bad:
                raise ZeroDivisionError
            return read(seq)

        monkeypatch.setattr(broker.log, "read", breaks)
        caplog.set_level("INFO", "hubbub.audit")
        answer = await browser.http.post(REQUEUE, params={"name": "dead", "to": "jobs"})
        assert answer.status_code == 500 and answer.json()["detail"] == MISTAKE
        assert payloads(browser, "jobs") == [b"0", b"1"]
        assert "ZeroDivisionError" in caplog.text and "requeue $queue/dead: done" in caplog.text


@pytest.mark.interop
def test_what_a_full_queue_of_another_process_has_no_room_for_stays(start_hub: StartHub) -> None:
    """It was let go of there: 3,900 of 4,000."""
    hub = start_hub("--set", "processes=2")
    at, count = ("--url", hub.url("http")), 300

    def until(holds: Callable[[], bool]) -> None:
        over = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < over
            time.sleep(0.05)

    def queues() -> dict[str, tuple[int, int]]:
        with httpx.Client(timeout=30) as web:
            rows = web.get(hub.url("http") + "/api/v1/ls/queues?limit=200").json()["queues"]
        return {row["queue"]: (row["process"], row["messages"]) for row in rows}

    for number in range(60):
        hubbub("switch", "create", f"q{number}", "--max-messages", "100", *at)
        found = queues()
        if {process for process, _ in found.values()} == {1, 2}:
            break
    full, dead = (next(one for one in found if found[one][0] == process) for process in (1, 2))
    hubbub("switch", "create", dead, "--max-messages", "0", *at)
    line = f'{{"topic": "$queue/{dead}", "payload": "x", "qos": 1}}\n'
    with httpx.Client(timeout=30) as web:
        web.post(hub.url("http") + "/api/v1/publish", content=count * line)
    until(lambda: queues()[dead][1] == count)
    for _ in range(2):
        done = hubbub("requeue", dead, "--to", full, *at)
        assert "has no room" in done.stderr and done.returncode == 1
    until(lambda: queues()[full][1] == 100)
    assert queues()[dead][1] == count - 100
