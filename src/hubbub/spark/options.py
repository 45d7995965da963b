"""The options of `format("hubbub")`: their names, what they mean, and how they are read.

`READ` and `WRITE` are the tables; docs/reference/spark.md shows them, and a test compares. Names
are Spark's: their case does not matter. One that is misspelt is an error, not ignored.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import SettingError, without_user
from hubbub.schema import COLUMNS

DATA: Final = "./hubbub-data"  # the default of every command
EARLIEST: Final = -2  # Kafka's numbers for these words
LATEST: Final = -1
PROCESSES: Final = "processes"  # as of `journal.segments`, which Spark does without

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_TRUTH: Final = {"true": True, "false": False}

_ACCESS: Final = {
    "token": "the hub's `api.token`",
    "tokenFile": "a file with the token, on every machine of Spark",
    "caFile": "a PEM file of the authority that signed the hub's certificate; else the system's",
    "reconnectSeconds": "how long a hub that does not answer is waited for (60)",
}
READ: Final = {
    "path": "the data directory of a hub (./hubbub-data), or several, comma-separated; one of "
    "several processes is their journals",
    "url": "a running hub, http(s)://[USER:PASSWORD@]HOST:PORT, or several, comma-separated; of "
    "one of several processes each, …PORT?process=1",
    **_ACCESS,
    "startingOffsets": "the first row: `earliest` (default), `latest`, a seq, or by journal: "
    '{"DIR, URL or id": seq}; -2 is earliest, -1 latest. A stream takes it at its first start',
    "endingOffsets": "batch: the row after the last; `latest` (default), a seq, or by journal",
    "startingTimestamp": "rows from then on; milliseconds since 1970, or ISO 8601. Goes before "
    "startingOffsets",
    "endingTimestamp": "batch: rows before then",
    "maxOffsetsPerTrigger": "rows of one batch of a stream at most (no limit)",
    "maxBytesPerTrigger": "bytes that the rows of one batch of a stream carry at most, in memory; "
    "one row may be larger (no limit)",
    "minOffsetsPerTrigger": "a stream waits with a batch until so many rows are there (1) …",
    "maxTriggerDelay": "… but no longer than so many seconds (60)",
    "minPartitions": "at least so many tasks, however few rows there are",
    "maxPartitions": "at most so many tasks; else as many as this machine has cores, which on a "
    "cluster is not what counts",
    "failOnDataLoss": "`true`: rows that are gone are an error; `false`: go on after them and say "
    "how many; a stream of several journals also without one that is gone or away",
    "topics": "MQTT filters, comma-separated: only rows whose topic matches one",
    "kinds": "kinds of rows, comma-separated",
    "columns": "columns, comma-separated: only these are decoded and handed to Spark (all)",
    "pushdown": "batch: `true`: conditions in WHERE decide what is read; only for a DataFrame of "
    "which one query is made (`false`)",
}
WRITE: Final = {
    "url": "the hub to publish to, http(s)://[USER:PASSWORD@]HOST:PORT (http://127.0.0.1:8080)",
    **_ACCESS,
    "topic": "where rows without a column `topic` go: a topic or $queue/NAME",
    "qos": "of rows without a column `qos` (0)",
    "retain": "of rows without a column `retain` (false)",
    "query": "the name by which the hub knows what it took; a stream has one, a batch gets a "
    "random one: name it and it can be repeated",
}
# Spark hands these to every source and sink.
_SPARKS: Final = frozenset(("paths", "checkpointlocation", "queryname"))
_FILE: Final = re.compile("^file:/+")
_PROVIDER: Final = "provider"  # among what a table of Spark's catalog says of itself
_OPTION: Final = "option."  # before the options of such a table


# What sources of other hubs call them; the nearest name in letters would be another thing.
_ELSEWHERE: Final = {
    "subscribe": "topics",
    "subscribepattern": "topics",
    "assign": "topics",
    "kafka.bootstrap.servers": "url",
    "service.url": "url",
    "includeheaders": "columns",
    "maxrecordsperpartition": "minPartitions",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafka.ssl.truststore.location": "caFile",
    "kafka.sasl.jaas.config": "tokenFile",
    "rowsperbatch": "maxOffsetsPerTrigger",
}


def checked(given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. SettingError for one that does not exist."""
    names = {name.lower(): name for name in known}
    lower = {name.lower(): value for name, value in given.items()}
    for name in lower:
        if name not in names and name not in _SPARKS:
            near = _ELSEWHERE.get(name, "").lower()
            if near not in names:
                (near,) = get_close_matches(name, names, 1, 0.0)
            raise SettingError(
                f"there is no option {name!r}, did you mean {names[near]}? There are "
                + ", ".join(known)
            )
    return lower


