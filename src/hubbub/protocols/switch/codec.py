"""The message-switch wire: HTTP requests with names in the path, answers in JSON.

Dialect C, which the programs of today speak; A is what differs from it in `readme`.

    GET  /login/TOKEN                     who I am; nearly everything else needs it
    GET  /persistent/QUEUE, /transient/QUEUE, /destroy/QUEUE
    POST /request/QUEUE/REPLYTO           body = payload  ->  [["QUEUE",0]], or [] if no such queue
    POST /response/QUEUE/ORIGIN/ID        the answer to message ID of queue ORIGIN; ?error=1: it
                                          says why there is none
    POST /transfer                        {"from":"3","timeout":30.0,"queues":["q"]}
        -> {"messages":[[["q",4],{"payload":"..","kind":["Request","replies"]}]],"next":"4"}
    GET  /ack/QUEUE/ID

The names are %-encoded segments. JSON strings carry bytes: what is above 0x7f stands there as it
is, UTF-8 or not, so payloads travel unchanged. `POST /create`, `/withdraw`, `/publish`, `/bind` and
`/unbind` are ours, and so are `max` in a transfer, `deliveries` in messages of queues with leases,
and `error` in and of an answer.
The connection reads and answers with this module, our client asks with it. No state, no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from hubbub.schema import name_from_wire, name_to_wire
from hubbub.wire.http import Request, response

FIRST: Final = "-1"  # the cursor before everything
OLDEST: Final = f"s{-1 << 63}"  # the same, where seqs are counted: without a journal they begin low
WAIT_SECONDS: Final = 86_400.0  # who waits a day can ask again
TRANSFER_QUEUES: Final = 1_000  # in one transfer: it waits at each of them
QUOTED_NAMES: Final = 1_000  # as JSON strings; every message shows two
JSON_BYTES: Final = 1024 * 1024  # of a request in JSON; reading one takes the hub's time

PLEASE_LOG_IN: Final = b"Please log in."
SERVER_ERROR: Final = b"Error: Internal Server Error"

# What `integer`, `seconds` and `wanted_of` raise; the original answers with SERVER_ERROR.
INVALID: Final = (ValueError, RecursionError, OverflowError)


class Route:
    """A method and path, and the operation it asks for; capitals are arguments.

    `*` takes all the rest of the path. `login`: refused to a connection without one. What else an
    operation needs is in `operations.VERBS_OF`.
    """

    __slots__ = ("method", "path", "operation", "login")

    def __init__(self, method: str, path: str, operation: str, login: bool = True) -> None:
        self.method = method
        self.path = path
        self.operation = operation
        self.login = login


ROUTES: Final = (
    Route("GET", "/", "diagnostics", login=False),
    Route("GET", "/login/TOKEN", "login", login=False),
    Route("GET", "/persistent/QUEUE", "persistent"),
    Route("GET", "/transient/QUEUE", "transient"),
    Route("GET", "/destroy/QUEUE", "destroy"),
    Route("POST", "/request/QUEUE/REPLYTO", "request"),
    Route("POST", "/response/QUEUE/ORIGIN/ID", "response"),
    Route("POST", "/transfer", "transfer"),
    Route("GET", "/ack/QUEUE/ID", "ack"),
    Route("GET", "/list/PREFIX", "list"),
    Route("GET", "/list/alive/PREFIX", "list_alive"),
    Route("POST", "/shutdown", "shutdown"),
    Route("GET", "/admin", "admin", login=False),
    Route("GET", "/admin/*", "admin", login=False),
    Route("GET", "/trace", "trace", login=False),
    Route("GET", "/trace/FROM/TIMEOUT", "trace", login=False),
    # Dialect A, where it has paths of its own.
    Route("GET", "/create", "create_private"),
    Route("GET", "/create/QUEUE", "create_named"),
    Route("GET", "/subscribe/QUEUE", "subscribe"),
    Route("POST", "/send/QUEUE/CORRELATION", "send"),
    Route("POST", "/send/QUEUE/CORRELATION/REPLYTO", "send"),
    Route("GET", "/transfer/FROM/TIMEOUT", "transfer_subscribed"),
    Route("GET", "/ack/ID", "ack_subscribed"),
    # Ours.
    Route("POST", "/create/QUEUE", "configure"),
    Route("POST", "/withdraw/QUEUE/ID", "withdraw"),
    Route("POST", "/publish/*", "publish", login=False),
    Route("POST", "/bind/QUEUE", "bind", login=False),
    Route("POST", "/unbind/QUEUE", "unbind", login=False),
)

# The first requests by which a connection becomes one of message-switch.
OPENING: Final = frozenset(("login", "trace", "publish", "bind", "unbind"))


class Call:
    """A request as the switch understands it: the route, its arguments, the query."""

    __slots__ = ("route", "arguments", "query")

    def __init__(self, route: Route, arguments: list[str], query: dict[str, str]) -> None:
        self.route = route
        self.arguments = arguments
        self.query = query


class _Compared:
    """What is compared and shown by its values. Compiled, it is made in a quarter of the time that
    a NamedTuple takes.
    """

    __slots__ = ()

    def values(self) -> tuple[object, ...]:
        """All of it, in the order of its making."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Compared) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash(self.values())

    def __repr__(self) -> str:
        return type(self).__name__ + repr(self.values())


