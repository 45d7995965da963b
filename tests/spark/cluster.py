"""A standalone cluster of Spark on the loopback, that of the PySpark package.

For tests and benchmarks. Drivers are whoever names `Cluster.master`; executors are started by the
workers. Whoever makes a Cluster stops it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyspark

from hubbub.spark import start
from tests.process import ROOT

HOME: Final = Path(pyspark.__file__).parent
STARTUP: Final = Path(__file__).with_name("startup")
PYTHONPATH: Final = f"{STARTUP}:{ROOT / 'src'}"
PATIENCE: Final = 200.0  # seconds, on a machine that may be busy


def environment() -> dict[str, str]:
    """For Spark's own scripts, which know nothing of `hubbub.spark.session`."""
    home = start._shim(start.java())
    return {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(start._python(home)),  # else each compiles PySpark anew
        "PYTHONPATH": PYTHONPATH,
    }


class Cluster:
    """A master and two workers of one core; `spark-class` runs each in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = environment()
        self.running: list[subprocess.Popen[bytes]] = []
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        self.master = self._said("master", r"spark://127\.0\.0\.1:\d+")
        for name in ("one", "two"):
            self._start(
                name, "worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / name), self.master,
            )  # fmt: skip
        for name in ("one", "two"):
            self._said(name, "Successfully registered")

    def _start(self, name: str, what: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.running.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *arguments],
                    env=self.environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            )

    def _said(self, name: str, pattern: str) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(pattern, (self.folder / f"{name}.log").read_text())
            return bool(found)

        wait(look, f"{name} did not say {pattern}")
        return found[0]

    def executors(self) -> list[int]:
        """The processes that run tasks: they work in the folders of the workers."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command, where = (place / "cmdline").read_bytes(), (place / "cwd").readlink()
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in command and where.is_relative_to(self.folder):
                found.append(int(place.name))
        return found

    def stop(self) -> None:
        for process in reversed(self.running):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait(until: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end, complaint
        time.sleep(0.1)
