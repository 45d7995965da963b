"""A bridge as transcripts: the test is the broker at the other end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hubbub.config.settings import Bridge as Settings
from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER
from hubbub.core.link import Link
from hubbub.core.message import Message, Run
from hubbub.core.session import Session, Subscription
from hubbub.errors import ProtocolError, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.bridge import Bridge, BridgeConnection, open_bridges
from hubbub.web.listing import KINDS
from tests.core.recording import Ear, StillClock, folded, shape, snapshot
from tests.protocols.mqtt.conversation import Stage, in_words
from tests.protocols.mqtt.whole import parse_subscribe
from tests.wire import Recorder

TOPICS = ("up/# out 2 '' far/", "down/# in 2 here/ ''", "both/# both 1")
NONE = codec.NO_PROPERTIES


def settings(**other: Any) -> Settings:
    given: dict[str, Any] = {"name": "plant", "addresses": ("x:1",), "topics": TOPICS, **other}
    return Settings(**given)


class End:
    """The other end of a bridge's connection, and the hub with the bridge."""

    def __init__(self, stage: Stage | None = None, **other: Any) -> None:
        self.stage = stage or Stage()
        (self.bridge,) = open_bridges(self.broker, (settings(**other),), "host")
        self.dial()

    @property
    def broker(self) -> Broker:
        return self.stage.broker

    def dial(self) -> None:
        self.transport = Recorder()
        self.link = Link(self.broker.outgoing, self.transport)
        made = self.bridge.connect(self.link, "x:1")
        assert isinstance(made, BridgeConnection)
        self.connection = made
        made.start()
        self.stage.tick()

    def accept(self, present: bool = False, **numbers: int) -> None:
        self.heard()
        properties = b""
        if self.bridge.speech.v5:
            found = {getattr(spec, name): number for name, number in numbers.items()}
            properties = codec.Properties(found).encode()
        self.say(codec.connack(present, 0, properties))

    def say(self, *packets: bytes) -> None:
        self.connection.feed(b"".join(packets))
        self.stage.tick()

    def lose(self) -> None:
        self.link.transport = None
        self.connection.lost("")
        self.stage.tick()

    def post(self, topic: str, payload: bytes = b"x", qos: int = 1, retain: bool = False) -> None:
        self.broker.post(Message(topic, payload, qos, retain))
        self.stage.tick()

    def heard(self) -> bytes:
        pieces, self.transport.pieces = self.transport.pieces, []
        return b"".join(pieces)

    def hear(self) -> list[str]:
        words, rest = in_words(self.heard())
        assert not rest
        return words


def old(**other: Any) -> End:
    """Connected with 3.1.1; what the bridge said until then was heard."""
    end = End(version="3.1.1", **other)
    end.accept()
    end.hear()
    return end


# Connecting


def test_the_first_words_of_5_0() -> None:
    end = End(user="me", password="secret", keep_alive=30)
    packet = end.heard()
    body, _ = codec.extent(packet, 0)
    asked = codec.parse_connect(packet[body:])
    assert (asked.version, asked.client, asked.clean) == ("5.0", b"host.plant", False)
    assert (asked.user, asked.password, asked.keep_alive) == (b"me", b"secret", 30)
    assert asked.properties == codec.Properties({spec.SESSION_EXPIRY: 0xFFFF_FFFF})
    end.accept()
    packet = end.heard()
    wanted = parse_subscribe(packet[2:], True).wanted
    options = codec.NO_LOCAL | codec.AS_PUBLISHED
    assert wanted == [(b"down/#", 2 | options), (b"both/#", 1 | options)]


