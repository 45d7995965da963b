"""`make run`, shortened: every kind of real input reaches the tables, and so does a stranger's."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hubbub.journal.lock import Lock

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("quick_java"),
]


def start(data: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "examples/telemetry/run.py", "--data", str(data), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def stopping() -> Iterator[list[subprocess.Popen[str]]]:
    """Demos to stop in any case; SIGTERM lets a demo stop its own programs."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for demo in running:
        demo.terminate()
        demo.wait(60)


def read_until(demo: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if found := re.search(pattern, seen):
            return found
    raise AssertionError(f"{pattern} did not come:\n{seen}")


def rows(data: Path, query: str) -> list[tuple[Any, ...]]:
    """Ask the Parquet files as a stranger would; a table is written as {name}."""
    tables = {
        name: f"read_parquet('{data}/tables/{name}/**/*.parquet', union_by_name = true)"
        for name in ("messages", "readings", "traffic", "calls")
    }
    return duckdb.connect().execute(query.format(**tables)).fetchall()


def test_telemetry_and_a_message_by_hand_become_rows(
    tmp_path: Path, stopping: list[subprocess.Popen[str]]
) -> None:
    data = tmp_path / "data"
    demo = start(data, "--duration", "5")
    stopping.append(demo)
    port = read_until(demo, r"pub hello -m world --url mqtt://\S+:(\d+)")[1]
    if shutil.which("mosquitto_pub"):
        by_hand = ["mosquitto_pub", "-p", port, "-t", "hello", "-m", "world"]
    else:
        url = f"mqtt://127.0.0.1:{port}"
        by_hand = [sys.executable, "-m", "hubbub", "pub", "hello", "-m", "world", "--url", url]
    subprocess.run(by_hand, check=True, timeout=30)
    output, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, output
    assert "traffic is open until its minute is over" in output
    assert output.splitlines()[-1].startswith("Everything has ended"), "not what it waited for"

    by_protocol = dict(rows(data, "SELECT protocol, count(*) FROM {messages} GROUP BY 1"))
    assert {"smq", "mqtt", "switch"} <= set(by_protocol)
    paths = {path for (path,) in rows(data, "SELECT DISTINCT path FROM {readings}")}
    assert {"percent[0]", "load.1min", "used", "sent"} <= paths
    assert rows(data, "SELECT payload FROM {messages} WHERE topic = 'hello'") == [(b"world",)]
    assert rows(data, "SELECT count(*) FROM {calls} WHERE latency_ms > 0")[0][0] > 0
    seqs = rows(data, "SELECT count(*), count(DISTINCT seq) FROM {messages}")[0]
    assert seqs[0] == seqs[1], "a message became two rows"


def test_a_signal_stops_everything(tmp_path: Path, stopping: list[subprocess.Popen[str]]) -> None:
    demo = start(tmp_path / "data")
    stopping.append(demo)
    read_until(demo, "pub hello")
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, output
    assert not [line for line in processes() if str(tmp_path) in line]


def test_beside_a_hub_that_runs_it_has_a_directory_of_its_own(
    tmp_path: Path, stopping: list[subprocess.Popen[str]]
) -> None:
    """As in the README: `make serve`, and `make run` in another terminal."""
    (tmp_path / "hubbub-data").mkdir()
    with Lock(tmp_path / "hubbub-data" / "lock"):
        demo = subprocess.Popen(
            [sys.executable, "-u", ROOT / "examples" / "telemetry" / "run.py"], cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        stopping.append(demo)
        read_until(demo, f"its journal and the tables are in {tmp_path}/hubbub-data-run")
        read_until(demo, f"pipeline sql .* --data {tmp_path}/hubbub-data-run")
        assert list((tmp_path / "hubbub-data").iterdir()) == [tmp_path / "hubbub-data" / "lock"]


def test_rows_of_earlier_runs_are_said(
    tmp_path: Path, stopping: list[subprocess.Popen[str]]
) -> None:
    first = start(tmp_path / "data")
    stopping.append(first)
    read_until(first, "Starting Spark")
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=240)
    assert "earlier runs" not in output
    again = start(tmp_path / "data")
    stopping.append(again)
    read_until(again, r"\d+ rows of earlier runs are kept there, and the tables count them too;\n")
    read_until(again, rf"to begin anew remove {tmp_path}/data before the next run")


def processes() -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_program_that_dies_is_named(
    tmp_path: Path, stopping: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "data").write_text("a file where the directory should be")
    demo = start(tmp_path / "data")
    stopping.append(demo)
    output, _ = demo.communicate(timeout=240)
    assert demo.returncode == 1
    assert "hub ended with exit code 2" in output
