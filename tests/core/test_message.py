"""The properties of a row, which are written without `json` where they are plain."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.message import properties_column

PLAIN = st.text() | st.integers() | st.just(True)
VALUES = PLAIN | st.booleans() | st.none() | st.floats(allow_nan=False) | st.lists(st.text())


@given(st.dictionaries(st.text(), PLAIN) | st.dictionaries(st.text(), VALUES))
def test_properties_read_as_json_writes_them(properties: dict[str, object]) -> None:
    said = properties_column(properties)
    assert said == (json.dumps(properties, separators=(",", ":")).encode() if properties else b"")


def test_names_whose_bytes_are_no_text_come_back() -> None:
    said = properties_column({"user": "\udcff", "expiry": -1})
    assert json.loads(said) == {"user": "\udcff", "expiry": -1}


def test_names_that_are_no_text_are_written_as_json_does() -> None:
    """A program may give what the types do not."""
    given: dict[str, object] = {1: "a", None: 2}  # type: ignore[dict-item]
    assert json.loads(properties_column(given)) == json.loads(json.dumps(given))
