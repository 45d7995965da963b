"""`hubbub switch`: calls and serves named queues, and shows who waits for whom.

The commands and what they print are those of message-switch's own tool.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from hubbub.client import run
from hubbub.client.switch import SwitchClient, connect
from hubbub.errors import HubbubError, SettingError

app = typer.Typer(add_completion=False, no_args_is_help=True)

Url = Annotated[str, typer.Option(help="http://HOST:PORT of the hub.")]
Queue = Annotated[str, typer.Argument(help="The name of the queue.")]
DEFAULT_URL: Final = "http://127.0.0.1:8080"

PAYLOAD_CHARACTERS: Final = 70  # of a message in the diagnostics
LATE_SECONDS: Final = 30.0  # who is later than this to ask again does not live


def _run(url: str, main: Coroutine[Any, Any, None]) -> None:
    try:
        run(main)
    except ConnectionError as error:
        raise HubbubError(
            f"no hub answers at {url} ({error}); start one with `hubbub serve` or say --url"
        ) from None


@app.command("list")
def list_queues(
    prefix: Annotated[str, typer.Option(help="Only names that begin like this.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Also queues nobody reads.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print the queues that are served."""

    async def main() -> None:
        async with connect(url) as hub:
            for name in await hub.list(prefix, all):
                print(name)

    _run(url, main())


