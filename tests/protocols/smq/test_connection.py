"""The SMQ conversation, fact by fact; each test is named after what clients rely on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from hubbub.core import rights
from hubbub.core.gate import Credentials, Gate
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.quotas import TOPICS
from hubbub.core.rights import Rights
from hubbub.core.session import Session
from hubbub.protocols.smq import codec
from hubbub.schema import Row
from hubbub.wire.websocket import close_frame
from tests.protocols.smq.device import HEAD, Device, Heard, Hub
from tests.rights import ruled

PING, PONG = codec.message(codec.PING), ("Pong", b"")


@pytest.fixture
def hub() -> Hub:
    return Hub()


def publish(tid: int, sender: int, subtid: int, payload: bytes) -> Heard:
    return ("Publish", tid, sender, subtid, payload)


# Init


def test_init_says_version_a_seed_and_the_clients_address(hub: Hub) -> None:
    (init,) = hub.device().hear()
    assert init[0] == "Init" and init[1] == 1 and init[3] == b"127.0.0.1"


@pytest.mark.parametrize(
    ("address", "said"),
    [("::ffff:10.0.0.7", b"10.0.0.7"), ("::1", b"::1"), ("", b"0.0.0.0")],
)
def test_the_address_in_init_is_never_too_short_for_c_clients(
    hub: Hub, address: str, said: bytes
) -> None:
    device = hub.device()
    device.hear()
    device.far.connection.opening.address = address
    device.far.connection.start()
    assert device.hear()[0][3] == said


def test_the_http_response_and_init_are_two_writes(hub: Hub) -> None:
    """Java reads Init only if it is in a TLS record of its own."""
    head = HEAD.replace(b"\r\n\r\n", b"\r\nSendSmqHttpResponse: true\r\n\r\n")
    response, init = hub.device(head=head).far.pieces()
    assert response.startswith(b"HTTP/1.1 200 ") and b"\r\nSmqBroker: true\r\n" in response
    assert init[2] == codec.INIT


def test_the_body_of_a_post_is_skipped(hub: Hub) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nSimpleMQ: 1\r\nContent-Length: 7\r\n\r\n"
    device = hub.device(head=head)
    device.hear()
    device.far.say(b"us")
    device.far.say(b"er=me" + codec.framed(codec.build_connect(b"client-a")))
    assert device.hear()[0][:2] == ("Connack", 0)


# Connect


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\x02\x01\x05abcde\x00", b"a uid has at least 6 bytes, this one 5"),
        (b"\x02\x03\x06abcdef\x00", b"Connect has version 3, expected 1 or 2"),
        (b"\x02", b"Connect has version 0, expected 1 or 2"),
        (b"\x02\x01\x20abcdef", b"the uid of Connect is cut off"),
        (PING, b"expected Connect, got type 12"),
    ],
)
def test_a_wrong_connect_gets_connack_1_and_the_connection_closes(
    hub: Hub, websocket: bool, message: bytes, text: bytes
) -> None:
    device = hub.device(websocket=websocket)
    device.hear()
    device.raw(message)
    assert device.hear() == [("Connack", 1, 0, text)]
    assert device.closed


def test_without_connect_within_4_seconds_connack_2(hub: Hub) -> None:
    device = hub.device()
    device.hear()
    connection = device.far.connection
    due = connection.wake(hub.clock.now())
    assert 3.0 < due - hub.clock.now() <= 4.0
    connection.wake(due)
    assert device.hear() == [("Connack", 2, 0, b"no Connect within 4 s")]
    assert device.closed


def test_a_connected_client_is_not_waited_for(hub: Hub) -> None:
    device = hub.device(b"client-a")
    assert device.far.connection.wake(hub.clock.now() + 3600) == float("inf")


def test_a_binary_uid_and_binary_credentials_are_taken(hub: Hub) -> None:
    device = hub.device()
    device.hear()
    device.raw(codec.build_connect(bytes.fromhex("02fc00000001"), bytes(range(236, 256))))
    device.expect("Connack")


def test_the_same_uid_again_kicks_the_older_and_keeps_the_etid(hub: Hub) -> None:
    observer, old = hub.device(b"observer"), hub.device(b"client-a")
    alpha = old.subscribe(b"alpha")
    observer.observe(old.etid)
    observer.observe(alpha)
    new = hub.device(b"client-a")
    assert old.hear() == [("Disconnect", b"reconnect")]
    assert old.closed
    assert new.etid == old.etid
    assert observer.hear() == [("Change", alpha, 0, b""), ("Change", old.etid, 0, b"")]
    observer.publish(new.etid, b"hi")
    assert new.hear() == [publish(new.etid, observer.etid, 0, b"hi")]


def test_after_a_clean_close_the_same_uid_gets_another_etid(hub: Hub) -> None:
    first = hub.device(b"client-a")
    first.say(codec.DISCONNECT)
    assert first.closed and first.hear() == []
    assert hub.device(b"client-a").etid != first.etid


class Slow(Gate):
    """Decides when the test says so."""

    def __init__(self) -> None:
        super().__init__(Rights())
        self.shown: Credentials | None = None
        self.done: Callable[[Rights | None, str], None] | None = None

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        self.shown, self.done = credentials, done


@pytest.mark.parametrize("websocket", [False, True])
def test_bytes_are_kept_until_the_gate_has_decided(hub: Hub, websocket: bool) -> None:
    gate = hub.gate = Slow()
    device = hub.device(websocket=websocket)
    device.hear()
    device.raw(codec.build_connect(b"client-a", b"ann:s3:cret"))
    device.raw(PING)
    device.raw(codec.message(codec.CREATE, rest=b"alpha"))
    assert device.hear() == []
    assert gate.shown is not None and gate.done is not None
    assert (gate.shown.client, gate.shown.user, gate.shown.secret) == (
        "client-a", "ann", b"s3:cret",
    )  # fmt: skip
    gate.done(Rights(), "")
    assert [heard[0] for heard in device.hear()] == ["Connack", "Pong", "Createack"]


def test_refused_credentials_get_connack_3_with_the_reason(hub: Hub) -> None:
    gate = hub.gate = Slow()
    device = hub.device()
    device.hear()
    device.raw(codec.build_connect(b"client-a", b"token"))
    assert gate.shown is not None and gate.done is not None
    assert (gate.shown.user, gate.shown.secret) == ("", b"token")
    gate.done(None, "bad credentials, sorry")
    assert device.hear() == [("Connack", 3, 0, b"bad credentials, sorry")]
    assert device.closed


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (rights.BAD_CLIENT, 1),
        (rights.TOO_BUSY, 2),
        (rights.BAD_CREDENTIALS, 3),
        (rights.NO_CREDENTIALS, 3),
        (rights.CERTIFICATE_REQUIRED, 4),
        (rights.CERTIFICATE_REFUSED, 5),
        (rights.DENIED, 6),
    ],
)
@pytest.mark.parametrize("words", ["", "not today"])
def test_each_reason_of_a_gate_has_its_code(hub: Hub, reason: str, code: int, words: str) -> None:
    gate = hub.gate = Slow()
    device = hub.device()
    device.hear()
    device.raw(codec.build_connect(b"client-a"))
    assert gate.done is not None
    gate.done(None, rights.worded(reason, words))
    assert device.hear() == [("Connack", code, 0, (words or reason).encode())]
    assert device.closed and hub.broker.clients == {}


def test_a_client_that_left_while_the_gate_decided_is_not_let_in(hub: Hub) -> None:
    gate = hub.gate = Slow()
    device = hub.device()
    device.raw(codec.build_connect(b"client-a"))
    device.hang_up()
    assert gate.done is not None
    gate.done(Rights(), "")
    assert hub.broker.clients == {}


def test_not_everything_is_kept_while_the_gate_decides(hub: Hub) -> None:
    hub.gate = Slow()
    device = hub.device()
    device.raw(codec.build_connect(b"client-a"))
    for _ in range(5):
        device.far.say(bytes(60_000))
    assert device.closed and device.reason == "more than 262144 bytes before the login is answered"


# Names and their numbers


def test_topic_and_subtopic_ids_live_as_long_as_the_hub(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    assert b.create(b"alpha") == alpha and a.create(b"alpha") == alpha
    sub = a.create_sub(b"sub1")
    a.hang_up()
    assert b.create_sub(b"sub1") == sub and b.subscribe(b"alpha") == alpha


@pytest.mark.parametrize("name", [b"", b"self", b"#", b"x/+", b"\xff\x00%41"])
def test_any_name_is_a_literal_topic(hub: Hub, name: bytes) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    a.say(codec.SUBSCRIBE, rest=name)
    (suback,) = a.hear()
    assert suback[3] == name
    b.publish(b.create(b"x/1"), b"no")
    b.publish(b.create(name), b"yes")
    assert [heard[-1] for heard in a.hear()] == [b"yes"]


def test_a_second_subscribe_is_acknowledged_again_without_a_change(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    assert b.observe(alpha) == [("Change", alpha, 1, b"")]
    assert a.subscribe(b"alpha") == alpha
    assert b.hear() == []


def test_create_under_sys_is_denied_and_subscribe_allowed(hub: Hub) -> None:
    a = hub.device(b"client-a")
    a.say(codec.CREATE, rest=b"$SYS/uptime")
    assert a.hear() == [("Createack", 1, 0, b"$SYS/uptime")]
    number = a.subscribe(b"$SYS/uptime")
    a.publish(number, b"forged")
    assert a.hear() == [] and hub.dropped("not allowed") == 1


@pytest.mark.parametrize("name", [b"$client/5", b"$queue/", b"$queue/a+", b"$queue/#"])
def test_names_that_cannot_be_a_topic_are_denied(hub: Hub, name: bytes) -> None:
    a = hub.device(b"client-a")
    a.say(codec.SUBSCRIBE, rest=name)
    a.say(codec.CREATE, rest=name)
    assert a.hear() == [("Suback", 1, 0, name), ("Createack", 1, 0, name)]


def test_too_many_names_are_denied(hub: Hub) -> None:
    hub.broker.quotas.most[TOPICS] = 1
    a = hub.device(b"client-a")
    a.subscribe(b"alpha")
    a.say(codec.SUBSCRIBE, rest=b"beta")
    a.say(codec.CREATE, rest=b"beta")
    assert a.hear() == [("Suback", 1, 0, b"beta"), ("Createack", 1, 0, b"beta")]


def test_rights_deny_subscribe_create_and_publish(hub: Hub) -> None:
    hub.gate = Gate(ruled("read #", "deny secret/#"))
    a = hub.device(b"client-a")
    a.say(codec.SUBSCRIBE, rest=b"secret/x")
    a.say(codec.CREATE, rest=b"alpha")
    assert a.hear() == [("Suback", 1, 0, b"secret/x"), ("Createack", 1, 0, b"alpha")]
    a.publish(a.subscribe(b"alpha"), b"no")
    assert a.hear() == [] and hub.dropped("not allowed") == 1


def test_a_name_too_long_for_its_ack_closes_the_connection(hub: Hub) -> None:
    a = hub.device(b"client-a", websocket=True)
    a.say(codec.CREATE, rest=b"x" * 65_528)
    assert a.closed and a.reason == "a name of 65528 bytes, expected at most 65527"


# Publish


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize("payload", [b"hello", b"", bytes(range(256))])
def test_a_publish_reaches_subscribers_byte_for_byte(
    hub: Hub, websocket: bool, payload: bytes
) -> None:
    a, b = hub.device(b"client-a", websocket), hub.device(b"client-b", websocket)
    other = hub.device(b"client-c", not websocket)
    alpha = a.subscribe(b"alpha")
    other.subscribe(b"alpha")
    b.publish(alpha, payload, 0xDEADBEEF)
    sent = codec.message(codec.PUBLISH, alpha, b.etid, 0xDEADBEEF, rest=payload)
    assert a.bodies() == [sent] and other.bodies() == [sent] and b.bodies() == []


def test_a_subscriber_gets_its_own_messages(hub: Hub) -> None:
    a = hub.device(b"client-a")
    alpha = a.subscribe(b"alpha")
    a.publish(alpha, b"echo")
    assert a.hear() == [publish(alpha, a.etid, 0, b"echo")]


def test_anybody_can_publish_to_an_etid(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    b.publish(a.etid, b"direct", 7)
    b.publish(b.etid, b"me")
    assert a.hear() == [publish(a.etid, b.etid, 7, b"direct")]
    assert b.hear() == [publish(b.etid, b.etid, 0, b"me")]


def test_what_nobody_gets_is_dropped_silently(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    a.hang_up()
    for number in (0, 0xFFFFFFFF, a.etid):
        b.publish(number, b"lost")
    b.publish(1, b"to the hub")
    assert b.hear() == [] and hub.dropped("unknown topic") == 3


def test_the_largest_payload_passes(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    b.publish(alpha, b"R" * codec.PAYLOAD_BYTES)
    assert a.hear() == [publish(alpha, b.etid, 0, b"R" * codec.PAYLOAD_BYTES)]


@pytest.mark.parametrize("websocket", [False, True])
def test_a_wrong_sender_is_told_corrupt_frame_and_closed(hub: Hub, websocket: bool) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b", websocket)
    alpha = a.subscribe(b"alpha")
    b.publish(alpha, b"forged", sender=a.etid)
    assert b.hear() == [("Disconnect", b"corrupt frame")]
    assert b.closed and a.hear() == []


def test_publishes_in_a_row_are_one_run(hub: Hub) -> None:
    """Equal length, topic and sender; sub-topics may differ. Nothing else is joined."""
    a, b, ear = hub.device(b"client-a"), hub.device(b"client-b"), hub.listen("alpha")
    alpha, beta = a.subscribe(b"alpha"), a.subscribe(b"beta")
    plan = [(alpha, b"1111", 5), (alpha, b"2222", 6), (alpha, b"333", 5), (beta, b"444", 5)]
    bodies = [
        codec.message(codec.PUBLISH, tid, b.etid, sub, rest=payload) for tid, payload, sub in plan
    ]
    b.far.say(b"".join(map(codec.framed, bodies)))
    assert ear.runs == [2, 1]
    assert a.bodies() == bodies
    assert [message.payload for message in ear.heard] == [b"1111", b"2222", b"333"]
    assert [message.properties for message in ear.heard] == [
        {"smq-subtid": 5}, {"smq-subtid": 6}, {"smq-subtid": 5},
    ]  # fmt: skip


# PubFrag


def fragments(device: Device, *parts: tuple[int, int, bytes]) -> None:
    for tid, subtid, payload in parts:
        device.say(codec.PUBFRAG, tid, device.etid, subtid, rest=payload)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(0, 0, b"Hello"), (0, 0, b" "), (1, 3, b"World")], (3, b"Hello World")),
        ([(1, 0, b"solo")], (0, b"solo")),
        ([(0, 0, b"abc"), (1, 0, b"")], (0, b"abc")),
        ([(0, 9, b"ab"), (1, 5, b"cd")], (5, b"abcd")),
    ],
    ids=["three", "one", "empty last", "sub-topic of the first ignored"],
)
def test_fragments_arrive_as_one_publish(
    hub: Hub, parts: list[tuple[int, int, bytes]], expected: tuple[int, bytes]
) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    fragments(b, *((tid and alpha, subtid, payload) for tid, subtid, payload in parts))
    assert a.hear() == [publish(alpha, b.etid, *expected)]


def test_the_sender_of_the_last_fragment_counts(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    b.say(codec.PUBFRAG, 0, a.etid, 0, rest=b"ab")
    b.say(codec.PUBFRAG, alpha, b.etid, 0, rest=b"cd")
    assert a.hear() == [publish(alpha, b.etid, 0, b"abcd")]
    b.say(codec.PUBFRAG, alpha, a.etid, 0, rest=b"x")
    assert b.hear() == [("Disconnect", b"corrupt frame")] and b.closed


def test_other_messages_may_come_between_fragments(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    fragments(b, (0, 0, b"frag1-"))
    b.publish(alpha, b"plain")
    b.raw(PING)
    fragments(b, (alpha, 0, b"frag2"))
    assert [heard[-1] for heard in a.hear()] == [b"plain", b"frag1-frag2"]
    assert b.hear() == [PONG]


def test_fragments_of_exactly_the_limit_pass_and_one_byte_more_is_dropped(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    half = b"x" * (codec.FRAGMENTED_BYTES // 2)
    rest = b"y" * (codec.FRAGMENTED_BYTES - len(half))
    fragments(b, (0, 0, half), (alpha, 0, rest))
    assert [len(heard[-1]) for heard in a.hear()] == [65_507]  # type: ignore[arg-type]
    fragments(b, (0, 0, half), (alpha, 0, rest + b"z"))
    b.raw(PING)
    assert a.hear() == [] and b.hear() == [PONG]
    assert hub.dropped("too large for fragments") == 1


def test_fragments_beyond_the_largest_payload_close_the_connection(hub: Hub) -> None:
    b = hub.device(b"client-b")
    fragments(b, (0, 0, b"x" * 40_000), (0, 0, b"x" * 25_521))
    assert b.closed and b.hear() == []


def test_fragments_over_a_websocket_close_it(hub: Hub) -> None:
    b = hub.device(b"client-b", websocket=True)
    fragments(b, (b.etid, 0, b"x"))
    assert b.far.hear() == close_frame(1000) and b.closed


# Observe


def test_observing_a_topic_answers_at_once_and_again(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha, empty = a.subscribe(b"alpha"), a.create(b"empty")
    for _ in range(2):
        assert b.observe(alpha) == [("Change", alpha, 1, b"")]
    assert b.observe(empty) == [("Change", empty, 0, b"")]


def test_a_change_follows_each_subscribe_unsubscribe_and_death(hub: Hub) -> None:
    a, b, c = (hub.device(uid) for uid in (b"client-a", b"client-b", b"client-c"))
    alpha = a.subscribe(b"alpha")
    b.observe(alpha)
    c.subscribe(b"alpha")
    assert b.hear() == [("Change", alpha, 2, b"")]
    c.say(codec.UNSUBSCRIBE, alpha)
    c.say(codec.UNSUBSCRIBE, alpha)
    c.say(codec.UNSUBSCRIBE, 0xFFFFFFFF)
    assert b.hear() == [("Change", alpha, 1, b"")] and c.hear() == []
    c.subscribe(b"alpha")
    c.hang_up()
    assert b.hear() == [("Change", alpha, 2, b""), ("Change", alpha, 1, b"")]


def test_the_change_comes_before_the_suback(hub: Hub) -> None:
    a = hub.device(b"client-a")
    alpha = a.create(b"alpha")
    a.observe(alpha)
    a.say(codec.SUBSCRIBE, rest=b"alpha")
    assert a.hear() == [("Change", alpha, 1, b""), ("Suback", 0, alpha, b"alpha")]


def test_an_observed_client_says_0_once_when_it_goes(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    assert b.observe(a.etid) == []
    a.say(codec.DISCONNECT, rest=b"ignored")
    assert b.hear() == [("Change", a.etid, 0, b"")]
    assert b.observe(a.etid) == [("Change", a.etid, 0, b"")]  # gone: like an unknown id


def test_the_topic_changes_come_before_the_clients_own(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    b.observe(a.etid)
    b.observe(alpha)
    a.hang_up()
    assert b.hear() == [("Change", alpha, 0, b""), ("Change", a.etid, 0, b"")]


def test_observing_oneself_or_the_hub_says_nothing(hub: Hub) -> None:
    a = hub.device(b"client-a")
    assert a.observe(a.etid) == [] and a.observe(1) == []
    assert a.observe(0xFFFFFFFF) == [("Change", 0xFFFFFFFF, 0, b"")]


def test_unobserve_by_the_only_observer_leaves_the_subscribers_alone(hub: Hub) -> None:
    """The reference hub forgets the topic's subscribers here."""
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    b.observe(alpha)
    b.say(codec.UNOBSERVE, alpha)
    b.publish(alpha, b"still there")
    assert [heard[-1] for heard in a.hear()] == [b"still there"]
    hub.device(b"client-c").subscribe(b"alpha")
    assert b.hear() == []


