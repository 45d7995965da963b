"""Several processes as one hub: `hubbub serve --processes N`. A parent, and N that serve.

    parent ──fork──> process 1, its journal in DATA/1 ┐ each binds the same ports (SO_REUSEPORT; a
           ──fork──> process 2, its journal in DATA/2 ┘ Unix socket is the parent's), the kernel
                                                        gives each connection to one of them
The processes are nodes of a cluster (`cluster.neighbours`, or NATS if `cluster.url` is set). The
parent starts them, starts again what was killed, hands signals on and waits; it has no loop and
hears no client. It is their service manager, too: they tell it when they are ready, and once a
second that they live. Called by `hubbub serve`; one process alone is `server.run` and nothing of
this.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import math
import mmap
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from msgspec.structs import replace

from hubbub import hangup
from hubbub.cluster.neighbours import Neighbours, node_name
from hubbub.config.settings import Listener, Settings
from hubbub.core.clock import Clock
from hubbub.core.limits import CLOCK_BEHIND
from hubbub.errors import DirectoryError, HubbubError, SettingError, UnreadableError
from hubbub.journal.files import make_folder, write_whole
from hubbub.journal.lock import Lock
from hubbub.journal.segments import PROCESSES, Directory
from hubbub.runtime import systemd
from hubbub.runtime.binding import ServerSocket
from hubbub.runtime.logs import log_to_stderr, tell
from hubbub.server import Part
from hubbub.server import run as serve

STARTS: Final = 5  # in a row that end before the process serves: it will not do so by itself
AGAIN_SECONDS: Final = 0.2  # from its end to the next start; the more, the more often it failed
LOOK_SECONDS: Final = 0.2  # from one look at the processes to the next, if no signal comes
STOP_SECONDS: Final = 25.0  # a hub needs a few; a service manager kills all after 30, or after 90
HUNG_SECONDS: Final = 30.0  # one that serves, says nothing and does nothing: others gave up at 5
BUSY_SECONDS: Final = 300.0  # one that works and says nothing, or starts: no turn takes minutes
WORK_SECONDS: Final = 0.2  # of a processor meanwhile, which others may want, too: less is no work
STEP_SECONDS: Final = 1.0  # one look counts no more: a parent that stood still has heard nothing
PATH_MOST: Final = 80  # bytes of the directory of sockets: a path to one may have 107
PAGES: Final = ("http",)  # a listener of web pages alone: logins are known where they were made
_PDEATHSIG: Final = 1  # prctl(2)
_PASSED: Final = (signal.SIGHUP, signal.SIGUSR1)  # signals that every process gets
_CODES: Final = {SettingError: 2, DirectoryError: 2, UnreadableError: 3}  # as of `hubbub serve`
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("hubbub.processes")

Reload = Callable[[], Settings]


def run(
    settings: Settings,
    reload: Reload,
    app: str | None = None,
    notes: Iterable[logging.LogRecord] = (),
) -> int:
    """Serve until told to stop; return the exit code. As `server.run` if one process is wanted."""
    if settings.processes == 1:
        serve(settings, reload, app, notes)
        return 0
    log_to_stderr(settings.log.level, settings.log.format)
    tell(notes)
    return Parent(settings, reload, app).run()


def leave(code: int) -> NoReturn:
    """End this process, whose hub has ended, at once. Python would let go of all that it holds
    first, piece by piece: of a million retained messages and 200,000 sessions that takes 2 s, for
    which whoever starts it again waits.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


# What a process is given


