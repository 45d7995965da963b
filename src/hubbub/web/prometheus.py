"""The status as Prometheus reads it, for `/metrics`.

One line of the table a metric: what it is called, counter or gauge, where it stands in the status,
what it says. Lists become one sample an item. The application calls `page`; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """`path`: keys of the status, a `.` apart. `label`: the key that names an item of a list,
    or "by" for a table of numbers; `value`: the key of its number.
    """

    name: str
    counter: bool
    path: str
    says: str
    label: str = ""
    value: str = ""


FAMILIES: Final = (
    Family("started_seconds", False, "started", "When the hub started, Unix time."),
    Family("connections", True, "connections_made", "Connections that were accepted."),
    Family("connections_open", False, "connections", "Connections of clients that are open."),
    Family("messages_received", True, "messages_in", "Messages that were published."),
    Family("bytes_received", True, "bytes_in", "Bytes of published messages."),
    Family("messages_sent", True, "messages_out", "Messages that were delivered."),
    Family("publishers_held_back", True, "held_back", "Waits for the only reader, a slow one."),
    Family("slowed", True, "slowed", "Waits of clients that send too fast.", "setting"),
    Family("messages_dropped", True, "dropped", "Messages that were lost.", "reason"),
    Family("quota_refused", True, "refused", "What a user got no more of.", "pool"),
    Family("clients", False, "client_protocols", "Clients that are connected.", "protocol"),
    Family("sessions_away", False, "sessions_away", "Lasting sessions whose client is away."),
    Family("retained_messages", False, "retained", "Retained messages."),
    Family("queue_messages", False, "queues", "Messages in a queue.", "name", "messages"),
    Family("bridge_up", False, "bridges", "Whether a bridge is connected.", "name", "up"),
    Family("cluster_up", False, "cluster.up", "1 while NATS is reached, 0 while it is not."),
    Family("cluster_node", False, "cluster.nodes", "1 for a node that is there.", "name", "up"),
    Family("cluster_phantoms", False, "cluster.phantoms", "Clients of other nodes, and the hubs."),
    Family("cluster_received", True, "cluster.messages_in", "Messages from other nodes."),
    Family("cluster_sent", True, "cluster.messages_out", "Messages to other nodes, once for each."),
    Family("cluster_frames_lost", True, "cluster.frames_lost", "Frames lost between nodes."),
    Family("cluster_frames_refused", True, "cluster.frames_refused", "Foreign and damaged frames."),
    Family("journal_position", False, "journal.position", "The newest row."),
    Family("journal_committed", False, "journal.committed", "The newest durable row."),
    Family("journal_bytes", False, "journal.bytes", "Bytes of the journal's files."),
    Family("journal_waiting_bytes", False, "journal.waiting_bytes", "Rows not yet committed."),
    Family("journal_trouble", False, "journal.trouble", "1 while the journal cannot be written."),
    Family("journal_commits", True, "journal.commits", "Groups of rows made durable."),
    Family("journal_rows", True, "journal.rows", "Rows made durable."),
    Family("journal_written_bytes", True, "journal.bytes_written", "Bytes of these groups."),
    Family("journal_failures", True, "journal.failures", "Writes and syncs that failed."),
    Family("journal_slowed", True, "journal.slowed", "Times that publishers waited for the disk."),
    Family("journal_group_rows", False, "journal.group_rows", "Rows of a group, on average."),
    Family("journal_syncs_per_second", False, "journal.syncs_per_second", "What the disk can do."),
    Family("journal_commit_p50_ms", False, "journal.commit_ms_50", "Half of the commits, ms."),
    Family("journal_commit_p99_ms", False, "journal.commit_ms_99", "99 % of the commits, ms."),
    Family("journal_sync_p50_ms", False, "journal.sync_ms_50", "Half of the syncs, ms."),
    Family("journal_sync_p99_ms", False, "journal.sync_ms_99", "99 % of the syncs, ms."),
)


class _Status(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            value: Any = self._status
            for key in family.path.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                yield _metric(family, value)


def _metric(family: Family, value: Any) -> Metric:
    kind = CounterMetricFamily if family.counter else GaugeMetricFamily
    labels = [family.label] if family.label else []
    metric = kind(f"hubbub_{family.name}", family.says, labels=labels)
    for label, number in _samples(family, value):
        metric.add_metric([label] if labels else [], number)
    return metric


def _samples(family: Family, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        for item in value:
            yield str(item[family.label]), float(item[family.value])
    elif family.path == "started":
        yield "", value / 1_000_000
    elif family.path == "journal.trouble":
        yield "", float(bool(value))
    else:
        yield "", float(value)


def page(status: dict[str, Any]) -> bytes:
    """The answer of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Status(status))
    return generate_latest(registry)
