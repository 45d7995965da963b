"""What a type checker says of the API: `make lint` checks this file as any other (mypy --strict),
so does pyright (`pyright tests/client/typed.py`). Nothing runs it; what is Any fails `assert_type`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import hubbub
from hubbub.client.blocking import BlockingMqtt, BlockingSmq, BlockingSwitch
from hubbub.client.mqtt import Limits, Message, MqttClient, Will
from hubbub.client.smq import SmqClient, SmqMessage
from hubbub.client.switch import Delivery, SwitchClient, Transferred


async def mqtt() -> None:
    will = Will("gone", b"ann", qos=1)
    async with hubbub.mqtt("mqtt://localhost", client_id="ann", will=will, version="5") as client:
        assert_type(client, MqttClient)
        assert_type(await client.publish("t", "21.5", qos=1, user={"k": "v"}), None)
        assert_type(await client.publish("t", json=[1, None]), None)
        assert_type(await client.subscribe("a/#", 1, lambda message: print(message.topic)), int)
        assert_type(client.messages(), AsyncIterator[Message])
        assert_type(await client.call("t", json={"a": 1}, timeout=None), Message)
        assert_type(client.limits, Limits)
        assert_type(client.version, str)
        async for message in client.messages():
            assert_type(message.payload, bytes)


async def smq() -> None:
    async with hubbub.smq("smq://localhost", client_id="device-1", info="a lamp") as client:
        assert_type(client, SmqClient)
        assert_type(client.number, int)
        assert_type(await client.publish("t", json=21), None)
        assert_type(await client.subscribe("t", lambda message: print(message.sender)), int)
        assert_type(await client.observe("t", lambda count, name: print(count, name)), None)
        assert_type(await client.call("$queue/q", b""), SmqMessage)
        assert_type(client.messages(), AsyncIterator[SmqMessage])


async def switch() -> None:
    async with hubbub.switch("switch://localhost", token="me") as client:
        assert_type(client, SwitchClient)
        assert_type(await client.call("q", json=1, timeout=5), bytes)
        assert_type(await client.send("q", b"x"), tuple[str, int])
        found = await client.transfer("q")
        assert_type(found, Transferred)
        assert_type(found.messages, list[Delivery])
        assert_type(await client.configure("q", lease=30, dead_letter="d"), dict[str, object])
        assert_type(await client.list(), list[str])
        assert_type(await client.diagnostics(), dict[str, object])


def blocking() -> None:
    with hubbub.blocking.mqtt("mqtt://localhost", client_id="ann") as client:
        assert_type(client, BlockingMqtt)
        assert_type(client.publish("t", json=1, qos=1), None)
        assert_type(client.subscribe("t", 1, print), int)
        assert_type(client.messages(), Iterator[Message])
        assert_type(client.call("t", b"x", timeout=1.0), Message)
        assert_type(client.version, str)
    with hubbub.blocking.smq("smq://localhost") as device:
        assert_type(device, BlockingSmq)
        assert_type(device.subscribe("t"), int)
        assert_type(next(device.messages()), SmqMessage)
        assert_type(device.number, int)
    with hubbub.blocking.switch("switch://localhost") as service:
        assert_type(service, BlockingSwitch)
        assert_type(service.call("q", b"x"), bytes)
        assert_type(service.list("q"), list[str])
