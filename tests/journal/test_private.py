"""What the hub writes is for its owner, and for its group to read: never for others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hubbub import Hub
from hubbub.config.settings import Journal, Settings


@pytest.mark.slow
async def test_no_file_of_a_journal_is_for_others(tmp_path: Path) -> None:
    """Segments, snapshots, the reserve: with a umask that forbids nothing."""
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        settings = Settings(
            listen=("127.0.0.1:0",), data=str(data),
            journal=Journal(segment_bytes=65_536, durability="os"),
        )  # fmt: skip
        async with Hub(settings) as hub:
            for number in range(4_000):
                hub.publish(b"x" * 50, f"a/{number}", retain=True)
                if not number % 500:
                    await asyncio.sleep(0.05)
            async with asyncio.timeout(60):
                while not list((data / "state").glob("*.rows")):
                    await asyncio.sleep(0.1)
    finally:
        os.umask(before)
    found = {one.relative_to(data): one.stat().st_mode & 0o777 for one in data.rglob("*")}
    assert len(found) > 8
    assert {mode for one, mode in found.items() if (data / one).is_dir()} == {0o750}
    files = {one: mode for one, mode in found.items() if (data / one).is_file()}
    assert {one: oct(mode) for one, mode in files.items() if mode & ~0o640} == {}
    assert data.stat().st_mode & 0o777 == 0o750
