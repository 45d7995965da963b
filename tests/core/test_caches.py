"""Tables with one bound for all of them."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.caches import FREED, Caches

MOST = 7


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans())))
def test_all_tables_together_stay_within_the_bound(kept: list[tuple[int, int, bool]]) -> None:
    caches = Caches(MOST)
    tables: list[dict[Any, Any]] = [{} for _ in range(5)]
    for table, name, leaves in kept:
        caches.keep(tables[table], name, str(name))
        assert tables[table][name] == str(name)
        if leaves:
            caches.forget(tables[table])
            assert not tables[table]
        assert sum(map(len, tables)) == len(caches) <= MOST


def test_an_answer_that_is_replaced_takes_no_more_room_unless_it_is_heavier() -> None:
    caches, table = Caches(MOST), dict[str, int]()
    for number in range(100):
        caches.keep(table, "a", number)
    assert table == {"a": 99} and len(caches) == 1
    caches.keep(table, "a", 1, 5)
    assert len(caches) == 5


def test_what_is_heavy_counts_as_many() -> None:
    caches, table = Caches(MOST), dict[int, int]()
    caches.keep(table, 1, 1, 4)
    caches.keep(table, 2, 2, 4)
    assert table == {2: 2} and len(caches) == 4
    caches.keep(table, 3, 3, 10 * MOST)
    assert table == {3: 3}, "one of any weight may be there"


def test_who_is_gone_takes_no_room() -> None:
    """Before, what it had stayed until all was full, with whomever it led to."""
    caches = Caches(MOST)
    for number in range(100):
        table: dict[int, int] = {}
        caches.keep(table, number, number)
        caches.forget(table)
    assert len(caches) == 0


def test_a_table_of_other_caches_is_not_touched() -> None:
    table = {1: 1}
    Caches(MOST).forget(table)
    assert table


class Owner:
    def __init__(self) -> None:
        self.table: dict[int, object] = {}


def test_a_table_goes_with_its_owner() -> None:
    caches = Caches(MOST)
    for number in range(5):
        owner = Owner()
        caches.goes_with(owner, owner.table)
        caches.keep(owner.table, number, number)
        assert len(caches) == 1
        del owner
        gc.collect()
        assert len(caches) == 0


def test_the_owner_goes_after_all_began_anew() -> None:
    caches, owner, others = Caches(MOST), Owner(), dict[int, int]()
    caches.goes_with(owner, owner.table)
    caches.keep(owner.table, 1, 1)
    for number in range(MOST):
        caches.keep(others, number, number)
    caches.goes_with(owner, owner.table)
    caches.keep(owner.table, 1, 1)
    before = len(caches)
    del owner
    gc.collect()
    assert len(caches) == before - 1


def test_all_begin_anew_at_the_bound_and_that_is_said() -> None:
    emptied: list[str] = []
    caches = Caches(MOST, lambda: emptied.append("all"))
    tables: list[dict[int, int]] = [{} for _ in range(MOST + 1)]
    for table in tables:
        caches.keep(table, 1, 1)
    assert emptied == ["all"] and tables == [*[{}] * MOST, {1: 1}]


class Thing:
    """Counts how many of it there are."""

    alive = 0

    def __init__(self) -> None:
        Thing.alive += 1

    def __del__(self) -> None:
        Thing.alive -= 1


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


def test_a_table_may_lose_what_it_has_in_another_way() -> None:
    caches, table = Caches(MOST), dict[int, int]()
    for number in range(5 * MOST):
        caches.keep(table, number, number)
        del table[number]
    assert not table and len(caches) <= MOST


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=40),
    st.integers(1, 10), st.integers(0, 20),
)  # fmt: skip
def test_what_is_stale_goes_and_nothing_else(
    kept: list[tuple[int, int, int]], most: int, stale: int
) -> None:
    caches = Caches(1000)
    tables: list[dict[int, int]] = [{} for _ in range(4)]
    for table, answer, weight in kept:
        caches.keep(tables[table], answer, answer, weight)
    left = [{name: one for name, one in table.items() if one >= stale} for table in tables]
    looks = 1
    while not caches.look(lambda answer: answer < stale, most):
        looks += 1
        assert looks <= 1 + len(kept) + 2 * len(tables)
    assert tables == left
    for one in tables:
        for name in list(one):
            caches.keep(one, name, name, 1)
    caches.look(lambda answer: True, 1000)
    assert len(caches) == 0 and not any(tables)
