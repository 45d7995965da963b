"""The tables in a catalog of Iceberg, read by pyiceberg's own reader; kills and other trouble."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from hubbub.errors import DirectoryError, HubbubError, SettingError
from hubbub.pipeline import catalog, iceberg, rest
from hubbub.pipeline.after import Named, need_local
from hubbub.pipeline.catalog import BESIDE, Catalogued
from hubbub.pipeline.compact import DAY, compact, drop
from hubbub.pipeline.iceberg import staying
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.tables import messages, traffic, typed
from hubbub.pipeline.tables.table import AnyTable, arrow
from hubbub.pipeline.typed import Typed
from tests.process import ROOT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TABLES: tuple[AnyTable, ...] = (messages.TABLE, traffic.TABLE)
ROWS = 10


class Stage:
    """Tables that grow by a file a batch, with no Spark to write it."""

    def __init__(self, data: Path, name: str = BESIDE) -> None:
        self.layout = Layout(data)
        (self.layout.root / "_open").mkdir(parents=True, exist_ok=True)
        self.name = name
        self.said: list[str] = []
        self.follower = self.begun()

    def begun(self) -> Catalogued:
        made = Catalogued(Named(self.name), self.layout, TABLES, self.said.append)
        made.begin()
        return made

    def batch(self, number: int, group: int = 0) -> Progress:
        """A batch that is whole, and of which the catalog knows nothing yet."""
        for table in TABLES:
            written(self.layout, table, number, group)
        now = Progress(number, number * ROWS + ROWS - 1, "2026-01-01 12:00:00", group, "", 0)
        self.layout.advance(now)
        return now

    def whole(self, number: int, group: int = 0) -> Progress:
        now = self.batch(number, group)
        self.follower.follow(now)
        return now


def written(layout: Layout, table: AnyTable, batch: int, group: int) -> None:
    place = layout.scratch(table.name) / ("day=2026-01-01" if table.by else "")
    place.mkdir(parents=True)
    columns = tuple(column for column in table.columns if column.name not in table.by)
    named = {column.name for column in columns}
    rows = [
        {"seq": batch * ROWS + n, "time": NOON, "minute": NOON, "topic": "a"} for n in range(ROWS)
    ]
    kept = [{name: value for name, value in row.items() if name in named} for row in rows]
    pq.write_table(pa.Table.from_pylist(kept, arrow(columns)), place / "a.parquet")
    layout.append(table.name, batch, group, layout.root / "_tmp" / table.name)


def stranger(layout: Layout, name: str = "messages") -> Table:
    """As somebody opens it who knows of the catalog and of nothing else."""
    uri = f"sqlite:///{layout.root}/_iceberg/catalog.db"
    return load_catalog("hubbub", type="sql", uri=uri).load_table(f"hubbub.{name}")


def numbers(table: Table, snapshot: int | None = None) -> list[int]:
    found = table.scan(snapshot_id=snapshot).to_arrow()["seq"].to_pylist()
    return sorted(int(seq) for seq in found)


def batches(table: Table) -> list[str]:
    return [one.summary["hubbub.batch"] or "" for one in table.snapshots() if one.summary]


def links(layout: Layout) -> list[str]:
    return sorted(os.listdir(layout.root / "_iceberg/messages/data"))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_each_batch_is_a_snapshot_to_which_one_can_go_back(stage: Stage) -> None:
    for number in range(3):
        stage.whole(number)
    table = stranger(stage.layout)
    assert batches(table) == ["0", "1", "2"]
    second = table.snapshots()[1]
    assert second.summary is not None and second.summary["hubbub.seq"] == "19"
    assert numbers(table) == [*range(30)]
    assert numbers(table, second.snapshot_id) == [*range(20)]
    assert [field.name for field in table.schema().fields][:2] == ["seq", "time"]
    assert "day" not in table.schema().column_names  # Iceberg parts by the time itself
    assert len([*table.scan("time >= '2026-01-02T00:00:00+00:00'").plan_files()]) == 0
    assert len([*table.scan("time < '2026-01-02T00:00:00+00:00'").plan_files()]) == 3
    files = (stage.layout.root / "messages").rglob("part-0*.parquet")
    assert all(file.stat().st_nlink == 2 for file in files), "no second copy"
    table.scan().to_duckdb("m", asked := duckdb.connect())
    assert asked.execute("select count(*) from m where seq < 15").fetchall() == [(15,)]
    assert stranger(stage.layout, "traffic").scan().to_arrow().num_rows == 30
    assert stage.said == []


def test_what_is_told_twice_is_there_once(stage: Stage) -> None:
    stage.whole(0)
    now = stage.whole(1)
    stage.follower.follow(now)
    stage.begun().follow(now)
    assert batches(stranger(stage.layout)) == ["0", "1"]
    assert numbers(stranger(stage.layout)) == [*range(20)]


def test_a_catalog_that_comes_later_gets_what_is_there(stage: Stage) -> None:
    for number in range(3):
        stage.batch(number)
    stage.begun()
    assert numbers(stranger(stage.layout)) == [*range(30)]
    assert batches(stranger(stage.layout)) == ["2"]


@pytest.mark.slow
def test_a_merge_is_one_snapshot_and_older_ones_stay_readable(stage: Stage) -> None:
    now = [stage.whole(number) for number in range(30)][-1]
    before = stranger(stage.layout).current_snapshot()
    assert before is not None and compact(stage.layout, "messages", now) > 1
    stage.follower.tidied(now)
    table = stranger(stage.layout)
    assert numbers(table) == [*range(300)]
    assert len([*table.scan().plan_files()]) == 17
    assert batches(table)[-2:] == ["29", "29"]
    assert numbers(table, before.snapshot_id) == [*range(300)]
    first = min(table.snapshots(), key=lambda one: one.sequence_number or 0)
    assert numbers(table, first.snapshot_id) == [*range(10 * (1 + int(batches(table)[0])))]


def two_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all snapshots."""
    for name, value in {"HOURS": 0, "DAYS": 0, "RECENT": 2, "SLACK": 1}.items():
        monkeypatch.setattr(iceberg, name, value)


