"""One connection of message-switch: requests in order, one answer each.

    bytes -> Requests -> pending -> an operation -> link.hold
                            |
                            +-- a transfer that finds nothing waits; what was pipelined behind it
                                waits too, and goes on when it is answered

Every answer is held until the rows made so far are durable: most promise something, and they
must stay in order. Logging in, waiting and ending are here; what requests do is in `operations`.
No I/O.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.client import admit
from hubbub.core.connection import NEVER, Connection
from hubbub.core.gate import Admission, Opening
from hubbub.core.limits import (
    ASKED_BYTES,
    HEAD_BYTES,
    KIB,
    MIB,
    PIPELINED,
    POLLS_PER_TOKEN,
)
from hubbub.core.link import Link
from hubbub.core.rights import (
    BAD_CREDENTIALS,
    CONSUME,
    TOO_FAST,
    TOO_MANY,
    TRACE,
    kind_of,
    words_of,
)
from hubbub.core.topics import QUEUE
from hubbub.core.turns import Stint
from hubbub.errors import ProtocolError
from hubbub.protocols.switch import codec, operations, readme, readme_operations, topics, trace
from hubbub.protocols.switch.codec import Call, Refused
from hubbub.protocols.switch.diagnostics import Diagnosis
from hubbub.protocols.switch.listing import Listing
from hubbub.protocols.switch.operations import (
    Answer,
    Shared,
    demand,
    demand_for,
    is_refused,
    refused,
    speaks_readme,
)
from hubbub.protocols.switch.readme import ReadmePoll
from hubbub.protocols.switch.session import CURRENT, GRACE_SECONDS, SwitchSession, Visitor
from hubbub.protocols.switch.trace import Watch
from hubbub.protocols.switch.transfer import Poll
from hubbub.protocols.switch.wait import Wait
from hubbub.schema import name_to_wire
from hubbub.wire.http import (
    CHALLENGE,
    CONTINUE,
    RETRY_LATER,
    Request,
    Requests,
    authorization,
    known_request,
    response,
)
from hubbub.wire.site import PLAIN_TEXT, is_browser

TRACE_SECONDS: Final = 5.0  # how long a plain /trace waits
UNREAD_BYTES: Final = 32 * MIB  # answers of pipelined requests; one answer may be larger
PIECE_BYTES: Final = 32 * KIB  # of a read: some 700 requests, two milliseconds to parse
LOGINS: Final = 16  # on one connection; real clients use one
RECHECK_SECONDS: Final = 0.5  # how late the time-out of a pipelined transfer may be noticed

OPERATIONS: Final = operations.OPERATIONS | topics.OPERATIONS | readme_operations.OPERATIONS
LASTING: Final = frozenset(("send", "configure", "bind", "unbind"))

_TOO_HASTY: Final = f"more than {PIPELINED} requests before a login is answered"
_ERROR: Final = Answer(codec.SERVER_ERROR, 500)
_LOG_IN: Final = Answer(codec.PLEASE_LOG_IN, 404)
_ANOTHER: Final = Answer(b"This connection is logged in as another user.", 403)
_TOO_MANY: Final = Answer(b"This token has too many transfers waiting.", 429)
_TOO_MANY_LOGINS: Final = Answer(b"This connection has too many logins.", 429)
_TAKEN: Final = Answer(b"This token is in use by another user.", 403)


class SwitchConnection(Connection):
    def __init__(
        self, broker: Broker, link: Link, opening: Opening, shared: Shared, message_bytes: int
    ) -> None:
        super().__init__(broker, link, opening)
        self.bound = False
        self.restless = False
        self.shared = shared
        self.message_bytes = message_bytes
        # Who it is: it may log in several times, under several tokens.
        self.logins: list[SwitchSession] = []
        self.accepted = b""  # a mark of the secret that it logged in with
        # The conversation.
        self.requests = Requests(HEAD_BYTES, message_bytes)
        self.pending: deque[Request] = deque()
        self.behind = 0  # bytes that came while a request waits
        self.kept = 0  # bytes of those that are pending
        self.busy = False  # an answer is under way
        self.last = False  # the request under way is the last one of this connection
        self.bodiless = False  # it is answered without the body that its answer would have
        self.over = False
        self.paused = False  # what is pipelined goes on in another turn
        self.ends = False  # its peer says no more
        self._unheard = bytearray()  # of reads with more than a turn can hear
        self.wait: Wait | None = None
        self.browser = False  # whether one sent the headers of the request under way
        self.foreseen: Request | None = None  # it was asked whose body this is that still comes

    # The conversation

    def feed(self, data: bytes) -> None:
        """A read that has very many requests is heard in pieces, each when its turn has come."""
        if self.over:
            return
        if self._unheard:
            self._bound_what_waits(len(data))
            self._unheard += data
        elif len(data) <= PIECE_BYTES or self._is_whole(data):
            self._hear(data)
        else:
            self._unheard += data
            self._hear_pieces()

    def _is_whole(self, data: bytes) -> bool:
        request = known_request(data, self.message_bytes) if self.requests.between else None
        return request is not None and request.size == len(data)

    def _hear_pieces(self) -> None:
        """As long as none waits, and as a turn may take; `_go_through` and `proceed` go on."""
        stint, unheard = Stint(self.broker.clock), self._unheard
        while unheard and not (self.pending or stint.over()):
            piece = bytes(unheard[:PIECE_BYTES])
            del unheard[:PIECE_BYTES]
            self._hear(piece)
            if self._ends():
                unheard.clear()
        if unheard and (self.paused or not self.pending):
            self.put_off()
        self._close_behind()

    def _ends(self) -> bool:
        """What was said is the last: what follows is not looked at (RFC 9112, 9.6)."""
        newest = self.pending[-1].keep_alive if self.pending else not (self.busy and self.last)
        return self.over or not newest

    def proceed(self) -> None:
        if not self.over:
            self._hear_pieces()

    def _hear(self, data: bytes) -> None:
        began = False
        try:
            if not (self.busy or self.pending):
                request = known_request(data, self.message_bytes) if self.requests.between else None
                if request is not None and request.size == len(data):
                    self.link.prompt = False  # the next one comes behind the answer, as a rule
                    self._start(request)
                    return
            else:
                self._bound_what_waits(len(data))
            for request in self.requests.feed(data):
                if self.busy or self.pending or began:
                    self.pending.append(request)
                    self.kept += len(request.body) + ASKED_BYTES
                elif not self.over:
                    self._start(request)
                    began = True
                if not self.logins and len(self.pending) > PIPELINED:
                    raise ProtocolError(_TOO_HASTY, response(429, b"log in first\n", close=True))
            if began and self.pending:
                self._go_through()
            # The rest of a request is never looked at as if it were one.
            self.bound = self.bound or not self.requests.between
            coming = self.requests.coming()
            if coming is not None and not (self.busy or self.pending or self.over):
                self._foresee(coming)
            if self.requests.expected:
                self._encourage()
            # A body that comes apart from its head may wait; after a whole request nothing does.
            self.link.prompt = not (self.busy or self.requests.between)
        except ProtocolError as error:
            while self.pending and not (self.busy or self.over):
                self._start(self._next())
            self.over = True
            self.link.hold(error.reply)  # behind the answers that are held
            raise ProtocolError(error.reason) from None

    def _foresee(self, request: Request) -> None:
        """Refuse before a large body came what would be refused behind it."""
        call = codec.call_of(request)
        if call is None or self._is_refused(call, request):
            request.keep_alive = False
            self._start(request)

    def _is_refused(self, call: Call, request: Request) -> bool:
        try:
            known = bool(self.logins) and not self._is_another(request)
        except Refused:
            return True
        if not (known or call.route.login):
            self._ask_ahead(request)
        return is_refused(self.broker, self.logins[0], call) if known else call.route.login

    def _ask_ahead(self, request: Request) -> None:
        """Ask, once, who it is that needs no login here. Nothing more of the body is heard until
        that is answered: for who is not let in none is kept.
        """
        if request is self.foreseen:
            return
        self.foreseen = request
        answered = False
        go_on: Callable[[], None] | None = None

        def decided(admission: Admission | None, reason: str) -> None:
            nonlocal answered
            answered = True
            if go_on is not None:
                go_on()
            if admission is None and self.foreseen is request and not self.over:
                self.browser, self.last = is_browser(request.headers), True
                self._finish(_not_let_in(reason))

        user, secret = authorization(request.headers.get("authorization", ""))
        self.opening.ask("", user, secret, decided)
        if not answered:
            go_on = self.opening.carrier.hold()

    def _encourage(self) -> None:
        """Let a client that asked first send its body, once all before it is answered."""
        if not (self.busy or self.over):
            self.requests.expected = False
            self.link.hold(CONTINUE)

    def _bound_what_waits(self, size: int) -> None:
        self.behind += size
        if self.behind > self.message_bytes:
            raise ProtocolError(
                f"{self.behind} bytes of requests behind one that waits",
                response(503, b"", close=True),
            )

    def _go_through(self) -> None:
        """What is pipelined, for as long as one turn may take and somebody reads the answers."""
        stint, self.paused = Stint(self.broker.clock), False
        while self.pending and not (self.busy or self.over or self.link.choked):
            self._start(self._next())
            if self.pending and stint.over():
                self.paused = True
                self.broker.later(lambda: self.opening.carrier.run(self._go_through))
                return
        if self._unheard and not (self.pending or self.over or self.working):
            self.put_off()
        self._close_behind()

    def said_all(self) -> None:
        """It gets an answer to all that it asked, and then the end: a password may be looked at
        meanwhile. Nobody knows whether it is still there, so it is given nothing that comes later.
        """
        self.ends = True
        if self.wait is not None and self.wait.deadline != NEVER:
            self._end_wait(self.wait.empty())
        self._close_behind()

    def _close_behind(self) -> None:
        if self.ends and not (self.busy or self.pending or self._unheard):
            self.over = True
            self.link.close("")

    def _next(self) -> Request:
        request = self.pending.popleft()
        self.kept -= len(request.body) + ASKED_BYTES
        return request

    def waiting(self) -> int:
        waits = self.wait.weight if self.wait is not None else 0
        return self.kept + self.requests.waiting() + len(self._unheard) + waits

    def works(self) -> bool:
        return self.busy or self.working or bool(self.pending)

    def crowded_out(self, reason: str) -> None:
        self.over = True
        self._unheard.clear()
        self.pending.clear()
        self.link.hold(response(503, reason.encode() + b"\n", close=True))
        self.link.close(reason)

    def drained(self) -> None:
        if self.pending and not (self.busy or self.paused):
            self._go_through()

    def _start(self, request: Request) -> None:
        if self.link.size + self.link.held_bytes > UNREAD_BYTES:
            raise ProtocolError(f"more than {UNREAD_BYTES} bytes of answers wait to be read")
        self.behind = 0
        self.foreseen = None
        self.busy = True
        self.last = not request.keep_alive
        self.bodiless = request.method == "HEAD"
        self.bound = self.bound or request.path != b"/"
        call = codec.call_of(request)
        known, site = request.known, self.opening.site
        refusal = None
        if known is None or known.passed is not site:
            changes = request.path != b"/"
            self.browser = is_browser(request.headers)
            refusal = site.refusal(request.headers, changes)
            if known is not None and changes and refusal is None and not self.browser:
                known.passed = site  # of most clients that is so, and for good
        else:
            self.browser = False
        try:
            if refusal is not None:
                self._finish(Answer(refusal.text.encode(), refusal.status))
            elif call is None:
                self._finish(Answer(b"Not found: " + request.path, 404))
            elif call.route.operation == "login":
                self._log_in(call, request)
            elif self.logins and (known is not None or not self._is_another(request)):
                self._answer(call, request, self.logins[0])
            elif call.route.login:
                self._finish(_ANOTHER if self.logins else _LOG_IN)
            else:
                self._answer_visitor(call, request)
        except Refused as refused_it:
            self._finish(refused(refused_it))
        except codec.INVALID:
            self._finish(_ERROR)

    def _is_another(self, request: Request) -> bool:
        """Whether it shows credentials, and they are not those of who logged in.

        Refused (401) if only the name is the same: a password is looked at once a connection.
        """
        shown = request.headers.get("authorization", "")
        if not shown:
            return False
        user, secret = authorization(shown)
        same = self.accepted and hmac.compare_digest(self.accepted, self.shared.mark(secret))
        if user != self.logins[0].user:  # a signed token says its user inside
            return user != "" or not same
        if self.accepted and not same:
            raise Refused(401, BAD_CREDENTIALS)
        return False

    def _answer(self, call: Call, request: Request, session: Visitor) -> None:
        name = call.route.operation
        operation = OPERATIONS.get(name)
        try:
            if session.rights is not self.broker.open:
                demand_for(self.broker, session, call)
            if name in LASTING:
                operations.demand_quorum(self.broker)
            if operation is not None:
                self._finish(operation(self.shared, session, call, request))
            elif name == "diagnostics":
                self._diagnose(call, session)
            elif name in ("list", "list_alive"):
                self._list(call, session, name == "list_alive")
            elif name == "trace":
                self._trace(call, session)
            else:
                assert isinstance(session, SwitchSession), "transfers need a login"
                self._transfer(call, request, session)
        except Refused as refusal:
            self._finish(refused(refusal))

    def _finish(self, answer: Answer) -> None:
        """The answer of the request under way; what was pipelined behind it may go on."""
        self.busy = False
        if answer.status == 200 and not (answer.headers or self.browser or self.bodiless):
            said = codec.ok(answer.body)
        else:
            said = self._said(answer)
        self.link.hold(said, False, answer.level, answer.upto)
        if self.last:
            self.over = True
            self.link.close("")

    def _said(self, answer: Answer) -> bytes:
        headers = answer.headers + ((CHALLENGE,) if answer.status == 401 else ())
        if self.browser:  # it may run what it is answered, and names and payloads are anybody's
            headers += PLAIN_TEXT
        said = response(answer.status, answer.body, headers)
        return said[: -len(answer.body)] if self.bodiless and answer.body else said

    # Who it is

    def _log_in(self, call: Call, request: Request) -> None:
        if len(self.logins) >= LOGINS:
            self._finish(_TOO_MANY_LOGINS)
            return
        token = call.arguments[0]
        grace = min(codec.seconds(float(call.query.get("grace", "0"))), GRACE_SECONDS)

        shown = request.headers.get("authorization", "")
        mark = self.shared.mark(authorization(shown)[1]) if shown else b""

        def done(admission: Admission) -> None:
            self._logged_in(admission, grace, mark)

        self._authenticate(request, token, done)

    def _logged_in(self, admission: Admission, grace: float, mark: bytes) -> None:
        if self.logins and admission.user != self.logins[0].user:
            self._finish(_ANOTHER)
            return
        try:
            session = self.shared.logins.enter(admission, self.opening)
        except Refused as refusal:
            self._finish(refused(refusal))
            return
        if session is None:
            self._finish(_TAKEN)
            return
        session.grace = max(session.grace, grace)
        self.accepted = mark
        self.logins.append(session)
        self.logins.sort(key=_token)  # the first one is who asks, as ever
        self._finish(Answer())

    def _answer_visitor(self, call: Call, request: Request) -> None:
        """Requests that need no login are still only for those whom the listener lets in.

        Nothing of it is remembered: the next request may be somebody else's.
        """

        def done(admission: Admission) -> None:
            self._answer(call, request, Visitor(admission))

        self._authenticate(request, "", done)

    def _authenticate(
        self, request: Request, token: str, let_in: Callable[[Admission], None]
    ) -> None:
        """Ask the gate; the answer may come later, until then the request is under way."""
        later = False

        def decided(admission: Admission | None, reason: str) -> None:
            try:
                if admission is None:
                    self._finish(_not_let_in(reason))
                else:
                    let_in(admission)
            except codec.INVALID:
                self._finish(_ERROR)
            if later:
                self._go_through()
                if self.requests.expected:
                    self._encourage()

        user, secret = authorization(request.headers.get("authorization", ""))
        admit(self, token, user, secret, decided, alone=False)
        later = True

    # Waiting

    def _transfer(self, call: Call, request: Request, session: SwitchSession) -> None:
        now = self.broker.clock.now()
        if call.arguments:
            after, timeout = codec.integer(call.arguments[0]), float(call.arguments[1])
            timeout = codec.seconds(timeout)
            self._wait_for(ReadmePoll(self.shared.polls, session, after, timeout, now), now)
            return
        self.shared.logins.dialects.add(CURRENT)
        wanted = codec.wanted_of(request.body)
        for name in wanted.queues if session.rights is not self.broker.open else ():
            demand(self.broker, session, CONSUME, QUEUE + name)
        self._wait_for(Poll(self.shared.polls, session, wanted, now), now)

    def _trace(self, call: Call, session: Visitor) -> None:
        number, timeout = -1, TRACE_SECONDS
        if call.arguments:
            number = codec.integer(call.arguments[0])
            timeout = codec.seconds(float(call.arguments[1]))
        now = self.broker.clock.now()
        said = readme.said if speaks_readme(self.shared, session) else trace.said

        def may() -> bool:
            allowed = self.broker.may(session, TRACE, operations.ALL_OF[TRACE])
            return allowed and session.admission.holds()

        self._wait_for(Watch(self.shared.trace, number, now + timeout, said, may), now)

    def _diagnose(self, call: Call, session: Visitor) -> None:
        bound, readme = self.bound, speaks_readme(self.shared, session)
        readers = call.query.get("readers") == "1"
        self.bound = True  # while it is made; which protocol comes next is open as before
        self._wait_for(Diagnosis(self.shared.diagnostics, readme, readers), 0.0)
        self.bound = bound or self.wait is not None

    def _list(self, call: Call, session: Visitor, alive: bool) -> None:
        shared, prefix = self.shared, call.arguments[0]
        self._wait_for(
            Listing(shared.trace.wakeups, self.broker, session, prefix, alive), 0.0
        )

    def _wait_for(self, wait: Wait, now: float) -> None:
        """Answer at once if there is something or no time to wait, else when there is."""
        body = wait.answer()
        over = wait.deadline <= now or (self.ends and wait.deadline != NEVER)
        if body is None and over:
            body = wait.empty()
        if body is not None:
            self._finish(Answer(body, wait.status, level=wait.level, upto=wait.upto))
        elif self._polls(1) > POLLS_PER_TOKEN:
            self._polls(-1)
            self._finish(_TOO_MANY)
        else:
            self.wait = wait
            self.restless = True
            wait.look = self._look
            wait.begin()

    def _polls(self, change: int) -> int:
        """How many requests of its token wait, after the change."""
        if not self.logins:
            return 0
        self.logins[0].polls += change
        return self.logins[0].polls

    def _look(self) -> None:
        """There may be something for the request that waits."""
        body = self.wait.answer() if self.wait is not None else None
        if body is not None:
            self._end_wait(body)

    def _end_wait(self, body: bytes | None) -> None:
        wait = self.wait
        if wait is None:
            return
        self.wait = None
        self.restless = False
        wait.end()
        self._polls(-1)
        if body is not None:
            self._finish(Answer(body, wait.status, level=wait.level, upto=wait.upto))
            if self.pending:
                self._go_through()
            if self.requests.expected:
                self._encourage()
            self._close_behind()

    def wake(self, now: float) -> float:
        if self.wait is not None and self.wait.deadline <= now:
            self._end_wait(self.wait.empty())
        if self.wait is None:
            return NEVER
        deadline = self.wait.deadline
        # What is pipelined may begin to wait without the listener being told.
        return min(deadline, now + RECHECK_SECONDS) if self.pending else deadline

    # The end

    def goodbye(self) -> None:
        self.shared.logins.stopping = True
        self.pending.clear()
        if self.wait is not None:
            self._end_wait(self.wait.empty())

    def lost(self, reason: str) -> None:
        self.over = True
        self.asking = False
        self.pending.clear()
        self._end_wait(None)
        self.requests.end()
        for session in self.logins:
            self.shared.logins.leave(session, self.opening, reason)
        self.logins = []


def _token(session: SwitchSession) -> str:
    return session.client


def _not_let_in(reason: str) -> Answer:
    words = name_to_wire(words_of(reason))
    if kind_of(reason) in (TOO_FAST, TOO_MANY):
        return Answer(words, 429, RETRY_LATER)
    return Answer(words, 401)
