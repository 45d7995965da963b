"""Each verb at each door: nothing without its right, done with it, over when it is taken away.

    door      a client of one protocol, in a hub in memory, let in with the rights of the test
    verb      what it tries, once a function; the table below says which doors have it
    right     the lines of a permissions file

A new operation of a protocol that is not in `OPERATIONS`, with its verb or with the reason why it
needs none, fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from starlette.routing import Route

from hubbub.auth.acl import AclRights
from hubbub.auth.asked import AskingGate
from hubbub.config.settings import Settings
from hubbub.core import rights as verbs
from hubbub.core.gate import Admission, Gate
from hubbub.core.message import Message, message_of, row_of
from hubbub.core.quotas import SUBTOPICS, TOPICS
from hubbub.core.replies import asker_of
from hubbub.core.rights import VERBS
from hubbub.protocols.mqtt import Mqtt
from hubbub.protocols.mqtt import codec as mqtt
from hubbub.protocols.mqtt import connection as mqtt_connection
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.smq import codec as smq
from hubbub.protocols.smq import connection as smq_connection
from hubbub.protocols.switch import Switch, operations
from hubbub.protocols.switch import codec as switch
from hubbub.protocols.switch.connection import OPERATIONS as SWITCH_OPERATIONS
from hubbub.runtime.node import Node
from hubbub.web import dashboard, guarded, openapi, script
from hubbub.web.app import Application
from tests.protocols.smq.device import Device, Hub
from tests.protocols.switch.journaled import get, post, transfer
from tests.rights import ruled
from tests.wire import Far

# What gives each verb on topic t and queue q.
GIVES: dict[str, tuple[str, ...]] = {
    verbs.PUBLISH: ("write t",),
    verbs.RECEIVE: ("read t",),
    verbs.SUBSCRIBE: ("read t",),
    verbs.OBSERVE: ("read t",),
    verbs.ENQUEUE: ("write $queue/q",),
    verbs.CONSUME: ("read $queue/q",),
    verbs.CALL: ("write $queue/q",),
    verbs.CONFIGURE: ("manage $queue/q",),
    verbs.BIND: ("read t", "write $queue/q"),
    verbs.DESTROY: ("manage $queue/q",),
    verbs.LIST: ("read $queue/q",),
    verbs.TRACE: ("read $queue/#",),
    verbs.MANAGE: ("manage $SYS/#",),
}
EVERYTHING = ("readwrite t", "readwrite $queue/#", "manage $queue/#", "manage $SYS/#")


class House(Hub):
    """A hub in memory, a queue q with one message, and somebody who hears what t gets."""

    def __init__(self) -> None:
        super().__init__()
        self.mqtt = Mqtt(self.broker)
        self.switch = Switch(self.broker)
        self.stopped: list[bool] = []
        self.broker.stop = lambda: self.stopped.append(True)
        self.ear = self.listen("t")
        self.broker.topic_id("t", self.broker.itself)
        self.broker.topic_id("$queue/q", self.broker.itself)
        self.queue = self.broker.queues.named("q")
        self.send()

    def let_in(self, rights: AclRights) -> None:
        self.gate = Gate(rights)

    def send(self) -> None:
        self.broker.post(Message("$queue/q", b"secret", 1))
        self.tick()

    def tell(self) -> None:
        self.broker.post(Message("t", b"secret"))
        self.tick()

    def revoke(self, rights: AclRights) -> None:
        """What the node does when the file changed."""
        rights.follow([])
        self.broker.age += 1

    @property
    def count(self) -> int:
        return len(self.queue.messages)

    # The doors

    def old(self) -> Far:
        far = self.dial(self.mqtt)
        far.say(mqtt.connect(b"annika", True, 0))
        far.hear()
        return far

    def new(self) -> Far:
        far = self.dial(self.mqtt)
        far.say(mqtt.connect(b"annika", True, 0, properties=mqtt.Properties()))
        far.hear()
        return far

    def token(self) -> Far:
        far = self.dial(self.switch, get("/login/annika"))
        assert far.hear().startswith(b"HTTP/1.1 200")
        return far


Attempt = Callable[[House], bool]


def _mqtt_publish(v5: bool, name: bytes, qos: int) -> Attempt:
    def attempt(house: House) -> bool:
        far, before = (house.new() if v5 else house.old()), house.count
        far.say(mqtt.publish(name, b"x", qos, packet_id=1, properties=b"\0" * v5))
        return len(house.ear.heard) + house.count > before

    return attempt


def _mqtt_subscribe(v5: bool, name: bytes) -> Attempt:
    def attempt(house: House) -> bool:
        far = house.new() if v5 else house.old()
        far.say(mqtt.subscribe(1, [(name, 0)], b"\0" * v5))
        house.tell()
        return b"secret" in far.hear()

    return attempt


def _smq(kind: int, name: bytes) -> Attempt:
    def attempt(house: House) -> bool:
        ann = house.device(b"annika")
        ann.say(kind, rest=name)
        house.tell()
        heard = ann.hear()
        if kind == smq.CREATE:
            return heard[0][1] == 0
        return any(one[-1] == b"secret" for one in heard)

    return attempt


def _smq_publish(name: str) -> Attempt:
    def attempt(house: House) -> bool:
        ann, before = house.device(b"annika"), house.count
        ann.publish(house.broker.state.topics.numbers[name], b"x")
        return len(house.ear.heard) + house.count > before

    return attempt


def _smq_observe(house: House) -> bool:
    ann: Device = house.device(b"annika")
    number = house.broker.state.topics.numbers["t"]
    ann.observe(number)
    house.listen("t")
    return bool(ann.hear())


def _asked(request: bytes, done: Callable[[House, bytes], bool]) -> Attempt:
    """A message-switch request of who is logged in."""

    def attempt(house: House) -> bool:
        far = house.token()
        far.say(request)
        return done(house, far.hear())

    return attempt


def _said(word: bytes) -> Callable[[House, bytes], bool]:
    return lambda house, answer: word in answer


def _is_bound(house: House, answer: bytes) -> bool:
    return "t" in house.queue.bindings


def _is_configured(house: House, answer: bytes) -> bool:
    return house.queue.settings.max_messages == 7


ATTEMPTS: dict[tuple[str, str], Attempt] = {
    ("mqtt", verbs.PUBLISH): _mqtt_publish(False, b"t", 0),
    ("mqtt qos 1", verbs.PUBLISH): _mqtt_publish(False, b"t", 1),
    ("mqtt 5", verbs.PUBLISH): _mqtt_publish(True, b"t", 1),
    ("mqtt", verbs.SUBSCRIBE): _mqtt_subscribe(False, b"t"),
    ("mqtt #", verbs.SUBSCRIBE): _mqtt_subscribe(False, b"#"),
    ("mqtt 5", verbs.SUBSCRIBE): _mqtt_subscribe(True, b"+"),
    ("mqtt shared", verbs.SUBSCRIBE): _mqtt_subscribe(False, b"$share/g/t"),
    ("mqtt", verbs.ENQUEUE): _mqtt_publish(False, b"$queue/q", 1),
    ("mqtt 5", verbs.ENQUEUE): _mqtt_publish(True, b"$queue/q", 1),
    ("mqtt", verbs.CONSUME): _mqtt_subscribe(False, b"$queue/q"),
    ("mqtt 5", verbs.CONSUME): _mqtt_subscribe(True, b"$queue/q"),
    ("smq", verbs.PUBLISH): _smq_publish("t"),
    ("smq create", verbs.PUBLISH): _smq(smq.CREATE, b"t"),
    ("smq", verbs.SUBSCRIBE): _smq(smq.SUBSCRIBE, b"t"),
    ("smq", verbs.OBSERVE): _smq_observe,
    ("smq", verbs.ENQUEUE): _smq_publish("$queue/q"),
    ("smq", verbs.CONSUME): _smq(smq.SUBSCRIBE, b"$queue/q"),
    ("switch", verbs.CALL): _asked(post("/request/q/ann", b"x"), lambda h, a: h.count == 2),
    ("switch send", verbs.CALL): _asked(post("/send/q/1/ann", b"x"), lambda h, a: h.count == 2),
    ("switch", verbs.ENQUEUE): _asked(post("/response/q/x/0", b"x"), lambda h, a: h.count == 2),
    ("switch publish", verbs.ENQUEUE): _asked(
        post("/publish/$queue/q", b"x"), lambda h, a: h.count == 2
    ),
    ("switch", verbs.PUBLISH): _asked(post("/publish/t", b"x"), lambda h, a: bool(h.ear.heard)),
    ("switch", verbs.CONSUME): _asked(transfer("q"), _said(b"secret")),
    ("switch ack", verbs.CONSUME): _asked(get("/ack/q/0"), lambda h, a: h.count == 0),
    ("switch readme", verbs.CONSUME): _asked(
        get("/subscribe/q") + get("/transfer/-1/0"), _said(b"secret")
    ),
    ("switch readme ack", verbs.CONSUME): _asked(
        get("/ack/1"), lambda h, a: h.count == 0 or b"200 OK" in a
    ),
    ("switch", verbs.CONFIGURE): _asked(post("/create/q", b'{"max_messages":7}'), _is_configured),
    ("switch", verbs.BIND): _asked(post("/bind/q", b"t"), _is_bound),
    ("switch", verbs.DESTROY): _asked(
        get("/destroy/q"), lambda h, a: "q" not in h.broker.state.queues
    ),
    ("switch", verbs.LIST): _asked(get("/list/"), _said(b'"q"')),
    ("switch persistent", verbs.LIST): _asked(get("/persistent/q"), _said(b"200 OK")),
    ("switch transient", verbs.LIST): _asked(get("/transient/q"), _said(b"200 OK")),
    ("switch", verbs.TRACE): _asked(get("/"), _said(b"secret")),
    ("switch trace", verbs.TRACE): _asked(get("/trace/-1/0"), _said(b"events")),
    ("switch", verbs.MANAGE): _asked(post("/shutdown"), lambda h, a: bool(h.stopped)),
}  # fmt: skip
del ATTEMPTS["switch readme ack", verbs.CONSUME]  # numbers of a hub without a journal are others

ids = [f"{verb}, {door}" for door, verb in ATTEMPTS]


@pytest.mark.parametrize(("place", "attempt"), ATTEMPTS.items(), ids=ids)
def test_with_its_right_it_is_done(place: tuple[str, str], attempt: Attempt) -> None:
    house = House()
    house.let_in(ruled(*GIVES[place[1]]))
    assert attempt(house)


@pytest.mark.parametrize(("place", "attempt"), ATTEMPTS.items(), ids=ids)
def test_without_a_right_it_is_not(place: tuple[str, str], attempt: Attempt) -> None:
    house = House()
    house.let_in(ruled())
    assert not attempt(house)


@pytest.mark.parametrize(("place", "attempt"), ATTEMPTS.items(), ids=ids)
def test_with_all_other_rights_it_is_not(place: tuple[str, str], attempt: Attempt) -> None:
    """Every line that does not give this verb, and those that refuse what would."""
    need = VERBS[place[1]].access
    house = House()
    lines = [f"deny {line.partition(' ')[2]}" for line in GIVES[place[1]]]
    others = [bits for bits, bit in (("read", 1), ("write", 2), ("manage", 4)) if not bit & need]
    lines += [f"{bits} {name}" for bits in others for name in ("t", "$queue/q", "$SYS/#")]
    house.let_in(ruled(*lines))
    assert not attempt(house)


@pytest.mark.parametrize(("place", "attempt"), ATTEMPTS.items(), ids=ids)
def test_a_rule_that_refuses_is_named(
    place: tuple[str, str], attempt: Attempt, caplog: pytest.LogCaptureFixture
) -> None:
    """User, client, verb and name are in the log, and the line that decided."""
    caplog.set_level("INFO", "hubbub.audit")
    house = House()
    name = GIVES[place[1]][0].partition(" ")[2]
    house.let_in(ruled(*EVERYTHING, f"deny {name}"))
    attempt(house)
    said = [record.getMessage() for record in caplog.records]
    refusals = [one for one in said if " came in" not in one]
    if place[0] in ("mqtt #", "mqtt 5") and place[1] == verbs.SUBSCRIBE:
        return  # one of which something may be received is accepted, and the rest left out
    if place == ("switch", verbs.LIST):
        return  # what may not be seen is not there
    assert any(f"acl:{len(EVERYTHING) + 1} (deny {name})" in one for one in refusals), refusals
    assert all("(client 'annika') may not" in one for one in refusals)


def test_every_verb_has_a_door() -> None:
    """But `receive`, which is the use of `subscribe`."""
    assert {verb for _, verb in ATTEMPTS} | {verbs.RECEIVE} == set(VERBS) == set(GIVES)


# Every operation of every protocol, with its verb. What is not here may not exist.

OPERATIONS: dict[str, dict[object, str]] = {
    "mqtt": {
        mqtt.CONNECT: "login", mqtt.PUBLISH: verbs.PUBLISH, mqtt.SUBSCRIBE: verbs.SUBSCRIBE,
        mqtt.UNSUBSCRIBE: "its own", mqtt.PUBACK: "its own", mqtt.PUBREC: "its own",
        mqtt.PUBREL: "its own", mqtt.PUBCOMP: "its own", mqtt.PINGREQ: "nothing",
        mqtt.DISCONNECT: "its own", mqtt.AUTH: "login",
    },
    "smq": {
        smq.CONNECT: "login", smq.SUBSCRIBE: verbs.SUBSCRIBE, smq.CREATE: verbs.PUBLISH,
        smq.CREATESUB: "permitsubtop", smq.UNSUBSCRIBE: "its own", smq.OBSERVE: verbs.OBSERVE,
        smq.UNOBSERVE: "its own", smq.PUBFRAG: verbs.PUBLISH, smq.PING: "nothing",
        smq.PONG: "nothing", smq.DISCONNECT: "its own",
    },
    "web": {
        "/": "no secret", "/admin/": "no secret", "/admin/session": "login",
        "/admin/login": "login", "/admin/logout": "login", dashboard.FILE: "no secret",
        openapi.PATH: verbs.TRACE,
        "/api/v1/status": verbs.TRACE, "/metrics": verbs.TRACE, "/api/v1/refusals": verbs.TRACE,
        "/api/v1/figures": verbs.TRACE,
        "/api/v1/ls/{kind}": verbs.TRACE,
        "/api/v1/traffic": verbs.TRACE, guarded.RETAINED: verbs.RECEIVE,
        guarded.TAIL: verbs.SUBSCRIBE, guarded.QUEUE: verbs.CONSUME,
        guarded.QUEUE + "/messages": verbs.DESTROY, guarded.CLIENTS: verbs.MANAGE,
        guarded.SESSIONS: verbs.MANAGE, guarded.DELAYED: verbs.MANAGE, guarded.NODES: verbs.MANAGE,
        guarded.SESSIONS + "/away": verbs.MANAGE, guarded.QUEUE + "/requeue": verbs.CONFIGURE,
        guarded.BRIDGES + "/cut-off": verbs.MANAGE, guarded.BRIDGES + "/resume": verbs.MANAGE,
        guarded.JOURNAL: verbs.TRACE, guarded.PUBLISH: verbs.PUBLISH,
        guarded.HISTORY + "/{topic:path}": verbs.SUBSCRIBE,
        guarded.PUBLISH + "/{query}": "its own", script.PATH: "no secret",
        script.TYPES: "no secret",
        guarded.IDS: verbs.MANAGE, guarded.HEALTH: "no secret", guarded.READY: "no secret",
    },
}  # fmt: skip


def test_no_operation_of_mqtt_is_without_a_verb() -> None:
    handled = {kind for kinds in mqtt_connection._FOLLOWS.values() for kind in kinds}
    assert {mqtt.PUBLISH, *handled} == set(OPERATIONS["mqtt"])


def test_no_operation_of_smq_is_without_a_verb() -> None:
    handled = {kind for kinds in smq_connection._HANDLERS.values() for kind in kinds}
    assert handled == set(OPERATIONS["smq"])


def test_no_page_is_without_a_verb() -> None:
    """What is not named is behind `trace` of all that the hub says of itself."""
    node = Node(Settings(listen=(), data=""))
    application = Application(node)
    routed = {cast(Route, route).path for route in application.asgi.routes}
    assert routed == set(OPERATIONS["web"])
    nobody = Admission("web", "", "eve", ruled(), None)
    free = {path for path in routed if OPERATIONS["web"][path] in ("no secret", "login")}
    assert all(path in guarded.OPEN or path.startswith(guarded.PAGE) for path in free)
    asked = routed - free  # before anybody is asked
    missing = partial(guarded._missing, node.broker)
    refused = {path for path in asked if missing(path, nobody) is not None}
    assert refused == {path for path in asked if OPERATIONS["web"][path] == verbs.TRACE}


def test_no_operation_of_the_switch_is_without_a_verb() -> None:
    routed = {route.operation for route in switch.ROUTES}
    free = {"login", "admin"}  # whoever comes in may do these
    known = set(operations.VERBS_OF) | operations.ASKING | free
    assert routed == known and set(operations.VERBS_OF.values()) <= set(VERBS)
    assert set(SWITCH_OPERATIONS) <= known


# A right is asked when it is used


@pytest.mark.parametrize("v5", [False, True])
def test_a_consumer_over_mqtt_whose_right_is_gone_gets_no_more(v5: bool) -> None:
    house, rights = House(), ruled("read $queue/q")
    house.let_in(rights)
    far = house.new() if v5 else house.old()
    far.say(mqtt.subscribe(1, [(b"$queue/q", 0)], b"\0" * v5))
    assert b"secret" in far.hear()
    house.revoke(rights)
    house.send()
    assert far.hear() == b"" and house.count == 1


def test_a_consumer_over_smq_whose_right_is_gone_gets_no_more() -> None:
    house, rights = House(), ruled("read $queue/q")
    house.let_in(rights)
    ann = house.device(b"annika")
    ann.say(smq.SUBSCRIBE, rest=b"$queue/q")
    assert ann.hear()[-1][-1] == b"secret"
    house.revoke(rights)
    house.send()
    assert ann.hear() == [] and house.count == 1


@pytest.mark.parametrize("readme", [False, True])
def test_a_transfer_that_waits_sees_that_its_right_is_gone(readme: bool) -> None:
    house, rights = House(), ruled("read $queue/q")
    house.let_in(rights)
    far = house.token()
    far.say(get("/ack/q/0"))
    far.say(get("/subscribe/q") + get("/transfer/-1/30") if readme else transfer("q"))
    far.hear()
    house.revoke(rights)
    house.send()
    assert b"secret" not in far.hear() and house.count == 1


def test_a_publisher_whose_right_is_gone_publishes_no_more() -> None:
    house, rights = House(), ruled("write t")
    house.let_in(rights)
    far, ann = house.old(), house.device(b"annika")
    number = house.broker.state.topics.numbers["t"]
    for expected in (2, 2):
        far.say(mqtt.publish(b"t", b"x", 0))
        ann.publish(number, b"x")
        assert len(house.ear.heard) == expected
        house.revoke(rights)


def test_what_is_retained_stops_with_the_right() -> None:
    house, rights = House(), ruled("read a/#")
    for number in range(3_000):
        house.broker.post(Message(f"a/{number}", b"x", 0, True))
    house.let_in(rights)
    far = house.dial(house.mqtt)
    far.say(mqtt.connect(b"annika", True, 0))
    house.broker.retained.feeding.clear()
    far.connection.feed(mqtt.subscribe(1, [(b"a/#", 0)]))  # one slice, and no tick
    house.revoke(rights)
    assert 0 < far.hear().count(b"a/") <= 1_000


# Of one's own


def test_a_call_needs_the_right_to_call_and_nothing_else() -> None:
    """The queue of the answers is its maker's while it is connected, and nobody else's."""
    house = House()
    house.let_in(ruled("write $queue/q"))
    ann = house.token()
    for request in (get("/transient/mine"), post("/request/q/mine", b"x")):
        ann.say(request)
        assert ann.hear().startswith(b"HTTP/1.1 200"), request
    house.let_in(ruled("read $queue/q"))
    service = house.dial(house.switch, get("/login/service"))
    service.say(post("/response/mine/q/1", b"answer"))
    assert service.hear().endswith(b'[["mine",0]]')
    service.say(transfer("mine", timeout=0) + get("/destroy/mine") + get("/ack/mine/0"))
    assert service.hear().count(b"HTTP/1.1 403") == 3
    ann.say(transfer("mine"))
    assert b"answer" in ann.hear()
    ann.say(get("/ack/mine/0") + get("/destroy/mine"))
    assert "mine" not in house.broker.state.queues


def test_a_service_answers_what_it_was_asked_and_nothing_else() -> None:
    house = House()
    house.broker.queues.named("mine")
    house.let_in(ruled("read $queue/q"))
    service = house.dial(house.switch, get("/login/service"))
    service.say(post("/response/mine/q/0", b"unasked"))
    assert b"HTTP/1.1 403" in service.hear() and not house.broker.state.queues["mine"].messages


def test_a_name_that_a_rule_refuses_is_nobodys_own() -> None:
    house = House()
    house.let_in(ruled("deny $queue/orders"))
    ann = house.token()
    ann.say(get("/transient/orders"))
    assert ann.hear().startswith(b"HTTP/1.1 403")


# What was found by trying it


@pytest.mark.parametrize("number", [False, True], ids=["switch", "reply id"])
def test_who_has_the_name_of_the_asker_now_has_not_asked(number: bool) -> None:
    """An answer goes where the asker might write, not where its namesake of today may."""
    house = House()
    house.let_in(ruled("readwrite $queue/q"))
    service, device = house.token(), house.device(b"device")
    asker = house.dial(house.mqtt)
    asker.say(mqtt.connect(b"panel", True, 0, properties=mqtt.Properties()))
    said = mqtt.Properties()
    said.texts[spec.RESPONSE_TOPIC] = b"t"
    asker.say(mqtt.publish(b"$queue/q", b"ask", 1, packet_id=1, properties=said.encode()))
    asker.hang_up("")
    house.let_in(ruled("write t"))
    panel = house.dial(house.mqtt)
    panel.say(mqtt.connect(b"panel", True, 0, properties=mqtt.Properties()))
    if number:
        device.say(smq.SUBSCRIBE, rest=b"$queue/q")
        asked = next(one for one in device.hear() if one[-1] == b"ask")
        device.publish(int(asked[2]), b"forged")
    else:
        service.say(post("/response/reply~1/q/1", b"forged"))
    assert not house.ear.heard


def wake_delays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish what is due within two seconds."""
    late = house.broker.clock.stamp() + 2_000_000
    with monkeypatch.context() as patch:
        patch.setattr(house.broker.clock, "stamp", lambda: late)
        house.broker.delays.wake()


