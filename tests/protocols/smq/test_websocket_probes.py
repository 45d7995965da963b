"""The WebSocket probes of the original hub, sent to ours over a real socket.

`traces/websocket-probes.txt` has what was answered: frames as head and payload. Where the
original closes because its server can do no better, ours goes on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubbub.protocols.smq import codec
from hubbub.runtime.node import Node
from hubbub.wire.websocket import BINARY, CLOSE, PING, PONG, TEXT, frame, masked_frame
from tests.client.smq.here import serving
from tests.protocols.smq.device import HEAD, WEBSOCKET_HEAD

TRACE = (Path(__file__).parent / "traces" / "websocket-probes.txt").read_text("utf-8")
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2].strip()
    for part in re.split(r"^## ", TRACE, flags=re.MULTILINE)[1:]
}


@pytest.fixture
async def hub() -> AsyncIterator[Node]:
    async with serving() as node:
        yield node


class Browser:
    """A WebSocket at the level of its frames; `heard` are (first two bytes, payload)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.etid = 0

    @classmethod
    async def open(cls, hub: Node, uid: bytes = b"browser-1") -> Browser:
        port = hub.listeners[0].address.port
        browser = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
        browser.writer.write(WEBSOCKET_HEAD)
        await browser.reader.readuntil(b"\r\n\r\n")
        head, init = await browser.hear()
        assert head == "820f" and init[:2] == b"\1\1" and init[6:] == b"127.0.0.1"
        if uid:
            browser.say(codec.build_connect(uid))
            head, connack = await browser.hear()
            assert head == "8206" and connack[:2] == b"\3\0"
            browser.etid = int.from_bytes(connack[2:6], "big")
        return browser

    def say(self, message: bytes, opcode: int = BINARY) -> None:
        self.writer.write(masked_frame(message, opcode))

    def publish(self, tid: int, payload: bytes, opcode: int = BINARY) -> None:
        self.say(codec.message(codec.PUBLISH, tid, self.etid, 0, rest=payload), opcode)

    async def hear(self) -> tuple[str, bytes]:
        async with asyncio.timeout(10):
            head = await self.reader.readexactly(2)
            size = head[1]
            if size >= 126:
                more = await self.reader.readexactly(2 if size == 126 else 8)
                head, size = head + more, int.from_bytes(more, "big")
            return head.hex(), await self.reader.readexactly(size)

    async def ends(self) -> list[tuple[str, bytes]]:
        """What comes until the hub closes."""
        heard = []
        async with asyncio.timeout(10):
            while not self.reader.at_eof():
                try:
                    heard.append(await self.hear())
                except asyncio.IncompleteReadError as error:
                    assert not error.partial
        return heard


def expected(title: str) -> list[tuple[str, str]]:
    return re.findall(r"\('([0-9a-f]+)', '([0-9a-f]+)", SECTIONS[title])


async def subscribed(browser: Browser) -> int:
    browser.say(codec.message(codec.SUBSCRIBE, rest=b"wst"))
    head, suback = await browser.hear()
    assert [(head, suback[:2].hex())] == [(h, p[:4]) for h, p in expected("subscribe")]
    return int.from_bytes(suback[2:6], "big")


@pytest.mark.parametrize(
    ("title", "opcode"),
    [("publish own", BINARY), ("text frame opcode 1 instead of binary", TEXT)],
)
async def test_publish_is_heard_in_a_binary_frame(hub: Node, title: str, opcode: int) -> None:
    browser = await Browser.open(hub)
    tid = await subscribed(browser)
    browser.publish(tid, b"abc", opcode)
    head, body = await browser.hear()
    [(head_there, body_there)] = expected(title)
    assert (head, body[:1].hex(), body[9:].hex()) == (head_there, "08", body_there[18:])
    assert codec.numbers_of(codec.PUBLISH, body[1:]) == (tid, browser.etid, 0)
    browser.writer.close()


async def test_pings_of_both_levels_are_answered_and_pongs_are_not(hub: Node) -> None:
    browser = await Browser.open(hub)
    browser.say(b"pp", PING)
    head, pong = await browser.hear()
    assert [(head, pong.hex())] == expected("ws ping frame")
    browser.say(b"pp", PONG)
    browser.say(codec.message(codec.PING))
    head, pong = await browser.hear()
    assert [(head, pong.hex())] == expected("SMQ Ping in binary frame")
    browser.writer.close()


