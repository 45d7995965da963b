"""Requests out of a stream: any split, pipelined or chunked; garbage is refused and no worse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.wire import http
from hubbub.wire.http import (
    Request,
    Requests,
    authorization,
    parse_head,
    response,
)

HEAD, BODY = 1000, 1000

tokens = st.text("abcXYZ019-", min_size=1, max_size=10)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE"])
targets = st.text("abc/%20?=&:;~", max_size=20).map(lambda path: "/" + path)
bodies = st.binary(max_size=100)
cuts = st.lists(st.integers(1, 60), max_size=20)


@st.composite
def spoken(draw: st.DrawFn) -> tuple[bytes, tuple[str, bytes, bytes]]:
    """A request as bytes, and what should be read: method, target, body."""
    method, target, body = draw(methods), draw(targets).encode(), draw(bodies)
    lines = [method.encode() + b" " + target + b" HTTP/1.1"]
    lines += [f"X-{name}: {draw(tokens)}".encode() for name in draw(st.lists(tokens, max_size=3))]
    if draw(st.booleans()):
        pieces = [body[at : at + 7] for at in range(0, len(body), 7)] + [b""]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        lines.append(b"Transfer-Encoding: chunked")
    else:
        sent = body
        lines.append(b"Content-Length: %d" % len(body))
    if draw(st.booleans()):
        lines += [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"]
    lines[0] = draw(st.sampled_from([b"", b"\r\n"])) + lines[0]
    return b"\r\n".join(lines) + b"\r\n\r\n" + sent, (method, target, body)


def read(requests: Requests, data: bytes, sizes: list[int]) -> list[Request]:
    found = []
    for size in [*sizes, len(data)]:
        found += list(requests.feed(data[:size]))
        data = data[size:]
    return found


@given(st.lists(spoken(), min_size=1, max_size=4), cuts)
def test_any_split_reads_the_same(
    said: list[tuple[bytes, tuple[str, bytes, bytes]]], sizes: list[int]
) -> None:
    data = b"".join(one for one, _ in said)
    found = read(Requests(HEAD, BODY), data, sizes)
    assert [(one.method, one.target, one.body) for one in found] == [want for _, want in said]


@given(st.lists(spoken(), min_size=1, max_size=3), cuts)
def test_headers_that_are_known_mean_the_same(
    said: list[tuple[bytes, tuple[str, bytes, bytes]]], sizes: list[int]
) -> None:
    """The second time they are not parsed; whatever surrounds them is."""
    requests = Requests(HEAD, BODY)
    for data, (method, target, body) in said:
        first, second, *rest = read(requests, data + data + data, [len(data), len(data), *sizes])
        assert len(rest) == 1
        for one in (second, *rest):
            assert (one.method, one.target, one.body) == (method, target, body)
            assert (one.headers, one.version) == (first.headers, first.version)


@pytest.mark.parametrize("before", [b"\r\n", b"\n"])
def test_what_stands_before_a_request_is_no_part_of_known_headers(before: bytes) -> None:
    known = b"GET /a HTTP/1.1\r\nX: 1\r\n\r\n"
    assert len(read(Requests(HEAD, BODY), before + known + known, [])) == 2
    with pytest.raises(ProtocolError):
        read(Requests(HEAD, BODY), b"GET /b HTTP/1.1\r\n" + before + known + b"rubbish", [])


def test_what_looks_like_a_version_inside_a_header_teaches_nothing() -> None:
    """Else the next request would have the headers of one of HTTP/1.0, that header among them."""
    rest = b"\r\nY: only in this test\r\n\r\n"
    lines = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\nX: /b HTTP/1.1"
    read(Requests(HEAD, BODY), lines + rest, [])
    assert http.known_request(b"GET /b HTTP/1.1" + rest, BODY) is None
    [found] = read(Requests(HEAD, BODY), b"GET /b HTTP/1.1" + rest, [])
    assert (found.version, "x" in found.headers) == ("1.1", False)


def test_a_target_that_is_not_plain_is_parsed() -> None:
    rest = b" HTTP/1.1\r\nY: also only here\r\n\r\n"
    read(Requests(HEAD, BODY), b"GET /a" + rest, [])
    assert http.known_request(b"GET /a?b" + rest, BODY) is not None
    for target in (b"/a b", b"/\xc3\xa4", b"/\0", b'/"', b"/" + 9_000 * b"a"):
        assert http.known_request(b"GET " + target + rest, BODY) is None
    assert http.known_request(b"PUT /a" + rest, BODY) is None


@given(st.binary(max_size=200), cuts)
def test_garbage_is_refused_and_nothing_worse(garbage: bytes, sizes: list[int]) -> None:
    good = b"GET /first HTTP/1.1\r\n\r\n"
    seen = []
    try:
        requests = Requests(HEAD, BODY)
        rest = good + garbage
        for size in [*sizes, len(rest)]:
            for request in requests.feed(rest[:size]):
                seen.append(request.target)
            rest = rest[size:]
    except ProtocolError as error:
        assert error.reply.startswith(b"HTTP/1.1 4")
    assert seen[:1] == [b"/first"]  # what was complete before is still read


@given(st.binary(max_size=200))
def test_any_head_is_a_request_none_or_refused(data: bytes) -> None:
    try:
        assert parse_head(data) is None or b"\r\n\r\n" in data
    except ProtocolError as error:
        assert error.reply.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD + b"\r\n", b"431"),
        (b"GET /" + b"x" * 2 * HEAD, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, b"413"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX : y\r\n\r\n", b"400"),
        (b"get / HTTP/1.1\r\n\r\n", b"400"),
    ],
)
@pytest.mark.parametrize("size", [100_000, 100])
def test_what_is_too_much_or_wrong(data: bytes, status: bytes, size: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        list(read(Requests(HEAD, BODY), data, [size] * (len(data) // size)))
    assert caught.value.reply.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in caught.value.reply


def test_a_chunk_extension_without_end() -> None:
    requests = Requests(HEAD, BODY)
    assert not list(requests.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;"))
    with pytest.raises(ProtocolError):
        list(requests.feed(b"x" * 2 * HEAD))


def test_a_long_body_in_small_chunks_is_no_long_head() -> None:
    data = (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 900
        + b"0\r\n\r\n"
    )
    (request,) = read(Requests(HEAD, BODY), data, [])
    assert request.body == b"x" * 900


def test_nothing_is_read_after_the_last_request() -> None:
    data = b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\nrubbish"
    (request,) = list(Requests(HEAD, BODY).feed(data))
    assert not request.keep_alive


def test_very_many_requests_that_ask_for_another_protocol() -> None:
    """They come in one read, and cost no more than others."""
    one = b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert len(list(Requests(HEAD, BODY).feed(one * 5000))) == 5000


def test_connect_is_no_request_here() -> None:
    """Each parser ends it with its head, offers or not."""
    parts = Requests(HEAD, BODY).feed(b"GET /a HTTP/1.1\r\n\r\nCONNECT h:1 HTTP/1.1\r\n\r\nx")
    assert next(parts).path == b"/a"
    with pytest.raises(ProtocolError, match="for proxies") as refused:
        next(parts)
    assert refused.value.reply.startswith(b"HTTP/1.1 400 ")


def test_a_head() -> None:
    head = (
        b"GET http://h/a/b?x=1#f HTTP/1.1\r\nHost: h\r\nX: 1\r\nx: 2\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\nframes"
    )
    request = parse_head(head)
    assert request is not None and request.websocket
    assert (request.path, request.query) == (b"/a/b", b"x=1")
    assert request.headers["x"] == "1, 2" and request.listed("x") == ["1", "2"]
    assert parse_head(head[:50]) is None
    old = parse_head(b"GET / HTTP/1.0\r\n\r\n")
    assert old is not None and old.version == "1.0" and not old.keep_alive


@pytest.mark.parametrize("name", ["Authorization", "Proxy-Authorization", "Cookie"])
def test_no_secret_stays_in_the_table_of_known_headers(name: str) -> None:
    for header, kept in ((f"{name}: Basic YW5uOm9wZW4tc2VzYW1l", False), ("X-Plain: once", True)):
        head = f"GET /x HTTP/1.1\r\n{header}\r\n\r\n".encode()
        [first], [again] = (list(Requests(HEAD, BODY).feed(head)) for _ in range(2))
        assert first.headers == again.headers
        assert any(header.encode() in known for known in http._KNOWN) is kept


def test_a_target_is_plain_by_all_that_is_in_it() -> None:
    """What was found of one is remembered, without the digits that it ends with."""
    head = b" HTTP/1.1\r\nX: plain\r\n\r\n"
    list(Requests(HEAD, BODY).feed(b"GET /" + head))
    for target in (b"/a/1", b"/a/2", b"/a/", b"/a"):
        assert http.known_request(b"GET " + target + head, BODY) is not None
    for target in (b"/a/\x7f1", b"/a\x001", b"/a/ 1", b'/a/"', b"/\xff/1"):
        for _ in range(2):
            assert http.known_request(b"GET " + target + head, BODY) is None
    for number in range(3_000):
        assert http.known_request(b"GET /b%dc" % number + b"x" * (number % 300) + head, BODY)
    assert len(http._PLAIN) <= 1_000 and max(map(len, http._PLAIN)) <= 128


def test_a_response() -> None:
    assert response(200, b"hi") == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    said = response(403, b"", (("retry-after", "1"),), close=True)
    assert said.startswith(b"HTTP/1.1 403 Forbidden\r\nretry-after: 1\r\n")
    assert said.endswith(b"connection: close\r\n\r\n")


@pytest.mark.parametrize("text", ["YW5uOn\xffsY3JldA==", "YW5uOg", "=", "\xe9"])
def test_credentials_that_are_no_base64_are_none(text: str) -> None:
    assert authorization(f"Basic {text}") == ("", b"")
