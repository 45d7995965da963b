"""Who may do what. A `Gate` stands at each listener and turns credentials into `Rights`.

Clients with equal permissions share one `Rights`, and with it the cached routes: permission is
looked up when a route is built, never per message. `auth` fills these in; core only asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from hubbub.core.route import Route


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
        return True


class Credentials:
    """What a client showed: `secret` is a password or token, empty if it showed none."""

    __slots__ = ("client", "user", "secret", "address")

    def __init__(self, client: str, user: str, secret: bytes, address: str) -> None:
        self.client = client
        self.user = user
        self.secret = secret
        self.address = address


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
