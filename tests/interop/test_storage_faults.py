"""Each system call on a journal's directory fails in a real hub, its roller, or a command.

What was acknowledged is known to the clients alone, and must be there when the fault is over: from
the hub that runs on, and from one that is started again (`storage_faults`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.interop.faults import Fault
from tests.interop.storage_faults import Bench

pytestmark = [pytest.mark.interop, pytest.mark.slow]

IO, FILES, SPACE = errno.EIO, errno.EMFILE, errno.ENOSPC

# A few of each phase.
FAULTS: dict[str, list[Fault]] = {
    "roller": [
        Fault("open", FILES, 5, 7, "roller"),
        Fault("unlink", IO, 1, 1, "roller"),
    ],
    "start": [Fault("fdatasync", IO, 1, 2, "hub")],
    "running": [Fault("fsync fdatasync pwrite", SPACE, 2, 6, "hub")],
    "backup": [Fault("sendfile write", SPACE, 2, 2, "hub")],
    "compact": [Fault("open", FILES, 20, 30, "hub")],
}
NAMED = [(phase, fault) for phase, faults in FAULTS.items() for fault in faults]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"))
    yield made
    made.stop()


def nothing_is_wrong(bench: Bench, phase: str, fault: Fault) -> None:
    findings = bench.run(phase, fault)
    again = f"again: python -m tests.interop.storage_faults {phase} '{fault}'"
    assert not findings, "\n".join([*map(str, findings), bench.told[-2000:], again])
    assert bench.fired, "nothing failed"


@pytest.mark.parametrize("phase, fault", NAMED, ids=lambda one: str(one))
def test_a_call_that_fails(bench: Bench, phase: str, fault: Fault) -> None:
    nothing_is_wrong(bench, phase, fault)
