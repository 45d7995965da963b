"""Everything on at once, and all of it killed at random: the command, its Java, its Pythons, the
database and the catalog in it. Then each row is counted again by plain Python over the journal.

`make soak ARGS=tests/pipeline/test_kill_soak.py`: thirty rounds, half an hour on two busy cores.
Unlike `test_kills` it runs the command itself, and trusts no batch of the pipeline's own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from hubbub.journal.table import Table as Journal
from hubbub.pipeline.layout import Layout
from tests.pipeline.postgres import Postgres
from tests.pipeline.test_catalog_postgres import ENGINES
from tests.pipeline.test_kills import Traffic, batches, contents
from tests.process import ROOT, RunningHub
from tests.spark.fixtures import POSTGRES

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(5400)]

ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", "30"))
MINUTES: Final = float(os.environ.get("KILL_MINUTES", "60"))  # then it is enough
ALERT: Final = """
[[alert]]
name = "tenth"
topic = "alerts/tenth"
sql = "SELECT time, seq, value FROM readings WHERE value % 10 = 0 AND topic = 'plant/0'"
"""
TABLES: Final = """
[[table]]
name = "plant"
topics = "plant/+"
columns.t = "$.t DOUBLE NOT NULL"

[[table]]
name = "firsts"
topics = "plant/+"
columns.t = "$.t DOUBLE NOT NULL"
dedupe_by = ["t"]

[[table]]
name = "seconds"
topics = "plant/+"
window = "1 second"
columns.last = "max $.t DOUBLE NOT NULL"
"""
SINK: Final = """
[[sink]]
name = "{table}"
table = "{table}"
url = "{url}"
into = "public.{table}"
key = {key}
user = "hub"
"""


class Slow(Traffic):
    """So much that a busy machine catches up between two kills."""

    def _messages(self, number: int) -> list[dict[str, Any]]:
        self.stop.wait(0.3)
        return super()._messages(number)


class Run:
    """`hubbub pipeline run` as a process, with all that it starts."""

    def __init__(self, data: Path, rules: Path, log: Path, *words: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "hubbub", "pipeline", "run", "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, "--rules", str(rules), *words],
            stdout=log.open("ab"), stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ENGINES}"},
        )  # fmt: skip

    def below(self) -> Iterator[tuple[int, str]]:
        """What runs below it, with its name."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                head, _, rest = stat.read_text().rpartition(")")
                parents[int(stat.parent.name)] = int(rest.split()[1]), head.partition("(")[2]
        for process, (_, name) in parents.items():
            above = process
            while above in parents and above != self.process.pid:
                above = parents[above][0]
            if above == self.process.pid and process != above:
                yield process, name

    def kill_one(self, java: bool, dice: random.Random) -> str:
        """One that it started."""
        found = [(one, name) for one, name in self.below() if (name == "java") is java]
        if not found or self.process.poll() is not None:
            return "nobody"
        process, name = dice.choice(sorted(found))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return name

    def need(self, starting: bool = False) -> bool:
        """It runs still. `starting`: or it says that Java ended, and True is returned."""
        if self.process.poll() is None:
            return False
        said = self._log.read_text().splitlines()[-1]
        assert starting and said.startswith("hubbub: Spark's process (Java) ended while"), said
        return True

    def end(self, how: str) -> None:
        """All of it, or only the command, or as by Ctrl-C."""
        below = [process for process, _ in self.below()]
        if how == "all":
            for process in (self.process.pid, *below):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        else:
            self.process.send_signal(signal.SIGKILL if how == "alone" else signal.SIGTERM)
        self.process.wait(300)
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{one}").exists() for one in below) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [one for one in below if Path(f"/proc/{one}").exists()]
        assert not left, f"after {how} {left} are left"


def a_round(run: Run, data: Path, postgres: Postgres, dice: random.Random) -> str:
    """Some batches, some deaths, and the end of it. What was done."""
    done: list[str] = []
    enough, deadline = batches(data) + dice.randrange(3), time.monotonic() + 240
    while batches(data) < enough and time.monotonic() < deadline:
        run.need()
        time.sleep(0.05)
    for _ in range(dice.randrange(4)):
        time.sleep(dice.uniform(0, 3))
        what = dice.choice(("python", "python", "java", "postgres"))
        if what == "postgres":
            postgres.crash()
        done.append(what if what == "postgres" else run.kill_one(what == "java", dice))
        if what == "java":
            time.sleep(dice.uniform(0, 20))  # another one takes so long
    time.sleep(dice.uniform(0, 3))
    if run.need(starting="java" in done):
        return f"{', '.join(done)}, which it said; {batches(data)} whole batches"
    how = dice.choices(("all", "alone", "asked"), (6, 2, 2))[0]
    run.end(how)
    return f"{', '.join((*done, how))}; {batches(data)} whole batches"


