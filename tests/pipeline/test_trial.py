"""What becomes of a batch that fails: counted over restarts, cut smaller, down to one row."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import ParseException, PythonException

from hubbub.errors import DirectoryError
from hubbub.journal.table import SCHEMA
from hubbub.pipeline.batches import _plain
from hubbub.pipeline.blame import by_rows, said_by
from hubbub.pipeline.layout import Fence, Layout, ahead, ends_at, grown
from hubbub.pipeline.tables.typed import saved
from hubbub.pipeline.trial import KILLS, MOST, TRIES, Trial, Trials


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "_trial.json"


def test_a_batch_that_failed_twice_is_spent_also_for_the_next_process(file: Path) -> None:
    for _ in range(2):
        trials = Trials(file)
        assert not trials.now.spent
        trials.begins(7)
    assert Trials(file).now.spent
    trials = Trials(file)
    trials.begins(8)  # it became whole after all
    assert not trials.now.spent


def test_it_is_cut_down_to_the_row_that_nothing_can_take(file: Path) -> None:
    trials, sizes, rows = Trials(file), [], 500_000
    while not trials.now.poison:
        for _ in range(2):
            trials.begins(3)
            trials.fails("out of memory")
        if not trials.now.poison:
            trials.cut(rows, 500_000)
            rows = trials.now.rows
            sizes.append(rows)
    assert sizes == [31_250, 1_953, 122, 7, 1]
    assert trials.now.error == "out of memory"


def test_who_kills_drivers_puts_nothing_into_quarantine(file: Path) -> None:
    trials = Trials(file)
    for _ in range(9):
        trials.begins(3)
        if trials.now.spent:
            trials.cut(1, 17)
    assert trials.now.rows == 1 and trials.now.spent and not trials.now.poison


def test_a_row_is_not_to_blame_for_who_kills_what_takes_it(file: Path) -> None:
    """Twice in a batch of one row is chance where Java or a Python is killed now and then."""
    trials = Trials(file)
    for number in range(KILLS + TRIES):
        trials = Trials(file)
        assert not trials.now.poison, number
        trials.begins(3)
        trials.fails("a Python was killed", killed=True)
        trials.cut(1, 17)
    assert trials.now.poison, "but for what kills everything that takes it"
    trials = Trials()
    for killed in (True, False, True, False):
        trials.begins(3)
        trials.cut(1, 17)
        assert not trials.now.poison
        trials.fails("it burns", killed)
    assert trials.now.poison, "twice it was seen to do it"


def test_a_batch_that_nothing_helps_ends_a_pipeline(file: Path) -> None:
    trials = Trials(file)
    for number in range(MOST):
        assert not trials.now.hopeless, number
        trials.begins(3)
        trials.fails("Broken pipe")
    assert trials.now.hopeless
    trials.begins(4)
    assert not trials.now.hopeless


def test_behind_the_batch_that_failed_all_is_as_before(file: Path) -> None:
    trials = Trials(file)
    trials.begins(3)
    trials.cut(160, 1_000)
    for batch, seq in ((3, 850), (4, 860)):
        trials.begins(batch)
        assert not trials.ends(seq)
        assert trials.now.rows == 10
    trials.begins(5)
    assert trials.ends(1_000)
    assert Trials(file).now.rows == 0


def test_once_the_row_that_did_it_is_out_batches_grow_again(file: Path) -> None:
    trials, sizes = Trials(file), []
    trials.begins(3)
    trials.cut(16, 100_000)
    assert trials.now.rows == 1
    trials.begins(3)
    assert not trials.ends(10)  # the row is not found yet
    trials.begins(4)
    assert trials.ends(11, found=True)
    for batch in range(5, 8):
        trials.begins(batch)
        sizes.append(Trials(file).now.rows)
        assert trials.ends(1_000 * batch)
    assert sizes == [16, 256, 4_096]
    trials.begins(8)
    trials.cut(4_096, 50_000)  # it holds another such row, which is looked for
    trials.begins(8)
    assert not trials.ends(20_000)
    assert trials.now.rows == 256


def test_what_killed_java_was_no_row(file: Path) -> None:
    """After as many as it was cut into, each whole, batches are as before the cut."""
    trials, sizes = Trials(file), []
    trials.begins(3)
    trials.cut(160, 100_000)
    trials.begins(3)
    trials.cut(10, 100_000)  # it was killed again
    for batch in range(3, 40):
        trials = Trials(file)  # also where each batch has a process of its own
        trials.begins(batch)
        sizes.append(trials.now.rows)
        assert trials.ends(100 * batch) is (batch in (18, 34))
        trials.begins(batch + 1)
    assert sizes == [1] * 16 + [16] * 16 + [256] * 5


def test_a_batch_that_its_user_cut_short_has_not_failed(file: Path) -> None:
    trials = Trials(file)
    for _ in range(5):
        trials.begins(3)
        trials.stops()
    assert not trials.now.spent


def test_an_alert_with_which_it_fails_is_left_out(file: Path) -> None:
    trials = Trials(file)
    for rule in ("hot", "hot", "cold", "cold"):
        if trials.now.bad_rule:
            trials.blame()
        trials.begins(3)
        trials.asks(rule)
        trials.fails("out of memory")
    assert trials.now.bad_rule and trials.blame() == "cold"
    assert Trials(file).now.skipped == ("hot", "cold")
    trials.begins(4)
    assert trials.now.skipped == ()


def test_an_alert_is_not_to_blame_for_who_kills_what_asks_it(file: Path) -> None:
    """Nor for a driver that was killed, or for what was asked before another failure."""
    trials = Trials(file)
    for number in range(KILLS + TRIES):
        assert not trials.now.bad_rule, number
        trials.begins(3)
        trials.asks("hot")
        if number % 2:
            trials.fails("Java ended", killed=True)
    assert trials.now.bad_rule
    trials.begins(3)
    assert not trials.now.bad_rule


def test_a_file_cut_off_with_the_power_counts_anew(file: Path) -> None:
    file.write_text('{"batch": 3, "beg')
    assert Trials(file).now == Trial()


def test_tables_made_again_publish_what_is_new(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "alerts.json")
    assert fence.of("first") == 0
    fence.note("first", 100)
    assert (fence.of("first"), fence.of("second")) == (0, 100)  # the hub knows the first one's
    fence.note("second", 150)
    assert (fence.of("second"), fence.of("third")) == (100, 150)
    fence.note("second", 170)
    assert fence.of("second") == 100
    assert Fence(None).of("any") == 0


def test_rows_from_the_future_are_said() -> None:
    assert ahead("2026-01-01 12:00:00") == ""
    assert "ahead of this machine's clock" in ahead("2999-01-01 12:00:00.5")


def test_rows_that_were_lost_are_counted() -> None:
    first = grown(None, 0, 10, "2026-01-01 12:00:00", 3, 500)  # it may begin anywhere
    second = grown(first, 1, 20, "2026-01-01 12:00:01", 8, 90)
    third = grown(second, 2, 40, "2026-01-02 12:00:01", 19, 0)  # another day, another group
    assert [one.lost for one in (first, second, third)] == [0, 2, 3]
    assert [one.largest for one in (first, second, third)] == [500, 500, 500]
    assert grown(None, 0, 10, "2026-01-01 12:00:00", 8, start=0).lost == 2  # went in mid-read
    assert grown(None, 0, 10, "2026-01-01 12:00:00", 3, start=7).lost == 0


def test_where_a_plan_of_sparks_ends() -> None:
    plan = 'v1\n{"batchWatermarkMs":0}\n{"v": 1, "parts": 2, "6f0c": 1234, "lost": 9999}'
    assert ends_at(plan) == 1234
    assert ends_at("") == 0


def test_a_python_that_is_late_is_not_the_batch_s_fault(file: Path) -> None:
    trials = Trials(file)
    trials.begins(3)
    assert [trials.late(True) for _ in range(6)] == [True] * 5 + [False]
    trials.begins(3)
    assert not Trials(file).now.spent
    trials.ends(10)
    trials.begins(4)
    assert trials.late(False) and trials.now.begun == 1


@pytest.mark.parametrize(
    "error",
    [
        "An exception was raised\nTraceback:\npyarrow.lib.ArrowTypeError: expected bytes, got list",
        "Traceback:\nArrowTypeError: expected bytes, got list\n",
    ],
)
def test_the_reason_is_the_error_and_no_traceback(error: str) -> None:
    assert said_by(Exception(error)) == "ArrowTypeError: expected bytes, got list"


def test_a_row_for_quarantine_may_be_no_text() -> None:
    values = {
        field.name: {"string": b"\xff", "binary": b"\xff"}.get(str(field.type)) for field in SCHEMA
    }
    numbers = {"seq": 7, "time": datetime(2026, 1, 1, tzinfo=UTC)}
    columns = [
        pa.array([value], pa.binary()).view(field.type)
        if isinstance(value := values[field.name], bytes)
        else pa.array([numbers.get(field.name)], field.type)
        for field in SCHEMA
    ]
    row = _plain(pa.record_batch(columns, names=SCHEMA.names))
    assert (row["seq"], row["topic"], row["payload"]) == (7, "\ufffd", b"\xff")


def test_settings_and_files_of_ours_are_no_row_s_fault() -> None:
    worker, planned = PythonException("ValueError: row"), ParseException("near 'SECONDS'")
    assert by_rows(worker, True, "") and by_rows(ValueError("a row"), True, "")
    assert not by_rows(planned, True, "")
    assert by_rows(planned, True, "hot")  # the SQL of that alert, which is left out then
    assert not by_rows(ValueError("merging files"), False, "")
    assert not by_rows(OSError("the disk"), True, "")


def test_a_file_of_ours_that_is_cut_off_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_text('{"qu')
    with pytest.raises(DirectoryError, match=r"alerts\.json is damaged.*remove it"):
        Fence(tmp_path / "alerts.json").of("any")
    layout = Layout(tmp_path)
    layout.root.mkdir()
    for said in ("", "[]", '{"version": 2'):
        (layout.root / "_progress.json").write_text(said)
        with pytest.raises(DirectoryError, match=r"_progress\.json is damaged.*move"):
            layout.progress()
    (layout.root / "_typed.json").write_text('[{"name":')
    with pytest.raises(DirectoryError, match=r"_typed\.json is damaged.*remove it"):
        saved(layout)
    with pytest.raises(DirectoryError, match="_checkpoint/offsets"):
        ends_at('v1\n{"v": 1, "par')
