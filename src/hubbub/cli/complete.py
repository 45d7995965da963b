"""What the shell offers after TAB: settings, queues of the hub that is meant, and tables.

Nothing here may print or fail: whoever types would find it in the middle of a line.
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from hubbub.errors import HubbubError

_SHOWN: Final = 1_000  # queues that are asked for
_SAFE: Final = re.compile(r"(?!-)[\w.,:@%+/-]+", re.ASCII)  # what a shell takes as it is


def settings(incomplete: str) -> list[str]:
    """Names of settings as `NAME=`; of one alone, or behind its `=`, what it may be."""
    from hubbub.config.sources import offered

    known = offered()
    name, equals, begun = incomplete.partition("=")
    if equals:
        return [f"{name}={value}" for value in known.get(name, ()) if value.startswith(begun)]
    found = {name: values for name, values in known.items() if name.startswith(incomplete)}
    if len(found) > 1:
        return [f"{name}=" for name in found]
    return [f"{name}={value}" for name, values in found.items() for value in values]


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues of the hub that was typed or of the surroundings; none if it does not say."""
    return _listed(ctx, incomplete, "queues", "queue")


def _listed(ctx: typer.Context, incomplete: str, kind: str, word: str) -> list[str]:
    from hubbub.cli.asked import Asked

    asked = urlencode({"search": incomplete, "limit": _SHOWN})
    typed = {name: ctx.params[name] for name in Asked._fields if ctx.params.get(name)}
    try:
        found = Asked(**typed).placed().fetch(f"ls/{kind}?{asked}")[kind]
    except (HubbubError, KeyError):
        return []
    names = [str(one[word]) for one in found]
    return [name for name in names if name.startswith(incomplete) and _SAFE.fullmatch(name)]


def bridges(ctx: typer.Context, incomplete: str) -> list[str]:
    """Bridges of that hub."""
    return _listed(ctx, incomplete, "bridges", "bridge")


def ended(ctx: typer.Context, incomplete: str) -> list[str]:
    """What `end` may be given, where that is a queue: there may be too many of all else."""
    return queues(ctx, incomplete) if ctx.params.get("kind") in ("queue", "messages") else []


def tables(incomplete: str) -> list[str]:
    """Tables that every hub has; after a comma one more."""
    try:
        from hubbub.pipeline.tables import ALL
    except ModuleNotFoundError:  # installed without Spark
        return []
    before, comma, begun = incomplete.rpartition(",")
    return [before + comma + one.name for one in ALL if one.name.startswith(begun)]


# Of every command that takes settings.
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", autocompletion=settings, help="One setting; may be repeated."
    ),
]
