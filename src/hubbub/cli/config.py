"""`hubbub config`: prints the text of `hubbub.toml`, the manual of all settings."""

from __future__ import annotations

import typer

from hubbub.config.sources import manual

app = typer.Typer(add_completion=False)


@app.command()
def config() -> None:
    print(manual(), end="")