def of_table(given: Mapping[str, str]) -> dict[str, str]:
    """What was said with `CREATE TABLE … USING hubbub`, without what Spark says of the table.

    Empty if this is no table of a catalog. Its LOCATION and the option `path` are one to Spark.
    """
    if _PROVIDER not in given:
        return {}
    found = {
        name.removeprefix(_OPTION): value
        for name, value in given.items()
        if name.startswith(_OPTION)
    }
    return {**({"path": given["path"]} if "path" in given else {}), **found}


class Access(NamedTuple):
    """How a hub is asked: its token or "", an authority or "", seconds of patience, and seconds of
    silence after which a connection is given up.
    """

    token: str
    ca: str
    patience: float
    silence: float = 30.0


def access(lower: Mapping[str, str]) -> Access:
    token = lower.get("token", "")
    if file := lower.get("tokenfile", ""):
        if token:
            raise SettingError("token and tokenFile are both set: leave one of them out")
        try:
            token = Path(file).read_text().strip()
        except OSError as error:
            raise SettingError(f"tokenFile: cannot read {file}: {error.strerror}") from None
    patience = number("reconnectSeconds", lower.get("reconnectseconds", "60"))
    return Access(token, lower.get("cafile", ""), patience)


class Start(NamedTuple):
    """Positions: one for all journals (`every`), or one by name."""

    every: int
    by_name: dict[str, int]

    def of(self, *names: str) -> int:
        """The position for the journal of these names."""
        return next((self.by_name[one] for one in names if one in self.by_name), self.every)


class Options:
    """The options of a load, checked."""

    def __init__(self, given: Mapping[str, str]) -> None:
        lower = checked(given, READ)
        self.places = _places(lower)
        self.access = access(lower)
        start, end = lower.get("startingoffsets", "earliest"), lower.get("endingoffsets", "latest")
        self.start = _positions("startingOffsets", start, self.places)
        self.end = _positions("endingOffsets", end, self.places)
        self.since = _moment("startingTimestamp", lower.get("startingtimestamp", ""))
        if self.since > time.time_ns() // 1000:
            raise SettingError("startingTimestamp: expected a time that is past; this is to come")
        self.until = _moment("endingTimestamp", lower.get("endingtimestamp", ""))
        self.ends = self.until > 0 or self.end != Start(LATEST, {})
        self.rows = number("maxOffsetsPerTrigger", lower.get("maxoffsetspertrigger", "0"))
        self.bytes = number("maxBytesPerTrigger", lower.get("maxbytespertrigger", "0"))
        self.least = number("minOffsetsPerTrigger", lower.get("minoffsetspertrigger", "1"))
        self.delay = number("maxTriggerDelay", lower.get("maxtriggerdelay", "60"))
        self.partitions = number("minPartitions", lower.get("minpartitions", "0"))
        self.cores = number("maxPartitions", lower.get("maxpartitions", "0")) or os.cpu_count() or 1
        self.strict = flag("failOnDataLoss", lower.get("failondataloss", "true"))
        self.lenient = not self.strict and len(self.places) > 1  # others go on where one is gone
        self.kinds = lower.get("kinds", "")
        self.topics = lower.get("topics", "")
        self.columns = columns_of(lower.get("columns", ""))
        self.pushdown = flag("pushdown", lower.get("pushdown", "false"))
        if EARLIEST in (self.end.every, *self.end.by_name.values()):
            raise SettingError("endingOffsets: expected latest or a seq, got earliest")