def test_all_that_is_retained_there_is_asked_for_until_it_was_subscribed_once() -> None:
    """The broker may have a session of its name, as of a mosquitto whose bridge it takes over."""

    def handling(end: End) -> int:
        end.accept(present=True)
        (_, options), _ = parse_subscribe(end.heard()[2:], True).wanted
        return options >> codec.HANDLING_SHIFT

    end = End()
    assert handling(end) == 0
    end.lose()
    end.dial()
    assert handling(end) == 0, "a connection that was lost before the answer is none"
    end.say(codec.suback(1, [2, 1], NONE))
    end.lose()
    end.dial()
    assert handling(end) == 1
    again = Stage()
    again.broker.state = folded(end.stage.log.rows)
    assert handling(End(again)) == 1, "a hub that starts again is not new"


def test_the_first_words_of_3_1_1_are_those_of_a_bridge() -> None:
    end = End(version="3.1.1", client_id="me", clean=True)
    assert end.heard() == b"\x10\x0e\0\4MQTT\x84\2\0\x3c\0\2me"
    end.accept()
    assert end.heard() == codec.subscribe(32_768, [(b"down/#", 2), (b"both/#", 1)])


@pytest.mark.parametrize("refusal", [b"\x20\2\0\1", b"\x20\3\0\x84\0", b""])
def test_a_version_that_is_not_spoken_there(refusal: bytes) -> None:
    """5.0, then 3.1.1 as a bridge, then 3.1.1, then all over again."""
    end = End()
    levels = []
    for _ in range(4):
        levels.append(end.heard()[8])
        if refusal:
            with pytest.raises(ProtocolError, match="refused"):
                end.say(refusal)
            end.connection.lost("refused")
        else:
            end.connection.lost("")
        end.dial()
    assert levels == [5, 0x84, 4, 5]


