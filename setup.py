"""The build of a wheel: what pip asks first, and what setuptools is told.

`pip install .` compiles the hot path with mypyc where a C compiler and Python's headers are. Where
they are not, or if it fails, the wheel is plain Python: nobody needs gcc for a hub. Which one it
became is in pip's log, and `hubbub --version` says it. HUBBUB_COMPILE=0 asks for plain Python,
HUBBUB_COMPILE=1 fails rather than fall back to it. An editable install is always plain: an
extension would hide the source beside it.

What is compiled is the same source: a module must run both ways, and `make test-compiled` holds
that. All else about the package stands in pyproject.toml. See docs/decisions/0009-compiled.md.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import build_meta, setup
from setuptools.build_meta import (  # noqa: F401  what pip asks for, as setuptools answers it
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_ext import build_ext

# What runs for every packet and every connection; tasks and servers stay plain. So does `__init__`:
# packages whose own module is compiled cannot be found by their path.
HOT = [
    "schema.py", "core/**/*.py", "wire/**/*.py", "protocols/**/*.py",
    "journal/batch.py", "journal/buffers.py", "journal/frame.py", "journal/gathered.py",
    "journal/group.py", "journal/intake.py", "journal/pulse.py", "journal/writer.py",
    "journal/disk.py", "journal/readback.py",
    "runtime/busypoll.py", "runtime/commitdelay.py", "runtime/turn.py",
    "runtime/arrivals.py", "runtime/carrying.py", "runtime/deadlines.py", "runtime/door.py",
    "runtime/strangers.py",
    # The socket, and its parts, each of which goes on from the one before.
    "runtime/waiting.py", "runtime/rates.py", "runtime/framing.py", "runtime/expiry.py",
    "runtime/arriving.py", "runtime/socket.py", "runtime/records.py",
    "runtime/tls.py",
    # What crosses between nodes; records themselves are msgspec's, which are no classes for mypyc.
    "cluster/estates.py", "cluster/hearing.py", "cluster/keeping.py", "cluster/lines.py",
    "cluster/node.py", "cluster/outposts.py", "cluster/passing.py", "cluster/taking.py",
]  # fmt: skip
WISH = "HUBBUB_COMPILE"
Config = Mapping[str, Any] | None


# What pip asks


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    found: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*found, "mypy>=2.4"] if os.environ.get(WISH) != "0" and _has_compiler() else found


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    where = (wheel_directory, config_settings, metadata_directory)
    wish = os.environ.get(WISH, "")
    if wish == "1" or (wish != "0" and _has_compiler()):
        os.environ[WISH] = "1"
        try:
            return str(build_meta.build_wheel(*where))
        except (Exception, SystemExit) as error:
            if wish == "1":
                raise
            print(f"The hot path could not be compiled: {error!r}", file=sys.stderr)
    print("A wheel of plain Python, which needs a third more CPU a message", file=sys.stderr)
    os.environ[WISH] = "0"
    return str(build_meta.build_wheel(*where))


def _has_compiler() -> bool:
    """Whether it compiles two lines that include Python.h, which many a system has not."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <Python.h>\nint answer(void) { return 42; }\n")
        command = [*compiler, "-I", headers, "-c", str(source), "-o", str(source) + ".o"]
        try:
            return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


# What setuptools does


def hot_modules() -> list[str]:
    source = Path("src/hubbub")
    found = {str(path) for pattern in HOT for path in source.glob(pattern)}
    return sorted(name for name in found if not name.endswith("__init__.py"))


def extensions() -> list[Any]:
    """The modules as one extension, so that they call one another without Python between.

    A C file each: one of them all takes gcc 1.3 GB and one core. mypy looks at these modules only,
    without the types of our dependencies, which pip does not install for a build: `make lint` has
    judged them, and it takes a third of the time.
    """
    from mypyc.build import mypycify

    os.environ["MYPYPATH"] = "src"
    flags = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file="]
    flags += ["--explicit-package-bases", "--namespace-packages"]
    return list(
        mypycify(
            [*flags, *hot_modules()],
            opt_level="2", debug_level="0", group_name="hubbub", multi_file=True,
        )
    )  # fmt: skip


class OnEveryCore(build_ext):
    """setuptools compiles the files of an extension one after the other."""

    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], *rest: Any, **more: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                parts = pool.map(lambda source: one_by_one([source], *rest, **more), sources)
                return [name for part in parts for name in part]

        self.compiler.compile = compile_all
        super().build_extensions()


if __name__ == "__main__":  # as setuptools runs it; pip imports it and asks the functions above
    compiling = os.environ.get(WISH) == "1" and "bdist_wheel" in sys.argv
    setup(ext_modules=extensions() if compiling else [], cmdclass={"build_ext": OnEveryCore})
