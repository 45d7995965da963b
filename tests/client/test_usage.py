"""One rule for payloads, a word to who has not entered a client, and what `dir` and pydoc show."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from typing import Any

import pytest

import hubbub
from hubbub.client import blocking
from hubbub.client.mqtt import MqttClient
from hubbub.client.smq import SmqClient
from hubbub.client.switch import SwitchClient
from hubbub.client.usage import payload_of
from hubbub.errors import HubbubError, SettingError
from tests.process import RunningHub

PLAIN: Any = pydoc.plaintext  # type: ignore[attr-defined]  # typeshed does not know it


def test_a_payload_is_bytes_or_text_or_json() -> None:
    for given in (b"a", bytearray(b"a"), memoryview(b"a"), "a"):
        assert payload_of(given) == b"a"
    assert payload_of("é") == "é".encode() == payload_of(b"", json="é")[1:-1]
    assert payload_of(b"", json=None) == b"null" and payload_of("", json=21) == b"21"
    assert payload_of(b"", json={"a": [1, 2.5]}) == b'{"a":[1,2.5]}'
    for wrong in (21, 2.5, None, [1], {"a": 1}, True):
        with pytest.raises(TypeError, match="bytes or str, got .*json="):
            payload_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="leave one of them out"):
        payload_of(b"a", json=1)
    with pytest.raises(TypeError):
        payload_of(b"", json=object())
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            payload_of(b"", json={"t": number})


async def test_nothing_waits_for_ever_in_a_client_that_was_not_entered() -> None:
    mqtt, smq = hubbub.mqtt("mqtt://127.0.0.1:1"), hubbub.smq("smq://127.0.0.1:1")
    for call in (
        mqtt.publish("a"), mqtt.publish("a", qos=1), mqtt.subscribe("a"), mqtt.flush(),
        mqtt.ping(), anext(mqtt.messages()), mqtt.call("a"), mqtt.unsubscribe("a"),
        mqtt.serve("a", lambda message: b""), smq.publish("a"), smq.subscribe("a"), smq.call("a"),
        anext(smq.messages()), smq.create("a"), smq.observe("a", print), smq.serve("a", str),
    ):  # fmt: skip
        with pytest.raises(BaseException) as raised:  # `serve` has a group of tasks
            await asyncio.wait_for(call, 5)
        error: Any = raised.value
        while isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        assert isinstance(error, HubbubError) and "async with hubbub." in str(error), call
    with pytest.raises(HubbubError, match="not connected yet"):
        blocking.mqtt("mqtt://127.0.0.1:1").publish("a")


@pytest.mark.interop
@pytest.mark.parametrize("scheme", ["mqtt", "smq", "switch"])
async def test_who_awaits_a_client_has_it_connected(hub: RunningHub, scheme: str) -> None:
    """And may enter it then, to have it closed."""
    client = await hubbub.connect(hub.url(scheme))
    await client.publish("a", b"1")
    async with client:
        await client.publish("a", b"2")
    other = await hubbub.connect(hub.url(scheme))
    async with await other:
        await other.publish("a", b"3")
    if scheme != "switch":  # which connects when it is asked
        for one in (client, other):
            with pytest.raises(ConnectionError, match="closed"):
                await one.publish("a", b"4")
    with pytest.raises(OSError):
        await hubbub.connect(f"{scheme}://127.0.0.1:1")
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, "each connection was one"


@pytest.mark.parametrize("topic", ["a/#", "#", "+", "a/+/b"])
async def test_smq_has_no_wildcards_and_says_so(topic: str) -> None:
    client = hubbub.smq("smq://127.0.0.1:1")
    with pytest.raises(SettingError, match="SMQ has no wildcards"):
        await client.subscribe(topic)


@pytest.mark.interop
async def test_what_is_no_topic_is_refused_before_it_is_sent(hub: RunningHub) -> None:
    wrong: Any
    async with (
        hubbub.smq(f"smq://127.0.0.1:{hub.port}") as smq,
        hubbub.switch(f"switch://127.0.0.1:{hub.port}") as switch,
    ):
        for wrong in ("", "a\0b"):
            for publish in (smq.publish(wrong), smq.subscribe(wrong), smq.publish_parts(wrong, [])):
                with pytest.raises(SettingError, match="without NUL"):
                    await publish
        with pytest.raises(SettingError, match="without NUL"):
            await smq.publish("a", subtopic="\0")
        for wrong in (b"a", None, 1.5):
            with pytest.raises(TypeError, match="is str"):
                await smq.publish(wrong)
        for wrong in (b"a", 5, None):
            for call in (switch.publish(wrong), switch.send(wrong), switch.call(wrong, timeout=5)):
                with pytest.raises(TypeError, match="is str"):
                    await call
        await smq.publish("a", subtopic="b")
        await switch.publish("a")


def test_dir_and_help_show_the_api() -> None:
    assert set(hubbub.__all__) <= set(dir(hubbub))
    for name in hubbub.__all__:
        assert getattr(hubbub, name) is not None
    shown = pydoc.render_doc(hubbub, renderer=PLAIN)
    for name in ("mqtt", "smq", "switch", "connect", "Hub"):
        assert name in shown
    said = pydoc.render_doc(hubbub.mqtt, renderer=PLAIN)
    for word in ("keep_alive", "seconds", "SettingError", "window"):
        assert word in said


@pytest.mark.parametrize(
    "client, twin",
    [
        (MqttClient, blocking.BlockingMqtt), (SmqClient, blocking.BlockingSmq),
        (SwitchClient, blocking.BlockingSwitch),
    ],
)  # fmt: skip
def test_the_blocking_twin_has_all_that_a_program_calls(client: type, twin: type) -> None:
    inside = {"open", "close", "named", "published", "changed"}  # the connection calls these
    public = {name for name in vars(client) if not name.startswith("_")} - inside
    for name in sorted(public):
        assert name in dir(twin) or not inspect.iscoroutinefunction(getattr(client, name)), name
        if name in vars(twin):
            assert vars(twin)[name].__doc__, name
    assert inspect.getdoc(twin)


def test_blocking_and_typed(hub: RunningHub) -> None:
    with hubbub.blocking.mqtt(hub.url("mqtt")) as client:
        client.subscribe("a/#", 1)
        client.publish("a/b", json={"load": 0.5}, qos=1)
        message = next(client.messages())
        assert (message.topic, message.payload) == ("a/b", b'{"load":0.5}')
        with pytest.raises(TypeError):
            client.publish("a/b", 21)  # type: ignore[arg-type]
    with hubbub.blocking.switch(hub.url("switch")) as switch:
        switch.send("q", json=[1])
        assert switch.transfer("q").messages[0].payload == b"[1]"


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("mqtt", {"publish", "subscribe", "call", "serve", "messages", "waiting", "client_id"}),
        ("smq", {"publish", "subscribe", "observe", "call", "serve", "number"}),
        ("switch", {"call", "serve", "send", "transfer", "diagnostics", "token"}),
    ],
)
def test_a_shell_completes_the_blocking_clients(scheme: str, names: set[str]) -> None:
    hub = blocking.connect(f"{scheme}://127.0.0.1:1")
    assert names <= {*dir(hub)}
    assert "Answer" in (hub.serve.__doc__ or "") and "handler" in str(inspect.signature(hub.serve))
