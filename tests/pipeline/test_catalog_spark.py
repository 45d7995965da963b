"""Spark reads what the catalog says: the Spark of this project by the list of files, and one with
Iceberg's own library by names and snapshots.

That library is to be had for Spark 3.5 and none later, in two packages of PyPI, 400 MB once. Two
others that it carries under names of its own are left out there: its client of HTTP, so it asks a
catalog in PostgreSQL; and Jackson, which Spark has, and which gets those names here.

    make soak ARGS=tests/pipeline/test_catalog_spark.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.postgres import Postgres
from tests.pipeline.test_catalog import Stage, stranger
from tests.pipeline.test_catalog_postgres import stranger as there
from tests.pipeline.test_engines import ENGINES
from tests.pipeline.test_object_storage import pip
from tests.process import ROOT
from tests.spark.fixtures import POSTGRES

PARTS: Final = ROOT / "build" / "spark35"
SPARK: Final = "pyspark-3.5.9"
JAR: Final = "iceberg-spark-runtime-3.5_2.12-1.10.2.jar"

SHADED: Final = "org/apache/iceberg/shaded"
SHADED_NAMES: Final = tuple(
    f"{SHADED}/com/fasterxml/jackson".replace("/", by).encode() for by in "/."
)
# Of a class's constants by their tags: a text, those that count twice, and how long all others are.
TEXT: Final = 1
LONG: Final = (5, 6)
SIZES: Final = {
    **dict.fromkeys((7, 8, 16, 19, 20), 3),
    **dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 5),
    **dict.fromkeys(LONG, 9),
    15: 4,
}

ASKS: Final = """
import json, sys
from pyspark.sql import SparkSession
jars, url, metadata = sys.argv[1:]
settings = {
    "spark.jars": jars, "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.sql.catalog.hubbub": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.hubbub.type": "jdbc", "spark.sql.catalog.hubbub.uri": url,
    "spark.sql.catalog.hubbub.jdbc.user": "hub", "spark.sql.catalog.hubbub.warehouse": "file:///none",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = lambda query: [list(row) for row in spark.sql(query).collect()]
known = rows("SELECT snapshot_id, summary['hubbub.batch'] FROM hubbub.hubbub.messages.snapshots "
             "ORDER BY committed_at")
count = "SELECT count(*), min(seq), max(seq) FROM hubbub.hubbub.messages"
print(json.dumps([
    sorted(row[1] for row in rows("SHOW TABLES IN hubbub.hubbub")),
    rows(count),
    rows("SELECT topic, count(*) FROM hubbub.hubbub.messages WHERE time >= '2026-01-01' "
         "AND time < '2026-01-02' AND seq >= 5 GROUP BY topic"),
    rows("SELECT count(*) FROM hubbub.hubbub.messages WHERE time >= '2026-01-02'"),
    [[batch, *rows(f"{count} VERSION AS OF {one}")[0]] for one, batch in known],
    spark.read.format("iceberg").load(metadata).count(),
]))
"""


@pytest.mark.spark
def test_plain_spark_reads_the_files_of_each_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for number in range(3):
        stage.whole(number)
    table = stranger(stage.layout)
    for batch, one in enumerate(table.snapshots()):
        tasks = table.scan(snapshot_id=one.snapshot_id).plan_files()
        rows = spark.read.parquet(*(unquote(urlsplit(one.file.file_path).path) for one in tasks))
        numbers = sorted(row.seq for row in rows.select("seq").collect())
        assert numbers == [*range(10 * (batch + 1))]


@pytest.fixture(scope="module")
def with_iceberg() -> Path:
    """A Spark of its own with Iceberg's jar, apart from the packages of the project."""
    if not (PARTS / JAR).exists():
        PARTS.mkdir(parents=True, exist_ok=True)
        into = ("download", "--no-deps", f"--dest={PARTS}")
        pip(*into, "--no-binary=:all:", SPARK.replace("-", "=="))
        with tarfile.open(PARTS / f"{SPARK}.tar.gz") as packed:
            packed.extractall(PARTS, filter="data")
        pip(*into, "snowpark-connect-deps-iceberg==1.0.3")
        [wheel] = PARTS.glob("*.whl")
        with zipfile.ZipFile(PARTS / "jackson.jar", "w") as jackson:
            for part in ("annotations", "core", "databind"):
                [jar] = (PARTS / SPARK / "deps/jars").glob(f"jackson-{part}-2.*.jar")
                rename(jar, jackson)
        with zipfile.ZipFile(wheel) as found:
            [name] = (one for one in found.namelist() if one.endswith(JAR))
            (PARTS / JAR).write_bytes(found.read(name))
        for file in (wheel, PARTS / f"{SPARK}.tar.gz"):
            file.unlink()
    return PARTS


def rename(jar: Path, to: zipfile.ZipFile) -> None:
    """The classes of Jackson as Iceberg calls them."""
    with zipfile.ZipFile(jar) as packed:
        for name in packed.namelist():
            if name.startswith("com/fasterxml/jackson/") and name.endswith(".class"):
                to.writestr(f"{SHADED}/{name}", renamed(packed.read(name)))


def renamed(code: bytes) -> bytes:
    """A class whose texts, which are names too, have those of Iceberg (JVMS 4.4)."""
    count, at, out = int.from_bytes(code[8:10], "big"), 10, bytearray(code[:10])
    entry = 1
    while entry < count:
        tag = code[at]
        if tag == TEXT:
            end = at + 3 + int.from_bytes(code[at + 1 : at + 3], "big")
            text = code[at + 3 : end].replace(b"com/fasterxml/jackson", SHADED_NAMES[0])
            text = text.replace(b"com.fasterxml.jackson", SHADED_NAMES[1])
            out += bytes([tag]) + len(text).to_bytes(2, "big") + text
        else:
            end = at + SIZES[tag]
            out += code[at:end]
        at, entry = end, entry + (2 if tag in LONG else 1)
    return bytes(out) + code[at:]


def asked(place: Path, *words: str) -> Any:
    home = place / SPARK
    [py4j] = (home / "lib").glob("py4j-*.zip")
    environment = {
        **os.environ, "SPARK_HOME": str(home / "deps"), "PYTHONPATH": f"{home}:{py4j}",
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", ASKS, f"{place / JAR},{place}/jackson.jar,{POSTGRES}", *words],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_spark_with_iceberg_s_own_library_reads_by_name(
    with_iceberg: Path, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ENGINES / "psycopg2").is_dir():
        pytest.skip("`make build/engines` puts pyiceberg's driver")
    monkeypatch.setattr(sys, "path", [*sys.path, str(ENGINES)])
    uri = f"postgresql+psycopg2://hub@127.0.0.1:{postgres.port}/postgres"
    stage = Stage(tmp_path / "data", uri)
    for number in range(3):
        stage.whole(number)
    found = asked(with_iceberg, postgres.url, there(uri).metadata_location)
    assert found == [
        ["messages", "traffic"],
        [[30, 0, 29]],
        [["a", 25]],
        [[0]],
        [["0", 10, 0, 9], ["1", 20, 0, 19], ["2", 30, 0, 29]],
        30,
    ]
