"""HTTP/1 heads and plain responses: what the listener and several protocols share. No I/O.

The listener parses the first head of a connection here to decide whose it is; protocols that
speak HTTP all the time use `Requests`. Parsing is httptools' (node's parser).
"""

from __future__ import annotations

import base64
import string
from collections.abc import Iterable, Iterator
from typing import Any, Final

import httptools

from hubbub.errors import ProtocolError
from hubbub.wire.bytes import Pieces

REASONS: Final = {
    101: "Switching Protocols", 200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized",
    403: "Forbidden", 404: "Not Found", 413: "Content Too Large", 421: "Misdirected Request",
    426: "Upgrade Required", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable", 507: "Insufficient Storage",
}  # fmt: skip

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CHALLENGE: Final = ("www-authenticate", 'Basic realm="hubbub", charset="UTF-8"')


class Request:
    """A request: `target` as it was sent, `path` without the query, header names in lower case.

    Repeated headers are joined with a comma (RFC 9110, 5.3); do not change them, several requests
    may share them. `body` is empty until read. `request_of` makes one.
    `known`: its headers are among those that are said again and again; then `size` is that of all,
    and `stem` is its target without the digits that it ends with.
    A protocol that takes the request may set `subprotocol`, to be confirmed in a WebSocket
    handshake, or `raw`: the plain socket, though the client asked for a WebSocket.
    """

    __slots__ = (
        "method", "target", "path", "query", "version", "headers", "body", "keep_alive",
        "subprotocol", "raw", "known", "size", "stem",
    )  # fmt: skip

    def __init__(
        self, method: str, target: bytes, path: bytes, query: bytes, headers: dict[str, str],
        body: bytes = b"", known: Known | None = None, size: int = 0, stem: bytes = b"",
    ) -> None:  # fmt: skip
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.version = "1.1"
        self.headers = headers
        self.body = body
        self.keep_alive = True
        self.subprotocol = ""
        self.raw = False
        self.known = known
        self.size = size
        self.stem = stem

    @property
    def websocket(self) -> bool:
        """Whether it asks for a WebSocket; some clients forget `Upgrade`, so the key counts."""
        return "sec-websocket-key" in self.headers

    def listed(self, name: str) -> list[str]:
        """A header that is a list, its items stripped."""
        return [item.strip() for item in self.headers.get(name, "").split(",") if item.strip()]


class Known:
    """Headers that were said before, and how long the body behind them is.

    `passed`: which site (`wire.site`) had nothing against them last, and they were no browser's.
    """

    __slots__ = ("headers", "size", "passed")

    def __init__(self, headers: dict[str, str], size: int) -> None:
        self.headers = headers
        self.size = size
        self.passed: object = None


def request_of(method: str, target: bytes, headers: dict[str, str]) -> Request:
    """Of an absolute URI the path counts, and what follows it; a fragment says nothing here."""
    local = target
    if not local.startswith(b"/"):
        local = b"/" + local.partition(b"://")[2].partition(b"/")[2]
    path, _, query = local.partition(b"#")[0].partition(b"?")
    return Request(method, target, path, query, headers)


