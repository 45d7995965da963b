"""The tables and the picture of docs/benchmarks.md, from what `python -m benchmarks.mqtt` kept.

    python -m benchmarks.report [RESULTS]

writes them between the two marks of the page, and every figure between those of
docs/benchmarks/run.md, so that no number there is typed by hand: one run, one date, one state of
the code. Called by mqtt.py too, which prints the same. Never measures.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results" / "mqtt.json"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
RUN: Final = ROOT / "docs" / "benchmarks" / "run.md"
BEGIN: Final = "<!-- made by `python -m benchmarks.report`: -->"
END: Final = "<!-- end of what was made -->"
PEERS: Final = ("mosquitto", "mosquitto, nodelay")
MEMORY, DISK = "compiled, record none", "compiled"
AIMED: Final = {MEMORY: "aim", DISK: "disk_aim"}
PLAIN: Final = ("plain, record none", "plain")
UNQUIET: Final = 1.15  # between the fastest and the slowest of the same loop; alone it is 1.03

Said = dict[str, Any]
Row = dict[str, dict[str, Any]]  # of one way to load: the figures by broker


def lines(said: Said) -> Iterator[str]:
    """Every figure: what stands in RUN, and what `make bench` prints."""
    rows = by_name(said)
    old = versed(rows)
    brokers = list(next(iter(old.values())))
    yield from heading(said)
    yield ""
    yield from costs(old, brokers)
    yield ""
    yield from rates(old, brokers)
    yield ""
    yield from versions(old, rows)


def summary(said: Said) -> Iterator[str]:
    """What stands in PAGE: the cheaper mosquitto beside the hub, and the aims."""
    rows = versed(by_name(said))
    yield from heading(said)
    yield ""
    yield from reached(rows)
    yield ""
    yield ("| broker CPU, µs a delivery | mosquitto | compiled, in memory | ÷ mosquitto | aim "
           "| compiled, on disk | ÷ mosquitto | aim "
           "| plain, in memory, ÷ | plain, on disk, ÷ |")  # fmt: skip
    yield "|---" * 10 + "|"
    for name, row in rows.items():
        cells = [f"{cheaper(row):.2f}"]
        for broker in AIMED:
            cells += [f"{median(row, broker):.2f}", bold(row, broker), str(aim(row, broker) or "")]
        cells += [f"{ratio(row, broker):.2f}" for broker in PLAIN]
        yield f"| {name} | {' | '.join(cells)} |"


def bold(row: Row, broker: str) -> str:
    """The ratio, bold where it is an aim's and the aim is reached."""
    said, wanted = f"{ratio(row, broker):.2f}", aim(row, broker)
    return f"**{said}**" if wanted and ratio(row, broker) <= wanted else said


def reached(rows: dict[str, Row]) -> Iterator[str]:
    """How many aims are, and which are not."""
    for broker, where in ((MEMORY, "in memory"), (DISK, "with a journal on disk")):
        aims = {name: row for name, row in rows.items() if aim(row, broker)}
        missed = [name for name, row in aims.items() if "*" not in bold(row, broker)]
        said = f"**{len(aims) - len(missed)} of {len(aims)} aims {where} are reached**"
        yield said + (f"; not: {'; '.join(missed)}." if missed else ".")


def versed(rows: dict[str, Row]) -> dict[str, Row]:
    """Those of MQTT 3.1.1."""
    return {name: row for name, row in rows.items() if not name.endswith(" MQTT 5")}


def by_name(said: Said) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for one in said["rows"]:
        rows.setdefault(one["row"]["name"], {})[one["broker"]] = one
    return rows


def heading(said: Said) -> Iterator[str]:
    rounds = len(said["rows"][0]["cost_us"])
    yield f"{said['date']}, commit {said['state']}. {said['machine']}. Rounds: {rounds}."
    yield f"A durable write of 1 KiB took {said['sync_us']} µs. {quietness(said['loop_ms'])}"
    if said["folding_us"]:
        yield (f"Folding finished segments, in a child process, costs another "
               f"{said['folding_us']} µs CPU a row, which the tables leave out.")  # fmt: skip


