"""Fixtures for tests in several folders."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import RunningHub, StartHub


@pytest.fixture
def start_hub(tmp_path: Path) -> Iterator[StartHub]:
    """Start hubs (`start_hub("--set", "key=value")`); the same directory unless `data` says so."""
    running: list[RunningHub] = []

    def start(*options: str, data: Path | None = None) -> RunningHub:
        running.append(RunningHub(data or tmp_path / "data", *options))
        return running[-1]

    yield start
    for hub in running:
        hub.stop(signal.SIGKILL)


@pytest.fixture
def hub(start_hub: StartHub) -> RunningHub:
    return start_hub()
