"""The journal of a running hub over HTTP, also while it writes, rolls, compresses and retires."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from hubbub.errors import (
    DirectoryError,
    HubbubError,
    JournalError,
    OffsetError,
    SettingError,
)
from hubbub.journal.segments import Directory
from hubbub.spark import hub as asking
from hubbub.spark import journals
from hubbub.spark.hub import Hub
from hubbub.spark.options import Access, Options
from hubbub.spark.plan import Range
from hubbub.spark.source import Reader, StreamReader
from tests.certificates import Authority
from tests.cluster.test_nats import PROGRAM, Nodes, nodes, server
from tests.journal.rows import header_of
from tests.process import RunningHub, StartHub

__all__ = ["nodes", "server"]
TOKEN = "open sesame"
ACCESS = Access(TOKEN, "", 20)


def feed(hub: RunningHub, first: int, count: int, size: int = 10) -> None:
    """Publish messages whose payloads begin with their numbers; they are durable afterwards."""
    lines = [
        json.dumps({"topic": f"t/{n % 7}", "payload": f"{n} ".ljust(size, "x")})
        for n in range(first, first + count)
    ]
    Hub(hub.url("http"), ACCESS).ask("POST", "/api/v1/publish", "\n".join(lines).encode())


def rows(reader: Reader | StreamReader, parts: Sequence[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["payload"].split()[0]) for row in found if row["kind"] == "publish"]


def options(hub: RunningHub, **more: str) -> Options:
    return Options({"url": hub.url("http"), "token": TOKEN, **more})


@pytest.fixture
def hub(start_hub: StartHub) -> RunningHub:
    return start_hub("--set", f"api.token={TOKEN}")


@pytest.mark.interop
def test_a_range_over_http_is_that_of_the_directory(
    hub: RunningHub,
) -> None:
    feed(hub, 0, 3000, 3000)  # several answers of 4 MiB
    far, near = Reader(options(hub)), Reader(Options({"path": str(hub.data)}))
    parts, same = far.partitions(), near.partitions()
    assert [(p.after, p.upto) for p in parts] == [(p.after, p.upto) for p in same]  # type: ignore[attr-defined]
    assert rows(far, parts) == rows(near, same)
    assert numbers(rows(far, parts)) == list(range(3000))
    some = Reader(options(hub, topics="t/3", startingOffsets="2000"))
    assert numbers(rows(some, some.partitions())) == [n for n in range(1999, 3000) if n % 7 == 3]


@pytest.mark.interop
@pytest.mark.parametrize("place", ["url", "path"])
def test_no_row_twice_or_missing_while_the_hub_writes_rolls_and_compresses(
    start_hub: StartHub, place: str
) -> None:
    hub = start_hub(
        "--set", "journal.segment_bytes=65_536", "--set", f"api.token={TOKEN}",
        "--set", "journal.durability=os",
    )  # fmt: skip
    given = options(hub) if place == "url" else Options({"path": str(hub.data)})
    reader = StreamReader(given)
    offset = reader.initialOffset()
    total, seen = 6000, list[int]()

    def feed_all() -> None:
        for first in range(0, total, 200):
            feed(hub, first, 200, 100)

    feeder = threading.Thread(target=feed_all)
    feeder.start()
    while feeder.is_alive() or len(seen) < total:
        end = reader.latestOffset(offset, ReadMaxRows(700))
        parts = reader.partitions(offset, end)
        found = numbers(rows(reader, parts))
        assert numbers(rows(reader, parts)) == found  # also when it is read again
        seen += found
        offset = end
    feeder.join()
    assert seen == list(range(total))
    whole = Reader(given)
    while not compressed(hub):  # two snapshots cover it, and the roller comes later
        feed(hub, total, 200, 100)
        total += 200
        assert numbers(rows(whole, whole.partitions())) == list(range(total))
    assert numbers(rows(whole, whole.partitions())) == list(range(total))


def compressed(hub: RunningHub) -> bool:
    """Whether the first segment is."""
    directory = Directory(hub.data)
    header = header_of(directory.segment(directory.segments()[0]))
    return header is not None and header.sealed > 0


@pytest.mark.interop
def test_rows_that_went_by_retention_are_an_error_or_are_counted(start_hub: StartHub) -> None:
    hub = start_hub(
        "--set", "journal.segment_bytes=65_536", "--set", "journal.retain_bytes=100_000",
        "--set", f"api.token={TOKEN}",
    )  # fmt: skip
    strict = StreamReader(options(hub))
    lax = StreamReader(options(hub, failOnDataLoss="false"))
    start = strict.initialOffset()
    count = 0
    while strict._journals[0].table.first() == 1:
        feed(hub, count, 500, 500)
        count += 500
    with pytest.raises(OffsetError, match=r"are gone \(retention\): set failOnDataLoss=false"):
        strict.latestOffset(start, ReadAllAvailable())
    end = lax.latestOffset(start, ReadAllAvailable())
    kept = rows(lax, lax.partitions(start, end))
    assert len(kept) <= end[lax._journals[0].key] - end["lost"]  # more may have gone meanwhile
    assert kept[-1]["seq"] == end[lax._journals[0].key] and end["lost"] > 0


@pytest.mark.interop
def test_a_hub_that_restarts_is_waited_for(
    start_hub: StartHub,
) -> None:
    hub = start_hub("--set", f"api.token={TOKEN}")
    feed(hub, 0, 3000, 4000)
    reader = StreamReader(options(hub))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (part, *_) = reader.partitions(start, {**end, "parts": 1})
    batches = reader.read(part)
    first = next(batches)
    hub.stop(signal.SIGKILL)
    again: list[RunningHub] = []
    listen = ("--listen", f"127.0.0.1:{hub.port}")
    starter = threading.Timer(
        0.3, lambda: again.append(start_hub("--set", f"api.token={TOKEN}", *listen))
    )
    starter.start()
    rest = [row for batch in batches for row in batch.to_pylist()]
    assert numbers([*first.to_pylist(), *rest]) == list(range(3000))
    starter.join()
    feed(again[0], 3000, 10)
    later = reader.latestOffset(end, ReadAllAvailable())
    assert numbers(rows(reader, reader.partitions(end, later))) == list(range(3000, 3010))


@pytest.mark.interop
@pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)")
async def test_a_node_of_a_cluster_that_is_away_is_a_gap_until_it_is_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await nodes.pair()
    await asyncio.to_thread(both_are_read_while_one_is_away, nodes, a, b, monkeypatch, caplog)


def both_are_read_while_one_is_away(
    nodes: Nodes,
    a: RunningHub,
    b: RunningHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(journals, "AGAIN", 0.0)
    given = {"url": f"{a.url('http')},{b.url('http')}", "reconnectSeconds": "1"}
    strict = StreamReader(Options(given))
    lax = StreamReader(Options({**given, "failOnDataLoss": "false"}))
    start = lax.initialOffset()
    feed(a, 0, 10)
    feed(b, 10, 10)
    end = lax.latestOffset(start, ReadAllAvailable())
    parts = lax.partitions(start, end)
    assert sorted(numbers(rows(lax, parts))) == list(range(20))
    one, other = (one.key for one in lax._journals)
    b.stop(signal.SIGKILL)
    feed(a, 20, 10)
    away = f"journal {other} of {b.url('http')} is away, which is read up to row {end[other]}"
    with pytest.raises(JournalError, match=f"{away} .* With failOnDataLoss=false it goes on"):
        strict.latestOffset(end, ReadAllAvailable())
    later = lax.latestOffset(end, ReadAllAvailable())
    assert later[one] > end[one] and later[other] == end[other]
    assert numbers(rows(lax, lax.partitions(end, later))) == list(range(20, 30))
    assert [away in message for message in caplog.messages] == [True]
    report = lax.reportLatestOffset()
    assert report["away"] == {other: b.url("http")} and report["sum"] == later[one] + later[other]
    assert sorted(numbers(rows(lax, parts))) == list(range(10)), "a batch that was planned"
    again = nodes.hub("b", "--listen", f"127.0.0.1:{b.port}")
    feed(again, 30, 10)
    until = time.monotonic() + 30  # a hub that is busy may not answer the first look in time
    while (whole := lax.latestOffset(later, ReadAllAvailable())) == later:
        assert time.monotonic() < until
    assert numbers(rows(lax, lax.partitions(later, whole))) == list(range(30, 40))
    assert f"{b.url('http')} is back, with journal {other}" in caplog.messages


@pytest.mark.interop
def test_who_has_no_token_or_a_wrong_one_is_told_what_to_do(hub: RunningHub) -> None:
    for token in ("", "wrong"):
        given = Options({"url": hub.url("http"), **({"token": token} if token else {})})
        with pytest.raises(SettingError, match=r"Set the option token .* to its api\.token"):
            Reader(given).partitions()


@pytest.mark.interop
@pytest.mark.parametrize("place", ["url", "path"])
def test_a_corrupt_segment_is_an_error_that_says_what_to_do(hub: RunningHub, place: str) -> None:
    feed(hub, 0, 100)
    segment = Directory(hub.data).segment(1)
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) - 100] ^= 1  # in the last frame: what is behind are zeros
    segment.write_bytes(data)
    given = options(hub) if place == "url" else Options({"path": str(hub.data)})
    reader = Reader(given)
    with pytest.raises(JournalError, match="damaged .*`hubbub journal repair`"):
        rows(reader, reader.partitions())


@pytest.mark.interop
@pytest.mark.parametrize("place", ["url", "path"])
def test_a_corrupt_frame_is_left_out_if_that_is_allowed(
    hub: RunningHub, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    for begin in (0, 10, 20):
        feed(hub, begin, 10)
    segment = Directory(hub.data).segment(1)
    data = bytearray(segment.read_bytes())
    at = data.index(b"10 xxxxxxx")
    data[at] ^= 1
    segment.write_bytes(data)
    given = {"url": hub.url("http"), "token": TOKEN} if place == "url" else {"path": str(hub.data)}
    reader = Reader(Options({**given, "failOnDataLoss": "false"}))
    found = numbers(rows(reader, reader.partitions()))
    assert found[:10] == [*range(10)] and found[-10:] == [*range(20, 30)] and 10 not in found
    assert "are gone" in caplog.text


@pytest.mark.interop
def test_over_tls_the_authority_must_be_known(start_hub: StartHub, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("hub", server=True)
    hub = start_hub("--set", f"tls.certificate={certificate}", "--set", f"api.token={TOKEN}")
    feed(hub, 0, 10)
    known = {"url": f"https://127.0.0.1:{hub.port}", "token": TOKEN}
    reader = Reader(Options({**known, "caFile": str(authority.file)}))
    assert numbers(rows(reader, reader.partitions())) == list(range(10))
    with pytest.raises(SettingError, match="name its authority with caFile"):
        Reader(Options(known)).partitions()


@pytest.mark.interop
def test_a_hub_with_another_journal_is_not_read(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub("--set", f"api.token={TOKEN}")
    feed(hub, 0, 10)
    reader = StreamReader(options(hub))
    start = {**reader.initialOffset(), reader._journals[0].key: 5}
    other = start_hub("--set", f"api.token={TOKEN}", data=tmp_path / "other")
    feed(other, 0, 10)
    stranger = StreamReader(options(other))
    with pytest.raises(OffsetError, match="checkpoint of another hub"):
        stranger.latestOffset(start, ReadAllAvailable())
    part = Range(other.url("http"), reader._journals[0].key, 0, 5)
    with pytest.raises(OffsetError, match="another hub than before answers"):
        list(stranger.read(part))


# What no real hub says: from a server that says it


@pytest.fixture
def serving() -> Iterator[Callable[[list[tuple[int, dict[str, str], bytes]]], str]]:
    """Starts a server with these answers, the last one again and again; returns its URL."""
    servers: list[HTTPServer] = []

    def start(answers: list[tuple[int, dict[str, str], bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = answers[0] if len(answers) == 1 else answers.pop(0)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


Serving = Callable[[list[tuple[int, dict[str, str], bytes]]], str]
HEADERS = {
    "hubbub-journal": "ab", "hubbub-format": "1", "hubbub-first": "1", "hubbub-upto": "3",
    "hubbub-committed": "3",
}  # fmt: skip


def read(url: str) -> list[dict[str, Any]]:
    reader = Reader(Options({"url": url, "reconnectSeconds": "0"}))
    return rows(reader, [Range(url, "ab", 0, 3)])


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((200, {**HEADERS, "hubbub-format": "2"}, b""), DirectoryError, "install the same version"),
        ((200, HEADERS, b"x" * 200), JournalError, "come damaged .* `hubbub journal repair`"),
        ((200, {**HEADERS, "hubbub-committed": "2"}, b""), OffsetError, "checkpoint of another"),
        ((200, {**HEADERS, "hubbub-upto": "0"}, b""), JournalError, "does not get beyond row 0"),
        ((200, HEADERS, b""), OffsetError, "rows 1 to 3 are lost"),
        ((503, {}, b""), JournalError, "did not answer for 0 s"),
        ((404, {}, b'{"error": "no journal"}'), SettingError, "404: no journal"),
        ((500, {}, b"it broke"), HubbubError, "500: it broke"),
        ((200, {}, b"<html>"), SettingError, "answers, and is no hub: correct the url"),
    ],
)
def test_a_strange_answer_is_a_clear_error(
    serving: Serving, answer: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(serving([answer]))


def test_a_newer_format_is_refused_before_anything_is_read(serving: Serving) -> None:
    url = serving([(200, {**HEADERS, "hubbub-format": "2"}, b"")])
    with pytest.raises(DirectoryError, match="has format 2, this hubbub knows 1: install the same"):
        Reader(Options({"url": url})).partitions()


def test_nobody_there_is_said_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_PATIENCE", 0.1)
    with pytest.raises(JournalError, match="at http://127.0.0.1:9 did not answer .* start it"):
        Reader(Options({"url": "http://me:secret@127.0.0.1:9"})).partitions()


def test_an_error_says_the_place_without_the_password(serving: Serving) -> None:
    url = serving([(200, HEADERS, b"")]).replace("//", "//me:s3cret@")
    reader = StreamReader(Options({"url": url}))
    with pytest.raises(OffsetError, match="stands in journal cd, and http://127") as strange:
        reader.latestOffset({"v": 1, "parts": 1, "cd": 5}, ReadAllAvailable())
    named = Options({"url": url, "startingOffsets": '{"cd": 5}'})
    with pytest.raises(SettingError, match="cd is none of the journals: ab, http") as unknown:
        StreamReader(named).initialOffset()
    assert "s3cret" not in f"{strange.value} {unknown.value}"
