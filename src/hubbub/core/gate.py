"""The gate of a listener, and what it is asked: credentials in, an `Admission` out.

    Opening      how a connection began: who is at the other end
    Credentials  what the client showed          -> Gate.authenticate ->  Rights, or the reason
    Exchange     the same in several steps
    Admission    who was let in, as whom, with which rights: what `Broker.connect` takes

`auth` makes the gates; `core.client.admit` asks them for a connection. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from hubbub.core.rights import Rights, words_of
from hubbub.wire.http import Request
from hubbub.wire.site import Site
from hubbub.wire.source import source_of


class Credentials:
    """What a client showed: `secret` is a password or token, empty if it showed none.

    `certificate` is the name in its TLS certificate, empty if it has none; `opening` how its
    connection began, if it has one; `basis` what the gate's decision rests on, for the gate alone.
    `proved`: the gate saw that the user is who it says.
    `expires`: when they are over, in seconds since 1970, 0.0 = never; the gate sets it.
    `aside`: what the log says beside the reason of a refusal, and the client does not hear.
    """

    __slots__ = (
        "client", "user", "secret", "address", "certificate", "opening", "basis", "expires",
        "proved", "aside",
    )  # fmt: skip

    def __init__(
        self,
        client: str,
        user: str,
        secret: bytes,
        address: str,
        certificate: str = "",
        opening: Opening | None = None,
    ) -> None:
        self.client = client
        self.user = user
        self.secret = secret
        self.address = address
        self.certificate = certificate
        self.opening = opening
        self.basis: object = None
        self.expires = 0.0
        self.proved = False
        self.aside = ""

    @property
    def owner(self) -> str:
        """To whom it is put down what it takes. A user name that nobody checked is no user's: who
        says another one on each connection would have the share of many.
        """
        return owner(self.user if self.proved else "", self.address)


class Step:
    """One answer of a gate in a conversation about credentials.

    `done` False: send `data` and wait for more. Done with `rights`: the client is in, and gets
    `data` with its welcome; `admission` says so to the connection. Done without: it is refused,
    and `reason` says why.
    """

    __slots__ = ("done", "data", "rights", "reason", "admission")

    def __init__(
        self, done: bool, data: bytes = b"", rights: Rights | None = None, reason: str = ""
    ) -> None:
        self.done = done
        self.data = data
        self.rights = rights
        self.reason = reason
        self.admission: Admission | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """A conversation about credentials by some method. Not used again once a step is done."""

    def step(self, data: bytes) -> Step:
        """Take what the client sent next."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Gate:
    """Lets everybody in with the same rights; `auth` has stricter ones.

    `place`: the address of its listener, as the settings say it; "" if it has none. `checks`:
    whether it can tell that a user is who it says. `anonymous`: whether it may let in who shows
    nothing at all; if not, that is clear before it is asked.
    """

    checks = False
    anonymous = True

    def __init__(self, rights: Rights, place: str = "") -> None:
        self.rights = rights
        self.place = place

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        """Call `done(rights, "")`, or `done(None, reason)`; perhaps later, never twice."""
        done(self.rights, "")

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        """Begin a conversation by that method; None if the gate does not know it."""
        return None

    def rights_of(self, user: str, client: str) -> Rights | None:
        """What somebody who is away has, who came in before; None if it could not come in now."""
        return self.rights

    def permissions(self, user: str, client: str) -> Rights:
        """What the rules let somebody do who came in before, even if it could not come in now."""
        return self.rights

    def lines_of(self, credentials: Credentials) -> tuple[str, ...] | None:
        """What a token that it showed says that it may; None if the rules say that."""
        return None

    def rights_by(self, user: str, client: str, lines: tuple[str, ...]) -> Rights | None:
        """Those that a token says, which another node has seen; None if it counts nothing here."""
        return None

    def vouched(self, shown: Credentials, lines: tuple[str, ...] | None) -> Rights | None:
        """What somebody may whom this gate let in at another process of the hub; None if it could
        not come in here. `shown` says who it is and until when, and no secret; `lines` what its
        token lets it do. Afterwards it is known here as if it had come in.
        """
        if lines is None:
            return self.rights_of(shown.user, shown.client)
        return self.rights_by(shown.user, shown.client, lines)

    def still_in(self, credentials: Credentials) -> bool:
        """Whether a client that was let in with these may stay, after the rules changed."""
        return True


OWNERS: Final = 1_000  # addresses whose words are kept: it is asked three times a connect
_owners: dict[str, str] = {}

