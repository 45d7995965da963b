"""`hubbub journal`: what it prints, where it leaves, and with which exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from hubbub.cli import main
from hubbub.journal.segments import Directory
from tests.journal.history import written
from tests.journal.rows import payloads
from tests.process import StartHub


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def journal(*words: object) -> Done:
    """The command, in this process: a dozen of its own take longer than all they do."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        with patch.object(sys, "argv", ["hubbub", "journal", *map(str, words)]):
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
    return Done(code, *(one.buffer.getvalue().decode() for one in (out, err)))


def test_a_round_trip_of_everything(tmp_path: Path) -> None:
    data, copy, again = written(tmp_path / "data"), tmp_path / "copy", tmp_path / "again"
    said = journal("info", "--data", data).stdout
    assert "rows 1 to 18, not in use" in said and "log/00000000000000000015.rows" in said
    said = f"rows up to 18 are in {copy}\nall is right\n"
    assert journal("backup", copy, "--data", data).stdout == said
    assert journal("verify", "--data", copy).stdout.endswith("all is right\n")
    assert journal("restore", copy, "--data", again).returncode == 0
    exported = journal("export", "-", "--data", again, "--after", 15, "--upto", 16)
    (line,) = exported.stdout.splitlines()
    assert json.loads(line)["payload"] == "nobody needs this"
    assert journal("export", tmp_path / "rows", "--data", again).returncode == 0
    imported = journal("import", tmp_path / "rows", "--data", tmp_path / "new")
    assert imported.stdout == f"rows 1 to 18 are in {tmp_path / 'new'}\n"
    assert journal("compact", "--data", tmp_path / "new").returncode == 0
    assert payloads(tmp_path / "new") == payloads(data)


def test_damage_is_told_by_the_exit_code(tmp_path: Path) -> None:
    path = Directory(written(tmp_path)).segment(15)
    path.write_bytes(path.read_bytes().replace(b"nobody", b"nobodY"))
    found = journal("verify", "--data", tmp_path)
    assert found.returncode == 1
    assert "wrong: 00000000000000000015.rows: " in found.stdout
    refused = journal("restore", tmp_path, "--data", tmp_path / "again")
    assert refused.returncode == 1 and "is damaged" in refused.stderr


def test_no_journal(tmp_path: Path) -> None:
    for words in (("info",), ("verify",), ("export", "-"), ("compact",)):
        found = journal(*words, "--data", tmp_path)
        assert found.returncode == 2 and "holds no journal" in found.stderr, words
    found = journal("info", "--data", "")
    assert found.returncode == 2 and found.stderr == 'hubbub: --data "" names no directory\n'


def test_a_failed_export_leaves_the_file(tmp_path: Path) -> None:
    data, file = written(tmp_path / "data"), tmp_path / "rows"
    assert journal("export", file, "--data", data).returncode == 0
    file.chmod(0o600)
    good = file.read_bytes()
    failed = journal("export", file, "--data", data, "--upto", 99999999)
    assert failed.returncode == 1 and file.read_bytes() == good
    assert journal("export", file, "--data", data, "--upto", 3).returncode == 0
    assert len(file.read_bytes().splitlines()) == 3 and file.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "rows"]


def test_the_name_of_the_file_says_what_it_is(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    for name, words, begins in (
        ("a.arrow", (), b"\xff"), ("a.arrows", (), b"\xff"), ("a.jsonl", (), b"{"),
        ("b.arrow", ("--format", "jsonl"), b"{"),
    ):  # fmt: skip
        assert journal("export", tmp_path / name, "--data", data, *words).returncode == 0
        assert (tmp_path / name).read_bytes()[:1] == begins, name
    wrong = journal("export", tmp_path / "a.csv", "--data", data)
    assert wrong.returncode == 2 and ".jsonl" in wrong.stderr and not (tmp_path / "a.csv").exists()


def test_no_row_is_said_so(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    for words in (("--after", 3, "--upto", 3), ("--after", 99_999)):
        none = journal("export", "-", "--data", data, *words)
        after = f"0 rows, since there is none after {words[1]}\n"
        assert (none.returncode, none.stdout, none.stderr) == (0, "", after)
    wrong = journal("export", "-", "--data", data, "--after", 50, "--upto", 10)
    assert wrong.returncode == 2 and "got 10 and 50" in wrong.stderr


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_from_one_pipe_into_the_other(tmp_path: Path, form: str) -> None:
    data = written(tmp_path / "data")
    words = (sys.executable, "-m", "hubbub", "journal")
    first = subprocess.Popen(
        (*words, "export", "-", "--data", data, "--format", form), stdout=subprocess.PIPE
    )
    second = subprocess.run(
        (*words, "import", "-", "--data", tmp_path / "new"), stdin=first.stdout, timeout=60
    )
    assert first.stdout is not None
    first.stdout.close()
    assert (first.wait(timeout=60), second.returncode) == (0, 0)
    assert payloads(tmp_path / "new") == payloads(data)


def test_a_wrong_row_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"seq": "1", "kind": "publish", "topic": "a", "qos": 300}\n')
    refused = journal("import", tmp_path / "rows", "--data", tmp_path / "new")
    assert refused.returncode == 1 and not (tmp_path / "new").exists()
    assert "row 1, column qos: expected 0, 1 or 2, got 300" in " ".join(refused.stderr.split())


@pytest.mark.interop
def test_beside_a_running_hub(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub()
    assert "used by process" in journal("info", "--data", hub.data).stdout
    assert journal("backup", tmp_path / "copy", "--data", hub.data).returncode == 0
    assert journal("verify", "--data", hub.data).returncode == 0
    refused = journal("compact", "--data", hub.data)
    assert refused.returncode == 2 and "is used by the hub" in refused.stderr
