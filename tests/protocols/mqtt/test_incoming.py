"""Properties that were read once are not read again, and nobody can tell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.core.limits import PLAIN_PROPERTIES
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told

KIND = {spec.CONTENT_TYPE: b"text/plain"}
SAID = [
    told(), told(texts=KIND), told(texts=KIND, trace="1"), told(trace="2"),
    told({spec.MESSAGE_EXPIRY: 60}, KIND), told({spec.MESSAGE_EXPIRY: 0}),
    told({spec.PAYLOAD_FORMAT: 1}), told({spec.PAYLOAD_FORMAT: 0}, KIND),
    told({spec.TOPIC_ALIAS: 3}, KIND), told({spec.TOPIC_ALIAS: 70}),
    told(texts={spec.RESPONSE_TOPIC: b"back"}), told(texts={spec.CORRELATION: b"7"}),
    told(subtopic="s"), told(long="x" * 200), Properties(subscriptions=[1]),
]  # fmt: skip
Said = tuple[str, bytes, int, bool, Properties]
MESSAGES = st.sampled_from(SAID).flatmap(
    lambda said: st.lists(
        st.tuples(
            st.sampled_from(["a", "a", "a/b", "nobody"]), st.sampled_from([b"", b"\xff" * 9]),
            st.sampled_from([0, 0, 1, 1, 2]), st.sampled_from([False, False, False, True]),
            st.sampled_from([said, said, told(texts=KIND)]),
        ),
        min_size=4, max_size=12,
    )
)  # fmt: skip


ALIASED = [
    told({spec.TOPIC_ALIAS: 1}), told({spec.TOPIC_ALIAS: 2}), told({spec.TOPIC_ALIAS: 1}, KIND),
    told({spec.TOPIC_ALIAS: 1, spec.MESSAGE_EXPIRY: 9}), told({spec.TOPIC_ALIAS: 2}, trace="1"),
    told({spec.TOPIC_ALIAS: 1}, {spec.RESPONSE_TOPIC: b"back"}),
    told({spec.TOPIC_ALIAS: 1, spec.PAYLOAD_FORMAT: 1}),
]  # fmt: skip
BY_ALIAS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "a", "a/b"]), st.sampled_from([b"", b"1", b"\xff" * 9]),
        st.sampled_from([0, 0, 1, 1, 2]), st.sampled_from([False, False, False, True]),
        st.sampled_from([*ALIASED, *ALIASED[:3], *ALIASED[:1]]),
    ),
    min_size=4, max_size=12,
)  # fmt: skip


class Forgetful(set[bytes]):
    """Knows nothing, whatever it is told."""

    def add(self, element: bytes) -> None: ...


class Oblivious(dict[bytes, tuple[int, bytes]]):
    def __setitem__(self, key: bytes, value: tuple[int, bytes]) -> None: ...


def heard(messages: list[Said], forgets: bool) -> list[object]:
    """What everybody hears of one client's messages."""
    stage = Stage()
    if forgets:
        stage.mqtt.plain_properties = Forgetful()
        stage.mqtt.aliased_properties = Oblivious()
    modern, old, writer = Modern(stage, "modern"), stage.device("old"), Modern(stage, "writer")
    modern.subscribe("a/#", 2, identifier=7)
    old.subscribe("a/#", 1)
    for number, (topic, payload, qos, retain, said) in enumerate(messages, 1):
        writer.publish(topic, payload, qos, retain, number if qos else 0, properties=said)
    return [modern.hear(), old.hear(), writer.hear(), stage.log.rows]


@given(MESSAGES)
@settings(max_examples=300)
def test_nobody_can_tell(messages: list[Said]) -> None:
    assert heard(messages, False) == heard(messages, True)