@pytest.mark.slow
def test_snapshots_expire_and_with_them_the_files_that_only_they_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_stay(monkeypatch)
    now = [stage.whole(number) for number in range(24)][-1]
    compact(stage.layout, "messages", now)
    stage.follower.tidied(now)
    assert len(links(stage.layout)) == 25, "the snapshot of batch 23 has the small ones"
    stage.whole(24)
    stage.whole(25)
    assert batches(stranger(stage.layout)) == ["24", "25"]
    assert len(links(stage.layout)) == 1 + 18, "one merged of eight, and the others"
    assert numbers(stranger(stage.layout)) == [*range(260)]
    lists = (stage.layout.root / "_iceberg/messages/metadata").glob("snap-*")
    assert len([*lists]) == 2


def test_a_snapshot_that_somebody_named_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_stay(monkeypatch)
    stage.whole(0)
    named = stranger(stage.layout).snapshots()[0].snapshot_id
    stranger(stage.layout).manage_snapshots().create_tag(named, "first").commit()
    for number in range(1, 6):
        stage.whole(number)
    assert stage.said == []
    assert batches(stranger(stage.layout)) == ["0", "4", "5"]
    assert numbers(stranger(stage.layout), named) == [*range(10)]
    assert numbers(stranger(stage.layout)) == [*range(60)]


def test_removed_rows_are_gone_from_older_snapshots_too(stage: Stage) -> None:
    stage.whole(0)
    now = stage.whole(1, group=1)
    for file in (stage.layout.root / "messages").rglob("part-0000000000-*"):
        os.utime(file, (0, 0))
    assert drop(stage.layout, "messages", now, 10_000_000 / DAY) == 1
    stage.follower.tidied(now)
    assert numbers(stranger(stage.layout)) == [*range(10, 20)]
    assert len(stranger(stage.layout).snapshots()) == 1
    assert [name[:15] for name in links(stage.layout)] == ["part-0000000001"]


def test_hours_and_days_stay() -> None:
    minute = 60
    times = [30 * 86_400 - n * minute for n in range(30 * 1440)]
    kept = staying(times)
    ages = sorted(times[0] - times[at] for at in kept)
    assert ages[:20] == [n * minute for n in range(20)]
    assert len(kept) <= iceberg.RECENT + iceberg.HOURS + iceberg.DAYS
    assert ages[-1] == pytest.approx((iceberg.DAYS - 1) * 86_400, abs=86_400)
    assert staying([]) == set()


KILLED = """
import os, sys
from pathlib import Path
import pyiceberg.catalog.sql as sql
import pyiceberg.table.update.snapshot as snapshot
from hubbub.pipeline.iceberg import IcebergTable
from tests.pipeline.test_catalog import Stage

def dies(*arguments, **named):
    os.kill(os.getpid(), 9)

def dies_after(did):
    def does(*arguments, **named):
        did(*arguments, **named)
        dies()
    return does

stage = Stage(Path(sys.argv[1]), *sys.argv[4:])
where = sys.argv[2]
if where == "before":
    IcebergTable.add = dies
elif where == "linked":
    IcebergTable._link = dies_after(IcebergTable._link)
elif where == "lists":
    sql.SqlCatalog.commit_table = dies
elif where == "metadata":
    sql.SqlCatalog._write_metadata = staticmethod(dies_after(sql.SqlCatalog._write_metadata))
elif where == "committed":
    sql.SqlCatalog.commit_table = dies_after(sql.SqlCatalog.commit_table)
stage.whole(int(sys.argv[3]))
"""


