"""Who came and went is remembered in little room, whoever makes very many notes."""

from __future__ import annotations

from hubbub.cluster.departed import SHARE, Departed, short
from hubbub.core.limits import CLUSTER_LEFT, CLUSTER_LONG
from tests.cluster.world import World


def test_a_long_name_is_a_digest_that_no_client_can_have() -> None:
    long = ("mqtt", "x" * 60_000)
    assert short(("mqtt", "x" * CLUSTER_LONG)) == ("mqtt", "x" * CLUSTER_LONG)
    assert short(("mqtt", "\N{OWL}" * CLUSTER_LONG))[0] == "mqtt#"
    assert short(long)[0] == "mqtt#" and len(short(long)[1]) == 64
    assert short(short(long)) == short(long), "it is told to others, who tell it others"
    left = Departed()
    left.note(long, 7)
    assert left.since(long) == 7 and not left.since(("mqtt", short(long)[1]))
    assert sum(len(key[1]) for key, _ in left.items()) < 100


def test_who_goes_very_often_pushes_out_its_own_notes() -> None:
    left = Departed()
    for number in range(100):
        left.note(("p", f"quiet-{number}"), 5, "quiet")
    for number in range(3 * CLUSTER_LEFT):
        left.note(("p", f"flood-{number}"), 5, "flood")
    assert len(left) == CLUSTER_LEFT
    for number in range(CLUSTER_LEFT // SHARE):
        left.note(("p", f"more-{number}"), 5, "more")
    assert left.since(("p", "quiet-0")) and left.since(("p", "more-0"))
    for number in range(2 * CLUSTER_LEFT):  # many who have little: the oldest go
        left.note(("p", f"each-{number}"), 5, f"{number}")
    assert len(left) == CLUSTER_LEFT == len(left._whose)
    assert not left.since(("p", "quiet-0")) and "flood" not in left._of
    assert sum(map(len, left._of.values())) == CLUSTER_LEFT


def test_a_note_goes_to_whoever_had_the_client_last_and_the_later_time_stays() -> None:
    left = Departed()
    left.note(("p", "ann"), 9, "one")
    left.note(("p", "ann"), 5, "two")
    assert left.since(("p", "ann")) == 9 and set(left._of) == {"two"}


def test_all_that_is_told_of_who_went_is_short_and_says_whose_it_was() -> None:
    world = World(names=("a", "b"))
    world.meet()
    for number in range(20):
        one = world.client("a", f"{number}" + "x" * 60_000)
        one.payer = "user 'flood'"
        world.wait(0.25)
        one.broker.disconnect(one, "lost")
    world.wait(1)
    here, there = world.members["a"].left, world.members["b"].left
    assert dict(here.items()) == dict(there.items()) and len(there) == 20
    assert set(here._of) == set(there._of) and "" not in there._of
    assert sum(len(key[1]) for key, _ in there.items()) < 2_000
    late = world.add("c")
    world.wait(2)
    assert dict(late.left.items()) == dict(here.items())


def test_whose_a_note_is_stays_known_when_it_is_told_by_who_does_not_say() -> None:
    left = Departed()
    left.note(("p", "quiet"), 5, "quiet")
    for number in range(CLUSTER_LEFT - 1):
        left.note(("p", f"flood-{number}"), 5, "flood")
    for key, since in list(left.items()):  # all that holds at another node
        left.note(key, since)
    for number in range(CLUSTER_LEFT):
        left.note(("p", f"more-{number}"), 5, "flood")
    assert left.since(("p", "quiet")) and set(left._of) == {"quiet", "flood"}
