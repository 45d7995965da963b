"""The trace for people: as lines, and as a sequence chart in the language of mscgen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from hubbub.cli.switch.report import one_line

# Columns as in the original: time, from, queue, to, seconds, what. Too long ones keep their end.
_WIDTHS: Final = (5, 15, 4, 30, 4, 15, 5)
LABEL_CHARACTERS: Final = 30


def event_line(event: dict[str, Any], since: float) -> str:
    """One event of the trace, `since` seconds after the first."""
    kind, (queue, number), *rest = event["message"]
    acknowledged = kind == "Ack"
    payload = "ack" if acknowledged else rest[0]["payload"]
    took = f"{event['processing_time'] / 1e9:.2f}" if "processing_time" in event else ""
    columns = (
        f"{since:.2f}",
        event.get("input", ""),
        "" if "input" not in event else "<-" if acknowledged else "->",
        event["queue"],
        "->" if "output" in event else "",
        event.get("output", ""),
        took,
    )
    cut = [
        one_line(text)[-width:].ljust(width) for text, width in zip(columns, _WIDTHS, strict=True)
    ]
    return " ".join((*cut, f"{one_line(queue)}.{number}:{one_line(payload)}"))


def chart(events: Iterable[dict[str, Any]]) -> list[str]:
    """A message sequence chart: who sent what into which queue, and who got it."""
    arrows = [_arrow(event) for event in events if event["message"][0] == "Message"]
    names = dict.fromkeys(name for left, _, right, _ in arrows for name in (left, right))
    lines = [
        f"  {_quoted(left)} {arrow} {_quoted(right)} [ label = {_quoted(label)} ];"
        for left, arrow, right, label in arrows
    ]
    return ["msc {", f"  {','.join(map(_quoted, names))};", *lines, "}"]


def _arrow(event: dict[str, Any]) -> tuple[str, str, str, str]:
    """Requests go to the right, responses come back."""
    message, queue = event["message"][2], event["queue"]
    sent = "input" in event
    who = event.get("input" if sent else "output", "")
    if message["kind"][0] == "Request":
        ends = (who, "=>", queue) if sent else (queue, "=>", who)
    else:
        ends = (queue, "<<", who) if sent else (who, "<<", queue)
    return (*ends, _label(message["payload"]))


def _label(payload: str) -> str:
    """The method if it is JSON-RPC, as much of it is, else how it begins."""
    try:
        method = json.loads(payload)["method"]
    except (ValueError, LookupError, TypeError, RecursionError):
        method = payload
    return one_line(str(method))[:LABEL_CHARACTERS]


def _quoted(text: str) -> str:
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
