"""What the client libraries of each language send, and what each is strict about.

C and Python are held by their recorded sessions (`test_traces.py`). Of Lua, Java and JavaScript
there is no recording, so their conversations are written down here, byte by byte, from what their
sources do: any answer that such a client would not take fails the test.
"""

from __future__ import annotations

import pytest

from hubbub.protocols.smq import codec
from tests.protocols.smq.device import HEAD, Device, Hub

LUA_HEAD = (
    b"GET /smq.lsp HTTP/1.1\r\nHost: hub.example:8080\r\nSimpleMQ: 1\r\n"
    b"SendSmqHttpResponse: true\r\n\r\n"
)
JAVA_HEAD = (
    b"GET /smq.lsp HTTP/1.1\r\nSimpleMQ: true\r\nSendSmqHttpResponse: true\r\n"
    b"User-Agent: Java/17.0.9\r\nHost: hub.example\r\nAccept: text/html, image/gif, */*; q=.2\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
INIT_BYTES = 17  # with 127.0.0.1


@pytest.fixture
def hub() -> Hub:
    return Hub()


def welcomed(device: Device, connect: bytes) -> bytes:
    """What the hub says until the client is in; its own number is the end of it."""
    said = device.far.hear()
    device.far.say(connect)
    return said + device.far.hear()


def number(data: bytes) -> bytes:
    """The id in an ack or a Connack."""
    return data[4:8]


def said_to(device: Device, frame: str, *ids: bytes) -> bytes:
    """Send a frame given in hexadecimal, ids in the place of {}; what the hub answers."""
    device.far.say(bytes.fromhex(frame.format(*(one.hex() for one in ids))))
    return device.far.hear()


def test_a_lua_client(hub: Hub) -> None:
    """It fails on an ack for a name it did not ask for, and when a Pong takes 10 s."""
    lua = hub.device(head=LUA_HEAD)
    said = welcomed(lua, bytes.fromhex("00160201096c75612d757569643100") + b"lua-box")
    head, _, frames = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert frames[:4] == b"\0\x11\1\1" and frames[INIT_BYTES - 9 : INIT_BYTES] == b"127.0.0.1"
    connack = frames[INIT_BYTES:]
    assert connack[:4] == b"\0\x08\3\0" and len(connack) == 8
    etid = connack[4:]
    # createsub("temp"), subscribe("room", "temp"), create("lamp"): each ack echoes its name.
    sub = said_to(lua, "000711 74656d70")
    assert sub[:4] == b"\0\x0c\x12\0" and sub[8:] == b"temp"
    topic = said_to(lua, "000704 726f6f6d")
    assert topic[:4] == b"\0\x0c\5\0" and topic[8:] == b"room"
    lamp = said_to(lua, "000706 6c616d70")
    assert lamp[:4] == b"\0\x0c\7\0" and lamp[8:] == b"lamp"
    # A publish to itself comes back as it was.
    publish = "0013 08 {} {} {} 32312e35"
    sent = bytes.fromhex(publish.format(*(one.hex() for one in (number(topic), etid, number(sub)))))
    assert said_to(lua, publish, number(topic), etid, number(sub)) == sent
    # Its timer, an answer to a Ping of somebody else's, the end.
    assert said_to(lua, "00030c") == b"\0\3\x0d"
    assert said_to(lua, "00030d") == b""
    assert said_to(lua, "000309"[:4] + "0b") == b"" and lua.closed


def test_a_java_client(hub: Hub) -> None:
    """It wants 200 and a header SmqBroker; a type of message that it does not know is its end."""
    java = hub.device(head=JAVA_HEAD)
    connect = codec.framed(codec.build_connect(b"java-1", b"", b"SMQ Java"))
    head, _, frames = welcomed(java, connect).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].split()[1] == b"200" and b"SmqBroker: true" in lines
    etid = frames[INIT_BYTES + 4 :]
    acks = said_to(java, "000411 73" + "000404 74" + "000406 75")
    kinds, topic = [acks[at + 2] for at in (0, 9, 18)], acks[9 + 4 : 9 + 8]
    assert kinds == [codec.CREATESUBACK, codec.SUBACK, codec.CREATEACK]
    assert said_to(java, "00070e {}", topic) == b"\0\x0b\x10" + topic + b"\0\0\0\1"
    assert said_to(java, "00070f {}", topic) == b""
    heard = said_to(java, "0010 08 {} {} ffffffff 21", topic, etid)  # ids above 2^31 are fine
    assert heard == b"\0\x10\x08" + topic + etid + b"\xff\xff\xff\xff!"


def test_a_javascript_client_that_comes_back_asks_for_everything_again(hub: Hub) -> None:
    """It matches acks by the name, which it reads as UTF-8, and takes the new numbers."""
    names = ["küche/lampe", "温度"]
    first, numbers = hub.device(websocket=True), []
    for page in (first, hub.device(websocket=True)):
        page.hear()
        page.raw(codec.build_connect(b"127.0.0.1-7" if page is first else b"127.0.0.1-8"))
        page.etid = page.expect("Connack")
        found = []
        for name in names:
            page.raw(b"\x06" + name.encode())
            (ack,) = page.bodies()
            assert ack[:2] == b"\x07\0" and ack[6:].decode() == name
            found.append(ack[2:6])
        page.raw(b"\x11" + "Ω".encode())
        (ack,) = page.bodies()
        assert ack[:2] == b"\x12\0" and ack[6:].decode() == "Ω"
        found.append(ack[2:6])
        page.raw(b"\x04" + names[0].encode())
        (ack,) = page.bodies()
        assert ack == b"\x05\0" + found[0] + names[0].encode()
        page.raw(b"\x0e" + found[0])
        assert page.bodies() == [b"\x10" + found[0] + b"\0\0\0\1"]
        numbers.append(found)
        if page is first:
            page.hang_up()
    assert numbers[0] == numbers[1]


def test_a_javascript_client_comes_back_unless_it_was_told_not_to(hub: Hub) -> None:
    """A bare close means: come back. Refusals and a Disconnect mean: do not."""
    page = hub.device(b"page-1", websocket=True)
    again = hub.device(b"page-1", websocket=True)
    assert page.bodies() == [b"\x0breconnect"] and page.closed
    again.far.connection.goodbye()
    assert again.bodies() == []  # the close frame only


def test_frames_have_the_lengths_that_c_clients_check(hub: Hub) -> None:
    """Init at least 11 bytes, Connack 8, acks 9, Change exactly 11, Ping and Pong exactly 3."""
    device = hub.device(head=HEAD)
    said = device.far.hear()
    device.far.say(b"\0\x13\2\2\2\0\x06c-0001\0info.")  # version 2: at most 512 bytes a write
    device.far.say(codec.framed(b"\x04t") + codec.framed(b"\x06u") + codec.framed(b"\x11s"))
    said += device.far.hear()
    topic = said[INIT_BYTES + 8 + 4 : INIT_BYTES + 8 + 8]
    said += said_to(device, "00070e {} 00030c 00070e 0000ffff", topic)
    sizes: list[tuple[int, int]] = []
    at = 0
    while end := codec.next_frame(said, at):
        sizes.append((said[at + 2], end - at))
        at = end
    assert at == len(said) and sizes == [
        (codec.INIT, 17), (codec.CONNACK, 8), (codec.SUBACK, 9), (codec.CREATEACK, 9),
        (codec.CREATESUBACK, 9), (codec.CHANGE, 11), (codec.PONG, 3), (codec.CHANGE, 11),
    ]  # fmt: skip
