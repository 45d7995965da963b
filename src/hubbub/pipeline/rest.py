"""An Iceberg REST catalog that is not waited for without end: pyiceberg's own has no timeout.

Made by `catalog`, wherever a catalog is of that type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog

SECONDS: Final = 10.0  # for a connection, and for each silence in an answer


class Rest(RestCatalog):
    """pyiceberg's, whose session asks with a timeout whatever it is that asks."""

    def _create_session(self) -> Any:
        session: Any = super()._create_session()
        for adapter in session.adapters.values():
            adapter.send = _bounded(adapter.send)
        return session


def _bounded(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def sends(*given: Any, **named: Any) -> Any:
        return send(*given, **{**named, "timeout": SECONDS})

    return sends
