"""A service has its request before that is durable; an id that a crash took back is nobody's."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hubbub import schema
from hubbub.core.limits import IDS_AHEAD
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.state import State
from hubbub.schema import Row
from tests.core.recording import folded, snapshot
from tests.protocols.switch.journaled import Hub, get, ok, post, said, transfer


def crashed(hub: Hub) -> Hub:
    """The hub after its process or its machine ended: what was not durable is gone."""
    return Hub(hub.rows[: hub.journal.durable])


def stopped(hub: Hub) -> Hub:
    """The hub after it ended in order."""
    hub.broker.queues.close()
    return Hub(hub.rows)


class Call:
    """A caller, a service that waits, and a hub which has handed out a request before."""

    def __init__(self, hub: Hub | None = None) -> None:
        fresh = hub is None or not hub.broker.queues.ahead
        self.hub = hub = hub or Hub()
        self.caller, self.answers = hub.log_in("caller"), hub.log_in("caller")
        self.service, self.hands = hub.log_in("service"), hub.log_in("service")
        said(self.caller, get("/transient/caller"))
        said(self.caller, get("/persistent/q"))
        hub.journal.slow = True
        self.caller.say(post("/request/q/caller", b"first"))
        self.service.say(transfer("q"))
        early = self.service.hear()
        assert (early == b"") == fresh, "it may be only when the journal says so"
        hub.journal.sync()
        (first,) = ids(early or self.service.hear())
        assert self.caller.hear() == ok(b'[["q",%d]]' % first)
        self.hands.say(get(f"/ack/q/{first}"))
        hub.journal.sync()
        assert self.hands.hear() == ok()
        self.last = first
        self.wait()

    def wait(self) -> None:
        self.service.say(transfer("q", cursor=str(self.last)))
        assert self.service.hear() == b""


def ids(answer: bytes) -> list[int]:
    """Of the messages of a transfer, which must have come."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return [number for (_, number), _ in json.loads(body)["messages"]]


def test_a_service_has_its_request_before_it_is_durable_and_a_caller_nothing() -> None:
    call = Call()
    call.answers.say(transfer("caller"))
    call.caller.say(post("/request/q/caller", b"x"))
    heard = b'{"messages":[[["q",1],{"payload":"x","kind":["Request","caller"]}]],"next":"1"}'
    assert call.service.hear() == ok(heard)
    assert call.caller.hear() == b""
    call.hands.say(post("/response/caller/q/1", b"y"))
    assert (call.hands.hear(), call.caller.hear(), call.answers.hear()) == (b"", b"", b"")
    call.hub.journal.sync()
    assert call.caller.hear() == ok(b'[["q",1]]')
    assert call.hands.hear() == ok(b'[["caller",0]]')
    heard = b'{"messages":[[["caller",0],{"payload":"y","kind":["Response",["q",1]]}]],"next":"0"}'
    assert call.answers.hear() == ok(heard)


def test_its_rows_stand_in_the_order_in_which_a_crash_may_cut_them() -> None:
    call = Call()
    call.caller.say(post("/request/q/caller", b"x"))
    call.hands.say(post("/response/caller/q/1", b"y") + get("/ack/q/1"))
    request, answer, done = [
        row for row in call.hub.rows if row.kind in (schema.SEND, schema.ACK)
    ][-3:]
    assert (request.kind, request.number) == (schema.SEND, 1)
    assert (answer.kind, answer.ref) == (schema.SEND, request.seq)
    assert (done.kind, done.ref, done.number) == (schema.ACK, request.seq, 1)
    for durable in range(request.seq - 1, done.seq + 1):
        queues = folded(call.hub.rows[:durable]).queues
        assert (1 in queues["q"].messages) == (request.seq <= durable < done.seq)


def asks(payload: bytes, protocol: str = "switch") -> Message:
    return Message("$queue/q", payload, qos=1, protocol=protocol, reply_to="$queue/caller")


def to(queue: str) -> Message:
    return Message(f"$queue/{queue}", b"x", qos=1)


@pytest.mark.parametrize(
    "message",
    [
        Message("$queue/q", b"nobody waits for an answer", qos=1),
        Message("$queue/q", b"the asker sees its answer at once", qos=1, reply_to="$client/5"),
        asks(b"who reads the queue has its answer at once, too", "mqtt"),
        Message("$queue/q", b"once and only once", qos=2, protocol="switch",
                reply_to="$queue/caller"),
        Message("$queue/q", b"an answer", qos=1, protocol="switch", reply_to="$queue/caller",
                properties={"answers": ["other", 3]}),
    ],
)  # fmt: skip
def test_what_is_no_request_of_a_queue_waits(message: Message) -> None:
    call = Call()
    call.hub.broker.post(message)
    assert call.service.hear() == b""
    call.hub.journal.sync()
    assert ids(call.service.hear()) == [1]