class Wanted(_Compared):
    """What a transfer asks for: messages above `cursor`, waiting `timeout` seconds for the first.

    A cursor is an id ("3") or, after a transfer from several queues, "s" and a journal seq; in a
    cluster that of each node (`seqs_of`).
    `most` is how many messages it takes, 0 as many as there are.
    """

    __slots__ = ("cursor", "timeout", "queues", "most")

    def __init__(self, cursor: str, timeout: float, queues: tuple[str, ...], most: int = 0) -> None:
        self.cursor = cursor
        self.timeout = timeout
        self.queues = queues
        self.most = most

    def values(self) -> tuple[object, ...]:
        return self.cursor, self.timeout, self.queues, self.most


class Delivery(_Compared):
    """A message out of a queue. `answers` is (queue, id) of the request, if it is a response.

    `deliveries` is how often it was leased, 0 if that is not counted. `error`: the answer says
    why there is none.
    """

    __slots__ = ("queue", "number", "payload", "reply_to", "answers", "deliveries", "error")

    def __init__(
        self, queue: str, number: int, payload: bytes, reply_to: str,
        answers: tuple[str, int] | None, deliveries: int = 0, error: bool = False,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.number = number
        self.payload = payload
        self.reply_to = reply_to
        self.answers = answers
        self.deliveries = deliveries
        self.error = error

    def values(self) -> tuple[object, ...]:
        asked = self.queue, self.number, self.payload, self.reply_to, self.answers
        return *asked, self.deliveries, self.error


class Refused(Exception):
    """The request cannot be served; the answer says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# Requests, as the switch reads them


class Pattern:
    """A route as it is looked for: its plain segments begin the path, `plain` of them.

    The first one is the empty one before the first slash.
    """

    __slots__ = ("route", "segments", "plain")

    def __init__(self, route: Route, segments: list[str], plain: int) -> None:
        self.route = route
        self.segments = segments
        self.plain = plain


_REST: Final = -1  # the number of segments where `*` takes all the rest


def _patterns() -> dict[tuple[str, str, int], list[Pattern]]:
    """By method, first segment and number of segments; those with more plain ones come first."""
    found: dict[tuple[str, str, int], list[Pattern]] = {}
    for route in ROUTES:
        segments = route.path.split("/")
        plain = sum(not segment.isupper() and segment != "*" for segment in segments)
        count = _REST if segments[-1] == "*" else len(segments)
        key = (route.method, segments[1], count)
        found.setdefault(key, []).append(Pattern(route, segments[:plain], plain))
    for patterns in found.values():
        patterns.sort(key=_more_plain)
    return found


def _more_plain(pattern: Pattern) -> int:
    return -pattern.plain


_PATTERNS: Final = _patterns()
_NO_PATTERNS: Final[list[Pattern]] = []
_PERCENT: Final = ord("%")  # CPython takes b"%" for a number first: 1,800 instructions to be wrong


# What was asked before, by method and path: a client names the same queues again and again. Of what
# ends with an id no path comes twice, but what is before the id. A token is nobody else's. When
# full it begins anew.
_KNOWN: Final[dict[str, dict[bytes, Call]]] = {"GET": {}, "POST": {}}
_BEFORE_ID: Final[dict[str, dict[bytes, Call]]] = {"GET": {}, "POST": {}}
_KNOWN_CALLS: Final = 1_000
_KNOWN_BYTES: Final = 128
_ASKED_AGAIN: Final = frozenset(("persistent", "request", "transfer"))
_ENDS_WITH_ID: Final = frozenset(("ack", "response"))
_SLASH: Final = ord("/")


def call_of(request: Request) -> Call | None:
    """What the request asks for, not to be changed; None if it is nothing we know."""
    if request.query:
        return _call_of(request)
    known = _KNOWN.get(request.method)
    if known is None:
        return _call_of(request)
    path, stem = request.path, request.stem
    cut = len(stem)
    ends_with_number = 0 < cut < len(path) and stem[cut - 1] == _SLASH
    if ends_with_number:
        call = _BEFORE_ID[request.method].get(stem)
        if call is not None:
            return Call(call.route, [*call.arguments, path[cut:].decode()], _NO_QUERY)
    call = known.get(path)
    if call is not None:
        return call
    call = _call_of(request)
    if call is None:
        return None
    if call.route.operation in _ASKED_AGAIN:
        _remember(known, path, call)
    elif ends_with_number and call.route.operation in _ENDS_WITH_ID:
        begun = Call(call.route, call.arguments[:-1], _NO_QUERY)
        _remember(_BEFORE_ID[request.method], stem, begun)
    return call


def _remember(known: dict[bytes, Call], path: bytes, call: Call) -> None:
    if len(path) <= _KNOWN_BYTES:
        if len(known) >= _KNOWN_CALLS:
            known.clear()
        known[path] = call


def _call_of(request: Request) -> Call | None:
    path, query = request.path, request.query
    # The first one is empty: paths begin with /.
    segments = path.decode("utf-8", "surrogateescape").split("/")
    method, first = request.method, segments[1]
    for found in _PATTERNS.get((method, first, len(segments)), _NO_PATTERNS):
        plain = found.plain
        if plain < 3 or segments[:plain] == found.segments:
            arguments = segments[plain:]
            if _PERCENT in path:
                arguments = [decoded(name_to_wire(segment)) for segment in arguments]
            return Call(found.route, arguments, query_of(query) if query else _NO_QUERY)
    for found in _PATTERNS.get((method, first, _REST), _NO_PATTERNS):
        rest = decoded(name_to_wire("/".join(segments[found.plain :])))
        return Call(found.route, [rest], query_of(query))
    return None


def decoded(segment: bytes) -> str:
    """A name out of a path."""
    return name_from_wire(unquote_to_bytes(segment) if _PERCENT in segment else segment)


_NO_QUERY: Final[dict[str, str]] = {}


def query_of(query: bytes) -> dict[str, str]:
    pairs = [part.partition(b"=") for part in query.split(b"&") if part]
    return {decoded(name): decoded(value) for name, _, value in pairs}


_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SAFE_DIGITS: Final = 18  # so many always fit into 64 bits
_SEQ: Final = re.compile(r"s-?[0-9]{1,18}", re.ASCII)


def integer(text: str) -> int:
    """An int64 in decimal; ValueError for anything else."""
    if len(text) <= _SAFE_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    number = int(text) if _INTEGER.fullmatch(text) else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"expected a number of 64 bits, got {text!r}")
    return number


def place_of(cursor: str) -> tuple[int, bool]:
    """Above which number a cursor means, and whether that is a journal seq instead of an id.

    One of queues at several nodes (`seqs_of`) says nothing of a hub that is none of them.
    """
    if cursor.startswith("n"):
        seqs_of(cursor)
        return -1, False
    return (integer(cursor[1:]), True) if cursor.startswith("s") else (integer(cursor), False)


def seqs_of(cursor: str) -> dict[str, str]:
    """What a cursor of a cluster says of each node, by its name: `nNODE=sSEQ,...`, %-encoded.

    Any other cursor says nothing of any. Refused (400) if it only begins like one.
    """
    if not cursor.startswith("n"):
        return {}
    parts = [part.partition("=") for part in cursor[1:].split(",")]
    if len(parts) > TRANSFER_QUEUES:
        raise Refused(400, f"{len(parts)} nodes in \"from\", at most {TRANSFER_QUEUES} may be")
    for node, _, at in parts:
        if not (node and _SEQ.fullmatch(at)):
            raise Refused(400, f"{f'{node}={at}'[:100]!r} in \"from\": expected NODE=sNUMBER")
    return {decoded(node.encode()): at for node, _, at in parts}


def cursor_of(seqs: dict[str, str]) -> str:
    """The reverse."""
    parts = (f"{quote(name_to_wire(node), safe='')}={at}" for node, at in seqs.items())
    return "n" + ",".join(parts) if seqs else FIRST


def seconds(value: object) -> float:
    """A time-out: any number, negative meaning none; nobody waits longer than WAIT_SECONDS."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"expected a number of seconds, got {value!r}")
    return min(float(value), WAIT_SECONDS)


def wanted_of(body: bytes) -> Wanted:
    """The body of a transfer. A cursor that is null instead of absent is an error, as ever.

    Refused (400) if it names more than TRANSFER_QUEUES, or is larger than JSON_BYTES.
    """
    cursor, timeout, queues, most = _asked(body)
    place_of(cursor)
    names = tuple(queues) if len(queues) < 2 else tuple(dict.fromkeys(queues))
    if len(names) > TRANSFER_QUEUES:
        raise Refused(400, f"{len(names)} queues in one transfer, at most {TRANSFER_QUEUES} may be")
    if most < 0:
        raise ValueError('expected "max" as a number that is not negative')
    return Wanted(cursor, seconds(timeout), names, most)


def _asked(body: bytes) -> tuple[str, object, list[str], int]:
    """What the body of a transfer says, by its types: nearly all are right, and read at once."""
    if len(body) <= JSON_BYTES:
        try:
            said = _TRANSFERS.decode(body)
        except (msgspec.MsgspecError, ValueError):
            pass  # names that are not UTF-8, or something that is wrong
        else:
            return said.cursor, said.timeout, said.queues, said.most
    given = json_object(body)
    cursor, queues, most = given.get("from", FIRST), given.get("queues"), given.get("max", 0)
    if not isinstance(cursor, str) or not isinstance(queues, list):
        raise ValueError('expected "queues" as a list, and "from" as a string or not at all')
    for name in queues:
        if not isinstance(name, str):
            raise ValueError("expected the names of queues as strings")
    if type(most) is not int:
        raise ValueError('expected "max" as a number that is not negative')
    return cursor, given.get("timeout"), queues, most


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object of a client; ValueError if it is none, Refused if it is over JSON_BYTES."""
    if len(body) > JSON_BYTES:
        raise Refused(400, f"{len(body)} bytes of JSON, at most {JSON_BYTES} may be")
    try:
        given = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError):
        given = _JSON.decode(name_from_wire(body))  # strings that are not UTF-8, or no JSON
    if not isinstance(given, dict):
        raise ValueError("expected a JSON object")
    return given


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = msgspec.json.Decoder()  # ten times as fast
_TRANSFERS: Final[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "Transfer",
        [("timeout", float), ("queues", list[str]), ("cursor", str, FIRST), ("most", int, 0)],
        rename={"cursor": "from", "most": "max"},
    )
)
_JSON: Final = json.JSONDecoder(parse_constant=_no_constant)


# Answers, as the switch writes them

# Joined, not formatted: CPython takes seven times as long over b"%b" as over joining.
_SPECIAL: Final = bytes(range(0x20)) + b'"\\\x7f'


def quoted(raw: bytes) -> bytes:
    """Bytes as a JSON string; those above 0x7f stay as they are."""
    if len(raw.translate(None, _SPECIAL)) == len(raw):
        return b'"' + raw + b'"'
    said = encode_basestring(raw.decode("latin-1")).encode("latin-1")
    return said.replace(b"\x7f", rb"\u007f")


@lru_cache(QUOTED_NAMES)
def quoted_name(name: str) -> bytes:
    return quoted(name_to_wire(name))


def message_id(queue: str, number: int) -> bytes:
    return b"".join((b"[", quoted_name(queue), b",", str(number).encode(), b"]"))


def sent(queue: str, number: int) -> bytes:
    """The answer to a message that was queued."""
    return b"[" + message_id(queue, number) + b"]"


NOT_SENT: Final = b"[]"

_HEADS: Final = tuple(response(200, bytes(size))[:-size or None] for size in range(1_024))


def ok(body: bytes) -> bytes:
    """The response of an answer that says nothing but that; most bodies are short."""
    return _HEADS[len(body)] + body if len(body) < len(_HEADS) else response(200, body)


def message(delivery: Delivery) -> bytes:
    """A message without its id, as transfers, diagnostics and the trace show it."""
    payload = quoted(delivery.payload)
    if delivery.answers is not None:
        kind, rest = b',"kind":["Response",', message_id(*delivery.answers)
    else:
        kind, rest = b',"kind":["Request",', quoted_name(delivery.reply_to)
    error = b',"error":true' if delivery.error else b""
    count = b',"deliveries":%d' % delivery.deliveries if delivery.deliveries else b""
    return b"".join((b'{"payload":', payload, kind, rest, b"]", error, count, b"}"))


def transferred(deliveries: Iterable[Delivery], cursor: str) -> bytes:
    """The answer to a transfer."""
    said = [b'{"messages":[']
    for one in deliveries:
        comma = b"," if len(said) > 1 else b""
        said += (comma, b"[", message_id(one.queue, one.number), b",", message(one), b"]")
    said += (b'],"next":', quoted(cursor.encode()), b"}")
    return b"".join(said)


# The client's side


def target(operation: str, *arguments: str) -> str:
    """The path of an operation, for instance `target("ack", "q", "3")`. TypeError for a name that
    is no text.
    """
    for argument in arguments:
        if not isinstance(argument, str):  # `quote` takes bytes too, and makes other names of them
            raise TypeError(f"a name is str, got {type(argument).__name__} {argument!r:.40}")
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
            said.get("deliveries", 0), said.get("error", False),
        )
        for (queue, number), said in reversed(answer["messages"])
    ]  # fmt: skip
    return found, answer["next"]


def sent_id(body: bytes) -> tuple[str, int] | None:
    """The id a message got, None if there was no such queue."""
    answer = loaded(body)
    return (answer[0][0], answer[0][1]) if answer else None
