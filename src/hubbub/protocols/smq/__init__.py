"""SMQ, the protocol of RealTimeLogic's Simple Message Queues: publish/subscribe by numbers.

A connection begins as an HTTP request, then speaks frames; every client has a number of its own
(its etid) to which anybody can publish. The registry loads `Smq` from here.
"""

from __future__ import annotations

from hubbub.protocols.smq.connection import Smq

__all__ = ["Smq"]
