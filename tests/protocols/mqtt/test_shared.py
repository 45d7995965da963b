"""Shared subscriptions: each message to one member, fairly, and not lost with a member."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from hubbub.core.context import LAGGING
from hubbub.core.share import CONSIDERED, Group
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.core.recording import Ear
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern, told

LASTING = {spec.SESSION_EXPIRY: 100}


def member(stage: Stage, name: str, qos: int = 1, lasting: bool = False) -> Modern:
    device = Modern(stage, name, False, told(LASTING if lasting else None))
    device.subscribe("$share/g/a/#", qos)
    device.hear()
    return device


def publish(device: Device, count: int, qos: int = 1) -> None:
    device.say(
        *(codec.publish(b"a/b", b"%03d" % n, qos, packet_id=n + 1) for n in range(count))
    )


def payloads(words: list[str]) -> list[str]:
    return [word.split(" ")[0].removeprefix("a/b=") for word in words if "a/b=" in word]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("lasting", [False, True])
def test_each_message_goes_to_one_member_in_turn(qos: int, lasting: bool) -> None:
    stage = Stage()
    members = [member(stage, f"m{n}", qos, lasting) for n in range(3)]
    publish(stage.device("bob"), 30, qos)
    heard = [payloads(one.hear()) for one in members]
    assert [len(words) for words in heard] == [10, 10, 10]
    assert Counter(sum(heard, [])) == Counter(f"{n:03}" for n in range(30))
    assert all(words == sorted(words) for words in heard)


def test_groups_and_members_own_subscriptions_are_independent() -> None:
    stage = Stage()
    ann = Modern(stage, "ann")
    ann.subscribe("$share/g/a/#", 0, "$share/h/a/+", 0, "a/b", 0)
    ann.hear()
    publish(stage.device("bob"), 1, 0)
    assert ann.hear() == ["a/b=000"] * 3
    ann.unsubscribe("$share/g/a/#")
    publish(stage.device("bob"), 1, 0)
    assert ann.hear() == ["UNSUBACK 6: 0x00"] + ["a/b=000"] * 2
    ann.disconnect()
    assert stage.broker.groups.by_filter == {}
    assert stage.broker.filters.match("a/b") == []


def test_nothing_retained_is_sent_and_no_match_is_said() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("a/b", b"kept", 0, True)
    ann = Modern(stage, "ann")
    ann.subscribe("$share/g/a/#", 0)
    assert ann.hear() == ["CONNACK 0x00", "SUBACK 5: 0x00"]


def test_members_without_room_are_skipped() -> None:
    stage = Stage()
    slow, quick = member(stage, "slow"), member(stage, "quick")
    bob = stage.device("bob")
    slow.far.link.choked = True
    publish(bob, 10, 1)
    assert len(payloads(quick.hear())) == 10
    slow.far.link.choked = False
    publish(bob, 30, 1)  # a window of 20, of which quick has used 10
    assert (len(payloads(quick.hear())), len(payloads(slow.hear()))) == (10, 20)
    publish(bob, 5, 1)
    quick.answer(codec.PUBACK, *range(1, 21))
    slow.answer(codec.PUBACK, *range(1, 21))
    assert len(payloads(quick.hear())) + len(payloads(slow.hear())) == 5


def test_what_a_dead_member_had_not_acknowledged_goes_to_another() -> None:
    stage = Stage()
    first, second = member(stage, "first"), member(stage, "second")
    publish(stage.device("bob"), 4)
    mine, other = payloads(first.hear()), payloads(second.hear())
    first.answer(codec.PUBACK, 1)
    first.far.hang_up("lost")
    assert payloads(second.hear()) == mine[1:]
    assert stage.mqtt.sessions["second"].backlog.in_flight() == len(other) + 1


@pytest.mark.holds(v5="4.8.2-5")
def test_qos_2_is_never_given_to_another() -> None:
    stage = Stage()
    first, second = member(stage, "first", 2), member(stage, "second", 2)
    publish(stage.device("bob"), 4, 2)
    first.hear(), second.hear()
    first.far.hang_up("lost")
    assert second.hear() == []


def test_who_is_away_and_lasting_is_the_last_choice() -> None:
    stage = Stage()
    away, here = member(stage, "away", 1, True), member(stage, "here")
    away.far.hang_up("lost")
    bob = stage.device("bob")
    publish(bob, 3)
    assert len(payloads(here.hear())) == 3
    here.answer(codec.PUBACK, 1, 2, 3)
    here.disconnect()
    publish(bob, 2)
    publish(bob, 1, 0)
    assert stage.broker.metrics.dropped == {"nobody in the group can take it": 1}
    stage = restarted(stage)
    away = Modern(stage, "away", False, told(LASTING))
    assert payloads(away.hear()) == ["000", "001"]
    publish(stage.device("bob"), 1)
    assert payloads(away.hear()) == ["000"], "the subscription came back too"


@pytest.mark.pure
def test_of_many_who_are_away_a_message_asks_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many wait for each, and who comes has the next; a hundred took 130 us of each message."""
    stage = Stage()
    members = [member(stage, f"m{n}", 1, lasting=True) for n in range(50)]
    for one in members[1:]:
        one.far.hang_up("lost")
    bob, asked = stage.device("bob"), list[str]()
    publish(bob, 20)
    assert len(payloads(members[0].hear())) == 20
    members[0].far.hang_up("lost")
    may_wait = Group._may_wait

    def watched(*given: Any) -> bool:
        asked.append(given[1].client)
        return may_wait(*given)

    monkeypatch.setattr(Group, "_may_wait", watched)
    publish(bob, 500)
    waits = [stage.broker.state.sessions["mqtt", f"m{n}"].backlog.entries for n in range(50)]
    assert {len(one) for one in waits[1:]} <= {9, 10, 11, 12}
    assert len(asked) == CONSIDERED * 500