def to_its_end(run: Run, log: Path) -> None:
    """It may have a backlog, and batches that were cut."""
    try:
        assert run.process.wait(1200) == 0, log.read_text()[-4000:]
    finally:
        if run.process.poll() is None:
            run.end("all")


def test_thirty_rounds(
    hub: RunningHub, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ENGINES / "psycopg2").is_dir():
        pytest.skip("`make build/engines` puts PostgreSQL's driver")
    seed = int(os.environ.get("KILL_SEED", "0")) or random.randrange(1 << 30)
    dice, log = random.Random(seed), tmp_path / "pipeline.log"
    rules, bare = tmp_path / "rules.toml", tmp_path / "bare.toml"
    bare.write_text(TABLES)
    keys = {"readings": '["seq", "path"]', "plant": '["seq"]'}
    sinks = [SINK.format(table=one, url=postgres.url, key=key) for one, key in keys.items()]
    rules.write_text(ALERT + TABLES + "".join(sinks))
    uri = f"postgresql+psycopg2://hub@127.0.0.1:{postgres.port}/postgres"
    words = ["--catalog", uri, "--conf", f"spark.jars={POSTGRES}", "--publish-to", hub.url("http")]
    traffic, begun = Slow(hub), time.monotonic()
    traffic.start()
    try:
        for number in range(ROUNDS):
            if time.monotonic() - begun > 60 * MINUTES:
                break
            run = Run(hub.data, rules, log, "--every", "0.5", *words)
            try:
                print(number, a_round(run, hub.data, postgres, dice), f"(seed {seed})", flush=True)
            finally:
                if run.process.poll() is None:
                    run.end("all")
    finally:
        traffic.stop.set()
        traffic.join()
    whole = tmp_path / "whole"
    for _ in range(2):  # the second sees what the first one published
        to_its_end(Run(hub.data, rules, log, "--once", *words), log)
    hub.stop()
    to_its_end(Run(hub.data, rules, log, "--once", *words), log)
    to_its_end(Run(whole, bare, log, "--once", "--journal", str(hub.data)), log)
    monkeypatch.setattr(sys, "path", [*sys.path, str(ENGINES)])
    counted = Counted(hub.data)
    counted.tables(contents(hub.data), contents(whole))
    counted.database(postgres)
    counted.catalog(uri)


