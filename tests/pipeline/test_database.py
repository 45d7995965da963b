"""What a database said, out of what Spark says of it."""

from __future__ import annotations

from hubbub.pipeline.database import said


class Captured(Exception):
    """As PySpark's: what happened is in its cause."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


def test_the_reason_is_said_where_spark_hides_it() -> None:
    reason = "org.postgresql.util.PSQLException: FATAL: the database system is starting up\n\tat x"
    hidden = "[FAILED_JDBC.CONNECTION] Failed JDBC jdbc:postgresql:*********(redacted)"
    assert said(Captured(hidden, Captured(reason))) == "FATAL: the database system is starting up"
    assert said(Captured(hidden)) == hidden
