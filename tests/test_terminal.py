"""What others wrote does nothing to a terminal, and is as it was in a pipe."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pty
import subprocess
import sys
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hubbub import terminal
from hubbub.cli import payload, status
from hubbub.terminal import LogLines, Screened, for_stream, harmless
from tests.process import RunningHub, StartHub

TITLE = "\x1b]0;owned\x07"  # renames the window
NASTY = f"a{TITLE}\x9b2Jb\u202e"
NAME = "t\u202eo"  # names have no control characters, but may turn what follows around
SHOWN = "a\\x1b]0;owned\\x07\\x9b2Jb\\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert harmless(NASTY) == SHOWN
    assert harmless("two\nlines\tand ünïcode ✓") == "two\nlines\tand ünïcode ✓"
    assert harmless("two\nlines", lines=False) == "two\\nlines"


def test_what_is_not_seen_is_shown() -> None:
    assert harmless("adm\u200bin\ufeff\u2060\u061c\U000e0041") == (
        "adm\\u200bin\\ufeff\\u2060\\u061c\\U000e0041"
    )
    family = "\U0001f468\u200d\U0001f469"
    assert harmless(family) == family  # a payload; names cannot be told from others with it
    assert harmless(family, lines=False) == "\U0001f468\\u200d\U0001f469"


@given(st.text())
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    shown = harmless(text, lines=False)
    assert all(ord(one) >= 0x20 and not 0x7F <= ord(one) < 0xA0 for one in shown)
    assert harmless(shown, lines=False) == shown


def test_only_a_terminal_is_spared() -> None:
    assert for_stream(NASTY, io.StringIO()) == NASTY and for_stream(NASTY, Terminal()) == SHOWN
    for stream, seen in ((io.StringIO(), NASTY), (Terminal(), SHOWN)):
        Screened(stream).write(NASTY)
        terminal.say(NASTY, "", stream)
        assert stream.getvalue() == seen * 2


def test_an_event_of_the_log_is_one_line_whatever_a_client_is_called() -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "%s is here", ("x\n12:00 E fake",), None)
    assert LogLines("%(name)s: %(message)s").format(record) == "n: x\\n12:00 E fake is here"


def on_a_terminal(*words: str) -> str:
    """What a command writes on a terminal of its own."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    command = (sys.executable, "-m", "hubbub", *words)
    with subprocess.Popen(command, stdout=its, stderr=its, env=environment) as running:
        os.close(its)
        seen = b""
        try:
            while data := os.read(ours, 65_536):
                seen += data
        except OSError:  # how a terminal ends
            pass
    os.close(ours)
    assert running.returncode == 0, seen
    return seen.decode()


def in_a_pipe(*words: str) -> str:
    command = (sys.executable, "-m", "hubbub", *words)
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode()


@pytest.fixture
def nasty(start_hub: StartHub) -> RunningHub:
    """A hub on which names and a payload say what a terminal would obey."""
    hub = start_hub()
    for name in (NAME, f"$queue/{NAME}"):
        place = f"{hub.url('http')}/publish/{quote(name, safe='')}?qos=1&retain=1"
        urlopen(place, NASTY.encode(), timeout=60).close()
    return hub


class Said(NamedTuple):
    topic: str
    payload: bytes
    content_type: str


def test_a_name_is_part_of_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload may have lines of its own, as in mosquitto_sub."""
    message = Said("a\nfake topic", b"1\n2", "t\nfake")
    ways = [(None, False), (None, True), ("%t %C %p", False)]
    for terminal_like, line_ends in ((False, (2, 1, 3)), (True, (1, 0, 1))):
        monkeypatch.setattr("sys.stdout", Terminal() if terminal_like else io.StringIO())
        for (template, as_hex), wanted in zip(ways, line_ends, strict=True):
            shown = payload.printer(template, False, as_hex, False)(message)
            assert shown.count("\n") == wanted, (template, shown)


def test_a_name_that_is_said_alone_is_one_line() -> None:
    stream = Terminal()
    terminal.say("q\nforged", stream=stream, lines=False)
    assert stream.getvalue() == "q\\nforged\n"


@pytest.mark.parametrize(
    "answer",
    [
        '{"started":"x","time":[],"clients":5,"queues":[[1]]}',
        '{"started":1e300,"time":null,"clients":[{"a":1},2],"client_count":"many"}',
        '{"clients":[1],"client_count":[1],"x":{"y":{"z":[]}}}',
    ],
)
def test_a_status_that_is_none_of_ours_is_shown_all_the_same(answer: str) -> None:
    console = Console(file=io.StringIO())
    for table in status.tables(json.loads(answer)):
        console.print(table)


@pytest.mark.interop
def test_the_commands_show_what_others_wrote(nasty: RunningHub) -> None:
    mqtt, switch = nasty.url("mqtt"), nasty.url("switch")
    listens = ("sub", NAME, "-n", "1", "--url", mqtt)
    template = "\\e[1m%t\\e[0m %p"  # the user's own sequences are obeyed
    for words, piped in (
        (listens, f"{NAME} {NASTY}\n"),
        ((*listens, "--format", template), f"\x1b[1m{NAME}\x1b[0m {NASTY}\n"),
        (("switch", "list", "--all", "--url", switch), f"{NAME}\n"),
    ):
        assert in_a_pipe(*words) == piped
        seen = on_a_terminal(*words)
        assert not {"\x07", "\x9b", "\u202e"} & {*seen} and "t\\u202eo" in seen
        assert ("\\x1b]0;owned\\x07" in seen) is ("sub" in words)
        assert ("\x1b[1m" in seen) is ("--format" in words)
    assert json.loads(in_a_pipe(*listens, "--json"))["payload"] == NASTY
    assert TITLE not in on_a_terminal(*listens, "--json")
    assert TITLE not in on_a_terminal("switch", "diagnostics", "--url", switch)


@pytest.mark.interop
def test_the_status_shows_a_client_that_is_called_so(nasty: RunningHub) -> None:
    def clients() -> list[str]:
        answer = json.loads(in_a_pipe("status", "--json", "--url", nasty.url("http")))
        return [str(value) for client in answer["clients"] for value in client.values()]

    with contextlib.closing(HTTPConnection(nasty.address, timeout=60)) as token:
        token.request("GET", "/login/" + quote(f"me{TITLE}", safe=""))
        assert token.getresponse().status == 200
        assert any(TITLE in one for one in clients())
        seen = on_a_terminal("status", "--url", nasty.url("http"))
    assert TITLE not in seen and "me\\x1b]0;owned" in seen
