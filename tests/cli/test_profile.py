"""HUBBUB_URL and profiles: one place for who we are, in the scheme that each command needs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.auth.passwords import add_user
from hubbub.cli import app, profile
from hubbub.cli.history import source_at
from hubbub.cli.profile import HTTP, MQTT, Place, place
from hubbub.config.settings import Journal, Listener, Settings
from hubbub.errors import SettingError
from hubbub.pipeline.run import Source
from hubbub.runtime.node import Node
from hubbub.server import suggestions
from hubbub.web.app import Application
from tests.certificates import Authority
from tests.process import StartHub

FILE = """
[default]
url = "mqtts://plant:8884"
user = "ann"
password = "a@b:c/ü"
token = "sesame"
cafile = "/ca.pem"

[lab]
url = "http://bob@lab"
password_file = "secret.txt"

[wrong]
url = "ftp://lab"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(profile.URL, raising=False)
    monkeypatch.delenv(profile.PROFILE, raising=False)
    profile.path().parent.mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, mode: int = 0o600) -> None:
    profile.path().write_text(text)
    profile.path().chmod(mode)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://u:S3cret@h:x", "mqtt://u:S3cret@h:99999", "mqtt://u:S3cret@[::1",
        " mqtt://u:S3cret@h:x", "mqtt:u:S3cret@h", "u:S3cret@h:1", "foo://u:S3cret@h",
        "mqtt://u:S3c/S3cret@h:1", "mqtt://S3cret:S3c#ret@h", "mqtt://u:S3cret@\u2100:1",
    ],
)  # fmt: skip
def test_no_text_shows_a_password(home: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(profile.URL, url)
    for words in (("pub", "t", "-m", "x"), ("status",)):
        result = CliRunner().invoke(app, words)
        said = result.output + str(result.exception)
        assert result.exit_code and "S3c" not in said, said


def test_nothing_said(home: Path) -> None:
    assert place(HTTP) == Place("http://127.0.0.1:8080")
    assert place(MQTT) == Place("mqtt://127.0.0.1:1883")


@pytest.mark.parametrize(
    "url, http, mqtt",
    [
        ("mqtt://h", "http://h:1883", "mqtt://h"),
        ("mqtts://u:p@h:9/t", "https://u:p@h:9", "mqtts://u:p@h:9/t"),
        ("smq://h", "http://h:8080", "smq://h"),
        ("wss://h", "https://h:443", "wss://h"),
        ("http://[::1]:8080", "http://[::1]:8080", "mqtt://[::1]:8080"),
        ("https://h", "https://h", "mqtts://h:443"),
        ("switch:///a/b", "switch:///a/b", ""),
    ],
)
def test_a_url_in_the_scheme_that_is_needed(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str, http: str, mqtt: str
) -> None:
    write(FILE)
    monkeypatch.setenv(profile.URL, url)
    assert place(HTTP) == Place(http)
    if mqtt:
        assert place(MQTT) == Place(mqtt)


def test_profiles(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(FILE)
    (home / "secret.txt").write_text("hush\n")
    who = "ann:a%40b%3Ac%2F%C3%BC@plant:8884"
    assert place(MQTT) == Place(f"mqtts://{who}", "sesame", "/ca.pem")
    assert place(HTTP) == Place(f"https://{who}", "sesame", "/ca.pem")
    monkeypatch.setenv(profile.PROFILE, "lab")
    assert place(HTTP).url == "http://bob:hush@lab"
    monkeypatch.setenv(profile.URL, "mqtt://elsewhere")
    assert place(HTTP).url == "http://bob:hush@lab", "who names a profile means it"
    for name, words in (("none", "no profile 'none'; it has default"), ("wrong", "expected one")):
        monkeypatch.setenv(profile.PROFILE, name)
        with pytest.raises(SettingError, match=words):
            place(HTTP)


@pytest.mark.parametrize(
    "text, mode, words",
    [
        (FILE, 0o640, "chmod 600"),
        ("[a", 0o600, "profiles.toml"),
        ("[a]\nuser = 'x'", 0o600, "url"),
        ("[a]\nurl = 'http://h'\npasswort = 'x'", 0o600, "passwort"),
    ],
)
def test_a_file_that_cannot_be_used(home: Path, text: str, mode: int, words: str) -> None:
    write(text, mode)
    with pytest.raises(SettingError, match=words):
        place(MQTT)


def test_what_the_banner_suggests() -> None:
    """Only what a port speaks, as it is reached from here."""

    async def ask(*listeners: Listener) -> list[str]:
        settings = Settings(listener=listeners, listen=(), journal=Journal(record="none"))
        node = Node(settings)
        node.web = Application(node)
        async with node:
            return suggestions(node)

    everywhere, mqtt_only, unix = (
        asyncio.run(ask(one))
        for one in (
            Listener(address="0.0.0.0:0", allow_anonymous=True),
            Listener(address="127.0.0.1:0", protocols=("mqtt",)),
            Listener(address="unix:hub.sock"),
        )
    )
    assert len(everywhere) == 4 and all("://127.0.0.1:" in line for line in everywhere[1:])
    assert len(mqtt_only) == 3 and "status" not in "".join(mqtt_only)
    assert unix == []
    [_, export, *rest] = asyncio.run(ask(Listener(address="127.0.0.1:0", allow_anonymous=False)))
    assert "HUBBUB_URL=mqtt://USER:PASSWORD@127.0.0.1:" in export and len(rest) == 3
    assert "--url" not in "".join(rest)


@pytest.mark.interop
def test_the_commands_of_the_banner_work(start_hub: StartHub, tmp_path: Path) -> None:
    """With passwords: none is on a command line, and each of the commands gets in."""
    users, acl = tmp_path / "users", tmp_path / "acl"
    add_user(users, "ann", b"secret")
    acl.write_text("user ann\ntopic #\ntopic read $SYS/#\n")
    hub = start_hub("--set", f"password_file={users}", "--set", f"acl_file={acl}")
    assert hub.process.stdout is not None
    lines = [hub.process.stdout.readline() for _ in range(7)]
    text = "".join(lines)
    assert f"  its page: {hub.url('http')}/\n" in lines
    assert "USER:PASSWORD@" in text and "--url" not in text, text
    typed = [line.split() for line in lines if line.startswith("  ") and "HUBBUB_URL" not in line]
    environment = {**os.environ, "HUBBUB_URL": hub.url("mqtt").replace("://", "://ann:secret@")}
    tried = [words[1:] for words in typed if words[1:2] in (["pub"], ["status"])]
    assert len(tried) == 2
    for words in (["pub", "demo/hello", "-m", "x"], ["status"]):
        command = [sys.executable, "-m", "hubbub", *words]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    nobody = {**os.environ, "HUBBUB_URL": hub.url("mqtt")}
    refused = subprocess.run(
        [sys.executable, "-m", "hubbub", "status"], env=nobody, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert refused.returncode == 1 and "HUBBUB_URL=" in refused.stderr


@pytest.mark.interop
def test_whom_a_command_trusts_over_tls(home: Path, start_hub: StartHub) -> None:
    """As it is told to, by option or by profile; an option that says nothing is refused."""
    authority = Authority(home)
    certificate = authority.sign("localhost", server=True)
    hub = start_hub("--set", f"tls.certificate={certificate}")
    url = hub.url("https").replace("127.0.0.1", "localhost")
    typed, trusted = ("--url", url), ("--cafile", str(authority.file))
    write(f'[default]\nurl = "{url}"\ncafile = "{authority.file}"\n')
    for words in (("status",), ("switch", "list")):
        stranger = CliRunner().invoke(app, (*words, *typed))
        assert "in the file of --cafile" in str(stranger.exception)
        vain = CliRunner().invoke(app, (*words, *trusted, "--url", hub.url("http")))
        assert "--cafile says nothing over http://" in str(vain.exception)
        for said in (*typed, *trusted), (*typed, "--insecure"), ():
            assert CliRunner().invoke(app, (*words, *said)).exit_code == 0, said


def test_what_the_pipeline_publishes_to_and_reads(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(FILE)
    plant = source_at("", "")
    assert plant.hub.startswith("https://ann:") and plant.token == "sesame"
    assert plant.options(home) == {"url": plant.hub, "token": "sesame", "caFile": "/ca.pem"}
    assert source_at("", "file").options(home)["tokenFile"] == "file"
    assert not source_at("", "file").token, "what was typed comes first"
    monkeypatch.setenv(profile.URL, "mqtt://u:p@elsewhere")
    assert source_at("", "").hub == "http://u:p@elsewhere:1883"
    assert source_at("http://typed", "") == Source("http://typed")
    assert source_at("https://typed", "", home / "ca").options(home)["caFile"] == f"{home}/ca"
    (home / "secret.txt").write_text("hush\n")
    assert source_at("lab", "").hub == "http://bob:hush@lab"
    with pytest.raises(SettingError, match="no profile 'nobody'"):
        source_at("nobody", "")
