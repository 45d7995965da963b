"""What is said of what is gone: the same ways out wherever tables lie, and none that is none."""

from __future__ import annotations

from hubbub.pipeline.absence import Home, made_of_messages
from hubbub.pipeline.backfill import POSSIBLE
from hubbub.pipeline.tables import ALL

HERE = Home("/d/tables", "move /d/tables away", True)
THERE = Home("s3a://plant", "name an empty place with --to", False)
AGAIN = "then the next run makes all tables again from what the journal still has"


def test_what_backfill_makes_is_what_it_is_said_to_make() -> None:
    assert {one.name for one in ALL if made_of_messages(one.name)} == {*POSSIBLE}
    assert made_of_messages("climate"), "one of the user's own"


def test_a_table_that_is_gone_has_the_ways_back_that_there_are() -> None:
    assert str(HERE.lacks_tables(["readings", "climate"], 7)) == (
        "/d/tables lacks readings, climate, which batches up to 7 wrote: put back what was there; "
        "or `hubbub pipeline backfill NAME` makes readings, climate again; or `hubbub pipeline run "
        "--anew readings,climate` goes on without the rows before"
    )
    assert str(THERE.lacks_tables(["readings"], 7)) == (
        "s3a://plant lacks readings, which batches up to 7 wrote: put back what was there; or "
        "`hubbub pipeline run --anew readings` goes on without the rows before; or name an empty "
        f"place with --to, {AGAIN}"
    )


def test_backfill_is_no_way_for_what_it_cannot_make() -> None:
    """Once it was proposed for `messages`, of which it makes the others."""
    for names in (["messages"], ["messages", "readings"], ["calls"]):
        said = str(HERE.lacks_tables(names, 7))
        assert "backfill" not in said and said.endswith(f"; or move /d/tables away, {AGAIN}")
    some = str(HERE.lacks_tables(["readings", "calls"], 7))
    assert "backfill NAME` makes readings again; or" in some and some.endswith(AGAIN)
    assert "backfill" not in HERE.lacks_rows("messages", "was gone", False)


def test_rows_that_are_missing_are_said_with_what_makes_them() -> None:
    why = "was left out of batches 1 to 9"
    assert HERE.lacks_rows("climate", why, True) == (
        f"climate {why}: their rows are missing in it until `hubbub pipeline backfill climate "
        "--rules FILE` makes it again"
    )
    assert HERE.lacks_rows("calls", why, True) == (
        f"calls {why}: their rows are missing in it, and what was open then may stay so. To have "
        f"them move /d/tables away, {AGAIN}"
    )
    assert THERE.lacks_rows("readings", why, False) == (
        f"readings {why}: their rows are missing in it. To have them name an empty place with "
        f"--to, {AGAIN}"
    )


def test_open_rows_that_are_gone_are_said_alike() -> None:
    gone = "the open rows of traffic after batch 3 are gone from"
    assert str(HERE.lacks_open("traffic", 3)) == (
        f"{gone} /d/tables: put back what was there; or `hubbub pipeline backfill traffic` makes "
        f"it again; or move /d/tables away, {AGAIN}"
    )
    assert str(THERE.lacks_open("traffic", 3)) == (
        f"{gone} s3a://plant: put back what was there; or name an empty place with --to, {AGAIN}"
    )
