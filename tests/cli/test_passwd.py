"""`hubbub passwd`: what it writes, prints and refuses."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.auth.passwords import Passwords
from hubbub.config.sources import load
from tests.command import hubbub
from tests.process import StartHub


def passwd(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return hubbub("passwd", *words, stdin=stdin)


def test_add_list_and_remove(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    added = passwd("add", file, "ann", "--stdin", stdin="se cret\n")
    assert (added.returncode, added.stdout, added.stderr) == (0, "", "")
    assert passwd("add", file, "bob", "--stdin", "--no-scram", stdin="two").returncode == 0
    assert Passwords(Path(file)).verify("ann", b"se cret")
    assert passwd("list", file).stdout == "ann  password, SCRAM-SHA-256\nbob  password\n"
    assert passwd("remove", file, "bob").returncode == 0
    assert passwd("list", file).stdout == "ann  password, SCRAM-SHA-256\n"


def test_a_token_is_a_password_with_its_user(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    token = passwd("add", file, "spark", "--token").stdout.strip()
    user, _, secret = token.rpartition(".")
    assert user == "spark" and len(secret) == 32
    assert Passwords(Path(file)).verify(user, secret.encode())


def test_what_it_refuses_in_one_line(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    for words, hint in (
        (("add", file, "ann"), "no terminal"),
        (("add", file, "ann", "--stdin"), "empty password"),
        (("add", file, "a:b", "--token"), "cannot be a user"),
        (("list", file), "cannot read"),
        (("remove", file, "ann"), "cannot read"),
    ):
        done = passwd(*words)
        assert done.returncode == 2 and hint in done.stderr
        assert done.stderr.count("\n") == 1
    assert not Path(file).exists()


def test_ctrl_c_at_the_prompt_is_130_as_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "users"
    command = [sys.executable, "-m", "hubbub", "passwd", "add", str(file), "ann"]
    ours, theirs = pty.openpty()
    asking = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    said = b""
    while b"Password of ann" not in said:
        said += os.read(ours, 1000)
    asking.send_signal(signal.SIGINT)
    assert asking.wait(30) == 130
    os.close(ours)
    os.close(theirs)
    assert not file.exists()


def test_a_password_that_scram_cannot_use_is_told(tmp_path: Path) -> None:
    done = passwd("add", str(tmp_path / "users"), "ann", "--stdin", stdin="a\x07b\n")
    assert done.returncode == 0 and "cannot be used with SCRAM-SHA-256" in done.stderr


@pytest.mark.interop
def test_a_hub_with_users_listens_where_everybody_is(start_hub: StartHub, tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    passwd("add", file, "ann", "--stdin", stdin="p:w\n")
    hub = start_hub("--set", f"password_file={file}", "--set", "journal.record=none")
    url = hub.url("http")
    for where, code, hint in (
        (url, 1, "401: clients without credentials"),
        (url.replace("//", "//ann:wrong@"), 1, "401: wrong user name or password"),
        (url.replace("//", "//ann:p%3Aw@"), 0, ""),
    ):
        done = hubbub("status", "--url", where, "--json")
        assert done.returncode == code and hint in done.stderr
        assert "wrong@" not in done.stderr


def test_a_public_address_needs_users(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    passwd("add", file, "ann", "--token")
    (listener,) = load(None, ["listen=0.0.0.0:0", f"password_file={file}"]).listeners()
    assert listener.allow_anonymous is False
