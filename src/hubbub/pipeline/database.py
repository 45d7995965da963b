"""A database behind JDBC: its connection with timeouts, and what its errors say.

A table that somebody locks, a network that takes packets and gives none back: none of it may hold
the tables for long. Called by `jdbc`. Knows no tables of the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.masked import masked
from hubbub.spark.start import java_class

Run = Callable[[str], Any]  # SQL, and its rows if it has any

DRIVER: Final = "org.postgresql.Driver"
CONNECT_SECONDS: Final = 10
LOCK_SECONDS: Final = 10  # for whoever else has the table
SILENT_SECONDS: Final = 60  # that a statement may take before the database counts as hanging,
SECONDS_A_MIB: Final = 10  # and so many more for what it is given: a slow disk with its index
_MIB: Final = 1 << 20

# Of SQLSTATE, the classes that blame a row: data, a constraint, a limit (of an index), a trigger.
_OF_ROWS: Final = ("22", "23", "54", "P0")
_ADVICE: Final = {
    "42804": "the table has another type there: drop or rename it there, it is made again with all "
    "rows",
    "42P10": "the table there needs a primary key or unique index of the sink's key",
    "55P03": f"somebody has locked the table for more than {LOCK_SECONDS} s",
    "57014": "it took too long and was cancelled",
}


class Database(NamedTuple):
    """Where it is, and as whom. `spark`: the session at work, whose JVM has the driver."""

    url: str
    user: str
    secret: str
    spark: Callable[[], SparkSession]

    def properties(self, size: int = 0) -> dict[str, str]:
        """Of a connection that moves so many bytes. What the URL says comes first."""
        return {
            "driver": DRIVER,
            "user": self.user,
            "password": self.secret,
            "connectTimeout": str(CONNECT_SECONDS),
            "loginTimeout": str(CONNECT_SECONDS),  # there may be somebody who says nothing
            "socketTimeout": str(_seconds(size) + LOCK_SECONDS),  # the server says it first
            "tcpKeepAlive": "true",
        }

    @contextmanager
    def connected(self, size: int = 0) -> Iterator[Run]:
        """Runs SQL in one transaction, which ends with the block."""
        spark = self.spark()
        given = java_class(spark, "java.util.Properties")()
        for name, value in self.properties(size).items():
            given.setProperty(name, value)
        # Not by DriverManager, which knows no jars that Spark was given later.
        kind = java_class(spark, "org.apache.spark.util.Utils").classForName(DRIVER, True, False)
        connection = kind.getDeclaredConstructor(None).newInstance(None).connect(self.url, given)
        if connection is None:
            raise DirectoryError(masked(f"PostgreSQL's driver cannot read the url {self.url}"))
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()

            def run(sql: str) -> Any:
                return statement.getResultSet() if statement.execute(sql) else None

            run(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            run(f"SET statement_timeout = '{_seconds(size)}s'")
            run("SET CONSTRAINTS ALL IMMEDIATE")  # deferred they blame no row, but the commit
            yield run
            connection.commit()
        finally:
            connection.close()


def _seconds(size: int) -> int:
    return SILENT_SECONDS + SECONDS_A_MIB * size // _MIB


def secret_in(file: str) -> str:
    """The password in a file. Raises SettingError if it cannot be read."""
    try:
        return Path(file).read_text().strip() if file else ""
    except OSError as error:
        raise SettingError(f"cannot read the password file {file}: {error.strerror}") from error


def of_a_row(error: Py4JJavaError) -> bool:
    """Whether the database refuses a row, which another one may not share."""
    return _state(error).startswith(_OF_ROWS)


def _state(error: Exception) -> str:
    """Its SQLSTATE, "" if it has none."""
    java = getattr(error, "java_exception", None)
    while java is not None:
        if java.getClass().getName().endswith("SQLException"):
            return str(java.getSQLState() or "")
        java = java.getCause()
    return ""


def _told(error: Exception) -> str:
    """All that it says: Spark's own errors hide those of the database in their cause."""
    cause = getattr(error, "_cause", None)
    return "\n".join((str(error), *([_told(cause)] if cause is not None else [])))


def said(error: Exception) -> str:
    """What the database said, without Java's stack and the name of its class, and what to do."""
    lines = re.findall(r"(?:SQLException|ClassNotFoundException): (.+)", _told(error))
    text = lines[-1] if lines else (str(error).strip().splitlines() or [type(error).__name__])[0]
    if DRIVER in text and "Exception" not in text:
        text = f"{text} is not there: name PostgreSQL's driver with --conf spark.jars=FILE"
    advice = _ADVICE.get(_state(error), "") if isinstance(error, Py4JJavaError) else ""
    return masked(f"{text} ({advice})" if advice else text)
