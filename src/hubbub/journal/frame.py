"""One frame of the journal: rows to bytes and back, and whether bytes are a whole frame.

    0         4         8                  16        20        24                 32        64
    +---------+---------+------------------+---------+---------+------------------+---------+
    | length  | CRC-32  | first seq        | rows    | flags   | last seq         | reserved|
    | u32     | u32     | i64              | u32     | u32     | i64              | 32 bytes|
    +---------+---------+------------------+---------+---------+------------------+---------+
    | Arrow IPC message: one record batch of schema.COLUMNS, without nulls                  |
    | metadata (1,072 bytes from a template) | body: per column offsets, data, padded to 8  |
    +---------------------------------------------------------------------------------------+

All numbers are little-endian. `length` counts the whole frame and is a multiple of 8; the CRC
is over everything after itself; the reserved bytes are 0. Flags: bit 0, a row inside changes
state (a start-up skips frames without it); bit 1, the Arrow body is compressed (only in segments
that a hub never reads again); bit 2, the next frame belongs to the same group, and without it this
one was never finished.

The record batch is made by hand: pyarrow costs 43 MB and, for small batches, three times the
time. The writer, the roller and the readers call this; it never does I/O.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, cast

from hubbub.errors import JournalError
from hubbub.journal.arrow import BATCH, BODY_AT, BUFFERS, BUFFERS_AT, NODES_AT, ROWS_AT
from hubbub.journal.buffers import PIECE, Buffers
from hubbub.schema import (
    COLUMNS,
    Row,
    Same,
    Stretches,
    Values,
    any_changes_state,
    any_in,
    changes_state,
)

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor: the same function, slower
    from zlib import crc32

STATE: Final = 1
COMPRESSED: Final = 2
MORE: Final = 4

HEADER: Final = struct.Struct("<IIqIIq32x")
FLAGS_AT: Final = 20  # in the lowest byte of a number are all that there are
LAST_END: Final = 0x7FFFFFFF  # where the last value of a column may end: an i32
LARGEST: Final = 0xFFFFFFF8  # bytes of a frame: what a multiple of 8 in a u32 can say

WHOLE: Final = "whole"
TORN: Final = "torn"
DAMAGED: Final = "damaged"
PART: Final = "part"

_NUMBERS: Final = struct.Struct("<2qB3q")
_LEAD: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<q")
_TWO: Final = struct.Struct("<2q")
_THREE: Final = struct.Struct("<3q")
_NODES: Final = struct.Struct(f"<{2 * len(COLUMNS)}q")
_BUFFERS: Final = struct.Struct(f"<{2 * BUFFERS}q")
_METADATA: Final = struct.Struct("<Ii")
_LONG_AT: Final = struct.Struct("<q")
_BYTE_AT: Final = struct.Struct("b")
_ENDS: Final = struct.Struct("<2i")
_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_PADDING: Final = tuple(bytes(n) for n in range(8))
_join: Final = b"".join
_NOTHING: Final = bytes(8)
_EIGHT: Final = tuple(bytes((n,)) + bytes(7) for n in range(256))  # what has a byte, in one row
_ENDS_AT: Final = tuple((size << 32).to_bytes(8, "little") for size in range(512))
FEW: Final = 64  # rows of a frame that are few
_ZEROS: Final = bytes(3 * 8 * FEW)
HANDFUL: Final = 8  # rows that are fewer still: to look for equal numbers would not pay
_ROW: Final = partial(tuple.__new__, Row)  # what Row._make does, without a function of Python

# How a column is laid out, by its Arrow type.
_LONG: Final = 0
_BYTE: Final = 1
_BIT: Final = 2
_TEXT: Final = 3
_LAYOUTS: Final = tuple(
    {"int64": _LONG, "timestamp[us, UTC]": _LONG, "int8": _BYTE, "bool": _BIT}.get(
        column.type, _TEXT
    )
    for column in COLUMNS
)
_INDEXES: Final = tuple(  # where a column's buffers stand among all, behind that for nulls
    sum(6 if layout == _TEXT else 4 for layout in _LAYOUTS[:number]) + 2
    for number in range(len(COLUMNS))
)


class Frame(NamedTuple):
    """What `scan` found at a place.

    WHOLE: a frame of `size` bytes. TORN: the beginning of a frame that reaches over the end of
    the data; `size` is what is there. DAMAGED: no frame; `size` is that of the frame if its
    header still makes sense, else 0. PART: more bytes are needed to tell, `size` in all.
    """

    verdict: str
    at: int
    size: int
    first: int
    last: int
    rows: int
    flags: int


def check(row: Row) -> None:
    """ValueError if no frame can hold its numbers. Who makes a row makes bytes of all else."""
    try:
        _NUMBERS.pack(row[0], row[1], row[7], row[13], row[14], row[15])
        if row[8] not in (False, True):
            raise TypeError(f"retain is {row[8]!r}")
    except (struct.error, TypeError) as error:  # where it is compiled, types are looked at first
        raise ValueError(f"a row that cannot be written, {error}: {row}") from None


def encode(rows: list[Row], more: int = 0) -> bytearray:
    """A frame of these rows, uncompressed. Rows must be in the order of their seq.

    `more`: MORE if the group goes on in the next frame.
    """
    if len(rows) == 1:
        return encode_row(rows[0], more)
    return encode_columns(list(zip(*rows, strict=True)), more)


def encode_row(row: Row, more: int = 0, buffers: Buffers | None = None) -> bytearray:
    """The same of one row."""
    flags = STATE if changes_state(row) else 0
    return seal(_alone(row), row[0], row[0], 1, flags | more, buffers)


def encode_columns(
    columns: Sequence[Values], more: int = 0, buffers: Buffers | None = None
) -> bytearray:
    """The same of several rows that are given by column."""
    seqs = cast("Sequence[int]", columns[0])  # no two rows have one
    count = len(seqs)
    message = _few(columns, count) if count <= FEW else _many(columns, count)
    flags = STATE if any_changes_state(columns) else 0
    return seal(message, seqs[0], seqs[-1], count, flags | more, buffers)


def _alone(row: Row) -> list[bytes | bytearray]:
    """The Arrow message of one row: who waits for the disk alone pays for a frame alone.

    Numbers and where a value ends take eight bytes each, so there is nothing to count or to look
    for: a third of the instructions of `_few`.
    """
    (
        seq, time, kind, protocol, client, topic, subtopic, qos, retain, payload, content,
        reply_to, correlation, ref, number, expires, properties,
    ) = row  # fmt: skip
    sizes = (
        len(kind), len(protocol), len(client), len(topic), len(subtopic), len(payload),
        len(content), len(reply_to), len(correlation), len(properties),
    )  # fmt: skip
    return [
        _layout(1, sizes)[0], _TWO.pack(seq, time), _text(kind), _text(protocol), _text(client),
        _text(topic), _text(subtopic), _EIGHT[qos], _EIGHT[retain], _text(payload),
        _text(content), _text(reply_to), _text(correlation), _THREE.pack(ref, number, expires),
        _text(properties),
    ]  # fmt: skip


def _text(value: bytes) -> bytes:
    """The one value of a column, behind where it begins and ends."""
    size = len(value)
    if not size:
        return _NOTHING
    end = _ENDS_AT[size] if size < len(_ENDS_AT) else (size << 32).to_bytes(8, "little")
    return end + value + _PADDING[-size & 7]


def _few(columns: Sequence[Values], count: int) -> list[bytes | bytearray]:
    """The Arrow message of few rows: who waits for the disk with few pays for it with few.

    Where the buffers lie is half of the message, depends on the lengths of values only, and is the
    same again and again: it is kept. So there is no loop over all columns, and 410 steps of the
    interpreter do what takes `_many` 1,300.
    """
    (
        seq, time, kind, protocol, client, topic, subtopic, qos, retain, payload, content,
        reply_to, correlation, ref, number, expires, properties,
    ) = columns  # fmt: skip
    texts = (
        kind, protocol, client, topic, subtopic, payload, content, reply_to, correlation,
        properties,
    )  # fmt: skip
    ends, data = _texts(texts, count)
    metadata, pads = _layout(count, tuple([len(one) for one in data]))
    return [
        metadata, _longs(seq, count), _longs(time, count),
        ends[0], data[0], pads[0], ends[1], data[1], pads[1], ends[2], data[2], pads[2],
        ends[3], data[3], pads[3], ends[4], data[4], pads[4], _octets(qos), _PADDING[-count & 7],
        _bits(retain), _PADDING[-((count + 7) >> 3) & 7],
        ends[5], data[5], pads[5], ends[6], data[6], pads[6], ends[7], data[7], pads[7],
        ends[8], data[8], pads[8], _three(ref, number, expires, count),
        ends[9], data[9], pads[9],
    ]  # fmt: skip


def _three(ref: Values, number: Values, expires: Values, count: int) -> bytes:
    """Columns of numbers that lie side by side, and are zero in most rows."""
    if not any_in(ref) and not any_in(number) and (expires is number or not any_in(expires)):
        return _ZEROS[: 3 * 8 * count]
    return _longs(ref, count) + _longs(number, count) + _longs(expires, count)


def _texts(columns: Sequence[Values], count: int) -> tuple[list[bytes], list[bytes]]:
    """Where the values of few rows end, padded, and the values, of each column.

    Most columns have one value, or none. Those that have none are one object, as a rule
    (`Gathered.columns`): what was found of one holds for the next.
    """
    ends: list[bytes] = []
    data: list[bytes] = []
    empty: Values | None = None
    ends_of_empty = b""
    for values in columns:
        if values is empty:
            ends.append(ends_of_empty)
            data.append(b"")
            continue
        column = _told(values, count)
        if isinstance(column, Same):
            ends.append(_padded(len(column.value), count))
            data.append(column.value * count)
            if not column.value:
                empty, ends_of_empty = values, ends[-1]
        else:
            lengths = [len(one) for one in column]
            ends.append(_padding_behind(_ends(lengths, count)))
            data.append(_join(column))
    return ends, data


def _told(values: Values, count: int) -> Sequence[Any] | Same:
    """A column of texts; nobody may have counted yet whether all say one thing."""
    if isinstance(values, Same):
        return values
    column = list(values) if isinstance(values, Stretches) else values
    value = column[0]
    if value != column[-1] or column.count(value) != count:
        return column
    return Same(value, count)


@lru_cache(maxsize=4096)
def _padded(size: int, count: int) -> bytes:
    """Where so many values of one length end, padded."""
    return _padding_behind(_even(size, count))


def _padding_behind(ends: bytes) -> bytes:
    return ends + _PADDING[-len(ends) & 7]


def _longs(values: Values, count: int) -> bytes:
    """Numbers: most columns have one, or none, and rows are numbered one after the other."""
    if isinstance(values, Same):
        return _COUNT.pack(values.value) * count
    if isinstance(values, Stretches):
        pack = _COUNT.pack
        said = zip(values.values, values.counts, strict=True)
        return _join([pack(value) * rows for value, rows in said])
    if count >= HANDFUL:
        if isinstance(values, range):
            return _in_order(values[0], count)
        if values[0] == values[-1] and values.count(values[0]) == count:
            return _COUNT.pack(values[0]) * count
    return _packer("q", count).pack(*values)


def _octets(column: Values) -> bytes:
    """Numbers of a byte each."""
    return bytes((column.value,)) * column.rows if isinstance(column, Same) else bytes(list(column))


def _in_order(first: int, count: int) -> bytes:
    """`first` and the numbers behind it, as a sum of two very long ones: no number is an object of
    its own, so 1,000 take 8 us instead of 31.

           first    first    first    first
        +      0        1        2        3
    """
    most = 1 << count.bit_length()
    steps, ones = _steps_of_64_bits(most)
    return (steps + first * ones).to_bytes(8 * most, "little")[: 8 * count]


@lru_cache(maxsize=16)
def _steps_of_64_bits(count: int) -> tuple[int, int]:
    """0, 1, 2, … and 1, 1, 1, …"""
    steps = _packer("q", count).pack(*range(count))
    return int.from_bytes(steps, "little"), int.from_bytes(_COUNT.pack(1) * count, "little")


@lru_cache(maxsize=1024)
def _layout(count: int, sizes: tuple[int, ...]) -> tuple[bytes, tuple[bytes, ...]]:
    """The metadata of so many rows whose texts have so many bytes, and what pads these."""
    places: list[int] = []
    at = index = 0
    for layout in _LAYOUTS:
        length = (8 * count, count, (count + 7) >> 3, 4 * count + 4)[layout]
        places += (0, 0, at, length)  # no validity bitmap: there are no nulls
        at += length + (-length & 7)
        if layout == _TEXT:
            places += (at, sizes[index])
            at += sizes[index] + (-sizes[index] & 7)
            index += 1
    return bytes(_metadata(count, places, at)), tuple([_PADDING[-size & 7] for size in sizes])


def _ends(lengths: Sequence[int], count: int) -> bytes:
    """Where values of these lengths end."""
    if lengths[0] == lengths[-1] and lengths.count(lengths[0]) == count:
        return _even(lengths[0], count)
    return _packer("i", count + 1).pack(0, *accumulate(lengths))


def _even(size: int, count: int) -> bytes:
    """The same of values that are equally long: where fewer of them end is the beginning of it."""
    most = 1 << count.bit_length()
    return _steps(size, most if size * most <= LAST_END else count)[: 4 * count + 4]


@lru_cache(maxsize=256)
def _steps(size: int, count: int) -> bytes:
    return _packer("i", count + 1).pack(*[number * size for number in range(count + 1)])


def _metadata(count: int, places: list[int], size: int) -> bytearray:
    """That of a record batch: its rows, where its buffers lie, and the bytes of its body."""
    metadata = bytearray(_counted(count))
    _COUNT.pack_into(metadata, BODY_AT, size)
    _BUFFERS.pack_into(metadata, BUFFERS_AT, *places)
    return metadata


@lru_cache(maxsize=1024)
def _counted(count: int) -> bytes:
    """The same before anything is known but the rows."""
    metadata = bytearray(BATCH)
    _COUNT.pack_into(metadata, ROWS_AT, count)
    _NODES.pack_into(metadata, NODES_AT, *(count, 0) * len(COLUMNS))
    return bytes(metadata)


def _many(columns: Sequence[Values], count: int) -> list[bytes | bytearray]:
    """The Arrow message of many rows: most columns have one value, or few."""
    pieces: list[bytes | bytearray] = [b""]
    places: list[int] = []
    at = 0
    for layout, values in zip(_LAYOUTS, columns, strict=True):
        places += (0, 0)
        if layout == _LONG:
            at = _lay(pieces, places, at, (_longs(values, count),))
        elif layout == _BYTE:
            at = _lay(pieces, places, at, (_octets(values),))
        elif layout == _BIT:
            at = _lay(pieces, places, at, (_bits(values),))
        else:
            column = _told(values, count)
            if isinstance(column, Same):
                at = _lay(pieces, places, at, (_even(len(column.value), count),))
                at = _lay(pieces, places, at, (column.value * count,))
            else:
                lengths = list(map(len, column))
                large = sum(lengths) >= PIECE * count  # copied once then, into the frame
                at = _lay(pieces, places, at, (_ends(lengths, count),))
                at = _lay(pieces, places, at, column if large else (_join(column),))
    pieces[0] = _metadata(count, places, at)
    return pieces


def _lay(
    pieces: list[bytes | bytearray], places: list[int], at: int, parts: Sequence[bytes]
) -> int:
    """One buffer, of several parts, behind those that there are; where the next one begins."""
    size = sum(map(len, parts))
    places += (at, size)
    pieces += parts
    if size & 7:
        pieces.append(_PADDING[-size & 7])
    return at + size + (-size & 7)


def seal(
    message: list[bytes | bytearray], first: int, last: int, rows: int, flags: int,
    buffers: Buffers | None = None,
) -> bytearray:  # fmt: skip
    """A frame around an Arrow message given in pieces, padded to a multiple of 8. `buffers`: where
    it is to lie, if it is large.
    """
    length = HEADER.size
    for piece in message:
        length += len(piece)
    if length > LARGEST:
        raise JournalError(f"a frame of {length} bytes, expected no more than {LARGEST}")
    pieces = [HEADER.pack(length, 0, first, rows, flags, last), *message]
    out = bytearray().join(pieces) if buffers is None else buffers.joined(pieces, length)
    _LEAD.pack_into(out, 0, length, crc32(memoryview(out)[8:]))
    return out


@lru_cache(maxsize=4096)
def _packer(code: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def _bits(column: Values) -> bytes:
    """One bit a row, the first row lowest; int() reads digits faster than a loop sets bits."""
    size = (len(column) + 7) >> 3
    if not any_in(column):
        return bytes(size)
    bits = int(bytes(list(column)[::-1]).translate(_DIGITS), 2)
    return bits.to_bytes(size, "little")


def flags_at(data: bytes | bytearray | memoryview, at: int) -> int:
    """What the header of the whole frame there says of it."""
    return data[at + FLAGS_AT]


class Columns:
    """The columns of the whole frame at `at`, each read when it is asked for, by its place in
    `schema.COLUMNS`. `count`: how many rows there are.

    Raises JournalError for a compressed frame: those are read with pyarrow (`table`). Also for one
    that is right by its checksum only: nothing that it says takes memory before it is known to be
    there.
    """

    __slots__ = ("count", "_places", "_body")

    def __init__(self, view: memoryview, at: int) -> None:
        length, _, _, count, flags, _ = HEADER.unpack_from(view, at)
        if flags & COMPRESSED:
            raise JournalError("a compressed frame: read it with hubbub.journal.table")
        message = at + HEADER.size
        self.count: int = count
        self._places: tuple[int, ...] = _BUFFERS.unpack_from(view, message + BUFFERS_AT)
        self._body = view[message + len(BATCH) : at + length]

    def raw(self, number: int) -> memoryview:
        """Numbers or bits as they lie there; of texts, where they end."""
        count, layout, index = self.count, _LAYOUTS[number], _INDEXES[number]
        start, size = self._places[index], self._places[index + 1]
        data = self._body[start : start + size]
        if layout == _LONG:
            right = 8 * count
        elif layout == _TEXT:
            right = 4 * count + 4
        else:
            right = count if layout == _BYTE else (count + 7) >> 3
        if size != right or len(data) != size or start < 0:
            raise _forged(f"a column of {size} bytes for {count} rows")
        return data

    def joined(self, number: int) -> bytes:
        """All texts of a column, one behind the other."""
        index = _INDEXES[number] + 2
        start, size = self._places[index], self._places[index + 1]
        return bytes(self._body[start : start + size])

    def ends(self, number: int, size: int) -> list[int]:
        """Where each of the texts that have `size` bytes together begins, and where they end."""
        places = self.raw(number).cast("i").tolist()
        if places[0] or places[-1] != size:
            raise _forged(f"values from {places[0]} to {places[-1]} in {size} bytes")
        if places != sorted(places):
            raise _forged("values that lie in one another")
        return places

    def numbers(self, number: int) -> list[int]:
        return self.raw(number).cast("q").tolist()

    def sizes(self, number: int) -> list[int]:
        """How many bytes each text has."""
        ends = self.raw(number).cast("i").tolist()
        sizes = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
        if ends[0] or min(sizes) < 0 or ends[-1] != self._places[_INDEXES[number] + 3]:
            raise _forged("values that lie in one another")
        return sizes

    def row(self, at: int) -> Row:
        """One row, the first is 0: a hundredth of what all of a thousand take."""
        return _ROW([self.value(number, at) for number in range(len(COLUMNS))])

    def value(self, number: int, at: int) -> Any:
        """What that row has in a column."""
        layout, data = _LAYOUTS[number], self.raw(number)
        if layout == _TEXT:
            begin, end = _ENDS.unpack_from(data, 4 * at)
            return self._text(number, begin, end)
        if layout == _LONG:
            return _LONG_AT.unpack_from(data, 8 * at)[0]
        if layout == _BYTE:
            return _BYTE_AT.unpack_from(data, at)[0]
        return data[at >> 3] >> (at & 7) & 1 == 1

    def _text(self, number: int, begin: int, end: int) -> bytes:
        index = _INDEXES[number] + 2
        start, size = self._places[index], self._places[index + 1]
        if not 0 <= begin <= end <= size or not 0 <= start <= len(self._body) - size:
            raise _forged(f"a value from {begin} to {end} in {size} bytes")
        return bytes(self._body[start + begin : start + end])

    def rows(self, begin: int, end: int) -> list[Row]:
        """The rows from one place to another, both divisible by 8 if it is not the end."""
        found = [self._part(number, begin, end) for number in range(len(COLUMNS))]
        return list(map(_ROW, zip(*found, strict=True)))

    def _part(self, number: int, begin: int, end: int) -> Sequence[Any]:
        layout, data = _LAYOUTS[number], self.raw(number)
        if layout == _TEXT:
            return self._texts(number, data[4 * begin : 4 * end + 4].cast("i").tolist())
        if layout == _LONG:
            return data[8 * begin : 8 * end].cast("q").tolist()
        if layout == _BYTE:
            return data[begin:end].cast("b").tolist()
        return _unbits(bytes(data[begin >> 3 : (end + 7) >> 3]), end - begin)

    def _texts(self, number: int, ends: list[int]) -> list[bytes]:
        if ends != sorted(ends):
            raise _forged("values that lie in one another")
        first = ends[0]
        joined = self._text(number, first, ends[-1])
        if not joined:
            return [b""] * (len(ends) - 1)
        return [joined[at - first : end - first] for at, end in pairwise(ends)]

    def place(self, seq: int) -> int:
        """Which row has that seq, -1 if none has: they go up."""
        seqs = self.raw(0).cast("q")
        at = bisect_left(seqs, seq)
        return at if at < self.count and seqs[at] == seq else -1

    def is_zero(self, number: int) -> bool:
        """Whether all numbers of a column are 0."""
        data = bytes(self.raw(number))
        return data.count(0) == len(data)

    def is_all(self, number: int, value: bytes) -> bool:
        """Whether a column of texts has this one in each row."""
        ends, joined = bytes(self.raw(number)), self.joined(number)  # so many rows there are
        return joined == value * self.count and ends == _even(len(value), self.count)

    def values(self, number: int) -> Sequence[Any]:
        """Them all, as rows have them."""
        if _LAYOUTS[number] == _TEXT:
            return _values(self.raw(number), self.joined(number), self.count)
        return self._part(number, 0, self.count)


def decode(view: memoryview, at: int) -> list[Row]:
    """The rows of the whole frame at `at`. Raises JournalError as `Columns` does."""
    return rows_of(Columns(view, at))


def rows_of(columns: Columns) -> list[Row]:
    found = [columns.values(number) for number in range(len(COLUMNS))]
    return list(map(_ROW, zip(*found, strict=True)))


def _forged(what: str) -> JournalError:
    return JournalError(f"a frame that is right by its checksum, and none: it has {what}")


def _unbits(data: bytes, count: int) -> list[object]:
    bits = int.from_bytes(data, "little")
    if bits >> count:
        raise _forged(f"bits of more than {count} rows")
    return [digit == "1" for digit in f"{bits:0{count}b}"[::-1]] if bits else [False] * count


def _values(ends: memoryview, data: bytes, count: int) -> list[object]:
    """The values of a column of bytes. Where all are the same, as most are, they are one object."""
    places = ends.cast("i")
    if places[0] or places[count] != len(data):
        raise _forged(f"values from {places[0]} to {places[count]} in {len(data)} bytes")
    if not data:
        return [b""] * count
    first = data[: places[1]]
    same = len(first) * count == len(data) and data.endswith(first) and data == first * count
    if same and bytes(ends) == _even(len(first), count):
        return [first] * count
    at = places.tolist()
    if at != sorted(at):
        raise _forged("values that lie in one another")
    return [data[start:end] for start, end in zip(at, at[1:], strict=False)]


def scan(view: memoryview, at: int, check: bool = True, more: int = 0) -> Frame:
    """What lies at `at`. `check=False` believes the header and leaves out the CRC.

    `more`: so many bytes of the file lie behind the view; all of a frame but its body must not.
    """
    here = len(view) - at
    rest = here + more
    if rest < HEADER.size + _METADATA.size:
        return Frame(TORN, at, rest, 0, 0, 0, 0)
    length, crc, first, rows, flags, last = HEADER.unpack_from(view, at)
    if not _plausible(view, at, length, flags) or last < first or not rows:
        return Frame(DAMAGED, at, 0, 0, 0, 0, 0)
    if length > rest:
        return Frame(TORN, at, rest, first, last, rows, flags)
    if check and length > here:
        return Frame(PART, at, length, first, last, rows, flags)
    whole = not check or crc32(view[at + 8 : at + length]) == crc
    return Frame(WHOLE if whole else DAMAGED, at, length, first, last, rows, flags)


def _plausible(view: memoryview, at: int, length: int, flags: int) -> bool:
    """Whether the header's length agrees with what the Arrow message says of itself."""
    message = at + HEADER.size
    marker, metadata = _METADATA.unpack_from(view, message)
    if marker != 0xFFFFFFFF or length & 7 or metadata < 0 or metadata & 7:
        return False
    if length < HEADER.size + _METADATA.size + metadata:
        return False
    if flags & COMPRESSED:
        return True
    if metadata + _METADATA.size != len(BATCH):
        return False
    if len(view) < message + BODY_AT + 8:
        return True  # the end of the data: nothing more to compare
    (body,) = _COUNT.unpack_from(view, message + BODY_AT)
    return bool(length == HEADER.size + len(BATCH) + body)
