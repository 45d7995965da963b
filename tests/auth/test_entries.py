"""Permissions as entries: nodes that change the same document agree, and what an admin took away
no other change brings back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from hubbub.auth import dynamic_commands
from hubbub.auth.dynamic import Book, book_of, tree_of
from hubbub.auth.entries import Entries


class Side:
    """A node with its book."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.book = Book()
        self.entries = Entries()

    def do(self, at: int, *commands: dict[str, Any]) -> list[Any]:
        dynamic_commands.run(self.book, json.dumps({"commands": commands}).encode())
        return self.entries.note(tree_of(self.book), at, self.name)

    def hear(self, told: list[Any]) -> None:
        self.entries.merge(told)
        self.book = book_of(self.entries.tree())

    def meet(self, other: Side) -> None:
        mine, theirs = self.entries.whole(), other.entries.whole()
        self.hear(theirs)
        other.hear(mine)
        assert same(self) == same(other)


def same(side: Side) -> Any:
    tree = tree_of(side.book)
    return {
        name: sorted(value, key=str) if isinstance(value, list) else value
        for name, value in tree.items()
    }


def c(command: str, **more: Any) -> dict[str, Any]:
    return {"command": command, **more}


@pytest.fixture
def two() -> tuple[Side, Side]:
    a, b = Side("a"), Side("b")
    a.do(
        10, c("createRole", rolename="reader"), c("createRole", rolename="writer"),
        c("createGroup", groupname="staff", roles=[{"rolename": "reader"}]),
        c("createClient", username="ann", password="x", roles=[{"rolename": "writer"}]),
        c("addGroupClient", groupname="staff", username="ann"),
    )  # fmt: skip
    b.meet(a)
    assert b.book.clients["ann"].roles == {"writer": -1}
    assert b.book.groups_of("ann") == {"staff": -1}
    return a, b


TAKEN: dict[str, tuple[dict[str, Any], Callable[[Book], bool]]] = {
    "role": (c("removeClientRole", username="ann", rolename="writer"),
             lambda book: "writer" not in book.clients["ann"].roles),
    "client": (c("deleteClient", username="ann"), lambda book: "ann" not in book.clients),
    "group": (c("removeGroupClient", groupname="staff", username="ann"),
              lambda book: not book.groups_of("ann")),
    "disabled": (c("disableClient", username="ann"), lambda book: book.clients["ann"].disabled),
    "role itself": (c("deleteRole", rolename="writer"), lambda book: "writer" not in book.roles),
    "group itself": (c("deleteGroup", groupname="staff"), lambda book: not book.groups),
}  # fmt: skip
OTHER = [
    c("modifyClient", username="ann", textname="Ann"),
    c("setClientPassword", username="ann", password="y"),
    c("addClientRole", username="ann", rolename="reader"),
    c("addRoleACL", rolename="writer", acltype="publishClientSend", topic="a", allow=True),
    c("createClient", username="bob", password="z", roles=[{"rolename": "writer"}]),
    c("addGroupRole", groupname="staff", rolename="writer"),
]  # fmt: skip


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("other", OTHER, ids=lambda one: str(one["command"]))
@pytest.mark.parametrize("later", [11, 13])
def test_what_was_taken_away_stays_away_whatever_else_is_changed(
    two: tuple[Side, Side], taken: str, other: dict[str, Any], later: int
) -> None:
    a, b = two
    command, is_taken = TAKEN[taken]
    a.do(12, command)
    b.do(later, other)
    a.meet(b)
    assert is_taken(a.book)


def test_of_two_that_change_the_same_the_later_one_counts(two: tuple[Side, Side]) -> None:
    a, b = two
    a.do(12, c("modifyClient", username="ann", textname="from a"))
    b.do(13, c("modifyClient", username="ann", textname="from b"))
    a.meet(b)
    assert a.book.clients["ann"].texts["textname"] == "from b"


def test_who_is_made_anew_has_nothing_of_before(two: tuple[Side, Side]) -> None:
    a, b = two
    b.do(11, c("addClientRole", username="ann", rolename="reader"))  # nobody else heard of it
    a.do(12, c("deleteClient", username="ann"))
    a.do(13, c("createClient", username="ann", password="new"))
    a.meet(b)
    assert b.book.clients["ann"].roles == {} and b.book.groups_of("ann") == {}


