"""Scripted clients of all protocols. Each keeps what its protocol asks a client to keep, and
checks at once what it may check: nothing promised that is not on the disk, no id used twice,
order, exactly once. `world` is what they share.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.protocols.smq import codec as smq
from tests.protocols.smq.device import HEAD
from tests.simulation.hub import Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

MESSAGES = 12  # of one publisher


class Client:
    """Somebody with a wire, or without one for now."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.chance = world.chance
        self.name = name
        self.wire: Wire | None = None
        self._rest = b""

    def dial(self) -> None:
        self.wire = Wire(self.world.node)
        self._rest = b""
        self.greet()

    def say(self, data: bytes) -> None:
        if self.wire is not None:
            self.wire.to_hub += data

    def act(self) -> None:
        """Dial, or read what came and do something."""
        wire = self.wire
        if wire is None:
            self.dial()
            return
        if wire.stuck:
            return
        self.hear(wire.read())
        if not wire.open and wire is self.wire:
            self.cut()
        elif self.wire is not None:
            self.work()

    def cut(self) -> None:
        """The connection is gone, with all that was on its way."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.hang_up()

    def vanish(self) -> None:
        """Gone for the client; the hub does not know yet."""
        if self.wire is not None:
            self.world.ghosts.append(self.wire)
        self.wire = None

    def greet(self) -> None: ...

    def hear(self, data: bytes) -> None: ...

    def work(self) -> None: ...

    def done(self) -> bool:
        return True


class MqttClient(Client):
    """`modern`: of 5.0. The session lasts unless it is `clean`."""

    def __init__(self, world: World, name: str, modern: bool, clean: bool = False) -> None:
        super().__init__(world, name)
        self.modern = modern
        self.clean = clean
        self.welcome = False
        self.known = False  # the hub has said once that it has the session

    def greet(self) -> None:
        self.welcome = False
        properties = None
        if self.modern:
            lasting = {} if self.clean else {spec.SESSION_EXPIRY: spec.NEVER}
            properties = Properties(dict(lasting))
        self.say(codec.connect(self.name.encode(), self.clean, 0, properties=properties))

    def hear(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        for start, body, at in codec.packets(data):
            self._take(data[start], data[body:at])
        self._rest = data[at:]

    def _take(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.CONNACK:
            assert body[1] == 0, f"{self.name} was refused: {body!r}"
            assert not self.known or body[0], f"the session of {self.name} is lost"
            self.known = not self.clean
            self.welcome = True
            self.welcomed()
        elif kind == codec.PUBLISH:
            assert self.welcome, "a message before the CONNACK"
            self.message(codec.parse_publish(head, body, self.modern))
        elif kind == codec.DISCONNECT:
            self.world.note(f"{self.name} is told {body!r}")
            assert body[0] in (spec.TAKEN_OVER, spec.SILENCE), (
                f"{self.name} is ended by the hub: {body!r}"
            )
        else:
            if self.modern and kind in (codec.PUBACK, codec.PUBREC) and len(body) > 2:
                assert body[2] < 0x80, f"{self.name} is told {body!r}"
            self.answer(kind, int.from_bytes(body[:2], "big"))

    def welcomed(self) -> None: ...

    def message(self, packet: codec.Publish) -> None: ...

    def answer(self, kind: int, packet_id: int) -> None: ...


class Publisher(MqttClient):
    """Publishes numbered messages and repeats what it must. One QoS a topic, so that each has
    an order. `acknowledged`: by topic, the payloads the hub has taken over.
    """

    def __init__(self, world: World, name: str, modern: bool, topics: dict[str, int]) -> None:
        super().__init__(world, name, modern)
        self.topics = topics
        self.count = 0
        self.open: dict[int, tuple[str, bytes, int, bool]] = {}
        self.released: set[int] = set()
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in topics}
        self.window = 1 + self.chance.randrange(3)

    def welcomed(self) -> None:
        for packet_id in self.open:
            self._send(packet_id, True)

    def _send(self, packet_id: int, dup: bool = False) -> None:
        topic, payload, qos, retain = self.open[packet_id]
        if packet_id in self.released:
            self.say(codec.acknowledgement(codec.PUBREL, packet_id))
            return
        properties = codec.NO_PROPERTIES if self.modern else b""
        self.say(codec.publish(topic.encode(), payload, qos, retain, packet_id, dup, properties))

    def work(self) -> None:
        if self.welcome and self.count < MESSAGES and len(self.open) < self.window:
            topic = self.chance.choice(list(self.topics))
            qos = self.topics[topic]
            self.count += 1
            payload = f"{self.name} {topic} {qos} {self.count}".encode()
            if topic.startswith("c/") and self.count % 2:
                payload = b""  # nothing is retained any more
            packet_id = next(one for one in range(1, 9) if one not in self.open)
            self.open[packet_id] = (topic, payload, qos, topic.startswith(("r/", "c/")))
            self._send(packet_id)

    def answer(self, kind: int, packet_id: int) -> None:
        if packet_id not in self.open:
            return
        topic, payload, qos, _ = self.open[packet_id]
        if kind == codec.PUBREC and qos == 2:
            self._promised(topic, payload)
            self.released.add(packet_id)
            self._send(packet_id)
        elif kind == codec.PUBCOMP and packet_id in self.released:
            self.released.discard(packet_id)
            del self.open[packet_id]
        elif kind == codec.PUBACK and qos == 1:
            self._promised(topic, payload)
            del self.open[packet_id]

    def _promised(self, topic: str, payload: bytes) -> None:
        if payload:
            self.world.must_be_safe(payload, topic)
        if not payload or payload not in self.acknowledged[topic]:
            self.acknowledged[topic].append(payload)

    def done(self) -> bool:
        return self.count == MESSAGES and not self.open


class Subscriber(MqttClient):
    """Receives at its leisure. `got`: payloads in the order in which they came first. `asked`: on
    a connection before this one; the SUBACK may have been lost with it.
    """

    def __init__(
        self, world: World, name: str, modern: bool, wish: str, qos: int, ordered: bool = True,
        clean: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(world, name, modern, clean)
        self.wish = wish
        self.qos = qos
        self.ordered = ordered
        self.got: dict[bytes, int] = {}
        self.subscribed = False
        self.asked = self.asked_now = False
        self.answers: deque[bytes] = deque()
        self._half: set[int] = set()
        self._last: dict[bytes, int] = {}

    def greet(self) -> None:
        self.answers.clear()
        self.subscribed = self.subscribed and not self.clean
        self.asked = self.asked_now and not self.clean
        super().greet()

    def welcomed(self) -> None:
        if not self.subscribed:
            self.asked_now = True
            properties = codec.NO_PROPERTIES if self.modern else b""
            self.say(codec.subscribe(9, [(self.wish.encode(), self.qos)], properties))

    def answer(self, kind: int, packet_id: int) -> None:
        if kind == codec.SUBACK:
            self.subscribed = True
        elif kind == codec.PUBREL:
            self._half.discard(packet_id)
            self.answers.append(codec.acknowledgement(codec.PUBCOMP, packet_id))

    def message(self, packet: codec.Publish) -> None:
        assert self.subscribed or self.asked, "a message before the SUBACK"
        if packet.qos == 2:
            self.answers.append(codec.acknowledgement(codec.PUBREC, packet.packet_id))
            if packet.packet_id in self._half:
                return
            self._half.add(packet.packet_id)
        elif packet.qos == 1:
            self.answers.append(codec.acknowledgement(codec.PUBACK, packet.packet_id))
        if packet.qos == 2:
            assert packet.payload not in self.got, f"{self.name} has {packet.payload!r} twice"
        self._keep(packet.payload)

    def _keep(self, payload: bytes) -> None:
        if not payload:
            return
        self.got[payload] = self.got.get(payload, 0) + 1
        stream, _, number = payload.rpartition(b" ")
        if self.ordered and self.got[payload] == 1:
            before = self._last.get(stream, 0)
            assert before < int(number), f"{self.name} has {payload!r} after {before}"
            self._last[stream] = int(number)

    def work(self) -> None:
        while self.answers and self.chance.random() < 0.7:
            self.say(self.answers.popleft())


class Newcomer(MqttClient):
    """Comes again and again to look at the retained messages: none is older than one whose
    acknowledgement was there before it asked.
    """

    def __init__(self, world: World, name: str, publishers: list[Publisher]) -> None:
        super().__init__(world, name, False, clean=True)
        self.publishers = publishers
        self.subscribed = False
        self.seen: dict[str, bytes] = {}
        self._floor: dict[str, int] = {}

    def welcomed(self) -> None:
        self.subscribed = False
        self.seen = {}
        self._floor = {
            topic: _number(payloads[-1])
            for one in self.publishers
            for topic, payloads in one.acknowledged.items()
            if payloads and topic.startswith("r/")
        }
        self.say(codec.subscribe(9, [(b"r/#", 0), (b"c/#", 0)]))

    def answer(self, kind: int, packet_id: int) -> None:
        self.subscribed = self.subscribed or kind == codec.SUBACK

    def message(self, packet: codec.Publish) -> None:
        assert self.subscribed, "a retained message before the SUBACK"
        topic = packet.topic.decode()
        if packet.retain and topic in self._floor:
            at_least = self._floor[topic]
            assert _number(packet.payload) >= at_least, f"{topic} is back at {packet.payload!r}"
        self.seen[topic] = packet.payload

    def work(self) -> None:
        if self.subscribed and self.chance.random() < 0.2:
            self.say(codec.packet(codec.DISCONNECT, b""))


def _number(payload: bytes) -> int:
    return int(payload.rpartition(b" ")[2])


class Caller(Client):
    """Speaks HTTP, one request at a time: logs in, then does what its script says."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.asked: tuple[str, ...] = ()

    def greet(self) -> None:
        self.ask("GET", f"/login/{self.name}", b"", "login")

    def ask(self, method: str, path: str, body: bytes, *what: str) -> None:
        self.asked = what
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.say(head.encode() + body)

    def hear(self, data: bytes) -> None:
        data = self._rest + data
        self._rest = data
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        if len(rest) >= size:
            assert head.startswith(b"HTTP/1.1 200"), data
            self._rest = rest[size:]
            asked, self.asked = self.asked, ()
            self.answered(asked, rest[:size])

    def cut(self) -> None:
        super().cut()
        self.asked = ()

    def vanish(self) -> None:
        super().vanish()
        self.asked = ()

    def work(self) -> None:
        if not self.asked:
            self.go_on()

    def go_on(self) -> None: ...

    def answered(self, asked: tuple[str, ...], body: bytes) -> None: ...


