"""The daemon as the JVM starts it, with a JVM that goes away. Starts no Spark."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hubbub.spark.start import PLANNER

PRINTED = {"pyspark.daemon": True, "hubbub.spark.daemon": False, "hubbub.pipeline.daemon": False}


@pytest.mark.parametrize("module", PRINTED)
def test_a_jvm_that_closes_early_is_no_error(module: str) -> None:
    """PySpark's own prints a stack; once it no longer does, ours has no reason to be."""
    with tempfile.TemporaryDirectory() as folder:  # short: a socket's name has 107 characters
        said = what_is_said(module, folder)
    assert ("BrokenPipeError" in said) is PRINTED[module], said


NEEDED = {"hubbub.spark.daemon": "pyarrow/lib.", "hubbub.pipeline.daemon": "pyarrow/_parquet."}


@pytest.mark.parametrize("module", NEEDED)
def test_a_worker_that_is_forked_has_loaded_already_what_it_needs(module: str) -> None:
    loaded: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        what_is_said(module, folder, loaded)
    assert NEEDED[module] in loaded[0]


@pytest.mark.parametrize("module", NEEDED)
def test_no_worker_looks_for_garbage_in_what_all_have_imported(module: str) -> None:
    """PySpark's lets each look for some after each task."""
    code = (
        "import gc, runpy, sys\n"
        "from pyspark import daemon\n"
        "daemon.manager = lambda: print(gc.get_freeze_count())\n"
        "runpy.run_module(sys.argv.pop(1), run_name='__main__')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, module, "pyspark.worker"], capture_output=True, text=True
    )
    assert int(ran.stdout) > 10_000, ran.stderr


@pytest.mark.parametrize("module", NEEDED)
def test_workers_are_forked_where_that_cannot_be_loaded(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that is plain Python runs without it, and who needs it says what lacks."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with tempfile.TemporaryDirectory() as folder:
        assert "none here" not in what_is_said(module, folder)


def test_workers_of_the_pipeline_have_no_pandas() -> None:
    """Arrow takes that as it comes, and all that they import is there without."""
    code = (
        "import sys\n"
        "from hubbub.pipeline.daemon import Without\n"
        "sys.meta_path.insert(0, Without())\n"
        "import pyspark.worker, hubbub.pipeline.task, pyarrow\n"
        "assert pyarrow.array([1, None]).null_count == 1\n"
        "assert 'pandas' not in sys.modules\n"
        "try:\n"
        "    import pandas\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("workers of the pipeline have no pandas\n", "")


@pytest.mark.parametrize("error", ["EOFError", "ValueError"])
def test_who_plans_a_stream_ends_without_a_stack_when_java_is_gone(error: str) -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from hubbub.spark.daemon import PLANNER, silence_this\n"
        "sys.modules['__main__'].__spec__ = SimpleNamespace(name=PLANNER)\n"
        "silence_this()\n"
        f"raise {error}\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1 and (error in ran.stderr) is (error == "ValueError")



def test_who_plans_a_stream_that_is_stopped_meanwhile_ends_without_a_stack(tmp_path: Path) -> None:
    """PySpark's own prints one; once it no longer does, ours has no reason to be."""
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_PATH": str(tmp_path / "nobody.sock"),
    }
    said = {}
    for module in (PLANNER, "hubbub.spark.planner"):
        command = [sys.executable, "-m", module]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 1
        said[module] = ran.stderr
    assert "nobody.sock" in said[PLANNER]
    assert said["hubbub.spark.planner"] == ""


@pytest.mark.parametrize("error", ["BrokenPipeError", "ValueError"])
def test_a_worker_that_reads_in_a_session_of_sparks_own_ends_without_a_stack(error: str) -> None:
    """It was called by Spark's daemon before the data source was loaded there."""
    code = (
        "import sys, traceback\n"
        "from types import SimpleNamespace\n"
        "from pyspark.daemon import worker\n"
        "from hubbub.spark.daemon import silence_this\n"
        "sys.modules['__main__'].__spec__ = SimpleNamespace(name='pyspark.daemon')\n"
        "silence_this()\n"
        "try:\n"
        f"    raise {error}\n"
        "except BaseException:\n"
        "    traceback.print_exc()\n"
        "assert traceback.format_exc()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and (error in ran.stderr) is (error == "ValueError"), ran.stderr


def what_is_said(module: str, folder: str, loaded: list[str] | None = None) -> str:
    """By its worker; `loaded`: a list to which goes what of files that has in its memory."""
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    running = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdin is not None and running.stdout is not None
    size = int.from_bytes(running.stdout.read(4), "big")
    address = running.stdout.read(size).decode()
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.connect(address)
        worker = int.from_bytes(jvm.recv(4), "big")
        assert worker > 0
        if loaded is not None:
            loaded.append(Path(f"/proc/{worker}/maps").read_text())
    wait_for_end_of(worker)
    running.stdin.close()  # what the JVM does when it ends
    said = running.stderr.read().decode() if running.stderr is not None else ""
    running.wait(timeout=30)
    running.stdout.close()
    return said


def wait_for_end_of(process: int) -> None:
    """It is no child of ours; its end closes the handle."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([handle], [], [], 60)
        assert ended, "the worker of a connection that was closed still runs"
    finally:
        os.close(handle)