class Requests:
    """A stream of requests on one connection: any split of the bytes, pipelined or chunked.

    `between`: what comes next begins a request. A head (or anything else that brings no body
    nearer) over `head_bytes` and a body over `body_bytes` end it with ProtocolError, which
    carries the response to send. `expected`: the client sends its body when it was told to (RFC
    9110, 10.1.1); clear it when CONTINUE is sent.

    A client says the same headers again and again, so most requests are not parsed: one that
    arrives whole, with the headers of an earlier one, means what that one meant (`known_request`).
    """

    def __init__(self, head_bytes: int, body_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._body_bytes = body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)  # until `end`
        self._complete: list[Request] = []
        self.between = True  # the parser waits for the first byte of a request
        self.expected = False
        self._begin()

    def _begin(self) -> None:
        self._request = request_of("", b"", {})
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = Pieces()
        self._head_size = 0
        self._idle_size = 0  # bytes since a head or body last moved on

    def end(self) -> None:
        """No more comes: the parser and this refer to one another, which the collector of cycles
        would have to find out.
        """
        self._parser = None

    def waiting(self) -> int:
        """How many bytes of a request are here whose rest is not."""
        return 0 if self.between else self._idle_size + self._body.size + 1

    def coming(self) -> Request | None:
        """The request whose head is here and whose body, a large one, is not."""
        large = not self.between and self._body.size > self._head_bytes
        return self._request if large else None

    def feed(self, data: bytes) -> Iterator[Request]:
        """The requests that became complete, then ProtocolError if what follows is none.

        Consume all of it: nothing is parsed before the first item is asked for.
        """
        while self.between and data:
            known = known_request(data, self._body_bytes)
            if known is None:
                break
            yield known
            data = data[known.size :]
        if not data:
            return
        first = self.between
        failure = self._parse(data)
        complete, self._complete = self._complete, []
        if first and complete:
            _learn(data, complete[0])
        for request in complete:
            yield request
            if not request.keep_alive:
                return  # RFC 9112, 9.6: what follows a last request is not looked at
        if failure is not None:
            raise failure

    def _parse(self, data: bytes) -> ProtocolError | None:
        self._idle_size += len(data)
        rest = memoryview(data)
        try:
            while rest:
                rest = self._step(rest)
        except ProtocolError as error:
            return error
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            return cause if isinstance(cause, ProtocolError) else bad_request(str(error))
        except httptools.HttpParserError as error:
            return bad_request(str(error))
        return self._head_too_large() if self._idle_size > self._head_bytes else None

    def _step(self, data: memoryview) -> memoryview:
        """Parse up to the end, or to that of a request which asks for another protocol.

        Java's client and curl ask each time; who gets no 101 goes on as it was (RFC 9110, 7.8).
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._upgraded(data[upgrade.args[0] :])
        return data[:0]

    def _upgraded(self, rest: memoryview) -> memoryview:
        """What is parsed of what follows the head of such a request.

        To the parser it ended with its head. So that its body is none, and never taken for the
        next request, it is parsed again as if it had not asked.
        """
        request = self._complete.pop()
        target = request.target.decode("latin-1")
        head = without_offer(request.method, target, request.version, request.headers.items())
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)
        return rest

    def _head_too_large(self) -> ProtocolError:
        return ProtocolError(
            f"a request head of more than {self._head_bytes} bytes", response(431, b"", close=True)
        )

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.between = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > self._head_bytes:
            raise self._head_too_large()
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        request = self._request = request_of(method, self._target, self._headers)
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        self._idle_size = 0
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._body_bytes:
            raise self._body_too_large()
        expects = request.headers.get("expect", "").lower() == "100-continue"
        self.expected = expects and request.version != "1.0"

    def on_body(self, body: bytes) -> None:
        self._idle_size = 0
        self.expected = False
        if self._body.size + len(body) > self._body_bytes:
            raise self._body_too_large()
        self._body.add(body)

    def _body_too_large(self) -> ProtocolError:
        text = f"a body of more than {self._body_bytes} bytes"
        return ProtocolError(text, response(413, text.encode(), close=True))

    def on_message_complete(self) -> None:
        self.expected = False
        self._request.body = self._body.take()
        self._complete.append(self._request)
        self.between = self._request.keep_alive
        self._begin()


# What headers meant: the bytes from the end of the request line to the empty line, and how long
# the body is. Only plain ones are kept, of requests that came whole; when full it begins anew.
_KNOWN: Final[dict[bytes, Known]] = {}
_KNOWN_HEADS: Final = 1_000
_KNOWN_BYTES: Final = 512
# Of the last three no copy may outlive its request: they say who somebody is.
_SPECIAL: Final = (
    "transfer-encoding", "expect", "upgrade", "authorization", "proxy-authorization", "cookie",
)  # fmt: skip
# What a plain target is made of, and a query besides; what is not there, the parser looks at.
_TARGET: Final = b"-_.:$%~,;=&@!*'()+/?" + (string.ascii_letters + string.digits).encode()
_QUERY: Final = ord("?")
_DIGITS: Final = b"0123456789"
# Targets that are plain, without the digits that they end with: looking takes as long as all else
# here, and clients name the same queues again and again. When full it begins anew.
_PLAIN: Final[set[bytes]] = set()
_PLAIN_TARGETS: Final = 1_000
_PLAIN_BYTES: Final = 128
_VERSION: Final = b" HTTP/1.1\r\n"
_LINE_BYTES: Final = 8_192  # a longer target is looked at by the parser


def known_request(data: bytes, body_bytes: int) -> Request | None:
    """The request that begins `data`, if all of it is there, it is plain and its headers are known.

    As a rule it is: a call of message-switch is seven such reads.
    """
    begin = 4 if data.startswith(b"GET /") else 5 if data.startswith(b"POST /") else 0
    line = data.find(_VERSION, begin, _LINE_BYTES)
    if line < 0 or not begin:
        return None
    end = data.find(b"\r\n\r\n", line) + 4
    if end < line:  # compiled, a slice that ends before it begins is an error
        return None
    known = _KNOWN.get(data[line:end])
    path = target = data[begin:line]
    stem = target.rstrip(_DIGITS)
    if known is None or known.size > body_bytes or not (stem in _PLAIN or _is_plain(stem)):
        return None
    size, body, query = end + known.size, b"", b""
    if known.size:
        if len(data) < size:
            return None
        body = data[end:size]
    if _QUERY in target:
        path, _, query = target.partition(b"?")
    method = "GET" if begin == 4 else "POST"
    return Request(method, target, path, query, known.headers, body, known, size, stem)


def _is_plain(stem: bytes) -> bool:
    if stem.translate(None, _TARGET):
        return False
    if len(stem) <= _PLAIN_BYTES:
        if len(_PLAIN) >= _PLAIN_TARGETS:
            _PLAIN.clear()
        _PLAIN.add(stem)
    return True


def _learn(data: bytes, request: Request) -> None:
    """Remember what the headers at the beginning of `data` meant."""
    begin = data.find(_VERSION)
    path = data.find(b"/")
    if not 0 <= path < begin:  # `*`; and compiled, a slice that ends before it begins is an error
        return
    # Else it may stand in some header, and what is before that would be left out.
    plain = not data[path:begin].translate(None, _TARGET)
    secret = any(name in request.headers for name in _SPECIAL)
    if not plain or not request.keep_alive or secret:
        return
    end = data.find(b"\r\n\r\n", begin) + 4
    size = len(request.body)
    if not begin < end <= begin + _KNOWN_BYTES:
        return
    if request.headers.get("content-length", "0") == str(size):
        if len(_KNOWN) >= _KNOWN_HEADS:
            _KNOWN.clear()
        _KNOWN[data[begin:end]] = Known(request.headers, size)


def looks_like_http(data: bytes) -> bool:
    """A method in capitals, then a space; enough to wait for the rest of the head."""
    method = data[:8].partition(b" ")[0]
    return method.isalpha() and method.isupper()


def parse_head(data: bytes) -> Request | None:
    """The request whose head begins `data`, without its body; None while it is incomplete.

    Raises ProtocolError (400) for what is not HTTP.
    """
    end = data.find(b"\r\n\r\n")
    return _Head().read(data[: end + 4]) if end >= 0 else None


class _Head(Requests):
    """Reads one head and stops there."""

    def __init__(self) -> None:
        super().__init__(1 << 20, 1 << 62)
        self._found: Request | None = None

    def read(self, head: bytes) -> Request | None:
        failure = self._parse(head)
        self.end()
        try:
            if failure is not None:
                raise failure
            return self._found
        finally:
            del failure  # its traceback has this frame

    def _upgraded(self, rest: memoryview) -> memoryview:
        return rest[:0]

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._found = self._request


def authorization(header: str) -> tuple[str, bytes]:
    """User and secret of an Authorization header, empty if there are none.

    Basic (RFC 7617), or Bearer (RFC 6750) with a JWT, or with a token of ours: USER.SECRET, the
    secret without a dot.
    """
    scheme, _, text = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        whole = text.strip().encode("latin-1", "replace")
        if is_jwt(whole):
            return "", whole
        user, _, token = text.strip().rpartition(".")
        return user, token.encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return "", b""
    try:
        name, _, secret = base64.b64decode(text).partition(b":")
    except ValueError:  # what base64 is not: other characters, or too few
        return "", b""
    return name.decode("utf-8", "replace"), secret


def is_jwt(secret: bytes) -> bool:
    """Whether this is meant as a signed token (RFC 7519), and no password: `eyJ…` is `{"…`."""
    return secret.startswith(b"eyJ") and secret.count(b".") == 2


RETRY_LATER: Final = (("retry-after", "10"),)  # with 429: in so many seconds


def response(
    status: int, body: bytes, headers: tuple[tuple[str, str], ...] = (), close: bool = False
) -> bytes:
    """A whole response; `content-length` is added, in lower case as message-switch does."""
    if status == 200 and not headers and not close:
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    lines = [f"HTTP/1.1 {status} {REASONS[status]}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"content-length: {len(body)}")
    if close:
        lines.append("connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


_BAD_REQUEST: Final = response(400, b"", close=True)


def bad_request(reason: str) -> ProtocolError:
    return ProtocolError(f"not a valid HTTP request: {reason}", _BAD_REQUEST)


def without_offer(
    method: str, target: str, version: str, headers: Iterable[tuple[str, str]]
) -> bytes:
    """The head of a request again, but for the other protocol that it offers: to the parser it ends
    with its head. ProtocolError for CONNECT, to which that is so whatever its headers are.
    """
    if method == "CONNECT":
        raise bad_request("CONNECT is for proxies, and this is none")
    lines = [f"{method} {target} HTTP/{version}"]
    lines += [f"{key}: {text}" for key, text in headers if key != "upgrade"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
