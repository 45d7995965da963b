"""One MQTT connection as the client sees it: from its CONNECT to its end.

    opened ── CONNACK ──> taken ── DISCONNECT, error, silence ──> over

It knows the version, what the broker allows, topic aliases both ways, and the keep-alive. What
has to be remembered beyond its end is in the `Session`. Called by the client and the transport.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hubbub.client.mqtt import packets
from hubbub.client.mqtt.message import Limits, Message
from hubbub.client.mqtt.packets import Opening, Options, Refusal
from hubbub.client.mqtt.transport import Transport
from hubbub.errors import HubbubError, Refused, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import specification
from hubbub.wire.bytes import Gathering

if TYPE_CHECKING:
    from hubbub.client.mqtt.session import Session

ALIASES: Final = 64  # topics that the broker may send as a number
OWN_ALIASES: Final = 1_024  # the most that we use of what the broker allows
ALIAS_BYTES: Final = 32  # topics from here on: below, an alias costs the broker more than it saves


class Connection:
    """Packets over one transport.

    `taken` is called at once when the broker has accepted, with whether the session is present:
    what follows the CONNACK in the same piece finds everything ready. Then `accepted` is done.
    `over` is done when the connection is lost, with the reason; of a close by us, None.
    """

    def __init__(
        self, opening: Opening, session: Session, taken: Callable[[Connection, bool], None]
    ) -> None:
        self.level = opening.level
        self.limits = Limits()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._opening = opening
        self._session = session
        self._taken = taken
        self._transport: Transport | None = None
        self._gathering = Gathering()
        self._error: Exception | None = None
        self._closing = False
        # Aliases: the broker's by number; ours by topic, the least recently used first.
        self._topics: dict[int, str] = {}
        self._aliases: OrderedDict[str, int] = OrderedDict()
        # Keep-alive.
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._loop.time()
        self._pings: list[asyncio.Future[None]] = []
        self._handlers = {
            codec.CONNACK: self._take_connack,
            codec.PUBREL: self._take_pubrel,
            codec.PINGRESP: self._take_pong,
            codec.DISCONNECT: self._take_disconnect,
            codec.AUTH: self._take_auth,
        }

    def open(self, transport: Transport) -> None:
        """Ask to be taken; `accepted` will tell."""
        self._transport = transport
        transport.write(packets.connect(self._opening))

    # What the client says

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def written(self) -> None:
        if self._transport is not None:
            await self._transport.written()

    def objection(self, message: Message) -> HubbubError | None:
        """Why this broker will not take such a message, if so."""
        limits = self.limits
        if self.level < 5 and not message.plain:
            return SettingError(
                "content type, response topic, correlation, expiry and user properties need "
                "MQTT 5, which this broker does not speak, or which was not asked for"
            )
        if message.qos > limits.maximum_qos:
            return Refusal(f"the broker takes no QoS above {limits.maximum_qos}", 0x9B)
        if message.retain and not limits.retain_available:
            return Refusal("the broker keeps no retained messages", 0x9A)
        if limits.maximum_packet_size is not None:
            size = len(packets.publish(self.level, message, 1))
            if size > limits.maximum_packet_size:
                return Refusal(
                    f"a packet of {size} bytes; the broker takes {limits.maximum_packet_size}", 0x95
                )
        return None

    def publish(self, message: Message, packet_id: int = 0, dup: bool = False) -> None:
        """Send a PUBLISH, in MQTT 5 with an alias for a long topic if the broker allows any."""
        topic, alias = message.topic, 0
        if self.limits.topic_alias_maximum and len(topic) >= ALIAS_BYTES:
            alias, known = self._alias(topic)
            if known:
                topic = ""
        self._write(packets.publish(self.level, message, packet_id, dup, alias, topic))

    def _alias(self, topic: str) -> tuple[int, bool]:
        """The alias of a topic, and whether the broker knows it."""
        aliases = self._aliases
        alias = aliases.get(topic, 0)
        if alias:
            aliases.move_to_end(topic)
            return alias, True
        if len(aliases) < min(self.limits.topic_alias_maximum, OWN_ALIASES):
            alias = len(aliases) + 1
        else:
            _, alias = aliases.popitem(last=False)
        aliases[topic] = alias
        return alias, False

    def acknowledge(self, kind: int, packet_id: int) -> None:
        self._write(codec.acknowledgement(kind, packet_id))

    @property
    def identifies(self) -> bool:
        """Whether subscriptions may have identifiers."""
        return self.level >= 5 and self.limits.subscription_identifier_available

    def subscribe(
        self, packet_id: int, filters: list[tuple[str, Options]], identifier: int
    ) -> None:
        self._write(packets.subscribe(self.level, packet_id, filters, identifier))

    def unsubscribe(self, packet_id: int, filters: list[str]) -> None:
        self._write(packets.unsubscribe(self.level, packet_id, filters))

    def ping(self) -> asyncio.Future[None]:
        """Ask for a sign of life; the future is done when it comes."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self.over.done():
            future.set_exception(ConnectionError("the connection is closed"))
            return future
        self._pings.append(future)
        self._write(codec.PINGREQ_PACKET)
        return future

    def close(self) -> None:
        """Say goodbye (so that no will is published) and close."""
        self._closing = True
        if self._transport is not None:
            if self.accepted.done():
                self._write(packets.disconnect(self.level))
            self._transport.close()

    def abort(self, error: Exception) -> None:
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    async def ended(self) -> None:
        if self._transport is not None:
            await self._transport.ended()

    # Keep-alive

    def _keep_alive(self) -> None:
        """Ping twice as often as was promised."""
        if self.limits.keep_alive:
            self._timer = self._loop.call_later(self.limits.keep_alive / 2, self._remind)

    def _remind(self) -> None:
        patience = 1.5 * self.limits.keep_alive
        if self._loop.time() - self._heard > patience:
            self.abort(ConnectionError(f"the broker was silent for {patience:g} s"))
        else:
            self._write(codec.PINGREQ_PACKET)
            self._keep_alive()

    # What the transport says

    def feed(self, data: bytes) -> None:
        self._heard = self._loop.time()
        gathered = self._gathering.add(data)
        if gathered is None or self._error is not None:
            return
        try:
            at = 0
            for start, body, end in codec.packets(gathered):
                self._take(gathered[start], gathered[body:end])
                at = end
            if at < len(gathered):
                _, end = codec.extent(gathered, at)
                self._gathering.keep(gathered[at:], end - at)
        except codec.PacketError as error:
            self._violated(error)
        except Refused as error:  # ours, of an enhanced authentication
            self.abort(error)

    def _violated(self, error: codec.PacketError) -> None:
        if self.level >= 5 and self._transport is not None:
            self._write(packets.disconnect(self.level, error.code))
            self._transport.close()
        self.abort(ConnectionError(f"the broker sent {error.reason}"))

    def lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        cause: Exception = self._error or ConnectionError(self._reason(error))
        if not self.accepted.done():
            self.accepted.set_exception(cause)
            self.accepted.exception()  # maybe nobody waits any more
        for future in self._pings:
            if not future.done():
                future.set_exception(cause)
                future.exception()
        self.over.set_result(None if self._closing else cause)

    def _reason(self, error: Exception | None) -> str:
        if error is None and self.level < 5 and self.accepted.done():
            return (
                "the broker ended the connection without a word, as MQTT "
                f"{packets.VERSIONS[self.level]} has none: it stops, or does not take what was "
                "sent (a full queue, maybe); in version 5 it says why"
            )
        return f"the connection to the broker was lost{f': {error}' if error else ''}"

    # Packets

    def _take(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.PUBLISH:
            self._take_publish(head, body)
        elif kind in packets.ANSWERS:
            self._session.answered(packets.parse_answer(self.level, kind, body))
        elif kind in self._handlers:
            self._handlers[kind](body)
        else:
            raise codec.PacketError(f"a {codec.NAMES[kind]}, which only clients send")

    def _take_publish(self, head: int, body: bytes) -> None:
        message, packet_id, alias = packets.parse_publish(self.level, head, body)
        if alias:
            if message.topic:
                self._topics[alias] = message.topic
            elif alias in self._topics:
                message = message._replace(topic=self._topics[alias])
        if not message.topic:
            raise codec.PacketError("a PUBLISH with an unknown alias", specification.BAD_ALIAS)
        self._session.arrive(message, packet_id)

    def _take_connack(self, body: bytes) -> None:
        present, code, limits = packets.parse_connack(self.level, body)
        if self.accepted.done():
            raise codec.PacketError("a second CONNACK")
        if code:
            error = Refusal("the broker refused the connection", code, limits.reason,
                            limits.server_reference, self.level)  # fmt: skip
            self._error = error
            self.accepted.set_exception(error)
            self.close()
            return
        if self._opening.exchange is not None:
            self._opening.exchange.step(limits.authentication_data)  # that it is the broker
        self.limits = limits._replace(
            keep_alive=limits.keep_alive or self._opening.keep_alive,
            session_expiry=limits.session_expiry or self._opening.session_expiry,
        )
        self._taken(self, present)
        self.accepted.set_result(None)
        self._keep_alive()

    def _take_pubrel(self, body: bytes) -> None:
        self._session.release(int.from_bytes(body[:2], "big"))

    def _take_pong(self, body: bytes) -> None:
        for future in self._pings:
            if not future.done():
                future.set_result(None)
        self._pings.clear()

    def _take_disconnect(self, body: bytes) -> None:
        code, reason, reference = packets.parse_disconnect(body)
        self.abort(Refusal("the broker ended the connection", code, reason, reference))

    def _take_auth(self, body: bytes) -> None:
        exchange = self._opening.exchange
        if exchange is None:
            raise codec.PacketError("an AUTH that nobody asked for")
        method, data = packets.parse_auth(body)
        self._write(packets.auth(method, exchange.step(data)))
