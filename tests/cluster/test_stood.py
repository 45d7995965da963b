"""A hub that stood still says no will of who went elsewhere meanwhile, and all others once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.cluster import heritage, wills
from hubbub.cluster.membership import Membership
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import (
    CLUSTER_BEAT_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_MARK_SECONDS,
    CLUSTER_STOOD_SECONDS,
)
from hubbub.core.message import PUBLISHER
from hubbub.core.quotas import RETAINED
from hubbub.core.rights import Rights
from hubbub.core.state import State
from hubbub.core.turns import Stint
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.schema import DISCONNECT
from hubbub.schema import WILL as WILL_ROW
from tests.cluster.test_keeping import Keepers
from tests.cluster.world import Reader
from tests.core.recording import Recording, StillClock, folded
from tests.protocols.mqtt.conversation import Stage
from tests.wire import Far, Table

WILL = codec.Will(b"state/ann", b"offline", 1, True)


class Rules(Rights):
    """They change while clients are there."""

    allowed = True

    def may(self, verb: str, name: str) -> bool:
        return self.allowed


class Place(Table):
    """Where clients of MQTT come to a node of the world."""

    def __init__(self, world: Keepers, name: str) -> None:
        super().__init__("all")
        member = world.members[name]
        self.clock, self.broker = world.clock, member.broker
        self.gate = Gate(self.broker.open)
        self.mqtt = Mqtt(self.broker)
        member.relays.serve([self.mqtt])

    def ann(self, lasts: int = 0, delay: int = 0, name: bytes = b"ann") -> Far:
        """`lasts`, and the will's `delay`: seconds."""
        late = Properties({spec.WILL_DELAY: delay} if delay else {})
        expiry = Properties({spec.SESSION_EXPIRY: lasts})
        far = self.dial(self.mqtt)
        will = WILL._replace(properties=late)
        far.say(codec.connect(name, False, 0, will, properties=expiry))
        return far


class Standing(Keepers):
    """Node a stands still at times; `reader` is there."""

    def __init__(self) -> None:
        super().__init__(names=("a", "b"))
        self.place = Place(self, "a")
        self.here = self.members["a"]
        self.stands = False
        self.meet()
        self.reader = self.client("a", "reader")
        self.reader.wish("state/#")
        self.carry()

    def wait(self, seconds: float) -> None:
        until = self.clock.seconds + seconds
        while self.clock.seconds < until:
            self.clock.seconds += 0.25
            for name, member in self.members.items():
                if name != "a" or not self.stands:
                    member.note_awake()
                    member.wake(self.clock.now())
            if not self.stands:
                self.place.mqtt.wake(self.clock.now())
            self.carry()

    def stand(self, seconds: float = CLUSTER_DEAD_SECONDS + 1) -> None:
        """For so long that b gives it up; what is said to it is lost."""
        self.stands = True
        self.cut.update("ab")
        self.wait(seconds)

    def go_on(self) -> None:
        self.stands = False
        self.cut.clear()

    def ann_at(self, name: str) -> Reader:
        broker = self.members[name].broker
        session = Reader(broker, "ann")
        session.protocol = "mqtt"
        opening = Opening(Gate(broker.open), "127.0.0.1")
        broker.connect(session, Admission("mqtt", "ann", "", broker.open, opening))
        return session

    def rows(self) -> State:
        """What a start of node a would read."""
        log = self.here.broker.log
        assert isinstance(log, Recording)
        return folded(log.rows)

    def said(self) -> list[bytes]:
        return [payload for _, payload in self.reader.got]


@pytest.fixture
def world() -> Standing:
    return Standing()


@pytest.mark.parametrize("seen", ["at once", "later"])
@pytest.mark.parametrize("still", [True, False])
def test_who_went_elsewhere_while_its_hub_stood_still_is_not_said_to_be_lost(
    world: Standing, still: bool, seen: str
) -> None:
    ann = world.place.ann()
    world.wait(1)
    world.stand()
    there = world.ann_at("b")
    world.publish(there, "state/ann", b"online", retain=True)
    world.wait(1)
    if not still:
        there.broker.disconnect(there, "")
        world.wait(1)
    world.go_on()
    if seen == "later":
        world.wait(0.25)
    ann.hang_up("lost")
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"online"]
    assert world.retained("a") == world.retained("b") == {"state/ann": b"online"}
    broker = world.here.broker
    assert not broker.state.wills and not broker.undecided and not broker.stood


