"""Whose what a start finds in its stream is: a directory may be an older one, or have been another
one's meanwhile, with more rows than the one with which the node went on.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hubbub.cluster import estates
from hubbub.cluster.copies import FENCE, FOR_GOOD, LOG, STATE, Found, Piece
from hubbub.cluster.jetstream import JetStream
from hubbub.cluster.membership import Membership
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.journal.writer import Journal
from hubbub.runtime.copying import BEFORE, LIFE, MARKER, Copying
from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_heirs import know, pair, publish_all, read, subscribed_at
from tests.cluster.test_jetstream import Hubs, hubs, pieces_of, quorum
from tests.cluster.world import Lines, World
from tests.protocols.mqtt.conversation import Stage
from tests.runtime.test_copying import Servers

__all__ = ["hubs", "quorum"]

ROWS = 100  # in the journal here
NODE = "a"


def whole(life: int, upto: int) -> list[Piece]:
    """A life that counts: its checkpoint, and two groups."""
    state = Piece(life, 1, STATE, 0, False, b"")
    return [state, *(Piece(life, 2 + n, LOG, upto - 1 + n, False, b"") for n in (0, 1))]


def part(life: int) -> Piece:
    return Piece(life, 1, STATE, 0, True, b"")


def stop(life: int, upto: int = 0) -> Piece:
    return Piece(life, 1, FENCE, upto, False, b"c")


class Start:
    """A hub is started with a directory that says it has begun the life `life` behind `before`."""

    def __init__(self, path: Path) -> None:
        self.stage = Stage()
        self.member = Membership(self.stage.broker, Lines(World(names=()), NODE), "0")
        self.journal: Any = Journal(path, self.stage.clock, "disk", lambda seq: None)
        self.path = path

    def finds(
        self, *pieces: Piece, life: int = 0, before: int = 0, marked: bool = True, rows: int = ROWS
    ) -> Found:
        if marked:
            (self.path / MARKER).write_text("")
        if life:
            for name, number in ((BEFORE, before), (LIFE, life)):
                self.stage.broker.state.apply(estates.taken_row(name, number))
        settings = Settings(cluster=Cluster(url=("nats://127.0.0.1:1",), name=NODE, copies="1"))
        copying = Copying(self.member, self.journal, settings, [], lambda: None)
        copying.stream = cast(JetStream, Servers(*pieces))
        copying._found_upto = rows
        return asyncio.run(copying._newest())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    start = Start(tmp_path)
    yield start
    start.journal.directory.release()


def is_own_stop(found: Found, after: int) -> bool:
    """Whether this node stopped its stream itself, behind so many pieces."""
    author = f"{NODE}@{after + 1}".encode()
    return found.place == after + 1 and found.last is not None and found.last.data == author


def test_a_life_that_this_directory_began_is_gone_on_with(start: Start) -> None:
    found = start.finds(*whole(1, 50), *whole(3, ROWS), life=3, before=1)
    assert not found.stopped


def test_nor_does_it_matter_that_nothing_of_the_last_one_came_there(start: Start) -> None:
    assert not start.finds(*whole(1, ROWS), life=3, before=1).stopped


def test_of_its_own_life_the_rows_say_whether_it_is_an_older_one(start: Start) -> None:
    assert is_own_stop(start.finds(*whole(3, ROWS + 2), life=3), 3)


@pytest.mark.parametrize("marked", [False, True])
def test_a_life_of_another_directory_is_not_judged_by_rows(start: Start, marked: bool) -> None:
    """The disk was lost, the node went on with a new one, and the old one is put back."""
    found = start.finds(*whole(4, 2), life=3 * marked, before=1 * marked, marked=marked)
    assert is_own_stop(found, 3)


def test_a_life_between_the_two_that_it_began_behind_is_anothers(start: Start) -> None:
    """Its last one never came there, and the clock of the other machine was behind."""
    assert is_own_stop(start.finds(*whole(2, 50), life=3, before=1), 3)


def test_so_is_one_of_which_only_a_part_is_there(start: Start) -> None:
    """The copy may be of later than this backup, and what is there of it not be looked at."""
    assert is_own_stop(start.finds(*whole(3, 50), part(4), life=3), 4)


def test_where_no_life_is_whole_nobody_was_promised_anything(start: Start) -> None:
    assert not start.finds(part(4), marked=False).stopped


def test_a_journal_of_a_version_that_noted_no_lives_is_judged_by_rows(start: Start) -> None:
    assert not start.finds(*whole(4, ROWS)).stopped


def test_an_empty_journal_is_not_gone_on_with(start: Start) -> None:
    assert is_own_stop(start.finds(*whole(4, 2), marked=False, rows=0), 3)


def test_what_was_said_a_second_time_is_no_life_of_another(start: Start) -> None:
    old = whole(1, 2)[0]
    assert not start.finds(*whole(2, 50), *whole(3, ROWS), old, life=3, before=2).stopped


def test_nor_does_it_hide_that_the_journal_is_an_older_one(start: Start) -> None:
    assert is_own_stop(start.finds(*whole(3, ROWS + 2), whole(1, 2)[0], life=3, before=2), 4)


def test_a_life_behind_a_stop_that_is_not_known_is_not_passed_over(start: Start) -> None:
    """This node had waited for its heir, with another directory or behind this copy of it, and what
    it acknowledged meanwhile is there.
    """
    assert is_own_stop(start.finds(*whole(3, 50), stop(4), *whole(5, 2), life=3), 7)


@pytest.mark.parametrize("behind", [part(5), *whole(3, 50)[:1], Piece(5, 1, STATE, 9, False, b"x")])
def test_what_nobody_was_promised_behind_it_is(start: Start, behind: Piece) -> None:
    found = start.finds(*whole(3, 50), stop(4), behind, life=3)
    assert found.stopped and (found.place, found.strange) == (4, 1)


@pytest.mark.parametrize("later", [False, True])
def test_a_directory_of_a_node_that_was_removed_is_not_its_heir(start: Start, later: bool) -> None:
    """Unless it began behind that: then a life behind it is its node's."""
    start.member.born = 5 if later else 3
    found = start.finds(*whole(3, 50), stop(4, FOR_GOOD), *whole(5, 2), life=3, rows=0)
    assert is_own_stop(found, 7) if later else found.for_good and found.strange == 3


