"""SUBSCRIBE and UNSUBSCRIBE read whole; the hub reads them in pieces."""

from __future__ import annotations

from hubbub.protocols.mqtt.codec import (
    Reader,
    Subscribe,
    Unsubscribe,
    begin_subscribe,
    begin_unsubscribe,
    wish_of,
)


def parse_subscribe(body: bytes, v5: bool = False) -> Subscribe:
    reader = Reader(body, "SUBSCRIBE")
    found = begin_subscribe(reader, v5)
    while reader.more():
        found.wanted.append(wish_of(reader, v5))
    return found


def parse_unsubscribe(body: bytes, v5: bool = False) -> Unsubscribe:
    reader = Reader(body, "UNSUBSCRIBE")
    found = begin_unsubscribe(reader, v5)
    while reader.more():
        found.filters.append(reader.string("topic filter"))
    return found
