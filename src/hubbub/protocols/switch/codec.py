"""The message-switch wire, dialect C: HTTP requests with names in the path, answers in JSON.

    GET  /login/TOKEN                     who I am; nearly everything else needs it
    GET  /persistent/QUEUE, /transient/QUEUE, /destroy/QUEUE
    POST /request/QUEUE/REPLYTO           body = payload  ->  [["QUEUE",0]], or [] if no such queue
    POST /response/QUEUE/ORIGIN/ID        the answer to message ID of queue ORIGIN
    POST /transfer                        {"from":"3","timeout":30.0,"queues":["q"]}
        -> {"messages":[[["q",4],{"payload":"..","kind":["Request","replies"]}]],"next":"4"}
    GET  /ack/QUEUE/ID

The names are %-encoded segments. JSON strings carry bytes: what is above 0x7f stands there as it
is, UTF-8 or not, so payloads travel unchanged. `/publish`, `/bind` and `/unbind` are ours.
The connection reads and answers with this module, our client asks with it. No state, no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from hubbub.schema import name_from_wire, name_to_wire
from hubbub.wire.http import Request

FIRST: Final = "-1"  # the cursor before everything
WAIT_SECONDS: Final = 86_400.0  # who waits a day can ask again

PLEASE_LOG_IN: Final = b"Please log in."
SERVER_ERROR: Final = b"Error: Internal Server Error"

# What `integer`, `seconds` and `wanted_of` raise; the original answers with SERVER_ERROR.
INVALID: Final = (ValueError, RecursionError, OverflowError)


class Route(NamedTuple):
    """A method and path, and the operation it asks for; capitals are arguments.

    `*` takes all the rest of the path. `login`: refused to a connection without one. `right`:
    what the client must be allowed to do with the queue it names first, or with all of them.
    """

    method: str
    path: str
    operation: str
    login: bool = True
    right: str = ""


ROUTES: Final = (
    Route("GET", "/", "diagnostics", login=False, right="watch"),
    Route("GET", "/login/TOKEN", "login", login=False),
    Route("GET", "/persistent/QUEUE", "persistent", right="use"),
    Route("GET", "/transient/QUEUE", "transient", right="use"),
    Route("GET", "/destroy/QUEUE", "destroy", right="subscribe"),
    Route("POST", "/request/QUEUE/REPLYTO", "request", right="publish"),
    Route("POST", "/response/QUEUE/ORIGIN/ID", "response", right="publish"),
    Route("POST", "/transfer", "transfer"),
    Route("GET", "/ack/QUEUE/ID", "ack", right="subscribe"),
    Route("GET", "/list/PREFIX", "list"),
    Route("GET", "/list/alive/PREFIX", "list_alive"),
    Route("GET", "/trace", "trace", login=False, right="watch"),
    Route("GET", "/trace/FROM/TIMEOUT", "trace", login=False, right="watch"),
    Route("POST", "/publish/*", "publish", login=False),
    Route("POST", "/bind/QUEUE", "bind", login=False, right="subscribe"),
    Route("POST", "/unbind/QUEUE", "unbind", login=False, right="subscribe"),
)

# The first requests by which a connection becomes one of message-switch.
OPENING: Final = frozenset(("login", "trace", "publish", "bind", "unbind"))


class Call(NamedTuple):
    """A request as the switch understands it: the route, its arguments, the query."""

    route: Route
    arguments: tuple[str, ...]
    query: dict[str, str]


class Wanted(NamedTuple):
    """What a transfer asks for: messages above `cursor`, waiting `timeout` seconds for the first.

    A cursor is an id ("3") or, after a transfer from several queues, "s" and a journal seq.
    """

    cursor: str
    timeout: float
    queues: tuple[str, ...]


class Delivery(NamedTuple):
    """A message out of a queue. `answers` is (queue, id) of the request, if it is a response."""

    queue: str
    number: int
    payload: bytes
    reply_to: str
    answers: tuple[str, int] | None


# Requests, as the switch reads them


def _patterns() -> dict[tuple[str, bytes], list[tuple[Route, list[bytes]]]]:
    found: dict[tuple[str, bytes], list[tuple[Route, list[bytes]]]] = {}
    for route in ROUTES:
        pattern = route.path.encode().split(b"/")[1:]
        found.setdefault((route.method, pattern[0]), []).append((route, pattern))
    return found


_PATTERNS: Final = _patterns()


def call_of(request: Request) -> Call | None:
    """What the request asks for; None if it is nothing we know."""
    segments = request.path.split(b"/")[1:]
    for route, pattern in _PATTERNS.get((request.method, segments[0]), ()):
        arguments = _matched(pattern, segments)
        if arguments is not None:
            return Call(route, arguments, query_of(request.query))
    return None


def _matched(pattern: list[bytes], segments: list[bytes]) -> tuple[str, ...] | None:
    if pattern[-1] == b"*":
        return (decoded(b"/".join(segments[len(pattern) - 1 :])),)
    if len(pattern) != len(segments):
        return None
    arguments = []
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted.isupper():
            arguments.append(decoded(segment))
        elif wanted != segment:
            return None
    return tuple(arguments)


def decoded(segment: bytes) -> str:
    """A name out of a path."""
    return name_from_wire(unquote_to_bytes(segment))


def query_of(query: bytes) -> dict[str, str]:
    pairs = [part.partition(b"=") for part in query.split(b"&") if part]
    return {decoded(name): decoded(value) for name, _, value in pairs}


_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SEQ: Final = re.compile(r"s(-?[0-9]{1,19})", re.ASCII)


def integer(text: str) -> int:
    """An int64 in decimal; ValueError for anything else."""
    number = int(text) if _INTEGER.fullmatch(text) else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"expected a number of 64 bits, got {text!r}")
    return number


def seq_of(cursor: str) -> int | None:
    """The journal seq that a cursor over several queues stands for; None if it is an id."""
    found = _SEQ.fullmatch(cursor)
    return int(found[1]) if found else None


def seconds(value: object) -> float:
    """A time-out: any number, negative meaning none; nobody waits longer than WAIT_SECONDS."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"expected a number of seconds, got {value!r}")
    return min(float(value), WAIT_SECONDS)


