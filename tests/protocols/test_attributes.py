"""Connections have so few attributes that reading one is quick."""

from __future__ import annotations

import pytest

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.connection import Connection
from hubbub.core.gate import Gate, Opening
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.protocols import registry
from hubbub.wire.http import parse_head
from tests.protocols.mqtt.conversation import Stage

SHARED = 30  # keys that CPython 3.11 keeps one table of for all instances of a class
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\nSimpleMQ: 1\r\n\r\n"


@pytest.mark.pure
def test_no_connection_has_more_attributes_than_a_class_shares_places_for() -> None:
    """With 31 a message of QoS 0 cost 3 % more."""
    broker = Broker(Clock(), Log(Clock()), "none")
    for protocol in registry.load(broker):
        link = Link(broker.outgoing, None)
        opening = Opening(Gate(broker.open), "127.0.0.1", request=parse_head(HEAD))
        assert len(vars(protocol.connect(link, opening))) <= SHARED - 2, protocol.name


@pytest.mark.pure
def test_nor_has_one_that_is_logged_in() -> None:
    ann = Stage().device("ann")
    ann.subscribe("t", 1)
    found = [one for one in vars(ann.far).values() if isinstance(one, Connection)]
    assert found and len(vars(found[0])) <= SHARED
