"""All that holds arrives however much it is, and is not told again while it is on its way."""

from __future__ import annotations

import pytest

from hubbub.cluster import frames, whole
from hubbub.cluster.membership import _TAKES
from hubbub.core.limits import CLUSTER_WHOLE_BYTES
from tests.cluster.world import World


def all_of(world: World, name: str) -> frames.Whole:
    return world.members[name].whole(0)


def test_what_is_long_to_read_comes_in_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.cluster.whole.CLUSTER_WHOLE_BYTES", 4_000)
    world = World(names=("a", "b"))
    readers = [world.client("a", f"client-{number}") for number in range(500)]
    for number, reader in enumerate(readers):
        reader.wish(f"t/{number}")
    world.meet()
    node = world.members["b"].nodes["a"]
    assert len(node.clients) == 501 and len(node.estate.wants) == 500
    assert node.number_there and not node.asking and not node.more
    assert not world.members["b"].hearing.refused
    readers[7].broker.disconnect(readers[7], "lost")
    world.members["b"].nodes["a"].ask()
    world.wait(1)
    assert len(node.clients) == 500 and not node.asking


def test_parts_are_all_of_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [(number, "p", b"%d" % number, 1) for number in range(100)]
    held = [
        frames.Holding("a", 0, [(b"f%d" % one, True, False) for one in range(7)], []),
        frames.Holding("b", 1, [], [("p", b"%d" % one, one) for one in range(300)]),
    ]
    all_ = frames.Whole(3, 9, clients, [b"w"], held, [("p", b"x", 4)])
    monkeypatch.setattr("hubbub.cluster.whole.CLUSTER_WHOLE", 50)
    parts = list(whole._cut(all_))
    assert len(parts) > 8 and whole._together(parts) == all_


def test_a_part_that_is_missing_makes_none_of_it_known() -> None:
    world = World(names=("a", "b"))
    world.client("a", "ann")
    world.meet()
    here, node = world.members["b"], world.members["b"].nodes["a"]
    empty = frames.Whole(0, node.number_there, [], [], [])
    for numbers in ((2,), (1, 3), (3,)):
        for number in numbers:
            list(here.hearing.said_by(node, [frames.More(number, 3, empty)]))
    assert len(node.clients) == 2
    list(here.hearing.said_by(node, [frames.More(1, 3, empty)]))
    node.lost()
    for number in (2, 3):
        list(here.hearing.said_by(node, [frames.More(number, 3, empty)]))
    assert len(node.clients) == 2
    for number in (1, 2, 3):
        list(here.hearing.said_by(node, [frames.More(number, 3, empty)]))
    assert len(node.clients) == 1


def test_a_part_that_is_refused_has_all_of_it_asked_for_again() -> None:
    world = World(names=("a", "b"))
    world.meet()
    here, node = world.members["b"], world.members["b"].nodes["a"]
    empty = frames.Whole(0, node.number_there, [], [], [])
    list(here.hearing.said_by(node, [frames.More(1, 3, empty)]))
    list(here.hearing.said_by(node, [frames.Part(True, b"no record")]))
    assert here.hearing.refused
    node.asking = 99
    world.wait(2)
    assert not node.asking


def test_what_others_do_not_take_is_said_without_long_names_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hubbub.cluster.whole.CLUSTER_WHOLE_BYTES", 20_000)
    monkeypatch.setattr("hubbub.cluster.whole.CLUSTER_HOLDS_BYTES", 200_000)
    world = World(names=("a", "b"))
    for number in range(10):
        world.client("a", f"{number}" + "x" * 60_000)
    world.client("a", "ann")
    world.meet()
    names = {one.client for one in world.members["b"].nodes["a"].clients.values()}
    assert names == {"hub", "ann"} and "long names" in caplog.text
    for number in range(10_000):
        world.client("a", f"client-{number}")
    world.add("c")
    world.wait(1)
    assert "a" in world.members["c"].nodes and not world.members["c"].met("a")
    assert "they do not hear of it" in caplog.text


def test_who_waits_for_an_answer_asks_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(names=("a", "b"))
    world.meet()
    told: list[str] = []
    monkeypatch.setitem(_TAKES, frames.Ask, lambda here, node, one: told.append(node.name))
    world.members["b"].nodes["a"].ask()
    world.wait(40)
    assert 4 <= len(told) <= 9
    told.clear()
    world.members["b"].nodes["a"].parts += b"it comes"
    world.wait(10)
    assert not told


