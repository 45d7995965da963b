"""`GET /api/v1/openapi.json`: the API as OpenAPI 3.1, of the routes that answer it.

Paths and methods are the routes' own, so none can be forgotten; what a route takes and answers is
in OPERATIONS, by method and path (a test holds the two together). docs/reference/http-api.md says
more of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from starlette.routing import BaseRoute, Route

from hubbub.core.limits import FIGURES_KEPT, HISTORY_MESSAGES, REFUSALS_KEPT
from hubbub.journal.shares import PIECES
from hubbub.web.journal import MEDIA_TYPE
from hubbub.web.numbers import MOST
from hubbub.web.publish import Line

PATH: Final = "/api/v1/openapi.json"
_BELOW: Final = "/api/v1/"
_NAME: Final = {"type": "string"}
_TOPIC: Final = {"type": "string", "minLength": 1}
_FILTER: Final = {
    **_TOPIC, "pattern": r"^(#|(\+|[^+#/\u0000]*)(/(\+|[^+#/\u0000]*))*(/#)?)$"
}  # fmt: skip
_UNFIT: Final = r"\u0000-\u001f\u007f-\u009f"  # of names; non-characters are refused, too
_PUBLISHED: Final = rf"^(\$(queue|client|delayed)/)?[^$+#{_UNFIT}][^+#{_UNFIT}]*$"
_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NO_NUL: Final = r"^[^\u0000]*$"
_SEQ: Final = {"type": "integer", "minimum": 0, "maximum": MOST}


def _number(most: int, least: int = 0) -> dict[str, object]:
    return {"type": "integer", "minimum": least, "maximum": most}


class Parameter(NamedTuple):
    """One of the query, or of the path if that has its name."""

    name: str
    schema: Mapping[str, object]
    means: str
    required: bool = False


class Operation(NamedTuple):
    """What a route does: what it takes, the media types of a 200, and how else it answers.

    400, 401, 403 and 503 every route may answer, as `application/problem+json`.
    """

    does: str
    parameters: tuple[Parameter, ...] = ()
    media: tuple[str, ...] = ("application/json",)
    refuses: tuple[int, ...] = ()


_PAGE: Final = (
    Parameter("limit", _number(1_000), "at most so many"),
    Parameter("offset", _number(999_999_999), "without the first so many"),
)
KINDS: Final = Parameter("kind", _NAME, "which kind of thing", True)
_A_TOPIC: Final = Parameter("topic", _TOPIC, "a topic, without wildcards", True)
_ONE_OF_TWO: Final = {  # in a query an object is its members: `?topic=NAME`
    "type": "object", "properties": {"topic": _TOPIC, "subtopic": _TOPIC},
    "minProperties": 1, "maxProperties": 1, "additionalProperties": False,
}  # fmt: skip
_WHO: Final = (
    Parameter("protocol", _NAME, "mqtt, smq, switch or http", True),
    Parameter("client", _NAME, "its id", True),
)
_AWAY: Final = (
    Parameter("protocol", {**_NAME, "minLength": 1}, "what they speak: mqtt", True),
    Parameter("seconds", _number(10**10, 1), "for how long their clients have not been here", True),
)
_A_QUEUE: Final = Parameter("name", _TOPIC, "the queue, without $queue/", True)
_A_BRIDGE: Final = Parameter("name", _NAME, "its name in the settings", True)
_REQUEUED: Final = (
    _A_QUEUE,
    Parameter("to", _TOPIC, "where all go; else each goes where it died"),
    Parameter("limit", _number(2_000), "look at so many"),
    Parameter("from", _SEQ, "the id of the first one"),
    Parameter("before", _SEQ, "the id at which it ends, as the first answer said it"),
)

OPERATIONS: Final[dict[str, Operation]] = {
    "GET /api/v1/status": Operation("What the hub is doing", _PAGE),
    "GET /api/v1/refusals": Operation(
        "Why somebody was refused, the newest first",
        (
            Parameter("user", _NAME, "only of this user"),
            Parameter("client", _NAME, "only of this client id"),
            Parameter("limit", _number(2 * REFUSALS_KEPT), "at most so many"),
        ),
    ),
    "GET /api/v1/figures": Operation(
        "The main figures of the last 24 hours, in columns",
        (
            Parameter("since", _SEQ, "only what is newer, in microseconds since 1970"),
            Parameter("most", _number(FIGURES_KEPT), "so many points at most"),
        ),
    ),
    "GET /api/v1/ls/{kind}": Operation(
        "What there is of one kind, a page of it",
        (
            KINDS,
            Parameter("search", _NAME, "only what has this in its name"),
            Parameter("limit", _number(10_000), "at most so many"),
            _PAGE[1],
        ),
        refuses=(404,),
    ),
    "GET /api/v1/traffic": Operation(
        "Topics by the next part of their names, with estimated rates",
        (
            Parameter("under", _NAME, "only topics that begin so"),
            Parameter("search", _NAME, "only parts that have this"),
            Parameter("limit", _number(10_000), "the busiest so many"),
        ),
    ),
    "GET /api/v1/retained": Operation("The message retained there", (_A_TOPIC,), refuses=(404,)),
    "GET /api/v1/tail": Operation(
        "What is published there from now on, as server-sent events", (_A_TOPIC,),
        ("text/event-stream",), (429,),
    ),
    "GET /api/v1/queue": Operation(
        "A queue and its oldest messages, which stay in it",
        (_A_QUEUE, Parameter("limit", _number(100), "at most so many messages")), refuses=(404,),
    ),
    "DELETE /api/v1/queue": Operation(
        "End a queue, with all that it holds", (_A_QUEUE,), refuses=(404,)
    ),
    "DELETE /api/v1/clients": Operation("End the connection of a client", _WHO, refuses=(404,)),
    "DELETE /api/v1/sessions": Operation(
        "End the session of a client, here or away, with what waits for it", _WHO, refuses=(404,)
    ),
    "GET /api/v1/sessions/away": Operation(
        "Which sessions have been away for so long",
        (
            *_AWAY,
            Parameter("limit", _number(10_000), "at most so many"),
            Parameter("offset", _SEQ, "without the first so many"),
        ),
    ),
    "DELETE /api/v1/sessions/away": Operation(
        "End the sessions that have been away for so long, 5,000 at once",
        (*_AWAY, Parameter("limit", _number(5_000), "end at most so many")),
    ),
    "DELETE /api/v1/retained": Operation("Clear what is retained", (_A_TOPIC,), refuses=(404,)),
    "DELETE /api/v1/delayed": Operation(
        "Cancel a delayed message", (Parameter("seq", _SEQ, "its row, as `ls` says", True),),
        refuses=(404,),
    ),
    "DELETE /api/v1/nodes": Operation(
        "Remove a node of the cluster that is away, for good",
        (
            Parameter("name", _NAME, "the node", True),
            Parameter("force", _number(1), "1: also with what nobody has taken over"),
        ),
        refuses=(404, 409, 503),
    ),
    "DELETE /api/v1/queue/messages": Operation("Empty a queue", (_A_QUEUE,), refuses=(404,)),
    "POST /api/v1/bridges/cut-off": Operation(
        "End the connection of a bridge, and make no other", (_A_BRIDGE,), refuses=(404,)
    ),
    "POST /api/v1/bridges/resume": Operation(
        "Connect a bridge that was cut off", (_A_BRIDGE,), refuses=(404,)
    ),
    "GET /api/v1/queue/requeue": Operation(
        "Which dead letters would go where", _REQUEUED, refuses=(404,)
    ),
    "POST /api/v1/queue/requeue": Operation(
        "Put dead letters back to where they died", _REQUEUED, refuses=(404,)
    ),
    "GET /api/v1/journal": Operation(
        "Which rows there are; with `from` or `to` these rows as frames",
        (
            Parameter("from", _SEQ, "the first row"),
            Parameter("to", _SEQ, "the last row"),
            Parameter("most", _SEQ, "no frames: up to which row they carry so many bytes"),
            Parameter("shares", _number(PIECES, 1), "no frames: where to cut them in so many"),
            Parameter("process", _SEQ, "of a hub of several processes, whose journal"),
        ),
        ("application/json", MEDIA_TYPE), (404, 500),
    ),
    "GET /api/v1/history/{topic}": Operation(
        "What was published to a topic or filter, oldest first",
        (
            Parameter("topic", _FILTER, "a topic or a filter", True),
            Parameter("last", _number(HISTORY_MESSAGES, 1), "the newest so many"),
            Parameter(
                "since", {"type": "string", "pattern": "^[0-9]{1,9}[smhd]$"},
                "90s, 30m, 1h, 7d; or an ISO time",
            ),
        ),
        refuses=(404, 429),
    ),
    "POST /api/v1/publish": Operation(
        "Publish messages: a JSON object a line, without line breaks in it",
        refuses=(409, 413, 507),
    ),
    "DELETE /api/v1/publish/{query}": Operation(
        "Forget how far a query was", (Parameter("query", _TOPIC, "its name", True),),
    ),
    "DELETE /api/v1/ids": Operation(
        "Take the number of a topic or of a sub-topic away: one of the two",
        (Parameter("which", _ONE_OF_TWO, "?topic=NAME or ?subtopic=NAME", True),),
        refuses=(404, 409),
    ),
    f"GET {PATH}": Operation("This description"),
}  # fmt: skip


def document(routes: Iterable[BaseRoute], kinds: Iterable[str], version: str) -> dict[str, Any]:
    """The description of these routes. `kinds`: what `ls` can list."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route) and route.path.startswith(_BELOW):
            path = route.path.replace(":path}", "}")
            for method in sorted((route.methods or set()) - {"HEAD"}):
                said = _operation(f"{method} {path}", path, tuple(kinds))
                paths.setdefault(path, {})[method.lower()] = said
    _, schemas = msgspec.json.schema_components(
        [_line()], ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hubbub",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "security": [{}, {"basic": []}, {"bearer": []}],
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


_Text = Annotated[str, msgspec.Meta(max_length=8_192, pattern=_NO_NUL)]
_Base64 = Annotated[str, msgspec.Meta(pattern=_BASE64)]
_Described = msgspec.defstruct("Properties", [("user", list[tuple[_Text, _Text]], [])])
# What of a line its types do not say: some of it is decoded later, and some looked at by hand.
_SAID: Final[dict[str, Any]] = {
    "topic": Annotated[str, msgspec.Meta(pattern=_PUBLISHED)],
    "base64": _Base64,
    "qos": Annotated[int, msgspec.Meta(ge=0, le=2)],
    "content_type": _Text,
    "reply_to": Annotated[str, msgspec.Meta(max_length=8_192, pattern=rf"^[^+#{_UNFIT}]*$")],
    "correlation": _Base64,
    "subtopic": _Text,
    "properties": _Described | None,
}


def _line() -> type[msgspec.Struct]:
    """A line of `publish` as it is described."""
    fields: list[tuple[str, Any, Any]] = []
    for one in msgspec.structs.fields(Line):
        kind = _SAID.get(one.name, one.type)
        plain = "" if kind is _Base64 else None if one.name == "properties" else one.default
        fields.append((one.name, kind, msgspec.NODEFAULT if one.required else plain))
    return msgspec.defstruct("Line", fields, forbid_unknown_fields=True)


_PROBLEM: Final = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {
        "title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"},
        "error": {"type": "string"},
    },
}  # fmt: skip


def _operation(name: str, path: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    operation = OPERATIONS[name]
    said: dict[str, Any] = {
        "operationId": name.replace(_BELOW, "").translate(_PLAIN),
        "summary": operation.does,
        "parameters": [_parameter(one, path, kinds) for one in operation.parameters],
        "responses": {
            "200": {"description": "done", "content": {one: {} for one in operation.media}}
        },
    }
    for status in sorted({400, 401, 403, 503, *operation.refuses}):
        problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        said["responses"][str(status)] = {"description": "refused", "content": problem}
    if name.startswith("POST"):
        said["requestBody"] = {"content": {"application/json": _LINE}}
    return said


_LINE: Final = {
    "schema": {"$ref": "#/components/schemas/Line"},
    "example": {"topic": "demo/hello", "payload": "hello"},
}
_PLAIN: Final = str.maketrans({" ": "-", "/": "-", "{": None, "}": None})


def _parameter(one: Parameter, path: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    inside = f"{{{one.name}}}" in path
    return {
        "name": one.name,
        "in": "path" if inside else "query",
        "required": one.required,
        "description": one.means,
        "schema": {**one.schema, "enum": list(kinds)} if one is KINDS else one.schema,
    }
