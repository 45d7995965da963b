"""Names in requests and answers: whatever bytes they have.

A name of SMQ or of message-switch may be bytes that are no UTF-8. In a query they are written %XX,
as everything that is no letter; JSON cannot say them, so a row of an answer shows such a name
with `?` for each of these bytes, and has beside it, in `exact`, what goes into a query for it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from starlette.requests import Request

from hubbub.schema import name_from_wire, name_shown, name_to_wire


def asked(request: Request) -> dict[str, str]:
    """What the query says; of a name that is there twice the last."""
    query = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))


def below(request: Request, prefix: str) -> str:
    """The rest of the path: of names that the application has decoded already, other bytes than
    UTF-8 are lost.
    """
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = name_from_wire(unquote_to_bytes(raw.partition(b"?")[0]))
    return path.partition(prefix)[2]


def sayable(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON can say it."""
    said = {key: name_shown(one) if isinstance(one, str) else one for key, one in row.items()}
    exact = {key: quote(name_to_wire(row[key]), "") for key in row if said[key] != row[key]}
    return said | {"exact": exact} if exact else said
