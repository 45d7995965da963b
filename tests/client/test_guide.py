"""The examples of the guides to the clients run as they stand, against a hub."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import ROOT, RunningHub

GUIDES = ("mqtt-client.md", "smq-client.md")
EXAMPLE = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    for guide in GUIDES:
        text = (ROOT / "docs/guide" / guide).read_text("utf-8")
        for number, code in enumerate(EXAMPLE.findall(text), 1):
            yield f"{guide}-{number}", code


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path_factory.mktemp("hub") / "data")
    yield hub
    hub.stop()


@pytest.mark.interop
@pytest.mark.parametrize(
    "code", [code for _, code in examples()], ids=[name for name, _ in examples()]
)
def test_an_example(hub: RunningHub, tmp_path: Path, code: str) -> None:
    here = re.sub(r"127\.0\.0\.1:(1883|8080)", hub.address, code).replace(
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
