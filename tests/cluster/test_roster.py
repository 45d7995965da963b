"""Nodes that are away, and nodes that are removed for good: what is shown, told, kept and heard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hubbub.cluster import frames, heritage
from hubbub.cluster.membership import Membership
from hubbub.cluster.roster import MET, REMOVED, Rest
from hubbub.core.limits import (
    CLUSTER_BEAT_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_NAMES,
    CLUSTER_RETURN_SECONDS,
)
from hubbub.errors import SettingError
from hubbub.runtime import directory, removal
from tests.cluster.test_heritage import AT, Dying
from tests.cluster.test_keeping import Keepers
from tests.core.recording import Recording


def shown(member: Membership) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in member.status()["away"]}


def is_apart(member: Membership, name: str) -> bool:
    return name not in member.nodes


@pytest.fixture
def world() -> Dying:
    world = Dying()
    world.meet()
    return world


# Away


def test_a_node_that_is_away_is_shown_with_since_when_also_after_a_start(world: Dying) -> None:
    a = world.member("a")
    world.kill("b")
    before = world.clock.stamp()
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    one = shown(a)["b"]
    assert before < one["since"] <= world.clock.stamp()
    assert (one["up"], one["waiting"], one["heir"]) == (False, 0, "")
    world.wait(2)
    assert shown(world.restart("a"))["b"]["since"] == one["since"]
    world.add("b")
    world.meet()
    assert not shown(world.member("a"))
    rows = len(world.log("a").rows)
    world.wait(2)
    assert len(world.log("a").rows) == rows, "a beat is no row"


@pytest.mark.parametrize("met", [False, True])
def test_what_waited_for_a_node_that_lost_its_journal(world: Dying, met: bool) -> None:
    """It is for who has subscribed by then; who does so when the nodes have `met` gets none of it.
    """
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.apart()
    world.say_many(writer, "x", 3)
    world.restart("b", lost=True)
    for _ in range(2):
        if met == (not world.cut):
            world.lasting("b", "device", "x")
        world.cut.clear()
        world.meet()
    assert world.waiting("b", "device") == ([] if met else [b"0", b"1", b"2"])
    assert world.kept("a", "b") == 0


def test_who_was_there_when_a_hub_was_killed_and_never_came_is_away_since_the_start(
    world: Dying,
) -> None:
    world.kill("b")
    a = world.restart("a")
    world.wait(1)
    assert set(shown(a)) == {"b"} and shown(a)["b"]["since"] == a.boot


def test_nothing_that_lasts_begins_before_it_is_known_what_lasts_at_who_was_there_last(
    world: Dying,
) -> None:
    """All lost their power, and this one is the first that is back: a client that comes to it would
    lose the session that it has at another node.
    """
    for one in "bc":
        world.kill(one)
    a = world.restart("a")
    a.engine.complete = False
    assert "at node 'b', node 'c': " in a.roster.expects()
    world.add("b")
    world.wait(1)
    assert "at node 'c': " in (said := a.roster.expects()) and said.endswith("29 s more at most")
    a.broker.unmet = said
    assert a.status()["trouble"] == said
    a.broker.unmet = ""
    world.wait(CLUSTER_RETURN_SECONDS)
    assert not a.roster.expects()
    since = shown(a)["c"]["since"]
    a = world.restart("a")
    a.engine.complete = False
    assert "at node 'b': " in a.roster.expects(), "c was away before this start"
    world.wait(1)
    assert not a.roster.expects()
    assert shown(a)["c"]["since"] == since


def test_who_was_removed_is_not_expected(world: Dying) -> None:
    world.kill("b")
    a = world.restart("a")
    a.engine.complete = False
    a.roster.remove("b")
    world.wait(1)
    assert not a.roster.expects()


def test_a_dead_node_with_an_heir_is_shown_with_it_and_so_is_the_heir_that_died(
    world: Dying,
) -> None:
    world.lasting("a", "ann", "kept")
    world.inherit("b", "a", world.dies("a"))
    world.wait(2)
    assert [shown(world.member(one))["a"]["heir"] for one in "bc"] == ["b", "b"]
    world.dies("b")
    found, c = shown(world.member("c")), world.member("c")
    world.say(world.client("c", "w"), "kept", b"x")
    assert found["a"]["heir"] == "b" and found["a"]["waiting"] == 0
    assert shown(c)["b"]["waiting"] == 1 and shown(c)["a"]["waiting"] == 0
    assert c.directory.holder("a") == "b"


def test_refusals_name_the_heir_that_is_away_and_not_the_node_that_began_the_session(
    world: Dying,
) -> None:
    for member in world.members.values():
        member.directory.moves["p"] = lambda client: True
    home = world.member("a")
    session = world.lasting("a", "ann", "kept")
    home.directory.began(session, world.clock.stamp())
    world.carry()
    world.inherit("b", "a", world.dies("a"))
    b, c = world.member("b"), world.member("c")
    b.directory.here["p", "ann"] = c.directory.there["a"]["p", "ann"]
    world.wait(2)
    world.dies("b")
    away = c.relays.of("p", "ann")
    assert away is not None and away.node == "b" and "at node 'b'" in away.lacks


def test_who_let_go_names_whoever_stopped_it(world: Dying) -> None:
    a = world.member("a")
    world.lasting("a", "ann", "kept")
    heritage.let_go(a.broker, a, [], AT, "c")
    assert a.directory.holder("a") == "c"


def test_names_that_are_made_up_are_as_many_as_there_may_be_nodes() -> None:
    world = Keepers(names=("a",))
    a = world.members["a"]
    for number in range(CLUSTER_NAMES + 50):
        beat = frames.piece(frames.Beat("0", world.clock.stamp()))
        a.hear(frames.frame(f"n{number}", 1, 0, 0, beat))
        node = a.nodes.get(f"n{number}")
        if node is not None:
            a.forget(node, "made up")
    taken = [name for name in a.broker.state.taken if name.startswith(MET)]
    assert len(taken) == len(a.roster.away) == CLUSTER_NAMES


# Removed


def test_a_removed_node_is_neither_shown_nor_waited_for_at_all_nodes_also_after_starts(
    world: Dying,
) -> None:
    a, c = world.member("a"), world.member("c")
    world.lasting("b", "bob", "kept")
    old = world.log("b")
    world.dies("b")
    world.say(world.client("a", "w"), "kept", b"x")
    world.say(world.client("c", "v"), "kept", b"y")
    assert world.kept("a", "b") == world.kept("c", "b") == 1
    a.roster.remove("b")
    world.carry()
    for name in "ac":
        for member in (world.member(name), world.restart(name)):
            assert "b" not in shown(member) and "b" not in member.estates
            assert member.status()["kept"] == 0 and "b" in member.roster.removed
            assert not [one for one in member.broker.state.sessions if one[0] == "node"]
        world.wait(3)
    # It is back, with the directory that it had.
    back = world.add("b", old)
    back.born = 1
    world.wait(3)
    assert "removed for good" in back.excluded and "backup" in back.excluded
    a, c = world.member("a"), world.member("c")
    assert is_apart(a, "b") and is_apart(c, "b") and not shown(a)


def test_who_was_away_hears_of_it_from_whoever_it_meets_and_so_does_a_new_node(
    world: Dying,
) -> None:
    world.dies("b")
    log = world.log("c")
    world.kill("c")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.member("a").roster.remove("b")
    world.carry()
    c, d = world.add("c", log), world.add("d")
    assert "b" in shown(c)
    world.wait(2)
    assert "b" not in shown(c) and "b" in c.roster.removed and "b" in d.roster.removed


def test_another_directory_of_a_removed_name_is_another_node(world: Dying) -> None:
    a = world.member("a")
    world.lasting("b", "bob", "kept")
    writer = world.client("a", "w")
    world.say(writer, "kept", b"before")
    world.carry()
    world.dies("b")
    world.say(writer, "kept", b"lost")
    a.roster.remove("b")
    world.wait(1)
    world.add("b")
    world.meet()
    world.lasting("b", "bob", "kept")
    world.say(writer, "kept", b"new")
    world.wait(1)
    assert world.waiting("b", "bob") == [b"new"]
    # Nor does it mind who hears late, or once more, of the one before.
    said = frames.Removed("b", a.roster.removed["b"])
    del a.roster.removed["b"]
    world.cut.add("b")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.say(writer, "kept", b"kept")
    a.roster.hears(world.member("a").nodes["c"], said)
    assert world.kept("a", "b") == 1 and "b" in shown(a)
    world.cut.clear()
    world.meet()
    assert world.waiting("b", "bob") == [b"new", b"kept"]


def test_what_an_heir_has_stays_with_it(world: Dying) -> None:
    world.lasting("a", "ann", "kept")
    world.inherit("b", "a", world.dies("a"))
    world.wait(2)
    c = world.member("c")
    assert c.roster.rest("a") == Rest()
    world.member("b").roster.remove("a")
    world.carry()
    world.say(world.client("c", "w"), "kept", b"after")
    world.wait(1)
    assert world.waiting("b", "ann") == [b"after"]
    assert not shown(c) and not shown(world.member("b"))


def test_what_a_dead_node_kept_for_a_removed_one_its_heir_keeps_until_that_is_removed_once_more(
    world: Dying,
) -> None:
    """It had not heard of it: of another node of that name, which it may have met, nobody knows."""
    world.lasting("c", "cat", "kept")
    world.kill("c")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.say(world.client("a", "w"), "kept", b"once")
    copy = world.dies("a")
    b = world.member("b")
    b.roster.remove("c")
    assert not b.roster.knows("c")
    world.inherit("b", "a", copy)
    assert b.roster.knows("c") and "c" in b.estates
    world.wait(1)
    b.roster.remove("c")
    assert not b.roster.knows("c") and "c" not in b.estates


def test_what_an_heir_that_is_removed_had_goes_with_it(world: Dying) -> None:
    world.lasting("a", "ann", "kept")
    world.inherit("b", "a", world.dies("a"))
    world.wait(2)
    world.dies("b")
    c = world.member("c")
    world.say(world.client("c", "w"), "kept", b"x")
    assert c.roster.rest("b") == Rest(messages=1) and c.roster.rest("a") == Rest()
    c.roster.remove("b")
    assert c.status()["kept"] == 0 and set(shown(c)) == {"a"}


def test_removals_are_as_many_as_there_may_be_nodes() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    a = world.members["a"]
    for number in range(CLUSTER_NAMES + 20):
        a.roster.hears(a.nodes["b"], frames.Removed(f"n{number}", 1 + number))
    rows = [name for name in a.broker.state.taken if name.startswith(REMOVED)]
    assert len(rows) == len(a.roster.removed) == CLUSTER_NAMES
    assert "n19" not in a.roster.removed and "n20" in a.roster.removed


def test_of_two_that_removed_each_other_the_one_that_did_so_first_stays(world: Dying) -> None:
    world.dies("c")
    world.cut.add("b")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    a, b = world.member("a"), world.member("b")
    a.roster.remove("b")
    world.wait(1)
    b.roster.remove("a")
    world.cut.clear()
    world.wait(3)
    assert "removed for good" in b.excluded and not a.excluded
    world.add("b")
    world.wait(3)
    assert "b" in a.nodes


def test_who_is_removed_is_told_so_once_a_beat_whatever_it_says(
    world: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that removed each other would answer each other for ever."""
    a, said = world.member("a"), list[str]()
    world.dies("b")
    a.roster.remove("b")
    world.wait(2)
    send = world.lines("a").send

    def sends(node: str, data: list[bytes]) -> bool:
        said.append(node)
        return send(node, data)

    monkeypatch.setattr(world.lines("a"), "send", sends)
    beat = frames.piece(frames.Beat("0", world.clock.stamp()))
    for _ in range(50):
        a.hear(frames.frame("b", 1, 0, 0, beat))
    assert said.count("b") == 1
    world.clock.seconds += CLUSTER_BEAT_SECONDS
    a.hear(frames.frame("b", 1, 0, 0, beat))
    assert said.count("b") == 2


