"""Names that somebody meant who wrote another one."""

from __future__ import annotations

from hubbub.spelling import meant


def test_the_name_most_like_it() -> None:
    known = ("topics", "as", "event_time")
    assert meant("topic", known) == "did you mean topics?"
    assert meant("evnet_time", iter(known)) == "did you mean event_time?"
    assert meant("zzz", known) == ""
    assert meant("zzz", known, "there is none") == "there is none"
    assert meant("topic", known, like=1.0) == ""
