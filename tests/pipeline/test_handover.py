"""A table made again takes the place of the old one whole or not at all, also when cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import handover
from hubbub.pipeline.compact import exchange
from hubbub.pipeline.layout import BATCH, Layout, Progress
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables import typed
from hubbub.pipeline.typed import Typed

DEDUPED = Rules(table=(Typed("t", "a", {"x": "$.x DOUBLE"}, dedupe_by=("x",)),))


def fill(place: Path, said: str) -> None:
    (place / f"{BATCH}0").mkdir(parents=True)
    (place / f"{BATCH}0" / "part.parquet").write_text(said)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A table of an old form after batch 7."""
    made = Layout(tmp_path)
    made.root.mkdir()
    (made.root / "_open").mkdir()
    made.advance(Progress(7, 70, "2026-01-01 12:00:00", 0, "2026-01-01 12:00:00", 70))
    made.declare(b"old")
    fill(made.root / "t", "old")
    fill(made.root / "beside", "old")
    (made.root / "_open/t" / f"{BATCH}7").mkdir(parents=True)
    (made.root / "_open/t" / f"{BATCH}7" / "part.parquet").write_text("old")
    return made


def fresh(layout: Layout) -> Path:
    place = layout.scratch("backfill")
    fill(place / "t/closed", "new")
    (place / "t/open").mkdir()
    (place / "t/open/part.parquet").write_text("new")
    fill(place / "beside/closed", "new")
    return place


def told(layout: Layout) -> set[str]:
    """What the rows, the open rows and the declaration are: one word if they agree."""
    opened = layout.root / "_open/t" / f"{BATCH}7"
    files = [layout.root / name / f"{BATCH}0/part.parquet" for name in ("t", "beside")]
    files.append(opened / "part.parquet")
    assert not [*layout.root.rglob(handover.MARK)]
    return {file.read_text() for file in (*files, layout.declared)}


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("call", [2, 3, 4])  # the first is a trial
def test_cut_short_it_is_ended_by_the_next(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, call: int, after: bool
) -> None:
    calls = []

    def cut(one: Path, other: Path) -> None:
        calls.append(other)
        if len(calls) != call or after:
            exchange(one, other)
        if len(calls) == call:
            raise KeyboardInterrupt

    monkeypatch.setattr(handover, "exchange", cut)
    with pytest.raises(KeyboardInterrupt):
        handover.hand_over(layout, fresh(layout), 7, "new")
    for _ in range(2):
        handover.finish(layout)
        assert told(layout) == {"new"}


def test_where_nothing_can_be_exchanged_nothing_is_begun(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(one: Path, other: Path) -> None:
        raise DirectoryError("cannot be exchanged")

    monkeypatch.setattr(handover, "exchange", never)
    with pytest.raises(DirectoryError):
        handover.hand_over(layout, fresh(layout), 7, "new")
    handover.finish(layout)
    assert told(layout) == {"old"}


def test_open_rows_that_nobody_carried_on_have_a_place(layout: Layout) -> None:
    (layout.root / "_open/t" / f"{BATCH}7").rename(layout.root / "_open/t" / f"{BATCH}5")
    handover.hand_over(layout, fresh(layout), 7, "new")
    assert told(layout) == {"new"}


def test_a_table_left_out_of_a_run_is_refused_with_what_to_do(layout: Layout) -> None:
    layout.declared.unlink()
    typed.save(layout, DEDUPED)
    assert typed.saved(layout) == DEDUPED.table
    (layout.root / "_open/t" / f"{BATCH}7").rename(layout.root / "_open/t" / f"{BATCH}5")
    with pytest.raises(SettingError, match="hubbub pipeline backfill t "):
        typed.save(layout, DEDUPED)