@pytest.mark.slow
def test_one_observer_of_ten_thousand_clients_hears_of_each_once_when_they_go(hub: Hub) -> None:
    """In linear time: a fifth of a second here; benchmarks/smq.py measures it over sockets."""
    watcher = hub.device(b"watcher")
    others = [hub.device(b"device-%05d" % number) for number in range(10_000)]
    began = time.process_time()
    for device in others:
        watcher.say(codec.OBSERVE, device.etid)
    assert watcher.hear() == []
    for device in others:
        device.hang_up()
    assert watcher.hear() == [("Change", device.etid, 0, b"") for device in others]
    assert time.process_time() - began < 4


@pytest.mark.parametrize("kind", [codec.OBSERVE, codec.UNOBSERVE])
def test_who_asks_while_very_many_hear_that_a_client_went_does_not_hear_it_again(
    hub: Hub, kind: int
) -> None:
    watcher, other = hub.device(b"watcher"), hub.device(b"client-a")
    address = f"$client/{other.etid}"
    for number in range(1_000):
        hub.broker.observers.observe(hub.listen(f"a/{number}"), address)
    assert watcher.observe(other.etid) == []
    other.far.connection.lost("socketreadfailed")  # and what is left has other turns
    heard = [("Change", other.etid, 0, b"")] if kind == codec.OBSERVE else []
    watcher.say(kind, other.etid)
    assert watcher.hear() == heard


