"""A node: broker + journal + the tick (`turn`) + its listeners. What `Hub` owns and drives.

One event loop; the only other thread is the journal's writer, which calls back through the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from msgspec.structs import replace

from hubbub.auth.gate import Gates
from hubbub.build import is_compiled, made
from hubbub.cluster.engine import Engine
from hubbub.cluster.membership import Membership
from hubbub.cluster.roster import Rest
from hubbub.config import exposed
from hubbub.config.settings import Listener as PlaceSettings
from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock, astray
from hubbub.core.gate import Gate, Opening
from hubbub.core.limits import CLIENTS, COMMIT_SECONDS, STRANGERS, SUBSCRIBED_BYTES
from hubbub.core.log import Log
from hubbub.core.low import megabytes
from hubbub.core.metrics import Histogram
from hubbub.core.quotas import DELAYED, REQUESTS, RETAINED, SUBSCRIBED
from hubbub.core.system import System
from hubbub.errors import SettingError
from hubbub.journal.room import Room
from hubbub.journal.writer import Journal
from hubbub.protocols import registry
from hubbub.runtime import cluster, cutoff, descriptors, directory, removal, status
from hubbub.runtime.archive import JournalArchive
from hubbub.runtime.arrivals import Arrivals
from hubbub.runtime.backpressure import Backpressure
from hubbub.runtime.binding import ServerSocket
from hubbub.runtime.busypoll import BusyPoll
from hubbub.runtime.collector import not_collecting
from hubbub.runtime.control import Control
from hubbub.runtime.copying import NO_COPIES, Copying, copying
from hubbub.runtime.deadlines import Deadlines
from hubbub.runtime.dialer import Dialer
from hubbub.runtime.door import Door
from hubbub.runtime.farewell import Leaving
from hubbub.runtime.figures import Figures
from hubbub.runtime.guests import Guest
from hubbub.runtime.heirs import Heirs
from hubbub.runtime.listener import Listener
from hubbub.runtime.memory import memory
from hubbub.runtime.rates import Rates
from hubbub.runtime.siblings import Siblings
from hubbub.runtime.socket import STOPPING, Socket
from hubbub.runtime.strangers import Strangers
from hubbub.runtime.systemd import still_starting
from hubbub.runtime.turn import Turn, safely
from hubbub.runtime.upkeep import Upkeep
from hubbub.runtime.waiting import Waiting
from hubbub.wire.http import Request

log = logging.getLogger("hubbub")

SWEEP_SECONDS = 0.25
STOP_SECONDS = 5.0
PROGRESS_SECONDS = 1.0
VERSION = version("hubbub")
SHOWN = 1_000  # clients in the status, and queues, unless it is asked for more or fewer


class WebApplication(Protocol):
    """What serves the HTTP requests that no protocol takes."""

    async def start(self) -> None: ...
    def adopt(self, transport: asyncio.Transport, data: bytes, opening: Opening) -> Guest: ...
    def claims(self, request: Request) -> bool: ...
    def dismiss(self, request: Request, opening: Opening) -> bytes: ...
    async def stop(self) -> None: ...


class Node:
    """One hub at work. `async with Node(settings)` runs it on this loop until the block ends.

    `settings.journal.record = "none"` keeps everything in memory; otherwise the journal lies in
    `settings.data`, which belongs to one hub at a time (DirectoryError). `guard` may put a gate
    before that of a listener; `engine` joins it to a cluster, if the settings name none.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        guard: Callable[[Gate], Gate] = lambda gate: gate,
        engine: Engine | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.engine = engine
        self.membership: Membership | None = None
        self.copying: Copying | None = None
        self.siblings: Siblings | None = None
        self.beside: tuple[str, ...] = ()  # processes that start with it, as nodes of a cluster
        self.heirs: Heirs | None = None
        self.guard = guard
        self.clock = Clock()
        self.journal: Journal | None = None
        self.listeners: list[Listener] = []
        self.sockets: set[Socket] = set()
        self.bind: Callable[[PlaceSettings, list[ServerSocket]], ServerSocket] = ServerSocket
        self._bound: list[ServerSocket] = []
        self.bridges: list[registry.Bridge] = []
        self.dialers: list[Dialer] = []
        self.deadlines: Deadlines[Socket] = Deadlines()
        self.most_connections = CLIENTS
        self.web: WebApplication | None = None
        self.recovered: Callable[[], None] = lambda: None  # called when what lasts is there
        self.broker = Broker(self.clock, Log(self.clock), "none")
        self.strangers = Strangers(STRANGERS, self.broker.metrics)
        self.leaving = Leaving()
        self.door = Door(self.broker.metrics)
        self.waiting = Waiting(self.broker.metrics)
        self.rates = Rates(self.clock, self.broker.metrics)
        self.arrivals = Arrivals(self.clock, self.broker.metrics)
        self.gates = Gates(self.broker.open)
        self.upkeep = Upkeep(self.clock)
        self.archive: JournalArchive | None = None
        self.delay = Histogram()
        self.figures = Figures(self.broker, None, self.delay)
        self._commit_timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._astray = False

    # Life

    async def start(self, recovered: Callable[[], None] = lambda: None) -> None:
        """Bind, recover the journal, open the listeners. On an error nothing is left open.

        `recovered` is called when the broker is ready and nobody is heard yet.
        """
        self.listeners, self.dialers = [], []
        self._loop = asyncio.get_running_loop()
        self._begin_turns()
        for complaint in exposed.complaints(self.settings):
            log.warning(complaint)
        try:
            self._bind()
            self._open_journal()
            self._open_broker()
            self.copying = copying(
                self.membership, self.journal, self.settings, self.protocols, self._copied
            )
            self.pressure.journal, self.pressure.copied = self.journal, self.copying
            self._recover()
            host = socket.gethostname()
            self.bridges = registry.open_bridges(self.broker, self.settings.bridge, host)
            recovered()
            if self.copying is not None:
                await self.copying.open()  # before others hear of sessions that may be theirs
                if self.membership is not None and self.membership.excluded:
                    raise SettingError(self.membership.excluded)
            if self.membership is not None:
                self.pressure.measured = self._hear_on
                await cluster.join(
                    self.membership, self.schedule, self.pressure.crowded, self.beside
                )
                if self.journal is not None and self.settings.cluster.url:
                    directory.note(self.journal.directory.path, self.membership)
                if self.copying is not None:
                    self.heirs = Heirs(self.membership, self.copying, self.protocols, self.schedule)
                    await self.heirs.begin()
                self._look_who_is_expected()
            if self.web is not None:
                await self.web.start()
            self._make_room()
            await self._open_listeners()
            self._dial()
            self.schedule()  # what goes on in turns, as the names of a million retained messages
        except BaseException:
            await self.stop()
            raise
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Close the listeners, say goodbye, commit everything, release the directory."""
        for listener in self.listeners:
            listener.close()
        while self._bound:
            self._bound.pop().close()
        if self.membership is not None:
            self.membership.lost.stop()
        for sock in list(self.sockets):
            sock.stop()
        for dialer in self.dialers:
            dialer.stop()
        if self.membership is not None:
            self.membership.relays.stop(STOPPING)
        self.schedule()
        await self._drain()
        if self.membership is not None:
            await cluster.leave(self.membership)
        if self.heirs is not None:
            await self.heirs.close()
        if self.copying is not None:
            await self.copying.close()
        for dialer in self.dialers:
            await dialer.ended(STOP_SECONDS)
        if self.web is not None:
            await self.web.stop()
        for listener in self.listeners:
            listener.guests.end()
        self.gates.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._sweeper
        await self.upkeep.end()
        if self.archive is not None:
            await self.archive.close()
        self.broker.audit.close()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        if self.journal is not None:
            self.broker.queues.close()
            self.journal.close()
            self.journal = self.pressure.journal = None

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _drain(self) -> None:
        """Wait until what was promised is out and the connections are closed, but not long."""
        until = self.clock.now() + STOP_SECONDS
        relayed = self.membership.relays.far if self.membership is not None else ()
        while (self.sockets or relayed) and self.clock.now() < until:
            await asyncio.sleep(0.01)
        for sock in list(self.sockets):
            if sock.transport is not None:
                sock.transport.abort()
        await asyncio.sleep(0)
        self.leaving.tell_all()

    # Opening

    def _bind(self) -> None:
        """A port that is taken is found out before anything is written, or read for a minute."""
        for place in self.settings.listeners():
            self._bound.append(self.bind(place, self._bound))

    def _open_journal(self) -> None:
        wanted = self.settings.journal
        if wanted.record == "none" or wanted.durability == "none":
            return
        self.journal = Journal(
            Path(self.settings.data),
            self.clock,
            wanted.durability,
            self._synced,
            segment_bytes=wanted.segment_bytes,
            segment_seconds=wanted.segment_seconds,
        )

    def _open_broker(self) -> None:
        journal, settings = self.journal, self.settings
        record = settings.journal.record if journal is not None else "none"
        rows = journal if journal is not None else Log(self.clock)
        broker = self.broker = Broker(self.clock, rows, record, settings.journal.exclude)
        self._begin_turns()
        if journal is not None:
            broker.archive = self.archive = JournalArchive(
                broker, journal.directory.path, self.schedule
            )
        self.door = Door(broker.metrics)
        self.waiting = Waiting(broker.metrics)
        self.rates = Rates(self.clock, broker.metrics)
        self.arrivals = Arrivals(self.clock, broker.metrics)
        self.gates = Gates(broker.open, settings.dynamic_security)
        dynamic = self.gates.dynamic
        control = Control(broker, dynamic, self._hold_rights) if dynamic is not None else None
        broker.gates = [self.guard(self.gates.gate(one)) for one in settings.listeners()]
        self.system = System(broker, VERSION)
        self.figures = Figures(broker, journal, self.delay)
        self.protocols = registry.load(broker)
        self.membership = cluster.member(broker, settings, self.engine, VERSION)
        if self.membership is not None:
            if journal is not None and settings.cluster.url:
                directory.look(journal.directory.path, self.membership)
            if control is not None:
                control.share(self.membership)
            relays = self.membership.relays
            relays.serve(self.protocols)
            relays.weigh, relays.forget = self.waiting.weigh, self.waiting.forget
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Take what may change while the hub runs: bounds, exclusions."""
        broker = self.broker
        broker.exclude = settings.journal.exclude
        self.upkeep.hurry()
        levels = settings.topic_durability()
        broker.levels = [(name, broker.log.level_of(level)) for name, level in levels]
        if self.journal is not None:
            self.journal.keep_seconds = settings.journal.retain_seconds
            self.journal.room.least = settings.journal.keep_free_bytes
            self.journal.keep_bytes = settings.journal.retain_bytes or _fifth_of_disk(settings.data)
            promised = [level for _, level in levels]
            promised += [listener.durability for listener in settings.listeners()]
            listens = settings.durability == "disk" and "os" in promised
            self.journal.on_written = self._written if listens else None
        self.waiting.apply(settings.limits.waiting_bytes)
        self.rates.apply(settings.limits, self.sockets)
        self.arrivals.apply(settings.limits, self.sockets)
        broker.inflight = settings.session.inflight
        broker.backlog_messages = settings.session.backlog_messages
        broker.subscriptions = settings.session.subscriptions
        broker.backlog_bytes = settings.session.backlog_bytes
        broker.inflight_bytes = settings.session.inflight_bytes
        broker.check_source = settings.check_retain_source
        broker.audit.rows = settings.journal.audit and broker.log.records
        broker.retained.most = settings.limits.retained_messages
        broker.queues.max_messages = settings.queue.max_messages
        broker.queues.max_bytes = settings.queue.max_bytes
        broker.quotas.most[DELAYED] = settings.limits.delayed_messages
        broker.quotas.most[RETAINED] = settings.limits.retained_bytes
        broker.quotas.most[REQUESTS] = settings.rpc.max_open
        broker.quotas.most[SUBSCRIBED] = min(SUBSCRIBED_BYTES, memory() // 2) // settings.processes
        broker.patience.seconds = settings.limits.hold_back_seconds
        broker.patience.filters = settings.limits.hold_back
        self.turn.poll = BusyPoll(self._loop.call_soon, settings.limits.busy_poll_us / 1e6)
        broker.replies.ttl = settings.rpc.reply_ttl
        broker.replies.most = settings.rpc.max_open
        broker.age += 1
        self.system.apply(settings.sys.interval)
        for protocol in self.protocols:
            protocol.apply(settings)
        self.settings = settings

    def read_credentials(self) -> None:
        """Take passwords, permissions and certificates as the files say now.

        Clients that may not stay are ended. A file that cannot be used leaves what it said
        before, and is a SettingError when all others have been read.
        """
        trouble = []
        certificates = [listener.read_certificates for listener in self.listeners]
        for read in (*certificates, *(file.read for file in self.gates.files())):
            try:
                read()
            except SettingError as error:
                trouble.append(str(error))
        self._hold_rights()
        if trouble:
            raise SettingError("; ".join(dict.fromkeys(trouble)))

    def _hold_rights(self) -> None:
        """Who may what was changed: routes are built again, and who may not stay goes."""
        self.broker.rules_changed()
        for sock in list(self.sockets):
            sock.look_again()

    def _fold(self, journal: Journal) -> None:
        """Read the journal; whoever waits for a large one is told how far it is."""
        told, done, total = self.clock.now(), 0, journal.directory.to_fold()

        def progress(size: int) -> None:
            nonlocal told, done
            done += size
            now = self.clock.now()
            if now - told >= PROGRESS_SECONDS:
                told = now
                said = f"reading the journal: {done >> 20} of {total >> 20} MB"
                log.info("%s", said)
                still_starting(said)

        journal.recover(self.broker.state.fold, progress)

    def _recover(self) -> None:
        """Fold the journal, and go on from there."""
        with not_collecting():
            if self.journal is not None:
                self._fold(self.journal)
                revivals = cluster.recalls(self.membership, self.broker, self.journal.ahead)
                self.broker.recover([*self.protocols, *revivals], self.journal.late)
                self.journal.begun = self.journal.position
            self.recovered()

    def handed_listener(self, origins: tuple[str, ...]) -> Listener:
        """One without a port, for connections that another web server accepted.

        It speaks what does not begin with any HTTP request: those are the application's own.
        """
        place = PlaceSettings(address="127.0.0.1:0", origins=origins)
        rules = replace(self.settings, listen=(), listener=(place,)).listeners()[0]
        protocols = [protocol for protocol in self.protocols if not protocol.raw_head]
        return Listener(self, rules, protocols, self.guard(self.gates.gate(rules)))

    def _make_room(self) -> None:
        """For connections: what is left of the files of this process."""
        self.most_connections = descriptors.for_connections(descriptors.raise_limit())
        self.strangers = Strangers(STRANGERS, self.broker.metrics, self.most_connections)

    async def _open_listeners(self) -> None:
        places = zip(self.settings.listeners(), self._bound, self.broker.gates, strict=True)
        for settings, bound, gate in places:
            names = settings.protocols
            web = self.web if not names or "http" in names else None
            listener = Listener(
                self, settings, registry.chosen(self.protocols, names), gate,
                called=socket.gethostname(),
            )  # fmt: skip
            if web is not None:
                listener.adopt, listener.claims = web.adopt, web.claims
                listener.dismiss = web.dismiss
            await listener.open(bound)
            self.listeners.append(listener)

    def _dial(self) -> None:
        self.cutoff = cutoff.CutOff(self, self.bridges, self.journal)
        self.dialers += self.cutoff.dialers.values()

    # The tick

    def _begin_turns(self) -> None:
        soon = self._loop.call_soon
        self.turn = Turn(self.broker, soon, self._commit, BusyPoll(soon, 0.0))
        self.pressure = Backpressure(self.clock, self.turn)

    def schedule(self) -> None:
        """Run the tick at the end of this turn of the loop."""
        self.turn.schedule()

    def _commit(self) -> None:
        """Rows wait. They go to the disk if somebody waits for them, or enough have gathered."""
        journal, waiting = self.journal, len(self.broker.outgoing.holding)
        if journal is None:
            return
        if not (waiting or journal.due(self.clock.now())):
            if self._commit_timer is None:
                self._commit_timer = self._loop.call_later(COMMIT_SECONDS, self._commit_later)
                journal.timed = True
            return
        if self.copying is not None and self.copying.gathers():
            return
        try:
            if journal.commit(here=True):
                self._let_go()
                self._go_on()
                if journal.pending or self.broker.unsettled:  # more than one group, or what goes on
                    self.schedule()
            elif waiting:
                self.turn.poll.rest()
        finally:
            self._measure(journal)

    def _commit_later(self) -> None:
        self._commit_timer = None
        if self.journal is not None:
            self.journal.timed = False
            self.journal.commit()

    def _written(self, seq: int) -> None:
        """Called by the writer's thread: what needs no more than that may leave."""
        self._loop.call_soon_threadsafe(self._release_written, seq)

    def _release_written(self, seq: int) -> None:
        if (journal := self.journal) is not None:
            journal.written = max(journal.written, seq)
            self._let_go()
            self.schedule()

    def _synced(self, seq: int) -> None:
        """Called by the writer's thread."""
        self._loop.call_soon_threadsafe(self._release, seq)

    def _release(self, seq: int) -> None:
        if (journal := self.journal) is not None:
            journal.arrived(seq)
            self.turn.landed(*journal.flight)
            self._let_go()
            self._go_on()
            self.schedule()
            self._measure(journal)

    def _copied(self) -> None:
        """Others have more of the log: what waited for them leaves."""
        self._let_go()
        self.schedule()
        self.pressure.measure()

    def _let_go(self) -> None:
        """What was held for rows that are safe now leaves with this tick."""
        self.broker.outgoing.release()

    def _go_on(self) -> None:
        """The disk has taken some of what waited: what would have added to it does so now."""
        for call in self.broker.written():
            safely(call)

    def _measure(self, journal: Journal) -> None:
        if journal.room.unseen < 0:
            self._keep_room(journal)
        self.pressure.measure()

    def _hear_on(self) -> None:
        """What other nodes said may have waited for the disk."""
        if self.membership is not None and self.membership.hearing.go_on():
            self.schedule()

    # The slow things

    async def _sweep(self) -> None:
        """Deadlines, time-outs of protocols, rolling. What fails is logged; the rest goes on."""
        while True:
            began = self.clock.now()
            await asyncio.sleep(SWEEP_SECONDS)
            self.delay.add(max(0.0, self.clock.now() - began - SWEEP_SECONDS))
            self._sweep_once()
            if self.journal is not None:
                safely(self._keep_room, self.journal)
                safely(self.pressure.measure)  # a roll may have made room
                safely(self.upkeep.roll, self.journal)
                safely(self.upkeep.scrub, self.journal, self.settings.journal.scrub_days)

    def _sweep_once(self) -> None:
        now = self.clock.now()
        if self.membership is not None:
            safely(self.membership.note_awake)
        for sock in self.deadlines.due(now):
            safely(sock.woken, now)
        safely(self.strangers.sweep, now)
        relayed = self.membership.relays.far.values() if self.membership is not None else ()
        safely(self.waiting.look, now, chain(self.sockets, relayed))
        safely(self.rates.sweep, now)
        for listener in self.listeners:
            safely(listener.sweep, now)
        for protocol in self.protocols:
            safely(protocol.wake, now)
        for dialer in self.dialers:
            safely(dialer.wake, now)
        safely(self.system.wake, now)
        safely(self.figures.wake, now)
        if self.membership is not None:
            safely(self.membership.wake, now)
        if self.copying is not None:
            safely(self.copying.wake)
        if self.heirs is not None:
            safely(self.heirs.wake)
        safely(self._look_who_is_expected)
        for call in self.broker.to_try_again():
            safely(call)
        safely(self._steer)
        broker = self.broker
        for wake in (
            broker.audit.wake, broker.sampled.wake, broker.delays.wake, broker.retained.wake,
            broker.queues.overdue.wake, broker.replies.wake, broker.observers.wake,
            broker.patience.wake, broker.routing.wake,
        ):  # fmt: skip
            safely(wake)
        self.schedule()

    def _steer(self) -> None:
        """Keep the time of rows near the machine's, and say if that clock was set."""
        ahead, journal = self.clock.steer(), self.journal
        said = astray(ahead)
        if journal is not None and journal.durable >= journal.begun:
            journal.clock_behind.note(-ahead, self.clock.stamp())
        if said and not self._astray:
            log.warning("%s", said)
        self._astray = said != ""

    def _keep_room(self, journal: Journal) -> None:
        """A disk that fills must not stop the hub: what would stay there is refused before."""
        journal.watch()
        reason = journal.no_room(self.upkeep.folding)
        self._share_room(journal.room)
        if (reason != "") == (self.broker.no_room != ""):
            return
        if reason:
            log.warning(
                "%s: what would stay there is refused (queues, sessions that are away, later, new "
                "or larger retained messages, new lasting sessions) until there is more",
                reason,
            )  # fmt: skip
        else:
            log.warning("the disk has room again: everything is taken")
        self.broker.keep_room(reason)

    def _share_room(self, room: Room) -> None:
        """Before nothing is taken any more, nobody gets more than a part of the last of it."""
        scarce = self.broker.scarce
        if self.broker.share_room(room.spare, room.shared):
            if scarce.on:
                left = megabytes(max(0, room.spare))
                log.warning(
                    "the disk has %s left before what stays there is refused: %s",
                    left, scarce.says(),
                )  # fmt: skip
            else:
                log.warning("the disk has more room: it is not shared out any more")
        room.wanted = scarce.used_up

    def _look_who_is_expected(self) -> None:
        """Where copies say which sessions are at who is away, they are asked (`heirs`)."""
        lived = self.copying is not None and self.copying.lived
        if self.membership is not None and not lived:
            self.broker.unmet = self.membership.roster.expects()

    async def remove_node(self, name: str, force: bool) -> removal.Refusal | Rest:
        """Another node of the cluster, for good. Processes of one hub are none that go."""
        if self.membership is None or not self.settings.cluster.url:
            return removal.Refusal(removal.MISSING, "this hub is no node of a cluster")
        unable = self.copying is None or self.copying.stream.unable
        heirs = None if unable else self.heirs
        return await removal.remove(self.membership, heirs, self.schedule, name, force)

    # What it says about itself

    async def status(self, limit: int = SHOWN, offset: int = 0) -> dict[str, Any]:
        """The state of the hub in plain values, for `/api/v1/status` and `hubbub status`.

        Of clients and of queues at most `limit`, without the first `offset`.
        """
        return {
            **self._figures(),
            "limits": status.limits(self.broker, self.most_connections, self.settings),
            "listeners": [str(listener.address) for listener in self.listeners],
            "pipeline": status.pipelines(self.journal, self.clock.stamp()),
            "clients": status.clients(self.broker, limit, offset),
            "queues": await status.queues(self.broker, limit, offset),
        }

    async def metrics(self) -> dict[str, Any]:
        """What of it `/metrics` prints."""
        build = f"{VERSION} ({made(is_compiled())})"
        return {
            **self._figures(),
            "builds": {build: 1},
            "limits": status.limits(self.broker, self.most_connections, self.settings),
            "loop_delay": self.delay,
            "delivery_seconds": self.broker.sampled.transit.seconds,
            "call_seconds": self.broker.queues.calls.seconds,
            "history_seconds": self.archive.seconds if self.archive else None,
            "commit_seconds": self.journal.pulse.commit_seconds if self.journal else None,
            "sync_seconds": self.journal.pulse.sync_seconds if self.journal else None,
            "queues": await status.waiting(self.broker, SHOWN),
        }

    def unready(self) -> str:
        """Why another hub should be asked, in words for anybody; "" if this one is well."""
        if self.journal is not None and (self.journal.trouble or self.journal.stalled):
            return "the journal cannot be written"
        if self.broker.no_room:
            return "the disk is short of room: what would stay on it is refused"
        return ""

    def _figures(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "compiled": is_compiled(),
            "time": self.clock.stamp(),
            **status.traffic(self.broker),
            "bridges": cutoff.said(self.bridges),
            "journal": status.recorded(self.broker, self.journal, self.upkeep),
            "certificates": [said for one in self.listeners if (said := one.certified())],
            "authorities": [said for one in self.listeners if (said := one.trusted())],
            "revocation_lists": [said for one in self.listeners if (said := one.revoked())],
            **({"cluster": self._clustered()} if self.membership is not None else {}),
        }

    def _clustered(self) -> dict[str, Any]:
        assert self.membership is not None
        copies = self.copying.status() if self.copying is not None else NO_COPIES
        return {**self.membership.status(), "copies": copies}


def _fifth_of_disk(directory: str) -> int:
    """What the journal may take where no setting says it, in bytes."""
    return shutil.disk_usage(directory).total // 5
