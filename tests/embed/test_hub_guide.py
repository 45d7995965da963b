"""docs/guide/hub-api.md: its examples run as they stand, and its tables name all there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub import Hub
from tests.process import ROOT

GUIDE = (ROOT / "docs/guide/hub-api.md").read_text("utf-8")
EXAMPLES = re.findall(r"<!-- run -->\n```python\n(.*?)```", GUIDE, re.DOTALL)


def first_columns(section: str) -> set[str]:
    """What stands in the first column of the tables of a section, without arguments."""
    text = GUIDE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def test_every_function_is_in_a_table() -> None:
    public = {name for name in vars(Hub) if not name.startswith("_")}
    assert first_columns("Functions") == public


def test_every_option_is_in_a_table() -> None:
    assert first_columns("Options") == set(inspect.signature(Hub).parameters)


def test_every_function_and_option_says_what_it_does() -> None:
    for name, value in vars(Hub).items():
        assert name.startswith("_") or value.__doc__, name
    for option in inspect.signature(Hub).parameters:
        assert f"`{option}" in (Hub.__doc__ or ""), option


@pytest.mark.interop
@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example(tmp_path: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert len(done.stdout.splitlines()) == code.count("print(")
