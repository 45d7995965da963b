"""`hubbub sub`: prints messages as they arrive, one a line, until it has enough or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from hubbub.cli import payload
from hubbub.cli.options import takes
from hubbub.cli.target import Target
from hubbub.client import run
from hubbub.client.mqtt.subscriptions import matches
from hubbub.errors import SettingError

app = typer.Typer(add_completion=False)

TIMED_OUT: Final = 27  # the exit code that scripts around mosquitto_sub know


class Wishes(NamedTuple):
    """What is to be heard, and how much of it."""

    filters: list[str]
    qos: int
    unwanted: list[str]
    unsubscribe: list[str]
    enough: int | None
    no_retained: bool
    retained_only: bool
    remove_retained: bool
    leave: bool


@app.command()
@takes(Target)
def sub(
    target: Target,
    filters: Annotated[
        list[str] | None, typer.Argument(metavar="FILTER...", help="Over SMQ a literal topic.")
    ] = None,
    named: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="A filter; may be repeated.")
    ] = None,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="MQTT: 0, 1 or 2.")] = 0,
    count: Annotated[
        int | None, typer.Option("--count", "-C", "-n", min=1, help="End after so many messages.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--timeout", "-W", min=0, help="End after so many seconds.")
    ] = None,
    unwanted: Annotated[
        list[str] | None, typer.Option("--filter-out", "-T", help="Do not print these topics.")
    ] = None,
    unsubscribe: Annotated[
        list[str] | None,
        typer.Option("--unsubscribe", "-U", help="End this one of a kept session first."),
    ] = None,
    leave: Annotated[
        bool, typer.Option("--exit-after-subscribe", "-E", help="Subscribe, then end.")
    ] = False,
    no_retained: Annotated[
        bool, typer.Option("--no-retained", "-R", help="Do not print retained messages.")
    ] = False,
    retained_only: Annotated[
        bool, typer.Option("--retained-only", help="End at the first that is not retained.")
    ] = False,
    remove_retained: Annotated[
        bool, typer.Option("--remove-retained", help="Clear the retained messages it prints.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the topic: it always does.")
    ] = False,
    template: Annotated[
        str | None, typer.Option("--format", "-F", help="As mosquitto_sub: %t %p %q %r %x %j …")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    as_hex: Annotated[bool, typer.Option("--hex", help="Payloads in hexadecimal.")] = False,
    decoded: Annotated[
        bool, typer.Option("--decode", help="JSON, CBOR and MessagePack payloads as JSON.")
    ] = False,
    joined: Annotated[bool, typer.Option("-N", help="No line end after a message.")] = False,
) -> None:
    wanted = [*(filters or []), *(named or []), *([target.topic] if target.topic else [])]
    if not wanted and not unsubscribe:
        raise SettingError("expected what to listen to: FILTER, or --topic")
    if target.smq and any("+" in name or "#" in name for name in wanted):
        raise SettingError("SMQ has no wildcards: name each topic, or listen over mqtt://")
    if "" in wanted:
        raise SettingError("expected a filter that is not empty; # is everything")
    wishes = Wishes(
        wanted, qos, unwanted or [], unsubscribe or [], count, no_retained, retained_only,
        remove_retained, leave,
    )  # fmt: skip
    show = payload.printer(template, as_json, as_hex, decoded)
    end = "" if joined else "\n"
    try:
        run(_print(target, wishes, show, end, seconds))
    except TimeoutError:
        raise typer.Exit(TIMED_OUT) from None
    except KeyboardInterrupt:
        raise typer.Exit from None
    except BrokenPipeError:  # `| head` has enough
        sys.stderr.close()
        raise typer.Exit from None


async def _print(
    target: Target, wishes: Wishes, show: payload.Printer, end: str, seconds: float | None
) -> None:
    async with asyncio.timeout(seconds), _messages(target, wishes) as messages:
        async for message in messages:
            payload.put(show(message), end)


@contextlib.asynccontextmanager
async def _messages(target: Target, wishes: Wishes) -> AsyncIterator[AsyncIterator[Any]]:
    """Subscribe; what arrives and is wanted, until there is enough."""
    options = {"qos": wishes.qos} if wishes.qos else {}
    async with target.connect() as client:
        for name in wishes.filters:
            await client.subscribe(name, **options)
        for name in wishes.unsubscribe:
            await client.unsubscribe(name)
        yield _wanted(client, wishes)


async def _wanted(client: Any, wishes: Wishes) -> AsyncIterator[Any]:
    if wishes.leave or not wishes.filters:
        return
    seen = 0
    async for message in client.messages():
        retained = getattr(message, "retain", False)
        if wishes.retained_only and not retained:
            return
        if (wishes.no_retained and retained) or any(
            matches(one, message.topic) for one in wishes.unwanted
        ):
            continue
        if wishes.remove_retained and retained:
            await client.publish(message.topic, b"", 1, True)
        yield message
        seen += 1
        if seen == wishes.enough:
            return
