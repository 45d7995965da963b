"""`check_retain_source` beside mosquitto: the same file, the same clients, changing permissions."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.beside import WAIT, program, running
from tests.ports import free_port

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None,
        reason="no mosquitto_pub here: apt install mosquitto-clients",
    ),
]

READER = "user eve\ntopic read #\n"
CAT = "user cat\ntopic readwrite c/#\n"
PATTERN = "pattern readwrite by/%u/#\n"
# What the file says, step by step, and what a new subscriber to `#` is given then.
STEPS = {
    "at first": (READER + CAT + PATTERN, ["by/cat/1 x", "c/1 x"]),
    "may only read": (READER + CAT.replace("readwrite", "read") + PATTERN, ["by/cat/1 x"]),
    "no section": (READER + PATTERN, ["by/cat/1 x"]),
    "denied there": (READER + CAT + "topic deny c/1\n" + PATTERN, ["by/cat/1 x"]),
    "no pattern": (READER + CAT, ["c/1 x"]),
    "nothing": (READER, []),
    "again": (READER + CAT + PATTERN, ["by/cat/1 x", "c/1 x"]),
}
CONF = """listener PORT 127.0.0.1
allow_anonymous true
acl_file FOLDER/acl
persistence true
persistence_location FOLDER/
user root
"""


def given(port: int) -> list[str]:
    """To a new subscriber, within a second."""
    command = ("mosquitto_sub", "-p", str(port), "-u", "eve", "-t", "#", "-W", "1", "-v")
    done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
    return sorted(done.stdout.splitlines())


def command_of(kind: str, file: Path) -> list[str]:
    if kind == "mosquitto":
        return [program(), "-c", str(file)]
    return [sys.executable, "-m", "hubbub", "serve", "-c", str(file)]


@pytest.mark.parametrize("kind", ["mosquitto", "hubbub"])
@pytest.mark.parametrize("check", [True, False])
def test_what_is_given_after_the_permissions_changed(
    tmp_path: Path, kind: str, check: bool
) -> None:
    tmp_path.chmod(0o777)
    port, file, acl = free_port(), tmp_path / "broker.conf", tmp_path / "acl"
    text = CONF + f"check_retain_source {str(check).lower()}\n"
    file.write_text(text.replace("PORT", str(port)).replace("FOLDER", str(tmp_path)))
    wanted = {name: said if check else STEPS["at first"][1] for name, (_, said) in STEPS.items()}
    seen = {}
    acl.write_text(STEPS["at first"][0])
    with running(command_of(kind, file), port) as broker:
        for topic in ("c/1", "by/cat/1"):
            publish = ("mosquitto_pub", "-p", str(port), "-u", "cat", "-r", "-q", "1")
            subprocess.run((*publish, "-t", topic, "-m", "x"), timeout=WAIT, check=True)
        for name, (permissions, _) in STEPS.items():
            acl.write_text(permissions)
            broker.send_signal(signal.SIGHUP)
            until = time.monotonic() + 5
            seen[name] = given(port)
            while seen[name] != wanted[name] and time.monotonic() < until:
                seen[name] = given(port)
        acl.write_text(STEPS["no section"][0])
    assert seen == wanted
    with running(command_of(kind, file), port):
        assert given(port) == wanted["no section"], "after a restart"
