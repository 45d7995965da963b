"""Every command ends with one of the codes that docs/commands.md names."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from hubbub import cli
from hubbub.cli import app
from hubbub.journal.segments import Directory
from tests.journal.history import written
from tests.journal.rows import bad_blocks
from tests.process import ROOT, RunningHub
from tests.test_docs import leaves

COMMANDS = dict(leaves(typer.main.get_command(app), "hubbub"))
NOBODY = "127.0.0.1:1"
NOWHERE = "--data nowhere"

# What each is asked, and its code. HUB is a hub that runs, DATA the journal of one that does not.
ASKED: dict[str, list[tuple[str, int]]] = {
    "serve": [("--set no.such=1", 2), ("--listen nowhere", 2), ("--config nowhere", 2)],
    "config": [("", 0)],
    "doctor": [("--set no.such=1", 2)],
    "status": [("--url http://HUB", 0), (f"--url http://{NOBODY}", 1)],
    "top": [("--url http://HUB -n 1 --interval 0.1", 0), (f"--url http://{NOBODY} -n 1", 1)],
    "ls": [
        ("sessions --url http://HUB", 0), (f"sessions --url http://{NOBODY}", 1), ("cats", 2),
    ],
    "end": [("queue nothing --url http://HUB", 1), (f"queue a --url http://{NOBODY}", 1)],
    "bridge": [
        ("cut-off nothing --url http://HUB", 1), (f"resume a --url http://{NOBODY}", 1),
        ("burn a --url http://HUB", 2),
    ],
    "requeue": [("nothing --url http://HUB", 1), (f"a --url http://{NOBODY}", 1)],
    "refusals": [("--url http://HUB", 0), (f"--url http://{NOBODY}", 1)],
    "remove-id": [("nothing --url http://HUB", 1), (f"a --url http://{NOBODY}", 1)],
    "pub": [
        ("a -m x --url mqtt://HUB", 0), (f"a -m x --url mqtt://{NOBODY}", 1),
        ("a/# -m x --url mqtt://HUB", 2), ("a -m x --url cats://HUB", 2),
        ("a -f nowhere --url mqtt://HUB", 2), ("bytes -m \udcff --url mqtt://HUB", 0),
        ("'a\x07' -q 1 -m x --url mqtt://HUB", 2), ("\udcff -m x --url mqtt://HUB", 2),
    ],
    "sub": [
        ("a -W 0.1 --url mqtt://HUB", 27), (f"a --url mqtt://{NOBODY}", 1),
        ("a/#/b --url mqtt://HUB", 2), ("a -u \udcff -P \udcff --url mqtt://HUB", 2),
    ],
    "rr": [
        ("a -e b -m x -W 0.1 --url mqtt://HUB", 27), (f"a -e b -m x --url mqtt://{NOBODY}", 1),
    ],
    "probe": [("--url mqtt://HUB", 0), (f"--url mqtt://{NOBODY}", 1)],
    "bench": [("-s 0.1 --url mqtt://HUB", 0), (f"-s 0.1 --url mqtt://{NOBODY}", 1)],
    "history": [("a --url http://HUB", 0), (f"a --url http://{NOBODY}", 1)],
    "switch list": [("--url http://HUB", 0), (f"--url http://{NOBODY}", 1)],
    "switch call": [(f"q --body x --url http://{NOBODY}", 1), ("q --file nowhere", 2)],
    "switch serve": [(f"q --program /bin/cat --url http://{NOBODY}", 1)],
    "switch diagnostics": [("--url http://HUB", 0), (f"--url http://{NOBODY}", 1)],
    "switch create": [("q --url http://HUB", 0), (f"q --url http://{NOBODY}", 1)],
    "switch ack": [("q 99 --url http://HUB", 1), (f"q 1 --url http://{NOBODY}", 1)],
    "switch destroy": [("q --url http://HUB", 0), (f"q --url http://{NOBODY}", 1)],
    "switch tail": [(f"--url http://{NOBODY}", 1)],
    "switch mscgen": [(f"--url http://{NOBODY}", 1)],
    "switch shutdown": [(f"--url http://{NOBODY}", 1)],
    "pipeline run": [("--data nowhere --url http://HUB", 2)],
    "pipeline status": [(NOWHERE, 2)],
    "pipeline sql": [(f"'SELECT 1' {NOWHERE}", 2)],
    "pipeline tables": [(NOWHERE, 2)],
    "pipeline replay": [(NOWHERE, 2)],
    "pipeline backfill": [(NOWHERE, 2)],
    "pipeline infer": [(NOWHERE, 2)],
    "pipeline compact": [(NOWHERE, 2)],
    "journal info": [("--data DATA", 0), (NOWHERE, 2)],
    "journal hold": [("--data DATA", 0), (NOWHERE, 2)],
    "journal verify": [("--data DATA", 0), (NOWHERE, 2)],
    "journal scrub": [("--data DATA", 0), (NOWHERE, 2)],
    "journal repair": [("--data DATA", 0), (NOWHERE, 2)],
    "journal backup": [("copy --data DATA", 0), ("copy --data DATA", 2), (f"new {NOWHERE}", 2)],
    "journal restore": [("copy --data restored", 0), ("nowhere --data new", 2)],
    "journal export": [
        ("rows --data DATA", 0), (f"rows {NOWHERE}", 2), ("some --data DATA --after 5 --upto 2", 2),
    ],
    "journal import": [
        ("rows --data imported", 0), ("rows --data imported", 2), ("nowhere --data new", 2),
        (". --data new", 2), ("rows --data /proc/new", 2),
    ],
    "journal compact": [("--data DATA", 0), (NOWHERE, 2)],
    "passwd add": [("users ann --token", 0), ("nowhere/users ann --token", 2)],
    "passwd list": [("users", 0), ("nowhere", 2)],
    "passwd remove": [("users ann", 0), ("users ann", 2)],
    "acl check": [("ann publish a --file acl", 0), ("bob publish a --file acl", 1),
                  ("ann publish a --file nowhere", 2)],
}  # fmt: skip


def test_none_is_forgotten() -> None:
    assert {name.removeprefix("hubbub ") for name in COMMANDS} == set(ASKED)


@pytest.mark.interop
def test_every_command(
    hub: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    page = (ROOT / "docs/commands.md").read_text("utf-8").partition("## hubbub\n")[0]
    documented = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", page)}
    data = written(tmp_path / "kept")
    (tmp_path / "acl").write_text("user ann\ntopic readwrite #\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HUBBUB_URL", raising=False)
    monkeypatch.setattr(logging.root, "handlers", [])  # commands add theirs
    for name, asked in ASKED.items():
        for words, code in [*asked, ("--no-such-option", 2)]:
            said = words.replace("HUB", hub.address).replace("DATA", str(data))
            monkeypatch.setattr(sys, "argv", ["hubbub", *name.split(), *shlex.split(said)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            complaint = capsys.readouterr().err
            found = 0 if ended.value.code is None else ended.value.code
            assert found == code, (name, said, complaint)
            assert found in documented
            assert "Traceback" not in complaint, (name, said)


@pytest.mark.parametrize("words", ["verify", "export -", "backup copy"])
def test_what_cannot_be_read_now_is_3(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = written(tmp_path / "kept")
    bad_blocks(monkeypatch, Directory(data).segment(15), 0)
    words = f"hubbub journal {words} --data {data}"
    monkeypatch.setattr(sys, "argv", words.split())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
