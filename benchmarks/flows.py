"""Conversations with a hub in this process, without sockets: what `instructions` counts.

`FLOWS` names them. Each makes its conversation and returns one round of it, in which `EACH`
messages (or calls) travel from end to end; every round checks that they arrived. What differs
between messages is drawn once, from a seed, so that every run says the same bytes.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hubbub.auth.acl import AclRights, Rule
from hubbub.core.broker import Broker
from hubbub.core.caches import Caches
from hubbub.core.clock import BEGUN, Clock
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Gate, Opening
from hubbub.core.limits import CLUSTER_FRAME_BYTES, VERDICTS
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.journal.group import Group
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.smq import Smq
from hubbub.protocols.smq import codec as words
from hubbub.protocols.switch import Switch
from hubbub.wire.http import parse_head

EACH: Final = 20  # messages of a round
TOGETHER: Final = 10 * EACH  # rows nobody waits for: by time they would differ with the machine
NODE: Final = "BENCHMARK_NODE"  # in the environment: the hub is a node, and no other wants anything

Round = Callable[[], None]


class Heard:
    """A transport that keeps what it was told last."""

    def __init__(self) -> None:
        self.last = b""

    def write(self, data: bytes) -> None:
        self.last = data

    def writelines(self, data: list[bytes]) -> None:
        self.last = b"".join(data)

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


class Unhurried(Clock):
    """No work is ever too long for one turn: under valgrind all of it would be."""

    def spent(self) -> float:
        return 0.0


class Straight:
    """Does for the journal what its thread does, at once: the same work in the same order."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def put(self, group: Group) -> None:
        self.journal.disk.land(group)
        self.journal.disk.publish(group)


class Hub:
    """A broker with its tick. `recorded`: with a journal, which does not sync."""

    def __init__(self, ruled: bool = False, recorded: bool = False) -> None:
        clock = Unhurried()
        self.journal = _journal(clock) if recorded else None
        log = self.journal or Log(clock)
        self.broker = Broker(clock, log, "all" if recorded else "none")
        if os.environ.get(NODE):
            from hubbub.cluster.membership import Membership
            from hubbub.cluster.switchboard import Switchboard

            Membership(self.broker, Switchboard().join("a"), "").begin()
        rules = [Rule(3, "#"), Rule(3, "$queue/#"), Rule(3, "$client/#")]
        self.gate = Gate(AclRights(rules, Caches(VERDICTS)) if ruled else self.broker.open)

    def dial(self, protocol: Protocol, head: bytes = b"") -> tuple[Connection, Heard]:
        heard = Heard()
        link = Link(self.broker.outgoing, heard)
        request = parse_head(head) if head else None
        opening = Opening(self.gate, "127.0.0.1", 1, False, False, request)
        connection = protocol.connect(link, opening)
        connection.start()
        self.tick()
        return connection, heard

    def tick(self) -> None:
        """As `runtime.node` has it, but that the disk is done at once."""
        outgoing, journal = self.broker.outgoing, self.journal
        unsettled, self.broker.unsettled = self.broker.unsettled, []
        for session in unsettled:
            session.settle()
        due = journal is not None and (outgoing.holding or journal.pending >= TOGETHER)
        if journal is not None and journal.pending and due:
            journal.commit()
            journal.arrived(journal.position)
            outgoing.holding = [link for link in outgoing.holding if not link.release()]
        touched, outgoing.touched = outgoing.touched, []
        for link in touched:
            link.flush()


