"""Engines that are not pyiceberg read the catalog's tables, and a Hive metastore has them.

DuckDB's own reader and Polars' come from build/engines (tests/engines.txt), each in a process of
its own. The metastore is Hive's own, 2.3, which Spark brings as a library: its main program, with a
Derby as its database. It listens on every address, so it gets a network of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from hubbub.spark.start import java
from tests.pipeline.test_catalog import Stage, stranger
from tests.process import ROOT

ENGINES: Final = ROOT / "build" / "engines"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not (ENGINES / "duckdb").is_dir(), reason="`make build/engines` puts them"),
]

DUCKDB: Final = """
import duckdb, glob, json, sys
engines, table, metadata = sys.argv[1:]
asked = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "iceberg"):
    place = f"{engines}/duckdb_extension_{name}/extensions/*/{name}.duckdb_extension"
    asked.execute(f"LOAD '{glob.glob(place)[0]}'")
asked.execute("SET unsafe_enable_version_guessing = true")
rows = lambda query: asked.execute(query).fetchall()
known = rows(f"FROM iceberg_snapshots('{metadata}') SELECT snapshot_id ORDER BY sequence_number")
print(json.dumps([
    rows(f"SELECT count(*), min(seq), max(seq) FROM iceberg_scan('{table}')"),
    rows(f"SELECT topic, count(*) FROM iceberg_scan('{metadata}') WHERE time >= '2026-01-01'"
         " AND time < '2026-01-02' AND seq >= 5 GROUP BY topic"),
    rows(f"SELECT count(*) FROM iceberg_scan('{metadata}') WHERE time >= '2026-01-02'"),
    [rows(f"SELECT count(*) FROM iceberg_scan('{metadata}', snapshot_from_id = {one})")[0][0]
     for (one,) in known],
]))
"""

POLARS: Final = """
import json, sys
import polars
rows = polars.scan_iceberg(sys.argv[3], reader_override="native")
chosen = rows.filter(polars.col("seq") >= 5).select(polars.len(), polars.col("seq").max())
print(json.dumps(chosen.collect().rows()))
"""

# A catalog of that name in the settings of pyiceberg, followed from before the first batch on.
FOLLOW: Final = """
import json, sys
from pathlib import Path
from pyiceberg.catalog import load_catalog
from tests.pipeline.test_catalog import Stage, batches, numbers
stage = Stage(Path(sys.argv[3]), sys.argv[2])
print(stage.follower.trouble, file=sys.stderr)
for number in range(3):
    stage.whole(number)
stage.batch(3)  # it is killed before the catalog knows
stage.begun()
table = load_catalog(sys.argv[2]).load_table("hubbub.messages")
print(json.dumps([stage.said, stage.follower.trouble, batches(table), len(numbers(table))]))
"""

# It hangs while a batch is told, and goes on.
HUNG: Final = """
import json, os, signal, sys
from pathlib import Path
from pyiceberg.catalog import load_catalog
from hubbub.pipeline import catalog, hive
from tests.pipeline.test_catalog import Stage, batches, numbers
hive.SECONDS, catalog.REST = 3.0, 0.0
stage = Stage(Path(sys.argv[3]), sys.argv[2])
os.kill(int(sys.argv[4]), signal.SIGSTOP)
stage.whole(4)
os.kill(int(sys.argv[4]), signal.SIGCONT)
stage.whole(5)
table = load_catalog(sys.argv[2]).load_table("hubbub.messages")
print(json.dumps([stage.said, stage.follower.trouble, batches(table), len(numbers(table))]))
"""

DROP: Final = """
from pyiceberg.catalog import load_catalog
for name in ("messages", "traffic"):
    load_catalog("ours").drop_table(f"hubbub.{name}")
