"""What waited for room leaves in one piece, and looks as if each had left by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.rights import RECEIVE, Rights
from hubbub.core.session import Backlog
from hubbub.errors import UnreadableError
from hubbub.protocols.mqtt import codec, numbering
from hubbub.protocols.mqtt.dialect import PLAIN
from tests.core.recording import StillClock
from tests.protocols.mqtt.conversation import Stage

LOOKS_AT_EACH = 1 << 40  # bytes in flight: a bound that nothing reaches
PUBLISHES = st.tuples(st.sampled_from(["a", "b/c"]), st.binary(max_size=200), st.integers(0, 2))


def heard(published: list[tuple[str, bytes, int]], steps: list[int], bound: int) -> list[str]:
    """What a client with a window of three gets that acknowledges so many at a time."""
    stage = Stage()
    stage.broker.inflight, stage.broker.inflight_bytes = 3, bound
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("#", 1)
    for number, (topic, payload, qos) in enumerate(published):
        bob.publish(topic, payload, qos, packet_id=number + 1)
    said, next_id = ann.hear(), 1
    for step in steps:
        flying = [line for line in said if " q1 #" in line]
        ids = range(next_id, min(next_id + step, len(flying) + 1))
        next_id += len(ids)
        ann.answer(codec.PUBACK, *ids)
        said += ann.hear()
    return said


@settings(deadline=None, max_examples=60)
@given(st.lists(PUBLISHES, max_size=20), st.lists(st.integers(1, 3), max_size=20))
def test_in_one_piece_as_one_by_one(
    published: list[tuple[str, bytes, int]], steps: list[int]
) -> None:
    assert heard(published, steps, 0) == heard(published, steps, LOOKS_AT_EACH)


def test_the_window_is_refilled_with_one_write() -> None:
    stage = Stage()
    stage.broker.inflight = 5
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("a", 1)
    for number in range(12):
        bob.publish("a", b"%d" % number, 1, packet_id=number + 1)
    ann.hear()
    ann.answer(codec.PUBACK, 1, 2, 3, 4, 5)
    assert ann.hear() == [f"a={n} q1 #{n + 1}" for n in range(5, 10)]


class Unreadable(Log):
    """A log that has the first message only; the next cannot be read now."""

    def read(self, seq: int) -> Message | None:
        if seq > 1:
            raise UnreadableError("the disk")
        return Message("a", b"x", 1)


def test_it_ends_before_what_cannot_be_read() -> None:
    backlog = Backlog()
    backlog.add(1, 3, 1)
    frames = numbering.waiting(backlog, Unreadable(StillClock()), 20, PLAIN, Rights())
    assert frames == [codec.publish(b"a", b"x", 1, packet_id=1)]


def test_a_piece_is_bounded_in_bytes() -> None:
    stage = Stage()
    bob = stage.device("bob")
    ann = stage.device("ann", clean=False)
    ann.subscribe("a", 1)
    ann.far.hang_up()
    for number in range(4):
        bob.publish("a", bytes(numbering.APART - 1), 1, packet_id=number + 1)
    backlog = stage.broker.state.sessions["mqtt", "ann"].backlog
    assert len(numbering.waiting(backlog, stage.broker.log, 20, PLAIN, Rights())) == 1


class NotB(Rights):
    def may(self, verb: str, name: str) -> bool:
        return verb != RECEIVE or name != "b"


def test_it_ends_before_what_may_not_be_read() -> None:
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), stage.device("bob")
    ann.subscribe("#", 1)
    ann.far.hang_up()
    for number, topic in enumerate(("a", "a", "b", "a")):
        bob.publish(topic, b"x", 1, packet_id=number + 1)
    backlog = stage.broker.state.sessions["mqtt", "ann"].backlog
    assert len(numbering.waiting(backlog, stage.broker.log, 20, PLAIN, NotB())) == 2


class Counted(deque[int]):
    """Entries that count how often somebody walks along them."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_what_flies_is_not_walked_along() -> None:
    """With 60,000 in flight each look at the next one would take a millisecond."""
    backlog = Backlog()
    backlog.entries = Counted([1 << 35 | 1] * 30)
    backlog.sent = 20
    log = Unreadable(StillClock())
    frames = numbering.waiting(backlog, log, 100, PLAIN, Rights())
    assert len(frames) == 10 and backlog.entries.walks == 0