def test_the_end_of_a_lasting_member_frees_its_messages() -> None:
    stage = Stage()
    away = member(stage, "away", 1, True)
    publish(stage.device("bob"), 3)
    away.far.hang_up("lost")
    here = member(stage, "here")
    stage.pass_time(101)
    stage.mqtt.wake(0)
    assert payloads(here.hear()) == ["000", "001", "002"]


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_a_restart_does_not_forget_who_was_chosen(from_snapshot: bool) -> None:
    stage = Stage()
    away = member(stage, "away", 1, True)
    publish(stage.device("bob"), 3)
    away.answer(codec.PUBACK, 2)
    stage.tick()
    stage = restarted(stage, from_snapshot)
    here = member(stage, "here")
    Modern(stage, "away", clean=True)
    assert payloads(here.hear()) == ["000", "002"]
    assert stage.broker.metrics.dropped == {}


GROUPS = ("g", "h", "i")


def everywhere(stage: Stage, lasting: bool) -> tuple[Modern, dict[int, tuple[str, str]]]:
    """Of one in several groups, who subscribes for itself, too: what each delivery is, by packet
    id: the group that it is of, "" = nobody's, and the payload.
    """
    ann = Modern(stage, "ann", False, told(LASTING if lasting else None))
    wishes = [wish for group in GROUPS for wish in (f"$share/{group}/a/#", 1)]
    ann.subscribe(*wishes, "a/b", 1)
    publish(stage.device("bob"), 5)
    assert sorted(payloads(ann.hear()[1:])) == sorted([f"{n:03}" for n in range(5)] * 4)
    session, found = stage.mqtt.sessions["ann"], {}
    for number in range(session.backlog.first, session.backlog.next):
        message = stage.log.read(session.backlog.seq(number))
        assert message is not None
        group = session.shared.get(number, "").removeprefix("$share/").removesuffix("/a/#")
        found[number + 1] = group, message.payload.decode()
    assert len(set(found.values())) == 20
    return ann, found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", ["clean", "lasting", "restarted", "from a snapshot", "crashed"])
