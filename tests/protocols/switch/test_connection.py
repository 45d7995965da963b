"""Conversations with the switch: order, waiting, ownership, restarts, other protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hubbub import schema
from hubbub.core.gate import Credentials, Gate
from hubbub.core.limits import POLLS_PER_TOKEN
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Subscription
from hubbub.core.turns import Stint
from hubbub.core.turns import Turns as CoreTurns
from hubbub.protocols.registry import chosen
from hubbub.protocols.switch.operations import is_near
from hubbub.protocols.switch.session import RESTART_SECONDS
from hubbub.wire.http import parse_head
from tests.protocols.switch.journaled import Hub, get, ok, post, said, transfer
from tests.rights import ruled

LATER = 1e12


def messages(body: bytes) -> list[tuple[str, int, str, list[Any]]]:
    found = json.loads(body)["messages"]
    return [(queue, number, one["payload"], one["kind"]) for (queue, number), one in found]


class Listener(Session):
    """A client of some other protocol: it has a list of what it got."""

    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__("other", name, hub.broker.open)
        self.got: list[Message] = []
        encodings = (SPELLED, SPELLED, SPELLED)
        self.direct = Subscription(self, "", 1, encodings)
        hub.broker.connect(self, hub.broker.own(self.protocol, self.client))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.got.extend(run.messages())


def test_its_name() -> None:
    """Compiled code reads names of compiled classes only."""
    hub = Hub()
    assert chosen([hub.switch], ["switch"]) == [hub.switch]


# Large ones, before they are whole


class Ruled(Gate):
    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        done(ruled("readwrite $queue/mine"), "")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/request/theirs/x", b"403"), ("/publish/theirs", b"403"), ("/nowhere", b"404")],
)
def test_a_large_body_is_refused_before_it_came(path: str, status: bytes) -> None:
    hub = Hub()
    hub.gate = Ruled(hub.broker.open)
    ann = hub.log_in("ann")
    whole = post(path, bytes(1 << 20))
    ann.say(whole[: 20 * 1024])
    assert ann.hear().startswith(b"HTTP/1.1 " + status) and ann.closed
    assert not hub.broker.state.queues


def test_a_large_body_that_is_allowed_comes_whole() -> None:
    hub = Hub()
    ann = hub.log_in("ann")
    said(ann, get("/persistent/q"))
    whole = post("/request/q/x", b"y" * 300_000)
    for at in range(0, len(whole), 7_000):
        ann.say(whole[at : at + 7_000])
    assert b'[["q",0]]' in ann.hear()
    assert ann.connection.waiting() == 0


# Order


def test_what_is_pipelined_behind_a_transfer_waits_for_it() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    a.say(transfer("q") + get("/list/") + post("/request/q/a", b"two"))
    assert a.hear() == b""
    assert said(b, post("/request/q/b", b"one")) == b'[["q",0]]'
    heard = a.hear().split(b"HTTP/1.1 ")[1:]
    assert [one.partition(b"\r\n\r\n")[2] for one in heard] == [
        b'{"messages":[[["q",0],{"payload":"one","kind":["Request","b"]}]],"next":"0"}',
        b'["q"]',
        b'[["q",1]]',
    ]


def test_messages_of_one_tick_come_in_one_answer() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    a.say(transfer("q"))
    b.say(post("/request/q/b", b"one") + post("/request/q/b", b"two"))
    assert [one[1] for one in messages(a.hear().partition(b"\r\n\r\n")[2])] == [1, 0]


def test_a_transfer_from_inside_a_transfer() -> None:
    """A waits at q and has a request for r behind it, B waits at r: both go on in one tick."""
    hub = Hub()
    a, b, c = hub.log_in("a"), hub.log_in("b"), hub.log_in("c")
    said(c, get("/persistent/q"))
    said(c, get("/persistent/r"))
    a.say(transfer("q") + post("/request/r/a", b"x"))
    b.say(transfer("r"))
    said(c, post("/request/q/c"))
    assert a.hear().endswith(b'[["r",0]]')
    assert b.hear().endswith(b'"next":"0"}')


@pytest.mark.parametrize("seconds", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_time_out_that_is_no_number_is_an_error(seconds: str) -> None:
    hub = Hub()
    a = hub.log_in("a")
    body = f'{{"timeout":{seconds},"queues":["q"]}}'.encode()
    for request in (post("/transfer", body), get(f"/transfer/0/{seconds}"),
                    get(f"/trace/0/{seconds}"), get(f"/login/a?grace={seconds}")):  # fmt: skip
        a.say(request)
        assert a.hear().startswith(b"HTTP/1.1 500 "), request


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"


def test_who_offers_another_protocol_is_answered_as_ever() -> None:
    """Java's client and `curl --http2` do so each time."""
    hub = Hub()

    def offering(request: bytes) -> bytes:
        head, end, body = request.partition(b"\r\n\r\n")
        return head + b"\r\n" + UPGRADE.encode().removesuffix(b"\r\n") + end + body

    a = hub.first(offering(get("/login/a")))
    assert a.hear() == ok()
    assert said(a, offering(get("/persistent/q"))) == b"q"
    body = b"GET /destroy/q HTTP/1.1\r\n\r\n"
    assert said(a, offering(post("/request/q/a", body))) == b'[["q",0]]'
    a.say(offering(post("/request/q/a", b"x")) * 2 + offering(get("/list/")))
    assert a.hear() == ok(b'[["q",1]]') + ok(b'[["q",2]]') + ok(b'["q"]')


