"""The wheel that pip makes: of plain Python where it cannot be compiled, and no error for that.

`make test-compiled` makes the compiled one, which takes minutes, and runs the fast tests on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys, setup; print(setup.build_wheel(sys.argv[1]))"  # as pip calls it
WANTS = "import setup; print(*setup.get_requires_for_build_wheel())"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what a wheel is made of, since the build writes beside it."""
    folder = tmp_path / "source"
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leave)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("HUBBUB_COMPILE", "PYTHONPATH", "CC")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={**clean, **variables}, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.interop
def test_without_a_compiler_the_wheel_is_plain_and_works(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    made = python(source, "-c", BUILD, str(tmp_path), CC="/bin/false")
    assert made.stdout.split()[-1].endswith("-py3-none-any.whl"), made.stderr
    assert "A wheel of plain Python" in made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    said = python(tmp_path, "-m", "hubbub", "--version", PYTHONPATH=str(tmp_path / "installed"))
    assert said.stdout.endswith("(plain Python)\n"), said.stderr


@pytest.mark.interop
def test_what_fails_is_an_error_for_those_who_asked_for_it_only(
    source: Path, tmp_path: Path
) -> None:
    pytest.importorskip("setuptools", minversion="77")
    (source / "mypyc").mkdir()
    (source / "mypyc/__init__.py").write_text("raise ImportError('it broke')")
    asked = python(source, "-c", BUILD, str(tmp_path), HUBBUB_COMPILE="1")
    assert asked.returncode != 0 and "it broke" in asked.stderr and not list(tmp_path.glob("*.whl"))
    made = python(source, "-c", BUILD, str(tmp_path))
    assert made.stdout.split()[-1].endswith("-py3-none-any.whl"), made.stderr
    if shutil.which("gcc"):
        assert "could not be compiled: ImportError('it broke')" in made.stderr


@pytest.mark.interop
def test_the_compiler_of_types_is_fetched_only_where_it_is_of_use(source: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    assert "mypy" not in python(source, "-c", WANTS, CC="/bin/false").stdout
    if shutil.which("gcc"):
        assert "mypy" in python(source, "-c", WANTS).stdout


def test_the_recipe_makes_wheels_of_the_pythons_that_are_promised() -> None:
    recipe = tomllib.loads((ROOT / "deploy/cibuildwheel.toml").read_text())["tool"]["cibuildwheel"]
    assert recipe["build"] == ["cp311-*", "cp312-*", "cp313-*"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
