"""`hubbub refusals`: asks a running hub why somebody was refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from hubbub.cli.asked import AsJson, Asked, silent
from hubbub.cli.options import takes
from hubbub.terminal import for_stream

app = typer.Typer(add_completion=False)


@app.command()
@takes(Asked)
def refusals(
    hub: Asked,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help='Only of this user; "" is who named none.')
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-i", help="Only of this client id.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=2_000, help="At most so many, the newest.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    asked: dict[str, Any] = {"user": user, "client": client, "limit": limit}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    answer = hub.fetch(f"refusals?{query}")
    found: list[dict[str, Any]] = answer["refusals"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for one in reversed(found):  # the newest next to the prompt
        when = datetime.fromtimestamp(one["time"] / 1e6).astimezone().isoformat(" ", "seconds")
        print(when, for_stream(one["text"], lines=False))
    if not found:
        print("nobody was refused anything, as far as the hub remembers (1,000 of each kind)")
    if missing := silent(answer):
        print(f"not all are here{missing}")
