"""The rules file: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import SettingError
from hubbub.pipeline.decode import leaves
from hubbub.pipeline.rules import NO_RULES, Alert, Reading, Rules, read_rules

WHOLE = """
event_time = "ts"
lateness = 30

[[decode]]
topics = ["plant/+/raw", "lab/#"]
as = "application/cbor"
event_time = "meta.t"

[[decode]]
topics = "lab/quiet"
as = "text/plain"
event_time = ""

[[alert]]
name = "hot"
topic = "alerts/hot"
sql = "SELECT 1"
retain = true
"""


def rules_of(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    return read_rules(file)


def test_a_whole_file(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, WHOLE)
    assert rules.alert == (Alert("hot", "alerts/hot", "SELECT 1", 1, True),)
    assert rules.patience() == 30
    reading = Reading(rules)
    assert reading.of("plant/1/raw") == ("application/cbor", "meta.t")
    assert reading.of("lab/quiet") == ("application/cbor", "meta.t"), "the first that matches"
    assert reading.of("plant/1") == ("", "ts")


def test_a_rule_may_say_that_there_is_no_event_time(tmp_path: Path) -> None:
    text = 'event_time = "ts"\n[[decode]]\ntopics = "quiet/#"\nevent_time = ""\n'
    reading = Reading(rules_of(tmp_path, text))
    assert reading.of("quiet/a") == ("", "")
    assert reading.of("loud") == ("", "ts")


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("meta.at", "meta.at"),
        ("$.meta.at", "meta.at"),
        ("$.list[0].at", "list[0].at"),
        ("$[1]", "[1]"),
        ('$["a b"].at', "a b.at"),
        ('$["a.b"].at', '["a.b"].at'),
        ("$.$.ts", "$.ts"),
        ("$date", "$date"),
    ],
)
def test_an_event_time_may_be_written_as_a_column(tmp_path: Path, said: str, path: str) -> None:
    text = f"event_time = '{said}'\n[[decode]]\ntopics = 'a'\nevent_time = '{said}'\n"
    reading = Reading(rules_of(tmp_path, text))
    assert (reading.of("a"), reading.of("b")) == (("", path), ("", path))
    assert [leaf.path for leaf in leaves(_HOLDING[path], "application/json")] == [path]


_HOLDING = {
    "meta.at": b'{"meta": {"at": 1}}',
    "list[0].at": b'{"list": [{"at": 1}]}',
    "[1]": b"[null, 1]",
    "a b.at": b'{"a b": {"at": 1}}',
    '["a.b"].at': b'{"a.b": {"at": 1}}',
    "$.ts": b'{"$": {"ts": 1}}',
    "$date": b'{"$date": 1}',
}
TABLE = '[[table]]\nname = "t"\ntopics = "a"\n'
LATE = f'{TABLE}columns.a = "$.a INT"\nlate = "quarantine"\n'


@pytest.mark.parametrize(
    ("text", "doubted"),
    [
        (LATE, ["table 't': late"]),
        ("lateness = 5\n" + LATE, ["lateness", "table 't': late"]),
        ("event_time = 'at'\nlateness = 5\n" + LATE, []),
        (LATE + "[[decode]]\ntopics = 'a'\nevent_time = 'at'\n", []),
        (LATE.replace("quarantine", "keep"), []),
    ],
)
def test_that_nothing_can_be_late_is_said(tmp_path: Path, text: str, doubted: list[str]) -> None:
    said = rules_of(tmp_path, text).doubts()
    assert [one.partition(" does nothing: without event_time")[0] for one in said] == doubted


def test_without_rules_time_is_the_hubs() -> None:
    assert not NO_RULES.timed()
    assert NO_RULES.patience() == 0
    assert NO_RULES.declared() == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lateness = -1", "lateness: expected 0 to 315532800 seconds"),
        ("lateness = 1e11", "lateness: expected 0 to 315532800 seconds"),
        ("lateness = nan", "lateness: expected 0 to 315532800 seconds"),
        ("event_time = '$'", "event_time: '$' is no place of a time in a payload: expected as"),
        ("event_time = '$.a..b'", "expected as 'meta.at' or '$.meta.at'"),
        ("latenes = 1", "no key 'latenes'; did you mean lateness? Known are event_time, lateness"),
        ("zzz = 1", "no key 'zzz'; known are event_time, lateness, decode, alert, table, sink"),
        ('[[tabel]]\nname = "a"', "there is no key 'tabel'; did you mean table?"),
        (
            '[[decode]]\ntopics = "b"\n[[decode]]\ntopic = "a"',
            "decode[1]: there is no key 'topic'; did you mean topics? Known are topics, as,",
        ),
        (
            f"{TABLE}columns.a = {{ from = '$', typ = 'INT' }}",
            "columns[...]: there is no key 'typ'; did you mean type? Known are from, type",
        ),
        ('"a` - at `$.b" = 1', "unknown field `a` - at `$.b`"),
        (f"{TABLE}column.a = '$ INT'", "there is no key 'column'; did you mean columns?"),
        ('[[decode]]\ntopics = "a"\nas = "json"', "expected one of application/json, text/json, "),
        ('[[decode]]\nas = "text/plain"', "topics"),
        ('[[decode]]\ntopics = "a/#/b"', "# must be the last level"),
        ('[[decode]]\ntopics = "a"\nas = "image/png"', "no decoder for 'image/png'"),
        ('[[alert]]\nname = "a"\ntopic = "x/#"\nsql = ""', "'x/#' is no topic to publish to"),
        ('[[alert]]\nname = "a"\ntopic = "x"\nsql = ""\nqos = 3', "qos is 0, 1 or 2, got 3"),
        ('[[alert]]\nname = "a"\ntopic = "x"\nsql = ""\n' * 2, "two are named 'a'"),
        ("x = [", "rules.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SettingError) as error:
        rules_of(tmp_path, text)
    assert complaint in str(error.value)
    assert "rules.toml" in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot read the rules"):
        read_rules(tmp_path / "none.toml")
