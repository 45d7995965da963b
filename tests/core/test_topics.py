"""The tree of filters answers like the rule for one filter, and forgets what was removed."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.limits import NAME_BYTES, NAME_LEVELS
from hubbub.core.message import SPELLED
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import (
    Filters,
    delayed_topic,
    has_wildcard,
    is_filter,
    is_name,
    matches,
    shared_filter,
)

LEVEL = st.sampled_from(["a", "b", "", "$x", "é"])
NAMES = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(is_name)
FILTERS = (
    st.lists(st.one_of(LEVEL, st.just("+")), max_size=4)
    .flatmap(lambda levels: st.sampled_from([levels, [*levels, "#"]]))
    .map("/".join)
    .filter(is_filter)
)


def wish(topic_filter: str, literal: bool = False, session: Session | None = None) -> Subscription:
    session = session or Session("test", "ann", Rights())
    return Subscription(session, topic_filter, 0, (SPELLED, SPELLED, SPELLED), literal)


@pytest.mark.parametrize(
    ("topic_filter", "name", "matched"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("+/#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/#", "a/$SYS", True),
    ],
)
def test_the_rules(topic_filter: str, name: str, matched: bool) -> None:
    assert matches(topic_filter, name) is matched
    filters = Filters()
    filters.add(wish(topic_filter))
    assert bool(filters.match(name)) is matched


@given(st.lists(FILTERS, max_size=12), st.lists(NAMES, max_size=6))
def test_the_tree_answers_like_the_rule(topic_filters: list[str], names: list[str]) -> None:
    filters = Filters()
    wishes = [wish(one) for one in topic_filters]
    for one in wishes:
        filters.add(one)
    for name in names:
        expected = sorted(one.filter for one in wishes if matches(one.filter, name))
        assert sorted(found.filter for found in filters.match(name)) == expected


@given(st.lists(st.tuples(FILTERS, st.booleans()), max_size=12), st.data())
def test_what_is_removed_leaves_nothing(made: list[tuple[str, bool]], data: st.DataObject) -> None:
    filters = Filters()
    wishes = [wish(one, literal) for one, literal in made]
    for one in wishes:
        filters.add(one)
    order = data.draw(st.permutations(wishes))
    for one in order:
        filters.remove(one)
        filters.remove(one)  # a second time does nothing
    assert not filters._root.below
    assert not filters._root.here
    assert not (filters._one or filters._many)


def test_a_session_has_one_subscription_a_filter() -> None:
    filters, session = Filters(), Session("test", "ann", Rights())
    for topic_filter in ("a/+", "a/b"):
        filters.add(wish(topic_filter, session=session))
        filters.add(again := wish(topic_filter, session=session))
    assert again in filters.match("a/b")
    assert len(filters.match("a/b")) == 2


def test_in_a_literal_subscription_wildcards_are_characters() -> None:
    filters = Filters()
    filters.add(wish("a/+", literal=True))
    assert not filters.match("a/b")
    assert len(filters.match("a/+")) == 1


@pytest.mark.parametrize("name", ["", "a/+", "a/#", "+", "#", "a\0b", "a/\udcff"])
def test_names_of_others_match_no_wildcard(name: str) -> None:
    """Who knows wildcards could not be told such a name."""
    filters = Filters()
    for topic_filter in ("#", "+", "a/#", "a/+"):
        filters.add(wish(topic_filter))
    assert not filters.match(name)
    filters.add(wish(name, literal=True))
    assert [found.filter for found in filters.match(name)] == [name]


@pytest.mark.parametrize("good", ["a", "/", "a//b", "+", "#", "+/+/#", "a/+/b", "é", "$SYS/#"])
def test_filters(good: str) -> None:
    assert is_filter(good)
    assert is_name(good) is not has_wildcard(good)


@pytest.mark.parametrize("bad", ["", "a#", "#/a", "a+", "+a/b", "a/#/b", "a\0", "\udcff"])
def test_what_is_no_filter(bad: str) -> None:
    assert not is_filter(bad)


@pytest.mark.parametrize("topic", ["$queue/", "$delayed/1/$queue/"])
def test_a_queue_has_a_name(topic: str) -> None:
    assert is_name(f"{topic}q") and is_name(f"{topic}/")
    assert not (is_name(topic) and delayed_topic(topic)[0])


def test_bounds_of_names() -> None:
    assert is_filter("/" * (NAME_LEVELS - 1))
    assert not is_filter("/" * NAME_LEVELS)
    assert is_name("x" * NAME_BYTES)
    assert not is_name("é" * (NAME_BYTES // 2 + 1))


class Counted(dict[str, object]):
    """What is below a level of the tree; counts how often it is looked at."""

    looks = 0

    def get(self, *key: Any) -> Any:
        Counted.looks += 1
        return super().get(*key)


@pytest.mark.parametrize("depth", [4, 8])
def test_no_name_costs_more_than_the_levels_of_all_filters(depth: int) -> None:
    """Each level of the tree is visited once at most, however many filters lead through it."""
    tree = Filters()
    for choice in product(("a", "+"), repeat=depth):
        tree.add(wish("/".join(choice)))
        tree.add(wish("/".join((*choice, "#"))))
    levels = 0
    todo = [tree._root]
    while todo:
        node = todo.pop()
        todo += node.below.values()
        node.below = Counted(node.below)  # type: ignore[assignment]
        levels += 1
    Counted.looks = 0
    assert len(tree.match("/".join("a" * depth))) == 2 ** (depth + 1)
    assert Counted.looks <= 3 * levels


@pytest.mark.parametrize("unit", ["/", "+/", "a/", "+", "#", "$share/", "\U0001f600"])
def test_filters_and_names_of_an_attacker_cost_linear_time(unit: str) -> None:
    """65,535 bytes of anything; with a regular expression some of these would never end."""
    long = unit * (65_535 // len(unit.encode()))
    started = time.process_time()
    for name in (long, long + "#", long + "a"):
        is_filter(name), is_name(name), shared_filter(name)
        for topic in ("a", "a/" * 30_000, "/" * 65_535):
            matches(name, topic)
    assert time.process_time() - started < 5
