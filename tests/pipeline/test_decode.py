"""Payloads and the readings that must come of them."""

from __future__ import annotations

import json
import math
from typing import Any

import cbor2
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.pipeline.decode import VALUES, Leaf, Undecodable, leaves

NESTED: dict[str, Any] = {
    "cpu": [{"load": 0.5, "on": True}],
    "name": "pi",
    "none": None,
    "empty": {},
}
NESTED_LEAVES = [
    Leaf("cpu[0].load", 0.5, None),
    Leaf("cpu[0].on", 1.0, "true"),
    Leaf("name", None, "pi"),
]


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (json.dumps(NESTED).encode(), ""),
        (json.dumps(NESTED).encode(), "application/json; charset=utf-8"),
        (json.dumps(NESTED).encode(), "application/senml+json"),
        (cbor2.dumps(NESTED), "application/cbor"),
        (msgpack.packb(NESTED), "application/msgpack"),
    ],
)
def test_one_leaf_a_value(payload: bytes, content_type: str) -> None:
    assert leaves(payload, content_type) == NESTED_LEAVES


@pytest.mark.parametrize(
    ("payload", "content_type", "expected"),
    [
        (b"21.5", "", [Leaf("", 21.5, None)]),
        (b" -3e2\n", "", [Leaf("", -300.0, None)]),
        (b"+.5", "", [Leaf("", 0.5, None)]),
        (b"007", "", [Leaf("", 7.0, None)]),
        (b"1_000", "", []),
        (b"NaN", "", []),
        (b"1e999", "", []),
        (b"hello", "", []),
        (b'"hello"', "", [Leaf("", None, "hello")]),
        (b"true", "", [Leaf("", 1.0, "true")]),
        (b"", "", []),
        (b"\xff\xfe1", "", []),
        (b'{"a": NaN}', "", []),
        (b"9007199254740993", "", [Leaf("", 9007199254740992.0, "9007199254740993")]),
        (b"hello", "text/plain", [Leaf("", None, "hello")]),
        (b"21.5", "text/plain", [Leaf("", 21.5, None)]),
        (b"21.5", "image/png", []),
        (b"21.5", "application/octet-stream", []),
        (cbor2.dumps({1: 2}), "application/cbor", [Leaf("[1]", 2.0, None)]),
        (cbor2.dumps({"1": 2}), "application/cbor", [Leaf("1", 2.0, None)]),
        (cbor2.dumps({b"\1": 2}), "application/cbor", [Leaf("[h'01']", 2.0, None)]),
        (cbor2.dumps(cbor2.CBORTag(1234, 5)), "application/cbor", []),
        (msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "application/msgpack", []),
        (b"9007199254740993", "text/plain", [Leaf("", 2.0**53, "9007199254740993")]),
        (b"+9007199254740993", "", [Leaf("", 2.0**53, "9007199254740993")]),
        (b"1" * 2000, "text/plain", [Leaf("", None, "1" * 2000)]),
        (b"1" * 2000, "", [Leaf("", None, "1" * 2000)]),
    ],
)  # fmt: skip
def test_plain_and_opaque(payload: bytes, content_type: str, expected: list[Leaf]) -> None:
    assert leaves(payload, content_type) == expected


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b"{", "application/json"),
        (b"\xff", "text/plain"),
        (b"\xff\xff", "application/cbor"),
        (b"21.5", "application/cbor"),  # -19, and three bytes more
        (b"\xa1\x81\x01\x02", "application/cbor"),  # {[1]: 2}
        (b"\xa1\xf9\x7e\x00\x02", "application/cbor"),  # {NaN: 2}
        (b"\xc1", "application/msgpack"),
        (b"[" * 100_000 + b"]" * 100_000, "application/json"),
        (json.dumps([0] * VALUES).encode(), "application/json"),
    ],
)
def test_declared_but_not_decodable(payload: bytes, content_type: str) -> None:
    with pytest.raises(Undecodable):
        leaves(payload, content_type)


def test_shared_references_cannot_multiply() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    payload = cbor2.dumps(value, value_sharing=True)
    with pytest.raises(Undecodable):
        leaves(payload, "application/cbor")


LONG = "k" * 500_000
TEXT_OF_LONG = cbor2.dumps(LONG)


@pytest.mark.parametrize(
    "payload",
    [
        json.dumps({LONG: [1] * 90_000}).encode(),
        b"\xd9\x01\x00\x9f" + TEXT_OF_LONG + b"\xd8\x19\x00" * 90_000 + b"\xff",
        b"\x9f\xd8\x1c" + TEXT_OF_LONG + b"\xd8\x1d\x00" * 90_000 + b"\xff",
        b"\xd9\x01\x00\x9f\xa1" + TEXT_OF_LONG + b"\1" + b"\xa1\xd8\x19\0\1" * 9_000 + b"\xff",
    ],
    ids=["long key", "text by number", "shared text", "key by number"],
)
def test_a_few_bytes_cannot_become_many(payload: bytes) -> None:
    declared = "application/json" if payload[:1] == b"{" else "application/cbor"
    with pytest.raises(Undecodable, match="characters"):
        leaves(payload, declared)
    assert leaves(payload, "") == []


def test_what_is_known_already_counts_as_much() -> None:
    """Paths are remembered: whether a message is decoded must not hang on those before it."""
    many = {str(one): {f"k{key:08}": 1 for key in range(900)} for one in range(85)}
    payload = json.dumps({"p" * 140: many}).encode()
    for _ in range(3):
        with pytest.raises(Undecodable, match="paths and texts of more than"):
            leaves(payload, "application/json")


def test_what_would_take_hours_to_understand_is_text() -> None:
    pattern = "(?i)" + "[\0-\U0010ffff]" * 10_000
    payload = b"\xd8\x23" + cbor2.dumps(pattern)
    assert leaves(payload, "application/cbor") == [Leaf("", None, pattern)]


def test_different_places_have_different_paths() -> None:
    value = {"a.b": 1, "a": {"b": 2}, "a[0]": 3, "": 4, 'q"': 5}
    halves = b', "\\ud800": 6, "\\ud801": 7, "?": 8}'  # of characters
    payload = json.dumps(value).encode()[:-1] + halves
    assert [leaf.path for leaf in leaves(payload, "")] == [
        '["a.b"]', "a.b", '["a[0]"]', '[""]', '["q\\""]', '["\\ud800"]', '["\\ud801"]', "?",
    ]  # fmt: skip


@pytest.mark.parametrize("content_type", ["", "text/plain"])
def test_what_only_looks_like_a_number_is_text(content_type: str) -> None:
    for payload in (b"\x1c0", b"\xc2\xa07", "٣".encode()):
        assert all(leaf.value is None for leaf in leaves(payload, content_type))


@given(st.binary(), st.sampled_from(["", "text/plain", "application/cbor", "application/msgpack"]))
def test_garbage_is_never_more_than_undecodable(payload: bytes, content_type: str) -> None:
    try:
        found = leaves(payload, content_type)
    except Undecodable:
        assert content_type
        return
    assert all(leaf.value is None or math.isfinite(leaf.value) for leaf in found)
    assert all((leaf.text or "").encode() is not None for leaf in found)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON)
def test_any_json_has_unique_paths(value: Any) -> None:
    found = leaves(json.dumps(value, ensure_ascii=True).encode(), "application/json")
    assert len({leaf.path for leaf in found}) == len(found)
