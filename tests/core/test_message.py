"""The properties of a row, which are written without `json` where they are plain."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.message import properties_column, read_json

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


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.sampled_from(("\udcff", "a\udc80b")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(_anything, st.booleans())
def test_what_rows_say_is_read_as_pythons_own_reader_does(value: object, escaped: bool) -> None:
    column = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogateescape")
    try:
        expected = json.loads(column)
    except ValueError:
        with pytest.raises(ValueError):
            read_json(column)
        return
    assert read_json(column) == expected
