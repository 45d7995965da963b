"""A result as a picture over time: a PNG, or dots in the terminal.

Called by `hubbub pipeline sql --plot`. The first column that is a time is the horizontal axis, each
column of numbers a line; a column of text splits them into one line a value.

    ⡇⠀⠀⢀⠔⠒⠒⠢⡀⠀⠀⠀   each character is two dots wide and four high (U+2800 and what follows)
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from hubbub.errors import SettingError
from hubbub.terminal import harmless

LINES: Final = 12  # more are no picture any more
POINTS: Final = 200_000  # of a result
FEW: Final = 60  # points of a line that are marked: one alone would not be seen
WIDTH: Final = 70  # characters
HEIGHT: Final = 14
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column
_COLOURS: Final = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # one for each of LINES

Point = tuple[datetime, float]


class Line(NamedTuple):
    name: str
    points: list[Point]  # in the order of time


def lines_of(result: pa.Table) -> list[Line]:
    """The lines of a result. Raises SettingError if it cannot be drawn, with what is missing."""
    times = [field.name for field in result.schema if pa.types.is_timestamp(field.type)]
    numbers = [field.name for field in result.schema if _is_number(field.type)]
    texts = [field.name for field in result.schema if pa.types.is_string(field.type)]
    if not times or not numbers:
        raise SettingError("a plot needs a column that is a time and one that is a number")
    if result.num_rows > POINTS:
        raise SettingError(f"a plot of more than {POINTS} rows: group them by minute, or LIMIT")
    found: dict[str, list[Point]] = {}
    for row in result.to_pylist():
        of = " ".join(str(row[name]) for name in texts)
        for name in numbers:
            if row[name] is not None and row[times[0]] is not None:
                label = f"{of} {name}".strip() if len(numbers) > 1 or not of else of
                point = (row[times[0]].astimezone(UTC), float(row[name]))
                found.setdefault(label, []).append(point)
    if len(found) > LINES:
        raise SettingError(f"a plot of {len(found)} lines: choose {LINES} at most with WHERE")
    if not found:
        raise SettingError("there is nothing to plot: the result has no rows with time and number")
    return [Line(name, sorted(points)) for name, points in sorted(found.items())]


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def png(lines: list[Line], file: Path) -> None:
    """Draw the lines into a PNG of 1200 × 600."""
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingError(
            "a PNG needs matplotlib: run `pip install '.[pipeline]'` where Hubbub's source is, or "
            "use --plot -"
        ) from error
    figure = Figure(figsize=(12, 6), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for number, line in enumerate(lines):
        times, values = zip(*line.points, strict=True)
        axes.plot(
            times, values, label=line.name, linewidth=1.2, markersize=4,
            linestyle="-" if number < 10 else "--",  # there are ten colours
            marker="o" if len(times) <= FEW else "",
        )  # fmt: skip
    dates = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(dates)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]
    axes.grid(alpha=0.3)
    axes.set_xlabel("UTC")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    try:
        figure.savefig(file, format="png")
    except OSError as error:
        raise SettingError(f"cannot write {file}: {error.strerror}") from error


def dots(lines: list[Line], colour: bool = False) -> str:
    """The lines as text of WIDTH × HEIGHT characters with its axes, each in a colour of its own."""
    times = [time.timestamp() for line in lines for time, _ in line.points]
    values = [value for line in lines for _, value in line.points]
    canvas = _Canvas((min(times), max(times)), (min(values), max(values)))
    for number, line in enumerate(lines):
        canvas.draw(((time.timestamp(), value) for time, value in line.points), number)
    begin, end = (datetime.fromtimestamp(t, UTC) for t in (min(times), max(times)))
    titles = [f"■ {harmless(line.name, lines=False)}" for line in lines]
    names = [_coloured(title, number, colour) for number, title in enumerate(titles)]
    marks = {0: f"{max(values):.4g}", HEIGHT - 1: f"{min(values):.4g}"}
    rows = [f"{marks.get(y, ''):>10} {canvas.row(y, colour)}" for y in range(HEIGHT)]
    axis = f"{begin:%Y-%m-%d %H:%M:%S}{f'{end:%Y-%m-%d %H:%M:%S}':>{WIDTH - 19}}"
    return "\n".join([*names, *rows, " " * 11 + axis]) + "\n"


class _Canvas:
    """Dots, and which line was the last in each character."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self._x, self._y = across, up
        self._bits = [[0] * WIDTH for _ in range(HEIGHT)]
        self._line = [[0] * WIDTH for _ in range(HEIGHT)]

    def draw(self, points: Iterable[Point | tuple[float, float]], line: int) -> None:
        before: tuple[int, int] | None = None
        for time, value in points:
            x = _scaled(time, self._x, WIDTH * 2 - 1)
            y = HEIGHT * 4 - 1 - _scaled(value, self._y, HEIGHT * 4 - 1)
            for dot in _between(before or (x, y), (x, y)):
                self._set(*dot, line)
            before = (x, y)

    def _set(self, x: int, y: int, line: int) -> None:
        self._bits[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        self._line[y // 4][x // 2] = line

    def row(self, y: int, colour: bool) -> str:
        cells = zip(self._bits[y], self._line[y], strict=True)
        return "".join(
            _coloured(chr(0x2800 + bits), line, colour) if bits else " " for bits, line in cells
        ).rstrip()


def _scaled(value: Any, bounds: tuple[float, float], steps: int) -> int:
    low, high = bounds
    return round((value - low) / (high - low) * steps) if high > low else steps // 2


def _between(one: tuple[int, int], other: tuple[int, int]) -> Iterable[tuple[int, int]]:
    """The dots of a straight line."""
    steps = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
    for step in range(steps + 1):
        part = step / steps
        yield (
            round(one[0] + (other[0] - one[0]) * part),
            round(one[1] + (other[1] - one[1]) * part),
        )


def _coloured(text: str, line: int, colour: bool) -> str:
    return f"\x1b[{_COLOURS[line % len(_COLOURS)]}m{text}\x1b[0m" if colour else text