def test_an_observer_that_left_is_forgotten(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    b.observe(a.create(b"alpha"))
    b.hang_up()
    assert hub.broker.observers.names == {}


# The rest


def test_ping_is_answered_and_an_unsolicited_pong_ignored(hub: Hub) -> None:
    a = hub.device(b"client-a")
    a.raw(PING)
    a.say(codec.PONG)
    a.raw(PING)
    assert a.far.hear() == bytes.fromhex("00030d00030d")


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        codec.message(codec.PUBLISH, 1, 2, 3)[:-1],
        codec.message(codec.UNSUBSCRIBE, 1)[:-1],
        codec.message(codec.OBSERVE, 1)[:-1],
        codec.message(codec.UNOBSERVE, 1)[:-1],
        codec.build_connect(b"client-a"),
        codec.message(codec.SUBACK, 0, 1, rest=b"x"),
        b"\x00",
        b"\x0a",
        b"\xc8",
    ],
    ids=lambda message: message.hex(),
)
def test_what_a_client_must_not_send_closes_the_connection(
    hub: Hub, websocket: bool, message: bytes
) -> None:
    a = hub.device(b"client-a", websocket)
    a.raw(message)
    assert a.far.hear() == (close_frame(1000) if websocket else b"")
    assert a.closed and a.reason


