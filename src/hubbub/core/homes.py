"""Where the session of a client lasts, or a queue, and the way there from another node.

A session has one home. A protocol whose sessions last asks `Homes.of` when a client was let in,
and hands a connection whose home is another node to `relay`; what is read from then on goes into
the `Way`. So does a protocol for what it is asked of a queue. A hub that is alone has every session
and queue itself. The cluster fills both in. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import mypyc_attr

from hubbub.core.gate import Admission
from hubbub.core.link import Link
from hubbub.core.session import Session, Subscription


class Home:
    """The node where a session lasts. `lacks`: why nothing can be relayed there, "" if it can;
    `estate`: of which of those that the node has it is (`cluster.estates`).
    """

    __slots__ = ("node", "lacks", "estate")

    def __init__(self, node: str, lacks: str, estate: str) -> None:
        self.node = node
        self.lacks = lacks
        self.estate = estate


@mypyc_attr(allow_interpreted_subclasses=True)
class Way:
    """From a connection here to its session at home. `answered`: something came from there;
    `whole`: it ended with a whole packet, so that something else may be written behind it.
    """

    answered = False
    whole = True

    def feed(self, data: bytes) -> None:
        """What the client said; the socket is not read while the home takes no more."""
        raise NotImplementedError

    def waiting(self) -> int:
        """How many bytes the home has not taken yet."""
        return 0

    def drained(self) -> None:
        """The client has read what came from there."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The connection here is gone: so is the one at home."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Homes:
    """Of a hub that is `alone`: all is at home here. `name`: this node's."""

    alone = True
    name = ""

    def of(self, protocol: str, client: str) -> Home | None:
        """Where the session of a client lasts, or that queue; None: here, or nowhere."""
        return None

    def at(self, name: str, what: str) -> Home:
        """That node as a home; `what` is there, if it is not to be reached."""
        raise NotImplementedError

    def relay(
        self, home: Home, link: Link, admission: Admission, said: bytes, proof: bytes,
        stranded: Callable[[str], None],
    ) -> Way:  # fmt: skip
        """Let the home go on with a connection: `said` is what its client began with, without any
        secret, `proof` what its welcome says of how it showed who it is. `stranded` is called with
        the reason when the home cannot be reached any more.
        """
        raise NotImplementedError

    def outlet(self, home: Home) -> Subscription:
        """The way of what is published into a queue there."""
        raise NotImplementedError

    def consume(self, name: str, subscription: Subscription) -> None:
        """A session here takes part in the competition for a queue there."""
        raise NotImplementedError

    def consume_no_more(self, name: str, subscription: Subscription) -> bool:
        """False if it took part in none elsewhere."""
        return False

    def resume(self, name: str) -> None:
        """A consumer of a queue there has room for more."""

    def end(self, protocol: str, client: str) -> None:
        """The client begins anew here: what lasts of it elsewhere is over."""

    def since(self, session: Session) -> int:
        """When one begins that comes now: of two of one client the later one stays."""
        return session.came

    def began(self, session: Session, since: int) -> None:
        """A session or queue of here lasts, since that time."""

    def ended(self, session: Session) -> None:
        """A session or queue that lasted here is over."""
