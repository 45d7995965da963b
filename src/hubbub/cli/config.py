"""`hubbub config`: prints the text of `hubbub.toml`, the manual of all settings, or all bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hubbub.config.sources import load, manual

app = typer.Typer(add_completion=False)


@app.command()
def config(
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Print all bounds of the hub as a table instead.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The bounds that this file sets."),
    ] = None,
) -> None:
    if not bounds:
        print(manual(), end="")
        return
    from hubbub.cli.bounds import text  # the hub's core takes a moment to load

    print(text(load(file)), end="")