def test_head_is_answered_without_a_body() -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(get("/list/").replace(b"GET", b"HEAD") + get("/list/"))
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 17\r\n\r\n"
    assert a.hear() == missing + ok(b"[]")


def test_an_empty_line_before_a_request_is_skipped() -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(b"\r\n" + get("/list/") + b"\r\n\r\n" + get("/list/"))
    assert a.hear() == ok(b"[]") * 2


def test_time_outs() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    a.say(transfer("q", cursor="7", timeout=2))
    now = hub.clock.now()
    due = a.connection.wake(now)
    assert now + 1 < due < now + 3
    assert a.connection.wake(due) == float("inf")
    assert a.hear() == ok(b'{"messages":[],"next":"7"}')


def test_the_last_request_of_a_connection() -> None:
    hub = Hub()
    a = hub.log_in("a")
    a.say(b"GET /list/ HTTP/1.1\r\nConnection: close\r\n\r\n" + get("/persistent/never"))
    assert a.hear() == ok(b"[]")
    assert a.closed and "never" not in hub.broker.state.queues


def test_errors_leave_the_connection_usable() -> None:
    hub = Hub()
    a = hub.log_in("a")
    error = ok(b"Error: Internal Server Error", "500 Internal Server Error")
    for bad in (
        b"", b"[]", b"{", b'{"timeout":1}', b'{"queues":[1],"timeout":1}', b"[" * 10_000,
        b'{"queues":[],"timeout":NaN}', b'{"queues":[],"timeout":' + b"9" * 5000 + b"}",
        b'{"from":"s","queues":[],"timeout":0}', b'{"queues":[],"timeout":true}',
    ):  # fmt: skip
        a.say(post("/transfer", bad))
        assert a.hear() == error, bad
    assert said(a, get("/list/")) == b"[]"


def test_too_much_behind_a_transfer_ends_the_connection() -> None:
    hub = Hub()
    hub.switch.message_bytes = 1000
    a = hub.log_in("a")
    a.say(transfer("q"))
    for _ in range(50):
        a.say(get("/list/"))
    assert a.closed and "behind one that waits" in str(a.reason)


def test_a_token_cannot_wait_without_bound() -> None:
    hub = Hub()
    waiting = [hub.log_in("a") for _ in range(POLLS_PER_TOKEN + 1)]
    for far in waiting:
        far.say(transfer("q"))
    assert waiting[-1].hear().startswith(b"HTTP/1.1 429")
    waiting[0].hang_up()
    waiting[-1].say(transfer("q"))
    assert waiting[-1].hear() == b""


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    head = b"POST /request/q/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    a.say(head)
    assert a.hear() == b"HTTP/1.1 100 Continue\r\n\r\n"
    a.say(b"bo")
    a.say(b"dy")
    assert a.hear() == ok(b'[["q",0]]')
    a.say(head + b"body")
    assert a.hear() == ok(b'[["q",1]]'), "it did not wait, so it is told nothing"
    a.say(head.replace(b"1.1", b"1.0"))
    assert a.hear() == b"", "before 1.1 nobody knows that answer"


