"""A fourth protocol in one folder. Line in the registry: "examples.protocol_telnet:Telnet".

    hello alice secret          the first line says who you are
    sub sensors/#               you see what SMQ, MQTT and message-switch clients publish there
    pub sensors/door open       they see this
"""

from hubbub.core import client
from hubbub.core.connection import Admission, Connection, Opening, Protocol
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

    def taken_over(self) -> None:
        self.link.close("the same name said hello again")


class Conversation(Connection):
    rest, session = b"", None

    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if self.asking:
                client.keep(self, line + b"\n")
            else:
                self.take(*line.strip().decode("utf-8", "replace").partition(" ")[::2])

    def take(self, verb: str, argument: str) -> None:
        first, _, rest = argument.partition(" ")
        if self.session is None:
            client.admit(self, first, first, rest.encode(), self.decided)
        elif verb == "sub":
            try:
                client.subscribe(self.broker, wish := Subscription(self.session, first, 0, LINES))
                client.catch_up(self.broker, wish)
            except client.Refused as refusal:
                self.link.write(f"no: {refusal}\r\n".encode())
        elif verb == "pub":
            self.broker.post(Message(first, rest.encode()), self.session)
        else:
            raise ProtocolError(f"{verb!r} is no command", b"sub FILTER | pub TOPIC TEXT\r\n")

    def decided(self, admission: Admission | None, reason: str) -> None:
        if admission is None:
            self.link.write(reason.encode() + b"\r\n")
            return self.link.close(reason)
        self.session = TelnetSession("telnet", admission.client, admission.rights)
        self.session.link = self.link
        self.broker.connect(self.session, admission)

    def lost(self, reason: str) -> None:
        self.asking = False
        if self.session is not None:
            self.broker.disconnect(self.session, reason)


class Telnet(Protocol):
    name = "telnet"

    def opens(self, data: bytes) -> bool | None:
        return data.startswith(b"hello ") or (None if b"hello ".startswith(data) else False)

    def connect(self, link: Link, opening: Opening) -> Connection:
        return Conversation(self.broker, link, opening)
