"""`hubbub pipeline` as a user runs it: a process, its words and its exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from hubbub.cli.history import _time
from hubbub.cli.pipeline import _patient, app, picture
from hubbub.cli.tables import MORE, PROMPT, statements
from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.run import Report, _let_end
from tests.spark.fixtures import Writer, publish

COMMAND = (sys.executable, "-m", "hubbub", "pipeline")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=110)


class Terminal:
    """A command in a terminal of its own, where Ctrl-C can be typed."""

    def __init__(self, *arguments: str) -> None:
        self.process, self._terminal = pty.fork()
        if self.process == 0:
            os.execv(COMMAND[0], [*COMMAND, *arguments])
        self.shown = ""
        self._at = 0
        self._limit = threading.Timer(200, os.kill, (self.process, signal.SIGKILL))
        self._limit.start()

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, words: str) -> None:
        """Wait until it shows these words, after those waited for before."""
        while words not in self.shown[self._at :]:
            assert self._more(), self.shown
        self._at = self.shown.index(words, self._at) + len(words)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        while self._more():
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self._limit.cancel()
        os.close(self._terminal)
        return code

    def _more(self) -> bool:
        try:
            read = os.read(self._terminal, 65536)
        except OSError:  # so ends what a terminal shows
            return False
        self.shown += read.decode().replace("\r\n", "\n")
        return bool(read)


def test_without_tables_sql_says_what_to_do(tmp_path: Path) -> None:
    ran = run("sql", "select 1", "--data", str(tmp_path))
    assert ran.returncode == 2
    assert "run `hubbub pipeline run` first" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)  # two starts of Spark, on a machine that may be busy
def test_run_until_sigterm_then_ask(quick_java: None, writer: Writer, tmp_path: Path) -> None:
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
    assert lines[4].split()[:3] == ["traffic", "0", "1"]  # its minute is not over
    at_the_prompt(Terminal("sql", "--data", str(data), "--format", "csv"))


def at_the_prompt(sql: Terminal) -> None:
    """Questions, a wrong one, and Ctrl-C: in the midst of an answer, of a line, of a statement."""

    def ask(typed: str, shown: str) -> None:
        sql.until(PROMPT)
        sql.type(typed)
        sql.until(shown)

    ask("select seq, value from readings\n  order by seq;\n", "seq,value\n1,1.0\n2,2.0\n")
    ask("selec 1;\n", "[PARSE_SYNTAX_ERROR]")
    ask("\\d\n", "traffic, traffic_open  ")
    ask("\\d traffic_open;\n", "beginning of the minute")
    ask("\\d none\n", "there is no table 'none'")
    ask("select max(id) from range(1000000000000000);\n", ";\n")
    time.sleep(1)  # by then Spark is at work
    sql.type("\x03")
    ask("select 40 + 2 as answer;\n", "answer\n42\n")
    for half, shown in (("half a line", "line"), ("half a\n", MORE)):
        ask(half, shown)
        # Python's readline looks for signals, then waits for a key: one that comes between the
        # two would wait for the key as well.
        time.sleep(0.5)
        sql.type("\x03")
    sql.until(PROMPT)
    sql.type("\x04")
    assert sql.end() == 0 and "Traceback" not in sql.shown, sql.shown


def test_a_statement_ends_with_a_line_or_with_everything() -> None:
    said = ["select 1;", "", "select ';',", "  2 ;", "select 3"]
    assert list(statements(said)) == ["select 1", "select ';',\n  2", "select 3"]


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
        (("sql", "drop table messages"), "DROP: the tables are only asked here"),
        (("sql", " -- all\n/* \n */ create or replace table a as select 1"), "CREATE: the tables"),
        (("sql", "select 1", "--out", "/none/a.csv"), "there is no directory /none"),
        (("sql", "select 1", "--plot", "none/a.png"), "there is no directory none"),
        (("replay", "--speed", "0"), "--speed: expected"),
        (("replay", "--topics", "a/#/b"), "# must be the last level in 'a/#/b'"),
        (("replay", "--since", "yesterday"), "--since: expected 90s, 30m, 1h, 7d or a time such"),
        (("replay", "--until", "1y"), "--until: expected 90s, 30m, 1h, 7d or a time such as"),
        (("compact", "--from", "s3a://a"), "--to NEW-URL"),
        (("run", "--data", "/none"), "there is no journal"),
        (("run", "--data", ""), '--data "" names no directory'),
        (("run", "--keep", "readings=-1"), "TABLE=DAYS, such as readings=90, got 'readings=-1'"),
        (("run", "--keep", "readings=9", "--to", "file:///none"), "does not reach --to"),
        (("run", "--anew", "nothing"), "there is no table 'nothing': expected of messages"),
        (("run", "--anew", "calls", "--tables", "traffic"), "does not write it (--tables)"),
        (("status", "--data", "/none"), "run `hubbub pipeline run` first"),
        (("backfill", "readings", "--data", "/none"), "run `hubbub pipeline run` first"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: tuple[str, ...], complaint: str) -> None:
    """In this process: these are seen before anything is started."""
    with pytest.raises((SettingError, DirectoryError), match=re.escape(complaint)):
        app([*words], standalone_mode=False)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("", ""),
        ("5m", "2026-01-31 11:55:00+00:00"),
        ("7d", "2026-01-24 12:00:00+00:00"),
        ("999999999d", "1970-01-01 00:00:00.000001+00:00"),
        ("2026-01-31", "2026-01-31 00:00:00+00:00"),
        ("2026-01-31 12:00", "2026-01-31 12:00:00+00:00"),
        ("2026-01-31T12:00:00.25+02:00", "2026-01-31 10:00:00.250000+00:00"),
    ],
)
def test_what_is_replayed_is_said_as_in_history(said: str, read: str) -> None:
    now = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1_000_000)
    assert _time("--since", said, now) == read


def test_rules_that_do_nothing_are_said_and_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("lateness = 5\n")
    for words in (("run", "--data", "/none"), ("backfill", "traffic", "--data", "/none")):
        with pytest.raises((SettingError, DirectoryError)):
            app([*words, "--rules", str(rules)], standalone_mode=False)
        said = capsys.readouterr().err
        assert said.startswith(f"{rules}: lateness does nothing: without event_time no message")


def test_the_live_picture() -> None:
    took = {"messages": 0.5, "readings": 1.0}
    reports = [Report(n, n * 10, 100, 90, 7, 2.0, took) for n in range(3)]
    console = Console(width=100, file=io.StringIO())
    console.print(picture(reports))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "batch 2, up to row 20: 7 rows behind, 50 rows/s" in said
    assert "50 %" in said


@pytest.mark.spark
def test_a_wrong_query_is_said_in_one_line(
    spark: SparkSession,
    writer: Writer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hubbub.spark.start.end", lambda spark: None)  # others use it too
    data = tmp_path / "data"
    layout = Layout(data)
    layout.prepare(("messages", "readings", "traffic", "calls"))
    (layout.root / "_progress.json").write_text(
        '{"version": 2, "batch_id": -1, "seq": 0, "time": "", "group": 0, "since": "", "rows": 0}'
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1 as one;\nselec 1;\nselect 2"))
    for asked in (["selec 1"], ["--format", "csv"]):
        with pytest.raises(SettingError, match=r"^\[PARSE_SYNTAX_ERROR\][^\n]+$"):
            app(["sql", *asked, "--data", str(data)], standalone_mode=False)
    assert capsys.readouterr().out == "one\n1\n"
    named = "create or replace temp view named as select 1;\ndrop view named"
    monkeypatch.setattr(sys, "stdin", io.StringIO(named))
    with pytest.raises(SettingError, match="^DROP: "):
        app(["sql", "--data", str(data)], standalone_mode=False)
    assert capsys.readouterr().out == "done\n"
    for name in ("a.json", "a.parquet"):
        app(
            ["sql", "select 1 as one", "--data", str(data), "--out", str(tmp_path / name)],
            standalone_mode=False,
        )
    assert json.loads((tmp_path / "a.json").read_text()) == [{"one": 1}]
    assert duckdb.connect().execute(f"from '{tmp_path}/a.parquet'").fetchall() == [(1,)]


def test_ctrl_c_lets_the_batch_at_work_end_the_second_one_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = threading.Event()
    told = _patient(stop, 15.0)
    told(signal.SIGINT, None)
    assert stop.is_set()
    assert capsys.readouterr().out.startswith("Stopping after this batch (15 s at most)")
    with pytest.raises(KeyboardInterrupt):
        told(signal.SIGINT, None)


@pytest.mark.parametrize(
    ("active", "looks"),
    [(True, [True, False, True]), (False, [True, False])],  # one more ended unseen before
)
def test_so_does_a_batch_in_another_process(active: bool, looks: list[bool]) -> None:
    query: Any = SimpleNamespace(isActive=True, status={"isTriggerActive": active})
    batches: Any = SimpleNamespace(look=lambda: looks.pop(0))
    _let_end(query, batches)
    assert not looks
