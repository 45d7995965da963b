"""However the bytes are split, whatever they are: the same conversation, or a ProtocolError."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.protocols.smq import codec
from tests.protocols.smq.device import Heard, Hub

Step = tuple[int, int, int, bytes]  # type, topic, sender, rest; ids as below


def conversation(plan: list[Step], cuts: list[int]) -> tuple[list[Heard], list[Heard], bool]:
    """What two devices hear when one sends the plan, cut at these places.

    Ids are 1 = alpha, 2 = beta, 3 = the talker, 4 = the subscriber, others unknown.
    """
    hub = Hub()
    subscriber, talker = hub.device(b"client-a"), hub.device(b"client-b")
    alpha, beta = subscriber.subscribe(b"alpha"), subscriber.subscribe(b"beta")
    ids = {1: alpha, 2: beta, 3: talker.etid, 4: subscriber.etid}
    stream = b""
    for kind, topic, sender, rest in plan:
        publishes = kind in (codec.PUBLISH, codec.PUBFRAG)
        numbers = (ids.get(topic, topic), ids[sender], 7) if publishes else ()
        body = bytes((kind,)) + rest
        stream += codec.framed(codec.message(kind, *numbers, rest=rest) if publishes else body)
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    for low, high in pairwise(places):
        talker.far.say(stream[low:high])
    signs = {number: sign for sign, number in ids.items()}
    signs |= {number: -sign for sign, number in enumerate(hub.broker.state.topics.names, 1)}
    heard = [
        [tuple(signs.get(part, part) if isinstance(part, int) else part for part in one) for one in
         device.hear()]
        for device in (subscriber, talker)
    ]  # fmt: skip
    return heard[0], heard[1], talker.closed


STEPS = st.tuples(
    st.sampled_from([codec.PUBLISH] * 5 + [codec.PUBFRAG, codec.CREATE, codec.PING, codec.SUBACK]),
    st.integers(0, 5),
    st.sampled_from([3, 3, 3, 3, 3, 3, 4]),
    st.sampled_from([b"alpha", b"", b"x", b"y", b"z"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=12), st.lists(st.integers(0, 250), max_size=8))
def test_any_split_of_the_bytes_is_the_same_conversation(plan: list[Step], cuts: list[int]) -> None:
    assert conversation(plan, cuts) == conversation(plan, [])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80), st.booleans(), st.booleans())
def test_garbage_raises_nothing_but_protocol_errors(
    data: bytes, connected: bool, websocket: bool
) -> None:
    hub = Hub()
    device = hub.device(b"client-a" if connected else b"", websocket)
    connection = device.far.connection
    try:
        connection.feed(data)
        connection.feed(data)
    except ProtocolError as error:
        assert error.reason
    hub.tick()