@pytest.mark.parametrize("pieces", [2, 5])
async def test_a_fragmented_message_is_taken(hub: Node, pieces: int) -> None:
    """The original closes with 1003; browsers do not fragment, proxies do."""
    browser = await Browser.open(hub)
    message = codec.message(codec.PUBLISH, browser.etid, browser.etid, 0, rest=b"in parts")
    step = -(-len(message) // pieces)
    parts = [message[at : at + step] for at in range(0, len(message), step)]
    for number, part in enumerate(parts):
        whole = masked_frame(part, BINARY if not number else 0)
        last = number == len(parts) - 1
        browser.writer.write(whole if last else bytes((whole[0] & 0x7F,)) + whole[1:])
    assert (await browser.hear())[1] == message
    browser.writer.close()


@pytest.mark.parametrize("size", [65_000, 70_000])
async def test_a_large_publish_passes_between_websockets(hub: Node, size: int) -> None:
    """The original takes 65,000 bytes and closes at 70,000."""
    browser = await Browser.open(hub)
    browser.publish(browser.etid, b"L" * size)
    head, body = await browser.hear()
    assert body[13:] == b"L" * size
    if size == 65_000:
        assert head == expected("large publish 65000")[0][0]
    browser.writer.close()


@pytest.mark.parametrize(
    ("title", "sent"),
    [
        ("unmasked client frame", frame(codec.message(codec.PING))),
        ("empty binary frame", masked_frame(b"")),
        (
            "PubFrag over websocket -> closed",
            masked_frame(codec.message(codec.PUBFRAG, 1, 1, 0, rest=b"x")),
        ),
        ("ws close frame 1000", masked_frame(b"\x03\xe8", CLOSE)),
        ("SMQ Disconnect over ws", masked_frame(codec.message(codec.DISCONNECT))),
        ("unknown type over ws", masked_frame(b"\xc8")),
    ],
    ids=lambda part: part if isinstance(part, str) else "frame",  # masks are random
)
async def test_what_ends_a_websocket_ends_it_with_the_same_code(
    hub: Node, title: str, sent: bytes
) -> None:
    """The original sometimes closes twice; once is what RFC 6455 asks for."""
    browser = await Browser.open(hub)
    browser.writer.write(sent)
    heard = [(head, body.hex()) for head, body in await browser.ends()]
    assert heard == expected(title)[:1]


async def test_a_refusal_is_said_and_closed(hub: Node) -> None:
    browser = await Browser.open(hub, b"")
    browser.say(b"\x02\x01\x05abcde\0")
    (_, connack), (_, closing) = await browser.ends()
    (_, there), (_, last) = expected("refused uid too short")
    assert connack.hex().startswith(there) and closing.hex() == last


async def raw_device(hub: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    port = hub.listeners[0].address.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(HEAD + codec.framed(codec.build_connect(b"device-1")))
    await reader.readexactly(17)
    connack = await reader.readexactly(8)
    return reader, writer, int.from_bytes(connack[4:8], "big")


async def test_the_largest_raw_frame_reaches_a_websocket_and_back(hub: Node) -> None:
    browser = await Browser.open(hub)
    reader, writer, etid = await raw_device(hub)
    writer.write(
        codec.framed(codec.message(codec.PUBLISH, browser.etid, etid, 0, rest=b"R" * 0xFFF0))
    )
    head, body = await browser.hear()
    assert head == expected("raw publisher -> ws subscriber with 65535-byte raw frame")[0][0]
    assert body[13:] == b"R" * 0xFFF0
    browser.publish(etid, b"R" * 0xFFF0)
    async with asyncio.timeout(10):
        assert len(await reader.readexactly(65_535)) == 65_535
    writer.close()
    browser.writer.close()


async def test_what_a_raw_frame_cannot_carry_is_not_sent_to_a_raw_device(hub: Node) -> None:
    """The original's length wraps round to 0, and the device loses its place."""
    browser = await Browser.open(hub)
    reader, writer, etid = await raw_device(hub)
    browser.publish(etid, b"W" * 0xFFF1)
    browser.publish(etid, b"fits")
    async with asyncio.timeout(10):
        assert (await reader.readexactly(19))[15:] == b"fits"
    assert hub.broker.metrics.dropped == {"too large for a raw SMQ socket": 1}
    writer.close()
    browser.writer.close()


def test_every_probe_of_the_trace_is_here() -> None:
    source = Path(__file__).read_text("utf-8")
    better = {
        "connect", "ws pong frame unsolicited", "fragmented ws message (2 frames)",
        "publish 70000 over websocket (more than raw max)", "ws 65000 -> raw subscriber",
        "ws 65535 payload (>0xFFF0) -> raw subscriber",
    }  # fmt: skip
    assert [title for title in SECTIONS if title not in source and title not in better] == []
