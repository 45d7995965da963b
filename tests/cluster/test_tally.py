"""Whose it is that waits for another node: never less than is there, at most a page more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hubbub.cluster import tally
from hubbub.cluster.tally import Tally
from hubbub.core.rights import Rights
from hubbub.core.session import Session


def of_user(name: str) -> Session:
    session = Session("p", name, Rights())
    session.user, session.address = name, ""
    return session


USERS = [of_user(name) for name in ("ann", "bob", "")]
STEPS = st.lists(st.tuples(st.sampled_from(range(3)), st.integers(0, 9_000), st.integers(0, 9_000)))


@given(STEPS)
def test_a_user_has_what_waits_and_at_most_a_page_more(steps: list[tuple[int, int, int]]) -> None:
    found, waits, first, end = Tally(), list[tuple[int, int, int]](), 7, 7
    for user, count, gone in steps:
        end += count
        found.add(USERS[user], count, end)
        waits.append((user, end - count, end))
        first = min(end, first + gone)
        found.settle(first)
        for number, session in enumerate(USERS[:2]):
            there = sum(
                upto - max(start, first) for whose, start, upto in waits
                if whose == number and upto > first
            )  # fmt: skip
            longest = max(count for _, count, _ in steps)
            assert there <= found.of(session) <= there + tally.PAGE + longest
    assert not found.of(USERS[2]), "the hub's own are nobody's"
    found.settle(end)
    assert not any(found.of(session) for session in USERS)


def test_what_is_thrown_away_again_is_nobodys() -> None:
    found = Tally()
    found.add(USERS[0], 0, 20)
    assert found.of(USERS[0]) == 0
