"""QoS 2 end to end while connections are lost and the hub crashes, forgetting what was not synced.

Publishers and the subscriber keep the state that the standard asks of clients (4.3.3); the hub
has its rows, up to the last sync, and nothing else. Steps are drawn at random from a seed.
"""

from __future__ import annotations

import random

import pytest

from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.conversation import Device, Stage, restarted

MESSAGES = 12


class Publisher:
    """Sends numbered messages, one exchange at a time, and repeats what it must."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device: Device | None = None
        self.count = 0  # the message it is at
        self.releasing = False  # PUBREC came for it

    @property
    def done(self) -> bool:
        return self.count == MESSAGES

    def connect(self, stage: Stage) -> None:
        self.device = stage.device(self.name, clean=False)
        self.send(dup=True)

    def send(self, dup: bool = False) -> None:
        assert self.device is not None
        if self.done:
            return
        packet_id = 1 + self.count % 3
        if self.releasing:
            self.device.answer(codec.PUBREL, packet_id)
        else:
            payload = f"{self.name}{self.count}".encode()
            self.device.publish("a", payload, 2, packet_id=packet_id, dup=dup)

    def listen(self) -> None:
        assert self.device is not None
        for word in self.device.hear():
            packet_id = 1 + self.count % 3
            if word == f"PUBREC {packet_id}" and not self.done:
                self.releasing = True
                self.send()
            elif word == f"PUBCOMP {packet_id}" and self.releasing:
                self.count, self.releasing = self.count + 1, False
                self.send()


class Subscriber:
    """Takes a QoS 2 message when its packet id is new, and forgets the id at PUBREL."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.known: set[int] = set()
        self.got: list[str] = []

    def connect(self, stage: Stage) -> None:
        self.device = stage.device("ann", clean=False)

    def listen(self) -> None:
        assert self.device is not None
        for word in self.device.hear():
            if word.startswith("a="):
                payload, qos, number = word.removeprefix("a=").removesuffix(" dup").split()
                assert qos == "q2"
                self._take(payload, int(number[1:]))
            elif word.startswith("PUBREL "):
                packet_id = int(word.split()[1])
                self.known.discard(packet_id)
                self.device.answer(codec.PUBCOMP, packet_id)

    def _take(self, payload: str, packet_id: int) -> None:
        assert self.device is not None
        if packet_id not in self.known:
            self.known.add(packet_id)
            self.got.append(payload)
        self.device.answer(codec.PUBREC, packet_id)


class World:
    """The hub, its clients, and what may happen to them."""

    def __init__(self, seed: int, serial: bool) -> None:
        self.chance = random.Random(seed)
        self.serial = serial
        self.subscriber = Subscriber()
        self.publishers = [Publisher("p"), Publisher("q")]
        self.clients: list[Subscriber | Publisher] = [self.subscriber, *self.publishers]
        self.begin(Stage(prompt=False))
        self.subscriber.connect(self.stage)
        assert self.subscriber.device is not None
        self.subscriber.device.subscribe("a", 2)
        self.stage.sync()

    def begin(self, stage: Stage) -> None:
        self.stage = stage
        stage.mqtt.qos2_serial = self.serial
        stage.broker.inflight = 3
        for client in self.clients:
            client.device = None

    def crash(self) -> None:
        """Only what was synced is left; at times folded into a snapshot."""
        del self.stage.log.rows[self.stage.log.durable :]
        self.stage.log.position = self.stage.log.durable
        stage = restarted(self.stage, self.chance.random() < 0.5)
        stage.log.prompt = False
        self.begin(stage)

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        luck = self.chance.random()
        if luck < 0.02:
            self.crash()
        elif luck < 0.3:
            self.stage.sync()
        elif client.device is None:
            client.connect(self.stage)
        elif luck < 0.35:
            client.device.far.hang_up("lost")
            client.device = None
        else:
            client.listen()

    def finish(self) -> None:
        """No more accidents: everything comes to its end."""
        for _ in range(400):
            self.stage.sync()
            for client in self.clients:
                if client.device is None:
                    client.connect(self.stage)
                client.listen()


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_once_and_only_once(seed: int, serial: bool) -> None:
    world = World(seed, serial)
    for _ in range(600):
        world.step()
    world.finish()
    for publisher in world.publishers:
        assert publisher.done
        expected = [f"{publisher.name}{number}" for number in range(MESSAGES)]
        assert [one for one in world.subscriber.got if one[0] == publisher.name] == expected
    state = world.stage.broker.state
    assert not state.sessions["mqtt", "ann"].backlog.entries
    assert not any(session.open_ids for session in state.sessions.values())
