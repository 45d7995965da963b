"""MQTT 3.1 and 3.1.1: over TCP, and over WebSocket as sub-protocol `mqtt`."""

from hubbub.protocols.mqtt.connection import Mqtt

__all__ = ["Mqtt"]
