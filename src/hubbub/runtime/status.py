"""What a hub says about itself, in plain values, for JSON. Its node puts the parts together.

The lists are made for those who look at them; `/metrics`, which is asked every few seconds, is
spared what it does not print.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.foremost import foremost
from hubbub.core.limits import (
    FLOODED_BYTES,
    LASTING_SESSIONS,
    PIPELINE_BYTES,
    PIPELINES,
    QUEUES,
)
from hubbub.core.queue import Queue
from hubbub.journal.writer import Journal
from hubbub.runtime.upkeep import Upkeep
from hubbub.schema import name_shown

_AGED: Final = 200  # queues; the oldest message of each is read back
_SILENT: Final = 20_000_000  # us in which a running pipeline says something, some times over
ITSELF: Final = "hub"
OF_CLIENTS: Final = "(of clients)"  # the name of all queues that end with whoever made them


def traffic(broker: Broker) -> dict[str, Any]:
    """What went through since it started, and how much of everything there is."""
    metrics = broker.metrics
    published = {name or ITSELF: one.published for name, one in metrics.traffic.items()}
    published[ITSELF] = 0  # with other nodes, and the program around the hub: the rest
    published[ITSELF] = metrics.messages_in - sum(published.values())
    return {
        "started": metrics.started,
        "client_count": len(broker.clients),
        "client_protocols": Counter(s.protocol for s in broker.clients.values()),
        "sessions_away": sum(not s.connected for s in broker.state.sessions.values()),
        "queue_count": len(broker.state.queues),
        "retained": len(broker.state.retained),
        "messages_in": metrics.messages_in,
        "bytes_in": metrics.bytes_in,
        "messages_out": metrics.messages_out,
        "published": published,
        "delivered": {name or ITSELF: one.delivered for name, one in metrics.traffic.items()},
        "connections": metrics.connections - metrics.connections_ended,
        "connections_made": metrics.connections,
        "connections_refused": metrics.connections_refused,
        "logins_refused": broker.audit.refusals.logins,
        "actions_refused": broker.audit.refusals.actions,
        "bytes_received": metrics.bytes_received,
        "bytes_sent": broker.outgoing.bytes_sent,
        "dropped": metrics.dropped,
        "refused": metrics.refused,
        "held_back": metrics.held_back,
        "busiest_sender": _busiest(broker),
        "slowed": metrics.slowed,
    }


def _busiest(broker: Broker) -> dict[str, float]:
    """How fast the one sends who costs most; who that is, `ls senders` says."""
    found = broker.sampled.busiest()
    rate, size = (found[0].rate, found[0].bytes) if found else (0.0, 0.0)
    return {"messages_per_second": round(rate, 1), "bytes_per_second": round(size)}


def limits(broker: Broker, connections: int, settings: Settings) -> dict[str, Any]:
    """What there may be at most of what grows, by the name of its figure, and why it is refused.

    The disk is that of the data, in bytes; 0 where nothing is known of it.
    """
    disk = (0, 0, 0)
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(settings.data)
    return {
        "connections": connections,
        "lasting": LASTING_SESSIONS,
        "retained": broker.retained.most,
        "queues": QUEUES,
        "calls_open": broker.replies.most,
        "waiting_bytes": FLOODED_BYTES,
        "disk_bytes": disk[0],
        "disk_free": disk[2],
        "not_taken": broker.no_room,
        "shared_out": broker.scarce.says(),
    }


def clients(broker: Broker, limit: int, offset: int) -> list[dict[str, Any]]:
    return [
        {
            "protocol": session.protocol,
            "client": name_shown(session.client),
            "number": number,
            "address": session.address,
            **({"via": via} if (via := session.opening.via if session.opening else "") else {}),
            "subscriptions": len(session.subscriptions),
            "dropped": session.dropped,
        }
        for number, session in islice(broker.clients.items(), offset, offset + limit)
    ]


async def _foremost(broker: Broker, most: int) -> list[Queue]:
    found: list[Queue] = []
    for _ in foremost(broker.queues, most, found):
        await asyncio.sleep(0)
    return found


async def queues(broker: Broker, limit: int, offset: int) -> list[dict[str, Any]]:
    shown = await _foremost(broker, offset + limit)
    return [
        {
            "name": name_shown(queue.name),
            "messages": len(queue.messages),
            "full": broker.queues.is_full(queue),
            "leased": len(queue.leased),
            "next": queue.next,
            "owner": name_shown(queue.owner),
            "waits": round(broker.queues.waits(queue) if index < _AGED else 0.0, 3),
            "away": round(broker.queues.away(queue), 3),
        }
        for index, queue in enumerate(shown[offset:])
    ]


async def waiting(broker: Broker, most: int) -> list[dict[str, Any]]:
    """What `/metrics` prints of the queues. Those of clients, named at random, are one together."""
    shown = await _foremost(broker, most)
    lasting = [queue for queue in shown if not queue.owner]
    found = [
        {
            "name": name_shown(queue.name),
            "messages": len(queue.messages),
            "leased": len(queue.leased),
            "waits": round(broker.queues.waits(queue) if index < _AGED else 0.0, 3),
            "takers": queue.takers(),
        }
        for index, queue in enumerate(lasting)
    ]
    own = [queue for queue in shown if queue.owner]
    if own:
        found.append({
            "name": OF_CLIENTS,
            "messages": sum(len(queue.messages) for queue in own),
            "leased": sum(len(queue.leased) for queue in own),
            "waits": 0.0,
            "takers": sum(queue.takers() for queue in own),
        })
    return found


def recorded(broker: Broker, journal: Journal | None, upkeep: Upkeep) -> dict[str, Any]:
    """How the journal is. Without one everything is kept in memory."""
    found: dict[str, Any] = {
        "directory": "",
        "record": broker.record,
        "position": str(broker.log.position),
        "committed": str(broker.log.durable),
        "bytes": 0,
        "trouble": "",
        "waiting_bytes": 0,
    }
    if journal is not None:
        found["directory"] = str(journal.directory.path.resolve())
        found["bytes"] = _size(journal.directory.path)
        found["trouble"] = journal.complaint()
        found["waiting_bytes"] = journal.pending_bytes
        segments = journal.directory.segments()
        found["first"] = str(segments[0] if segments else journal.position)
        found["segments"] = len(segments)
        found["keep_bytes"] = journal.keep_bytes
        found.update(upkeep.figures())
        for name, figure in journal.pulse.figures().items():
            found[re.sub("[ /]", "_", name)] = round(figure(), 3)
    return found


def pipelines(journal: Journal | None, now: int) -> list[dict[str, Any]]:
    """What the pipelines of this journal said last, in files beside it (`hubbub.pipeline.watch`).

    One that says nothing any more, and did not say that it ends, is `silent`. How far behind one
    is that does not run any more the journal says: what it said itself was of when it ended.
    """
    if journal is None:
        return []
    found = []
    for file in islice((journal.directory.path / "pipelines").glob("*.json"), PIPELINES):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(_most_of(file))
            if said["state"] in ("running", "behind") and now - said["time"] > _SILENT:
                said["state"] = "silent"
            if said["state"] not in ("running", "behind"):
                said |= _left_behind(journal, said.get("seq"))
            found.append(said)
    return sorted(found, key=lambda said: str(said["name"]))


def _left_behind(journal: Journal, seq: object) -> dict[str, Any]:
    """Since when its oldest row waits is not known without reading it."""
    rows = max(0, journal.durable - seq) if isinstance(seq, int) else None
    return {"behind_rows": rows, "behind_seconds": None if rows != 0 else 0.0}


def _most_of(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        return opened.read(PIPELINE_BYTES)


def _size(directory: Path) -> int:
    """Bytes of the journal's files; one that goes meanwhile does not count."""
    total = 0
    for path in directory.glob("*/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