# By hand


async def remove(world: Dying, name: str = "b", force: bool = False) -> removal.Refusal | Rest:
    """Asked of node a; the others hear it and answer when there is a tick."""
    return await removal.remove(world.member("a"), None, world.carry, name, force)


async def test_it_is_refused_for_who_is_there_unknown_itself_or_where_nobody_can_be_told(
    world: Dying,
) -> None:
    for name, kind, why in (
        ("b", removal.REFUSED, "is there: stop it"), ("a", removal.REFUSED, "itself"),
        ("x", removal.MISSING, "never there"),
    ):  # fmt: skip
        done = await remove(world, name, True)
        assert isinstance(done, removal.Refusal) and done.kind == kind and why in done.text
    world.dies("b")
    world.lines("a").up = False
    done = await remove(world, "b", True)
    assert isinstance(done, removal.Refusal) and done.kind == removal.UNABLE
    assert not world.member("a").roster.removed


async def test_it_is_refused_where_something_acknowledged_would_be_lost_anywhere(
    world: Dying,
) -> None:
    world.lasting("b", "bob", "kept")
    world.dies("b")
    world.say(world.client("c", "v"), "kept", b"y")  # this one waits at c alone
    done = await remove(world)
    assert isinstance(done, removal.Refusal) and done.kind == removal.REFUSED
    assert "1 message" in done.text and "--force" in done.text
    assert world.kept("c", "b") == 1 and "b" in shown(world.member("a"))
    assert await remove(world, force=True) == Rest(messages=1)
    world.carry()
    assert world.member("c").status()["kept"] == 0


