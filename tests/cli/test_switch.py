"""`hubbub switch` as a user meets it: the original's quick start, and errors."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hubbub
from hubbub.cli.asked import Asked
from hubbub.cli.switch import PATIENCE_SECONDS, app
from hubbub.cli.switch.events import chart, event_line
from hubbub.cli.switch.report import report
from hubbub.errors import HubbubError
from tests.command import Started, ran, started
from tests.command import hubbub as command
from tests.process import RunningHub, StartHub

interop = pytest.mark.interop


def run(hub: RunningHub, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return command("switch", *words, "--url", hub.url("http"), stdin=text)


def start(hub: RunningHub, *words: str, fed: bool = False) -> Started:
    return started("switch", *words, "--url", hub.url("http"), fed=fed)


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
        assert "have no service:\n  foo: 1 message, the oldest" in shown
        assert "      hello\n" in shown and "waits for the response" in shown
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

    def failing(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--url", hub.url("http")])
        assert isinstance(done.exception, HubbubError)
        return str(done.exception)

    (tmp_path / "body").write_text("from a file")
    said("create", "foo")
    late = ("call", "foo", "--file", str(tmp_path / "body"), "--timeout", "0.1")
    failed = CliRunner().invoke(app, [*late, "--url", hub.url("http")])
    assert str(failed.exception) == "nobody answered from foo within 0.1 s"
    assert "from a file" in said("diagnostics")
    assert said("ack", "foo", "0") == ""
    assert "from a file" not in said("diagnostics")
    events = said("tail").splitlines()
    assert "foo.0:from a file" in events[0] and "foo.0:ack" in events[-1]
    assert said("list", "--all", "--prefix", "f") == "foo\n"
    assert "no message 0 in the queue foo" in failing("ack", "foo", "0")
    assert said("destroy", "foo") == ""
    assert "no queue foo" in failing("destroy", "foo")
    assert said("list", "--all") == ""


@interop
def test_a_name_that_nobody_serves(hub: RunningHub) -> None:
    """It is said, and leaves nothing behind, however the call ends."""
    with start(hub, "serve", "celsius", "--program", "/bin/cat") as service:
        until_shown(hub, "running:\n  celsius")
        for seconds in ("0.3", f"{PATIENCE_SECONDS:g}"):  # with that it was said twice
            late = run(hub, "call", "celsuis", "--body", "x", "--timeout", seconds)
            assert late.returncode == 1 and late.stderr == (
                "hubbub: nobody serves celsuis; did you mean celsius?\n"
                f"hubbub: nobody answered from celsuis within {seconds} s\n"
            )
        with start(hub, "call", "zzz", "--body", "x") as call:
            assert call.stderr is not None
            assert call.stderr.readline() == "hubbub: nobody serves zzz\n"
            call.send_signal(signal.SIGINT)
            assert call.wait(30) == 130
        assert run(hub, "list", "--all").stdout == "celsius\n"
        service.send_signal(signal.SIGTERM)


@interop
def test_who_serves_is_who_is_here(hub: RunningHub) -> None:
    """Also over SMQ and MQTT; and who was killed is gone at once, not when it should have come."""

    async def shown() -> list[str]:
        async with hubbub.connect(hub.url("switch")) as client:
            return report(await client.diagnostics())

    async def looked() -> list[str]:
        async with hubbub.connect(hub.url("smq")) as smq, hubbub.connect(hub.url("mqtt")) as mqtt:
            tasks = [
                asyncio.create_task(service.serve(f"$queue/{name}", lambda message: b""))
                for service, name in ((smq, "lamp"), (mqtt, "oven"))
            ]
            await asyncio.sleep(0.2)
            found = await shown()
            for task in tasks:
                task.cancel()
        return found

    with start(hub, "serve", "foo", "--program", "/bin/cat") as service:
        until_shown(hub, "running:\n  foo")
        assert asyncio.run(looked())[1:] == [
            "The following services are running:", *(f"  {name}: nothing waits" for name in
            ("foo", "lamp", "oven")),
        ]  # fmt: skip
        service.kill()
        service.wait(10)
    assert asyncio.run(shown())[1:] == [
        "The following queues have no service:",
        "  lamp: nothing waits, nobody reads it",
        "  oven: nothing waits, nobody reads it",
        "The following services have ended or crashed:",
        "  foo: nothing waits, its reader is gone",
    ]


@interop
def test_over_a_unix_socket(start_hub: StartHub, tmp_path: Path) -> None:
    path = tmp_path / "switch.sock"
    hub = start_hub("--switch-socket", str(path))

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return command("switch", *words, "--url", f"switch://{path}")

    made = said("create", "few", "--max-messages", "1", "--expires", "60")
    assert made.returncode == 0
    assert {"max_messages = 1", "expires = 60"} <= set(made.stdout.splitlines())

    async def upper(request: bytes) -> bytes:
        return request.upper()

    async def call() -> bytes:
        async with hubbub.connect(f"switch://{path}") as client:
            service = asyncio.create_task(client.serve("upper", upper))
            answer: bytes = await client.call("upper", b"hello", timeout=20)
            service.cancel()
            return answer

    assert asyncio.run(call()) == b"HELLO"
    assert said("shutdown").returncode == 0
    assert hub.process.wait(20) == 0 and not path.exists()


@interop
def test_no_hub(hub: RunningHub) -> None:
    hub.stop()
    found = run(hub, "list")
    assert found.returncode == 1 and found.stdout == ""
    assert "start one with `hubbub serve`" in found.stderr and found.stderr.count("\n") == 1


def test_areport() -> None:
    second = 10**9

    def queue(
        expected: int | None, *contents: object, readers: int | None = None
    ) -> dict[str, object]:
        polled = {} if expected is None else {"next_transfer_expected": expected * second}
        here = {} if readers is None else {"readers": readers}
        return {**polled, "queue_contents": list(contents), **here}

    def entry(number: int, kind: list[object], payload: str = "p") -> object:
        message = {"payload": payload, "kind": kind}
        origin = ["Name", "cli:1"]
        return [["q", number], {"origin": origin, "time": 90 * second, "message": message}]

    found = {
        "start_time": 0,
        "current_time": 100 * second,
        "permanent_queues": {
            "alive": queue(120),
            "busy": queue(60, readers=1),
            "ended": queue(60, readers=0),
            "killed": queue(120, readers=0),
            "crashed": queue(60, entry(3, ["Request", "cli:1"], "x" * 99)),
            "new": queue(None, entry(0, ["Request", "left"]), entry(1, ["Request", ""])),
        },
        "transient_queues": {
            "cli:1": queue(110, entry(0, ["Response", ["q", 1]], "a\x1b[2J\n")),
            "idle": queue(None),
        },
    }
    assert report(found) == [
        "Switch started 1 min ago",
        "The following services are running:",
        "  alive: nothing waits",
        "The following services are here, but busy or deadlocked:",
        "  busy: nothing waits, its reader has asked for nothing more for 40.0 s",
        "The following queues have no service:",
        "  new: 2 messages, the oldest for 10.0 s, nobody reads it",
        "    0: request from: cli:1 sent 10.0 s ago",
        "      p",
        "      left has asked, and is gone",
        "    1: request from: cli:1 sent 10.0 s ago",
        "      p",
        "The following services have ended or crashed:",
        "  ended: nothing waits, its reader has been away for 40.0 s",
        "  killed: nothing waits, its reader is gone",
        "The following services have crashed or deadlocked:",
        "  crashed: 1 message, the oldest for 10.0 s, its reader has been away for 40.0 s",
        "    3: request from: cli:1 sent 10.0 s ago",
        "      " + "x" * 70,
        "      cli:1 waits for the response",
        "Temporary queues containing replies:",
        "  cli:1: 1 message, the oldest for 10.0 s",
        "    0: response from: cli:1 sent 10.0 s ago",
        "      a [2J ",
    ]
    found["queues"] = 7
    found["permanent_queues"] = {"new": {**queue(None, entry(8, ["Request", ""])), "messages": 200}}
    assert report(found)[1:3] == [
        "The following queues have no service:",
        "  new: 200 messages, the newest are shown, nobody reads it",
    ]
    assert report(found)[-1] == "Only 3 of 7 queues are shown."


def test_an_event_keeps_the_end_of_long_names() -> None:
    event = {
        "queue": "q",
        "output": "a-very-long-program:4711",
        "message": ["Message", ["q", 1], {"payload": "hi\n", "kind": ["Response", ["r", 0]]}],
        "processing_time": 1_500_000_000,
    }
    line = event_line(event, 2.0)
    assert line.split() == ["2.00", "q", "->", "ng-program:4711", "1.50", "q.1:hi"]


def test_a_name_with_a_line_end_is_no_second_line() -> None:
    event = {
        "queue": "q\n0.00 admin -> safe ack",
        "input": "x\ny",
        "message": ["Ack", ["q", 1]],
    }  # fmt: skip
    event["message"] = ["Ack", [event["queue"], 1]]
    assert "\n" not in event_line(event, 0.0)


def test_a_chart() -> None:
    def event(kind: list[Any], payload: str, **ends: str) -> dict[str, Any]:
        return {
            "queue": "q",
            **ends,
            "message": ["Message", ["q", 1], {"payload": payload, "kind": kind}],
        }

    asked: list[Any] = ["Request", "r"]
    events = [
        event(asked, '{"method":"VM.start","params":[]}', input="cli"),
        event(asked, '{"method":"VM.start","params":[]}', output="svc"),
        event(["Response", ["q", 1]], 'say "no"\n', input="svc") | {"queue": "r"},
        event(["Response", ["q", 1]], 'say "no"\n', output="cli") | {"queue": "r"},
        {"queue": "q", "input": "svc", "message": ["Ack", ["q", 1]]},
    ]
    assert chart(events) == [
        "msc {",
        '  "cli","q","svc","r";',
        '  "cli" => "q" [ label = "VM.start" ];',
        '  "q" => "svc" [ label = "VM.start" ];',
        '  "r" << "svc" [ label = "say \\"no\\" " ];',
        '  "cli" << "r" [ label = "say \\"no\\" " ];',
        "}",
    ]


@interop
def test_bytes_that_are_no_text(hub: RunningHub, tmp_path: Path) -> None:
    """They come back as they went, with no line end added or lost."""
    with start(hub, "serve", "raw", "--program", "/bin/cat") as service:
        until_shown(hub, "running:\n  raw")
        for payload in (bytes(range(256)), b"\xff\n", b"\0\n", b"x" * 3_000_000 + b"\xfe"):
            (tmp_path / "body").write_bytes(payload)
            words = ("call", "raw", "--file", str(tmp_path / "body"), "--url", hub.url("http"))
            done = ran("switch", *words)
            assert done.stdout == payload, done.stderr
        service.send_signal(signal.SIGTERM)


@interop
def test_one_program_run_for_each_request(hub: RunningHub, tmp_path: Path) -> None:
    """They run side by side, but not more than were allowed."""
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/run.$$\nls {tmp_path}/run.* 2>&- | wc -l >> {tmp_path}/seen\n"
        f"sleep 0.3\nrm {tmp_path}/run.$$\nread x; test $x != bad && echo $$ $x\n"
    )
    program.chmod(0o700)
    with start(hub, "serve", "work", "--program", str(program), "--concurrent", "2") as service:
        calls = [start(hub, "call", "work", "--body", f"n{n}\n") for n in range(4)]
        replies = [call.communicate(timeout=60)[0].split() for call in calls]
        assert [reply[1] for reply in replies] == ["n0", "n1", "n2", "n3"]
        assert len({reply[0] for reply in replies}) == 4
        assert max(map(int, (tmp_path / "seen").read_text().split())) == 2
        bad = run(hub, "call", "work", "--body", "bad\n")
        assert (bad.returncode, bad.stdout) == (1, "")
        assert bad.stderr == "hubbub: the handler failed: ProgramFailed\n"
        service.send_signal(signal.SIGINT)
        _, said = service.communicate(timeout=30)
        assert service.returncode == 0
        assert said == (
            f"hubbub: request work:4 was answered with an error: {program} ended with code 1\n"
        )


@interop
def test_answers_that_are_typed(hub: RunningHub) -> None:
    with start(hub, "call", "talk", "--body", "how are you?") as call:
        until_shown(hub, "how are you?")
        with start(hub, "serve", "talk", fed=True) as person:
            assert person.stdin is not None and person.stdout is not None
            person.stdin.write("fine,\nthanks\n.\n")
            person.stdin.flush()
            assert call.communicate(timeout=30)[0] == "fine,\nthanks\n"
            assert person.stdout.readline() == "how are you?\n"
            person.stdin.close()  # nobody answers any more
            run(hub, "call", "talk", "--body", "really?", "--timeout", "1")
            assert person.wait(30) == 0
            assert person.stderr is not None
            assert "nobody answers any more; the request stays in talk" in person.stderr.read()
    assert "really?" in run(hub, "diagnostics").stdout


@interop
@pytest.mark.parametrize(
    ("words", "code"),
    [(("serve", "q"), 0), (("tail", "--follow"), 0), (("call", "nobody", "--body", "x"), 130)],
)
def test_control_c(hub: RunningHub, words: tuple[str, ...], code: int) -> None:
    with start(hub, *words) as process:
        until_logged_in(hub)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
        assert out == "" and said in ("", "hubbub: nobody serves nobody\n")
        assert process.returncode == code


def until_logged_in(hub: RunningHub) -> None:
    """A client of message-switch is there."""
    deadline = time.monotonic() + 30
    asked = Asked(hub.url("http"))
    while not any(one["protocol"] == "switch" for one in asked.fetch("status")["clients"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@interop
def test_a_service_survives_its_hub(start_hub: StartHub) -> None:
    first = start_hub()
    with start(first, "serve", "q", "--program", "/bin/cat") as service:
        until_shown(first, "running:\n  q")
        first.stop(signal.SIGKILL)
        second = start_hub("--listen", first.address)
        assert run(second, "call", "q", "--body", "again").stdout == "again\n"
        service.send_signal(signal.SIGINT)
        _, said = service.communicate(timeout=30)
        lost, back = said.splitlines()
        assert lost.startswith(f"hubbub: lost the hub at {first.address} (")
        assert back == f"hubbub: the hub at {first.address} is there again"
