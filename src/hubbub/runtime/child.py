"""A child process of the hub, and what it said if it failed. The upkeep folds and scrubs with it.

Not the loop's own: where uvloop cannot make a pipe, it prints a traceback from which no caller can
keep it. Here that is OSError, as for a fork that fails.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Final, NamedTuple

POLL_SECONDS: Final = 0.01  # between two looks at a process that has closed its stderr
SAID_BYTES: Final = 64 * 1024  # of what it said are kept


def environment() -> dict[str, str]:
    """That of a child that reads with pyarrow. That imports numpy, which computes nothing here: its
    BLAS would begin a thread for each core, and these spin for 0.1 s each before they rest.
    """
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ}


class Ended(NamedTuple):
    """Its exit code, minus the signal if one ended it, and what it wrote to stderr."""

    code: int
    said: str


async def run(command: list[str]) -> Ended:
    """Run a command until it ends; who cancels this ends it. OSError if it cannot be started."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=writing, env=environment()
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        said = await _all_of(reading)
        await _end_of(process)
    except asyncio.CancelledError:
        process.kill()  # each of their steps leaves a whole file or none; a stopped one must go too
        await _end_of(process)
        raise
    finally:
        os.close(reading)
    return Ended(process.returncode, said.decode(errors="replace").strip())


async def _all_of(pipe: int) -> bytes:
    """What comes through a pipe until nobody has its other end, or as much as is kept."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    said = bytearray()

    def read() -> None:
        piece = os.read(pipe, SAID_BYTES)
        said.extend(piece[: SAID_BYTES - len(said)])
        if not piece and not over.done():
            over.set_result(None)

    loop.add_reader(pipe, read)
    try:
        await over
    finally:
        loop.remove_reader(pipe)
    return bytes(said)


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        await asyncio.sleep(POLL_SECONDS)