@pytest.mark.interop
@pytest.mark.parametrize("where", ["before", "linked", "lists", "metadata", "committed"])
def test_killed_between_the_files_and_the_commit(stage: Stage, where: str) -> None:
    stage.whole(0)
    command = [sys.executable, "-c", KILLED, str(stage.layout.data), where, "1"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    ended = subprocess.run(command, env=environment, timeout=120, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    stage.follower = stage.begun()
    stage.whole(2)
    assert stranger(stage.layout, "traffic").scan().to_arrow().num_rows == 30
    assert numbers(stranger(stage.layout)) == [*range(30)]
    files = str(stage.layout.root / "messages/**/*.parquet")
    assert duckdb.connect().execute(f"select count(*) from '{files}'").fetchall() == [(30,)]


def test_a_catalog_that_is_locked_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "REST", 0)  # asked again with the next batch
    place = tmp_path / "catalog.db"
    stage = Stage(tmp_path, f"sqlite:///{place}?timeout=0.1")
    stage.whole(0)
    with sqlite3.connect(place, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        stage.whole(1)
        stage.whole(2)
        with pytest.raises(DirectoryError, match="database is locked"):
            stage.follower.end()
        begun = stage.begun()  # the tables go on without it from the start
        assert "database is locked" in begun.trouble
        other.execute("ROLLBACK")
    said, again = stage.said
    assert "database is locked" in said and said.endswith("follows when it can")
    assert again == said, "of the second that began"
    begun.follow(stage.batch(3))
    assert stage.said[2:] == ["the catalog has all batches again"]
    begun.end()
    found = load_catalog("hubbub", type="sql", uri=f"sqlite:///{place}")
    assert numbers(found.load_table("hubbub.messages")) == [*range(40)]


def test_a_catalog_that_is_gone_is_made_again_with_its_past(stage: Stage) -> None:
    stage.whole(0)
    (stage.layout.root / "_iceberg/catalog.db").unlink()
    stage.whole(1)
    assert "catalog.db is gone" in stage.said[0]
    stage.whole(2)
    table = stranger(stage.layout)
    assert numbers(table) == [*range(30)] and batches(table) == ["0", "2"]
    assert numbers(table, table.snapshots()[0].snapshot_id) == [*range(10)]


def test_files_that_were_lost_from_the_catalog_are_named_again(stage: Stage) -> None:
    """The directory was copied: other inodes, and perhaps without the second names."""
    stage.whole(0)
    for link in links(stage.layout):
        (stage.layout.root / "_iceberg/messages/data" / link).unlink()
    stage.begun()
    assert numbers(stranger(stage.layout)) == [*range(10)]


def test_one_that_is_newer_or_somebody_elses_is_left_alone(stage: Stage) -> None:
    stage.whole(0)
    stage.whole(1)
    stage.layout.advance(Progress(0, 9, "", 0, "", 0))  # as from a backup
    with pytest.raises(DirectoryError, match="has batch 1 of hubbub.messages, .* end with batch 0"):
        stage.begun()
    stage.layout.advance(Progress(1, 19, "", 0, "", 0))
    table = stranger(stage.layout)
    with table.transaction() as change:
        change.set_properties({"hubbub.version": "2"})
    with pytest.raises(DirectoryError, match="made by version 2 of Hubbub's"):
        stage.begun()
    with table.transaction() as change:
        change.set_properties({"hubbub.version": "1"})
    stage.begun()
    with table.transaction() as change, change.update_snapshot().fast_append():
        pass
    with pytest.raises(DirectoryError, match="was changed by another program"):
        stage.begun()


def test_a_catalog_that_takes_and_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stage = Stage(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        stage.whole(0)
        with pytest.raises(DirectoryError, match="Read timed out"):
            stage.follower.end()
    assert len(stage.said) == 1


def test_one_table_with_trouble_stops_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.whole(0)
    described = iceberg.IcebergTable._described

    def fails(self: iceberg.IcebergTable, path: str) -> object:
        if self.name == "hubbub.messages":
            raise ValueError("part-1: date value out of range")
        return described(self, path)

    with monkeypatch.context() as changed:
        changed.setattr(iceberg.IcebergTable, "_described", fails)
        stage.whole(1)
        stage.follower = stage.begun()  # nor a start
        stage.whole(2)
    assert stranger(stage.layout, "traffic").scan().to_arrow().num_rows == 30
    assert numbers(stranger(stage.layout)) == [*range(10)]
    assert "messages: the catalog sqlite does not take it: part-1: date value" in stage.said[0]
    stage.whole(3)
    assert numbers(stranger(stage.layout)) == [*range(40)]
    assert stage.said[-1] == "the catalog has all batches again"


def test_times_that_python_has_not_are_there_without_bounds(stage: Stage) -> None:
    stage.whole(0)
    [file] = (stage.layout.root / "messages").rglob("part-0*.parquet")
    rows = pq.read_table(file)
    far = pa.array([1 << 58] * ROWS, pa.int64()).cast(rows.schema.field("expires").type)
    at = rows.schema.get_field_index("expires")
    pq.write_table(rows.set_column(at, rows.schema.field(at), far), file.with_name("new"))
    file.with_name("new").replace(file)
    again = stage.begun()
    assert again.trouble == "" and numbers(stranger(stage.layout)) == [*range(10)]


def test_a_form_that_changed_begins_anew(tmp_path: Path) -> None:
    def followed(kind: str, by: Literal["day", "none"]) -> list[str]:
        made = typed.table_of(Typed("t", "a", {"x": f"$.x {kind}"}, by=by))
        shutil.rmtree(layout.root / "t", ignore_errors=True)  # as `backfill` exchanges it
        written(layout, made, 0, 0)
        said: list[str] = []
        Catalogued(Named(BESIDE), layout, (made,), said.append).begin()
        assert numbers(stranger(layout, "t")) == [*range(10)]
        return said

    layout = Layout(tmp_path)
    (layout.root / "_open").mkdir(parents=True)
    layout.advance(Progress(0, 9, "2026-01-01 12:00:00", 0, "", 0))
    assert followed("DOUBLE", "day") == followed("DOUBLE", "day") == []
    [said] = followed("STRING", "day")
    assert said.endswith("begins anew, without its snapshots: x was double, is string")
    [said] = followed("STRING", "none")
    assert said.endswith("by was day, is none")


def test_metadata_that_was_removed_where_the_catalog_is_elsewhere(tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    stage = Stage(tmp_path / "one", shared)
    stage.whole(0)
    shutil.rmtree(stage.layout.root / "_iceberg")
    stage.begun()
    found = load_catalog("hubbub", type="sql", uri=shared).load_table("hubbub.messages")
    assert numbers(found) == [*range(10)]
    with pytest.raises(DirectoryError, match="are not there"):
        shutil.rmtree(stage.layout.root / "_iceberg")
        Stage(tmp_path / "two", shared)


def test_a_change_of_another_program_is_seen_at_once(stage: Stage) -> None:
    stage.whole(0)
    with stranger(stage.layout).transaction() as change, change.update_snapshot().fast_append():
        pass
    stage.whole(1)
    assert "hubbub.messages in the catalog was changed by another program" in stage.said[0]
    assert numbers(stranger(stage.layout)) == [*range(10)]
    assert stranger(stage.layout, "traffic").scan().to_arrow().num_rows == 20


def test_two_hubs_with_one_namespace(tmp_path: Path) -> None:
    """The second is refused before it writes; the first one's rows stay as they are."""
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    first = Stage(tmp_path / "one", shared)
    first.whole(0)
    with pytest.raises(DirectoryError, match=r"of the tables in .*one/tables,.*namespace"):
        Stage(tmp_path / "two", shared)
    first.whole(1)
    found = load_catalog("hubbub", type="sql", uri=shared).load_table("hubbub.messages")
    assert numbers(found) == [*range(20)] and first.said == []


def test_a_directory_is_the_same_by_another_path(tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    Stage(tmp_path / "one", shared).whole(0)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    again = Stage(tmp_path / "link", shared)
    again.whole(1)
    assert again.said == []


def test_names_that_are_no_catalog(tmp_path: Path) -> None:
    for name in ("nonesuch", "wolf://you:s3cret@there"):
        with pytest.raises(HubbubError, match="catalog") as raised:
            Stage(tmp_path / name[:4], name)
        assert "s3cret" not in str(raised.value)
    with pytest.raises(SettingError, match="pipeline.catalog"):
        need_local(Named(BESIDE), (), True)
    need_local(Named(), (), True)