def listed(option: str) -> tuple[str, ...]:
    """The parts of a comma-separated option, spaces around them dropped."""
    return tuple(part for part in (piece.strip() for piece in option.split(",")) if part)


def columns_of(option: str) -> tuple[str, ...]:
    """The `columns` option checked: raises SettingError for one that the journal has not."""
    chosen = tuple(dict.fromkeys(name.lower() for name in listed(option)))
    for name in chosen:
        check_column("columns", name)
    if option and not chosen:
        raise SettingError(f"columns: expected at least one, got {option!r}. {_columns()}")
    return chosen


def check_column(where: str, name: str) -> None:
    """Raise SettingError if the journal has no such column."""
    names = [column.name for column in COLUMNS]
    if name not in names:
        near = get_close_matches(name, names, 1, 0.0)
        raise SettingError(
            f"{where}: there is no column {name!r}, did you mean {near[0]}? {_columns()}"
        )


def _columns() -> str:
    return "The columns are " + ", ".join(column.name for column in COLUMNS)


def _places(lower: Mapping[str, str]) -> tuple[str, ...]:
    """Directories and URLs. Workers may have another working directory, so paths are whole.

    A table of Spark's catalog has a directory as a URL.
    """
    urls = listed(lower.get("url", ""))
    for url in urls:
        if not url.startswith(("http://", "https://")):
            shown = without_user(url)
            raise SettingError(
                f"url: expected http://HOST:PORT or https://HOST:PORT, got {shown!r}"
            )
    paths = [*listed(lower.get("path", "")), *json.loads(lower.get("paths") or "[]")]
    paths = [_FILE.sub("/", path) for path in paths]
    if not urls and not paths:
        paths = [DATA]
    journals = [one for path in paths for one in _journals(os.path.abspath(path))]
    return tuple(dict.fromkeys([*journals, *map(_spelled, urls)]))


def _spelled(url: str) -> str:
    """Always in the same way: `http://HOST/?process=1` is `http://HOST?process=1`."""
    return url.rstrip("/").replace("/?", "?")


def _journals(path: str) -> list[str]:
    """A directory is one journal, or has one below it for each of the processes of a hub."""
    try:
        count = int(Path(path, PROCESSES).read_text())
    except (OSError, ValueError):
        return [path]
    return [os.path.join(path, str(number + 1)) for number in range(count)]


def _positions(name: str, text: str, places: tuple[str, ...]) -> Start:
    """EARLIEST, LATEST, or the seq of a row; for all journals or by name."""
    if text.strip().lower() in _WORDS:
        return Start(_WORDS[text.strip().lower()], {})
    try:
        value = json.loads(text)
        if _is_position(value):
            return Start(value, {})
        if isinstance(value, dict) and value and all(map(_is_position, value.values())):
            every = LATEST if name.startswith("ending") else EARLIEST
            every = value.pop("*", every)
            return Start(every, {_called(one, places): value[one] for one in value})
    except ValueError:
        pass
    raise SettingError(
        f'{name}: expected earliest, latest, a seq or {{"DIR, URL or id": seq}}, got {text!r}'
    )


def _called(name: str, places: tuple[str, ...]) -> str:
    """A place as `_places` spells it; any other name as it is."""
    return next((one for one in (os.path.abspath(name), _spelled(name)) if one in places), name)


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST


def _moment(name: str, text: str) -> int:
    """UTC microseconds; 0 if it is not given."""
    if not text:
        return 0
    if text.isascii() and text.isdecimal():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingError(
            f"{name}: expected milliseconds since 1970 or ISO 8601, got {text!r}"
        ) from None
    return microseconds(moment)


def microseconds(moment: datetime) -> int:
    """Since 1970; a time without zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SettingError(f"{name}: expected a number, got {text!r}")
    return int(text)


def flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise SettingError(f"{name}: expected true or false, got {text!r}")
    return _TRUTH[text.lower()]