def test_who_is_told_the_number_of_a_row_waits() -> None:
    """That is no id that can be passed over: rows are numbered without gaps."""
    hub = Hub()
    two, readme = hub.log_in("two"), hub.log_in("readme")
    said(two, get("/persistent/other"))
    said(readme, get("/subscribe/q"))
    call = Call(hub)
    two.say(transfer("q", "other"))
    readme.say(get("/transfer/-1/30.0"))
    call.caller.say(post("/request/q/caller", b"x"))
    assert ids(call.service.hear()) == [1]
    assert two.hear() == readme.hear() == b""
    call.hub.journal.sync()
    assert b'["q",1]' in two.hear() and b'"payload":"x"' in readme.hear()


def test_a_queue_that_a_crash_may_take_back_has_no_ids_to_tell() -> None:
    call = Call()
    call.hub.broker.queues.named("new")
    call.hands.say(transfer("new"))
    call.caller.say(post("/request/new/caller", b"x"))
    assert call.hands.hear() == b""
    call.hub.journal.sync()
    assert ids(call.hands.hear()) == [0]


@pytest.mark.pure
def test_so_many_rows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.core.queues.IDS_AHEAD", 3)
    call = Call()
    call.hub.journal.slow, told = False, 0
    callers = [call.hub.log_in("caller") for _ in range(5)]
    call.hub.journal.slow = True
    for number, caller in enumerate(callers):
        caller.say(post("/request/q/caller", b"%d" % number))
        if heard := call.service.hear():
            told += 1
            call.last = json.loads(heard.partition(b"\r\n\r\n")[2])["messages"][0][0][1]
            call.service.say(transfer("q", cursor=str(call.last)))
    assert 0 < told < 3, "the rows that say who read it count too"


def test_what_a_crash_took_back_hits_nobody() -> None:
    call = Call()
    call.caller.say(post("/request/q/caller", b"lost"))
    assert ids(call.service.hear()) == [1]
    assert call.caller.hear() == b""
    after = Call(crashed(call.hub))
    assert after.last == 1 + IDS_AHEAD
    after.caller.say(post("/request/q/caller", b"another's"))
    assert ids(after.service.hear()) == [2 + IDS_AHEAD]
    after.hub.journal.sync()
    after.hub.journal.slow = False
    assert said(after.hands, get("/ack/q/1?tell=1")) == b"0"
    said(after.hands, post("/response/caller/q/1", b"late"))
    assert list(after.hub.broker.state.queues["q"].messages) == [2 + IDS_AHEAD]


def test_a_service_that_goes_on_behind_an_id_that_was_lost_misses_nothing() -> None:
    call = Call()
    call.caller.say(post("/request/q/caller", b"lost"))
    (lost,) = ids(call.service.hear())
    hub = crashed(call.hub)
    caller, service = hub.log_in("caller"), hub.log_in("service")
    service.say(transfer("q", cursor=str(lost)))
    caller.say(post("/request/q/caller", b"again"))
    (found,) = ids(service.hear())
    assert found > lost


def test_after_an_end_in_order_ids_go_on() -> None:
    hub = stopped(Call().hub)
    assert hub.broker.state.ahead == 0
    assert said(hub.log_in("a"), post("/request/q/a")) == b'[["q",1]]'
    hub = stopped(hub)
    assert said(hub.log_in("a"), post("/request/q/a")) == b'[["q",2]]'


def test_a_hub_that_told_nothing_early_says_nothing() -> None:
    hub = Hub()
    said(hub.log_in("a"), get("/persistent/q"))
    said(hub.log_in("a"), post("/request/q/a"))
    hub = stopped(hub)
    assert schema.AHEAD not in hub.kinds()
    assert said(hub.log_in("a"), post("/request/q/a")) == b'[["q",1]]'


def test_a_start_that_failed_has_not_ended_anything() -> None:
    """It knows of the crash before it, and has passed over nothing yet."""
    call = Call()
    rows = call.hub.rows[: call.hub.journal.durable]
    hub = Hub()
    for row in rows:
        hub.broker.state.apply(row)
    hub.broker.queues.close()
    assert schema.AHEAD not in hub.kinds() and hub.broker.state.ahead == IDS_AHEAD


