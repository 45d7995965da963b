"""Messages into a running hub, each once however often they are sent: alerts and replays.

Called by the command line, which hands `alerts` to `run`. A hub remembers how far each query came
(docs/reference/http-api.md), so a batch that runs again changes nothing. A hub that is away is
waited for, as the data source does it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from hubbub.pipeline.tables.alerts import Found
from hubbub.spark.hub import Hub

PATH: Final = "/api/v1/publish"
LINES: Final = 500  # of one request
BYTES: Final = 4 << 20  # of its payloads; one message may be of any size
ALERT_BYTES: Final = 256 << 10  # a longer one says where it is: the hub may not take it whole

Message = dict[str, Any]


class Publisher:
    """Publishes to one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def alerts(self, query: str, batch: int, first: int, found: list[Found]) -> None:
        """Alerts of a batch in their order, from its number `first` on.

        `query`: a name that is this pipeline's alone.
        """
        lines = [
            {"topic": one.topic, "payload": _said(one), "qos": one.qos, "retain": one.retain,
             "content_type": "application/json"}
            for one in found
        ]  # fmt: skip
        self.send(f"alerts-{query}/{batch}/0", first, lines)

    def send(self, batch: str, first: int, messages: list[Message]) -> int:
        """Messages of a batch (QUERY/BATCH/PARTITION) from the number `first` on.

        Returns how many the hub had not taken yet.
        """
        taken = 0
        for lines in _parts(map(json.dumps, messages)):
            headers = {"Hubbub-Batch": batch, "Hubbub-First": str(first)}
            answer = self._hub.ask("POST", PATH, "\n".join(lines).encode(), headers)
            taken += json.loads(answer.body)["taken"]
            first += len(lines)
        return taken

    def forget(self, query: str) -> None:
        """Let the hub forget a query that will not come again."""
        self._hub.ask("DELETE", f"{PATH}/{query}")


def _said(alert: Found) -> str:
    if len(alert.payload) <= ALERT_BYTES:
        return alert.payload
    where = {"rule": alert.rule, "seq": alert.seq, "number": alert.number}
    return json.dumps({**where, "bytes": len(alert.payload)})


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if len(part) == LINES or size >= BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def message_of(row: Any, prefix: str) -> Message:
    """A row of `messages` as the hub takes it, below a prefix."""
    said: Message = {"topic": prefix + row["topic"], "qos": row["qos"], "retain": row["retain"]}
    said["base64"] = base64.b64encode(row["payload"]).decode()
    for name in ("content_type", "subtopic"):
        if row[name]:
            said[name] = row[name]
    return said
