"""The page of what clients can rely on says what the tests hold."""

from __future__ import annotations

import re
from pathlib import Path

from tests.protocols.smq.conformance import PARTS, page
from tests.protocols.smq.test_raw_probes import PROBES

ROOT = Path(__file__).parents[3]
FOLDERS = (
    "tests", "tests/embed", "tests/runtime", "tests/protocols/smq", "tests/client/smq",
    "tests/auth", "tests/web", "tests/core",
)  # fmt: skip
NAMED = [test for rows in PARTS.values() for _, _, tests in rows for test in tests]


def test_the_page_is_what_the_table_says() -> None:
    text = (ROOT / "docs/reference/smq-conformance.md").read_text("utf-8")
    said = "run: python -m tests.protocols.smq.conformance > docs/reference/smq-conformance.md"
    assert text.rstrip() == "\n".join(page()).rstrip(), said


def test_every_test_of_the_page_exists() -> None:
    there = {
        f"{file.stem}::{name}"
        for folder in FOLDERS
        for file in (ROOT / folder).glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.M)
    }
    assert [t for t in NAMED if not t.startswith("raw: ") and t not in there] == []


def test_every_probe_is_on_the_page() -> None:
    named = [test.removeprefix("raw: ") for test in NAMED if test.startswith("raw: ")]
    assert [probe for probe in PROBES if not any(probe.startswith(name) for name in named)] == []
    assert [name for name in named if not any(probe.startswith(name) for probe in PROBES)] == []
