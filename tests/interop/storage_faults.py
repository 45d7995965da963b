"""What becomes of a journal when the storage beneath it fails: one phase, one fault, one verdict.

    python -m tests.interop.storage_faults PHASE 'FAULT' …     one run, with what was printed
    python -m tests.interop.storage_faults PHASE               how many calls there are to fail
    python -m tests.interop.storage_faults PHASE some          fail some of them
    python -m tests.interop.storage_faults PHASE all           fail each of them in turn
    python -m tests.interop.storage_faults PHASE deep          … with every error it can have
    python -m tests.interop.storage_faults PHASE blocks        unreadable blocks instead

In each phase something real is at work on a directory with snapshots, segments, offline sessions,
retained messages and a queue: a hub or a command, started with `faults.c`. While the fault lasts
clients go on. Then the fault ends, and everything that was ever acknowledged must be there: from
the hub that still runs, and from one that is started again. `Finding` says what may be wrong.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop import promises
from tests.interop.faults import ALWAYS, Fault, Faults, unreadable
from tests.interop.promises import Gone, Ledger
from tests.nursery import COMMANDS, HUB, Child, Nursery

SMALL: Final = ("--set", "journal.segment_bytes=65536")
READY: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
ROLLED, UNROLLED = 3, 2  # segments before each run; the first ones are compressed
START_SECONDS: Final = 10.0
STOP_SECONDS: Final = 15.0
AGAIN_SECONDS: Final = 12.0  # from the end of a fault until all goes on: more than any pause
REPORTS: Final = ("lost", "damaged", "cannot be read")
EXPLAINED: Final = ("hubbub:", "cannot", "wrong:", *map(os.strerror, range(1, 134)))
PLACES: Final = (".rows", "the journal")
BLAME: Final = re.compile(r"damaged|are lost|from a backup|move .* away")  # nothing ever is

# What each call can say, by its manual page and what file systems do.
ERRORS: Final = {
    "open": ("EMFILE", "EIO", "ENFILE", "ENOMEM", "ENOSPC", "EROFS", "EDQUOT"),
    "stat": ("EIO", "ENOMEM"),
    "read": ("EIO", "ENOMEM"),
    "pread": ("EIO", "ENOMEM"),
    "mmap": ("ENOMEM", "ENFILE", "EIO"),
    "dup": ("EMFILE",),
    "readdir": ("EIO", "ENOMEM"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "EROFS"),
    "pwrite": ("ENOSPC", "EIO", "EDQUOT", "EROFS"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT"),
    "ftruncate": ("EIO", "EROFS"),
    "allocate": ("ENOSPC", "EDQUOT", "EIO"),
    "rename": ("ENOSPC", "EIO", "EROFS", "EDQUOT", "ENOMEM"),
    "link": ("ENOSPC", "EIO", "EROFS", "EDQUOT"),
    "unlink": ("EIO", "EROFS"),
    "mkdir": ("ENOSPC", "EIO", "EROFS", "EDQUOT"),
    "flock": ("ENOMEM", "EIO"),
    "sendfile": ("EIO", "ENOSPC", "ENOMEM"),
    "chmod": ("EIO", "EROFS"),
    "chown": ("EIO", "EROFS"),
    "fork": ("EAGAIN", "ENOMEM"),
    "pipe": ("EMFILE", "ENFILE"),
}


class Finding(NamedTuple):
    """`kind` is one of KINDS, the worst first."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


KINDS: Final = {
    "LOST": "something acknowledged is gone, also after a restart",
    "DEAD": "the hub does not start any more, though the fault is over",
    "MISJUDGED": "a good file was set aside as damaged",
    "REMOVED": "a good snapshot was removed",
    "STUCK": "the hub runs, the fault is over, and it still does not do what it should",
    "KILLED": "the process ended by a signal",
    "HANGS": "the process neither works nor ends",
    "DISAGREE": "verify and the start do not say the same",
    "BLAMED": "good data was called damaged or lost, or the user told to put it away",
    "TRACEBACK": "a failure was told as a traceback",
    "SILENT": "a failure was not told",
    "VAGUE": "a failure was told without saying where",
    "AGAIN": "the same, tried again after the fault, fails",
}


