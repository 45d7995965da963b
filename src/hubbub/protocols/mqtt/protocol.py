"""How a connection begins that speaks MQTT: by its first byte, or as a WebSocket. No I/O."""

from __future__ import annotations

from typing import Final

from hubbub.core.connection import Connection
from hubbub.core.gate import Opening
from hubbub.core.link import Link
from hubbub.protocols.mqtt.connection import MqttConnection
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.wire.http import Request

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")


class Mqtt(Sessions):
    """The protocol as the listener sees it."""

    moves = True

    def opens(self, data: bytes) -> bool | None:
        return data[0] == 0x10

    def takes(self, request: Request) -> bool:
        if not request.websocket:
            return False
        asked = request.listed("sec-websocket-protocol")
        for subprotocol in SUBPROTOCOLS:
            if subprotocol in asked:
                request.subprotocol = subprotocol
                return True
        return request.path == b"/mqtt"

    def connect(self, link: Link, opening: Opening) -> Connection:
        return MqttConnection(self, link, opening)
