"""Who shows nothing where something must be shown is refused before the application is asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Api, Journal, Listener, Settings
from hubbub.runtime.node import Node
from hubbub.web.app import Application

SAME = (b"content-type", b"www-authenticate", b"content-length")


@asynccontextmanager
async def hub(**more: Any) -> AsyncIterator[Node]:
    place = Listener(address="127.0.0.1:0")
    node = Node(Settings(listen=(), listener=(place,), journal=Journal(record="none"), **more))
    node.web = Application(node)
    async with node, asyncio.timeout(20):
        yield node


async def ask(node: Node, path: str, *headers: str, method: str = "GET") -> bytes:
    """All that comes until the hub closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.listeners[0].address.port)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    said = await reader.read()
    writer.close()
    return said


def parts(said: bytes) -> tuple[bytes, list[list[bytes]], bytes]:
    """The first line, the headers that count, the body."""
    head, _, body = said.partition(b"\r\n\r\n")
    found = [re.findall(rb"(?im)^%b: (.*?)\r?$" % name, head) for name in SAME]
    return head.split(b"\r\n")[0], found, body


@pytest.mark.parametrize("path", ["/metrics", "/metrics?a=b", "/api/v1/status", "/nothing"])
@pytest.mark.parametrize("extra", [(), ("hubbub-csrf: x",)])
@pytest.mark.parametrize("token", ["", "abc"])
async def test_the_words_are_those_of_the_application(
    tmp_path: Path, path: str, extra: tuple[str, ...], token: str
) -> None:
    add_user(tmp_path / "users", "ann", b"secret", scram=False)
    async with hub(password_file=str(tmp_path / "users"), api=Api(token=token)) as node:
        web: Any = node.web
        adopted = web._state.total_requests
        quick = await ask(node, path, *extra)
        assert web._state.total_requests == adopted and b"connection: close" in quick
        whole = await ask(node, path, *extra, "Cookie: a=b", "Connection: close")
        assert web._state.total_requests == adopted + 1
        assert parts(quick) == parts(whole) and quick.startswith(b"HTTP/1.1 401 ")
        first, second = node.broker.audit.refusals.last(None, None)
        assert first.text == second.text


@pytest.mark.parametrize("path", ["/admin/", "/healthz", "/hubbub.js", "/admin/hub.css"])
async def test_what_is_for_everybody_is_not_refused(tmp_path: Path, path: str) -> None:
    add_user(tmp_path / "users", "ann", b"secret", scram=False)
    async with hub(password_file=str(tmp_path / "users")) as node:
        said = await ask(node, path, "Connection: close")
        assert not said.startswith(b"HTTP/1.1 401 ")


async def test_where_nobody_must_log_in_nobody_is_refused() -> None:
    async with hub() as node:
        assert (await ask(node, "/metrics", "Connection: close")).startswith(b"HTTP/1.1 200 ")


async def test_what_is_behind_the_request_is_answered_too(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ann", b"secret", scram=False)
    async with hub(password_file=str(tmp_path / "users")) as node:
        right = "Authorization: Basic YW5uOnNlY3JldA=="
        again = f"\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n{right}\r\nConnection: close"
        said = await ask(node, "/metrics", "X: y" + again)
        assert said.startswith(b"HTTP/1.1 401 ") and said.count(b"HTTP/1.1 200 ") == 1
