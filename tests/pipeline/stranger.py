"""Reads a journal and makes three tables of it, by docs/journal-format.md and nothing else.

Imports nothing of Hubbub, and Arrow only to decode what the page says is Arrow. The page is wrong
or says too little if what comes out is not what `hubbub pipeline run` makes: whoever changes this
file to make a test pass changes that page too.

    rows_of(folder)    the rows of the journal, in their order
    tables(rows)       deliveries, calls and sessions, closed rows and open ones, unordered
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Client = tuple[str, str]  # protocol, client

FILE = struct.Struct("<8sIIqqqqI12x")
FRAME = struct.Struct("<IIqIIq32x")


# The files


def rows_of(folder: Path) -> Iterator[Row]:
    last = committed(folder / "log" / "committed")
    files = sorted((folder / "log").glob("*.rows"))
    ends = [int(file.stem) for file in files[1:]] + [last + 1]
    before = None
    for file, end in zip(files, ends, strict=True):
        for row in rows_in(file, end):
            if row["seq"] > last:
                return
            assert before is None or row["seq"] == before + 1, f"rows after {before} are lost"
            before = row["seq"]
            yield row
    assert (before or 0) == last, f"rows up to {last} are lost"


def committed(file: Path) -> int:
    said = file.read_bytes()
    if len(said) == 8:
        return int(struct.unpack("<q", said)[0])
    found = (said[at : at + 16] for at in (0, 16))
    right = (one for one in found if zlib.crc32(one[:8]) == struct.unpack("<I", one[8:12])[0])
    return max(int(struct.unpack("<q", one[:8])[0]) for one in right)


def rows_in(file: Path, end: int) -> Iterator[Row]:
    data = file.read_bytes()
    magic, version, frames, first, _, _, sealed, crc = FILE.unpack_from(data)
    assert (magic, version, first) == (b"HUBBUBJ1", 1, int(file.stem))
    assert zlib.crc32(data[:48] + bytes(4) + data[52:frames]) == crc
    schema, at = data[FILE.size : frames], frames
    limit = sealed or len(data)
    while at + FRAME.size <= limit:
        length, crc, first, count, _, last = FRAME.unpack_from(data, at)
        if not length or first >= end:
            return
        frame = data[at : at + length]
        assert zlib.crc32(frame[8:]) == crc, f"{file.name}: the frame at {at} is damaged"
        found = pa.ipc.open_stream(io.BytesIO(schema + frame[FRAME.size :])).read_all().to_pylist()
        assert (len(found), found[0]["seq"], found[-1]["seq"]) == (count, first, last)
        yield from (row for row in found if row["seq"] < end)
        at += length


# The tables


def tables(rows: Iterator[Row]) -> dict[str, list[Row]]:
    made: dict[str, Deliveries | Calls | Sessions] = {
        "deliveries": Deliveries(), "calls": Calls(), "sessions": Sessions()
    }  # fmt: skip
    for row in rows:
        row["said"] = json.loads(row["properties"] or "{}")
        for table in made.values():
            take: Callable[[Row], None] | None = getattr(table, row["kind"], None)
            if take is not None:
                take(row)
    return {name: table.rows for name, table in made.items()}


def column(name: str) -> str:
    """A name that stands in JSON, as a column has it."""
    odd = re.compile(r"%(?=[0-9A-Fa-f]{2})|[\udc80-\udcff]")
    return odd.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", name)


def milliseconds(since: Any, until: Any) -> float:
    return float(round((until - since).total_seconds() * 1000, 6))


class Sessions:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.here: dict[Client, Row] = {}

    def connect(self, row: Row) -> None:
        key = row["protocol"], row["client"]
        self._leave(key, row["time"], "not seen to leave")
        self.here[key] = {
            "seq": row["seq"], "protocol": key[0], "client": key[1],
            "address": row["said"].get("address", ""), "lasting": "lasting" in row["said"],
            "connected": row["time"], "disconnected": None, "seconds": None, "reason": None,
        }  # fmt: skip
        self.rows.append(self.here[key])

    def disconnect(self, row: Row) -> None:
        nobody = not row["client"] and not row["protocol"]
        for key in list(self.here) if nobody else [(row["protocol"], row["client"])]:
            self._leave(key, row["time"], row["said"].get("reason", ""))

    def _leave(self, key: Client, when: Any, reason: str) -> None:
        one = self.here.pop(key, None)
        if one is not None:
            seconds = (when - one["connected"]).total_seconds()
            one.update(disconnected=when, seconds=seconds, reason=reason)


class Calls:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.waiting: dict[tuple[str, int], Row] = {}  # by queue and id there
        self.asked: dict[int, Row] = {}  # by seq

    def send(self, row: Row) -> None:
        if row["ref"] in self.asked:
            self._close(self.asked[row["ref"]], "answered", row["client"], row["time"])
        if row["reply_to"]:
            queue = row["topic"].removeprefix("$queue/")
            call = {
                "seq": row["seq"], "queue": queue, "number": row["number"],
                "caller": row["client"], "asked": row["time"], "responder": None,
                "answered": None, "latency_ms": None, "status": "open",
            }  # fmt: skip
            self.waiting[queue, row["number"]] = self.asked[row["seq"]] = call
            self.rows.append(call)

    def publish(self, row: Row) -> None:
        answers = row["said"].get("answers")
        if answers is not None:
            call = self.waiting.get((column(answers[0]), answers[1]))
            if call is not None:
                self._close(call, "answered", row["client"], row["time"])

    def ack(self, row: Row) -> None:
        self._over(row, row["client"])

    def drop(self, row: Row) -> None:
        self._over(row, None)

    def destroy(self, row: Row) -> None:
        for call in list(self.asked.values()):
            if row["topic"] == "$queue/" + call["queue"]:
                self._close(call, "unanswered", None, None)

    def _over(self, row: Row, by: str | None) -> None:
        call = self.asked.get(row["ref"])
        if call is not None and row["topic"] == "$queue/" + call["queue"]:
            self._close(call, "unanswered", by, None)

    def _close(self, call: Row, status: str, by: str | None, when: Any) -> None:
        latency = milliseconds(call["asked"], when) if when is not None else None
        call.update(status=status, responder=by, answered=when, latency_ms=latency)
        del self.asked[call["seq"]]
        self.waiting.pop((call["queue"], call["number"]), None)


class Deliveries:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.audiences: dict[int, list[list[Any]]] = {}
        self.next: dict[Client, int] = {}
        self.open: dict[Client, dict[int, Row]] = {}  # of sessions, by number
        self.queues: dict[str, dict[int, Row]] = {}  # by seq of the message

    def audience(self, row: Row) -> None:
        self.audiences[row["seq"]] = json.loads(row["payload"])

    def connect(self, row: Row) -> None:
        if "lasting" in row["said"]:
            self.next[row["protocol"], row["client"]] = row["number"]

    def publish(self, row: Row) -> None:
        for protocol, client, granted in self.audiences[row["ref"]] if row["ref"] else ():
            key, qos = (protocol, column(client)), min(granted, row["qos"])
            if qos:
                made = self._begin(row, row["seq"], *key, qos)
                self._number(key, {**made, "topic": row["topic"]})

    def queued(self, row: Row) -> None:
        key = row["protocol"], row["client"]
        if key[0] == "queue":
            made = self._begin(row, row["ref"], *key, row["qos"])
            self._enter(key[1], made)
        elif key[0] != "share":
            made = self._begin(row, row["ref"], *key, row["qos"])
            self._number(key, made if row["ref"] else None)

    def send(self, row: Row) -> None:
        made = self._begin(row, row["seq"], "queue", row["topic"], row["qos"])
        self._enter(row["topic"], {**made, "topic": row["topic"]})

    def deliver(self, row: Row) -> None:
        one = self.queues.get(row["topic"], {}).get(row["ref"])
        if one is not None:
            one["attempts"] += 1
            one["handed"] = one["handed"] or row["time"]

    def ack(self, row: Row) -> None:
        key = row["protocol"], row["client"]
        if row["topic"].startswith("$queue/"):
            one = self.queues.get(row["topic"], {}).pop(row["ref"], None)
            self._end(one, row["time"], "acknowledged", row["client"])
        elif row["topic"] != "$delayed/" and key[0] != "share":
            waiting = self.open.get(key, {})
            meant = (number for number, one in waiting.items() if one["seq"] == row["ref"])
            first = row["said"].get("delivery")
            first = min(meant) if first is None else first
            for number in range(first, first + row["number"]):
                self._end(waiting.pop(number, None), row["time"], "acknowledged")

    def drop(self, row: Row) -> None:
        key = row["protocol"], row["client"]
        if row["topic"].startswith("$queue/"):
            one = self.queues.get(row["topic"], {}).pop(row["ref"], None)
            self._end(one, row["time"], "dropped")
        elif row["client"]:
            self.next[key] -= row["number"]
            for number in range(self.next[key], self.next[key] + row["number"]):
                self._end(self.open[key].pop(number, None), row["time"], "dropped")

    def end(self, row: Row) -> None:
        for one in self.open.pop((row["protocol"], row["client"]), {}).values():
            self._end(one, row["time"], "ended")

    def destroy(self, row: Row) -> None:
        for one in self.queues.pop(row["topic"], {}).values():
            self._end(one, row["time"], "destroyed")

    def _begin(self, row: Row, seq: int, protocol: str, receiver: str, qos: int) -> Row:
        return {
            "seq": seq, "offer": row["seq"], "topic": None, "protocol": protocol,
            "receiver": receiver, "qos": qos, "since": row["time"], "handed": None,
            "attempts": 0, "ended": None, "latency_ms": None, "status": "open", "by": None,
        }  # fmt: skip

    def _number(self, key: Client, made: Row | None) -> None:
        if made is not None:
            self.open.setdefault(key, {})[self.next[key]] = made
            self.rows.append(made)
        self.next[key] += 1

    def _enter(self, queue: str, made: Row) -> None:
        self.queues.setdefault(queue, {})[made["seq"]] = made
        self.rows.append(made)

    def _end(self, one: Row | None, when: Any, status: str, by: str | None = None) -> None:
        if one is not None:
            one.update(ended=when, status=status, by=by)
            if status == "acknowledged":
                one["latency_ms"] = milliseconds(one["since"], when)
