"""`hubbub top`: what a running hub does now, in figures a second, again and again.

On a terminal one screen that is drawn anew; elsewhere one line a time, for files and pipes. It asks
for the status and subtracts; the hub keeps nothing for it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hubbub.build import made
from hubbub.cli.asked import Asked
from hubbub.cli.options import takes
from hubbub.cli.status import size
from hubbub.errors import HubbubError
from hubbub.terminal import for_stream, say

app = typer.Typer(add_completion=False)

Answer = dict[str, Any]

_SHOWN: Final = 15  # queues, and clients that lose something: a screen's worth
_SENDERS: Final = 5
_HEADER_EACH: Final = 20  # lines
_TIMES: Final = (("d", 86400), ("h", 3600), ("min", 60))

# What a line says: the head, its width, where it is in the status, whether a second.
COLUMNS: Final = (
    ("in/s", 9, "messages_in", True),
    ("out/s", 9, "messages_out", True),
    ("kB in/s", 9, "bytes_received", True),
    ("kB out/s", 9, "bytes_sent", True),
    ("clients", 8, "client_count", False),
    ("away", 7, "sessions_away", False),
    ("lost/s", 8, "dropped", True),
    ("queues", 7, "queue_count", False),
    ("commit ms", 9, "journal.commit_ms_99", False),
)


@app.command()
@takes(Asked)
def top(
    hub: Asked,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="From one look to the next.")
    ] = 2.0,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="Looks; 0 goes on for ever.")
    ] = 0,
) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        _show(hub.url, looks(hub, interval, count), screen=count == 0)


def _show(url: str, answers: Iterator[tuple[Answer, Answer]], screen: bool) -> None:
    """`screen`: take the whole terminal, and give it back at the end."""
    if sys.stdout.isatty():
        with Live(console=Console(markup=False), screen=screen, auto_refresh=False) as live:
            for before, now in answers:
                live.update(view(url, before, now), refresh=True)
    else:
        for number, (before, now) in enumerate(answers):
            if not number % _HEADER_EACH:
                say(" ".join(f"{head:>{width}}" for head, width, _, _ in COLUMNS))
            say(line(before, now))


def looks(hub: Asked, interval: float, count: int) -> Iterator[tuple[Answer, Answer]]:
    """Each answer with the one before it; `senders` stand in it for who sees the screen."""
    before = whole(hub.fetch(f"status?limit={_SHOWN}"))
    for number in itertools.count(1):
        time.sleep(interval)
        now = whole(hub.fetch(f"status?limit={_SHOWN}"))
        if sys.stdout.isatty():
            with contextlib.suppress(HubbubError):  # an older hub knows no such list
                now |= hub.fetch(f"ls/senders?limit={_SENDERS}")
        yield before, now
        if number == count:
            return
        before = now


def whole(answer: Answer) -> Answer:
    """Of several processes all together: each look may come to another one of them."""
    each = list(_each(answer).values())
    for name in each[0] if each != [answer] else ():
        found = [one.get(name) for one in each]
        if name == "started":
            answer[name] = min(int(one[name]) for one in each)
        elif isinstance(found[0], dict):
            answer[name] = dict(sum(map(Counter, found), Counter()))
        elif type(answer.get(name)) is int and name != "retained":  # which each of them has all of
            answer[name] = sum(found)
    return answer


def value(answer: Answer, path: str) -> float:
    """A number of the status; a table of counts is their sum. 0 for what is not there."""
    found: Any = answer
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict):
        return float(sum(number for number in found.values() if isinstance(number, int)))
    return float(found) if isinstance(found, (int, float)) else 0.0


def rate(before: Answer, now: Answer, path: str) -> float:
    """How many a second. A hub, or one of its processes, that was started again begins anew; of one
    that did not answer nobody knows.
    """
    looked, begun, found = value(now, "time"), value(before, "time"), 0.0
    were = _each(before)
    for number, one in _each(now).items():
        was = were.get(number)
        if was is not None and value(was, "started") == value(one, "started"):
            more, since = max(0.0, value(one, path) - value(was, path)), begun
        else:
            more, since = value(one, path) if was is not None else 0.0, value(one, "started")
        found += more / max((looked - since) / 1e6, 0.001)
    return found


def _each(answer: Answer) -> dict[int, Answer]:
    """The processes that answer, by number; a hub that is one is 0."""
    each = {one["process"]: one for one in answer.get("processes", ()) if one.get("up")}
    return each or {0: answer}


def line(before: Answer, now: Answer) -> str:
    """One look as one line, below the heads of COLUMNS."""
    said = []
    for head, width, path, by_second in COLUMNS:
        number = rate(before, now, path) if by_second else value(now, path)
        if head.startswith("kB"):
            number /= 1e3
        shown = f"{number:,.1f}" if "." in path else f"{number:,.0f}"
        said.append(f"{shown:>{width}}")
    return " ".join(said)


# The screen


def view(url: str, before: Answer, now: Answer) -> RenderableType:
    figures = Table(box=None, show_header=False, pad_edge=False)
    for name, said in _figures(before, now):
        figures.add_row(name, for_stream(said, lines=False))
    return Group(Text(_title(url, now), style="bold"), figures, *_lists(now))


def _title(url: str, now: Answer) -> str:
    how = made(bool(now.get("compiled")))
    up = _span((value(now, "time") - value(now, "started")) / 1e6)
    where = url.rpartition("@")[2]
    of = f", process {now['process']} of its lists and journal" if now.get("process") else ""
    silent = [str(one["process"]) for one in now.get("processes", ()) if not one.get("up")]
    of += f"; process {', '.join(silent)} does not answer" if silent else ""
    said = f"Hubbub {now.get('version', '')} ({how}) at {where}, up {up}{of}"
    return for_stream(said, lines=False)


def _figures(before: Answer, now: Answer) -> Iterator[tuple[str, str]]:
    def each(path: str) -> str:
        return f"{rate(before, now, path):,.0f}/s"

    def speed(path: str) -> str:
        return f"{size(rate(before, now, path))}/s"

    journal = now.get("journal") or {}
    yield "messages", f"{each('messages_in')} in, {each('messages_out')} out"
    yield "network", f"{speed('bytes_received')} in, {speed('bytes_sent')} out"
    yield "clients", f"{value(now, 'client_count'):,.0f} ({_counts(now, 'client_protocols')})"
    yield "away", f"{value(now, 'sessions_away'):,.0f} lasting sessions"
    yield "connections", (
        f"{value(now, 'connections'):,.0f}, {each('connections_made')} new, "
        f"{each('connections_refused')} turned back"
    )
    yield "refused", (
        f"{each('logins_refused')} logins, {each('actions_refused')} actions, "
        f"{each('refused')} for want of room ({_counts(now, 'refused')})"
    )
    yield "lost", f"{each('dropped')} ({_counts(now, 'dropped')})"
    if journal.get("directory"):
        yield "journal", (
            f"{size(value(now, 'journal.bytes'))}, commits within "
            f"{value(now, 'journal.commit_ms_50'):.1f} ms (99 %: "
            f"{value(now, 'journal.commit_ms_99'):.1f} ms), "
            f"trouble {journal.get('trouble') or 'none'}"
        )


def _counts(now: Answer, key: str) -> str:
    found = now.get(key)
    counts = found.items() if isinstance(found, dict) else ()
    return ", ".join(f"{name} {number:,}" for name, number in counts) or "none"


def _lists(now: Answer) -> Iterator[Table]:
    """Who sends most, queues that hold something, and clients that lose something."""
    senders = now.get("senders") or ()
    if senders:
        heads = ("client", "user", "address", "messages", "bytes", "last to")
        table = Table(*heads, title="who sends most", title_justify="left", box=None)
        for one in senders:
            names = (for_stream(str(one[key]), lines=False) for key in ("client", "user"))
            rates = f"{one['messages_per_second']:,.0f}/s", f"{size(one['bytes_per_second'])}/s"
            topic = for_stream(str(one["topic"]), lines=False)
            table.add_row(*names, str(one["address"]), *rates, topic)
        yield table
    queues = [one for one in now.get("queues", ()) if one.get("messages")]
    if queues:
        table = Table("queue", "waiting", "oldest", title="queues", title_justify="left", box=None)
        for one in sorted(queues, key=_depth, reverse=True)[:_SHOWN]:
            name = for_stream(str(one["name"]), lines=False)
            table.add_row(name, f"{one['messages']:,}", _span(one.get("waits", 0.0)))
        yield table
    losing = [one for one in now.get("clients", ()) if one.get("dropped")]
    if losing:
        table = Table("client", "lost", title="clients that lose", title_justify="left", box=None)
        for one in losing[:_SHOWN]:
            table.add_row(for_stream(str(one["client"]), lines=False), _counts(one, "dropped"))
        yield table


def _depth(queue: dict[str, Any]) -> int:
    return int(queue["messages"])


def _span(seconds: float) -> str:
    for unit, length in _TIMES:
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
