"""What one queue may be asked for over HTTP, and how its readers see it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hubbub.core.message import Message
from hubbub.core.quotas import NAMED
from tests.protocols.switch.journaled import Hub, get, ok, post, said, transfer
from tests.rights import ruled

NOTHING = {
    "max_messages": 0,
    "max_bytes": 0,
    "expires": 0,
    "lease": 0,
    "max_deliveries": 0,
    "dead_letter": "",
}


def asked(**settings: object) -> bytes:
    return json.dumps(settings).encode()


def numbers(body: bytes) -> list[int]:
    return [number for (_, number), _ in json.loads(body)["messages"]]


def seen(body: bytes) -> list[dict[str, Any]]:
    return [message for _, message in json.loads(body)["messages"]]


def test_settings_are_made_shown_changed_and_kept() -> None:
    hub = Hub()
    a = hub.log_in("a")
    assert json.loads(said(a, post("/create/q", asked(max_messages=3, lease=30)))) == {
        **NOTHING, "max_messages": 3, "lease": 30,
    }  # fmt: skip
    hub = Hub(hub.rows)
    a = hub.log_in("a")
    assert said(a, post("/create/q")) == (
        b'{"max_messages":3,"max_bytes":0,"expires":0,"lease":30,"max_deliveries":0,'
        b'"dead_letter":""}'
    )
    said(a, post("/create/q", asked(max_messages=0, expires=0.5, dead_letter="d\u00e9ad")))
    found = json.loads(said(Hub(hub.rows).log_in("a"), post("/create/q")))
    assert found == {**NOTHING, "lease": 30, "expires": 0.5, "dead_letter": "d\u00e9ad"}
    rows = len(hub.rows)
    said(a, post("/create/q", asked(expires=0.5)))
    assert len(hub.rows) == rows, "what holds already is no news"


def test_seconds_may_be_said_as_whole_numbers_and_as_others() -> None:
    hub = Hub()
    a = hub.log_in("a")
    for lease in (7, 4.0, 2.5, 7):
        found = json.loads(said(a, post("/create/q", asked(lease=lease, max_messages=3))))
        assert found["lease"] == lease
    hub = Hub(hub.rows)
    assert json.loads(said(hub.log_in("a"), post("/create/q", asked(lease=0.5))))["lease"] == 0.5


def test_a_transient_queue_keeps_its_owner() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/transient/mine"))
    said(hub.log_in("b"), post("/create/mine", asked(max_messages=1)))
    assert hub.broker.state.queues["mine"].owner == "a"
    a.hang_up()
    assert not hub.broker.state.queues


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"nonsense", "expected a JSON object"),
        (b"[1]", "expected a JSON object"),
        (asked(max_message=1), "there is no setting max_message; expected some of max_messages,"),
        (asked(max_messages=-1), "max_messages cannot be -1; expected a whole number from 0 on"),
        (asked(max_messages=1.5), "max_messages cannot be 1.5; expected a whole number"),
        (asked(max_messages=True), "max_messages cannot be True; expected a whole number"),
        (asked(expires="soon"), "expires cannot be 'soon'; expected a number from 0 on"),
        (asked(lease=1e300), "lease cannot be 1e+300"),
        (asked(dead_letter=7), "dead_letter cannot be 7; expected the name of a queue"),
        (asked(dead_letter="q"), "dead_letter cannot be the queue itself"),
        (b" " * 2_000_000, "2000000 bytes of JSON, at most 1048576 may be"),
    ],
)
def test_a_wrong_setting_is_refused(body: bytes, reason: str) -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(post("/create/q", body))
    head, _, text = a.hear().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and text.decode().startswith(reason)
    assert not hub.broker.state.queues


def test_dead_letters_need_the_right_to_send_them() -> None:
    hub = Hub()
    hub.gate.rights = ruled("write $queue/q", "manage $queue/q")
    a = hub.log_in("a")
    a.say(post("/create/q", asked(dead_letter="elsewhere")))
    assert a.hear().startswith(b"HTTP/1.1 403 ")
    said(a, post("/create/q", asked(max_messages=1)))


# Refusals


def test_a_full_queue_says_whose_bound_it_is() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, post("/create/q", asked(max_messages=1)))
    said(a, post("/request/q/a", b"x"))
    for request in (post("/request/q/a", b"y"), post("/publish/$queue/q", b"y"),
                    post("/response/q/p/0", b"y"), post("/send/q/1", b"y")):  # fmt: skip
        a.say(request)
        answer = a.hear()
        assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n"), request
        assert answer.endswith(b"The queue q holds 1 messages with 1 bytes, no more are allowed.")
    said(a, post("/create/q", asked(max_messages=0, max_bytes=1)))
    a.say(post("/request/q/a", b"y"))
    assert a.hear().startswith(b"HTTP/1.1 429 ")
    said(a, post("/create/q", asked(max_bytes=0)))
    hub.broker.queues.max_bytes = 1
    a.say(post("/request/q/a", b"y"))
    assert a.hear().startswith(b"HTTP/1.1 507 ")
    said(a, get("/ack/q/0"))
    said(a, post("/request/q/a", b"y"))


# Leases


def test_a_queue_with_leases_is_read_by_clients_that_know_nothing_of_it() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, post("/create/q", asked(lease=30)))
    for payload in (b"0", b"1", b"2"):
        said(a, post("/request/q/a", payload))
    assert numbers(said(a, transfer("q"))) == [0]
    body = said(b, transfer("q"))
    assert (numbers(body), json.loads(body)["next"]) == ([1], "1")
    assert numbers(said(a, transfer("q", cursor="0"))) == [2]
    a.say(transfer("q", cursor="2"))
    assert a.hear() == b""
    b.hang_up()
    body = a.hear().partition(b"\r\n\r\n")[2]
    assert numbers(body) == [1], "the cursor is above it, and yet it comes"
    assert json.loads(body)["next"] == "2"
    assert seen(body) == [{"payload": "1", "kind": ["Request", "a"], "deliveries": 2}]


def test_one_transfer_may_ask_for_more() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, post("/create/leased", asked(lease=30)))
    said(a, get("/persistent/plain"))
    for name in ("leased", "plain"):
        for _ in range(4):
            said(a, post(f"/request/{name}/a"))
    body = b'{"timeout":1,"queues":["leased"],"max":3}'
    assert numbers(said(a, post("/transfer", body))) == [2, 1, 0]
    body = b'{"timeout":1,"queues":["plain"],"max":3}'
    assert numbers(said(a, post("/transfer", body))) == [2, 1, 0]
    for bad in (b"-1", b"true", b'"3"', b"1.5"):
        a.say(post("/transfer", b'{"timeout":1,"queues":[],"max":' + bad + b"}"))
        assert a.hear().startswith(b"HTTP/1.1 500 "), bad


def test_leased_and_plain_queues_in_one_transfer() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, post("/create/leased", asked(lease=30)))
    said(a, get("/persistent/plain"))
    said(a, post("/request/leased/a"))
    body = said(a, transfer("leased", "plain"))
    cursor = json.loads(body)["next"]
    assert (numbers(body), cursor) == ([0], "-1")
    said(a, post("/request/plain/a"))
    said(a, post("/request/leased/a"))
    body = said(a, transfer("leased", "plain", cursor=cursor))
    assert [queue for (queue, _), _ in json.loads(body)["messages"]] == ["leased", "plain"]


def test_one_message_wakes_one_of_those_who_compete() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, post("/create/q", asked(lease=30)))
    waiting = [hub.log_in(f"w{number}") for number in range(5)]
    for far in waiting:
        far.say(transfer("q"))
    for _ in range(3):
        said(a, post("/request/q/a"))
    assert [len(far.hear()) > 0 for far in waiting] == [True, True, True, False, False]


def test_a_lease_that_ends_wakes_who_waits() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, post("/create/q", asked(lease=0.05)))
    said(a, post("/request/q/a"))
    said(a, transfer("q"))
    b.say(transfer("q"))
    assert b.hear() == b""
    time.sleep(0.06)
    hub.broker.queues.overdue.wake()
    assert numbers(b.hear().partition(b"\r\n\r\n")[2]) == [0]


def test_what_is_given_up_can_be_read_as_a_dead_letter() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, post("/create/q", asked(lease=30, max_deliveries=1, dead_letter="dead")))
    said(a, post("/request/q/a", b"poison"))
    said(a, transfer("q"))
    a.hang_up()
    b = hub.log_in("b")
    hub.broker.queues.overdue.wake()
    assert seen(said(b, transfer("dead"))) == [{"payload": "poison", "kind": ["Request", "a"]}]
    assert json.loads(said(b, transfer("q", timeout=0)))["messages"] == []


# Finding and waiting cost what the answer is long


def test_an_answer_costs_what_it_is_long_and_not_what_waits() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    said(a, post("/request/q/a"))
    queue = hub.broker.state.queues["q"]
    row = hub.rows[queue.messages[0] - 1]
    for number in range(1, 200_000):
        hub.rows.append(row)
        queue.add(number, len(hub.rows))
    hub.journal.position = hub.journal.durable = len(hub.rows)
    hub.switch._desk.polls.answer_messages = 3
    began = time.process_time()
    for _ in range(50):
        assert numbers(said(a, transfer("q"))) == [2, 1, 0]
        assert numbers(said(a, transfer("q", cursor="199997"))) == [199_999, 199_998]
    assert time.process_time() - began < 2


def test_a_transfer_waits_at_a_bounded_number_of_queues() -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(transfer(*(f"q{number}" for number in range(1_001)), timeout=0))
    answer = a.hear()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"1001 queues in one transfer, at most 1000 may be")
    a.say(transfer(*(f"q{number}" for number in range(1_000))))
    assert len(hub.broker.queues.awaiting) == 1_000
    a.hang_up()
    assert not hub.broker.queues.awaiting


def test_a_queue_made_by_another_protocol_is_noticed_at_once() -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(transfer("q"))
    hub.broker.post(Message("$queue/q", b"x"))
    assert a.hear().endswith(b'"next":"0"}')


@pytest.mark.pure
def test_one_token_cannot_make_all_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.protocols.switch.operations.QUEUES_PER_TOKEN", 3)
    hub = Hub()
    a = hub.log_in("a")
    for number in range(3):
        said(a, get(f"/persistent/{number}"))
    a.say(get("/persistent/3"))
    answer = a.hear()
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert answer.endswith(b"You have made 3 queues, no more are allowed.")
    said(a, get("/persistent/0"))
    said(hub.log_in("b"), get("/destroy/1"))
    said(a, get("/persistent/3"))
    a.hang_up()
    a = hub.log_in("a")
    a.say(get("/persistent/4"))
    assert a.hear().startswith(b"HTTP/1.1 429 "), "coming back does not help"
    said(hub.log_in("b"), get("/persistent/b"))
    first = hub.first(post("/publish/$queue/c"))
    assert first.hear() == ok()


@pytest.mark.pure
def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.protocols.switch.session.TOKENS", 2)
    hub = Hub()
    a = hub.log_in("a")
    hub.log_in("b")
    hub.log_in("b")
    c = hub.first(get("/login/c"))
    answer = c.hear()
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert answer.endswith(b"Too many tokens are logged in.")
    a.hang_up()
    c.say(get("/login/c"))
    assert c.hear() == ok()


def test_tokens_that_own_nothing_leave_nothing() -> None:
    hub = Hub()
    for number in range(3):
        far = hub.log_in(f"t{number}", "?grace=3600")
        said(far, get("/transient/q"))
        said(far, get("/destroy/q"))
        far.hang_up()
    logins = hub.switch._desk.logins
    assert not (logins._sessions or logins._owned or logins._deadlines or logins.made)


def test_too_many_queues_are_refused_with_the_reason() -> None:
    hub = Hub()
    hub.broker.quotas.most[NAMED] = 1
    a = hub.log_in("a")
    said(a, get("/persistent/0"))
    for request in (get("/persistent/1"), get("/transient/1"), post("/bind/1", b"t"),
                    post("/publish/$queue/1"), post("/create/1")):  # fmt: skip
        a.say(request)
        answer = a.hear()
        assert answer.startswith(b"HTTP/1.1 507 ") and b"there are 1 queues" in answer
    assert list(hub.broker.state.queues) == ["0"]