def test_each_group_gets_what_one_in_several_had_not_acknowledged(how: str, seed: int) -> None:
    """Only one group of each message was remembered: of two one lost it."""
    stage, chance = Stage(), random.Random(seed)
    ann, deliveries = everywhere(stage, how != "clean")
    done = chance.sample(sorted(deliveries), chance.randrange(len(deliveries)))
    ann.answer(codec.PUBACK, *done)
    stage.tick()
    if how in ("restarted", "from a snapshot"):
        stage = restarted(stage, how != "restarted")
    others = {}
    for group in GROUPS:
        others[group] = Modern(stage, f"of-{group}", False, told(LASTING))
        others[group].subscribe(f"$share/{group}/a/#", 1)
        others[group].hear()
    if how == "crashed":  # on the way
        stage.log.handed = stage.log.position - LAGGING - 1
    if how == "clean":
        ann.far.hang_up("lost")
    else:
        Modern(stage, "ann", clean=True)
    if how == "crashed":
        stage = restarted(stage)
        others = {g: Modern(stage, f"of-{g}", False, told(LASTING)) for g in GROUPS}
    stage.tick()
    for group, other in others.items():
        wanted = [payload for one, (whose, payload) in deliveries.items()
                  if whose == group and one not in done]  # fmt: skip
        assert sorted(payloads(other.hear())) == wanted, group
    for other in others.values():
        other.answer(codec.PUBACK, *range(1, 6))
    stage.tick()
    assert stage.broker.state.on_loan == set()


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_what_a_member_had_that_ended_with_the_hub_goes_to_another(from_snapshot: bool) -> None:
    stage = Stage()
    lasting, clean = member(stage, "lasting", 1, True), member(stage, "clean")
    publish(stage.device("bob"), 6)
    assert payloads(lasting.hear()) == ["000", "002", "004"]
    assert payloads(clean.hear()) == ["001", "003", "005"]
    clean.answer(codec.PUBACK, 1)
    lasting.answer(codec.PUBACK, 1, 2, 3)
    stage.tick()
    stage = restarted(stage, from_snapshot)
    lasting = Modern(stage, "lasting", False, told(LASTING))
    assert payloads(lasting.hear()) == ["003", "005"]
    lasting.answer(codec.PUBACK, 4, 5)
    stage.tick()
    assert not stage.broker.state.on_loan
    stage = restarted(stage, from_snapshot)
    assert payloads(Modern(stage, "lasting", False, told(LASTING)).hear()) == []


def ended_with_much(stage: Stage) -> Modern:
    """A lasting member has ended that had ten. The other has one of them: the disk is slow."""
    away = member(stage, "away", 1, True)
    publish(stage.device("bob"), 10)
    away.far.hang_up("lost")
    here = member(stage, "here", 1, True)
    stage.log.handed = stage.log.position - LAGGING - 1
    Modern(stage, "away", clean=True)
    assert payloads(here.hear()) == ["000"]
    assert len(stage.broker.state.on_loan) == 9
    return here


def test_what_a_member_had_that_ended_goes_to_others_in_turns() -> None:
    """80,000 in one piece kept all others waiting for half a second, scattered ones for seconds."""
    stage = Stage()
    here = ended_with_much(stage)
    for call in stage.broker.to_try_again():
        call()
    stage.tick()
    assert payloads(here.hear()) == ["001"], "as slow as the disk"
    stage.log.handed = stage.log.position
    for call in stage.broker.to_try_again():
        call()
    stage.tick()
    assert payloads(here.hear()) == [f"{n:03}" for n in range(2, 10)]
    assert stage.broker.state.on_loan == set()


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_a_crash_on_the_way_loses_none_of_them(from_snapshot: bool) -> None:
    stage = Stage()
    ended_with_much(stage)
    stage = restarted(stage, from_snapshot)
    here = Modern(stage, "here", False, told(LASTING))
    assert payloads(here.hear()) == [f"{n:03}" for n in range(10)]
    assert stage.broker.state.on_loan == set()


def test_what_is_lent_is_over_with_a_member_that_acknowledges_nothing() -> None:
    stage = Stage()
    lasting, clean = member(stage, "lasting", 1, True), member(stage, "clean")
    publish(stage.device("bob"), 2)
    lasting.far.hang_up("lost")
    quick = member(stage, "quick", 0)
    clean.far.hang_up("lost")
    assert payloads(quick.hear()) == ["001"]
    assert stage.broker.state.on_loan == set(), "a restart would give it to another one"


def test_what_is_lent_is_forgotten_with_the_group() -> None:
    stage = Stage()
    lasting, clean = member(stage, "lasting", 1, True), member(stage, "clean")
    publish(stage.device("bob"), 2)
    assert len(stage.broker.state.on_loan) == 1
    lasting.unsubscribe("$share/g/a/#")
    clean.far.hang_up("lost")
    assert (stage.broker.groups.by_filter, stage.broker.state.on_loan) == ({}, set())


def test_nothing_is_lent_to_who_acknowledges_nothing() -> None:
    """Of another protocol: nobody ever took it back, and the next start gave all of it again."""
    stage = Stage()
    member(stage, "lasting", 1, True).far.hang_up("lost")
    ear = Ear(stage.broker, "ear")
    stage.broker.subscribe(ear.wish("$share/g/a/#", 1))
    publish(stage.device("bob"), 3)
    assert [payload for _, payload, _ in ear.hear()] == [b"000", b"001", b"002"]
    assert stage.broker.state.on_loan == set()
    stage.broker.disconnect(ear, "")
    assert payloads(Modern(stage, "lasting", False, told(LASTING)).hear()) == []


