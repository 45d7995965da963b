"""Shared subscriptions by a model: whatever happens, each group has had each message, none that it
acknowledged comes again, and a fold of the journal is what the hub knows.
"""

from __future__ import annotations

import random

import pytest

from hubbub.core.state import State
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.core.recording import folded, snapshot
from tests.protocols.mqtt.conversation import Stage, restarted
from tests.protocols.mqtt.modern import Modern, told

GROUPS = {"g": 1, "h": 1, "i": 2}  # and their QoS
NAMES = ("ann", "bea", "cat", "dan")
LASTING = {spec.SESSION_EXPIRY: 1000}
MOVES = ("publish", "publish", "answer", "answer", "answer", "hang up", "end", "last words", "come",
         "come", "unsubscribe", "subscribe", "restart", "snapshot")  # fmt: skip

Open = list[tuple[int, int, str, str]]  # what to answer with, packet id, group, payload


def known(state: State) -> dict[str, object]:
    """All of deliveries that must be the same live and in a fold."""
    found: dict[str, object] = {"on loan": state.on_loan}
    for key, session in state.sessions.items():
        backlog = session.backlog
        held = [(number, entry) for number, entry in enumerate(backlog.entries, backlog.first)
                if entry]  # fmt: skip
        received = sorted(backlog.received)
        found[key[1]] = held, backlog.next, received, dict(session.shared), session.connected
    return found


class World:
    def __init__(self, seed: int, tight: bool) -> None:
        self.chance = random.Random(seed)
        self.tight = tight
        self.stage = self.bound(Stage())
        self.count = 0
        self.here: dict[str, Modern] = {}
        self.open: dict[str, Open] = {}
        self.lasting = {name: self.chance.random() < 0.6 for name in NAMES} | {"eve": True}
        self.wishes = {
            name: [f"$share/{group}/a/#" for group in GROUPS if self.chance.random() < 0.7]
            + ["a/b"] * (self.chance.random() < 0.5)
            for name in NAMES
        }
        self.wishes["eve"] = [f"$share/{group}/a/#" for group in GROUPS]  # is never gone for good
        self.had: set[tuple[str, str]] = set()
        self.twice: list[tuple[str, str]] = []
        for name in self.wishes:
            self.come(name)

    def bound(self, stage: Stage) -> Stage:
        if self.tight:  # much waits, and much is dropped
            broker = stage.broker
            broker.inflight, broker.backlog_messages = 3, 6
            broker.inflight_bytes, broker.backlog_bytes = 3, 12
        return stage

    def qos(self, wish: str) -> int:
        return GROUPS[wish.split("/")[1]] if wish.startswith("$share") else 2

    def come(self, name: str, clean: bool = False) -> None:
        if name in self.here and not clean:
            return
        lasts = told(LASTING if self.lasting[name] else None)
        device = self.here[name] = Modern(self.stage, name, clean or not self.lasting[name], lasts)
        self.open[name] = []
        if not any("present" in word for word in self.note(name)):
            for wish in self.wishes[name]:
                device.subscribe(wish, self.qos(wish))
            self.note(name)

    def note(self, name: str) -> list[str]:
        """What it hears, and what it has to answer."""
        device, session = self.here[name], self.stage.mqtt.sessions[name]
        shared = dict(session.shared)
        words = device.hear()
        for word in words:
            if "a/b=" in word:
                parts = word.split()
                payload, number = parts[0].removeprefix("a/b="), int(parts[2][1:])
                group = shared.get(number - 1, "")
                if (group, payload) in self.had and group:
                    self.twice.append((group, payload))
                kind = codec.PUBACK if parts[1] == "q1" else codec.PUBREC
                self.open[name].append((kind, number, group, payload))
            elif word.startswith("PUBREL"):
                self.open[name].append((codec.PUBCOMP, int(word.split()[1]), "", ""))
        return words

    def answers(self, name: str) -> list[bytes]:
        mine = self.open[name]
        done = self.chance.sample(mine, self.chance.randrange(len(mine) + 1))
        for one in done:
            mine.remove(one)
            if one[2]:
                self.had.add((one[2], one[3]))
        return [codec.acknowledgement(kind, number) for kind, number, _, _ in done]

    def move(self, step: str) -> None:
        name = self.chance.choice(NAMES if step in ("end", "last words") else [*self.wishes])
        device = self.here.get(name)
        if step == "publish":
            bob = self.stage.device("bob")
            count = self.chance.randrange(1, 4)
            packets = []
            for one in range(1, count + 1):
                qos = self.chance.choice((1, 2))
                packets.append(codec.publish(b"a/b", b"%d" % self.count, qos, packet_id=one))
                self.count += 1
                packets += [codec.acknowledgement(codec.PUBREL, one)] * (qos == 2)
            bob.say(*packets)
        elif step in ("restart", "snapshot"):
            self.stage.tick()
            self.here = {}
            self.stage = self.bound(restarted(self.stage, step == "snapshot"))
        elif step == "come":
            self.come(name)
        elif device is None:
            return
        elif step == "answer":
            device.say(*self.answers(name))
        elif step == "hang up":
            device.far.hang_up("lost")
            del self.here[name]
        elif step == "last words":
            said = codec.Properties({spec.SESSION_EXPIRY: 0}, {}, []).encode()
            device.say(*self.answers(name), codec.disconnect(0, said))
            del self.here[name]
        elif step == "end":
            self.come(name, clean=True)
        elif name != "eve" and self.wishes[name]:
            wish = self.chance.choice(self.wishes[name])
            if step == "unsubscribe":
                device.unsubscribe(wish)
            else:
                device.subscribe(wish, self.qos(wish))

    def look(self) -> None:
        self.stage.tick()
        for name in self.here:
            self.note(name)
        rows = self.stage.log.rows
        live = known(self.stage.broker.state)
        assert known(folded(rows)) == live
        assert known(folded(snapshot(folded(rows), rows))) == live

    def finish(self) -> None:
        """Who is away for now comes, and all are done with all."""
        for name in self.wishes:
            self.come(name)
        for _ in range(400):
            for name in self.here:
                self.note(name)
                mine, self.open[name] = self.open[name], []
                self.had.update((group, payload) for _, _, group, payload in mine if group)
                self.here[name].say(*(codec.acknowledgement(one[0], one[1]) for one in mine))
            self.look()
            if not any(self.open.values()):
                break


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_group_has_each_message(seed: int, tight: bool) -> None:
    world = World(seed, tight)
    for _ in range(60):
        world.move(world.chance.choice(MOVES))
        world.look()
    world.finish()
    for group in ("g", "h"):
        name = f"$share/{group}/a/#"
        missing = [n for n in range(world.count) if (name, str(n)) not in world.had]
        assert tight or not missing, (group, missing)
    assert not world.twice
    assert not world.stage.broker.state.on_loan
    assert not any(session.shared for session in world.stage.mqtt.sessions.values())
