"""A hub whose rows are kept in a list, become durable when the test says so, and survive it."""

from __future__ import annotations

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import Message, Run, message_of, row_of
from hubbub.protocols.switch import Switch
from hubbub.schema import Row
from tests.wire import Far, Table


class Rows(Log):
    """What the journal is to the broker. `slow`: rows wait for `sync`."""

    def __init__(self, clock: Clock, rows: list[Row]) -> None:
        super().__init__(clock)
        self.records = True
        self.rows = rows
        self.position = self.durable = len(rows)
        self.slow = False

    def append(self, row: Row) -> int:
        self.position += 1
        self.rows.append(row._replace(seq=self.position, time=self.clock.stamp()))
        if not self.slow:
            self.durable = self.position
        return self.position

    def append_run(self, run: Run, audience: int) -> int:
        return [self.append(row_of(one, ref=audience)) for one in run.messages()][0]

    def read(self, seq: int) -> Message | None:
        if seq <= 0:
            return super().read(seq)
        return message_of(self.rows[seq - 1]) if seq <= len(self.rows) else None

    def sync(self) -> None:
        self.durable = self.position


class Hub(Table):
    """`rows` is the journal; `Hub(hub.rows)` is the hub after a restart."""

    def __init__(self, rows: list[Row] | None = None) -> None:
        super().__init__()
        self.rows: list[Row] = rows if rows is not None else []
        self.journal = Rows(self.clock, self.rows)
        self.broker = Broker(self.clock, self.journal, "all")
        self.switch = Switch(self.broker)
        for row in self.rows:
            self.broker.state.apply(row)
        self.broker.recover([self.switch])

    def log_in(self, token: str, query: str = "") -> Far:
        far = self.dial(self.switch, get(f"/login/{token}{query}"))
        assert far.hear() == ok()
        return far

    def first(self, request: bytes) -> Far:
        """A connection that begins with this request."""
        return self.dial(self.switch, request)

    def kinds(self) -> list[bytes]:
        ignored = (schema.CONNECT, schema.DISCONNECT)
        return [row.kind for row in self.rows if row.kind not in ignored]


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def transfer(*queues: str, cursor: str = "", timeout: float = 30.0) -> bytes:
    names = ",".join(f'"{name}"' for name in queues)
    begin = f'"from":"{cursor}",' if cursor else ""
    return post("/transfer", f'{{{begin}"timeout":{timeout},"queues":[{names}]}}'.encode())


def ok(body: bytes = b"", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def said(far: Far, request: bytes) -> bytes:
    """The body of the answer, which must be a 200."""
    far.say(request)
    answer = far.hear()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer == ok(body), answer
    return body
