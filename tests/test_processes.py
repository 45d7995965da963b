"""`hubbub serve --processes N`: real processes, killed and stopped, with clients on all of them.

The kernel chooses the process of a connection, so tests make enough of them to be at each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx
import pytest

from hubbub import connect
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Bridge, Journal, Limits, Listener, Settings
from hubbub.core.clock import Clock
from hubbub.errors import Refused
from hubbub.journal import segments
from hubbub.processes import Child, Parent, share_of
from hubbub.processes import Place as InPlace
from hubbub.spark import options
from hubbub.spark.hub import Hub
from hubbub.spark.source import Reader
from hubbub.web.together import shares
from tests.clients import PATIENCE, Mqtt, mqtt
from tests.cluster.roaming import Place, Roaming
from tests.cluster.test_queues import switch
from tests.command import hubbub
from tests.journal.rows import Desk
from tests.journal.rows import message as row
from tests.ports import free_port
from tests.process import ROOT, RunningHub, StartHub
from tests.runtime.test_control import Admin, beginning, create
from tests.web.chromium import Chromium
from tests.web.test_dashboard import begin

TWO = ("--processes", "2")
ACCESS = options.Access("", "", PATIENCE)
REFUSED = (0x86, 0x89)  # who guesses much is slowed down
MANY = 12  # connections: all at one of two processes in one of 2,048 runs


def processes(hub: RunningHub) -> dict[int, int]:
    """The ids of those that serve, by number."""
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(re.findall(r"\nPPid:\s+(\d+)", (entry / "status").read_text())[0]) == (
                hub.process.pid
            ):
                held = {os.readlink(one) for one in (entry / "fd").iterdir()}
                numbers = [m[1] for one in held if (m := re.search(r"/data/(\d+)/lock$", one))]
                found |= {int(number): int(entry.name) for number in numbers}
        except (OSError, IndexError):
            continue
    return found


async def until(holds: Any) -> None:
    async with asyncio.timeout(6 * PATIENCE):  # beside six others a process starts in 20 s
        while not holds():
            await asyncio.sleep(0.05)


def log_of(hub: RunningHub) -> str:
    return (hub.data.parent / "hub.log").read_text()


def refused(tmp_path: Path, *options: str) -> tuple[int, str]:
    ended = hubbub("serve", "-p", "0", "--data", str(tmp_path / "data"), *options)
    return ended.returncode, ended.stderr


# What a process is given


def test_bounds_of_the_machine_are_divided_and_those_of_one_client_are_not(tmp_path: Path) -> None:
    settings = Settings(
        data=str(tmp_path), journal=Journal(retain_bytes=1000), processes=4,
        limits=Limits(waiting_bytes=4096, user_connections=7),
        listener=(Listener(address="127.0.0.1:0", max_connections=10),),
        bridge=(Bridge(name="x", addresses=("h:1",), topics=("a out",)),),
    )  # fmt: skip
    first, last = share_of(settings, 1, 4), share_of(settings, 4, 4)
    assert (first.data, last.data) == (f"{tmp_path}/1", f"{tmp_path}/4")
    assert last.journal.retain_bytes == 250 and last.limits.waiting_bytes == 1024
    assert last.listener[0].max_connections == 3
    assert last.limits.user_connections == 7
    assert len(first.bridge) == 1 and last.bridge == ()


def test_what_the_disk_may_take_is_divided_where_no_setting_says_it(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), processes=2)
    each = share_of(settings, 1, 2).journal.retain_bytes
    disk = os.statvfs(tmp_path)
    assert each == pytest.approx(disk.f_blocks * disk.f_frsize / 10, rel=0.01)


# As one hub


@pytest.mark.interop
async def test_clients_of_all_protocols_at_both_processes_are_those_of_one_hub(
    start_hub: StartHub,
) -> None:
    hub = start_hub(*TWO)
    assert len(processes(hub)) == 2 and "2 processes" in hub.banner
    place = Place(hub.address)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(mqtt(place, f"panel-{n}")) for n in range(MANY)  # type: ignore[arg-type]
        ]
        for one in clients:
            await one.subscribe("news/#")
        devices = []
        for n in range(MANY):
            device = await stack.enter_async_context(
                connect(f"smq://{hub.address}", client_id=f"device-{n}", reconnect=False)
            )
            await device.subscribe("news")
            devices.append(device)
        cluster = await asyncio.to_thread(status, hub)
        assert cluster["cluster"]["nodes"][0]["clients"] > 0 and cluster["client_count"] > 0
        await asyncio.sleep(0.5)  # what one process hears of the other's subscriptions
        assert await clients[0].publish("news", b"from one") == 0
        for one in clients:
            assert await one.message() == ("news", b"from one")
        for device in devices:
            async with asyncio.timeout(PATIENCE):
                assert (await anext(aiter(device.messages()))).payload == b"from one"
    assert hub.stop() == 0


def status(hub: RunningHub) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fetch(hub, "api/v1/status"))
    return found


@pytest.mark.interop
async def test_a_killed_process_is_back_and_nothing_acknowledged_is_lost(
    start_hub: StartHub,
) -> None:
    hub = start_hub(*TWO)
    place = Place(hub.address)
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        assert await one.open() == 0
        assert await one.want("jobs", 1) == 1
        await one.close()
    await asyncio.sleep(0.5)
    acknowledged: list[bytes] = []
    over = asyncio.Event()
    publishing = asyncio.create_task(publish(place, acknowledged, over))
    await killed_in_turn(hub, acknowledged, 1, 2, 1)
    over.set()
    await publishing
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        await comes_in(one)
        assert one.present, f"away-{n}"
        missing = set(acknowledged)
        with contextlib.suppress(TimeoutError):
            while missing:
                missing.discard((await one.message())[1])
        assert not missing, f"away-{n}"
        await one.close()
    assert hub.stop() == 0
    assert log_of(hub).count("killed by SIGKILL; it is started again") == 3


async def more(acknowledged: list[bytes]) -> None:
    least = len(acknowledged) + 50
    await until(lambda: len(acknowledged) > least)


def is_back(hub: RunningHub, number: int, before: int) -> bool:
    return processes(hub).get(number, before) != before


async def killed_in_turn(hub: RunningHub, acknowledged: list[bytes], *numbers: int) -> None:
    """Each of these processes, while somebody publishes; afterwards that goes on."""
    for number in numbers:
        await more(acknowledged)
        os.kill(victim := processes(hub)[number], signal.SIGKILL)
        await until(partial(is_back, hub, number, victim))
    await more(acknowledged)


async def comes_in(one: Mqtt) -> None:
    """A session may be at home where nobody is for a second."""
    async with asyncio.timeout(3 * PATIENCE):
        while await connected(one) != 0:
            await one.close()
            await asyncio.sleep(0.2)


async def connected(one: Mqtt) -> int:
    try:
        return await one.open()
    except (OSError, TimeoutError):
        return -1


async def publish(place: Any, acknowledged: list[bytes], over: asyncio.Event) -> None:
    """Say one number after the other, again on a new connection when one is cut."""
    number = 0
    while not over.is_set():
        client = Mqtt(place, "teller")
        client.paho._reconnect_on_failure = False
        if await connected(client) == 0:
            while not over.is_set():
                number += 1
                client.paho.publish("jobs", str(number).encode(), 1)
                if (await client.codes.get())[0] != "publish":
                    break
                acknowledged.append(str(number).encode())
        await client.close()


@pytest.mark.interop
async def test_a_client_id_is_one_client_at_both_processes(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    before = Roaming(place, "panel", expiry=0)
    assert await before.open() == 0
    for _ in range(MANY):
        after = Roaming(place, "panel", expiry=0)
        assert await after.open() == 0
        assert await before.code("disconnect") == 0x8E
        await before.close()
        before = after
    await before.close()


@pytest.mark.interop
def test_a_socket_of_the_file_system_is_one_for_all(start_hub: StartHub, tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    hub = start_hub(*TWO, "--switch-socket", str(path))
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(path))
            client.sendall(b"GET /nothing HTTP/1.1\r\n\r\n")
            assert client.recv(12).startswith(b"HTTP/1.")
        victim = processes(hub)[1]
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 3 * PATIENCE
        while not is_back(hub, 1, victim) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert hub.stop() == 0 and not path.exists()


@pytest.mark.interop
async def test_permissions_that_are_managed_hold_at_both_processes(
    start_hub: StartHub, tmp_path: Path
) -> None:
    file = beginning(tmp_path / "dynamic.json")
    hub = start_hub(*TWO, "--set", f"dynamic_security={file}")
    place: Any = Place(hub.address)
    admin = await Admin.log_in(place)
    await admin.do(create("ann"))
    await asyncio.sleep(0.5)
    clients = [Mqtt(place, f"ann-{n}", "ann", "pw") for n in range(MANY)]
    for one in clients:
        assert await one.open() == 0
    await admin.do({"command": "deleteClient", "username": "ann"})
    for one in clients:
        assert await one.code("disconnect") == 0x87
        await one.close()
    for n in range(MANY):
        again = Mqtt(place, f"again-{n}", "ann", "pw")
        assert await again.open() in REFUSED
        await again.close()
    os.kill(victim := processes(hub)[2], signal.SIGKILL)
    await until(partial(is_back, hub, 2, victim))
    for n in range(MANY):
        again = Mqtt(place, f"later-{n}", "ann", "pw")
        assert await again.open() in REFUSED
        await again.close()
    admin.close()


@pytest.mark.interop
async def test_signals_reach_every_process(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    hub.process.send_signal(signal.SIGHUP)
    await until(lambda: log_of(hub).count("the configuration was read again") == 2)
    hub.process.send_signal(signal.SIGUSR1)
    await until(lambda: log_of(hub).count("what clients do is shown") == 2)
    assert hub.stop(signal.SIGINT) == 0
    assert log_of(hub).count("committing the journal") == 2


@pytest.mark.interop
def test_a_service_manager_hears_once_that_all_serve(
    start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        hub = start_hub(*TWO)
        assert manager.recv(1000) == b"READY=1\nSTATUS=2 processes serve"
        assert hub.stop() == 0
        assert manager.recv(1000).startswith(b"STOPPING=1")


@pytest.mark.interop
async def test_the_processes_end_with_their_parent(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    serving = processes(hub)
    hub.stop(signal.SIGKILL)
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in serving.values()))
    again = start_hub(*TWO)  # what the parent left does not matter
    assert len(processes(again)) == 2


def impatient(tmp_path: Path, bounds: str) -> Path:
    """`hubbub` with other bounds of the parent."""
    program = tmp_path / "hubbub"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = ['{ROOT}/src', '{tmp_path}']\n"
        f"from hubbub import __main__, processes\n{bounds}\n__main__.main()\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.interop
def test_a_process_that_hangs_does_not_keep_the_hub_from_stopping(tmp_path: Path) -> None:
    program = impatient(tmp_path, "processes.STOP_SECONDS = 2.0")
    hub = RunningHub(tmp_path / "data", *TWO, program=program)
    os.kill(hangs := processes(hub)[2], signal.SIGSTOP)
    try:
        assert hub.stop() == signal.SIGKILL
    finally:
        if hub.process.poll() is None:
            os.kill(hangs, signal.SIGKILL)
            hub.stop(signal.SIGKILL)
    assert "process 2 has not stopped for 2 s: it hangs, and is killed" in log_of(hub)


@pytest.mark.interop
async def test_five_failed_starts_in_a_row_end_all(start_hub: StartHub) -> None:
    """One that serves again between them begins a new row."""
    hub = start_hub(*TWO)
    file = hub.data / "2" / "format"
    good = file.read_text()

    async def fails(count: int) -> None:
        file.write_text("hubbub journal 99\n")
        os.kill(processes(hub)[2], signal.SIGKILL)
        await until(lambda: failures() >= count)

    def failures() -> int:
        return log_of(hub).count("process 2 ended with code 2; it is started again")

    await fails(1)
    file.write_text(good)
    async with asyncio.timeout(3 * PATIENCE):
        while (await asyncio.to_thread(status, hub))["process"] != "2 of 2":
            await asyncio.sleep(0.05)
    before = failures()
    assert hub.process.poll() is None and before < 5
    await fails(before + 4)
    assert await asyncio.to_thread(hub.process.wait, 3 * PATIENCE) == 2
    assert failures() == before + 4
    assert "process 2 ended with code 2 before it served: all end" in log_of(hub)
    assert log_of(hub).count("hubbub journal 99") == before + 5


_APP = """
import time

