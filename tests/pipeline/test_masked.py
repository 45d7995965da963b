"""Passwords in URLs are not said."""

from __future__ import annotations

import pytest

from hubbub.pipeline.masked import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg2://a:b@c/d@h:1/x", "postgresql+psycopg2://a:***@c/d@h:1/x"),
        ("cannot reach mysql://u:s3cret@h/x, sorry", "cannot reach mysql://u:***@h/x, sorry"),
        ("jdbc:postgresql://h/x?user=a&password=geheim&ssl=1",
         "jdbc:postgresql://h/x?user=a&password=***&ssl=1"),
        ("http://h:80/x and nobody@example.org", "http://h:80/x and nobody@example.org"),
    ],
)  # fmt: skip
def test_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
