"""mosquitto.db, the state that a mosquitto left: counted, and never passed over in silence.

    header: 15 bytes of magic, a checksum (4), the version (4), numbers big-endian
    chunk:  its kind (4), the length of its body (4), the body

That is the form of versions 5 and 6 (mosquitto 1.6 to 2). Nothing of it becomes state of this hub;
who starts here for the first time is told what the file holds before any of it could be missed.
"""

from __future__ import annotations

import logging
import struct
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from hubbub.errors import SettingError

log = logging.getLogger("hubbub.config")

_MAGIC: Final = b"\x00\xb5\x00mosquitto db"
_HEADER: Final = struct.Struct(">15s4xI")
_CHUNK: Final = struct.Struct(">II")
_VERSIONS: Final = (5, 6)
_KINDS: Final = {4: "retained message", 6: "session", 5: "subscription", 3: "queued message"}
_OURS: Final = "format"  # the first file of a data directory


def refuse_to_lose(database: Path, data: Path) -> None:
    """SettingError if the hub would start without what `database` holds; a warning if it did.

    `data` is the directory of the journal: where there is one, the hub ran before.
    """
    holds = _holds(database)
    if not holds:
        return
    said = f"{database} of mosquitto is not read here, and holds {holds}"
    if (data / _OURS).exists():
        log.warning("%s; move it away if that is not missed", said)
        return
    raise SettingError(
        f"{said}: the hub would start without them. To carry them over: clients that connect to "
        "mosquitto once more take what is queued; then stop it, and run it over that file on "
        "another port, from which a bridge (`topic # in 1`) or `mosquitto_sub -t '#' "
        "--retained-only` takes the retained messages (docs/migrate/mosquitto.md). To start "
        f"without them: mv {database} {database}.old"
    )


def _holds(database: Path) -> str:
    """What is in it, in words; "" if there is nothing to lose."""
    try:
        if database.stat().st_size < _HEADER.size:
            return ""  # it was never written
        with database.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return _counted(content)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"what cannot be seen ({error.strerror})"


def _counted(content: mmap) -> str:
    magic, version = _HEADER.unpack_from(content)
    if magic != _MAGIC or version not in _VERSIONS:
        return "what cannot be counted (an unknown version)"
    counts = dict.fromkeys(_KINDS, 0)
    at = _HEADER.size
    while at + _CHUNK.size <= len(content):
        kind, length = _CHUNK.unpack_from(content, at)
        at += _CHUNK.size + length
        if kind in counts:
            counts[kind] += 1
    found = [f"{n} {_KINDS[kind]}{'s' * (n > 1)}" for kind, n in counts.items() if n]
    return ", ".join(found)
