"""What packets are made of: numbers, strings and, in 5.0, properties. Used by the codec.

    number      big-endian, or 7 bits a byte, lowest first, high bit = more (variable)
    string      u16 length, UTF-8 without U+0000
    properties  variable length of all, then each as identifier (variable) and value

What cannot be read is a PacketError, which knows its reason code. Never keeps state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.core.limits import PROPERTIES_BYTES, USER_PROPERTIES
from hubbub.errors import ProtocolError
from hubbub.protocols.mqtt.specification import (
    BINARY,
    BYTE,
    MALFORMED,
    NAMES,
    PAIR,
    PROPERTIES,
    PROTOCOL,
    STRING,
    SUBSCRIPTION_ID,
    TOO_LARGE,
    U16,
    U32,
    USER_PROPERTY,
    VARIABLE,
)

NO_PROPERTIES: Final = b"\0"
MAX_VARIABLE: Final = 268_435_455


class PacketError(ProtocolError):
    """Bytes that MQTT does not allow, with the reason code that 5.0 has for it."""

    def __init__(self, reason: str, code: int = MALFORMED, reply: bytes = b"") -> None:
        super().__init__(reason, reply)
        self.code = code


def variable(number: int) -> bytes:
    """A variable byte integer (1.5.5): at most 268,435,455."""
    if number < 128:
        return bytes((number,))
    if number > MAX_VARIABLE:
        raise ValueError(f"MQTT has no length of {number}")
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def string(text: bytes) -> bytes:
    if len(text) > 65_535:
        raise ValueError("MQTT strings have at most 65,535 bytes")
    return len(text).to_bytes(2, "big") + text


class Properties:
    """The properties of one packet (2.2.2). Absent ones are absent here too.

    `numbers` and `texts` are by identifier; `user` are the user properties in their order, of
    which a name may appear twice; `subscriptions` the subscription identifiers.
    """

    __slots__ = ("numbers", "subscriptions", "texts", "user")

    def __init__(
        self,
        numbers: dict[int, int] | None = None,
        texts: dict[int, bytes] | None = None,
        user: list[tuple[bytes, bytes]] | None = None,
        subscriptions: list[int] | None = None,
    ) -> None:
        self.numbers = numbers if numbers is not None else {}
        self.texts = texts if texts is not None else {}
        self.user = user if user is not None else []
        self.subscriptions = subscriptions if subscriptions is not None else []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        return (self.numbers, self.texts, self.user, self.subscriptions) == (
            other.numbers, other.texts, other.user, other.subscriptions
        )  # fmt: skip

    def __repr__(self) -> str:
        known = {PROPERTIES[key].name: value for key, value in self.numbers.items()}
        texts = {PROPERTIES[key].name: value for key, value in self.texts.items()}
        return f"Properties({known | texts}, user={self.user}, ids={self.subscriptions})"

    def count(self) -> int:
        """How many there are, but for those of which there may be several."""
        return len(self.numbers) + len(self.texts)

    def encode(self) -> bytes:
        """All of them behind their length."""
        if not (self.numbers or self.texts or self.user or self.subscriptions):
            return NO_PROPERTIES
        said = self.listed()
        return variable(len(said)) + said

    def listed(self) -> bytes:
        """All of them, without their length."""
        out = bytearray()
        for key, number in self.numbers.items():
            out.append(key)
            out += _WRITERS[PROPERTIES[key].type](number)
        for key, text in self.texts.items():
            out.append(key)
            out += string(text)
        for name, value in self.user:
            out.append(USER_PROPERTY)
            out += string(name) + string(value)
        for identifier in self.subscriptions:
            out.append(SUBSCRIPTION_ID)
            out += variable(identifier)
        return bytes(out)


_WRITERS: Final[dict[str, Callable[[int], bytes]]] = {
    BYTE: lambda number: number.to_bytes(1, "big"),
    U16: lambda number: number.to_bytes(2, "big"),
    U32: lambda number: number.to_bytes(4, "big"),
    VARIABLE: variable,
}


def check_properties(name: str, size: int, most: int = PROPERTIES_BYTES) -> None:
    """PacketError if a packet of that name says that it has more bytes of properties."""
    if size > most:
        reason = f"a {name} with {size} bytes of properties; at most {most} are taken"
        raise PacketError(reason, TOO_LARGE)


class Reader:
    """Takes a packet's body apart; whatever is missing or too much is a PacketError."""

    __slots__ = ("at", "body", "end_at", "name")

    def __init__(self, body: bytes, name: str) -> None:
        self.body = body
        self.at = 0
        self.end_at = len(body)
        self.name = name

    def more(self) -> bool:
        return self.at < self.end_at

    def end(self) -> None:
        if self.more():
            raise PacketError(f"a {self.name} with {self.end_at - self.at} bytes too many")

    def _take(self, size: int, what: str) -> bytes:
        at = self.at
        if at + size > self.end_at:
            raise PacketError(f"a {self.name} that ends inside its {what}")
        self.at = at + size
        return self.body[at : at + size]

    def byte(self, what: str) -> int:
        at = self.at
        if at >= self.end_at:
            raise PacketError(f"a {self.name} that ends inside its {what}")
        self.at = at + 1
        return self.body[at]

    def u16(self, what: str) -> int:
        both = self._take(2, what)
        return both[0] << 8 | both[1]

    def u32(self, what: str) -> int:
        return int.from_bytes(self._take(4, what), "big")

    def variable(self, what: str) -> int:
        number = self.byte(what)
        if number < 128:
            return number
        number, shift = number & 127, 7
        while shift < 28:
            byte = self.byte(what)
            number |= (byte & 127) << shift
            if byte < 128:
                if not byte:
                    raise PacketError(f"a {self.name} whose {what} is longer than it need be")
                return number
            shift += 7
        raise PacketError(f"a {self.name} whose {what} has more than four bytes")

    def packet_id(self) -> int:
        number = self.u16("packet id")
        if number == 0:
            raise PacketError(f"a {self.name} with packet id 0", PROTOCOL)
        return number

    def blob(self, what: str) -> bytes:
        at, body = self.at, self.body
        begin = at + 2
        if begin <= self.end_at:
            end = begin + (body[at] << 8 | body[at + 1])
            if end <= self.end_at:
                self.at = end
                return body[begin:end]
        raise PacketError(f"a {self.name} that ends inside its {what}")

    def string(self, what: str) -> bytes:
        """UTF-8 without U+0000 (1.5.4)."""
        text = self.blob(what)
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError:
                raise PacketError(f"a {self.name} whose {what} is not UTF-8") from None
        if 0 in text:  # with b"\0" Python makes an exception and drops it, each time
            raise PacketError(f"a {self.name} whose {what} contains U+0000")
        return text

    def properties(self, packet: int, most: int = PROPERTIES_BYTES) -> Properties:
        """The properties that follow, checked against the table for this type of packet."""
        found = Properties()
        size = self.variable("length of properties")
        check_properties(self.name, size, most)
        stop = self.at + size
        if stop > self.end_at:
            raise PacketError(f"a {self.name} that ends inside its properties")
        whole, self.end_at = self.end_at, stop
        while self.at < stop:
            self._property(packet, found)
        self.end_at = whole
        return found

    def _property(self, packet: int, found: Properties) -> None:
        key = self.variable("property identifier")
        known = PROPERTIES.get(key)
        if known is None:
            raise PacketError(f"a {self.name} with the unknown property {key:#04x}")
        name = known.name
        if packet not in known.packets:
            raise PacketError(f"a {NAMES[packet]} with the property {name}")
        if known.type == PAIR:
            if len(found.user) >= USER_PROPERTIES:
                reason = f"a {self.name} with more than {USER_PROPERTIES} user properties"
                raise PacketError(reason, TOO_LARGE)
            found.user.append((self.string(name), self.string(name)))
            return
        if key in found.numbers or key in found.texts:
            raise PacketError(f"a {self.name} with two properties {name}", PROTOCOL)
        if known.type == STRING:
            found.texts[key] = self.string(name)
        elif known.type == BINARY:
            found.texts[key] = self.blob(name)
        else:
            number = self._number(known.type, name)
            if not known.least <= number <= known.most:
                raise PacketError(f"a {self.name} with {name} {number}", PROTOCOL)
            if key == SUBSCRIPTION_ID:
                found.subscriptions.append(number)
            else:
                found.numbers[key] = number

    def _number(self, kind: str, name: str) -> int:
        if kind == BYTE:
            return self.byte(name)
        if kind == U16:
            return self.u16(name)
        return self.u32(name) if kind == U32 else self.variable(name)
