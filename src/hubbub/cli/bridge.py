"""`hubbub bridge`: cuts a bridge of a running hub off, or has it connect again."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlencode

import typer

from hubbub.cli import complete
from hubbub.cli.asked import Asked
from hubbub.cli.options import takes
from hubbub.terminal import say

app = typer.Typer(add_completion=False)

Deed = Literal["cut-off", "resume"]

_DONE: Final[dict[Deed, str]] = {
    "cut-off": "it is cut off; what goes out waits until `hubbub bridge resume`",
    "resume": "it connects again",
}


@app.command()
@takes(Asked)
def bridge(
    hub: Asked,
    deed: Annotated[Deed, typer.Argument(help="cut-off: end its connection; resume: connect.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="As `ls bridges` says it.", autocompletion=complete.bridges
        ),
    ],
) -> None:
    query = urlencode({"name": name}, errors="surrogateescape")
    answer = hub.fetch(f"bridges/{deed}?{query}", "POST")
    forgotten = deed == "cut-off" and not answer["kept"]
    say(f"{name}: {_DONE[deed]}{', or a restart: there is no journal' if forgotten else ''}",
        lines=False)  # fmt: skip
