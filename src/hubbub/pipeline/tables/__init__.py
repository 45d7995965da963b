"""The shipped tables, one file each: its grain, its columns, and the function that makes it.

`run` writes them, `sql` shows them by name. A further table is a further file and a line here.
"""

from __future__ import annotations

from typing import Final

from hubbub.pipeline.tables import calls, messages, readings, traffic
from hubbub.pipeline.tables.table import Spanning, Table

TABLES: Final[tuple[Table | Spanning, ...]] = (
    messages.TABLE,
    readings.TABLE,
    traffic.TABLE,
    calls.TABLE,
)