def _journal(clock: Clock) -> Journal:
    """In a directory that goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="hubbub-bench-")
    journal = Journal(Path(folder.name) / "data", clock, "os", lambda seq: None)
    journal.recover(lambda batch: None)
    journal.disk.groups = Straight(journal)  # type: ignore[assignment]
    _FOLDERS.append(folder)
    return journal


_FOLDERS: Final[list[object]] = []


# MQTT


class Pair:
    """A sender and receivers of `a/#`, who acknowledge what they get."""

    def __init__(
        self, hub: Hub, qos: int, receivers: int = 1, v5: bool = False, aliases: int = 0,
        sends_v5: bool | None = None,
    ) -> None:  # fmt: skip
        self.hub = hub
        self.protocol = Mqtt(hub.broker)
        said = codec.Properties() if v5 else None
        own = codec.Properties() if (v5 if sends_v5 is None else sends_v5) else None
        self.sender, self.answered = hub.dial(self.protocol)
        self.sender.feed(codec.connect(b"s", True, 0, properties=own))
        self.receivers = [hub.dial(self.protocol) for _ in range(receivers)]
        for number, (connection, _) in enumerate(self.receivers):
            if said is not None and aliases:
                said.numbers[spec.TOPIC_ALIAS_MAXIMUM] = aliases
            connection.feed(codec.connect(b"r%d" % number, True, 0, properties=said))
            more = codec.NO_PROPERTIES if v5 else b""
            connection.feed(codec.subscribe(1, [(b"a/#", qos)], more))
            hub.tick()
            hub.tick()

    def send(self, data: bytes) -> int:
        """Say it, and answer until nothing more is said; how many messages all receivers got."""
        self.hub.broker.clock.reading = BEGUN  # as the socket does
        self.sender.feed(data)
        self.hub.broker.clock.reading = 0
        self.hub.tick()
        found = self._answer()
        released = _replies(self.answered.last, codec.PUBREC, codec.PUBREL)
        self.answered.last = b""
        if released:
            self.sender.feed(released)
            self.hub.tick()
            self.answered.last = b""
        return found

    def _answer(self) -> int:
        found, again = 0, True
        while again:
            again = False
            for connection, heard in self.receivers:
                said, heard.last = heard.last, b""
                answers = bytearray()
                for start, body, end in codec.packets(said):
                    head = said[start]
                    if head >> 4 == codec.PUBLISH:
                        found += 1
                        if head & 6:
                            at = body + 2 + int.from_bytes(said[body : body + 2], "big")
                            answers += b"\x40\2" if head & 2 else b"\x50\2"
                            answers += said[at : at + 2]
                    elif head >> 4 == codec.PUBREL:
                        answers += b"\x70\2" + said[body:end]
                if answers:
                    connection.feed(bytes(answers))
                    again = True
            if again:
                self.hub.tick()
        return found


def _replies(said: bytes, kind: int, answer: int) -> bytes:
    """An answer for each packet of a kind."""
    found = bytearray()
    for start, body, _ in codec.packets(said):
        if said[start] >> 4 == kind:
            found += codec.acknowledgement(answer, int.from_bytes(said[body : body + 2], "big"))
    return bytes(found)


def _mqtt(
    qos: int, names: int, receivers: int = 1, ruled: bool = False, recorded: bool = False
) -> Round:
    """Equal messages: with one name together, with several one by one."""
    pair = Pair(Hub(ruled, recorded), qos, receivers)
    packets = [codec.publish(b"a/%d" % (n % names), b"x" * 64, qos, packet_id=n + 1)
               for n in range(EACH)]  # fmt: skip
    pieces = packets if names > 1 else [b"".join(packets)]

    def one() -> None:
        assert sum(map(pair.send, pieces)) == EACH * receivers

    return one


def _unlike(
    qos: int, v5: bool = False, aliases: int = 0, recorded: bool = False,
    to_v5: bool | None = None, by_alias: bool = False,
) -> Round:  # fmt: skip
    """A window of messages that differ: 8 to 300 bytes, 50 topics; `qos` 3 mixes all. `to_v5`: who
    receives them speaks another version. `by_alias`: the sender says topics once.
    """
    reads_v5 = v5 if to_v5 is None else to_v5
    pair = Pair(Hub(recorded=recorded), min(qos, 2), 1, reads_v5, aliases, v5)
    seed = random.Random(1)
    rounds = []
    if by_alias:
        for n in range(50):
            pair.send(codec.publish(b"a/%d/temperature" % n, b"", 0, properties=_called(n)))
    for _ in range(8):
        packets = []
        for n in range(EACH):
            level = seed.randrange(3) if qos == 3 else qos
            payload = seed.randbytes(seed.randrange(8, 300))
            said = _said(seed) if v5 else b""
            number = seed.randrange(50)
            topic = b"" if by_alias else b"a/%d/temperature" % number
            said = _called(number) if by_alias else said
            packets.append(codec.publish(topic, payload, level, packet_id=n + 1, properties=said))
        rounds.append(b"".join(packets))
    at = 0

    def one() -> None:
        nonlocal at
        at = (at + 1) % len(rounds)
        assert pair.send(rounds[at]) == EACH

    return one


class Wire:
    """The engine of one of two nodes: what it is told waits until it is carried."""

    trouble, complete, up, most = "", True, True, CLUSTER_FRAME_BYTES

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: list[bytes] = []

    def send(self, node: str, frames: list[bytes]) -> bool:
        self.said += frames
        return True

    def waiting(self, node: str = "") -> int:
        return 0


class Node(Hub):
    """A hub of a cluster of two, a client of which says messages or hears them."""

    def __init__(self, name: str, recorded: bool) -> None:
        from hubbub.cluster.membership import Membership

        super().__init__(recorded=recorded)
        self.wire = Wire(name)
        self.member = Membership(self.broker, self.wire, "")  # type: ignore[arg-type]  # no tasks
        self.member.begin()
        self.client, self.heard = self.dial(Mqtt(self.broker))

    def tell(self, other: Node) -> None:
        self.tick()
        said, self.wire.said = self.wire.said, []
        for frame in said:
            other.member.hear(frame)


def _across(qos: int, lasting: bool = False) -> Round:
    """A window of messages that differ, to a client at another node. `lasting`: it is kept there
    for a session.
    """
    sender, reader = Node("a", lasting), Node("b", lasting)
    sender.client.feed(codec.connect(b"s", True, 0))
    reader.client.feed(codec.connect(b"r", not lasting, 0) + codec.subscribe(1, [(b"a/#", qos)]))
    for _ in range(4):
        for node, other in ((sender, reader), (reader, sender)):
            node.member.beat()
            node.tell(other)
    seed = random.Random(1)
    packets = b"".join(
        codec.publish(b"a/%d/temperature" % n, seed.randbytes(8 * n + 8), qos, packet_id=n + 1)
        for n in range(EACH)
    )

    def one() -> None:
        reader.heard.last = b""
        sender.client.feed(packets)
        sender.tell(reader)
        reader.tell(sender)
        bodies = [body for start, body, _ in codec.packets(reader.heard.last)
                  if reader.heard.last[start] >> 4 == codec.PUBLISH]  # fmt: skip
        assert len(bodies) == EACH, len(bodies)
        if qos:
            reader.client.feed(acknowledged(reader.heard.last, bodies))
            reader.tell(sender)
            sender.tell(reader)

    return one


def acknowledged(said: bytes, bodies: list[int]) -> bytes:
    """The PUBACKs of messages whose topics begin there."""
    places = [body + 2 + int.from_bytes(said[body : body + 2], "big") for body in bodies]
    return b"".join(b"\x40\2" + said[place : place + 2] for place in places)


def _called(number: int) -> bytes:
    """A topic by its alias."""
    return codec.Properties({spec.TOPIC_ALIAS: number + 1}).encode()


def _said(seed: random.Random) -> bytes:
    """Properties as applications say them."""
    said = codec.Properties()
    kind = seed.randrange(4)
    if kind:
        said.texts[spec.CONTENT_TYPE] = b"application/json"
    if kind > 1:
        said.user.append((b"trace", b"%032x" % seed.randrange(1 << 128)))
    if kind > 2:
        said.numbers[spec.MESSAGE_EXPIRY] = 3600
    return said.encode()


def _arrivals(recorded: bool = False) -> Round:
    """Clients come with a will and a subscription, are answered, and go."""
    hub = Hub(recorded=recorded)
    protocol = Mqtt(hub.broker)
    names = [b"device-%04d" % number for number in range(EACH)]
    said = [
        codec.connect(name, True, 60, codec.Will(b"will/" + name, b"gone", 0, False))
        + codec.subscribe(1, [(b"device/" + name + b"/set", 1)])
        for name in names
    ]

    def one() -> None:
        here = [hub.dial(protocol) for _ in said]
        for (connection, heard), packets in zip(here, said, strict=True):
            connection.feed(packets)
            hub.tick()
            hub.tick()
            assert heard.last.endswith(b"\x90\x03\x00\x01\x01"), heard.last
        for connection, _ in here:
            connection.lost("")
        hub.tick()

    return one


# SMQ


def _smq(unlike: bool = False) -> Round:
    hub = Hub()
    protocol = Smq(hub.broker)
    head = b"GET / HTTP/1.1\r\nHost: x\r\nSimpleMQ: 1\r\n\r\n"
    ends = []
    for uid in (b"sender", b"reader"):
        connection, heard = hub.dial(protocol, head)
        asked = words.message(words.CONNECT, words.VERSION, rest=b"\6" + uid + b"\0")
        connection.feed(words.framed(asked))
        hub.tick()
        ends.append((connection, heard, struct.unpack(">I", heard.last[4:8])[0]))
    (sender, _, etid), (reader, heard, _) = ends
    seed = random.Random(1)
    names = [b"t/%d" % n for n in range(50 if unlike else 1)]
    for name in names:
        reader.feed(words.framed(words.message(words.SUBSCRIBE, rest=name)))
        hub.tick()
    tids = [hub.broker.topic_id(name.decode(), hub.broker.itself) for name in names]
    frames = [
        words.framed(words.message(
            words.PUBLISH, seed.choice(tids), etid, 0,
            rest=seed.randbytes(seed.randrange(8, 300) if unlike else 64),
        ))
        for _ in range(EACH)
    ]  # fmt: skip
    pieces = [b"".join(frames)] if unlike else frames

    def one() -> None:
        for piece in pieces:
            sender.feed(piece)
            hub.tick()
        assert heard.last == pieces[-1], heard.last

    return one


# message-switch


class Caller:
    """A client of the original: its sockets for requests and for events, under one token."""

    def __init__(self, hub: Hub, protocol: Switch, token: bytes) -> None:
        self.hub = hub
        self.token = token
        self.requests, self.said = hub.dial(protocol)
        self.events, self.told = hub.dial(protocol)
        self.ask(b"GET", b"/login/" + token)
        self.wait(b"GET", b"/login/" + token)

    def ask(self, method: bytes, path: bytes, body: bytes = b"") -> None:
        self.requests.feed(_request(method, path, body))
        self.hub.tick()

    def wait(self, method: bytes, path: bytes, body: bytes = b"") -> None:
        self.events.feed(_request(method, path, body))
        self.hub.tick()

    def transfer(self, queue: bytes, after: int) -> None:
        self.wait(b"POST", b"/transfer",
                  b'{"from":"%d","timeout":30.0,"queues":["%b"]}' % (after, queue))  # fmt: skip


def _request(method: bytes, path: bytes, body: bytes) -> bytes:
    return (
        b"%b %b HTTP/1.1\r\nconnection: keep-alive\r\ncontent-length: %d\r\nhost: localhost\r\n"
        b"user-agent: cohttp\r\n\r\n%b" % (method, path, len(body), body)
    )


def _switch(ruled: bool) -> Round:
    """A request, the transfer that brings it, its acknowledgement: no answer."""
    hub = Hub(ruled)
    one_of = Caller(hub, Switch(hub.broker), b"me")
    one_of.ask(b"GET", b"/persistent/q")
    count = 0

    def one() -> None:
        nonlocal count
        for _ in range(EACH):
            one_of.ask(b"POST", b"/request/q/r", b"x" * 64)
            one_of.transfer(b"q", count - 1)
            one_of.ask(b"GET", b"/ack/q/%d" % count)
            count += 1
        assert one_of.said.last.startswith(b"HTTP/1.1 200"), one_of.said.last

    return one


def _call(recorded: bool = False, callers: int = 1) -> Round:
    """Whole calls, each the seven requests of the original clients, on their four sockets."""
    hub = Hub(recorded=recorded)
    protocol = Switch(hub.broker)
    service = Caller(hub, protocol, b"service")
    service.ask(b"GET", b"/persistent/bench")
    service.transfer(b"bench", -1)
    caller = Caller(hub, protocol, b"caller.0")
    caller.ask(b"GET", b"/transient/caller.0")
    caller.transfer(b"caller.0", -1)
    count = 0

    def one() -> None:
        nonlocal count
        for _ in range(EACH):
            caller.ask(b"GET", b"/persistent/bench")
            caller.ask(b"POST", b"/request/bench/caller.0", b"%d" % count)
            hub.tick()
            assert b'"next":"%d"' % count in service.told.last, service.told.last
            service.ask(b"POST", b"/response/caller.0/bench/%d" % count, b"%d" % count)
            hub.tick()
            service.ask(b"GET", b"/ack/bench/%d" % count)
            service.transfer(b"bench", count)
            assert b'[[["caller.0",%d]' % count in caller.told.last, caller.told.last
            caller.ask(b"GET", b"/ack/caller.0/%d" % count)
            caller.transfer(b"caller.0", count)
            count += 1

    return one


FLOWS: Final[dict[str, Callable[[], Round]]] = {
    "mqtt qos 0, one by one": lambda: _mqtt(0, 10),
    "mqtt qos 0, in a run": lambda: _mqtt(0, 1),
    "mqtt qos 0, to 10": lambda: _mqtt(0, 10, 10),
    "mqtt qos 0, with an ACL": lambda: _mqtt(0, 10, ruled=True),
    "mqtt qos 1, one by one": lambda: _mqtt(1, 10),
    "mqtt qos 1, in a run": lambda: _mqtt(1, 1),
    "mqtt qos 2, one by one": lambda: _mqtt(2, 10),
    "mqtt qos 2, in a run": lambda: _mqtt(2, 1),
    "mqtt qos 2, in a run, recorded": lambda: _mqtt(2, 1, recorded=True),
    "mqtt qos 0, unlike": lambda: _unlike(0),
    "mqtt qos 1, unlike": lambda: _unlike(1),
    "mqtt qos 2, unlike": lambda: _unlike(2),
    "mqtt qos 0, unlike, recorded": lambda: _unlike(0, recorded=True),
    "mqtt qos 1, unlike, recorded": lambda: _unlike(1, recorded=True),
    "mqtt mixed qos, unlike": lambda: _unlike(3),
    "mqtt 5 qos 1, properties": lambda: _unlike(1, v5=True),
    "mqtt 5 qos 1, aliases": lambda: _unlike(1, v5=True, aliases=100),
    "mqtt 5 qos 1, by alias": lambda: _unlike(1, v5=True, by_alias=True),
    "mqtt 5 qos 1, to 3.1.1": lambda: _unlike(1, v5=True, to_v5=False),
    "mqtt 3.1.1 qos 1, to 5": lambda: _unlike(1, to_v5=True),
    "to another node qos 0, unlike": lambda: _across(0),
    "to another node qos 1, unlike": lambda: _across(1),
    "to another node, kept, unlike": lambda: _across(1, lasting=True),
    "mqtt connect, subscribe, leave": _arrivals,
    "mqtt connect, recorded": lambda: _arrivals(recorded=True),
    "smq, one by one": _smq,
    "smq, unlike": lambda: _smq(unlike=True),
    "switch request, transfer, ack": lambda: _switch(False),
    "switch, with an ACL": lambda: _switch(True),
    "switch call": _call,
    "switch call, recorded": lambda: _call(recorded=True),
}
