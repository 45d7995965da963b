"""The two Arrow messages of the journal as plain bytes: the schema, and an empty record batch.

An Arrow IPC message is

    ffffffff | metadata length i32 | metadata, a flatbuffer, padded to 8 | body

(Arrow columnar format, "Encapsulated message format"; tables from Message.fbs and Schema.fbs.)
A hub cannot afford pyarrow in its process, so the metadata is laid out here, once, when the
module is loaded: `frame` copies the record batch and patches its numbers. Our flatbuffers are
written front to back: a vtable, its table, and then what the table points to.
Used by `frame` and `segments`; never reads Arrow data.
"""

from __future__ import annotations

import struct
from typing import Final

from hubbub.schema import COLUMNS

# A slot of a table: its number in the .fbs file, its struct code ("I" = offset), its value.
Slot = tuple[int, str, int]

VERSION: Final[Slot] = (0, "h", 4)  # MetadataVersion.V5
SCHEMA_HEADER: Final = 1  # MessageHeader.Schema
BATCH_HEADER: Final = 3  # MessageHeader.RecordBatch

# Arrow type -> (member of the union Type, slots of its table, buffers of a column)
TYPES: Final[dict[str, tuple[int, list[Slot], int]]] = {
    "int8": (2, [(0, "i", 8), (1, "B", 1)], 2),
    "int64": (2, [(0, "i", 64), (1, "B", 1)], 2),
    "binary": (4, [], 3),
    "string": (5, [], 3),
    "bool": (6, [], 2),
    "timestamp[us, UTC]": (10, [(0, "h", 2), (1, "I", 0)], 2),
}


class Flatbuffer:
    """A flatbuffer written front to back; offsets stay open until what they point to is written."""

    def __init__(self) -> None:
        self.out = bytearray(4)  # the offset of the root table

    def pad(self, alignment: int, ahead: int = 0) -> None:
        """Pad so that what lies `ahead` bytes from here is aligned."""
        self.out += bytes(-(len(self.out) + ahead) % alignment)

    def point(self, at: int, ahead: int = 0) -> None:
        """Let the offset at `at` point `ahead` bytes from here."""
        struct.pack_into("<I", self.out, at, len(self.out) + ahead - at)

    def table(self, at: int, slots: list[Slot]) -> dict[int, int]:
        """Write a table that the offset at `at` points to; return the place of every slot."""
        count = 1 + max((number for number, _, _ in slots), default=-1)
        vtable = 4 + 2 * count
        self.pad(4, vtable)
        self.point(at, vtable)
        start = len(self.out) + vtable
        end = start + 4
        places: dict[int, int] = {}
        for number, code, _ in sorted(slots, key=lambda slot: -struct.calcsize(slot[1])):
            size = struct.calcsize(code)
            end += -end % size
            places[number] = end
            end += size
        offsets = [places[number] - start if number in places else 0 for number in range(count)]
        self.out += struct.pack(f"<HH{count}H", vtable, end - start, *offsets)
        self.out += struct.pack("<i", vtable) + bytes(end - start - 4)
        for number, code, value in slots:
            struct.pack_into("<" + code, self.out, places[number], value)
        return places

    def text(self, at: int, value: str) -> None:
        self.pad(4)
        self.point(at)
        data = value.encode()
        self.out += struct.pack("<I", len(data)) + data + b"\0"

    def vector(self, at: int, count: int, size: int) -> int:
        """Write a vector of `count` zeroed elements of `size` bytes; return its first's place."""
        self.pad(min(size, 8), 4)
        self.point(at)
        self.out += struct.pack("<I", count)
        start = len(self.out)
        self.out += bytes(count * size)
        return start

    def message(self) -> bytes:
        self.pad(8)
        return struct.pack("<Ii", 0xFFFFFFFF, len(self.out)) + self.out


def _field(buffer: Flatbuffer, at: int, name: str, type_name: str) -> None:
    member, slots, _ = TYPES[type_name]
    # Field: name, nullable = false, type_type, type, children
    field = buffer.table(at, [(0, "I", 0), (1, "B", 0), (2, "B", member), (3, "I", 0), (5, "I", 0)])
    buffer.text(field[0], name)
    places = buffer.table(field[3], slots)
    if 1 in places and member == 10:
        buffer.text(places[1], "UTC")
    buffer.vector(field[5], 0, 4)


def _schema() -> bytes:
    buffer = Flatbuffer()
    message = buffer.table(0, [VERSION, (1, "B", SCHEMA_HEADER), (2, "I", 0), (3, "q", 0)])
    schema = buffer.table(message[2], [(0, "h", 0), (1, "I", 0)])  # little-endian, fields
    fields = buffer.vector(schema[1], len(COLUMNS), 4)
    for index, column in enumerate(COLUMNS):
        _field(buffer, fields + 4 * index, column.name, column.type)
    return buffer.message()


# SCHEMA is the Arrow schema message. BATCH is the metadata of a record batch of no rows, and
# these are the places in it of its row count, of the length of the body, and of the vectors of
# FieldNode (length, null count) and Buffer (offset, length), all i64.
SCHEMA: Final = _schema()

_buffer = Flatbuffer()
_message = _buffer.table(0, [VERSION, (1, "B", BATCH_HEADER), (2, "I", 0), (3, "q", 0)])
_batch = _buffer.table(_message[2], [(0, "q", 0), (1, "I", 0), (2, "I", 0)])

BUFFERS: Final = sum(TYPES[column.type][2] for column in COLUMNS)
BODY_AT: Final = 8 + _message[3]
ROWS_AT: Final = 8 + _batch[0]
NODES_AT: Final = 8 + _buffer.vector(_batch[1], len(COLUMNS), 16)
BUFFERS_AT: Final = 8 + _buffer.vector(_batch[2], BUFFERS, 16)
BATCH: Final = _buffer.message()
