"""`hubbub pipeline infer`: what it proposes can be read again and run, whatever was published."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hubbub.cli import app
from hubbub.errors import HubbubError, SettingError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline import infer
from hubbub.pipeline.cells import Fitter, Unfit
from hubbub.pipeline.decode import Undecodable
from hubbub.pipeline.infer import look
from hubbub.pipeline.rules import NO_RULES, Rules, read_rules
from hubbub.pipeline.typed import cells_of
from tests.spark.fixtures import Writer, publish


def read(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    return read_rules(file)


def test_infer_proposes_what_can_be_read_again(writer: Writer, tmp_path: Path) -> None:
    for n in range(4):
        said = {"temp": n / 2, "meta": {"at": "2026-01-01T12:00:00Z", "seq": n}, "on": True}
        writer.write(publish(n, f"plant/{n}/temp", json.dumps(said).encode()))
    writer.write(publish(5, "plant/1/temp", b"{"), publish(6, "other", b'{"x": 1}'))
    found = look(Journal(str(tmp_path / "data")), "plant/+/temp", NO_RULES)
    assert (found.messages, found.broken) == (5, 1)
    said_ = CliRunner().invoke(
        app, ["pipeline", "infer", "plant/+/temp", "--data", str(tmp_path / "data")]
    )
    assert said_.exit_code == 0, said_.output
    [one] = read(tmp_path, said_.stdout).table
    assert (one.name, one.topics) == ("plant_temp", "plant/+/temp")
    assert {cell.name: cell.type for cell in cells_of(one)} == {
        "level_1": "string", "temp": "double", "meta_at": "timestamp", "meta_seq": "bigint",
        "on": "boolean",
    }  # fmt: skip
    nothing = CliRunner().invoke(app, ["pipeline", "infer", "x", "--data", str(tmp_path / "data")])
    assert nothing.exit_code and "no message of x" in str(nothing.exception)


def test_infer_looks_at_the_newest(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer, "ENOUGH", 3)
    writer.write(*(publish(n, "a", b'{"old": 1}') for n in range(5)))
    writer.write(*(publish(5 + n, "a", b'{"new": 1}') for n in range(2)), publish(9, "b", b"1"))
    found = look(Journal(str(tmp_path / "data")), "a", NO_RULES)
    assert {path: types.total() for path, types in found.types.items()} == {"$.old": 1, "$.new": 2}


@pytest.mark.parametrize(
    ("topics", "payload", "columns"),
    [
        ("oven/+/x", '{"level_1": 3, "kept_x": 2}', ["level_1", "level_1_2", "own_kept_x"]),
        ("oven/1", '{"a\x7fb": 3, "c d": 4, "e\\nf": 5, "": 6}', ["a_b", "c_d", "e_nf", "value"]),
        ("oven/1", '{"\\ud800x": 3, "a": 4, "b": 1e999}', ["a"]),
        ("oven/1", '{"a\\"] b": 3, "\U0001f40d": 1, "k\u2028": 1}', ["a_b", "value", "k"]),
        ("oven/+", json.dumps({f"k{n}": n for n in range(600)}), None),
        ("valve/+/open", '{"v": 1}', ["level_1", "v"]),
        ("readings/#", '{"v": 1}', ["v"]),
        ("+/" + "x" * 80, '{"' + "k" * 300 + '": 1}', ["level_0", "k" * 50]),
    ],
)
def test_whatever_infer_proposes_can_be_read(
    tmp_path: Path, topics: str, payload: str, columns: list[str] | None
) -> None:
    found = infer.Found()
    found.take(payload.encode(), "")
    text = "\n".join(found.lines(infer.name_of(topics), topics))
    rules = read(tmp_path, text.encode().decode())
    made = [*rules.table[0].columns]
    assert made == columns if columns is not None else len(made) == 500
    values = Fitter(rules.table[0], rules).row("oven/1/x", payload.encode(), "")
    assert None not in values[topics.count("+") :]


def tree(width: int, leaf: Any) -> bytes:
    """A few kilobytes of CBOR, which say the same object again and again: width to the 7th."""
    value: Any = {"x": leaf}
    for _ in range(7):
        value = {f"k{n}": value for n in range(width)}
    return cbor2.dumps(value, value_sharing=True)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (json.dumps([[[[[[[[1] * 8] * 8] * 8] * 8] * 8] * 8] * 8]).encode(), ""),
        (json.dumps({f"k{n}": n for n in range(10_000)}).encode(), ""),
        (b"[" * 200_000 + b"]" * 200_000, ""),
        (tree(60, {}), "application/cbor"),
        (tree(60, 1), "application/cbor"),
    ],
    ids=["fan", "wide", "deep", "tree without leaves", "tree"],
)
def test_infer_of_messages_that_are_large_ends_soon(
    writer: Writer, tmp_path: Path, payload: bytes, kind: str
) -> None:
    """By the time of the processor: five of the first took 15 s once, and a tree had no end."""
    data = tmp_path / "data"
    row = publish(0, "a", payload)._replace(content_type=kind.encode())
    writer.write(*[row] * min(1_000, 20_000_000 // len(payload)))
    begun = time.process_time()
    found = look(Journal(str(data)), "a", NO_RULES)
    assert time.process_time() - begun < 20
    assert 0 < found.messages <= max(1, infer.BYTES // len(payload), 1_000)
    if found.types:
        [one] = read(tmp_path, "\n".join(found.lines("t", "a"))).table
        assert len(one.columns) == 500


def test_infer_takes_the_places_that_most_messages_have(tmp_path: Path) -> None:
    found = infer.Found()
    for n in range(1_000):
        found.take(json.dumps({f"id{n}": n, "temp": n}).encode(), "")
    lines = [*found.lines("t", "a")]
    assert lines[0] == "# of 1,000 messages, 501 rarer places are left out"
    assert [*read(tmp_path, "\n".join(lines)).table[0].columns][1] == "temp"


def test_infer_shows_what_a_terminal_would_not(tmp_path: Path) -> None:
    found = infer.Found()
    found.take('{"a\u202eb\u0085\u2028c\U000e0001": 1}'.encode(), "")
    text = "\n".join(found.lines("t", "a"))
    assert text.isascii() and all(one.isprintable() for one in text.split("\n"))
    [one] = read(tmp_path, text).table
    assert Fitter(one, NO_RULES).row("a", '{"a\u202eb\u0085\u2028c\U000e0001": 1}'.encode(), "")


@pytest.mark.parametrize("how", ["no rows", "a byte differs", "cut off", "a file is gone"])
def test_infer_of_a_journal_that_is_not_whole(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    desk = Writer(data, segment=1)
    rows = 0 if how == "no rows" else 9
    for n in range(rows):
        desk.write(publish(n, "a", b'{"x": 1}'))
    desk.close()
    files = sorted((data / "log").glob("*.rows"))
    if how == "a byte differs":
        whole = files[4].read_bytes()
        files[4].write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    elif how == "cut off":
        os.truncate(files[4], 100)
    elif how == "a file is gone":
        files[4].unlink()
    said = CliRunner().invoke(app, ["pipeline", "infer", "a", "--data", str(data)])
    assert isinstance(said.exception, HubbubError), said.output
    assert re.search(
        {"no rows": "no message of a"}.get(how, "damaged|gone|lost"), str(said.exception)
    )


def test_infer_says_where_no_journal_is(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["pipeline", "infer", "a", "--data", str(tmp_path)])
    assert "holds no journal" in str(said.exception)


def test_a_name_that_no_table_can_have_is_refused_before_it_is_proposed(tmp_path: Path) -> None:
    for name in ("x_open", "messages", "x" * 65, "Ä"):
        said = CliRunner().invoke(
            app, ["pipeline", "infer", "a", "--name", name, "--data", str(tmp_path)]
        )
        assert isinstance(said.exception, SettingError) and "a name is of" in str(said.exception)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.dates().map(str) | st.datetimes().map(str),
    lambda below: st.lists(below, max_size=10) | st.dictionaries(st.text(), below, max_size=10),
)  # fmt: skip


@settings(max_examples=30)
@given(st.lists(JSON.map(json.dumps).map(str.encode) | st.binary(), min_size=1, max_size=20))
def test_whatever_was_published_the_proposal_can_be_read_and_takes_or_refuses_it(
    payloads: list[bytes],
) -> None:
    found = infer.Found()
    for payload in payloads:
        found.take(payload, "")
    if not found.types:
        return
    with TemporaryDirectory() as folder:
        rules = read(Path(folder), "\n".join(found.lines("t", "a/+")))
    fitter = Fitter(rules.table[0], rules)
    for payload in payloads:
        with suppress(Unfit, Undecodable):
            assert fitter.row("a/b", payload, "")[0] == "b"
