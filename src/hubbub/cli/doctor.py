"""`hubbub doctor`: looks at this machine as a hub with these settings would find it.

Ports, the disk and how fast it syncs, descriptors, memory, the clock, certificates and their
dates, files of users and permissions, who may read secrets, Java: what is well, what costs
something, and what must be changed, each with the next step. It starts nothing, keeps nothing, and
does no harm beside a hub that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import glob
import importlib.util
import json
import os
import platform
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from hubbub.auth import certificates
from hubbub.auth.gate import Gates
from hubbub.auth.validity import Validity, authorities, validity
from hubbub.build import is_compiled
from hubbub.cli import complete
from hubbub.cli.ls import WIDE
from hubbub.cli.status import size
from hubbub.cluster.connecting import check_urls
from hubbub.cluster.knocking import knock
from hubbub.cluster.refusals import TO_DO, whole
from hubbub.config import exposed, sources
from hubbub.config.settings import Settings
from hubbub.core.limits import CLIENTS
from hubbub.core.rights import Rights
from hubbub.errors import HubbubError, SettingError
from hubbub.journal.lock import holder
from hubbub.journal.room import Room
from hubbub.journal.segments import Directory
from hubbub.runtime.binding import BACKLOG, ServerSocket
from hubbub.runtime.cutoff import REASON as CUT_OFF
from hubbub.runtime.cutoff import names_in
from hubbub.runtime.descriptors import RESERVED, for_connections

app = typer.Typer(add_completion=False)

WELL: Final = "well"
NOTE: Final = "note"  # works, and could be better
BAD: Final = "bad"  # would not start, or not stay well
_COLOURS: Final = {WELL: "green", NOTE: "yellow", BAD: "red"}

NATS_PORT: Final = 4222
PORTS: Final = {"ws": 80, "wss": 443}  # of WebSockets, where none is said
_SERVER_SECONDS: Final = 2.0
_SYNC_SECONDS: Final = 1.0
_SYNCS: Final = 500  # of a fast disk this is a tenth of a second
_SYNC_BYTES: Final = 4096
_SLOW_SYNC_MS: Final = 10.0  # a spinning disk
_MANY: Final = 10_000  # descriptors that a hub of some thousand devices wants
_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES: Final = 512  # more than its structure has anywhere
_AHEAD_SECONDS: Final = 60  # of the newest file: more than clocks that are set drift


class Finding(NamedTuple):
    """`found`: what is so, in words. `advice`: the next step, "" if nothing need be done."""

    what: str
    level: str
    found: str
    advice: str = ""


@app.command()
def doctor(
    configuration: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Read settings: .toml ours, else mosquitto's."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data directory, as for `hubbub serve`.")
    ] = None,
    setting: complete.Setting = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    overrides = [*(setting or ()), *([f"data={data}"] if data is not None else ())]
    settings = sources.load(configuration, overrides, os.environ)
    found = [*examine(settings), *said_by(configuration, settings)]
    if as_json:
        print(json.dumps([one._asdict() for one in found], indent=2))
    else:
        width = None if sys.stdout.isatty() else WIDE  # grep finds whole lines
        Console(markup=False, width=width).print(_table(found))
    raise typer.Exit(any(one.level == BAD for one in found))


def examine(settings: Settings) -> Iterator[Finding]:
    """Everything that is looked at, in the order of a start."""
    for look in LOOKS:
        yield from look(settings)


def _table(found: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for column in ("level", "what", "found"):
        table.add_column(column, no_wrap=column != "found")
    for one in found:
        said = f"{one.found}\n-> {one.advice}" if one.advice else one.found
        table.add_row(one.level, one.what, said, style=None if one.level == WELL else "bold")
        table.columns[0].style = ""
    return table


# What runs


def program(settings: Settings) -> Iterator[Finding]:
    version = f"Python {platform.python_version()}"
    if is_compiled():
        yield Finding("program", WELL, f"{version}, the hot path compiled")
    else:
        yield Finding(
            "program", NOTE, f"{version}, the hot path in plain Python",
            "`pip install .` where gcc and Python.h are: a third less CPU a message",
        )  # fmt: skip


def ports(settings: Settings) -> Iterator[Finding]:
    """Each address is bound for a moment, unless a hub with this directory has it."""
    running = ""
    with contextlib.suppress(OSError):  # said of the disk
        running = holder(Path(settings.data) / "lock")
    for listener in settings.listeners():
        try:
            ServerSocket(listener).close()
        except (SettingError, OSError) as error:
            if running:
                found = f"{listener.address}: a hub runs in {settings.data} (process {running})"
                yield Finding("listen", WELL, found)
            else:
                yield Finding("listen", BAD, f"{error}", "free it, or listen elsewhere")
        else:
            yield Finding("listen", WELL, f"{listener.address} is free")


def bridges(settings: Settings) -> Iterator[Finding]:
    """Those that a start does not connect."""
    several = settings.processes > 1  # of which the first one has them all
    place = Path(settings.data) / "1" if several else Path(settings.data)
    cut = names_in(place) if settings.bridge else []
    for name in [one.name for one in settings.bridge if one.name in cut]:
        advice = f"hubbub bridge resume {name}, while the hub runs"
        yield Finding("bridge", NOTE, f"{name} is {CUT_OFF}", advice)


def secrets(settings: Settings) -> Iterator[Finding]:
    """Certificates load with their keys; nobody else can read what is secret."""
    for listener in settings.listeners():
        if listener.tls.certificate:
            try:
                certificates.context(listener.tls)
            except (HubbubError, OSError) as error:
                yield Finding("tls", BAD, f"{listener.address}: {error}", "mend the certificate")
            else:
                yield Finding("tls", WELL, f"{listener.address}: {listener.tls.certificate} loads")
    yield from _dates(settings)
    yield from map(_exposed, exposed.complaints(settings))


def _dates(settings: Settings) -> Iterator[Finding]:
    """Until when certificates are good: the hub's own, and those that it shows to others."""
    shown = [
        pair
        for tls in (listener.tls for listener in settings.listeners())
        for pair in (("tls.certificate", tls.certificate), ("tls.crl", tls.crl))
    ]
    shown += [("bridge.certificate", bridge.certificate) for bridge in settings.bridge]
    shown.append(("cluster.certificate", settings.cluster.certificate))
    for setting, file in dict.fromkeys(shown):
        found = validity(file) if file else None
        if found is not None:
            yield _date(setting, file, found)
    for place in dict.fromkeys(one.tls.client_ca for one in settings.listeners()):
        yield from _authorities(place)


