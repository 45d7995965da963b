"""What a running pipeline did, for Prometheus: `hubbub pipeline run --metrics HOST:PORT`.

Counters begin with the process. How far behind the tables are is looked up when it is asked for,
so it also rises while a batch takes long or none ends. Called by the command line, which hands it
each report, and by `watch`, which hands the numbers to the hub.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hubbub.errors import HubbubError, SettingError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline.batches import Report


class Family(NamedTuple):
    """What a metric is called, whether it is a counter, and what it says."""

    name: str
    counter: bool
    says: str
    label: str = ""


PATIENCE: Final = 2  # seconds: who asks waits, and gives up after ten
FAMILIES: Final = (
    Family("batches", True, "Batches that became whole."),
    Family("rows", True, "Rows of the journal in them."),
    Family("messages", True, "Messages in them."),
    Family("quarantined", True, "Messages of them that went to quarantine."),
    Family("lost_rows", True, "Rows that were gone or damaged before they were read."),
    Family("notices", True, "What was said beside: a batch or an alert failed, rows were lost."),
    Family("seconds", True, "Time that the batches took."),
    Family("table_seconds", True, "Time that each table took of them.", "table"),
    Family("seq", False, "The row of the journal up to which the tables stand."),
    Family("last_batch_seconds", False, "When the last batch became whole, Unix time."),
    Family("behind_rows", False, "Rows of the journal that are not in the tables yet."),
    Family("behind_seconds", False, "Age of the oldest of these rows, 0 if there is none."),
)


class Metrics(Collector):
    """Is told of batches and notices; answers from `serve` on.

    `journal` is its own, since it is asked on other threads than the pipeline's. `seq`: where the
    tables stand; None = that is not known before the first batch.
    """

    def __init__(self, journal: Journal, seq: int | None) -> None:
        self._journal = journal
        self._numbers: dict[str, float] = {
            one.name: 0 for one in FAMILIES if one.counter and not one.label
        }
        self._tables: dict[str, float] = {}
        if seq is not None:
            self._numbers["seq"] = seq

    def report(self, report: Report) -> None:
        numbers = self._numbers
        numbers["batches"] += 1
        for name in ("rows", "messages", "quarantined", "seconds"):
            numbers[name] += getattr(report, name)
        numbers["lost_rows"] += report.lost
        numbers["seq"], numbers["last_batch_seconds"] = report.seq, time.time()
        for table, seconds in report.tables.items():
            self._tables[table] = self._tables.get(table, 0.0) + seconds

    def notice(self) -> None:
        self._numbers["notices"] += 1

    def serve(self, address: str) -> int:
        """Answer at HOST:PORT until the process ends; the port. SettingError if that cannot be."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingError(f"--metrics: expected HOST:PORT, got {address!r}")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            server, _ = start_http_server(int(port), host.strip("[]"), registry)
        except (OSError, OverflowError) as error:
            raise SettingError(f"--metrics: cannot listen on {address}: {error}") from error
        return server.server_port

    def numbers(self, look: bool = True) -> dict[str, float]:
        """All of them by name; `look` up how far behind it is, where that is known."""
        return {**self._numbers, **(self._behind() if look else {})}

    def collect(self) -> Iterator[Metric]:
        found = self.numbers()
        for family in FAMILIES:
            kind = CounterMetricFamily if family.counter else GaugeMetricFamily
            labels = [family.label] if family.label else []
            metric = kind(f"hubbub_pipeline_{family.name}", family.says, labels=labels)
            if labels:
                for label, number in list(self._tables.items()):
                    metric.add_metric([label], number)
            elif family.name in found:
                metric.add_metric([], found[family.name])
            yield metric

    def _behind(self) -> dict[str, float]:
        """Nothing while that is not known: a number would be made up."""
        if "seq" not in self._numbers:
            return {}
        seq = int(self._numbers["seq"])
        try:
            rows = max(self._journal.committed() - seq, 0)
            return {"behind_rows": rows, "behind_seconds": self._age(seq + 1) if rows else 0.0}
        except HubbubError:
            return {}

    def _age(self, seq: int) -> float:
        seq = max(seq, self._journal.first())
        batch = next(self._journal.read(seq - 1, seq))
        return max(time.time() - batch["time"][0].as_py().timestamp(), 0.0)