def share_of(settings: Settings, number: int, count: int) -> Settings:
    """The settings of one process: its journal, and its part of what protects the machine.

    Bounds of one client, queue or session stay as they are; those by user and address hold at each.
    """
    journal, limits, cluster = settings.journal, settings.limits, settings.cluster
    if _records(settings):
        kept = journal.retain_bytes or shutil.disk_usage(settings.data).total // 5
        journal = replace(journal, retain_bytes=max(1, kept // count))
    if cluster.url:
        cluster = replace(cluster, name=_node(settings, number))
    listeners = settings.listener
    if number > 1:
        listeners = tuple(one for one in listeners if one.protocols != PAGES)
    return replace(
        settings,
        data=str(Path(settings.data) / str(number)),
        journal=journal,
        cluster=cluster,
        limits=replace(limits, waiting_bytes=max(1, limits.waiting_bytes // count)),
        listener=tuple(_parted(one, count) for one in listeners),
        bridge=settings.bridge if number == 1 else (),  # or each message would cross N times
    )


def _nodes(settings: Settings) -> tuple[str, ...]:
    """What the processes are called as nodes."""
    return tuple(_node(settings, number + 1) for number in range(settings.processes))


def _node(settings: Settings, number: int) -> str:
    cluster = settings.cluster
    return f"{cluster.name}-{number}" if cluster.url else node_name(number)


def _parted(listener: Listener, count: int) -> Listener:
    return replace(listener, max_connections=-(-listener.max_connections // count))


def _records(settings: Settings) -> bool:
    return settings.journal.record != "none" and settings.journal.durability != "none"


# What they share


class Ports:
    """The addresses of the hub. A port is bound here, too, and never listened on: so it is found
    out at once that it is taken, port 0 is one port for all, and no other program gets it.
    """

    def __init__(self, settings: Settings) -> None:
        self._held: dict[str, ServerSocket] = {}
        for place in settings.listeners():
            said, beside = place.address, list(self._held.values())
            if said in self._held:
                raise SettingError(f"{said} is there twice: with several processes leave one out")
            alone = ServerSocket(place, beside)
            if not alone.address.path:  # another hub's may be shared, too: taken is taken
                alone.close()
                place = replace(place, address=str(alone.address))
                alone = ServerSocket(place, beside, shared=True)
            self._held[said] = alone

    def binder(self) -> Callable[[Listener, Sequence[ServerSocket]], ServerSocket]:
        """What a process binds its listeners with."""
        held = dict(self._held)

        def bind(place: Listener, beside: Sequence[ServerSocket]) -> ServerSocket:
            one = held.pop(place.address)
            if one.address.path:
                return one.inherited()
            return ServerSocket(replace(place, address=str(one.address)), beside, shared=True)

        return bind

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].close()


class Place:
    """The directory of all: one journal for each process, and `processes`, which says how many.

    DirectoryError if it is not of so many. `sockets`: where they reach one another.
    """

    def __init__(self, settings: Settings) -> None:
        count, path = settings.processes, Path(settings.data)
        self._path, self._journals = path, count if _records(settings) else 0
        self._lock: Lock | None = None
        self._temporary = ""
        if _records(settings):
            self._take(path, count)
        self.sockets = path / "sockets"
        if not _records(settings) or len(os.fsencode(self.sockets)) > PATH_MOST:
            self._temporary = tempfile.mkdtemp(prefix="hubbub-")
            self.sockets = Path(self._temporary)
        self._make_sockets()

    def _make_sockets(self) -> None:
        """What a killed parent left there is used again; what somebody put there is not."""
        sockets = self.sockets
        try:
            if sockets.is_symlink() or (sockets.exists() and not sockets.is_dir()):
                raise DirectoryError(
                    f"{sockets} is no directory: move it away, the processes make one there to "
                    "reach one another"
                )
            sockets.mkdir(0o700, exist_ok=True)
            sockets.chmod(0o700)
        except OSError as error:
            raise DirectoryError(f"cannot use {sockets}: {error.strerror}") from None

    def _take(self, path: Path, count: int) -> None:
        try:
            if Directory(path).segments() or (path / "format").exists():
                raise DirectoryError(
                    f"{path} is the journal of one process. To go on with it as process 1 of "
                    f"{count}: `mv {path} {path}.1 && mkdir {path} && mv {path}.1 {path}/1`; or "
                    "choose another directory with --data"
                )
            make_folder(path)
            self._lock = Lock(path / "lock")
            holder = self._lock.take()
            before = _count_of(path)
            if not holder and count > before:
                write_whole(path / PROCESSES, f"{count}\n".encode())
        except OSError as error:
            raise DirectoryError(
                f"cannot write to {path}: {error.strerror}; make it writable or choose another "
                "directory with --data"
            ) from None
        if holder:
            raise DirectoryError(
                f"{path} is used by the hub with process id {holder}; stop it or choose another "
                "directory with --data"
            )
        if count < before:
            raise DirectoryError(
                f"{path} is of {before} processes, and each has sessions and queues that no other "
                f"one has: start with --processes {before}, or more"
            )

    def newest(self, before: int) -> int:
        """The time of the last row that any of them has written until then."""
        times = [0]
        for number in range(self._journals):
            with contextlib.suppress(OSError):  # who starts there says it
                times.append(Directory(self._path / str(number + 1)).newest())
        return max(time for time in times if time <= before)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
        shutil.rmtree(self._temporary or self.sockets, ignore_errors=True)


def _count_of(path: Path) -> int:
    """How many processes a directory is of, 0 for one that is new."""
    file = path / PROCESSES
    try:
        said = file.read_text(errors="replace").strip()
    except FileNotFoundError:
        return 0
    if not re.fullmatch("[1-9][0-9]{0,8}", said):
        raise DirectoryError(f"{file} does not say how many processes it is of")
    return int(said)


# The parent


class Child:
    """One of the processes: `ready` when it serves, `failed` starts that it has not survived."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.ready = False
        self.failed = 0
        self.due = 0.0
        self.told: socket.socket | None = None
        self.silent = 0.0  # seconds since it said something
        self._worked = 0.0  # seconds of a processor that it had taken then

    def lives(self) -> None:
        """It said something, or does."""
        self.silent, self._worked = 0.0, work_of(self.pid)

    def hangs(self, passed: float) -> bool:
        """So many seconds later: whether it is to be ended.

        What stands still and takes no processor does not come back by itself. What works may: a
        start reads its journal for as long as that takes; a turn of who serves has an end.
        """
        self.silent += passed
        if self.silent < HUNG_SECONDS:
            return False
        works = work_of(self.pid) - self._worked >= WORK_SECONDS
        if works and not self.ready:
            self.lives()
        return self.silent >= (HUNG_SECONDS if self.ready and not works else BUSY_SECONDS)


def work_of(pid: int) -> float:
    """Seconds of a processor that it has taken; without /proc it may have worked all the time."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return time.monotonic()
    fields = said.rpartition(")")[2].split()  # its name may have blanks; proc(5)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Parent:
    """Runs the processes. `code`: what it is to exit with."""

    def __init__(self, settings: Settings, reload: Reload, app: str | None) -> None:
        _refuse(settings)
        self._settings = settings
        self._reload = reload
        self._app = app
        self._children = [Child(number + 1) for number in range(settings.processes)]
        self._banner = ""
        self._serving = self._stopping = False
        self._code = 0
        self._late = math.inf  # when one that has not stopped hangs
        self._looked = time.monotonic()
        self._signals: list[int] = []
        self._time = memoryview(mmap.mmap(-1, 8)).cast("q")

    def run(self) -> int:
        """Until all have ended."""
        with contextlib.ExitStack() as stack:
            self._place = Place(self._settings)
            stack.callback(self._place.close)
            self._begin()
            self._ports = Ports(self._settings)
            stack.callback(self._ports.close)
            waking = self._listen_to_signals()
            stack.callback(signal.set_wakeup_fd, -1)
            gc.freeze()  # what is here is shared with the processes, and stays so
            while not self._over():
                self._start_due()
                self._hear(waking)
                self._reap()
                self._end_hung()
                self._kill_late()
        return self._code

    def _begin(self) -> None:
        """All go on from the last row of any, or one that had nothing to do for minutes would be as
        far from the others where the machine's clock is behind that.
        """
        clock = Clock()
        clock.share(self._time)
        clock.begin(self._place.newest(clock.stamp() + CLOCK_BEHIND * 1_000_000))
        clock.steer()

    def _listen_to_signals(self) -> socket.socket:
        """What can be read when one has come."""
        waking, self._woken = socket.socketpair()
        for one in (waking, self._woken):
            one.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno())
        for number in (*_ENDS, *_PASSED, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        if hangup.came():
            self._signals.append(signal.SIGHUP)
        return waking

    def _over(self) -> bool:
        return self._stopping and not any(child.pid for child in self._children)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals.append(number)

    # Starting

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if not child.pid and not self._stopping and now >= child.due:
                self._start(child)

    def _start(self, child: Child) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        parent = os.getpid()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._serve(child.number, theirs, parent)
        theirs.close()
        ours.setblocking(False)
        child.pid, child.told, child.ready = pid, ours, False
        child.lives()

    def _serve(self, number: int, told: socket.socket, parent: int) -> NoReturn:
        """In the process. It ends with its parent, however that ends."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for one in (*_ENDS, signal.SIGUSR1, signal.SIGCHLD):
                signal.signal(one, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
            for handler in list(logging.root.handlers):
                logging.root.removeHandler(handler)
            systemd.manager = told
            count = self._settings.processes
            mine = partial(share_of, number=number, count=count)
            settings = mine(self._settings)
            engine = None
            if not settings.cluster.url:
                engine = Neighbours(self._place.sockets, number, count)
            nodes, binder = _nodes(self._settings), self._ports.binder()
            part = Part(number, nodes, engine, binder, self._time)
            serve(settings, lambda: mine(self._reload()), self._app, (), part)
            code = 0
        except HubbubError as error:
            systemd.notify(ERROR=json.dumps(str(error)))
            code = _CODES.get(type(error), 1)
        except BaseException:
            logging.getLogger("hubbub").exception("process %d ends", number)
        finally:
            leave(code)

    # Hearing

    def _hear(self, waking: socket.socket) -> None:
        """Wait for a signal, or for what a process says."""
        telling = {child.told: child for child in self._children if child.told is not None}
        found, _, _ = select.select([waking, *telling], [], [], LOOK_SECONDS)
        for one in found:
            if one is waking:
                with contextlib.suppress(BlockingIOError):
                    waking.recv(4096)
            else:
                self._told(telling[one])
        signals, self._signals = self._signals, []
        for number in signals:
            if number in _ENDS:
                self._stop()
            elif number in _PASSED:
                self._pass(number)

    def _told(self, child: Child) -> None:
        assert child.told is not None
        with contextlib.suppress(BlockingIOError):
            while said := child.told.recv(65536):
                child.lives()
                fields = dict(line.partition("=")[::2] for line in said.decode().splitlines())
                if "BANNER" in fields:
                    self._ready(child, json.loads(fields["BANNER"]))
                elif "ERROR" in fields:
                    self._failed(child, json.loads(fields["ERROR"]))
                elif not self._serving and "WATCHDOG" not in fields:
                    systemd.notify(**fields)  # a start that reads a large journal
                elif [*fields] == ["STATUS"]:
                    systemd.notify(**fields)  # what became of a reload

    def _ready(self, child: Child, banner: str) -> None:
        child.ready, child.failed = True, 0
        if child.number == 1:
            self._banner = banner
        if not self._serving and all(one.ready for one in self._children):
            self._serving = True
            print(self._said(), flush=True)
            systemd.notify(READY="1", STATUS=f"{len(self._children)} processes serve")

    def _said(self) -> str:
        first, _, rest = self._banner.partition("\n")
        return f"{first}, {len(self._children)} processes, of which this is the first\n{rest}"

    def _failed(self, child: Child, why: str) -> None:
        """It says why it cannot start."""
        log.error("process %d: %s", child.number, why)

    # Ending

    def _reap(self) -> None:
        for child in self._children:
            if child.pid:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        self._told(child)  # its last words
        assert child.told is not None
        child.told.close()
        child.pid, child.told = 0, None
        if self._stopping:  # one that was starting has had no time to hear of it
            self._code = self._code or (abs(code) if code != -signal.SIGTERM else 0)
            return
        if code == 0:  # somebody asked it for the hub's end
            self._stop()
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if not child.ready:
            child.failed += 1
            if not self._serving or child.failed >= STARTS:
                log.error("process %d %s before it served: all end", child.number, how)
                self._code = abs(code)
                self._stop()
                return
        log.error("process %d %s; it is started again", child.number, how)
        child.due = time.monotonic() + AGAIN_SECONDS * (1 + child.failed)

    def _stop(self) -> None:
        if not self._stopping:
            systemd.notify(STOPPING="1", STATUS="closing connections")
            self._late = time.monotonic() + STOP_SECONDS
        self._stopping = True
        self._pass(signal.SIGTERM)

    def _end_hung(self) -> None:
        """What it has acknowledged is on the disk, and its clients wait for an answer."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, STEP_SECONDS), now
        if self._stopping:
            return
        for child in self._children:
            if child.pid and child.hangs(passed):
                text = "process %d (%d) has shown no sign of life for %d s: it hangs, and is killed"
                log.error(text, child.number, child.pid, child.silent)
                os.kill(child.pid, signal.SIGKILL)
                child.lives()  # until it has ended: it is killed once

    def _kill_late(self) -> None:
        """What it has acknowledged is on the disk."""
        if time.monotonic() < self._late:
            return
        self._late = math.inf
        for child in self._children:
            if child.pid:
                log.error(
                    "process %d has not stopped for %d s: it hangs, and is killed",
                    child.number, STOP_SECONDS,
                )  # fmt: skip
        self._pass(signal.SIGKILL)

    def _pass(self, number: int) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)


def _refuse(settings: Settings) -> None:
    """SettingError for what does not go with several processes."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SettingError("processes: this system cannot share a port (SO_REUSEPORT)")
    if settings.cluster.url and not settings.cluster.name:
        raise SettingError(
            "cluster.name is missing: with it the processes are the nodes NAME-1, NAME-2 …"
        )