def _authorities(place: str) -> Iterator[Finding]:
    """Those that end, each by itself, or when the first of all does. One that is over may lie
    beside others for years: with all of them nobody comes in.
    """
    known = authorities(place) if place else []
    found = [_date("tls.client_ca", *one) for one in known]
    if known and all(one.level == WELL for one in found):
        yield _date("tls.client_ca", place, min((one for _, one in known), key=lambda o: o.ends))
        return
    beside = any(one.level != BAD for one in found)
    for one in found:
        if one.level != WELL:
            yield one._replace(level=NOTE) if beside else one


def _date(setting: str, file: str, found: Validity) -> Finding:
    now = datetime.now(UTC)
    complaint = found.complaint(now)
    if complaint:
        level = NOTE if found.begins <= now < found.ends else BAD
        what, _, advice = complaint.partition(": ")
        return Finding("tls", level, f"{setting}: {file} {what}", advice)
    until = found.ends.isoformat(" ", "seconds")
    return Finding("tls", WELL, f"{setting}: {file} is good until {until}")


def files(settings: Settings) -> Iterator[Finding]:
    """Users, permissions and keys, as a start and SIGHUP read them."""
    wrong: list[str] = []
    gates = Gates(Rights())
    try:
        gates.dynamic = Gates(Rights(), settings.dynamic_security).dynamic
        for listener in settings.listeners():
            with _noting(wrong):
                gates.gate(listener)
    except HubbubError as error:
        wrong.append(str(error))
    for one in dict.fromkeys(wrong):
        yield Finding("users", BAD, one, "mend the file: a hub does not start with it")
    for file in gates.files():
        place = Path(file.file or "").resolve()  # a service starts elsewhere than who looks
        yield Finding("users", WELL, f"{place} can be used")
    gates.close()