def test_a_snapshot_knows_it() -> None:
    call = Call()
    rows = call.hub.rows[: call.hub.journal.durable]
    state = folded(snapshot(folded(rows), rows))
    assert (state.ahead, state.queues["q"].next) == (IDS_AHEAD, 1)
    state.apply(Row(99, 0, schema.AHEAD, number=10))
    assert (state.ahead, state.queues["q"].next) == (10, 1 + IDS_AHEAD)


def test_the_journal_says_how_many_to_pass_over() -> None:
    """So that a hub with another bound passes over as many as the one before may have told."""
    state = State()
    state.apply(Row(1, 0, schema.AHEAD, number=7))
    state.queues["q"] = Queue("q", 5, "")
    state.apply(Row(2, 0, schema.AHEAD, number=100))
    assert state.queues["q"].next == 12
    state.apply(Row(3, 0, schema.AHEAD, number=0))
    state.apply(Row(4, 0, schema.AHEAD, number=100))
    assert state.queues["q"].next == 12


# Acknowledgements


class Answered(Call):
    """A call of which the request and its answer are durable, and neither is acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.answers.say(transfer("caller"))
        self.caller.say(post("/request/q/caller", b"x"))
        assert ids(self.service.hear()) == [1]
        self.hands.say(post("/response/caller/q/1", b"y"))
        self.hub.journal.sync()
        assert self.hands.hear() == ok(b'[["caller",0]]')
        assert ids(self.answers.hear()) == [0]
        assert self.caller.hear() == ok(b'[["q",1]]')


def test_what_was_answered_is_acknowledged_at_once_and_never_comes_again() -> None:
    call = Answered()
    call.hands.say(get("/ack/q/1"))
    assert call.hands.hear() == ok()
    assert call.hub.journal.durable < call.hub.journal.position
    hub = crashed(call.hub)
    assert not hub.broker.state.queues["q"].messages
    assert not folded(hub.rows).queues["q"].messages, "and so it is at every start after this one"


def test_what_a_service_answered_is_over_after_a_crash_as_it_would_be_by_its_acknowledgement() -> (
    None
):
    hub = crashed(Answered().hub)
    assert not hub.broker.state.queues["q"].messages
    assert list(hub.broker.state.queues["caller"].messages) == [0], "its answer is not"


def test_after_an_end_in_order_it_is_there_as_before() -> None:
    assert list(stopped(Answered().hub).broker.state.queues["q"].messages) == [1]


@pytest.mark.pure
def test_what_only_names_a_request_does_not_end_it() -> None:
    """A message to another queue, and the answer of one who may not serve there."""
    call = Call()
    call.caller.say(post("/request/q/caller", b"x"))
    assert ids(call.service.hear()) == [1]
    call.hub.journal.sync()
    call.hands.say(get("/persistent/other"))
    call.hub.journal.sync()
    assert call.hands.hear() == ok(b"other")
    call.hands.say(post("/response/other/q/1", b"how far I am"))
    call.hub.journal.sync()
    assert call.hands.hear() == ok(b'[["other",0]]')
    stranger = call.answers
    may = call.hub.broker.may
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            call.hub.broker, "may",
            lambda session, verb, name: name != "$queue/q" and may(session, verb, name),
        )  # fmt: skip
        stranger.say(post("/response/caller/q/1", b"y"))
        call.hub.journal.sync()
    assert stranger.hear() == ok(b'[["caller",0]]')
    assert not call.hub.broker.state.queues["q"].answers
    hub = crashed(call.hub)
    assert list(hub.broker.state.queues["q"].messages) == [1]
    assert list(hub.broker.state.queues["caller"].messages) == [0]


def test_in_the_queue_of_the_caller_it_need_not_wait_either() -> None:
    call = Answered()
    call.caller.say(get("/ack/caller/0"))
    assert call.caller.hear() == ok()
    assert call.hub.journal.durable < call.hub.journal.position


def test_any_other_acknowledgement_waits() -> None:
    call = Call()
    call.caller.say(post("/request/q/caller", b"not answered"))
    call.hub.broker.post(Message("$queue/q", b"nobody wants one", qos=1))
    call.hub.journal.sync()
    assert call.caller.hear() == ok(b'[["q",1]]')
    for number in (1, 2):
        call.hands.say(get(f"/ack/q/{number}"))
        assert call.hands.hear() == b""
        call.hub.journal.sync()
        assert call.hands.hear() == ok()
    call.caller.say(post("/request/q/caller", b"answered, but not yet for good"))
    call.hands.say(post("/response/caller/q/3", b"y"))
    other = call.service
    other.say(get("/ack/q/3"))
    assert ids(other.hear()) == [1], "its transfer was answered before"
    assert other.hear() == b""
    call.hub.journal.sync()
    assert other.hear() == ok()


def test_a_snapshot_knows_what_was_answered() -> None:
    call = Answered()
    rows = call.hub.rows
    state = folded(snapshot(folded(rows), rows))
    assert set(state.queues["q"].answers) == {1}
    call.hands.say(get("/ack/q/1"))
    assert not call.hub.broker.state.queues["q"].answers


class Ids(RuleBasedStateMachine):
    """Requests, looks, acknowledgements and crashes in any order: no id is ever told of two."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = Hub()
        self.told: dict[tuple[str, int], str] = {}
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.log_in()
        self.go_ahead()

    @rule()
    def go_ahead(self) -> None:
        """The journal says that ids may be told early, and no plain message is in the way."""
        for queue in "ab":
            self.caller.say(get(f"/destroy/{queue}"))
            self.make(queue)
            self.ask(queue, 1, False, True)
            self.sync()
            self.look(queue, -1)

    def log_in(self) -> None:
        self.caller, self.looker = self.hub.log_in("caller"), self.hub.log_in("looker")
        self.hub.journal.slow = True

    @rule(queue=st.sampled_from("ab"))
    def make(self, queue: str) -> None:
        self.caller.say(get(f"/persistent/{queue}"))

    @rule(queue=st.sampled_from("ab"))
    def destroy(self, queue: str) -> None:
        self.caller.say(get(f"/destroy/{queue}"))

    @rule(
        queue=st.sampled_from("ab"), times=st.integers(1, 5),
        plain=st.sampled_from([False, False, False, True]), seen=st.booleans(),
    )  # fmt: skip
    def ask(self, queue: str, times: int, plain: bool, seen: bool) -> None:
        for _ in range(times):
            self.count += 1
            reply_to = "" if plain else "$queue/caller"
            message = Message(f"$queue/{queue}", b"%d" % self.count, qos=1, reply_to=reply_to)
            if queue in self.hub.broker.state.queues:
                self.hub.broker.post(message)
        if seen:
            self.look(queue, -1)

    @rule(queue=st.sampled_from("ab"), after=st.sampled_from([-1, 3]))
    def look(self, queue: str, after: int) -> None:
        self.looker.say(transfer(queue, cursor=str(after), timeout=0.0))
        for (name, number), payload in _messages(self.looker.hear()):
            assert self.told.setdefault((name, number), payload) == payload

    @rule(queue=st.sampled_from("ab"), number=st.integers(0, 6))
    def acknowledge(self, queue: str, number: int) -> None:
        self.caller.say(get(f"/ack/{queue}/{number}"))

    @rule()
    def sync(self) -> None:
        self.hub.journal.sync()
        self.hub.tick()

    @rule(part=st.floats(0, 1))
    def crash(self, part: float) -> None:
        """Of what was not durable a crash leaves the beginning."""
        log = self.hub.journal
        left = log.durable + int((log.position - log.durable) * part)
        self.hub = Hub(self.hub.rows[:left])
        self.log_in()
        for queue in "ab":
            self.ask(queue, 2, False, True)
            self.sync()
            self.look(queue, -1)

    @rule()
    def stop(self) -> None:
        self.hub = stopped(self.hub)
        self.log_in()

    @rule()
    def fold(self) -> None:
        """A snapshot in the place of all rows so far; what follows goes on behind it."""
        rows = self.hub.rows
        assert folded(snapshot(folded(rows), rows)).ahead == folded(rows).ahead

    @invariant()
    def the_fold_knows_how_far_ids_go(self) -> None:
        state = folded(self.hub.rows)
        live = self.hub.broker.state
        assert {name: one.next for name, one in state.queues.items()} == {
            name: one.next for name, one in live.queues.items()
        }


def _messages(answers: bytes) -> list[tuple[tuple[str, int], str]]:
    """Of several answers, if some were held."""
    return [
        ((name, number), message["payload"])
        for body in re.findall(rb'{"messages":.*?"next":"-?\d+"}', answers)
        for (name, number), message in json.loads(body)["messages"]
    ]


TestIds = Ids.TestCase
TestIds.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
