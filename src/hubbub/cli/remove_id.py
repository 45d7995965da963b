"""`hubbub remove-id`: has a running hub take ids of topics and sub-topics away."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from hubbub.cli.asked import Asked
from hubbub.cli.options import takes
from hubbub.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
@takes(Asked)
def remove_id(
    hub: Asked,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Topics that have an id.")],
    subtopic: Annotated[
        bool, typer.Option("--subtopic", help="They are sub-topics instead.")
    ] = False,
) -> None:
    which = "subtopic" if subtopic else "topic"
    for name in names:
        hub.fetch(f"ids?{urlencode({which: name}, errors='surrogateescape')}", "DELETE")
        say(f"{name}: removed", lines=False)