@contextlib.contextmanager
def _noting(wrong: list[str]) -> Iterator[None]:
    try:
        yield
    except HubbubError as error:
        wrong.append(str(error))


def said_by(file: Path | None, settings: Settings) -> Iterator[Finding]:
    """Whether others can read the secrets that the file with the settings says itself."""
    complaint = exposed.of_configuration(settings, file) if file is not None else ""
    if complaint:
        yield _exposed(complaint)


def _exposed(complaint: str) -> Finding:
    found, _, advice = complaint.rpartition(": ")
    return Finding("secrets", BAD, found, advice)


def cluster(settings: Settings) -> Iterator[Finding]:
    """Whether the servers answer; the hub tries again and again, and is alone meanwhile."""
    if settings.cluster.url and not settings.cluster.name:
        advice = "each node of a cluster has its own: --set cluster.name=NAME"
        yield Finding("cluster", BAD, "cluster.name is missing", advice)
    try:
        check_urls(settings.cluster)
    except SettingError as error:
        yield Finding("cluster", BAD, str(error), "mend the setting: the hub would not start")
        return
    for url in settings.cluster.url:
        where = urlsplit(whole(url))
        address = where.hostname or "", where.port or PORTS.get(where.scheme, NATS_PORT)
        try:
            socket.create_connection(address, _SERVER_SECONDS).close()
        except OSError as error:
            found = f"{address[0]}:{address[1]}: {error.strerror or error}"
            yield Finding("cluster", NOTE, found, "start nats-server there; alone until it answers")
        else:
            yield _let_in(settings, url, f"{address[0]}:{address[1]}")


def _let_in(settings: Settings, url: str, address: str) -> Finding:
    """Whether it takes this node for one of its users, and has it do what nodes do."""
    if importlib.util.find_spec("nats") is None:
        return Finding("cluster", BAD, "no nats-py, which cluster.url needs",
                       "`pip install '.[cluster]'` where Hubbub's source is")  # fmt: skip
    try:
        server, wrong = asyncio.run(knock(settings.cluster, url))
    except SettingError as error:
        return Finding("cluster", BAD, str(error), "mend the setting: the hub would not start")
    if not wrong:
        return Finding("cluster", WELL, f"lets this node in: NATS at {server}")
    found, _, advice = wrong.partition(f" {TO_DO}")
    if server:
        found = f"{address} lets this node in, but {found}"
    return Finding("cluster", BAD, found, advice or "a node of a cluster cannot do without")


# The disk


