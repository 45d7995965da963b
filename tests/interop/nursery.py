"""Processes that start in a moment: forked from one in which everything is imported.

    nursery = Nursery(environment)
    child = nursery.start(log, "hubbub", "serve", "--data", …)      as `python -m hubbub serve …`
    child.wait(5.0)                                                 its exit code, None: still there

What is forked runs the program as the real one does, from its arguments on. Run by itself this
module is that one process: a line of JSON in, a line out.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).parents[2]
IMPORTED: Final = (
    "hubbub.server", "hubbub.cli.serve", "hubbub.cli.journal", "hubbub.journal.compact",
    "hubbub.journal.backup", "hubbub.journal.examine", "hubbub.journal.roll",
    "hubbub.protocols.mqtt", "hubbub.protocols.smq", "hubbub.protocols.switch", "hubbub.cli",
)  # fmt: skip


class Nursery:
    """`stop` ends it and what it started."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        self.ask({})  # everything is imported

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, log: Path, module: str, *arguments: str, role: str = "hub") -> Child:
        """Run a module as a program; what it prints goes to `log`."""
        arguments = (module, *arguments)
        log.touch()
        return Child(self, self.ask({"argv": arguments, "log": str(log), "role": role}), log)

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


class Child:
    """A process with all that it starts."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self.pid, self.log = nursery, pid, log
        self.code: int | None = None

    def wait(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while self.code is None:
            self.code = self._nursery.ask({"pid": self.pid})
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


def _become(argv: list[str], log: str, role: str) -> NoReturn:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(out, number)
    (ctypes.c_char * 16).in_dll(ctypes.CDLL(None), "faults_role").value = role.encode()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = argv
    code: Any = 0
    if argv[0] != "hubbub":
        sys.modules.pop(argv[0], None)  # else a warning that it is there already
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _answer(request: dict[str, Any]) -> int | None:
    if "pid" in request:
        return _ended(request["pid"])
    if "argv" not in request:
        return None
    pid = os.fork()
    if not pid:
        _become(request["argv"], request["log"], request["role"])
    return pid


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
