"""`hubbub pub`: publishes one message through one of our clients and ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from hubbub.client import connect, run
from hubbub.errors import SettingError

app = typer.Typer(add_completion=False)

# What each protocol can say about a message.
_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "mqtt": frozenset(("qos", "retain")),
    "smq": frozenset(("subtopic",)),
}


@app.command()
def pub(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; $queue/NAME puts it into a queue.")
    ],
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="The payload; without it, stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The payload is what this file holds.")
    ] = None,
    qos: Annotated[int, typer.Option(min=0, max=2, help="MQTT: 0, 1 or 2.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="MQTT: keep as the last value.")] = False,
    subtopic: Annotated[str, typer.Option(help="SMQ: the sub-topic.")] = "",
    url: Annotated[str, typer.Option(help="mqtt:// or smq://HOST:PORT.")] = "mqtt://127.0.0.1:1883",
) -> None:
    wanted = {"qos": qos, "retain": retain, "subtopic": subtopic}
    options = {name: value for name, value in wanted.items() if value}
    _refuse_unspeakable(url, options)
    run(_publish(url, topic, _payload(message, file), options))


def _refuse_unspeakable(url: str, options: dict[str, Any]) -> None:
    scheme = urlsplit(url).scheme
    unknown = options.keys() - _OPTIONS.get(scheme, options.keys())
    if unknown:
        raise SettingError(f"--{unknown.pop()} says nothing over {scheme}://; leave it out")


def _payload(message: str | None, file: Path | None) -> bytes:
    if message is not None and file is not None:
        raise SettingError("expected one payload: --message or --file, not both")
    if message is not None:
        return message.encode()
    return file.read_bytes() if file is not None else sys.stdin.buffer.read()


async def _publish(url: str, topic: str, payload: bytes, options: dict[str, Any]) -> None:
    async with connect(url) as client:
        await client.publish(topic, payload, **options)
