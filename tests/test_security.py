"""The page of what was tried says what the runs counted, and every line of it is a test."""

from __future__ import annotations

import pytest

from tests.security import PAGE, ROOT, TABLES, TRIED, known, page


def test_the_page_says_what_was_counted() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "write it anew: python -m tests.security"


@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_empty(name: str) -> None:
    assert known()[name]


def test_each_line_is_of_tests_that_are_there() -> None:
    for one in TRIED:
        for test in one.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / "tests" / file).read_text(), test
        assert known()["tried"][one.attack]["count"] > 0, one.attack
    assert set(known()["tried"]) == {one.attack for one in TRIED}
