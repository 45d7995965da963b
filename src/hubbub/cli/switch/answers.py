"""Who answers for `hubbub switch serve`: a program, started for each request, or a person."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable

from hubbub.errors import HubbubError
from hubbub.terminal import say


class ProgramFailed(HubbubError):
    """A program that should have answered ended with an error."""


def is_text(payload: bytes) -> bool:
    """Whether a terminal can show it and a last line end means nothing."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in payload


def print_payload(payload: bytes) -> None:
    """Text becomes a line; anything else stays as it is, so that it can go to a file."""
    if sys.stdout.isatty():
        say(payload.decode("utf-8", "backslashreplace"))
        return
    sys.stdout.buffer.write(payload + b"\n" if is_text(payload) else payload)
    sys.stdout.buffer.flush()


async def by_program(program: str, request: bytes) -> bytes:
    """What the program prints for this request; of text the end of the last line is no part."""
    process = await asyncio.create_subprocess_exec(
        program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        reply, _ = await process.communicate(request)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise ProgramFailed(f"{program} ended with code {process.returncode}")
    return reply.removesuffix(b"\n") if is_text(reply) else reply


async def by_hand(request: bytes) -> bytes:
    """What is typed, up to a line "."; EOFError when there is nothing more to come."""
    print_payload(request)
    print("Enter body text (end with a line '.'):", file=sys.stderr)
    return await _in_a_thread(_typed_lines)


def _typed_lines() -> bytes:
    lines: list[bytes] = []
    for line in io.FileIO(0, closefd=False):  # unbuffered: a buffer's lock would outlast Ctrl-C
        if line.rstrip(b"\r\n") == b".":
            break
        lines.append(line)
    else:
        if not lines:
            raise EOFError("nobody answers any more")
    return b"".join(lines).removesuffix(b"\n")


async def _in_a_thread(read: Callable[[], bytes]) -> bytes:
    """In a thread that Ctrl-C need not wait for, unlike those of `asyncio.to_thread`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(result: bytes, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        try:
            result, error = read(), None
        except Exception as failed:
            result, error = b"", failed
        loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done
