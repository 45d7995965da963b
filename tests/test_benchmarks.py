"""The tables and the picture of docs/benchmarks.md are of the figures that are kept beside them."""

from __future__ import annotations

import json

from benchmarks import ratios, report


def test_the_pages_show_the_kept_figures() -> None:
    said = json.loads(report.RESULTS.read_text())
    for path, made in ((report.PAGE, report.summary(said)), (report.RUN, report.lines(said))):
        text = path.read_text()
        assert report.BEGIN in text
        assert report.page(text, made) == text


def test_the_picture_is_of_the_kept_figures() -> None:
    said, drawn = json.loads(report.RESULTS.read_text()), ratios.IMAGE.read_text()
    assert f"{said['date']}, commit {said['state']}" in drawn
    for name in report.versed(report.by_name(said)):
        assert ratios.shown(name) in drawn


def test_an_aim_that_is_missed_is_named() -> None:
    def row(cost: float) -> report.Row:
        return {name: {"cost_us": [value], "row": {"aim": 0.5}} for name, value in (
            ("mosquitto", 4.0), ("mosquitto, nodelay", 5.0), (report.MEMORY, cost),
            (report.DISK, 9.0))}  # fmt: skip

    assert list(report.reached({"near": row(2.0), "far": row(2.1)})) == [
        "**1 of 2 aims in memory are reached**; not: far.",
        "**0 of 0 aims with a journal on disk are reached**.",
    ]


def test_a_ratio_is_to_the_cheaper_peer_and_of_one_round() -> None:
    figures = {"mosquitto": [4.0, 8.0], "mosquitto, nodelay": [2.0, 9.0], "plain": [4.0, 4.0]}
    row = {name: {"cost_us": costs, "row": {}} for name, costs in figures.items()}
    assert report.cell(row, "plain") == "4.00 | **0.73** (0.50 to 2.00)"


def test_a_busy_machine_is_said() -> None:
    assert "was quiet" in report.quietness([10.0, 10.9])
    assert "**was not** quiet" in report.quietness([10.0, 12.0])
