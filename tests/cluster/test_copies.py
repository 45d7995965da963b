"""What of a log a quorum has: pieces in order behind one another, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from hubbub.cluster.copies import (
    FENCE,
    LOG,
    STATE,
    Copies,
    Found,
    Part,
    Piece,
    heard,
    landed,
    parts,
)
from hubbub.cluster.jetstream import JetStream, Listener
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.limits import (
    CLUSTER_COPY_GATHER,
    CLUSTER_COPY_PATIENCE,
    CLUSTER_COPY_PIECE,
    CLUSTER_COPY_RETURN_SECONDS,
    CLUSTER_QUORUM_SECONDS,
)


class Log:
    """A stream as a server keeps it; what it hears and says may be lost, and comes later."""

    def __init__(self, seed: int = 0, lossy: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.lossy = lossy
        self.held: dict[int, Piece] = {}
        self.last = 0
        self.said: list[tuple[Piece, int]] = []
        self.looks = self.glances = 0
        self.purged = self.behind = 0

    def put(self, piece: Piece, after: int) -> None:
        self.said.append((piece, after))

    def look(self, behind: int, number: int) -> None:
        self.looks = number
        self.behind = behind

    def glance(self) -> None:
        self.glances += 1

    def first(self) -> int:
        return min(self.held, default=self.last + 1)

    def purge(self, before: int) -> None:
        self.purged = before
        self.held = {at: piece for at, piece in self.held.items() if at >= before}

    def found(self) -> Found:
        news = [(at, piece) for at, piece in sorted(self.held.items()) if at > self.behind]
        first = self.first()
        return Found(self.last, self.held.get(self.last), 0, first, tuple(news), self.gaps())

    def gaps(self) -> int:
        return self.last - self.first() + 1 - len(self.held)

    def append(self, piece: Piece) -> None:
        self.last += 1
        self.held[self.last] = piece

    def lost(self) -> bool:
        return self.chance.random() < self.lossy

    def carry(self, copies: Copies) -> None:
        """Everything that was said arrives, or some of it."""
        while self.said:
            piece, after = self.said.pop(0)
            if self.lost():
                continue
            taken = after == self.last
            if taken:
                self.append(piece)
            if self.lost():
                continue
            if taken:
                copies.stored(piece.life, piece.number, self.last)
            else:
                copies.refused(piece.life, piece.number)
        if self.looks and not self.lost():
            looks, self.looks = self.looks, 0
            copies.found(self.found(), looks)
        if self.glances and not self.lost():
            self.glances = 0
            copies.begins(self.first(), self.gaps())


class World:
    def __init__(self, seed: int = 0, lossy: float = 0.0) -> None:
        self.log = Log(seed, lossy)
        self.now = 0.0
        self.deposed: list[Found] = []
        self.torn = self.waiting = 0
        self.copies = Copies(
            self.log, lambda: self.now, lambda: None, self.deposed.append, torn=self.tear,
            ungrouped=lambda: self.waiting,
        )

    def tear(self) -> None:
        self.torn += 1

    def begin(self, life: int = 1, landed: int = 0, log: list[Part] | None = None) -> None:
        start, state = iter(log or []), iter(parts(landed, b"state"))
        self.copies.begin(life, self.log.found(), landed, start, state)

    def go_on(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.copies.wake()
        self.log.carry(self.copies)


def groups(log: Log, life: int) -> list[int]:
    return [
        piece.upto
        for _, piece in sorted(log.held.items())
        if piece.kind == LOG and piece.life == life and not piece.more
    ]


def test_what_is_promised_waits_for_the_checkpoint_and_for_each_group() -> None:
    world = World()
    copies = world.copies
    assert copies.safe(7) == 7, "nothing is copied"
    world.begin(landed=5)
    copies.take(6, 8, b"abc")
    assert copies.safe(8) == 5
    world.log.carry(copies)
    assert copies.ready
    assert copies.safe(8) == 8
    copies.take(9, 9, b"d")
    copies.take(12, 13, b"e")  # 10 and 11 change no state
    assert copies.safe(13) == 8
    assert copies.safe(7) == 7, "the disk is behind"
    world.log.carry(copies)
    assert copies.safe(13) == 13


def test_that_what_is_needed_is_gone_is_noticed_while_every_piece_is_taken() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    assert world.copies.ready
    world.log.purge(world.log.last + 1)
    for row in range(1, 20):
        world.copies.take(row, row, b"x")
        world.go_on(0.25)
    assert world.torn == 1
    assert world.copies.safe(20) < 20, "an answer that comes later is not believed"


@pytest.mark.parametrize("asked", [True, False])
def test_that_one_message_is_gone_is_noticed_and_once(asked: bool) -> None:
    """By a look now and then, or when an answer did not come."""
    world = World()
    world.begin()
    world.log.carry(world.copies)
    for row in range(1, 6):
        world.copies.take(row, row, b"x")
        world.go_on(0.25)
    del world.log.held[3]
    if asked:
        world.copies.broken()
        world.copies.connected()
    world.go_on(3)
    assert world.torn == 1
    world.begin(2, landed=5)
    assert world.log.gaps() == 1
    for row in range(6, 12):
        world.copies.take(row, row, b"x")
        world.go_on(1)
    assert world.torn == 1 and world.copies.ready and world.log.gaps() == 0
    del world.log.held[world.log.last - 1]
    world.go_on(3)
    assert world.torn == 2


def test_the_first_half_of_a_checkpoint_is_gone_before_the_second_one_is_there() -> None:
    """An heir would read that one as the whole."""
    world = World()
    state = parts(0, b"s" * 3 * CLUSTER_COPY_PIECE)
    world.copies.begin(1, world.log.found(), 0, iter(()), state)
    piece, _ = world.log.said.pop(0)
    world.log.append(piece)
    world.copies.stored(1, piece.number, world.log.last)
    world.log.purge(world.log.last + 1)
    world.log.said.clear()
    world.go_on(3)
    assert world.torn == 1 and not world.copies.ready


def test_what_is_wanted_and_cannot_be_asked_for_promises_nothing() -> None:
    world = World()
    world.copies.hold(5)
    assert world.copies.safe(9) == 5
    world.now = CLUSTER_QUORUM_SECONDS + 1
    assert world.copies.stalled()


def test_a_group_on_its_way_to_the_disk_when_copying_begins_is_copied() -> None:
    world = World()
    world.copies.take(4, 6, b"on its way")
    world.begin(landed=3)
    world.log.carry(world.copies)
    assert groups(world.log, 1) == [6]


def test_a_large_group_crosses_in_parts() -> None:
    world = World()
    world.begin()
    data = bytes(range(256)) * (CLUSTER_COPY_PIECE // 100)
    world.copies.take(1, 1, data)
    world.log.carry(world.copies)
    held = [piece for _, piece in sorted(world.log.held.items()) if piece.kind == LOG]
    assert [piece.more for piece in held] == [True] * (len(held) - 1) + [False]
    assert b"".join(piece.data for piece in held) == data


def test_a_checkpoint_lets_go_of_what_is_in_it_and_keeps_what_is_behind_it() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    for row in range(1, 6):
        world.copies.take(row, row, b"x")
        world.log.carry(world.copies)
    assert world.copies.checkpoint(parts(3, b"up to three"))
    world.log.carry(world.copies)
    assert groups(world.log, 1) == [4, 5]
    assert [piece.upto for piece in world.log.held.values() if piece.kind == STATE] == [3]


def test_who_finds_a_fence_is_deposed_also_when_it_has_nothing_to_say() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    world.log.append(Piece(2, 1, FENCE, 0, False, b"b"))
    for _ in range(4):
        world.go_on()
    assert [found.last and found.last.kind for found in world.deposed] == [FENCE]


def test_what_was_on_its_way_behind_a_fence_is_not_stored() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    world.log.append(Piece(2, 1, FENCE, 0, False, b"b"))
    world.copies.take(1, 1, b"too late")
    for _ in range(4):
        world.go_on()
    assert world.deposed
    assert groups(world.log, 1) == []
    assert world.copies.safe(1) == 0


@pytest.mark.parametrize("seed", range(200))
def test_each_group_is_there_once_and_in_order_whatever_is_lost(seed: int) -> None:
    """And never is more promised than is there."""
    world = World(seed, lossy=0.2)
    chance = random.Random(seed)
    world.begin(landed=10, log=[(4, False, b"of files"), (10, True, b"two"), (10, False, b"parts")])
    row = 10
    for _ in range(60):
        if row < 60:
            last = row + chance.randrange(1, 4)
            world.copies.take(row + 1, last, b"%d" % last)
            row = last
        world.go_on(chance.choice((0.1, 1.0)))
        stored = groups(world.log, 1)
        assert stored == sorted(set(stored))
        safe = world.copies.safe(row)
        if safe > 10:
            assert safe <= stored[-1]
        if chance.random() < 0.1:
            world.copies.broken()
            world.log.said.clear()
            world.copies.connected()
        if chance.random() < 0.1 and stored:
            world.copies.checkpoint(parts(max(stored[0] - 1, 0), b"state"))
    world.log.lossy = 0.0
    for _ in range(10):
        world.go_on()
    assert not world.deposed
    assert world.copies.safe(row) == row


@pytest.mark.parametrize("text", ["", "1 2 log 3", "a 2 log 3 0", "1 2 rows 3 0", "1 2 log 3 0 5"])
def test_what_no_node_wrote_is_none(text: str) -> None:
    assert heard(text) is None


def test_a_piece_says_itself() -> None:
    piece = Piece(5, 6, STATE, 7, True, b"x")
    assert heard(piece.head(), b"x") == piece


def test_many_on_their_way_are_worth_waiting_for_and_few_are_not() -> None:
    world = World()
    copies = world.copies
    assert not copies.gathers(), "nothing is copied"
    world.begin()
    world.log.carry(copies)
    copies.take(1, CLUSTER_COPY_GATHER, b"few")
    assert not copies.gathers(), "two clients would take turns"
    world.log.carry(copies)
    assert not copies.gathers()
    copies.take(101, 101 + CLUSTER_COPY_GATHER, b"many")
    assert copies.gathers()
    world.log.carry(copies)
    assert copies.gathers(), "who was answered is about to say more"
    world.now += CLUSTER_COPY_RETURN_SECONDS
    assert not copies.gathers()


def test_all_that_were_answered_have_said_more() -> None:
    world = World()
    copies, count = world.copies, CLUSTER_COPY_GATHER
    world.begin()
    world.log.carry(copies)
    copies.take(1, 1 + count, b"many")
    world.waiting = 5  # said meanwhile
    world.log.carry(copies)
    assert copies.gathers()
    world.waiting = 5 + count
    assert not copies.gathers()


def test_nobody_waits_long_for_servers_that_do_not_answer() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    world.copies.take(1, 100, b"many")
    world.now += CLUSTER_COPY_PATIENCE
    assert not world.copies.gathers()
    world.copies.take(101, 200, b"more")
    world.copies.broken()
    assert not world.copies.gathers(), "there is no connection"


def test_what_waits_for_servers_that_are_far_goes_together() -> None:
    world = World()
    world.begin()
    world.log.carry(world.copies)
    world.copies.take(1, 100, b"many")
    world.now += 0.05  # one way and back
    assert not world.copies.gathers(), "so long servers do not take"
    world.log.carry(world.copies)
    world.now += 0.01
    world.copies.take(101, 200, b"more")
    world.now += 0.05
    assert world.copies.gathers(), "but these do"
    world.now += 1.0
    assert not world.copies.gathers()


def test_a_fence_in_the_place_of_a_piece_stops_all_that_follow() -> None:
    """Servers take who names the number of the stranger: nothing may be on its way that does."""
    world = World()
    copies = world.copies
    world.begin()
    world.log.carry(copies)
    for number in range(1, 6):
        copies.take(number, number, b"x")
    world.log.append(Piece(9, 1, FENCE, 0, False, b"heir"))
    world.log.carry(copies)
    assert copies.safe(5) == 0, "nothing of it is there"
    for _ in range(3):
        world.go_on()
    (deposed,) = world.deposed
    assert deposed.last is not None and deposed.last.kind == FENCE
    assert groups(world.log, 1) == []


def test_what_waits_for_an_answer_goes_together() -> None:
    world = World()
    copies = world.copies
    world.begin()
    world.log.carry(copies)
    for number in range(1, 6):
        copies.take(number, number, b"%d" % number)
    copies.take(6, 6, b"large" * CLUSTER_COPY_PIECE)
    copies.take(7, 7, b"7")
    world.log.carry(copies)
    assert copies.safe(7) == 7
    assert copies.waiting_bytes == 0
    held = [piece for _, piece in sorted(world.log.held.items()) if piece.kind == LOG]
    assert [(piece.upto, piece.data) for piece in held[:2]] == [(1, b"1"), (5, b"2345")]
    assert [piece.upto for piece in held[2:]] == [6] * (len(held) - 3) + [7]
    assert copies.figures()["groups"] == 7


@pytest.mark.parametrize("seed", range(40))
def test_whenever_a_node_is_killed_its_disk_has_all_but_the_newest_piece(seed: int) -> None:
    """One group at a time goes to it; those that wait meanwhile go to the servers together."""
    world = World(seed, lossy=0.2)
    chance, copies, on_disk, upto, checks = world.log.chance, world.copies, 0, 0, 0
    world.begin()
    for _ in range(400):
        if on_disk == upto and chance.random() < 0.7:
            first, upto = upto + 1, upto + chance.randrange(1, 9)
            large = chance.random() < 0.1
            copies.take(first, upto, bytes(CLUSTER_COPY_PIECE * 2 if large else 10))
        elif chance.random() < 0.5:
            on_disk = upto
        if chance.random() < 0.05:
            copies.checkpoint(iter(parts(on_disk, b"state")))
        if chance.random() < 0.6:
            world.go_on(chance.choice((0.0, 0.5)))
        found = landed(world.log.held.values(), 1)
        assert found <= on_disk, "a start would take its own journal for an old one"
        checks += found > 0
    assert checks > 200
    world.log.lossy = 0.0
    for _ in range(2):
        upto += 1
        copies.take(upto, upto, b"")
        for _ in range(9):
            world.go_on()
    assert landed(world.log.held.values(), 1) == upto - 1, "and it would know an older one"
    assert landed([Piece(1, 1, LOG, 7, False, b"")], 1) == 7, "nothing else is there"
    assert landed([Piece(1, 1, LOG, 7, True, b""), Piece(2, 1, LOG, 9, False, b"")], 1) == 0


def test_servers_that_refuse_at_once_are_not_asked_without_a_pause() -> None:
    """A stream without a leader: each piece comes back at once, and how far it is is known."""
    world = World()
    world.begin()
    world.go_on()
    world.copies.take(1, 2, b"group")
    asked = sent = 0
    for step in range(1_000):
        world.now += 0.01
        if step % 25 == 0:
            world.copies.wake()
        for piece, _ in world.log.said:
            sent += 1
            world.copies.refused(piece.life, piece.number)
        world.log.said.clear()
        if world.log.looks:
            asked += 1
            number, world.log.looks = world.log.looks, 0
            world.copies.found(world.log.found(), number)
    assert 20 <= asked <= 60 and 20 <= sent <= 60, "ten seconds"
    world.go_on()
    world.go_on()
    assert world.copies.safe(2) == 2


@pytest.mark.parametrize("stopped", [False, True])
def test_an_answer_to_what_was_asked_before_says_nothing_of_now(stopped: bool) -> None:
    """It was on its way while this node stood still, and another one stopped the stream."""
    world = World()
    world.begin()
    world.go_on()
    world.copies.broken()
    world.copies.connected()
    early, number = world.log.found(), world.log.looks
    if stopped:
        world.log.append(Piece(9, 1, FENCE, 0, False, b"b"))
    world.copies.connected()  # it goes on, and asks
    world.copies.found(early, number)
    assert not world.copies.is_own(0) and not world.deposed
    world.copies.found(world.log.found(), world.log.looks)
    assert world.copies.is_own(0) is not stopped and bool(world.deposed) is stopped


def test_who_asks_again_and_again_is_content_with_the_first_answer() -> None:
    """Servers that need longer than from one question to the next are heard all the same."""
    world = World()
    world.begin()
    world.go_on()
    world.copies.broken()
    world.copies.connected()
    number, world.log.looks = world.log.looks, 0
    for _ in range(10):
        world.now += 1.0
        world.copies.wake()
    assert world.log.looks > number
    world.copies.found(world.log.found(), number)
    assert world.copies.is_own(0)


async def test_a_look_that_is_asked_for_while_one_is_on_its_way_follows_it() -> None:
    stream = JetStream(Settings(url=("nats://127.0.0.1:1",), name="a", copies="1"))
    answers: list[int] = []
    asked: list[int] = []

    async def behind(number: int) -> Found:
        asked.append(number)
        await asyncio.sleep(0)
        return Found(number, None)

    def found(found: Found, number: int) -> None:
        answers.append(number)

    stream.up, stream._behind = True, behind  # type: ignore[method-assign,assignment]
    stream._client = cast(Any, stream)
    stream._listener = Listener(
        lambda *one: None, lambda *one: None, found, lambda: None, lambda: None, lambda *one: None
    )  # fmt: skip
    for number in (1, 2, 3):
        stream.look(10 * number, number)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (answers, asked) == ([1, 3], [10, 30])
    stream.look(40, 4)
    for _ in range(5):
        await asyncio.sleep(0)
    assert answers == [1, 3, 4]