class Producer(Caller):
    """Sends numbered messages to a queue. `churns`: it destroys and makes the queue, too."""

    def __init__(self, world: World, name: str, queue: str, churns: bool = False) -> None:
        super().__init__(world, name)
        self.queue = queue
        self.churns = churns
        self.count = 0
        self.sent: dict[int, bytes] = {}

    def go_on(self) -> None:
        if self.churns and self.chance.random() < 0.2:
            word = self.chance.choice(("destroy", "persistent"))
            self.ask("GET", f"/{word}/{self.queue}", b"", word)
        elif self.count < MESSAGES:
            self.count += 1
            payload = f"{self.name} {self.queue} 1 {self.count}"
            self.ask("POST", f"/request/{self.queue}/none", payload.encode(), "send", payload)

    def answered(self, asked: tuple[str, ...], body: bytes) -> None:
        if asked[0] == "send" and body != b"[]":
            (answer,) = json.loads(body)
            payload = asked[1].encode()
            self.world.must_be_safe(payload, "")
            self.world.has_id(self.queue, answer[1], payload)
            self.sent[answer[1]] = payload

    def done(self) -> bool:
        return self.count == MESSAGES and not self.asked


class Reader(Caller):
    """Reads a queue by cursor, at times from the beginning, and acknowledges some."""

    def __init__(self, world: World, name: str, queue: str, greedy: bool = True) -> None:
        super().__init__(world, name)
        self.queue = queue
        self.greedy = greedy
        self.cursor = "-1"
        self.todo: list[int] = []
        self.tried: set[int] = set()
        self.gone: set[int] = set()
        self.seen: dict[int, bytes] = {}
        self._gone_before: set[int] = set()

    def go_on(self) -> None:
        if self.todo and self.greedy:
            number = self.todo.pop()
            self.tried.add(number)
            self.ask("GET", f"/ack/{self.queue}/{number}", b"", "ack", str(number))
            return
        if self.chance.random() < 0.2:
            self.cursor = "-1"
        self.look()

    def look(self) -> None:
        self._gone_before = set(self.gone)
        wanted = {"from": self.cursor, "timeout": 0.5, "queues": [self.queue]}
        self.ask("POST", "/transfer", json.dumps(wanted).encode(), "transfer")

    def answered(self, asked: tuple[str, ...], body: bytes) -> None:
        if asked[0] == "ack":
            self.gone.add(int(asked[1]))
        elif asked[0] == "transfer":
            answer = json.loads(body)
            self.cursor = answer["next"]
            for (_, number), said in answer["messages"]:
                assert number not in self._gone_before, f"{self.queue} {number} is back"
                self.world.has_id(self.queue, number, said["payload"].encode())
                self.seen[number] = said["payload"].encode()
                if self.chance.random() < 0.5 and number not in self.tried:
                    self.todo.append(number)


