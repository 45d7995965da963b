"""A fourth protocol in one folder. Line in the registry: "examples.protocol_telnet:Telnet".

    hello alice                 the first line says who you are
    sub sensors/#               you see what SMQ, MQTT and message-switch clients publish there
    pub sensors/door open       they see this
"""

from hubbub.core.connection import Connection, Opening, Protocol
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.session import Session, Subscription
from hubbub.errors import ProtocolError


class Line(Encoding):
    def encode(self, run: Run) -> bytes:
        return b"".join(m.topic.encode() + b" " + m.payload + b"\r\n" for m in run.messages())


LINES = (Line(), Line(), Line())


class TelnetSession(Session):
    link: Link

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.link.write(run.seen_as(subscription.encodings[run.qos]))


class Conversation(Connection):
    rest, session = b"", None
    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            verb, _, argument = line.strip().decode("utf-8", "replace").partition(" ")
            if self.session is None:
                self.session = TelnetSession("telnet", argument, self.opening.gate.rights)
                self.session.link = self.link
                self.broker.connect(self.session)
            elif verb == "sub":
                self.broker.subscribe(Subscription(self.session, argument, 0, LINES))
            elif verb == "pub":
                topic, _, text = argument.partition(" ")
                self.broker.post(Message(topic, text.encode()), self.session)
            else:
                raise ProtocolError(f"{verb!r} is no command", b"sub FILTER | pub TOPIC TEXT\r\n")

    def lost(self, reason: str) -> None:
        if self.session is not None:
            self.broker.disconnect(self.session, reason)


class Telnet(Protocol):
    name = "telnet"

    def opens(self, data: bytes) -> bool | None:
        return data.startswith(b"hello ") or (None if b"hello ".startswith(data) else False)

    def connect(self, link: Link, opening: Opening) -> Connection:
        return Conversation(self.broker, link, opening)
