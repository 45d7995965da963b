"""`hubbub serve` as an operator meets it: what it prints, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from hubbub.auth.passwords import add_user
from hubbub.cli.asked import Asked
from hubbub.errors import HubbubError
from hubbub.journal.table import Table
from tests.command import hubbub
from tests.ports import free_port
from tests.process import ROOT, RunningHub, StartHub

pytestmark = pytest.mark.interop


def refused(*options: str, cwd: Path) -> str:
    """Run `hubbub serve`, which has to end with code 2, and return its one line on stderr."""
    done = hubbub("serve", *options, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_it_says_where_it_listens_and_where_the_data_is(hub: RunningHub) -> None:
    assert hub.process.stdout is not None
    rest = ""
    while "hubbub status" not in rest:
        rest += hub.process.stdout.readline()
    assert str(hub.data) in rest
    assert f"--url mqtt://{hub.address}" in rest
    assert hub.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(start_hub: StartHub, number: int, tmp_path: Path) -> None:
    assert start_hub("--set", "journal.record=none").stop(number) == 0
    assert (tmp_path / "hub.log").read_text().endswith(" I hubbub: stopped\n")


LAST: Final = """
import atexit, sys
from pathlib import Path
atexit.register(Path("last").touch)
sys.argv = ["hubbub", "serve", "--listen", "127.0.0.1:0", *sys.argv[1:]]
from hubbub.__main__ import main
main()
"""
APP: Final = "async def app(scope, receive, send): pass"


@pytest.mark.parametrize("options", [(), ("--app", "own:app")])
def test_it_ends_at_once_unless_an_application_has_something_to_do(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """To let go of a million things takes seconds, for which the next start waits."""
    (tmp_path / "own.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-c", LAST, *options],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "hubbub status" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "last").exists() == (options != ())


def test_it_starts_again_on_its_own_directory(start_hub: StartHub) -> None:
    assert start_hub().stop() == 0
    assert start_hub().stop() == 0


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("--listen", address, cwd=tmp_path)
    assert address in line
    assert "in use" in line
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_what_it_says_to_try_can_be_typed(hub: RunningHub) -> None:
    assert hub.process.stdout is not None
    lines = iter(hub.process.stdout.readline, "")
    command = next(line for line in lines if " status --url" in line)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert hub.address in done.stdout and "compiled" in done.stdout


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("--listen", "127.0.0.1:0", "--data", "file/data", cwd=tmp_path)
    assert "file/data" in line


def test_a_directory_that_another_hub_holds(hub: RunningHub, tmp_path: Path) -> None:
    line = refused("--listen", "127.0.0.1:0", "--data", str(hub.data), cwd=tmp_path)
    assert str(hub.data) in line
    assert str(hub.process.pid) in line


def test_a_bad_setting(tmp_path: Path) -> None:
    assert "did you mean journal.record?" in refused("--set", "journal.recrod=all", cwd=tmp_path)


def test_a_bad_protocol(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text('listen = []\n[[listener]]\naddress = "127.0.0.1:0"\nprotocols = ["amqp"]\n')
    assert "amqp" in refused("--config", "hub.toml", cwd=tmp_path)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_below_a_directory_that_may_not_be_entered(tmp_path: Path) -> None:
    """What may be done everywhere is taken from who is root here."""
    powers = "-dac_override,-dac_read_search"
    under = ["setpriv", "--bounding-set", powers, "--inh-caps", powers] * (os.geteuid() == 0)

    def say(*words: str) -> tuple[int, str, str]:
        command = [*under, sys.executable, "-m", "hubbub", *words, "--data", "shut/data"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    (tmp_path / "shut").mkdir(0)
    try:
        for more in ((), ("--processes", "2")):
            code, _, line = say("serve", "--listen", "127.0.0.1:0", *more)
            assert code == 2 and line.startswith("hubbub: cannot write to shut/data: Permission")
            assert line.endswith("make it writable or choose another directory with --data\n")
        for verb in ("info", "verify"):
            code, _, line = say("journal", verb)
            assert code == 3 and "Permission denied; make it readable for this user" in line
        code, found, _ = say("doctor")
        assert code == 1 and re.search(r"bad +disk", found) and "Permission" in found, found
    finally:
        (tmp_path / "shut").chmod(0o700)


def test_pages_beside_a_mosquitto_conf(start_hub: StartHub, tmp_path: Path) -> None:
    port = free_port()
    add_user(tmp_path / "users", "ann", b"secret")
    (tmp_path / "acl").write_text("user ann\ntopic read $SYS/#\n")
    (tmp_path / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\npassword_file {tmp_path}/users\nacl_file {tmp_path}/acl\n"
    )
    hub = start_hub("-c", str(tmp_path / "mosquitto.conf"))  # and --listen
    with pytest.raises(HubbubError, match=r"404: there are no web pages here: .* --listen 127"):
        Asked(f"http://127.0.0.1:{port}").fetch("status")
    with pytest.raises(HubbubError, match="401"):
        Asked(hub.url("http")).fetch("status")
    assert Asked(hub.url("http").replace("://", "://ann:secret@")).fetch("status")["clients"] == []


def test_a_public_address_without_credentials(tmp_path: Path) -> None:
    line = refused("--listen", "0.0.0.0:0", cwd=tmp_path)
    assert "--set allow_anonymous=true" in line


def test_a_bad_configuration_leaves_the_running_one(start_hub: StartHub, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("[session]\ninflight = 5\n")
    hub = start_hub("--config", str(file))
    file.write_text("[session]\ninflight = 0\n")
    hub.process.send_signal(signal.SIGHUP)
    log = tmp_path / "hub.log"
    while "session.inflight = 0 cannot be used" not in log.read_text():
        assert hub.process.poll() is None
    assert hub.stop() == 0


@pytest.mark.parametrize("setting, line", [
    ("listener", '[[listener]]\naddress = "127.0.0.1:1"'), ("hosts", 'hosts = ["hub.example.org"]'),
    ("queue.socket", 'queue.socket = "/nowhere/switch"'), ("log.format", 'log.format = "json"'),
    ("journal.segment_bytes", "journal.segment_bytes = 33_554_432"),
])  # fmt: skip
def test_what_needs_a_restart_is_said_until_the_file_says_what_runs(
    setting: str, line: str, start_hub: StartHub, tmp_path: Path
) -> None:
    file, log = tmp_path / "hub.toml", tmp_path / "hub.log"
    taken = "journal.exclude = ['noise/#']\n"  # of the same section, and needs none
    file.write_text("")
    hub = start_hub("--config", str(file))
    told = ""
    for text, wanted in ((taken + line, True), (taken + line, True), (taken, False)):
        file.write_text(text)
        hub.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while "the configuration was read again" not in (new := log.read_text()[len(told) :]):
            assert hub.process.poll() is None and time.monotonic() < deadline, new
            time.sleep(0.02)
        told += new
        assert (f"{setting} changed; that needs a restart" in new) == wanted, new
        assert ("restart" in new) == wanted, new
    assert hub.stop() == 0


def test_what_could_not_be_read_again_is_told_as_that(start_hub: StartHub, tmp_path: Path) -> None:
    file, acl = tmp_path / "hub.toml", tmp_path / "acl"
    good = f'acl_file = "{acl}"\nallow_anonymous = true\n[log]\nlevel = "info"\n'
    file.write_text(good)
    acl.write_text("topic readwrite #\n")
    hub = start_hub("--config", str(file))

    def told(wanted: str) -> str:
        hub.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while wanted not in (text := (tmp_path / "hub.log").read_text()):
            assert hub.process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.02)
        return text

    file.write_text("sesion = 1\n" + good)
    told(f"read the configuration again: {file}: there is no setting sesion")
    file.write_text(good)
    acl.write_text("topc read #\n")
    text = told("read the configuration again: " + str(acl))
    assert "configuration again: done" not in text and "was read again" not in text
    acl.write_text("topic readwrite #\n")
    told("the configuration was read again")
    assert hub.stop() == 0
    table = Table(str(hub.data))
    rows = [row for batch in table.read(0, table.committed()) for row in batch.to_pylist()]
    said = [json.loads(row["properties"]) for row in rows if row["kind"] == "managed"]
    troubles = [one.get("trouble", "") for one in said]
    assert len(troubles) == 3 and "sesion" in troubles[0] and str(acl) in troubles[1]
    assert troubles[2] == ""