@given(BY_ALIAS)
@settings(max_examples=300)
def test_nor_with_an_alias_for_the_topic(messages: list[Said]) -> None:
    named = [("a", b"x", 0, False, ALIASED[0]), ("a/b", b"x", 0, False, ALIASED[1])]
    assert heard(named + messages, False) == heard(named + messages, True)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_an_alias_stands_for_is_looked_up_each_time(qos: int) -> None:
    """Another connection has another topic by that alias, and this one may say another."""
    stage = Stage()
    reader, one, two = Modern(stage, "r"), Modern(stage, "one"), Modern(stage, "two")
    reader.subscribe("#", 0)
    reader.hear()
    said = told({spec.TOPIC_ALIAS: 1}, KIND)
    for writer, topics in ((one, ["a", "", "", "b", "", ""]), (two, ["c", "", ""])):
        for number, topic in enumerate(topics, 1):
            writer.publish(topic, b"", qos, False, number if qos else 0, properties=said)
    kind = "= content-type=text/plain"
    assert reader.hear() == [name + kind for name in "aaabbbccc"]
    assert stage.mqtt.aliased_properties == {said.encode(): (1, told(texts=KIND).encode())}


def test_an_alias_that_this_client_never_said_stands_for_nothing() -> None:
    stage = Stage()
    one, two, said = Modern(stage, "one"), Modern(stage, "two"), told({spec.TOPIC_ALIAS: 1})
    for topic in ("a", "", ""):
        one.publish(topic, properties=said)
    two.hear()
    two.publish("", properties=said)
    assert two.hear() == [f"DISCONNECT {spec.PROTOCOL:#04x}"]


@pytest.mark.parametrize("qos", [0, 1])
def test_what_was_read_is_known(qos: int) -> None:
    stage = Stage()
    writer, said = Modern(stage, "w"), told(texts=KIND)
    for number in (1, 2):
        writer.publish("a", qos=qos, packet_id=number if qos else 0, properties=said)
        assert stage.mqtt.plain_properties == {said.encode()}


@pytest.mark.parametrize("said", [told(), *SAID[6:7], *SAID[8:12], told(long="x" * 200)], ids=str)
def test_what_is_for_the_hub_or_long_is_read_each_time(said: Properties) -> None:
    stage = Stage()
    Modern(stage, "w").publish("a", properties=said)
    assert not stage.mqtt.plain_properties


def test_known_properties_do_not_reach_beyond_their_packet() -> None:
    """The length says more than the packet has, and the next packet goes on as if they did."""
    stage = Stage(record="none")  # else the row would tell
    reader, writer, said = Modern(stage, "r"), Modern(stage, "w"), told(trace="00").encode()
    reader.subscribe("a", 0)
    reader.hear(), writer.hear()
    writer.say(codec.publish(b"a", b"", 0, properties=said))
    assert reader.hear() == ["a= trace:00"]
    whole = codec.publish(b"a", b"", 0, properties=said)
    cut = whole[:1] + bytes((whole[1] - 2,)) + whole[2:]  # "00" begins a PUBLISH of 48 bytes
    writer.say(cut + b"\0\1a\0" + bytes(44))
    assert reader.hear() == []
    assert writer.hear() == [f"DISCONNECT {spec.MALFORMED:#04x}"]


def test_so_many_are_known_and_no_more() -> None:
    stage = Stage()
    writer = Modern(stage, "w")
    for number in range(PLAIN_PROPERTIES + 1):
        writer.publish("a", properties=told(trace=str(number)))
    assert stage.mqtt.plain_properties == {told(trace=str(PLAIN_PROPERTIES)).encode()}


def test_properties_that_end_in_the_next_packet_are_no_properties() -> None:
    """They begin like some that are known; those of another packet are not its own."""
    stage = Stage()
    writer, said = Modern(stage, "w"), told({spec.TOPIC_ALIAS: 1}, k="\x30\x0c")
    writer.publish("a", properties=said)
    writer.publish("", properties=said)
    writer.hear()
    whole = codec.publish(b"", b"", 0, properties=said.encode())
    assert said.encode() in stage.mqtt.aliased_properties
    cut = whole[:1] + bytes((whole[1] - 2,)) + whole[2:]
    assert cut[-2:] == b"\x30\x0c"
    writer.say(cut + codec.publish(b"a", b"x" * 8, 0, properties=b"\0")[2:])
    assert writer.hear() == [f"DISCONNECT {spec.MALFORMED:#04x}"]
