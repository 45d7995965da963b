"""Into which tasks a batch is cut: by rows where they are alike, by what they cost where not."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from starlette.requests import Request

from hubbub.journal.compact import compact
from hubbub.journal.content import HEADER_BYTES
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.journal.shares import ROW_COST, Piece, Shares, Stretch, ends_of, shared
from hubbub.pipeline.layout import cut_of, ends_at
from hubbub.spark.hub import Answer
from hubbub.spark.journals import Journal
from hubbub.spark.options import Options
from hubbub.spark.plan import Span, Wanted, by_rows, cuts_in, fair, text_of
from hubbub.spark.remote import Remote
from hubbub.spark.source import Reader, StreamReader
from hubbub.web.journal import JournalApi
from tests.process import RunningHub
from tests.spark.fixtures import Writer, publish

LARGE = 200_000


def unlike(directory: Path, segment: int = 1 << 20) -> str:
    """A journal of 2,000 rows of ten bytes and, behind them, 40 of 200,000."""
    writer = Writer(directory, segment=segment)
    for _ in range(20):
        writer.write(*(publish(0, "small", b"%010d" % number) for number in range(100)))
    noise = random.Random(1).randbytes(LARGE)
    for number in range(40):
        writer.write(publish(1, "large", noise[number:]))
    writer.close()
    return str(directory)


def cut(reader: Reader | StreamReader, *offsets: dict[str, object]) -> list[tuple[int, int]]:
    parts = reader.partitions(*offsets)
    return [(part.after, part.upto) for part in parts]  # type: ignore[attr-defined]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("segment", [1 << 20, 64 << 20])
def test_tasks_are_cut_by_what_their_rows_cost(
    tmp_path: Path, compressed: bool, segment: int
) -> None:
    """Cut by rows the second one of two had all large ones."""
    path = unlike(tmp_path / "data", segment)
    if compressed:
        for _ in range(2):  # two snapshots have to cover it
            compact(Directory(Path(path)))
            more = Writer(Path(path))
            more.write(publish(2, "small"))
            more.close()
    reader = Reader(Options({"path": path, "maxPartitions": "2", "minPartitions": "2"}))
    (start, middle), (again, upto) = cut(reader)
    assert (start, again, upto) == (0, middle, Frames(Path(path)).committed())
    assert 2015 <= middle <= 2025  # 2,000 rows, and then 19 or 20 of 40


def test_what_is_damaged_is_told_by_who_reads_it(tmp_path: Path) -> None:
    """A stream that was to go on after it ended while it was planned: its frame says where its
    buffers lie, and those were looked for behind all memory there is.
    """
    path = Path(unlike(tmp_path / "data"))
    for _ in range(2):
        compact(Directory(path))
    segment = Directory(path).segment(1)
    whole = segment.read_bytes()
    for at in range(HEADER_BYTES + 32, HEADER_BYTES + 900, 27):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        frames = Frames(path, allow_loss=True)
        assert 0 < frames.within(0, 2040, 1_000_000) <= 2040
        assert frames.shares(0, 2040, 4).ends[-1] == 2040


def test_few_large_rows_are_more_than_one_task(tmp_path: Path) -> None:
    """By rows, 20,000 were the least that a second task paid for."""
    writer = Writer(tmp_path / "data")
    for _ in range(70):
        writer.write(publish(0, "large", bytes(1 << 20)))
    writer.close()
    reader = Reader(Options({"path": str(tmp_path / "data"), "maxPartitions": "8"}))
    assert cut(reader) == [(0, 23), (23, 47), (47, 70)]


def test_a_batch_that_is_repeated_is_cut_the_same_also_by_cost(tmp_path: Path) -> None:
    """Its offset says where: meanwhile files were compressed, and options changed."""
    path = unlike(tmp_path / "data")
    reader = StreamReader(Options({"path": path, "minPartitions": "4", "maxPartitions": "2"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    before = cut(reader, start, end)
    assert end["v"] == 2 and len(before) == 4
    assert all(begin == last for (_, last), (begin, _) in pairwise(before))
    assert before[0][0] == 0 and before[-1][1] == 2040
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    for _ in range(2):
        compact(Directory(Path(path)))
    later = StreamReader(Options({"path": path, "minPartitions": "7", "maxPartitions": "9"}))
    assert cut(later, start, end) == before
    plain = {name: end[name] for name in end if name != "cuts"} | {"v": 1}
    assert cut(later, start, plain) == [(0, 2040)]  # what minPartitions says now is for new batches
    del plain["lost"]  # an older build cut by minPartitions, and did not say so
    assert len(cut(later, start, plain)) == 7
    text = f"v1\n{{}}\n{end}".replace("'", '"')  # as Spark's checkpoint has it
    assert ends_at(text) == 2040
    assert Wanted("", "", Span(0, 2040)).cut(cut_of(text, Span(0, 2040)))[0].upto == before[0][1]


def test_rows_that_are_alike_are_cut_by_rows(tmp_path: Path) -> None:
    """Then an offset says no more than it did, and versions before read it."""
    writer = Writer(tmp_path / "data", segment=1 << 20)
    for _ in range(50):
        writer.write(*(publish(0, "small", b"%010d" % number) for number in range(1_000)))
    writer.close()
    reader = StreamReader(Options({"path": str(tmp_path / "data"), "maxPartitions": "2"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"v": 1, "parts": 2, writer.id: 50_000, "lost": 0}
    assert cut(reader, start, end) == [(0, 25_000), (25_000, 50_000)]


def test_rows_that_went_meanwhile_shorten_the_tasks_that_had_them() -> None:
    wanted = Wanted("d", "i", Span(50, 90))
    assert [(one.after, one.upto) for one in wanted.cut((20, 40, 60, 90))] == [(50, 60), (60, 90)]
    assert Wanted("d", "i", Span(90, 90)).cut((20, 90)) == []


def test_journals_share_tasks_by_what_they_cost() -> None:
    spans = [Span(0, 100_000), Span(0, 500)]
    known = [Shares(100_000_000, (50_000, 100_000)), Shares(900_000_000, (250, 500))]
    assert by_rows(spans, 4) == [(25_000, 50_000, 75_000, 100_000), (500,)]
    assert fair(spans, known, 4) == [(100_000,), (125, 250, 375, 500)]
    assert fair(spans, [known[0], None], 4) is None  # a hub that does not say it
    assert fair([Span(3, 3)], [None], 4) is None


def test_text_of_cuts() -> None:
    cuts = {"6f0c": (20, 40, 90), "a1b2": (7,), "c3": (), "d4": (1, 2)}
    assert text_of(cuts) == "6f0c:20,40;d4:1"
    assert cuts_in(text_of(cuts)) == {"6f0c": (20, 40), "d4": (1,)}
    assert cuts_in("") == {}


def test_ends_lie_where_costs_say() -> None:
    assert ends_of([Stretch(0, 10, 10), Stretch(10, 20, 30)], 2) == (13, 20)
    assert ends_of([Stretch(4, 5, 100)], 8) == (5,)
    assert ends_of([Stretch(0, 4, 0)], 2) == (4,)
    assert ends_of([], 3) == ()


def test_of_a_long_journal_only_files_in_which_a_cut_falls_are_walked() -> None:
    asked: list[tuple[int, int]] = []

    def sizes(after: int, upto: int) -> list[object]:
        asked.append((after, upto))
        return []

    pieces = [Piece(n * 1000, n * 1000 + 1000, 64 << 20) for n in range(10_000)]
    begun = time.process_time()
    found = shared(pieces, sizes, 500, 10_000_000, 4)  # type: ignore[arg-type]
    assert time.process_time() - begun < 1
    assert asked == [] and len(found.ends) == 4  # each is little beside a task
    found = shared(pieces[:8], sizes, 500, 8_000, 2)  # type: ignore[arg-type]
    assert asked == [(4_000, 5_000), (7_000, 8_000)]  # the half file at its head is little, too
    assert found.ends == (3250, 8_000) and found.cost > 5 * (64 << 20) + ROW_COST * 5_000


def test_whoever_asks_how_far_so_many_bytes_reach_is_told_soon(tmp_path: Path) -> None:
    """All other readers of a hub's journal waited until one of them had been told of all of it."""
    frames = Frames(Path(unlike(tmp_path / "data")))
    position, left, most = 0, 3_000_000, 3_000_000
    answers = 0
    while True:
        reach = frames.reach(position, 2040, left, 0.0)
        answers, left = answers + 1, left - reach.carried
        if left < 0:
            break
        position = reach.seq
    assert position == frames.within(0, 2040, most) and answers > 20


