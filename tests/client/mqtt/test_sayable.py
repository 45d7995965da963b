"""What would end every connection is an error of the program, and is never sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hubbub.client.mqtt import Will, connect
from hubbub.config.settings import Journal, Settings
from hubbub.errors import SettingError
from hubbub.runtime.node import Node

CONTROL = "a/\x07"
NAMES = (CONTROL, "", "a\0", "a\x85", "a\uffff", "a\ud800", "é" * 40_000)
PROPERTIES: tuple[dict[str, Any], ...] = (
    {"response_topic": "a/#"}, {"response_topic": CONTROL}, {"content_type": "a\0"},
    {"user": {"a": "\0"}}, {"user": [("\ud800", "a")]}, {"content_type": "x" * 65_536},
    {"correlation": bytes(65_536)}, {"expiry": -1}, {"expiry": 1 << 32}, {"text": True},
)  # fmt: skip


async def test_a_message_that_no_broker_takes(tmp_path: Path) -> None:
    settings = Settings(
        data=str(tmp_path), listen=("127.0.0.1:0",), journal=Journal(durability="os")
    )
    async with Node(settings) as node, asyncio.timeout(20):
        async with connect(f"mqtt://{node.listeners[0].address}", reconnect=False) as client:
            for name in (*NAMES, "a/#"):
                for qos in (0, 1, 2):
                    with pytest.raises(SettingError):
                        await client.publish(name, b"x", qos)
            for name in (*NAMES, "a/#/b"):
                with pytest.raises(SettingError):
                    await client.subscribe(name)
            for wrong in PROPERTIES:
                for qos in (0, 1, 2):
                    with pytest.raises(SettingError):
                        await client.publish("a", b"\xff", qos, **wrong)
            await client.publish("a", b"\xff", 1)  # over the same connection, which has lasted


@pytest.mark.parametrize(
    "wrong",
    [
        {"client_id": CONTROL}, {"username": CONTROL}, {"will": Will("", b"")},
        {"will": Will(CONTROL, b"")}, {"will": Will("a/#", b"")}, {"will": Will("a", b"", qos=3)},
        {"will": Will("a", bytes(65_536))}, {"will": Will("a", b"", content_type="\0")},
    ],
)  # fmt: skip
def test_a_connection_that_no_broker_takes(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        connect("mqtt://127.0.0.1", **wrong)
