"""Results as pictures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from hubbub.errors import SettingError
from hubbub.pipeline.plot import HEIGHT, dots, lines_of, png

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMES = [NOON + timedelta(seconds=second) for second in range(100)]
RESULT = pa.table(
    {
        "time": pa.array(TIMES * 2, pa.timestamp("us", "UTC")),
        "topic": ["a"] * 100 + ["b"] * 100,
        "value": [float(n) for n in range(100)] + [50.0] * 100,
    }
)


def test_one_line_a_text() -> None:
    lines = lines_of(RESULT)
    assert [(line.name, len(line.points)) for line in lines] == [("a", 100), ("b", 100)]
    both = lines_of(RESULT.append_column("more", RESULT["value"]))
    assert [line.name for line in both] == ["a more", "a value", "b more", "b value"]


def test_dots() -> None:
    said = dots(lines_of(RESULT)).splitlines()
    assert said[:2] == ["■ a", "■ b"]
    assert len(said) == 2 + HEIGHT + 1
    assert said[2].strip().startswith("99")
    assert said[-1].split() == ["2026-01-01", "12:00:00", "2026-01-01", "12:01:39"]
    assert "\x1b[36m" in dots(lines_of(RESULT), colour=True)


def test_png(tmp_path: Path) -> None:
    png(lines_of(RESULT), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="cannot write"):
        png(lines_of(RESULT), tmp_path / "none" / "a.png")


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (RESULT.select(["topic", "value"]), "needs a column that is a time"),
        (RESULT.slice(0, 0), "nothing to plot"),
        (RESULT.set_column(1, "topic", [[str(n) for n in range(200)]]), "200 lines"),
    ],
)
def test_what_cannot_be_drawn(result: pa.Table, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        lines_of(result)
