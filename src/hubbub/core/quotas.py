"""What there is for all, and what one user may take of it: a fifth of each pool.

    pool                  counts                              asked when
    queues                queues, by any door                 one begins
    delayed messages      messages under $delayed/            one is taken
    topic ids             names that have a number            one is given
    sub-topic ids         the same of sub-topics              one is given
    lasting sessions      sessions that outlive a connection  a client begins one
    bytes of subscriptions  SUBSCRIPTION_BYTES and the filter  a client subscribes, observes, binds
    retained bytes        payloads of retained messages       one is to be retained
    open requests         requests with a reply id            one is published, and is to get its id
    sink partitions       those of queries that publish       the first batch of one comes
    messages for a node   those that wait for each of them    one is published that is to wait
    last of the disk      what stays, where little is left    the same
    room in a queue       its own bounds, which hold for all  one is published into it

Who is nobody in particular counts as its address, and so does a user whose name nobody checked.
What the hub does by itself counts for nobody. What was taken is given back when it ends; what is
there since before the start counts for the pool, and for nobody. A refusal is counted, kept for who
asks why, and logged once a minute for each pool and user. The protocols have codes for it. Called
by the broker and its parts. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.audit import Audit
from hubbub.core.clock import Clock
from hubbub.core.gate import owner
from hubbub.core.limits import (
    CLUSTER_KEPT,
    DELAYED_MESSAGES,
    LASTING_SESSIONS,
    OPEN_REPLIES,
    QUEUES,
    RETAINED_BYTES,
    SHARE,
    SINK_PARTITIONS,
    SUBSCRIBED_BYTES,
    SUBSCRIPTION_BYTES,
    TOPIC_IDS,
)
from hubbub.core.metrics import Metrics
from hubbub.core.session import Session

DELAYED: Final = "delayed messages"
DISK: Final = "last of the disk"  # `core.scarce` counts it
KEPT: Final = "messages for a node"
NAMED: Final = "queues"
REQUESTS: Final = "open requests"
RETAINED: Final = "retained bytes"
SESSIONS: Final = "lasting sessions"
SINKS: Final = "sink partitions"
SUBSCRIBED: Final = "bytes of subscriptions"
ROOM: Final = "room in a queue"  # `core.queues` counts it
SUBTOPICS: Final = "sub-topic ids"
TOPICS: Final = "topic ids"

POOLS: Final = {
    DELAYED: DELAYED_MESSAGES, KEPT: CLUSTER_KEPT, NAMED: QUEUES, REQUESTS: OPEN_REPLIES,
    RETAINED: RETAINED_BYTES, SESSIONS: LASTING_SESSIONS, SINKS: SINK_PARTITIONS,
    SUBSCRIBED: SUBSCRIBED_BYTES, SUBTOPICS: TOPIC_IDS, TOPICS: TOPIC_IDS,
}  # fmt: skip
BEFORE: Final = "before the start"  # whose address nobody knows; counts for nobody
MINUTE: Final = 60.0  # from one line about a pool and a user to the next
TOLD: Final = 1_000  # pools and users that are remembered for that


class Quotas:
    """All pools of one hub. `most`: how much there is of each, `used`: how much users have."""

    def __init__(self, clock: Clock, metrics: Metrics, audit: Audit) -> None:
        self.most = dict(POOLS)
        self.used: dict[str, dict[str, int]] = {pool: {} for pool in POOLS}
        self.total = dict.fromkeys(POOLS, 0)
        self._clock = clock
        self._metrics = metrics
        self._audit = audit
        self._told: dict[tuple[str, str], float] = {}

    def lacks(self, pool: str, session: Session, there: int = -1, more: int = 1) -> str:
        """Why this client gets no more of a pool, "" if it does: that is a refusal.

        `there`: how much is taken, where somebody knows better than what users have together.
        """
        why = self.why_not(pool, session, there, more)
        if why:
            self.refuse(pool, session, why)
        return why

    def why_not(
        self, pool: str, session: Session, there: int = -1, more: int = 1, have: int = -1
    ) -> str:
        """The same for who may find it elsewhere: nothing is refused yet. `have`: how much the
        user has, of a pool of which there are several.
        """
        most, who = self.most[pool], payer(session)
        there = self.total[pool] if there < 0 else there
        if have < 0:
            have = self.used[pool].get(who, 0) if who else 0
        if there + more > most:
            return f"there are {there} {pool}, and {most} are the most"
        if have + more > max(1, most // SHARE):
            return f"{who} has {have} {pool}, and {max(1, most // SHARE)} of {most} are the most"
        return ""

    def refuse(self, pool: str, session: Session, why: str) -> None:
        """Count that this client gets no more of it, and say so once a minute."""
        who, refused = payer(session), self._metrics.refused
        refused[pool] = refused.get(pool, 0) + 1
        now = self._clock.now()
        if now < self._told.get((pool, who), 0.0):
            return
        if len(self._told) >= TOLD:
            self._told.clear()
        self._told[pool, who] = now + MINUTE
        text = f"refused for want of room: {why} (client {session.client!r})"
        self._audit.lacked(session, pool, text)

    def take(self, pool: str, session: Session | None, more: int = 1) -> str:
        """This client has so much more; return who is to `give` it back."""
        who = payer(session) if session is not None else ""
        self.put_down(pool, who, more)
        return who

    def put_down(self, pool: str, who: str, more: int) -> None:
        """The same for somebody of whom only the name is known; "" is nobody."""
        if who:
            users = self.used[pool]
            users[who] = users.get(who, 0) + more
            self.total[pool] += more

    def give(self, pool: str, who: str, less: int = 1) -> None:
        """Somebody has so much less."""
        if not who or who == BEFORE:
            return
        users = self.used[pool]
        self.total[pool] -= less
        left = users.get(who, 0) - less
        if left > 0:
            users[who] = left
        else:
            users.pop(who, None)


def size_of(topic_filter: str) -> int:
    """What a subscription takes."""
    return SUBSCRIPTION_BYTES + len(topic_filter)


def payer(session: Session) -> str:
    """For whom it counts what a client takes; "" is the hub itself."""
    if session.payer == BEFORE:
        return ""
    session.payer = session.payer or owner(session.user, session.address)
    return session.payer
