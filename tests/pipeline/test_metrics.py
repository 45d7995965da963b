"""`/metrics` of a running pipeline, read by Prometheus' own parser."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hubbub.errors import SettingError
from hubbub.journal.table import Table
from hubbub.pipeline.metrics import FAMILIES, Metrics
from hubbub.pipeline.run import Report, Source
from tests.spark.fixtures import NOON, SECOND, Writer, publish

REPORT = Report(0, 2, 2, 2, 1, 0.5, {"messages": 0.25, "readings": 0.125}, 3, 4)


def asked(port: int) -> dict[str, dict[str, float]]:
    """The values of each metric by its label."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        found = text_string_to_metric_families(page.read().decode())
        return {
            one.name.removeprefix("hubbub_pipeline_"): {
                "".join(sample.labels.values()): sample.value for sample in one.samples
            }
            for one in found
        }


def test_counters_go_on_and_what_is_behind_is_looked_up(writer: Writer, tmp_path: Path) -> None:
    journal = Table(str(tmp_path / "data"))
    metrics = Metrics(journal, 0)
    port = metrics.serve("127.0.0.1:0")
    assert asked(port)["behind_rows"] == {"": 0}
    writer.write(publish(0, "a"), publish(0, "a"))
    age = time.time() - NOON / SECOND
    assert asked(port)["behind_rows"] == {"": 2}
    assert asked(port)["behind_seconds"][""] == pytest.approx(age, abs=60)
    metrics.report(REPORT)
    metrics.report(REPORT._replace(tables={"messages": 0.5}))
    metrics.notice()
    found = asked(port)
    assert set(found) == {family.name for family in FAMILIES}
    assert found["table_seconds"] == {"messages": 0.75, "readings": 0.125}
    values = {name: value[""] for name, value in found.items() if "" in value}
    assert time.time() - values.pop("last_batch_seconds") < 60
    assert values == {
        "batches": 2, "rows": 4, "messages": 4, "quarantined": 8, "lost_rows": 6, "notices": 1,
        "seconds": 1.0, "seq": 2, "behind_rows": 0, "behind_seconds": 0,
    }  # fmt: skip


def test_what_is_not_known_is_not_said(tmp_path: Path) -> None:
    """Where the tables at a URL stand, before the first batch; a journal that cannot be read."""
    unknown = asked(Metrics(Table(str(tmp_path / "none")), None).serve("127.0.0.1:0"))
    assert unknown["seq"] == unknown["behind_rows"] == {}
    away = Source("http://127.0.0.1:9").journal(tmp_path, 0)
    assert asked(Metrics(away, 1).serve("127.0.0.1:0"))["behind_rows"] == {}


@pytest.mark.parametrize("address", ["9465", "127.0.0.1:", "127.0.0.1:x", "192.0.2.1:80", "a:9"])
def test_an_address_where_it_cannot_listen(address: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--metrics: "):
        Metrics(Table(str(tmp_path)), 0).serve(address)


def test_the_document_has_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text("utf-8")
    for family in FAMILIES:
        name = f"hubbub_pipeline_{family.name}" + "_total" * family.counter
        label = f"{{{family.label}}}" if family.label else ""
        kind = "counter" if family.counter else "gauge"
        assert f"| `{name}{label}` | {kind} | {family.says} |" in text
