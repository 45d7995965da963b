"""A gate that asks the program around the hub, after the listener's own gate has said yes.

    listener's gate (files, certificates) -> authenticate, if there is one -> the client is in
                                          -> permit, for each name it uses, if there is one

The hub puts it before the gate of each listener when the program gave it such functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.auth.gate import Done
from hubbub.core.caches import Caches, weight_of
from hubbub.core.gate import Credentials, Exchange, Gate, Step
from hubbub.core.limits import VERDICTS
from hubbub.core.rights import (
    BAD_CREDENTIALS,
    BIND,
    CALL,
    CONFIGURE,
    CONSUME,
    DESTROY,
    ENQUEUE,
    LIST,
    MANAGE,
    PUBLISH,
    SUBSCRIBE,
    TRACE,
    Rights,
)
from hubbub.core.session import Session, Silent
from hubbub.core.topics import CLIENT, DELAYED

# Calls its second argument once, now or later: "" lets the client in, else why not.
Authenticate = Callable[[Credentials, Callable[[str], None]], None]
# The name or filter, whether it is for a subscription, and who asks.
Permit = Callable[[str, bool, Session], bool]

# The verbs that the program is asked about, and whether it hears of a subscription.
_ASKED: Final = {
    PUBLISH: False, ENQUEUE: False, CALL: False, CONFIGURE: False, DESTROY: False, MANAGE: False,
    SUBSCRIBE: True, CONSUME: True, BIND: True, LIST: True, TRACE: True,
}  # fmt: skip
_NEVER_ASKED: Final = (CLIENT, DELAYED)  # addresses are for everybody; the topic behind is asked


class AskingGate(Gate):
    """Lets in whom both `inner` and the program let in."""

    def __init__(
        self, inner: Gate, authenticate: Authenticate | None, permit: Permit | None
    ) -> None:
        super().__init__(inner.rights, inner.place)
        self._inner = inner
        self.checks = inner.checks or authenticate is not None
        self._authenticate = authenticate
        self._permit = permit
        self._answers = Caches(VERDICTS)

    def authenticate(self, credentials: Credentials, done: Done) -> None:
        def judged(rights: Rights | None, reason: str) -> None:
            if rights is None:
                done(None, reason)
            elif self._authenticate is None:
                done(self._narrowed(rights, credentials), "")
            else:
                self._ask(self._authenticate, credentials, rights, done)

        self._inner.authenticate(credentials, judged)

    def _ask(self, ask: Authenticate, shown: Credentials, rights: Rights, done: Done) -> None:
        def answered(reason: str) -> None:
            if not reason and not self._inner.still_in(shown):
                reason = BAD_CREDENTIALS
            shown.proved = not reason
            if reason:
                done(None, reason)
            else:
                done(self._narrowed(rights, shown), "")

        ask(shown, answered)

    def _narrowed(self, rights: Rights, credentials: Credentials) -> Rights:
        if self._permit is None:
            return rights
        return PermittedRights(rights, self._permit, credentials, self._answers)

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        """None if a function authenticates: it is shown secrets, and an exchange has none."""
        if self._authenticate is not None:
            return None
        exchange = self._inner.exchange(method, credentials)
        if exchange is None or self._permit is None:
            return exchange
        return _Narrowing(exchange, self, credentials)

    def rights_of(self, user: str, client: str) -> Rights | None:
        """The program is asked about who is here."""
        return self._inner.rights_of(user, client)

    def permissions(self, user: str, client: str) -> Rights:
        return self._inner.permissions(user, client)

    def vouched(self, shown: Credentials, lines: tuple[str, ...] | None) -> Rights | None:
        rights = self._inner.vouched(shown, lines)
        return self._narrowed(rights, shown) if rights is not None else None

    def still_in(self, credentials: Credentials) -> bool:
        return self._inner.still_in(credentials)


class _Narrowing(Exchange):
    """An exchange of the inner gate, whose rights the program narrows."""

    def __init__(self, inner: Exchange, gate: AskingGate, credentials: Credentials) -> None:
        self._inner = inner
        self._gate = gate
        self._credentials = credentials

    def step(self, data: bytes) -> Step:
        step = self._inner.step(data)
        if step.rights is not None:
            step.rights = self._gate._narrowed(step.rights, self._credentials)
        return step


class PermittedRights(Rights):
    """The permissions of one client: the listener's, and what the program says of each name.

    It is asked once for each name and use, and its answer holds while the client is connected,
    as long as no more answers than VERDICTS are remembered of all clients.
    """

    def __init__(
        self, inner: Rights, permit: Permit, credentials: Credentials, answers: Caches
    ) -> None:
        super().__init__()
        self._caches = answers
        self._inner = inner
        self._permit = permit
        self._answers: dict[tuple[str, bool], bool] = {}
        self.found_by_name = inner.found_by_name
        # Who asks, until the client has a session; some requests over HTTP never have one.
        opening = credentials.opening
        protocol = opening.protocol if opening is not None else ""
        self.session: Session = Silent(protocol, credentials.client, self)
        self.session.opening, self.session.user = opening, credentials.user
        self.session.payer = credentials.owner

    def may(self, verb: str, name: str) -> bool:
        if not self._inner.may(verb, name):
            return False
        subscribing = _ASKED.get(verb)
        return subscribing is None or self._answer(name, subscribing)

    def decided_by(self, verb: str, name: str) -> str:
        refused = self._answers.get((name, _ASKED.get(verb, False))) is False
        return self._inner.decided_by(verb, name) or ("permittop" if refused else "")

    def same_as(self, other: Rights) -> bool:
        return isinstance(other, PermittedRights) and self._inner.same_as(other._inner)

    def _answer(self, name: str, subscribing: bool) -> bool:
        if name.startswith(_NEVER_ASKED):
            return True
        answer = self._answers.get((name, subscribing))
        if answer is None:
            answer = self._permit(name, subscribing, self.session)
            self._caches.goes_with(self, self._answers)
            weight = weight_of(name)
            self._caches.keep(self._answers, (name, subscribing), answer, weight)
        return answer
