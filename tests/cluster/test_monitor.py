"""Whether copies survive a loss of power: what real servers say of themselves, and what others do.

Who answers strangely at a monitoring port is a real socket that says it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.cluster.monitor import MOST_BYTES, SECONDS, Server, Strange, ask, said, verdict
from tests.cluster.quorum import Quorum, has_program
from tests.process import RunningHub, StartHub

ALWAYS = "jetstream { sync_interval: always }"
PATIENCE = 60.0
OK = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
ONE = b'{"server_name":"n0","jetstream":{"config":{"sync_always":true,"sync_interval":120}}}'

A = Server("http://a:1", "n0", "always")
B = Server("http://b:1", "n1", "always")
LAZY = Server("http://c:1", "n2", "every 120 s")
DEAD = Server("http://c:1", trouble="Connection refused")


@pytest.mark.parametrize(
    ("servers", "holders", "survives", "why"),
    [
        ([], ["n0"], "unknown", "cluster.monitor does not say"),
        ([A, B], ["n0", "n1"], "yes", "n0, n1 sync each message"),
        ([A, B, LAZY], ["n0", "n1", "n2"], "no", "n2 syncs every 120 s"),
        ([A, B, LAZY], ["n0", "n1"], "yes", "n0, n1 sync each message"),  # it has no copy
        ([A, B, DEAD], ["n0", "n1", "n2"], "unknown", "n2 did not say"),
        ([A, B, DEAD], ["n0", "n1", "n2"], "unknown", "c:1: Connection refused"),
        ([A, LAZY, DEAD], ["n0", "n1", "n2"], "no", "n2 syncs"),  # whatever the other one says
        ([A, B], ["n0", "n1", "n2"], "unknown", "n2 did not say"),
        ([A], [], "yes", "n0"),
        ([LAZY], [], "no", "n2"),
        ([DEAD], [], "unknown", "refused"),
        ([A, DEAD], [], "unknown", "refused"),
        ([A, A], ["n0", "n1"], "unknown", "n1 did not say"),  # one server asked twice
        ([A, B], None, "unknown", "which servers"),
    ],
)
def test_only_all_that_have_the_stream_can_say_yes(
    servers: list[Server], holders: list[str] | None, survives: str, why: str
) -> None:
    found = verdict(servers, holders)
    assert found.survives == survives
    assert why in found.why


@pytest.mark.parametrize(
    ("config", "sync"),
    [
        (b'{"sync_always":true,"sync_interval":120000000000}', "always"),
        (b'{"sync_interval":120000000000}', "every 120 s"),
        (b'{"sync_always":false,"sync_interval":500000000}', "every 0.5 s"),
    ],
)
def test_how_a_server_syncs(config: bytes, sync: str) -> None:
    body = b'{"server_name":"n0","jetstream":{"config":%s}}' % config
    assert said(OK + body) == ("n0", sync)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, b'"n0"', b'{"server_name":7}',
        b'{"server_name":"n0"}', b'{"server_name":"n0","jetstream":{}}',
        b'{"server_name":"n0","jetstream":{"config":{}}}',
        b'{"server_name":"n0","jetstream":{"config":{"max_memory":1}}}',  # 2.9 says no more
        b'{"server_name":"n0","jetstream":{"config":{"sync_always":"true","sync_interval":1}}}',
        b'{"server_name":"n0","jetstream":{"config":{"sync_always":1,"sync_interval":1}}}',
        b'{"server_name":"n0","jetstream":{"config":{"sync_interval":true}}}',
        b'{"server_name":"n0","jetstream":{"config":{"sync_interval":-1}}}',
        b'{"server_name":"n0","jetstream":{"config":{"sync_interval":1' + b"0" * 400 + b"}}}",
        b'{"server_name":"n\\n0","jetstream":{"config":{"sync_always":true}}}',
        b'{"server_name":"","jetstream":{"config":{"sync_always":true}}}',
        b'{"server_name":"\xff","jetstream":{"config":{"sync_always":true}}}',
        ONE.replace(b"n0", b"n" * 101),
    ],
)  # fmt: skip
def test_what_is_no_such_answer_says_nothing(body: bytes) -> None:
    with pytest.raises(Strange):
        said(OK + body)


@given(st.binary(), st.sampled_from([b"", OK, b"HTTP/1.0 301 Moved\r\n\r\n", b"HTTP/1.1 200"]))
def test_garbage_is_strange_and_nothing_else(data: bytes, head: bytes) -> None:
    with contextlib.suppress(Strange):
        said(head + data)


@asynccontextmanager
async def port_that_says(
    answer: bytes, rests: bool = False
) -> AsyncIterator[tuple[str, list[int]]]:
    """Its address, and how often it was asked."""
    asked: list[int] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if rests:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_a_good_answer() -> None:
    async with port_that_says(OK + ONE) as (url, _):
        assert await ask(url, None) == Server(url, "n0", "always")
        assert await ask(url + "/nats/", None) == Server(url + "/nats/", "n0", "always")


async def test_a_redirect_is_not_followed() -> None:
    async with port_that_says(OK + ONE) as (elsewhere, asked):
        moved = f"HTTP/1.0 302 Found\r\nLocation: {elsewhere}/varz\r\n\r\n".encode()
        async with port_that_says(moved) as (url, _):
            assert await ask(url, None) == Server(url, trouble="answered 302")
        assert not asked


async def test_an_answer_without_an_end() -> None:
    async with port_that_says(OK + b" " * (4 * MOST_BYTES), rests=True) as (url, _):
        assert "more than" in (await ask(url, None)).trouble


async def test_who_says_nothing_or_half_of_it_is_waited_for_only_so_long() -> None:
    for answer in (b"", OK + ONE[:20]):
        async with port_that_says(answer, rests=True) as (url, _):
            began = time.monotonic()
            found = await ask(url, None)
            assert found.trouble == "no answer in 2 s"
            assert time.monotonic() - began < SECONDS + 2


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://nowhere.invalid:1", "http://[:1"]
)
async def test_where_nobody_is(url: str) -> None:
    found = await ask(url, None)
    assert found.trouble and not found.sync


async def test_a_port_without_tls_asked_with_it() -> None:
    async with port_that_says(OK + ONE) as (url, _):
        assert (await ask(url.replace("http", "https"), None)).trouble


# Real servers


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    quorum = Quorum(tmp_path, extra=ALWAYS)
    quorum.wait()
    yield quorum
    quorum.end()


def until(hub: RunningHub, survives: str, why: str) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE
    while True:
        status = httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE).json()
        found: dict[str, Any] = status["cluster"]["copies"]
        if found["survives_power_loss"] == survives and why in found["power_loss"]:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.2)


def metric(hub: RunningHub) -> str:
    page = httpx.get(hub.url("http") + "/metrics", timeout=PATIENCE).text
    name = "hubbub_cluster_copies_survive_power_loss "
    return next(line for line in page.splitlines() if line.startswith(name)).removeprefix(name)


@pytest.mark.slow
@pytest.mark.interop
@has_program
def test_real_servers_say_it_and_the_status_shows_it(
    quorum: Quorum, start_hub: StartHub, tmp_path: Path
) -> None:
    """All sync always; one is killed; it comes back and syncs now and then."""
    options = [word for url in quorum.urls for word in ("--cluster", url)]
    options += ["--cluster-name", "a", "--set", "cluster.copies=auto"]
    options += ["--set", f"cluster.monitor={','.join(quorum.monitors)}"]
    hub = start_hub(*options, data=tmp_path / "data")
    found = until(hub, "yes", "n0, n1, n2 sync each message")
    assert [one["sync"] for one in found["monitored"]] == ["always"] * 3
    assert metric(hub) == "1.0"
    quorum.signal(1, signal.SIGSTOP)  # it hangs, and the others go on
    assert "no answer in 2 s" in until(hub, "unknown", "n1 did not say")["power_loss"]
    assert metric(hub) == "-1.0"
    quorum.kill(1)
    quorum.extra[1] = ""
    quorum.start(1)
    until(hub, "no", "n1 syncs every 120 s")
    assert metric(hub) == "0.0"


@pytest.mark.slow
@pytest.mark.interop
@has_program
def test_a_server_that_is_alone(start_hub: StartHub, tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, 1, ALWAYS)
    quorum.wait()
    try:
        options = ["--cluster", quorum.urls[0], "--set", "cluster.copies=auto"]
        asked = ("--set", f"cluster.monitor={quorum.monitors[0]}")
        hub = start_hub(*options, *asked, "--cluster-name", "a", data=tmp_path / "data")
        until(hub, "yes", "n0 sync")
        hub = start_hub(*options, "--cluster-name", "b", data=tmp_path / "other")
        until(hub, "unknown", "cluster.monitor does not say")
    finally:
        quorum.end()