def test_an_answer_that_is_on_its_way_is_not_said_again() -> None:
    world = World(names=("a", "b"))
    for number in range(60):
        world.client("a", f"{number}" + "x" * 60_000)
    world.meet()
    lines, node = world.lines("a"), world.members["a"].nodes["b"]
    world.wait(5)
    for question in range(20):
        whole.asked(world.members["a"], node, frames.Ask(question + 1))
    world.tick()
    assert sum(map(len, lines.lines["b"])) < 5_000_000
    world.wait(2)
    assert node.question == 0 and world.members["b"].nodes["a"].asking == 0
    lines.waits = 10_000_000
    whole.asked(world.members["a"], node, frames.Ask(99))
    assert node.question == 99
    lines.waits = 0
    node.link.choked = True  # as when very much waits for a quorum
    node.link.held_bytes = 100_000_000
    world.wait(1)
    assert node.question == 0


def test_only_messages_may_be_as_long_as_they_are() -> None:
    many = frames.Whole(0, 1, [], [b"x" * 60_000] * (CLUSTER_WHOLE_BYTES // 60_000 + 1), [])
    said = frames.Said(
        0, "p", b"", b"t", b"", 0, False, False, b"x" * (CLUSTER_WHOLE_BYTES + 10_000), 1, [], 0,
        "", False,
    )  # fmt: skip
    assert frames.read(frames.piece(said)[4:]) == said
    for record in (many, frames.More(1, 2, many)):
        data = frames.piece(record)[4:]
        with pytest.raises(frames.Foreign, match="not so long"):
            frames.read(data)
        wide = b"\xdc\x00" + bytes((data[0] & 15,)) + data[1:]  # the same in other words
        with pytest.raises(frames.Foreign, match="not so long"):
            frames.read(wide)


def watched_at(world: World, name: str) -> set[str]:
    """What is observed there."""
    return set(world.members[name].broker.observers.names)


def counting_all(world: World, name: str) -> None:
    member = world.members.get(name) or world.add(name)
    member.counts_all = True
    observers = member.broker.observers
    observers.elsewhere, observers.watched = member._elsewhere, member._watched


def test_a_node_watches_what_clients_of_others_observe_there_and_nothing_else() -> None:
    world = World(names=())
    for name in "ab":
        counting_all(world, name)
    world.wait(2)
    sees, seen = world.client("a", "sees"), world.client("b", "seen")
    world.wait(1)
    observers = world.members["a"].broker.observers
    observers.observe(sees, f"$client/{seen.number}")
    observers.observe(sees, "t")
    world.wait(1)
    counting_all(world, "c")
    world.wait(3)
    assert watched_at(world, "b") == watched_at(world, "c") == {"t"}
    b, c = world.members["b"], world.members["c"]
    assert c.nodes["b"].estate not in c.broker.observers.names["t"], "b has nobody for it"
    observers.unobserve(sees, "t")
    world.wait(1)
    assert not watched_at(world, "b") and not watched_at(world, "c")
    assert not b.hearing.refused and not c.hearing.refused


def test_what_is_observed_no_more_is_forgotten_also_if_that_was_lost() -> None:
    world = World(names=())
    for name in "ab":
        counting_all(world, name)
    world.wait(2)
    sees = world.client("a", "sees")
    observers = world.members["a"].broker.observers
    observers.observe(sees, "t")
    world.wait(1)
    assert watched_at(world, "b") == {"t"}
    world.cut.update("ab")
    observers.unobserve(sees, "t")
    world.carry()
    world.cut.clear()
    world.wait(4)
    assert not watched_at(world, "b")


def test_what_an_estate_wants_is_not_believed_any_more_once_another_node_has_it() -> None:
    world = World(names=("a", "b", "c"))
    world.meet()
    here = world.members["a"]
    b, c = here.nodes["b"], here.nodes["c"]
    assert here.holds(b, "x@5", 1) is not None
    wants = [(b"%d" % number, True, False) for number in range(10)]
    lasts = [("mqtt", b"ann", 1)]
    record = frames.Whole(0, b.number_there, [], [], [frames.Holding("x@5", 1, wants, lasts)])
    pieces = whole.hear(here, b, record)
    while len(here.estates["x@5"].wants) < 5:
        next(pieces)
    assert here.holds(c, "x@5", 2) is not None
    for _ in pieces:
        pass
    assert len(here.estates["x@5"].wants) <= 5
    assert not here.directory.there.get("x@5") and here.estates["x@5"].holder is c
