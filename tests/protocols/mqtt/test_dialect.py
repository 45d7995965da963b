"""What a PUBLISH of 5.0 looks like to who receives it, whichever way it is made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.broker import Broker
from hubbub.core.message import SPELLED, Encoding, Run
from hubbub.core.route import Route
from hubbub.core.session import Silent
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.dialect import Dialect, Dialect5
from tests.core.recording import Recording, StillClock

texts = st.text("abc/é", max_size=200).map(str.encode)
said = st.builds(
    codec.Properties,
    numbers=st.fixed_dictionaries(
        {}, optional={spec.MESSAGE_EXPIRY: st.integers(1, 10_000), spec.PAYLOAD_FORMAT: st.just(1)}
    ),
    texts=st.fixed_dictionaries(
        {},
        optional={
            spec.CONTENT_TYPE: st.text("abc/é", min_size=1, max_size=200).map(str.encode),
            spec.RESPONSE_TOPIC: st.text("abc/é", min_size=1, max_size=200).map(str.encode),
            spec.CORRELATION: st.binary(min_size=1, max_size=20),
        },
    ),
    user=st.lists(st.tuples(texts, texts), max_size=3),
)


@given(
    properties=said,
    payload=st.binary(max_size=300),
    sent=st.integers(0, 2),
    wanted=st.integers(0, 2),
    retain=st.booleans(),
    ids=st.lists(st.integers(1, 10_000), max_size=2, unique=True).map(tuple),
    alias=st.integers(0, 300),
    named=st.booleans(),
    spoken=st.tuples(st.booleans(), st.booleans()),
    mounts=st.tuples(st.sampled_from(["", "a/"]), st.sampled_from(["", "a/"])),
)
def test_put_around_what_came_it_says_what_it_says_made_anew(
    properties: codec.Properties, payload: bytes, sent: int, wanted: int, retain: bool,
    ids: tuple[int, ...], alias: int, named: bool, spoken: tuple[bool, bool],
    mounts: tuple[str, str],
) -> None:  # fmt: skip
    clock = StillClock()
    broker = Broker(clock, Recording(clock), "all")
    sender, route = Silent("mqtt", "x", broker.open), Route("a/b", 0)
    theirs, ours = [
        Dialect5(clock, mount) if v5 else Dialect(mount)
        for v5, mount in zip(spoken, mounts, strict=True)
    ]
    if spoken == (True, True) and mounts[0] == mounts[1]:
        ours = theirs
    packet = codec.publish(
        theirs.shown("a/b"), payload, sent, packet_id=7,
        properties=properties.encode() if theirs.v5 else b"",
    )  # fmt: skip
    came = Run(sender, route, sent, 1, theirs.encoding(sent), packet, retain)
    spelled = Run(sender, route, sent, 1, SPELLED, b"", retain)
    spelled.replace(came.messages())
    as_published = retain or alias % 2 == 0
    shown: Encoding = ours.encoding(wanted, as_published, ids, alias, named)
    assert _parsed(came.seen_as(shown), ours.v5) == _parsed(spelled.seen_as(shown), ours.v5)


def _parsed(packet: bytes, v5: bool) -> codec.Publish:
    """Packet ids are placeholders: the receiving session puts its own there."""
    body, end = codec.extent(packet, 0)
    assert end == len(packet)
    topic = 2 + int.from_bytes(packet[body : body + 2], "big")
    patched = bytearray(packet[body:])
    if packet[0] & 6:
        patched[topic : topic + 2] = b"\0\1"
    return codec.parse_publish(packet[0], bytes(patched), v5)
