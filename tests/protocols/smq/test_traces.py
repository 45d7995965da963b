"""What real clients and a real hub said to each other, replayed against ours.

Ids and seeds are random there and here: each id of a trace stands for the one our hub gave.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hubbub.protocols.smq import codec
from hubbub.wire.http import Request, parse_head
from hubbub.wire.websocket import handshake_response
from tests.protocols.smq.device import Device, Hub

TRACES = Path(__file__).parent / "traces"
LINE = re.compile(r"(conn\d+) (C>S|S>C) ([0-9a-f]+)(\.\.\.)?(?:.*\((\d+) bytes\))?")
CONTROL = re.compile(r"(conn\d+) (open|eof-C)")

# The first number of these is a code or a version, the second an id or a seed.
PLAIN_FIRST = {codec.INIT, codec.CONNACK, codec.SUBACK, codec.CREATEACK, codec.CREATESUBACK}


class Replay:
    """Plays the clients of a trace and compares what the hub says."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.devices: dict[str, Device] = {}
        self.heard: dict[str, list[bytes]] = {}
        self.ids: dict[int, int] = {0: 0}

    def open(self, name: str) -> None:
        self.devices[name] = self.hub.device()
        self.heard[name] = []

    def listen(self) -> None:
        for name, device in self.devices.items():
            self.heard[name] += device.bodies()

    def say(self, name: str, message: bytes) -> None:
        self.devices[name].raw(self._translated(message))

    def _translated(self, message: bytes) -> bytes:
        kind = message[0]
        if kind in (codec.CONNECT, codec.PING, codec.DISCONNECT):
            return message
        numbers = codec.numbers_of(kind, message[1:])
        ours = [self.ids[number] for number in numbers]
        return codec.message(kind, *ours, rest=codec.rest_of(kind, message[1:]))

    def expect(self, name: str, message: bytes, cut: bool) -> None:
        self.listen()
        assert self.heard[name], f"{name} should have heard {message.hex()}"
        heard = self.heard[name].pop(0)
        assert heard[0] == message[0]
        kind = heard[0]
        for index, (there, here) in enumerate(
            zip(codec.numbers_of(kind, message[1:]), codec.numbers_of(kind, heard[1:]), strict=True)
        ):
            is_id = (index == 1) if kind in PLAIN_FIRST else not (kind == codec.CHANGE and index)
            assert (self.ids.setdefault(there, here) if is_id else there) == here
        there_rest, here_rest = codec.rest_of(kind, message[1:]), codec.rest_of(kind, heard[1:])
        assert here_rest[: len(there_rest)] == there_rest
        assert cut or len(here_rest) == len(there_rest)


@pytest.mark.parametrize("name", ["c.txt", "py.txt"])
def test_a_real_client_hears_what_it_heard_from_the_real_hub(name: str) -> None:
    replay = Replay()
    for line in (TRACES / name).read_text().splitlines():
        if found := CONTROL.match(line):
            connection, what = found.groups()
            if what == "open":
                replay.open(connection)
            else:
                replay.listen()
                assert replay.devices[connection].closed
        elif found := LINE.match(line):
            connection, direction, digits, cut, size = found.groups()
            message = bytes.fromhex(digits)[2:]
            if direction == "C>S":
                if cut:  # the rest of the payload repeats its last byte
                    message = message.ljust(13 + int(size), message[-1:])
                replay.say(connection, message)
            else:
                replay.expect(connection, message, bool(cut))
    replay.listen()
    assert not any(replay.heard.values())


def bootstraps() -> list[tuple[str, bytes, bytes]]:
    lines = (TRACES / "http-bootstrap.txt").read_text().splitlines()
    return [
        (lines[at][3:], ast.literal_eval(lines[at + 1][6:]), ast.literal_eval(lines[at + 2][6:]))
        for at in range(0, len(lines), 3)
    ]


def answer(hub: Hub, request: Request, head: bytes) -> bytes:
    """What the listener and the protocol say to a head: status line and what follows it."""
    websocket = request.websocket and not request.raw  # which the protocol said
    device = hub.device(websocket=websocket, head=head)
    start = handshake_response(request) if websocket else b""
    return start + device.far.hear()


@pytest.mark.parametrize(("title", "head", "expected"), bootstraps(), ids=lambda part: str(part))
def test_a_bootstrap_request_is_answered_as_by_the_real_hub(
    title: str, head: bytes, expected: bytes
) -> None:
    hub = Hub()
    request = parse_head(head)
    assert request is not None
    if b" 404 " in expected[:20] or b" 400 " in expected[:20]:
        # Pages are the web application's; so is a path, of which SMQ has none.
        assert not hub.smq.takes(request) or "404 path" in title
        return
    assert hub.smq.takes(request)
    ours, theirs = answer(hub, request, head), expected.removesuffix(b"<open>")
    assert ours.partition(b"\r\n")[0][:40] == theirs.partition(b"\r\n")[0][:40] or b"\0" in ours[:1]
    for header in (b"SmqBroker: true", b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="):
        assert (header in ours) == (header in theirs)
    assert b"Content-Length" not in ours and b"Sec-WebSocket-Extensions" not in ours
    seed = len(theirs) - len(b"....127.0.0.1")
    after = theirs.rpartition(b"\r\n\r\n")[2]
    mine = ours.rpartition(b"\r\n\r\n")[2]
    assert mine[:-13] == after[:-13] and mine[-9:] == after[-9:], seed
