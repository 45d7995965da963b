"""A turn of the loop: what leaves at once, what waits for the tick, what a steady read tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.connection import Connection
from hubbub.core.gate import Gate, Opening
from hubbub.core.limits import TURN_SECONDS, WEIGHED_BYTES
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.session import Session
from hubbub.errors import ProtocolError
from hubbub.runtime.busypoll import BusyPoll
from hubbub.runtime.turn import FULL_READ, Steady, Turn
from tests.wire import Recorder


class Talk(Connection):
    """Does with what it hears what the test says."""

    def __init__(self, broker: Broker, link: Link) -> None:
        super().__init__(broker, link, Opening(Gate(broker.open), "127.0.0.1", 1, False, False))
        self.restless = False
        self.does: Callable[[bytes], None] = self.link.write

    def feed(self, data: bytes) -> None:
        assert self.broker.clock.reading
        self.does(data)


class Breaks(Session):
    """Has something to settle, and cannot."""

    def settle(self) -> None:
        raise ZeroDivisionError


class Stage:
    """A connection on a turn whose ticks the test takes; `told` is what the socket was asked."""

    def __init__(self) -> None:
        clock = Clock()
        self.log = Log(clock)
        self.broker = Broker(clock, self.log, "none")
        self.soon: list[Callable[[], None]] = []
        self.commits = 0
        poll = BusyPoll(self.soon.append, 0.0, lambda: 1.0)  # all in one turn
        self.turn = Turn(self.broker, self.soon.append, self._commit, poll)
        self.far = Recorder()
        self.link = Link(self.broker.outgoing, self.far)
        self.link.prompt = False
        self.talk = Talk(self.broker, self.link)
        self.told: list[str] = []
        self.blocked = False
        self.received = self.weighed = 0
        self.steady = Steady(self, self.talk, self.link, self.turn)

    def _commit(self) -> None:
        self.commits += 1

    def refuse(self, error: ProtocolError) -> None:
        self.told.append(f"refuse {error.reason}")

    def broke(self) -> None:
        self.told.append("broke")

    def schedule(self) -> None:
        self.told.append("schedule")

    def hurry(self, link: Link) -> None:
        self.told.append("hurry")

    def rest(self) -> None:
        self.told.append("rest")

    def look_up(self, published: bool) -> None:
        self.told.append(f"look up {published}")
        if self.received - self.weighed > WEIGHED_BYTES:
            self.weighed = self.received

    def eof_received(self) -> bool | None:
        self.told.append("eof")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append(f"lost {error}")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def other(self) -> tuple[Link, Recorder]:
        far = Recorder()
        return Link(self.broker.outgoing, far), far


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_its_own_answer_leaves_without_a_tick(stage: Stage) -> None:
    assert not stage.steady.read(b"hello"), "nothing was published"
    assert (stage.far.pieces, stage.soon, stage.told) == ([b"hello"], [], [])
    assert stage.broker.metrics.bytes_received == 5


@pytest.mark.parametrize("error", [None, ProtocolError("no"), ZeroDivisionError()])
def test_what_comes_in_one_read_has_one_time(stage: Stage, error: Exception | None) -> None:
    """However it ends, what comes behind it has a time of its own."""
    clock, times = stage.broker.clock, list[int]()

    def does(data: bytes) -> None:
        for _ in range(3):
            times.append(clock.taken_in())
            begun = clock.stamp()
            while clock.stamp() == begun:
                pass
        if error is not None:
            raise error

    stage.talk.does = does
    stage.steady.read(b"x")
    assert times[2] > times[0] and not clock.reading
    stage.steady.read(b"x")
    assert times == sorted(times)


def test_what_several_say_in_a_turn_waits_for_the_tick(stage: Stage) -> None:
    link, far = stage.other()

    def does(data: bytes) -> None:
        link.write(data)
        stage.link.write(b"ok")

    stage.talk.does = does
    stage.steady.read(b"alone")
    assert (far.pieces, stage.far.pieces, stage.soon) == ([b"alone"], [b"ok"], [])
    stage.steady.read(b"to you")
    stage.steady.read(b"again")
    assert len(far.pieces) == 1 and len(stage.soon) == 1, "one tick a turn"
    stage.soon.pop()()
    assert far.pieces[1:] == [b"to you", b"again"] and len(stage.far.pieces) == 3


def test_nothing_passes_rows_that_wait(stage: Stage) -> None:
    stage.log.handed = -1  # as if one waited to be handed to the disk
    stage.steady.read(b"hello")
    assert stage.far.pieces == [] and stage.commits == 0
    stage.soon.pop()()
    assert (stage.far.pieces, stage.commits) == ([b"hello"], 1)


def test_a_message_is_told(stage: Stage) -> None:
    stage.talk.does = lambda data: stage.broker.post(Message("t", data))
    assert stage.steady.read(b"21")


def test_too_much_is_the_socket_s(stage: Stage) -> None:
    """Where its own reader is behind, the disk, or nobody has weighed it for long."""
    stage.talk.does = lambda data: None
    stage.steady.data_received(b"few")
    assert (stage.steady.count, stage.told) == (3, [])
    stage.steady.report()
    assert (stage.received, stage.steady.count) == (3, 0)
    stage.steady.data_received(bytes(WEIGHED_BYTES))
    assert stage.weighed == stage.received == WEIGHED_BYTES + 3
    stage.steady.pause_writing()
    stage.steady.data_received(b"x")
    stage.steady.resume_writing()
    stage.turn.congested = True
    stage.steady.data_received(b"x")
    stage.turn.congested = False
    stage.steady.data_received(bytes(WEIGHED_BYTES - 2))
    stage.steady.data_received(b"x")
    asked = [one for one in stage.told if one.startswith("look")]
    assert asked == ["look up False"] * 4


def test_what_else_the_loop_says_goes_on_to_the_socket(stage: Stage) -> None:
    stage.steady.pause_writing()
    stage.steady.resume_writing()
    assert stage.steady.eof_received(), "half-closed"
    stage.steady.connection_lost(None)
    assert stage.told == ["pause", "resume", "eof", "lost None"]


def test_what_goes_wrong_is_the_socket_s(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    def refused(data: bytes) -> None:
        raise ProtocolError("no such word")

    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    stage.talk.does = refused
    stage.steady.read(b"x")
    stage.talk.does = broken
    stage.steady.read(b"x")
    assert stage.told == ["refuse no such word", "broke"]
    stage.broker.unsettled.append(Breaks("", "", stage.broker.open))
    stage.talk.does = stage.link.write
    stage.steady.read(b"after it")
    stage.soon.pop()()
    assert stage.far.pieces == [b"after it"] and "broke" in caplog.text


def test_a_restless_connection_is_asked_when_it_wants_to_be_woken(stage: Stage) -> None:
    stage.talk.restless = True
    stage.steady.read(b"hello")
    stage.talk.restless, stage.link.closing = False, True
    stage.steady.read(b"goodbye")
    assert stage.told == ["schedule", "schedule"]


def test_the_kernel_is_hurried_where_nothing_was_answered(stage: Stage) -> None:
    stage.link.prompt = True
    stage.steady.read(b"hello")
    assert stage.told == []
    stage.talk.does = lambda data: None
    stage.steady.read(b"hello")
    assert stage.told == ["hurry"]


def test_a_read_that_filled_the_buffer_is_written_at_once(stage: Stage) -> None:
    link, far = stage.other()
    stage.talk.does = link.write
    stage.turn.schedule()
    stage.steady.read(bytes(FULL_READ))
    assert far.pieces == []
    stage.steady.read(bytes(FULL_READ + 1))
    assert sum(map(len, far.pieces)) == 2 * FULL_READ + 1


def test_who_fills_the_buffer_is_not_read_on_once_the_turn_had_its_time(stage: Stage) -> None:
    clock = stage.broker.clock
    for ago, told in ((-1.0, []), (2 * TURN_SECONDS, ["rest"])):
        clock.turned = clock.now() - ago
        stage.steady.read(bytes(FULL_READ + 1))
        assert stage.told == told


def test_a_tick_says_that_a_turn_is_over(stage: Stage) -> None:
    assert stage.broker.clock.turned == 0.0
    stage.turn.tick()
    assert 0.0 < stage.broker.clock.turned <= stage.broker.clock.now()
