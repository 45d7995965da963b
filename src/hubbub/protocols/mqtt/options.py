"""What a client of 5.0 asks for with a subscription, beside the QoS.

Options are kept in the journal with the subscription. Called by who subscribes, by the session
and after a restart. No I/O.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from hubbub.core.message import read_json


class Options(NamedTuple):
    """`identifier` comes back with every message (0 = none)."""

    no_local: bool = False
    as_published: bool = False
    identifier: int = 0

    def pack(self) -> bytes:
        """As the `subscribe` row keeps it: a JSON object of what is not the default."""
        said = {name: value for name, value in self._asdict().items() if value}
        return json.dumps(said, separators=(",", ":")).encode()


NOTHING: Final = Options()


def packed(no_local: bool, as_published: bool, identifier: int) -> bytes:
    """`Options.pack` for what a SUBSCRIBE asks: most ask for nothing."""
    if not (no_local or as_published or identifier):
        return b""
    return Options(no_local, as_published, identifier).pack()


def unpack(options: bytes) -> Options:
    return Options(**read_json(options)) if options else NOTHING
