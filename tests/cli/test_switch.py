"""`hubbub switch` as a user meets it: the original's quick start, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.cli.switch import _event_line, _report, app
from tests.process import ROOT, RunningHub

interop = pytest.mark.interop


def command(hub: RunningHub, *words: str) -> list[str]:
    return [sys.executable, "-m", "hubbub", "switch", *words, "--url", hub.url("http")]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run(hub: RunningHub, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(hub, *words),
        env=ENVIRONMENT, input=text, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def start(hub: RunningHub, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(hub, *words),
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until_shown(hub: RunningHub, wanted: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        shown = run(hub, "diagnostics").stdout
        if wanted in shown:
            return shown
    raise AssertionError(f"{wanted!r} never appeared in {shown!r}")


@interop
def test_the_quick_start(hub: RunningHub) -> None:
    assert run(hub, "list").stdout == ""
    with start(hub, "call", "foo", "--body", "hello") as call:
        shown = until_shown(hub, "request from:")
        assert "have been called but have never started:\n  foo\n" in shown
        assert "      hello\n" in shown and "is waiting for a response" in shown
        assert call.poll() is None  # it blocks
        with start(hub, "serve", "foo", "--program", "/bin/cat") as service:
            assert call.communicate(timeout=30)[0] == "hello\n"
            assert call.returncode == 0
            assert "request from:" not in until_shown(hub, "services are running:\n  foo")
            assert run(hub, "list").stdout == "foo\n"
            reply = run(hub, "call", "foo", text="two\nlines\n")
            assert (reply.stdout, reply.returncode) == ("two\nlines\n", 0)
            service.send_signal(signal.SIGTERM)


@interop
def test_a_request_nobody_answers_can_be_looked_at_and_removed(
    hub: RunningHub, tmp_path: Path
) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--url", hub.url("http")])
        assert done.exit_code == 0, done.output
        return done.output

    (tmp_path / "body").write_text("from a file")
    late = ("call", "foo", "--file", str(tmp_path / "body"), "--timeout", "0.1")
    failed = CliRunner().invoke(app, [*late, "--url", hub.url("http")])
    assert str(failed.exception) == "nobody answered from foo within 0.1 s"
    assert "from a file" in said("diagnostics")
    assert said("ack", "foo", "0") == ""
    assert "from a file" not in said("diagnostics")
    events = said("tail").splitlines()
    assert "foo.0:from a file" in events[0] and "foo.0:ack" in events[-1]
    assert said("list", "--all", "--prefix", "f") == "foo\n"
    assert said("destroy", "foo") == ""
    assert said("list", "--all") == ""


@interop
def test_no_hub(hub: RunningHub) -> None:
    hub.stop()
    found = run(hub, "list")
    assert found.returncode == 1 and found.stdout == ""
    assert "start one with `hubbub serve`" in found.stderr and found.stderr.count("\n") == 1


def test_a_report() -> None:
    second = 10**9

    def queue(expected: int | None, *contents: object) -> dict[str, object]:
        polled = {} if expected is None else {"next_transfer_expected": expected * second}
        return {**polled, "queue_contents": list(contents)}

    def entry(number: int, kind: list[object], payload: str = "p") -> object:
        message = {"payload": payload, "kind": kind}
        origin = ["Name", "cli:1"]
        return [["q", number], {"origin": origin, "time": 90 * second, "message": message}]

    found = {
        "start_time": 0,
        "current_time": 100 * second,
        "permanent_queues": {
            "alive": queue(120),
            "crashed": queue(60, entry(3, ["Request", "cli:1"], "x" * 99)),
            "new": queue(None, entry(0, ["Request", "left"]), entry(1, ["Request", ""])),
        },
        "transient_queues": {
            "cli:1": queue(110, entry(0, ["Response", ["q", 1]], "a\x1b[2J\n")),
            "idle": queue(None),
        },
    }
    assert _report(found) == [
        "Switch started 1 min ago",
        "The following services are running:",
        "  alive",
        "The following services have been called but have never started:",
        "  new",
        "    0: request from: cli:1 sent 10.0 s ago",
        "      p",
        "      left has gone, or is deadlocked",
        "    1: request from: cli:1 sent 10.0 s ago",
        "      p",
        "The following services have crashed or deadlocked:",
        "  crashed",
        "    3: request from: cli:1 sent 10.0 s ago",
        "      " + "x" * 70,
        "      cli:1 is waiting for a response",
        "Temporary queues containing replies:",
        "  cli:1",
        "    0: response from: cli:1 sent 10.0 s ago",
        "      a [2J ",
    ]


def test_an_event_keeps_the_end_of_long_names() -> None:
    event = {
        "queue": "q",
        "output": "a-very-long-program:4711",
        "message": ["Message", ["q", 1], {"payload": "hi\n", "kind": ["Response", ["r", 0]]}],
        "processing_time": 1_500_000_000,
    }
    line = _event_line(event, 2.0)
    assert line.split() == ["2.00", "q", "->", "ng-program:4711", "1.50", "q.1:hi"]
