"""An MQTT connection until its session is at hand: the CONNECT, who it is, and where it goes on.

    NEW ── CONNECT ──> accepted ──> CONNECTED          the session is here, or begins here
      └── PROVING ── AUTH <──> AUTH ──┘ └──> RELAYED   it is at another node of the cluster

A relayed connection moves bytes and knows no packets: all of MQTT is done where the session is.
What is left to it is to say the last word when that cannot be reached any more. `connection` goes
on with all others. No I/O.
"""

from __future__ import annotations

import logging
from typing import Final

from hubbub.core.client import admit
from hubbub.core.connection import Connection
from hubbub.core.gate import Admission, Exchange, Opening
from hubbub.core.homes import Way
from hubbub.core.link import Link
from hubbub.core.rights import kind_of, words_of
from hubbub.core.session import NO_ROUTES
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError, Properties
from hubbub.protocols.mqtt.dialect import PLAIN, Dialect
from hubbub.protocols.mqtt.session import ANY_PACKET, NAME, MqttSession
from hubbub.protocols.mqtt.sessions import Sessions
from hubbub.protocols.mqtt.welcome import REFUSALS, UNANSWERED, check, in_words, refusal
from hubbub.schema import name_from_wire

# States
NEW: Final = 0  # nothing was said, or the gate thinks about it
PROVING: Final = 1  # it shows its credentials step by step (5.0, 4.12)
CONNECTED: Final = 2
OVER: Final = 3
RELAYED: Final = 4


NOTHING: Final = Properties()  # shared by all who ask for none: never added to
MOVING: Final = "its session moves between nodes: connect again"

log = logging.getLogger("hubbub.mqtt")


