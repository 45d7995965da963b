"""What a client may subscribe to, and what one of 5.0 asks for beside the QoS.

Options are kept in the journal with the subscription. Called by the connection, the session and
after a restart. No I/O.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from hubbub.core.limits import SUBSCRIPTIONS
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, QUEUE, SHARE, has_wildcard, is_filter, shared_filter
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError

SELF: Final = "$client/self"  # what is published to the client's own address


class Options(NamedTuple):
    """`identifier` comes back with every message (0 = none)."""

    no_local: bool = False
    as_published: bool = False
    identifier: int = 0

    def pack(self) -> bytes:
        """As the `subscribe` row keeps it: a JSON object of what is not the default."""
        said = {name: value for name, value in self._asdict().items() if value}
        return json.dumps(said, separators=(",", ":")).encode() if said else b""


NOTHING: Final = Options()


def unpack(options: bytes) -> Options:
    return Options(**json.loads(options)) if options else NOTHING


def own_address(session: Session, name: str) -> str:
    """A client knows its address as response information and may subscribe to it."""
    return SELF if name == f"{CLIENT}{session.number}" else name


def may_subscribe(session: Session, name: str) -> int:
    """The reason code of a refusal, 0 if there is none."""
    if not is_filter(name):
        reason = f"a SUBSCRIBE to {name[:80]!r}, which is not a topic filter"
        raise PacketError(reason, spec.BAD_FILTER)
    inner = name
    if name.startswith(SHARE):
        inner = shared_filter(name)
        if not inner or inner.startswith((QUEUE, CLIENT, SHARE)):
            return spec.BAD_FILTER
    if len(session.subscriptions) >= SUBSCRIPTIONS and name not in session.subscriptions:
        return spec.QUOTA
    if inner.startswith(CLIENT) and inner != SELF:
        return spec.NOT_ALLOWED
    if inner.startswith(QUEUE) and has_wildcard(inner):
        return spec.BAD_FILTER
    return spec.SUCCESS if session.rights.may_subscribe(inner) else spec.NOT_ALLOWED