def quietness(loops: Sequence[float]) -> str:
    """Whether these figures may be compared with those of another day."""
    least, most = min(loops), max(loops)
    noisy = "**was not**" if most > UNQUIET * least else "was"
    return f"The machine {noisy} quiet: the same loop took {least:.1f} to {most:.1f} ms."


def costs(rows: dict[str, Row], brokers: Sequence[str]) -> Iterator[str]:
    """Median cost of each; for the hub also the ratio to the cheaper peer, with spread and aim."""
    heads = [name if name in PEERS else f"{name} | ÷ mosquitto" for name in brokers]
    yield "| broker CPU, µs a delivery | " + " | ".join(heads) + " |"
    yield "|---" * (1 + " | ".join(heads).count("|") + 1) + "|"
    for name, row in rows.items():
        yield f"| {name} | " + " | ".join(cell(row, broker) for broker in brokers) + " |"


def cell(row: Row, broker: str) -> str:
    cost = f"{median(row, broker):.2f}"
    if broker in PEERS:
        return cost
    wanted = aim(row, broker)
    said = f"{cost} | **{ratio(row, broker):.2f}** ({spread(row, broker)})"
    return said + (f" aim {wanted}" if wanted else "")


def median(row: Row, broker: str) -> float:
    """µs of CPU a delivery."""
    return float(statistics.median(row[broker]["cost_us"]))


def cheaper(row: Row) -> float:
    """What the cheaper mosquitto takes."""
    return min(median(row, one) for one in PEERS)


def ratio(row: Row, broker: str) -> float:
    return median(row, broker) / cheaper(row)


def aim(row: Row, broker: str) -> float | None:
    """The greatest ratio that we want, where there is one."""
    wanted: float | None = row[broker]["row"].get(AIMED.get(broker, ""))
    return wanted


def spread(row: Row, broker: str) -> str:
    """The least and the greatest ratio of one round, in which the brokers took turns."""
    rounds = zip(*(row[one]["cost_us"] for one in (broker, *PEERS)), strict=True)
    ratios = [cost / min(peers) for cost, *peers in rounds]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def rates(rows: dict[str, Row], brokers: Sequence[str]) -> Iterator[str]:
    yield "| deliveries a second, thousands | " + " | ".join(brokers) + " |"
    yield "|---" * (1 + len(brokers)) + "|"
    for name, row in rows.items():
        medians = (statistics.median(row[broker]["per_second"]) / 1000 for broker in brokers)
        yield f"| {name} | " + " | ".join(f"{rate:.1f}" for rate in medians) + " |"


def versions(old: dict[str, Row], rows: dict[str, Row]) -> Iterator[str]:
    """What 5.0 costs beside 3.1.1, where nothing of it is used but what the row names."""
    modern = {name: rows[f"{name} MQTT 5"] for name in old if f"{name} MQTT 5" in rows}
    brokers = list(next(iter(modern.values()), {}))
    columns = " | ".join(f"{name} 3.1.1 | 5.0 | ratio" for name in brokers)
    yield f"| broker CPU, µs a delivery | {columns} |"
    yield "|---" * (1 + 3 * len(brokers)) + "|"
    for name, row in modern.items():
        shown = []
        for broker in brokers:
            before, after = median(old[name], broker), median(row, broker)
            shown.append(f"{before:.2f} | {after:.2f} | **{after / before:.2f}**")
        yield f"| {name} | {' | '.join(shown)} |"


def written(said: Said) -> str:
    """The file of results, a line for each way to load and broker, so that changes can be read."""
    rows = ",\n".join(json.dumps(row) for row in said["rows"])
    head = json.dumps({name: value for name, value in said.items() if name != "rows"})
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'


def page(text: str, made: Iterator[str]) -> str:
    """The page with these lines between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n" + "\n".join(made) + f"\n{END}{after}"


def main() -> int:
    from benchmarks import ratios  # which takes matplotlib, for a second

    said = json.loads((Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS).read_text())
    for path, made in ((PAGE, summary(said)), (RUN, lines(said))):
        path.write_text(page(path.read_text(), made))
    ratios.draw(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
