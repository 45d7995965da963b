"""`hubbub pub`, `sub` and `rr` beside mosquitto_pub, _sub and _rr: option by option, byte by byte.

Both talk to the same mosquitto. `ALIKE` print the same bytes and end with the same code. What is
different on purpose is in `DIFFERENT`, and in docs/commands.md with its reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.client import mosquitto
from tests.command import ran

pytestmark = [pytest.mark.interop, pytest.mark.slow, mosquitto.MISSING]

Words = tuple[str, ...]
Ended = tuple[int, bytes]  # the exit code, and what was printed

A: Final = ("-t", "k/a", "-C", "1")
PROPERTIES: Final = (
    "-D", "publish", "content-type", "text/plain", "-D", "publish", "correlation-data", "cd",
    "-D", "publish", "response-topic", "r/t", "-D", "publish", "user-property", "k", "v",
    "-D", "publish", "user-property", "k2", "v 2", "-D", "publish", "payload-format-indicator", "1",
)  # fmt: skip
BINARY: Final = bytes(range(256))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Words]:
    """Where a mosquitto is, with some retained messages."""
    for broker in mosquitto.running(tmp_path_factory.mktemp("mosquitto")):
        where = ("-h", "127.0.0.1", "-p", str(broker.port))
        for words, data in (
            (("-t", "k/a", "-m", "one", "-q", "1"), b""),
            (("-t", "k/b", "-m", '{"x": 1, "y": [1, 2.5, null, "ü"]}'), b""),
            (("-t", "k/c", "-s"), BINARY),
            (("-t", "k/d", "-m", "füü\nbar"), b""),
            (("-t", "p/a", "-V", "5", "-m", "props", *PROPERTIES), b""),
        ):
            command = ("mosquitto_pub", *where, "-r", *words)
            subprocess.run(command, input=data, check=True, timeout=20)
        yield where


def tool(ours: bool, name: str, *words: str, stdin: bytes = b"") -> Ended:
    if ours:
        done = ran(name, *words, stdin=stdin, variables={"TZ": "UTC"})
    else:
        done = subprocess.run(
            [f"mosquitto_{name}", *words], input=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "TZ": "UTC"}, timeout=30,
        )  # fmt: skip
    return done.returncode, done.stdout


# Those of one message in one command: a start of ours costs more than all they print.
FORMATS: Final = ";".join((
    "%t", "%p", "%q", "%r", "%l", "%x", "%X", "%%", "%10t|", "%-10t|", "%5l|", "%05l|", "%-5l|",
    "%.2p|", "%10.2p|", "%2q|", "%F", "%C", "%D", "%E", "%R", "%P", "%S", "%A", "a\\nb", "a\\tb",
    "\\0", "\\e", "\\a", "\\r", "\\\\", "%q%q %t:%p",
))  # fmt: skip
ALIKE: Final[list[Words]] = [
    (*A, "-F", FORMATS), (*A, "-F", "%p"),
    *(("-t", topic, "-C", "1", "-F", "%p;%x;%l") for topic in ("k/b", "k/c", "k/d")),
    ("-V", "5", "-t", "p/a", "-C", "1", "-F", "%C;%D;%E;%R;%P;%S;%F;%A"),
    (*A, "-v"), (*A, "-N", "-v"), (*A, "-F", "%p", "-N"), (*A, "-F", "%p", "-v"),
    ("-t", "k/#", "-C", "2", "-v"), ("-t", "k/#", "-W", "1", "-v"),
    ("-t", "k/#", "-T", "k/b", "-T", "k/c", "-W", "1", "-v"), ("-t", "k/#", "-R", "-W", "1"),
    ("-t", "k/#", "--retained-only", "-W", "1", "-v"), ("-t", "k/a", "-t", "k/d", "-C", "2", "-v"),
    (*A, "-q", "1", "-F", "%q"), (*A, "-q", "2", "-F", "%q"), ("-t", "k/a", "-E"),
    (*A, "-V", "5", "-F", "%p"), (*A, "-V", "31", "-F", "%p"), (*A, "-V", "mqttv311", "-v"),
    (*A, "-k", "5", "-F", "%p"), (*A, "-i", "me", "-F", "%p"),
    (*A, "-c", "-i", "kept", "-F", "%p"), (*A, "-x", "5", "-V", "5", "-F", "%p"),
    (*A, "-u", "me", "-P", "x", "-F", "%p"), (*A, "-U", "k/b", "-F", "%p"),
    (*A, "--will-topic", "w", "--will-payload", "x", "-F", "%p"),
]  # fmt: skip


def test_sub(place: Words) -> None:
    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda words: tool(True, "sub", *place, *words), ALIKE))
        theirs = list(pool.map(lambda words: tool(False, "sub", *place, *words), ALIKE))
    for words, here, there in zip(ALIKE, ours, theirs, strict=True):
        assert here == there, words


@pytest.mark.parametrize("topic", ["k/a", "k/b", "k/d", "p/a"])
def test_json(place: Words, topic: str) -> None:
    """The same fields in the same order, the time apart."""
    words = (*place, "-V", "5", "-t", topic, "-C", "1", "-F", "%j")
    found = []
    for ours in (True, False):
        code, printed = tool(ours, "sub", *words)
        assert code == 0
        found.append(re.sub(rb'"tst":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\+0000"', b"", printed))
    if topic == "p/a":  # properties have the order of the packet there
        assert json.loads(found[0].replace(b"{,", b"{")) == json.loads(
            found[1].replace(b"{,", b"{")
        )
    else:
        assert found[0] == found[1]


def test_json_payloads(place: Words) -> None:
    words = (*place, "-t", "k/b", "-C", "1", "-F", "%J")
    here, there = (json.loads(tool(ours, "sub", *words)[1]) for ours in (True, False))
    assert here | {"tst": ""} == there | {"tst": ""}


# The options, their input, and how many messages come of it.
PUBLISHED: Final[list[tuple[Words, bytes, int]]] = [
    (("-m", "x"), b"", 1), (("-m", "x", "-q", "1"), b"", 1), (("-m", "x", "-q", "2"), b"", 1),
    (("-n",), b"", 1), (("-m", ""), b"", 1), (("-s",), b"a\nb\n", 1), (("-s",), BINARY, 1),
    (("-l",), b"a\n\nb", 3), (("-l",), b"a\nb\r\nc\n", 3), (("-f", "/etc/passwd"), b"", 1),
    (("-m", "x", "--repeat", "2"), b"", 2), (("-m", "x", "-V", "5", "-x", "9"), b"", 1),
    (("-m", "x", "--repeat", "2", "--repeat-delay", "0.2"), b"", 2), (("-m", "x", "-r"), b"", 1),
    (("-m", "x", "-i", "me", "-k", "30", "-u", "u", "-P", "p", "-M", "5"), b"", 1),
]  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: " ".join(case[0]))
def test_pub(place: Words, case: tuple[Words, bytes, int]) -> None:
    """What a subscriber hears of both."""
    words, data, count = case

    def heard(ours: bool) -> tuple[bytes, Ended]:
        topic = f"q/{os.urandom(4).hex()}"
        command = ("mosquitto_sub", *place, "-t", topic, "-q", "2", "-C", str(count), "-W", "10")
        more = ("-F", "%q %r %l %x", "-d")
        with subprocess.Popen(["stdbuf", "-oL", *command, *more], stdout=subprocess.PIPE) as sub:
            assert sub.stdout is not None
            assert any(b"SUBACK" in line for line in sub.stdout)
            ended = tool(ours, "pub", *place, "-t", topic, *words, stdin=data)
            lines = sub.stdout.read().splitlines()
        return b"\n".join(line for line in lines if line[:1].isdigit()), ended

    here, there = heard(True), heard(False)
    assert here == there and here[1][0] == 0 and here[0]


ASKED: Final[list[Words]] = [
    ("-m", "x"), ("-m", "x", "-v"), ("-m", "x", "-F", "%t:%p"), ("-n",), ("-m", "x", "-q", "1"),
]  # fmt: skip


def answer(place: Words, topic: str) -> None:
    asked = tool(False, "sub", *place, "-V", "5", "-t", topic, "-C", "1", "-W", "20", "-F", "%R")[1]
    tool(False, "pub", *place, "-V", "5", "-t", asked.decode().strip(), "-m", "answer")


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_rr(place: Words, words: Words) -> None:
    def asked(ours: bool) -> Ended:
        topic = f"rr/{os.urandom(4).hex()}"
        service = threading.Thread(target=answer, args=(place, topic))
        service.start()
        time.sleep(0.5)
        try:
            return tool(
                ours, "rr", *place, "-V", "5", "-t", topic, "-e", "rr/e", "-W", "10", *words
            )
        finally:
            service.join()

    assert asked(True) == asked(False) != (0, b"")


def test_rr_without_an_answer(place: Words) -> None:
    words = (*place, "-V", "5", "-t", "rr/none", "-e", "rr/f", "-W", "1", "-m", "x")
    assert tool(True, "rr", *words) == tool(False, "rr", *words) == (27, b"")


# The options of `sub`, and what is printed here and there.
DIFFERENT: Final[list[tuple[Words, Ended, Ended]]] = [
    (A, (0, b"k/a one\n"), (0, b"one\n")),  # the topic is always there; -F %p leaves it out
    ((*A, "-F", "%z"), (2, b""), (1, b"")),  # a mistake is 2, as with every command
    ((*A, "-F", "\\q"), (2, b""), (1, b"")),
    ((*A, "-F", "%"), (2, b""), (1, b"")),
    ((*A, "-F", "%m"), (2, b""), (0, b"0\n")),  # packet ids are the client's own business
    ((*A, "-P", "x", "-F", "%p"), (0, b"one\n"), (1, b"")),  # MQTT 5 allows it
    ((*A, "-F", "%8x|"), (0, b"  6f6e65|\n"), (0, b"      6f|\n")),  # a fault there
]


def test_what_is_different_is_known(place: Words) -> None:
    for words, here, there in DIFFERENT:
        assert tool(True, "sub", *place, *words) == here, words
        assert tool(False, "sub", *place, *words) == there, words