class Counted:
    """What there has to be, by the journal and no line of the pipeline's."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.messages: dict[int, str] = {}
        self.readings: Counter[tuple[int, str, float]] = Counter()
        self.plant: dict[int, float] = {}
        self.firsts: set[int] = set()
        self.seconds: Counter[int] = Counter()
        self.quarantine: Counter[tuple[int, str]] = Counter()
        self.asked: list[int] = []
        self.alerts: Counter[int] = Counter()
        self._seen: dict[float, int] = {}
        journal = Journal(str(data))
        names = ("seq", "time", "kind", "topic", "payload", "content_type", "reply_to")
        self.kinds: Counter[str] = Counter()
        for batch in journal.read(0, journal.committed()):
            rows = batch.select(names)
            for row in rows.set_column(1, "time", rows["time"].cast("int64")).to_pylist():
                self._take(row)

    def tenths(self) -> Counter[int]:
        """What the rule has to find."""
        of_plant_0 = {seq: t for seq, t in self.plant.items() if self.messages[seq] == "plant/0"}
        return Counter(seq for seq, t in of_plant_0.items() if t % 10 == 0)

    def _take(self, row: dict[str, Any]) -> None:
        seq, topic, payload = row["seq"], row["topic"], row["payload"]
        self.kinds[row["kind"]] += 1
        if row["kind"] not in ("publish", "send") or topic.startswith("$hub/"):
            return
        self.messages[seq] = topic
        if row["kind"] == "send" and row["reply_to"]:
            self.asked.append(seq)
        if payload[:1] == b"{" and payload != b"{":
            values = json.loads(payload)
            self.readings.update(
                (seq, key, float(value)) for key, value in values.items() if key != "time"
            )
            if topic == "alerts/tenth":
                self.alerts[values["seq"]] += 1
        if topic.startswith("plant/"):
            self._plant(row)

    def _plant(self, row: dict[str, Any]) -> None:
        seq, payload, time = row["seq"], row["payload"], row["time"]
        if payload == b"{":  # what nothing can decode is there once, for all tables
            self.quarantine[seq, "application/json"] += 1
            return
        if payload[:1] == b"x":
            for table in ("plant", "firsts", "seconds"):
                self.quarantine[seq, f"table {table}"] += 1
            return
        value = json.loads(payload)["t"]
        self.plant[seq] = value
        self.seconds[time // 1_000_000] += 1
        if time - self._seen.get(value, -(1 << 62)) > 3_600_000_000:
            self.firsts.add(seq)
        self._seen[value] = time

    def tables(self, found: dict[str, list[str]], whole: dict[str, list[str]]) -> None:
        root = Layout(self.data).root
        assert self._ask(f"select seq, topic from '{root}/messages/**/*.parquet'") == Counter(
            self.messages.items()
        )
        where = "path <> 'time' and value is not null"
        files = f"'{root}/readings/**/*.parquet'"
        assert self._ask(f"select seq, path, value from {files} where {where}") == self.readings
        files = f"'{root}/quarantine/**/*.parquet'"
        assert self._ask(f"select seq, declared from {files}") == self.quarantine
        files = f"'{root}/plant/**/*.parquet'"
        assert self._ask(f"select seq, t from {files}") == Counter(self.plant.items())
        files = f"'{root}/firsts/**/*.parquet'"
        assert self._ask(f"select seq, 1 from {files}") == Counter((seq, 1) for seq in self.firsts)
        self._seconds(root)
        calls = len(found["calls"]) + len(found.get("calls_open", []))
        assert calls == len(self.asked)
        sessions = len(found["sessions"]) + len(found.get("sessions_open", []))
        assert sessions == self.kinds["connect"]
        assert self.alerts == self.tenths(), "each alert was published once"
        assert len(found["alerts"]) == self.alerts.total()
        for name in whole.keys() - {"alerts"}:  # the whole asked for none
            assert found[name] == whole[name], name

    def _seconds(self, root: Path) -> None:
        layout = Layout(self.data)
        final = f"'{root}/seconds/**/*.parquet'"
        asked = self._ask(f"select epoch(window_start)::bigint, messages from {final}")
        counts: defaultdict[int, int] = defaultdict(int)
        opened = layout.carried("seconds", layout.stands().batch)
        if opened:
            place = opened[0].parent / "*.parquet"
            asked += self._ask(
                f"select epoch(window_start)::bigint, messages from '{place}'"
                " where window_start is not null"
            )
        for (second, messages), rows in asked.items():
            assert rows == 1, "a window has one row"
            counts[second] += messages
        assert counts == self.seconds

    def _ask(self, query: str) -> Counter[Any]:
        reader = duckdb.connect()
        reader.execute("set timezone = 'UTC'")
        return Counter(reader.execute(query).fetchall())

    def database(self, postgres: Postgres) -> None:
        said = postgres.ask("select seq, path, value from readings where path <> 'time'")
        rows = [line.split("|") for line in said]
        assert Counter((int(a), b, float(c)) for a, b, c in rows) == self.readings
        said = postgres.ask("select seq, t from plant")
        pairs = [line.split("|") for line in said]
        assert Counter((int(a), float(b)) for a, b in pairs) == Counter(self.plant.items())

    def catalog(self, uri: str) -> None:
        catalog = load_catalog("hubbub", type="sql", uri=uri)
        expected = {
            "messages": Counter(self.messages.keys()),
            "readings": Counter(seq for seq, _, _ in self.readings.elements()),
            "plant": Counter(self.plant.keys()),
            "firsts": Counter(self.firsts),
            "quarantine": Counter(seq for seq, _ in self.quarantine.elements()),
        }
        for name, rows in expected.items():
            scan = catalog.load_table(f"hubbub.{name}").scan()
            if name == "readings":
                scan = scan.filter("path != 'time'")
            assert Counter(scan.to_arrow()["seq"].to_pylist()) == rows, f"{name} in the catalog"
