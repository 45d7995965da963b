"""Who is logged in: one session for each token, shared by the connections that named it.

A queue made with /transient belongs to its token and ends with the token's last connection, at
once; a client that wants to come back asks for a grace with its login. When the hub itself was
away, owners have `RESTART_SECONDS` to log in again. Connections call in, `Logins.sweep` runs
about once a second. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.caches import weight_of
from hubbub.core.gate import Admission, Opening
from hubbub.core.limits import READER_SECONDS, TOKENS
from hubbub.core.queue import PLAIN, Queue
from hubbub.core.quotas import SUBSCRIBED, size_of
from hubbub.core.session import Silent
from hubbub.protocols.switch.codec import TRANSFER_QUEUES, Refused

PROTOCOL: Final = "switch"
RESTART_SECONDS: Final = 60.0  # clients retry every few seconds; a supervisor needs longer
GRACE_SECONDS: Final = 3600.0  # the longest grace a client may ask for
ASKED: Final = 10_000  # requests that a service of dialect A has not answered
FETCHED: Final = 20  # of its reply queues that had their answer: its client makes one a call
UNANSWERED: Final = 500  # of those that still expect it: who waits has not made so many since
READS: Final = 1_000  # queues of one token: as many as one transfer may read
README: Final = "A"
CURRENT: Final = "C"


class Visitor(Silent):
    """Who asks for something; without a login it has no token."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(PROTOCOL, admission.client, admission.rights)
        self.admission = admission
        self.user, self.opening = admission.user, admission.opening
        self.payer = admission.owner
        self.address = self.opening.address if self.opening is not None else ""


class SwitchSession(Visitor):
    """One token. Messages wait in queues and are fetched; nothing is delivered to it.

    In dialect A (`readme`) it subscribes to queues, `subscribed`; `reading` are its transfers
    that wait, and how each hears of one more. `asked`: (reply-to, correlation) of a request that
    it got -> where that is, queue and id. `unanswered` and `fetched` are the reply queues that it
    made, by whether an answer was fetched from there; nobody ever destroys one. `reads` are the
    queues that it read last. `read_at`: the other node where dialect A's transfers went last.
    """

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission)
        self.readme = False
        self.subscribed: dict[str, None] = {}
        self.reading: dict[object, Callable[[str], None]] = {}
        self.asked: dict[tuple[str, int], tuple[str, int]] = {}
        self.asked_weight = 0
        self.unanswered: dict[str, None] = {}
        self.fetched: dict[str, None] = {}
        self.reads: dict[str, None] = {}
        self.read_at = ""
        self.openings: list[Opening] = []
        self.polls = 0
        self.grace = 0.0

    def subscribe(self, name: str) -> None:
        """What waits in that queue comes with the transfers of this token from now on."""
        self.subscribed[name] = None
        for hear in list(self.reading.values()):
            hear(name)

    def remember(self, reply_to: str, correlation: int, queue: str, number: int) -> None:
        """It got a request; the oldest ones are forgotten when there are too many."""
        self.answers(reply_to, correlation)
        self.asked[reply_to, correlation] = (queue, number)
        self.asked_weight += weight_of(reply_to)
        while self.asked_weight > ASKED:
            self.answers(*next(iter(self.asked)))

    def answers(self, reply_to: str, correlation: int) -> tuple[str, int] | None:
        """Queue and id of the request that this answers, which is no more remembered."""
        asked = self.asked.pop((reply_to, correlation), None)
        if asked is not None:
            self.asked_weight -= weight_of(reply_to)
        return asked

    def has_read(self, name: str) -> None:
        if name not in self.reads:
            self.reads[name] = None
            if len(self.reads) > READS:
                del self.reads[next(iter(self.reads))]

    def expects_answer(self, name: str) -> None:
        """A reply queue of its own was made, or is used again."""
        self.fetched.pop(name, None)
        self.unanswered[name] = None

    def got_answer(self, name: str) -> None:
        if name in self.unanswered:
            del self.unanswered[name]
            self.fetched[name] = None

    def worn_out(self) -> Iterator[str]:
        """The reply queues that have to go, so that one more may come; the oldest first."""
        for names, most in ((self.fetched, FETCHED), (self.unanswered, UNANSWERED)):
            while len(names) > most:
                name = next(iter(names))
                del names[name]
                yield name

    def goodbye(self, text: str = "") -> None:
        for opening in list(self.openings):
            opening.carrier.close_for(text or "ended by the hub")


def subscribe(broker: Broker, session: SwitchSession, name: str) -> None:
    """What waits in that queue comes with its transfers, whether it is there yet or not.

    Refused if it has too many: a name that nobody has takes as much as a subscription.
    """
    if name not in session.subscribed:
        if len(session.subscribed) >= TRANSFER_QUEUES:
            raise Refused(429, f"{len(session.subscribed)} subscriptions, no more are allowed.")
        lacks = broker.quotas.lacks(SUBSCRIBED, session, more=size_of(name))
        if lacks:
            raise Refused(507, f"No more subscriptions: {lacks}.")
        broker.quotas.take(SUBSCRIBED, session, size_of(name))
    session.subscribe(name)


def unsubscribe(broker: Broker, session: SwitchSession, name: str) -> None:
    if name in session.subscribed:
        del session.subscribed[name]
        broker.quotas.give(SUBSCRIBED, session.payer, size_of(name))


