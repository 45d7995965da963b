"""`hubbub switch`: calls and serves named queues, and shows who waits for whom.

The commands and what they print are those of message-switch's own tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from hubbub.cli import complete, payload, profile
from hubbub.cli.options import Cafile, Cert, Insecure, Key, takes, tls_over
from hubbub.cli.reach import reaching
from hubbub.cli.switch.answers import by_hand, by_program, print_payload
from hubbub.cli.switch.events import chart, event_line
from hubbub.cli.switch.report import report
from hubbub.client import run, split_url
from hubbub.client.switch import SwitchClient, connect
from hubbub.errors import CallTimeout, HubbubError, Refused, SettingError
from hubbub.spelling import meant
from hubbub.terminal import log_to_stderr, say

app = typer.Typer(add_completion=False, no_args_is_help=True)

Queue = Annotated[
    str, typer.Argument(help="The name of the queue.", autocompletion=complete.queues)
]

PATIENCE_SECONDS: Final = 2.0  # a service that begins together with its caller is there by then
CONCURRENT: Final = 10  # programs that answer at a time
INTERRUPTED: Final = 130  # the exit code of shells after Ctrl-C


class Switch(NamedTuple):
    """Where a command finds its queues, and whom it trusts, as it was given."""

    url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="http(s):// or switch(s)://, then HOST:PORT, or USER:PASSWORD@ before it; "
            "switch:///path, a Unix socket; else HUBBUB_URL, a profile, 127.0.0.1:8080.",
        ),
    ] = ""
    cafile: Cafile = None
    cert: Cert = None
    key: Key = None
    insecure: Insecure = False

    def placed(self) -> Switch:
        """With what the surroundings say, if no URL was typed."""
        if self.url:
            return self
        where = profile.place(profile.HTTP)
        return self._replace(url=where.url, cafile=self.cafile or where.trusted())

    def connect(self) -> AbstractAsyncContextManager[SwitchClient]:
        return connect(self.url, tls=tls_over(self, split_url(self.url).scheme))


def _do(
    where: Switch, work: Callable[[SwitchClient], Awaitable[None]], endless: bool = False
) -> None:
    """Connect and work. To interrupt what is `endless` is to end it in order."""

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            with reaching(where.url):
                hub = await stack.enter_async_context(where.connect())
            await work(hub)

    log_to_stderr(logging.WARNING, "hubbub: %(message)s")
    try:
        run(main())
    except KeyboardInterrupt:
        raise typer.Exit(0 if endless else INTERRUPTED) from None
    except BrokenPipeError:  # `| head` has enough
        sys.stderr.close()
        raise typer.Exit from None


# Calls and services


@app.command()
@takes(Switch)
def call(
    where: Switch,
    name: Queue,
    body: Annotated[str | None, typer.Option(help="The request; without it, stdin.")] = None,
    file: Annotated[Path | None, typer.Option(help="The request is what this file holds.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for the reply; else for ever.")
    ] = None,
) -> None:
    """Send a request to a queue and print the reply."""
    request = _request(body, file)

    async def work(hub: SwitchClient) -> None:
        late = asyncio.Event()
        hint = asyncio.ensure_future(_hint(hub, name, late))
        try:
            print_payload(await hub.call(name, request, timeout, keep=False))
        except CallTimeout:
            late.set()
            await hint
            raise
        finally:
            hint.cancel()

    _do(where, work)


async def _hint(hub: SwitchClient, name: str, late: asyncio.Event) -> None:
    """Say once that nobody serves the queue, if so, and which one may have been meant: after a
    while, or when it is late.
    """
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(late.wait(), PATIENCE_SECONDS)
    with contextlib.suppress(OSError, Refused):
        served = await hub.list()
        if name not in served:
            near = meant(name, (one for one in served if one != hub.token))
            said = f"hubbub: nobody serves {name}"
            say(f"{said}; {near}" if near else said, stream=sys.stderr)


def _request(body: str | None, file: Path | None) -> bytes:
    if body is not None and file is not None:
        raise SettingError("expected one request: --body or --file, not both")
    if body is not None:
        return payload.typed(body)
    if file is not None:
        return payload.contents(file)
    if sys.stdin.isatty():
        print("Enter body text:", file=sys.stderr)
    return sys.stdin.buffer.read()


@app.command()
@takes(Switch)
def serve(
    where: Switch,
    name: Queue,
    program: Annotated[
        str | None,
        typer.Option(help="Answers: the request is its input. Without it, you answer."),
    ] = None,
    concurrent: Annotated[
        int, typer.Option(min=1, help="So many programs run at a time.")
    ] = CONCURRENT,
) -> None:
    """Answer what comes into a queue, until interrupted."""
    if program is not None and shutil.which(program) is None:
        raise SettingError(f"there is no program {program} that can be run")

    async def work(hub: SwitchClient) -> None:
        if program is None:
            await _serve_by_hand(hub, name)
        else:
            await hub.serve(name, lambda request: by_program(program, request), concurrent)

    _do(where, work, endless=True)


async def _serve_by_hand(hub: SwitchClient, name: str) -> None:
    """One request at a time, until whoever answers has no more to say."""
    ended = asyncio.Event()

    async def answer(request: bytes) -> bytes:
        try:
            return await by_hand(request)
        except EOFError as error:
            ended.set()
            say(f"hubbub: {error}; the request stays in {name}", stream=sys.stderr)
            raise asyncio.CancelledError from None  # an error would be an answer

    serving = asyncio.ensure_future(hub.serve(name, answer))
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
    finally:
        serving.cancel()
        waiting.cancel()


# Queues


@app.command("list")
@takes(Switch)
def list_queues(
    where: Switch,
    prefix: Annotated[str, typer.Option(help="Only names that begin like this.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Also queues nobody has read.")] = False,
) -> None:
    """Print the queues that somebody reads or has read."""

    async def work(hub: SwitchClient) -> None:
        for name in await hub.list(prefix, all):
            say(name, lines=False)

    _do(where, work)


@app.command()
@takes(Switch)
def create(
    where: Switch,
    name: Queue,
    max_messages: Annotated[
        int | None, typer.Option(min=0, help="Refuse more messages than that.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="Refuse more when there are so many bytes.")
    ] = None,
    expires: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which a message ends.")
    ] = None,
    lease: Annotated[
        float | None, typer.Option(min=0, help="Readers compete; each has a message so long.")
    ] = None,
    max_deliveries: Annotated[
        int | None, typer.Option(min=0, help="Give a message up after so many leases.")
    ] = None,
    dead_letter: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Where it goes then.")
    ] = None,
) -> None:
    """Make a queue, or set what an existing one may be asked for; print what holds."""

    async def work(hub: SwitchClient) -> None:
        answer = await hub.configure(
            name, max_messages=max_messages, max_bytes=max_bytes, expires=expires, lease=lease,
            max_deliveries=max_deliveries, dead_letter=dead_letter,
        )  # fmt: skip
        for setting, value in answer.items():
            say(f"{setting} = {value}", lines=False)

    _do(where, work)


@app.command()
@takes(Switch)
def ack(
    where: Switch,
    name: Queue,
    number: Annotated[int, typer.Argument(help="The id of the message in the queue.")],
) -> None:
    """Take a message out of a queue without answering it."""

    async def work(hub: SwitchClient) -> None:
        if not await hub.ack(name, number):
            raise HubbubError(f"there is no message {number} in the queue {name}")

    _do(where, work)


@app.command()
@takes(Switch)
def destroy(where: Switch, name: Queue) -> None:
    """End a queue with all it holds."""

    async def work(hub: SwitchClient) -> None:
        if not await hub.destroy(name):
            raise HubbubError(f"there is no queue {name}")

    _do(where, work)


# Looking


@app.command()
@takes(Switch)
def diagnostics(
    where: Switch,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as it came.")] = False,
) -> None:
    """Show every queue, what waits in it, and for whom."""

    async def work(hub: SwitchClient) -> None:
        found = await hub.diagnostics()
        say(json.dumps(found, indent=2) if as_json else "\n".join(report(found)))

    _do(where, work)


@app.command()
@takes(Switch)
def tail(
    where: Switch,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
) -> None:
    """Print the last events at the queues."""

    async def work(hub: SwitchClient) -> None:
        began = 0.0
        async for event in hub.events() if follow else _last_events(hub):
            time = event["time"]
            assert isinstance(time, float | int)
            began = began or time
            say(event_line(event, time - began))

    _do(where, work, endless=follow)


@app.command()
@takes(Switch)
def mscgen(where: Switch) -> None:
    """Print the last events as a message sequence chart, for the program mscgen."""

    async def work(hub: SwitchClient) -> None:
        say("\n".join(chart([event async for event in _last_events(hub)])))

    _do(where, work)


async def _last_events(hub: SwitchClient) -> AsyncIterator[dict[str, object]]:
    for _, event in await hub.trace(timeout=0.0):
        yield event


@app.command()
@takes(Switch)
def shutdown(where: Switch) -> None:
    """End the hub."""

    async def work(hub: SwitchClient) -> None:
        await hub.shutdown()

    _do(where, work)
