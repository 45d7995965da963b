"""What was published before, found from the journal's end: the same as looking at every row."""

from __future__ import annotations

import io
import json
import shutil
import socket
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub import schema
from hubbub.core.topics import OWN, matches
from hubbub.journal import frame, history, names
from hubbub.journal.content import HEADER_BYTES, Content
from hubbub.journal.history import History, answer, pieces, serve, size_of
from hubbub.journal.question import END, NAMES, PIECE, Question
from hubbub.journal.roll import roll
from hubbub.journal.segments import Directory
from hubbub.schema import Row
from tests.journal.rows import Desk, message

EVER = 2**62
TOPICS = [b"a", b"a/b", b"a/c", b"a/b/c", b"b", b"$x/a", b"a%2Fb", b"$queue/a", "é/ü".encode()]


def find(
    path: Path, topic: str, last: int = 100, since: int = 0, upto: int = EVER,
    literal: bool = False,
) -> list[bytes]:  # fmt: skip
    found = History(path).find(Question(topic, literal, last, since, upto))
    return [row.payload for row in found.rows]


def filled(path: Path, *parts: list[Row]) -> Desk:
    """Each part is a finished segment, but the last, which is empty."""
    desk = Desk(path, segment_seconds=0.0)
    for part in parts:
        desk.write(*part)
    desk.write(Row(0, 0, schema.CONNECT, b"mqtt", b"ann"))
    return desk


