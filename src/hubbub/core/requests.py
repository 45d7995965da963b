"""What a consumer took from queues and owes an answer to.

    a queue -- a message with a reply-to --> the consumer        leased, and here
    the consumer -- publishes to that address --> the asker      the answer acknowledges

Only an answer acknowledges a request (or whoever else ends the lease); so a consumer that cannot
be told its number keeps what it was asked by address. A session has one; the queue takes out of it
what is over. No I/O.
"""

from __future__ import annotations


class Requests:
    """`open`: seq -> where the answer goes, and the asker's correlation; oldest first."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[int, tuple[str, bytes]] = {}

    def __len__(self) -> int:
        return len(self.open)

    def __contains__(self, seq: object) -> bool:
        return seq in self.open

    def answered(self, address: str, correlation: bytes | None = None) -> int:
        """The seq of the oldest request that an answer there is for, 0 if there is none.

        `correlation`: as the answer says it; None where the protocol has no such thing.
        """
        for seq, (reply_to, asked) in self.open.items():
            if reply_to == address and correlation in (None, asked):
                return seq
        return 0
