"""What the original answers, Hubbub answers, byte for byte, but for the table of deviations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hubbub.protocols.switch import Switch
from tests.protocols.switch.journaled import Hub
from tests.wire import Far, Table

TRACES = Path(__file__).with_name("traces")
LATER = 1e12  # a time at which every time-out is over

Deviations = dict[bytes, tuple[bytes, str]]

# What was sent, or the end of its answer -> what Hubbub answers instead, and why.
DIALECT_C: Deviations = {
    b'{"timeout":0.2,"queues":["x","a b"]}': (
        b'"next":"s<n>"}',
        "ids of two queues cannot be compared: a journal seq never skips a message",
    ),
    b"ids restart?": (b'[["x",3]]', "ids are never reused, also after destroy and create"),
    b"chunked": (b'[["x",4]]', "the same"),
    b"GET /persistent/ ": (b"400 Bad Request", "a queue has a name, for all protocols"),
    b'"a b",""]': (b'"a b"]', "so there is none without a name"),
    b"GET /admin": (b"302 Found\r\nlocation: /\r\n", "there is no folder www, but a dashboard"),
    b"GET /js/": (b"Not found: /js/../../etc/passwd", "the path is shown as it was sent"),
    b"BLAH": (b"HTTP/1.1 400 Bad Request", "an answer before closing"),
    b"HEAD / ": (b"content-length: 12\r\n\r\n", "an answer to HEAD has no body (RFC 9110, 9.3.2)"),
    b"get / ": (b"HTTP/1.1 400 Bad Request", "a method in lower case is no HTTP"),
}
DIALECT_A: Deviations = {
    b"GET /list/ ": (b'["s1","none","foo","client-', "sorted; the original's order is of a hash"),
    b"GET /admin": DIALECT_C[b"GET /admin"],
}


class Step(NamedTuple):
    """One request of the trace; `closes` says that the original closed afterwards."""

    section: str
    number: int
    connection: int
    sent: bytes
    answer: bytes
    closes: bool


def steps(trace: Path) -> Iterator[Step]:
    section, connection, sent, number = "", 0, b"", 0
    lines = trace.read_text("utf-8").splitlines()
    for index, line in enumerate(lines):
        mark, _, text = line.partition(" ")
        if mark == "###":
            section = text
        elif mark == "===":
            connection += 1
        elif mark == ">>>":
            sent, number = ast.literal_eval(text), index + 1
        elif mark in ("<<<", "EOF"):
            if mark == "EOF" and lines[index - 1].startswith("<<<"):
                continue
            answer = ast.literal_eval(text) if text else b""
            closes = "EOF" in (mark, *lines[index + 1 : index + 2])
            yield Step(section, number, connection, sent, answer, closes)


def pattern(answer: bytes) -> re.Pattern[bytes]:
    escaped = re.escape(answer).replace(b"<n>", rb"-?\d+").replace(re.escape(b"<...>"), b".*")
    return re.compile(escaped, re.DOTALL)


def answer_of(far: Far, sent: bytes) -> bytes:
    far.say(sent)
    if not (answer := far.hear()):
        far.connection.wake(LATER)
        answer = far.hear()
    return answer


def deviation(deviations: Deviations, step: Step) -> bytes | None:
    found = (key for key in deviations if key in step.sent or step.answer.endswith(key))
    return next((deviations[key][0] for key in found), None)


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(
    ("trace", "deviations"), [("dialect-c.txt", DIALECT_C), ("dialect-a.txt", DIALECT_A)]
)
def test_the_original_and_hubbub_say_the_same(
    trace: str, deviations: Deviations, journaled: bool
) -> None:
    table = Hub() if journaled else Table()
    switch = Switch(table.broker)
    far, connection, deviated = table.dial(switch), 1, set()
    for step in steps(TRACES / trace):
        if step.connection != connection:
            far.hang_up()
            far, connection = table.dial(switch), step.connection
        answer, ours = answer_of(far, step.sent), deviation(deviations, step)
        where = f"{step.section}, line {step.number}: {answer!r}"
        if ours is None:
            assert pattern(step.answer).fullmatch(answer), where
        else:
            deviated.add(ours)
            assert not pattern(step.answer).fullmatch(answer), where
            assert pattern(ours).search(answer), where
        assert far.closed == step.closes or ours is not None, where
    assert deviated == {ours for ours, _ in deviations.values()}
