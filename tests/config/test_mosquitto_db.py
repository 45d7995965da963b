"""mosquitto.db beside a mosquitto.conf: what it holds is said before it could be missed."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import pytest

from hubbub.config.sources import load
from hubbub.errors import SettingError

start = partial(load, starts=True)
HEAD = b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6)


def chunk(kind: int, body: bytes = b"some") -> bytes:
    return struct.pack(">II", kind, len(body)) + body


def conf(folder: Path, text: str = "persistence true\n") -> Path:
    file = folder / "mosquitto.conf"
    file.write_text(f"{text}persistence_location {folder}/\n")
    return file


def test_what_it_holds_stops_the_first_start(tmp_path: Path) -> None:
    kinds = (1, 2, 4, 4, 6, 5, 3, 3, 3)
    (tmp_path / "mosquitto.db").write_bytes(HEAD + b"".join(map(chunk, kinds)))
    held = "2 retained messages, 1 session, 1 subscription, 3 queued messages"
    with pytest.raises(SettingError, match=held):
        start(conf(tmp_path))
    with pytest.raises(SettingError, match=held):  # another directory finds them no more than this
        start(conf(tmp_path), [f"data={tmp_path}/elsewhere"])
    start(conf(tmp_path, "persistence false\n"))  # mosquitto would not read it either
    (tmp_path / "mosquitto.db").rename(tmp_path / "mosquitto.db.old")
    start(conf(tmp_path))
    with pytest.raises(SettingError, match=held):
        start(conf(tmp_path, "persistence true\npersistence_file mosquitto.db.old\n"))


def test_who_only_looks_at_the_settings_sees_them(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.db").write_bytes(HEAD + chunk(4))
    assert load(conf(tmp_path)).journal.record == "all"


def test_where_the_hub_ran_before_it_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mosquitto.db").write_bytes(HEAD + chunk(4))
    (tmp_path / "format").write_text("the hub's")
    start(conf(tmp_path))
    assert "holds 1 retained message;" in caplog.text


@pytest.mark.parametrize("content", [b"", HEAD, HEAD + chunk(1) + chunk(2)])
def test_one_that_holds_nothing_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mosquitto.db").write_bytes(content)
    start(conf(tmp_path))


@pytest.mark.parametrize("content", [b"x" * 100, HEAD[:-1] + b"\x09" + chunk(4)])
def test_one_that_cannot_be_read_is_not_taken_for_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mosquitto.db").write_bytes(content)
    with pytest.raises(SettingError, match="cannot be counted"):
        start(conf(tmp_path))


def test_one_cut_in_the_middle_is_counted_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.db").write_bytes(HEAD + chunk(4) + struct.pack(">II", 4, 1 << 31))
    with pytest.raises(SettingError, match="2 retained messages"):
        start(conf(tmp_path))
