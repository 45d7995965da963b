"""A signed token lets in by every door, with the rights it says, until its time is over."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from hubbub import Hub
from hubbub.auth.passwords import add_user
from hubbub.config.identity import Jwt
from hubbub.config.settings import Journal, Settings
from hubbub.core.gate import Credentials
from hubbub.core.rights import BAD_CREDENTIALS, PUBLISH, RECEIVE
from hubbub.runtime.expiry import Expiry
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from hubbub.web.publish import SLICE, PublishApi
from tests.auth.test_every_door import (
    SMQ,
    WEBSOCKET,
    Peer,
    basic,
    connect,
    request,
    smq_connect,
    text,
)
from tests.auth.tokens import signed, write
from tests.clients import Mqtt

MAY = ["readwrite #", "readwrite $queue/#", "manage $SYS/#", "read $SYS/#"]


def connect5(user: bytes, secret: bytes) -> bytes:
    """A CONNECT of 5.0 with a long password."""
    body = text(b"MQTT") + bytes((5, 0xC2, 0, 60, 0)) + text(b"c") + text(user) + text(secret)
    return b"\x10" + bytes((len(body) & 127 | 128, len(body) >> 7)) + body


def bearer(secret: bytes) -> bytes:
    return b"Authorization: Bearer " + secret + b"\r\n"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    keys = write(tmp_path / "jwks.json", "EdDSA", "RS256", "HS256")
    add_user(tmp_path / "users", "bob", b"secret")
    hub = Node(
        Settings(
            listen=("127.0.0.1:0",), journal=Journal(record="none"),
            password_file=str(tmp_path / "users"),
            jwt=Jwt(keys=keys, algorithms=("EdDSA", "RS256", "HS256"), acl_claim="acl",
                    leeway_seconds=0.0),
        )
    )  # fmt: skip
    hub.web = Application(hub)
    async with hub:
        yield hub


def users(hub: Node) -> list[str]:
    return [session.user for session in hub.broker.clients.values()]


async def ended(peer: Peer) -> tuple[bytes, float]:
    """What else came until the hub closed, and when that was."""
    rest = await asyncio.wait_for(peer.reader.read(-1), 10)
    return rest, time.time()


@pytest.mark.slow
async def test_mqtt_until_it_expires(hub: Node) -> None:
    for algorithm in ("EdDSA", "RS256", "HS256"):
        until = int(time.time()) + 2
        peer = await Peer.dial(hub)
        answer = await peer.ask(connect5(b"", signed(algorithm, exp=until, acl=MAY)), 4)
        assert answer[0] == 0x20 and answer[3] == 0 and users(hub) == ["ann"]
        rest, when = await ended(peer)
        assert rest[:1] == b"\xe0" and rest[2] == 0x87 and b"its token has expired" in rest
        assert until <= when < until + 1.5 and not users(hub)


async def test_mqtt_over_a_websocket(hub: Node) -> None:
    token = signed("HS256", acl=[])
    peer = await Peer.dial(hub)
    await peer.ask(request(b"/mqtt", WEBSOCKET), 60)
    body = text(b"MQTT") + bytes((4, 0xC2, 0, 60)) + text(b"c") + text(b"ann") + text(token)
    packet = b"\x10" + bytes((len(body) & 127 | 128, len(body) >> 7)) + body
    answer = await peer.ask(b"\x82\xfe" + len(packet).to_bytes(2, "big") + bytes(4) + packet, 6)
    assert answer[2:] == b"\x20\x02\x00\x00" and users(hub) == ["ann"]


async def test_smq_until_it_expires(hub: Node) -> None:
    """255 bytes hold a token of EdDSA or HS256, if it says little."""
    until = int(time.time()) + 2
    token = signed("EdDSA", exp=until, acl=["read a"])
    assert len(token) <= 255
    peer = await Peer.dial(hub)
    await peer.ask(SMQ, 3)
    answer = await peer.ask(smq_connect(token), 3)
    assert answer[2:4] == b"\x03\x00" and users(hub) == ["ann"]
    _, when = await ended(peer)
    assert until <= when < until + 1.5 and not users(hub)


async def test_smq_with_a_long_token_in_its_request(hub: Node) -> None:
    token = signed("RS256", acl=MAY)
    assert len(token) > 255
    peer = await Peer.dial(hub)
    await peer.ask(SMQ.replace(b"\r\n\r\n", b"\r\n" + bearer(token) + b"\r\n"), 3)
    answer = await peer.ask(smq_connect(b""), 3)
    assert answer[2:4] == b"\x03\x00" and users(hub) == ["ann"]
    peer = await Peer.dial(hub)
    await peer.ask(SMQ.replace(b"\r\n\r\n", b"\r\n" + basic(b"bob", b"secret") + b"\r\n"), 3)
    answer = await peer.ask(smq_connect(b""), 3)
    assert answer[2:4] == b"\x03\x03", "a browser sends Basic by itself"


async def test_message_switch_until_it_expires(hub: Node) -> None:
    until = int(time.time()) + 2
    token = signed("EdDSA", exp=until, acl=MAY)
    peer = await Peer.dial(hub)
    assert (await peer.ask(request(b"/login/tok", bearer(token)), 15))[9:12] == b"200"
    for more in (b"", bearer(token)):
        answer = await peer.ask(request(b"/create/q1", more), 15)
        assert answer[9:12] == b"200", answer
    answer = await peer.ask(request(b"/create/q2", bearer(signed(sub="eve", acl=MAY))), 15)
    assert answer[9:12] == b"403"
    assert "ann" in users(hub)
    _, when = await ended(peer)
    assert until <= when < until + 1.5 and "ann" not in users(hub)


async def test_the_api_asks_with_each_request(hub: Node) -> None:
    until = int(time.time()) + 2
    token = signed("RS256", exp=until, acl=MAY)
    peer = await Peer.dial(hub)
    answer = await peer.ask(request(b"/api/v1/status", bearer(token)), 200)
    assert answer.startswith(b"HTTP/1.1 200")
    await asyncio.sleep(max(0.0, until - time.time()) + 0.1)
    again = await (await Peer.dial(hub)).ask(request(b"/api/v1/status", bearer(token)), 100)
    assert again.startswith(b"HTTP/1.1 401") and b"has expired" in again
    few = signed("EdDSA", acl=["read a/#"])
    answer = await (await Peer.dial(hub)).ask(request(b"/api/v1/status", bearer(few)), 100)
    assert answer.startswith(b"HTTP/1.1 403") and b"user 'ann'" in answer


def upload(secret: bytes) -> bytes:
    """The head of one that comes in chunks."""
    head = b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    return head + bearer(secret) + b"\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def timers() -> int:
    return sum(isinstance(one, Expiry) for one in gc.get_objects())


@pytest.mark.parametrize("end", [b"0\r\n\r\n", chunk(b"\n")])
async def test_an_upload_until_it_expires(hub: Node, end: bytes) -> None:
    """Also one that comes byte by byte for ever."""
    before = timers()
    peer, token = await Peer.dial(hub), signed("EdDSA", exp=int(time.time()) + 2, acl=MAY)
    peer.writer.write(upload(token) + chunk(b'{"topic": "late", "retain": true, "payload": "x"}\n'))
    await asyncio.sleep(0.1)
    assert timers() == before, "who has one of its own is a connection, not a request"
    await asyncio.sleep(2)
    answer = await peer.ask(end, 200)
    assert answer.startswith(b"HTTP/1.1 401") and b"have expired" in answer
    assert "late" not in hub.broker.state.retained


async def test_an_upload_ends_with_its_key(hub: Node, tmp_path: Path) -> None:
    token = signed("RS256", acl=MAY)
    peer = await Peer.dial(hub)
    peer.writer.write(upload(token) + chunk(b'{"topic": "late", "retain": true, "payload": "x"}\n'))
    await asyncio.sleep(0.1)
    write(tmp_path / "jwks.json", "EdDSA", "HS256")
    hub.read_credentials()
    answer = await peer.ask(b"0\r\n\r\n", 200)
    assert answer.startswith(b"HTTP/1.1 401") and b"changed" in answer


async def test_an_upload_ends_between_its_slices(
    hub: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, done = PublishApi._publish, []

    def once(self: PublishApi, *args: Any) -> tuple[int, Response | None]:
        done.append(publish(self, *args))
        write(tmp_path / "jwks.json", "EdDSA", "HS256")
        hub.read_credentials()
        return done[-1]

    monkeypatch.setattr(PublishApi, "_publish", once)
    lines = b'{"topic": "late"}\n' * (2 * SLICE)
    peer = await Peer.dial(hub)
    answer = await peer.ask(upload(signed("RS256", acl=MAY)) + chunk(lines) + b"0\r\n\r\n", 200)
    assert answer.startswith(b"HTTP/1.1 401")
    [(count, refusal)] = done  # as many as a turn has time for
    assert 0 < count <= SLICE and refusal is None


async def test_what_it_says_is_what_its_user_may(hub: Node) -> None:
    token = signed(acl=["readwrite a/#", "deny a/safe"])
    peer = await Peer.dial(hub)
    await peer.ask(connect5(b"ann", token), 4)
    (session,) = hub.broker.clients.values()
    asked = [("a/b", True), ("a/safe", False), ("b", False)]
    for name, allowed in asked:
        assert session.rights.may(PUBLISH, name) is session.rights.may(RECEIVE, name) is allowed
    assert session.rights.decided_by(PUBLISH, "a/safe") == "the token (deny a/safe)"
    again = await Peer.dial(hub)
    await again.ask(connect5(b"ann", signed(acl=["readwrite a/#", "deny a/safe"])), 4)
    other = next(iter(hub.broker.clients.values()))
    assert other.rights is session.rights, "equal tokens share what is known of routes"


async def test_passwords_go_on_beside_tokens(hub: Node) -> None:
    peer = await Peer.dial(hub)
    assert await peer.ask(connect(b"bob", b"secret"), 4) == b"\x20\x02\x00\x00"
    assert (await (await Peer.dial(hub)).ask(connect(b"bob", b"wrong"), 4))[3] in (4, 5)
    (session,) = hub.broker.clients.values()
    assert not session.rights.may(PUBLISH, "a"), "no file says what bob may, and no token"


async def test_bad_tokens_say_why(hub: Node, caplog: pytest.LogCaptureFixture) -> None:
    bad = {
        b"eyJhbGciOiJub25lIn0.e30.": "its algorithm 'none' is not taken here",
        signed(exp=1_000_000, acl=[]): "the token of 'ann' has expired",
        signed(acl=[])[:-6] + b"AAAAAA": "its signature is wrong",
        signed(): "its claim 'acl' is no list of lines",
        signed(sub="eve", acl=[]): "the token is for another user, 'eve'",
    }
    for token, reason in bad.items():
        answer = await (await Peer.dial(hub)).ask(connect5(b"ann", token), 99)
        assert answer[0] == 0x20 and answer[3] == 0x86 and reason.encode() in answer
        (last, *_) = hub.broker.audit.refusals.last("ann", "c")
        assert last.text.endswith(f"was not let in: {reason}")
        assert token.decode() not in caplog.text
    assert "Traceback" not in caplog.text and not users(hub)


async def test_forged_tokens_count_as_guesses(hub: Node) -> None:
    forged = signed(acl=[])[:-6] + b"AAAAAA"
    words = b""
    for _ in range(12):
        words = await (await Peer.dial(hub)).ask(connect5(b"ann", forged), 99)
    assert words[3] == 0x89, "busy: too many guesses"
    old = signed(exp=1_000_000, sub="old", acl=[])
    for _ in range(12):
        words = await (await Peer.dial(hub)).ask(connect5(b"old", old), 99)
    assert words[3] == 0x86, "a device whose token expired is no guesser"


async def test_forged_tokens_keep_no_right_one_out(hub: Node) -> None:
    """All of them may come from one address, and with no user name: a signature is no guess."""
    forged, right = signed(acl=[])[:-6] + b"AAAAAA", signed(acl=MAY)
    for user in (b"", b"ann"):
        for _ in range(60):
            await (await Peer.dial(hub)).ask(connect5(user, forged), 99)
        peer = await Peer.dial(hub)
        assert (await peer.ask(connect5(user, right), 4))[3] == 0
    answer = await (await Peer.dial(hub)).ask(request(b"/api/v1/status", bearer(right)), 200)
    assert answer.startswith(b"HTTP/1.1 200")


async def test_keys_that_were_taken_away_end_connections(hub: Node, tmp_path: Path) -> None:
    mine, other = await Peer.dial(hub), await Peer.dial(hub)
    await mine.ask(connect5(b"", signed("EdDSA", acl=[])), 4)
    token = signed("RS256", acl=[], sub="eve")
    await other.ask(connect5(b"", token).replace(b"\0\1c", b"\0\1d"), 4)
    assert sorted(users(hub)) == ["ann", "eve"]
    write(tmp_path / "jwks.json", "EdDSA", "HS256")
    hub.read_credentials()
    rest, _ = await ended(other)
    assert rest[2] == 0x87 and users(hub) == ["ann"]


async def test_a_token_alone_identifies(tmp_path: Path) -> None:
    """Where there are tokens and no passwords, a user name without one proves nothing."""
    keys = write(tmp_path / "jwks.json", "EdDSA")
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"), allow_anonymous=True,
        jwt=Jwt(keys=keys),
    )  # fmt: skip
    async with Node(settings) as hub:
        assert (await (await Peer.dial(hub)).ask(connect(b"ann", b"x"), 4))[3] in (4, 5)
        assert (await (await Peer.dial(hub)).ask(connect(b"ann"), 4))[3] in (4, 5)
        assert (await (await Peer.dial(hub)).ask(connect(), 4))[3] == 0
        gate = hub.listeners[0].gate
        assert gate.rights_of("ann", "c") is not None and gate.rights_of("", "c") is not None


async def test_away_at_a_start_nobody_knows_what_a_token_said(hub: Node) -> None:
    gate = hub.listeners[0].gate
    assert gate.rights_of("ann", "c") is None
    bob = gate.rights_of("bob", "c")
    assert bob is not None and not bob.may(PUBLISH, "a")


async def test_patterns_of_the_file_hold_for_tokens_too(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("user ann\ntopic all/#\npattern write own/%u/%c\n")
    keys = write(tmp_path / "jwks.json", "EdDSA")
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"), acl_file=str(tmp_path / "acl"),
        jwt=Jwt(keys=keys, acl_claim="acl"),
    )  # fmt: skip
    async with Node(settings) as hub:
        gate = hub.listeners[0].gate
        shown = Credentials("c", "", signed(acl=["read a"]), "127.0.0.1")
        found: list[object] = []
        gate.authenticate(shown, lambda rights, reason: found.extend((rights, reason)))
        rights = found[0]
        assert found[1] == "" and shown.user == "ann"
        assert [rights.may(PUBLISH, one) for one in ("own/ann/c", "own/ann/d", "all/x")] == [  # type: ignore[attr-defined]
            True, False, False,
        ]  # fmt: skip
        wrong = Credentials("c", "", b"eyJ.e30.x", "127.0.0.1")
        gate.authenticate(wrong, lambda rights, reason: found.append(reason))
        assert str(found[-1]).startswith(BAD_CREDENTIALS + "\nnot a token")


async def test_paho_with_a_token(tmp_path: Path) -> None:
    keys = write(tmp_path / "jwks.json", "RS256")
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"),
        jwt=Jwt(keys=keys, acl_claim="acl"),
    )  # fmt: skip
    async with Hub(settings) as hub:
        token = signed("RS256", acl=["readwrite a/#"]).decode()
        client = Mqtt(hub, "panel", "ann", token)
        assert await client.open() == 0
        assert await client.subscribe("a/#") == 1 and await client.subscribe("b") == 0x87
        assert await client.publish("a/b", b"hi") == 0 and await client.publish("b", b"x") == 0x87
        async with asyncio.timeout(10):
            assert await client.heard.get() == ("a/b", b"hi")
        client.paho.disconnect()
        client.paho.loop_stop()