@pytest.mark.soak
@pytest.mark.interop
@has_program
async def test_what_was_acknowledged_while_it_waited_for_its_heir_goes_on_after_a_backup(
    hubs: Hubs, quorum: Quorum
) -> None:
    """The heir, which was dead, is back, too: it has what was before its stop, and this node what
    was behind it.
    """
    import nats

    a, b = await asyncio.to_thread(pair, hubs)
    data, old = hubs.root / "b" / "data", hubs.root / "old"
    await subscribed_at(a, "away")
    await publish_all(b, 0)
    b.stop(signal.SIGKILL)
    shutil.copytree(data, old)
    life = (await pieces_of(quorum, "b"))[-1].life + 1
    client = await nats.connect(quorum.urls)
    try:
        headers = {"Hubbub-Copy": f"{life} 1 fence 0 0"}
        await client.jetstream().publish("hubbub.log.b", b"c", headers=headers)
    finally:
        await client.close()
    b = await asyncio.to_thread(hubs.hub, "b")
    await asyncio.to_thread(know, b, "a")
    await asyncio.to_thread(hubs.until, b, lambda copies: copies["checkpoints"])
    a.stop(signal.SIGKILL)
    await publish_all(b, 1, 2)
    b.stop(signal.SIGKILL)
    shutil.rmtree(data)
    shutil.move(old, data)
    await asyncio.gather(*(asyncio.to_thread(hubs.hub, name) for name in "ca"))
    b = await asyncio.to_thread(hubs.hub, "b")
    await asyncio.to_thread(hubs.ready, b)
    assert await read(b, "away") == [b"0", b"1", b"2"]
