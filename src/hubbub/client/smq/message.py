"""The message that the SMQ client hands to its user. Knows neither frames nor sockets."""

from __future__ import annotations

from typing import NamedTuple


class SmqMessage(NamedTuple):
    """One message as it came.

    `topic` is the name of a subscription of ours, or `$client/<number>` if it was sent to us
    alone; `sender` the number to answer to; `subtopic` a name this client knows, or "", and
    `subtid` its number, 0 if there is none.
    """

    topic: str
    payload: bytes
    subtopic: str
    sender: int
    subtid: int = 0
