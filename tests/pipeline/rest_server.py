"""A small Iceberg REST catalog, a process of its own, since none is to be had that takes `file://`.

    python tests/pipeline/rest_server.py PORT FOLDER [TOKEN]

It speaks what https://iceberg.apache.org/rest-catalog-spec/ says of configuration, namespaces and
tables (create, load, register, commit, drop), with a prefix, a token, and errors in their form.
What is durable lies in a SQL catalog of pyiceberg, so it checks requirements of a commit and writes
metadata as that does: what is tested here is what goes over HTTP, and what a server that is killed,
hangs or refuses does to a pipeline. DuckDB's reader, which shares no code with it, attaches it too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import CreateTableRequest, RegisterTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PREFIX: Final = "own"
_FAILURES: Final[dict[type[Exception], int]] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class Server:
    """The requests, one after the other."""

    def __init__(self, folder: Path, token: str) -> None:
        uri = f"sqlite:///{folder / 'rest.db'}"
        self._catalog = load_catalog("rest", type="sql", uri=uri, warehouse=folder.as_uri())
        self._token = token

    def app(self) -> Starlette:
        one = f"/v1/{PREFIX}/namespaces/{{namespace}}"
        table = f"{one}/tables/{{table}}"
        routes = (
            ("GET", "/v1/config", self.config),
            ("GET", f"/v1/{PREFIX}/namespaces", self.namespaces),
            ("POST", f"/v1/{PREFIX}/namespaces", self.create_namespace),
            ("GET", one, self.namespace),
            ("GET", f"{one}/tables", self.tables),
            ("POST", f"{one}/tables", self.create),
            ("POST", f"{one}/register", self.register),
            ("GET", table, self.load),
            ("POST", table, self.commit),
            ("DELETE", table, self.drop),
        )
        return Starlette(
            routes=[Route(path, self._answer(does), methods=[verb]) for verb, path, does in routes]
        )

    def _answer(self, does: Callable[[Request, bytes], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
                return _error(401, "NotAuthorizedException", "the token is not ours")
            try:
                said = does(request, await request.body())
            except tuple(_FAILURES) as error:
                code = _FAILURES[type(error)]
                return _error(code, type(error).__name__, str(error))
            return Response(status_code=204) if said is None else JSONResponse(said)

        return answer

    def config(self, request: Request, body: bytes) -> Any:
        return {"defaults": {}, "overrides": {"prefix": PREFIX}}

    def namespaces(self, request: Request, body: bytes) -> Any:
        if "parent" in request.query_params:
            return {"namespaces": []}
        return {"namespaces": [list(name) for name in self._catalog.list_namespaces()]}

    def create_namespace(self, request: Request, body: bytes) -> Any:
        said = json.loads(body)
        self._catalog.create_namespace(tuple(said["namespace"]), said.get("properties") or {})
        return {"namespace": said["namespace"], "properties": {}}

    def namespace(self, request: Request, body: bytes) -> Any:
        name = request.path_params["namespace"]
        found = self._catalog.load_namespace_properties(name)
        return {"namespace": [name], "properties": found}

    def tables(self, request: Request, body: bytes) -> Any:
        found = self._catalog.list_tables(request.path_params["namespace"])
        return {"identifiers": [{"namespace": [one[0]], "name": one[1]} for one in found]}

    def create(self, request: Request, body: bytes) -> Any:
        said = CreateTableRequest.model_validate_json(body)
        assert said.partition_spec is not None and said.write_order is not None
        return _table(
            self._catalog.create_table(
                (request.path_params["namespace"], said.name), said.table_schema, said.location,
                said.partition_spec, said.write_order, said.properties,
            )
        )  # fmt: skip

    def register(self, request: Request, body: bytes) -> Any:
        said = RegisterTableRequest.model_validate_json(body)
        name = (request.path_params["namespace"], said.name)
        return _table(self._catalog.register_table(name, said.metadata_location))

    def load(self, request: Request, body: bytes) -> Any:
        return _table(self._found(request))

    def commit(self, request: Request, body: bytes) -> Any:
        said = CommitTableRequest.model_validate_json(body)
        done = self._catalog.commit_table(self._found(request), said.requirements, said.updates)
        metadata = done.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"metadata-location": done.metadata_location, "metadata": metadata}

    def drop(self, request: Request, body: bytes) -> Any:
        self._catalog.drop_table(_name(request))

    def _found(self, request: Request) -> Table:
        return self._catalog.load_table(_name(request))


def _name(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["table"]


def _table(table: Table) -> Any:
    metadata = table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(code: int, kind: str, message: str) -> JSONResponse:
    said = {"message": message, "type": kind, "code": code}
    return JSONResponse({"error": said}, code)


if __name__ == "__main__":
    port, place, *rest = sys.argv[1:]
    served = Server(Path(place), *(rest or [""])).app()
    uvicorn.run(served, host="127.0.0.1", port=int(port), log_level="error")
