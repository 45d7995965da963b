"""A hub that would go on wrong ends; a process of its own does it here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import sys, threading
from pathlib import Path
from hubbub import schema
from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.schema import Row

landed = threading.Event()
journal = Journal(Path(sys.argv[1]), Clock(), "disk", lambda seq: landed.set())
journal.recover(lambda batch: None)
journal.append(Row(0, 0, schema.CONNECT))
if sys.argv[2] == "committed":
    journal.disk._published = 7
journal.commit()
landed.wait(10)
if sys.argv[2] == "numbers":
    journal.arrived(1)
    journal.position += 1
    journal.append(Row(0, 0, schema.CONNECT))
    journal.commit()
else:
    journal.on_disk = 7
    journal.arrived(1)
print("went on")
"""


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("numbers", "rows are numbered one by one"),
        ("durable", "what is durable only grows"),
        ("committed", "`committed` never goes back"),
    ],
)
@pytest.mark.interop
def test_a_rule_that_is_broken_ends_the_process(tmp_path: Path, broken: str, rule: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path / "data"), broken],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode < 0 and "went on" not in done.stdout
    assert rule in done.stderr
