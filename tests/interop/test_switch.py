"""message-switch over real sockets: kill -9, large messages, hostile clients."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop


class Client:
    """One connection that speaks HTTP by hand."""

    def __init__(self, hub: RunningHub, token: str = "", path: Path | None = None) -> None:
        if path is not None:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(path))
        else:
            self.socket = socket.create_connection(("127.0.0.1", hub.port))
        self.socket.settimeout(20)
        self.file = self.socket.makefile("rb")
        if token:
            self.get(f"/login/{token}")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        status = int(self.file.readline().split()[1])
        length = 0
        while line := self.file.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, self.file.read(length)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)
        return self.answer()

    def get(self, path: str) -> bytes:
        status, body = self.ask("GET", path)
        assert status == 200, (path, status, body)
        return body

    def post(self, path: str, body: bytes = b"") -> bytes:
        status, answer = self.ask("POST", path, body)
        assert status == 200, (path, status, answer)
        return answer

    def transfer(self, queue: str, after: int = -1, timeout: float = 0) -> list[tuple[int, Any]]:
        asked = {"from": str(after), "timeout": timeout, "queues": [queue]}
        found = json.loads(self.post("/transfer", json.dumps(asked).encode()))["messages"]
        return [(number, message["payload"]) for (_, number), message in reversed(found)]

    def waiting(self, queue: str) -> dict[int, Any]:
        """All that waits there: an answer has as much as is read in a moment, the next goes on."""
        found: dict[int, Any] = {}
        while part := self.transfer(queue, max(found, default=-1)):
            found.update(part)
        return found

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_nothing_is_lost_or_numbered_twice_by_kill_9(start_hub: StartHub) -> None:
    """Each round is killed with requests on their way; what was answered holds, all of it."""
    acknowledged: set[int] = set()
    accepted: dict[int, str] = {}
    highest = -1
    for round_ in range(5):
        hub = start_hub()
        client = Client(hub, "writer")
        client.get("/persistent/q")
        waiting = client.waiting("q")
        for number, payload in accepted.items():
            if number not in acknowledged:
                assert waiting[number] == payload, "accepted, and lost"
        assert not acknowledged & set(waiting), "acknowledged, and back"
        highest = max([highest, *waiting])
        for index in range(20):
            payload = f"{round_}-{index}"
            ((_, number),) = json.loads(client.post("/request/q/none", payload.encode()))
            assert number > highest, "a number was used twice"
            highest, accepted[number] = number, payload
            if index % 3 == 0:
                client.get(f"/ack/q/{number}")
                acknowledged.add(number)
        late = b"POST /request/q/none HTTP/1.1\r\nContent-Length: 4\r\n\r\nlate"
        client.send(late * 50)
        hub.stop(signal.SIGKILL)
        client.close()


def test_stale_cursors_and_acknowledgements_after_kill_9(start_hub: StartHub) -> None:
    hub = start_hub()
    client = Client(hub, "a")
    client.get("/persistent/q")
    for _ in range(3):
        client.post("/request/q/a", b"old")
    for number in range(3):
        client.get(f"/ack/q/{number}")
    client.get("/persistent/gone")
    client.post("/request/gone/a", b"old")
    client.get("/destroy/gone")
    hub.stop(signal.SIGKILL)
    hub = start_hub()
    client = Client(hub, "a")
    client.get("/persistent/gone")
    for queue, first in (("q", 3), ("gone", 1)):
        client.post(f"/request/{queue}/a", b"new")
        assert client.transfer(queue, after=first - 1) == [(first, "new")]
        for number in range(first):
            client.get(f"/ack/{queue}/{number}")
        assert client.transfer(queue) == [(first, "new")]


def test_settings_and_deliveries_survive_kill_9(start_hub: StartHub) -> None:
    hub = start_hub()
    client = Client(hub, "a")
    asked = b'{"lease":60,"max_deliveries":1,"dead_letter":"dead","max_messages":1}'
    client.post("/create/q", asked)
    client.post("/request/q/a", b"poison")
    assert client.transfer("q") == [(0, "poison")]
    hub.stop(signal.SIGKILL)
    hub = start_hub()
    client = Client(hub, "a")
    assert client.transfer("q") == []
    assert client.transfer("dead") == [(0, "poison")]
    client.post("/request/q/a", b"one")
    assert client.ask("POST", "/request/q/a", b"two")[0] == 429


def test_a_message_as_large_as_may_be_survives_kill_9(start_hub: StartHub) -> None:
    size = 64 * 1024 * 1024
    payload = b"0123456789abcdef" * (size // 16)
    hub = start_hub()
    client = Client(hub, "a")
    client.get("/persistent/q")
    head = "POST /request/q/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    client.send((head % size).encode())
    assert client.answer() == (100, b"")
    client.send(payload)
    assert client.answer() == (200, b'[["q",0]]')
    client.send((head % (size + 1)).encode())
    assert client.answer()[0] == 413
    hub.stop(signal.SIGKILL)
    hub = start_hub()
    ((number, found),) = Client(hub, "a").transfer("q")
    assert number == 0 and found.encode() == payload


def test_a_closed_connection_is_noticed_while_a_transfer_waits(hub: RunningHub) -> None:
    owner, other = Client(hub, "owner"), Client(hub, "other")
    owner.get("/transient/mine")
    body = b'{"timeout":60.0,"queues":["mine"]}'
    owner.send(b"POST /transfer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert other.get("/list/") == b'["mine"]'
    owner.close()
    until = time.monotonic() + 5
    while other.get("/list/") != b"[]":
        assert time.monotonic() < until, "the queue is still there"


def test_the_unix_socket_speaks_the_same(start_hub: StartHub, tmp_path: Path) -> None:
    path = tmp_path / "switch"
    hub = start_hub("--switch-socket", str(path))
    over_tcp, over_path = Client(hub, "tcp"), Client(hub, "unix", path)
    over_path.get("/persistent/q")
    over_tcp.post("/request/q/tcp", b"hello")
    assert over_path.transfer("q") == [(0, "hello")]
    assert over_path.get("/list/") == over_tcp.get("/list/") == b'["q"]'
    hub.stop(signal.SIGKILL)
    assert path.is_socket()
    hub = start_hub("--switch-socket", str(path))
    client = Client(hub, "unix", path)
    assert client.transfer("q") == [(0, "hello")]
    assert client.ask("POST", "/shutdown") == (200, b"")
    assert hub.process.wait(20) == 0
    assert not path.exists()


@pytest.mark.parametrize("unix", [False, True])
def test_who_forgot_to_log_in_may_do_it_then(
    start_hub: StartHub, tmp_path: Path, unix: bool
) -> None:
    path = tmp_path / "switch"
    hub = start_hub("--switch-socket", str(path))
    for method, first in (("GET", "/list/"), ("POST", "/transfer"), ("POST", "/request/q/a"),
                          ("GET", "/ack/q/0"), ("GET", "/create")):  # fmt: skip
        client = Client(hub, path=path if unix else None)
        assert client.ask(method, first, b"{}") == (404, b"Please log in.")
        assert client.get("/login/late") == b"" and client.get("/list/") == b"[]"
        client.close()


def test_an_empty_line_may_come_first(hub: RunningHub) -> None:
    client = Client(hub)
    for path, body in (("/", None), ("/login/a", b""), ("/list/", b"[]")):
        client.send(b"\r\n")
        found = client.get(path)
        assert body is None or found == body


EARLY = [
    b"GET /login/e HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /trace HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nAccept: text/html\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n",
    b"POST /publish/a HTTP/1.1\r\nContent-Length: 100000\r\n\r\nxxxx",
    b"GET /login/e HTTP/1.1\r\n\r\nPOST /transfer HTTP/1.1\r\nContent-Length: 31\r\n\r\n"
    b'{"timeout":30.0,"queues":["q"]}',
]  # fmt: skip


def test_who_closes_early_leaves_no_traceback(hub: RunningHub) -> None:
    reset = struct.pack("ii", 1, 0)
    for said in EARLY:
        for end in (len(said), len(said) - 3, len(said) // 2):
            for way in range(3):
                client = Client(hub)
                client.send(said[:end])
                if way == 0:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                elif way == 1:
                    client.socket.shutdown(socket.SHUT_WR)
                client.close()
    assert Client(hub, "after").get("/list/") == b"[]"
    assert hub.stop() == 0
    assert "Traceback" not in (hub.data.parent / "hub.log").read_text()


def test_a_thousand_polls_and_a_hundred_thousand_queues(hub: RunningHub) -> None:
    """One client asks for too much; another one is served as ever."""
    good = Client(hub, "good")
    good.get("/persistent/good")
    bad = Client(hub, "bad")
    refused = 0
    batch = 2_000
    for first in range(0, 24_000, batch):
        names = range(first, first + batch)
        bad.send(b"".join(b"GET /persistent/bad%d HTTP/1.1\r\n\r\n" % name for name in names))
        refused += sum(bad.answer()[0] in (429, 507) for _ in names)
    assert refused == 4_001, "an address has 20,000 queues, and one is the other client's"
    polls = [Client(hub, "bad") for _ in range(300)]
    for number, poll in enumerate(polls):
        body = b'{"timeout":60,"queues":["wait%d"]}' % number
        poll.send(b"POST /transfer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    began = time.monotonic()
    for index in range(50):
        ((_, number),) = json.loads(good.post("/request/good/good", b"x"))
        assert number == index
        good.get(f"/ack/good/{number}")
    assert time.monotonic() - began < 10
    for poll in polls:
        poll.close()
