"""The trace with very many who watch it."""

from __future__ import annotations

import json
import time

from hubbub.core.clock import Clock
from hubbub.core.queue import Queue
from hubbub.protocols.switch.trace import ENTRIES, Event, Trace, Watch, said
from hubbub.protocols.switch.wait import Wakeups
from tests.protocols.switch.journaled import get, post
from tests.protocols.switch.journaled import said as told
from tests.protocols.switch.test_long_lived import Hub

WATCHES = 10_000


def test_an_event_looks_through_those_who_wait_once_and_not_each_time() -> None:
    """With 10,000 of them each event took 0.35 ms."""
    hub = Hub()
    trace = Trace(Clock(), Wakeups(hub.broker, "message-switch"))
    for _ in range(WATCHES):
        Watch(trace, 0, 60.0, said, lambda: True).begin()
    queue = Queue("q", 0, "")
    began = time.process_time()
    for number in range(2_000):
        trace.acknowledged("a", queue, number, number)
    assert time.process_time() - began < 0.3


def test_who_looked_in_vain_is_woken_again() -> None:
    """It waits for a later event than the first one that comes."""
    hub = Hub()
    caller = hub.log_in("a")
    told(caller, get("/persistent/s"))
    watcher = hub.dial(hub.switch, get("/trace/3/60"))
    for number in range(2):
        told(caller, post("/request/s/a", b"?"))
        assert not watcher.hear()
        told(caller, get(f"/ack/s/{number}"))
    events = json.loads(watcher.hear().partition(b"\r\n\r\n")[2])["events"]
    assert [event[0] for event in events] == [3]


def test_an_event_is_written_out_once_for_all_who_watch() -> None:
    """With 200 of them a message took 40 us, and publishers got an eighth of the messages out."""
    hub, made = Hub(), list[int]()
    trace = Trace(Clock(), Wakeups(hub.broker, "message-switch"))
    queue = Queue("q", 0, "")

    def say(event: Event) -> bytes:
        made.append(event.number)
        return b"%d" % event.number

    def heard(after: int) -> list[int]:
        answers = list[bytes]()
        for _ in range(3):
            answer = Watch(trace, after, 60.0, say, lambda: True).answer()
            assert answer is not None
            answers.append(answer)
        assert len(set(answers)) == 1
        return [event[0] for event in json.loads(answers[0])["events"]]

    for number in range(ENTRIES + 10):
        trace.acknowledged("a", queue, number, number)
    last = list(range(10, ENTRIES + 10))
    assert heard(0) == heard(3) == last and heard(ENTRIES + 7) == last[-3:]
    assert made == last
    trace.acknowledged("a", queue, 0, 0)
    assert heard(0) == [*last[1:], ENTRIES + 10]
    assert made == [*last, ENTRIES + 10]