@app.command()
def call(
    name: Queue,
    body: Annotated[str | None, typer.Option(help="The request; without it, stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="The request is what this file holds.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for the reply; else for ever.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Send a request to a queue and print the reply."""

    async def main() -> None:
        async with connect(url) as hub:
            _print_bytes(await hub.call(name, request, timeout))

    request = _request(body, file)
    _run(url, main())


def _request(body: str | None, file: Path | None) -> bytes:
    if body is not None and file is not None:
        raise SettingError("expected one request: --body or --file, not both")
    if body is not None:
        return body.encode()
    if file is not None:
        return file.read_bytes()
    if sys.stdin.isatty():
        print("Enter body text:", file=sys.stderr)
    return sys.stdin.buffer.read()


def _print_bytes(payload: bytes) -> None:
    sys.stdout.buffer.write(payload + b"\n")
    sys.stdout.buffer.flush()


@app.command()
def serve(
    name: Queue,
    program: Annotated[
        str | None,
        typer.Option(help="Answers: the request is its input. Without it, you answer."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Answer what comes into a queue, until interrupted."""

    if program is not None and shutil.which(program) is None:
        raise SettingError(f"there is no program {program} that can be run")

    async def by_program(request: bytes) -> bytes:
        return await _answer_by(str(program), request)

    async def main() -> None:
        async with connect(url) as hub:
            if program is not None:
                await hub.serve(name, by_program, concurrent=True)
            else:
                await hub.serve(name, _answer_by_hand)

    _run(url, main())


async def _answer_by(program: str, request: bytes) -> bytes:
    """What the program prints, without the last line's end."""
    process = await asyncio.create_subprocess_exec(
        program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    reply, _ = await process.communicate(request)
    if process.returncode:
        raise HubbubError(f"{program} ended with code {process.returncode}")
    return reply.removesuffix(b"\n")


async def _answer_by_hand(request: bytes) -> bytes:
    _print_bytes(request)
    print("Enter body text (end with a line '.'):", file=sys.stderr)
    return await asyncio.to_thread(_typed_lines)


def _typed_lines() -> bytes:
    lines = []
    for line in sys.stdin.buffer:
        if line.rstrip(b"\r\n") == b".":
            break
        lines.append(line)
    return b"".join(lines).removesuffix(b"\n")


@app.command()
def ack(
    name: Queue,
    number: Annotated[int, typer.Argument(help="The id of the message in the queue.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Take a message out of a queue without answering it."""

    async def main() -> None:
        async with connect(url) as hub:
            await hub.ack(name, number)

    _run(url, main())


@app.command()
def destroy(name: Queue, url: Url = DEFAULT_URL) -> None:
    """End a queue with all it holds."""

    async def main() -> None:
        async with connect(url) as hub:
            await hub.destroy(name)

    _run(url, main())


@app.command()
def tail(
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print the last events at the queues."""

    async def main() -> None:
        async with connect(url) as hub:
            await _tail(hub, follow)

    _run(url, main())


async def _tail(hub: SwitchClient, follow: bool) -> None:
    last, began = -1, 0.0
    while True:
        events = await hub.events(last, 30.0 if follow else 0.0)
        for number, event in events:
            last = number
            began = began or event["time"]
            print(_event_line(event, event["time"] - began), flush=True)
        if not follow:
            return


# Columns as in the original: time, from, queue, to, seconds, what. Too long ones keep their end.
_WIDTHS: Final = (5, 15, 4, 30, 4, 15, 5)


def _event_line(event: dict[str, Any], since: float) -> str:
    kind, (queue, number), *rest = event["message"]
    acknowledged = kind == "Ack"
    payload = "ack" if acknowledged else rest[0]["payload"]
    took = f"{event['processing_time'] / 1e9:.2f}" if "processing_time" in event else ""
    columns = (
        f"{since:.2f}",
        event.get("input", ""),
        "" if "input" not in event else "<-" if acknowledged else "->",
        event["queue"],
        "->" if "output" in event else "",
        event.get("output", ""),
        took,
    )
    cut = [text[-width:].ljust(width) for text, width in zip(columns, _WIDTHS, strict=True)]
    return " ".join((*cut, f"{queue}.{number}:{_one_line(payload)}"))


def _one_line(payload: str) -> str:
    shown = payload.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in shown)


# Diagnostics


@app.command()
def diagnostics(
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as it came.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show every queue, what waits in it, and for whom."""

    async def main() -> None:
        async with connect(url) as hub:
            found = await hub.diagnostics()
        print(json.dumps(found, indent=2) if as_json else "\n".join(_report(found)))

    _run(url, main())


# The groups of queues, in the order in which they are shown.
_STATES: Final = {
    "running": "The following services are running:",
    "not started": "The following services have been called but have never started:",
    "gone": "The following services have crashed or deadlocked:",
}
_WAITING: Final = {
    "running": "is waiting for a response",
    "not started": "has not started",
    "gone": "has gone, or is deadlocked",
}


def _report(found: dict[str, Any]) -> list[str]:
    now = found["current_time"]
    lines = [f"Switch started {_ago(now - found['start_time'])} ago"]
    services, callers = found["permanent_queues"], found["transient_queues"]
    for state, title in _STATES.items():
        names = [name for name, queue in services.items() if _state(queue, now) == state]
        if names:
            lines += [title]
        for name in names:
            lines += _queue_lines(name, services[name], {**services, **callers}, now)
    replies = {name: queue for name, queue in callers.items() if queue["queue_contents"]}
    if replies:
        lines += ["Temporary queues containing replies:"]
    for name, queue in replies.items():
        lines += _queue_lines(name, queue, callers, now)
    return lines


def _state(queue: dict[str, Any] | None, now: int) -> str:
    expected = queue.get("next_transfer_expected") if queue else None
    if queue is None:
        return "gone"
    if expected is None:
        return "not started"
    return "running" if expected + LATE_SECONDS * 1e9 > now else "gone"


def _queue_lines(name: str, queue: dict[str, Any], queues: dict[str, Any], now: int) -> list[str]:
    lines = [f"  {_one_line(name)}"]
    for (_, number), entry in queue["queue_contents"]:
        message = entry["message"]
        kind, origin = message["kind"][0].lower(), entry["origin"][1]
        sent = _ago(now - entry["time"])
        lines += [
            f"    {number}: {kind} from: {origin} sent {sent} ago",
            f"      {_one_line(message['payload'])[:PAYLOAD_CHARACTERS]}",
        ]
        if kind == "request" and message["kind"][1]:
            caller = message["kind"][1]
            lines += [f"      {caller} {_WAITING[_state(queues.get(caller), now)]}"]
    return lines


def _ago(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min" if hours < 1 else f"{hours} h {minutes % 60} min"
