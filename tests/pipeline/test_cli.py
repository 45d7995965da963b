"""`hubbub pipeline` as a user runs it: a process, its words and its exit code."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from hubbub.cli.pipeline import app, picture
from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.run import Report
from tests.spark.fixtures import Writer, publish

COMMAND = (sys.executable, "-m", "hubbub", "pipeline")


def run(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=110, input=typed
    )


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
    said = json.loads(run("status", "--data", str(data), "--json").stdout)
    assert (said["seq"], said["behind"], said["writer"]) == (2, 0, None)
    lines = run("tables", "--data", str(data)).stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["messages", "2", "1"],
        ["readings", "2", "1"],
    ]
    asked = "select seq, value from readings\n  order by seq;\nselec 1;\n\\d\n\\q\n"
    ran = run("sql", "--data", str(data), "--format", "csv", typed=asked)
    assert "seq,value\n1,1.0\n2,2.0\n" in ran.stdout
    assert "traffic_open" in ran.stdout
    assert ran.stderr.startswith("[PARSE_SYNTAX_ERROR]") and "Traceback" not in ran.stderr
    assert ran.returncode == 0


def test_what_a_table_is() -> None:
    said = run("tables", "readings").stdout.splitlines()
    assert said[0] == "readings: one row a value in a message: seq, path"
    assert any(line.split()[:2] == ["value", "double"] for line in said)
    ran = run("tables", "reading")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("sql", "select 1", "--format", "parquet"), "--out FILE"),
        (("replay", "--speed", "0"), "--speed: expected"),
        (("compact", "--from", "s3a://a"), "--to NEW-URL"),
        (("run", "--data", "/none"), "there is no journal"),
        (("status", "--data", "/none"), "run `hubbub pipeline run` first"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: tuple[str, ...], complaint: str) -> None:
    """In this process: these are seen before anything is started."""
    with pytest.raises((SettingError, DirectoryError), match=re.escape(complaint)):
        app([*words], standalone_mode=False)


def test_the_live_picture() -> None:
    took = {"messages": 0.5, "readings": 1.0}
    reports = [Report(n, n * 10, 100, 90, 7, 2.0, took) for n in range(3)]
    console = Console(width=100, file=io.StringIO())
    console.print(picture(reports))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "batch 2, up to row 20: 7 rows behind, 50 rows/s" in said
    assert "50 %" in said


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
