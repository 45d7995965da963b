"""Why a file cannot be read, also from a folder that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.config.sought import reason


def test_where_a_relative_file_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = FileNotFoundError(2, "No such file or directory")
    monkeypatch.chdir(tmp_path)
    assert f" in {tmp_path}, where this was started" in reason("users", error)
    assert reason(tmp_path / "users", error) == "No such file or directory"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert " in a folder that is gone, where" in reason("users", error)
