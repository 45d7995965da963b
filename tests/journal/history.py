"""A small journal with everything in it: names, a queue, sessions, retained messages, two
segments, a snapshot. The fixture of the format (`test_format.py`) is made of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hubbub import schema
from hubbub.core.state import ID_OF_QUEUE, lasting_properties
from hubbub.journal import roll
from hubbub.schema import PUBLISH, Row
from tests.journal.rows import Desk

ANN = {"protocol": b"mqtt", "client": b"ann"}
BOB = {"protocol": b"mqtt", "client": b"b%C3b"}  # any bytes
JOBS = b"$queue/jobs"
NEWEST_ROW = 7  # of `folded_by_and_by`


def row(kind: bytes, **columns: Any) -> Row:
    return Row(0, 0, kind)._replace(**columns)


FIRST = [
    row(schema.CREATE, topic=b"room/temp", number=4711),
    row(schema.CREATE, topic=JOBS, number=99, properties=ID_OF_QUEUE),
    row(schema.CREATE, subtopic=b"celsius", number=5),
    row(schema.CREATE, topic=JOBS),
    row(schema.CONNECT, **ANN, properties=lasting_properties(3600, "127.0.0.1")),
    row(schema.SUBSCRIBE, **ANN, topic=b"room/#", qos=2),
    row(schema.CONNECT, **BOB, properties=lasting_properties(0xFFFFFFFF)),
    row(schema.AUDIENCE, topic=b"room/temp", payload=b'[["mqtt","ann",2]]'),
    row(PUBLISH, **BOB, topic=b"room/temp", qos=2, payload=b"\xff\x00bytes", ref=8, number=7),
    row(PUBLISH, **BOB, topic=b"room/temp", qos=1, retain=True, payload=b"21.5", ref=8,
        content_type=b"text/plain", correlation=b"\x01", reply_to=b"answers"),
    row(schema.RECEIVED, **ANN, ref=9, number=1),
    row(schema.SEND, **BOB, topic=JOBS, payload="müll".encode(), reply_to=b"$queue/back"),
    row(schema.SEND, **BOB, topic=JOBS, payload=b"second", number=1),
    row(schema.ACK, **BOB, topic=JOBS, ref=12),
]  # fmt: skip
SECOND = [
    row(schema.RELEASE, **BOB, number=7),
    row(PUBLISH, **BOB, topic=b"passing", payload=b"nobody needs this"),
    row(schema.DISCONNECT, **ANN, expires=2_000_000_000_000_000),
]


def written(path: Path) -> Path:
    """Make the journal there."""
    desk = Desk(path, segment_bytes=1, segment_seconds=1e9)
    desk.write(*FIRST)
    desk.write(*SECOND)
    roll.roll(desk.journal.directory, 1)
    desk.journal.rolled()
    desk.write(row(PUBLISH, **BOB, topic=b"room/temp", qos=1, payload=b"last"))
    desk.close()
    return path


def folded_by_and_by(path: Path) -> Path:
    """Another: a session and six retained messages, each a segment; of the seven, five are folded,
    four compressed, and all are there. Snapshots stand at rows 4 and 5.
    """
    desk = Desk(path, segment_seconds=0.0)
    desk.write(row(schema.CONNECT, **ANN, properties=lasting_properties(3600)))
    for number in range(6):
        desk.write(row(PUBLISH, **ANN, topic=b"r/%d" % number, retain=True, payload=bytes(3000)))
    directory = desk.journal.directory
    for base in roll.bases(directory)[:-2]:
        roll.roll(directory, base)
    desk.close()
    assert directory.snapshots() == [4, 5]
    return path
