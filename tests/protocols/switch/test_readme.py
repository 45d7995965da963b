"""Dialect A: subscriptions of a token, numbers for messages, calls between the dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hubbub.core.message import Message
from tests.protocols.switch.journaled import Hub, get, ok, post, said, transfer
from tests.wire import Far

Found = list[tuple[int, dict[str, Any]]]


def messages(body: bytes) -> Found:
    return [(number, one) for number, one in json.loads(body)["messages"]]


def new(far: Far, after: int = -1, timeout: float = 0) -> Found:
    return messages(said(far, get(f"/transfer/{after}/{timeout}")))


@pytest.fixture(params=[True, False], ids=["journal", "memory"])
def hub(request: pytest.FixtureRequest) -> Hub:
    made = Hub()
    made.journal.records = request.param
    return made


def test_a_subscription_wakes_the_transfer_of_another_connection(hub: Hub) -> None:
    first, second = hub.log_in("bl"), hub.log_in("bl")
    said(first, get("/create/bq"))
    said(first, post("/send/bq/1", b"early"))
    first.say(get("/transfer/-1/3"))
    assert first.hear() == b""
    assert said(second, get("/subscribe/bq")) == b""
    ((_, message),) = messages(first.hear().partition(b"\r\n\r\n")[2])
    assert message == {"payload": "early", "correlation_id": 1}


def test_a_message_wakes_and_an_acknowledgement_takes_it(hub: Hub) -> None:
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/subscribe/later"))
    a.say(get("/transfer/-1/3"))
    said(b, get("/create/later"))
    said(b, post("/send/later/5/b", b"x"))
    ((number, message),) = messages(a.hear().partition(b"\r\n\r\n")[2])
    assert message == {"payload": "x", "correlation_id": 5, "reply_to": "b"}
    said(a, get(f"/ack/{number}"))
    assert new(a) == []
    a.say(get(f"/ack/{number}"))
    assert a.hear().startswith(b"HTTP/1.1 500 ")


def test_who_has_not_subscribed_may_acknowledge_too(hub: Hub) -> None:
    """What the message says of itself leads to its queue: nobody looks through all of them."""
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/create/direct"))
    said(a, get("/create/bound"))
    said(a, get("/subscribe/direct"))
    said(a, get("/subscribe/bound"))
    said(a, post("/bind/bound", b"t/+"))
    said(b, post("/publish/t/x?qos=1", b"x"))
    said(b, post("/send/direct/1", b"y"))
    numbers = [number for number, _ in new(a)]
    assert len(numbers) == 2
    for number in numbers:
        said(b, get(f"/ack/{number}"))
    assert new(a) == []
    b.say(get(f"/ack/{numbers[0]}"))
    assert b.hear().startswith(b"HTTP/1.1 500 ")


def test_numbers_grow_over_all_queues_and_nothing_is_skipped(hub: Hub) -> None:
    a = hub.log_in("a")
    for name in "xy":
        said(a, get(f"/create/{name}"))
        said(a, get(f"/subscribe/{name}"))
    for index, name in enumerate("xyyx"):
        said(a, post(f"/send/{name}/{index}", name.encode()))
    found = new(a)
    assert [message["correlation_id"] for _, message in found] == [3, 2, 1, 0]
    assert new(a, found[1][0]) == found[:1]
    assert new(a, found[0][0]) == []


def test_a_call(hub: Hub) -> None:
    caller, service = hub.log_in("caller"), hub.log_in("service")
    replies = said(caller, get("/create")).decode()
    said(caller, get(f"/subscribe/{replies}"))
    said(service, get("/create/s"))
    said(service, get("/subscribe/s"))
    said(caller, post(f"/send/s/42/{replies}", b"?"))
    ((number, request),) = new(service)
    to, correlation = request["reply_to"], request["correlation_id"]
    assert (to, correlation) == (replies, 42)
    said(service, post(f"/send/{to}/{correlation}", b"!"))
    said(service, get(f"/ack/{number}"))
    ((_, answer),) = new(caller)
    assert answer == {"payload": "!", "correlation_id": 42}
    caller.hang_up()
    assert said(service, get("/list/")) == b'["s"]'


def test_a_caller_of_c_is_answered_by_a_service_of_a(hub: Hub) -> None:
    caller, service = hub.log_in("caller"), hub.log_in("service")
    said(caller, get("/transient/caller"))
    said(caller, get("/persistent/s"))
    said(service, get("/subscribe/s"))
    for payload in (b"0", b"1"):
        said(caller, post("/request/s/caller", payload))
    for number, request in new(service):
        to, correlation = request["reply_to"], request["correlation_id"]
        said(service, post(f"/send/{to}/{correlation}", b"re " + request["payload"].encode()))
        said(service, get(f"/ack/{number}"))
    found = json.loads(said(caller, transfer("caller")))["messages"]
    assert [(one["payload"], one["kind"]) for _, one in found] == [
        ("re 0", ["Response", ["s", 0]]),
        ("re 1", ["Response", ["s", 1]]),
    ]


def test_a_caller_of_a_is_answered_by_a_service_of_c(hub: Hub) -> None:
    caller, service = hub.log_in("caller"), hub.log_in("service")
    replies = said(caller, get("/create")).decode()
    said(caller, get(f"/subscribe/{replies}"))
    said(caller, get("/create/s"))
    said(caller, post(f"/send/s/42/{replies}", b"?"))
    (found,) = json.loads(said(service, transfer("s")))["messages"]
    assert found == [["s", 0], {"payload": "?", "kind": ["Request", replies]}]
    said(service, post(f"/response/{replies}/s/0", b"!"))
    ((_, answer),) = new(caller)
    assert answer == {"payload": "!", "correlation_id": 42}


def test_a_request_of_another_protocol_keeps_its_correlation(hub: Hub) -> None:
    service = hub.log_in("service")
    said(service, get("/create/s"))
    said(service, get("/subscribe/s"))
    said(service, get("/create/replies"))
    ask = Message("$queue/s", b"?", reply_to="$queue/replies", correlation=b"\x00raw")
    hub.broker.post(ask)
    ((number, request),) = new(service)
    assert request["reply_to"] == "replies" and request["correlation_id"] == number
    said(service, post(f"/send/replies/{number}", b"!"))
    replies = hub.broker.state.queues["replies"]
    answer = hub.broker.log.read(replies.messages[0])
    assert answer is not None
    assert (answer.payload, answer.correlation) == (b"!", b"\x00raw")


def test_after_a_restart_a_service_gets_what_waits() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/create/s"))
    said(a, post("/send/s/1", b"x"))
    before = hub.broker.state.queues["s"].messages[0]
    hub = Hub(hub.rows)
    a = hub.log_in("a")
    assert said(a, get("/transfer/-1/0")) == b'{"messages":[]}'
    said(a, get("/subscribe/s"))
    assert [number for number, _ in new(a)] == [before]
    said(a, post("/send/s/2", b"y"))
    assert [message["payload"] for _, message in new(a)] == ["y", "x"]


def test_numbers_of_any_size_are_no_trouble(hub: Hub) -> None:
    a = hub.log_in("a")
    said(a, get("/create/q"))
    for path in ("/transfer/x/0", "/transfer/1/x", "/transfer/1/nan", "/ack/x",
                 "/ack/99999999999999999999", "/transfer/99999999999999999999/0"):  # fmt: skip
        a.say(get(path))
        assert a.hear().startswith(b"HTTP/1.1 500 "), path
    low, high = -(1 << 63), (1 << 63) - 1
    for path in (f"/transfer/{low}/0", f"/transfer/{high}/0", "/transfer/1/-5"):
        a.say(get(path))
        assert a.hear() == ok(b'{"messages":[]}'), path
    for number in (low, high):
        a.say(get(f"/ack/{number}"))
        assert a.hear().startswith(b"HTTP/1.1 500 "), number
