"""Messages into a running hub, each once however often they are sent: alerts and replays.

Called by the command line, which hands `alerts` to `run`. A hub remembers how far each query came
(docs/reference/http-api.md), so a batch that runs again changes nothing. A hub that is away is
waited for, as the data source does it.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from hubbub.pipeline.tables.alerts import Found
from hubbub.spark.hub import Hub

PATH: Final = "/api/v1/publish"
LINES: Final = 500  # of one request

Message = dict[str, Any]


class Publisher:
    """Publishes to one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def alerts(self, query: str, batch: int, found: list[Found]) -> None:
        """The alerts of a batch, in their order. `query`: a name that is this pipeline's alone."""
        lines = (
            {"topic": one.topic, "payload": one.payload, "qos": one.qos, "retain": one.retain,
             "content_type": "application/json"}
            for one in found
        )  # fmt: skip
        self.send(f"alerts-{query}/{batch}/0", 0, list(lines))

    def send(self, batch: str, first: int, messages: list[Message]) -> int:
        """Messages of a batch (QUERY/BATCH/PARTITION) from the number `first` on.

        Returns how many the hub had not taken yet.
        """
        taken = 0
        for at in range(0, len(messages), LINES):
            body = "\n".join(map(json.dumps, messages[at : at + LINES])).encode()
            headers = {"Hubbub-Batch": batch, "Hubbub-First": str(first + at)}
            taken += json.loads(self._hub.ask("POST", PATH, body, headers).body)["taken"]
        return taken

    def forget(self, query: str) -> None:
        """Let the hub forget a query that will not come again."""
        self._hub.ask("DELETE", f"{PATH}/{query}")


def message_of(row: Any, prefix: str) -> Message:
    """A row of `messages` as the hub takes it, below a prefix."""
    said: Message = {"topic": prefix + row["topic"], "qos": row["qos"], "retain": row["retain"]}
    said["base64"] = base64.b64encode(row["payload"]).decode()
    for name in ("content_type", "subtopic"):
        if row[name]:
            said[name] = row[name]
    return said
