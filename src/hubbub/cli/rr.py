"""`hubbub rr`: publishes a request over MQTT and prints the response."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hubbub.cli import payload
from hubbub.cli.options import takes
from hubbub.cli.pub import one_topic, pairs, refuse_wildcards
from hubbub.cli.sub import TIMED_OUT
from hubbub.cli.target import Target
from hubbub.client import run
from hubbub.client.mqtt import Message, MqttClient
from hubbub.client.mqtt.message import answer_in
from hubbub.errors import CallTimeout, SettingError
from hubbub.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
@takes(Target)
def rr(
    target: Target,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the request goes.")] = "",
    named: Annotated[str, typer.Option("--topic", "-t", help="The topic, as an option.")] = "",
    response_topic: Annotated[
        str,
        typer.Option("--response-topic", "-e", help="Where the response comes; else our own."),
    ] = "",
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="The request; without it, stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The request is what this file holds.")
    ] = None,
    empty: Annotated[bool, typer.Option("--null", "-n", help="An empty request.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", "-s", help="All of stdin is one.")] = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="0, 1 or 2.")] = 0,
    seconds: Annotated[
        float | None, typer.Option("--timeout", "-W", min=0, help="Wait no longer; else for ever.")
    ] = None,
    content_type: Annotated[str, typer.Option(help="What the request is.")] = "",
    user: Annotated[
        list[str] | None, typer.Option("--user-property", metavar="NAME=VALUE", help="One more.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the topic before the response.")
    ] = False,
    template: Annotated[
        str | None, typer.Option("--format", "-F", help="As mosquitto_rr: %t %p %q %r %x %j …")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    as_hex: Annotated[bool, typer.Option("--hex", help="The payload in hexadecimal.")] = False,
    decoded: Annotated[
        bool, typer.Option("--decode", help="JSON, CBOR and MessagePack as JSON.")
    ] = False,
) -> None:
    if target.smq:
        raise SettingError("rr is for MQTT; over SMQ answer to the sender of a message")
    plain = not (verbose or as_json or as_hex or decoded)
    show = payload.printer(
        "%p" if plain and template is None else template, as_json, as_hex, decoded
    )
    name = one_topic(topic, named, target.topic)
    refuse_wildcards(target, name)
    request = payload.given(message, file, empty, stdin)
    options = {"content_type": content_type, "user": pairs(user or [])}
    options = {key: value for key, value in options.items() if value}
    try:
        run(_ask(target, name, response_topic, request, qos, seconds, options, show))
    except CallTimeout as error:
        say(f"hubbub: {error}", stream=sys.stderr)
        raise typer.Exit(TIMED_OUT) from None
    except KeyboardInterrupt:
        raise typer.Exit(1) from None


async def _ask(
    target: Target, topic: str, response_topic: str, request: bytes, qos: int,
    seconds: float | None, options: dict[str, Any], show: payload.Printer,
) -> None:  # fmt: skip
    async with target.connect(reconnect=False) as client:
        if response_topic:
            reply = await _listen(client, topic, response_topic, request, qos, seconds, options)
        else:
            reply = await client.call(topic, request, seconds, qos, **options)
    payload.put(show(reply))


async def _listen(
    client: MqttClient, topic: str, response_topic: str, request: bytes, qos: int,
    seconds: float | None, options: dict[str, Any],
) -> Message:  # fmt: skip
    """Whatever comes on the response topic is the response: also before MQTT 5."""
    await client.subscribe(response_topic, qos)
    if client.version == "5":
        options = options | {"response_topic": response_topic}
    try:
        async with asyncio.timeout(seconds):
            await client.publish(topic, request, qos, **options)
            return answer_in(await anext(client.messages()))
    except TimeoutError:
        raise CallTimeout(f"no response on {response_topic} within {seconds:g} s") from None
