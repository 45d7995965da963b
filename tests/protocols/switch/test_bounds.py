"""What one client of message-switch can make the hub keep: each has a bound, and a reason."""

from __future__ import annotations

import json

from hubbub.core.clock import Clock
from hubbub.core.quotas import SUBSCRIBED, size_of
from hubbub.core.topics import QUEUE
from hubbub.protocols.switch.session import ASKED, SwitchSession
from tests.protocols.switch.journaled import Hub, get, post, said
from tests.wire import Far

LONG_NAME = "n" * 10_000


def session_of(hub: Hub, token: str) -> SwitchSession:
    found = hub.broker.sessions["switch", token]
    assert isinstance(found, SwitchSession)
    return found


def status(far: Far, request: bytes) -> bytes:
    far.say(request)
    return far.hear().split(b" ", 2)[1]


def used(hub: Hub) -> int:
    return sum(hub.broker.quotas.used[SUBSCRIBED].values())


def test_a_transfer_that_waits_weighs_the_queues_it_waits_at() -> None:
    """It had been asked and was gone: 1.2 MB of each connection, and no bound for all."""
    hub = Hub()
    far = hub.log_in("reader")
    names = [f"{number}-{LONG_NAME[:500]}" for number in range(1_000)]
    asked = json.dumps({"timeout": 9.0, "queues": names}).encode()
    far.say(post("/transfer", asked))
    assert far.connection.waiting() == sum(map(size_of, names))
    far.connection.crowded_out("there is no room")
    assert b" 503 " in far.hear()
    far.hang_up("it is")
    assert far.connection.waiting() == 0 and hub.broker.queues.awaiting == {}


def test_filters_that_are_bound_count_as_subscriptions() -> None:
    """There was no bound: a queue took any number of them, of 64 KiB each."""
    hub = Hub()
    hub.broker.quotas.most[SUBSCRIBED] = 5 * 1_000
    far = hub.log_in("binder")
    for topic_filter in (b"a/#", b"b/#", b"a/#"):
        assert status(far, post("/bind/q", topic_filter)) == b"200"
    assert used(hub) == 2 * size_of("a/#")
    assert status(far, post("/bind/q", b"c/#")) == b"507"
    assert status(far, post("/bind/q", b"b/#")) == b"200", "it is there"
    assert status(far, post("/unbind/q", b"b/#")) == b"200"
    assert used(hub) == size_of("a/#")
    assert status(far, post("/bind/q", b"c/#")) == b"200"
    assert status(far, get("/destroy/q")) == b"200"
    assert used(hub) == 0
    hub.broker.subscriptions = 1
    assert status(far, post("/bind/q", b"c/#")) == b"200"
    far.say(post("/bind/q", b"d/#"))
    assert b"No more is bound: 1 filters are bound to q, and 1 are the most" in far.hear()


def test_bindings_of_before_a_restart_are_nobodys() -> None:
    hub = Hub()
    hub.log_in("binder").say(post("/bind/q", b"a/#"))
    again = Hub(hub.rows)
    far = again.log_in("binder")
    assert used(again) == 0 and list(again.broker.state.queues["q"].bindings) == ["a/#"]
    assert status(far, post("/unbind/q", b"a/#")) == b"200"
    assert used(again) == 0


def test_what_a_token_subscribes_to_counts_until_it_goes() -> None:
    """A thousand names of 16 KB that nobody has were 15 MB of each token, 16 of a connection."""
    hub = Hub()
    hub.broker.quotas.most[SUBSCRIBED] = 5 * 21_000
    far = hub.log_in("reader")
    for name in ("a", "b", "a"):
        assert status(far, get(f"/subscribe/{name}{LONG_NAME}")) == b"200"
    assert used(hub) == 2 * size_of("a" + LONG_NAME)
    far.say(get("/subscribe/c"))
    assert b"No more subscriptions: address 127.0.0.1 has" in far.hear()
    far.hang_up("it is")
    assert used(hub) == 0


def test_worn_out_reply_queues_count_no_more() -> None:
    hub = Hub()
    far = hub.log_in("caller")
    for _ in range(600):
        said(far, get(f"/subscribe/{said(far, get('/create')).decode()}"))
    names = session_of(hub, "caller").subscribed
    assert len(names) < 510 and used(hub) == sum(map(size_of, names))


def test_requests_with_long_reply_queues_are_many_that_are_remembered() -> None:
    hub = Hub()
    hub.log_in("service")
    session = session_of(hub, "service")
    for number in range(2 * ASKED // 20):
        session.remember(f"{QUEUE}{LONG_NAME}", number, "q", number)
    assert session.asked_weight <= ASKED and len(session.asked) == ASKED // 20
    session.remember("a", 1, "q", 1)
    session.remember("a", 1, "q", 2)
    assert session.answers("a", 1) == ("q", 2) and session.answers("a", 1) is None
    while session.asked:
        session.answers(*next(iter(session.asked)))
    assert session.asked_weight == 0


class Hasty(Clock):
    """Whoever asks has worked for half a millisecond since."""

    seconds = 1_000.0

    def now(self) -> float:
        self.seconds += 0.0005
        return self.seconds

    def spent(self) -> float:
        return self.seconds


def left_with_queues(count: int) -> Hub:
    hub = Hub()
    maker = hub.log_in("maker")
    for number in range(count):
        assert status(maker, get(f"/transient/{number}")) == b"200"
    hub.broker.clock = Hasty()
    maker.connection.lost("")
    assert count - 20 < len(hub.broker.state.queues) < count
    return hub


def test_very_many_queues_of_one_token_end_in_turns() -> None:
    """20,000 of them kept everybody waiting for 0.2 s."""
    hub = left_with_queues(100)
    while hub.broker.unsettled:
        hub.tick()
    assert hub.broker.state.queues == {}


def test_who_comes_back_meanwhile_has_none_of_them_and_keeps_what_it_makes() -> None:
    hub = left_with_queues(100)
    maker = hub.log_in("maker")
    assert hub.broker.state.queues == {}
    assert status(maker, get("/transient/99")) == b"200"
    hub.tick()
    assert list(hub.broker.state.queues) == ["99"]
