"""What is due at some time, or is over: wills, delayed messages, expiry, and sessions that begin
anew elsewhere, in schedules of a cluster. Seeds from `DUE` on.

A will is published once if its client was lost, and not by a hub that knows that the client is
connected again; what a client retains after it has come again stays. A delayed message comes, of
QoS 2 once, and not before its time; one that has expired is not sent any more. Who begins anew
gets nothing that was acknowledged before from a session of before. In half of the schedules no
clock is wrong: times are looked at closely there. Seeds from `WIPED` on: who is back may have
another disk, and is the heir of its own copy.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any, Final

from hubbub.cluster import estates
from hubbub.cluster.directory import SUPERSEDED
from hubbub.cluster.heritage import GONE
from hubbub.cluster.node import Node
from hubbub.core.limits import CLUSTER_MARK_SECONDS
from hubbub.core.message import Run
from hubbub.core.session import Session
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties, Will
from tests.simulation.clients import MESSAGES
from tests.simulation.cluster import SKEW, UNEXPECTED, Author, ClusterWorld, Hopper, Listener
from tests.simulation.hub import SimulatedNode, Wire
from tests.simulation.nodes import ClusterHub

DUE: Final = 1_000_000
WIPED: Final = 2_000_000
STANDS: Final = 300_000  # behind those two: from there on hubs stand still for a moment, too
APART: Final = 30  # rounds at the end in which those are away who come again
AFTERWARDS: Final = 120  # rounds at the end in which nothing may come any more
LATE: Final = 3.0  # seconds in which the disk may not have what is being sent


def number_of(payload: bytes) -> int:
    return int(payload.rpartition(b" ")[2])


def wipe(world: ClusterWorld, name: str) -> None:
    """Its disk is another one. What it had is in its copy, which it stops itself, if nobody else
    was first.
    """
    streams = world.streams
    if not streams.stop_behind(name):
        at = streams.stopped.get(name, 0) + 1000
        fence = streams.fence(name, streams.base(name), world.wall, estates.named(name, at))
        with contextlib.suppress(StopIteration):
            fence.send(None)
    shutil.rmtree(world.root / name)


class Orderly(Hopper):
    """What it says when it comes is not heard after it has come once more."""

    def vanish(self) -> None:
        if self.welcome:
            super().vanish()
        else:
            self.cut()


class Coming:
    """A connection, as the world has seen it. `welcomed`: in which of its steps, -1 = not so far;
    `told`: by hub, how its own one knew that then, and how that knew its own; `over`: in which step
    it was, and when.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.welcomed = self.over = -1
        self.over_at = 0.0
        self.told: dict[str, tuple[Node | None, Node | None]] = {}


class Mortal(Orderly):
    """Has a will, of its `count`th connection: `2 * count + 1`. `lasts`: its session, for so many
    seconds. `owed`: wills of connections that the hub had taken, and that were lost for good.
    """

    world: DueWorld  # type: ignore[assignment]

    def __init__(
        self, world: DueWorld, name: str, modern: bool, lasts: int = 0, delay: int = 0
    ) -> None:  # fmt: skip
        super().__init__(world, name, modern, clean=not lasts)  # type: ignore[arg-type]
        self.lasts = lasts
        self.delay = delay
        self.count = 0
        self.dead = False
        self.owed: set[bytes] = set()
        self.coming: dict[int, Coming] = {}

    def said(self, number: int) -> bytes:
        return f"{self.name} w/{self.name} 2 {number}".encode()

    @property
    def will(self) -> bytes:
        return self.said(2 * self.count + 1)

    def dial(self) -> None:
        if not self.dead:
            super().dial()

    def greet(self) -> None:
        self.count += 1
        self.welcome = False
        properties = said = None
        if self.modern:
            properties = Properties({spec.SESSION_EXPIRY: self.lasts} if self.lasts else {})
            said = Properties({spec.WILL_DELAY: self.delay} if self.delay else {})
        will = Will(f"w/{self.name}".encode(), self.will, 2, self.retains(), said)
        assert self.wire is not None
        self.coming[self.count] = Coming(self.wire)
        self.say(codec.connect(self.name.encode(), self.clean, 0, will, properties=properties))

    def retains(self) -> bool:
        return False

    def work(self) -> None:
        """One that dies."""
        if self.welcome and self.world.begun and self.chance.random() < 0.05:
            (self.vanish if self.chance.random() < 0.5 else self.cut)()

    def cut(self) -> None:
        self._dies()
        super().cut()

    def vanish(self) -> None:
        if self.welcome:
            self._dies()
            self.welcome = True
        super().vanish()
        self.welcome = False

    def _dies(self) -> None:
        if self.world.begun and self.count:
            self.dead = True
            if self.welcome:
                self.owed.add(self.will)
        self.welcome = False


