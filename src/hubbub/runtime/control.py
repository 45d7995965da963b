"""`$CONTROL/dynamic-security/v1`: what is published there is done, and answered to who asked.

The broker hands over what somebody published who may write there, before anything is recorded: the
commands have passwords in them. The answer goes to the subscriptions of that client only. Each
change is on the disk before it is answered, is a line of the log, and holds at once for who is
connected. The node makes one where there is a `dynamic_security` file. In a cluster it tells the
other nodes, and does what they tell.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from hubbub.auth import dynamic_commands
from hubbub.auth.dynamic import Dynamic
from hubbub.auth.entries import Entry, Told
from hubbub.cluster.frames import Permits
from hubbub.cluster.membership import Membership
from hubbub.core.broker import Broker
from hubbub.core.message import Message, Run, run_of
from hubbub.core.session import Session
from hubbub.errors import SettingError

TOPIC: Final = "$CONTROL/dynamic-security/v1"
RESPONSE: Final = TOPIC + "/response"

log = logging.getLogger("hubbub.control")


class Control:
    """`changed` is called when rights or passwords are others than before."""

    def __init__(self, broker: Broker, dynamic: Dynamic, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._dynamic = dynamic
        self._changed = changed
        broker.controls[TOPIC] = self.take

    def share(self, membership: Membership) -> None:
        """With all nodes that have such a file."""
        dynamic = self._dynamic
        dynamic.share(membership.name, self._broker.clock.stamp)
        dynamic.told = lambda told: membership.permit(_permits(told))
        membership.permits = lambda: _permits(dynamic.entries.whole()) if dynamic.entries else None
        membership.permitted = self._learn

    def _learn(self, node: str, permits: Permits) -> None:
        told = [Told(one[0], Entry(*one[1:])) for one in permits.entries]
        why = ""
        try:
            if not self._dynamic.learn(told, node):
                return
        except SettingError as error:
            why = str(error)
            log.error("permissions that node %r told: %s", node, why)
        self._broker.audit.managed(self._broker.itself, "permissions as changed at", node, why)
        self._changed()

    def take(self, run: Run) -> None:
        """Do what these messages ask for, one after the other."""
        if not self._broker.may_publish(run.sender, TOPIC):
            return  # it answers somebody who may
        for message in run.messages():
            self._answer(run.sender, self._do(message.payload, run.sender))

    def _do(self, payload: bytes, asks: Session) -> list[dict[str, Any]]:
        done = dynamic_commands.run(self._dynamic.book, payload)
        answers, trouble = done.answer, ""
        if done.changed:
            trouble = self._keep()
        for command, about, why in done.told:
            why = why or trouble
            self._broker.audit.managed(asks, command, about, why)
        if trouble:
            answers = [{**one, "error": trouble} if "data" not in one else one for one in answers]
        return answers

    def _keep(self) -> str:
        """Write what is changed, then let it hold; what went wrong, and then nothing is changed."""
        try:
            self._dynamic.save()
        except SettingError as error:
            log.error("%s: what was to be changed stays as it was", error)
            try:
                self._dynamic.read()
            except SettingError as unreadable:
                log.error("%s", unreadable)
            return "Error saving the file"
        self._dynamic.hold()
        self._changed()
        return ""

    def _answer(self, asks: Session, answers: list[dict[str, Any]]) -> None:
        broker = self._broker
        message = Message(RESPONSE, json.dumps({"responses": answers}).encode())
        route = broker.route(broker.itself, RESPONSE)
        run = run_of(message, broker.itself, route)
        for subscription in route.subscriptions:
            if subscription.session is asks:
                subscription.session.deliver(run, subscription)


def _permits(told: list[Told]) -> Permits:
    return Permits([(key, *entry) for key, entry in told])
