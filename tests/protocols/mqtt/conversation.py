"""MQTT conversations as transcripts: packets in words, a hub in memory, devices that answer.

    CONNACK 0 present      SUBACK 5: 1 128      PUBACK 7      PINGRESP
    a/b=x                  a QoS 0 message      a/b=x q1 #3 dup retain     any other
"""

from __future__ import annotations

from hubbub.core.broker import Broker
from hubbub.core.gate import Gate
from hubbub.protocols.mqtt import Mqtt, codec
from tests.core.recording import Recording, StillClock, folded, snapshot
from tests.wire import Far, Table


class Stage(Table):
    """A hub in memory whose rows are kept; not `prompt`: durable only after `log.sync()`."""

    def __init__(self, record: str = "all", prompt: bool = True) -> None:
        super().__init__(record)
        self.still = self.clock = StillClock()
        self.log = Recording(self.clock, prompt)
        self.broker = Broker(self.clock, self.log, record)
        self.gate = Gate(self.broker.open)
        self.mqtt = Mqtt(self.broker)

    def device(
        self,
        client: str = "ann",
        clean: bool = True,
        keep_alive: int = 0,
        will: codec.Will | None = None,
    ) -> Device:
        """Connect; what the hub answered is the first thing to hear."""
        device = self.silent()
        device.say(codec.connect(client.encode(), clean, keep_alive, will))
        return device

    def silent(self) -> Device:
        """A connection that has not said anything."""
        return Device(self)

    def pass_time(self, seconds: float) -> None:
        self.still.seconds += seconds

    def sync(self) -> None:
        self.log.sync()
        self.tick()


class Device:
    """One client. `open` are the PUBLISH and PUBREL packets it has not answered."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.far: Far = stage.dial(stage.mqtt)
        self.open: list[tuple[int, int]] = []

    # What it does

    def say(self, *packets: bytes) -> None:
        """All of it in one piece, as TCP may deliver it."""
        self.far.say(b"".join(packets))

    def subscribe(self, *wishes: str | int) -> None:
        """`subscribe("a/+", 1, "b", 0)`, packet id 5."""
        pairs = zip(wishes[::2], wishes[1::2], strict=True)
        self.say(codec.subscribe(5, [(str(name).encode(), int(qos)) for name, qos in pairs]))

    def publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, retain: bool = False,
        packet_id: int = 1, dup: bool = False,
    ) -> None:  # fmt: skip
        self.say(codec.publish(topic.encode(), payload, qos, retain, packet_id, dup and qos > 0))

    def answer(self, kind: int, *packet_ids: int) -> None:
        self.say(*(codec.acknowledgement(kind, packet_id) for packet_id in packet_ids))

    def answer_one(self, which: int = 0) -> None:
        """Acknowledge one of the packets that were heard and are not answered."""
        if self.open:
            kind, packet_id = self.open.pop(which)
            self.answer(kind, packet_id)

    def wake(self) -> float:
        """What the hub does when time goes on; returns when it wants to be woken again."""
        when = self.far.connection.wake(self.stage.still.seconds)
        self.stage.tick()
        return when

    # What it hears

    def hear(self) -> list[str]:
        """The packets since the last time, in words."""
        data = self.far.hear()
        for start, body, end in codec.packets(data):
            self._note(data[start], data[body:end])
        words, rest = in_words(data)
        assert not rest, "half a packet was sent"
        return words

    def _note(self, head: int, body: bytes) -> None:
        """Remember what has to be answered, each once however often it comes."""
        kind = head >> 4
        if kind == codec.PUBLISH and head & 6:
            packet = codec.parse_publish(head, body)
            answer = (codec.PUBACK if packet.qos == 1 else codec.PUBREC, packet.packet_id)
        elif kind == codec.PUBREL:
            answer = (codec.PUBCOMP, int.from_bytes(body, "big"))
        else:
            return
        if answer not in self.open:
            self.open.append(answer)


def in_words(data: bytes) -> tuple[list[str], bytes]:
    """Packets as words, and the bytes of the last one that is not whole."""
    words = []
    at = 0
    for start, body, at in codec.packets(data):
        words.append(_word(data[start], data[body:at]))
    return words, data[at:]


def _word(head: int, body: bytes) -> str:
    kind = head >> 4
    if kind == codec.PUBLISH:
        topic, payload, qos, retain, dup, packet_id, _ = codec.parse_publish(head, body)
        words = f"{topic.decode()}={payload.decode(errors='replace')}"
        words += f" q{qos} #{packet_id}" if qos else ""
        return words + " dup" * dup + " retain" * retain
    if kind == codec.CONNACK:
        return f"CONNACK {body[1]}" + " present" * body[0]
    if kind == codec.PINGRESP:
        return "PINGRESP"
    packet_id = int.from_bytes(body[:2], "big")
    if kind == codec.SUBACK:
        return f"SUBACK {packet_id}: " + " ".join(map(str, body[2:]))
    return f"{codec.NAMES[kind]} {packet_id}"


def restarted(stage: Stage, from_snapshot: bool = False) -> Stage:
    """A hub that begins with the rows of another, which was killed."""
    after = Stage()
    after.log.rows, after.log.position = list(stage.log.rows), stage.log.position
    after.log.sync()
    rows = stage.log.rows
    after.broker.state = folded(snapshot(folded(rows), rows) if from_snapshot else rows)
    after.broker.recover([after.mqtt])
    return after
