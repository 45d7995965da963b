"""`hubbub pub`, `sub` and `status` against a real hub."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.command import Started, ran, started
from tests.process import RunningHub

pytestmark = pytest.mark.interop


def hubbub(*words: str, stdin: bytes = b"", code: int = 0) -> str:
    """Run a command that has to end with `code`; what it printed, errors included."""
    done = ran(*words, stdin=stdin, errors=subprocess.STDOUT)
    assert done.returncode == code, done.stdout
    return done.stdout.decode()


def wait_for_subscriptions(hub: RunningHub, sub: Started, count: int) -> None:
    subscribed = 0
    while subscribed < count:
        assert sub.poll() is None
        status = json.loads(hubbub("status", "--json", "--url", hub.url("http")))
        subscribed = sum(client["subscriptions"] for client in status["clients"])


def test_a_retained_message_reaches_both_protocols(hub: RunningHub) -> None:
    mqtt, smq = hub.url("mqtt"), hub.url("smq")
    hubbub("pub", "a/b", "-m", "first", "--retain", "--qos", "1", "--url", mqtt)
    assert hubbub("sub", "a/#", "-n", "1", "--url", mqtt) == "a/b first\n"
    assert hubbub("sub", "a/b", "-n", "1", "--url", smq) == "a/b first\n"


def test_payloads_come_from_stdin_and_files(hub: RunningHub, tmp_path: Path) -> None:
    url = hub.url("mqtt")
    hubbub("pub", "in", "--retain", "--url", url, stdin=b"\xff\x00")
    (tmp_path / "payload").write_bytes(b"from a file")
    hubbub("pub", "file", "--retain", "-f", str(tmp_path / "payload"), "--url", url)
    seen = json.loads(hubbub("sub", "in", "-n", "1", "--json", "--url", url))
    assert seen == {"topic": "in", "qos": 0, "retain": True, "payload_base64": "/wA="}
    assert hubbub("sub", "file", "-n", "1", "--url", url) == "file from a file\n"


def test_messages_arrive_live_and_are_counted(hub: RunningHub) -> None:
    with started("sub", "x/+", "y", "-n", "2", "--qos", "2", "--url", hub.url("mqtt")) as sub:
        wait_for_subscriptions(hub, sub, 2)
        for topic in ("x/1", "z", "y"):
            hubbub("pub", topic, "-m", "hi", "--qos", "2", "--url", hub.url("mqtt"))
        output, _ = sub.communicate(timeout=30)
    assert output == "x/1 hi\ny hi\n"


def test_smq_publishes_too(hub: RunningHub) -> None:
    with started("sub", "#", "-n", "2", "--url", hub.url("mqtt")) as sub:
        wait_for_subscriptions(hub, sub, 1)
        hubbub("pub", "from/smq", "-m", "hi", "--subtopic", "s", "--url", hub.url("smq"))
        hubbub("pub", "from/websocket", "-m", "hi", "--subtopic", "s", "-L", hub.url("smq+ws"))
        output, _ = sub.communicate(timeout=30)
    assert output == "from/smq hi\nfrom/websocket hi\n"


def test_status_shows_the_journal(hub: RunningHub) -> None:
    shown = hubbub("status", "--url", hub.url("http"))
    assert str(hub.data)[:20] in shown
    assert "journal: committed" in shown


def test_what_cannot_be_done_is_one_line() -> None:
    nobody = "127.0.0.1:1"
    assert "no hub answers" in hubbub("status", "--url", f"http://{nobody}", code=1)
    assert "hubbub: " in hubbub("pub", "a", "-m", "b", "--url", f"mqtt://{nobody}", code=1)
    assert "leave it out" in hubbub("pub", "a", "--qos", "1", "--url", "smq://x", code=2)
    assert "mqtt://" in hubbub("sub", "a", "--url", "ftp://x", code=2)
    assert "not both" in hubbub("pub", "a", "-m", "b", "-f", "c", code=2)
