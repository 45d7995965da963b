"""`hubbub requeue`: has a running hub put dead letters back to where they died."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from hubbub.cli import complete
from hubbub.cli.asked import Asked
from hubbub.cli.options import takes
from hubbub.errors import HubbubError
from hubbub.terminal import say

app = typer.Typer(add_completion=False)

_PART: Final = 2_000  # messages of one request


@app.command()
@takes(Asked)
def requeue(
    hub: Asked,
    name: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE", help="Where they are now.", autocompletion=complete.queues
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="QUEUE", help="All of them go there, dead letters or not.",
            autocompletion=complete.queues,
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Not more than so many, the oldest; 0: all.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which would go where.")
    ] = False,
) -> None:
    moved: dict[str, int] = {}
    stayed: dict[str, int] = {}
    asked: dict[str, Any] = {"name": name, **({"to": to} if to else {})}
    left = limit or sys.maxsize
    while left > 0:
        asked["limit"] = min(left, _PART)
        query = urlencode(asked, errors="surrogateescape")
        answer = hub.fetch(f"queue/requeue?{query}", "GET" if dry_run else "POST")
        for found, more in ((moved, answer["moved"]), (stayed, answer["stayed"])):
            for word, count in more.items():
                found[word] = found.get(word, 0) + count
        left -= sum(answer["moved"].values())
        if answer["next"] < 0:
            break
        asked |= {"from": answer["next"], "before": answer["before"]}
    done = "would go to" if dry_run else "went to"
    for place, count in moved.items():
        say(f"{name}: {count} messages {done} {place}", lines=False)
    for why, count in stayed.items():
        say(f"{name}: {count} stay: {why}", lines=False, stream=sys.stderr)
    if not (moved or stayed):
        say(f"{name}: nothing is in it", lines=False)
    if stayed and not dry_run:
        raise HubbubError(f"{sum(stayed.values())} messages of {name} stay there")
