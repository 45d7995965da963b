"""`GET /api/v1/history/TOPIC?last=&since=`: what was published there, oldest first.

TOPIC may be a filter, with `#` as `%23`. Who may subscribe to it may ask; names that it may not
receive are left out. docs/reference/http-api.md is the contract.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hubbub.core import client
from hubbub.core.broker import Broker
from hubbub.core.client import Refused
from hubbub.core.past import NOTHING_KEPT, past_of, shown_time
from hubbub.core.session import Session
from hubbub.errors import HubbubError
from hubbub.runtime.archive import Answer, JournalArchive, Place
from hubbub.schema import Row, name_of
from hubbub.web.guarded import ADMISSION, HISTORY, refused, session_of
from hubbub.web.query import below

LAST: Final = "100"  # messages, if neither `last` nor `since` says how many
_STATUS: Final = {client.NOT_ALLOWED: 403, client.NO_PAST: 404, client.TOO_MANY: 429}


async def history(request: Request, broker: Broker, archive: JournalArchive | None) -> Response:
    given, name = request.query_params, below(request, HISTORY + "/")
    asks = session_of(request.scope[ADMISSION])
    unknown = given.keys() - {"last", "since"}
    if unknown or "" in given.values():
        wrong = min(unknown | {name for name, value in given.items() if not value})
        return refused(400, f"{wrong[:40]!r}: expected ?last=N or ?since=1h")
    last = given.get("last", "" if "since" in given else LAST)
    try:
        past = past_of(last, given.get("since", ""), broker.clock.stamp())
        client.may_recall(broker, asks, name)
    except ValueError as error:
        return refused(400, str(error))
    except Refused as refusal:
        return refused(_STATUS.get(refusal.reason, 400), str(refusal))
    if archive is None:
        return refused(404, NOTHING_KEPT)
    place = archive.open(asks)
    try:
        answer = await archive.find(asks, name, past, request.is_disconnected)
    except HubbubError as error:
        place.leave()
        return refused(503, str(error))
    except BaseException:
        place.leave()
        raise
    return _Answer(_body(answer, asks, archive), place)


class _Answer(StreamingResponse):
    """Its question stays open until all is sent, or its reader gone: who asks and does not read
    holds what was found for it.
    """

    def __init__(self, body: AsyncIterator[bytes], place: Place) -> None:
        super().__init__(body, media_type="application/json")
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave()


async def _body(answer: Answer, asks: Session, archive: JournalArchive) -> AsyncIterator[bytes]:
    """The answer piece by piece: ten thousand messages as one would stop the loop."""
    reaches = shown_time(answer.reaches) if answer.reaches else ""
    head = msgspec.json.encode({"complete": answer.complete, "reaches": reaches})
    yield head[:-1] + b',"messages":['
    between = b"\n"
    for rows in answer.rows():
        for row in rows:
            if archive.may_have(asks, name_of(row.topic)):
                yield between + msgspec.json.encode(_message(row))
                between = b",\n"
        await asyncio.sleep(0)
    yield b"\n]}\n"


def _message(row: Row) -> dict[str, Any]:
    """As a line of `POST /api/v1/publish` says it, and who published it when. What is not said
    there is left out.
    """
    said: dict[str, Any] = {
        "seq": str(row.seq), "time": shown_time(row.time), "topic": row.topic.decode(),
        "protocol": row.protocol.decode(), "client": row.client.decode(),
    }  # fmt: skip
    try:
        said["payload"] = row.payload.decode()
    except UnicodeDecodeError:
        said["base64"] = b64encode(row.payload).decode()
    more = {
        "qos": row.qos, "retain": row.retain, "content_type": row.content_type.decode(),
        "subtopic": row.subtopic.decode(), "expires": shown_time(row.expires) * bool(row.expires),
        "properties": json.loads(row.properties or b"{}"),
    }  # fmt: skip
    return said | {name: value for name, value in more.items() if value}
