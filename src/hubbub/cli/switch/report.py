"""The answer of `GET /` for people: who waits for whom, for how long, and who is gone."""

from __future__ import annotations

from typing import Any, Final

from hubbub.protocols.switch.address import ALIAS
from hubbub.schema import name_shown

PAYLOAD_CHARACTERS: Final = 70
LATE_SECONDS: Final = 30.0  # who is later than this to ask again does not live

# The groups of queues, in the order in which they are shown. Of a hub it is known who is here; the
# original knows only when somebody said that it would come again, and `lost` is what it says then.
_STATES: Final = {
    "running": "The following services are running:",
    "late": "The following services are here, but busy or deadlocked:",
    "unserved": "The following queues have no service:",
    "gone": "The following services have ended or crashed:",
    "lost": "The following services have crashed or deadlocked:",
}
_WAITING: Final = {
    "running": "waits for the response",
    "late": "waits for the response",
    "unserved": "has asked, but nobody reads its responses yet",
    "gone": "has asked, and is gone",
    "lost": "has asked, and is gone",
}
# By state: what is said of the reader, since when it should have come at the latest.
_READERS: Final = {
    "running": "",
    "late": "its reader has asked for nothing more for {ago}",
    "unserved": "nobody reads it",
    "gone": "its reader has been away for {ago}",
    "lost": "its reader has been away for {ago}",
}


def report(found: dict[str, Any]) -> list[str]:
    """The lines to print."""
    now = found["current_time"]
    lines = [f"Switch started {ago(now - found['start_time'])} ago"]
    services, callers = found["permanent_queues"], found["transient_queues"]
    for state, title in _STATES.items():
        names = [name for name, queue in services.items() if _state(queue, now) == state]
        if names:
            lines += [title]
        for name in names:
            lines += _queue_lines(name, services[name], {**services, **callers}, now)
    replies = {name: queue for name, queue in callers.items() if queue["queue_contents"]}
    if replies:
        lines += ["Temporary queues containing replies:"]
    for name, queue in replies.items():
        lines += _queue_lines(name, queue, callers, now)
    if "queues" in found:
        lines += [f"Only {len(services) + len(callers)} of {found['queues']} queues are shown."]
    return lines


def _state(queue: dict[str, Any] | None, now: int) -> str:
    if queue is None:
        return "gone"
    expected, readers = queue.get("next_transfer_expected"), queue.get("readers")
    if expected is None:
        return "unserved"
    if readers == 0:
        return "gone"
    if expected + LATE_SECONDS * 1e9 > now:
        return "running"
    return "lost" if readers is None else "late"


def _queue_lines(name: str, queue: dict[str, Any], queues: dict[str, Any], now: int) -> list[str]:
    lines = [f"  {one_line(name)}: {_summary(queue, now)}"]
    for (_, number), entry in queue["queue_contents"]:
        message = entry["message"]
        kind, origin = message["kind"][0].lower(), entry["origin"][1]
        sent = ago(now - entry["time"])
        lines += [
            f"    {number}: {kind} from: {one_line(str(origin))} sent {sent} ago",
            f"      {one_line(message['payload'])[:PAYLOAD_CHARACTERS]}",
        ]
        if kind == "request" and message["kind"][1]:
            lines += [f"      {_caller(message['kind'][1], queues, now)}"]
    return lines


def _summary(queue: dict[str, Any], now: int) -> str:
    """How much waits there, how long already, and since when nobody comes for it."""
    contents, expected = queue["queue_contents"], queue.get("next_transfer_expected")
    count = queue.get("messages", len(contents))  # said only where not all are shown
    parts = [f"{count} message{'s' * (count != 1)}" if count else "nothing waits"]
    if contents:
        oldest = ago(now - min(entry["time"] for _, entry in contents))
        parts += [f"the oldest for {oldest}" if count == len(contents) else "the newest are shown"]
    said = _READERS[_state(queue, now)]
    overdue = now - expected if expected is not None else 0
    if said:
        parts += [said.format(ago=ago(overdue)) if overdue >= 0 else "its reader is gone"]
    return ", ".join(parts)


def _caller(name: str, queues: dict[str, Any], now: int) -> str:
    """What became of who asked. One of another protocol has no queue that could be looked at."""
    if name not in queues and name.startswith(ALIAS):
        return f"{one_line(name)} is to get the response"
    return f"{one_line(name)} {_WAITING[_state(queues.get(name), now)]}"


def one_line(text: str) -> str:
    """What a terminal can show: no control characters, nothing that is no text."""
    return "".join(letter if letter.isprintable() else " " for letter in name_shown(text))


def ago(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes} min" if hours < 1 else f"{hours} h {minutes % 60} min"
