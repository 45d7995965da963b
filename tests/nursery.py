"""Processes that start in a moment: forked from one in which everything is imported.

    nursery = Nursery(environment)
    child = nursery.start(log, "hubbub", "serve", "--data", …)      as `python -m hubbub serve …`
    child.wait(5.0)                                                 its exit code, None: still there

What is forked runs the program as the real one does, from its arguments on, and ends as it does.
Run by itself this module is that one process: a line of JSON in, a line out.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
HUB: Final = (  # no more than a hub that is told nothing has loaded when it listens
    "uvloop", "hubbub.cli", "hubbub.cli.serve", "hubbub.processes",
    "hubbub.protocols.mqtt", "hubbub.protocols.smq.connection", "hubbub.protocols.switch.protocol",
)  # fmt: skip
PR_SET_PDEATHSIG: Final = 1
EARLY: Final = ("LD_", "PYTHON", "MALLOC_", "OPENSSL_")  # looked at before a program begins
COMMANDS: Final = (
    "hubbub.cli.journal", "hubbub.journal.compact", "hubbub.journal.backup",
    "hubbub.journal.examine", "hubbub.journal.roll",
)  # fmt: skip


class Nursery:
    """`stop` ends it; so does the end of the process that made it. Threads may share it."""

    def __init__(self, environment: dict[str, str], imported: Sequence[str] = HUB) -> None:
        self._asking = threading.Lock()
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT / "src")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self._environment,
        )
        self.ask({})  # everything is imported

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def fits(self, environment: dict[str, str]) -> bool:
        """Whether what is forked here is what a new process in this environment would be."""
        return sys.platform == "linux" and _early(environment) == _early(self._environment)

    def fork(self, argv: Sequence[str], out: str, errors: str, **more: object) -> int:
        """Run a module as a program; it prints into these files. Its pid; `ended` tells the rest.

        `more`: the `environment` it gets, the directory (`cwd`), what it reads (`stdin`, a file:
        else nothing), and its `role` in `faults.c`.
        """
        found: int = self.ask({"argv": list(argv), "files": (out, errors), **more})
        return found

    def ended(self, pid: int) -> int | None:
        """The exit code, minus the signal; once, and None before."""
        found: int | None = self.ask({"pid": pid})
        return found

    def start(self, log: Path, module: str, *arguments: str, role: str = "hub") -> Child:
        """Run a module as a program; what it prints goes to `log`."""
        log.touch()
        return Child(self, self.fork((module, *arguments), str(log), str(log), role=role), log)

    def run(
        self, log: Path, module: str, *arguments: str, role: str = "hub", seconds: float = 20.0
    ) -> int | None:
        """Until it ends; the exit code, minus the signal, or None if it hung and was killed."""
        child = self.start(log, module, *arguments, role=role)
        code = child.wait(seconds)
        child.kill()
        return code

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


class Child:
    """A process with all that it starts."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self.pid, self.log = nursery, pid, log
        self.code: int | None = None

    def wait(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while self.code is None:
            self.code = self._nursery.ended(self.pid)
            if self.code is None:
                if time.monotonic() >= until:
                    break
                time.sleep(0.01)
        return self.code

    def kill(self) -> None:
        """With everything it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(10)

    def said(self) -> str:
        return self.log.read_text(errors="replace")


# In the process itself


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run the program. It ends this process, as Python itself would. `files`: from stdin on."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # tests that are killed leave none
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if role := request.get("role"):
        (ctypes.c_char * 16).in_dll(ctypes.CDLL(None), "faults_role").value = role.encode()
    if environment := request.get("environment"):
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
    if place := request.get("cwd"):
        os.chdir(place)
        sys.path[0] = place
    sys.argv = request["argv"]
    module = sys.argv[0]
    if module != "hubbub":
        sys.modules.pop(module, None)  # else a warning that it is there already
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _open(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def main(imported: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for whoever made us
    for name in imported:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the last look of each at what all have imported was most of what it cost
    for line in sys.stdin:
        request = json.loads(line)
        answer = None
        if "pid" in request:
            answer = _ended(request["pid"])
        elif "argv" in request:
            files = [os.open(request.get("stdin", os.devnull), os.O_RDONLY)]
            files += [_open(file) for file in request["files"]]
            answer = os.fork()
            if not answer:
                return _become(request, files)
            for file in files:
                os.close(file)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
