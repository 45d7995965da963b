"""`hubbub probe`: what an MQTT broker supports and where its limits are.

What a broker of MQTT 5 says of itself is believed; what none says is tried, on topics with random
names, and cleaned up behind.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import typer

from hubbub.cli.options import takes
from hubbub.cli.target import Target
from hubbub.client import run
from hubbub.client.mqtt import Limits, MqttClient, Refusal
from hubbub.errors import HubbubError, SettingError

app = typer.Typer(add_completion=False)

VERSIONS: Final = ("3.1", "3.1.1", "5")
WAIT_SECONDS: Final = 3.0  # for a message that may never come

Findings = dict[str, Any]


@app.command()
@takes(Target, placed=False)
def probe(
    target: Target,
    address: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="The broker, or its URL.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    if address:
        url = address if "://" in address else f"mqtt://{address}"
        if target.url or target.host:
            raise SettingError("expected one broker: HOST:PORT, --host or --url")
        if address.isdecimal():
            raise SettingError(f"expected HOST[:PORT], got {address}; a port alone is --port")
        target = target._replace(url=url)
    target = target.placed()
    if target.smq:
        raise SettingError("only MQTT brokers can be probed")
    found = run(_probe(target))
    print(json.dumps(found) if as_json else _table(found))


async def _probe(target: Target) -> Findings:
    """Connect in every version; ask the newest that was accepted."""
    versions = {version: await _connects(target, version) for version in VERSIONS}
    found: Findings = {"versions": {name: refusal or "yes" for name, refusal in versions.items()}}
    spoken = [version for version, refusal in versions.items() if not refusal]
    if not spoken:
        return found
    # The longest keep-alive there is: a broker that wants less says so.
    wanted = target._replace(version=spoken[-1], keep_alive=65_535)
    async with wanted.connect(reconnect=False) as client:
        found |= _said(client.limits) if client.version == "5" else {}
        for name, question in _QUESTIONS.items():
            if name not in found or found[name] is True:
                found[name] = await _tried(client, question)
    return found


async def _connects(target: Target, version: str) -> str:
    """Why the broker does not take a client of that version; "" if it does."""
    try:
        async with target._replace(version=version).connect(reconnect=False) as client:
            return "" if client.version == version else "no"
    except Refusal as refusal:
        return str(refusal)
    except ConnectionError as error:
        return f"no: {error}"


def _said(limits: Limits) -> Findings:
    """What the CONNACK of MQTT 5 says (3.2.2.3)."""
    return {
        "maximum QoS": limits.maximum_qos,
        "retained messages": limits.retain_available,
        "wildcards": limits.wildcard_subscription_available,
        "shared subscriptions": limits.shared_subscription_available,
        "subscription identifiers": limits.subscription_identifier_available,
        "topic aliases": limits.topic_alias_maximum,
        "receive maximum": limits.receive_maximum,
        "maximum packet": limits.maximum_packet_size,
        "longest keep-alive": limits.keep_alive,
        "response information": limits.response_information or False,
    }


async def _tried(client: MqttClient, question: Callable[[MqttClient, str], Awaitable[Any]]) -> Any:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await question(client, f"hubbub-probe/{secrets.token_hex(6)}")
    except TimeoutError:
        return False
    except HubbubError as error:
        return f"refused: {error}"
    except ConnectionError:
        return "the broker ended the connection"


async def _maximum_qos(client: MqttClient, topic: str) -> int:
    return await client.subscribe(topic, 2)


async def _retained(client: MqttClient, topic: str) -> Any:
    await client.publish(topic, b"kept", 1, True)
    try:
        return (await _heard(client, topic, topic)).retain
    finally:
        await client.publish(topic, b"", 1, True)


async def _wildcards(client: MqttClient, topic: str) -> bool:
    return await _arrives(client, f"{topic}/+/#", f"{topic}/a/b")


async def _shared(client: MqttClient, topic: str) -> bool:
    return await _arrives(client, f"$share/probe/{topic}", topic)


async def _round_trip(client: MqttClient, topic: str) -> str:
    """The best of five round trips of a QoS 0 message to ourselves."""
    best = 1e9
    heard = asyncio.Event()
    await client.subscribe(topic, 0, lambda message: heard.set())
    for _ in range(5):
        heard.clear()
        start = time.perf_counter()
        await client.publish(topic, b"probe")
        await heard.wait()
        best = min(best, time.perf_counter() - start)
    await client.unsubscribe(topic)
    return f"{best * 1000:.2f} ms"


async def _arrives(client: MqttClient, topic_filter: str, topic: str) -> bool:
    heard = asyncio.create_task(_heard(client, topic_filter, topic))
    try:
        await asyncio.sleep(0)
        await client.publish(topic, b"probe", 1)
        await heard
        return True
    finally:
        heard.cancel()


async def _heard(client: MqttClient, topic_filter: str, topic: str) -> Any:
    """Subscribe, and the first message of that topic."""
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def hear(message: Any) -> None:
        if message.topic == topic and not found.done():
            found.set_result(message)

    await client.subscribe(topic_filter, 1, hear)
    try:
        return await found
    finally:
        await client.unsubscribe(topic_filter)


_QUESTIONS: Final[dict[str, Callable[[MqttClient, str], Awaitable[Any]]]] = {
    "maximum QoS": _maximum_qos,
    "retained messages": _retained,
    "wildcards": _wildcards,
    "shared subscriptions": _shared,
    "round trip, QoS 0": _round_trip,
}

_UNITS: Final = {"maximum packet": " bytes", "longest keep-alive": " s"}


def _table(found: Findings) -> str:
    lines = [(f"MQTT {version}", answer) for version, answer in found["versions"].items()]
    for name, value in found.items():
        if name != "versions":
            lines.append((name, _shown(name, value)))
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{width}}{value}" for name, value in lines)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "no limit said"
    return f"{value}{_UNITS.get(name, '')}"
