"""Who is logged in: one session for each token, shared by the connections that named it.

A queue made with /transient belongs to its token and ends with the token's last connection, at
once; a client that wants to come back asks for a grace with its login. When the hub itself was
away, owners have `RESTART_SECONDS` to log in again. Connections call in, `Logins.sweep` runs
about once a second. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.rights import Rights
from hubbub.core.session import Silent

PROTOCOL: Final = "switch"
RESTART_SECONDS: Final = 60.0  # clients retry every few seconds; a supervisor needs longer
GRACE_SECONDS: Final = 3600.0  # the longest grace a client may ask for


class SwitchSession(Silent):
    """One token. Messages wait in queues and are fetched; nothing is delivered to it."""

    def __init__(self, token: str, rights: Rights, address: str) -> None:
        super().__init__(PROTOCOL, token, rights)
        self.address = address
        self.connections = 0
        self.polls = 0
        self.grace = 0.0


class Logins:
    """The sessions by token, and the transient queues of tokens that are here or expected."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stopping = False
        self._sessions: dict[str, SwitchSession] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._deadlines: dict[str, float] = {}
        self._recovered = False

    def enter(self, token: str, rights: Rights, address: str) -> SwitchSession | None:
        """One more connection of this token; None if it is in use with other rights."""
        session = self._sessions.get(token)
        if session is None:
            session = self._sessions[token] = SwitchSession(token, rights, address)
            self._deadlines.pop(token, None)
            self.broker.connect(session)
        elif session.rights is not rights:
            return None
        session.connections += 1
        return session

    def leave(self, session: SwitchSession, reason: str) -> None:
        """One connection less; with the last one the transient queues go."""
        session.connections -= 1
        if session.connections:
            return
        token = session.client
        del self._sessions[token]
        self.broker.disconnect(session, reason)
        if self.stopping:
            return  # the hub goes, not the client: its queues wait for it
        if session.grace:
            self._deadlines[token] = self.broker.clock.now() + session.grace
        else:
            self._end_queues(token)

    def own(self, token: str, queue: str) -> None:
        """The token made a transient queue."""
        self._owned.setdefault(token, {})[queue] = None

    def disown(self, token: str, queue: str) -> None:
        self._owned.get(token, {}).pop(queue, None)

    def sweep(self, now: float) -> None:
        """End the queues of those who did not come back in time."""
        if not self._recovered:
            self._recovered = True
            self._find_owners(now + RESTART_SECONDS)
        for token in [token for token, until in self._deadlines.items() if until <= now]:
            del self._deadlines[token]
            self._end_queues(token)

    def _find_owners(self, deadline: float) -> None:
        """Queues that the journal remembers from before this start."""
        for queue in self.broker.state.queues.values():
            if queue.owner:
                self.own(queue.owner, queue.name)
                if queue.owner not in self._sessions:
                    self._deadlines.setdefault(queue.owner, deadline)

    def _end_queues(self, token: str) -> None:
        for name in self._owned.pop(token, ()):
            queue = self.broker.state.queues.get(name)
            if queue is not None and queue.owner == token:
                self.broker.destroy(name)
