"""SCRAM-SHA-256 as MQTT 5 carries it: CONNECT, AUTH and CONNACK over a real socket (4.12)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Settings
from hubbub.core.rights import PUBLISH
from hubbub.embed.hub import Hub
from hubbub.embed.peer import Peer
from hubbub.runtime.node import Node

METHOD, DATA = 0x15, 0x16


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    users = tmp_path / "users"
    users.write_text("old:$6$eA==$" + "A" * 86 + "==\n")
    add_user(users, "ann", b"pencil")
    (tmp_path / "acl").write_text("user ann\ntopic a\n")
    files = {"password_file": str(users), "acl_file": str(tmp_path / "acl")}
    settings = Settings(listen=("127.0.0.1:0",), journal=Journal(record="none"), **files)  # type: ignore[arg-type]
    async with Node(settings) as hub:
        yield hub


def text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def sized(body: bytes) -> bytes:
    """A body of less than 16 KiB behind its variable length."""
    size = len(body)
    return (bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))) + body


def packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + sized(body)


def properties(data: bytes, method: bytes = b"SCRAM-SHA-256") -> bytes:
    return sized(bytes((METHOD,)) + text(method) + bytes((DATA,)) + text(data))


def connect(first: bytes, method: bytes = b"SCRAM-SHA-256") -> bytes:
    return packet(
        0x10, text(b"MQTT") + b"\x05\x02\x00\x3c" + properties(first, method) + text(b"c")
    )


class Device:
    """Speaks the client's side of both: MQTT's packets and SCRAM's arithmetic."""

    def __init__(self, hub: Node) -> None:
        self.address = hub.listeners[0].address

    async def dial(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(
            self.address.host, self.address.port
        )

    async def ask(self, data: bytes) -> bytes:
        """The whole packet that answers, b"" if the hub closed."""
        self.writer.write(data)
        head = await asyncio.wait_for(self.reader.read(1), 10)
        if not head:
            return b""
        size = shift = 0
        while True:
            digit = (await self.reader.readexactly(1))[0]
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return head + await self.reader.readexactly(size)

    def data_of(self, answer: bytes) -> bytes:
        """The authentication data in an AUTH or CONNACK."""
        at = answer.index(bytes((DATA,)) + b"\0", answer.index(b"SCRAM-SHA-256") + 13) + 1
        size = int.from_bytes(answer[at : at + 2], "big")
        return answer[at + 2 : at + 2 + size]

    def final(self, bare: bytes, answer: bytes, password: bytes) -> tuple[bytes, bytes]:
        """The last message, and what the hub has to prove itself with."""
        found = dict(part.split(b"=", 1) for part in answer.split(b","))
        salt, rounds = base64.b64decode(found[b"s"]), int(found[b"i"])
        salted = hashlib.pbkdf2_hmac("sha256", password, salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = b"c=biws,r=" + found[b"r"]
        messages = b",".join((bare, answer, without))
        signature = hmac.digest(hashlib.sha256(key).digest(), messages, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), messages, "sha256")
        return without + b",p=" + base64.b64encode(proof), b"v=" + base64.b64encode(server)


BARE = b"n=ann,r=nonce"


async def test_in_three_packets(hub: Node) -> None:
    device = Device(hub)
    await device.dial()
    auth = await device.ask(connect(b"n,," + BARE))
    assert auth[:2] == b"\xf0\x18", "AUTH, continue"
    final, proof = device.final(BARE, device.data_of(auth), b"pencil")
    connack = await device.ask(packet(0xF0, b"\x18" + properties(final)))
    assert connack[:3] == b"\x20\x00\x00"
    assert device.data_of(connack) == proof
    (session,) = hub.broker.clients.values()
    assert session.rights.may(PUBLISH, "a") and not session.rights.may(PUBLISH, "b")


@pytest.mark.parametrize(("user", "password"), [(b"ann", b"crayon"), (b"bob", b"pencil")])
async def test_a_wrong_proof(hub: Node, user: bytes, password: bytes) -> None:
    device = Device(hub)
    await device.dial()
    bare = b"n=" + user + b",r=nonce"
    auth = await device.ask(connect(b"n,," + bare))
    final, _ = device.final(bare, device.data_of(auth), password)
    refusal = await device.ask(packet(0xF0, b"\x18" + properties(final)))
    assert refusal[:1] == b"\x20" and refusal[2] in (0x86, 0x87)
    assert await device.ask(b"") == b"" and not hub.broker.clients


@pytest.mark.parametrize("user", [b"old", b"nobody"])
async def test_an_account_without_a_verifier_looks_like_none_and_is_logged(
    hub: Node, user: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(hub)
    await device.dial()
    with caplog.at_level("INFO"):
        auth = await device.ask(connect(b"n,,n=" + user + b",r=nonce"))
    assert auth[:1] == b"\xf0"
    assert ("old has no verifier" in caplog.text) is (user == b"old")


async def test_a_method_that_is_not_known(hub: Node) -> None:
    device = Device(hub)
    await device.dial()
    refusal = await device.ask(connect(b"x", b"PLAIN"))
    assert refusal[:1] == b"\x20" and refusal[2] == 0x8C


async def test_who_logs_in_again_is_the_same_peer(tmp_path: Path) -> None:
    """What the program is asked with its new rights is asked about the peer that it knows."""
    add_user(tmp_path / "users", "ann", b"pencil")
    settings = Settings(
        listen=("127.0.0.1:0",), password_file=str(tmp_path / "users"),
        journal=Journal(record="none"),
    )  # fmt: skip
    asked: list[tuple[str, Peer]] = []

    def permit(topic: str, issub: bool, peer: Peer) -> bool:
        asked.append((topic, peer))
        return True

    async with Hub(settings, permittop=permit) as hub:
        device = Device(hub.node)
        await device.dial()
        for begin, topic in ((connect(b"n,," + BARE), b"a"), (None, b"b")):
            again = packet(0xF0, b"\x19" + properties(b"n,," + BARE))
            auth = await device.ask(begin or again)
            final, _ = device.final(BARE, device.data_of(auth), b"pencil")
            await device.ask(packet(0xF0, b"\x18" + properties(final)))
            await device.ask(packet(0x82, b"\x00\x01\x00" + text(topic) + b"\x00"))
    (first, before), (second, after) = asked
    assert (first, second) == ("a", "b") and after is before
    assert after.tid and after.info is not None and after.info.user == "ann"
