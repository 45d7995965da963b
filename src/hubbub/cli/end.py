"""`hubbub end`: ends what a running hub has: a connection, a session, a queue and more."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlencode

import typer

from hubbub.cli import complete
from hubbub.cli.asked import Asked
from hubbub.cli.options import takes
from hubbub.errors import HubbubError, SettingError
from hubbub.terminal import say

app = typer.Typer(add_completion=False)

Kind = Literal["client", "session", "queue", "messages", "retained", "delayed", "node"]


class _Way(NamedTuple):
    """What is asked for it, under which word its name goes, and what is said when it is done."""

    path: str
    word: str
    done: str


_WAYS: Final[dict[Kind, _Way]] = {
    "client": _Way("clients", "client", "its connection is ended"),
    "session": _Way("sessions", "client", "its session is over, with what waited for it"),
    "queue": _Way("queue", "name", "the queue is gone, with what was in it"),
    "messages": _Way("queue/messages", "name", "{purged} messages of the queue are gone"),
    "retained": _Way("retained", "topic", "nothing is retained there any more"),
    "delayed": _Way("delayed", "seq", "it will not be published"),
    "node": _Way(
        "nodes", "name",
        "removed for good, with {sessions} sessions, {queues} queues and {messages} messages that "
        "nobody had taken over",
    ),
}  # fmt: skip


_DAY: Final = 86_400
_SHOWN: Final = 10_000  # sessions of one answer
_SUBTREE: Final = (
    "each is ended by its own name; all that a filter matches by "
    "`hubbub sub FILTER --retained-only --remove-retained -W 5`"
)


@app.command()
@takes(Asked)
def end(
    hub: Asked,
    kind: Annotated[Kind, typer.Argument(help=f"What: {', '.join(_WAYS)}.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="Client ids, queues, topics, or rows of `ls`.",
            autocompletion=complete.ended,
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="Of clients and sessions: what they speak.")
    ] = "mqtt",
    process: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of delayed messages: as `ls` says it.")
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Of nodes: also with what nobody has taken over.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="NAME has %XX for bytes, as ls shows what is no text.")
    ] = False,
    away: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", min=0.0, max=100_000.0,
            help="Of sessions: all whose client has not been here so long.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --away: only say which those are.")
    ] = False,
) -> None:
    if (away is None) == (not names) or (away is not None and kind != "session"):
        raise SettingError("expected NAME..., or `end session --away DAYS`")
    if dry_run and away is None:
        raise SettingError("--dry-run goes with `end session --away DAYS`")
    if away is not None:
        _long_away(hub, protocol, away, dry_run)
        return
    way, failed, names = _WAYS[kind], 0, names or []
    for name in names:
        meant = unquote(name, errors="surrogateescape") if exact else name
        asked = {way.word: meant} | ({"protocol": protocol} if way.word == "client" else {})
        asked |= {"process": str(process)} if process else {}
        asked |= {"force": "1"} if force else {}
        query = urlencode(asked, errors="surrogateescape")
        try:
            answer: dict[str, Any] = hub.fetch(f"{way.path}?{query}", "DELETE")
        except HubbubError as error:
            if kind == "retained" and {*name} & {*"+#"} and " says 404" in str(error):
                error = HubbubError(f"{error}: {_SUBTREE}")
            if len(names) == 1:
                raise error from None
            failed += 1
            say(f"{name}: {error}", stream=sys.stderr)
        else:
            say(f"{name}: {way.done.format_map(answer)}", lines=False)
    if failed:
        raise HubbubError(f"{failed} of {len(names)} were not ended")


def _long_away(hub: Asked, protocol: str, days: float, dry_run: bool) -> None:
    """All of them, part by part."""
    asked = {"protocol": protocol, "seconds": max(1, round(days * _DAY))}
    count = 0
    while True:
        if dry_run:
            query = urlencode({**asked, "limit": _SHOWN, "offset": count})
            answer = hub.fetch(f"sessions/away?{query}")
            for row in answer["sessions"]:
                left = datetime.fromtimestamp(row["left"] / 1e6).astimezone()
                say(f"{row['client']}: away since {left.isoformat(' ', 'seconds')}", lines=False)
            more = len(answer["sessions"])
        else:
            answer = hub.fetch(f"sessions/away?{urlencode(asked)}", "DELETE")
            more = answer["count"]
        count += more
        if not more:
            break
    what = "would be over" if dry_run else "are over, with what waited for them"
    say(f"{count} sessions {what}")
    if answer["silent"]:
        silent = ", ".join(map(str, answer["silent"]))
        raise HubbubError(f"process {silent} does not answer, and may have more of them")
