"""The log in memory: what is kept, and for how long."""

from __future__ import annotations

import tracemalloc

import pytest

from hubbub.core import log as core_log
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import Message


def in_memory() -> tuple[Broker, Log]:
    log = Log(Clock())
    return Broker(log.clock, log, "none"), log


@pytest.mark.pure
def test_a_message_in_two_queues_stays_until_both_are_done_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, log = in_memory()
    a, b = broker.queues.named("a"), broker.queues.named("b")
    broker.queues.bind(a, "t")
    broker.queues.bind(b, "t")
    broker.post(Message("t", b"x", qos=1))
    monkeypatch.setattr(core_log, "MEMORY_LOG_BYTES", 0)
    broker.post(Message("t", b"y", qos=1))
    broker.queues.acknowledge(a, 0, broker.itself)
    message = log.read(b.messages[0])
    assert message is not None and message.payload == b"x"
    seq = b.messages[0]
    broker.queues.acknowledge(b, 0, broker.itself)
    assert log.read(seq) is None


@pytest.mark.pure
def test_pins_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, log = in_memory()
    queue = broker.queues.named("q")
    broker.post(Message("$queue/q", b"x", qos=1))
    seq = queue.messages[0]
    monkeypatch.setattr(core_log, "MEMORY_LOG_BYTES", 0)
    broker.post(Message("$queue/q", b"y", qos=1))
    log.pin(seq)
    log.pin(seq)
    for _ in range(2):
        log.unpin(seq)
        assert log.read(seq) is not None
    log.unpin(seq)
    assert log.read(seq) is None
    log.unpin(seq)


def test_what_was_acknowledged_leaves_the_memory() -> None:
    broker, log = in_memory()
    queue = broker.queues.named("q")
    for number in range(100):
        broker.post(Message("$queue/q", b"x", qos=1))
        assert len(log._pinned) == 1 and not log._kept
        broker.queues.acknowledge(queue, number, broker.itself)
    assert not log._pinned


def test_what_is_kept_takes_as_much_as_the_bound_says() -> None:
    """Its nominal bytes are those that it really takes, within three tenths."""
    broker, log = in_memory()
    broker.queues.bind(broker.queues.named("q"), "t")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(5_000):
            broker.post(Message("t", b"%20d" % number, qos=1))
            broker.queues.acknowledge(broker.queues.named("q"), number, broker.itself)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 < taken / log._bytes < 1.3