class Returning(Mortal):
    """Says that it is there, retained like its will, and comes again."""

    def retains(self) -> bool:
        return True

    def welcomed(self) -> None:
        self.world.was_welcomed(self.coming[self.count])
        properties = codec.NO_PROPERTIES if self.modern else b""
        topic, payload = f"w/{self.name}".encode(), self.said(2 * self.count)
        self.say(codec.publish(topic, payload, 1, True, 1, False, properties))

    def work(self) -> None:
        world = self.world
        if self.welcome and world.begun and not world.final and self.chance.random() < 0.03:
            self.say(codec.packet(codec.DISCONNECT, b""))

    def _dies(self) -> None:
        self.welcome = False


class Later(Author):
    """Says things for later. `asked`: when it did so first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: dict[bytes, float] = {}

    def _send(self, packet_id: int, dup: bool = False) -> None:
        self.asked.setdefault(self.open[packet_id][1], self.world.seconds)
        super()._send(packet_id, dup)


class Waiting(Listener):
    """Hears what was said for later."""

    world: DueWorld  # type: ignore[assignment]

    def _keep(self, payload: bytes) -> None:
        _, topic, _, _ = payload.decode().split()
        due = self.world.later.asked[payload] + int(topic.split("/")[1])
        early = due - self.world.seconds - 2 * self.world.skew
        assert early < 0.01, f"{payload!r} came {early} s before its time"
        super()._keep(payload)


class Fleeting(Author):
    """What it says expires. `until`: when, at the latest, by what was acknowledged."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.until: dict[bytes, float] = {}

    def _send(self, packet_id: int, dup: bool = False) -> None:
        topic, payload, qos, retain = self.open[packet_id]
        if packet_id in self.released:
            super()._send(packet_id, dup)
            return
        properties = Properties({spec.MESSAGE_EXPIRY: int(topic.split("/")[1])}).encode()
        self.say(codec.publish(topic.encode(), payload, qos, retain, packet_id, dup, properties))

    def _promised(self, topic: str, payload: bytes) -> None:
        if payload not in self.until:
            self.until[payload] = self.world.seconds + int(topic.split("/")[1])
        self.acknowledged[topic].append(payload)  # it may be nowhere any more


class TimedWire(Wire):
    """`chunks`: what the hub wrote, and when."""

    def __init__(self, world: DueWorld, hub: ClusterHub) -> None:
        self.world = world
        self.chunks: list[tuple[float, bytes]] = []
        super().__init__(hub)

    def write(self, data: bytes) -> None:
        if self.open:
            self.chunks.append((self.world.seconds, bytes(data)))
        super().write(data)


