"""`hubbub status`: asks a running hub what it is doing and shows the answer."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote
from urllib.request import Request, urlopen

import typer
from rich.console import Console
from rich.table import Table

from hubbub.cli import profile
from hubbub.cli.reach import no_hub
from hubbub.client import split_url
from hubbub.errors import HubbubError, SettingError, without_user
from hubbub.terminal import for_stream

app = typer.Typer(add_completion=False)

# What every command takes that asks a hub about itself.
HERE: Final = ""  # what the surroundings say
Url = Annotated[
    str, typer.Option(help="http://HOST:PORT of the hub; HUBBUB_URL, a profile, 127.0.0.1:8080.")
]
Token = Annotated[
    str, typer.Option(envvar="HUBBUB_TOKEN", help="The hub's api.token, if it has one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as it came.")]

_STAMPS: Final = ("started", "time")
_SHOWN: Final = 100  # clients, and queues: as many as anybody reads in a terminal
_SECONDS: Final = 10.0  # a hub that does not answer in this time is not well


@app.command()
def status(
    url: Url = HERE,
    token: Token = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000, help="At most so many clients, queues.")
    ] = _SHOWN,
    as_json: AsJson = False,
) -> None:
    answer = fetch(url, token, f"status?limit={limit}")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    console = Console(markup=False)
    for table in tables(answer):
        console.print(table)


def fetch(
    url: str, token: str = "", what: str = f"status?limit={_SHOWN}", method: str = "GET"
) -> dict[str, Any]:
    """The answer of /api/v1/WHAT; HubbubError if there is none. Without a URL of the hub that the
    surroundings mean.
    """
    if not url:
        where = profile.place(profile.HTTP)
        url, token = where.url, token or where.token
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"cannot ask {without_user(url)!r}: expected http://HOST:PORT")
    parts = split_url(url)
    at = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    elif parts.username is not None:
        shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + b64encode(shown.encode()).decode()
    request = Request(f"{at.rstrip('/')}/api/v1/{what}", headers=headers, method=method)
    try:
        with urlopen(request, timeout=_SECONDS) as response:
            answer = json.load(response)
    except HTTPError as error:
        raise HubbubError(
            f"{at} says {error.code}: {_reason(error.read(1000))}; who you are is said in "
            "HUBBUB_URL=http://USER:PASSWORD@HOST:PORT or a profile, a token in HUBBUB_TOKEN"
        ) from None
    except (URLError, OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        raise no_hub(at, reason) from None
    if not isinstance(answer, dict):
        raise no_hub(at, "its answer is no status")
    return answer


def _reason(body: bytes) -> str:
    """The sentence of an answer {"error": …}, or whatever else it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()


def tables(answer: dict[str, Any]) -> list[Table]:
    """One table of the single values, then one for each list of things."""
    single = Table("hub", "", show_edge=False, box=None)
    lists = []
    for name, value in _flat(answer):
        if not isinstance(value, list):
            single.add_row(_cell(name), _text(name, value))
        elif value:
            total = answer.get(f"{name.removesuffix('s')}_count")
            lists.append(_list_table(name, value, total))
        else:
            single.add_row(_cell(name), "none")
    return [single, *lists]


def _text(name: str, value: Any) -> str:
    """Stamps are microseconds since 1970; everything else shows as it is, also from no hub."""
    if name in _STAMPS:
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(value / 1e6).astimezone().isoformat(" ", "seconds")
    text = f"{value:,}" if type(value) is int else str(value) or "none"
    return for_stream(text, lines=False)


def _cell(value: Any) -> str:
    """Numbers may be ids, and stay as they are; what a client lost is a count by reason."""
    if isinstance(value, dict):
        value = ", ".join(f"{reason}: {count}" for reason, count in value.items()) or "none"
    return for_stream(str(value), lines=False)


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        inner = isinstance(value, dict)
        pairs += _flat(value, f"{prefix}{name}.") if inner else [(prefix + name, value)]
    return pairs


def _list_table(name: str, items: list[Any], said: Any) -> Table:
    """`said`: how many there are in all, if that is more."""
    rows = [item if isinstance(item, dict) else {name: item} for item in items]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    more = type(said) is int and said > len(rows)
    count = f"{len(rows):,} of {said:,}" if more else f"{len(rows):,}"
    table = Table(*map(_cell, columns), title=f"{_cell(name)} ({count})", title_justify="left")
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    return table