@pytest.mark.parametrize("length", [b"\0\0", b"\0\1", b"\0\2"])
def test_a_length_below_3_closes_the_connection(hub: Hub, length: bytes) -> None:
    a = hub.device(b"client-a")
    a.far.say(length + PING)
    assert a.closed and a.far.hear() == b""


def test_an_empty_websocket_message_closes_the_connection(hub: Hub) -> None:
    a = hub.device(b"client-a", websocket=True)
    a.raw(b"")
    assert a.closed and a.far.hear() == close_frame(1000)


def test_a_disconnect_closes_in_order_and_without_an_answer(hub: Hub) -> None:
    a, w = hub.device(b"client-a"), hub.device(b"client-w", websocket=True)
    a.say(codec.DISCONNECT)
    w.say(codec.DISCONNECT)
    assert (a.far.hear(), a.reason) == (b"", "")
    assert (w.far.hear(), w.reason) == (close_frame(1000), "")


def test_nothing_is_read_behind_the_message_that_closed(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    alpha = a.subscribe(b"alpha")
    after = codec.message(codec.PUBLISH, alpha, b.etid, 0, rest=b"after the end")
    b.far.say(codec.framed(codec.message(codec.DISCONNECT)) + codec.framed(after))
    assert a.hear() == []


def test_when_the_hub_stops_no_disconnect_tells_devices_to_stay_away(hub: Hub) -> None:
    a, w = hub.device(b"client-a"), hub.device(b"client-w", websocket=True)
    for device in (a, w):
        device.far.connection.goodbye()
        device.far.link.close("the hub is stopping")
    assert (a.far.hear(), w.far.hear()) == (b"", close_frame(1000))
    assert a.closed and w.closed


def test_an_operator_can_end_a_client_for_good(hub: Hub) -> None:
    a = hub.device(b"client-a")
    hub.broker.clients[a.etid].goodbye()
    assert a.hear() == [("Disconnect", b"")]
    assert a.closed and hub.broker.clients == {}


def test_the_other_clients_of_a_hub_never_notice(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    b.far.say(b"\xff" * 70_000)
    assert b.closed
    a.raw(PING)
    assert a.hear() == [PONG]


# Durable names


class Slack(Log):
    """Rows are made but not durable until the test says so."""

    def append(self, row: Row) -> int:
        self.position += 1
        return self.position


def test_the_ack_of_a_new_name_waits_for_the_disk_and_everything_behind_it(hub: Hub) -> None:
    a, b = hub.device(b"client-a"), hub.device(b"client-b")
    old = a.create(b"old")
    log = hub.broker.log = hub.broker.outgoing.log = Slack(hub.clock)
    assert a.create(b"old") == old  # promised before
    for kind, name in ((codec.CREATE, b"new"), (codec.SUBSCRIBE, b"newer")):
        b.say(kind, rest=name)
    b.say(codec.CREATESUB, rest=b"sub")
    newer = hub.broker.state.topics.numbers["newer"]
    a.publish(newer, b"quick")
    b.raw(PING)
    a.say(codec.CREATE, rest=b"new")  # known by now, but not durable
    assert b.hear() == [] and a.hear() == []
    log.durable = log.position
    assert [heard[0] for heard in b.hear()] == [
        "Createack", "Suback", "Createsuback", "Publish", "Pong",
    ]  # fmt: skip
    assert [heard[0] for heard in a.hear()] == ["Createack"]


def test_sessions_of_smq_are_sessions() -> None:
    """What the broker may ask of anybody, an SMQ session answers."""
    hub = Hub()
    a = hub.device(b"client-a")
    session: Session = hub.broker.clients[a.etid]
    session.settle()
    assert session.ready() and session.protocol == "smq" and session.client == "client-a"
    hub.broker.post(Message(f"$client/{a.etid}", b"hi"))
    assert a.hear() == [publish(a.etid, 1, 0, b"hi")]


def test_createsub_without_a_name_gets_a_number_too(hub: Hub) -> None:
    device = hub.device(b"device-1")
    number = device.create_sub(b"")
    assert number and device.create_sub(b"") == number
    assert device.create(b"") not in (0, number)


def test_a_random_number_is_nobodys(hub: Hub) -> None:
    """Of 2^32 numbers 200 clients have so few that none of 20,000 publishes hits one."""
    devices = [hub.device(b"device-%d" % number) for number in range(200)]
    assert max(device.etid for device in devices) > 1 << 24, "all 32 bits are used"
    stranger = hub.device(b"stranger")
    numbers = random.Random(1)
    for _ in range(20_000):
        stranger.publish(numbers.randrange(2, 1 << 32), b"psst")
    assert not any(device.hear() for device in devices)
    assert hub.dropped("unknown topic") == 20_000


def test_how_many_subscriptions_is_a_setting(hub: Hub) -> None:
    device = hub.device(b"device-1")
    hub.broker.subscriptions = 2
    for name in (b"a", b"b"):
        device.subscribe(name)
    device.say(codec.SUBSCRIBE, rest=b"c")
    assert device.hear() == [("Suback", 1, 0, b"c")]
    hub.broker.subscriptions = 3
    device.subscribe(b"c")
