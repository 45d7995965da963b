"""The process: one hub with its web application, signals, and what it prints. No logic of its own.

Called by `hubbub serve`. SIGTERM and SIGINT stop in order and exit with 0; SIGHUP reads the
configuration again, and with it the files of users, permissions and certificates, and takes what
can change while clients stay connected; one that came before the hub was ready, once it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from hubbub import hangup
from hubbub.cluster.engine import Engine
from hubbub.config.settings import Listener as Place
from hubbub.config.settings import Settings
from hubbub.core import broker
from hubbub.core.metrics import Metrics
from hubbub.embed.hub import Hub
from hubbub.errors import HubbubError
from hubbub.runtime.allocator import LOOK_SECONDS, Leavings, give_back
from hubbub.runtime.binding import ServerSocket
from hubbub.runtime.collector import Aside
from hubbub.runtime.listener import Listener
from hubbub.runtime.logs import SPAN, Repeats, log_to_stderr, tell
from hubbub.runtime.loop import new_event_loop
from hubbub.runtime.node import VERSION, Node
from hubbub.runtime.siblings import Siblings
from hubbub.runtime.systemd import beat, notify
from hubbub.runtime.trace import Trace
from hubbub.web.app import Application
from hubbub.web.guarded import PAGE
from hubbub.web.mounted import Mounted, load

log = logging.getLogger("hubbub")

# What the hub looks at once, when it starts.
_FIXED = (
    "listen", "listener", "data", "allow_anonymous", "bridge", "password_file", "acl_file", "tls",
    "jwt", "dynamic_security", "cluster", "processes", "hosts", "queue.socket", "log.format",
    "journal.record", "journal.durability", "journal.segment_bytes", "journal.segment_seconds",
)  # fmt: skip


class Part(NamedTuple):
    """What one of several processes is given: its `number`, from 1; what all of them are called as
    `nodes`; how it reaches the others, how it binds what all of them are bound to, and memory in
    which they agree about the `time`.
    """

    number: int
    nodes: tuple[str, ...]
    engine: Engine | None
    bind: Callable[[Place, Sequence[ServerSocket]], ServerSocket]
    time: memoryview

    def name(self) -> str:
        """In the log."""
        return f"{self.number}/{len(self.nodes)}"


def run(
    settings: Settings,
    reload: Callable[[], Settings] | None = None,
    app: str | None = None,
    notes: Iterable[logging.LogRecord] = (),
    part: Part | None = None,
) -> None:
    """Serve until told to stop. SettingError and DirectoryError are the caller's to print.

    `app` is MODULE:NAME of an ASGI application that is to run on the same ports. `notes` are logged
    first: what reading the settings had to say. `part`: this is one process of several.
    """
    repeats = log_to_stderr(
        settings.log.level, settings.log.format, part.name() if part is not None else ""
    )
    tell(notes)
    for talkative in ("asyncio", "uvicorn"):  # an application's start-up is three lines otherwise
        logging.getLogger(talkative).setLevel(logging.WARNING)
    give_back()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, reload, app, repeats, part))
    repeats.tell()


async def _serve(
    settings: Settings, reload: Callable[[], Settings] | None, app: str | None, repeats: Repeats,
    part: Part | None,
) -> None:  # fmt: skip
    beside = [asyncio.create_task(beat())]
    if reload is not None:
        hangup.remember()
    hub = Hub(settings, cluster=part.engine if part is not None else None)
    node = hub.node
    if part is not None:
        node.bind = part.bind
        node.clock.share(part.time)
        if part.engine is None:  # over NATS; sockets between processes know by themselves
            node.beside = part.nodes
        if node.gates.dynamic is not None:
            node.gates.dynamic.beside = part.nodes
    web = node.web = Application(node, Mounted(load(app), hub) if app else None)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    aside = Aside()
    node.recovered = aside.begin
    if not await _started(hub, stopped):
        return
    if part is not None and node.membership is not None:
        node.siblings = Siblings(node.membership, part.number, part.nodes, web.said())
    node.broker.stop = stopped.set
    trace = Trace(node.broker, settings.log.clients)
    trace.switch(settings.log.level == "debug")
    loop.add_signal_handler(signal.SIGUSR1, _switch, trace, node)
    beside += [asyncio.create_task(one) for one in (_tell(repeats), _tidy(node.broker.metrics))]
    if reload is not None:
        hang_up = _Once(loop, partial(_reload, node, reload, trace, settings))
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        if hangup.came():
            hang_up()
    if part is None:
        print(banner(node), flush=True)
        notify(READY="1", STATUS="listening")
    else:  # the parent says it when all are ready
        notify(BANNER=json.dumps(banner(node)))
    try:
        await stopped.wait()
        notify(STOPPING="1", STATUS="closing connections")
        count = len(node.sockets)
        log.info("stopping: closing %d connections, committing the journal", count)
    finally:
        aside.end()
        for task in beside:
            task.cancel()
        await hub.stop()
        log.info("stopped")


async def _started(hub: Hub, stopped: asyncio.Event) -> bool:
    """Start, unless it is told to stop before: it may wait for others that never come."""
    starting, ending = asyncio.create_task(hub.start()), asyncio.create_task(stopped.wait())
    await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


async def _tell(repeats: Repeats) -> None:
    """A log that has become silent says what it left out."""
    while True:
        await asyncio.sleep(SPAN)
        repeats.tell(time.monotonic())


async def _tidy(metrics: Metrics) -> None:
    """What many connections had, or few that had much, goes back to the machine afterwards."""
    leavings = Leavings()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        leavings.look(metrics.connections_ended)


def _switch(trace: Trace, node: Node) -> None:
    """SIGUSR1: show what clients do, or no more; what the setting says holds again with SIGHUP."""
    _set_level("info" if trace.shows else "debug", node.settings, trace)


def _set_level(level: str, settings: Settings, trace: Trace) -> None:
    quiet = settings.log.level if settings.log.level != "debug" else "info"
    logging.getLogger().setLevel((level if level == "debug" else quiet).upper())
    trace.clients = settings.log.clients
    trace.switch(level == "debug")
    shown = "what clients do is shown" if trace.shows else "what clients do is not shown any more"
    log.warning("%s", shown)


class _Once:
    """Does something soon, once however often it is asked for meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop = loop
        self._action = action
        self._asked = False

    def __call__(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._do)

    def _do(self) -> None:
        self._asked = False
        self._action()


