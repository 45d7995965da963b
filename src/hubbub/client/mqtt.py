"""An MQTT 3.1.1 client on asyncio: publish, subscribe, and a stream of messages.

    async with connect("mqtt://user:password@127.0.0.1:1883") as client:
        await client.subscribe("sensors/#", qos=1)
        async for message in client.messages():
            print(message.topic, message.payload)

`publish` returns when the hub has answered as the QoS demands: for QoS 1 and 2 the message is
then safe. A lost connection raises ConnectionError in whatever waits. Reuses the hub's codec.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from hubbub.errors import ProtocolError, Refused
from hubbub.protocols.mqtt import codec
from hubbub.wire.bytes import Gathering

DEFAULT_PORT = 1883
RECEIVED_MESSAGES = 65_536  # arrived and not yet asked for; beyond it the hub has to wait


class Message(NamedTuple):
    """A message as it arrived. `retain`: it was published before the subscription."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Will(NamedTuple):
    """What the hub publishes for this client if it vanishes."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


def connect(
    url: str, client_id: str = "", clean: bool = True, keep_alive: int = 60,
    will: Will | None = None,
) -> MqttClient:  # fmt: skip
    """A client for `mqtt://[user[:password]@]HOST[:PORT]`, to be entered with `async with`.

    `clean=False` keeps session and missed messages in the hub; it needs a `client_id`.
    """
    return MqttClient(url, client_id, clean, keep_alive, will)


class MqttClient:
    """One connection. `session_present` says whether the hub had kept the session."""

    def __init__(
        self, url: str, client_id: str, clean: bool, keep_alive: int, will: Will | None
    ) -> None:
        self.url = url
        self.client_id = client_id or f"hubbub-{secrets.token_hex(6)}"
        self.session_present = False
        self._clean = clean
        self._keep_alive = keep_alive
        self._will = will
        self._protocol = _Conversation()

    async def __aenter__(self) -> MqttClient:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. OSError if nobody answers, Refused with the hub's reason if it says no."""
        parts = urlsplit(self.url)
        loop = asyncio.get_running_loop()
        self._protocol = protocol = _Conversation()
        await loop.create_connection(
            lambda: protocol, parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
        )
        will = None
        if self._will is not None:
            topic, payload, qos, retain = self._will
            will = codec.Will(topic.encode(), payload, qos, retain)
        user = unquote(parts.username).encode() if parts.username is not None else None
        password = unquote(parts.password).encode() if parts.password is not None else None
        protocol.send(
            codec.connect(
                self.client_id.encode(), self._clean, self._keep_alive, will, user, password
            )
        )
        answer = await protocol.answer(codec.CONNACK, 0)
        code = answer[1] if len(answer) == 2 else codec.UNAVAILABLE
        if code:
            protocol.close()
            reasons = codec.RETURN_CODES
            reason = reasons[code] if code < len(reasons) else f"code {code}"
            raise Refused(f"{self.url} refused the connection: {reason}")
        self.session_present = answer[0] & 1 == 1
        protocol.keep_alive(self._keep_alive)

    async def publish(
        self, topic: str, payload: bytes | str, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish; returns when it is written (QoS 0), or acknowledged (QoS 1, 2)."""
        data = payload.encode() if isinstance(payload, str) else payload
        protocol = self._protocol
        if qos == 0:
            protocol.send(codec.publish(topic.encode(), data, 0, retain))
            await protocol.written()
            return
        packet_id = protocol.packet_id()
        try:
            protocol.send(codec.publish(topic.encode(), data, qos, retain, packet_id))
            await protocol.answer(codec.PUBACK if qos == 1 else codec.PUBREC, packet_id)
            if qos == 2:
                protocol.send(codec.acknowledgement(codec.PUBREL, packet_id))
                await protocol.answer(codec.PUBCOMP, packet_id)
        finally:
            protocol.free(packet_id)

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Subscribe; returns the QoS the hub grants. Refused if it grants none."""
        protocol = self._protocol
        packet_id = protocol.packet_id()
        try:
            protocol.send(codec.subscribe(packet_id, [(topic_filter.encode(), qos)]))
            answer = await protocol.answer(codec.SUBACK, packet_id)
        finally:
            protocol.free(packet_id)
        if answer[2] & codec.FAILURE:
            raise Refused(f"the hub does not allow a subscription to {topic_filter}")
        return answer[2]

    async def unsubscribe(self, topic_filter: str) -> None:
        protocol = self._protocol
        packet_id = protocol.packet_id()
        try:
            protocol.send(codec.unsubscribe(packet_id, [topic_filter.encode()]))
            await protocol.answer(codec.UNSUBACK, packet_id)
        finally:
            protocol.free(packet_id)

    async def messages(self) -> AsyncIterator[Message]:
        """Messages as they come, until `close`; ConnectionError if the connection is lost."""
        while True:
            message = await self._protocol.next_message()
            if message is None:
                return
            yield message

    async def close(self) -> None:
        """Say goodbye (so that no will is published) and close."""
        self._protocol.close()
        await self._protocol.ended()


class _Conversation(asyncio.Protocol):
    """Packets over one socket: who waits for which answer, and what arrived."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._gathering = Gathering()
        self._waiting: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._used: set[int] = set()
        self._last_id = 0
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._received: set[int] = set()
        self._error: Exception | None = None
        self._closing = False
        self._room = asyncio.Event()
        self._room.set()
        self._end = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    # Called by the client

    def send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise self._error or ConnectionError("the connection to the hub is closed")
        self._transport.write(data)

    async def written(self) -> None:
        await self._room.wait()

    def answer(self, kind: int, packet_id: int) -> asyncio.Future[bytes]:
        """The body of the packet of that kind and id, when it comes."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
        else:
            self._waiting[kind, packet_id] = future
        return future

    def packet_id(self) -> int:
        if len(self._used) >= 65_535:
            raise ConnectionError("65,535 packets wait for an answer; there are no more ids")
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._used:
                self._used.add(self._last_id)
                return self._last_id

    def free(self, packet_id: int) -> None:
        self._used.discard(packet_id)

    async def next_message(self) -> Message | None:
        message = await self._messages.get()
        if message is None:
            self._messages.put_nowait(None)
            if self._error is not None and not self._closing:
                raise self._error
        elif self._transport is not None and self._messages.qsize() < RECEIVED_MESSAGES // 2:
            self._transport.resume_reading()
        return message

    def keep_alive(self, seconds: int) -> None:
        """Ping twice as often as was promised; the hub ends silent clients."""
        if seconds:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds / 2, self._ping, seconds)

    def _ping(self, seconds: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(codec.PINGREQ_PACKET)
            self.keep_alive(seconds)

    def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is None:
            self._end.set()
        elif not self._transport.is_closing():
            self._transport.write(codec.DISCONNECT_PACKET)
            self._transport.close()

    async def ended(self) -> None:
        await self._end.wait()

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP transport is one

    def data_received(self, data: bytes) -> None:
        gathered = self._gathering.add(data)
        if gathered is None or self._transport is None:
            return
        try:
            at = 0
            for start, body, end in codec.packets(gathered):
                self._take(gathered[start], gathered[body:end])
                at = end
            if at < len(gathered):
                _, end = codec.extent(gathered, at)
                self._gathering.keep(gathered[at:], end - at)
        except ProtocolError as error:
            self._error = ConnectionError(f"the hub sent {error.reason}")
            self._transport.abort()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or ConnectionError(
            f"the connection to the hub was lost{f': {error}' if error else ''}"
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._room.set()
        self._end.set()
        self._messages.put_nowait(None)

    # Packets

    def _take(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.PUBLISH:
            self._publish(head, body)
        elif kind == codec.PUBREL:
            packet_id = codec.parse_packet_id(kind, body)
            self._received.discard(packet_id)
            self.send(codec.acknowledgement(codec.PUBCOMP, packet_id))
        elif kind != codec.PINGRESP:
            packet_id = 0 if kind == codec.CONNACK else int.from_bytes(body[:2], "big")
            future = self._waiting.pop((kind, packet_id), None)
            if future is not None and not future.done():
                future.set_result(body)

    def _publish(self, head: int, body: bytes) -> None:
        packet = codec.parse_publish(head, body)
        if packet.qos == 1:
            self.send(codec.acknowledgement(codec.PUBACK, packet.packet_id))
        elif packet.qos == 2:
            self.send(codec.acknowledgement(codec.PUBREC, packet.packet_id))
            if packet.packet_id in self._received:
                return
            self._received.add(packet.packet_id)
        message = Message(packet.topic.decode(), packet.payload, packet.qos, packet.retain)
        self._messages.put_nowait(message)
        if self._messages.qsize() >= RECEIVED_MESSAGES and self._transport is not None:
            self._transport.pause_reading()
