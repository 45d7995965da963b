"""`hubbub acl`: explains the permissions of a file, without a hub: of an acl_file, or of dynamic
security.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from hubbub.auth.acl import Acl
from hubbub.auth.dynamic import Dynamic
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
    rules = _rules(file, config)
    permitted, line = rules.rights(user, client).explain(verb, name)
    who = user or "a client without a user name"
    if permitted:
        say(f"{who} may {verb} {name}: {line or 'everybody may'}")
        return
    say(f"{who} may not {verb} {name}: {line or f'no line of {rules.file} permits it'}")
    raise typer.Exit(REFUSED)


def _rules(file: Path | None, config: Path | None) -> Acl | Dynamic:
    if (file is None) == (config is None):
        raise SettingError("expected --file ACL, or --config FILE with the setting acl_file")
    if file is not None:
        return Acl(file)
    settings = load(config)
    if settings.dynamic_security:
        return Dynamic(Path(settings.dynamic_security))
    named = {listener.acl_file: listener.address for listener in settings.listeners()}
    if len(named) > 1:
        places = ", ".join(f"{one or 'none'} for {address}" for one, address in named.items())
        raise SettingError(f"{config} has more than one acl_file, say --file: {places}")
    (name,) = named or {settings.acl_file}
    if not name:
        raise SettingError(f"{config} has no acl_file: everybody may do everything")
    return Acl(Path(name))