class Bench:
    """A place for many runs. `folder` is emptied by nobody but its owner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "disk"
        self.data = self.root / "data"
        self.copy = self.root / "copy"
        self.log = folder / "log"
        self.root.mkdir(parents=True)
        self.faults = Faults(folder / "faults", self.root)
        self.nursery = Nursery(self.faults.environment, (*HUB, *COMMANDS))
        self.children: list[Child] = []
        self.ledger = Ledger()
        self.findings: list[Finding] = []
        self.told = ""  # what was printed while something failed
        self._make()

    def stop(self) -> None:
        self._kill_all()
        self.nursery.stop()

    # A directory to begin with

    def _make(self) -> None:
        """One with two snapshots, compressed segments, and some that are not folded yet."""
        self.faults.set(Fault("open", errno.EIO, 1, ALWAYS, "roller"))
        child, port = self._serve()
        for client in ("now", "later", "eve"):
            promises.subscribe(port, client)
        for _ in range(ROLLED + UNROLLED):
            assert promises.publish(port, self.ledger, 17, 20) == 17
            assert promises.send(port, self.ledger, 4, 20) == 4
        child.kill()
        self.faults.clear()
        assert self._roll_all(ROLLED)
        assert len(self._snapshots(self.data)) == 2
        self.made = self.folder / "made"
        shutil.copytree(self.data, self.made)
        self.saved = self.folder / "saved"
        assert self._command("backup", str(self.saved), "--data", str(self.data)) == 0
        self.promised = self.ledger

    def _fresh(self) -> None:
        shutil.rmtree(self.root)
        self.root.mkdir()
        shutil.copytree(self.made, self.data)
        self.log.unlink(missing_ok=True)
        self.ledger = self.promised.copy()
        self.findings, self.told = [], ""

    # Processes

    def _serve(self, data: Path | None = None, wait: float = START_SECONDS) -> tuple[Child, int]:
        """A hub and its port; 0 if it does not listen in time, or has ended."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        child = self.nursery.start(
            self.log, "hubbub", "serve", "--listen", "127.0.0.1:0", "--data",
            str(data or self.data), *SMALL,
        )  # fmt: skip
        self.children.append(child)
        until = time.monotonic() + wait
        while time.monotonic() < until:
            found = READY.search(child.said()[begun:])
            if found:
                return child, int(found[1])
            if child.wait(0.02) is not None:
                break
        return child, 0

    def _command(self, *arguments: str) -> int | None:
        return self.nursery.run(self.log, "hubbub", "journal", *arguments)

    def _kill_all(self) -> None:
        for child in self.children:
            child.kill()
        self.children = []

    def _said(self, begun: int = 0) -> str:
        return self.log.read_text(errors="replace")[begun:] if self.log.exists() else ""

    # Verdicts

    def _find(self, kind: str, detail: str) -> None:
        assert kind in KINDS
        if (found := Finding(kind, detail)) not in self.findings:
            self.findings.append(found)

    @staticmethod
    def _snapshots(data: Path) -> list[int]:
        """Those that read well."""
        return [int(path.stem) for path in _files(data / "state") if _is_whole(path.read_bytes())]

    def run(self, phase: str, *faults: Fault) -> list[Finding]:
        """What is wrong with a hub or a command in that phase if this fails."""
        self._fresh()
        before = self._snapshots(self.data)
        try:
            PHASES[phase](self, faults)
            self.told = self._said()
            self.fired = self._failed(len(faults))
            self.faults.clear()
            self._kill_all()
            self._kept(before)
            if self.data.exists():
                self._begin_again(self.data)
        except (Gone, OSError) as gone:
            self._find("STUCK", str(gone))
        finally:
            self.faults.clear()
            self._kill_all()
        lines = [line for line in self.told.splitlines() if not line.startswith(" ")]
        if blamed := next(filter(BLAME.search, lines), None):
            self._find("BLAMED", blamed[:250])
        if "Traceback" in self._said():
            self._find("TRACEBACK", _traceback(self._said()))
        order = list(KINDS)
        self.findings.sort(key=lambda one: order.index(one.kind))
        return self.findings

    def _failed(self, rules: int) -> int:
        return sum(self.faults.failed(number) for number in range(rules))

    def _kept(self, before: list[int]) -> None:
        """What read well is there still, unless two newer ones are."""
        now = self._snapshots(self.data)
        quarantine = self.data / "quarantine"
        kept = [int(path.name[:20]) for path in quarantine.iterdir()] if quarantine.exists() else []
        for seq in before:
            newer = {one for one in (*now, *kept) if one > seq}
            if seq not in now and len(newer) < 2 and seq not in kept:
                self._find("REMOVED", f"the snapshot {seq}; left are {now}")
        if kept:
            self._find("MISJUDGED", f"in quarantine are {sorted(kept)}")

    def _ended(self, child: Child, seconds: float, what: str, told: int) -> None:
        """It ends in time and says why."""
        code = child.wait(seconds)
        if code is None:
            self._find("HANGS", f"{what} neither goes on nor ends")
            child.kill()
        elif code < 0:
            self._find("KILLED", f"{what} ended by {signal.Signals(-code).name}")
        elif code > 0:
            self._explained(told, what)

    def _explained(self, begun: int, what: str) -> None:
        """A line that says what happened, and not many."""
        lines = [line for line in self._said(begun).splitlines() if line.strip()]
        errors = [line for line in lines if any(one in line for one in EXPLAINED)]
        if not errors:
            self._find("SILENT", f"{what} failed without a word: {lines[-3:]}")
        elif not any(one in line for line in errors for one in (str(self.root), *PLACES)):
            self._find("VAGUE", f"{what} does not say which file or directory: {errors[-1]}")

    # The phases

    def start(self, faults: tuple[Fault, ...]) -> None:
        """The fault is there when a hub starts."""
        self.faults.set(*faults)
        told = len(self._said())
        child, port = self._serve()
        if not port:
            self._ended(child, 0, "the start", told)
            return
        promises.publish(port, self.ledger, 3, 0.7)
        self.faults.stop()
        self._goes_on(child, port)
        os.kill(child.pid, signal.SIGTERM)
        self._ended(child, STOP_SECONDS, "the stop", told)

    def running(self, faults: tuple[Fault, ...]) -> None:
        """It begins while clients publish and read. Segments end meanwhile."""
        child, port = self._serve()
        told = len(self._said())
        if not port:
            self._find("DEAD", f"before any fault: {self._said()[-200:]}")
            return
        over = time.monotonic() + 0.7
        self.faults.set(*faults)
        with ThreadPoolExecutor(1) as meanwhile:
            published = meanwhile.submit(promises.publish, port, self.ledger, 20, AGAIN_SECONDS)
            self._read_and_send(port)
            time.sleep(max(over - time.monotonic(), 0))
            self.faults.stop()
        if child.wait(0) is not None:
            self._ended(child, 0, "the hub", told)
            return
        if published.result() < 20:
            self._find("STUCK", f"of 20 acknowledgements only {published.result()} ever came")
        self._goes_on(child, port)

    def _read_and_send(self, port: int) -> None:
        promises.send(port, self.ledger, 3, 0.7)
        try:
            promises.take(port, self.ledger, "eve", 0.4)
        except Gone:
            pass
        promises.queue_missing(port, self.ledger, 0.4)
        _look(port)

    def rolling(self, faults: tuple[Fault, ...]) -> None:
        """It begins when a hub is about to fold what is finished, and lasts until it has tried."""
        child, port = self._serve()
        told = len(self._said())
        self.faults.set(*faults)
        before = self._snapshots(self.data)
        until = time.monotonic() + 4
        while time.monotonic() < until and child.wait(0) is None:
            if self._snapshots(self.data) != before or self._failed(len(faults)):
                break
            time.sleep(0.05)
        time.sleep(1.0)  # the roller ends, the hub takes what it made
        promises.publish(port, self.ledger, 6, 0.7)
        self.faults.stop()
        if child.wait(0) is not None:
            self._ended(child, 0, "the hub", told)
            return
        self._goes_on(child, port)

    def roller(self, faults: tuple[Fault, ...]) -> None:
        """The child process alone, once as often as there is something to fold."""
        self.faults.set(*faults)
        failed = not self._roll_all()
        self.faults.stop()
        if not failed:
            return
        self._kept(self._snapshots(self.made))
        if not self._roll_all():
            self._find("AGAIN", "the roller fails, though the fault is over")

    def _roll_all(self, most: int = UNROLLED + ROLLED) -> bool:
        newest = max((int(path.stem) for path in _files(self.data / "state")), default=0)
        bases = sorted({_base(path) for path in _files(self.data / "log")})
        for base in [one for one in bases if one > newest][:-1][:most]:
            told = len(self._said())
            child = self.nursery.start(
                self.log, "hubbub.journal.roll", str(self.data), str(base),
                "--keep-seconds", "0", "--keep-bytes", str(1 << 40), role="roller",
            )  # fmt: skip
            self.children.append(child)
            self._ended(child, 20, "the roller", told)
            if child.code:
                return False
        return True

    def verify(self, faults: tuple[Fault, ...]) -> None:
        """`hubbub journal verify`: a fault is no damage."""
        self._tried(faults, "verify", "--data", str(self.data))
        if "wrong:" in self._said():
            self._find("DISAGREE", f"an error of the machine is called damage: {self._last()}")

    def backup(self, faults: tuple[Fault, ...]) -> None:
        """What calls itself a backup is whole."""
        code = self._tried(faults, "backup", str(self.copy), "--data", str(self.data))
        if (self.copy / "format").exists() or code == 0:
            self._begin_again(self.copy, "the backup: ", may_refuse=code != 0)
        shutil.rmtree(self.copy, ignore_errors=True)
        if self._command("backup", str(self.copy), "--data", str(self.data)):
            self._find("AGAIN", f"no backup can be made any more: {self._last()}")

    def restore(self, faults: tuple[Fault, ...]) -> None:
        """One that stopped half-way starts with everything, or not at all."""
        shutil.rmtree(self.data)
        shutil.copytree(self.saved, self.copy)
        code = self._tried(faults, "restore", str(self.copy), "--data", str(self.data))
        if any(self.data.glob("*/*.rows")):  # else there is nothing that could be believed
            self._begin_again(self.data, "what was restored: ", may_refuse=code != 0)
        shutil.rmtree(self.data, ignore_errors=True)
        if self._command("restore", str(self.copy), "--data", str(self.data)):
            self._find("AGAIN", f"nothing can be restored any more: {self._last()}")

    def compact(self, faults: tuple[Fault, ...]) -> None:
        code = self._tried(faults, "compact", "--data", str(self.data))
        self._kept(self._snapshots(self.made))
        if code and self._command("compact", "--data", str(self.data)):
            self._find("AGAIN", f"it cannot be compacted any more: {self._last()}")

    def _tried(self, faults: tuple[Fault, ...], *arguments: str) -> int | None:
        told = len(self._said())
        self.faults.set(*faults)
        child = self.nursery.start(self.log, "hubbub", "journal", *arguments)
        self.children.append(child)
        self._ended(child, 20, arguments[0], told)
        self.faults.stop()
        return child.code

    def _last(self) -> str:
        return " | ".join(self._said().splitlines()[-2:])[-300:]

    # What must be so afterwards

    def _goes_on(self, child: Child, port: int) -> None:
        """The fault is over: without a restart everybody gets what they are owed."""
        if promises.publish(port, self.ledger, 1, AGAIN_SECONDS, client="again") != 1:
            if child.wait(0.5) is None:
                self._find("STUCK", "acknowledgements do not come any more")
            else:
                self._ended(child, 0, "the hub", 0)
            return
        self._owed(port, "now", "STUCK", "the running hub: ")

    def _owed(self, port: int, client: str, kind: str, where: str) -> None:
        try:
            missing = promises.take(port, self.ledger, client, 4)
            wrong = promises.retained_wrong(port, self.ledger, 4)
            gone = promises.queue_missing(port, self.ledger, 4)
        except Gone as reason:
            self._find(kind, f"{where}{reason}")
            return
        all_of = len(self.ledger.messages)
        if missing:
            self._find(kind, f"{where}{len(missing)} of {all_of} messages for {client}")
        if wrong:
            self._find(kind, f"{where}retained {wrong}")
        if gone:
            self._find(kind, f"{where}{len(gone)} of {len(self.ledger.queued)} in the queue")

    def _begin_again(self, data: Path, where: str = "", may_refuse: bool = False) -> None:
        """`verify`, then a start without faults, and everything is there."""
        begun = len(self._said())
        right = self._command("verify", "--data", str(data)) == 0
        verified, begun = self._said(begun), len(self._said())
        child, port = self._serve(data)
        started = self._said(begun)
        if not port:
            if not may_refuse:
                self._find("DEAD", f"{where}{' | '.join(started.splitlines()[-2:])[-300:]}")
                if right:
                    self._find("DISAGREE", f"{where}verify says it is right")
            return
        reported = [line for line in started.splitlines() if any(one in line for one in REPORTS)]
        if right and reported:
            self._find("DISAGREE", f"{where}verify: all is right; the start: {reported[0][:200]}")
        if not right and not reported:
            said = " | ".join(verified.splitlines()[-2:])[:200]
            self._find("DISAGREE", f"{where}the start says nothing; verify: {said}")
        for client in ("later", "eve"):
            self._owed(port, client, "LOST", where)
        child.kill()

    # Which faults there are

    def points(self, phase: str) -> dict[tuple[str, str], int]:
        """How many calls that phase makes without a fault, by role and operation."""
        self.faults.trace.unlink(missing_ok=True)
        self._fresh()
        self.faults.tracing = True
        try:
            PHASES[phase](self, (Fault("*", 0),))
        finally:
            self.faults.tracing = False
            self.faults.clear()
            self._kill_all()
        calls = Counter((one.role, one.op) for one in self.faults.calls_made())
        if phase not in FORKING:
            calls = Counter({key: count for key, count in calls.items() if key[1] != "pipe"})
        return dict(sorted(calls.items()))


