"""The examples of docs/guide/mqtt-client.md run as they stand, against a hub."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import ROOT, RunningHub

GUIDE = (ROOT / "docs/guide/mqtt-client.md").read_text("utf-8")
EXAMPLES = re.findall(r"<!-- run -->\n```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.interop
@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example(hub: RunningHub, tmp_path: Path, code: str) -> None:
    here = code.replace("127.0.0.1:1883", hub.address).replace(
        '"127.0.0.1", 1883', f'"127.0.0.1", {hub.port}'
    )
    done = subprocess.run(
        [sys.executable, "-c", here],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    printed = code.count("print(")
    assert len(done.stdout.splitlines()) == printed
