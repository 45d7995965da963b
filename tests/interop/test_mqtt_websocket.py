"""MQTT over WebSockets: a library's frames, cut wherever, and what must not be said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from hubbub.protocols.mqtt import codec
from tests.process import RunningHub
from tests.protocols.mqtt.conversation import in_words

pytestmark = pytest.mark.interop


@contextmanager
def dialled(hub: RunningHub, path: str = "/", offer: str = "mqtt") -> Iterator[ClientConnection]:
    subprotocols = [Subprotocol(offer)] if offer else None
    with connect(
        hub.url("ws") + path, subprotocols=subprotocols, open_timeout=20, close_timeout=20
    ) as one:
        yield one


def hear(sock: ClientConnection, count: int) -> list[str]:
    words: list[str] = []
    rest = b""
    while len(words) < count:
        data = sock.recv(20)
        assert isinstance(data, bytes)
        more, rest = in_words(rest + data)
        words += more
    return words


@pytest.mark.holds(v5="6.0.0-4", v3="6.0.0-4")
@pytest.mark.parametrize("offer", ["mqtt", "mqttv3.1"])
def test_the_sub_protocol_is_confirmed(hub: RunningHub, offer: str) -> None:
    with dialled(hub, offer=offer) as sock:
        assert sock.subprotocol == offer


def test_the_path_says_it_too(hub: RunningHub) -> None:
    with dialled(hub, "/mqtt", "") as sock:
        sock.send(codec.connect(b"ann", True, 0))
        assert hear(sock, 1) == ["CONNACK 0"]


@pytest.mark.holds(v5="6.0.0-2 4.2.0-1 7.1.1-1", v3="6.0.0-2 7.1.1-1")
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_packets_and_frames_need_not_begin_together(hub: RunningHub, step: int) -> None:
    said = b"".join(
        [
            codec.connect(b"ann", True, 0),
            codec.subscribe(5, [(b"a", 1)]),
            codec.publish(b"a", b"1", 0),
            codec.publish(b"a", b"2", 1, packet_id=7),
            codec.PINGREQ_PACKET,
        ]
    )
    with dialled(hub) as sock:
        for at in range(0, len(said), step):
            sock.send(said[at : at + step])
        heard = hear(sock, 6)
    assert sorted(heard) == sorted(
        ["CONNACK 0", "SUBACK 5: 1", "a=1", "a=2 q1 #1", "PUBACK 7", "PINGRESP"]
    )


@pytest.mark.holds(v5="6.0.0-1", v3="6.0.0-1")
def test_text_ends_the_connection(hub: RunningHub) -> None:
    with dialled(hub) as sock:
        sock.send(codec.connect(b"ann", True, 0).decode("latin-1"))
        with pytest.raises(ConnectionClosedError) as error:
            sock.recv(20)
    assert error.value.rcvd is not None and error.value.rcvd.code == 1003