PHASES: Final[dict[str, Callable[[Bench, tuple[Fault, ...]], None]]] = {
    "start": Bench.start,
    "running": Bench.running,
    "rolling": Bench.rolling,
    "roller": Bench.roller,
    "verify": Bench.verify,
    "backup": Bench.backup,
    "restore": Bench.restore,
    "compact": Bench.compact,
}


# Where the files lie that a phase reads.
READING: Final = {phase: "copy" if phase == "restore" else "data" for phase in PHASES}
# Which phases make processes; elsewhere pipes are the event loop's.
FORKING: Final = ("running", "rolling")


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.rows"))


# The format as its document says it, read by other means than the hub's.


def _base(segment: Path) -> int:
    """Where the segment begins that this file is of."""
    return int.from_bytes(segment.read_bytes()[32:40], "little")


def _is_whole(snapshot: bytes) -> bool:
    """The header says this length, and every frame is right."""
    if snapshot[:8] != b"HUBBUBJ1" or int.from_bytes(snapshot[40:48], "little") != len(snapshot):
        return False
    at = int.from_bytes(snapshot[12:16], "little")
    while at < len(snapshot):
        length, crc = struct.unpack_from("<II", snapshot, at)
        if length < 8 or zlib.crc32(snapshot[at + 8 : at + length]) != crc:
            return False
        at += length
    return at == len(snapshot)


