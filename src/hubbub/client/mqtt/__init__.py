"""An MQTT client on asyncio, for 3.1, 3.1.1 and 5, over TCP, TLS and WebSocket.

    async with connect("mqtt://user:password@127.0.0.1:1883") as client:
        await client.subscribe("sensors/#", qos=1)
        await client.publish("sensors/1", b"21.5", qos=1)
        async for message in client.messages():
            print(message.topic, message.payload)

It keeps its promises over lost connections: it connects again with growing pauses, subscribes
again if the broker has forgotten, and sends again what was not acknowledged. Reuses the hub's
codec, and nothing else of the hub.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from hubbub.client.mqtt.client import MqttClient, Settings
from hubbub.client.mqtt.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    Limits,
    Message,
    Will,
)
from hubbub.client.mqtt.packets import LEVELS, Exchange, Refusal
from hubbub.client.mqtt.sayable import check_identity, check_will
from hubbub.client.mqtt.scram import Scram
from hubbub.client.mqtt.transport import SCHEMES, tls_context
from hubbub.errors import SettingError, without_user
from hubbub.protocols.mqtt.codec import specification

__all__ = [
    "AT_LEAST_ONCE", "AT_MOST_ONCE", "EXACTLY_ONCE", "Exchange",
    "Limits", "Message", "MqttClient", "Refusal", "Scram", "Will", "connect", "tls_context",
]  # fmt: skip

WINDOW: Final = 20  # as brokers do toward us
RECEIVE_MAXIMUM: Final = 100
BACKOFF: Final = (0.5, 30.0)


def connect(
    url: str,
    client_id: str = "",
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    *,
    version: str | int = "",
    username: str | None = None,
    password: str | bytes | None = None,
    session_expiry: int | None = None,
    window: int = WINDOW,
    receive_maximum: int = RECEIVE_MAXIMUM,
    reconnect: bool = True,
    backoff: tuple[float, float] = BACKOFF,
    buffer: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    exchange: Callable[[], Exchange] | None = None,
) -> MqttClient:
    """A client for `mqtt://[user[:password]@]HOST[:PORT]`, or `mqtts`, `ws`, `wss`.

    To be entered with `async with`. `version` is "3.1", "3.1.1" or "5";
    without it, 5 if the broker speaks it, else 3.1.1. `clean=False` keeps session and missed
    messages in the broker and needs a `client_id`; in MQTT 5 `session_expiry` says for how many
    seconds, else for ever. `keep_alive` in seconds, 0 = none. `window`: so many messages of
    QoS 1 and 2 are under way to the broker at a time, `receive_maximum` so many to us.
    `reconnect=False` ends the client with its first connection; `backoff` is the first and
    the longest pause in seconds between two attempts. `buffer` is a file which keeps messages of
    QoS 1 and 2 until the broker has them; it needs a `client_id`. `tls` as `tls_context` makes
    it. `exchange` makes the client's side of an enhanced authentication (MQTT 5),
    as `partial(Scram, user, password)` does.
    SettingError for what does not fit together.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        shown, schemes = without_user(url), ", ".join(SCHEMES)
        raise SettingError(f"expected a URL that begins with {schemes}, got {shown!r}")
    level = LEVELS.get(str(version), -1) if version else 0
    if level < 0:
        raise SettingError(f"expected MQTT version 3.1, 3.1.1 or 5, got {version!r}")
    if exchange is not None and level not in (0, 5):
        raise SettingError("enhanced authentication needs MQTT 5")
    level = 5 if exchange is not None else level
    if not client_id and (buffer is not None or not clean):
        raise SettingError("what outlives this program needs a name: give a client_id")
    if will is not None:
        check_will(will)
    if not 0 <= keep_alive <= 65_535:
        raise SettingError(f"expected a keep_alive of 0 to 65,535 seconds, got {keep_alive}")
    if username is None and parts.username is not None:
        username = unquote(parts.username)
    if password is None and parts.password is not None:
        password = unquote(parts.password)
    if session_expiry is None:
        session_expiry = 0 if clean else specification.NEVER
    check_identity("a client id", client_id)
    check_identity("a user name", username or "")
    secret = password.encode("utf-8", "surrogateescape") if isinstance(password, str) else password
    return MqttClient(
        Settings(
            parts, level, client_id, clean, keep_alive, will, username, secret, session_expiry,
            receive_maximum, window, reconnect, backoff,
            Path(buffer) if buffer is not None else None, tls, exchange,
        )
    )  # fmt: skip
