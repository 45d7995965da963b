"""Fixtures for tests in several folders."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hubbub.core import session as sessions
from hubbub.core import topics
from hubbub.protocols.mqtt import session as mqtt
from hubbub.protocols.smq import session as smq
from tests import java
from tests.process import RunningHub, StartHub
from tests.web.chromium import MISSING, PROGRAM, Chromium

# Started in the background of a script, we would be deaf to SIGINT, and so would what we start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Spark's classes are not written by each test that ends one: see `tests.java`.
os.environ.setdefault("HUBBUB_CACHE", "")

# The same examples each time, so that a change is judged by what it changed: half as many as
# Hypothesis takes, since most are those before, a little changed. HYPOTHESIS=random looks for new
# ones, and takes all. How long one takes says nothing on a busy machine.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("HYPOTHESIS") == "random" else "same")


PLANNERS = Path(__file__).parent / "spark" / "planners.py"
LONGEST = ("spark", "slow", "interop")  # what makes the tests of a file long
SHORT = len(LONGEST)


@pytest.hookimpl(trylast=True)  # of those that are wanted
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In which order those who share the files take them: some from the front, some from the end.

    What starts Spark keeps a processor busy, and stands at the front; other long files wait most of
    their time, and stand at the end; the longest come first of each. So the processors have the
    same to do all the time, and few have started a Spark, not all. Short files are between them,
    and next to those that wait any that is given more time than usual: else it might be the last.
    """
    kinds: dict[Path, int] = {}
    given: dict[Path, float] = {}
    for item in items:
        kinds[item.path] = min(_kind(item), kinds.get(item.path, SHORT))
        given[item.path] = given.get(item.path, 0.0) + _given(item)
    files = sorted(kinds, key=lambda path: (kinds[path], -given[path]))
    spark = [path for path in files if kinds[path] == 0]
    waiting = [path for path in files if 0 < kinds[path] < SHORT + bool(given[path])]
    places = {path: n - len(spark) for n, path in enumerate(spark)}
    places |= {path: len(waiting) - n for n, path in enumerate(waiting)}
    items.sort(key=lambda item: places.get(item.path, 0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the collector of garbage, which then lets what was collected be.

    There is next to no garbage in it, and looking for it again and again, and once more at the end,
    took ten seconds of a processor in each process that takes a share of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.sharing import FromBothEnds

    return FromBothEnds(config, log)


def _kind(item: pytest.Item) -> int:
    return next((n for n, mark in enumerate(LONGEST) if item.get_closest_marker(mark)), SHORT)


def _given(item: pytest.Item) -> float:
    """Seconds that it may take, where more than usual: who wrote it knew that it is long."""
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None else 0.0


@pytest.fixture(autouse=True)
def what_is_shared_stays_empty() -> Iterator[None]:
    """Sessions that have none of something share an empty one: what one added all would have."""
    yield
    empty = (
        sessions.NO_LEASES, sessions.NO_REQUESTS, sessions.NO_SHARED, sessions.NO_ROUTES,
        sessions.NOTHING_DROPPED, sessions.NOTHING_KEPT, sessions.NOTHING, sessions.NONE,
        mqtt.NO_ALIASES, mqtt.NOT_ASKED, mqtt.NOT_OFFERED, topics.NOBODY, smq.NOTHING_OBSERVED,
    )  # fmt: skip
    assert not any(empty)
    shared = sessions.PASSING
    assert not (shared.open_ids or shared.will or shared.expires or shared.connected)
    assert not shared.backlog.next


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
    """The Java of every Spark from now on, also of processes."""
    from hubbub.spark import start

    os.environ["JAVA_HOME"] = str(java.home(tmp_path_factory.mktemp("java"), start.java()))


@pytest.fixture(scope="session")
def planners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of who forks the Pythons that plan streams: see `tests.spark.planners`."""
    place = tmp_path_factory.mktemp("planners") / "socket"
    command = [sys.executable, "-P", str(PLANNERS), "serve", str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline(), "who forks the Pythons that plan did not start"
        yield place


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests; each opens pages of its own."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    chromium = Chromium(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.stop()