async def test_two_that_are_asked_about_at_once_are_not_mistaken_for_each_other(
    world: Dying,
) -> None:
    world.lasting("b", "bob", "kept")
    world.add("d")
    world.meet()
    world.dies("b")
    world.dies("d")
    world.say(world.client("c", "v"), "kept", b"y")  # it waits at c alone, for b
    done = await asyncio.gather(remove(world, "b"), remove(world, "d"))
    assert isinstance(done[0], removal.Refusal) and "1 message" in done[0].text
    assert done[1] == Rest() and not world.member("a").roster.answers
    again = await remove(world, "d")
    assert isinstance(again, removal.Refusal) and "removed already" in again.text


async def test_who_does_not_say_what_waits_there_may_have_something(
    world: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.dies("b")
    world.cut.add("c")
    monkeypatch.setattr(removal, "ASK_SECONDS", 0.1)
    done = await remove(world)
    assert isinstance(done, removal.Refusal) and "node c does not say" in done.text
    world.cut.clear()
    assert await remove(world) == Rest()


async def test_one_that_comes_back_while_others_are_asked_stays(world: Dying) -> None:
    log = world.log("b")
    world.dies("b")
    world.cut.add("c")  # it does not answer so far
    task = asyncio.create_task(remove(world, force=True))
    await asyncio.sleep(0)
    world.add("b", log)
    world.wait(1)
    done = await task
    assert isinstance(done, removal.Refusal) and "is there" in done.text
    assert not world.member("a").roster.removed


# The directory


def test_a_directory_is_of_one_node(tmp_path: Path) -> None:
    assert directory.born(tmp_path, "a") == 0
    member = Keepers(names=("a",)).members["a"]
    member.born = 17
    directory.note(tmp_path, member)
    member.born = 99
    directory.look(tmp_path, member)
    assert member.born == directory.born(tmp_path, "a") == 17
    with pytest.raises(SettingError, match=r"is that of node 'a' of a cluster.*renamed"):
        directory.born(tmp_path, "b")
    (tmp_path / directory.FILE).write_text("rubbish")
    with pytest.raises(SettingError, match="no name of a node and a time"):
        directory.born(tmp_path, "a")


def test_rows_of_the_roster_are_in_a_snapshot(world: Dying) -> None:
    world.dies("b")
    a = world.member("a")
    a.roster.remove("c")
    log = a.broker.log
    assert isinstance(log, Recording)
    again = world.restart("a")
    assert "b" in again.roster.away and "c" in again.roster.removed
