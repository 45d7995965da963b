"""What state keeps of a retained message beside its number: what it takes, until when, and whose.

A start makes this of all that there are, a million of them by column (`Retentions`); who retains
one makes one. Used by the fold (`state`) and by the table of retained messages. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hubbub.core.caches import LONG
from hubbub.core.gate import owner
from hubbub.core.message import PUBLISHER, read_json


class Kept(NamedTuple):
    """What a retained message takes: bytes (`kept_size`), when it expires (UTC microseconds, 0 =
    never), and whose it is; "" is nobody's, or of before a start and of who had no user name.
    """

    size: int
    expires: int
    whose: str


NOTHING: Final = Kept(0, 0, "")


class Retentions(NamedTuple):
    """Messages that are retained and nothing else, by column; none of them has an empty payload.

    `sizes`: bytes of their payloads. `properties`: as rows have them, of each.
    """

    names: list[str]
    seqs: list[int]
    sizes: list[int]
    expires: list[int]
    properties: Sequence[bytes]


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
    """What each of them takes. Most take the same as another, and share one object with it."""
    names, sizes, expires, properties = found.names, found.sizes, found.expires, found.properties
    said = set(properties)
    whose = {one: publisher_of(one) for one in said}
    if len(said) == 1 and not any(expires) and max(map(len, names)) < LONG:
        owner_of_all = whose[properties[0]]
        each = {size: Kept(size, 0, owner_of_all) for size in set(sizes)}
        return [each[size] for size in sizes]
    made: dict[Kept, Kept] = {}
    kept = [
        Kept(kept_size(name, size), ends, whose[one])
        for name, size, ends, one in zip(names, sizes, expires, properties, strict=True)
    ]
    return [made.setdefault(one, one) for one in kept]
