"""A fourth protocol in one folder. Line in the registry: "examples.protocol_telnet:Telnet".

    hello alice secret          the first line says who you are
    sub sensors/#               you see what SMQ, MQTT and message-switch clients publish there
    pub sensors/door open       they see this
"""

from hubbub.core import client
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Opening
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.session import Subscription
from hubbub.errors import ProtocolError


class Line(Encoding):
    def encode(self, run: Run) -> bytes:
        return b"".join(m.topic.encode() + b" " + m.payload + b"\r\n" for m in run.messages())


LINES = (Line(), Line(), Line())


class Conversation(client.Conversation):
    rest = b""

    def hear(self, data: bytes) -> None:
        self.rest += data
        while not self.asking and b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            self.take(*line.strip().decode("utf-8", "replace").split(" ", 2))

    def take(self, verb: str, name: str = "", text: str = "") -> None:
        try:
            if self.session is None:
                self.log_in(name, name, text.encode())
            elif verb == "sub":
                wish = Subscription(self.session, name, 0, LINES)
                client.subscribe(self.broker, wish)
                client.catch_up(self.broker, wish)
            elif verb == "pub":
                client.publish(self.broker, Message(name, text.encode()), self.session)
            else:
                raise ProtocolError(f"{verb!r} is no command", b"sub FILTER | pub TOPIC TEXT\r\n")
        except client.Refused as refusal:
            self.refuse(str(refusal))

    def refuse(self, reason: str) -> None:
        self.link.write(f"no: {reason}\r\n".encode())


class Telnet(Protocol):
    name = "telnet"

    def opens(self, data: bytes) -> bool | None:
        return data.startswith(b"hello ") or (None if b"hello ".startswith(data) else False)

    def connect(self, link: Link, opening: Opening) -> Connection:
        return Conversation(self.broker, link, opening)
