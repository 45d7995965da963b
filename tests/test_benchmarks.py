"""The tables of docs/benchmarks.md are those of the figures that are kept beside them."""

from __future__ import annotations

import json

from benchmarks import report


def test_the_page_shows_the_kept_figures() -> None:
    text = report.PAGE.read_text()
    assert report.BEGIN in text
    assert report.page(text, json.loads(report.RESULTS.read_text())) == text


def test_a_ratio_is_to_the_cheaper_peer_and_of_one_round() -> None:
    figures = {"mosquitto": [4.0, 8.0], "mosquitto, nodelay": [2.0, 9.0], "plain": [4.0, 4.0]}
    row = {name: {"cost_us": costs, "row": {}} for name, costs in figures.items()}
    assert report.cell(row, "plain") == "4.00 | **0.73** (0.50 to 2.00)"


def test_a_busy_machine_is_said() -> None:
    assert "was quiet" in report.quietness([10.0, 10.9])
    assert "**was not** quiet" in report.quietness([10.0, 12.0])
