"""Clients that live long: the calls of each original flow, one after the other, meet no bound.

`make test` makes thousands of them, `make soak` a hundred thousand of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from hubbub.protocols.switch import Switch
from hubbub.protocols.switch.session import FETCHED, UNANSWERED
from tests.protocols.switch.journaled import get, ok, post, said, transfer
from tests.wire import Far, Table


class Hub(Table):
    def __init__(self) -> None:
        super().__init__()
        self.switch = Switch(self.broker)

    def log_in(self, token: str) -> Far:
        far = self.dial(self.switch, get(f"/login/{token}"))
        assert far.hear() == ok()
        return far


def current(hub: Hub, count: int) -> None:
    """The library of today: one reply queue, two connections, a cursor at each end."""
    caller, replies, service = hub.log_in("caller"), hub.log_in("caller"), hub.log_in("service")
    said(caller, get("/transient/caller"))
    said(service, get("/persistent/s"))
    heard = asked = "-1"
    for number in range(count):
        said(caller, get("/persistent/s"))
        assert said(caller, post("/request/s/caller", b"?")) == b'[["s",%d]]' % number
        found = json.loads(said(service, transfer("s", cursor=asked)))
        asked = found["next"]
        said(service, post(f"/response/caller/s/{number}", b"!"))
        said(service, get(f"/ack/s/{number}"))
        found = json.loads(said(replies, transfer("caller", cursor=heard)))
        heard = found["next"]
        assert [one["kind"] for _, one in found["messages"]] == [["Response", ["s", number]]]
        said(replies, get(f"/ack/caller/{number}"))


def commands(hub: Hub, count: int) -> None:
    """`message-cli call`: a token, its connections and its reply queue for each call."""
    service = hub.log_in("service")
    said(service, get("/persistent/s"))
    asked = "-1"
    for number in range(count):
        token = f"message-cli:{number}"
        caller, replies = hub.log_in(token), hub.log_in(token)
        said(caller, get(f"/transient/{token}"))
        said(caller, post(f"/request/s/{token}", b"?"))
        asked = json.loads(said(service, transfer("s", cursor=asked)))["next"]
        said(service, post(f"/response/{token}/s/{number}", b"!"))
        said(service, get(f"/ack/s/{number}"))
        assert json.loads(said(replies, transfer(token)))["messages"]
        said(replies, get(f"/ack/{token}/0"))
        caller.hang_up()
        replies.hang_up()
    assert said(service, get("/list/")) == b'["s"]'


def readme(hub: Hub, count: int) -> None:
    """The Python client of the README's dialect: a reply queue for each call, and no answer is
    acknowledged."""
    caller, service = hub.log_in("caller"), hub.log_in("service")
    said(service, get("/create/s"))
    said(service, get("/subscribe/s"))
    heard = asked = -1
    for number in range(count):
        replies = said(caller, get("/create")).decode()
        said(caller, get(f"/subscribe/{replies}"))
        said(caller, post(f"/send/s/{number}/{replies}", b"?"))
        ((asked, request),) = json.loads(said(service, get(f"/transfer/{asked}/5")))["messages"]
        said(service, post(f"/send/{request['reply_to']}/{number}", b"!"))
        said(service, get(f"/ack/{asked}"))
        ((heard, answer),) = json.loads(said(caller, get(f"/transfer/{heard}/5")))["messages"]
        assert answer == {"payload": "!", "correlation_id": number}
    assert len(hub.broker.state.queues) <= FETCHED + 3


def one_reply_queue(hub: Hub, count: int) -> None:
    """The program of the README's dialect: one reply queue for all of its calls."""
    caller, service = hub.log_in("caller"), hub.log_in("service")
    said(service, get("/create/s"))
    said(service, get("/subscribe/s"))
    replies = said(caller, get("/create")).decode()
    said(caller, get(f"/subscribe/{replies}"))
    heard = asked = -1
    for number in range(count):
        said(caller, get("/create/s"))
        said(caller, post(f"/send/s/{number}/{replies}", b"?"))
        ((asked, _),) = json.loads(said(service, get(f"/transfer/{asked}/5")))["messages"]
        said(service, post(f"/send/{replies}/{number}", b"!"))
        said(service, get(f"/ack/{asked}"))
        ((heard, _),) = json.loads(said(caller, get(f"/transfer/{heard}/5")))["messages"]
        said(caller, get(f"/ack/{heard}"))


def no_answer(hub: Hub, count: int) -> None:
    """A caller of the README's dialect whom nobody answers, and who gives up each time."""
    caller = hub.log_in("caller")
    for number in range(count):
        replies = said(caller, get("/create")).decode()
        said(caller, get(f"/subscribe/{replies}"))
        said(caller, post(f"/send/none/{number}/{replies}", b"?"))
        assert json.loads(said(caller, get("/transfer/-1/0"))) == {"messages": []}
    assert len(hub.broker.state.queues) <= UNANSWERED + 1


def watching(hub: Hub, count: int) -> None:
    """Tools that look on without a login, by the last event that they saw."""
    caller, tool = hub.log_in("caller"), hub.dial(hub.switch, get("/"))
    tool.hear()
    said(caller, get("/persistent/s"))
    last = -1
    for number in range(count):
        said(caller, post("/request/s/caller", b"?"))
        events = json.loads(said(tool, get(f"/trace/{last + 1}/5")))["events"]
        assert [event[1]["message"][:2] for event in events] == [["Message", ["s", number]]]
        last = events[-1][0]
        said(caller, get(f"/ack/s/{number}"))
        (event,) = json.loads(said(tool, get(f"/trace/{last + 1}/5")))["events"]
        last = event[0]


FLOWS = [current, commands, readme, one_reply_queue, no_answer, watching]


@pytest.mark.parametrize("flow", FLOWS)
def test_thousands_of_calls(flow: Callable[[Hub, int], None]) -> None:
    flow(Hub(), 1_200)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flow", FLOWS)
def test_a_hundred_thousand_calls(flow: Callable[[Hub, int], None]) -> None:
    flow(Hub(), 100_000)


def test_a_reply_queue_that_is_used_again_stays() -> None:
    hub = Hub()
    caller, service = hub.log_in("caller"), hub.log_in("service")
    said(service, get("/create/s"))
    kept = said(caller, get("/create")).decode()
    said(caller, get(f"/subscribe/{kept}"))
    after = -1
    for number in range(3 * FETCHED):
        other = said(caller, get("/create")).decode()
        said(caller, get(f"/subscribe/{other}"))
        for replies in (kept, other):
            said(caller, post(f"/send/s/{number}/{replies}", b"?"))
            said(service, post(f"/send/{replies}/{number}", b"!"))
            ((after, _),) = json.loads(said(caller, get(f"/transfer/{after}/5")))["messages"]
    assert kept in hub.broker.state.queues
    assert len(hub.broker.state.queues) == FETCHED + 2
