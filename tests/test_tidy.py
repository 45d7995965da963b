"""What a reader may count on everywhere: checked here, so that nobody has to remember it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LINES_MAX = 700  # one idea a file; the longest grammar stays below
MEDIAN_MAX = 10  # lines of a function

FILES = sorted(SOURCE.rglob("*.py"))
ALL_FILES = [
    file
    for folder in ("src", "tests", "examples", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_says_what_it_is(file: Path) -> None:
    text = file.read_text("utf-8")
    if text:  # an empty __init__.py has nothing to say
        assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("file", ALL_FILES, ids=name_of)
def test_no_tabs(file: Path) -> None:
    assert "\t" not in file.read_text("utf-8")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_giants(file: Path) -> None:
    assert file.read_text("utf-8").count("\n") <= LINES_MAX


@pytest.mark.parametrize("file", sorted((SOURCE / "hubbub/core").rglob("*.py")), ids=name_of)
def test_the_core_names_no_protocol(file: Path) -> None:
    found = re.findall(r"(?i).*(?:mqtt|smq|switch).*", file.read_text("utf-8"))
    assert not found


def functions() -> Iterator[int]:
    """The length in lines of each function of the source, its docstring not counted."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                yield (body[-1].end_lineno or 0) - body[0].lineno + 2 if body else 1


def test_functions_are_short() -> None:
    lengths = sorted(functions())
    assert lengths[len(lengths) // 2] <= MEDIAN_MAX


def test_no_folder_or_file_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "helper", "managers", "manager", "base", "common"}
    names = {part for file in FILES for part in (*file.parent.parts, file.stem)}
    assert not names & drawers


@cache
def imported(file: Path) -> set[str]:
    """The top-level names of everything that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _module(package: str) -> str:
    """What one imports of a package."""
    other = {
        "argon2-cffi": "argon2", "nats-py": "nats", "paho-mqtt": "paho", "pyjwt": "jwt",
        "pytest-xdist": "xdist",
    }  # fmt: skip
    return other.get(package, package.replace("-", "_"))


def test_every_dependency_is_declared_and_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[<>=\[]", line)[0] for one in lists for line in one} - {"hubbub"}
    modules = {_module(name) for name in declared}
    used = set().union(*map(imported, ALL_FILES)) - set(sys.stdlib_module_names)
    ours = {"hubbub", "pyspark_hubbub", "tests", "examples", "benchmarks"}
    assert used - ours - {"py4j", "importlinter"} <= modules
    core = {_module(re.split(r"[<>=\[]", line)[0]) for line in project["dependencies"]}
    assert core <= set().union(*map(imported, FILES))


def test_the_papers_are_there() -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "hubbub.toml"):
        assert (ROOT / name).read_text("utf-8").strip(), name
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


# Where rows are logged beside `Context.change`, each for its reason (docs/decisions/0017).
LOGGED_BESIDE = {
    ("core/context.py", "change"), ("core/context.py", "note"),
    ("core/broker.py", "_record"), ("core/delayed.py", "take"),  # runs
    ("core/broker.py", "keep_after_all"),  # the same
    ("core/broker.py", "_audience"),  # only names whom later rows mean
    ("core/queues.py", "_send"), ("core/queues.py", "_put"),  # a fifth of the cost of a call
    ("core/queues.py", "acknowledge"),
    ("cluster/heritage.py", "_retain"),  # folded by what keeps it, as in the broker
    ("cluster/outposts.py", "lent"),
    ("cluster/estates.py", "keep_copy"),  # a message once more, by itself no state
    ("core/queues.py", "dispatch"),  # what a restart makes of a lease
    ("protocols/mqtt/session.py", "settle"),  # a tick's acknowledgements in one row
}  # fmt: skip


def test_state_changes_in_one_way() -> None:
    found = set()
    for file in FILES:
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                body = ast.unparse(function)
                if re.search(r"\blog\.append(_run)?\(", body):
                    found.add((str(file.relative_to(SOURCE / "hubbub")), function.name))
    assert found == LOGGED_BESIDE


def test_no_compiled_class_names_a_method_twice() -> None:
    """mypyc would look the other name up among the module's for each object, and not find it."""
    compiled = [ROOT / name for name in import_module("setup").hot_modules()]
    assert len(compiled) > 50
    assert [place for file in compiled for place in second_names(file)] == []


def second_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            for one in node.body:
                if isinstance(one, ast.Assign) and isinstance(one.value, ast.Name):
                    if one.value.id in methods:
                        yield f"{name_of(file)}:{one.lineno}"