class Arriving(Connection):
    """`session` is None until the CONNECT is accepted, and where it is relayed.

    `_asked`, until it is accepted, and `_client` are what it said in its CONNECT, `_said` that
    packet without secrets, `_expiry` how many seconds its session outlives it. `_exchange` is the
    conversation about credentials under way, `_way` leads to the home of the session.
    """

    # Of the class, as `Connection.early`
    _exchange: Exchange | None = None
    _way: Way | None = None
    _said = b""
    _bridge = False

    def __init__(self, protocol: Sessions, link: Link, opening: Opening) -> None:
        super().__init__(protocol.broker, link, opening)
        self._v5 = self._old = self._costly = False
        self.protocol = protocol
        self.session: MqttSession | None = None
        self._routes = NO_ROUTES
        self._dialect: Dialect = PLAIN
        self._encodings = PLAIN.encodings(2)
        self._asked: codec.Connect | None = None
        self._wants = NOTHING
        self._client, self._expiry = "", 0
        self.state = NEW

    def _accept(self, admission: Admission, proof: Properties) -> None:
        """Take the client in; `proof` is what the exchange of credentials says to it."""
        raise NotImplementedError

    def _finish(self, reason: str, code: int = spec.SUCCESS) -> None:
        """The connection is over; a `code` is told to a client of 5.0."""
        raise NotImplementedError

    def end_for(self, reason: str, code: int) -> None:
        self._finish(reason, code)

    def _connect(self, body: bytes) -> None:
        asked = codec.parse_connect(body)
        self._asked = asked
        self._v5 = asked.properties is not None
        self._old = asked.version == "3.1"
        self._wants = asked.properties or NOTHING
        self._dialect = self.protocol.dialect(asked.version, self.opening.mount)
        self._encodings = self._dialect.encodings(2)
        self._client = name_from_wire(asked.client)
        check(self.protocol, asked)
        if not (asked.clean or self.broker.homes.alone):
            self._said = codec.without_secrets(body, asked)
        method = self._wants.texts.get(spec.AUTH_METHOD)
        if method is not None:
            self._begin_exchange(method)
            return
        user = name_from_wire(asked.user or b"")
        admit(self, self._client, user, asked.password or b"", self._judged)

    def _judged(self, admission: Admission | None, reason: str) -> None:
        """The gate has decided."""
        if admission is None:
            code = REFUSALS.get(kind_of(reason), spec.NOT_ALLOWED)
            if code == spec.BAD_LOGIN and self._asked and self._asked.password is None:
                code = spec.NOT_ALLOWED  # nothing to be wrong with: as mosquitto has it
            self.link.write(refusal(self._v5, code, self._reason(words_of(reason))))
            self._finish(f"refused: {words_of(reason)}")
            return
        self._decided(admission, NOTHING)

    def _decided(self, admission: Admission, proof: Properties) -> None:
        """It may come in: where its session is."""
        asked, homes = self._asked, self.broker.homes
        assert asked is not None
        if self._client and asked.clean:
            homes.end(NAME, self._client)
        elif self._client and (home := homes.of(NAME, self._client)) is not None:
            lacks = home.lacks or (MOVING if self.opening.via else "")
            if lacks:
                self.link.write(refusal(self._v5, spec.UNREACHABLE, self._reason(lacks)))
                self._finish(f"refused: {lacks}")
                return
            self.state = RELAYED
            shown = proof.texts.get(spec.AUTH_DATA, b"")
            said, self._said = self._said, b""
            self._way = homes.relay(
                home, self.link, admission, said, shown, self._stranded
            )
            return
        self._accept(admission, proof)

    # Relayed

    def waiting(self) -> int:
        return self._way.waiting() if self._way is not None else 0

    def _stranded(self, reason: str) -> None:
        """The home of its session cannot be reached any more."""
        way = self._way
        if way is None or self.state == OVER:
            return
        if not way.answered:
            self.link.write(refusal(self._v5, spec.UNREACHABLE, self._reason(reason)))
        elif self._v5 and way.whole:
            self.link.write(codec.disconnect(spec.UNSPECIFIED, self._reason(reason).encode()))
        self._way = None
        self._finish(reason)

    # What it is told

    def _say_last(self, code: int, reason: str) -> None:
        """What a client of 5.0 is told before its connection is closed, behind all that waits."""
        unsaid = self.state == NEW and code in UNANSWERED
        if not self._v5 or self.state == OVER or unsaid:
            return
        properties = self._reason(reason)
        if self._way is not None:
            if not (self._way.answered and self._way.whole):
                return
            packet = codec.disconnect(code, properties.encode())
        elif self.session is None:
            packet = refusal(True, code, properties)
        else:
            packet = codec.disconnect(code, properties.encode())
        if len(packet) <= self._wants.numbers.get(spec.MAXIMUM_PACKET, ANY_PACKET):
            self.link.hold(packet)

    def _reason(self, text: str) -> Properties:
        return in_words(text, self._wants)

    # Enhanced authentication (5.0, 4.12)

    def _begin_exchange(self, method: bytes) -> None:
        exchange = self.opening.exchange(name_from_wire(method), self._client)
        if exchange is None:
            reason = f"the authentication method {method[:40]!r} is not known here"
            raise PacketError(reason, spec.BAD_METHOD)
        self._exchange = exchange
        self.state = PROVING
        self._step(exchange, self._wants.texts.get(spec.AUTH_DATA, b""))

    def _give_up(self, body: bytes) -> None:
        """A client may leave in the middle of its proof."""
        self._finish("")

    def _auth(self, body: bytes) -> None:
        code, properties = codec.parse_ending(codec.AUTH, body)
        method = self._wants.texts.get(spec.AUTH_METHOD)
        if method is None or properties.texts.get(spec.AUTH_METHOD) != method:
            raise PacketError("an AUTH of another method than the CONNECT's", spec.PROTOCOL)
        if code == spec.REAUTHENTICATE and self.session is not None and self._exchange is None:
            self._exchange = self.opening.exchange(name_from_wire(method), self._client)
        elif code != spec.CONTINUE:
            raise PacketError(f"an AUTH with the reason code {code:#04x} here", spec.PROTOCOL)
        if self._exchange is None:
            raise PacketError("an AUTH that answers nothing", spec.PROTOCOL)
        self._step(self._exchange, properties.texts.get(spec.AUTH_DATA, b""))

    def _step(self, exchange: Exchange, data: bytes) -> None:
        step = exchange.step(data)
        proof = Properties(texts={spec.AUTH_METHOD: self._wants.texts[spec.AUTH_METHOD]})
        if step.data:
            proof.texts[spec.AUTH_DATA] = step.data
        if not step.done:
            self.link.write(codec.auth(spec.CONTINUE, proof.encode()))
            return
        self._exchange = None
        admission, session = step.admission, self.session
        if admission is None:
            code = REFUSALS.get(kind_of(step.reason), spec.NOT_ALLOWED)
            raise PacketError(words_of(step.reason), code)
        if session is None:
            self.broker.take_over(admission)
            self._decided(admission, proof)
            return
        if admission.user != session.user:
            reason = f"an AUTH as another user than {session.user!r}"
            raise PacketError(reason, spec.NOT_ALLOWED)
        self.broker.entitle(session, admission)
        self.broker.shortcuts.forget(self._routes)
        self._routes = NO_ROUTES
        self.link.write(codec.auth(spec.SUCCESS, proof.encode()))
