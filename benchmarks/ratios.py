"""Draws what a delivery costs beside mosquitto, row by row, into docs/images/ratios.svg.

Called by `python -m benchmarks.report`, of the same figures as its tables. Left of the line is
cheaper than mosquitto; the hollow marks have a journal on disk, which mosquitto has not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import matplotlib
import matplotlib.pyplot as plt

from benchmarks import report

matplotlib.use("svg")
plt.rcParams["svg.fonttype"] = "none"  # words are words: they can be searched, and tested
plt.rcParams["svg.hashsalt"] = "hubbub"  # the same figures make the same file

IMAGE: Final[Path] = report.ROOT / "docs" / "images" / "ratios.svg"
# Of each broker its name, colour, and whether its mark is filled.
MARKS: Final = {
    report.DISK: ("compiled, on disk", "tab:blue", "none"),
    report.MEMORY: ("compiled, in memory", "tab:blue", "tab:blue"),
    "plain, record none": ("plain Python, in memory", "tab:orange", "tab:orange"),
}
TICKS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def draw(said: report.Said) -> None:
    rows = report.versed(report.by_name(said))
    places = range(len(rows))
    figure, plot = plt.subplots(figsize=(9, 0.24 * len(rows) + 1.4), layout="constrained")
    plot.axvline(1, color="black", linewidth=0.8)
    for broker, (label, edge, face) in MARKS.items():
        ratios = [report.ratio(row, broker) for row in rows.values()]
        plot.plot(ratios, places, "o", label=label, markeredgecolor=edge, markerfacecolor=face)
    plot.set_yticks(places, [shown(name) for name in rows])
    plot.set_xscale("log")
    plot.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    plot.minorticks_off()
    plot.invert_yaxis()
    plot.grid(color="0.9")
    plot.set_axisbelow(True)
    plot.set_xlabel("CPU of the broker a delivery, mosquitto = 1: left is cheaper")
    plot.set_title(f"{said['date']}, commit {said['state']}", fontsize="small", loc="right")
    plot.legend(loc="lower right", fontsize="small")
    figure.savefig(IMAGE, metadata={"Date": None})


def shown(name: str) -> str:
    """A row's name, for who does not know of windows."""
    return re.sub(r" window 1\b", " one at a time", name)
