"""MQTT 3.1, 3.1.1 and 5.0: over TCP, and over WebSocket as sub-protocol `mqtt`."""

from hubbub.protocols.mqtt.protocol import Mqtt

__all__ = ["Mqtt"]