async def app(scope, receive, send):
    began = time.monotonic()
    if scope["path"] == "/still":
        time.sleep(60)
    while scope["path"] == "/busy" and time.monotonic() - began < 12:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
"""


@pytest.mark.interop
@pytest.mark.slow
async def test_one_that_hangs_is_killed_and_one_that_works_is_not(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(_APP)
    program = impatient(tmp_path, "processes.HUNG_SECONDS = 4.0")
    hub = RunningHub(tmp_path / "data", *TWO, "--app", "busy:app", program=program)
    killed = re.compile(r"process (.) \(\d+\) has shown no sign of life for \d+ s: it hangs")
    try:
        before = processes(hub)
        assert await asyncio.to_thread(fetch, hub, "busy", 3 * PATIENCE) == b"done"
        assert processes(hub) == before and not killed.findall(log_of(hub))
        os.kill(before[2], signal.SIGSTOP)
        await until(partial(is_back, hub, 2, before[2]))
        assert killed.findall(log_of(hub)) == ["2"]
        before = processes(hub)
        with pytest.raises(OSError):  # its process is killed under it
            await asyncio.to_thread(fetch, hub, "still", 3 * PATIENCE)
        assert len(killed.findall(log_of(hub))) == 2
        await until(lambda: len(processes(hub)) == 2 and processes(hub) != before)
    finally:
        hub.stop(signal.SIGKILL)


def test_a_parent_that_stood_still_has_heard_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(1)
    child.pid, child.ready = os.getpid(), True
    monkeypatch.setattr("hubbub.processes.work_of", lambda pid: 0.0)
    child.lives()
    assert not any(child.hangs(1.0) for _ in range(29)) and child.hangs(1.0)
    child.lives()
    assert not child.hangs(1.0), "it was heard"


def test_a_start_has_its_time_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    child, work = Child(1), iter(range(100_000))
    child.pid = os.getpid()
    monkeypatch.setattr("hubbub.processes.work_of", lambda pid: float(next(work)))
    child.lives()
    assert not any(child.hangs(1.0) for _ in range(3_000))
    child.ready = True
    child.lives()
    assert sum(not child.hangs(1.0) for _ in range(301)) == 299, "one turn of who serves has an end"


@pytest.mark.interop
def test_in_memory_there_is_no_directory(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub(*TWO, "--set", "journal.record=none")
    assert status(hub)["cluster"]["nodes"]
    assert hub.stop() == 0 and not (tmp_path / "data").exists()


@pytest.mark.interop
async def test_a_queue_is_one_queue_at_both_processes(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(switch(place, f"worker-{n}")) for n in range(MANY)
        ]
        panels = [await stack.enter_async_context(mqtt(place, f"teller-{n}")) for n in range(MANY)]
        assert await clients[0].get("/persistent/jobs") == "jobs"
        await asyncio.sleep(0.5)  # until the other process has heard of it
        for n, one in enumerate(clients):
            assert await one.send("jobs", b"call") == [["jobs", n]]
        for panel in panels:
            assert await panel.publish("$queue/jobs", b"told") == 0
        for n, one in enumerate(clients):
            (_, number), _ = (await one.take("jobs"))[0]
            assert await one.get(f"/ack/jobs/{number}?tell=1") == "1", n
        clients[0].cursor.clear()
        left = await clients[0].take("jobs")
        assert [said for _, said in left] == ["told"] * MANY
    every = await asyncio.to_thread(status, hub)
    assert sum(one["queue_count"] for one in every["processes"]) == 1


@pytest.mark.interop
async def test_what_a_process_says_it_says_for_all_or_says_of_which(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    async with AsyncExitStack() as stack:
        for n in range(MANY):
            await stack.enter_async_context(mqtt(place, f"panel-{n}"))
        found = await asyncio.to_thread(status, hub)
        assert found["process"] in ("1 of 2", "2 of 2")
        assert [one["process"] for one in found["processes"]] == [1, 2]
        assert sum(one["client_count"] for one in found["processes"]) == MANY
        page = (await asyncio.to_thread(fetch, hub, "metrics")).decode()
        clients = re.findall(r'hubbub_clients{process="(.)",protocol="mqtt"} (.*)', page)
        assert [one for one, _ in clients] == ["1", "2"]
        assert sum(float(count) for _, count in clients) == MANY
        assert len(re.findall("# TYPE hubbub_clients ", page)) == 1
        os.kill(processes(hub)[2], signal.SIGSTOP)
        alone = await asyncio.to_thread(status_of_first, hub)
        assert [one["up"] for one in alone["processes"]] == [True, False]
        os.kill(processes(hub)[2], signal.SIGCONT)


# What is listed, and what is ended


def listed(hub: RunningHub, what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fetch(hub, f"api/v1/{what}"))
    return found


def ended(hub: RunningHub, what: str) -> int:
    try:
        with urlopen(
            Request(f"{hub.url('http')}/api/v1/{what}", method="DELETE"), timeout=PATIENCE
        ) as answer:
            status: int = answer.status
            return status
    except HTTPError as error:
        return error.code


@pytest.mark.interop
async def test_lists_are_of_all_processes_and_a_page_of_them_is_whole(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    names = [f"panel-{n:02}" for n in range(MANY)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(mqtt(place, name)) for name in names]
        for one in clients:
            await one.subscribe("news/#")
        await clients[0].publish("kept", b"x", retain=True)
        await asyncio.sleep(0.5)
        found = await asyncio.to_thread(listed, hub, "ls/clients?search=panel")
        assert found["count"] == MANY
        assert sorted(one["client"] for one in found["clients"]) == names
        assert {one["process"] for one in found["clients"]} == {1, 2}
        assert sum(one["count"] for one in found["processes"]) == MANY
        pages = [
            await asyncio.to_thread(listed, hub, f"ls/clients?search=panel&limit=5&offset={at}")
            for at in range(0, MANY + 5, 5)
        ]
        assert [one["client"] for page in pages for one in page["clients"]] == [
            one["client"] for one in found["clients"]
        ]
        filters = await asyncio.to_thread(listed, hub, "ls/subscriptions?search=news")
        assert sorted(one["client"] for one in filters["subscriptions"]) == names
        retained = await asyncio.to_thread(listed, hub, "ls/retained?search=kept")
        assert retained["count"] == 1 and "processes" not in retained, "every process has all"
        for name in ("process-1", "process-2"):
            assert await asyncio.to_thread(ended, hub, f"nodes?name={name}") == 404
    for _ in range(100):
        gone = await asyncio.to_thread(listed, hub, "ls/gone?limit=8")
        if gone["count"] == MANY:
            break
        await asyncio.sleep(0.1)
    times = [one["time"] for one in gone["gone"]]
    assert len(times) == 8 and times == sorted(times, reverse=True), "the last ones of all"


@pytest.mark.interop
async def test_what_is_ended_by_hand_is_ended_where_it_is(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(mqtt(place, f"panel-{n}")) for n in range(MANY)
        ]
        for n, one in enumerate(clients):
            path = f"clients?protocol=mqtt&client=panel-{n}"
            assert await asyncio.to_thread(ended, hub, path) == 200
            await one.code("disconnect")
        assert await asyncio.to_thread(ended, hub, "clients?protocol=mqtt&client=nobody") == 404
        worker = await stack.enter_async_context(switch(place, "worker"))
        teller = await stack.enter_async_context(mqtt(place, "teller"))
        for n in range(6):
            name = f"jobs-{n}"
            assert await worker.get(f"/persistent/{name}") == name
            await asyncio.sleep(0.3)  # until the other process has heard of it
            assert await teller.publish(f"$queue/{name}", b"told") == 0
            for _ in range(3):
                queue = await asyncio.to_thread(listed, hub, f"queue?name={name}")
                assert [one["text"] for one in queue["messages"]] == ["told"]
            path = f"queue/messages?name={name}"
            assert await asyncio.to_thread(ended, hub, path) == 200
            assert (await asyncio.to_thread(listed, hub, f"queue?name={name}"))["count"] == 0
            assert await asyncio.to_thread(ended, hub, f"queue?name={name}") == 200
            assert await asyncio.to_thread(ended, hub, f"queue?name={name}") == 404
    assert log_of(hub).count("end mqtt panel-") == MANY, "each where it was"


@pytest.mark.interop
async def test_sessions_that_are_away_end_wherever_they_are_at_home(start_hub: StartHub) -> None:
    hub = start_hub(*TWO)
    place = Place(hub.address)
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        assert await one.open() == 0
        await one.close()
    for _ in range(100):
        found = await asyncio.to_thread(listed, hub, "ls/away")
        if found["count"] == MANY:
            break
        await asyncio.sleep(0.1)
    assert {one["process"] for one in found["away"]} == {1, 2}
    for n in range(MANY):
        path = f"sessions?protocol=mqtt&client=away-{n}"
        assert await asyncio.to_thread(ended, hub, path) == 200
    assert (await asyncio.to_thread(listed, hub, "ls/away"))["count"] == 0


@pytest.mark.interop
async def test_delayed_messages_are_cancelled_at_the_process_that_has_them(
    start_hub: StartHub,
) -> None:
    hub = start_hub(*TWO)
    place: Any = Place(hub.address)
    async with AsyncExitStack() as stack:
        for n in range(MANY):
            panel = await stack.enter_async_context(mqtt(place, f"panel-{n}"))
            assert await panel.publish(f"$delayed/600/late/{n}", b"x") == 0
        found = await asyncio.to_thread(listed, hub, "ls/delayed")
        assert {one["process"] for one in found["delayed"]} == {1, 2}
        for one in found["delayed"]:
            path = f"delayed?seq={one['seq']}"
            assert await asyncio.to_thread(ended, hub, path) == 400, "of which process?"
            assert await asyncio.to_thread(ended, hub, f"{path}&process=3") == 400
            assert await asyncio.to_thread(ended, hub, f"{path}&process={one['process']}") == 200
        assert (await asyncio.to_thread(listed, hub, "ls/delayed"))["count"] == 0


@pytest.mark.interop
async def test_refusals_are_of_all_processes_and_one_that_is_silent_is_named(
    start_hub: StartHub, users: tuple[str, ...]
) -> None:
    hub = start_hub(*TWO, *users)
    place: Any = Place(hub.address)
    for n in range(MANY):
        one = Mqtt(place, f"panel-{n}", f"stranger-{n}", "guess")
        assert await one.open() in REFUSED
        await one.close()
    ann = Browser(hub)
    await ann.log_in(user="ann", password="secret")
    found = (await ann("GET", "/api/v1/refusals?limit=50")).json()
    assert {one["process"] for one in found["refusals"]} == {1, 2}
    assert {one["user"] for one in found["refusals"]} >= {f"stranger-{n}" for n in range(MANY)}
    times = [one["time"] for one in found["refusals"]]
    assert times == sorted(times, reverse=True)
    async with AsyncExitStack() as stack:
        while True:  # a connection to the first one, which the other's fate does not touch
            first = await stack.enter_async_context(ann.connection())
            if (await first.get("/api/v1/status")).json()["process"] == "1 of 2":
                break
        os.kill(stopped := processes(hub)[2], signal.SIGSTOP)
        try:
            await knows_ann(first)
            for what in ("refusals", "ls/clients"):
                answer = (await first.get(f"/api/v1/{what}")).json()
                assert [one["up"] for one in answer["processes"]] == [True, False]
            path = "/api/v1/clients?protocol=mqtt&client=x"
            answer = await first.delete(path)
            assert answer.status_code == 503, answer.text
            assert "process 2 does not answer" in answer.text
        finally:
            os.kill(stopped, signal.SIGCONT)


async def knows_ann(client: httpx.AsyncClient) -> None:
    """By the process that answers: her login may be at the other one."""
    given = {"user": "ann", "password": "secret"}
    answer = await client.post("/admin/login", json=given)
    assert answer.status_code == 200
    client.headers["hubbub-csrf"] = answer.json()["csrf"]


def test_a_page_is_put_together_of_those_of_the_processes() -> None:
    counts = {1: 4, 2: 0, 3: 7}
    assert shares(counts, 5, 0) == {1: (4, 0), 3: (1, 0)}
    assert shares(counts, 5, 3) == {1: (1, 3), 3: (4, 0)}
    assert shares(counts, 5, 6) == {3: (5, 2)}
    assert shares(counts, 5, 11) == {}


@pytest.mark.interop
async def test_the_dashboard_is_that_of_all_processes(
    start_hub: StartHub, users: tuple[str, ...], tmp_path: Path, browser: Chromium
) -> None:
    hub = start_hub(*TWO, *users)
    place: Any = Place(hub.address)
    names = [f"panel-{n:02}" for n in range(MANY)]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(mqtt(place, name, user="ann", password="secret"))
            for name in names
        ]
        page = await stack.enter_async_context(browser.page(hub.url("http"), 1280, 900))
        await begin(page, shell=False)
        await page.run("""
            const [user, secret] = document.querySelectorAll(".login input");
            [user.value, secret.value] = ["ann", "secret"];
            find("form button").click();
            await until(() => find(".view[data-fresh='overview']"));
        """)
        tile = "await until(() => [...document.querySelectorAll('.tiles div')].some("
        await page.run(tile + f"(one) => one.textContent === 'clients{MANY}'))")
        await page.run("await view('clients')")
        for name in names:
            await page.run("await until(() => find('tbody tr', a))", name)
        for name, one in list(zip(names, clients, strict=True))[:6]:
            await page.run(
                """
                find("tbody tr", a).click();
                (await until(() => find("button", "End …"))).click();
                find("button", "Really end").click();
                await until(() => !find("tbody tr", a));
                """,
                name,
            )
            assert await one.code("disconnect") == 0x98
        for view in ("queues", "calls", "security", "topics", "journal", "overview"):
            await page.run("await view(a)", view)
        if pictures := os.environ.get("HUBBUB_PICTURES"):
            await page.screenshot(Path(pictures) / "processes.png")
        await page.run("find('button', 'Log out').click(); await until(() => find('.login'))")


# A login is one at all of them


class Browser:
    """Comes with a connection of its own each time, to whatever process the kernel gives it."""

    def __init__(self, hub: RunningHub) -> None:
        self.url = hub.url("http")
        self.cookies = httpx.Cookies()
        self.word = ""

    async def __call__(self, method: str, path: str, **said: Any) -> httpx.Response:
        async with self.connection() as client:
            answer = await client.request(method, path, **said)
            self.cookies = client.cookies
            return answer

    def connection(self) -> httpx.AsyncClient:
        headers = {"sec-fetch-site": "same-origin", "hubbub-csrf": self.word}
        return httpx.AsyncClient(
            base_url=self.url, cookies=self.cookies, headers=headers, trust_env=False,
            timeout=PATIENCE,
        )  # fmt: skip

    async def log_in(self, **given: str) -> None:
        answer = await self("POST", "/admin/login", json=given)
        assert answer.status_code == 200, answer.text
        self.word = answer.json()["csrf"]

    async def statuses(self, method: str, path: str, **said: Any) -> set[int]:
        return {(await self(method, path, **said)).status_code for _ in range(MANY)}


LINE = {"content": b'{"topic": "a/b", "payload": "x"}'}


@pytest.fixture
def users(tmp_path: Path) -> tuple[str, ...]:
    """Settings of a hub with two users, of whom one may little."""
    add_user(tmp_path / "users", "ann", b"secret")
    add_user(tmp_path / "users", "eve", b"nosy")
    may = ("user ann", "readwrite #", "read $SYS/#", "manage $SYS/#", "user eve", "read a/b")
    rules = [one if one.startswith("user") else f"topic {one}" for one in may]
    (tmp_path / "rules").write_text("\n".join(rules))
    return ("--set", f"password_file={tmp_path}/users", "--set", f"acl_file={tmp_path}/rules")


@pytest.mark.interop
async def test_a_login_holds_at_every_process_and_so_does_a_logout(
    start_hub: StartHub, users: tuple[str, ...], tmp_path: Path
) -> None:
    hub = start_hub(*TWO, *users)
    ann, eve, forged = Browser(hub), Browser(hub), Browser(hub)
    await ann.log_in(user="ann", password="secret")
    await eve.log_in(user="eve", password="nosy")
    for name, value in ann.cookies.items():
        number, _, rest = value.partition(".")
        forged.cookies.set(name, f"{3 - int(number)}.{rest}")
    assert await ann.statuses("GET", "/api/v1/status") == {200}
    assert await ann.statuses("GET", "/admin/session") == {200}
    assert (await ann("GET", "/admin/session")).json()["csrf"] == ann.word
    assert await ann.statuses("POST", "/api/v1/publish", **LINE) == {200}
    assert await eve.statuses("GET", "/api/v1/status") == {403}
    assert await eve.statuses("POST", "/api/v1/publish", **LINE) == {403}
    assert await forged.statuses("GET", "/api/v1/status") == {401}
    word, ann.word = ann.word, "wrong"
    assert await ann.statuses("POST", "/api/v1/publish", **LINE) == {403}
    assert await ann.statuses("POST", "/admin/logout") == {403}
    ann.word, kept = word, ann.cookies
    assert (await ann("POST", "/admin/logout")).status_code == 200 and not ann.cookies
    ann.cookies = kept
    assert await ann.statuses("GET", "/api/v1/status") == {401}
    await ann.log_in(user="ann", password="secret")
    add_user(tmp_path / "users", "ann", b"other")
    hub.process.send_signal(signal.SIGHUP)
    await until(lambda: log_of(hub).count("the configuration was read again") == 2)
    assert await ann.statuses("GET", "/api/v1/status") == {401}


@pytest.mark.interop
async def test_the_token_of_the_api_logs_in_at_every_process(start_hub: StartHub) -> None:
    hub = start_hub(*TWO, "--set", "api.token=sesame")
    browser = Browser(hub)
    assert await browser.statuses("GET", "/api/v1/status") == {401}
    await browser.log_in(token="sesame")
    assert await browser.statuses("GET", "/api/v1/status") == {200}
    assert await browser.statuses("POST", "/api/v1/publish", **LINE) == {200}
    browser.cookies = httpx.Cookies({name: "x" for name in browser.cookies})
    assert await browser.statuses("GET", "/api/v1/status") == {401}


@pytest.mark.interop
async def test_a_login_of_a_process_that_is_gone_is_gone(
    start_hub: StartHub, users: tuple[str, ...]
) -> None:
    hub = start_hub(*TWO, *users)
    ann = Browser(hub)
    await ann.log_in(user="ann", password="secret")
    [cookie] = ann.cookies.values()
    home = int(cookie[0])
    os.kill(victim := processes(hub)[home], signal.SIGKILL)
    await until(partial(is_back, hub, home, victim))
    await until(lambda: log_of(hub).count("it is started again"))
    await asyncio.sleep(1)
    assert await ann.statuses("GET", "/api/v1/status") == {401}
    await ann.log_in(user="ann", password="secret")
    assert await ann.statuses("GET", "/api/v1/status") == {200}


def fetch(hub: RunningHub, what: str, patience: float = PATIENCE) -> bytes:
    with urlopen(f"{hub.url('http')}/{what}", timeout=patience) as answer:
        found: bytes = answer.read()
        return found


def status_of_first(hub: RunningHub) -> dict[str, Any]:
    """Until the kernel gives the connection to the process that answers."""
    while True:
        try:
            with urlopen(f"{hub.url('http')}/api/v1/status", timeout=4) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except TimeoutError:
            continue


def test_all_begin_at_the_last_row_of_any(tmp_path: Path) -> None:
    """The machine's clock was set back by ten minutes while they were not there. One of them had
    had nothing to do for as long; the two shut one another out for two hours. A third one's clock
    was wrong.
    """
    second = 1_000_000
    ahead = {1: -60 * second, 2: 600 * second, 3: 86_400 * second}
    for number, microseconds in ahead.items():
        desk = Desk(tmp_path / str(number))
        desk.journal.clock._base += microseconds
        desk.write(row(b"x"))
        desk.close()
    settings = Settings(data=str(tmp_path), processes=3)
    (tmp_path / segments.PROCESSES).write_text("3\n")
    parent = Parent(settings, lambda: settings, None)
    parent._place = InPlace(settings)
    parent._begin()
    parent._place.close()
    for number in ahead:
        clock = Clock()
        clock.share(parent._time)
        said = clock.begin(segments.Directory(tmp_path / str(number)).newest())
        assert abs(clock.ahead() - ahead[2]) < 10 * second
        assert ("was wrong" in said) == (number == 3)


@pytest.mark.interop
def test_web_pages_alone_are_those_of_the_first_process(
    start_hub: StartHub, tmp_path: Path
) -> None:
    file = tmp_path / "hub.toml"
    pages = f"127.0.0.1:{free_port()}"
    file.write_text(f'[[listener]]\naddress = "{pages}"\nprotocols = ["http"]\n')
    start_hub(*TWO, "--config", str(file))
    for _ in range(MANY):
        with urlopen(f"http://{pages}/api/v1/status", timeout=PATIENCE) as answer:
            assert json.load(answer)["process"] == "1 of 2"


def test_spark_takes_the_directory_of_all_as_one_source(tmp_path: Path) -> None:
    (tmp_path / segments.PROCESSES).write_text("3\n")
    assert options._places({"path": str(tmp_path)}) == tuple(
        f"{tmp_path}/{number}" for number in (1, 2, 3)
    )


@pytest.mark.interop
def test_spark_reads_and_writes_at_whatever_process_it_comes_to(start_hub: StartHub) -> None:
    """By URL it read one of two journals, without a word, and a batch that was sent again to the
    other process was published again.
    """
    hub = start_hub(*TWO)
    url = hub.url("http")
    batch = {"Hubbub-Batch": "copy/0/0", "Hubbub-First": "0"}
    lines = b'{"topic": "out/1"}\n{"topic": "out/2"}'

    def sent() -> dict[str, int]:
        answer = Hub(url, ACCESS).ask("POST", "/api/v1/publish", lines, batch)
        found: dict[str, int] = json.loads(answer.body)
        return found

    assert sorted(sent()["taken"] for _ in range(MANY)) == [0] * (MANY - 1) + [2]
    for n in range(MANY):
        Hub(url, ACCESS).ask("POST", "/api/v1/publish", b'{"topic": "in/%d"}' % n)
    with pytest.raises(Refused, match=r"2 processes, each with a journal of its own: \?process=1"):
        Reader(options.Options({"url": url})).partitions()
    given = {"url": f"{url}?process=1,{url}/?process=2", "topics": "in/#,out/#"}
    reader = Reader(options.Options(given))
    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(map(len, rows)) == MANY + 2
    Hub(url, ACCESS).ask("DELETE", "/api/v1/publish/copy")
    assert sent() == {"taken": 2, "skipped": 0}


def at_each(hub: RunningHub) -> dict[int, httpx.Client]:
    """A connection to each process."""
    found: dict[int, httpx.Client] = {}
    while len(found) < len(processes(hub)):
        one = httpx.Client(base_url=hub.url("http"), timeout=PATIENCE)
        place = one.get("/api/v1/status?limit=0").json()["process"]
        found[int(place.split()[0])] = one
    return found


@pytest.mark.interop
def test_what_a_sender_left_in_its_midst_is_not_published_twice(start_hub: StartHub) -> None:
    """It came back to the other process, while the first one was at it: each published all."""
    hub, count = start_hub(*TWO), 5_000
    asks, again = {"Hubbub-Batch": "copy/0/0"}, at_each(hub)
    lines = b'{"topic": "$queue/work", "payload": "one", "qos": 1}\n' * count
    with pytest.raises(httpx.ReadTimeout):
        brief = httpx.Timeout(PATIENCE, read=0.01)
        again[1].post("/api/v1/publish", content=lines, headers=asks, timeout=brief)
    said = again[2].post("/api/v1/publish", content=lines, headers=asks)
    while said.status_code == 503:
        assert "is at it just now" in said.text
        time.sleep(0.05)
        said = again[2].post("/api/v1/publish", content=lines, headers=asks)
    assert sum(said.json().values()) == count
    time.sleep(0.5)  # the other one might go on
    assert again[2].get("/api/v1/ls/queues").json()["queues"][0]["messages"] == count


@pytest.mark.interop
def test_a_query_is_forgotten_by_all_processes_or_that_is_said(start_hub: StartHub) -> None:
    """A new query of the name would have been skipped as far as the old one was."""
    hub = start_hub(*TWO)
    asks, each = {"Hubbub-Batch": "copy/7/0"}, at_each(hub)
    each[2].post("/api/v1/publish", content=b'{"topic": "out"}', headers=asks)
    os.kill(processes(hub)[2], signal.SIGSTOP)
    try:
        said = each[1].delete("/api/v1/publish/copy")
    finally:
        os.kill(processes(hub)[2], signal.SIGCONT)
    assert (said.status_code, "process 2 does not answer" in said.text) == (503, True)
    each = at_each(hub)
    assert each[1].delete("/api/v1/publish/copy").status_code == 200
    asks["Hubbub-Batch"] = "copy/0/0"
    said = each[1].post("/api/v1/publish", content=b'{"topic": "out"}', headers=asks)
    assert said.json() == {"taken": 1, "skipped": 0}


# What is refused


@pytest.mark.interop
def test_a_directory_is_of_so_many_processes(start_hub: StartHub, tmp_path: Path) -> None:
    assert start_hub(*TWO).stop() == 0
    code, said = refused(tmp_path)
    assert code == 2 and "of several processes" in said and "start with --processes" in said
    assert start_hub("--processes", "3").stop() == 0
    code, said = refused(tmp_path, *TWO)
    assert code == 2 and "is of 3 processes" in said and "start with --processes 3" in said


@pytest.mark.interop
def test_a_single_process_leaves_nothing_in_the_directory_of_several(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    (data / segments.PROCESSES).write_text("2\n")
    code, said = refused(tmp_path)
    assert code == 2 and "of several processes" in said
    assert [one.name for one in data.iterdir()] == [segments.PROCESSES]


@pytest.mark.interop
@pytest.mark.parametrize("number", ["-5", "0", "two", "", "1 2", "9" * 5000])
def test_a_count_of_processes_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    (data := tmp_path / "data").mkdir()
    (data / segments.PROCESSES).write_text(number)
    code, said = refused(tmp_path, *TWO)
    assert code == 2 and "does not say how many processes it is of" in said
    assert (data / segments.PROCESSES).read_text() == number


@pytest.mark.interop
@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_directory_of_sockets_is_left_alone(link: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="hub-") as short:  # in a long one they are elsewhere
        leaves_alone(Path(short), link)


def leaves_alone(folder: Path, link: bool) -> None:
    (data := folder / "data").mkdir()
    (other := folder / "other").mkdir(0o755)
    sockets = data / "sockets"
    if link:
        sockets.symlink_to(other)
    else:
        sockets.write_text("mine")
    code, said = refused(folder, *TWO)
    assert code == 2 and f"{sockets} is no directory" in said and "Errno" not in said
    assert other.stat().st_mode & 0o777 == 0o755
    assert sockets.is_symlink() or sockets.read_text() == "mine"


@pytest.mark.interop
def test_a_directory_of_one_process_becomes_that_of_the_first(
    start_hub: StartHub, tmp_path: Path
) -> None:
    assert start_hub().stop() == 0
    code, said = refused(tmp_path, *TWO)
    assert code == 2 and "is the journal of one process" in said
    [command] = re.findall(r"`(mv .*?)`", said)
    subprocess.run(command, shell=True, check=True)
    assert start_hub(*TWO).stop() == 0


@pytest.mark.interop
def test_a_port_and_a_directory_in_use_are_said_at_once(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub(*TWO)
    code, said = refused(tmp_path, *TWO)
    assert code == 2 and "is used by the hub with process id" in said
    code, said = refused(tmp_path / "other", *TWO, "--listen", hub.address)
    assert code == 2 and "is in use by another program" in said
    code, said = refused(tmp_path / "third", "--listen", hub.address)
    assert code == 2 and "is in use by another program" in said


@pytest.mark.interop
def test_a_process_that_cannot_start_ends_all_with_its_reason(
    start_hub: StartHub, tmp_path: Path
) -> None:
    assert start_hub(*TWO).stop() == 0
    (tmp_path / "data" / "2" / "format").write_text("hubbub journal 99\n")
    code, said = refused(tmp_path, *TWO)
    assert code == 2 and "process 2:" in said and "hubbub journal 99" in said


def test_over_nats_each_process_is_a_node_with_a_name(tmp_path: Path) -> None:
    code, said = refused(tmp_path, *TWO, "--cluster", "nats://127.0.0.1:1")
    assert code == 2 and "NAME-1, NAME-2" in said
