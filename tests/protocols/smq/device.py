"""A device at the far end of an SMQ connection: says and hears messages instead of bytes.

A message that was heard is a tuple: type name, numbers, rest. `("Suback", 0, 4711, b"alpha")`.
"""

from __future__ import annotations

from hubbub.core.message import Message, Run
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Subscription
from hubbub.protocols.smq import Smq, codec
from hubbub.wire.websocket import Frames
from tests.wire import Far, Table

HEAD = (
    b"GET /plain.lsp HTTP/1.0\r\nHost: 127.0.0.1\r\nSimpleMQ: 1\r\nUser-Agent: SimpleMQ/1\r\n\r\n"
)
WEBSOCKET_HEAD = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

Heard = tuple[str | int | bytes, ...]


def told(message: bytes) -> Heard:
    layout = codec.LAYOUTS[message[0]]
    numbers = codec.numbers_of(message[0], message[1:])
    return (layout.name, *numbers, codec.rest_of(message[0], message[1:]))


class Hub(Table):
    """A hub in memory that speaks SMQ."""

    def __init__(self, record: str = "none") -> None:
        super().__init__(record)
        self.smq = Smq(self.broker)

    def device(self, uid: bytes = b"", websocket: bool = False, head: bytes = b"") -> Device:
        return Device(self, uid, websocket, head)

    def listen(self, name: str) -> Ear:
        """Somebody of no protocol who subscribes to a name."""
        return Ear(self, name)

    def dropped(self, reason: str) -> int:
        return self.broker.metrics.dropped.get(reason, 0)


class Device:
    """Connects with its uid, unless that is empty; then it has heard Init only."""

    def __init__(self, hub: Hub, uid: bytes, websocket: bool, head: bytes) -> None:
        self.hub = hub
        self.websocket = websocket
        head = head or (WEBSOCKET_HEAD if websocket else HEAD)
        self.far: Far = hub.dial(hub.smq, head, websocket)
        self._frames = Frames(1 << 20, masked=False)
        self._rest = b""
        self.etid = 0
        if uid:
            self.hear()
            self.say(codec.CONNECT, codec.VERSION, rest=bytes((len(uid),)) + uid + b"\0")
            self.etid = self.expect("Connack")

    def say(self, kind: int, *numbers: int, rest: bytes = b"") -> None:
        self.raw(codec.message(kind, *numbers, rest=rest))

    def raw(self, message: bytes) -> None:
        self.far.say(message if self.websocket else codec.framed(message))

    def publish(self, tid: int, payload: bytes, subtid: int = 0, sender: int | None = None) -> None:
        self.say(codec.PUBLISH, tid, self.etid if sender is None else sender, subtid, rest=payload)

    def bodies(self) -> list[bytes]:
        """The messages (type and body) that came since the last time."""
        data = self.far.hear()
        if self.websocket:
            return list(self._frames.feed(data))
        data, at, found = self._rest + data, 0, []
        while end := codec.next_frame(data, at):
            found.append(data[at + 2 : end])
            at = end
        self._rest = data[at:]
        return found

    def hear(self) -> list[Heard]:
        return [told(body) for body in self.bodies()]

    def expect(self, name: str) -> int:
        """Hear one message of that name and status 0; return its id."""
        (heard,) = self.hear()
        assert heard[:2] == (name, 0), heard
        number = heard[2]
        assert isinstance(number, int)
        return number

    def subscribe(self, name: bytes) -> int:
        self.say(codec.SUBSCRIBE, rest=name)
        return self.expect("Suback")

    def create(self, name: bytes) -> int:
        self.say(codec.CREATE, rest=name)
        return self.expect("Createack")

    def create_sub(self, name: bytes) -> int:
        self.say(codec.CREATESUB, rest=name)
        return self.expect("Createsuback")

    def observe(self, number: int) -> list[Heard]:
        self.say(codec.OBSERVE, number)
        return self.hear()

    def hang_up(self) -> None:
        self.far.hang_up("socketreadfailed")

    @property
    def closed(self) -> bool:
        return self.far.closed

    @property
    def reason(self) -> str | None:
        return self.far.reason


class Ear(Session):
    """Keeps every message it gets, spelled out, and how many came in each run."""

    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__("test", f"ear:{name}", Rights())
        self.heard: list[Message] = []
        self.runs: list[int] = []
        hub.broker.connect(self, hub.broker.own(self.protocol, self.client))
        encodings = (hub.smq.raw, hub.smq.raw, hub.smq.raw)
        hub.broker.subscribe(Subscription(self, name, 0, encodings))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.heard += run.messages()
        self.runs.append(run.count)

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        self.heard.append(message)