def wanted_of(body: bytes) -> Wanted:
    """The body of a transfer. A cursor that is null instead of absent is an error, as ever."""
    given = json.loads(name_from_wire(body), parse_constant=_no_constant)
    if not isinstance(given, dict):
        raise ValueError("expected a JSON object")
    cursor, queues = given.get("from", FIRST), given.get("queues")
    if not isinstance(cursor, str) or not isinstance(queues, list):
        raise ValueError('expected "queues" as a list, and "from" as a string or not at all')
    if seq_of(cursor) is None:
        integer(cursor)
    if not all(isinstance(name, str) for name in queues):
        raise ValueError("expected the names of queues as strings")
    return Wanted(cursor, seconds(given.get("timeout")), tuple(dict.fromkeys(queues)))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# Answers, as the switch writes them

_SHORT: Final = {'"': r"\"", "\\": r"\\", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r",
                "\t": r"\t"}  # fmt: skip
_ESCAPES: Final = {number: f"\\u{number:04x}" for number in (*range(0x20), 0x7F)} | {
    ord(plain): escape for plain, escape in _SHORT.items()
}
_SPECIAL: Final = re.compile(rb'[\x00-\x1f"\\\x7f]')


def quoted(raw: bytes) -> bytes:
    """Bytes as a JSON string; those above 0x7f stay as they are."""
    if _SPECIAL.search(raw):
        raw = raw.decode("latin-1").translate(_ESCAPES).encode("latin-1")
    return b'"%b"' % raw


def quoted_name(name: str) -> bytes:
    return quoted(name_to_wire(name))


def message_id(queue: str, number: int) -> bytes:
    return b"[%b,%d]" % (quoted_name(queue), number)


def sent(queue: str, number: int) -> bytes:
    """The answer to a message that was queued."""
    return b"[%b]" % message_id(queue, number)


NOT_SENT: Final = b"[]"


def message(delivery: Delivery) -> bytes:
    """A message without its id, as transfers, diagnostics and the trace show it."""
    if delivery.answers is not None:
        kind = b'"Response",%b' % message_id(*delivery.answers)
    else:
        kind = b'"Request",%b' % quoted_name(delivery.reply_to)
    return b'{"payload":%b,"kind":[%b]}' % (quoted(delivery.payload), kind)


def transferred(deliveries: Iterable[Delivery], cursor: str) -> bytes:
    """The answer to a transfer."""
    messages = b",".join(
        b"[%b,%b]" % (message_id(one.queue, one.number), message(one)) for one in deliveries
    )
    return b'{"messages":[%b],"next":%b}' % (messages, quoted(cursor.encode()))


def names(found: Iterable[str]) -> bytes:
    """A list of queues, in descending order of bytes as ever."""
    raw = sorted(map(name_to_wire, found), reverse=True)
    return b"[%b]" % b",".join(map(quoted, raw))


# The client's side


def target(operation: str, *arguments: str) -> str:
    """The path of an operation, for instance `target("ack", "q", "3")`."""
    segments = (quote(name_to_wire(argument), safe=":") for argument in arguments)
    return "/" + "/".join((operation, *segments))


def transfer_body(wanted: Wanted) -> bytes:
    cursor = b"" if wanted.cursor == FIRST else b'"from":%b,' % quoted(wanted.cursor.encode())
    queues = b",".join(map(quoted_name, wanted.queues))
    return b'{%b"timeout":%b,"queues":[%b]}' % (cursor, repr(wanted.timeout).encode(), queues)


def loaded(body: bytes) -> Any:
    """Any answer in JSON; strings with bytes that are not UTF-8 come as names do."""
    return json.loads(name_from_wire(body))


def deliveries_of(body: bytes) -> tuple[list[Delivery], str]:
    """The messages a transfer brought, oldest first, and the cursor of the next one."""
    answer = loaded(body)
    found = [
        Delivery(
            queue, number, name_to_wire(said["payload"]),
            said["kind"][1] if said["kind"][0] == "Request" else "",
            tuple(said["kind"][1]) if said["kind"][0] == "Response" else None,
        )
        for (queue, number), said in reversed(answer["messages"])
    ]  # fmt: skip
    return found, answer["next"]


def sent_id(body: bytes) -> tuple[str, int] | None:
    """The id a message got, None if there was no such queue."""
    answer = loaded(body)
    return (answer[0][0], answer[0][1]) if answer else None
