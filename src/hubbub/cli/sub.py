"""`hubbub sub`: prints messages as they arrive, one a line, until it has enough or Ctrl-C."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Annotated, Any

import typer

from hubbub.client import connect, run

app = typer.Typer(add_completion=False)


@app.command()
def sub(
    filters: Annotated[
        list[str], typer.Argument(metavar="FILTER", help="Over SMQ a literal topic.")
    ],
    qos: Annotated[int, typer.Option(min=0, max=2, help="MQTT: 0, 1 or 2.")] = 0,
    url: Annotated[str, typer.Option(help="mqtt:// or smq://HOST:PORT.")] = "mqtt://127.0.0.1:1883",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    try:
        run(_print_messages(url, filters, {"qos": qos} if qos else {}, count, as_json))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _print_messages(
    url: str, filters: list[str], options: dict[str, Any], count: int | None, as_json: bool
) -> None:
    async with connect(url) as client:
        for name in filters:
            await client.subscribe(name, **options)
        seen = 0
        async for message in client.messages():
            print(_json(message) if as_json else _line(message), flush=True)
            seen += 1
            if seen == count:
                return


def _line(message: Any) -> str:
    return f"{message.topic} {message.payload.decode('utf-8', 'backslashreplace')}"


def _json(message: Any) -> str:
    """The fields the protocol has; a payload that is no text goes as `payload_base64`."""
    fields: dict[str, Any] = {"topic": message.topic}
    for name in ("subtopic", "qos", "retain"):
        if hasattr(message, name):
            fields[name] = getattr(message, name)
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = b64encode(message.payload).decode()
    return json.dumps(fields)
