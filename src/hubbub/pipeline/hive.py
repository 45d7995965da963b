"""A Hive metastore that is not waited for without end: pyiceberg's own sockets have no timeout.

Called by `catalog`, wherever a catalog is of that type. Loads Thrift, which may not be there, only
then.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_hive

SECONDS: Final = 10.0  # for a connection, and for each silence in an answer


def load(name: str, settings: dict[str, str]) -> Catalog:
    """pyiceberg's catalog, which says what to install if Thrift is not there."""
    with suppress(ImportError):
        _bound()
    return load_hive(name, settings)


def _bound() -> None:
    """Let pyiceberg make sockets with a timeout, and nobody else who has Thrift."""
    hive: Any = import_module("pyiceberg.catalog.hive")
    plain = import_module("thrift.transport.TSocket").TSocket

    def bounded(*given: Any, **named: Any) -> Any:
        made = plain(*given, **named)
        made.setTimeout(SECONDS * 1000)
        return made

    hive.TSocket = SimpleNamespace(TSocket=bounded)
