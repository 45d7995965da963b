"""Requests that wait: who is woken looks once, and very many of them do so in turns."""

from __future__ import annotations

from functools import partial

from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER
from hubbub.core.log import Log
from hubbub.protocols.switch.wait import Wait, Wakeups
from tests.core.recording import Hasty, settle


def test_very_many_that_wait_for_the_same_message_look_in_turns() -> None:
    """10,000 readers of a queue kept all others waiting for 0.3 s with each message."""
    clock = Hasty()
    broker, looked = Broker(clock, Log(clock), "none"), list[int]()
    wakeups = Wakeups(broker, "switch")
    waits = [Wait(wakeups, NEVER) for _ in range(500)]
    queue = broker.queues.named("q")
    for number, wait in enumerate(waits):
        wait.look = partial(looked.append, number)
        broker.queues.wait_at("q", wait)
    queue.tell()
    queue.tell()
    wakeups.settle()
    assert 0 < len(looked) < 100
    waits[0].wake()  # again, behind all who have not looked yet
    assert settle(broker) > 5
    assert looked == [*range(500), 0]
