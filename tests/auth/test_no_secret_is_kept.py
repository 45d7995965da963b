"""Whatever the protocol: no password and no token stays anywhere after a login, right or wrong.

Not in the journal, nor in a line of the log at its most talkative, nor in what the hub says of
itself, nor in the tables in which it remembers what requests meant.
"""

from __future__ import annotations

import base64
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.identity import Jwt
from hubbub.config.settings import Api, Journal, Settings
from hubbub.core.gate import Credentials
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from hubbub.wire import http
from tests.auth.test_every_door import SMQ, Peer, basic, connect, request, smq_connect
from tests.auth.test_token_logins import bearer, connect5
from tests.auth.tokens import signed, write

RIGHT, WRONG, API = b"correct-horse-battery", b"wrong-horse-staple", b"token-of-the-api"


async def try_every_door(hub: Node, secret: bytes, tokens: list[bytes]) -> None:
    shown = [basic(b"ann", secret), bearer(b"ann." + secret), *map(bearer, tokens)]
    for number, header in enumerate(shown * 2):
        peer = await Peer.dial(hub)
        for target in (b"/login/t%d" % number, b"/create/q", b"/publish/q"):
            await peer.ask(request(target, header), 15)
        for target in (b"/api/v1/status", b"/", b"/api/v1/journal"):
            await (await Peer.dial(hub)).ask(request(target, header), 15)
    for level in (4, 5):
        await (await Peer.dial(hub)).ask(connect(b"ann", secret, level=level), 4)
    for credentials in (b"ann:" + secret, *(one for one in tokens if len(one) < 256)):
        peer = await Peer.dial(hub)
        await peer.ask(SMQ, 3)
        await peer.ask(smq_connect(credentials), 3)
    for token in tokens:
        await (await Peer.dial(hub)).ask(connect5(b"", token), 4)


async def test_of_every_protocol(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = write(tmp_path / "jwks.json", "EdDSA", "RS256")
    add_user(tmp_path / "users", "ann", RIGHT)
    tokens = [signed("EdDSA"), signed("RS256"), signed("EdDSA", exp=1_000_000), signed("HS256")]
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"), journal=Journal(record="all"),
        password_file=str(tmp_path / "users"), jwt=Jwt(keys=keys, algorithms=("EdDSA", "RS256")),
    )  # fmt: skip
    hub = Node(settings)
    hub.web = Application(hub)
    async with hub:
        for secret in (RIGHT, WRONG):
            await try_every_door(hub, secret, tokens)
        assert hub.broker.metrics.clients >= 8, "some came in"
        refusals = hub.broker.audit.refusals.last(None, None)
        assert len(refusals) > 8, "and some did not"
        said = repr((await hub.status(), refusals))
        known = repr(http._KNOWN)
    secrets = [RIGHT, WRONG, *(base64.b64encode(b"ann:" + one) for one in (RIGHT, WRONG)), *tokens]
    files = [one for one in (tmp_path / "data").rglob("*") if one.is_file()]
    assert len(files) > 4
    for secret in (*secrets[:4], *(one.rpartition(b".")[2] for one in tokens)):
        for file in files:
            assert secret not in file.read_bytes(), file
        for text in (caplog.text, said, known):
            assert secret.decode() not in text


async def test_of_the_api(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"), api=Api(token=API.decode())
    )
    hub = Node(settings)
    hub.web = Application(hub)
    async with hub:
        for token in (API, WRONG):
            peer = await Peer.dial(hub)
            answer = await peer.ask(request(b"/api/v1/status", bearer(token)), 15)
            assert answer.startswith(b"HTTP/1.1 " + (b"200" if token is API else b"401"))
        refusals = hub.broker.audit.refusals.last(None, None)
        assert WRONG.decode() not in repr((await hub.status(), refusals))
    for text in (caplog.text, repr(http._KNOWN)):
        assert API.decode() not in text and WRONG.decode() not in text


async def test_nothing_in_memory_but_the_mark_of_what_was_right(tmp_path: Path) -> None:
    """Once the answer is there a secret's bytes are nobody's: credentials forget them."""
    add_user(tmp_path / "users", "ann", RIGHT)
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"),
        password_file=str(tmp_path / "users"),
    )  # fmt: skip
    async with Node(settings) as hub:
        peer = await Peer.dial(hub)
        assert await peer.ask(connect(b"ann", RIGHT), 4) == b"\x20\x02\x00\x00"
        gc.collect()
        kept: list[Any] = [one for one in gc.get_objects() if isinstance(one, Credentials)]
        opening: Any = next(iter(hub.broker.clients.values())).opening
        kept.append(opening.credentials)
        assert all(one.secret == b"" for one in kept) and opening.credentials.user == "ann"
