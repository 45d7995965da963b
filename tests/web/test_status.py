"""The status on a terminal."""

from __future__ import annotations

import re
import socket
import ssl
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hubbub.cli import app, status
from hubbub.cli.reach import no_hub
from tests.command import hubbub
from tests.process import RunningHub

pytestmark = pytest.mark.interop


def test_the_terminal_says_how_many_are_left_out(hub: RunningHub) -> None:
    for number in range(3):
        call("pub", f"$queue/q{number}", "-m", "x", "--url", hub.url("mqtt"))
    said = call("status", "--url", hub.url("http"), "--limit", "2")
    assert "queues (2 of 3)" in said
    assert "clients (" not in said


def test_it_is_said_in_words_with_units(hub: RunningHub) -> None:
    call("pub", "t", "-m", "x", "--url", hub.url("mqtt"))
    said = call("status", "--url", hub.url("http"))
    shown = dict(re.findall(r"(?m)^ (\S.*?)  +(\S.*?) *$", said))
    assert shown["messages in, in all"].isdecimal() and shown["compiled"] in ("yes", "no")
    assert re.fullmatch(r"[\d.]+ (B|kB|MB)", shown["bytes received"])
    assert shown["journal: commit of 99 % within"].endswith(" ms")
    assert "_" not in "".join(shown), "no name of a program"


def test_rates_come_first() -> None:
    lately = {
        "published": 12.0, "delivered": 3.0, "bytes_received": 1500.0, "bytes_sent": 0.0,
        "dropped": 0.0, "cpu": 0.5, "memory": 66e6, "delivery_ms_50": 0.2, "delivery_ms_99": 1.5,
    }  # fmt: skip
    console = Console(file=StringIO(), width=80)
    console.print(status.tables({"version": "1"}, lately)[0])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("12/s in, 3/s out", "1.5 kB/s in", "0.20 ms half", "50 %", "66.0 MB"):
        assert words in text
    assert text.index("messages") < text.index("version")


def test_yes_and_no_are_words_in_lists_too() -> None:
    console = Console(file=StringIO(), width=80)
    console.print(*status.tables({"bridges": [{"name": "old", "up": False}]}))
    assert re.search(r"old\W+no\b", console.file.getvalue())  # type: ignore[attr-defined]


def test_of_whom_is_not_trusted_it_says_what_every_command_takes() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    assert "in the file of --cafile" in str(no_hub("https://hub:8080", error))
    for code, advice in ((10, "renew its certificate"), (9, "clocks"), (62, "--insecure")):
        error.verify_code = code
        assert advice in str(no_hub("https://hub:8080", error))
        assert "--cafile" not in str(no_hub("https://hub:8080", error))


def test_in_a_pipe_nothing_is_cut(hub: RunningHub) -> None:
    """`hubbub status | grep` showed half of each client's name."""
    name = "a-device-with-a-long-name-" * 4
    with socket.create_connection(("127.0.0.1", hub.port)) as client:
        size = len(name)
        body = b"\0\4MQTT\4\2\0\0" + size.to_bytes(2, "big") + name.encode()
        client.sendall(b"\x10" + bytes([len(body)]) + body)
        assert client.recv(4)
        done = hubbub("status", "--url", hub.url("http"))
    assert name in done.stdout


def test_a_pipeline_is_a_line_that_can_be_read() -> None:
    """It had a column for each of twenty values, curves included, and showed dots."""
    said = {
        "name": "1f", "state": "failed", "time": 1, "started": 1, "process": 7,
        "tables": "/d/tables", "seq": 9, "behind_rows": 1027, "behind_seconds": 90.14634,
        "batches": 3, "quarantined": 20, "by_table": [{"name": "calls", "files": 1}], "plots": [{}],
        "last_error": {"time": 1, "text": "the disk is full"},
    }  # fmt: skip
    console = Console(file=StringIO(), width=80)
    for table in status.tables({"pipeline": [said, {"last_error": 5}, 7]}):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("/d/tables", "failed", "1,027", "90.1 s", "20", "the disk is full", "unknown"):
        assert words in text
    assert "…" not in text and "plots" not in text


@pytest.mark.parametrize("words", [("--help",), ("sub", "--help"), ("pipeline", "run", "--help")])
def test_help_shows_no_type_of_a_flag(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output
    assert "--help" in said and "<bool>" not in said


def call(*options: str) -> str:
    done = hubbub(*options)
    assert done.returncode == 0, done.stderr
    return done.stdout
