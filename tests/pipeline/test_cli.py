"""`hubbub pipeline` as a user runs it: a process, its words and its exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubbub.pipeline.layout import Layout
from tests.spark.fixtures import Writer, publish

COMMAND = (sys.executable, "-m", "hubbub", "pipeline")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=110)


def test_without_tables_sql_says_what_to_do(tmp_path: Path) -> None:
    ran = run("sql", "select 1", "--data", str(tmp_path))
    assert ran.returncode == 2
    assert "run `hubbub pipeline run` first" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.spark
@pytest.mark.slow
def test_run_until_sigterm_then_ask(writer: Writer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    writer.write(publish(0, "a", b"1"), publish(1, "a", b"2"))
    process = subprocess.Popen(
        [*COMMAND, "run", "--data", str(data), "--every", "0.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 100
        while Layout(data).progress() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert "batch 0: 2 rows, 2 messages, up to seq 2, 0 behind" in out
    ran = run("sql", "select seq, value from readings order by seq", "--data", str(data),
              "--format", "csv")  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("seq,value\n1,1.0\n2,2.0\n", "")


@pytest.mark.spark
@pytest.mark.slow
def test_a_wrong_query_is_one_line(writer: Writer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    layout = Layout(data)
    layout.prepare(("messages", "readings", "traffic", "calls"))
    (layout.root / "_progress.json").write_text(
        '{"version": 2, "batch_id": -1, "seq": 0, "time": "", "group": 0, "since": "", "rows": 0}'
    )
    ran = run("sql", "selec 1", "--data", str(data))
    assert ran.returncode == 2
    assert ran.stderr.startswith("hubbub: [PARSE_SYNTAX_ERROR]")
    assert len(ran.stderr.strip().splitlines()) == 1
