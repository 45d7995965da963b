"""Requests that offer another protocol: heard as if they did not, however they come."""

from __future__ import annotations

import asyncio
import json

from hubbub import Hub

OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"


def post(body: bytes, headers: str = OFFER) -> bytes:
    head = f"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def line(payload: str) -> bytes:
    return json.dumps({"topic": "a", "payload": payload, "retain": True}).encode()


def kept(hub: Hub) -> bytes:
    broker = hub.node.broker
    message = broker.log.read(broker.state.retained_seq("a"))
    return message.payload if message is not None else b""


async def said(hub: Hub, *pieces: bytes) -> bytes:
    """All answers to these pieces, each of which is a read of its own; the last one closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.node.listeners[0].address.port)
    async with asyncio.timeout(20):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.002)
        found = await reader.read()
    writer.close()
    return found


LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def test_its_body_is_its_body(web_hub: Hub) -> None:
    """In one piece and in two, cut at every place of the head's end and of the body."""
    request = post(line("0"))
    for cut in range(request.index(b"\r\n\r\n") - 3, len(request) + 1):
        request = post(line(f"{cut:03}"))
        answers = await said(web_hub, request[:cut], request[cut:] + LAST)
        assert (answers.count(b"HTTP/1.1 200"), answers.count(b'{"taken":1')) == (2, 1), answers
        assert kept(web_hub) == b"%03d" % cut


async def test_its_body_is_no_request(web_hub: Hub) -> None:
    hidden = post(line("hidden"), "")
    answers = await said(web_hub, post(hidden)[: -len(hidden)], hidden + LAST)
    assert answers.count(b"HTTP/1.1 ") == 2 and answers.startswith(b"HTTP/1.1 400")
    assert kept(web_hub) == b""


async def test_several_in_one_read(web_hub: Hub) -> None:
    answers = await said(web_hub, b"".join(post(line(str(number))) for number in range(20)) + LAST)
    assert answers.count(b'{"taken":1') == 20 and kept(web_hub) == b"19"


async def test_a_body_in_chunks(web_hub: Hub) -> None:
    body = line("chunks")
    request = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    answers = await said(web_hub, request + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + LAST)
    assert answers.count(b'{"taken":1') == 1 and kept(web_hub) == b"chunks"


async def test_connect_is_for_proxies(web_hub: Hub) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    second = b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\nx"
    answers = await said(web_hub, first, second)
    assert answers.count(b"HTTP/1.1 400") == 1


async def test_a_web_socket_that_is_not_there(web_hub: Hub) -> None:
    """After a page the connection is the application's, which has none."""
    asks = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AA==\r\n\r\n"
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    socket = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n" + asks
    answers = await said(web_hub, first, socket, LAST)
    assert [answers.count(code) for code in (b"HTTP/1.1 200", b"HTTP/1.1 404")] == [2, 1]


async def half_closed(hub: Hub, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.node.listeners[0].address.port)
    writer.write(said)
    writer.write_eof()
    async with asyncio.timeout(20):
        found = await reader.read()
    writer.close()
    return found


async def test_who_says_no_more_is_told_what_became_of_it(web_hub: Hub) -> None:
    """It was published, and nobody said so."""
    answer = await half_closed(web_hub, post(line("last"), ""))
    assert b'{"taken":1' in answer and kept(web_hub) == b"last"
    answer = await half_closed(web_hub, post(line("one"), "") + post(line("two"), ""))
    assert answer.count(b'{"taken":1') == 2 and kept(web_hub) == b"two"


async def test_half_a_request_is_none(web_hub: Hub) -> None:
    assert await half_closed(web_hub, post(line("half"), "")[:-1]) == b""
    assert kept(web_hub) == b""
