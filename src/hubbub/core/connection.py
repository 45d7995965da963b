"""What a protocol is to the hub: bytes in, calls on the broker out. No I/O.

The listener asks each `Protocol` of the registry whether a new connection is its own, lets it
make a `Connection`, feeds it what arrives and wakes it when it asked to be woken. A connection
answers through its `Link`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from hubbub.config.settings import Settings
from hubbub.core.limits import LOGIN_BYTES, MESSAGE_BYTES
from hubbub.core.link import Link
from hubbub.core.rights import Credentials, Exchange, Gate, Rights, Step
from hubbub.schema import Row
from hubbub.wire.http import Request
from hubbub.wire.site import Site

if TYPE_CHECKING:
    from hubbub.core.broker import Broker
    from hubbub.core.session import Session, SessionState

NEVER = float("inf")


def at_once(action: Callable[[], None]) -> None:
    action()


def _nobody_waits() -> None:
    """There is no room for strangers that it could leave."""


def _not_at_all(reason: str) -> None:
    """There is no connection to close."""


_EVERYWHERE = Site()


class Opening:
    """How a connection began: who is at the other end, and its HTTP head if it had one.

    `address` is the peer's IP address as text, `port` its port, `secure` whether TLS protects
    it, `certificate` the name in its TLS certificate (empty if it has none),
    `websocket` whether it is a WebSocket (the listener has answered the handshake and hands
    over unmasked messages), `gate` decides who may come in on this listener. `credentials` is
    what the client that was let in showed the gate, None before; the secret is not kept.
    `run` is how the listener wants to be called when an answer comes later: it takes what feed
    may raise, and sees that what was written leaves. `close` ends the connection, with a reason
    for the log. `protocol` is the name of what is spoken, `challenge` the random number the hub
    told the client (0 = none), `info` what the client said about itself, and `argument` what the
    program said that handed the connection over. `mount` is what the names of this listener have
    before those that its clients say. `let_in` is called when the gate has said yes. `gone`:
    nobody waits for its answer any more. `site` says which requests of browsers it takes; who
    speaks HTTP asks it about each.
    """

    __slots__ = (
        "address", "port", "secure", "certificate", "websocket", "request", "gate", "credentials",
        "run", "close", "protocol", "challenge", "info", "argument", "mount", "site", "let_in",
        "gone",
    )  # fmt: skip

    def __init__(
        self,
        gate: Gate,
        address: str = "",
        port: int = 0,
        secure: bool = False,
        websocket: bool = False,
        request: Request | None = None,
        certificate: str = "",
        run: Callable[[Callable[[], None]], None] = at_once,
        close: Callable[[str], None] = _not_at_all,
    ) -> None:
        self.gate = gate
        self.address = address
        self.port = port
        self.secure = secure
        self.certificate = certificate
        self.websocket = websocket
        self.request = request
        self.credentials: Credentials | None = None
        self.run = run
        self.close = close
        self.protocol = ""
        self.challenge = 0
        self.info = ""
        self.argument: object = None
        self.mount = ""
        self.site = _EVERYWHERE
        self.let_in = _nobody_waits
        self.gone = False

    def ask(
        self, client: str, user: str, secret: bytes, decided: Decided,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:  # fmt: skip
        """Ask the gate; the answer may come later, and then in a call by `run`."""
        run = run or self.run
        credentials = Credentials(client, user, secret, self.address, self.certificate, self)
        asking = True

        def judged(rights: Rights | None, reason: str) -> None:
            credentials.secret = b""
            admission = self._admitted(credentials, rights) if rights is not None else None
            if asking:
                decided(admission, reason)
            else:
                run(lambda: decided(admission, reason))

        self.gate.authenticate(credentials, judged)
        asking = False

    def _admitted(self, credentials: Credentials, rights: Rights) -> Admission:
        self.credentials = credentials
        self.let_in()
        return Admission(self.protocol, credentials.client, credentials.user, rights, self)

    def exchange(self, method: str, client: str) -> Exchange | None:
        """Begin a conversation about credentials; None if the gate does not know the method."""
        credentials = Credentials(client, "", b"", self.address, self.certificate, self)
        exchange = self.gate.exchange(method, credentials)
        return _Exchange(self, credentials, exchange) if exchange is not None else None


class _Exchange(Exchange):
    """An exchange of the gate; who it lets in is remembered then, and not before."""

    def __init__(self, opening: Opening, credentials: Credentials, inner: Exchange) -> None:
        self._opening = opening
        self._credentials = credentials
        self._inner = inner

    def step(self, data: bytes) -> Step:
        step = self._inner.step(data)
        if step.done and step.rights is not None:
            step.admission = self._opening._admitted(self._credentials, step.rights)
        return step


class Admission:
    """Who was let in, as whom, and with which rights: what a session begins with.

    `number`: the address of a connection that it takes over, 0 if there is none.
    """

    __slots__ = ("protocol", "client", "user", "rights", "opening", "number")

    def __init__(
        self, protocol: str, client: str, user: str, rights: Rights, opening: Opening | None = None
    ) -> None:
        self.protocol = protocol
        self.client = client
        self.user = user
        self.rights = rights
        self.opening = opening
        self.number = 0


Decided = Callable[[Admission | None, str], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """One conversation. `feed` may raise ProtocolError, which closes with that reason.

    While it is not `bound`, the next request decides again whose connection this is. While it is
    `restless`, what it reads may bring its next time-out nearer, and it is asked after each read.
    `asking`: the gate thinks about its credentials; what comes meanwhile is `early` (core.client).
    """

    def __init__(self, broker: Broker, link: Link, opening: Opening) -> None:
        self.bound = True
        self.restless = True
        self.asking = False
        self.early: list[bytes] | None = None  # most never have any
        self.broker = broker
        self.link = link
        self.opening = opening

    def start(self) -> None:
        """The connection is open; a protocol in which the server speaks first does so here."""

    def feed(self, data: bytes) -> None:
        """Bytes as they arrived; over a WebSocket exactly one message."""
        raise NotImplementedError

    def wake(self, now: float) -> float:
        """Time-outs: do what is due at `now`, return when to be called again (or NEVER)."""
        return NEVER

    def drained(self) -> None:
        """The link was choked or paused and has room again."""

    def listens(self, now: float) -> None:
        """Nothing was read from it for a while, by the hub's own doing: that was no silence."""

    def goodbye(self) -> None:
        """The hub is stopping: say what the protocol says; the link is closed afterwards."""

    def lost(self, reason: str) -> None:
        """The connection is gone ("" = the peer closed it in order). Called exactly once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Protocol:
    """One protocol inside one hub: recognises its connections and keeps what they share.

    `raw_head`: it parses HTTP itself, so a head the listener read is replayed to `feed`.
    `streams`: over a WebSocket its bytes are a stream in binary messages, not kept apart.
    `message_bytes`: the largest WebSocket message it takes; `login_bytes`: all that a client may
    say before it is let in. `any_text`: its messages are bytes,
    also when they are called text.
    """

    name = ""
    raw_head = False
    streams = False
    message_bytes = MESSAGE_BYTES
    login_bytes = LOGIN_BYTES
    any_text = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def apply(self, settings: Settings) -> None:
        """Take its settings: at the start, and again when they were read again."""

    def opens(self, data: bytes) -> bool | None:
        """Whether the first bytes of a connection are this protocol's; None = need more."""
        return False

    def takes(self, request: Request) -> bool:
        """Whether a connection that began with this HTTP request is this protocol's.

        For a WebSocket (`request.websocket`) the answer decides before the handshake is sent;
        `request.subprotocol` may be set to the sub-protocol to confirm.
        """
        return False

    def connect(self, link: Link, opening: Opening) -> Connection:
        raise NotImplementedError

    def revive(self, state: SessionState) -> Session | None:
        """Make the session of a client that is away, from what the journal remembers."""
        return None

    def publish_will(self, will: Row) -> None:
        """After a restart: a client was connected when the hub ended, and so did its session."""

    def wake(self, now: float) -> None:
        """Called about once a second, for time-outs that belong to no connection."""
