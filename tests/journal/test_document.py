"""docs/journal-format.md says what the source does."""

from __future__ import annotations

import re
from pathlib import Path

from hubbub.core import limits
from hubbub.journal import arrow, content, frame, segments
from hubbub.schema import COLUMNS, KINDS

TEXT = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text("utf-8")

CELL = re.compile(r"(?<!\\)\|")


def table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its two head lines."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [
        [cell.strip(" `").replace("\\|", "|") for cell in CELL.split(line)[1:-1]] for line in lines
    ]


def test_columns() -> None:
    assert table("Columns") == [list(column) for column in COLUMNS]


def test_kinds() -> None:
    assert table("Kinds") == [[kind.decode(), meaning] for kind, meaning in KINDS.items()]


def test_numbers() -> None:
    for number, words in [
        (len(arrow.SCHEMA), "Arrow IPC schema message ({:,} bytes)"),
        (content.HEADER_BYTES, "where the frames begin ({:,})"),
        (len(arrow.BATCH), "begins with {:,} bytes of metadata"),
        (limits.SEGMENT_BYTES >> 20, "At {} MiB"),
        (frame.STATE, "Flag {}: a row inside changes state"),
        (frame.COMPRESSED, "Flag {}: the body is compressed"),
    ]:
        assert words.format(number) in TEXT
    assert segments.FORMAT.strip() in TEXT