@pytest.mark.parametrize(
    ("version", "refusal", "why"),
    [
        ("3.1.1", codec.connack(False, codec.NOT_AUTHORISED), r"not authorised \(0x05\)"),
        ("5.0", b"\x20\3\0\x86\0", r"bad user name or password \(0x86\)"),
    ],
)
def test_a_refusal_for_another_reason_is_said_and_tried_again_as_it_was(
    version: str, refusal: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    end = End(version=version, user="ann")
    first = end.heard()[8]
    with pytest.raises(ProtocolError, match=why):
        end.say(refusal)
    (said,) = (one for one in caplog.records if one.levelname == "WARNING")
    assert re.search(rf"^bridge \w+: refused: {why} at x:1, .* shown user 'ann'", said.message)
    end.connection.lost("refused")
    end.dial()
    assert end.heard()[8] == first


@pytest.mark.parametrize("packet", [codec.suback(1, [0]), b"\x82\2\0\1", b"\x30\3\0\1a"])
def test_nothing_but_a_welcome_comes_first(packet: bytes) -> None:
    end = End(version="3.1.1")
    with pytest.raises(ProtocolError, match="unexpected"):
        end.say(packet)


def test_it_says_of_itself_whether_it_is_up() -> None:
    end = End(version="3.1.1")
    ear = Ear(end.broker, "ann")
    end.broker.subscribe(ear.wish("$SYS/broker/connection/+/state"))
    end.accept()
    end.lose()
    assert [payload for _, payload, _ in ear.hear()] == [b"1", b"0"]


# Out


def test_what_goes_out() -> None:
    end = old()
    end.post("up/a", qos=0)
    end.post("up/b", qos=1, retain=True)
    end.post("both/c", qos=2)
    end.post("elsewhere", qos=1)
    assert end.hear() == ["far/up/a=x", "far/up/b=x q1 #1 retain", "both/c=x q1 #2"]


def test_qos_2_goes_out_in_two_steps() -> None:
    end = old()
    end.post("up/a", qos=2)
    assert end.hear() == ["far/up/a=x q2 #1"]
    end.say(codec.acknowledgement(codec.PUBREC, 1))
    assert end.hear() == ["PUBREL 1"]
    end.say(codec.acknowledgement(codec.PUBCOMP, 1))
    assert not end.bridge.session.backlog.entries


def test_what_was_not_acknowledged_goes_out_again() -> None:
    end = old()
    end.post("up/a", b"1")
    end.post("up/a", b"2")
    end.say(codec.acknowledgement(codec.PUBACK, 1))
    end.lose()
    end.post("up/a", b"3")
    end.post("up/a", b"lost", qos=0)
    assert end.broker.metrics.dropped == {"bridge is down": 1}
    end.dial()
    end.accept(present=True)
    assert end.hear()[1:] == ["far/up/a=2 q1 #2 dup", "far/up/a=3 q1 #3"]


def test_what_waits_survives_a_restart_of_the_hub() -> None:
    end = End(version="3.1.1")
    end.post("up/a", b"1", qos=1)
    end.post("up/a", b"2", qos=2)
    rows = end.stage.log.rows
    for state in (folded(rows), folded(snapshot(folded(rows), rows))):
        assert shape(state)["sessions"] == shape(end.broker.state)["sessions"]
        stage = Stage()
        stage.broker.state, stage.broker.log = state, end.stage.log
        restarted = End(stage, version="3.1.1")
        restarted.accept()
        words = restarted.hear()
        assert words[0].startswith("SUBSCRIBE")
        assert words[1:] == ["far/up/a=1 q1 #1", "far/up/a=2 q2 #2"]


def test_the_settings_may_change_between_two_starts() -> None:
    end = End(version="3.1.1")
    stage = Stage()
    stage.broker.state = folded(end.stage.log.rows)
    again = End(stage, version="3.1.1", topics=("up/# out 1", "new out 1"))
    assert again.bridge.session.subscriptions.keys() == {"up/#", "new"}
    (state,) = stage.broker.state.sessions.values()
    assert state.subscriptions == {"up/#": (1, b""), "new": (1, b"")}


def test_a_bridge_that_is_there_no_more_keeps_nothing() -> None:
    end = End()
    end.post("up/a")
    stage = Stage()
    stage.broker.state = folded(end.stage.log.rows)
    assert open_bridges(stage.broker, (), "host") == []
    assert stage.broker.state.sessions == {}


def test_retained_messages_go_to_a_new_bridge() -> None:
    stage = Stage()
    stage.broker.post(Message("up/r", b"x", 1, retain=True))
    end = End(stage, version="3.1.1")
    end.accept()
    assert end.hear()[1:] == ["far/up/r=x q1 #1 retain"]


def test_the_broker_says_what_it_can_take() -> None:
    end = End()
    end.accept(RECEIVE_MAXIMUM=1, MAXIMUM_QOS=1, RETAIN_AVAILABLE=0, MAXIMUM_PACKET=30)
    end.heard()
    end.post("up/a", qos=2, retain=True)
    end.post("up/b", qos=1)
    first = codec.publish(b"far/up/a", b"x", 1, packet_id=1, properties=NONE)
    assert end.heard() == first, "the second is beyond the window"
    end.say(codec.acknowledgement(codec.PUBACK, 1))
    assert end.heard() == codec.publish(b"far/up/b", b"x", 1, packet_id=2, properties=NONE)
    end.say(codec.acknowledgement(codec.PUBACK, 2))
    end.post("up/c", b"x" * 30)
    assert end.heard() == b""
    assert end.broker.metrics.dropped == {"packet too large for the client": 1}


def test_a_message_that_is_refused_is_over() -> None:
    end = End()
    end.accept()
    end.post("up/a", qos=2)
    end.post("up/a", qos=1)
    end.say(codec.acknowledgement(codec.PUBREC, 1, 0x87), b"\x40\3\0\2\x87")
    assert not end.bridge.session.backlog.entries
    assert end.broker.metrics.dropped == {"refused by the bridge's broker": 2}


def test_properties_cross() -> None:
    end = End()
    end.accept()
    end.heard()
    message = Message("up/a", b"x", 0, content_type="text/plain", reply_to="up/answer")
    message.properties = {"user": [["k", "v"]]}
    end.broker.post(message)
    end.broker.post(Message("up/a", b"x", 0, reply_to="$client/7"))
    end.stage.tick()
    data = end.heard()
    sent = [
        codec.parse_publish(data[at], data[body:stop], True).properties
        for at, body, stop in codec.packets(data)
    ]
    texts = {spec.CONTENT_TYPE: b"text/plain", spec.RESPONSE_TOPIC: b"far/up/answer"}
    assert sent == [codec.Properties(texts=texts, user=[(b"k", b"v")]), codec.Properties()]


# In


def test_what_comes_in() -> None:
    end = old()
    ear = Ear(end.broker, "ann")
    end.broker.subscribe(ear.wish("#", 2))
    end.say(
        codec.publish(b"down/a", b"1", 0),
        codec.publish(b"down/b", b"2", 1, packet_id=7),
        codec.publish(b"both/c", b"3", 2, packet_id=8),
        codec.publish(b"both/c", b"3", 2, packet_id=8, dup=True),
        codec.publish(b"other", b"4", 1, packet_id=9),
        codec.acknowledgement(codec.PUBREL, 8),
    )
    assert ear.hear() == [("here/down/a", b"1", 0), ("here/down/b", b"2", 1), ("both/c", b"3", 2)]
    assert end.hear() == ["PUBACK 7", "PUBREC 8", "PUBREC 8", "PUBACK 9", "PUBCOMP 8"]
    assert end.broker.metrics.dropped == {"no topic of the bridge": 1}


def test_what_comes_in_is_upgraded_as_what_clients_say() -> None:
    """`upgrade_outgoing_qos`, beside mosquitto 2.0.11: its bridges are clients like others."""
    end = old()
    end.broker.counts_as = 2, 2, 2
    ann = end.stage.device("ann")
    ann.subscribe("here/down/a", 1)
    ann.hear()
    end.say(codec.publish(b"down/a", b"x", 0, False, 0, False, b""))
    assert ann.hear() == ["here/down/a=x q1 #1"]


@pytest.mark.parametrize(
    "name", ["$queue/jobs", "$delayed/1/x", "$SYS/broker/connection/x/state", "$share/g/x"]
)
def test_a_prefix_does_not_lead_to_names_with_a_dollar(name: str) -> None:
    """`#` does not mean them, on neither side."""
    topics = ('# in 1 "" up/', '# out 1 here/ ""')
    end = old(topics=topics)
    end.say(codec.publish(b"up/" + name.encode(), b"x", 1, packet_id=1))
    assert end.hear() == ["PUBACK 1"]
    for qos in (0, 1):
        end.post("here/" + name, qos=qos)
    assert end.hear() == []
    assert end.broker.metrics.dropped == {"no topic of the bridge": 3}
    assert not end.broker.state.queues and not end.broker.state.delayed
    end.post("here/plain", qos=0)
    assert end.hear() == ["plain=x"]


def test_an_answer_is_not_wanted_at_a_name_with_a_dollar() -> None:
    end = End(topics=('# in 1 "" up/', '# out 1 here/ ""'))
    end.accept()
    end.heard()
    wanted: list[str] = []

    class Asked(Ear):
        def deliver(self, run: Run, subscription: Subscription) -> None:
            wanted.extend(message.reply_to for message in run.messages())

    ear = Asked(end.broker, "ann")
    end.broker.subscribe(ear.wish("#", 2))
    for address in (b"up/$queue/jobs", b"$queue/jobs", b"up/plain"):
        wish = codec.Properties(texts={spec.RESPONSE_TOPIC: address}).encode()
        end.say(codec.publish(b"up/a", b"x", 0, properties=wish))
    assert wanted == ["up/$queue/jobs", "", "plain"], "the first is a plain name here"
    end.broker.post(Message("here/a", b"x", 0, reply_to="here/$queue/jobs"))
    end.stage.tick()
    assert b"here/$queue/jobs" in end.heard()


def test_nothing_goes_back() -> None:
    end = old()
    for qos in (0, 1, 2):
        end.say(codec.publish(b"both/a", b"x", qos, packet_id=7))
    assert [word for word in end.hear() if "=" in word] == []
    assert not end.bridge.session.backlog.entries


def test_an_acknowledgement_waits_until_the_message_is_durable() -> None:
    end = End(Stage(prompt=False), version="3.1.1")
    end.accept()
    end.stage.sync()
    end.hear()
    end.say(codec.publish(b"both/a", b"x", 1, packet_id=7))
    assert end.hear() == []
    end.stage.sync()
    assert end.hear() == ["PUBACK 7"]


@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
def test_what_another_node_has_no_room_for_is_let_go_and_the_broker_told(version: str) -> None:
    class Node(Ear):
        def crosses(self) -> bool:
            return True

        def lacks_room(self, sender: Session, count: int, size: int) -> str:
            return "it has a million"

    end = End(topics=('# in 2 "" up/',), version=version)
    end.accept()
    ear, node = Ear(end.broker, "ann"), Node(end.broker, "b")
    for one in (ear, node):
        end.broker.subscribe(one.wish("a", 2))
    queue = end.broker.queues.named("work")
    end.broker.queues.bind(queue, "#")
    end.hear()
    told, none = (b"\x97", b"\0") if version == "5.0" else (b"", b"")
    for topic, qos, number in ((b"up/a", 1, 8), (b"up/a", 2, 9), (b"up/b", 1, 7)):
        end.say(codec.publish(topic, b"x", qos, packet_id=number, properties=none))
    assert end.heard() == b"".join(
        bytes((head, 2 + len(code), 0, number)) + code
        for head, number, code in ((0x40, 8, told), (0x50, 9, told), (0x40, 7, b""))
    )
    assert len(ear.hear()) == 2 and len(queue.messages) == 3, "who has room gets it"
    assert not end.bridge.session.state.open_ids


def test_what_has_to_stay_on_a_full_disk_is_not_acknowledged() -> None:
    end = old()
    queue = end.broker.queues.named("work")
    end.broker.queues.bind(queue, "both/#")
    end.broker.keep_room("the disk has 1 MB left")
    with pytest.raises(ProtocolError, match="the disk has 1 MB left"):
        end.say(codec.publish(b"both/a", b"x", 1, packet_id=7))
    end.stage.tick()
    assert end.hear() == []
    end.lose()
    end.broker.keep_room("")
    end.dial()
    end.accept(present=True)
    end.hear()
    end.say(codec.publish(b"both/a", b"x", 1, packet_id=7, dup=True))
    assert (end.hear(), len(queue.messages)) == (["PUBACK 7"], 1)


def test_an_open_exchange_survives_unless_the_broker_forgot_it() -> None:
    end = old()
    end.say(codec.publish(b"both/a", b"x", 2, packet_id=7))
    end.lose()
    end.dial()
    end.accept(present=True)
    assert end.bridge.session.state.open_ids == {7}
    end.lose()
    end.dial()
    end.accept(present=False)
    assert end.bridge.session.state.open_ids == set()
    assert folded(end.stage.log.rows).sessions["bridge", "plant"].open_ids == set()


# Life


def test_it_pings_and_gives_up() -> None:
    end = old(keep_alive=60)
    clock = end.broker.clock
    assert isinstance(clock, StillClock)

    def after(seconds: float) -> list[str]:
        clock.seconds += seconds
        end.connection.wake(clock.now())
        end.stage.tick()
        return end.hear()

    assert after(29) == []
    assert after(1) == ["PINGREQ 0"]
    end.say(codec.PINGRESP_PACKET)
    assert after(30) == ["PINGREQ 0"]
    assert not end.link.closing
    after(60)
    assert end.transport.closed
    assert "said nothing for 90 s" in end.link.reason


def test_a_broker_without_a_keep_alive_may_be_silent() -> None:
    end = End()
    end.accept(SERVER_KEEP_ALIVE=0)
    end.heard()
    clock = end.broker.clock
    assert isinstance(clock, StillClock)
    for seconds in (0.1, 100.0, 1e6):
        clock.seconds += seconds
        assert end.connection.wake(clock.now()) == NEVER
    assert end.heard() == b"" and not end.link.closing


def test_it_says_goodbye() -> None:
    end = old()
    end.connection.goodbye()
    end.stage.tick()
    assert end.hear() == ["DISCONNECT 0"]
    assert end.transport.closed


def test_behind_garbage_nothing_is_heard() -> None:
    """The connection closes when what it holds has left; what the loop reads until then may begin
    in the middle of a packet.
    """
    end = old()
    ear = Ear(end.broker, "ann")
    end.broker.subscribe(ear.wish("here/#"))
    with pytest.raises(ProtocolError) as wrong:
        end.say(b"\x00\x00")
    end.link.close(wrong.value.reason)
    end.say(codec.publish(b"down/a", b"x", 0))
    assert ear.hear() == []


def test_garbage_ends_the_connection_only() -> None:
    end = old()
    with pytest.raises(ProtocolError):
        end.say(b"\x40\x05\0\1\0\0\0")
    end.lose()
    assert not end.bridge.up


@pytest.mark.parametrize("topics", [("a/#/b out",), ("a out 1 $SYS/ ''",), ("a+ in",), ('"" out',)])
def test_topics_that_cannot_be(topics: tuple[str, ...]) -> None:
    with pytest.raises(SettingError, match="bridge.topics"):
        End(topics=topics)


def test_two_of_one_name() -> None:
    with pytest.raises(SettingError, match="same name"):
        open_bridges(Stage().broker, (settings(), settings()), "host")


def test_a_bridge_is_no_client() -> None:
    """Nobody observes it."""
    end = old()
    assert end.broker.observers.count("up/a") == 0
    assert end.broker.clients == {}
    assert isinstance(end.bridge, Bridge)


def test_it_answers_a_broker_that_pings() -> None:
    end = old()
    end.say(codec.PINGREQ_PACKET)
    assert end.hear() == ["PINGRESP"] and not end.link.closing


def test_the_bridge_bit_is_a_setting() -> None:
    def level(end: End) -> int:
        packet = end.heard()
        return packet[packet.index(b"MQTT") + 4]

    end = End(try_private=False)
    levels = [level(end)]
    with pytest.raises(ProtocolError):
        end.say(codec.connack(False, codec.BAD_VERSION))
    end.dial()
    assert [*levels, level(end)] == [codec.V5, codec.V311]
    assert level(End(version="3.1.1", try_private=False)) == codec.V311


def test_its_packet_ids_go_on_after_a_reconnection() -> None:
    """Also that of SUBSCRIBE, which is never one of what is in flight."""
    end = End(version="3.1.1")
    used = []
    for number in (1, 2):
        end.accept()
        packets = end.heard()
        used.append(parse_subscribe(packets[2 : 2 + packets[1]]).packet_id)
        end.post("up/a")
        assert codec.acknowledgement(codec.PUBACK, number)[2:] in end.heard()
        end.say(codec.acknowledgement(codec.PUBACK, number))
        end.lose()
        end.dial()
    assert used == [32_768, 32_769]


def test_the_list_of_bridges_says_which_is_up() -> None:
    """And that of sessions has clients only: nobody ends a bridge as one of those."""
    far = End()
    [row] = [thing.row() for thing in KINDS["bridges"](far.broker)]
    assert row["up"] is False
    far.accept()
    [row] = [thing.row() for thing in KINDS["bridges"](far.broker)]
    assert row["up"] is True
    assert not list(KINDS["sessions"](far.broker))
