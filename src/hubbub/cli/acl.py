"""`hubbub acl`: explains the permissions of a file, without a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from hubbub.auth.acl import Acl
from hubbub.config.sources import load
from hubbub.core.rights import VERBS
from hubbub.core.topics import is_filter
from hubbub.errors import SettingError
from hubbub.terminal import say

app = typer.Typer(no_args_is_help=True, add_completion=False)

REFUSED: Final = 1


@app.callback()
def acl() -> None:
    """Permissions: what users may do, and which line says so."""


@app.command()
def check(
    user: Annotated[str, typer.Argument(metavar="USER", help="\"\" is a client without one.")],
    verb: Annotated[str, typer.Argument(metavar="VERB", help=", ".join(VERBS))],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A topic, a filter, $queue/Q.")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The acl_file to look into.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration that names it.")
    ] = None,
    client: Annotated[str, typer.Option("--client", help="The client id, for patterns.")] = "",
) -> None:
    """Say whether a user may do it, and why. Exit code 0: may; 1: may not."""
    if verb not in VERBS:
        raise SettingError(f"{verb!r} is no verb: expected one of {', '.join(VERBS)}")
    if not is_filter(name):
        raise SettingError(f"{name!r} is neither a topic nor a filter")
    place = _file(file, config)
    permitted, line = Acl(place).rights(user, client).explain(verb, name)
    who = user or "a client without a user name"
    if permitted:
        say(f"{who} may {verb} {name}: {line or 'everybody may'}")
        return
    say(f"{who} may not {verb} {name}: {line or f'no line of {place} permits it'}")
    raise typer.Exit(REFUSED)


def _file(file: Path | None, config: Path | None) -> Path:
    if (file is None) == (config is None):
        raise SettingError("expected --file ACL, or --config FILE with the setting acl_file")
    if file is not None:
        return file
    named = load(config).acl_file
    if not named:
        raise SettingError(f"{config} has no acl_file: everybody may do everything")
    return Path(named)
