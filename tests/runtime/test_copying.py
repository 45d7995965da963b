"""Whether a node may promise again whose stream another one has stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hubbub.cluster import estates, heritage, wills
from hubbub.cluster.copies import FENCE, LOG, STATE, Found, Piece
from hubbub.cluster.membership import Membership
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_STOOD_SECONDS
from hubbub.journal.writer import Journal
from hubbub.runtime.copying import BEFORE, LIFE, Copying
from tests.cluster.test_keeping import KEEP, Keepers
from tests.cluster.world import Lines, World
from tests.protocols.mqtt.conversation import Stage


def copied(member: Membership, folder: Path) -> tuple[Any, Any]:
    """A journal of that node there, and its copies, which reach nobody."""
    journal = Journal(folder, member.broker.clock, "disk", lambda seq: None)
    settings = Settings(cluster=Cluster(url=("nats://127.0.0.1:1",), name="a", copies="1"))
    return journal, Copying(member, journal, settings, [], lambda: None)


def test_who_waits_for_its_heir_does_so_after_a_start_too_and_not_for_ever(tmp_path: Path) -> None:
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    heritage.let_go(member.broker, member, [], 1000)
    assert heritage.awaited(world.restart("a")) == 1000
    member = world.members["a"]
    journal, copying = copied(member, tmp_path)
    copying._wait_for_heir(heritage.awaited(member))
    copying.wake()
    assert "heir" in member.broker.no_quorum
    world.clock.seconds += KEEP + 1
    copying.wake()
    assert (member.deposed, copying.fenced_at) == (False, 0)
    journal.directory.release()


@pytest.mark.parametrize("taken_over", [False, True])
async def test_who_stood_still_says_nothing_that_is_due_until_its_stream_was_looked_at(
    tmp_path: Path, taken_over: bool
) -> None:
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    reader, writer = world.client("a", "reader"), world.client("a", "writer")
    reader.wish("later")
    world.publish(writer, "$delayed/3/later", b"due")
    journal, copying = copied(member, tmp_path)
    looks: list[int] = []
    stream: Any = copying.copies.stream
    stream.look = lambda behind, number: looks.append(number)
    copying.copies.begin(7, Found(0, None), 0, iter(()), iter(()))
    copying.copies.ready = True
    try:
        member.note_awake()
        world.clock.seconds += CLUSTER_STOOD_SECONDS - 1
        member.note_awake()
        assert not member.broker.undecided and not looks
        world.clock.seconds += CLUSTER_DEAD_SECONDS + 1
        member.note_awake()
        member.broker.delays.wake()
        copying.wake()
        assert member.broker.undecided and looks and not reader.got
        news = ((1, Piece(8, 1, FENCE, 0, False, b"b")),) if taken_over else ()
        copying._begin = looked
        copying.copies.found(Found(len(news), None, 0, 1, news=news), looks[-1])
        copying.wake()
        wills.known(member, wills.WHO_IS_WHERE)
        member.broker.delays.wake()
        assert not member.broker.undecided
        assert [payload for _, payload in reader.got] == ([] if taken_over else [b"due"])
    finally:
        await copying.close()
        journal.directory.release()


async def test_who_waits_for_what_no_quorum_took_is_cut_off_and_never_answered(
    tmp_path: Path,
) -> None:
    """Its stream was stopped: what was said since is another node's to promise."""
    stage = Stage(prompt=False)
    member = Membership(stage.broker, Lines(World(names=()), "a"), "0")
    journal, copying = copied(member, tmp_path)
    copying._begin = looked
    waits, idle = stage.device("waits"), stage.device("idle")
    stage.sync()
    for device in (waits, idle):
        assert device.hear() == ["CONNACK 0"]
    waits.publish("x", b"1", 1, packet_id=7)
    try:
        copying._give_up(Found(1, Piece(8, 1, FENCE, 0, False, b"b")))
        stage.sync()
        assert waits.far.closed and not idle.far.closed
        assert waits.hear() == idle.hear() == []
    finally:
        await copying.close()
        journal.directory.release()


async def test_nor_does_who_began_to_copy_anew_just_then(tmp_path: Path) -> None:
    """Its stream was purged, and nobody leads it: what was asked before may not be so any more."""
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    journal, copying = copied(member, tmp_path)
    copying.copies.begin(7, Found(0, None), 0, iter(()), iter(()))
    copying._begin = looked
    try:
        member.note_awake()
        copying._is_torn()
        world.clock.seconds += CLUSTER_DEAD_SECONDS + 1
        member.note_awake()
        wills.known(member, wills.WHO_IS_WHERE)
        copying.wake()
        assert member.broker.undecided
        copying.copies.begin(8, Found(0, None), 0, iter(()), iter(()))
        copying.wake()
        assert member.broker.undecided, "what it found it may have asked before it stood still"
        copying.copies.ready = True
        copying.wake()
        assert not member.broker.undecided
    finally:
        await copying.close()
        journal.directory.release()


async def looked() -> None:
    """What begins a life behind the stop."""