def test_a_clock_that_is_behind_makes_no_change_older_than_what_it_changes(
    two: tuple[Side, Side]
) -> None:
    a, b = two
    b.do(3, c("disableClient", username="ann"))
    a.meet(b)
    assert a.book.clients["ann"].disabled


def test_what_the_file_says_comes_back_with_its_times_and_edits_are_later(
    two: tuple[Side, Side]
) -> None:
    a, b = two
    b.do(12, c("removeClientRole", username="ann", rolename="writer"))
    tree = tree_of(b.book)
    again = Side("b")
    again.entries.recall(json.loads(json.dumps(b.entries.saved())), tree)
    again.book = book_of(tree)
    assert dict(again.entries.known) == dict(b.entries.known)
    tree["clients"][0]["disabled"] = True
    tree["clients"][0]["roles"] = []
    edited = Side("b")
    edited.entries.recall(b.entries.saved(), tree)
    assert {one.key[2:] for one in edited.entries.note(tree, 5, "b")} == {("word", "disabled")}
    edited.book = book_of(tree)
    a.meet(edited)
    assert a.book.clients["ann"].disabled and "writer" not in a.book.clients["ann"].roles


def test_rules_of_one_priority_keep_their_order(two: tuple[Side, Side]) -> None:
    a, b = two
    for at, topic in enumerate("zyxab"):
        rule = c("addRoleACL", rolename="writer", acltype="publishClientSend", topic=topic)
        a.do(20 + at, {**rule, "allow": at % 2 == 0})
    a.meet(b)
    order = [rule.topic for rule in a.book.roles["writer"].of("publishClientSend")]
    assert order == list("zyxab")
    assert order == [rule.topic for rule in b.book.roles["writer"].of("publishClientSend")]


def test_reading_the_file_again_edits_no_rule(two: tuple[Side, Side]) -> None:
    a, _ = two
    rule = c("addRoleACL", rolename="writer", allow=True)
    for at, topic in enumerate("xyz"):
        a.do(20 + at, {**rule, "acltype": "publishClientSend", "topic": topic})
        a.do(30 + at, {**rule, "acltype": "subscribePattern", "topic": topic})
    a.do(40, c("removeRoleACL", rolename="writer", acltype="publishClientSend", topic="y"))
    again, tree = Entries(), tree_of(a.book)
    again.recall(a.entries.saved(), tree)
    assert again.note(tree, 50, "a") == []
    rules = tree["roles"][1]["acls"]
    assert [one["topic"] for one in rules] == ["x", "z", "x", "y", "z"]
    rules[:2] = reversed(rules[:2])
    edited = Entries()
    edited.recall(a.entries.saved(), tree)
    assert [one.key[3:] for one in edited.note(tree, 50, "a")] == [("publishClientSend", "x")]


@pytest.mark.parametrize("seed", range(40))
def test_nodes_agree_in_whatever_order_they_hear(seed: int) -> None:
    chance = random.Random(seed)
    sides = [Side(name) for name in "abc"]
    told: list[tuple[Side, list[Any]]] = []
    for at in range(1, 60):
        side = chance.choice(sides)
        news = side.do(at + chance.randrange(-5, 5) + 10, anything(chance))
        told += [(other, news) for other in sides if other is not side]
        while told and chance.random() < 0.4:
            other, some = told.pop(chance.randrange(len(told)))
            if chance.random() < 0.8:
                other.hear(some)
    for one in sides:
        for other in sides:
            if one is not other:
                one.meet(other)
    for side in sides[1:]:
        side.meet(sides[0])
    assert same(sides[0]) == same(sides[1]) == same(sides[2])


def anything(chance: random.Random) -> dict[str, Any]:
    names = {"username": chance.choice(["ann", "bob"]), "rolename": chance.choice(["r", "s"]),
             "groupname": chance.choice(["g", "h"])}  # fmt: skip
    command = chance.choice([
        "createClient", "deleteClient", "disableClient", "enableClient", "createRole", "deleteRole",
        "createGroup", "deleteGroup", "addClientRole", "removeClientRole", "addGroupClient",
        "removeGroupClient", "addGroupRole", "addRoleACL", "removeRoleACL", "setAnonymousGroup",
    ])  # fmt: skip
    return {"command": command, **names, "acltype": "publishClientSend", "allow": True,
            "topic": chance.choice("xyz"), "priority": chance.randrange(3)}  # fmt: skip