def test_who_asks_first_behind_a_transfer_waits_too() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    a.say(transfer("q"))
    a.say(b"POST /request/q/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert a.hear() == b""
    said(b, post("/request/q/b", b"x"))
    assert a.hear().endswith(b'"next":"0"}HTTP/1.1 100 Continue\r\n\r\n')


def test_a_body_over_the_bound_is_refused_before_it_comes() -> None:
    hub = Hub()
    hub.switch.message_bytes = 1000
    a = hub.log_in("a")
    a.say(b"POST /request/q/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
    answer = a.hear()
    assert answer.startswith(b"HTTP/1.1 413 Content Too Large\r\n") and a.closed
    assert answer.endswith(b"a body of more than 1000 bytes")
    b = hub.log_in("b")
    b.say(b"POST /request/q/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    b.say(b"3ff\r\n" + b"x" * 0x3FF + b"\r\n")
    assert b.hear().startswith(b"HTTP/1.1 413 ") and b.closed
    assert not hub.broker.state.queues


def test_names_of_any_bytes() -> None:
    hub = Hub()
    a = hub.log_in("%00%ff")
    raw = bytes(range(256))
    path = "".join(f"%{byte:02x}" for byte in raw)
    assert said(a, get(f"/persistent/{path}")) == raw
    said(a, post(f"/request/{path}/{path}", b"x"))
    again = Hub(hub.rows).log_in("b")
    listed = json.loads(said(again, get("/list/")).decode("latin-1"))
    assert listed == [raw.decode("latin-1")]
    said(again, get(f"/ack/{path}/0"))
    said(again, get(f"/destroy/{path}"))
    assert said(again, get("/list/")) == b"[]"


def test_a_queue_has_a_name() -> None:
    hub = Hub()
    a = hub.log_in("a")
    makes = [get(f"/{verb}/") for verb in ("persistent", "transient", "create")]
    for bad in (*makes, post("/create/", b"{}"), post("/bind/", b"a/#")):
        a.say(bad)
        assert a.hear().startswith(b"HTTP/1.1 400 "), bad
    assert not hub.broker.state.queues


def test_what_was_sent_is_taken_back_by_who_sent_it() -> None:
    """The queue goes too, where the same client made it and nobody else has come."""
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    for name in ("alone", "used", "read", "asked"):
        said(a, get(f"/persistent/{name}"))
        assert said(a, post(f"/request/{name}/a", b"x")) == b'[["%b",0]]' % name.encode()
    said(a, post("/create/asked", b'{"max_messages":7}'))
    said(b, post("/request/used/b", b"y"))
    said(b, transfer("read", timeout=0))
    b.say(post("/withdraw/alone/0"))
    assert b.hear().startswith(b"HTTP/1.1 403 ")
    for name in ("alone", "used", "read", "asked"):
        assert said(a, post(f"/withdraw/{name}/0")) == b"1"
        assert said(a, post(f"/withdraw/{name}/0")) == b"0"
    assert said(a, get("/list/")) == b'["used","read","asked"]'
    assert said(b, post("/withdraw/used/1")) == b"1"
    assert said(a, get("/list/")) == b'["used","read","asked"]', "another client made it"


def test_what_was_sent_under_a_token_that_is_somebody_elses_now_stays() -> None:
    hub = Hub()
    hub.broker.queues.named("q")
    hub.gate.rights = ruled("write $queue/q")
    ann = hub.log_in("a")
    for name in (b"0", b"1"):
        assert said(ann, post("/request/q/a", b"x")) == b'[["q",%b]]' % name
    assert said(ann, post("/withdraw/q/1")) == b"1"
    ann.connection.lost("")
    hub.gate.rights = ruled("write $queue/q")
    bob = hub.log_in("a")
    bob.say(post("/withdraw/q/0"))
    assert bob.hear().startswith(b"HTTP/1.1 403 ")
    assert list(hub.broker.state.queues["q"].messages) == [0]


# The end of the hub


def test_shutting_down() -> None:
    hub = Hub()
    stopped = []
    a = hub.log_in("a")
    a.say(post("/shutdown"))
    assert a.hear().startswith(b"HTTP/1.1 403 "), "an embedded hub is its program's to end"
    hub.broker.stop = lambda: stopped.append(True)
    far = hub.first(post("/shutdown"))
    assert far.hear() == ok(b"Please log in.", "404 Not Found")
    assert not stopped
    assert said(a, post("/shutdown")) == b"" and stopped
    a.connection.logins[0].address = "192.0.2.7"  # type: ignore[attr-defined]
    a.say(post("/shutdown"))
    assert a.hear().startswith(b"HTTP/1.1 403 ") and len(stopped) == 1


def test_who_may_not_see_all_may_not_end_it() -> None:
    hub = Hub()
    hub.broker.stop = lambda: pytest.fail("it was ended")
    hub.gate.rights = ruled("readwrite #", "readwrite $queue/#", "readwrite $SYS/#")
    a = hub.log_in("a")
    a.say(post("/shutdown"))
    assert a.hear().startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("address", "near"),
    [("127.0.0.1", True), ("::1", True), ("unix:/run/s", True), ("10.0.0.1", False), ("", False)],
)
def test_what_is_near(address: str, near: bool) -> None:
    assert is_near(address) is near


# Promises


def test_nothing_is_promised_before_it_is_durable() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    b.say(transfer("q"))
    hub.journal.slow = True
    a.say(post("/request/q/a", b"x"))
    assert a.hear() == b"" and b.hear() == b""
    hub.journal.sync()
    assert a.hear() == ok(b'[["q",0]]')
    hub.journal.sync()
    assert b.hear().endswith(b'"next":"0"}')


def test_a_queue_that_is_there_does_not_wait_for_the_disk() -> None:
    """A caller asks for its queue before each call; what it acknowledges must not come again."""
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    assert said(a, post("/request/q/a", b"x")) == b'[["q",0]]'
    hub.journal.slow = True
    b.say(get("/persistent/new"))
    assert b.hear() == b""
    assert said(a, get("/persistent/q")) == b"q"
    a.say(get("/ack/q/0"))
    assert a.hear() == b""
    c = hub.dial(hub.switch, get("/login/c"))
    c.say(get("/persistent/new"))
    assert c.hear() == b"", "the queue itself is not safe yet"
    hub.journal.sync()
    assert b.hear() == ok(b"new") and c.hear() == ok() + ok(b"new")
    assert a.hear() == ok()
    assert not hub.broker.state.queues["q"].messages


def test_a_transfer_waits_for_its_messages_and_for_nothing_else() -> None:
    """Rows of others, and those that say who got a message, are no part of what it promises."""
    hub = Hub()
    a, b, c = hub.log_in("a"), hub.log_in("b"), hub.log_in("c")
    said(a, get("/persistent/q"))
    assert said(a, post("/request/q/a", b"safe")) == b'[["q",0]]'
    hub.journal.slow = True
    c.say(get("/persistent/another"))
    assert c.hear() == b""
    assert messages(said(b, transfer("q"))) == [("q", 0, "safe", ["Request", "a"])]
    a.say(post("/request/q/a", b"on its way"))
    sent = hub.journal.position
    b.say(transfer("q", cursor="0"))
    c.say(get("/ack/q/0"))
    assert b.hear() == b"" and hub.journal.position > sent
    hub.journal.durable = sent
    assert b.hear().endswith(b'"next":"1"}') and a.hear() == ok(b'[["q",1]]')
    assert c.hear() == ok(b"another"), "and the acknowledgement waits"
    hub.journal.sync()
    hub.journal.slow = False
    said(a, post("/create/leased", b'{"lease":30.0}'))
    said(a, post("/request/leased/a", b"safe"))
    hub.journal.slow = True
    c.say(get("/persistent/third"))
    b.say(transfer("leased"))
    assert b.hear() == b"", "a lease is more than a look"


def test_a_call_in_rows() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/transient/a"))
    said(a, get("/persistent/q"))
    said(a, post("/request/q/a", b"hello"))
    said(b, transfer("q"))
    said(b, post("/response/a/q/0", b"world"))
    said(b, get("/ack/q/0"))
    create, other, send, read, deliver, reply, ack = [
        row for row in hub.rows if row.kind not in (schema.CONNECT, schema.DISCONNECT)
    ]
    assert (read.kind, read.topic, read.properties) == (
        schema.CREATE,
        b"$queue/q",
        b'{"read":true}',
    )
    assert (create.kind, create.topic) == (schema.CREATE, b"$queue/a")
    assert json.loads(create.properties) == {"owner": "a"}
    assert (other.kind, other.topic, other.number) == (schema.CREATE, b"$queue/q", 0)
    assert (send.kind, send.topic, send.number) == (schema.SEND, b"$queue/q", 0)
    assert (send.client, send.reply_to, send.payload) == (b"a", b"$queue/a", b"hello")
    assert (deliver.kind, deliver.client, deliver.ref) == (schema.DELIVER, b"b", send.seq)
    assert (reply.kind, reply.topic, reply.ref) == (schema.SEND, b"$queue/a", send.seq)
    assert (ack.kind, ack.client, ack.ref, ack.number) == (schema.ACK, b"b", send.seq, 0)


def test_the_last_word_does_not_overtake_a_promise() -> None:
    hub = Hub()
    a = hub.log_in("a")
    hub.journal.slow = True
    a.say(get("/persistent/q") + b"rubbish\r\n\r\n")
    assert a.hear() == b"" and not a.closed
    hub.journal.sync()
    assert a.hear().startswith(ok(b"q") + b"HTTP/1.1 400 ") and a.closed


def test_a_full_queue_refuses() -> None:
    hub = Hub()
    hub.broker.queues.max_messages = 1
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    said(a, post("/request/q/a", b"x"))
    a.say(post("/request/q/a", b"y"))
    assert a.hear().startswith(b"HTTP/1.1 507 ")
    assert json.loads(said(a, transfer("q")))["next"] == "0"


# Cursors


def test_two_consumers_see_everything_and_one_acknowledges() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    said(a, get("/persistent/q"))
    a.say(transfer("q"))
    b.say(transfer("q"))
    said(hub.log_in("c"), post("/request/q/c", b"x"))
    assert a.hear() == b.hear() != b""
    said(a, get("/ack/q/0"))
    said(b, get("/ack/q/0"))
    assert json.loads(said(b, transfer("q", timeout=0))) == {"messages": [], "next": "-1"}
    assert hub.kinds().count(schema.ACK) == 1


@pytest.mark.parametrize("journaled", [True, False])
def test_a_cursor_over_several_queues_never_skips(journaled: bool) -> None:
    hub = Hub()
    hub.journal.records = journaled
    a = hub.log_in("a")
    for name in "xy":
        said(a, get(f"/persistent/{name}"))
    for payload in (b"0", b"1", b"2"):
        said(a, post("/request/x/a", payload))
    first = said(a, transfer("x", "y"))
    assert [one[:2] for one in messages(first)] == [("x", 2), ("x", 1), ("x", 0)]
    cursor = json.loads(first)["next"]
    said(a, post("/request/y/a", b"late"))
    said(a, post("/request/x/a", b"later"))
    second = said(a, transfer("x", "y", cursor=cursor))
    assert [one[:2] for one in messages(second)] == [("x", 3), ("y", 0)]
    cursor = json.loads(second)["next"]
    assert json.loads(said(a, transfer("x", "y", cursor=cursor, timeout=0)))["next"] == cursor
    assert json.loads(said(a, transfer("y", cursor=cursor, timeout=0)))["next"] == cursor


def test_one_message_in_two_queues_is_not_cut_apart() -> None:
    hub = Hub()
    hub.switch._desk.polls.answer_messages = 1
    a = hub.log_in("a")
    for name in "xy":
        said(a, post(f"/bind/{name}", b"t"))
    for payload in (b"one", b"two"):
        said(a, post("/publish/t", payload))
    cursor = "-1"
    for expected in ("one", "two"):
        body = said(a, transfer("x", "y", cursor=cursor))
        assert [one[2] for one in messages(body)] == [expected, expected]
        cursor = json.loads(body)["next"]


def test_a_backlog_is_read_in_pieces() -> None:
    hub = Hub()
    hub.switch._desk.polls.answer_bytes = 10
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    for _ in range(7):
        said(a, post("/request/q/a", b"123456"))
    seen: list[int] = []
    cursor = "-1"
    while len(seen) < 7:
        body = said(a, transfer("q", cursor=cursor))
        seen += reversed([one[1] for one in messages(body)])
        cursor = json.loads(body)["next"]
    assert seen == list(range(7))


def test_a_queue_that_comes_later_is_waited_for() -> None:
    hub = Hub()
    a, b = hub.log_in("a"), hub.log_in("b")
    a.say(transfer("q"))
    said(b, get("/persistent/q"))
    said(b, post("/request/q/b", b"1"))
    assert a.hear().endswith(b'"next":"0"}')
    said(a, get("/ack/q/0"))
    a.say(transfer("q"))
    said(b, get("/destroy/q"))
    hub.broker.post(Message("$queue/q", b"2"))  # made again by somebody else
    hub.switch.wake(hub.clock.now())
    assert a.hear().endswith(b'"next":"1"}')


# Who owns what


def test_a_transient_queue_goes_with_the_last_connection_of_its_token() -> None:
    hub = Hub()
    first, second = hub.log_in("own"), hub.log_in("own")
    said(first, get("/transient/t"))
    first.hang_up()
    assert said(second, get("/list/")) == b'["t"]'
    second.hang_up()
    assert not hub.broker.state.queues and not hub.broker.clients


def test_a_connection_lost_while_it_waits_is_noticed_at_once() -> None:
    hub = Hub()
    a = hub.log_in("a")
    for path in ("/transient/b", "/destroy/b", "/transient/a"):
        said(a, get(path))
    a.say(transfer("a", "elsewhere"))
    a.hang_up()
    assert said(hub.log_in("b"), get("/list/")) == b"[]"
    assert not hub.broker.queues.awaiting


def test_a_grace() -> None:
    hub = Hub()
    a = hub.log_in("a", "?grace=30")
    said(a, get("/transient/a"))
    a.hang_up()
    now = hub.clock.now()
    hub.switch.wake(now + 29)
    again = hub.log_in("a", "?grace=30")
    hub.switch.wake(now + 31)
    assert said(again, get("/list/")) == b'["a"]'
    again.hang_up()
    hub.switch.wake(hub.clock.now() + 31)
    assert not hub.broker.state.queues


def test_a_token_is_not_shared_between_different_rights() -> None:
    hub = Hub()
    hub.log_in("a")
    hub.gate.rights = Rights()
    other = hub.first(get("/login/a"))
    assert other.hear().startswith(b"HTTP/1.1 403")
    other.say(get("/list/"))
    assert other.hear() == ok(b"Please log in.", "404 Not Found")


def test_rights_are_asked() -> None:
    hub = Hub()
    hub.broker.queues.named("q")
    hub.gate.rights = ruled("deny #")
    a = hub.log_in("a")
    for request in (get("/persistent/x"), get("/destroy/q"), get("/ack/q/0"), transfer("q"),
                    post("/request/q/a"), post("/response/q/q/0"), post("/publish/t"),
                    post("/publish/$queue/new"), post("/bind/q", b"t")):  # fmt: skip
        a.say(request)
        assert a.hear().startswith(b"HTTP/1.1 403"), request
    assert list(hub.broker.state.queues) == ["q"]


# Restarts


def test_after_a_restart_ids_go_on_and_messages_are_there() -> None:
    hub = Hub()
    a = hub.log_in("a")
    for name in ("q", "empty"):
        said(a, get(f"/persistent/{name}"))
        said(a, post(f"/request/{name}/a", b"before"))
    said(a, get("/ack/empty/0"))
    hub = Hub(hub.rows)
    a = hub.log_in("a")
    assert said(a, post("/request/q/a", b"after")) == b'[["q",1]]'
    assert said(a, post("/request/empty/a", b"after")) == b'[["empty",1]]'
    assert [one[1:3] for one in messages(said(a, transfer("q")))] == [(1, "after"), (0, "before")]


def test_owners_have_a_minute_to_come_back() -> None:
    hub = Hub()
    for token in ("back", "gone"):
        said(hub.log_in(token), get(f"/transient/{token}"))
    hub = Hub(hub.rows)
    back = hub.log_in("back")
    now = hub.clock.now()
    hub.switch.wake(now)
    hub.switch.wake(now + RESTART_SECONDS - 1)
    assert said(back, get("/list/")) == b'["gone","back"]'
    hub.switch.wake(now + RESTART_SECONDS + 1)
    assert said(back, get("/list/")) == b'["back"]'
    back.hang_up()
    assert not hub.broker.state.queues


def test_stopping_answers_transfers_and_keeps_transient_queues() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/transient/a"))
    a.say(transfer("a"))
    a.connection.goodbye()
    a.hang_up()
    assert a.hear() == ok(b'{"messages":[],"next":"-1"}')
    assert list(Hub(hub.rows).broker.state.queues) == ["a"]


def test_diagnostics_after_a_restart() -> None:
    """A service that read before the restart and not since is gone, and not one never started."""
    hub = Hub()
    a, service = hub.log_in("a"), hub.log_in("service")
    for name in ("served", "never"):
        said(a, get(f"/persistent/{name}"))
        said(a, post(f"/request/{name}/a"))
    said(service, transfer("served"))
    hub = Hub(hub.rows)
    found = json.loads(said(hub.log_in("b"), get("/")))
    queues = found["permanent_queues"]
    assert "next_transfer_expected" not in queues["never"]
    assert abs(queues["served"]["next_transfer_expected"]) < 5e9
    ((_, entry),) = queues["served"]["queue_contents"]
    assert entry["time"] <= 0 <= found["current_time"] - entry["time"]
    assert said(hub.log_in("c"), get("/list/alive/")) == b'["served"]'


@pytest.mark.parametrize(
    ("waits", "reason", "missed"), [(False, "", False), (True, "", True), (False, "reset", True)]
)
def test_who_left_in_order_is_not_missed(waits: bool, reason: str, missed: bool) -> None:
    hub = Hub()
    a, service = hub.log_in("a"), hub.log_in("service")
    said(a, get("/persistent/q"))
    service.say(transfer("q"))
    if waits:
        said(a, post("/request/q/a", b"?"))
    service.hang_up(reason)
    for now in (hub.clock.now() + 59, hub.clock.now() + 61):  # 30 s behind what it waited for
        assert said(a, get("/list/alive/")) == b'["q"]'
        hub.switch.wake(now)
    found = json.loads(said(a, get("/")))["permanent_queues"]["q"]
    assert ("next_transfer_expected" in found) is missed
    assert said(a, get("/list/alive/")) == (b'["q"]' if missed else b"[]")
    restarted = Hub(hub.rows)
    found = json.loads(said(restarted.log_in("a"), get("/")))["permanent_queues"]["q"]
    assert ("next_transfer_expected" in found) is missed


def test_diagnostics_are_bounded() -> None:
    hub = Hub()
    a = hub.log_in("a")
    for index in range(30):
        said(a, get(f"/persistent/{index:02}"))
        for _ in range(101):
            hub.broker.post(Message(f"$queue/{index:02}", b"x"))
    queues = json.loads(said(a, get("/")))["permanent_queues"]
    shown = [len(queue["queue_contents"]) for queue in queues.values()]
    assert shown == [100] * 20 + [0] * 10
    assert {queue["messages"] for queue in queues.values()} == {101}


@pytest.mark.pure
class Turns:
    """Each look at the time is a millisecond of work; what a turn of the loop took is kept."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent, self.turns = 0, [0]
        settle, over = CoreTurns.settle, Stint.over

        def look(stint: Stint) -> bool:
            self.spent += 1
            self.turns[-1] += 1
            return over(stint)

        def turn(turns: CoreTurns) -> None:
            self.turns.append(0)
            settle(turns)

        monkeypatch.setattr(Stint, "over", look)
        monkeypatch.setattr(hub.clock, "spent", lambda: self.spent / 1000)
        monkeypatch.setattr(hub.clock, "now", lambda: 1_000 + self.spent / 1000)
        monkeypatch.setattr(CoreTurns, "settle", turn)


@pytest.mark.pure
def test_no_turn_is_long_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    a = hub.log_in("a")
    for queue in range(20):
        said(a, get(f"/persistent/q{queue}"))
        for _ in range(20):
            said(a, post(f"/request/q{queue}/a", b"x" * 100))
    turns = Turns(hub, monkeypatch)
    b = hub.first(get("/") * 3 + get("/list/nothing") * 30)
    found = b.hear()
    assert found.count(b'"payload"') == 3 * 400 and found.count(b"Please log in.") == 30
    assert len(turns.turns) > 100 and max(turns.turns) < 20


@pytest.mark.pure
def test_requests_by_the_thousand_are_heard_in_turns_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of a read were parsed in one turn, and so was all that a loop reads in one: 8 MB."""
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    turns = Turns(hub, monkeypatch)
    count = 5_000
    a.say(b"".join(post("/request/q/a", b"%d" % n) for n in range(count)))
    answers = a.hear().split(b"HTTP/1.1 ")[1:]
    ids = [one.partition(b"\r\n\r\n")[2] for one in answers]
    assert ids == [b'[["q",%d]]' % n for n in range(count)]
    assert len(turns.turns) > 20 and max(turns.turns) < 20


def test_behind_the_last_request_nothing_is_heard_however_much_it_is() -> None:
    hub = Hub()
    a = hub.log_in("a")
    last = get("/list/").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    a.say(get("/persistent/q") * 900 + last + get("/persistent/r") * 2_000 + b"nonsense")
    heard = a.hear()
    assert heard.count(b"HTTP/1.1 200 ") == 901 and heard.endswith(b'["q"]')
    assert a.closed and list(hub.broker.state.queues) == ["q"]


def test_who_is_not_logged_in_may_have_a_hundred_requests_wait() -> None:
    far = Hub().first(get("/list/") * 101)
    assert far.hear().count(b"HTTP/1.1 404 ") == 101 and not far.closed
    far = Hub().first(get("/list/") * 5_000)
    heard = far.hear()
    assert heard.count(b"HTTP/1.1 404 ") == 102 and b"HTTP/1.1 429 " in heard and far.closed


@pytest.mark.pure
def test_a_transfer_takes_no_more_than_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    for _ in range(50):
        said(a, post("/request/q/a", b"x"))
    Turns(hub, monkeypatch)
    cursor, found = "-1", 0
    while found < 50:
        answer = json.loads(said(a, transfer("q", cursor=cursor)))
        assert 4 <= len(answer["messages"]) < 12 or found > 40
        found, cursor = found + len(answer["messages"]), answer["next"]
        assert int(cursor) == found - 1


@pytest.mark.pure
def test_of_very_many_queues_those_that_hold_something_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.protocols.switch.diagnostics.QUEUES", 2)
    hub = Hub()
    a = hub.log_in("a")
    for name in "abc":
        said(a, get(f"/persistent/{name}"))
    said(a, post("/request/c/a", b"x"))
    found = json.loads(said(a, get("/")))
    assert list(found["permanent_queues"]) == ["a", "c"] and found["queues"] == 3
    said(a, get("/destroy/b"))
    assert "queues" not in json.loads(said(a, get("/")))


# Other protocols


def test_a_bound_queue_gets_what_is_published() -> None:
    hub = Hub()
    first = hub.first(post("/bind/q", b"sensors/+/t"))
    assert first.hear() == ok()
    a = hub.log_in("a")
    a.say(transfer("q"))
    hub.broker.post(Message("sensors/1/t", b"20.5"))
    hub.broker.post(Message("elsewhere", b"no"))
    assert messages(a.hear().partition(b"\r\n\r\n")[2]) == [("q", 0, "20.5", ["Request", ""])]
    first.say(post("/unbind/q", b"sensors/+/t"))
    hub.broker.post(Message("sensors/1/t", b"21"))
    assert json.loads(said(a, transfer("q")))["next"] == "0"


def test_a_filter_that_is_none_is_refused() -> None:
    hub = Hub()
    for bad in (b"", b"a/#/b", b"\xff", b"$queue/other", b"$client/7", b"$share/g/a"):
        far = hub.first(post("/bind/q", bad))
        assert far.hear().startswith(b"HTTP/1.1 400"), bad
    assert not hub.broker.state.queues


def test_publishing() -> None:
    hub = Hub()
    other = Listener(hub, "other")
    hub.broker.subscribe(Subscription(other, "a/#", 1, (SPELLED, SPELLED, SPELLED)))
    a = hub.first(post("/publish/a/b%20c?qos=1&retain=1", b"payload"))
    assert a.hear() == ok()
    (got,) = other.got
    assert (got.topic, got.payload, got.qos, got.retain) == ("a/b c", b"payload", 1, True)
    assert "a/b c" in hub.broker.state.retained
    a.say(post("/publish/$queue/jobs", b"work"))
    assert a.hear() == ok() and list(hub.broker.state.queues["jobs"].messages) == [0]
    for bad in ("", "$queue/", "a/+", "a?qos=3", "a?retain=maybe"):
        a.say(post(f"/publish/{bad}"))
        assert a.hear().startswith(b"HTTP/1.1 400"), bad
    a.say(post("/publish/$SYS/x"))
    assert a.hear().startswith(b"HTTP/1.1 403")


def test_an_answer_goes_to_whoever_asked() -> None:
    """SMQ and MQTT clients ask with an address or a topic; the service need not know."""
    hub = Hub()
    asker, watcher = Listener(hub, "asker"), Listener(hub, "watcher")
    hub.broker.subscribe(Subscription(watcher, "replies/1", 1, (SPELLED, SPELLED, SPELLED)))
    address = f"$client/{asker.number}"
    ask = Message("$queue/q", b"?", reply_to=address, correlation=b"c1")
    hub.broker.post(ask, asker)
    hub.broker.post(Message("$queue/q", b"?", reply_to="replies/1", correlation=b"c2"), asker)
    hub.broker.post(Message("$queue/q", b"?"), asker)
    a = hub.log_in("a")
    kinds = [one[3] for one in messages(said(a, transfer("q")))]
    assert kinds == [["Request", ""], ["Request", "reply~1"], ["Request", "reply~0"]]
    assert said(a, post("/response/reply~0/q/1", b"not that one")) == b"[]"
    assert json.loads(said(a, post("/response/reply~0/q/0", b"!"))) == [["reply~0", 0]]
    said(a, post("/response/reply~1/q/1", b"!!"))
    assert said(a, post("/response//q/2", b"nobody waits")) == b"[]"
    assert [(one.payload, one.correlation) for one in asker.got] == [(b"!", b"c1")]
    assert [(one.payload, one.correlation) for one in watcher.got] == [(b"!!", b"c2")]
    hub.broker.disconnect(asker, "")
    assert said(a, post("/response/reply~0/q/0", b"late")) == b"[]"
    said(a, get("/ack/q/1"))
    said(a, get("/persistent/reply~1"))
    assert said(a, post("/response/reply~1/q/1", b"its request is gone")) == b"[]"


@pytest.mark.parametrize("name", ["a/b", "50%", "a?b", "a#b", "a b", "a\n", "é"])
def test_a_reply_queue_that_does_not_fit_a_path_has_an_alias(name: str) -> None:
    """The original services paste the reply-to into the path as it is."""
    hub = Hub()
    a = hub.log_in("a")
    queue = hub.broker.queues.named(name)
    said(a, get("/persistent/work"))
    hub.broker.post(Message("$queue/work", b"?", reply_to=f"$queue/{name}", correlation=b"c"))
    ((_, number, _, (_, where)),) = messages(said(a, transfer("work")))
    assert where == "reply~0"
    said(a, post(f"/response/{where}/work/{number}", b"!"))
    answer = hub.broker.log.read(queue.messages[0])
    assert answer is not None and (answer.payload, answer.correlation) == (b"!", b"c")


def test_plain_names_of_reply_queues_stay_as_they_are() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/work"))
    for name in ("message-cli:7", "reply~9", "a.b_c-d@$!*(x)"):
        said(a, post(f"/request/work/{name}", b"?"))
    kinds = [one[3][1] for one in messages(said(a, transfer("work")))]
    assert kinds == ["a.b_c-d@$!*(x)", "reply~9", "message-cli:7"]


def test_a_caller_elsewhere_gets_a_queued_reply() -> None:
    """Another protocol's consumer answers into a message-switch reply queue."""
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/transient/a"))
    said(a, get("/persistent/q"))
    said(a, post("/request/q/a", b"?"))
    hub.broker.post(Message("$queue/a", b"!", properties={"answers": ["q", 0]}))
    assert messages(said(a, transfer("a"))) == [("a", 0, "!", ["Response", ["q", 0]])]
    hub.broker.post(Message("$queue/a", b"odd", properties={"answers": "odd"}))
    assert messages(said(a, transfer("a", cursor="0"))) == [("a", 1, "odd", ["Request", ""])]


# The port


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        (get("/login/a"), True),
        (get("/trace"), True),
        (get("/trace/0/5"), True),
        (get("/trace/x/5"), True),
        (get("/"), True),
        (b"GET / HTTP/1.1\r\nAccept: */*\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nAccept: text/html, */*\r\n\r\n", False),
        (post("/publish/a/b"), True),
        (post("/bind/q"), True),
        (post("/unbind/q"), True),
        (get("/publish/a"), False),
        (get("/list/"), False),
        (post("/transfer"), False),
        (get("/metrics"), False),
        (b"GET /login/a HTTP/1.1\r\nSec-WebSocket-Key: x\r\n\r\n", False),
    ],
)
def test_which_requests_begin_a_conversation(head: bytes, taken: bool) -> None:
    request = parse_head(head)
    assert request is not None
    assert Hub().switch.takes(request) is taken


