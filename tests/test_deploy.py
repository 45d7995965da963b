"""What `deploy/` gives to people who run a hub as a service, checked by systemd's own tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1] / "deploy" / "hubbub.service"


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.interop
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    unit = tmp_path / "hubbub.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    done = analyze("verify", str(unit))
    assert "hubbub.service" not in done.stderr, done.stderr


@pytest.mark.interop
def test_the_service_is_exposed_to_little() -> None:
    """Of 100, 0 is best: a tenth of what systemd calls exposed."""
    done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file")
    assert done.returncode == 0, done.stdout[-200:]


def test_what_the_roller_calls_is_allowed() -> None:
    """It lowers its priority, which is of @resources; the hub raises its limit of descriptors."""
    forbidden = re.findall(r"(?m)^SystemCallFilter=~(.*)$", UNIT.read_text())
    assert forbidden and all("@resources" not in one for one in forbidden)