STRANGER: Final = 0  # was not let in, and what it makes the hub keep has a budget apart
VISITOR: Final = 1  # was not let in, and needs to be only when its request is whole (HTTP)
KNOWN: Final = 2


def owner(user: str, address: str) -> str:
    """To whom it is put down what somebody takes: its user, else its address; "" is the hub."""
    if user:
        return f"user {user!r}"
    if not address:
        return ""
    known = _owners.get(address)
    if known is None:
        if len(_owners) >= OWNERS:
            _owners.clear()
        known = _owners[address] = f"address {source_of(address)}"
    return known


class Whose(NamedTuple):
    """To whom it is put down what somebody makes the hub keep, and what that is to the hub."""

    standing: int
    name: str

    @classmethod
    def known(cls, name: str) -> Whose:
        return cls(KNOWN, name)


def at_once(action: Callable[[], None]) -> None:
    action()


@mypyc_attr(allow_interpreted_subclasses=True)
class Carrier:
    """What carries a connection, a socket or a relay, as those see it who only know its opening.

    This one carries nothing: that of a client in the program itself.
    """

    __slots__ = ()

    def run(self, action: Callable[[], None]) -> None:
        """Make a call for an answer that comes later: it may raise what feed may raise, and what
        was written leaves.
        """
        action()

    def close_for(self, reason: str) -> None:
        """End the connection, with a reason for the log."""

    def let_in(self, whose: str, client: str) -> None:
        """The gate has said yes: whose it is (`owner`; "" = its address's) and the client."""

    def lacks(self, shown: Credentials) -> str:
        """Why one more of that user may not be, or ""."""
        return ""

    def refused(self, opening: Opening, user: str, client: str, reason: str) -> None:
        """The gate has said no."""

    def until(self, when: float) -> None:
        """Its credentials are over at that time, seconds since 1970: the connection ends then."""

    def hold(self) -> Callable[[], None] | None:
        """Hear nothing more of the client until the function is called; None: it goes on."""
        return None

    def listens(self, listens: bool) -> None:
        """Hear nothing more, or go on: the connection works in turns."""

    def turn(self, call: Callable[[], None]) -> None:
        """Make a call when there is time for who is not let in: before an answer that needs no
        login, or refuses.
        """
        call()

    def charge(self, messages: int) -> None:
        """So many of its messages, which were published elsewhere, count as sent here."""

    # What its link tells it

    def grown(self) -> None:
        """More waits to be read than before."""

    def relieved(self) -> None:
        """The link was choked and has room again."""

    def hang_up(self) -> None:
        """Everything was written: the connection ends."""


_NOTHING: Final = Carrier()
_EVERYWHERE = Site()


