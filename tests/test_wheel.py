"""The wheel that pip makes: of plain Python where it cannot be compiled, and no error for that.

`make test-compiled` makes the compiled one, which takes minutes, and runs the fast tests on it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

import pytest
import typer
from packaging.requirements import Requirement

from hubbub import cli
from tests.process import RunningHub
from tests.test_docs import leaves

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


def test_make_compiled_says_what_runs_what_it_made() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "compiled"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "./compiled.sh .venv/bin/hubbub --version\n" in done.stdout
    assert ".venv/bin/hubbub by itself stays plain Python" in done.stdout
    assert f"PYTHONPATH={ROOT}/build/compiled " in done.stdout


# Installed alone

# Segments are finished, folded and removed within seconds.
SMALL: Final = (
    "--set", "journal.segment_bytes=65536", "--set", "journal.retain_bytes=300000",
)  # fmt: skip
FOLD_SECONDS: Final = 60.0  # for a busy machine; it takes two
NO_SPARK: Final = "pipeline"  # the one command whose every part is Spark's

COMMANDS: Final = dict(leaves(typer.main.get_command(cli.app), "hubbub"))  # as the parser has them
SPARKS: Final = {  # what must be said beside
    "pipeline sql": "'SELECT 1'", "pipeline backfill": "traffic", "pipeline infer": "demo/#",
}  # fmt: skip

Asked = tuple[str, str, int, str]  # the words, the exit code, and something that is printed

# All commands but Spark's. HUB is the address of one that runs, DATA its directory.
OF_A_HUB: Final[tuple[Asked, ...]] = (
    ("pub", "demo/a -m once -q 1 --retain --url mqtt://HUB", 0, ""),
    ("pub", "demo/id -m once --url smq://HUB", 0, ""),
    ("history", "demo/a --last 1 --url http://HUB", 0, "once"),
    ("sub", "demo/a -C 1 --url mqtt://HUB", 0, "once"),
    ("sub", "demo/a --count 1 --url smq://HUB", 0, "once"),
    ("rr", "demo/nobody -m x -W 0.1 --url mqtt://HUB", 27, ""),
    ("probe", "--url mqtt://HUB", 0, "MQTT"),
    ("bench", "-s 0.2 --url mqtt://HUB", 0, ""),
    ("status", "--url http://HUB", 0, "published"),
    ("top", "-n 1 --interval 0.1 --url http://HUB", 0, ""),
    ("ls", "retained --url http://HUB", 0, "demo/a"),
    ("refusals", "--url http://HUB", 0, ""),
    ("switch serve", "up --program /bin/cat --url http://HUB", 0, ""),  # goes on meanwhile
    ("switch call", "up --body hello --timeout 30 --url http://HUB", 0, "hello"),
    ("switch create", "jobs --url http://HUB", 0, ""),
    ("switch list", "--all --url http://HUB", 0, "jobs"),
    ("switch ack", "jobs 99 --url http://HUB", 1, ""),
    ("switch tail", "--url http://HUB", 0, ""),
    ("switch mscgen", "--url http://HUB", 0, "msc"),
    ("switch diagnostics", "--url http://HUB", 0, "jobs"),
    ("requeue", "jobs --dry-run --url http://HUB", 0, "jobs: nothing is in it"),
    ("bridge", "cut-off nobody --url http://HUB", 1, ""),
    ("switch destroy", "jobs --url http://HUB", 0, ""),
    ("end", "retained demo/a --url http://HUB", 0, ""),
    ("remove-id", "demo/id --url http://HUB", 0, ""),
)
OF_NONE: Final[tuple[Asked, ...]] = (
    ("config", "", 0, "segment_bytes"),
    ("doctor", "--set listen=127.0.0.1:0 --set journal.record=none --json", 0, "Python"),
    ("journal info", "--data DATA", 0, "used by process"),
    ("journal hold", "reader --data DATA", 0, "reader"),
    ("journal verify", "--data DATA", 0, "all is right"),
    ("journal scrub", "--data DATA", 0, "all is right"),
    ("journal backup", "copy --data DATA", 0, "copy"),
    ("journal restore", "copy --data restored", 0, "restored"),
    ("journal repair", "--data restored", 0, "nothing to repair"),
    ("journal compact", "--data restored", 0, "before"),
    ("journal export", "rows --data restored", 0, ""),
    ("journal import", "rows --data imported", 0, "imported"),
    ("passwd add", "users ann --token", 0, ""),
    ("passwd list", "users", 0, "ann"),
    ("passwd remove", "users ann", 0, ""),
    ("acl check", "ann publish a --file acl", 0, ""),
)
LAST: Final[tuple[Asked, ...]] = (("switch shutdown", "--url http://HUB", 0, ""),)


@pytest.fixture
def program(source: Path, tmp_path: Path) -> Path:
    """The `hubbub` of an environment with the wheel, what that says it needs, and nothing else.

    The packages are those of this environment, linked: nothing is downloaded.
    """
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    python(source, "-c", BUILD, str(tmp_path), CC="/bin/false")
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    pip = ("-m", "pip", "--python", str(place / "bin/python"), "install", "--no-index", "--no-deps")
    made = python(tmp_path, *pip, str(wheel))
    assert made.returncode == 0, made.stderr
    (installed,) = packages.glob("hubbub-*.dist-info")
    for needed in needs(Distribution.at(installed), {"hubbub"}):
        for top in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(needed.locate_file(top)))
    return place / "bin/hubbub"


def needs(installed: Distribution, known: set[str]) -> Iterator[Distribution]:
    """The packages that it names, those that they name, and so on; none for an extra."""
    for line in installed.requires or ():
        wanted = Requirement(line)
        name = wanted.name.lower().replace("_", "-")
        if name in known or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        known.add(name)
        found = distribution(name)
        yield found
        yield from needs(found, known)


@pytest.mark.interop
@pytest.mark.slow
def test_installed_alone_it_does_all_that_needs_no_spark(program: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "acl").write_text("user ann\ntopic readwrite #\n")

    def run(words: str, given: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *shlex.split(words)], cwd=here, input=given, timeout=60,
            env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    data = here / "data"
    hub = RunningHub(data, *SMALL, program=program)
    try:
        address = hub.address
        payloads = "".join(f"{os.urandom(500).hex()}\n" for _ in range(900))
        assert run(f"pub demo/kept -m before --retain -q 1 --url mqtt://{address}")[0] == 0
        assert run(f"pub demo/many -l -q 1 --url mqtt://{address}", payloads)[0] == 0
        soon(lambda: list((data / "state").glob("*.rows")) != [], "no snapshot was made")
        # What one snapshot covers stays: there must be another, of what comes behind it.
        assert run(f"pub demo/many -l -q 1 --url mqtt://{address}", payloads)[0] == 0
        soon(lambda: oldest(data) > 1, "nothing was removed")
        assert hub.stop() == 0
        hub = RunningHub(data, *SMALL, program=program)
        code, said, _ = run(f"sub demo/kept -C 1 -W 30 --url mqtt://{hub.address}")
        assert (code, said) == (0, "demo/kept before\n")
        everything(run, program, hub)
        assert hub.process.wait(30) == 0  # `switch shutdown` was the last
    finally:
        hub.stop(signal.SIGKILL)


def oldest(data: Path) -> int:
    return min(int(one.stem) for one in (data / "log").glob("*.rows"))


def soon(done: Callable[[], bool], complaint: str) -> None:
    until = time.monotonic() + FOLD_SECONDS
    while not done():
        assert time.monotonic() < until, complaint
        time.sleep(0.1)


def everything(run: Callable[[str], tuple[int, str, str]], program: Path, hub: RunningHub) -> None:
    known = {name.removeprefix("hubbub ") for name in COMMANDS}
    sparks = {name for name in known if name.split()[0] == NO_SPARK}
    assert {name for name, *_ in (*OF_A_HUB, *OF_NONE, *LAST)} | {"serve"} == known - sparks
    of_spark = [(name, f"{SPARKS.get(name, '')} --data DATA", 2, "") for name in sorted(sparks)]
    serving: list[subprocess.Popen[bytes]] = []

    def in_turn(asked: Iterable[Asked]) -> None:
        for name, words, code, printed in asked:
            said = f"{name} {words}".replace("HUB", hub.address).replace("DATA", str(hub.data))
            if name == "switch serve":
                serving.append(subprocess.Popen([program, *shlex.split(said)]))
                continue
            found, shown, complaint = run(said)
            assert found == code and printed in shown, (said, found, shown, complaint)
            assert "Traceback" not in complaint, (said, complaint)
            assert complaint.startswith("hubbub: this needs py") == (name in sparks), complaint

    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(in_turn, (OF_A_HUB, OF_NONE, of_spark)))
        in_turn(LAST)
    finally:
        for one in serving:
            one.terminate()
            one.wait(20)