async def test_a_hub_is_asked_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(unlike(tmp_path / "data"))
    plain, api = Frames(path), JournalApi(path)
    monkeypatch.setattr("hubbub.web.journal.WALK_SECONDS", 0.0)
    questions: list[str] = []

    class Asked:
        name = "here"

        def ask(self, method: str, where: str) -> Answer:
            questions.append(where)
            query = urllib.parse.urlsplit(where).query.encode()
            request = Request({"type": "http", "query_string": query})
            found = asyncio.run(api(request))
            return Answer(dict(found.headers), bytes(found.body))

    shelf = Remote(Asked())  # type: ignore[arg-type]
    for most in (1, 900_000, 3_000_000, 10**12):
        found = await asyncio.to_thread(shelf.within, 0, 2040, most)
        assert found == plain.within(0, 2040, most)
    assert len(questions) > 60


@pytest.mark.interop
def test_a_hub_says_where_to_cut(tmp_path: Path) -> None:
    path = unlike(tmp_path / "data")
    expected = Frames(Path(path)).shares(0, 2040, 4)
    hub = RunningHub(Path(path))
    try:
        given = {"url": hub.url("http"), "minPartitions": "4", "endingOffsets": "2041"}
        assert [upto for _, upto in cut(Reader(Options(given)))] == list(expected.ends)
        shelf = Journal(hub.url("http"), Options({"url": hub.url("http")})).table.shelf
        plain = Frames(Path(path))
        for most in (1, 900_000, 10**12):  # in however many answers
            assert shelf.within(0, 2040, most) == plain.within(0, 2040, most)
        url = hub.url("http") + "/api/v1/journal?from=1&to=2040&shares="
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(url + "4097")
    finally:
        hub.stop()
