"""SIGHUP at any time of a start: the hub lives, and reads its files again once it is ready."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hubbub import Hub
from hubbub.config.settings import Journal, Settings
from tests.process import ROOT
from tests.security import Note

pytestmark = pytest.mark.interop


async def fill(data: Path, count: int) -> None:
    """A journal that takes a while to read."""
    settings = Settings(listen=("127.0.0.1:0",), data=str(data), journal=Journal(durability="os"))
    async with Hub(settings) as hub:
        for number in range(count):
            hub.publish(b"x" * 50, f"many/{number}", retain=True)
            if not number % 1_000:
                await asyncio.sleep(0)


def caught(pid: int) -> bool:
    """Whether the program has said that it takes SIGHUP itself."""
    found = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return found is not None and bool(int(found[1], 16) >> (signal.SIGHUP - 1) & 1)


async def test_while_a_large_journal_is_read(tmp_path: Path, record_property: Note) -> None:
    await fill(tmp_path / "data", 20_000)
    config = tmp_path / "hub.toml"
    config.write_text('[log]\nlevel = "info"\n')
    command = [sys.executable, "-m", "hubbub", "serve", "--config", str(config), "--listen",
               "127.0.0.1:0", "--data", str(tmp_path / "data")]  # fmt: skip
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    began, sent, ready = time.monotonic(), 0, threading.Event()

    def hammer() -> None:
        nonlocal sent
        while not caught(process.pid):
            time.sleep(0.001)
        seen.append(time.monotonic() - began)
        while not ready.is_set():
            process.send_signal(signal.SIGHUP)
            sent += 1
            time.sleep(0.002)

    seen: list[float] = []
    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).startswith("Hubbub ")
        await asyncio.sleep(0.3)
        ready.set()
        thread.join(10)
        assert sent > 20 and process.poll() is None
        record_property("tried", sent)
        assert seen[0] < 1.0, "it is taken before anything large is loaded"
        await asyncio.sleep(0.3)
        assert "the configuration was read again" in (tmp_path / "log").read_text()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        ready.set()
        process.kill()
        process.wait()
        log.close()