class Punctual(Listener):
    """Is not sent what has expired, as long as it is at the home of its session; unless that began
    before (MQTT 5.0, 3.3.2.3.3).
    """

    world: DueWorld  # type: ignore[assignment]
    written = 0.0

    def dial(self) -> None:
        hub = self.world.door(self)
        if hub is not None:
            self.wire = TimedWire(self.world, hub)
            self._rest = b""
            self.greet()

    def hear(self, data: bytes) -> None:
        wire = self.wire
        assert isinstance(wire, TimedWire)
        chunks, wire.chunks = wire.chunks, []
        for self.written, chunk in chunks:
            super().hear(chunk)

    def message(self, packet: codec.Publish) -> None:
        wire, until = self.wire, self.world.fleeting.until.get(packet.payload)
        assert wire is not None
        hub = wire.node
        assert isinstance(hub, ClusterHub)
        if until is not None and not packet.dup and ("mqtt", self.name) in hub.here.directory.here:
            late = self.written - until - 2 * self.world.skew - LATE
            assert late < 0, f"{packet.payload!r} was sent {late} s after it had expired"
        super().message(packet)


class Fresh(Orderly, Listener):
    """Begins anew at times, at any hub. `used`: the estates where it had a session; `before`: what
    was acknowledged when it last began anew, if it did so where it never was.
    """

    world: DueWorld  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.anew = False
        self.used: set[str] = set()
        self.estate = ""
        self.before: set[bytes] = set()
        self._earlier: set[bytes] = set()
        self._dialled = 0

    def dial(self) -> None:
        """Who comes to another one does so later: which began last is said by their clocks."""
        before, self._dialled = self._dialled, self.world.wall
        if before < self.world.wall:
            super().dial()

    def greet(self) -> None:
        self.welcome = False
        self.answers.clear()
        self.anew = self.anew or self.world.may_begin_anew() and self.chance.random() < 0.3
        self.asked = self.asked_now
        if self.anew:
            self.known = self.subscribed = self.asked = self.asked_now = False
            self._half.clear()
            self._earlier = self.world.said_to(self)
        properties = Properties({spec.SESSION_EXPIRY: spec.NEVER})
        self.say(codec.connect(self.name.encode(), self.anew, 0, properties=properties))

    def welcomed(self) -> None:
        self.estate = self.world.latest(self) or self.estate
        if self.anew:
            self.before = set() if self.estate in self.used else self._earlier
            self.got = {}
            self.world.note(f"{self.name} began anew in {self.estate}")
        self.used.add(self.estate)
        self.anew = False
        super().welcomed()

    def _keep(self, payload: bytes) -> None:
        assert payload not in self.before, f"{self.name} has {payload!r} of before it began anew"
        super()._keep(payload)


class Leaver(Orderly, Listener):
    """Has a session that lasts, and begins anew once without one, `at` a hub that knows of it: that
    remembers so until it ends.
    """

    world: DueWorld  # type: ignore[assignment]
    at: SimulatedNode | None = None
    leaves = left = False

    def greet(self) -> None:
        self.leaves = self.leaves or (self.world.begun and self.chance.random() < 0.3)
        if not self.leaves:
            super().greet()
            return
        self.known = self.welcome = False
        self.clean = True
        self.say(codec.connect(self.name.encode(), True, 0, properties=Properties()))

    def dial(self) -> None:
        if not self.left:
            super().dial()

    def welcomed(self) -> None:
        self.left = self.leaves
        if self.left and self.wire is not None:
            self.at = self.wire.node
            self.world.note(f"{self.name} has left")
            self.cut()
        else:
            super().welcomed()


class Last(Author):
    """Says something when all is over."""

    world: DueWorld  # type: ignore[assignment]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.count = MESSAGES - 3

    def work(self) -> None:
        if self.world.final:
            super().work()

    def done(self) -> bool:
        return not self.world.final or super().done()


