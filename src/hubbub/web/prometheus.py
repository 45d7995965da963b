"""The status as Prometheus reads it, for `/metrics`.

One line of the table a metric: what it is called, counter or gauge, where it stands in the status,
what it says. Lists become one sample an item. The application calls `page`; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hubbub.core.metrics import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


COUNT: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class Family(NamedTuple):
    """`path`: keys of the status, a `.` apart; of several lists, with a blank between, the first
    that names an item counts. `label`: the key that names an item of a list,
    or what names the numbers of a table; `value`: the key of its number.
    """

    name: str
    kind: str
    path: str
    says: str
    label: str = ""
    value: str = ""


FAMILIES: Final = (
    Family("build_info", GAUGE, "builds", "1, with the version and how it was made.", "version"),
    Family("start_time_seconds", GAUGE, "started", "When the hub started, Unix time."),
    Family("loop_delay_seconds", HISTOGRAM, "loop_delay", "How late the hub comes to what is due."),
    Family("connections", COUNT, "connections_made", "Connections that were accepted."),
    Family("connections_open", GAUGE, "connections", "Connections of clients that are open."),
    Family("connections_refused", COUNT, "connections_refused", "Connections turned back."),
    Family("logins_refused", COUNT, "logins_refused", "Logins that failed."),
    Family("actions_refused", COUNT, "actions_refused", "What clients might not do."),
    Family("network_received_bytes", COUNT, "bytes_received", "Bytes that sockets brought."),
    Family("network_sent_bytes", COUNT, "bytes_sent", "Bytes that were given to sockets."),
    Family("messages_received", COUNT, "published", "Messages that were published.", "protocol"),
    Family("bytes_received", COUNT, "bytes_in", "Bytes of published messages."),
    Family("messages_sent", COUNT, "delivered", "Messages that were delivered.", "protocol"),
    Family("delivery_seconds", HISTOGRAM, "delivery_seconds", "How long a message is in the hub."),
    Family("call_seconds", HISTOGRAM, "call_seconds", "How long requests waited for an answer."),
    Family("history_seconds", HISTOGRAM, "history_seconds", "How long questions about it took."),
    Family("publishers_held_back", COUNT, "held_back", "Waits for the only reader, a slow one."),
    Family(
        "busiest_sender_messages_per_second", GAUGE, "busiest_sender.messages_per_second",
        "How fast who costs most sends: `hubbub ls senders` names it.",
    ),
    Family(
        "busiest_sender_bytes_per_second", GAUGE, "busiest_sender.bytes_per_second",
        "The same in bytes of messages.",
    ),
    Family("slowed", COUNT, "slowed", "Waits of clients that send too fast.", "setting"),
    Family("messages_dropped", COUNT, "dropped", "Messages that were lost.", "reason"),
    Family(
        "quota_refused", COUNT, "refused", "What was turned away for want of room, by what lacks.",
        "pool",
    ),
    Family("clients", GAUGE, "client_protocols", "Clients that are connected.", "protocol"),
    Family("sessions_away", GAUGE, "sessions_away", "Lasting sessions whose client is away."),
    Family("retained_messages", GAUGE, "retained", "Retained messages."),
    Family("queue_messages", GAUGE, "queues", "Messages in a queue.", "name", "messages"),
    Family("queue_leased", GAUGE, "queues", "Of these, what somebody has now.", "name", "leased"),
    Family("queue_oldest_seconds", GAUGE, "queues", "Age of its oldest message.", "name", "waits"),
    Family("queue_consumers", GAUGE, "queues", "Who takes from a queue now.", "name", "takers"),
    Family("bridge_up", GAUGE, "bridges", "Whether a bridge is connected.", "name", "up"),
    Family("bridge_cut_off", GAUGE, "bridges", "1 while it is so by hand.", "name", "cut_off"),
    Family(
        "certificate_expires_seconds", GAUGE, "certificates",
        "When a listener's certificate is over, Unix time.", "listener", "expires",
    ),
    Family(
        "client_ca_expires_seconds", GAUGE, "authorities",
        "When the first of the authorities of clients is over.", "listener", "expires",
    ),
    Family(
        "crl_expires_seconds", GAUGE, "revocation_lists",
        "When the first of its revocation lists is over.", "listener", "expires",
    ),
    Family("disk_bytes", GAUGE, "limits.disk_bytes", "Size of the disk of the data."),
    Family("disk_free_bytes", GAUGE, "limits.disk_free", "What is free of it."),
    Family(
        "disk_trouble", GAUGE, "limits.not_taken",
        "1 while what would stay on it is refused, for want of room.",
    ),
    Family("cluster_up", GAUGE, "cluster.up", "1 while NATS is reached, 0 while it is not."),
    Family(
        "cluster_node", GAUGE, "cluster.nodes cluster.away",
        "1 for a node that is there, 0 for one that is away.", "name", "up",
    ),
    Family(
        "cluster_clock_ahead_seconds", GAUGE, "cluster.clocks",
        "How far a node's clock is ahead of this one's; from 60 on, either way, it is shut out.",
        "name", "ahead_seconds",
    ),
    Family("cluster_trouble", GAUGE, "cluster.trouble", "1 while the status says what is wrong."),
    Family("cluster_kept", GAUGE, "cluster.kept", "Messages that wait for other nodes, on disk."),
    Family("cluster_phantoms", GAUGE, "cluster.phantoms", "Clients of other nodes, and the hubs."),
    Family("cluster_relayed", GAUGE, "cluster.relayed", "Connections of sessions elsewhere."),
    Family("cluster_relayed_home", GAUGE, "cluster.relayed_home", "Elsewhere, of sessions here."),
    Family("cluster_received", COUNT, "cluster.messages_in", "Messages from other nodes."),
    Family("cluster_sent", COUNT, "cluster.messages_out", "Messages to other nodes, once each."),
    Family("cluster_frames_lost", COUNT, "cluster.frames_lost", "Frames lost between nodes."),
    Family("cluster_frames_refused", COUNT, "cluster.frames_refused", "Foreign or damaged frames."),
    Family("cluster_copies_ready", GAUGE, "cluster.copies.ready", "1 while a quorum takes it."),
    Family(
        "cluster_copies_trouble", GAUGE, "cluster.copies.trouble",
        "1 while it is not copied as it should: no quorum, no JetStream, no right to.",
    ),
    Family("cluster_copies_waiting_bytes", GAUGE, "cluster.copies.waiting_bytes", "Not copied."),
    Family(
        "cluster_copies_behind_seconds", GAUGE, "cluster.copies.behind_seconds",
        "How long the oldest promise waits for copies.",
    ),
    Family(
        "cluster_copies_survive_power_loss", GAUGE, "cluster.copies.survives_power_loss",
        "Whether copies survive a loss of power of all servers: 1 yes, 0 no, -1 unknown.",
    ),
    Family("cluster_copied_groups", COUNT, "cluster.copies.groups", "Groups of rows copied."),
    Family("cluster_checkpoints", COUNT, "cluster.copies.checkpoints", "Checkpoints copied."),
    Family("journal_position", GAUGE, "journal.position", "The newest row."),
    Family("journal_committed", GAUGE, "journal.committed", "The newest durable row."),
    Family("journal_bytes", GAUGE, "journal.bytes", "Bytes of the journal's files."),
    Family("journal_keep_bytes", GAUGE, "journal.keep_bytes", "What retention leaves of them."),
    Family("journal_segments", GAUGE, "journal.segments", "Files of rows that are kept."),
    Family("journal_first", GAUGE, "journal.first", "The oldest row that is kept."),
    Family("journal_waiting_bytes", GAUGE, "journal.waiting_bytes", "Rows not yet committed."),
    Family("journal_trouble", GAUGE, "journal.trouble", "1 while the journal cannot be written."),
    Family("journal_commits", COUNT, "journal.commits", "Groups of rows made durable."),
    Family("journal_rows", COUNT, "journal.rows", "Rows made durable."),
    Family("journal_written_bytes", COUNT, "journal.bytes_written", "Bytes of these groups."),
    Family("journal_failures", COUNT, "journal.failures", "Writes and syncs that failed."),
    Family("journal_slowed", COUNT, "journal.slowed", "Times that publishers waited for the disk."),
    Family("journal_group_rows", GAUGE, "journal.group_rows", "Rows of a group, on average."),
    Family("journal_syncs_per_second", GAUGE, "journal.syncs_per_second", "What the disk can do."),
    Family("journal_commit_seconds", HISTOGRAM, "commit_seconds", "How long commits took."),
    Family("journal_sync_seconds", HISTOGRAM, "sync_seconds", "How long the disk took."),
    Family("journal_folds", COUNT, "journal.folds", "Segments folded into a snapshot."),
    Family("journal_folds_failed", COUNT, "journal.folds_failed", "Folds that failed."),
    Family("journal_fold_seconds", COUNT, "journal.fold_seconds", "Time spent on folds."),
)


_PARTS: Final = {"started": 1_000_000, "expires": 1_000_000}  # of a second: stamps of the status
_ANSWERS: Final = {"yes": 1.0, "no": 0.0, "unknown": -1.0}


class _Status(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            found = [self._found(path) for path in family.path.split()]
            value = found[0] if len(found) == 1 else _joined(family, found)
            if value is not None:
                yield _metric(family, value)

    def _found(self, path: str) -> Any:
        value: Any = self._status
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


def _joined(family: Family, lists: list[list[dict[str, Any]] | None]) -> list[dict[str, Any]]:
    """A label must not come twice."""
    items: dict[str, dict[str, Any]] = {}
    for item in chain.from_iterable(one or () for one in lists):
        items.setdefault(item[family.label], item)
    return list(items.values())


def _metric(family: Family, value: Any) -> Metric:
    if family.kind == HISTOGRAM:
        return _histogram(family, value)
    kind = CounterMetricFamily if family.kind == COUNT else GaugeMetricFamily
    labels = [family.label] if family.label else []
    metric = kind(f"hubbub_{family.name}", family.says, labels=labels)
    for label, number in _samples(family, value):
        metric.add_metric([label] if labels else [], number)
    return metric


def _histogram(family: Family, value: Histogram) -> Metric:
    bounds = (*map(str, value.BOUNDS), "+Inf")
    buckets = list(zip(bounds, accumulate(value.counts), strict=True))
    name = f"hubbub_{family.name}"
    return HistogramMetricFamily(name, family.says, buckets=buckets, sum_value=value.seconds)


def _samples(family: Family, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        for item in value:
            yield str(item[family.label]), float(item[family.value]) / _PARTS.get(family.value, 1)
    elif family.path in _PARTS:
        yield "", value / _PARTS[family.path]
    elif value in _ANSWERS:
        yield "", _ANSWERS[value]
    elif family.path.endswith((".trouble", ".not_taken")):
        yield "", float(bool(value))
    else:
        yield "", float(value)


def together(pages: dict[int, bytes]) -> bytes:
    """The pages of several processes as one, each sample with the label `process`."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, text in pages.items():
        heads: list[str] = []
        for line in text.decode().splitlines():
            if line.startswith("# HELP"):
                heads, samples = families.setdefault(line, ([], []))
                first = not heads
            if line.startswith("#"):
                if first:
                    heads.append(line)
                continue
            name, _, value = line.rpartition(" ")
            named, brace, rest = name.partition("{")
            samples.append(f'{named}{{process="{number}"{"," + rest if brace else "}"} {value}')
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def page(status: dict[str, Any]) -> bytes:
    """The answer of `/metrics`, and what the library knows of any process."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Status(status))
    return generate_latest(registry)
