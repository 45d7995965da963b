"""An Iceberg REST catalog over HTTP: a small server of our own (`rest_server` says why), killed,
stopped and refusing; and DuckDB as a client of the same server that shares no code with either.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from hubbub.errors import DirectoryError, HubbubError
from hubbub.pipeline import catalog, rest
from tests.pipeline.test_catalog import ROWS, Stage, batches, numbers
from tests.pipeline.test_engines import ENGINES, said_by
from tests.ports import free_port
from tests.process import ROOT

pytestmark = pytest.mark.interop
TOKEN = "a-token"


class Served:
    """The server as a process, which can be killed and begun again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        self._folder = folder
        self.begin()

    def begin(self, token: str = TOKEN) -> None:
        words = ["tests/pipeline/rest_server.py", str(self.port), str(self._folder), token]
        self.process = subprocess.Popen([sys.executable, *words], cwd=ROOT)
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the REST catalog did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """As a catalog `ours` of pyiceberg's settings. It is asked again with the next batch."""
    made = Served(tmp_path / "rest")
    for name, value in {"URI": made.url, "TOKEN": TOKEN, "TYPE": "rest"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OURS__{name}", value)
    # Settings are read once, when pyiceberg is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setattr(catalog, "REST", 0)
    yield made
    made.kill()


def stranger(served: Served, name: str = "messages") -> Table:
    found = load_catalog("stranger", type="rest", uri=served.url, token=TOKEN)
    return found.load_table(f"hubbub.{name}")


def test_batches_replayed_and_read_by_their_names(tmp_path: Path, served: Served) -> None:
    stage = Stage(tmp_path / "data", "ours")
    for number in range(3):
        stage.whole(number)
    now = stage.batch(3)  # it hears of it twice, and from two starts
    stage.begun().follow(now)
    stage.begun()
    table = stranger(served)
    assert stage.said == [] and batches(table) == ["0", "1", "2", "3"]
    assert numbers(table) == [*range(40)]
    assert numbers(table, table.snapshots()[1].snapshot_id) == [*range(20)]
    assert str(table.location()).startswith("file://"), "where the tables are"


def test_killed_hung_and_begun_again(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "data", "ours")
    stage.whole(0)
    served.kill()
    stage.whole(1)
    assert "Connection refused" in stage.said[0]
    served.begin()
    stage.whole(2)
    assert stage.said[1:] == ["the catalog has all batches again"]
    served.process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as soon:
        soon.setattr(rest, "SECONDS", 1.0)
        stage.whole(3)
    assert "Read timed out" in stage.said[2]
    served.process.send_signal(signal.SIGCONT)
    stage.follower = stage.begun()  # what it was asked meanwhile it did: it is not done twice
    stage.whole(4)
    stage.follower.end()
    assert numbers(stranger(served)) == [*range(50)]


def test_a_token_that_is_no_longer_right(tmp_path: Path, served: Served) -> None:
    stage = Stage(tmp_path / "data", "ours")
    stage.whole(0)
    served.kill()
    served.begin("another")
    stage.whole(1)
    assert "the token is not ours" in stage.said[0]
    with pytest.raises(HubbubError, match="the token is not ours"):
        stage.begun()
    served.kill()
    served.begin()
    stage.whole(2)
    assert stage.said[-1] == "the catalog has all batches again"
    assert numbers(stranger(served)) == [*range(30)]


def test_its_memory_was_lost(tmp_path: Path, served: Served) -> None:
    """The tables are registered again from what lies beside the files, with their snapshots."""
    stage = Stage(tmp_path / "data", "ours")
    stage.whole(0)
    served.kill()
    (tmp_path / "rest/rest.db").unlink()
    served.begin()
    stage.begun()
    stage.follower = stage.begun()
    stage.whole(1)
    table = stranger(served)
    assert numbers(table) == [*range(20)] and batches(table) == ["0", "1"]


def test_two_hubs_share_it(tmp_path: Path, served: Served) -> None:
    first = Stage(tmp_path / "one", "ours")
    first.whole(0)
    with pytest.raises(DirectoryError, match=r"of the tables in .*one/tables,.*namespace"):
        Stage(tmp_path / "two", "ours")
    first.whole(1)
    assert numbers(stranger(served)) == [*range(20)] and first.said == []


@pytest.mark.slow
def test_a_server_that_is_killed_at_random_moments(tmp_path: Path, served: Served) -> None:
    """Often it has done what it was asked, and nobody hears of it."""
    dice, stop = random.Random(), threading.Event()

    def crashes() -> None:
        while not stop.wait(dice.uniform(0.0, 0.5)):
            served.kill()
            served.begin()

    stage = Stage(tmp_path / "data", "ours")
    crashing = threading.Thread(target=crashes)
    crashing.start()
    try:
        for number in range(25):
            stage.whole(number)
    finally:
        stop.set()
        crashing.join()
    stage.whole(25)
    stage.follower.end()
    table = stranger(served)
    assert numbers(table) == [*range(26 * ROWS)] and stage.said
    seen = [int(one) for one in batches(table)]
    assert seen == sorted({*seen}), "each once"


DUCKDB = """
import duckdb, glob, json, sys
engines, url, token = sys.argv[1:]
asked = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "httpfs", "iceberg"):
    place = f"{engines}/duckdb_extension_{name}/extensions/*/{name}.duckdb_extension"
    asked.execute(f"LOAD '{glob.glob(place)[0]}'")
asked.execute(f"ATTACH 'any' AS ours (TYPE iceberg, ENDPOINT '{url}', TOKEN '{token}',"
              " ACCESS_DELEGATION_MODE 'none')")
print(json.dumps([
    asked.execute("SELECT count(*), max(seq) FROM ours.hubbub.messages").fetchall(),
    asked.execute("SELECT count(*) FROM ours.hubbub.traffic").fetchall(),
]))
"""


@pytest.mark.skipif(not (ENGINES / "duckdb").is_dir(), reason="`make build/engines` puts it")
def test_duckdb_attaches_the_same_server(tmp_path: Path, served: Served) -> None:
    stage = Stage(tmp_path / "data", "ours")
    stage.whole(0)
    stage.whole(1)
    assert said_by(DUCKDB, served.url, TOKEN) == [[[20, 19]], [[20]]]
