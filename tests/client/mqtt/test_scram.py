"""SCRAM-SHA-256 from the client's side, with the hub on the other and with liars."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user
from hubbub.client.mqtt import Scram, connect
from hubbub.config.settings import Journal, Settings
from hubbub.errors import Refused, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from tests.client.mqtt.transcript import CONNACK_5, Broker


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A hub that knows ann,=bob."""
    users = tmp_path / "users"
    add_user(users, "ann,=bob", "pencil é".encode())
    settings = Settings(
        listen=("127.0.0.1:0",), journal=Journal(record="none"), password_file=str(users)
    )
    async with Node(settings) as hub:
        yield f"mqtt://{hub.listeners[0].address}"


async def test_the_hub_lets_in_who_knows_the_password(url: str) -> None:
    async with connect(url, exchange=partial(Scram, "ann,=bob", "pencil é")) as client:
        assert client.version == "5"
        await client.publish("a", b"", 1)
    for user, password in (("ann,=bob", "pen"), ("eve", "pencil é")):
        with pytest.raises(Refused, match="user name or password"):
            await connect(url, exchange=partial(Scram, user, password)).open()
    with pytest.raises(Refused):
        await connect(url).open()
    with pytest.raises(SettingError, match="MQTT 5"):
        connect(url, version="3.1.1", exchange=partial(Scram, "ann", ""))


def test_the_example_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    scram = Scram("user", "pencil")  # RFC 7677, section 3
    monkeypatch.setattr(scram, "_nonce", b"rOprNGfwEbeRWgbNEkqO")
    monkeypatch.setattr(scram, "_first", b"n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert scram.step(b"") == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert scram.step(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096") == (
        b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        b"r=%s,s=AAAA,i=999999999",
        b"r=%s,s=AAAA,i=x",
        b"r=%s,i=1",
    ],
)
def test_what_a_broker_must_not_say(said: bytes) -> None:
    scram = Scram("ann", "secret")
    nonce = scram.step(b"").rpartition(b"r=")[2]
    with pytest.raises(Refused, match="does not belong"):
        scram.step(said.replace(b"%s", nonce + b"more"))


async def test_a_broker_that_does_not_know_the_password_is_left() -> None:
    async with Broker() as broker:
        opening = asyncio.create_task(
            connect(broker.url, exchange=partial(Scram, "ann", "secret")).open()
        )
        peer = await broker.peer()
        await peer.accept(CONNACK_5)
        with pytest.raises(Refused, match="does not belong"):
            await opening
        opening = asyncio.create_task(
            connect(broker.url, exchange=partial(Scram, "ann", "secret")).open()
        )
        peer = await broker.peer()
        _, body = await peer.expect(codec.CONNECT)
        said = codec.parse_connect(body).properties
        assert said is not None
        nonce = said.texts[codec.specification.AUTH_DATA].rpartition(b"r=")[2]

        def texts(data: bytes) -> bytes:
            texts = {codec.specification.AUTH_METHOD: b"SCRAM-SHA-256"}
            texts[codec.specification.AUTH_DATA] = data
            return codec.Properties(texts=texts).encode()

        peer.say(codec.auth(codec.specification.CONTINUE, texts(b"r=%bx,s=AAAA,i=1" % nonce)))
        await peer.expect(codec.AUTH)
        peer.say(codec.connack(False, 0, texts(b"v=AAAA")))
        with pytest.raises(Refused, match="not the broker"):
            await opening