@pytest.mark.pure
@pytest.mark.parametrize("way", ["delayed", "dead letter"])
def test_a_copy_of_a_request_was_asked_by_who_sent_the_first(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends it later, when the asker's name may be somebody else's."""
    house = House()
    broker = house.broker
    house.let_in(ruled("readwrite $queue/q"))
    asker = house.dial(house.mqtt)
    asker.say(mqtt.connect(b"panel", True, 0, properties=mqtt.Properties()))
    said = mqtt.Properties()
    said.texts[spec.RESPONSE_TOPIC] = b"t"
    topic = b"$delayed/1/$queue/q" if way == "delayed" else b"$queue/q"
    asker.say(mqtt.publish(topic, b"ask", 1, packet_id=1, properties=said.encode()))
    asker.hang_up("")
    house.let_in(ruled("write t"))
    panel = house.dial(house.mqtt)
    panel.say(mqtt.connect(b"panel", True, 0, properties=mqtt.Properties()))
    if way == "delayed":
        wake_delays(house, monkeypatch)
        name, number = "q", 1
    else:
        broker.queues.configure(house.queue, house.queue.settings._replace(dead_letter="late"))
        broker.queues.overdue.dead_letter(house.queue, 1, "expired")
        name, number = "late", 0
    house.tick()
    message = broker.log.read(broker.state.queues[name].messages[number])
    assert message is not None
    assert asker_of(message_of(row_of(message))).seq == asker_of(message).seq < message.seq
    house.let_in(ruled("readwrite $queue/#"))
    service = house.token()
    service.say(post(f"/response/reply~{number}/{name}/{number}", b"forged"))
    assert service.hear().startswith(b"HTTP/1.1 403")
    assert not house.ear.heard


def test_a_binding_of_ones_own_queue_ends_with_the_right() -> None:
    house, rights = House(), ruled("read t")
    house.let_in(rights)
    far = house.token()
    far.say(get("/transient/mine") + post("/bind/mine", b"t"))
    house.tell()
    queue = house.broker.state.queues["mine"]
    assert len(queue.messages) == 1
    house.revoke(rights)
    house.tell()
    assert len(queue.messages) == 1


def test_dead_letters_of_ones_own_queue_end_with_the_right() -> None:
    """Also of what was one's own: the name may be another's queue now."""
    house = House()
    house.let_in(ruled())
    far = house.token()
    far.say(get("/transient/mine") + get("/transient/dead"))
    far.say(post("/create/mine", b'{"max_deliveries":1,"lease":1,"dead_letter":"dead"}'))
    far.say(get("/destroy/dead") + post("/publish/$queue/mine", b"x"))
    dead = house.broker.queues.named("dead")
    mine = house.broker.state.queues["mine"]
    assert mine.settings.dead_letter == "dead" and mine.messages
    house.broker.queues.overdue.dead_letter(mine, 0, "given up")
    assert not dead.messages and not mine.messages


def test_one_connection_is_not_two_users() -> None:
    house = House()
    far = house.token()
    house.broker.sessions["switch", "annika"].user = "ann"
    far.say(get("/login/aaa"))
    assert far.hear().startswith(b"HTTP/1.1 403")
    assert ("switch", "aaa") not in house.broker.sessions


@pytest.mark.parametrize("kind", [smq.CREATE, smq.CREATESUB])
def test_one_user_does_not_take_the_numbers_of_all(kind: int) -> None:
    """They are durable: who could take them all would end them for ever."""
    house = House()
    house.let_in(ruled("write #"))
    house.broker.quotas.most[TOPICS] = house.broker.quotas.most[SUBTOPICS] = 10
    ann = house.device(b"annika")
    for name in (b"a", b"b", b"c"):
        ann.say(kind, rest=name)
    assert [one[1] for one in ann.hear()] == [0, 0, 1]
    session = house.broker.sessions["smq", "annika"]
    session.user, session.payer = "bob", ""
    ann.say(kind, rest=b"c")
    assert ann.hear()[0][1] == 0


REFUSED_BY_THE_PROGRAM = [
    (door, verb) for door, verb in ATTEMPTS if verb not in (verbs.OBSERVE, verbs.RECEIVE)
]


@pytest.mark.parametrize(("door", "verb"), REFUSED_BY_THE_PROGRAM)
def test_a_program_that_says_no_is_asked_about_every_verb(door: str, verb: str) -> None:
    house = House()
    house.gate = AskingGate(house.gate, None, lambda name, subscribing, session: False)
    assert not ATTEMPTS[door, verb](house)
