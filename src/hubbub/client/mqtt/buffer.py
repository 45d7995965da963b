"""A small file that keeps messages of QoS 1 and 2 until the broker has them.

    header   b"HUBBUF01", number of the next message u64
    record   length of what follows the checksum u32, CRC-32 of it u32, MessagePack:
               [0, number, expires, topic, payload, qos, …]   a message is to be sent
               [1, number]                                    QoS 2: the broker has it (PUBREC)
               [2, number]                                    done

All numbers big-endian. Records are only appended; what is written while a sync is under way goes
with the next one. A torn tail is cut when the file is opened. When dead records take more than
COMPACT_BYTES and more room than living ones, the living are written anew and take the file's
name. One process at a time (flock). Used by the client; never talks to the broker.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from hubbub.client.mqtt.message import Message
from hubbub.errors import SettingError

MAGIC: Final = b"HUBBUF01"
COMPACT_BYTES: Final = 1 << 20
DEFAULT_BYTES: Final = 64 << 20  # living records; beyond it `put` waits

_HEADER: Final = struct.Struct(">8sQ")
_RECORD: Final = struct.Struct(">II")
_MESSAGE: Final = 0
_RELEASED: Final = 1
_DONE: Final = 2


class Kept(NamedTuple):
    """A message that is not done. `expires` is a Unix time, 0 = never."""

    number: int
    message: Message
    expires: float
    released: bool


class _Living:
    """What is known of a record that is not done: enough to write it again."""

    __slots__ = ("record", "released")

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.released = False


class Buffer:
    """The file at `path`, created if it is not there.

    SettingError if another process has it open, or if it is something else. `next_number` is the
    number after the highest that was ever given.
    """

    def __init__(self, path: str | Path, limit: int = DEFAULT_BYTES) -> None:
        self.path = Path(path)
        self.next_number = 0
        self._limit = limit
        self._room = asyncio.Event()
        self._room.set()
        # The file: its living records by number, and its size.
        self._living: dict[int, _Living] = {}
        self._living_bytes = 0
        self._size = 0
        self._file = self._open()
        # What is being written, and what goes next, with who waits for it.
        self._writing: asyncio.Future[None] | None = None
        self._next: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []

    # Opening

    def _open(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(file)
        except BlockingIOError:
            os.close(file)
            raise SettingError(f"another process uses the buffer {self.path}") from None
        except BaseException:
            os.close(file)
            raise
        return file

    def _read(self, file: int) -> None:
        data = self.path.read_bytes()
        if len(data) < _HEADER.size:
            if not MAGIC.startswith(data[:8]):
                raise SettingError(f"{self.path} is no buffer of a client; name another file")
            data = _HEADER.pack(MAGIC, 0)
            os.pwrite(file, data, 0)
        magic, self.next_number = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise SettingError(f"{self.path} is no buffer of a client; name another file")
        self._size = _HEADER.size
        for record in _records(data):
            self._fold(record)
            self._size += len(record)
        os.ftruncate(file, self._size)
        os.lseek(file, self._size, os.SEEK_SET)

    def _fold(self, record: bytes) -> None:
        kind, number, *_ = msgspec.msgpack.decode(record[_RECORD.size :])
        if kind == _MESSAGE:
            self._living[number] = _Living(record)
            self._living_bytes += len(record)
            self.next_number = max(self.next_number, number + 1)
        elif kind == _RELEASED and number in self._living:
            self._living[number].released = True
        elif kind == _DONE:
            self._forget(number)

    def kept(self) -> Iterator[Kept]:
        """The messages that are not done, oldest first."""
        for number, living in self._living.items():
            fields: list[Any] = msgspec.msgpack.decode(living.record[_RECORD.size :])
            _, _, expires, *values = fields
            message = Message(*values)
            message = message._replace(user=tuple((name, value) for name, value in message.user))
            yield Kept(number, message, expires, living.released)

    # Writing

    async def put(self, number: int, message: Message, expires: float) -> None:
        """Keep a message; it is on the disk when this returns. Waits while the file is full."""
        record = _record(_MESSAGE, number, expires, *message[:-1])
        while self._living_bytes and self._living_bytes + len(record) > self._limit:
            self._room.clear()
            await self._room.wait()
        self._living[number] = _Living(record)
        self._living_bytes += len(record)
        self.next_number = max(self.next_number, number + 1)
        try:
            await self._append(record)
        except OSError:
            self._forget(number)
            raise

    def released(self, number: int) -> asyncio.Future[None]:
        """QoS 2: the broker has the message. The future is done when the disk knows."""
        living = self._living.get(number)
        if living is not None:
            living.released = True
        return self._append(_record(_RELEASED, number))

    def done(self, number: int) -> None:
        """The broker has acknowledged the message. Forgotten in a crash, it is sent again."""
        self._forget(number)
        self._append(_record(_DONE, number)).add_done_callback(_ignore)

    def _forget(self, number: int) -> None:
        living = self._living.pop(number, None)
        if living is not None:
            self._living_bytes -= len(living.record)
            self._room.set()

    def _append(self, record: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next.append(record)
        self._waiting.append(future)
        if self._writing is None:
            self._write()
        return future

    def _write(self) -> None:
        """Give what has gathered to a thread; go on when it is on the disk."""
        data, self._next = b"".join(self._next), []
        waiting, self._waiting = self._waiting, []
        dead = self._size - self._living_bytes
        compact = dead > max(COMPACT_BYTES, self._living_bytes)
        write = self._rewrite if compact else self._extend
        data = self._snapshot() if compact else data
        self._writing = asyncio.get_running_loop().run_in_executor(None, write, data)
        self._writing.add_done_callback(lambda done: self._written(done, waiting))

    def _written(self, done: asyncio.Future[None], waiting: list[asyncio.Future[None]]) -> None:
        self._writing = None
        error = None if done.cancelled() else done.exception()
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if self._next:
            self._write()

    def _snapshot(self) -> bytes:
        parts = [_HEADER.pack(MAGIC, self.next_number)]
        for number, living in self._living.items():
            parts.append(living.record)
            if living.released:
                parts.append(_record(_RELEASED, number))
        return b"".join(parts)

    # In a thread, one at a time

    def _extend(self, data: bytes) -> None:
        try:
            _write_all(self._file, data)
            os.fdatasync(self._file)
            self._size += len(data)
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise

    def _rewrite(self, data: bytes) -> None:
        path = self.path.with_name(self.path.name + ".new")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _write_all(file, data)
            os.fsync(file)
            os.replace(path, self.path)
            _sync_directory(self.path.parent)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size = file, len(data)

    async def close(self) -> None:
        """Write what is left and let go of the file."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))
            await asyncio.sleep(0)
        os.close(self._file)


def _record(*fields: Any) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def _records(data: bytes) -> Iterator[bytes]:
    """The whole records behind the header, up to the first that is torn."""
    at = _HEADER.size
    while at + _RECORD.size <= len(data):
        size, checksum = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + size
        body = data[at + _RECORD.size : end]
        if len(body) < size or zlib.crc32(body) != checksum:
            return
        yield data[at:end]
        at = end


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _ignore(future: asyncio.Future[None]) -> None:
    """Look at an error that nobody waits for."""
    if not future.cancelled():
        future.exception()
