"""The program's functions that decide or hear about clients and messages.

    a gate    -> authenticate, permittop          `guard` puts them before a listener's gate
    the broker -> permitsubtop, onpublish         in the middle of its work: they answer at once
               -> onconnect, onclose, ondrop      called soon, by `Calls`

Made by the hub from its options. What a function that decides raises is logged, and means no.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from hubbub.auth.asked import AskingGate, PermittedRights
from hubbub.core.broker import Broker
from hubbub.core.gate import Credentials, Gate
from hubbub.core.hooks import Hooks
from hubbub.core.message import Run
from hubbub.core.rights import (
    BAD_CLIENT,
    BAD_CREDENTIALS,
    CERTIFICATE_REFUSED,
    CERTIFICATE_REQUIRED,
    DENIED,
    TOO_BUSY,
    worded,
)
from hubbub.core.session import Session
from hubbub.embed.callbacks import Calls, Function, check_callable
from hubbub.embed.peer import Info, Peer, Peers
from hubbub.schema import name_to_wire

log = logging.getLogger("hubbub.program")

# The codes that `authenticate` answers with (those of Connack), as gates say them.
REASONS: Final = {
    1: BAD_CLIENT, 2: TOO_BUSY, 3: BAD_CREDENTIALS, 4: CERTIFICATE_REQUIRED,
    5: CERTIFICATE_REFUSED, 6: DENIED,
}  # fmt: skip
NO: Final = 6


class Program(Hooks):
    """The functions of one program, each None if it was not given.

    `peers` is there once the hub runs. `passed` is a run that needs no asking:
    a part of one that was asked about.
    """

    def __init__(
        self,
        calls: Calls,
        authenticate: Function | None,
        permittop: Callable[[str, bool, Peer], bool] | None,
        permitsubtop: Callable[[str, Peer], bool] | None,
        onpublish: Callable[[bytes, int, int, int, Peer | None], bool] | None,
        ondrop: Function | None,
        onconnect: Function | None,
        onclose: Function | None,
    ) -> None:
        check_callable(
            authenticate, permittop, permitsubtop, onpublish, ondrop, onconnect, onclose
        )
        for function in (permittop, permitsubtop, onpublish):
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__name__} decides in the middle of the hub's work and cannot be "
                    "async: look up what it needs in authenticate, which can"
                )
        self.peers: Peers
        self.passed: Run | None = None
        self._deciding = False
        self._calls = calls
        self._authenticate = authenticate
        self._permittop = permittop
        self._permitsubtop = permitsubtop
        self._onpublish = onpublish
        self._ondrop = ondrop
        self._onconnect = onconnect
        self._onclose = onclose

    def begin(self, broker: Broker, peers: Peers) -> None:
        """Hear of this broker from now on; of its messages only if somebody asked for them."""
        self.peers = peers
        broker.hooks = self
        if self._onpublish is not None or self._ondrop is not None:
            broker.inspector = self

    # Gates

    def guard(self, gate: Gate) -> Gate:
        """The gate of a listener, with the program behind it."""
        authenticate = self._ask if self._authenticate is not None else None
        permit = self._permit if self._permittop is not None else None
        return AskingGate(gate, authenticate, permit) if authenticate or permit else gate

    def _ask(self, credentials: Credentials, answered: Callable[[str], None]) -> None:
        assert self._authenticate is not None and credentials.opening is not None
        user, secret = name_to_wire(credentials.user), credentials.secret
        shown = user + b":" + secret if user else secret
        info = Info(credentials.opening, credentials.client, credentials.user)
        try:
            answer = self._authenticate(shown, info)
        except Exception:
            log.exception("authenticate failed; the client is refused")
            answer = NO
        if not inspect.isawaitable(answer):
            answered(_reason(answer))
            return

        def done(task: asyncio.Future[Any]) -> None:
            if task.cancelled():
                return  # the hub is stopping
            error = task.exception()
            if error is not None:
                log.error("authenticate failed; the client is refused", exc_info=error)
            answered(_reason(task.result() if error is None else NO))

        self._calls.run(answer, done)

    def _permit(self, name: str, subscribing: bool, session: Session) -> bool:
        assert self._permittop is not None
        return self._decides(self._permittop, name, subscribing, self.peers.of(session))

    def _decides(self, function: Function, *arguments: Any) -> bool:
        try:
            return bool(function(*arguments))
        except Exception:
            log.exception("%s failed; that is a no", getattr(function, "__name__", function))
            return False

    # The broker

    def entitled(self, session: Session) -> None:
        if isinstance(session.rights, PermittedRights):
            session.rights.session = session

    def connected(self, session: Session) -> None:
        self.entitled(session)
        if self._onconnect is not None and session.opening is not None:
            peer = self.peers.of(session)
            self._calls.soon(self._onconnect, session.number, peer.info, peer)

    def disconnected(self, session: Session, number: int, reason: str) -> None:
        if self._onclose is None or session.opening is None:
            self.peers.forget(number)
            return
        peer = self.peers.left(session, number)
        self._calls.soon(self._onclose, number, peer.sock, peer, reason)

    def may_name(self, subtopic: str, session: Session) -> bool:
        if self._permitsubtop is None or session is self.peers.me:
            return True
        return self._decides(self._permitsubtop, subtopic, self.peers.of(session))

    def passes(self, run: Run) -> bool:
        """A run of which some may not pass goes on in parts, each of which comes here again."""
        sender = run.sender
        if self._onpublish is None or run is self.passed or self._deciding or sender.far:
            return True  # what came from another node was asked about there
        if not run.route.allowed:
            return True  # it is dropped anyway
        peers, peer = self.peers, self.peers.of(run.sender)
        self._deciding = True  # what the function itself publishes is not asked about, for ever
        try:
            passing = [
                self._decides(self._onpublish, message.payload, *peers.numbers(message), peer)
                for message in run.messages()
            ]
        finally:
            self._deciding = False
        if all(passing):
            return True
        for index, passes in enumerate(passing):
            if passes:
                self.passed = run.part(index)
                peers.broker.publish(self.passed)
        return False

    def undelivered(self, run: Run) -> None:
        if self._ondrop is None or run.sender.far or run.retain:
            return
        peer = self.peers.of(run.sender)
        for message in run.messages():
            numbers = self.peers.numbers(message)
            self._calls.soon(self._ondrop, message.payload, *numbers, peer)


def _reason(answer: object) -> str:
    """What `authenticate` said, as a gate says it: "" lets the client in."""
    code, text = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    if isinstance(code, bool):
        code = 0 if code else NO
    if code == 0:
        return ""
    return worded(REASONS.get(code if isinstance(code, int) else NO, DENIED), str(text))