def test_without_a_lasting_member_nothing_is_lent() -> None:
    stage = Stage()
    member(stage, "one"), member(stage, "two")
    publish(stage.device("bob"), 4)
    assert stage.broker.state.on_loan == set()


@pytest.mark.parametrize("lasting", [True, False])
def test_who_has_no_room_for_so_many_bytes_is_skipped(lasting: bool) -> None:
    stage = Stage()
    stage.broker.inflight, stage.broker.backlog_bytes = 1, 5
    one, two = (member(stage, name, 1, lasting) for name in ("one", "two"))
    publish(stage.device("bob"), 6)  # of 3 bytes: two on their way, none waits beside them
    assert stage.broker.metrics.dropped == {"nobody in the group can take it": 4}
    for device in (one, two):
        assert len(payloads(device.hear())) == 1
    one.answer(codec.PUBACK, 1)
    publish(stage.device("carl"), 1)
    assert payloads(one.hear()) == ["000"]


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_what_was_acknowledged_with_the_last_words_is_nobodys(from_snapshot: bool) -> None:
    """The end was in the journal before the acknowledgement: after a restart another had it."""
    stage = Stage()
    ann, here = (member(stage, name, 1, True) for name in ("ann", "here"))
    publish(stage.device("bob"), 4)
    assert (payloads(ann.hear()), payloads(here.hear())) == (["000", "002"], ["001", "003"])
    last = codec.Properties({spec.SESSION_EXPIRY: 0}, {}, []).encode()
    ann.say(codec.acknowledgement(codec.PUBACK, 1), codec.disconnect(0, last))
    assert payloads(here.hear()) == ["002"]
    here.answer(codec.PUBACK, 1, 2, 3)
    stage.tick()
    assert stage.broker.state.on_loan == set()
    stage = restarted(stage, from_snapshot)
    assert stage.broker.state.on_loan == set()
    assert payloads(Modern(stage, "here", False, told(LASTING)).hear()) == []


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_the_same_message_twice_is_half_over_once(from_snapshot: bool) -> None:
    """A group's and its own: what is done with one, and half with the other, in one piece."""
    stage = Stage()
    ann = Modern(stage, "ann", False, told(LASTING))
    ann.subscribe("$share/g/a/#", 2, "a/b", 2)
    ann.hear()
    publish(stage.device("bob"), 1, 2)
    bob = stage.device("carl")
    bob.answer(codec.PUBREL, 1)
    assert payloads(ann.hear()) == ["000"] * 2
    ann.answer(codec.PUBREC, 1)
    ann.say(*(codec.acknowledgement(kind, one) for kind, one in
              ((codec.PUBCOMP, 1), (codec.PUBREC, 2))))  # fmt: skip
    stage.tick()
    stage = restarted(stage, from_snapshot)
    ann = Modern(stage, "ann", False, told(LASTING))
    assert ann.hear()[1:] == ["PUBREL 2"]


@pytest.mark.parametrize("there_is", ["nobody else", "one without room", "one with room"])
def test_what_a_member_has_no_room_for_goes_to_one_who_has(there_is: str) -> None:
    """Each was given it again until the stack was full: its publisher was thrown out."""
    stage = Stage()
    stage.broker.backlog_bytes, stage.broker.inflight_bytes = 5, 2
    one = member(stage, "one")
    bob = stage.device("bob")
    publish(bob, 1)  # of 3 bytes: it is on its way, and what comes would wait
    assert payloads(one.hear()) == ["000"]
    others = [member(stage, "two")] if there_is != "nobody else" else []
    if there_is == "one without room":
        publish(bob, 1)
        assert payloads(others[0].hear()) == ["000"]
    publish(bob, 2)
    heard = payloads(others[0].hear()) if others else []
    assert heard == (["000"] if there_is == "one with room" else [])
    assert len(bob.hear()) > 0
    lost = 2 - len(heard)
    assert stage.broker.metrics.dropped == {"nobody in the group can take it": lost}
    assert set(stage.mqtt.sessions["one"].shared) == {0}


def test_all_versions_may_share() -> None:
    stage = Stage()
    old = stage.device("old")
    old.subscribe("$share/g/a/#", 1)
    new = member(stage, "new")
    publish(stage.device("bob"), 4)
    assert old.hear()[:2] == ["CONNACK 0", "SUBACK 5: 1"]
    assert len(payloads(new.hear())) == 2


def test_observers_count_members() -> None:
    stage = Stage()
    one = member(stage, "one")
    member(stage, "two")
    assert stage.broker.observers.count("a/b") == 2
    one.disconnect()
    assert stage.broker.observers.count("a/b") == 1
