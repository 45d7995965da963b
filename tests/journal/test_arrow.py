"""The hand-made Arrow messages say what pyarrow would say."""

from __future__ import annotations

import pyarrow
import pytest

from hubbub.journal import arrow
from hubbub.journal.table import SCHEMA
from hubbub.schema import COLUMNS

TYPES = {
    "int8": pyarrow.int8(),
    "int64": pyarrow.int64(),
    "bool": pyarrow.bool_(),
    "string": pyarrow.string(),
    "binary": pyarrow.binary(),
    "timestamp[us, UTC]": pyarrow.timestamp("us", "UTC"),
}


def test_the_schema_message_declares_every_column() -> None:
    fields = [pyarrow.field(column.name, TYPES[column.type], False) for column in COLUMNS]
    assert pyarrow.schema(fields).equals(SCHEMA, check_metadata=True)


def test_the_template_is_an_empty_batch() -> None:
    batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(arrow.BATCH), SCHEMA)
    assert batch.num_rows == 0


@pytest.mark.parametrize("message", [arrow.SCHEMA, arrow.BATCH])
def test_what_follows_a_message_is_aligned(message: bytes) -> None:
    assert len(message) % 8 == 0