def test_pages_of_other_sites_are_refused_on_every_request() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    a.say(b"GET /destroy/q HTTP/1.1\r\nHost: h\r\nSec-Fetch-Site: cross-site\r\n\r\n")
    assert a.hear().startswith(b"HTTP/1.1 403")
    a.say(b"GET /destroy/q HTTP/1.1\r\nHost: h\r\nOrigin: http://evil\r\n\r\n")
    assert a.hear().startswith(b"HTTP/1.1 403")
    assert "q" in hub.broker.state.queues
    a.say(b"GET /destroy/q HTTP/1.1\r\nHost: h\r\nUser-Agent: Mozilla/5.0\r\n\r\n")
    assert a.hear().startswith(b"HTTP/1.1 403")  # a picture in a page, without TLS
    assert "q" in hub.broker.state.queues
    a.say(b"GET /destroy/q HTTP/1.1\r\nHost: h\r\nOrigin: http://h\r\n\r\n")
    assert a.hear().startswith(b"HTTP/1.1 200") and not hub.broker.state.queues


def test_headers_that_may_look_may_not_change_something_therefore() -> None:
    hub = Hub()
    a = hub.log_in("a")
    said(a, get("/persistent/q"))
    more = b" HTTP/1.1\r\nHost: h\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
    for path, status in ((b"/", b"200"), (b"/", b"200"), (b"/destroy/q", b"403")):
        a.say(b"GET " + path + more)
        assert a.hear().startswith(b"HTTP/1.1 " + status)


