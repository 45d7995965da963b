"""What state keeps of a retained message: its number, what it takes, until when, and whose it is.

A start makes this of all that there are, a million of them by column (`Retentions`); who retains
one makes one. Used by the fold (`state`), and by the table of retained messages. No I/O.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from hubbub.core.batch import Retentions
from hubbub.core.caches import LONG
from hubbub.core.gate import owner
from hubbub.core.message import PUBLISHER, read_json


@mypyc_attr(acyclic=True)
class Kept:
    """A retained message: its `seq`, the bytes that it takes (`kept_size`), when it expires (UTC
    microseconds, 0 = never), and whose it is; "" is nobody's, or of before a start and of who had
    no user name. Nothing of it changes. There may be a million, which the collector of cycles
    need not look at.
    """

    __slots__ = ("seq", "size", "expires", "whose")

    def __init__(self, seq: int, size: int, expires: int, whose: str) -> None:
        self.seq = seq
        self.size = size
        self.expires = expires
        self.whose = whose


NOTHING: Final = Kept(0, 0, 0, "")


def kept_size(name: str, payload: int) -> int:
    """Bytes that a retained message counts: with those of a name that is a payload by itself."""
    return payload + len(name) // LONG * LONG


def publisher_of(properties: bytes) -> str:
    """To whom a retained message is put down, as far as its row knows."""
    if b'"hub-publisher"' not in properties:
        return ""
    said = read_json(properties).get(PUBLISHER)
    return owner(str(said[0]), "") if isinstance(said, list) and len(said) == 2 else ""


def each_kept(found: Retentions) -> list[Kept]:
    """What is kept of each of them."""
    names, sizes, expires, properties = found.names, found.sizes, found.expires, found.properties
    said = set(properties)
    whose = {one: publisher_of(one) for one in said}
    if len(said) == 1 and not any(expires) and max(map(len, names)) < LONG:
        its = whose[properties[0]]
        return [Kept(seq, size, 0, its) for seq, size in zip(found.seqs, sizes, strict=True)]
    return [
        Kept(seq, kept_size(name, size), ends, whose[one])
        for seq, name, size, ends, one in zip(
            found.seqs, names, sizes, expires, properties, strict=True
        )
    ]


class Retaining:
    """The part of state that is retained messages, by topic."""

    def __init__(self) -> None:
        self.retained: dict[str, Kept] = {}
        self._kept_bytes = 0
        self._counted = True

    def kept_bytes(self) -> int:
        """Bytes that all of them take."""
        if not self._counted:
            self._kept_bytes = sum([kept.size for kept in self.retained.values()])
            self._counted = True
        return self._kept_bytes

    def retain(self, topic: str, kept: Kept = NOTHING) -> None:
        """Make a message the retained one of its topic."""
        retained = self.retained
        self._kept_bytes += kept.size - retained.get(topic, NOTHING).size
        if kept.seq:
            retained[topic] = kept
        elif topic in retained:
            del retained[topic]

    def retain_all(self, found: Retentions) -> None:
        """The same of many, in one step of a table. What those took that they replace is not looked
        up: it is counted anew when somebody asks.
        """
        kept, there = each_kept(found), len(self.retained)
        self.retained.update(zip(found.names, kept, strict=True))
        self._kept_bytes += sum([one.size for one in kept])
        if len(self.retained) - there < len(kept):
            self._counted = False

    def retained_seq(self, topic: str) -> int:
        """The retained message of a topic, 0 = none."""
        return self.retained.get(topic, NOTHING).seq
