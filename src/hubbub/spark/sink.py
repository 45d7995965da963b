"""`df.write` and `df.writeStream` with `format("hubbub")`: rows become messages of a running hub.

    topic · payload · qos · retain · content_type · reply_to · correlation · subtopic · properties

are the columns; all but `payload` may be missing (`topic`, `qos` and `retain` then come from the
options). Each task posts its partition in its own order, some hundred rows at a time, and says
which query, batch and partition they are: what the hub took before, it skips. So a batch that is
written again, by another attempt, after a crash of an executor, the driver or the hub, changes
nothing. Used by Spark in its workers; the promises are the hub's (`web.publish`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    StringType,
    StructType,
)

from hubbub.errors import HubbubError, Refused, SettingError, without_user
from hubbub.spark.hub import Hub, TooLargeError
from hubbub.spark.options import WRITE, access, checked, flag, number

PATH: Final = "/api/v1/publish"
URL: Final = "http://127.0.0.1:8080"  # the default of every command
ROWS: Final = 2_000  # of one request
BYTES: Final = 4 << 20  # of what they carry; one row may be of any size

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_QUERY_NAME: Final = re.compile(r"[ -.0-~]{0,200}")  # it goes into a header
_TEXT: Final = (StringType, BinaryType)
_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "payload": _TEXT,
    "qos": (IntegralType,),
    "retain": (BooleanType,),
    "content_type": (StringType,),
    "reply_to": (StringType,),
    "correlation": (BinaryType,),
    "subtopic": (StringType,),
    "properties": (StringType,),
}
_ANOTHER: Final = (
    "Give the write another name by the option query: then all that comes is published, what was "
    "published before, too"
)
_ENCODER: Final = msgspec.json.Encoder()


@dataclass
class Published(WriterCommitMessage):
    """What a task did: its query, messages the hub took, and those it had already."""

    query: str
    taken: int
    skipped: int


class Target:
    """Where rows go and what they lack: the options of a write, checked against its columns."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        lower = checked(given, WRITE)
        self.url = lower.get("url", URL).rstrip("/")
        self.access = access(lower)
        self.query = lower.get("query", "")
        if not self.url.startswith(("http://", "https://")) or "," in self.url:
            shown = without_user(self.url)
            raise SettingError(f"url: expected http://HOST:PORT of one hub, got {shown!r}")
        if not _QUERY_NAME.fullmatch(self.query):
            raise SettingError(
                f"query: expected a name without / of at most 200 ASCII letters, got {self.query!r}"
            )
        names = set(schema.fieldNames())
        self.defaults: dict[str, Any] = {}
        if "topic" in lower and "topic" not in names:
            self.defaults["topic"] = lower["topic"]
        if "qos" in lower and "qos" not in names:
            self.defaults["qos"] = number("qos", lower["qos"])
        if "retain" in lower and "retain" not in names:
            self.defaults["retain"] = flag("retain", lower["retain"])
        self._most = BYTES
        self._check(schema)

    def _check(self, schema: StructType) -> None:
        for field in schema.fields:
            if field.name not in _COLUMNS:
                near = get_close_matches(field.name, _COLUMNS, 1)
                hint = f", did you mean {near[0]}?" if near else ":"
                raise SettingError(
                    f"column {field.name} is no part of a message{hint} select of "
                    + ", ".join(_COLUMNS)
                )
            if not isinstance(field.dataType, _COLUMNS[field.name]):
                raise SettingError(
                    f"column {field.name} is {field.dataType.simpleString()}, expected "
                    + " or ".join(kind.typeName() for kind in _COLUMNS[field.name])
                )
        if "topic" not in {*schema.fieldNames(), *self.defaults}:
            raise SettingError("where to? Give a column topic, or the option topic")

    def hub(self) -> Hub:
        return Hub(self.url, self.access, known=True)

    def publish(self, query: str, batches: Iterator[pa.RecordBatch]) -> Published:
        """Post the rows of one task; the hub skips what it had."""
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        batch = task.getLocalProperty(_BATCH) or "0"
        name = f"{query}/{batch}/{task.partitionId()}"
        hub, first, rows = self.hub(), 0, 0
        done = Published(query, 0, 0)
        for lines in self._parts(batches):
            newest, rows = self._post(hub, name, first, lines, done)
            _check_newest(query, int(batch), newest)
            first += len(lines)
        if first < rows:
            raise Refused(
                f"of partition {name} the hub took {rows} messages before, and now there are "
                f"{first}: this batch was computed anew with other rows, or it is another one. "
                f"Nothing of it is published. {_ANOTHER}"
            )
        return done

    def _post(
        self, hub: Hub, name: str, first: int, lines: list[dict[str, Any]], done: Published
    ) -> tuple[int, int]:
        """In halves if that is more than the hub takes at once, and from then on less.

        The newest batch of which the hub took something, and how much; of an older hub zeros.
        """
        headers = {"Hubbub-Batch": name, "Hubbub-First": str(first)}
        body = _ENCODER.encode_lines(lines)
        try:
            answer = hub.ask("POST", PATH, body, headers)
        except TooLargeError:
            if len(lines) == 1:
                raise
            half = len(lines) // 2
            self._most = max(min(self._most, len(body)) // 2, 1)
            self._post(hub, name, first, lines[:half], done)
            return self._post(hub, name, first + half, lines[half:], done)
        found = msgspec.json.decode(answer.body)
        done.taken += found["taken"]
        done.skipped += found["skipped"]
        newest, _, rows = answer.headers.get("hubbub-taken", "0/0").partition("/")
        return int(newest), int(rows)

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
        """The rows as messages, as many as one request takes."""
        lines: list[dict[str, Any]] = []
        size = 0
        for batch in batches:
            for row in batch.to_pylist():
                line = self._line(row)
                size += _size(row)
                lines.append(line)
                if len(lines) >= ROWS or size >= self._most:
                    yield lines
                    lines, size = [], 0
        if lines:
            yield lines

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row as the hub reads it; what is null is left out."""
        line = {**self.defaults, **{name: row[name] for name in row if row[name] is not None}}
        if isinstance(line.get("payload"), bytes):
            line["base64"] = line.pop("payload")
        if "properties" in line:
            line["properties"] = _json(line["properties"])
        return line


def _check_newest(query: str, batch: int, newest: int) -> None:
    """Raise Refused for a batch that the hub skips, since it knows a newer one of that name."""
    if batch < newest:
        raise Refused(
            f"batch {batch} of query {query} comes after batch {newest}, as the hub knows it: the "
            "checkpoint is a new one, or was put back as it was before. Nothing of it is "
            f"published. {_ANOTHER}"
        )


def _size(row: dict[str, Any]) -> int:
    """About what a row carries."""
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text or "null")
    except msgspec.DecodeError as error:
        got = f"{text[:100]!r}: {error}"
        raise SettingError(f"column properties: expected JSON, got {got}") from None


class Writer(DataSourceArrowWriter):
    """A batch write. Without the option `query` its name is random, and forgotten when done."""

    def __init__(self, target: Target, overwrite: bool) -> None:
        if overwrite:
            raise SettingError('a hub has nothing to overwrite: write with mode("append")')
        self.target = target
        self.query = target.query or f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self.target.publish(self.query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self.target.query:
            forget(self.target.hub(), self.query)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published stays published."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream: Spark's query and batch ids are what the hub remembers."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        query = self.target.query or task.getLocalProperty(_QUERY)
        if not query:
            raise HubbubError("Spark does not say which query this is: set the option query")
        return self.target.publish(query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The hub has everything already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays published; the batch that is written again goes on there."""


def forget(hub: Hub, query: str) -> None:
    """Let the hub forget how far a query was; nothing of it will be written again."""
    hub.ask("DELETE", f"{PATH}/{quote(query, safe='')}")