@pytest.mark.parametrize("quiet", [0.25, 0.5, 0.75, CLUSTER_BEAT_SECONDS])
def test_it_is_noticed_as_soon_as_it_may_be_dead_for_others(
    world: Standing, quiet: float
) -> None:
    """They heard of it last before it stood still, by up to the time from one beat to the next."""
    ann = world.place.ann()
    world.wait(10 + quiet)
    world.stand(0.25)
    while "a" in world.members["b"].nodes:
        world.wait(0.25)
    there = world.ann_at("b")
    world.publish(there, "state/ann", b"online", retain=True)
    world.clock.seconds += 0.125
    world.go_on()
    ann.hang_up("lost")
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"online"]
    assert world.retained("a") == world.retained("b") == {"state/ann": b"online"}


@pytest.mark.parametrize("lasts", [0, 1000])
def test_who_went_nowhere_is_said_to_be_lost_once_as_soon_as_that_is_known(
    world: Standing, lasts: int
) -> None:
    observer = world.client("a", "observer")
    ann = world.place.ann(lasts)
    number = world.here.broker.sessions["mqtt", "ann"].number
    world.here.broker.observers.observe(observer, f"$client/{number}")
    world.wait(1)
    world.stand()
    world.go_on()
    ann.hang_up("lost")
    gone = (f"$client/{number}", 0)
    assert observer.changes[-1] == gone, "that is seen here, and said at once"
    world.wait(CLUSTER_DEAD_SECONDS - 1)
    assert world.said() == []
    world.wait(3)
    assert world.said() == [b"offline"]
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"offline"]
    assert world.retained("b") == {"state/ann": b"offline"}
    assert observer.changes.count(gone) == 1


@pytest.mark.parametrize("delay", [3, 20])
def test_a_late_will_comes_when_it_is_due_and_that_is_known(world: Standing, delay: int) -> None:
    ann = world.place.ann(1000, delay)
    world.wait(1)
    world.stand()
    world.go_on()
    ann.hang_up("lost")
    world.wait(max(delay, CLUSTER_DEAD_SECONDS) - 1)
    assert world.said() == []
    world.wait(3)
    assert world.said() == [b"offline"]


@pytest.mark.parametrize("lasts", [0, 1000])
def test_who_comes_again_here_finds_its_will_said(world: Standing, lasts: int) -> None:
    """As by a hub that did not stand still: it was lost, and what it says now comes behind."""
    ann = world.place.ann(lasts)
    world.wait(1)
    world.stand()
    world.go_on()
    ann.hang_up("lost")
    world.wait(1)
    assert world.said() == []
    again = world.place.ann(lasts)
    assert world.said() == [b"offline"]
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"offline"]
    again.hang_up("lost")
    world.carry()
    assert world.said() == [b"offline", b"offline"]


def test_who_came_after_it_stood_still_is_said_to_be_lost_at_once(world: Standing) -> None:
    world.wait(1)
    world.stand()
    world.go_on()
    world.wait(1)
    assert world.here.broker.undecided
    ann = world.place.ann()
    ann.hang_up("lost")
    world.carry()
    assert world.said() == [b"offline"]


@pytest.mark.parametrize("taken_over", [False, True])
def test_where_there_are_copies_its_stream_is_asked_however_long_that_takes(
    world: Standing, taken_over: bool
) -> None:
    """Its heir has said what was due; without a quorum nobody can say whether there is one."""
    world.here.stood = lambda: wills.wait_to_know(world.here, wills.STOOD)
    ann = world.place.ann()
    world.wait(1)
    world.stand()
    world.go_on()
    ann.hang_up("lost")
    world.wait(100)
    assert world.said() == []
    if taken_over:
        heritage.let_go(world.here.broker, world.here, [world.place.mqtt], 1000)
    wills.known(world.here, wills.STOOD)
    assert world.said() == ([] if taken_over else [b"offline"])
    assert not world.here.broker.state.wills


def test_who_takes_no_part_any_more_says_what_is_due_as_one_that_is_alone(world: Standing) -> None:
    world.place.ann()
    world.wait(1)
    world.stand()
    world.go_on()
    world.here.note_awake()
    world.here.excluded = "another node has its name"
    world.wait(wills.UNKNOWN_SECONDS + 1)
    assert not world.here.broker.undecided and not world.here.broker.stood


