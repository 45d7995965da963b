"""The page about conformance is what the tests say, and no statement about servers is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.protocols.mqtt import specification as spec
from tests.protocols.mqtt.conformance import PAGE, TABLES, codes, held, marked, page


def test_the_page_is_up_to_date() -> None:
    said = "run: python -m tests.protocols.mqtt.conformance"
    assert PAGE.read_text() == page(), said


def test_markers_name_statements_that_exist() -> None:
    known = {(standard, one.number) for standard, table in TABLES.items() for one in table}
    assert set(held()) <= known


@pytest.mark.parametrize("standard", TABLES)
def test_every_statement_about_servers_has_a_test(standard: str) -> None:
    tests = held()
    assert [
        one.number
        for one in TABLES[standard]
        if one.binds == "s" and (standard, one.number) not in tests
    ] == []


@pytest.mark.parametrize("standard", TABLES)
def test_each_statement_is_there_once(standard: str) -> None:
    numbers = [one.number for one in TABLES[standard]]
    assert len(numbers) == len(set(numbers)) > 100
    assert all(one.binds in "scx" for one in TABLES[standard])
    assert all(" — " in one.words for one in TABLES[standard] if one.binds == "x")


def test_every_reason_code_is_explained_and_those_that_are_sent_are_tested() -> None:
    assert list(codes()) == sorted(spec.REASONS)
    tests = "".join(path.read_text().lower() for path in Path(__file__).parent.glob("test_*.py"))
    sent = {code for code, words in codes().items() if not words.startswith("- ")}
    assert [f"{code:#04x}" for code in sorted(sent) if f"{code:#04x}" not in tests] == []


def test_a_marker_is_read_from_the_source() -> None:
    source = """
@pytest.mark.parametrize("x", [1])
@pytest.mark.holds(v5="1.5.4-1 1.5.4-2", v3="1.5.3-1")
async def test_it(x): pass
"""
    assert list(marked(source)) == [
        ("test_it", "v5", "1.5.4-1"), ("test_it", "v5", "1.5.4-2"), ("test_it", "v3", "1.5.3-1"),
    ]  # fmt: skip
