"""A run of PUBLISH packets is cut up without parsing each; here each is parsed, to compare."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.message import Run, row_of, rows_of
from hubbub.core.rights import Rights
from hubbub.core.route import Route
from hubbub.core.session import Silent
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.dialect import PLAIN

ENCODINGS = PLAIN.encodings(2)
NAMES = st.sampled_from(["t", "a/b", "straße/°C", "50%20/x", "n" * 300])


@given(NAMES, st.integers(0, 2), st.booleans(), st.integers(0, 200), st.integers(1, 30))
def test_rows_and_messages_of_a_run(
    name: str, qos: int, retain: bool, size: int, count: int
) -> None:
    payloads = [bytes([number]) * size for number in range(count)]
    packets = [
        codec.publish(name.encode(), payload, qos, packet_id=number + 1 if qos else 0)
        for number, payload in enumerate(payloads)
    ]
    sender = Silent("mqtt", "c%41", Rights())
    run = Run(sender, Route(name, 0), qos, count, ENCODINGS[qos], b"".join(packets), retain)
    run.recorded(7, 1_700_000_000_000_000)
    rows = rows_of(run, 3)
    assert [row.payload for row in rows] == payloads
    assert [message.seq for message in run.messages()] == list(range(7, 7 + count))
    for row, packet, message in zip(rows, packets, run.messages(), strict=True):
        body, end = codec.extent(packet, 0)
        parsed = codec.parse_publish(packet[0], packet[body:end])
        assert (message.topic.encode(), message.payload, message.qos) == (
            parsed.topic,
            parsed.payload,
            parsed.qos,
        )
        assert row == row_of(message, ref=3)
