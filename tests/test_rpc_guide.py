"""docs/guide/rpc.md is typed in as it stands: both programs, and the curl lines in their order."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.process import ROOT, RunningHub

pytestmark = pytest.mark.interop

GUIDE = (ROOT / "docs/guide/rpc.md").read_text("utf-8")
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src")}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"<!-- {kind} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)


def python(hub: RunningHub, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code.replace("127.0.0.1:8080", hub.address)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def services(hub: RunningHub) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(python(hub, code)) for code in blocks("service")]
        yield
        for process in running:
            process.kill()


def test_in_python(hub: RunningHub, services: None) -> None:
    expected = (
        "b'HELLO'\nnobody answered from nobody within 0.5 s\n",
        "b'HELLO'\n['upper']\n",
        "nobody sells coffee\n",
    )
    for code, printed in zip(blocks("caller"), expected, strict=True):
        with python(hub, code) as caller:
            assert caller.communicate(timeout=30) == (printed, "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_with_curl(hub: RunningHub) -> None:
    for block in blocks("curl"):
        for part in block.split("$ ")[1:]:
            command, _, shown = part.partition("\n")
            done = subprocess.run(
                ["bash", "-c", command.replace("127.0.0.1:8080", hub.address)],
                capture_output=True, text=True, timeout=40,
            )  # fmt: skip
            assert done.stdout.strip() == shown.strip(), command
