"""A backlog behaves like a list of deliveries from which some are struck out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hubbub.core.session import FEW, NEAR, Backlog


class BacklogMachine(RuleBasedStateMachine):
    """The model: every delivery ever made, by number; None once it is over or was taken back."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(7)
        self.model: dict[int, tuple[int, int, bool]] = {}
        self.sizes: dict[int, int] = {}
        self.next = self.sent = self.tried = 7
        self.seq = 1

    @rule(
        count=st.sampled_from((1, 2, 3, 15)), qos=st.integers(1, 2), retained=st.booleans(),
        size=st.integers(0, 9), again=st.booleans(),
    )  # fmt: skip
    def add(self, count: int, qos: int, retained: bool, size: int, again: bool) -> None:
        if again:
            self.seq = max(1, self.seq - count)
        self.backlog.add(self.seq, count, qos, retained, size)
        for one in range(count):
            self.model[self.next + one] = (self.seq + one, qos, retained)
            self.sizes[self.next + one] = size
        self.next += count
        self.seq += count

    @rule(count=st.integers(1, 3))
    def send(self, count: int) -> None:
        self.backlog.sent = self.sent = min(self.next, self.sent + count)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        self.backlog.remove(number)
        self.backlog.remove(number)
        del self.model[number]

    @rule(count=st.integers(1, 4))
    def cut(self, count: int) -> None:
        """Only the newest that were not sent are taken back; their numbers are given again."""
        first = max(self.sent, self.backlog.first)
        for _ in range(count):
            if self.next > first:
                self.next -= 1
                self.model.pop(self.next, None)
        self.backlog.cut(count)

    @rule(data=st.data())
    def shift(self, data: st.DataObject) -> None:
        """As acknowledging the oldest ones, one after the other."""
        count = data.draw(st.integers(0, max(0, self.sent - self.backlog.first)))
        first = self.backlog.first
        self.backlog.shift(count)
        for number in range(first, first + count):
            self.model.pop(number, None)

    @rule()
    def lose_the_connection(self) -> None:
        self.tried = max(self.tried, self.sent)
        self.backlog.rewind()
        self.sent = self.backlog.first

    @rule()
    def weigh(self) -> None:
        """Not each time: what happened since the last time is then in one piece."""
        flying = sum(self.sizes[one] for one in self.model if one < self.sent)
        assert self.backlog.bytes_in_flight() == flying

    @invariant()
    def same(self) -> None:
        backlog = self.backlog
        self.sent = max(self.sent, backlog.first)
        first = min(self.model, default=self.next)
        assert backlog.first == first
        assert backlog.next == self.next
        assert backlog.sent == self.sent
        assert backlog.tried == self.tried
        assert backlog.in_flight() == self.sent - first
        for number in range(first - 2, self.next + 2):
            assert backlog.holds(number) is (number in self.model)
        oldest: dict[int, int] = {}
        for number, (seq, qos, retained) in self.model.items():
            assert backlog.seq(number) == seq
            assert backlog.qos(number) == qos
            assert backlog.retained(number) is retained
            assert backlog.number_of(seq) == oldest.setdefault(seq, number)
            named = b'{"delivery":%d}' % number
            assert backlog.name_of(number) == (
                b"" if number == oldest[seq] and number < first + NEAR else named
            )
        assert backlog.bytes == sum(self.sizes[one] for one in self.model)
        entries = list(backlog.entries)
        assert backlog.some(first, len(entries)) == entries


TestBacklog = BacklogMachine.TestCase
TestBacklog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_messages_that_are_never_read_back_are_unacknowledged_all_the_same() -> None:
    backlog = Backlog()
    backlog.add(0, 3, 1)
    assert [backlog.holds(number) for number in range(4)] == [True, True, True, False]


def test_numbers_of_kept_messages_are_negative() -> None:
    backlog = Backlog()
    backlog.add(-5, 2, 2, retained=True)
    assert (backlog.seq(0), backlog.seq(1)) == (-5, -4)
    assert (backlog.qos(1), backlog.retained(1)) == (2, True)
    assert backlog.number_of(-4) == 1


def test_an_acknowledged_number_forgets_that_it_was_received() -> None:
    backlog = Backlog()
    backlog.add(3, 1, 2)
    backlog.received.add(0)
    backlog.remove(0)
    assert not backlog.received


def test_an_empty_backlog_is_shared_and_what_is_put_in_is_not() -> None:
    one, other = Backlog(), Backlog(7)
    assert one.entries is other.entries
    one.add(3, 2, 1)
    assert (list(one.entries), list(other.entries)) == ([3 << 35 | 1, 4 << 35 | 1], [])
    other.skip()
    assert (other.next, list(Backlog().entries)) == (8, [])


def test_some_entries_from_anywhere() -> None:
    backlog = Backlog(7)
    backlog.add(1, 5 * FEW, 1)
    backlog.remove(7 + FEW)
    whole = list(backlog.entries)
    for at in (0, 1, 3 * FEW):
        for count in (0, 1, FEW, FEW + 1, 2 * FEW):
            assert backlog.some(7 + at, count) == whole[at : at + count]


def test_a_leased_delivery_at_the_front_is_named() -> None:
    backlog = Backlog()
    backlog.lease(3, 2, 0)
    backlog.add(3, 1, 2)
    assert [backlog.name_of(number) for number in (0, 1)] == [b'{"delivery":0}', b""]
