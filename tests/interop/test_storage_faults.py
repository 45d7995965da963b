"""Each system call on a journal's directory fails in a real hub, its roller, or a command.

What was acknowledged is known to the clients alone, and must be there when the fault is over: from
the hub that runs on, and from one that is started again (`storage_faults`). The tests take a few
faults of each phase, `make soak` all calls there are, with one error each in turn; with every
error that a call can have: `python -m tests.interop.storage_faults PHASE deep`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.faults import ALWAYS, Fault
from tests.interop.storage_faults import PHASES, READING, Bench, blocks, every

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENTS = "data/log/*.rows"
SNAPSHOTS = "data/state/*.rows"
IO, FILES, MEMORY, SPACE = errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOSPC
READING_OPS = "read pread mmap dup"  # by whichever of them

# By phase what was wrong once, or would be first.
FAULTS: dict[str, list[Fault]] = {
    "roller": [
        Fault(READING_OPS, MEMORY, 1, 3, "roller", SNAPSHOTS),  # both of them
        Fault("open", FILES, 1, 6, "roller", SNAPSHOTS),
        Fault("unlink", IO, 1, 1, "roller"),
    ],
    "start": [
        Fault(READING_OPS, MEMORY, 1, 3, "hub", SNAPSHOTS),
        Fault("fdatasync", IO, 1, 2, "hub"),
    ],
    "running": [
        Fault("pread", IO, 1, 3, "hub"),
        Fault("open", FILES, 2, 2, "hub", SEGMENTS),  # of the file that the thread began
        Fault("readdir", IO, 1, 1, "hub"),
        Fault("fsync fdatasync pwrite", SPACE, 2, 6, "hub"),
    ],
    "rolling": [
        Fault("fork", errno.EAGAIN, 1, 3, "hub"),
        Fault("open dup readdir pipe", FILES, 1, ALWAYS, "*"),  # all descriptors are used up
    ],
    "verify": [Fault(READING_OPS, MEMORY, 2, 3, "hub")],
    "backup": [Fault("sendfile write pwrite", SPACE, 2, 2, "hub")],
    "restore": [
        Fault("fsync", SPACE, 1, 1, "hub"),
        Fault(READING_OPS, FILES, 2, 2, "hub", "copy/state/*"),
    ],
    "compact": [Fault("open", FILES, 20, 30, "hub"), Fault("rename", SPACE, 2, 2, "hub")],
}
TRIES = 3  # on a busy machine what is to fail may be over before it can
NAMED = [(phase, fault) for phase, faults in FAULTS.items() for fault in faults]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.stop()


def nothing_is_wrong(bench: Bench, phase: str, fault: Fault) -> None:
    again = f"again: python -m tests.interop.storage_faults {phase} '{fault}'"
    for _ in range(TRIES):
        findings = bench.run(phase, fault)
        assert not findings, "\n".join([*map(str, findings), bench.told[-2000:], again])
        if bench.fired:
            return
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("phase, fault", NAMED, ids=lambda one: str(one))
def test_a_call_that_fails(bench: Bench, phase: str, fault: Fault) -> None:
    nothing_is_wrong(bench, phase, fault)


@pytest.mark.parametrize(
    "phase, pattern",
    [
        ("start", SNAPSHOTS), ("start", SEGMENTS), ("roller", SNAPSHOTS), ("running", SNAPSHOTS),
        ("running", SEGMENTS),
    ],
)  # fmt: skip
def test_a_block_that_cannot_be_read(bench: Bench, phase: str, pattern: str) -> None:
    *_, last = [one for one in blocks(bench.made) if Path(one.path).match(pattern)]
    findings = bench.run(phase, last)
    assert not findings, "\n".join([*map(str, findings), bench.told[-2000:], str(last)])


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("phase", PHASES)
def test_every_call(bench: Bench, phase: str) -> None:
    faults = list(every(bench.points(phase), deep=False))
    if phase in READING:
        faults += blocks(bench.made, READING[phase])
    found = [
        f"{phase} '{fault}': {finding}" for fault in faults for finding in bench.run(phase, fault)
    ]
    assert not found, "\n".join(found)