def numbers(begin: int, end: int, *topics: bytes) -> list[Row]:
    return [message(b"%d" % n, topics[n % len(topics)]) for n in range(begin, end)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Thirty messages in three segments, of which the first two are compressed."""
    path = tmp_path / "data"
    desk = filled(path, *(numbers(n, n + 10, b"a/b", b"a/c") for n in (0, 10, 20)))
    desk.close()
    for base in (1, 11, 21):
        roll(Directory(path), base)
    flags = []
    for first in (1, 11, 21):
        with Content(Directory(path).segment(first)) as content:
            flags += [one.flags & frame.COMPRESSED for one in content.rows_frames(0)]
    assert flags == [frame.COMPRESSED, frame.COMPRESSED, 0]
    return path


def test_the_last_ones_over_segments_compressed_or_not(journal: Path) -> None:
    assert find(journal, "a/b", 3) == [b"24", b"26", b"28"]
    assert find(journal, "a/#", 12) == [b"%d" % n for n in range(18, 30)]
    assert find(journal, "+/c", 100) == [b"%d" % n for n in range(1, 30, 2)]
    assert find(journal, "a/b", upto=13) == [b"0", b"2", b"4", b"6", b"8", b"10", b"12"]
    assert find(journal, "a/#", literal=True) == find(journal, "a/d") == []


def test_since(journal: Path) -> None:
    rows = History(journal).find(Question("a/#", False, 100, 0, EVER)).rows
    for row in (rows[3], rows[17], rows[29]):
        wanted = [one.payload for one in rows if one.time >= row.time]
        assert find(journal, "a/#", since=row.time) == wanted
    assert find(journal, "a/#", since=rows[-1].time + 1) == []


def test_it_says_how_far_back_it_reaches(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = History(journal).find(Question("a/b", False, 100, 0, EVER))
    assert whole.complete and whole.reaches == whole.rows[0].time
    monkeypatch.setattr(history, "HISTORY_BYTES", 3 * size_of(whole.rows[-1]))
    short = History(journal).find(Question("a/b", False, 100, 0, EVER))
    assert [row.payload for row in short.rows] == [b"24", b"26", b"28"]
    assert not short.complete and short.reaches == short.rows[0].time
    monkeypatch.setattr(history, "HISTORY_BYTES", size_of(whole.rows[0]))
    small = History(journal).find(Question("a/b", False, 3, 0, 12))
    assert [row.payload for row in small.rows] == [b"8"] and not small.complete
    monkeypatch.setattr(history, "HISTORY_SECONDS", -1.0)
    late = History(journal).find(Question("none", False, 100, 0, EVER))
    assert not late.complete and late.reaches >= whole.rows[-1].time


def test_what_was_looked_through_once_is_passed_over(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, opened = Directory(journal), []

    def content(path: Path) -> Content:
        opened.append(int(path.stem))
        return Content(path)

    monkeypatch.setattr(history, "Content", content)
    assert find(journal, "none") == [] and opened == [31, 21], "the roller lists what it compresses"
    shutil.rmtree(journal / "names")
    opened.clear()
    assert find(journal, "none") == [] and opened == [31, 21, 11, 1]
    lists = [names.read(directory, *span) for span in directory.spans()]
    assert [one.listed for one in lists if one] == [b"\0a/b\0a/c\0"] * 3 and lists[3] is None
    for topic in ("other", "a", "a/", "b/#", "+", "none"):
        opened.clear()
        assert find(journal, topic) == [] and opened == [31], topic
    assert find(journal, "a/+", 1) == [b"29"] and opened == [31, 31, 21]


def test_a_list_that_is_damaged_or_of_another_segment_is_not_believed(journal: Path) -> None:
    directory = Directory(journal)
    find(journal, "none")
    first, second = (names.path_of(directory, n) for n in (1, 11))
    second.write_bytes(first.read_bytes())
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    assert names.read(directory, 1, 11) is names.read(directory, 11, 21) is None
    assert find(journal, "a/b", 2, upto=20) == [b"16", b"18"]
    stray = names.path_of(directory, 5)
    shutil.copy(names.path_of(directory, 21), stray)
    find(journal, "a/b", 1)
    assert not stray.exists(), "its segment is gone"


def test_too_many_names_are_no_list(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(journal / "names")
    monkeypatch.setattr(names, "SEGMENT_NAMES", 5)
    assert find(journal, "none") == []
    known = names.read(Directory(journal), 1, 11)
    assert known is not None and known.listed == b""
    assert find(journal, "a/b", 1, upto=5) == [b"4"]


def test_a_damaged_frame_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "data"
    desk = filled(path, numbers(0, 5, b"a"), numbers(5, 10, b"a"))
    desk.close()
    segment = Directory(path).segment(6)
    data = bytearray(segment.read_bytes())
    data[HEADER_BYTES + 1_200] ^= 1
    segment.write_bytes(data)
    question = Question("a", False, 100, 0, EVER)
    reader = History(path)
    for _ in range(2):
        found = reader.find(question)
        assert [row.payload for row in found.rows] == [b"%d" % n for n in range(5)]
        assert not found.complete and found.damaged == 6
    directory = Directory(path)
    assert names.read(directory, 6, 11) is None, "of what was not whole nobody knows the names"
    data[HEADER_BYTES + 1_200] ^= 1
    whole = bytes(data)
    data[HEADER_BYTES] ^= 1  # now nobody sees where a frame begins
    segment.write_bytes(data)
    found = reader.find(question)
    assert len(found.rows) == 5 and not found.complete and found.damaged == 6
    segment.write_bytes(whole)
    found = reader.find(question)
    assert len(found.rows) == 10 and found.complete and not found.damaged


def test_all_of_a_message_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without payloads, with large properties: few are found, and few are a piece."""
    path = tmp_path / "data"
    large = message(b"", b"a")._replace(properties=b'{"user":[["k","%s"]]}' % (b"v" * 10_000))
    filled(path, [large] * 30).close()
    monkeypatch.setattr(history, "HISTORY_BYTES", 100_000)
    monkeypatch.setattr(history, "COMMIT_BYTES", 30_000)
    found = History(path).find(Question("a", False, 100, 0, EVER))
    assert len(found.rows) == 9 and not found.complete
    sizes = [len(piece) for piece in pieces(found)]
    assert len(sizes) == 6 and max(sizes) < 25_000


def test_what_has_expired_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "data"
    rows = [message(b"%d" % n, b"a")._replace(expires=n) for n in range(6)]
    filled(path, rows).close()
    found = History(path).find(Question("a", False, 3, 0, EVER, now=4))
    assert [row.payload for row in found.rows] == [b"0", b"5"], "0: it does not expire"


@given(
    st.lists(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(["a", "a/b", "a/#", "+/b", "#", "+", "$x/#", "a/+/c", "é/#", "a%/b", "b/#"]),
    st.integers(1, 12),
    st.booleans(),
)
def test_the_same_as_looking_at_every_row(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]], topic: str, last: int,
    literal: bool,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("journal") / "data"
    rows = [
        [message(b"%d.%d" % (n, m), t) for m, t in enumerate(part)] for n, part in enumerate(parts)
    ]
    filled(path, *rows).close()
    wanted = [
        row.payload
        for part in rows
        for row in part
        if (row.topic == schema.column_of(topic) if literal else _means(topic, row.topic))
    ]
    for _ in range(2):  # without lists of names, then with them
        assert find(path, topic, last, literal=literal) == wanted[-last:]


def _means(topic: str, column: bytes) -> bool:
    name = schema.name_of(column)
    if topic == name:
        return True
    return ("+" in topic or "#" in topic) and not name.startswith(OWN) and matches(topic, name)


def test_pieces_of_an_answer(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "COMMIT_ROWS", 16)
    found = History(journal).find(Question("a/#", False, 100, 0, EVER))
    stream = io.BytesIO(b"".join(pieces(found)))
    rows: list[Row] = []
    sizes = []
    end, size = PIECE.unpack(stream.read(PIECE.size))
    while not end:
        part = frame.decode(memoryview(stream.read(size)), 0)
        rows += part
        sizes.append(len(part))
        end, size = PIECE.unpack(stream.read(PIECE.size))
    assert rows == found.rows and set(sizes) == {4, 2}
    assert json.loads(stream.read(size)) == {
        "complete": True, "reaches": rows[0].time, "damaged": 0,
    }  # fmt: skip


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "data"
    filled(path, numbers(0, 5, b"a")).close()
    (path / "log" / "committed").write_bytes(b"x" * 32)
    line = json.dumps(Question("a", False, 1, 0, 1)._asdict()).encode()
    [said] = answer(History(path), line, set)
    assert "is damaged" in json.loads(said[PIECE.size :])["error"]
    assert list(answer(History(tmp_path / "none"), line, set))[-1].endswith(
        b'"reaches": 0, "damaged": 0}'
    )


def test_the_newest_are_of_those_that_may_be_had(journal: Path) -> None:
    """They were the newest of all, of which who may have little got few, or none."""
    everything = History(journal).find(Question("a/#", False, 100, 0, EVER)).rows
    mine = {b"a/b"}  # every second one
    asked: list[set[bytes]] = []

    def rights(names: set[bytes]) -> set[bytes]:
        asked.append(names)
        return names & mine

    found = History(journal).find(Question("a/#", False, 7, 0, EVER), rights)
    assert found.rows == [row for row in everything if row.topic in mine][-7:]
    assert found.complete and set.union(*asked) <= {row.topic for row in everything}


def test_the_hub_is_asked_once_for_each_name_and_not_for_very_many_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "NAMES_ASKED", 3)
    path = tmp_path / "data"
    topics = [b"a/%d" % (number % 10) for number in range(50)]
    filled(path, numbers(0, 50, *topics[:10])).close()
    ours, theirs = socket.socketpair()
    asked: list[bytes] = []
    rows: list[Row] = []
    with ours, theirs, ours.makefile("rwb") as hub, theirs.makefile("rwb") as child:
        thread = Thread(target=serve, args=(History(path), child, child), daemon=True)
        thread.start()
        question = Question("a/#", False, 100, 0, EVER, asks=True)
        hub.write(json.dumps(question._asdict()).encode() + b"\n")
        hub.flush()
        kind, size = PIECE.unpack(hub.read(PIECE.size))
        while kind != END:
            data = hub.read(size)
            if kind == NAMES:
                names = data.split(b"\0")
                assert len(names) <= 3
                asked += names
                hub.write(b"".join(b"1" if one == b"a/7" else b"0" for one in names) + b"\n")
                hub.flush()
            else:
                rows += frame.decode(memoryview(data), 0)
            kind, size = PIECE.unpack(hub.read(PIECE.size))
        ours.shutdown(socket.SHUT_WR)
        thread.join(10)
    assert sorted(asked) == sorted(set(topics))
    assert [row.topic for row in rows] == [b"a/7"] * 5
