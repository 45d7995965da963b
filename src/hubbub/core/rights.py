"""Who may do what. A `Gate` stands at each listener and turns credentials into `Rights`.

Clients with equal permissions share one `Rights`, and with it the cached routes: permission is
looked up when a route is built, never per message. `auth` fills these in; core only asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from hubbub.core.connection import Opening
    from hubbub.core.route import Route

# Why a gate says no. Protocols have codes for these; every other reason is a plain refusal.
NO_CREDENTIALS: Final = "clients without credentials are not let in here"
BAD_CREDENTIALS: Final = "wrong user name or password"
BAD_CLIENT: Final = "this client id is not let in here"
CERTIFICATE_REQUIRED: Final = "a client certificate that says a name is required here"
TOO_BUSY: Final = "too many clients want to be let in at once"
CERTIFICATE_REFUSED: Final = "this client certificate is not let in here"
DENIED: Final = "access denied"


def worded(reason: str, words: str) -> str:
    """One of these reasons, said by a gate in words of its own."""
    return f"{reason}\n{words}" if words else reason


def kind_of(reason: str) -> str:
    """Which of these reasons it is, if it is one."""
    return reason.partition("\n")[0]


def words_of(reason: str) -> str:
    """What the client is to read."""
    return reason.rpartition("\n")[2]


@mypyc_attr(allow_interpreted_subclasses=True)
class Rights:
    """Permissions of a group of clients; this one allows everything.

    `routes` is the cache of the broker's answers, keyed by the name's UTF-8 bytes; a route is
    valid while its age is the broker's.
    """

    def __init__(self) -> None:
        self.routes: dict[bytes, Route] = {}

    def may_publish(self, name: str) -> bool:
        return True

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether anything that matches the filter may be received."""
        return True

    def may_receive(self, name: str) -> bool:
        """Whether a message of that name may be received through a subscription."""
        return True

    def may_bind(self, topic_filter: str) -> bool:
        """Whether all that matches may be received: a queue has no permissions of its own."""
        return True

    def same_as(self, other: Rights) -> bool:
        """Whether another connection with these rights is as good as this one."""
        return other is self


class Credentials:
    """What a client showed: `secret` is a password or token, empty if it showed none.

    `certificate` is the name in its TLS certificate, empty if it has none; `opening` how its
    connection began, if it has one.
    """

    __slots__ = ("client", "user", "secret", "address", "certificate", "opening")

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


class Step:
    """One answer of a gate in a conversation about credentials.

    `done` False: send `data` and wait for more. Done with `rights`: the client is in, and gets
    `data` with its welcome. Done without: it is refused, and `reason` says why.
    """

    __slots__ = ("done", "data", "rights", "reason")

    def __init__(
        self, done: bool, data: bytes = b"", rights: Rights | None = None, reason: str = ""
    ) -> None:
        self.done = done
        self.data = data
        self.rights = rights
        self.reason = reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """A conversation about credentials by some method. Not used again once a step is done."""

    def step(self, data: bytes) -> Step:
        """Take what the client sent next."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Gate:
    """Lets everybody in with the same rights; `auth` has stricter ones."""

    def __init__(self, rights: Rights) -> None:
        self.rights = rights

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        """Call `done(rights, "")`, or `done(None, reason)`; perhaps later, never twice."""
        done(self.rights, "")

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        """Begin a conversation by that method; None if the gate does not know it."""
        return None

    def still_in(self, credentials: Credentials) -> bool:
        """Whether a client that was let in with these may stay, after the rules changed."""
        return True
