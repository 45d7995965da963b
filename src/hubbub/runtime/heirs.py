"""Who goes on with what a dead node had: one of the others, whichever stops its stream first.

    a node with a stream is silent ──→ fence: a message behind its last one, that one and no other
        └── refused: somebody else was first          └──→ read, fold, adopt, tell

The servers decide by the number that the fence must follow; nobody votes. A fence whose author
died before it had adopted is answered by the author's own heir. The node calls `wake`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from hubbub.cluster import heritage
from hubbub.cluster.copies import FENCE, LOG, STATE, Piece
from hubbub.cluster.jetstream import JetStream
from hubbub.cluster.keeping import HEIR
from hubbub.cluster.membership import Membership
from hubbub.core.limits import CLUSTER_HEIR_SECONDS, CLUSTER_RETURN_SECONDS
from hubbub.core.session import Revival
from hubbub.core.state import State
from hubbub.errors import JournalError
from hubbub.journal.copied import Copy, folded
from hubbub.runtime.copying import Copying

LOOK_SECONDS: Final = 1.0

log = logging.getLogger("hubbub.cluster")


class Heirs:
    """`protocols` make the sessions of a dead node live; `schedule` runs the tick."""

    def __init__(
        self, membership: Membership, copying: Copying, protocols: Sequence[Revival],
        schedule: Callable[[], None],
    ) -> None:  # fmt: skip
        self.membership = membership
        self.broker = membership.broker
        self.copying = copying
        self.stream: JetStream = copying.stream
        self.protocols = protocols
        self._schedule = schedule
        self._seen: set[str] = set()
        self._missing: dict[str, float] = {}
        self._again = 0.0
        self._looking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        now = self.broker.clock.now()
        runs = self._looking is not None and not self._looking.done()
        if runs or now < self._again or not self.copying.copies.ready or self.membership.excluded:
            return
        self._again = now + LOOK_SECONDS
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,), timeout=1)

    async def _look(self) -> None:
        try:
            for name in await self.stream.nodes():
                if name != self.membership.name and self._may_claim(name) and self._is_dead(name):
                    await self._claim(name)
            if self.copying.fenced_at:
                await self._claim_own()
        except Exception as error:  # no leader, no connection: soon again
            log.info("copies: the others' cannot be looked at: %s", error or type(error).__name__)

    def _may_claim(self, name: str) -> bool:
        """What others kept for this node is its heir's: until that is known none is taken over, but
        the one that was to be it.
        """
        return not self.membership.deposed or name == self.copying.fenced_by

    def _is_dead(self, name: str) -> bool:
        """One that stopped in order, or was never seen, has longer: it may be on its way back."""
        now = self.broker.clock.now()
        if name in self.membership.nodes:
            self._seen.add(name)
            self._missing.pop(name, None)
            return False
        known = name in self._seen and name not in self.membership.stopped
        wait = CLUSTER_HEIR_SECONDS if known else CLUSTER_RETURN_SECONDS
        return now - self._missing.setdefault(name, now) >= wait

    async def _claim(self, name: str) -> None:
        found = await self.stream.last(self.stream.stream_of(name))
        if found.last is None:
            return
        at = found.at
        if found.last.kind != FENCE:
            at = await self._fence(name, found.at)
        elif found.at <= self._had(name):
            return
        else:
            author = found.last.data.decode(errors="replace")
            if author != self.membership.name:
                if author in self.membership.nodes or not self._had(author):
                    return  # it does it, or its own heir will
                at = await self._fence(name, found.at)
        if at:
            await self._adopt(name, at)

    async def _claim_own(self) -> None:
        """Who fenced this node died before it had adopted, and this node is its heir."""
        author, at = self.copying.fenced_by, self.copying.fenced_at
        if self._had(self.membership.name) >= at:
            self.copying.confirmed(self.membership.name, at)
        elif author not in self.membership.nodes and self._had(author):
            await self._adopt(self.membership.name, at)
            self.copying.confirmed(self.membership.name, at)

    def _had(self, name: str) -> int:
        """Up to which message of its stream what a node had is here."""
        return self.broker.state.taken.get(HEIR + name, 0)

    async def _fence(self, name: str, after: int) -> int:
        log.warning("node %r is dead: stopping its stream behind message %d", name, after)
        return await self.stream.fence(name, after, self.broker.clock.stamp())

    async def _adopt(self, name: str, at: int) -> None:
        pieces = await self.stream.read(name, at)
        try:
            copy = await asyncio.to_thread(copy_of, pieces)
        except JournalError as error:
            log.error("what node %r had cannot be taken over: %s", name, error)
            return
        if copy is None:  # it hears so all the same, or it would wait for its heir for ever
            log.warning("node %r had no whole checkpoint: there is nothing to take over", name)
            copy = Copy(State(), [], 0)
        taken = heritage.adopt(
            self.membership, name, at, copy.state, copy.messages, self.protocols
        )  # fmt: skip
        self._schedule()
        log.warning(
            "this node is the heir of node %r: %d sessions, %d queues, %d messages, %d missing",
            name, taken.sessions, taken.queues, taken.messages, taken.missing + copy.missing,
        )  # fmt: skip


def copy_of(pieces: list[Piece]) -> Copy | None:
    """What the newest life with a whole checkpoint leads to; None if there is none."""
    lives: dict[int, dict[str, list[tuple[int, bytes]]]] = {}
    parts: dict[tuple[int, str], bytearray] = {}
    for piece in pieces:
        if piece.kind == FENCE:
            continue
        data = parts.setdefault((piece.life, piece.kind), bytearray())
        data += piece.data
        if not piece.more:
            whole = lives.setdefault(piece.life, {LOG: [], STATE: []})
            whole[piece.kind].append((piece.upto, bytes(data)))
            data.clear()
    for whole in reversed(list(lives.values())):
        if whole[STATE]:
            upto, state = whole[STATE][-1]
            return folded(upto, state, (data for _, data in whole[LOG]))
    return None
