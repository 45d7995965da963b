"""docs/reference/tables.md says what the tables declare.

`python -m tests.pipeline.test_reference` writes its generated part again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hubbub.pipeline.tables import ALL

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"
MARK: Final = "<!-- from here on generated: python -m tests.pipeline.test_reference -->\n"


def generated() -> str:
    parts = []
    for table in ALL:
        parts.append(f"\n## {table.name}\n\nGrain: {table.grain}.\n\n| column | type | meaning |\n")
        parts.append("|---|---|---|\n")
        for column in table.columns:
            unit = f" ({column.unit})" if column.unit else ""
            meaning = column.meaning.replace("|", "\\|")
            parts.append(f"| `{column.name}` | {column.type} | {meaning}{unit} |\n")
    return "".join(parts)


def test_the_page_is_true() -> None:
    _, _, said = PAGE.read_text().partition(MARK)
    assert said == generated(), "run: python -m tests.pipeline.test_reference"


if __name__ == "__main__":
    kept, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(kept + mark + generated())
