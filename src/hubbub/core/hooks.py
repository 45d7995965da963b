"""What the program around a hub wants to hear, and may decide. The broker calls, the hub fills in.

Everything here is called in the middle of the broker's own work: an implementation answers at
once, and puts off whatever else it wants to do.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from hubbub.core.message import Run
from hubbub.core.session import Session, Subscription


@mypyc_attr(allow_interpreted_subclasses=True)
class Hooks:
    """`Broker.hooks` is told of clients and names, `Broker.inspector` sees every message.

    `Broker.watcher` is told of subscriptions, and of clients that are gone.
    """

    def connected(self, session: Session) -> None:
        """A client is here, and has its number. Nothing was written to it yet."""

    def entitled(self, session: Session) -> None:
        """A client has other rights from now on."""

    def disconnected(self, session: Session, number: int, reason: str) -> None:
        """The client that had this number is gone ("" = it left in order)."""

    def subscribed(self, subscription: Subscription) -> None:
        """A client has a subscription, or this one instead of one it had."""

    def unsubscribed(self, session: Session, name: str) -> None:
        """A client has one less."""

    def may_name(self, subtopic: str, session: Session) -> bool:
        """Whether a client may make a sub-topic that is new."""
        return True

    def passes(self, run: Run) -> bool:
        """Whether a run may be published; False drops it without a word."""
        return True

    def undelivered(self, run: Run) -> None:
        """Nobody got this."""