def test_credentials_come_as_basic_authentication() -> None:
    hub = Hub()
    asked = []

    class Strict(Gate):
        def authenticate(self, credentials: Credentials, done: Any) -> None:
            asked.append((credentials, done))

    hub.gate = Strict(hub.broker.open)
    a = hub.first(b"GET /login/tok HTTP/1.1\r\nAuthorization: Basic dXNlcjpwOnc=\r\n\r\n")
    a.say(get("/list/"))
    ((credentials, done),) = asked
    assert (credentials.client, credentials.user, credentials.secret) == ("tok", "user", b"p:w")
    assert a.hear() == b""  # until the gate has decided
    done(Rights(), "")
    assert a.hear() == ok() + ok(b"[]")
    b = hub.first(post("/publish/t"))
    asked[1][1](None, "who are you?")
    refusal = b.hear()
    assert refusal.startswith(b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic ")
    assert refusal.endswith(b"\r\n\r\nwho are you?")
    c = hub.first(get("/trace/0/0"))
    c.hang_up()
    asked[2][1](Rights(), "")
    assert c.hear() == b""


def test_the_trace_waits_for_events() -> None:
    hub = Hub()
    a, watcher = hub.log_in("a"), hub.first(get("/trace/-1/5"))
    assert watcher.hear() == b""
    said(a, get("/persistent/q"))
    said(a, post("/request/q/a", b"x" * 1000))
    events = json.loads(watcher.hear().partition(b"\r\n\r\n")[2])["events"]
    ((number, event),) = events
    assert number == 0 and event["input"] == "a" and event["queue"] == "q"
    assert event["message"] == [
        "Message",
        ["q", 0],
        {"payload": "x" * 256, "kind": ["Request", "a"]},
    ]
    for first, count in ((-1, 1), (0, 1)):  # FROM is among them
        assert len(json.loads(said(watcher, get(f"/trace/{first}/5")))["events"]) == count
    watcher.say(get("/trace/1/5"))
    assert watcher.connection.wake(LATER) == float("inf")
    assert watcher.hear() == ok(b'{"events":[]}')


def test_the_kernel_is_hurried_only_while_a_request_is_half_there() -> None:
    """Then its rest may wait for the acknowledgement; behind a whole one comes the answer."""
    hub = Hub()
    far = hub.log_in("me")
    said(far, get("/persistent/q"))
    hub.journal.slow = True
    request = post("/request/q/me", b"body")
    far.say(request[:-4])
    assert far.link.prompt
    far.say(request[-4:])
    assert far.hear() == b"" and not far.link.prompt, "its answer waits for the disk"
    hub.journal.sync()
    hub.tick()
    assert far.hear() == ok(b'[["q",0]]')