def _look(port: int) -> None:
    """As Spark does over HTTP."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(1)
            path = b"/api/v1/journal?from=1"
            sock.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
            while sock.recv(1 << 16):
                pass
    except OSError:
        pass


def _traceback(said: str) -> str:
    """Its last line, and how many there are."""
    found = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception)\b.*)$", said, re.MULTILINE)
    return f"{said.count('Traceback')}: {found[0][:160] if found else said[-200:]}"


def every(
    calls: dict[tuple[str, str], int], deep: bool = True, most: int = ALWAYS
) -> Iterator[Fault]:
    """Each call fails once, with the two after it, and with all after it. With one error each
    unless it is `deep`; of each operation at most so many calls, evenly chosen.
    """
    turn = 0
    for (role, op), count in calls.items():
        for number in sorted({1 + n * count // min(count, most) for n in range(min(count, most))}):
            names = ERRORS.get(op, ())
            for name in names if deep else names[turn % max(len(names), 1) :][:1]:
                error = getattr(errno, name)
                for last in (number, number + 2, ALWAYS):
                    yield Fault(op, error, number, last, role)
            turn += 1


def blocks(data: Path, folder: str = "data") -> Iterator[Fault]:
    """The first, middle and last block of each file of rows."""
    for path in sorted(data.glob("*/*.rows")):
        size = path.stat().st_size
        for at in sorted({0, size // 2 & -4096, max(size - 1, 0) & -4096}):
            yield unreadable(f"{folder}/{path.parent.name}/{path.name}", at)


def sweep(bench: Bench, phase: str, faults: Iterator[Fault]) -> int:
    """Run them all and print what is found, and at the end how much of what."""
    found: Counter[str] = Counter()
    runs = fired = 0
    for fault in faults:
        started = time.monotonic()
        findings = bench.run(phase, fault)
        runs += 1
        fired += bench.fired > 0
        for one in findings:
            found[one.kind] += 1
            print(f"{phase} '{fault}' [{time.monotonic() - started:.1f} s] {one}", flush=True)
    print(f"{phase}: {runs} runs, in {fired} something failed; {dict(found)}", flush=True)
    return bool(found)


def main(phase: str, *texts: str) -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bench = Bench(Path(folder))
        try:
            if not texts:
                for (role, op), count in bench.points(phase).items():
                    print(f"{role} {op}: {count}")
                return 0
            if texts[0] in ("some", "all", "deep"):
                most = 4 if texts[0] == "some" else ALWAYS
                return sweep(bench, phase, every(bench.points(phase), texts[0] == "deep", most))
            if texts[0] == "blocks":
                return sweep(bench, phase, blocks(bench.made, READING[phase]))
            findings = bench.run(phase, *map(Fault.parsed, texts))
            print(bench.told)
            print(f"failed calls: {bench.fired}")
            for one in findings:
                print(one)
            return bool(findings)
        finally:
            bench.stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
