"""`hubbub top`: rates of a hub that runs."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from hubbub.cli import top
from hubbub.client import blocking
from tests.process import StartHub

COMMAND = (sys.executable, "-m", "hubbub", "top")


def answer(seconds: float, **values: Any) -> dict[str, Any]:
    return {"started": 1_000_000, "time": 1_000_000 + round(seconds * 1e6), **values}


def test_rates_are_of_the_time_between() -> None:
    before = answer(10, messages_in=100, dropped={"slow consumer": 5})
    now = answer(12, messages_in=300, dropped={"slow consumer": 6, "no room": 3})
    assert top.rate(before, now, "messages_in") == 100
    assert top.rate(before, now, "dropped") == 2
    assert top.rate(before, now, "nothing") == top.value(now, "time.no") == 0


def test_of_several_processes_all_are_together_whichever_answers() -> None:
    """Each look may come to another one: rates were those of two unlike counters."""
    each = [
        {"process": number, "up": True, "started": 1_000_000 + number, "retained": 4,
         "messages_in": 100 * number, "dropped": {"slow consumer": number}}
        for number in (1, 2)
    ]  # fmt: skip
    looks = [
        top.whole(answer(at, process=f"{number} of 3", retained=4, processes=[*each, {"up": False}],
                         messages_in=100 * number, dropped={"slow consumer": number}))
        for at, number in ((10, 1), (12, 2))
    ]  # fmt: skip
    assert [top.value(one, "messages_in") for one in looks] == [300, 300]
    assert [one["retained"] for one in looks] == [4, 4]
    assert looks[0]["dropped"] == {"slow consumer": 3}
    assert looks[0]["started"] == looks[1]["started"] == 1_000_001
    assert top.rate(looks[0], looks[1], "messages_in") == 0


def test_a_process_that_hung_or_died_does_not_make_a_rate_of_all_it_ever_did() -> None:
    def look(at: float, *each: dict[str, Any]) -> dict[str, Any]:
        return top.whole(answer(at, process="1 of 2", messages_in=0, processes=list(each)))

    one = {"process": 1, "up": True, "started": 1_000_000, "messages_in": 5_000}
    other = {**one, "process": 2, "messages_in": 9_000_000}
    gone = {"process": 2, "up": False}
    assert top.rate(look(10, one, gone), look(12, one, other), "messages_in") == 0
    assert top.rate(look(10, one, other), look(12, one, gone), "messages_in") == 0
    again = {**one, "started": 11_000_000, "messages_in": 40}
    more = {**other, "messages_in": 9_000_200}
    assert top.rate(look(10, one, other), look(12, again, more), "messages_in") == 100 + 20
    assert "; process 2 does not answer" in top._title("http://h:1", look(10, one, gone))
    assert "answer" not in top._title("http://h:1", look(10, one, other))


def test_a_hub_that_was_started_again_begins_anew() -> None:
    before = answer(1000, messages_in=1_000_000)
    now = {"started": 2_000_000_000, "time": 2_004_000_000, "messages_in": 40}
    assert top.rate(before, now, "messages_in") == 10


def test_the_screen_says_words_and_units() -> None:
    queues = [{"name": "jobs", "messages": 12_000, "waits": 90}, {"name": "idle", "messages": 0}]
    lost = {"slow consumer": 7}
    clients = [{"client": "slow[red]", "dropped": lost}, {"client": "b", "dropped": {}}]
    journal = {"directory": "/d", "bytes": 2_500_000, "commit_ms_50": 0.4, "commit_ms_99": 2.0}
    now = answer(
        7200, client_count=3, client_protocols={"mqtt": 2, "smq": 1}, bytes_received=4_000_000,
        queues=queues, clients=clients, journal=journal, version="1.0", compiled=True,
        senders=[{"client": "f[b]", "user": "ann", "address": "192.0.2.7", "topic": "a/b",
                  "messages_per_second": 36_000.4, "bytes_per_second": 3_100_000}],
    )  # fmt: skip
    console = Console(markup=False, width=100, file=open(os.devnull, "w"), record=True)
    console.print(top.view("http://ann:secret@hub:8080", answer(7198), now))
    said = console.export_text()
    assert "Hubbub 1.0 (compiled) at hub:8080, up 2.0 h" in said and "secret" not in said
    assert "2.0 MB/s in, 0 B/s out" in said
    assert "3 (mqtt 2, smq 1)" in said
    assert "2.5 MB, commits within 0.4 ms (99 %: 2.0 ms), trouble none" in said
    assert re.search(r"jobs +12,000 +1.5 min", said) and "idle" not in said
    sender = r"f\[b\] +ann +192\.0\.2\.7 +36,000/s +3\.1 MB/s +a/b"
    assert "who sends most" in said and re.search(sender, said)
    assert re.search(r"slow\[red\] +slow consumer 7", said)


@pytest.mark.interop
def test_a_line_a_look_for_a_pipe(start_hub: StartHub) -> None:
    hub = start_hub()
    with blocking.connect(f"mqtt://{hub.address}") as ann:
        watch = subprocess.Popen(
            [*COMMAND, "--url", f"http://{hub.address}", "-n", "3", "--interval", "0.4"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        while watch.poll() is None:
            ann.publish("a", b"x", qos=1)
            time.sleep(0.02)
        assert watch.stdout is not None
        head, *lines = watch.stdout.read().splitlines()
    assert head.split()[:2] == ["in/s", "out/s"] and len(lines) == 3
    assert any(int(line.split()[0]) > 1 for line in lines)
    assert len(lines[0]) == len(head)


@pytest.mark.interop
def test_a_screen_that_ctrl_c_ends(start_hub: StartHub) -> None:
    hub = start_hub()
    near, far = pty.openpty()
    watch = subprocess.Popen(
        [*COMMAND, "--url", f"http://{hub.address}", "--interval", "0.2"],
        stdin=far, stdout=far, stderr=far, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(far)
    said = b""
    until = time.monotonic() + 20
    while b"B/s out" not in said and time.monotonic() < until:
        said += os.read(near, 4096)
    watch.send_signal(signal.SIGINT)
    assert watch.wait(10) == 0
    os.close(near)
    assert b"Hubbub 0" in said and b"B/s out" in said


def test_no_hub() -> None:
    done = subprocess.run([*COMMAND, "--url", "http://127.0.0.1:9"], capture_output=True, text=True)
    assert done.returncode == 1 and "no hub answers" in done.stderr
