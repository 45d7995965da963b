"""The shipped tables, one file each: its grain, its columns, and the function that makes it.

`run` writes them in this order, `sql` shows them by name. A further table is a further file and a
line here. `alerts` is made of the others, by the rules of the user.
"""

from __future__ import annotations

from typing import Final

from hubbub.pipeline.tables import (
    alerts,
    audit,
    calls,
    deliveries,
    messages,
    quarantine,
    readings,
    sessions,
    traffic,
)
from hubbub.pipeline.tables.table import AnyTable, Made

TABLES: Final[tuple[Made, ...]] = (
    messages.TABLE,
    readings.TABLE,
    quarantine.TABLE,
    traffic.TABLE,
    calls.TABLE,
    sessions.TABLE,
    deliveries.TABLE,
    audit.TABLE,
)
ALL: Final[tuple[AnyTable, ...]] = (*TABLES, alerts.TABLE)
