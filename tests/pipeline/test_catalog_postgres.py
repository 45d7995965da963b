"""A catalog in PostgreSQL: Debian's server, the driver of build/engines (tests/engines.txt).

What a catalog does is tested beside, in SQLite; here is what a server adds: it is killed, locked,
hangs, refuses, and is shared.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from hubbub.errors import DirectoryError
from hubbub.pipeline import catalog
from hubbub.pipeline import postgres as bounds
from tests.pipeline.postgres import Postgres
from tests.pipeline.test_catalog import KILLED, ROWS, Stage, batches, numbers
from tests.process import ROOT

ENGINES = ROOT / "build" / "engines"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not (ENGINES / "psycopg2").is_dir(), reason="`make build/engines` puts it"),
]


@pytest.fixture(autouse=True)
def _asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the driver, and a catalog that is away is asked again with the next batch."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ENGINES)])  # behind: all else is .venv's
    monkeypatch.setattr(catalog, "REST", 0)


@pytest.fixture
def uri(postgres: Postgres) -> str:
    return f"postgresql+psycopg2://hub@127.0.0.1:{postgres.port}/postgres"


def stranger(uri: str, name: str = "messages") -> Table:
    return load_catalog("hubbub", type="sql", uri=uri).load_table(f"hubbub.{name}")


@contextmanager
def other(postgres: Postgres, sql: str) -> Iterator[None]:
    """Somebody who says that in a transaction, which stays open meanwhile."""
    at = ["-h", "127.0.0.1", "-p", str(postgres.port), "-U", "hub", "-d", "postgres"]
    asked = subprocess.Popen(
        ["psql", "-AtX", *at], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert asked.stdin is not None and asked.stdout is not None
    asked.stdin.write(f"begin; {sql}; select 'it is so';\n")
    asked.stdin.flush()
    while "it is so" not in asked.stdout.readline():
        assert asked.poll() is None
    yield
    asked.communicate("rollback;\n", timeout=20)


def test_batches_replayed_and_read_by_their_names(tmp_path: Path, uri: str) -> None:
    stage = Stage(tmp_path, uri)
    for number in range(3):
        stage.whole(number)
    now = stage.batch(3)  # the catalog hears of it twice, and from two starts
    stage.begun().follow(now)
    stage.begun()
    table = stranger(uri)
    assert batches(table) == ["0", "1", "2", "3"] and stage.said == []
    assert numbers(table) == [*range(40)]
    assert numbers(table, table.snapshots()[1].snapshot_id) == [*range(20)]
    assert stranger(uri, "traffic").scan().to_arrow().num_rows == 40


@pytest.mark.parametrize(
    "where",
    [
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("before", "linked", "lists")),
        "metadata", "committed",
    ],
)  # fmt: skip
def test_killed_between_the_files_and_the_commit(tmp_path: Path, uri: str, where: str) -> None:
    """Before the catalog is asked all is as in `test_catalog`: `make soak` does that here, too."""
    stage = Stage(tmp_path, uri)
    stage.whole(0)
    command = [sys.executable, "-c", KILLED, str(tmp_path), where, "1", uri]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}:{ENGINES}"}
    ended = subprocess.run(command, env=environment, timeout=120, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    stage.follower = stage.begun()
    stage.whole(2)
    assert numbers(stranger(uri)) == [*range(30)]
    assert stranger(uri, "traffic").scan().to_arrow().num_rows == 30


def test_gone_and_back(tmp_path: Path, postgres: Postgres, uri: str) -> None:
    stage = Stage(tmp_path, uri)
    stage.whole(0)
    postgres.stop()
    stage.whole(1)
    begun = stage.begun()  # nor does a start need it
    with pytest.raises(DirectoryError, match="the catalog postgresql.*Connection refused"):
        begun.end()
    stage.whole(2)
    postgres.start()
    stage.whole(3)
    assert stage.said[-1] == "the catalog has all batches again"
    stage.follower.end()
    assert numbers(stranger(uri)) == [*range(40)]


def test_locked(tmp_path: Path, postgres: Postgres, uri: str) -> None:
    """By who alters its tables, or dumps them and forgot to end it."""
    stage = Stage(tmp_path, uri)
    stage.whole(0)
    with other(postgres, "lock table iceberg_tables in access exclusive mode"):
        begun = time.monotonic()
        stage.whole(1)
        assert "lock timeout" in stage.said[0]
        assert time.monotonic() - begun < 30, "and not as long as it is locked"
    stage.whole(2)
    assert stage.said[1:] == ["the catalog has all batches again"]
    assert numbers(stranger(uri)) == [*range(30)]


def test_a_server_that_hangs(
    tmp_path: Path, postgres: Postgres, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SECONDS", 1.0)
    stage = Stage(tmp_path, uri)
    stage.whole(0)
    postgres.signal(signal.SIGSTOP)
    stage.whole(1)
    stage.begun()
    postgres.signal(signal.SIGCONT)
    assert "the database said nothing for 1 s" in stage.said[0]
    stage.whole(2)
    assert stage.said[-1] == "the catalog has all batches again"
    assert numbers(stranger(uri)) == [*range(30)]


def test_one_that_may_only_be_read(tmp_path: Path, postgres: Postgres, uri: str) -> None:
    """As a standby is, or a role that lost its rights."""
    stage = Stage(tmp_path, uri)
    stage.whole(0)
    postgres.ask("alter role hub set default_transaction_read_only = on")
    stage.follower = stage.begun()
    stage.whole(1)
    assert "cannot execute UPDATE in a read-only transaction" in stage.said[0]
    postgres.ask("begin read write; alter role hub reset default_transaction_read_only; commit")
    stage.follower = stage.begun()
    stage.whole(2)
    stage.follower.end()
    assert numbers(stranger(uri)) == [*range(30)]


def test_two_hubs_share_it(tmp_path: Path, uri: str) -> None:
    first = Stage(tmp_path / "one", uri)
    first.whole(0)
    with pytest.raises(DirectoryError, match=r"of the tables in .*one/tables,.*namespace"):
        Stage(tmp_path / "two", uri)
    first.whole(1)
    assert numbers(stranger(uri)) == [*range(20)] and first.said == []


def test_a_password_is_said_to_nobody(tmp_path: Path, postgres: Postgres) -> None:
    postgres.ask("create role keeper login password 's3cret/?@'")
    uri = f"postgresql+psycopg2://keeper:s3cret%2F%3F%40@127.0.0.1:{postgres.port}/nonesuch"
    stage = Stage(tmp_path, uri)
    assert 'database "nonesuch" does not exist' in stage.said[0]
    assert "s3cret" not in " ".join(stage.said)


def test_the_url_s_own_bounds_count() -> None:
    uri = bounds._bounded("postgresql+psycopg2://h/d?connect_timeout=3&options=-csearch_path%3Dx")
    assert "connect_timeout=3&" in uri and "lock_timeout" in uri and "-csearch_path%3Dx" in uri
    for left in ("sqlite:////a/b.db", "postgresql+pg8000://h/d"):
        assert bounds._bounded(left) == left


@pytest.mark.slow
def test_a_server_that_is_killed_at_random_moments(
    tmp_path: Path, postgres: Postgres, uri: str
) -> None:
    dice, stop = random.Random(), threading.Event()

    def crashes() -> None:
        while not stop.wait(dice.uniform(0.1, 1.0)):
            postgres.crash()

    stage = Stage(tmp_path, uri)
    crashing = threading.Thread(target=crashes)
    crashing.start()
    try:
        for number in range(25):
            stage.whole(number)
            if number % 9 == 8:
                stage.follower = stage.begun()
    finally:
        stop.set()
        crashing.join()
    postgres.recovered()
    stage.whole(25)  # may meet a connection of before the last crash: the next one tells it, too
    stage.whole(26)
    stage.follower.end()
    table = stranger(uri)
    assert numbers(table) == [*range(27 * ROWS)]
    seen = [int(one) for one in batches(table)]
    assert seen == sorted({*seen}) and stage.said, "each once, and it was away"
