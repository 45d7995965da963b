"""Which routes are kept: of names that come again, so many and no more."""

from __future__ import annotations

import gc

from hubbub.core.broker import Broker
from hubbub.core.limits import ROUTES, SIGHTINGS
from hubbub.core.message import Message
from hubbub.core.route import Route
from hubbub.core.routing import STALE_SECONDS, Sightings
from tests.core.recording import Ear, recording


def post(broker: Broker, topic: str) -> None:
    broker.post(Message(topic, b"x"))


def test_a_name_is_kept_when_it_comes_the_second_time() -> None:
    broker, _ = recording("none")
    routes = broker.open.routes
    post(broker, "a")
    assert not routes
    post(broker, "a")
    kept = routes[b"a"]
    post(broker, "a")
    assert routes == {b"a": kept}


def test_names_that_never_come_again_take_no_memory() -> None:
    broker, _ = recording("none")
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("#"))
    for number in range(3_000):
        post(broker, f"serial/{number}")
    assert len(ear.hear()) == 3_000
    gc.collect()
    alive = [one for one in gc.get_objects() if isinstance(one, Route)]
    few = 3_000 * 3_000 // SIGHTINGS  # taken for another one, or of other tests
    assert len(broker.open.routes) <= few and len(alive) < 3_000


def test_a_route_of_another_age_is_replaced_where_it_was() -> None:
    broker, _ = recording("none")
    for _ in range(2):
        post(broker, "a")
    old = broker.open.routes[b"a"]
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    post(broker, "a")
    assert broker.open.routes[b"a"] is not old and len(ear.hear()) == 1


def test_what_came_before_is_known_and_nearly_nothing_else() -> None:
    sightings = Sightings()
    names = [b"a/%d" % number for number in range(1_000)]
    taken_for_another = sum(map(sightings.again, names))
    assert taken_for_another < 20
    assert sum(map(sightings.again, names)) > 950


def test_the_routes_of_all_clients_have_one_bound() -> None:
    """Also where each client has its own: it takes no part of what it publishes itself."""
    broker, _ = recording("none")
    broker.routes.most = 10
    ears = [Ear(broker, f"ear {number}") for number in range(20)]
    for ear in ears:
        wish = ear.wish("own")
        wish.no_local = True
        broker.subscribe(wish)
    for ear in [*ears, *ears]:
        for name in ("a", "b"):
            broker.route(ear, name)
    kept = sum(len(ear.routes) for ear in ears)
    assert 1 <= kept <= 10 and len(broker.routes) <= 10
    for number in [*range(50), *range(50)]:
        post(broker, f"a/{number}")
    assert 1 <= len(broker.open.routes) <= 10 < ROUTES


def test_a_queue_that_ends_is_kept_by_no_route() -> None:
    broker, _ = recording("none")
    queue = broker.queues.named("jobs", asker=broker.itself)
    post(broker, "$queue/jobs")
    post(broker, "$queue/jobs")
    assert b"$queue/jobs" in broker.open.routes
    broker.queues.destroy(queue.name)
    assert b"$queue/jobs" not in broker.open.routes


def test_who_is_gone_leaves_no_route() -> None:
    """One with a thousand receivers is 75 KB, of each client that came once."""
    broker, _ = recording("none")
    for number in range(30):
        ear = Ear(broker, f"ear {number}")
        wish = ear.wish("own")
        wish.no_local = True
        broker.subscribe(wish)
        for _ in range(2):
            broker.route(ear, "a")
        assert len(broker.routes) == 1
        broker.disconnect(ear, "")
    assert len(broker.routes) == 0


def test_a_route_with_many_receivers_weighs_more() -> None:
    broker, _ = recording("none")
    for number in range(100):
        ear = Ear(broker, f"ear {number}")
        broker.subscribe(ear.wish("a"))
    for _ in range(2):
        post(broker, "a")
    assert len(broker.routes) == broker.open.routes[b"a"].weight == 6


def test_a_route_that_is_out_of_date_and_not_asked_for_lets_go_of_who_was_there() -> None:
    """An hour of devices that came with topics of their own, and went, was 500 MB of them."""
    broker, _ = recording("none")
    for number in range(20):
        ear = Ear(broker, f"ear-{number}")
        broker.subscribe(ear.wish(f"to/{number}"))
        post(broker, f"to/{number}")
        post(broker, f"to/{number}")
        broker.disconnect(ear, "")
    del ear
    broker.routing.wake()
    post(broker, "here")
    post(broker, "here")
    held = broker.open.routes[b"here"]
    for seconds, left in ((0.0, 21), (STALE_SECONDS / 2, 21), (STALE_SECONDS / 2, 1)):
        broker.clock.seconds += seconds  # type: ignore[attr-defined]
        for _ in range(3):
            broker.routing.wake()
        assert len(broker.open.routes) == left
    gc.collect()
    assert broker.open.routes == {b"here": held}
    assert not [one for one in gc.get_objects() if isinstance(one, Ear)]
