"""A catalog in PostgreSQL that is not waited for without end: neither SQLAlchemy nor libpq would.

Who alters or dumps its tables locks them for as long as that takes, and a server that hangs says
nothing at all. Called by `catalog`, wherever a catalog is a SQL database. Loads SQLAlchemy and its
driver, which may not be there, only then.
"""

from __future__ import annotations

import select
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_sql

SECONDS: Final = 10.0  # of silence, in a connection too
# The server ends a statement before that: then the connection can be used again.
_BOUNDS: Final = "-c lock_timeout=4s -c statement_timeout=8s"
_LIBPQ: Final = ("psycopg2", "psycopg")  # drivers that take what libpq takes


def load(name: str, settings: dict[str, str]) -> Catalog:
    """pyiceberg's catalog, with bounds where the database is PostgreSQL."""
    with suppress(ImportError):  # pyiceberg says what to install
        settings = {**settings, "uri": _bounded(settings["uri"])}
    return load_sql(name, settings)


def _bounded(uri: str) -> str:
    """The URL with bounds. What it says itself counts."""
    url: Any = import_module("sqlalchemy.engine").make_url(uri)
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in _LIBPQ:
        return uri
    if url.get_driver_name() == "psycopg2":
        _listen()
    own = str(url.query.get("options", ""))
    said = {"connect_timeout": f"{SECONDS:.0f}", "tcp_user_timeout": f"{SECONDS * 1000:.0f}"}
    query = {**said, **url.query, "options": f"{_BOUNDS} {own}".strip()}
    return str(url.set(query=query).render_as_string(hide_password=False))


def _listen() -> None:
    """Let psycopg2 wait with a limit, which it has none of its own for."""
    extensions: Any = import_module("psycopg2.extensions")
    events = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}
    silent = import_module("psycopg2").OperationalError

    def waits(connection: Any) -> None:
        while (state := connection.poll()) != extensions.POLL_OK:
            asked = select.poll()
            asked.register(connection.fileno(), events[state])
            if not asked.poll(SECONDS * 1000):
                raise silent(f"the database said nothing for {SECONDS:.0f} s")

    extensions.set_wait_callback(waits)
