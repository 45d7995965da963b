"""The last of a disk that fills: each user gets a fifth, and who is not over that goes on."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.limits import SCARCE_USERS
from hubbub.core.low import LASTS
from hubbub.core.names import HUB
from hubbub.core.queue import QueueSettings
from hubbub.core.rights import Rights
from hubbub.core.scarce import ROW, WEIGHT, Scarce
from hubbub.core.session import Session, Silent
from hubbub.protocols.mqtt import codec
from hubbub.protocols.switch import Switch
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern
from tests.protocols.smq.device import Hub
from tests.protocols.switch.journaled import get, post

MB = 1_000_000
ZONE = 1000 * MB


def user(name: str) -> Session:
    found = Silent("mqtt", name, Rights())
    found.number, found.payer = 7, f"user {name!r}"
    return found


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def scarce(stage: Stage) -> Scarce:
    return stage.broker.scarce


def test_it_is_on_from_when_as_much_is_left_as_is_kept_free(stage: Stage, scarce: Scarce) -> None:
    assert not scarce.look(ZONE, ZONE) and not scarce.on
    assert scarce.look(ZONE - 1, ZONE) and scarce.on
    assert not scarce.look(ZONE, ZONE) and scarce.on, "it does not flicker"
    for less in (ZONE - 1, ZONE, ZONE * 5 // 4 - 1):  # a segment went, and another one came
        assert not scarce.look(ZONE * 5 // 4, ZONE) and scarce.on
        stage.pass_time(LASTS - 1)
        assert not scarce.look(ZONE * 5 // 4, ZONE) and scarce.on
        assert not scarce.look(less, ZONE) and scarce.on
    scarce.look(3 * ZONE, ZONE)
    scarce.spend(user("bob"), 250 * MB)
    scarce.look(3 * ZONE - 250 * MB, ZONE)
    assert scarce.lacks(user("bob")), "nobody gets a fifth of more than is shared out"
    assert scarce.says() == "no user gets more than 200 MB of the last 1,000 MB on the disk"
    stage.pass_time(LASTS)
    assert scarce.look(ZONE * 5 // 4, ZONE) and not scarce.on
    assert scarce.says() == ""


def test_one_user_gets_a_fifth_and_the_next_one_what_it_wants(scarce: Scarce) -> None:
    bob, ann, left = user("bob"), user("ann"), ZONE - 1
    scarce.look(left, ZONE)
    while not scarce.lacks(bob):
        scarce.spend(bob, 10 * MB)
        left -= 10 * MB
        scarce.look(left, ZONE)
    assert left == pytest.approx(ZONE * 4 / 5, abs=11 * MB)
    assert scarce.used_up
    for _ in range(10):
        assert not scarce.lacks(ann)
        scarce.spend(ann, MB)
        left -= MB
        scarce.look(left, ZONE)
    scarce.spend(bob, MB)
    scarce.look(left - MB, ZONE)
    assert scarce.lacks(bob)


def test_what_came_back_is_nobodys(scarce: Scarce) -> None:
    """A device that says much and is heard at once is not stopped by the disk of others."""
    bob, left = user("bob"), ZONE // 2
    scarce.look(left, ZONE)
    for _ in range(100):
        for _ in range(10):
            scarce.spend(bob, MB)
            left -= MB
            scarce.look(left, ZONE)
            assert not scarce.lacks(bob)
        left = ZONE // 2  # it was taken, and folded
        scarce.look(left, ZONE)


def test_what_others_take_is_not_laid_at_who_publishes_a_little(scarce: Scarce) -> None:
    bob, left = user("bob"), ZONE - 1
    scarce.look(left, ZONE)
    for _ in range(30):
        scarce.spend(bob, 10_000)
        left -= 10 * MB
        scarce.look(left, ZONE)
        assert not scarce.lacks(bob)
    for _ in range(1000):  # and what it has of what is left then is a fifth of that
        if scarce.lacks(bob):
            break
        scarce.spend(bob, MB)
        left -= MB
        scarce.look(left, ZONE)
    assert left == pytest.approx(700 * MB * 4 / 5, rel=0.05)


def test_who_is_heard_at_once_is_not_stopped_by_who_fills_its_queues_meanwhile() -> None:
    """Neither is folded, for a fold is rare: the disk has still what the first one published."""
    stage = Stage()
    broker, left = stage.broker, ZONE - 1
    busy, heard, full = user("busy"), broker.queues.named("heard"), broker.queues.named("full")
    bob, at = user("bob"), 0
    broker.share_room(left, ZONE)
    for at in range(400):
        broker.scarce.spend(busy, MB, 1, (heard.client,))
        if not broker.lacks_disk(bob):
            broker.scarce.spend(bob, MB, 1, (full.client,))
            full.add(full.next, at + 1, MB)
            left -= MB
        left -= MB // 2
        broker.share_room(left, ZONE)
        assert not broker.lacks_disk(busy)
    assert full.bytes < 200 * MB and broker.lacks_disk(bob)
    assert broker.scarce.used_up
    full.messages.clear()
    full.bytes = 0
    broker.share_room(left, ZONE)
    assert not broker.lacks_disk(bob), "who takes it away has room at once"


def test_small_messages_are_counted_with_their_rows() -> None:
    broker, bob = Stage().broker, user("bob")
    queue = broker.queues.named("q")
    broker.share_room(ZONE, 2 * ZONE)
    for seq in range(1, 10_001):
        queue.add(queue.next, seq, 1)
    broker.scarce.spend(bob, 1, 10_000, (queue.client,))
    broker.share_room(ZONE // 1000, 2 * ZONE)
    broker.scarce._is_over("user 'bob'")
    assert broker.scarce._total == 10_000 * (1 + ROW)


def test_where_nothing_is_left_to_share_out_each_may_have_a_little() -> None:
    """It is a guess that nothing is: as long as everything is taken, not one takes it all. So it
    is where a hub starts there, or another program fills the disk at once.
    """
    for start in (0, -ZONE, 1):
        scarce, left = Stage().broker.scarce, start
        scarce.look(left, ZONE)
        for who in map(user, ("bob", "ann", "cy")):
            before = left
            while not scarce.lacks(who) and left > start - ZONE:
                scarce.spend(who, MB)
                left -= MB
                scarce.look(left, ZONE)
            assert 99 * MB <= before - left <= 110 * MB, (start, who.client)
        assert scarce.says() == "no user gets more than 100 MB of the last of the disk"
        assert re.search("taken 10. MB of the last of the disk, and 100 MB are", scarce.lacks(who))


def test_nobody_is_stopped_before_it_published(scarce: Scarce) -> None:
    scarce.look(1, ZONE)
    assert not scarce.lacks(user("bob"))


def test_what_nodes_send_counts_for_nobody_and_what_the_hub_moves_is_not_refused(
    scarce: Scarce,
) -> None:
    scarce.look(ZONE - 1, ZONE)
    moved, far = user("bob"), user("")
    moved.number, far.payer, far.far = HUB, "", True
    scarce.spend(far, 300 * MB)
    scarce.look(ZONE - 300 * MB, ZONE)
    assert not any(map(scarce.lacks, (moved, far, user("bob"))))
    scarce.spend(moved, 300 * MB)
    scarce.look(ZONE - 600 * MB, ZONE)
    assert scarce.lacks(user("bob")) and not scarce.lacks(moved)


def test_a_crowd_of_users_is_bounded_and_who_took_much_is_still_known(scarce: Scarce) -> None:
    scarce.look(ZONE - 1, ZONE)
    bob = user("bob")
    scarce.spend(bob, 300 * MB)
    for number in range(3 * SCARCE_USERS):
        scarce.spend(user(f"u{number}"), 1)
    scarce.look(ZONE - 1 - 310 * MB, ZONE)
    assert scarce.lacks(bob) and not scarce.lacks(user("u1"))
    assert len(scarce._users) <= SCARCE_USERS


def test_what_a_node_brings_counts_for_it_and_it_waits_until_it_has_room_again(
    scarce: Scarce,
) -> None:
    far, left = user("far"), ZONE - 1
    far.number, far.payer, far.far = 0, "", True
    scarce.look(left, ZONE)
    scarce.brought_by = "node 'a'"
    scarce.spend(far, 150 * MB)
    scarce.brought_by = ""
    scarce.look(left - 150 * MB, ZONE)
    assert not scarce.has_its_share("node 'a'") and scarce.has_its_share("node 'a'", less=26)
    assert not scarce.has_its_share("node 'b'", less=50)
    scarce.brought_by = "node 'a'"
    scarce.spend(far, 60 * MB)
    scarce.look(left - 210 * MB, ZONE)
    why = "node 'a' has brought 210 MB of the last 1,000 MB on the disk, and 200 MB are the most"
    assert scarce.has_its_share("node 'a'") == why and scarce.used_up
    assert not scarce.lacks(far) and not scarce.lacks(user("ann"))


STEP = st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(-20, 60))


@given(st.lists(STEP, max_size=80), st.sampled_from((ZONE - 1, 20 * MB, 0, -ZONE)))
def test_whatever_happens_who_is_refused_published_its_share(
    steps: list[tuple[int, int, int]], first: int
) -> None:
    """And what is counted is never more than the disk lost, nor than a few times what was said."""
    scarce, left = Stage().broker.scarce, first
    users = [user(str(number)) for number in range(5)]
    said = [0] * 5
    scarce.look(left, ZONE)
    for whose, size, lost in steps:
        scarce.spend(users[whose], size * MB)
        said[whose] += size * MB + ROW
        left -= lost * MB
        scarce.look(left, ZONE)
        if not scarce.on:
            return
        assert scarce._total <= scarce._most - scarce._left
        assert scarce._most - scarce._left <= WEIGHT * max(sum(said), 1)
        for number, one in enumerate(users):
            assert not scarce.lacks(one) or said[number] * WEIGHT >= scarce._share()


def fill(stage: Stage | Hub, sender: Session) -> None:
    """So that this user has a fifth of what is left."""
    broker = stage.broker
    broker.share_room(ZONE - 1, ZONE)
    broker.scarce.spend(sender, 300 * MB)
    broker.share_room(ZONE - 300 * MB, ZONE)


def away(stage: Stage, topic: str) -> None:
    ann = stage.device("ann", clean=False)
    ann.subscribe(topic, 1)
    ann.far.hang_up("lost")


@pytest.mark.parametrize(
    "topic", ["$queue/q", "$delayed/5/a", "away", "bound", "grouped", "kept"]
)
def test_what_would_stay_of_it_is_refused_with_the_code_for_it_and_others_go_on(
    topic: str,
) -> None:
    stage = Stage()
    away(stage, "away")
    grouped = stage.device("cy", clean=False)
    grouped.subscribe("$share/g/grouped", 1)
    grouped.far.hang_up("lost")
    broker = stage.broker
    broker.queues.bind(broker.queues.named("b"), "bound")
    bob, ann, old = Modern(stage, "bob"), Modern(stage, "eve"), stage.device("old")
    sessions = broker.sessions
    for client in ("bob", "eve", "old"):
        whose = "eve" if client == "eve" else "bob"
        sessions["mqtt", client].payer = f"user {whose!r}"
    retain = topic == "kept"
    fill(stage, sessions["mqtt", "bob"])
    for peer in (bob, ann):
        peer.hear()
    bob.publish(topic, qos=1, retain=retain)
    ann.publish(topic, qos=1, retain=retain)
    assert bob.hear() == ["PUBACK 1 0x97"]
    assert broker.metrics.refused == {"last of the disk": 1}
    assert "0x97" not in ann.hear()[0]
    before = len(broker.state.retained)
    old.publish("another" if retain else topic, qos=1, retain=retain)
    assert old.far.closed and len(broker.state.retained) == before
    assert broker.metrics.refused == {"last of the disk": 2}
    broker.share_room(2 * ZONE, ZONE)
    bob.publish(topic, qos=1, retain=retain, packet_id=2)
    assert "0x97" not in bob.hear()[0]


@pytest.mark.parametrize("topic", ["$queue/q", "$delayed/5/a", "away", "bound", "kept"])
def test_what_would_take_more_than_a_share_is_refused_and_what_is_smaller_is_not(
    topic: str,
) -> None:
    """Its sender has taken nothing yet. A byte takes its room six times; 120 KB are a share."""
    stage = Stage()
    away(stage, "away")
    broker = stage.broker
    broker.queues.bind(broker.queues.named("b"), "bound")
    bob, old, retain = Modern(stage, "bob"), stage.device("old"), topic == "kept"
    broker.share_room(600_000 - 1, 600_000)
    bob.hear()
    bob.publish(topic, bytes(25_000), qos=1, retain=retain)
    assert bob.hear() == ["PUBACK 1 0x97"]
    assert broker.metrics.refused == {"last of the disk": 1}
    bob.publish(topic, bytes(1_000), qos=1, retain=retain, packet_id=2)
    assert "0x97" not in bob.hear()[0]
    old.publish(topic, bytes(25_000), qos=1, retain=retain)
    assert old.far.closed
    assert broker.lacks_disk(broker.itself, size=1 << 30) == "", "it was there before"


@pytest.mark.parametrize("topic", ["$queue/q", "$delayed/5/a", "bound"])
def test_so_is_what_nobody_waits_to_hear_of(topic: str) -> None:
    """Of QoS 0 nobody asks before; it is lost then, and counted."""
    stage = Stage()
    broker, bob = stage.broker, Modern(stage, "bob")
    queues = [broker.queues.named("q"), broker.queues.named("b")]
    broker.queues.bind(queues[1], "bound")
    broker.share_room(600_000 - 1, 600_000)
    for size in (25_000, 1_000):
        bob.publish(topic, bytes(size))
        there = sum(len(one.messages) for one in queues) + len(broker.state.delayed)
        assert there == (size == 1_000)
        assert broker.metrics.refused == {"last of the disk": 1}


def test_who_has_its_share_clears_what_is_retained_and_what_is_not() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("kept", b"x", retain=True)
    bob.hear()
    fill(stage, stage.broker.sessions["mqtt", "bob"])
    for number, topic in enumerate(("kept", "another"), 1):
        bob.publish(topic, b"", 1, retain=True, packet_id=number)
        assert bob.hear() == [f"PUBACK {number} 0x10"]
    assert not stage.broker.state.retained and not stage.broker.metrics.refused


def test_of_a_run_each_message_is_looked_at_where_all_are_too_much() -> None:
    stage = Stage()
    away(stage, "away")
    bob = Modern(stage, "bob")
    stage.broker.share_room(600_000 - 1, 600_000)
    bob.hear()
    none = codec.NO_PROPERTIES
    small, large = bytes(1_500), bytes(21_000)
    pieces = [*[small] * 30, *[large] * 2, small]
    bob.say(*(codec.publish(b"away", piece, 1, packet_id=n + 1, properties=none)
              for n, piece in enumerate(pieces)))  # fmt: skip
    refused = ["0x97" in word for word in bob.hear()]
    assert refused == [piece is large for piece in pieces]
    why = stage.broker.lacks_disk(stage.broker.sessions["mqtt", "bob"], True, 21_000)
    assert "would take 0.1 MB more" in why


def test_what_reaches_who_is_here_is_not_asked_about() -> None:
    """Nor is it counted as refused."""
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), Modern(stage, "bob")
    ann.subscribe("a", 1, "$share/g/a", 1)
    fill(stage, stage.broker.sessions["mqtt", "bob"])
    ann.hear()
    for qos in (0, 1):
        bob.publish("a", b"1", qos)
        assert sum(word.startswith("a=1") for word in ann.hear()) == 2
    assert not any("0x97" in word for word in bob.hear())
    assert stage.broker.metrics.refused == {}


def test_of_a_run_for_a_group_nothing_is_acknowledged_and_dropped() -> None:
    """Its members are ready for some of it, not for all."""
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), Modern(stage, "bob")
    ann.subscribe("$share/g/a", 1)
    fill(stage, stage.broker.sessions["mqtt", "bob"])
    bob.hear()
    none = codec.NO_PROPERTIES
    bob.say(*(codec.publish(b"a", b"x", 1, packet_id=n + 1, properties=none) for n in range(100)))
    codes = ["0x97" in word for word in bob.hear()]
    heard = sum(word.startswith("a=") for word in ann.hear())
    assert len(codes) == 100 and 0 < codes.count(False) == heard < 100
    assert stage.broker.metrics.refused["last of the disk"] == codes.count(True)


@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_of_a_run_counts(qos: int) -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    broker = stage.broker
    broker.queues.named("q")
    broker.share_room(ZONE - 1, ZONE)
    none, payload = codec.NO_PROPERTIES, bytes(1000)
    publish = partial(codec.publish, b"$queue/q", payload, qos, properties=none)
    bob.say(*(publish(packet_id=n + 1) for n in range(100)))
    assert len(broker.state.queues["q"].messages) == 100
    assert broker.scarce._total == 100 * (1000 + ROW)


def test_who_is_let_in_with_the_last_of_a_share_is_let_in_everywhere() -> None:
    """What is retained and waits in a queue, too, was acknowledged as both."""
    stage = Stage()
    bob, _ = Modern(stage, "bob"), Modern(stage, "ann")
    broker = stage.broker
    queue = broker.queues.named("q")
    broker.queues.bind(queue, "a")
    broker.share_room(ZONE - 1, ZONE)
    for number, client in enumerate(("bob", "ann")):
        sender = broker.sessions["mqtt", client]
        sender.payer = f"user {number}"
        broker.scarce.spend(sender, (190 * MB, 600 * MB)[number])
    broker.share_room(ZONE - 790 * MB, ZONE)
    bob.hear()
    bob.publish("a", bytes(MB), 1, retain=True)
    assert (bob.hear(), len(queue.messages)) == (["PUBACK 1"], 1)
    assert "a" in broker.state.retained
    assert broker.scarce._total == pytest.approx(791 * MB, abs=3 * ROW), "it lies there once"


def test_a_will_of_who_has_its_share_does_not_wait_for_who_is_away() -> None:
    stage = Stage()
    away(stage, "a")
    will = codec.Will(b"a", b"gone", 1, False)
    device = stage.device("bob", will=will)
    fill(stage, stage.broker.sessions["mqtt", "bob"])
    device.far.hang_up("lost")
    assert len(stage.broker.state.sessions["mqtt", "ann"].backlog.entries) == 0


def test_wills_of_sessions_that_last_stay_too() -> None:
    """64 KB each, of 20,000 sessions: who had its share of a disk took the rest of it so."""
    stage = Stage()
    broker, will = stage.broker, codec.Will(b"a", bytes(60_000), 1, False)
    fill(stage, user("ann"))
    before = broker.scarce._total
    bob = stage.device("bob", clean=False, will=will)
    assert broker.scarce._total == before + 60_000 + ROW
    fill(stage, broker.sessions["mqtt", "bob"])
    assert b"\x20\x02\x00\x03" in stage.device("more", clean=False, will=will).far.hear()
    assert ("mqtt", "more") not in broker.sessions, "nor does it last"
    assert broker.metrics.refused == {"last of the disk": 1}
    stage.device("bob", clean=False, will=will)
    assert broker.sessions["mqtt", "bob"].number and bob.far.closed, "who was here may come back"


def test_the_journal_hears_what_is_taken_from_a_queue_that_alone_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    gone: list[int] = []
    monkeypatch.setattr(type(stage.log), "gone", lambda _, seq, size: gone.append(size), False)
    ann, bob, queues = stage.device("ann"), Modern(stage, "bob"), stage.broker.queues
    queues.bind(queues.named("b"), "bound")
    ann.subscribe("$queue/q", 1, "$queue/b", 1)
    bob.publish("$queue/q", bytes(700), 1)
    bob.publish("bound", bytes(900), 1, packet_id=2)
    ann.hear()
    ann.answer_one()
    ann.answer_one()
    assert not queues.named("q").messages and not queues.named("b").messages
    assert gone == [700]


def test_over_http_it_is_507() -> None:
    hub = Hub()
    far = hub.dial(Switch(hub.broker), get("/login/a") + get("/persistent/q"))
    assert far.hear().count(b"200 OK") == 2
    session = next(one for one in hub.broker.clients.values() if one.client == "a")
    fill(hub, session)
    for door in ("/request/q/r", "/publish/t?retain=1"):
        far.say(post(door, b"2"))
        assert b"HTTP/1.1 507" in far.hear()
    far.say(post("/request/q/r", b"2"))
    assert b"has taken 300 MB of the last 1,000 MB on the disk" in far.hear()
    assert hub.broker.metrics.refused["last of the disk"] == 3, "once each"


def test_dead_letters_are_no_way_round() -> None:
    """What a user publishes goes where it does not count, as its own queue expires."""
    stage = Stage()
    broker = stage.broker
    bob = Modern(stage, "bob")
    session = broker.sessions["mqtt", "bob"]
    queue = broker.queues.named("m", asker=session)
    broker.queues.configure(queue, QueueSettings(expires=1, dead_letter="d"))
    broker.share_room(ZONE - 1, ZONE)
    bob.hear()
    left, codes = ZONE - 1, []
    for number in range(1, 60):
        bob.publish("$queue/m", bytes(1_000_000), qos=1, packet_id=number)
        codes += bob.hear()
        stage.pass_time(2)
        broker.queues.overdue.wake()
        left -= 6_000_000
        broker.share_room(left, ZONE)
    refused = ["0x97" in code for code in codes]
    assert not any(refused[:30]) and all(refused[36:])
    assert len(broker.state.queues["d"].messages) == refused.count(False)


def test_a_dead_letter_and_what_is_due_were_on_the_disk_before() -> None:
    stage = Stage()
    broker = stage.broker
    bob = Modern(stage, "bob")
    bob.publish("$delayed/5/$queue/q", b"1", qos=1)
    fill(stage, broker.sessions["mqtt", "bob"])
    stage.pass_time(6)
    broker.delays.wake()
    assert len(broker.state.queues["q"].messages) == 1
