"""TLS with shared keys: mosquitto's clients and OpenSSL's, at a hub that runs on Python 3.13."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.interop.beside import WAIT, program, running
from tests.ports import free_port
from tests.process import ROOT

pytestmark = pytest.mark.interop

KEY = "00112233445566778899aabbccddeeff"
CONF = """listener PORT 127.0.0.1
psk_hint house
psk_file FOLDER/keys
use_identity_as_username true
acl_file FOLDER/acl
user root
"""


@functools.cache
def python() -> str:
    """One that has shared keys, with what the hub needs, made once for all runs."""
    home = ROOT / "build" / "python3.13"
    found = home / "bin" / "python"
    with open(ROOT / "build" / "python3.13.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _runs(found, "import hubbub.server"):
            # Our own pip installs there: one more of its own, and all compiled that no hub imports,
            # took as long again.
            venv = (_plain_python(), "-m", "venv", "--clear", "--without-pip", home)
            subprocess.run(venv, check=True)
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            needed = project["dependencies"]  # what would build the package is a third of it all
            pip = (sys.executable, "-m", "pip", "--python", found, "install", "-q", "--no-compile")
            subprocess.run([*pip, *needed], check=True)
            (packages,) = home.glob("lib/python*/site-packages")
            (packages / "hubbub.pth").write_text(f"{ROOT / 'src'}\n")
    assert _runs(found, "import hubbub.server")
    return str(found)


def _plain_python() -> Path:
    """On the path, or among those of pyenv, whose commands are there also where none is chosen."""
    on_path = shutil.which("python3.13")
    ours = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for one in [*([Path(on_path)] if on_path else []), *ours.glob("3.13*/bin/python3.13")]:
        if _runs(one, "import ssl, venv; ssl.SSLContext.set_psk_server_callback"):
            return one
    pytest.skip("no Python 3.13 runs here: only from 3.13 on ssl has shared keys")


def _runs(python: Path, what: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    try:
        run = subprocess.run([python, "-c", what], env=environment, capture_output=True)
    except FileNotFoundError:
        return False
    return run.returncode == 0


@pytest.fixture(params=["mosquitto", "hubbub"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    tmp_path.chmod(0o755)
    (tmp_path / "keys").write_text(f"ann:{KEY}\nbob:{KEY}\n")
    (tmp_path / "acl").write_text("user ann\ntopic readwrite a/#\nuser bob\ntopic read a/#\n")
    port, file = free_port(), tmp_path / "broker.conf"
    file.write_text(CONF.replace("PORT", str(port)).replace("FOLDER", str(tmp_path)))
    command = [program(), "-c", str(file)]
    if request.param == "hubbub":
        command = [python(), "-m", "hubbub", "serve", "-c", str(file)]
    with running(command, port) as broker:
        yield House(tmp_path, port, broker)


class House:
    """A broker, hubbub or mosquitto, whose clients have keys."""

    def __init__(self, folder: Path, port: int, broker: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.port = port
        self.broker = broker

    def run(
        self, tool: str, user: str, *options: str, key: str = KEY
    ) -> subprocess.CompletedProcess[str]:
        where = (f"mosquitto_{tool}", "-p", str(self.port), "--psk", key, "--psk-identity", user)
        return subprocess.run((*where, *options), timeout=WAIT, capture_output=True, text=True)

    def publish(self, user: str, text: str, *options: str, key: str = KEY) -> bool:
        done = self.run("pub", user, "-t", "a/b", "-m", text, "-r", "-q", "1", *options, key=key)
        return done.returncode == 0

    def retained(self, user: str) -> str:
        return self.run("sub", user, "-t", "a/#", "-C", "1", "-W", "5").stdout


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_who_has_the_key_is_that_user(house: House, version: str) -> None:
    first = house.run("pub", "ann", "-t", "a/b", "-m", "hers", "-r", "--tls-version", version)
    if version == "tlsv1.3" and "TLS error" in first.stderr:
        pytest.skip("this mosquitto_pub has no shared keys in TLS 1.3; OpenSSL's client has")
    assert first.returncode == 0, first.stderr
    assert house.publish("ann", "hers", "--tls-version", version)
    assert house.retained("bob") == "hers\n"
    house.publish("bob", "his", "--tls-version", version)  # he may not
    assert house.retained("bob") == "hers\n"
    assert not house.publish("ann", "x", "--tls-version", version, key=KEY[:-2])
    assert not house.publish("zoe", "x", "--tls-version", version)
    assert house.retained("ann") == "hers\n"


@pytest.mark.parametrize("house", ["hubbub"], indirect=True)
@pytest.mark.parametrize("key, code", [(KEY, b"\x20\x02\x00\x00"), (KEY[:-2] + "00", b"")])
def test_a_key_in_tls_1_3(house: House, key: str, code: bytes) -> None:
    client = (
        "openssl", "s_client", "-connect", f"127.0.0.1:{house.port}", "-psk", key,
        "-psk_identity", "ann", "-tls1_3", "-quiet",
    )  # fmt: skip
    said = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x" + b"\xe0\x00"
    heard = subprocess.run(client, input=said, capture_output=True, timeout=WAIT).stdout
    assert heard == code


@pytest.mark.parametrize("house", ["hubbub"], indirect=True)
def test_a_session_of_tls_1_2_that_is_resumed_has_its_user(house: House) -> None:
    """OpenSSL asks for no key then; without a user it would not be let in."""
    client = (
        "openssl", "s_client", "-connect", f"127.0.0.1:{house.port}", "-psk", KEY,
        "-psk_identity", "ann", "-tls1_2", "-ign_eof", "-reconnect",
    )  # fmt: skip
    said = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x" + b"\xe0\x00"
    heard = subprocess.run(client, input=said, capture_output=True, timeout=WAIT).stdout
    assert heard.count(b"Reused, TLSv1.2") == 5
    assert b"\x20\x02\x00\x00" in heard and b"\x20\x02\x00\x05" not in heard


@pytest.mark.parametrize("house", ["hubbub"], indirect=True)
def test_who_was_taken_out_of_the_file_is_ended(house: House) -> None:
    client = ("stdbuf", "-oL", "mosquitto_sub", "-p", str(house.port), "-t", "a/#", "-d")
    command = (*client, "--psk", KEY, "--psk-identity", "bob")
    bob = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert bob.stdout is not None
    while "SUBACK" not in bob.stdout.readline():
        pass
    (house.folder / "keys").write_text(f"ann:{KEY}\n")
    house.broker.send_signal(signal.SIGHUP)
    until = time.monotonic() + WAIT
    while house.publish("bob", "x"):
        assert time.monotonic() < until
    assert house.publish("ann", "hers")
    bob.kill()
    assert "hers" not in bob.stdout.read()


@pytest.mark.parametrize("oldest", ["1.2", "1.3"])
def test_beside_a_certificate_a_wrong_key_is_nobodys(tmp_path: Path, oldest: str) -> None:
    """OpenSSL asked for the key of that name and then went on with the certificate in 1.3."""
    server = Authority(tmp_path).sign("localhost", server=True)
    (tmp_path / "keys").write_text(f"ann:{KEY}\n")
    port = free_port()
    settings = {
        "certificate": server, "psk_file": tmp_path / "keys", "identity": "common_name",
        "version": oldest,
    }  # fmt: skip
    command = [
        str(python()), "-m", "hubbub", "serve", "--listen", f"127.0.0.1:{port}", "--data",
        str(tmp_path / "data"), "--set", "allow_anonymous=false",
        *(word for name, text in settings.items() for word in ("--set", f"tls.{name}={text}")),
    ]  # fmt: skip
    said = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x" + b"\xe0\x00"

    def ask(key: str, *options: str) -> bytes:
        client = (
            "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-psk", key,
            "-psk_identity", "ann", "-quiet", *options,
        )  # fmt: skip
        return subprocess.run(client, input=said, capture_output=True, timeout=WAIT).stdout

    with running(command, port):
        wrong = ask(KEY[:-2] + "00")
        assert wrong in (b"", b"\x20\x02\x00\x05"), wrong
        fitting = () if oldest == "1.2" else ("-ciphersuites", "TLS_AES_128_GCM_SHA256")
        assert ask(KEY, *fitting) == b"\x20\x02\x00\x00"
