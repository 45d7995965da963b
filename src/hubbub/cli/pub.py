"""`hubbub pub`: publishes one message, or one a line, through one of our clients and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from hubbub.cli import payload
from hubbub.cli.options import takes
from hubbub.cli.target import Target
from hubbub.client import run
from hubbub.core.topics import QUEUE
from hubbub.errors import SettingError

app = typer.Typer(add_completion=False)

UNDER_WAY: Final = 1_000  # lines that were read and are not acknowledged

# What only one protocol can say about a message.
_MQTT: Final = frozenset((
    "qos", "retain", "content_type", "response_topic", "correlation", "expiry", "user",
))  # fmt: skip
_SMQ: Final = frozenset(("subtopic",))


@app.command()
@takes(Target)
def pub(
    target: Target,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; $queue/NAME puts it into a queue.")
    ] = "",
    named: Annotated[str, typer.Option("--topic", "-t", help="The topic, as an option.")] = "",
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="The payload; without it, stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The payload is what this file holds.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--stdin-line", "-l", help="One message a line of stdin.")
    ] = False,
    empty: Annotated[bool, typer.Option("--null", "-n", help="An empty payload.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", "-s", help="All of stdin is one.")] = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="MQTT: 0, 1 or 2.")] = 0,
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="MQTT: keep as the last value.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Publish it so many times.")] = 1,
    repeat_delay: Annotated[float, typer.Option(min=0, help="Seconds between them.")] = 0,
    content_type: Annotated[str, typer.Option(help="MQTT 5: what the payload is.")] = "",
    response_topic: Annotated[str, typer.Option(help="MQTT 5: where a reply goes.")] = "",
    correlation: Annotated[str, typer.Option(help="MQTT 5: what the reply repeats.")] = "",
    expiry: Annotated[
        int | None, typer.Option(min=1, help="MQTT 5: seconds until it is void.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user-property", metavar="NAME=VALUE", help="MQTT 5.")
    ] = None,
    subtopic: Annotated[str, typer.Option(help="SMQ: the sub-topic.")] = "",
) -> None:
    wanted: dict[str, Any] = {
        "qos": qos, "retain": retain, "content_type": content_type,
        "response_topic": response_topic, "correlation": payload.typed(correlation),
        "expiry": expiry, "user": pairs(user or []), "subtopic": subtopic,
    }  # fmt: skip
    options = {name: value for name, value in wanted.items() if value}
    _refuse_unspeakable(target, options)
    name = one_topic(topic, named, target.topic)
    refuse_wildcards(target, name)
    if lines and (message is not None or file is not None or empty or stdin):
        raise SettingError("expected one payload: --stdin-line takes all of stdin, not both")
    payloads = (
        payload.lines()
        if lines
        else payload.repeated(payload.given(message, file, empty, stdin), repeat, repeat_delay)
    )
    run(_publish(target, name, payloads, options, lines))


def pairs(texts: list[str]) -> list[tuple[str, str]]:
    """User properties as they are typed, NAME=VALUE."""
    for one in texts:
        if "=" not in one:
            raise SettingError(f"expected --user-property NAME=VALUE, got {one!r}")
    return [(one.partition("=")[0], one.partition("=")[2]) for one in texts]


def one_topic(*ways: str) -> str:
    """The topic, however it was given."""
    given = [one for one in ways if one]
    if len(given) != 1:
        raise SettingError(
            "expected one topic, not empty: TOPIC, or --topic, or the path of an MQTT URL"
        )
    if given[0] == QUEUE:
        raise SettingError(f"expected the name of a queue behind it, got {QUEUE!r}")
    return given[0]


def refuse_wildcards(target: Target, topic: str) -> None:
    """MQTT publishes to one topic (4.7.1.1). To SMQ such a name is like any other."""
    if not target.smq and ("+" in topic or "#" in topic):
        raise SettingError(f"a message goes to one topic, without + and #; got {topic!r}")


def _refuse_unspeakable(target: Target, options: dict[str, Any]) -> None:
    unknown = options.keys() & (_MQTT if target.smq else _SMQ)
    if unknown:
        name = unknown.pop().replace("_", "-").replace("user", "user-property")
        raise SettingError(f"--{name} says nothing over {target.scheme}://; leave it out")


async def _publish(
    target: Target, topic: str, payloads: AsyncIterator[bytes], options: dict[str, Any], lines: bool
) -> None:
    """Publish all, in order; lines are read while those before them are under way."""
    places = asyncio.Semaphore(UNDER_WAY)

    async def publish(data: bytes) -> None:
        async with places:
            await client.publish(topic, data, **options)

    async with target.connect(**({} if target.smq else {"reconnect": lines})) as client:
        try:
            async with asyncio.TaskGroup() as tasks:
                async for data in payloads:
                    tasks.create_task(publish(data))
                    async with places:
                        pass  # there is room for another
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