async def test_who_was_started_later_under_a_name_that_another_one_has_copies_no_more(
    tmp_path: Path,
) -> None:
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    journal, copying = copied(member, tmp_path)
    put: list[Piece] = []
    copying.copies.stream.put = lambda piece, after: put.append(piece)
    copying.copies.begin(7, Found(0, None), 0, iter(()), iter(((0, False, b"state"),)))
    assert len(put) == 1
    member.hearing.stay_out()
    copying.wake()
    copying.copies.take(1, 1, b"row")
    copying.copies.stored(7, 1, 1)
    assert len(put) == 1 and copying.copies.safe(1) == 0
    assert "has the name 'a'" in member.broker.no_quorum
    copying.stream.up = True
    await copying._begin()
    assert not copying.copies.life
    await copying.close()
    journal.directory.release()


class Servers:
    """One stream as the servers keep it, which lets go of nothing: each purge fails. `late`: what
    somebody else says just before the first stop.
    """

    name = "hubbub_hubbub_a"

    def __init__(self, *pieces: Piece) -> None:
        self.held = list(enumerate(pieces, 1))
        self.late: list[Piece] = []

    def found(self, behind: int = 0) -> Found:
        at, last = self.held[-1]
        return Found(at, last, 0, 1, tuple(self.held[behind:]))

    async def last(self, stream: str) -> Found:
        return self.found()

    async def read(
        self, node: str, upto: int, heads: bool = False, behind: int = 0
    ) -> list[tuple[int, Piece]]:
        found = self.held[behind:upto]
        return [(at, one._replace(data=b"")) for at, one in found] if heads else found

    async def message(self, node: str, at: int) -> Piece | None:
        return dict(self.held).get(at)

    async def fence(self, node: str, after: int, life: int, author: str) -> int:
        while self.late:
            self.put(self.late.pop(0), len(self.held))
        return self.put(Piece(life, 1, FENCE, 0, False, author.encode()), after)

    def put(self, piece: Piece, after: int) -> int:
        if after != len(self.held):
            return 0
        self.held.append((after + 1, piece))
        return after + 1


@pytest.mark.parametrize("says", ["no more", "more", "nothing whole"])
async def test_what_a_later_hub_of_its_name_said_behind_its_stop_is_not_judged_by_numbers_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """This one stood still; the later one stopped its stream, took over, acknowledged, and could
    let go of nothing in the stream. Its rows are few, those here are many. It may say more while
    it is stopped.
    """
    monkeypatch.setattr("hubbub.runtime.copying.RETRY_SECONDS", 0)
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    journal, copying = copied(member, tmp_path)
    whole = says != "nothing whole"
    servers = Servers(
        Piece(7, 1, STATE, 900, False, b""), Piece(7, 2, LOG, 990, False, b""),
        Piece(8, 1, FENCE, 0, False, b"a@3"),
        Piece(9, 1, STATE, 10, not whole, b""), Piece(9, 2, LOG, 20, False, b""),
    )  # fmt: skip
    servers.late = [Piece(9, 3, LOG, 21, False, b"")] if says == "more" else []
    stream = copying.stream
    stream.last, stream.read, stream.message, stream.fence, stream.put = (
        servers.last, servers.read, servers.message, servers.fence, servers.put,
    )  # fmt: skip
    stream.look = lambda behind, number: None
    stream.up = True
    copying._landed = looked
    copying._life, copying._found_upto = 7, 1000
    copying.copies.begin(7, Found(2, None), 990, iter(()), iter(()))
    try:
        copying.copies.connected()
        copying.copies.found(servers.found(2), 1)
        async with asyncio.timeout(5):
            await copying._beginning
        stops = [at for at, piece in servers.held if piece.kind == FENCE]
        assert stops == {"no more": [3, 6], "more": [3, 7], "nothing whole": [3]}[says]
        assert copying.is_own_heir and copying.fenced_at == stops[-1]
        assert servers.held[-1][1].life > 9 and copying.copies.life == servers.held[-1][1].life
    finally:
        await copying.close()
        journal.directory.release()


@pytest.mark.parametrize("author", ["a@3", "b"])
@pytest.mark.parametrize("begun", [False, True])
async def test_who_was_killed_behind_its_own_stop_hears_clients_when_it_has_what_was_before_it(
    tmp_path: Path, author: str, begun: bool
) -> None:
    """What is published before is kept for nobody: what its sessions want its copy alone says."""
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    journal, copying = copied(member, tmp_path)
    servers = Servers(
        Piece(7, 1, STATE, 0, False, b""), Piece(7, 2, LOG, 1, False, b""),
        Piece(8, 1, FENCE, 0, False, author.encode()),
    )  # fmt: skip
    if begun:
        heritage.let_go(member.broker, member, [], 3)
        for name, number in ((BEFORE, 8), (LIFE, 9)):
            member.broker.change(estates.taken_row(name, number))
        servers.put(Piece(9, 1, STATE, 0, False, b""), 3)
    stream = copying.stream
    stream.last, stream.read, stream.message, stream.fence, stream.put = (
        servers.last, servers.read, servers.message, servers.fence, servers.put,
    )  # fmt: skip
    stream.up, copying._landed, copying._found_upto = True, looked, 1
    try:
        await copying._begin()
        assert copying.copies.life > 8 and copying.fenced_at == 3
        assert copying.is_own_heir == (author == "a@3")
    finally:
        await copying.close()
        journal.directory.release()