class Opening:
    """How a connection began: who is at the other end, and its HTTP head if it had one.

    `address` is the peer's IP address as text, `port` its port, `secure` whether TLS protects
    it, `certificate` the name in its TLS certificate (empty if it has none), `shared` the identity
    of the key that it shares with the hub (the same),
    `websocket` whether it is a WebSocket (the listener has answered the handshake and hands
    over unmasked messages), `gate` decides who may come in on this listener. `credentials` is
    what the client whose connection this is showed the gate, None before (`Admission.stays`); the
    secret is not kept.
    `carrier` is what carries the connection. `protocol` is the name of what is spoken, `challenge`
    the random number the hub told the client (0 = none), `info` what the client said about itself,
    and `argument` what the program said that handed the connection over. `mount` is what the names
    of this listener have before those that its clients say. `gone`: nobody waits for its answer any
    more. `site` says which requests of browsers it takes; who speaks HTTP asks it about each.
    `unwelcome`: why its address may have no such connection, whoever it is. `via`: the node of the
    cluster to which the client is connected, "" for this one. `whose`: as whose it was let in;
    whoever counts connections by user says so. `client`: which client it is, by the id that the hub
    chose if it left that to the hub.
    """

    __slots__ = (
        "address", "port", "secure", "certificate", "websocket", "request", "gate", "credentials",
        "carrier", "protocol", "challenge", "info", "argument", "mount", "site", "unwelcome",
        "gone", "shared", "via", "whose", "client",
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
        carrier: Carrier = _NOTHING,
    ) -> None:
        self.gate = gate
        self.address = address
        self.port = port
        self.secure = secure
        self.websocket = websocket
        self.gone = False
        self.certificate = certificate
        self.request = request
        self.credentials: Credentials | None = None
        self.carrier = carrier
        self.protocol = ""
        self.challenge = 0
        self.info = ""
        self.argument: object = None
        self.mount = ""
        self.site = _EVERYWHERE
        self.unwelcome = ""
        self.shared = ""
        self.via = ""
        self.whose = ""
        self.client = ""

    def end(self) -> None:
        """The connection is gone. What it showed and this refer to one another no more: nothing of
        a connection waits for the collector of cycles.
        """
        self.gone = True
        if self.credentials is not None:
            self.credentials.opening = None

    def ask(
        self, client: str, user: str, secret: bytes, decided: Decided,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:  # fmt: skip
        """Ask the gate; the answer may come later, and then in a call by `run`."""
        run = run or self.carrier.run
        credentials = Credentials(client, user, secret, self.address, self.certificate, self)
        asking = True

        def judged(rights: Rights | None, reason: str) -> None:
            credentials.secret = b""
            admission, reason = self._decided(credentials, rights, reason)
            if asking:
                decided(admission, reason)
            else:
                run(lambda: decided(admission, reason))

        if self.unwelcome:
            judged(None, self.unwelcome)
        else:
            self.gate.authenticate(credentials, judged)
        asking = False

    def _decided(
        self, credentials: Credentials, rights: Rights | None, reason: str
    ) -> tuple[Admission | None, str]:
        if rights is not None:
            reason = self.carrier.lacks(credentials)
        if rights is None or reason:
            aside = credentials.aside
            told = f"{words_of(reason)} ({aside})" if aside else reason
            self.turn_away(credentials.user, credentials.client, told)
            return None, reason
        whose = credentials.owner
        self.carrier.let_in(whose, credentials.client)
        admission = Admission(self.protocol, credentials.client, credentials.user, rights, self)
        admission.credentials = credentials
        admission.owner = whose
        return admission, ""

    def turn_away(self, user: str, client: str, reason: str) -> None:
        """Somebody was not let in: told, and remembered for who asks why."""
        self.carrier.refused(self, user, client, reason)

    def exchange(self, method: str, client: str) -> Exchange | None:
        """Begin a conversation about credentials; None if the gate does not know the method."""
        credentials = Credentials(client, "", b"", self.address, self.certificate, self)
        exchange = self.gate.exchange(method, credentials)
        return _Exchange(self, credentials, exchange) if exchange is not None else None


class _Exchange(Exchange):
    """An exchange of the gate, whose last step says who was let in."""

    def __init__(self, opening: Opening, credentials: Credentials, inner: Exchange) -> None:
        self._opening = opening
        self._credentials = credentials
        self._inner = inner

    def step(self, data: bytes) -> Step:
        unwelcome = self._opening.unwelcome
        step = Step(True, reason=unwelcome) if unwelcome else self._inner.step(data)
        if step.done:
            found = self._opening._decided(self._credentials, step.rights, step.reason)
            step.admission, step.reason = found
        return step


class Admission:
    """Who was let in, as whom, and with which rights: what a session begins with.

    `number`: the address of a connection that it takes over, 0 if there is none. `credentials`:
    what it showed the gate, None if no gate was asked; `owner`: to whom is put down what it takes.
    """

    __slots__ = (
        "protocol", "client", "user", "rights", "opening", "number", "credentials", "owner",
    )  # fmt: skip

    def __init__(
        self, protocol: str, client: str, user: str, rights: Rights, opening: Opening | None = None
    ) -> None:
        self.protocol = protocol
        self.client = client
        self.user = user
        self.rights = rights
        self.opening = opening
        self.number = 0
        self.credentials: Credentials | None = None
        self.owner = ""

    @property
    def mount(self) -> str:
        """What the names of its listener have before those that it says."""
        return self.opening.mount if self.opening is not None else ""

    def continues(self, user: str, mount: str) -> bool:
        """Whether a session of that user, under that mount point, is its own."""
        return (user, mount) == (self.user, self.mount)

    def stays(self) -> None:
        """The connection is this client's from now on: with these credentials it stands and falls.

        Not for who makes one request on the connection of another.
        """
        if self.opening is not None:
            self.opening.credentials = self.credentials
            if self.credentials is not None and self.credentials.expires:
                self.opening.carrier.until(self.credentials.expires)

    def holds(self) -> bool:
        """Whether the gate would still let it in, with what the files say now."""
        if self.opening is None or self.credentials is None:
            return True
        return self.opening.gate.still_in(self.credentials)


Decided = Callable[[Admission | None, str], None]