def test_a_hub_that_stands_still_again_and_again_says_what_is_due_after_a_minute(
    world: Standing,
) -> None:
    """It is never awake for long enough to hear from everybody; nobody may wait for ever."""
    ann = world.place.ann()
    world.wait(1)
    began = world.clock.seconds
    while not world.said() and world.clock.seconds < began + 3 * wills.UNKNOWN_SECONDS:
        world.stand(CLUSTER_STOOD_SECONDS + 1)
        world.go_on()
        ann.hang_up("lost")
        world.wait(CLUSTER_DEAD_SECONDS - 2)
    lasted = world.clock.seconds - began
    assert world.said() == [b"offline"]
    assert wills.UNKNOWN_SECONDS <= lasted < wills.UNKNOWN_SECONDS + 3 * CLUSTER_DEAD_SECONDS
    world.stand(CLUSTER_STOOD_SECONDS + 1)
    world.go_on()
    world.wait(1)
    assert world.here.broker.undecided, "the next time that it stands still is another one"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_will_that_waited_when_its_hub_was_killed_is_said_at_the_next_start_once(
    elsewhere: bool,
) -> None:
    before = Stage()
    device = before.device("ann", True, will=codec.Will(b"gone", b"will", 0, False))
    came = before.broker.sessions["mqtt", "ann"].came
    before.pass_time(60)
    before.broker.stood = before.clock.stamp()
    device.far.hang_up("lost")
    after = Stage()
    after.still.seconds = before.still.seconds
    after.log.rows, after.log.position = list(before.log.rows), before.log.position
    after.log.sync()
    after.broker.state = folded(after.log.rows)
    after.broker.undecided = True
    after.broker.recover([after.mqtt])
    watcher = after.device("watcher")
    watcher.subscribe("gone", 0)
    watcher.hear()
    member = Membership(after.broker, Keepers(names=("a",)).lines("a"), "0")
    member.relays.serve([after.mqtt])
    if elsewhere:  # it came there while this hub stood still
        wills.went(member, ("mqtt", "ann"), came + 10_000_000)
    wills.known(member, wills.WHO_IS_WHERE)
    after.tick()
    assert watcher.hear() == ([] if elsewhere else ["gone=will"])
    assert not folded(after.log.rows).wills


# For a second or two: it is not dead for others, and hears in any order what came meanwhile.


@pytest.mark.parametrize("lasts", [0, 1000])
@pytest.mark.parametrize("still", [True, False])
def test_who_is_seen_to_be_lost_before_it_is_heard_to_be_elsewhere(
    world: Standing, still: bool, lasts: int
) -> None:
    ann = world.place.ann(lasts)
    world.wait(1)
    if lasts:
        world.members["b"].directory.begin_anew("mqtt", "ann")
    there = world.ann_at("b")
    world.publish(there, "state/ann", b"online", retain=True)
    if not still:
        there.broker.disconnect(there, "")
    world.tick()
    world.clock.seconds += CLUSTER_STOOD_SECONDS - 1
    ann.hang_up("lost")
    assert world.said() == [], "what is on its way was not heard"
    assert not world.here.broker.undecided
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"online"]
    assert world.retained("a") == world.retained("b") == {"state/ann": b"online"}
    broker = world.here.broker
    assert not broker.state.wills and not broker.lost and not world.rows().wills


@pytest.mark.parametrize("lasts", [0, 1000])
def test_who_is_nowhere_else_is_said_to_be_lost_when_that_was_heard(
    world: Standing, lasts: int
) -> None:
    """A will that waits is in the journal: a start says it."""
    ann = world.place.ann(lasts)
    world.wait(1)
    ann.hang_up("lost")
    world.place.mqtt.wake(world.clock.now())
    assert world.said() == []
    state = world.rows()
    found = state.sessions["mqtt", "ann"].will if lasts else state.wills["mqtt", "ann"]
    assert found is not None and found.expires
    world.carry()
    assert world.said() == [b"offline"]
    world.wait(3)
    assert world.said() == [b"offline"]
    assert world.retained("b") == {"state/ann": b"offline"}
    state = world.rows()
    assert not state.wills and not any(one.will for one in state.sessions.values())


@pytest.mark.parametrize("lasts", [0, 1000])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_who_waits_when_it_is_known_where_all_others_are_is_not_said_to_be_lost(
    world: Standing, elsewhere: bool, lasts: int
) -> None:
    """The hub was started just now: what is known then is of who had come before that."""
    wills.wait_to_know(world.here, wills.WHO_IS_WHERE)
    ann = world.place.ann(lasts)
    world.wait(1)
    if elsewhere:
        if lasts:
            world.members["b"].directory.begin_anew("mqtt", "ann")
        there = world.ann_at("b")
        world.publish(there, "state/ann", b"online", retain=True)
        world.tick()
    ann.hang_up("lost")
    wills.known(world.here, wills.WHO_IS_WHERE)
    world.place.mqtt.wake(world.clock.now())
    assert world.said() == []
    world.wait(3)
    assert world.said() == [b"online" if elsewhere else b"offline"]
    assert not world.here.broker.lost and not world.rows().wills