def disk(settings: Settings) -> Iterator[Finding]:
    if settings.journal.record == "none":
        yield Finding("disk", NOTE, "journal.record is none: nothing survives a restart")
        return
    place = _standing(Path(settings.data))
    try:
        if Path(settings.data).exists() and not Path(settings.data).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{settings.data} is no directory")
        took = syncs(place)
    except OSError as error:
        reason = f"{place}: {error.strerror or error}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        first = "free some room there" if full else "let the hub's user write there"
        yield Finding("disk", BAD, reason, f"{first}, or choose --data DIR")
        return
    half, most = took[len(took) // 2], took[len(took) * 99 // 100]
    found = f"{place}: half of the syncs within {half:.1f} ms, 99 of 100 within {most:.1f} ms"
    if half > _SLOW_SYNC_MS:
        advice = "who waits for an answer gets so few a second; an SSD, or durability = \"os\""
        yield Finding("disk", NOTE, f"{found}: slow", advice)
    else:
        yield Finding("disk", WELL, f"{found}: {1000 / half:,.0f} answers a second to one client")


def _standing(path: Path) -> Path:
    """The directory, or where it would be made; what cannot be entered is looked at from above."""
    path = path.resolve()
    return next(one for one in (path, *path.parents) if os.path.isdir(one))


def syncs(place: Path) -> list[float]:
    """Milliseconds of each sync of a page that was there before, as the journal's are; sorted."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(bytes(_SYNC_BYTES * _SYNCS))
        file.flush()
        os.fsync(file.fileno())
        until = time.monotonic() + _SYNC_SECONDS
        while len(took) < _SYNCS and time.monotonic() < until:
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\xff" * _SYNC_BYTES, len(took) * _SYNC_BYTES)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def room(settings: Settings) -> Iterator[Finding]:
    """Whether the hub would refuse at once what is to stay: it keeps a part of the disk free."""
    if settings.journal.record == "none":
        return
    place = _standing(Path(settings.data))
    rule = Room(Directory(place), settings.journal.segment_bytes)
    rule.least = settings.journal.keep_free_bytes
    short = rule.look(0, 0, 0)
    if short:
        advice = "free some: what waits in queues, for sessions or retained is refused"
        yield Finding("room", BAD, short, advice)
    else:
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        yield Finding("room", WELL, f"{size(free)} free in {place}")


# The machine


def descriptors(settings: Settings) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = CLIENTS + RESERVED if hard == resource.RLIM_INFINITY else hard
    found = f"{for_connections(limit):,} connections (ulimit -n {soft:,}, raised to {limit:,})"
    if limit < _MANY:
        yield Finding("descriptors", NOTE, found, "LimitNOFILE= of its unit, or ulimit -Hn")
    else:
        yield Finding("descriptors", WELL, found)


def backlog(settings: Settings) -> Iterator[Finding]:
    try:
        most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if most < BACKLOG:
        found = f"{most:,} connections may wait to be accepted; after a blip all come at once"
        yield Finding("backlog", NOTE, found, f"sysctl -w net.core.somaxconn={BACKLOG}")


def memory(settings: Settings) -> Iterator[Finding]:
    """The budget of what waits, beside what this machine has."""
    budget = settings.limits.waiting_bytes
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(one.split()[1]) for one in lines if one.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration, ValueError):
        return
    found = f"{free / 1e9:,.1f} GB available, limits.waiting_bytes takes up to {budget / 1e9:,.1f}"
    if free < 2 * budget:
        yield Finding("memory", NOTE, found, "lower limits.waiting_bytes to a quarter of it")
    else:
        yield Finding("memory", WELL, found)


def clock(settings: Settings) -> Iterator[Finding]:
    ahead = _newest(Path(settings.data)) - time.time()
    if ahead > _AHEAD_SECONDS:
        found = f"the newest file in {settings.data} is {ahead:,.0f} s ahead of this clock"
        yield Finding("clock", BAD, found, "set the clock: what was delayed would wait for it")
    elif _is_adrift():
        found = "nothing keeps this clock right (no NTP)"
        yield Finding("clock", NOTE, found, "run chrony or systemd-timesyncd")
    else:
        yield Finding("clock", WELL, time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _newest(directory: Path) -> float:
    found = 0.0
    # `Path.glob` ends with an error below what cannot be entered, which is said of the disk
    for path in glob.iglob("*/*", root_dir=directory):
        with contextlib.suppress(OSError):
            found = max(found, (directory / path).stat().st_mtime)
    return found


def _is_adrift() -> bool:
    """Whether the kernel says that nobody sets its clock: adjtimex(2)."""
    ask = getattr(ctypes.CDLL(None), "adjtimex", None)
    return ask is not None and ask(ctypes.create_string_buffer(_TIMEX_BYTES)) == _UNSYNCHRONISED


def java(settings: Settings) -> Iterator[Finding]:
    """Only the pipeline needs it; without Spark nobody asks."""
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("spark", WELL, "not installed; only `hubbub pipeline` needs it")
        return
    from hubbub.spark.start import java as found_java

    try:
        yield Finding("spark", WELL, f"Java is {found_java()}")
    except SettingError as error:
        found, _, advice = str(error).partition(": ")
        yield Finding("spark", BAD, found, advice)


LOOKS: Final[tuple[Callable[[Settings], Iterator[Finding]], ...]] = (
    program, ports, files, bridges, secrets, cluster, disk, room, descriptors, backlog, memory,
    clock, java,
)  # fmt: skip
