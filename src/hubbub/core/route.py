"""A route: what the broker knows about one name, built once and used for every message to it.

Built by the broker, kept in `Rights.routes`, read by the hot path. Nothing is checked per
message that can be known per route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hubbub.core.message import Run
    from hubbub.core.session import Session, SessionState, Subscription

MANY: Final = 20  # receivers that take as much as the rest of a route


class Route:
    """What the broker knows about one name, for clients with the same rights.

    `record`: unretained QoS 0 messages are recorded; `audience` are the lasting sessions, with
    the QoS of their subscription; `must` says that something durable needs every message
    (a bound queue). `shared`: a group chooses the receiver, who may be a lasting session, so
    messages of QoS 1 and 2 are recorded. `allowed` False: whatever is published here is dropped
    and counted, or, where there is a `delay` in seconds, kept for later; or done, by `control`, and
    kept nowhere. `bounded`: what is published here waits at a place that may be full
    (`Broker.is_full`). `full`: it would begin a queue, for which its publisher has no quota.
    `way`: the one who lasts and matches is at another node, which may keep it instead of this one.
    `level`: what an answer to the publisher promises (`core.log`), 0 = as its listener's do.
    `column`: the name as rows have it, b"" until the first one (`column_of`).
    """

    __slots__ = (
        "name", "age", "allowed", "record", "must", "shared", "delay", "bounded", "subscriptions",
        "audience", "audience_seq", "audience_segment", "level", "control", "full", "column",
        "way",
    )  # fmt: skip

    def __init__(self, name: str, age: int) -> None:
        self.name = name
        self.column = b""
        self.age = age
        self.allowed = True
        self.record = False
        self.must = False
        self.shared = False
        self.delay = 0
        self.bounded = False
        self.full = ""
        self.level = 0
        self.way: Session | None = None
        self.control: Callable[[Run], None] | None = None
        self.subscriptions: list[Subscription] = []
        self.audience: list[tuple[SessionState, int]] = []
        self.audience_seq = 0
        self.audience_segment = -1

    @property
    def weight(self) -> int:
        """In routes of few receivers: each of many takes some 70 bytes."""
        return 1 + (len(self.audience) + len(self.subscriptions)) // MANY

    @property
    def takes(self) -> bool:
        """Whether something becomes of what is published here."""
        return self.allowed or self.delay > 0 or self.control is not None

    def elsewhere(self) -> list[Session]:
        """Who gets it and may have it kept for another node."""
        return [one.session for one in self.subscriptions if one.qos and one.session.crosses()]

    def succeed(self, old: Route) -> None:
        """Take over what the log already says of the audience, if it is still the same."""
        if self.audience == old.audience:
            self.audience_seq = old.audience_seq
            self.audience_segment = old.audience_segment