print("null")
"""


def said_by(script: str, *words: object, inside: int = 0, **settings: str) -> Any:
    """What a Python that sees the engines says. `inside`: in the network of that process."""
    enter = ["nsenter", "-t", str(inside), "-U", "-n", "--preserve-credentials"] if inside else []
    path = f"{ENGINES}:{ROOT / 'src'}:{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "POLARS_ICEBERG_PLANNER": "pyiceberg"}
    done = subprocess.run(
        [*enter, sys.executable, "-c", script, str(ENGINES), *map(str, words)],
        capture_output=True, text=True, timeout=100, env=environment | settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    for number in range(3):
        made.whole(number)
    return made


def test_duckdb_reads_rows_days_and_snapshots(stage: Stage) -> None:
    place = stage.layout.root / "_iceberg/messages"
    found = said_by(DUCKDB, place, stranger(stage.layout).metadata_location)
    assert found == [[[30, 0, 29]], [["a", 25]], [[0]], [10, 20, 30]]


def test_polars_reads_rows(stage: Stage) -> None:
    found = said_by(POLARS, "", stranger(stage.layout).metadata_location)
    assert found == [[25, 29]]


# A Hive metastore


PORT: Final = 9083
ALONE: Final = (
    "unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
)  # fmt: skip


@contextmanager
def metastore(folder: Path, **settings: str) -> Iterator[int]:
    """The process of one that runs."""
    configured = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "HikariCP",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
        **settings,
    }
    words = [word for item in configured.items() for word in ("--hiveconf", "=".join(item))]
    jars = Path(pyspark.__file__).with_name("jars") / "*"
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "util")]
    (folder / "hive-log4j2.properties").write_text("rootLogger.level = warn\n")
    process = subprocess.Popen(
        [*ALONE, str(java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
         "-Dhive.async.log.enabled=false", f"-Dderby.system.home={folder}", *opened,
         "-cp", f"{folder}:{jars}", "org.apache.hadoop.hive.metastore.HiveMetaStore",
         "-p", str(PORT), *words],
        stdout=(folder / "log").open("ab"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        limit = time.monotonic() + 100
        while not listens(process.pid):
            assert process.poll() is None and time.monotonic() < limit, (folder / "log").read_text()
            time.sleep(0.2)
        yield process.pid
    finally:
        process.kill()  # it may not hear a SIGTERM
        process.wait(20)


def listens(process: int) -> bool:
    """Whether somebody listens on PORT in its network."""
    tables = (Path(f"/proc/{process}/net/{name}") for name in ("tcp", "tcp6"))
    said = "".join(table.read_text() for table in tables if table.exists())
    return re.search(rf":{PORT:04X} [0:]+ 0A ", said) is not None


def of_hive(**more: str) -> dict[str, str]:
    """A catalog `ours` as pyiceberg's settings say it."""
    said = {"TYPE": "hive", "URI": f"thrift://127.0.0.1:{PORT}", **more}
    return {f"PYICEBERG_CATALOG__OURS__{name}": value for name, value in said.items()}


SILENT: Final = """
import json, socket, sys, time
from pathlib import Path
from hubbub.pipeline import hive
from tests.pipeline.test_catalog import Stage
hive.SECONDS = 0.5
with socket.create_server(("127.0.0.1", 0)) as silent:
    begun = time.monotonic()
    stage = Stage(Path(sys.argv[2]), f"thrift://127.0.0.1:{silent.getsockname()[1]}")
    print(json.dumps([stage.follower.trouble, time.monotonic() - begun]))
"""


def test_a_metastore_that_takes_and_never_answers(tmp_path: Path) -> None:
    trouble, seconds = said_by(SILENT, tmp_path)
    assert re.search(r"the catalog thrift://127.0.0.1:\d+ .*: read timeout", trouble)
    assert seconds < 30, "and not for ever"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_hive_metastore_has_the_tables(tmp_path: Path) -> None:
    if shutil.which("nsenter") is None or subprocess.run([*ALONE, "true"]).returncode:
        pytest.skip("no network of its own for a process here (unshare, nsenter, ip)")
    hive, own, none = (tmp_path / name for name in ("hive", "own", "none"))
    hive.mkdir()
    with metastore(hive, **{"hive.in.test": "true"}) as inside:
        # So it makes tables for locks, which Hive's own tool does else, and takes no lock of ours.
        said, trouble, *there = said_by(FOLLOW, "ours", none, inside=inside, **of_hive())
        assert trouble.endswith("Internal error processing lock") and there == [[], 0]
        assert {one.partition(":")[0] for one in said} == {"messages", "traffic"}
    with metastore(hive) as inside:
        # One before Hive 3 has no such type, which pyiceberg has to be told.
        said, trouble, *there = said_by(FOLLOW, "ours", none, inside=inside, **of_hive())
        assert "timestamp with local time zone" in trouble and there == [[], 0]
        older = of_hive(HIVE__HIVE2_COMPATIBLE="true")
        said_by(DROP, inside=inside, **older)
        found = said_by(FOLLOW, "ours", own, inside=inside, **older)
        hung = said_by(HUNG, "ours", own, inside, inside=inside, **older)
    assert found == [[], "", ["0", "1", "2", "3"], 40]
    said, trouble, numbers, rows = hung
    assert "read timeout" in said[0] and said[1:] == ["the catalog has all batches again"]
    assert (trouble, numbers[-1], rows) == ("", "5", 60)
