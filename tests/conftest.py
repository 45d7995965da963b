"""Fixtures for tests in several folders."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.process import RunningHub, StartHub
from tests.web.chromium import MISSING, PROGRAM, Chromium

# Started in the background of a script, we would be deaf to SIGINT, and so would what we start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples each time, so that a change is judged by what it changed. HYPOTHESIS=random
# looks for new ones.
settings.register_profile("same", derandomize=True)
if os.environ.get("HYPOTHESIS") != "random":
    settings.load_profile("same")


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


@pytest.fixture(scope="session")
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The Java of every Spark from now on, also of processes: for lives of seconds.

    Without the second compiler and the parallel collector a short run needs half the processor.
    """
    from hubbub.spark import start

    home = tmp_path_factory.mktemp("java")
    script = home / "bin" / "java"
    script.parent.mkdir()
    java = shlex.quote(str(start.java()))
    script.write_text(f'#!/bin/sh\nexec {java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$@"\n')
    script.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests; each opens pages of its own."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    chromium = Chromium(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.stop()
