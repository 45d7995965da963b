"""What leaves when: at once, when it is durable, and never past a barrier."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.limits import LINK_BYTES, LINK_CHOKED
from hubbub.core.link import JOINED, PIECES, Link, Outgoing
from tests.core.recording import Recording, StillClock
from tests.wire import Recorder


class Desk:
    """One link, a log that is durable on demand, and the tick."""

    def __init__(self) -> None:
        self.log = Recording(StillClock(), prompt=False)
        self.outgoing = Outgoing(self.log)
        self.transport = Recorder()
        self.link = Link(self.outgoing, self.transport)

    def row(self) -> None:
        self.log.position += 1

    def tick(self) -> bytes:
        outgoing = self.outgoing
        outgoing.holding = [x for x in outgoing.holding if not x.release()]
        touched, outgoing.touched = outgoing.touched, []
        for link in touched:
            link.flush()
        pieces, self.transport.pieces = self.transport.pieces, []
        return b"".join(pieces)


def test_what_leaves_makes_no_room_for_what_is_held() -> None:
    desk = Desk()
    desk.row()
    for _ in range(100):
        if not desk.link.choked:
            desk.link.hold(b"x" * (LINK_BYTES // 10))
        desk.link.write(b"publish ")
        desk.tick()
    assert desk.link.held_bytes < 2 * LINK_BYTES
    desk.log.sync()
    desk.tick()
    assert not desk.link.choked and not desk.link.held_bytes


def test_written_leaves_with_the_tick_held_when_it_is_durable() -> None:
    desk = Desk()
    desk.row()
    desk.link.hold(b"puback ")
    desk.link.write(b"publish ")
    assert desk.tick() == b"publish "
    assert desk.tick() == b""
    desk.log.sync()
    assert desk.tick() == b"puback "
    assert desk.outgoing.holding == []


def test_nothing_is_held_when_everything_is_durable() -> None:
    desk = Desk()
    desk.row()
    desk.log.sync()
    desk.link.hold(b"puback", barrier=True)
    desk.link.write(b" more")
    assert desk.tick() == b"puback more"


def test_held_things_keep_their_order_and_their_rows() -> None:
    desk = Desk()
    desk.row()
    desk.link.hold(b"1 ")
    desk.row()
    desk.link.hold(b"2 ")
    desk.log.durable = 1
    assert desk.tick() == b"1 "
    desk.log.durable = 2
    assert desk.tick() == b"2 "


def test_what_waited_for_a_barrier_is_not_passed_by_what_is_written_later() -> None:
    desk = Desk()
    desk.row()
    desk.link.hold(b"connack ", barrier=True)
    desk.row()
    desk.link.hold(b"pubrec ")
    desk.link.write(b"first ")
    desk.link.hold(b"suback ", barrier=True)
    desk.link.write(b"third ")
    desk.log.durable = 1
    assert desk.tick() == b"connack first "
    desk.link.write(b"fourth ")
    assert desk.tick() == b""
    desk.log.sync()
    assert desk.tick() == b"pubrec suback third fourth "
    assert desk.link.held_bytes == 0 and desk.outgoing.holding == []


def test_nothing_passes_a_barrier() -> None:
    desk = Desk()
    desk.row()
    desk.link.hold(b"connack ", barrier=True)
    desk.link.write(b"publish ")
    desk.row()
    desk.link.hold(b"suback ", barrier=True)
    desk.link.write(b"retained ")
    assert desk.tick() == b""
    desk.log.durable = 1
    assert desk.tick() == b"connack publish "
    desk.log.sync()
    assert desk.tick() == b"suback retained "
    desk.link.write(b"free")
    assert desk.tick() == b"free"


@given(st.lists(st.sampled_from(["write", "hold", "barrier", "row", "sync", "tick"])))
def test_all_of_it_leaves_once_and_promises_in_order(steps: list[str]) -> None:
    desk, written, sent = Desk(), [], b""
    held_at: dict[int, int] = {}
    for number, step in enumerate(steps):
        piece = b"%d," % number
        if step == "write":
            desk.link.write(piece)
        elif step in ("hold", "barrier"):
            held_at[number] = desk.log.position
            desk.link.hold(piece, barrier=step == "barrier")
        elif step == "row":
            desk.row()
        elif step == "sync":
            desk.log.sync()
        else:
            sent += desk.tick()
            done = {int(one) for one in sent.split(b",")[:-1]}
            assert all(held_at[one] <= desk.log.durable for one in done if one in held_at)
        if step in ("write", "hold", "barrier"):
            written.append(number)
    desk.log.sync()
    sent += desk.tick() + desk.tick()
    left = [int(one) for one in sent.split(b",")[:-1]]
    assert sorted(left) == written
    assert [one for one in left if one in held_at] == sorted(held_at)
    for barrier in (one for one in held_at if steps[one] == "barrier"):
        at = left.index(barrier)
        assert all(one > barrier for one in left[at:] if one != barrier)
        assert all(one < barrier for one in left[:at]), "nothing written later passed it"


def test_a_closing_link_waits_for_what_it_holds() -> None:
    desk = Desk()
    desk.row()
    desk.link.hold(b"puback")
    desk.link.close("bye")
    desk.link.close("again")
    desk.tick()
    assert not desk.transport.closed
    desk.log.sync()
    assert desk.tick() == b"puback"
    assert desk.transport.closed
    assert desk.link.reason == "bye"


def test_a_slow_reader_is_choked_and_then_ended() -> None:
    desk = Desk()
    waiting = LINK_CHOKED + 1
    desk.transport.get_write_buffer_size = lambda: waiting  # type: ignore[method-assign]
    desk.link.write(b"x")
    desk.tick()
    assert desk.link.choked
    assert not desk.transport.closed
    waiting = LINK_BYTES + 2
    desk.link.write(b"x")
    desk.tick()
    assert desk.transport.closed
    assert "too slow" in desk.link.reason


def test_one_message_of_any_size_may_be_on_its_way() -> None:
    desk = Desk()
    desk.transport.get_write_buffer_size = lambda: waiting  # type: ignore[method-assign]
    large = bytes(2 * LINK_BYTES)
    waiting = len(large)
    desk.link.write(large)
    desk.tick()
    waiting += LINK_BYTES
    desk.link.write(b"puback")
    desk.tick()
    assert not desk.transport.closed
    waiting += 1
    desk.link.write(b"puback")
    desk.tick()
    assert desk.transport.closed


def test_within_a_tick_it_is_choked_by_what_was_written_or_held() -> None:
    desk = Desk()
    relieved: list[bool] = []
    desk.link.relieved = lambda: relieved.append(desk.link.choked)
    for hold in (False, True):
        desk.row()
        for _ in range(2):
            assert not desk.link.choked
            desk.link.hold(bytes(LINK_BYTES)) if hold else desk.link.write(bytes(LINK_BYTES))
        assert desk.link.choked
        desk.log.sync()
        assert not relieved
        desk.tick()
        assert not desk.link.choked
        assert relieved == [False], "the transport took all of it and will say nothing"
        relieved.clear()


def test_pieces_stay_apart_where_a_client_cannot_take_them_as_one() -> None:
    desk = Desk()
    desk.link.write(b"one")
    desk.link.write(b"two")
    desk.link.flush()
    assert desk.transport.pieces == [b"one", b"two"]


@pytest.mark.parametrize("piece", [b"pong", bytes(JOINED)])
def test_small_pieces_leave_as_one_and_so_do_very_many(piece: bytes) -> None:
    desk = Desk()
    desk.link.joins = True
    for count in (2, PIECES, PIECES + 1):
        for _ in range(count):
            desk.link.write(piece)
        desk.link.flush()
        desk.outgoing.touched.clear()
        apart = len(piece) >= JOINED and count <= PIECES
        assert len(desk.transport.pieces) == (count if apart else 1)
        assert b"".join(desk.transport.pieces) == piece * count
        desk.transport.pieces.clear()


def test_a_link_whose_socket_is_gone_lets_go_of_everything() -> None:
    desk = Desk()
    desk.link.write(b"x")
    desk.link.transport = None
    assert desk.tick() == b""
    assert desk.link.size == 0
    assert desk.link.out == []


def test_very_many_barriers_are_let_go_in_one_pass() -> None:
    """Anybody may ask for very many ids, and each answer is a barrier."""
    desk, count = Desk(), 20_000
    for _ in range(count):
        desk.row()
        desk.link.hold(b"x", barrier=True)
    desk.row()
    desk.link.hold(b"last", barrier=True)
    desk.log.durable = count
    begun = time.process_time()
    assert desk.tick() == b"x" * count and desk.link.barriers == 1
    assert time.process_time() - begun < 1.0, "it was 5 s when each looked at all behind it"


def test_what_waits_for_one_row_is_few_pieces() -> None:
    """Each answer of thousands behind one new name was let go by itself, all in one turn."""
    desk, count = Desk(), 20_000
    desk.row()
    for number in range(count):
        desk.link.hold(b"x", barrier=number % 2 == 1)
    for _ in range(count):
        desk.link.write(b"y")
    assert len(desk.link.held or ()) < count // 1000 and desk.link.held_bytes == 2 * count
    assert desk.tick() == b""
    desk.log.sync()
    assert desk.tick() == b"x" * count + b"y" * count
    assert desk.link.barriers == desk.link.held_bytes == 0


def test_what_is_held_for_an_earlier_row_waits_for_no_later_one_and_keeps_its_place() -> None:
    desk = Desk()
    desk.row()
    desk.row()
    desk.link.hold(b"1", upto=1)
    desk.link.hold(b"2")
    desk.link.hold(b"3", upto=1)
    assert desk.tick() == b""
    desk.log.durable = 1
    assert desk.tick() == b"1", "what comes behind another never overtakes it"
    desk.log.durable = 2
    assert desk.tick() == b"23"
    desk.row()
    desk.link.hold(b"4", upto=2)
    assert desk.tick() == b"4"
