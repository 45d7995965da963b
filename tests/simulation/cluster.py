"""One schedule of a cluster: three or four hubs, clients that hop, and what may happen to all.

    python -m tests.simulation --cluster SEED      the same schedule again, step by step on stderr

Hubs are killed in the middle of a group and start again, or have an heir and come back as nobody;
lines lose, repeat and hold frames, clocks go apart and jump. At each step: nothing is promised that
is not in a journal, a session has one home, no more of a relayed connection is under way than
there is room for, QoS 2 comes once, nothing older after something newer. At the end everything
acknowledged has reached everybody it was for, and all hubs retain the same.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path

from hubbub.cluster.directory import SUPERSEDED
from hubbub.cluster.heritage import GONE
from hubbub.cluster.relays import Far, Near
from hubbub.core.limits import CLUSTER_WAY_BYTES, COMMIT_ROWS
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.simulation.clients import MqttClient, Publisher, Subscriber
from tests.simulation.disk import framed
from tests.simulation.hub import Wire
from tests.simulation.nodes import (
    ClusterHub,
    Lines,
    SkewedClock,
    Streams,
    has,
)
from tests.simulation.world import LOST, Alarm

NAMES = ("a", "b", "c")
FOUR = 50_000  # seeds from here on have one hub more: who is neither dead, nor heir, nor its heir
PASSED = 3_000_000  # seeds from here on record nothing but what must be: most of it is passed on
IN_TURNS = 100_000  # seeds from here on take over what was a dead one's in turns of some rows
AT_ONCE = 1 << 30
STEPS = 700
SKEW = 20  # seconds between a hub's clock and the others' at most
DEAD = 6.5  # seconds of silence until somebody takes over
SAID = (spec.TAKEN_OVER, spec.SILENCE, spec.UNSPECIFIED, spec.STOPPING)
SLOW = b"the rest of a message"  # lines may need longer than a hub waits for it
TOLD = (3, spec.UNREACHABLE)  # the home of its session is away
UNEXPECTED = (*LOST, SUPERSEDED, GONE)


class Hopper(MqttClient):
    """Comes to any hub that knows where its session is."""

    world: ClusterWorld  # type: ignore[assignment]

    def dial(self) -> None:
        hub = self.world.door(self)
        if hub is not None:
            self.wire = Wire(hub)
            self._rest = b""
            self.greet()

    def _take(self, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == codec.CONNACK and body[1] in TOLD:
            self.world.turned_away += 1
        elif kind == codec.DISCONNECT:
            assert body[0] in SAID or SLOW in body, f"{self.name} is ended by the hub: {body!r}"
        else:
            super()._take(head, body)


class Author(Hopper, Publisher):
    """Publishes from wherever it is, once all hubs know who wants it."""

    def work(self) -> None:
        if self.world.begun:
            super().work()


class Listener(Hopper, Subscriber):
    """Hears wherever it is."""


_TOPICS = {
    "a": {"k/1": 1, "k/2": 2, "r/1": 1},
    "b": {"k/1": 1, "k/3": 2, "r/2": 2},
    "c": {"k/2": 2, "l/1": 1},
}


class ClusterWorld:
    """`lost`: hubs that are dead, and since when."""

    all_names: tuple[str, ...] = NAMES
    skew = SKEW
    rounds = 400  # at the end
    unexpected: tuple[str, ...] = UNEXPECTED

    def __init__(self, seed: int, root: Path, steps: int = STEPS, verbose: bool = False) -> None:
        self.chance = chance = random.Random(seed)
        self.root = root
        three = seed < FOUR or seed % 2 and seed >= IN_TURNS
        self.names = self.all_names if three else (*self.all_names, "d")
        self.steps = steps
        self.verbose = verbose
        self.alarm = Alarm()
        self.ghosts: list[Wire] = []
        self.begun = False
        self.turned_away = self.relayed = self.adoptions = 0
        self.record = "durable" if seed >= PASSED else "all"
        self.seconds, self.wall = 1000.0, 1_800_000_000_000_000
        self.lossy = 0.0
        self.frame_rows = chance.choice((3, COMMIT_ROWS))
        self.segment_bytes = chance.choice((8_000, 30_000, 200_000))
        self.weights = [
            weight if calm else weight * chance.choice((0.0, 0.5, 1.0, 3.0))
            for weight, calm in _CHANCES.values()
        ]
        self.lines = {
            name: Lines(name, tuple(other for other in self.names if other != name))
            for name in self.names
        }
        for engine in self.lines.values():
            engine.others = self.lines
        self.turns = random.Random(seed)  # other schedules than those of before would be others
        self.rows_a_turn = AT_ONCE
        if seed >= IN_TURNS:
            self.rows_a_turn = self.turns.choice((1, 3, 10))
            for event, weight in _MORE.items():
                self.weights[_EVENTS.index(event)] += weight
        self.cut: set[frozenset[str]] = set()
        self.forgets = False  # what a cut line is given is lost, not held
        self.hubs: dict[str, ClusterHub] = {}
        self.starts = 0
        self.lost: dict[str, float] = {}
        self.streams = Streams(root, chance)
        self._make_clients()

    def _make_clients(self) -> None:
        chance, topics = self.chance, _TOPICS
        if self.record == "durable":
            topics = {"a": {"l/1": 1, "k/1": 1}, "b": {"l/2": 1}, "c": {"l/1": 1, "l/2": 2}}
        self.authors = [
            Author(self, f"pub-{name}", chance.random() < 0.5, said)  # type: ignore[arg-type]
            for name, said in topics.items()
        ]
        self.listeners = [
            Listener(self, "sub-a", True, "k/#", 2),  # type: ignore[arg-type]
            Listener(self, "sub-b", False, "k/+", 2),  # type: ignore[arg-type]
            Listener(self, "sub-c", chance.random() < 0.5, "k/1", 1),  # type: ignore[arg-type]
            Listener(self, "all-b", True, "#", 2),  # type: ignore[arg-type]
        ]
        self.clients: list[Hopper] = [*self.authors, *self.listeners]

    # What clients ask of the world

    def note(self, text: str) -> None:
        if self.verbose:
            print(f"{self.seconds:10.3f}  {text}", file=sys.stderr)

    def must_be_safe(self, payload: bytes, topic: str) -> None:
        """Now that it is acknowledged it is in a journal."""
        if not any(has(self.root / name, payload) for name in self.names):
            raise AssertionError(f"{payload!r} was promised too early")

    def door(self, client: Hopper) -> ClusterHub | None:
        """A hub that knows the home of its session, or is its own at first."""
        if not client.known:
            return self.hubs.get(client.name[-1])
        doors = [hub for hub in self.hubs.values() if self._knows(hub, client.name)]
        return self.chance.choice(doors) if doors else None

    def _knows(self, hub: ClusterHub, client: str) -> bool:
        directory = hub.here.directory
        return ("mqtt", client) in directory.here or directory.home("mqtt", client) != ""

    # The schedule

    def run(self) -> None:
        log = logging.getLogger("hubbub")
        log.addHandler(self.alarm)
        propagate, log.propagate = log.propagate, False
        try:
            with framed(self.frame_rows):
                for name in self.names:
                    self._start(name)
                self._prepare()
                for _ in range(self.steps):
                    (event,) = self.chance.choices(_EVENTS, self.weights)
                    event(self)
                    self._pass_marks()
                    self._check()
                self._finish()
        finally:
            log.removeHandler(self.alarm)
            log.propagate = propagate
            for hub in self.hubs.values():
                hub.log.abandon()

    def _start(self, name: str) -> None:
        skew = self.chance.randrange(-self.skew, self.skew + 1) * 1_000_000
        self.starts += 1  # no machine starts a hub twice in the same microsecond of its clock
        clock = SkewedClock(self.seconds, self.wall + skew + self.starts)
        path = self.root / name
        path.mkdir(exist_ok=True)
        self.lost.pop(name, None)
        engine = self.lines[name]
        hub = ClusterHub(
            path, clock, self.segment_bytes, engine, self.streams, self._is_dead,
            self.rows_a_turn, self.record,
        )  # fmt: skip
        self._made(hub)
        hub.begin()
        self.hubs[name] = hub
        self.note(f"{name} starts{' deposed' if hub.fenced_at else ''}")

    def _made(self, hub: ClusterHub) -> None:
        """It is to begin."""

    def _prepare(self) -> None:
        """All hubs have met, and know all sessions; who listens has subscribed."""
        for _ in range(200):
            for client in self.clients:
                client.act()
            self._calm()
            if self._subscribed() and all(
                self._knows(hub, client.name) for hub in self.hubs.values()
                for client in self._one_home()
            ):  # fmt: skip
                break
        for _ in range(10):  # filters are told as sessions are, some frames later
            self._calm()
        self.begun = True
        self.lossy = self.chance.choice((0.0, 0.02, 0.2))
        self.note("begin")

    def _subscribed(self) -> bool:
        return all(one.subscribed for one in self.listeners)

    def _calm(self) -> None:
        """Everything on its way arrives, and some time goes by."""
        for client in self.clients:
            if client.wire is not None:
                client.wire.deliver(1 << 20)
        for hub in self.hubs.values():
            hub.loop.run()
            hub.write()
        while any(self._full()):
            for sender, receiver in self._full():
                self._carry_one(sender, receiver)
        self._pass_marks()
        self._pass(0.1)

    def _pass(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += int(seconds * 1_000_000)
        for hub in self.hubs.values():
            assert isinstance(hub.clock, SkewedClock)
            hub.clock.go_on(seconds)
            hub.sweep()
            hub.loop.run()

    def _one_home(self) -> list[Hopper]:
        """Whose sessions last, and are at one hub at each moment."""
        return self.clients

    def _check(self) -> None:
        assert not self.alarm.broken, self.alarm.broken[0]
        for name, hub in self.hubs.items():
            for reason in hub.here.hearing.refused:
                assert "broke" not in reason and "no room" not in reason, f"{name}: {reason}"
            relays = hub.here.relays
            self.relayed = max(self.relayed, len(relays.near))
            ends: list[Near | Far] = [*relays.near.values(), *relays.far.values()]
            for end in ends:
                assert 0 <= end.sending.room <= CLUSTER_WAY_BYTES
                assert 0 <= end.taking.room <= CLUSTER_WAY_BYTES
        for client in self._one_home():
            homes = [
                name for name, hub in self.hubs.items()
                if ("mqtt", client.name) in hub.here.directory.here
            ]  # fmt: skip
            assert len(homes) <= 1, f"{client.name} has the homes {homes}"

    # Events

    def _full(self) -> list[tuple[str, str]]:
        """The lines on which something can arrive."""
        return [
            (sender, receiver)
            for sender, engine in self.lines.items()
            for receiver, line in engine.lines.items()
            if line and (self.forgets or frozenset((sender, receiver)) not in self.cut)
        ]

    def _carry_one(self, sender: str, receiver: str) -> None:
        frame = self.lines[sender].lines[receiver].popleft()
        self.lines[receiver].came(sender)
        hub = self.hubs.get(receiver)
        if hub is None or frozenset((sender, receiver)) in self.cut:
            return
        if self.chance.random() < self.lossy:
            if self.chance.random() < 0.5:
                return
            hub.hear(frame)
        hub.hear(frame)

    def _pass_marks(self) -> None:
        """Who has heard all that came before somebody was lost is told so."""
        for name, hub in self.hubs.items():
            cut = {other for other in self.names if frozenset((name, other)) in self.cut}
            calls = self.lines[name].passed(cut)
            for call in calls:
                call()
            if calls:
                hub.schedule()
                hub.loop.run()

    def _carry(self) -> None:
        full = self._full()
        if full:
            line = self.chance.choice(full)
            for _ in range(self.chance.randrange(1, 6)):
                if self.lines[line[0]].lines[line[1]]:
                    self._carry_one(*line)

    def _act(self) -> None:
        self.chance.choice(self.clients).act()
        self._run()

    def _run(self) -> None:
        for hub in self.hubs.values():
            hub.loop.run()

    def _deliver(self) -> None:
        wires = [one.wire for one in self.clients if one.wire is not None and one.wire.to_hub]
        wires += [one for one in self.ghosts if one.to_hub]
        if wires:
            wire = self.chance.choice(wires)
            size = len(wire.to_hub)
            wire.deliver(size if self.chance.random() < 0.7 else self.chance.randrange(size + 1))
        self._run()

    def _write(self) -> None:
        if self.hubs:
            self.chance.choice(list(self.hubs.values())).write()

    def _sweep(self) -> None:
        self._pass(self.chance.choice((0.05, 0.3, 0.3)))

    def _wait(self) -> None:
        """Long enough for hubs that hear nothing to give one another up."""
        for _ in range(self.chance.choice((4, 13))):
            self._pass(0.5)

    def _hop(self) -> None:
        client = self.chance.choice(self.clients)
        self.note(f"{client.name} is cut off")
        client.cut()
        self._run()

    def _take_over(self) -> None:
        client = self.chance.choice(self.clients)
        self.note(f"{client.name} takes over")
        client.vanish()
        client.dial()

    def _lay_ghosts(self) -> None:
        ghosts, self.ghosts = self.ghosts, []
        for wire in ghosts:
            wire.hang_up()
        self._run()

    def _part(self) -> None:
        """Two hubs do not hear one another, or all do again."""
        if self.cut:
            self.note("healed")
            self.cut.clear()
            return
        self.forgets = self.chance.random() < 0.5
        one, other, third = self.chance.sample(self.names, 3)
        self.cut.add(frozenset((one, other)))
        if self.chance.random() < 0.5:
            self.cut.add(frozenset((one, third)))
        self.note(f"cut: {sorted(map(sorted, self.cut))}, forgets: {self.forgets}")

    def _jump(self) -> None:
        """The clock of a machine is set."""
        if self.hubs:
            clock = self.chance.choice(list(self.hubs.values())).clock
            assert isinstance(clock, SkewedClock)
            skew = self.chance.randrange(-self.skew, self.skew + 1)
            clock.wall = self.wall + skew * 1_000_000

    def _roll(self) -> None:
        if self.hubs:
            self.chance.choice(list(self.hubs.values())).roll()

    def _kill(self) -> None:
        if len(self.hubs) > 1 or self.chance.random() < 0.2:
            self._end(self.chance.choice(sorted(self.hubs)) if self.hubs else "")

    def _end(self, name: str) -> None:
        hub = self.hubs.pop(name, None)
        if hub is None:
            return
        self.note(f"{name} is killed")
        hub.kill(self.chance)
        self.lines[name].marks.clear()
        self.lost[name] = self.seconds
        for engine in self.lines.values() if len(self.names) > len(NAMES) else ():
            if name in engine.lines:  # its connections are gone; those of three hold more than any
                engine.lines[name].clear()
        self.ghosts = [wire for wire in self.ghosts if wire.node is not hub]
        for client in self.clients:
            if client.wire is not None and client.wire.node is hub:
                client.wire.open = False
                client.cut()

    def _begin_again(self) -> None:
        """One that is dead is back, maybe before its heir is ready."""
        if self.lost:
            self._start(self.chance.choice(sorted(self.lost)))

    # Heirs

    def _is_dead(self, name: str) -> bool:
        return self.seconds - self.lost.get(name, self.seconds) > DEAD

    def _look(self) -> None:
        """A hub looks who is dead: stops a stream, reads it if the servers let it, and adopts."""
        if self.hubs:
            turns = self.turns.choice((1, 2, 5, 50))
            self._looks(self.chance.choice(sorted(self.hubs)), fails=0.6, turns=turns)

    def _go_on(self) -> None:
        """A hub has its next turns of taking over."""
        going = [name for name, hub in self.hubs.items() if hub.seeker.goes_on is not None]
        if going:
            self._looks(self.chance.choice(sorted(going)), turns=self.turns.choice((1, 1, 2, 5)))

    def _looks(self, name: str, fails: float = 0.0, turns: int = AT_ONCE) -> None:
        self.streams.fails = fails
        before = dict(self.streams.stopped)
        count = self.hubs[name].look(turns)
        for dead in self.streams.stopped.items() - before.items():
            self.note(f"{name} stops {dead}")
        if count:
            self.note(f"{name} adopts {self.hubs[name].seeker.adoptions}")
        self.adoptions += count

    # The end

    def _finish(self) -> None:
        self.note("the end begins")
        self.cut.clear()
        self.lossy = 0.0
        for name in sorted(self.lost):
            self._start(name)
        self._lay_ghosts()
        for _ in range(self.rounds):
            self._round()
            if self._owed() is None and all(client.done() for client in self.clients):
                break
        assert self._owed() is None, self._owed()
        waiting = [client.name for client in self.clients if not client.done()]
        assert not waiting, f"{waiting} wait for ever"
        for name, hub in self.hubs.items():
            dropped = hub.broker.metrics.dropped
            assert not any(map(dropped.get, self.unexpected)), f"{name}: {dropped}"

    def _round(self) -> None:
        for client in self.clients:
            client.act()
        self._calm()
        for name in sorted(self.hubs):
            self._looks(name)
        self._check()

    def _owed(self) -> str | None:
        """What is still missing, in words."""
        for listener in self.listeners:
            wish = listener.wish.rstrip("#+")
            if missing := self._acknowledged(wish) - listener.got.keys():
                return f"{listener.name} has not got {sorted(missing)}"
        for name, hub in self.hubs.items():
            for topic, payload in self._retained().items():
                seq = hub.broker.state.retained_seq(topic)
                message = hub.broker.log.look(seq) if seq else None
                if message is None or message.payload != payload:
                    return f"{name} retains {message and message.payload!r}, not {payload!r}"
            if waits := sum(one.unacknowledged() for one in hub.here.estates.values()):
                return f"{name} keeps {waits} for others"
        return None

    def _acknowledged(self, prefix: str) -> set[bytes]:
        return {
            payload
            for one in self.authors
            for topic, payloads in one.acknowledged.items()
            if topic.startswith(prefix)
            for payload in payloads
        }

    def _retained(self) -> dict[str, bytes]:
        return {
            topic: payloads[-1]
            for one in self.authors
            for topic, payloads in one.acknowledged.items()
            if topic.startswith("r/") and payloads
        }


# How likely each event is; accidents are more likely in some schedules than in others.
_CHANCES: dict[Callable[[ClusterWorld], None], tuple[float, bool]] = {
    ClusterWorld._act: (40, True),
    ClusterWorld._deliver: (30, True),
    ClusterWorld._carry: (40, True),
    ClusterWorld._write: (20, True),
    ClusterWorld._sweep: (5, True),
    ClusterWorld._wait: (0.5, True),
    ClusterWorld._hop: (2, False),
    ClusterWorld._take_over: (1, False),
    ClusterWorld._lay_ghosts: (0.5, True),
    ClusterWorld._part: (0.7, False),
    ClusterWorld._jump: (0.2, False),
    ClusterWorld._roll: (0.3, True),
    ClusterWorld._kill: (0.5, False),
    ClusterWorld._begin_again: (0.5, True),
    ClusterWorld._look: (2.0, False),
    ClusterWorld._go_on: (0.0, True),
}
# Where hubs take over in turns: so much more often there is something to take over.
_MORE = {
    ClusterWorld._go_on: 8.0,
    ClusterWorld._look: 3.0,
    ClusterWorld._kill: 1.0,
    ClusterWorld._wait: 1.0,
    ClusterWorld._begin_again: 0.5,
}
_EVENTS = list(_CHANCES)
