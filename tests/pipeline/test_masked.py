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
        ("postgresql://u:a/b?c#d@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:p@ss@h/x", "postgresql://u:***@h/x"),
        ("host=h password='a b' user=u", "host=h password=*** user=u"),
        ("{'s3.secret-access-key': 'geheim', 'uri': 'x'}",
         "{'s3.secret-access-key': ***, 'uri': 'x'}"),
        ("cannot read the password file x: no such file",
         "cannot read the password file x: no such file"),
        ("http://h:80/x and nobody@example.org", "http://h:80/x and nobody@example.org"),
    ],
)  # fmt: skip
def test_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
