"""Messages for later: what is published to `$delayed/<seconds>/<topic>` reaches the topic then.

    publish row $delayed/60/a   ‖ acknowledged     state: seq -> when it is due
    … 60 s later …
    publish row a, ack row of the first, in one tick

The row's own time says when it is due, so a restart neither loses a message nor begins its time
anew. After a crash between the two rows of the end the message may come twice. Permission is that
of the topic, asked at the publish. The broker hands runs over, the hub calls `wake`; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from hubbub import schema
from hubbub.core.context import Context
from hubbub.core.message import Message, Run, copied_properties, run_of
from hubbub.core.quotas import DELAYED as LATER
from hubbub.core.session import Session
from hubbub.core.topics import DELAYED, delayed_topic
from hubbub.errors import UnreadableError
from hubbub.schema import Row

SECOND: Final = 1_000_000
CANCELLED: Final = 1_000  # entries of messages that are gone, before it is worth to drop them
FULL_SECONDS: Final = 10  # until one for which there was no room is due again: each look reads it


class Delays:
    """The delayed messages of one hub, by when they are due."""

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self._heap: list[tuple[int, int]] = []
        self._payers: dict[int, str] = {}

    def lacks_room(
        self, sender: Session, count: int, again: bool = False, size: int = 0
    ) -> str:  # fmt: skip
        """Why so many more of this client, of so many bytes together, may not wait; "" if they may.
        `again`: as with `Broker.lacks_room`.
        """
        broker, there = self.broker, len(self.broker.state.delayed)
        lacks = broker.quotas.why_not if again else broker.quotas.lacks
        return broker.lacks_disk(sender, again, size) or lacks(LATER, sender, there, count)

    def take(self, run: Run) -> None:
        """Record a run that was published under `$delayed/`; its publisher is promised that."""
        broker, state, log = self.broker, self.broker.state, self.broker.log
        if self.lacks_room(run.sender, run.count, size=run.unasked_size()):
            broker.metrics.drop("too many delayed", run.count)
            return
        kept = broker.signed(run) if run.retain else run
        run.first = log.append_run(kept, 0) if log.records else log.keep(run)
        broker.scarce.spend(run.sender, run.payload_size(), run.count)
        time = kept.time or broker.clock.stamp()
        for seq, message in enumerate(run.messages(), run.first):
            log.pin(seq)
            self._payers[seq] = broker.quotas.take(LATER, run.sender)
            due = time + run.route.delay * SECOND
            state.delay(seq, due, len(message.payload))
            heappush(self._heap, (due, seq))
        if run.number:
            state.opened((run.sender.protocol, run.sender.client), run.number)

    def recover(self) -> None:
        """After a restart: go on with what the journal remembers."""
        self._heap = [(due, seq) for seq, due in self.broker.state.delayed.items()]
        heapify(self._heap)

    def wake(self) -> None:
        """Publish what is due. In turns: very many may be due in the same second."""
        if self._is_due():
            self.broker.one_in_turns(self, self._published)

    def _is_due(self) -> bool:
        heap, broker = self._heap, self.broker
        return bool(heap) and heap[0][0] <= broker.clock.stamp() and not broker.undecided

    def _published(self) -> Iterator[None]:
        while self._is_due():
            due = heappop(self._heap)
            now = self.broker.clock.stamp()
            try:
                # One that is not there any more was cancelled.
                if due[1] in self.broker.state.delayed and not self._publish(due[1], now):
                    heappush(self._heap, (now + FULL_SECONDS * SECOND, due[1]))
            except UnreadableError:
                heappush(self._heap, due)
                return
            yield

    def _publish(self, seq: int, now: int) -> bool:
        """False: as much of its publisher waits for another node as may. So this one, which was
        acknowledged, waits here.
        """
        broker = self.broker
        message = broker.log.read(seq)
        if message is None or 0 < message.expires <= now:
            broker.metrics.drop("gone" if message is None else "expired")
        else:
            made, sender = _for_now(message), broker.itself
            route = broker.route(sender, made.topic)
            waits = route.bounded and route.elsewhere() != []
            if waits or made.retain:
                sender = broker.on_account_of(self._payers.get(seq, ""))
            if waits and broker.lacks_room(sender, route, 1, False, made.qos, len(made.payload)):
                return False
            broker.publish(run_of(made, sender, route))
        self._over(seq)
        return True

    def cancel(self, seq: int) -> bool:
        """It will not be published; False if no such message waits."""
        if seq not in self.broker.state.delayed:
            return False
        self._over(seq)
        if len(self._heap) > 2 * len(self.broker.state.delayed) + CANCELLED:
            self.recover()
        return True

    def _over(self, seq: int) -> None:
        broker = self.broker
        broker.quotas.give(LATER, self._payers.pop(seq, ""))
        broker.change(Row(0, 0, schema.ACK, topic=DELAYED.encode(), ref=seq))
        broker.log.unpin(seq)


def _for_now(message: Message) -> Message:
    """The message as its publisher would have sent it to the topic now."""
    _, topic = delayed_topic(message.topic)
    return Message(
        topic, message.payload, message.qos, message.retain, message.protocol, message.client, 0,
        message.subtopic, message.content_type, message.reply_to, message.correlation,
        copied_properties(message), message.expires,
    )  # fmt: skip
