"""The options of `format("hubbub")`: what they may say, and that a wrong one is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hubbub.errors import SettingError
from hubbub.spark.filters import Choice
from hubbub.spark.options import EARLIEST, LATEST, READ, WRITE, Options


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, EARLIEST),
        ({"startingOffsets": "latest"}, LATEST),
        ({"startingoffsets": "7"}, 7),
        ({"startingOffsets": '{"0": 7}'}, 7),
        ({"startingOffsets": '{"0": -1}'}, LATEST),
        ({"startingOffsets": '{"6f": 3}'}, EARLIEST),
        ({"startingOffsets": '{"6f": 3, "*": 9}'}, 9),
    ],
)
def test_starting_offsets(given: Mapping[str, str], start: int) -> None:
    assert Options(given).start.of("ab", "0") == start


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "soon"},
        {"startingOffsets": '{"1": "x"}'},
        {"startingOffsets": "[]"},
        {"startingOffsets": "true"},
        {"endingOffsets": "earliest"},
        {"maxOffsetsPerTrigger": "-1"},
        {"failOnDataLoss": "perhaps"},
        {"startingTimestamp": "yesterday"},
        {"startingTimestamp": "2999-01-01"},
        {"url": "hub:8080"},
        {"tokenFile": "/nowhere/token"},
        {"token": "a", "tokenFile": "b"},
    ],
)
def test_a_bad_option_names_itself(given: Mapping[str, str]) -> None:
    with pytest.raises(SettingError, match=next(iter(given))):
        Options(given)


@pytest.mark.parametrize("option", ["kinds", "topics"])
@pytest.mark.parametrize("text", ["publish,shout/#/b", "a+/b,shout"])
def test_a_bad_choice_names_itself(option: str, text: str) -> None:
    with pytest.raises(SettingError, match=option):
        Choice(**{option: text})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTriger", "maxOffsetsPerTrigger"),
        ("topic", "topics"),
        ("uri", "url"),
        ("faildataloss", "failOnDataLoss"),
    ],
)
def test_a_misspelt_option_is_told_the_nearest_one(typed: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"did you mean {meant}?"):
        Options({typed: "1"})


def test_places_are_whole_and_each_once(tmp_path: Path) -> None:
    urls = "http://hub:1/,http://hub:1,http://hub:2/?process=1,http://hub:2?process=1"
    given = {"path": f"{tmp_path}/a, {tmp_path}/b,{tmp_path}/a", "url": urls}
    there = f"{tmp_path}/a", f"{tmp_path}/b", "http://hub:1", "http://hub:2?process=1"
    assert Options(given).places == there
    start = {"http://hub:2/?process=1": 7}
    assert Options({**given, "startingOffsets": json.dumps(start)}).start.of(there[-1]) == 7


def test_a_token_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame\n")
    assert Options({"tokenFile": str(tmp_path / "token")}).access.token == "sesame"


def test_the_document_has_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text("utf-8")
    for known in (READ, WRITE):
        for name, says in known.items():
            assert f"| `{name}` | {says} |" in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscribe", "topics"), ("subscribePattern", "topics"),
        ("kafka.bootstrap.servers", "url"), ("rowsPerBatch", "maxOffsetsPerTrigger"),
        ("maxRowsPerBatch", "maxOffsetsPerTrigger"), ("includeHeaders", "columns"),
        ("startingOffsetsByTimestamp", "startingTimestamp"),
    ],
)  # fmt: skip
def test_what_other_hubs_call_it_is_understood(name: str, meant: str) -> None:
    """By its letters `subscribe` was next to `caFile`."""
    with pytest.raises(SettingError, match=f"no option '{name.lower()}', did you mean {meant}"):
        Options({name: "x"})
