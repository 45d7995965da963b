"""`hubbub history`: prints what was published before, oldest first, one message a line."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from datetime import datetime
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import typer

from hubbub.cli import payload
from hubbub.cli.asked import AsJson, Asked
from hubbub.cli.options import takes
from hubbub.core.limits import HISTORY_MESSAGES
from hubbub.terminal import for_stream

app = typer.Typer(add_completion=False)


class _Message(NamedTuple):
    """One of the answer, as the printers of `hubbub sub` take it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    content_type: str
    user: tuple[tuple[str, str], ...]


@app.command()
@takes(Asked)
def history(
    hub: Asked,
    topic: Annotated[str, typer.Argument(help="A topic, or a filter such as 'plant/#'.")],
    last: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=HISTORY_MESSAGES, help="The newest N (20)."),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="From then on: 90s, 30m, 1h, 7d, or an ISO time.")
    ] = "",
    template: Annotated[
        str | None, typer.Option("--format", "-F", help="As hubbub sub: %t %p %q %r %x %j …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    asked = {"last": last or ("" if since else 20), "since": since}
    query = urlencode({name: value for name, value in asked.items() if value})
    answer = hub.fetch(f"history/{quote(topic, '/', errors='surrogateescape')}?{query}")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    show = payload.printer(template, False, False, False)
    for one in answer["messages"]:
        shown = show(_message(one))
        payload.put(shown if template is not None else f"{_clock(one['time'])} {shown}")
    if not answer["complete"]:
        print(f"Looked back to {_clock(answer['reaches'])}, not further.", file=sys.stderr)
    elif not answer["messages"]:
        print("Nothing of that is in the journal.", file=sys.stderr)


def _message(said: dict[str, Any]) -> _Message:
    data = b64decode(said["base64"]) if "base64" in said else said.get("payload", "").encode()
    user = tuple((name, value) for name, value in said.get("properties", {}).get("user", ()))
    return _Message(
        said["topic"], data, said.get("qos", 0), said.get("retain", False),
        said.get("content_type", ""), user,
    )  # fmt: skip


def _clock(moment: str) -> str:
    """In the zone of who reads it, as the log has it."""
    if not moment:
        return "the beginning"
    local = datetime.fromisoformat(moment).astimezone()
    return for_stream(local.isoformat(" ", "milliseconds"), lines=False)
