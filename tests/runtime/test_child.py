"""Child processes of the hub: what they said, and that none outlives who waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from hubbub.runtime import child

SAYS_WHO = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w')); "


async def test_what_it_said_and_how_it_ended() -> None:
    program = "import sys; print('no room', file=sys.stderr); sys.exit(3)"
    assert await child.run([sys.executable, "-c", program]) == child.Ended(3, "no room")


async def test_numpy_begins_no_threads_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody wants some."""
    program = "import os, sys, pyarrow; print(len(os.listdir('/proc/self/task')), file=sys.stderr)"
    alone = await child.run([sys.executable, "-c", program])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # no more than there are cores
    both = await child.run([sys.executable, "-c", program])
    cores = len(os.sched_getaffinity(0))
    assert int(both.said) - int(alone.said) == (cores > 1)


async def test_what_cannot_be_started_is_an_error_of_the_machine() -> None:
    with pytest.raises(FileNotFoundError):
        await child.run(["/no/such/program"])


async def test_one_that_was_stopped_by_a_signal_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """SIGTERM would wait until somebody lets it go on."""
    says = tmp_path / "pid"
    program = SAYS_WHO + "time.sleep(60)"
    running = asyncio.create_task(child.run([sys.executable, "-c", program, str(says)]))
    async with asyncio.timeout(20):
        while not (says.exists() and says.read_text().strip()):
            await asyncio.sleep(0.01)
    process = int(says.read_text())
    os.kill(process, signal.SIGSTOP)
    running.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
