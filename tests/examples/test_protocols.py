"""The two example protocols: short, logged in, and at the door like every other."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from examples import protocol_stomp, protocol_telnet
from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Settings
from hubbub.core.gate import Credentials, Gate
from hubbub.core.limits import EARLY_BYTES, LOGIN_BYTES
from hubbub.core.message import Message
from hubbub.protocols import registry
from hubbub.runtime.node import Node
from tests.rights import ruled
from tests.wire import Far, Table

LONGEST = {protocol_telnet: 50, protocol_stomp: 70}


@pytest.mark.parametrize("example", LONGEST, ids=lambda example: example.__name__)
def test_a_protocol_is_short(example: object) -> None:
    """Lines that are not blank, in one file of one folder."""
    place = Path(str(example.__file__))  # type: ignore[attr-defined]
    assert [one.name for one in place.parent.glob("*.py")] == ["__init__.py"]
    lines = [line for line in place.read_text().splitlines() if line.strip()]
    assert len(lines) <= LONGEST[example]  # type: ignore[index]


def stomp(command: str, body: str = "", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n{body}\0".encode()


class House(Table):
    def __init__(self, *rules: str) -> None:
        super().__init__()
        self.gate = Gate(ruled(*rules)) if rules else self.gate
        self.stomp = protocol_stomp.Stomp(self.broker)
        self.telnet = protocol_telnet.Telnet(self.broker)

    def client(self, name: str = "ann") -> Far:
        far = self.dial(self.stomp)
        far.say(stomp("CONNECT", login=name, passcode="x"))
        assert far.hear().startswith(b"CONNECTED\n")
        return far


def test_a_message_and_its_receipt() -> None:
    house = House()
    ann, bob = house.client("ann"), house.client("bob")
    ann.say(stomp("SUBSCRIBE", destination="a/#", receipt="1"))
    assert ann.hear() == b"RECEIPT\nreceipt-id:1\ncontent-length:0\n\n\0\n"
    bob.say(stomp("SEND", "hello", destination="a/b", receipt="2"))
    assert bob.hear() == b"RECEIPT\nreceipt-id:2\ncontent-length:0\n\n\0\n"
    assert ann.hear().startswith(b"MESSAGE\ndestination:a/b\nmessage-id:")
    bob.say(b"\nSEND\r\ndestination:a/b\r\ncontent-length:3\r\n\r\n\0\0\n\0")
    assert ann.hear().endswith(b"content-length:3\n\n\0\0\n\0\n")


@pytest.mark.parametrize("size", [1, 7, 50])
def test_frames_in_pieces(size: int) -> None:
    house = House()
    ann, bob = house.client("ann"), house.client("bob")
    ann.say(stomp("SUBSCRIBE", destination="a"))
    data = stomp("SEND", "one", destination="a") + stomp("SEND", "two", destination="a")
    for at in range(0, len(data), size):
        bob.say(data[at : at + size])
    assert ann.hear().count(b"MESSAGE\n") == 2


def test_a_queue_keeps_a_message_until_its_ack() -> None:
    house = House()
    queue = house.broker.queues.named("q")
    ann, bob = house.client("ann"), house.client("bob")
    ann.say(stomp("SUBSCRIBE", destination="$queue/q"))
    bob.say(stomp("SEND", "work", destination="$queue/q"))
    heard = ann.hear().decode()
    number = heard.partition("message-id:")[2].partition("\n")[0]
    assert len(queue.messages) == 1
    ann.hang_up()
    carol = house.client("carol")
    carol.say(stomp("SUBSCRIBE", destination="$queue/q"))
    assert "work" in carol.hear().decode(), "it was given back"
    carol.say(stomp("ACK", message_id=number, receipt="1"))
    assert b"RECEIPT" in carol.hear() and not queue.messages
    carol.say(stomp("DISCONNECT"))
    assert carol.closed


def test_who_has_read_what_filled_its_link_gets_what_waits_in_a_queue() -> None:
    """Nobody asked: it slept until something else came."""
    house = House()
    ann, bob = house.client("ann"), house.client("bob")
    ann.say(stomp("SUBSCRIBE", destination="$queue/q"))
    ann.link.choked = True
    bob.say(stomp("SEND", "work", destination="$queue/q"))
    assert ann.hear() == b""
    ann.link.choked = False
    ann.connection.drained()
    assert b"work" in ann.hear()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (stomp("SEND", "x", destination="safe"), "may not publish 'safe'"),
        (stomp("SEND", "x", destination="$queue/q"), "may not enqueue '$queue/q'"),
        (stomp("SUBSCRIBE", destination="safe"), "may not subscribe 'safe': refused by acl:2"),
        (stomp("SUBSCRIBE", destination="$queue/q"), "may not consume '$queue/q'"),
        (stomp("SUBSCRIBE", destination="a/#/b"), "is not a topic filter"),
        (stomp("ACK", message_id="x"), "invalid literal"),
    ],
)
def test_what_it_may_not_is_an_error(frame: bytes, reason: str) -> None:
    house = House("read #", "deny safe")
    ann = house.client()
    ann.say(frame)
    assert ann.hear().startswith(b"ERROR\n") and ann.closed
    assert ann.reason is not None and reason in ann.reason
    assert not house.broker.clients


def test_telnet_says_no_and_goes_on() -> None:
    house = House("read #", "deny safe", "write a")
    far = house.dial(house.telnet)
    far.say(b"hello ann x\r\nsub safe\r\npub safe x\r\nsub #\r\npub a x\r\n")
    heard = far.hear().decode().splitlines()
    assert [line.partition("may not ")[2] for line in heard[:2]] == [
        "subscribe 'safe': refused by acl:2 (deny safe)",
        "publish 'safe': refused by acl:2 (deny safe)",
    ]
    assert heard[2:] == ["a x"]


class Slow(Gate):
    """Answers when the test says so."""

    def authenticate(self, credentials: Credentials, done: object) -> None:
        self.answer = done


@pytest.mark.parametrize("example", ["stomp", "telnet"])
def test_what_comes_while_the_gate_thinks_is_kept_up_to_a_bound(example: str) -> None:
    house = House()
    gate = house.gate = Slow(house.broker.open)
    login, send = {
        "stomp": (stomp("CONNECT", login="ann"), stomp("SEND", "x", destination="a")),
        "telnet": (b"hello ann\n", b"pub a x\n"),
    }[example]
    far, other = house.dial(getattr(house, example)), house.dial(getattr(house, example))
    far.say(login + send)
    answer = gate.answer
    far.say(send)
    assert house.broker.metrics.messages_in == 0
    answer(house.broker.open, "")  # type: ignore[operator]
    assert house.broker.metrics.messages_in == 2
    other.say(login)
    other.say(b"x" * (EARLY_BYTES + 1))
    assert other.closed and "before the login is answered" in str(other.reason)
    gate.answer(house.broker.open, "")  # type: ignore[operator]
    assert len(house.broker.clients) == 1


async def test_over_a_socket_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the registry, and it is there, with the login of the listener."""
    caplog.set_level(logging.INFO, "hubbub.listener")
    registered = ["examples.protocol_stomp:Stomp", *registry.PROTOCOLS]
    monkeypatch.setattr(registry, "PROTOCOLS", registered)
    add_user(tmp_path / "users", "ann", b"secret")
    listen = {"listen": ("127.0.0.1:0",), "password_file": str(tmp_path / "users")}
    async with Node(Settings(journal=Journal(record="none"), **listen)) as hub:  # type: ignore[arg-type]
        address = hub.listeners[0].address
        for secret, answer in (("wrong", b"ERROR\n"), ("secret", b"CONNECTED\n")):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(stomp("CONNECT", login="ann", passcode=secret))
            assert (await asyncio.wait_for(reader.readuntil(b"\0"), 10)).startswith(answer)
        hub.broker.post(Message("a", b"retained", 0, True))
        writer.write(stomp("SUBSCRIBE", destination="a"))
        assert b"retained" in await asyncio.wait_for(reader.readuntil(b"\0"), 10)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(stomp("CONNECT", login="ann", passcode="wrong"))
        writer.write(bytes(2 * LOGIN_BYTES))  # not a login: the hub thinks about one
        assert (await asyncio.wait_for(reader.readuntil(b"\0"), 10)).startswith(b"ERROR\n")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(stomp("CONNECT", login="ann")[:-3] + b"x" * (LOGIN_BYTES + 1))
        assert not await asyncio.wait_for(reader.read(), 10)
        assert f"more than {LOGIN_BYTES} bytes before it was let in" in caplog.text
        writer.close()
