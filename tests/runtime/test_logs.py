"""Lines of the log: when, who, as JSON; and not the same one for ever."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import httpx
import pytest

from hubbub.auth.passwords import add_user
from hubbub.runtime import logs
from hubbub.runtime.logs import FORMS, LIKE, SPAN, Repeats
from tests.process import StartHub


def record(text: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("n", level, "f", 1, text, values, None)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("hubbub.runtime.logs.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_lines_that_are_alike_are_bounded_and_counted(clock: Clock) -> None:
    said: list[logging.LogRecord] = []
    repeats = Repeats(said.append)
    passed = sum(
        repeats.filter(record("%s:%d closed: %s", f"10.0.{n % 9}.1", n, f"client '{n}' is bad"))
        for n in range(1_000)
    )
    assert passed == LIKE and not said
    assert repeats.filter(record("something else")), "others are not concerned"
    clock.now += SPAN + 1
    assert repeats.filter(record("something else"))
    [line] = said
    assert line.getMessage() == (
        f"{1_000 - LIKE} more lines within 10 s like: _ closed: client _ is bad"
    )
    assert repeats.filter(record("%s:%d closed: %s", "10.0.0.1", 1, "client 'x' is bad"))


def test_what_somebody_asked_to_see_is_never_left_out(clock: Clock) -> None:
    repeats = Repeats(lambda one: None)
    assert all(repeats.filter(record("x", level=logging.DEBUG)) for _ in range(10 * LIKE))
    audit = logging.LogRecord("hubbub.audit", logging.INFO, "f", 1, "ann was not let in", (), None)
    assert all(repeats.filter(audit) for _ in range(10 * LIKE)), "bounded where it is said"


def test_what_is_left_out_is_said_in_the_end(clock: Clock) -> None:
    said: list[logging.LogRecord] = []
    repeats = Repeats(said.append)
    for _ in range(LIKE + 7):
        repeats.filter(record("x"))
    repeats.tell()
    repeats.tell()
    assert [one.getMessage() for one in said] == ["7 more lines within 10 s like: x"]


def letters(number: int) -> str:
    return "".join(chr(ord("g") + int(digit)) for digit in str(number))


@pytest.mark.parametrize("quotes", ["", "'", '"', "'\"", "\\'\"", "'\\\"", "\""])
def test_what_a_stranger_says_makes_no_kind_of_its_own(clock: Clock, quotes: str) -> None:
    """With both quotes in it `repr` has escapes, and each connection of a flood had its line."""
    repeats = Repeats(lambda one: None)
    said = [f"{quotes}{letters(number)}{quotes}".encode() for number in range(1_000)]
    lines = [record("%s:%d closed: no protocol here begins with %r", "h", 1, one) for one in said]
    assert sum(map(repeats.filter, lines)) == LIKE


def test_a_quote_that_is_cut_off_makes_no_kind_of_its_own(clock: Clock) -> None:
    repeats = Repeats(lambda one: None)
    lines = [record("closed: %r", letters(number) + "x" * 500) for number in range(1_000)]
    assert sum(map(repeats.filter, lines)) == LIKE


def test_words_of_strangers_that_are_not_quoted_are_bounded_too(clock: Clock) -> None:
    said: list[logging.LogRecord] = []
    repeats = Repeats(said.append)
    lines = [record("pages of %s may not", letters(number)) for number in range(3 * logs.KINDS)]
    assert sum(map(repeats.filter, lines)) == logs.SAID + LIKE
    assert repeats.filter(record("something else"))
    clock.now += SPAN + 1
    assert repeats.filter(record("pages of %s may not", "another"))
    more = 3 * logs.KINDS - logs.SAID - LIKE
    assert f"{more} more lines within 10 s like: pages of %s may not" in said[-1].getMessage()


def test_spans_end_also_after_there_were_too_many_kinds(clock: Clock) -> None:
    """From then on no more than LIKE lines of a kind were written for ever."""
    repeats = Repeats(lambda one: None)
    for number in range(logs.KINDS + 1):
        repeats.filter(record(f"closed: {letters(number)}"))
    for _ in range(3):
        assert sum(repeats.filter(record("x")) for _ in range(2 * LIKE)) == LIKE
        clock.now += SPAN + 2


def test_kinds_that_strangers_make_up_take_bounded_memory(clock: Clock) -> None:
    repeats = Repeats(lambda one: None)
    for number in range(3 * logs.KINDS):
        assert repeats.filter(record(f"closed: {letters(number)}"))
    assert len(repeats._kinds) <= logs.KINDS


def test_a_line_says_date_and_zone() -> None:
    line = FORMS["text"]("").format(record("hello"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} I n: hello", line)


def test_json_says_who_apart_and_is_one_line_whatever_they_are_called() -> None:
    made = record("%s came in", "x\ny\u2028\udcff")
    made.user, made.client, made.address = "ann\n", "\udcff", ""
    line = FORMS["json"]("").format(made)
    assert line.isascii() and "\n" not in line
    said = json.loads(line)
    assert (said["level"], said["logger"], said["user"], said["client"]) == (
        "info", "n", "ann\n", "\udcff"
    )  # fmt: skip
    assert "address" not in said
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said["time"])


def test_an_error_in_json_has_its_traceback() -> None:
    try:
        raise ValueError("oops")
    except ValueError as error:
        made = logging.LogRecord("n", logging.ERROR, "f", 1, "broke", (), None)
        made.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: oops" in json.loads(FORMS["json"]("").format(made))["error"]


@pytest.mark.interop
@pytest.mark.parametrize("form", ["text", "json"])
def test_of_a_hub_that_runs(form: str, tmp_path: Path, start_hub: StartHub) -> None:
    """Also a flood of what is not bounded elsewhere: who says no HTTP and is closed."""
    add_user(tmp_path / "users", "ann", b"secret")
    hub = start_hub("--set", f"log.format={form}", "--set", f"password_file={tmp_path}/users")
    assert httpx.get(hub.url("http") + "/login/x", auth=("ann", "wrong")).status_code == 401
    assert httpx.get(hub.url("http") + "/login/x", auth=("ann", "secret")).status_code == 200
    assert hub.stop() == 0
    lines = (tmp_path / "hub.log").read_text().splitlines()
    assert len(lines) >= 3
    if form == "text":
        assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines)
        return
    said = [json.loads(line) for line in lines]
    [came] = [one for one in said if " came in" in one["message"]]
    assert (came["user"], came["client"], came["protocol"]) == ("ann", "x", "switch")
    assert came["address"] == "127.0.0.1" and came["listener"] == "127.0.0.1:0"


@pytest.mark.interop
def test_what_a_mosquitto_conf_says_in_vain_is_a_line_as_others(
    tmp_path: Path, start_hub: StartHub
) -> None:
    """It is read before anybody knows how lines look."""
    (tmp_path / "mosquitto.conf").write_text("log_facility 5\n")
    hub = start_hub("-c", str(tmp_path / "mosquitto.conf"), "--set", "log.format=json")
    assert hub.stop() == 0
    said = [json.loads(line) for line in (tmp_path / "hub.log").read_text().splitlines()]
    assert any("log_facility" in one["message"] and one["time"] for one in said)
