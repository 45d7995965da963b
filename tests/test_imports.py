"""The import directions of CONTRIBUTING.md hold, and rules that are broken are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINT = (sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()")


def test_imports_point_one_way() -> None:
    done = subprocess.run([*LINT, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_serving_loads_neither_spark_nor_pyarrow() -> None:
    code = "import sys, hubbub.server; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"pyarrow", "pyspark", "pandas", "numpy"}


def test_the_command_line_loads_one_command_only() -> None:
    code = "import sys, hubbub.cli; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not {name for name in loaded if name.startswith("hubbub.")} - {
        "hubbub.build",
        "hubbub.cli",
        "hubbub.errors",
        "hubbub.runtime",
        "hubbub.runtime.collector",
    }


def test_a_command_loads_no_library_to_check_its_options() -> None:
    """Typer has one since 0.29: a third of what a command takes (decision 65)."""
    code = "import sys; sys.argv[1:] = ['pub', '-t', 'a']\n"
    code += "from hubbub.cli import main\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "hubbub.cli.pub" in loaded, done.stderr
    assert not loaded & {"pydantic", "rich"}
