"""The codec: both sides of the wire agree, on any bytes; numbers are what they should be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.protocols.switch import codec
from hubbub.protocols.switch.codec import Delivery, Wanted
from hubbub.schema import name_from_wire, name_to_wire
from hubbub.wire.http import Requests, known_request, request_of

names = st.binary(max_size=20).map(name_from_wire)
numbers = st.integers(-1, 2**63 - 1)
requests = st.builds(Delivery, names, numbers, st.binary(), names, st.none())
responses = st.builds(Delivery, names, numbers, st.binary(), st.just(""), st.tuples(names, numbers))


def call_of(method: str, target: bytes) -> codec.Call | None:
    return codec.call_of(request_of(method, target, {}))


@given(st.lists(requests | responses, max_size=5), numbers.map(str))
def test_deliveries_travel_unchanged(deliveries: list[Delivery], cursor: str) -> None:
    body = codec.transferred(reversed(deliveries), cursor)
    assert codec.deliveries_of(body) == (deliveries, cursor)


@given(numbers.map(str) | numbers.map("s{}".format), st.floats(-10, 1e5), st.lists(names))
def test_transfers_travel_unchanged(cursor: str, timeout: float, queues: list[str]) -> None:
    wanted = Wanted(cursor, timeout, tuple(dict.fromkeys(queues)))
    got = codec.wanted_of(codec.transfer_body(wanted))
    assert got == Wanted(cursor, min(timeout, codec.WAIT_SECONDS), wanted.queues)


@given(names, names, st.integers())
def test_paths_travel_unchanged(queue: str, origin: str, number: int) -> None:
    target = codec.target("response", queue, origin, str(number))
    call = call_of("POST", target.encode())
    assert call is not None and call.route.operation == "response"
    assert call.arguments == [queue, origin, str(number)]


@given(st.binary())
def test_quoted_bytes_are_json(raw: bytes) -> None:
    text = codec.quoted(raw)
    assert name_to_wire(json.loads(name_from_wire(text))) == raw
    assert not any(byte < 0x20 for byte in text)


@given(st.binary())
def test_garbage_in_a_transfer_is_an_error_and_nothing_worse(body: bytes) -> None:
    try:
        assert isinstance(codec.wanted_of(body), Wanted)
    except codec.INVALID:
        pass


@given(st.sampled_from(["GET", "POST", "PUT", ""]), st.binary())
def test_any_path_is_a_call_or_none(method: str, target: bytes) -> None:
    call = call_of(method, b"/" + target)
    assert call is None or call.route.method == method


def test_every_route_is_reached_by_its_own_path() -> None:
    for route in codec.ROUTES:
        path = route.path.replace("*", "a/b")
        call = call_of(route.method, f"{path}?x=1&y=a%20b".encode())
        assert call is not None and call.route == route
        assert call.query == {"x": "1", "y": "a b"}
        given = [part for part in path.split("/") if part.isupper()]
        assert call.arguments == (["a/b"] if "*" in route.path else given)


def test_paths_that_come_again_are_read_once_and_not_too_many_are_kept() -> None:
    again = call_of("POST", b"/request/q%2Fa/me")
    assert again is not None and again.arguments == ["q/a", "me"]
    assert call_of("POST", b"/request/q%2Fa/me") is again
    assert call_of("GET", b"/request/q%2Fa/me") is None
    asked = call_of("POST", b"/request/q%2Fa/me?x=1")
    assert asked is not None and asked.query == {"x": "1"} and again.query == {}
    for number in range(3_000):
        call = call_of("GET", b"/persistent/%d" % number)
        assert call is not None and call.arguments == [f"{number}"]
        call_of("GET", b"/login/secret%d" % number)
        call_of("GET", b"/ack/q/%d" % number)
        call_of("POST", b"/request/q/" + b"x" * (100 + number))
    kept = [path for paths in codec._KNOWN.values() for path in paths]
    assert len(kept) <= 2_000 and max(map(len, kept)) <= 128
    assert not [path for path in kept if path.startswith((b"/login", b"/ack"))]


PLACES = ["/ack/q", "/ack", "/response/r/q", "/response/r/q%2Fa", "/request/q", "/persistent", "/x"]
IDS = ["", "/", "/0", "/17", "/18", "/007", "/1a", "/%31", "/17?tell=1", "/17/18", "17", "/-1"]


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(IDS)), max_size=6))
def test_what_was_asked_before_changes_nothing(paths: list[tuple[str, str]]) -> None:
    head = b" HTTP/1.1\r\nX: known\r\n\r\n"
    list(Requests(1_000, 1_000).feed(b"GET /" + head))
    for method in ("GET", "POST"):
        for place, number in paths:
            target = f"{place}{number}".encode()
            request = known_request(f"{method} ".encode() + target + head, 1_000)
            assert request is not None, "so it is asked as nearly all are"
            found, plain = codec.call_of(request), codec._call_of(request_of(method, target, {}))
            assert (found is None) == (plain is None)
            if found is not None and plain is not None:
                assert found.route is plain.route
                assert (found.arguments, found.query) == (plain.arguments, plain.query)


def test_of_what_ends_with_an_id_the_rest_is_kept_and_not_too_many() -> None:
    head = b" HTTP/1.1\r\nX: known\r\n\r\n"
    list(Requests(1_000, 1_000).feed(b"GET /" + head))
    for number in range(3_000):
        request = known_request(b"GET /ack/q%d.x/%d" % (number, number) + head, 1_000)
        assert request is not None
        call = codec.call_of(request)
        assert call is not None and call.arguments == [f"q{number}.x", f"{number}"]
    kept = [path for paths in codec._BEFORE_ID.values() for path in paths]
    assert len(kept) <= 2_000 and b"/ack/q2999.x/" in kept


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"timeout":1,"queues":["q"]}', Wanted("-1", 1.0, ("q",))),
        (b'{"queues":["q","q","r"],"more":[{}],"timeout":-2.5,"from":"3","max":4}',
         Wanted("3", -2.5, ("q", "r"), 4)),
        (b'{"from":"3","timeout":30.0,"queues":["\xff"]}', Wanted("3", 30.0, ("\udcff",))),
    ],
)  # fmt: skip
def test_what_a_transfer_asks_for(body: bytes, wanted: Wanted) -> None:
    assert codec.wanted_of(body) == wanted


@pytest.mark.parametrize(
    "body",
    [
        b'{"from":null,"timeout":1.0,"queues":["q"]}', b'{"from":3,"timeout":1.0,"queues":["q"]}',
        b'{"from":"3x","timeout":1.0,"queues":["q"]}', b'{"timeout":1.0,"queues":"q"}',
        b'{"timeout":1.0,"queues":[1]}', b'{"timeout":true,"queues":["q"]}', b'{"queues":["q"]}',
        b'{"timeout":"1","queues":["q"]}', b'{"timeout":1e999,"queues":["q"]}',
        b'{"timeout":NaN,"queues":["q"]}', b'{"timeout":1.0,"queues":["q"],"max":-1}',
        b'{"timeout":1.0,"queues":["q"],"max":1.0}', b'{"timeout":1.0,"queues":["q"],"max":true}',
        b'{"timeout":1.0}', b"[]", b"",
    ],
)  # fmt: skip
def test_what_no_transfer_asks_for(body: bytes) -> None:
    with pytest.raises(ValueError):
        codec.wanted_of(body)


def test_answers_as_they_stand_on_the_wire() -> None:
    """From the original; see traces/."""
    assert codec.sent("a b", 0) == b'[["a b",0]]'
    assert codec.quoted(b'\xff\x00bin\xe9"\\') == b'"\xff\\u0000bin\xe9\\"\\\\"'
    assert codec.quoted(b"a\nb\x7f") == rb'"a\nb\u007f"'
    wanted = Wanted(codec.FIRST, 30.0, ("foo",))
    assert codec.transfer_body(wanted) == b'{"timeout":30.0,"queues":["foo"]}'
    assert codec.sent_id(b"[]") is None
    assert codec.sent_id(b'[["q",3]]') == ("q", 3)


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", " 1", "1_0", "٣", "9" * 19, "-9999999999999999999"]
)
def test_what_is_no_number_of_64_bits(text: str) -> None:
    with pytest.raises(ValueError):
        codec.integer(text)


def test_numbers_of_64_bits() -> None:
    for number in (0, -1, 2**63 - 1, -(2**63)):
        assert codec.integer(str(number)) == number


@pytest.mark.parametrize(
    "cursor",
    ["n", "n,", "n=", "n=s1", "na", "na=", "na=1", "na=sx", "na=s1,", "na=s1,b=2",
     "na=s1234567890123456789", "na=s1," * 1001 + "b=s1"],
)  # fmt: skip
def test_a_cursor_of_several_nodes_is_refused_where_it_says_something_else(cursor: str) -> None:
    body = b'{"from":"%b","timeout":1.0,"queues":["q"]}' % cursor.encode()
    with pytest.raises(codec.Refused) as refused:
        codec.wanted_of(body)
    assert refused.value.status == 400


@given(st.dictionaries(st.text(min_size=1), st.integers(-(10**17), 10**17).map("s{}".format)))
def test_a_cursor_of_several_nodes_says_of_each_what_was_put_in(seqs: dict[str, str]) -> None:
    assert codec.seqs_of(codec.cursor_of(seqs)) == seqs