def test_who_came_here_from_another_node_and_is_lost_at_once_is_said_to_be_lost(
    world: Standing,
) -> None:
    """It is heard to be there as long as that has not said that it is gone."""
    wills.wait_to_know(world.here, wills.WHO_IS_WHERE)
    world.ann_at("b")
    world.wait(1)
    world.place.ann().hang_up("lost")
    wills.known(world.here, wills.WHO_IS_WHERE)
    world.wait(3)
    assert world.said() == [b"offline"]


@pytest.mark.parametrize("seconds", [-1, 1])
def test_who_went_elsewhere_and_left_while_this_node_heard_nobody_is_not_said_to_be_lost(
    world: Standing, seconds: int
) -> None:
    """A cable was pulled: its connection here looks well until its time is over."""
    ann = world.place.ann()
    came = world.clock.stamp()
    world.wait(1)
    world.apart()
    wills.went(world.members["b"], ("mqtt", "ann"), came + seconds * 1_000_000)
    world.cut.clear()
    world.wait(2)
    assert not world.here.broker.undecided and not world.here.broker.stood
    ann.hang_up("lost")
    world.wait(3)
    assert world.said() == ([b"offline"] if seconds < 0 else [])
    assert not world.here.broker.lost and not world.rows().wills


@pytest.mark.pure
def test_a_network_that_is_cut_keeps_nobody_waiting(
    world: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wills of all who were lost behind one mark are said in turns, each once."""
    later = list[Callable[[], None]]()
    monkeypatch.setattr(world.here.broker, "later", later.append)
    monkeypatch.setattr(Stint, "over", lambda stint: True)
    first = world.place.ann()
    first.hang_up("lost")
    some = [world.place.ann(name=b"n%d" % number) for number in range(5)]
    for one in some:
        one.hang_up("lost")
    world.passes()
    world.passes()
    for turn in range(1, 5):
        assert len(world.said()) == 1 + turn
        later.pop()()
    assert world.said() == [b"offline"] * 6 and not later
    assert not world.here.broker.lost


@pytest.mark.parametrize("lasts", [0, 1000])
def test_one_mark_is_for_all_who_were_lost_before_it(world: Standing, lasts: int) -> None:
    """Who is lost later needs another one; who came again meanwhile and is lost once more, too."""
    ann = world.place.ann(lasts)
    world.wait(1)
    ann.hang_up("lost")
    again = world.place.ann(lasts)
    assert world.said() == [b"offline"], "before it is welcomed"
    again.hang_up("lost")
    assert len(world.lines("a").marks) == 1
    world.passes()
    assert world.said() == [b"offline"]
    assert len(world.lines("a").marks) == 1
    world.passes()
    assert world.said() == [b"offline", b"offline"]
    assert not world.lines("a").marks and not world.here.broker.lost


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("lasts", [0, 1000])
@pytest.mark.parametrize("may", [True, False])
def test_a_will_that_waited_is_of_who_left_it(
    world: Standing, may: bool, lasts: int, back: bool
) -> None:
    """What it may do by then is asked, it counts as its own, and who wrote it is retained."""
    broker, rules = world.here.broker, Rules()
    world.place.gate = Gate(rules)
    ann = world.place.ann(lasts)
    broker.sessions["mqtt", "ann"].user = "ann"
    world.wait(1)
    rules.allowed = may
    ann.hang_up("lost")
    assert world.said() == []
    if back:
        rules.allowed = True
        world.place.ann(lasts)
        rules.allowed = may
    world.carry()
    if not may and not back:
        assert world.said() == [] and not broker.state.retained
        return
    assert world.said() == [b"offline"]
    kept = broker.state.retained["state/ann"]
    assert kept.whose and broker.quotas.used[RETAINED] == {kept.whose: kept.size}
    message = broker.log.read(kept.seq)
    assert message is not None and (message.properties or {})[PUBLISHER] == ["ann", ""]


@pytest.mark.parametrize("may", [True, False])
def test_a_will_that_a_hub_says_that_stood_still_for_long_is_of_who_left_it(
    world: Standing, may: bool
) -> None:
    """The client had no session that lasts: its row alone says who that was."""
    broker, rules = world.here.broker, Rules()
    world.place.gate = Gate(rules)
    broker.gates = [world.place.gate]
    ann = world.place.ann()
    world.wait(1)
    world.stand()
    world.go_on()
    ann.hang_up("lost")
    rules.allowed = may
    broker.rules_changed()
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert world.said() == [b"offline"] * may
    assert not broker.state.wills and len(broker.quotas.used[RETAINED]) == may


def test_who_is_here_again_keeps_its_will_whatever_is_heard_of_a_former_connection(
    world: Standing,
) -> None:
    ann = world.place.ann()
    came = world.here.broker.sessions["mqtt", "ann"].came
    world.wait(1)
    ann.hang_up("lost")
    world.place.ann()
    wills.went(world.here, ("mqtt", "ann"), came + 1)
    world.carry()
    assert world.said() == [b"offline"]
    assert world.here.broker.state.wills and not world.here.broker.lost


def test_what_came_and_was_not_heard_is_waited_for(world: Standing) -> None:
    """What another node said may be work for many turns."""
    ann = world.place.ann()
    world.wait(1)
    there = world.ann_at("b")
    world.publish(there, "state/ann", b"online", retain=True)
    hearing = world.here.hearing
    hearing._later = True
    world.carry()
    assert "b" in hearing.unheard
    ann.hang_up("lost")
    world.passes()
    assert world.said() == []
    hearing._work()
    world.carry()
    assert world.said() == [b"online"]


@pytest.mark.parametrize("why", ["down", "excluded", "stops"])
def test_who_hears_nobody_waits_for_nobody(world: Standing, why: str) -> None:
    ann = world.place.ann()
    world.wait(1)
    if why == "down":
        world.lines("a").up = False
    elif why == "excluded":
        world.here.excluded = "another node has its name"
    else:
        world.here.lost.stop()
    ann.hang_up("lost")
    assert world.said() == [b"offline"]
    assert not world.here.broker.lost and not world.lines("a").marks


@pytest.mark.parametrize("how", ["stops", "down"])
def test_who_waits_is_said_to_be_lost_before_nobody_can_hear_it(
    world: Standing, how: str
) -> None:
    ann = world.place.ann()
    world.wait(1)
    ann.hang_up("lost")
    if how == "stops":
        world.here.lost.stop()
    else:
        world.lines("a").up = False
        world.here.lost.look()
    assert world.said() == [b"offline"]


def test_a_mark_that_does_not_come_back_is_not_waited_for_for_long(world: Standing) -> None:
    """As long as the hub is awake: where it stands still once more it can hear nothing."""
    ann = world.place.ann()
    world.wait(1)
    ann.hang_up("lost")
    world.lines("a").marks.clear()
    world.clock.seconds += 2
    world.here.lost.look()
    assert world.said() == []
    for _ in range(int(CLUSTER_MARK_SECONDS / 0.25) - 1):
        assert world.said() == []
        world.wait(0.25)
    assert world.said() == [b"offline"]


class Grouping(Recording):
    """Knows which rows a crash does not tear apart."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.groups: list[range] = []

    def together(self, first: int) -> None:
        self.groups.append(range(first, self.position + 1))


@pytest.mark.parametrize("started", [False, True])
def test_that_a_client_is_gone_and_that_its_will_is_to_come_is_written_together(
    started: bool,
) -> None:
    """A crash between the two would leave a session without the will: nobody would hear of it."""
    stage = Stage()
    log = stage.log = Grouping(stage.clock)
    broker = stage.broker = Broker(stage.clock, log, "all")
    stage.mqtt = Mqtt(broker)
    far = stage.dial(stage.mqtt)
    properties = Properties({spec.SESSION_EXPIRY: 1000})
    will = WILL._replace(properties=Properties({spec.WILL_DELAY: 30}))
    far.say(codec.connect(b"ann", False, 0, will, properties=properties))
    if started:
        broker = Broker(stage.clock, log, "all")
        broker.state = folded(log.rows)
        broker.recover([Mqtt(broker)])
    else:
        far.hang_up("lost")
    (gone,) = (row for row in log.rows if row.kind == DISCONNECT and row.client == b"ann")
    late = log.rows[-1]
    assert (late.kind, late.expires > 0) == (WILL_ROW, True)
    assert any(gone.seq in group and late.seq in group for group in log.groups)


class Sleepy(StillClock):
    """Of a machine that slept for so many microseconds."""

    slept = 0

    def _asleep(self) -> int:
        return self.slept


@pytest.mark.parametrize("seconds", [CLUSTER_STOOD_SECONDS - 1, CLUSTER_STOOD_SECONDS + 1])
def test_a_machine_that_slept_is_noticed(seconds: float) -> None:
    world = Keepers(names=())
    world.clock = clock = Sleepy()
    member = world.add("a")
    member.look_awake()
    member.note_awake()
    clock.slept = int(seconds * 1_000_000)
    member.broker.look_awake()
    assert bool(member.broker.stood) is member.broker.undecided is (seconds > CLUSTER_STOOD_SECONDS)
