"""What `deploy/` gives to people who run a hub as a service, checked by systemd's own tools."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

# Only with `pipeline.catalog`.
LATER = ("iceberg.py", "catalog.py", "rest.py", "hive.py", "postgres.py")
UNIT = Path(__file__).parents[1] / "deploy" / "hubbub.service"


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.interop
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    unit = tmp_path / "hubbub.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    done = analyze("verify", str(unit))
    assert "hubbub.service" not in done.stderr, done.stderr


@pytest.mark.interop
def test_the_service_is_exposed_to_little() -> None:
    """Of 100, 0 is best: a tenth of what systemd calls exposed."""
    done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file")
    assert done.returncode == 0, done.stdout[-200:]


def test_what_the_roller_calls_is_allowed() -> None:
    """It lowers its priority, which is of @resources; the hub raises its limit of descriptors."""
    forbidden = re.findall(r"(?m)^SystemCallFilter=~(.*)$", UNIT.read_text())
    assert forbidden and all("@resources" not in one for one in forbidden)


def test_who_has_no_group_can_read_what_is_installed_before_there_is_one() -> None:
    """The user of the service is made when it starts, and owns nothing below /etc."""
    assert "DynamicUser=yes" in UNIT.read_text()
    first, later = UNIT.with_name("README.md").read_text().split("```sh\n")[1:3]
    (mode,) = re.findall(r"install -D -m (\d+) hubbub.toml", first)
    assert int(mode, 8) & 0o004
    group = re.search(r"SupplementaryGroups=([a-z-]+)", later)
    assert group is not None and f"groupadd --system {group[1]}\n" in later
    for line in later.splitlines():
        for kept in re.findall(r"(?:install -m|chmod) 0640(.*)", line):
            assert group[1] in kept or f"chgrp {group[1]}" in line, line


# The container

CONTAINER = UNIT.with_name("Containerfile")
ROOT = UNIT.parents[1]


def instructions() -> list[tuple[str, str]]:
    """Each with its words; lines that go on are one."""
    text = CONTAINER.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def test_the_container_runs_as_nobody_in_particular() -> None:
    found = instructions()
    kinds = [kind for kind, _ in found]
    last = kinds[len(kinds) - kinds[::-1].index("FROM") :]
    assert last.index("USER") > last.index("RUN") and last.count("USER") == 1
    assert dict(found)["USER"] == "10001:10001", "a number, so that it can be seen not to be root"
    assert dict(found)["ENTRYPOINT"].startswith("["), "no shell between signals and the hub"
    assert not {"ADD", "ENV", "ARG"} & set(kinds), "nothing from the network, no secret in a layer"
    assert all(":" in words and ":latest" not in words for kind, words in found if kind == "FROM")


def test_the_container_copies_what_a_wheel_is_built_from() -> None:
    copied = [words.split()[:-1] for kind, words in instructions() if kind == "COPY"]
    names = {name for words in copied for name in words if not words[0].startswith("--from")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"pyproject.toml", "setup.py", project["project"]["readme"]}
    wanted |= {*project["project"]["license-files"], *_packages(project)}
    assert names == wanted and all((ROOT / name).exists() for name in names)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert kept == names, "else they are not there when the image is built, or more is"


def _packages(project: dict[str, Any]) -> list[str]:
    found: list[str] = project["tool"]["setuptools"]["packages"]["find"]["where"]
    return found


# What is installed


def test_the_lock_has_a_hash_of_everything_and_no_place_of_this_machine() -> None:
    text = (ROOT / "requirements-dev.lock").read_text()
    assert "://" not in text and "file:" not in text and "/home" not in text
    found = re.findall(r"(?m)^([a-z0-9-]+)==(\S+).*((?:\n    --hash=sha256:[0-9a-f]{64}.*)*)", text)
    assert len(found) > 80 and all(hashes for _, _, hashes in found)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named, new = {"dev"}, {"dev"}
    while new:  # `dev` has `hubbub[test]`, which has others
        said = " ".join(line for one in new for line in extras[one] if line.startswith("hubbub["))
        new = {one for part in re.findall(r"\[(.*?)\]", said) for one in part.split(",")} - named
        named |= new
    lists = [project["dependencies"], *(extras[one] for one in named)]
    wanted = {re.split(r"[<>=\[;]", line)[0] for one in lists for line in one} - {"hubbub"}
    assert wanted <= {name for name, _, _ in found}, "uv pip compile …: the head of the file"


def test_the_extra_of_spark_has_all_that_the_pipeline_loads() -> None:
    """Where only that is installed `hubbub pipeline run` begins. What is asked for by name, Iceberg
    and plots, is loaded when it is used, and one line says what to install where it is not.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    there = {re.split(r"[<>=\[;]", line)[0] for line in listed} | {"py4j"}  # pyspark brings that
    known = packages_distributions()
    for file in (ROOT / "src/hubbub").glob("*/**/*.py"):
        if file.parts[-2] not in ("pipeline", "tables", "spark") or file.name in LATER:
            continue
        for one in ast.parse(file.read_text()).body:
            names = [part.name for part in one.names] if isinstance(one, ast.Import) else []
            names += [one.module or ""] if isinstance(one, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names} - {"hubbub"}
            for root in roots - sys.stdlib_module_names:
                brought = {name.replace("_", "-").lower() for name in known[root]}
                assert there & brought, f"{file.name} loads {root}"


def test_dependencies_whose_inside_is_used_are_pinned_below_their_next_minor() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in ("uvicorn", "uvloop", "websockets"):
        (line,) = [one for one in lines if one.startswith(name + ">")]
        found = re.fullmatch(rf"{name}>=(\d+)\.(\d+),<(\d+)\.(\d+)", line)
        assert found is not None, line
        major, minor, below, next_minor = map(int, found.groups())
        assert (below, next_minor) == (major, minor + 1)