def _reload(hub: Node, read: Callable[[], Settings], trace: Trace, began: Settings) -> None:
    """Take what the files say now; who looks later finds whether all of it was taken."""
    trouble = _read_again(hub, read, trace, began)
    hub.broker.audit.managed(hub.broker.itself, "read the configuration again", "", trouble)
    if not trouble:
        log.info("the configuration was read again")
    # `systemctl reload` has said by now that all went well; `systemctl status` shows this line.
    bad = " ".join(trouble.split())
    notify(STATUS=f"the last reload was not taken: {bad}" if bad else "listening")


def _read_again(hub: Node, read: Callable[[], Settings], trace: Trace, began: Settings) -> str:
    """What could not be taken, "" if all was. What needs a restart keeps its old value, which is
    the one that the hub `began` with, and the log says so each time until it had its restart.
    """
    try:
        fresh = read()
    except HubbubError as error:
        log.error("the configuration is left as it was: %s", error)
        return str(error)
    for name in _FIXED:
        value = attrgetter(name)
        if value(fresh) != value(began):
            log.warning("%s changed; that needs a restart of the hub", name)
    logging.getLogger().setLevel(fresh.log.level.upper())
    trace.clients = fresh.log.clients
    trace.switch(fresh.log.level == "debug")
    hub.apply(fresh)
    try:
        if isinstance(hub.web, Application):
            hub.web.apply(fresh)
        hub.read_credentials()
    except HubbubError as error:
        log.error("what it said before goes on: %s", error)
        return str(error)
    return ""


def banner(hub: Node) -> str:
    """What listens, where the data is, and what to try next."""
    how = "" if str(broker.__file__).endswith(".py") else ", compiled"
    lines = [f"Hubbub {VERSION}{how}"]
    for listener in hub.listeners:
        spoken = [protocol.name for protocol in listener.protocols]
        spoken += ["HTTP"] * (listener.adopt is not None)
        secure = {False: "", True: ", all of it over TLS too"}[listener.tls is not None]
        if listener.settings.tls.only:
            secure = ", over TLS only"
        lines.append(f"  listening on {listener.address}: {', '.join(spoken)}{secure}")
    if hub.journal is None:
        lines.append("  keeping everything in memory: nothing survives this process")
    else:
        lines.append(f"  journal in {Path(hub.settings.data).resolve()}")
    for one in _showing(hub):
        beside = isinstance(hub.web, Application) and hub.web.mounted is not None
        lines.append(f"  its page: {_url(one, 'http')}{PAGE if beside else '/'}")
    return "\n".join([*lines, *suggestions(hub)])


def suggestions(hub: Node) -> list[str]:
    """Commands that work on this hub: what a port speaks, as it is reached from this machine. Who
    must say a password says it once, in the environment or a profile, and on no command line.
    """
    reachable = [one for one in hub.listeners if not one.address.path]
    speaking = [one for one in reachable if any(p.name == "mqtt" for p in one.protocols)][:1]
    showing = _showing(hub)
    command, lines = as_typed(), []
    for one in speaking:
        trust = " --cafile CERTIFICATE" if one.settings.tls.only else ""
        end = f"--url {_url(one, 'mqtt')}{trust}"
        lines += [
            f"  {command} sub 'demo/#' {end}",
            f"  {command} pub demo/hello -m 'hello, hub' {end}",
        ]
    lines += [f"  {command} status --url {_url(one, 'http')}" for one in showing]
    first = (speaking or showing)[:1]
    if first and not first[0].settings.allow_anonymous:
        kept = [line.partition(" --url ")[0] for line in lines]
        if speaking and first[0].adopt is None:
            kept = kept[:2]
        url = _url(first[0], "mqtt" if speaking else "http").replace("://", "://USER:PASSWORD@")
        lines = [f"  export HUBBUB_URL={url}   # or a profile: docs/commands.md", *kept]
    return ["Try in another terminal:", *lines] if lines else []


def _showing(hub: Node) -> list[Listener]:
    """The listener whose pages are shown, if one has some."""
    found = [one for one in hub.listeners if one.adopt is not None and not one.address.path]
    return found[-1:]


def _url(listener: Listener, scheme: str) -> str:
    """Where it is reached from here; who listens on all addresses does so on the loopback."""
    address = listener.address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return f"{scheme}{'s' * listener.settings.tls.only}://{address._replace(host=host)}"


def as_typed() -> str:
    """`hubbub` as it can be typed here: its path, unless the shell finds this one by its name."""
    beside = Path(sys.executable).with_name("hubbub")
    if shutil.which("hubbub") == str(beside):
        return "hubbub"
    if not beside.exists():
        return f"{sys.executable} -m hubbub"
    near = os.path.relpath(beside)
    return str(beside) if near.startswith("..") else near
