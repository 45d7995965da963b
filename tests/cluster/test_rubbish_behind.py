"""A piece is stored, its answer is lost, and somebody's message lies behind it: where it is said to
be decides what is purged.
"""

from __future__ import annotations

import pytest

from hubbub.cluster.copies import LOG, STATE, Copies, Found, Part, Piece

BEFORE = 99  # messages that were in the stream, of an earlier life


class Stream:
    """What servers have. While it is `mute` nobody hears that a piece was taken."""

    def __init__(self) -> None:
        self.there: dict[int, Piece | None] = {}
        self.last = BEFORE
        self.mute = False
        self.taken: list[tuple[int, int, int]] = []
        self.copies = Copies(self, lambda: 0.0, lambda: None, lambda found: None)

    def put(self, piece: Piece, after: int) -> None:
        assert after == self.last
        self.last += 1
        self.there[self.last] = piece
        if not self.mute:
            self.taken.append((piece.life, piece.number, self.last))

    def answer(self) -> None:
        while self.taken:
            self.copies.stored(*self.taken.pop(0))

    def look(self, behind: int, number: int) -> None:
        news = [(at, one) for at, one in self.there.items() if at > behind and one is not None]
        found = Found(self.last, news[-1][1], 0, min(self.there), tuple(news))
        self.copies.found(found, number)

    def glance(self) -> None: ...

    def purge(self, before: int) -> None:
        self.there = {at: piece for at, piece in self.there.items() if at >= before}

    def lose_the_answer(self) -> None:
        """The connection ended; behind what was stored lies what no hub wrote."""
        self.copies.broken()
        self.last += 1
        self.there[self.last] = None
        self.mute = False
        self.copies.connected()

    def data_of(self, kind: str) -> bytes:
        return b"".join(one.data for one in self.there.values() if one and one.kind == kind)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_checkpoint_is_not_purged_by_itself(count: int) -> None:
    stream = Stream()
    state: list[Part] = [(10, part < count - 1, b"part %d;" % part) for part in range(count)]
    stream.mute = True
    stream.copies.begin(7, Found(BEFORE, None, 0, 1), 10, iter(()), iter(state))
    stream.lose_the_answer()
    stream.answer()
    assert stream.copies.ready
    assert stream.data_of(STATE) == b"".join(data for _, _, data in state)


def test_nor_is_the_first_part_of_a_group() -> None:
    stream = Stream()
    stream.copies.begin(7, Found(BEFORE, None, 0, 1), 10, iter(()), iter([(10, False, b"old")]))
    stream.answer()
    stream.mute = True
    stream.copies.take(11, 12, bytes(1 << 20))
    stream.lose_the_answer()
    stream.copies.checkpoint(iter([(10, False, b"new")]))
    stream.answer()
    assert len(stream.data_of(LOG)) == 1 << 20, "rows that no checkpoint has"
