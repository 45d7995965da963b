"""An Iceberg REST catalog that is not waited for without end: pyiceberg's own has no timeout.

Made by `catalog`, wherever a catalog is of that type.
"""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

SECONDS: Final = 10.0  # for a connection, and for each silence in an answer


class _Bounded(HTTPAdapter):
    def send(self, request: PreparedRequest, *given: Any, **named: Any) -> Response:
        return super().send(request, *given, **{**named, "timeout": SECONDS})


class Rest(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Bounded())
        return session
