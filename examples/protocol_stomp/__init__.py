"""A fifth protocol: STOMP 1.0. Line in the registry: "examples.protocol_stomp:Stomp".

CONNECT, SEND, SUBSCRIBE, ACK, DISCONNECT, with receipts. A destination is a name of the hub: a
topic, or `$queue/NAME`, whose messages stay there until their ACK.
"""

import re

from hubbub.core import client
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Opening
from hubbub.core.limits import MESSAGE_BYTES
from hubbub.core.link import Link
from hubbub.core.message import Encoding, Message, Run
from hubbub.core.session import Subscription
from hubbub.errors import ProtocolError

HEAD = re.compile(rb"\s*([A-Z]+)\r?\n((?:[^\r\n]+\r?\n)*)\r?\n")


def frame(command: str, body: bytes = b"", **headers: object) -> bytes:
    lines = [f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items()]
    return f"{command}\n{''.join(lines)}content-length:{len(body)}\n\n".encode() + body + b"\0\n"


class Messages(Encoding):
    def encode(self, run: Run) -> bytes:
        said = [(m.payload, {"destination": m.topic, "message_id": m.seq}) for m in run.messages()]
        return b"".join(frame("MESSAGE", payload, **headers) for payload, headers in said)


MESSAGES = (Messages(), Messages(), Messages())


class Conversation(client.Conversation):
    rest = b""

    def hear(self, data: bytes) -> None:
        self.rest += data
        while not self.asking and (head := HEAD.match(self.rest)):
            lines = head[2].decode("utf-8", "replace").splitlines()
            said = dict(line.partition(":")[::2] for line in reversed(lines))
            at, size = head.end(), said.get("content-length", "")
            end = at + int(size) if size.isdecimal() else self.rest.find(b"\0", at)
            if not at <= end < len(self.rest):
                break
            body, self.rest = self.rest[at:end], self.rest[end + 1 :]
            self.take(head[1].decode(), said, body)
        if len(self.rest) > MESSAGE_BYTES:
            raise ProtocolError("a frame that is too large")

    def take(self, command: str, said: dict[str, str], body: bytes) -> None:
        name, broker, session = said.get("destination", ""), self.broker, self.session
        try:
            if session is None:
                user, secret = said.get("login", ""), said.get("passcode", "").encode()
                return self.log_in(said.get("client-id", user), user, secret)
            if command == "SEND":
                client.publish(broker, Message(name, body, 1), session)
            elif command == "SUBSCRIBE":
                client.subscribe(broker, wish := Subscription(session, name, 1, MESSAGES))
                client.catch_up(broker, wish)
            elif command == "ACK":
                client.acknowledge(broker, session, int(said.get("message-id", "")))
        except (client.Refused, ValueError) as error:
            raise ProtocolError(str(error), frame("ERROR", str(error).encode())) from None
        if "receipt" in said:
            self.link.hold(frame("RECEIPT", receipt_id=said["receipt"]))
        if command == "DISCONNECT":
            self.link.close("")

    def welcome(self, session: client.Client) -> None:
        self.link.write(frame("CONNECTED", session=session.number))

    def refuse(self, reason: str) -> None:
        self.link.write(frame("ERROR", reason.encode()))


class Stomp(Protocol):
    name = "stomp"

    def opens(self, data: bytes) -> bool | None:
        return data.startswith(b"CONNECT\n") or (None if b"CONNECT\n".startswith(data) else False)

    def connect(self, link: Link, opening: Opening) -> Connection:
        return Conversation(self.broker, link, opening)