class DueWorld(ClusterWorld):
    """`final`: all is over, and everybody has come once more."""

    rounds = 1600  # some wait for a minute
    unexpected = tuple(one for one in UNEXPECTED if one not in (SUPERSEDED, GONE))

    def __init__(self, seed: int, root: Path, verbose: bool = False) -> None:
        self.final = False
        self.wipes = 0.3 if seed >= WIPED else 0.0
        self.wiped: set[str] = set()
        self.copied: list[bytes] = []  # what disks had that were lost
        self.step = 0
        self.parted = False
        self.stands = 0.02 if seed % DUE >= STANDS else 0.0
        self.skew = SKEW if seed // 2 % 2 else 0
        super().__init__(seed, root, verbose=verbose)

    def _make_clients(self) -> None:
        here: Any = self
        self.later = Later(
            here, "lat-a", True, {"$delayed/2/d/1": 2, "$delayed/6/d/2": 1, "$delayed/45/d/3": 2}
        )
        self.fleeting = Fleeting(here, "fle-b", True, {"x/3": 1, "x/12": 2, "x/30": 2})
        fresh_topics = {"f/1": 2, "f/2": 2}  # one of QoS 1 may be said once more
        self.authors = [
            self.later, self.fleeting, Author(here, "pub-c", False, fresh_topics),
            Author(here, "pub-a", True, fresh_topics),
        ]  # fmt: skip
        self.last = [Last(here, f"fin-{name}", True, {"f/last": 2}) for name in "ab"]
        self.watcher = Listener(here, "wat-b", True, "w/#", 2, ordered=False)
        self.listeners = [
            Waiting(here, "due-b", False, "d/#", 2, ordered=False),
            Waiting(here, "due-c", True, "d/3", 2, ordered=False),
        ]
        self.punctual = Punctual(here, "exp-a", True, "x/#", 2, ordered=False)
        self.fresh = Fresh(here, "new-a", True, "f/#", 2, ordered=False)
        self.leaver = Leaver(here, "bye-c", True, "l/#", 2, ordered=False)
        self.dying = [
            Mortal(self, "one-a", False), Mortal(self, "two-b", True, 0, 30),
            Mortal(self, "six-c", True, spec.NEVER, 4), Mortal(self, "ten-a", True, 3, 60),
        ]  # fmt: skip
        self.returning = [
            Returning(self, "ret-a", False), Returning(self, "rev-b", True, spec.NEVER, 3),
            Returning(self, "req-c", True, spec.NEVER),
        ]  # fmt: skip
        self.clients = [
            *self.authors, *self.last, self.watcher, *self.listeners, self.punctual, self.fresh,
            self.leaver, *self.dying, *self.returning,
        ]  # fmt: skip

    def _one_home(self) -> list[Hopper]:
        others = (*self.dying, self.fresh, self.leaver, *self._clean())
        return [one for one in self.clients if one not in others]

    def _clean(self) -> list[Hopper]:
        return [one for one in self.clients if one.clean]

    def _subscribed(self) -> bool:
        listeners = [*self.listeners, self.watcher, self.punctual, self.fresh, self.leaver]
        known = all(self._knows(hub, self.leaver.name) for hub in self.hubs.values())
        return known and all(one.subscribed for one in listeners) and bool(self.fresh.estate)

    def must_be_safe(self, payload: bytes, topic: str) -> None:
        if not any(payload in one for one in self.copied):
            super().must_be_safe(payload, topic)

    def _start(self, name: str) -> None:
        if self.wipes and name in self.lost and self.turns.random() < self.wipes:
            self._wipe(name)
        super()._start(name)

    def _wipe(self, name: str) -> None:
        self.copied += (one.read_bytes() for one in (self.root / name).rglob("*.rows"))
        wipe(self, name)
        self.wiped.add(name)
        self.note(f"{name} has lost its disk")

    def door(self, client: Hopper) -> ClusterHub | None:
        """It hears nobody before it has what it had."""
        hub = self._door(client)
        waits = hub is not None and hub.here.name in self.wiped and hub.fenced_at
        return None if waits else hub

    def _door(self, client: Hopper) -> ClusterHub | None:
        hubs = list(self.hubs.values())
        if client is self.leaver and client.clean and not self.leaver.left:
            doors = [hub for hub in hubs if self._knows(hub, client.name)]
            return self.chance.choice(doors) if doors else None
        if client.clean or (client is self.fresh and self.fresh.anew):
            return self.chance.choice(hubs) if hubs else None
        if client is not self.fresh or not client.known:
            return super().door(client)
        doors = [hub for hub in hubs if self._leads(hub)]
        return self.chance.choice(doors) if doors else None

    def _leads(self, hub: ClusterHub) -> bool:
        """Whether it knows where who begins anew has last begun."""
        key, directory = ("mqtt", self.fresh.name), hub.here.directory
        found = directory.home(*key) or (directory._estate(key) if key in directory.here else "")
        return found == self.fresh.estate

    def may_begin_anew(self) -> bool:
        """Which session began last is said by clocks."""
        return self.begun and not self.final and not self.skew

    def latest(self, client: Hopper) -> str:
        """The estate where its session began last."""
        key = "mqtt", client.name
        found = [
            (hub.here.directory.here[key], hub.here.directory._estate(key))
            for hub in self.hubs.values() if key in hub.here.directory.here
        ]  # fmt: skip
        return max(found)[1] if found else ""

    def said_to(self, client: Fresh) -> set[bytes]:
        return self._acknowledged("f/") | client.got.keys()

    def _pass(self, seconds: float) -> None:
        self._see_who_is_lost()
        super()._pass(seconds)
        for hub in self.hubs.values() if seconds >= 0.5 else ():
            hub.write()  # no disk takes so long: what is being sent would expire meanwhile

    def _end(self, name: str) -> None:
        super()._end(name)
        self._pass(0.001)  # who comes to another one does so later

    # What hubs publish

    def _made(self, hub: ClusterHub) -> None:
        log = hub.log
        log.told = lambda run: self._published(hub, run)

    def _published(self, hub: ClusterHub, run: Run) -> None:
        if run.sender.far or not run.route.name.startswith("w/"):
            return
        for message in run.messages():
            number = number_of(message.payload)
            if number % 2:
                self._is_right(hub, run.sender, run.route.name[2:], number // 2)

    def _is_right(self, hub: ClusterHub, sender: Session, name: str, count: int) -> None:
        (client,) = (one for one in (*self.dying, *self.returning) if one.name == name)
        self.note(f"{hub.here.name} publishes will {count} of {name}")
        assert client.count >= count
        if ("mqtt", name) in hub.here.directory.here:
            return  # the home takes it over, if it is said to
        session = hub.broker.sessions.get(("mqtt", name))
        here = session is not None and session.number > 0 and session is not sender
        there = any(name in self._clients_of(node) for node in hub.here.nodes.values())
        if client.welcome and client.count > count and not self.skew:
            assert not (here or there), f"will {count} of {name}, which is connected again"
            assert not self._had_come(hub, client, count), f"will {count} of {name}, which had come"

    # Who had come to another hub before the loss was seen

    def was_welcomed(self, coming: Coming) -> None:
        hub = coming.wire.node
        assert isinstance(hub, ClusterHub)
        coming.welcomed = self.step
        coming.told = {
            name: (hub.here.nodes.get(name), one.here.nodes.get(hub.here.name))
            for name, one in self.hubs.items()
        }

    def _had_come(self, hub: ClusterHub, client: Mortal, count: int) -> bool:
        """Whether what says that its client is elsewhere was on its way when the connection was
        seen to be lost: that is waited for. Slow lines are not.
        """
        lost, now = client.coming[count], client.coming[client.count]
        there = now.wire.node
        assert isinstance(there, ClusterHub)
        if self.parted or self.lossy or lost.wire.node is not hub or there is hub:
            return False
        seen, at = (self.step, self.seconds) if lost.over < 0 else (lost.over, lost.over_at)
        if not 0 <= now.welcomed < seen or self.seconds - at >= CLUSTER_MARK_SECONDS / 2:
            return False
        theirs, ours = now.told.get(hub.here.name, (None, None))
        if theirs is None or ours is None or ours.asking:
            return False
        knows = hub.here.nodes.get(there.here.name) is ours
        return knows and there.here.nodes.get(hub.here.name) is theirs

    def _see_who_is_lost(self) -> None:
        for client in (*self.dying, *self.returning):
            for coming in client.coming.values():
                if coming.over < 0 and not coming.wire.open:
                    coming.over, coming.over_at = self.step, self.seconds

    def _pass_marks(self) -> None:
        self.parted = self.parted or bool(self.cut)
        self._see_who_is_lost()
        super()._pass_marks()
        self.step += 1
        if self.begun and not self.final and self.turns.random() < self.stands:
            self._stand()

    def _stand(self) -> None:
        """A hub stands still: one of its clients is lost, and welcomed elsewhere, before it sees
        either; then it sees that first.
        """
        here = [one for one in self.returning if one.welcome and one.wire is not None]
        if not here:
            return
        client = self.turns.choice(here)
        self.note(f"the hub of {client.name} stands still")
        client.vanish()
        self._pass(0.001)  # who comes to another one does so later
        for _ in range(4):
            client.act()
            if client.wire is not None:
                client.wire.deliver(1 << 20)
                client.wire.node.loop.run()
                assert isinstance(client.wire.node, ClusterHub)
                client.wire.node.write()
        self.step += 1
        self._lay_ghosts()

    def _clients_of(self, node: Node) -> set[str]:
        """But for one of which what it said in an earlier life was held on its way, and for who was
        lost there since. Who comes back there has the same number, on another connection.
        """
        hub = self.hubs.get(node.name)
        alive = hub is not None and hub.here.boot == node.boot
        if hub is None or not alive:
            return set()
        here = hub.broker.clients
        return {
            one.client for at, one in node.clients.items()
            if at in here and here[at].came == one.came
        }  # fmt: skip

    # The end

    def _finish(self) -> None:
        super()._finish()
        self.note("all is over")
        self.final = True
        for client in self.returning:  # who comes again before it is lost may be the earlier one
            client.cut()
            client.dead = True
        for _ in range(APART):
            self._round()
        for client in self.returning:
            client.dead = False
        for _ in range(self.rounds):
            self._round()
            if all(one.done() for one in self.last) and self._over() is None:
                break
        assert self._over() is None, self._over()
        for _ in range(AFTERWARDS):
            self._pass(0.4)
            self._round()
        assert self._over() is None, self._over()
        homes = [
            name for name, hub in self.hubs.items()
            if ("mqtt", self.fresh.name) in hub.here.directory.here
        ]  # fmt: skip
        assert len(homes) == 1, f"who began anew has the homes {homes}"
        for name, hub in self.hubs.items():
            here = ("mqtt", self.leaver.name) in hub.here.directory.here
            remembers = self.leaver.at in self.hubs.values()
            assert not (here and remembers), f"a session of who has left is at {name}"

    def _round(self) -> None:
        self._lay_ghosts()
        super()._round()

    def _over(self) -> str | None:
        missing = self._acknowledged("f/last") - self.fresh.got.keys()
        if missing:
            return f"{self.fresh.name} has not got {sorted(missing)}"
        for client in self.returning:
            online = client.said(2 * client.count)
            for name, hub in self.hubs.items():
                seq = hub.broker.state.retained_seq(f"w/{client.name}")
                message = hub.broker.log.look(seq) if seq else None
                if message is None or message.payload != online:
                    return f"{name} retains {message and message.payload!r}, not {online!r}"
        return None

    def _acknowledged(self, prefix: str) -> set[bytes]:
        if prefix.startswith("d/"):
            found = [one for one in self.later.acknowledged if f"/{prefix}" in one]
            return {payload for one in found for payload in self.later.acknowledged[one]}
        authors = [*self.authors, *self.last]
        return {
            payload for one in authors for topic, payloads in one.acknowledged.items()
            if topic.startswith(prefix) for payload in payloads
        }  # fmt: skip

    def _owed(self) -> str | None:
        for client in self.dying:
            if missing := client.owed - self.watcher.got.keys():
                return f"nobody has heard that {client.name} is lost: {sorted(missing)}"
        return super()._owed()
