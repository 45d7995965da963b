"""Tables with one bound for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.caches import FREED, Caches

MOST = 7


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9))))
def test_all_tables_together_stay_within_the_bound(kept: list[tuple[int, int]]) -> None:
    caches = Caches(MOST)
    tables: list[dict[Any, Any]] = [{} for _ in range(5)]
    for table, name in kept:
        caches.keep(tables[table], name, str(name))
        assert tables[table][name] == str(name)
        assert sum(map(len, tables)) == len(caches) <= MOST


def test_an_answer_that_is_replaced_takes_no_more_room() -> None:
    caches, table = Caches(MOST), dict[str, int]()
    for number in range(100):
        caches.keep(table, "a", number)
    assert table == {"a": 99} and len(caches) == 1


def test_tables_that_were_dropped_are_let_go_of_at_the_bound() -> None:
    emptied: list[str] = []
    caches = Caches(MOST, lambda: emptied.append("all"))
    tables: list[dict[int, int]] = [{} for _ in range(MOST + 1)]
    for table in tables:
        caches.keep(table, 1, 1)
    assert emptied == ["all"] and tables == [*[{}] * MOST, {1: 1}]


def test_what_was_thrown_away_goes_little_by_little() -> None:
    """All at once would keep everybody waiting."""
    caches, table = Caches(100), dict[int, Thing]()
    for number in range(101):
        caches.keep(table, number, Thing())
    gone = [100 - Thing.alive + 1]
    for number in range(101, 120):
        caches.keep(table, number, Thing())
        gone.append(number + 1 - Thing.alive)
    assert gone == [min(100, FREED * number) for number in range(20)]


class Thing:
    """Counts how many of it there are."""

    alive = 0

    def __init__(self) -> None:
        Thing.alive += 1

    def __del__(self) -> None:
        Thing.alive -= 1


def test_a_table_may_lose_what_it_has_in_another_way() -> None:
    caches, table = Caches(MOST), dict[int, int]()
    for number in range(5 * MOST):
        caches.keep(table, number, number)
        del table[number]
    assert not table and len(caches) <= MOST