class Thing(Client):
    """Speaks SMQ: asks for the numbers of topics, which never change, publishes and listens."""

    def __init__(self, world: World, name: str, listens: bytes) -> None:
        super().__init__(world, name)
        self.listens = listens
        self.topics: dict[int, bytes] = {}
        self.etid = 0
        self.count = 0
        self._last: dict[bytes, int] = {}

    def greet(self) -> None:
        self.etid = 0
        self.say(HEAD)

    def hear(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while end := smq.next_frame(data, at):
            self._take(data[at + 2], data[at + 3 : end])
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, body: bytes) -> None:
        if kind == smq.INIT:
            uid = self.name.encode()
            self._tell(smq.CONNECT, smq.VERSION, rest=bytes((len(uid),)) + uid + b"\0")
            return
        numbers, rest = smq.numbers_of(kind, body), smq.rest_of(kind, body)
        if kind == smq.CONNACK and numbers[0] == smq.UNAVAILABLE:
            self.cut()  # it was too slow to say who it is
        elif kind == smq.CONNACK:
            assert numbers[0] == 0, body
            self.etid = numbers[1]
            self._tell(smq.SUBSCRIBE, rest=self.listens)
        elif kind in (smq.CREATEACK, smq.SUBACK):
            assert numbers[0] == 0, body
            self.world.has_id("topics", numbers[1], rest)
            self.world.is_called(rest, numbers[1])
            if kind == smq.CREATEACK:
                self.topics[numbers[1]] = rest
        elif kind == smq.PUBLISH:
            stream, _, number = rest.rpartition(b" ")
            # A repetition may come again; what comes for the first time comes in order.
            self._last[stream] = max(self._last.get(stream, 0), int(number))

    def _tell(self, kind: int, *numbers: int, rest: bytes = b"") -> None:
        self.say(smq.framed(smq.message(kind, *numbers, rest=rest)))

    def work(self) -> None:
        if not self.etid or self.count >= MESSAGES:
            return
        self.count += 1
        if not self.topics or self.chance.random() < 0.3:
            self._tell(smq.CREATE, rest=b"a/%b/%d" % (self.name.encode(), self.count % 5))
        else:
            number = self.chance.choice(list(self.topics))
            payload = b"%b %b 0 %d" % (self.name.encode(), self.topics[number], self.count)
            self._tell(smq.PUBLISH, number, self.etid, 0, rest=payload)
