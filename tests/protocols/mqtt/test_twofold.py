"""QoS 2 in runs says and knows what a packet at a time does: the same talk, taken both ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hubbub.core.session import Backlog
from hubbub.protocols.mqtt import codec, twofold
from hubbub.protocols.mqtt import specification as spec
from tests.core.recording import folded, snapshot
from tests.protocols.mqtt.conversation import Stage

pytestmark = pytest.mark.pure  # the long way is had by leaving the short one out

Step = tuple[str, int, int]

IDS = st.integers(0, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish 2", "publish 1", "publish 0", "again"]), IDS, IDS),
        st.tuples(st.just("window"), st.integers(1, 30), st.integers(1, 30)),
        st.tuples(st.sampled_from(["answer", "release"]), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["puback", "pubrec", "pubcomp", "pubrel"]), IDS, IDS),
    ),
    max_size=12,
)


@contextmanager
def _the_long_way() -> Iterator[None]:
    """A packet at a time, as everything went before there were runs."""
    with (
        mock.patch.object(twofold, "fits", lambda *_: False),
        mock.patch.object(twofold, "ANSWERS", frozenset((twofold.PUBACK,))),
    ):
        yield


class Talk:
    """A publisher and a subscriber of QoS 2, who say what the steps say, cut after `cut` bytes."""

    def __init__(self, v5: bool, lasting: bool, first: int, cut: int) -> None:
        self.stage = Stage()
        self.v5, self.cut = v5, cut
        said = codec.Properties() if v5 else None
        self.sender, self.reader = (self.stage.dial(self.stage.mqtt) for _ in range(2))
        self.sender.say(codec.connect(b"ann", True, 0, properties=said))
        if said is not None and lasting:
            said.numbers[spec.SESSION_EXPIRY] = 100
        self.reader.say(codec.connect(b"bob", not lasting or v5, 0, properties=said))
        self.reader.say(codec.subscribe(1, [(b"a", 2)], codec.NO_PROPERTIES if v5 else b""))
        session = self.stage.broker.sessions["mqtt", "bob"]
        if not lasting:
            session.backlog = Backlog(first)  # type: ignore[attr-defined]
        self.heard: list[bytes] = []
        self.owed = b""
        self.unreleased = b""

    def take(self, steps: list[Step]) -> tuple[object, ...]:
        for step in steps:
            getattr(self, "_" + step[0].split()[0])(*step)
            self._listen()
        broker = self.stage.broker
        session = broker.sessions.get(("mqtt", "ann"))
        unreleased = sorted(session.state.open_ids) if session is not None else None  # type: ignore[attr-defined]
        rows = self.stage.log.rows
        known = snapshot(broker.state, rows)
        assert snapshot(folded(rows), rows) == known
        waits = [sorted(one.backlog.received) for one in broker.state.sessions.values()]
        return self.heard, unreleased, waits, self.sender.closed, self.reader.closed

    def _say(self, far: object, data: bytes) -> None:
        for piece in (data[: self.cut], data[self.cut :]):
            if piece and not far.closed:  # type: ignore[attr-defined]
                far.say(piece)  # type: ignore[attr-defined]

    def _publish(self, what: str, number: int, count: int) -> None:
        self._say(self.sender, self._packets(int(what[-1]), range(number, number + count)))

    def _again(self, what: str, number: int, count: int) -> None:
        """The same ids twice in one run, and with the DUP flag."""
        once = self._packets(2, range(number, number + count))
        self._say(self.sender, once + once + self._packets(2, range(number, number + 1), True))

    def _window(self, what: str, number: int, count: int) -> None:
        self._say(self.sender, self._packets(2, range(number, number + count)))

    def _packets(self, qos: int, ids: range, dup: bool = False) -> bytes:
        said = codec.NO_PROPERTIES if self.v5 else b""
        return b"".join(
            codec.publish(b"a", b"%03d" % one, qos, False, one, dup, said) for one in ids
        )

    def _answer(self, *_: object) -> None:
        owed, self.owed = self.owed, b""
        self._say(self.reader, owed)

    def _release(self, *_: object) -> None:
        unreleased, self.unreleased = self.unreleased, b""
        self._say(self.sender, unreleased)

    def _ack(self, what: str, number: int, count: int) -> None:
        kind = codec.NAMES.index(what.upper())
        answers = [codec.acknowledgement(kind, one) for one in range(number, number + count)]
        self._say(self.sender if what == "pubrel" else self.reader, b"".join(answers))

    _puback = _pubrec = _pubcomp = _pubrel = _ack

    def _listen(self) -> None:
        for far in (self.sender, self.reader):
            data = far.hear()
            self.heard.append(data)
            for start, body, end in codec.packets(data):
                kind = data[start] >> 4
                at = body + 3 if kind == codec.PUBLISH else body
                one = int.from_bytes(data[at : at + 2], "big")
                if kind == codec.PUBLISH and data[start] & 6:
                    answer = codec.PUBACK if data[start] & 2 else codec.PUBREC
                    self.owed += codec.acknowledgement(answer, one)
                elif kind == codec.PUBREL and end - body == 2:
                    self.owed += codec.acknowledgement(codec.PUBCOMP, one)
                elif kind == codec.PUBREC and end - body == 2:
                    self.unreleased += codec.acknowledgement(codec.PUBREL, one)


ALL = [("window", 1, 20), ("answer", 0, 0), ("release", 0, 0), ("answer", 0, 0), ("window", 1, 20)]


@settings(deadline=None)
@given(STEPS, st.booleans(), st.booleans(), st.sampled_from([0, 65_530]), st.integers(0, 90))
@example(ALL, False, False, 65_530, 37)  # packet ids begin anew in mid-run
@example([("window", 1, 30), ("window", 31, 30), *ALL], False, False, 0, 7)  # over the window
@example([("window", 1, 3), ("again", 2, 3), ("release", 0, 0)], True, False, 0, 0)
@example([("window", 1, 5), ("pubrec", 2, 2), ("pubrec", 1, 5)], False, True, 0, 9)
@example([("window", 1, 5), ("pubrec", 1, 5), ("pubcomp", 1, 5)], False, True, 0, 9)
@example([("window", 1, 5), ("pubcomp", 1, 1)], True, False, 0, 0)
@example([("window", 1, 5), ("puback", 1, 5)], False, False, 0, 0)
@example([("publish 2", 0, 3)], False, False, 0, 0)
def test_both_ways_are_one(
    steps: list[Step], v5: bool, lasting: bool, first: int, cut: int
) -> None:
    short = Talk(v5, lasting, first, cut).take(steps)
    with _the_long_way():
        long = Talk(v5, lasting, first, cut).take(steps)
    assert short[1:] == long[1:]
    assert short[0] == long[0]


@pytest.mark.parametrize("cut", range(0, 4 * 20, 3))
def test_a_window_cut_anywhere(cut: int) -> None:
    short = Talk(False, False, 65_500, cut).take(ALL * 3)
    with _the_long_way():
        assert Talk(False, False, 65_500, cut).take(ALL * 3) == short


def test_a_run_goes_the_short_way() -> None:
    """Else the comparison would be one of the long way with itself."""
    with mock.patch.object(twofold, "_in_order", wraps=twofold._in_order) as looked:
        talk = Talk(False, False, 0, 0)
        talk.take(ALL)
    assert looked.call_count == 2  # the PUBRECs, and the PUBCOMPs
    assert b"".join(talk.heard).count(b"\x70\x02") == 20