class Logins:
    """The sessions by token, and the transient queues of tokens that are here or expected.

    `made`: how many queues there are that began for a token, which may be away meanwhile.
    `dialects`: those that somebody spoke since the start; who has not logged in is shown things in
    dialect A if that is the only one.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stopping = False
        self.dialects: set[str] = set()
        self._sessions: dict[str, SwitchSession] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self.made: dict[str, int] = {}
        self._makers: dict[str, str] = {}
        self._deadlines: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._ending: dict[str, Iterator[str]] = {}  # whose queues end just now
        self._recovered = False
        broker.queues.moved.append(self.moved)

    def enter(self, admission: Admission, opening: Opening) -> SwitchSession | None:
        """One more connection of this token; None if it is in use by another user.

        Refused (429) if there are too many tokens. What it made is its own again.
        """
        self.stopping = False
        token = admission.client
        session = self._sessions.get(token)
        if session is None:
            if len(self._sessions) >= TOKENS:
                raise Refused(429, "Too many tokens are logged in.")
            for name in self._ending.pop(token, ()):  # what it had is gone before it is back
                self._end_queue(token, name)
            session = self._sessions[token] = SwitchSession(admission)
            self._deadlines.pop(token, None)
            self.broker.connect(session, admission)
            self._take_up(session)
        elif session.user != admission.user or not session.rights.same_as(admission.rights):
            return None
        admission.stays()
        session.openings.append(opening)
        return session

    def here(self) -> list[SwitchSession]:
        """Who is logged in."""
        return list(self._sessions.values())

    def _take_up(self, session: SwitchSession) -> None:
        """The queues of a token belong to whoever made them, when that user comes back."""
        for name in self._owned.get(session.client, ()):
            queue = self.broker.state.queues.get(name)
            if queue is not None and queue.user == session.user:
                queue.made_for(session)
                self.broker.age += 1

    def leave(self, session: SwitchSession, opening: Opening, reason: str) -> None:
        """One connection less; with the last one the transient queues go."""
        session.openings.remove(opening)
        if session.openings:
            return
        token = session.client
        del self._sessions[token]
        for name in list(session.subscribed):
            unsubscribe(self.broker, session, name)
        self.broker.disconnect(session, reason)
        if not (reason or self.stopping):
            self._left_in_order(session)
        if token not in self._owned:
            return  # nothing of it could go
        if self.stopping:
            # The hub goes, not the client: its queues wait for it.
            self._deadlines[token] = self.broker.clock.now() + RESTART_SECONDS
        elif session.grace:
            self._deadlines[token] = self.broker.clock.now() + session.grace
        else:
            self._end_queues(token)

    def _left_in_order(self, session: SwitchSession) -> None:
        """What it read and left empty misses nobody, once it would be missed."""
        for name in session.reads:
            queue = self.broker.state.queues.get(name)
            if queue is not None and queue.polled is not None and not queue.messages:
                self._left[name] = queue.polled

    def _miss_nobody(self, now: float) -> None:
        """Nobody came for them since, and nothing: they are as if nobody had ever read them."""
        for name, polled in list(self._left.items()):
            queue = self.broker.state.queues.get(name)
            if queue is None or queue.polled != polled or queue.messages:
                del self._left[name]
            elif now > polled + READER_SECONDS:
                del self._left[name]
                self.broker.queues.left(queue)

    def begun(self, queue: Queue, maker: Visitor) -> None:
        """A queue was made, for its owner if it is transient."""
        self._makers[queue.name] = maker.client
        self.made[maker.client] = self.made.get(maker.client, 0) + 1
        if queue.owner:
            self._own(queue)

    def is_unused(self, queue: Queue, maker: Visitor) -> bool:
        """Whether this client made it, and nobody has come to it nor said anything about it."""
        touched = queue.messages or queue.takers() or queue.bindings or queue.settings != PLAIN
        made = self._makers.get(queue.name) == maker.client and not queue.owner
        return made and queue.polled is None and not touched

    def ended(self, queue: Queue) -> None:
        """A queue was destroyed."""
        owned = self._owned.get(queue.owner, {})
        owned.pop(queue.name, None)
        if not owned:
            self._owned.pop(queue.owner, None)
        maker = self._makers.pop(queue.name, None)
        if maker is not None:
            self.made[maker] -= 1
            if not self.made[maker]:
                del self.made[maker]

    def moved(self, queue: Queue) -> None:
        """Another node has the queue now, where its ids mean other messages: who read it is cut off
        and begins anew.
        """
        self.ended(queue)
        for session in list(self._sessions.values()):
            if queue.name in session.reads:
                session.goodbye(f"{queue.client} is at another node now")

    def _own(self, queue: Queue) -> None:
        self._owned.setdefault(queue.owner, {})[queue.name] = None

    def sweep(self, now: float) -> None:
        """End the queues of those who did not come back in time."""
        if not self._recovered:
            self._recovered = True
            self._find_owners(now + RESTART_SECONDS)
        if self._left:
            self._miss_nobody(now)
        for token in [token for token, until in self._deadlines.items() if until <= now]:
            del self._deadlines[token]
            self._end_queues(token)

    def _find_owners(self, deadline: float) -> None:
        """Queues that the journal remembers from before this start."""
        for queue in self.broker.state.queues.values():
            if queue.owner:
                self._own(queue)
                if queue.owner not in self._sessions:
                    self._deadlines.setdefault(queue.owner, deadline)

    def _end_queues(self, token: str) -> None:
        """In turns: there may be twenty thousand, and all others would wait for that."""
        names = self._ending[token] = iter(list(self._owned.pop(token, ())))
        self.broker.in_turns(self._ended(token, names))

    def _ended(self, token: str, names: Iterator[str]) -> Iterator[None]:
        for name in names:
            self._end_queue(token, name)
            yield
        if self._ending.get(token) is names:
            del self._ending[token]

    def _end_queue(self, token: str, name: str) -> None:
        queue = self.broker.state.queues.get(name)
        if queue is not None and queue.owner == token:
            self.broker.queues.destroy(name)
            self.ended(queue)
