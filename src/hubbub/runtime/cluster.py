"""A hub's part in a cluster, as its node drives it: made, opened, heard, left.

made with the broker -> begins when the state is recovered -> joins before clients are heard
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from hubbub.cluster import wills
from hubbub.cluster.alone import Alone
from hubbub.cluster.engine import Engine
from hubbub.cluster.estates import began_by
from hubbub.cluster.keeping import PROTOCOL, Recall, estate_and_origin
from hubbub.cluster.membership import Membership
from hubbub.cluster.relays import Crowded
from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.link import Link
from hubbub.core.session import Revival, Silent, row_about
from hubbub.core.state import adopted
from hubbub.errors import SettingError
from hubbub.schema import END

BESIDE_SECONDS: Final = 300.0  # for a process that starts, too: it may read a large journal
LOOK_SECONDS: Final = 0.05  # from one look to the next whether it is there

log = logging.getLogger("hubbub.cluster")


def member(
    broker: Broker, settings: Settings, engine: Engine | None, version: str
) -> Membership | None:
    """The membership of this hub, None if it is alone. SettingError for what cannot be."""
    wanted = settings.cluster
    if engine is None and not wanted.url:
        return None
    if complaint := wanted.complaint():
        raise SettingError(complaint)
    alone: Alone | None = None  # of an engine that knows who is there nobody need ask
    if engine is None:
        if not wanted.name:
            raise SettingError(
                "cluster.name is missing: each node of a cluster has its own (--cluster-name)"
            )
        from hubbub.cluster.nats import Nats

        engine = Nats(wanted)
        alone = engine.alone
    counts_all = wanted.counts == "cluster"
    found = Membership(broker, engine, version, counts_all, wanted.keep, wanted.place)
    if alone is not None:
        alone.taken, alone.stamp = found.hearing.stay_out, broker.clock.stamp
        found.alone = alone.ask
    wills.wait_to_know(found, wills.WHO_IS_WHERE)
    return found


def recalls(membership: Membership | None, broker: Broker, ahead: int = 0) -> list[Revival]:
    """Who makes the nodes for which messages were kept. A hub that is alone keeps them until their
    time is over, in case it is to be a node again, and says so. What a dead node had, and had not
    come whole, comes once more. `ahead`: the time of the last row, if that is to come.
    """
    if membership is not None and ahead:
        membership.holdings.was_ahead(ahead)
    for name in list(broker.state.adopting):
        broker.change(adopted(name, live=False))
    if membership is not None:
        return [Recall(membership.recall)]
    for state in list(broker.state.sessions.values()):
        if state.protocol != PROTOCOL:
            continue
        if 0 < state.expires <= broker.clock.stamp():
            broker.change(row_about(Silent(PROTOCOL, state.client, broker.open), END))
        elif state.backlog.entries:
            estate, _ = estate_and_origin(state.client)
            log.warning("%d messages wait for the node %r of a cluster, in which this hub takes no "
                        "part now", len(state.backlog.entries), began_by(estate))  # fmt: skip
    return []


async def join(
    membership: Membership, schedule: Callable[[], None], crowded: Crowded,
    beside: Collection[str] = (),
) -> None:  # fmt: skip
    """Be one of the nodes from now on. SettingError if another one has this name. `beside`: nodes
    that start when this one does, processes of the same hub.
    """
    engine = membership.engine
    membership.relays.hurry, membership.relays.crowded = schedule, crowded
    loop = asyncio.get_running_loop()
    membership.pause = loop.call_later
    # What nodes say goes on where only the servers of copies are behind, which may be for hours.
    nothing_held = Link(membership.broker.outgoing)
    membership.hearing.crowded = lambda: crowded(True, nothing_held)

    def heard(frame: bytes) -> None:
        membership.hear(frame)
        schedule()

    def changed() -> None:
        if engine.up:
            membership.beat()
        membership.relieve()
        schedule()

    membership.begin()
    await engine.open(heard, changed)
    if not membership.excluded:
        membership.beat()
    schedule()
    await engine.settle(membership.met)
    await _meet(membership, beside)
    if membership.excluded:
        await engine.close()
        raise SettingError(membership.excluded)
    wills.listen(membership)
    schedule()


async def _meet(membership: Membership, beside: Collection[str]) -> None:
    """Until they have said which sessions are theirs, or a client would begin anew here what waits
    for it there. While nodes cannot reach one another nobody can say so.
    """
    loop, others = asyncio.get_running_loop(), set(beside) - {membership.name}
    until = loop.time() + BESIDE_SECONDS
    while membership.engine.up and not membership.excluded and loop.time() < until:
        if all(membership.met(name) for name in others):
            return
        await asyncio.sleep(LOOK_SECONDS)


async def leave(membership: Membership) -> None:
    membership.goodbye()
    await membership.engine.close()
