"""Requests about queues that are at home at another node of the cluster.

    request ── whose queue? ── of this node ────────> as on one node
                     |
                     +── Errand ══ login, request ══> its home: a connection like any other there
                            `═════ the answer ══════<

A queue has one home (`core.homes`), and there everything happens that is asked of it anywhere: by
the code that does it on one node, with that node's rights, ids, leases and long polls. The client's
token is logged in there as long as its connection is here: when that goes, what it held goes back.
What was asked by way of another node is never sent on to a third. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER
from hubbub.core.gate import Opening
from hubbub.core.homes import Home, Way
from hubbub.core.limits import CLUSTER_ANSWER_SECONDS, POLLS_PER_TOKEN, WEIGHED_BYTES
from hubbub.core.link import Link
from hubbub.core.log import MEMORY
from hubbub.core.rights import CONSUME
from hubbub.core.topics import QUEUE
from hubbub.protocols.switch import codec, readme_elsewhere
from hubbub.protocols.switch.codec import Call, Refused, Wanted
from hubbub.protocols.switch.connection import SwitchConnection
from hubbub.protocols.switch.operations import Shared, demand, refused
from hubbub.protocols.switch.session import CURRENT, SwitchSession, Visitor
from hubbub.protocols.switch.transfer import Poll
from hubbub.protocols.switch.wait import Wait, Wakeups
from hubbub.wire.http import Request

BY_SEQ: Final = ("n", "s")  # how cursors begin that are no ids
# What names the queue that it is about first.
NAMING: Final = frozenset(
    ("persistent", "transient", "create_named", "configure", "destroy", "request", "send", "ack",
     "withdraw", "bind", "unbind")
)  # fmt: skip

# By node: the home (None: it is this one), and which queues of a transfer are or may be there.
Parts = dict[str, tuple[Home | None, list[str]]]

_TOO_MANY: Final = "This token has too many requests waiting."
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_MESSAGES: Final = b'{"messages":['
_NEXT: Final = b'],"next":'
_STATUS: Final = slice(9, 12)  # HTTP/1.1 200


class Forwarded(Wait):
    """A request that its home has. `polls`: what it answers if there is nothing in time; `heard`
    is given what the home says.
    """

    def __init__(
        self, wakeups: Wakeups, errand: Errand, deadline: float, polls: bytes = b"",
        heard: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(wakeups, deadline)
        self.level = MEMORY  # what it promises its home has
        self._errand = errand
        self._polls = polls
        self._hear = heard
        self._body: bytes | None = None

    def said(self, status: int, body: bytes) -> None:
        self.status, self._body = status, body
        if self._hear is not None and status == 200:
            self._hear(body)
        self.wake()

    def answer(self) -> bytes | None:
        return self._body

    def empty(self) -> bytes:
        if self._polls:
            return self._polls
        self.status = 503
        return b"node %b does not answer" % self._errand.home.node.encode()

    def end(self) -> None:
        """Whoever does not wait any more gets nothing: what the home has for it, it keeps."""
        if self._body is None or not self._errand.lasts():
            self._errand.end("nobody waits for the answer")


class Errand:
    """A connection to the home of some queues, for one of a client's here: one request at a time.

    It is the transport of its link, which takes what the home answers.
    """

    def __init__(self, owner: NodeConnection, home: Home, session: Visitor) -> None:
        self.owner = owner
        self.home = home
        self.over = False
        self._wait: Forwarded | None = None
        self._came = bytearray()
        self._ahead = int(isinstance(session, SwitchSession))  # answers that nobody waits for
        self._subscribed: set[str] = set()
        said = _login(session) if isinstance(session, SwitchSession) else b""
        link = Link(owner.broker.outgoing, self)
        homes, admission = owner.broker.homes, session.admission
        self.way: Way = homes.relay(home, link, admission, said, b"", self._lost)
        owner.open.add(self)

    def waiting(self) -> int:
        """Bytes that the home has not taken yet, and those of an answer that is half here."""
        return self.way.waiting() + len(self._came)

    def ask(self, wait: Forwarded, request: bytes) -> None:
        self._wait = wait
        self.way.feed(request)

    def subscribe(self, names: Iterable[str]) -> None:
        """What a client of dialect A reads: its token subscribes to it there, ahead of a request.
        """
        for name in names:
            if name not in self._subscribed:
                self._subscribed.add(name)
                self._ahead += 1
                self.way.feed(_get(codec.target("subscribe", name)))

    def lasts(self) -> bool:
        """Whether it is for more than one request."""
        return self.owner.errands.get(self.home.node) is self

    def end(self, reason: str) -> None:
        if not self.over:
            self._over()
            self.way.lost(reason)

    def _over(self) -> None:
        self.over = True
        self.owner.forget(self)

    def _lost(self, reason: str) -> None:
        """The home is gone, or ended it."""
        if not self.over:
            self._over()
            self._answered(503, f"The queue's node {self.home.node!r} is lost: {reason}".encode())

    def _answered(self, status: int, body: bytes) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.said(status, body)

    # What the home says: the transport of its link

    def write(self, data: bytes) -> None:
        self._came += data
        if len(self._came) > WEIGHED_BYTES:
            self.owner.link.grow()
        while not self.over and (answer := _taken(self._came)) is not None:
            if not self._ahead:
                self._answered(*answer)
            elif answer[0] == 200:
                self._ahead -= 1
            else:
                self._answered(*answer)
                self.end("not let in")

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._lost("the connection is over")

    def abort(self) -> None:  # compiled, it cannot be another name of a method
        self.close()


class Gathered(Wait):
    """A transfer from queues of several homes: `asks` those by their nodes, once it has to wait,
    and has the `poll` of those here. `patient`: it waits if there is nothing.

    Its cursor says of each node, by name, up to which of its rows it was read: who comes to another
    node with it goes on there. What a home answers when another one was first is read again, or is
    nobody's again when its lease is over.
    """

    def __init__(
        self, wakeups: Wakeups, deadline: float, asks: dict[str, Callable[[], Forwarded]],
        poll: Poll | None, here: str, cursor: str, patient: bool,
    ) -> None:  # fmt: skip
        super().__init__(wakeups, deadline)
        self._asks = asks
        self._asked: dict[str, Forwarded] = {}
        self._poll = poll
        self._here = here
        self._cursor = cursor
        self._seqs = codec.seqs_of(cursor)
        self._patient = patient

    def begin(self) -> None:
        for node, ask in self._asks.items():
            wait = self._asked[node] = ask()
            wait.look = self.look
        if self._poll is not None:
            self._poll.look = self.look
            self._poll.begin()
            self.weight = self._poll.weight

    def end(self) -> None:
        for wait in self._asked.values():
            wait.end()
        if self._poll is not None:
            self._poll.end()

    def answer(self) -> bytes | None:
        found: list[bytes] = []
        silent = 0
        for node, wait in self._asked.items():
            body = wait.answer()
            if body is not None and wait.status != 200:
                self.status, self.level = wait.status, MEMORY
                return body
            if body is not None:
                silent += not self._add(found, node, body)
        body = self._poll.answer() if self._poll is not None else None
        self.level = MEMORY
        if self._poll is not None and body is not None:
            self.level, self.upto = self._poll.level, self._poll.upto
            self._add(found, self._here, body)
        if found:
            return self._said(found)
        return self.empty() if silent == len(self._asks) and not self._patient else None

    def _add(self, found: list[bytes], node: str, body: bytes) -> bool:
        end = body.rindex(_NEXT)
        messages = body[len(_MESSAGES) : end]
        if messages:
            found.append(messages)
            seq = codec.loaded(b"{" + body[end + 2 :])["next"]
            if seq != codec.OLDEST:  # of queues with leases it says nothing
                self._seqs[node] = seq
        return bool(messages)

    def _said(self, found: list[bytes]) -> bytes:
        cursor = codec.quoted(codec.cursor_of(self._seqs).encode())
        return b"".join((_MESSAGES, b",".join(found), _NEXT, cursor, b"}"))

    def empty(self) -> bytes:
        return codec.transferred((), self._cursor)


class NodeConnection(SwitchConnection):
    """One of a hub that is a node of a cluster. `errands`: those that last, by the node where they
    lead; `open`: these, and those of one request.
    """

    def __init__(
        self, broker: Broker, link: Link, opening: Opening, shared: Shared, message_bytes: int
    ) -> None:
        super().__init__(broker, link, opening, shared, message_bytes)
        self.errands: dict[str, Errand] = {}
        self.open: set[Errand] = set()

    def _answer(self, call: Call, request: Request, session: Visitor) -> None:
        try:
            wanted = _wanted(call, request)
            if wanted is not None and isinstance(session, SwitchSession):
                parts = self._parts(wanted)
                if len(wanted.queues) > 1 or wanted.cursor.startswith(BY_SEQ):
                    self._check_room()
                    self._gather(parts, wanted, session)
                    return
                home = next(iter(parts.values()))[0] if parts else None
            else:
                home = self._home(call, session)
            if home is not None and home.lacks:
                raise Refused(503, home.lacks)
            if home is not None:
                self._check_room()
        except Refused as refusal:
            self._finish(refused(refusal))
            return
        if home is None:
            super()._answer(call, request, session)
        elif call.route.operation == "transfer_subscribed" and isinstance(session, SwitchSession):
            self._fetch(home, call, session)
        else:
            self._send_on(home, request, session, wanted)

    def _check_room(self) -> None:
        """Before anything is sent whose answer nobody would wait for."""
        if self._polls(0) >= POLLS_PER_TOKEN:
            raise Refused(429, _TOO_MANY)

    def _home(self, call: Call, session: Visitor) -> Home | None:
        """The other node that has to do it, if there is one."""
        operation, arguments = call.route.operation, call.arguments
        queues = self.broker.queues
        if operation == "response":  # where the request waits it is known who may answer it
            origin = arguments[1]
            here = origin in self.broker.state.queues
            return None if here else queues.home_of(origin) or queues.home_of(arguments[0])
        if operation == "publish" and arguments[0].startswith(QUEUE):
            return queues.home_of(arguments[0][len(QUEUE) :])
        if isinstance(session, SwitchSession) and readme_elsewhere.decides(call, session):
            return readme_elsewhere.home_of(self.broker, call, session)
        return queues.home_of(arguments[0]) if operation in NAMING else None

    def _parts(self, wanted: Wanted) -> Parts:
        """What a transfer reads, by its node. A queue that is nowhere may begin at each of them."""
        parts: Parts = {}
        nowhere: list[str] = []
        for name in wanted.queues:
            home = self.broker.queues.home_of(name)
            if home is not None and home.lacks:
                raise Refused(503, home.lacks)
            if home is not None:
                parts.setdefault(home.node, (home, []))[1].append(name)
            elif name in self.broker.state.queues:
                parts.setdefault(self.broker.homes.name, (None, []))[1].append(name)
            else:
                nowhere.append(name)
        if nowhere:
            parts.setdefault(self.broker.homes.name, (None, []))
        for _, names in parts.values():
            names += nowhere
        return parts

    def _gather(self, parts: Parts, wanted: Wanted, session: SwitchSession) -> None:
        """A transfer here and, if there is nothing, at each home; the first answer counts. If
        there is one home, it says itself when time is up; else each is asked on a connection of
        its own, which the others end.
        """
        now, here = self.broker.clock.now(), self.broker.homes.name
        self.shared.logins.dialects.add(CURRENT)
        seqs = codec.seqs_of(wanted.cursor)
        asks: dict[str, Callable[[], Forwarded]] = {}
        poll: Poll | None = None
        for node, (home, names) in parts.items():
            cursor = seqs.get(node, codec.OLDEST)
            part = Wanted(cursor, wanted.timeout, tuple(names), wanted.most)
            if home is None:
                self._demand(session, names)
                poll = Poll(self.shared.polls, session, part, now)
            else:
                asks[node] = partial(self._ask, home, session, part, len(parts) == 1)
        patient = wanted.timeout > 0 and (poll is not None or len(parts) != 1)
        deadline = _until(now, wanted, 0 if patient else CLUSTER_ANSWER_SECONDS)
        wakeups, cursor = self.shared.trace.wakeups, wanted.cursor
        self._wait_for(Gathered(wakeups, deadline, asks, poll, here, cursor, patient), now)

    def _demand(self, session: SwitchSession, names: list[str]) -> None:
        for name in names if session.rights is not self.broker.open else ():
            demand(self.broker, session, CONSUME, QUEUE + name)

    def _ask(self, home: Home, session: SwitchSession, part: Wanted, alone: bool) -> Forwarded:
        """What it gets there is its own as long as it is here, so one errand lasts."""
        errand = self._errand(home, session)
        if not alone:
            errand = Errand(self, home, session)
        wait = Forwarded(self.shared.trace.wakeups, errand, NEVER)
        errand.ask(wait, _transfer(part))
        return wait

    def _errand(self, home: Home, session: Visitor) -> Errand:
        """The one that lasts; who has not logged in has none."""
        if not isinstance(session, SwitchSession):
            return Errand(self, home, session)
        errand = self.errands.get(home.node)
        if errand is None:
            errand = self.errands[home.node] = Errand(self, home, session)
        return errand

    def _send_on(
        self, home: Home, request: Request, session: Visitor, wanted: Wanted | None
    ) -> None:
        errand = self._errand(home, session)
        now = self.broker.clock.now()
        polls = codec.transferred((), wanted.cursor) if wanted is not None else b""
        deadline = _until(now, wanted, CLUSTER_ANSWER_SECONDS)
        wait = Forwarded(self.shared.trace.wakeups, errand, deadline, polls)
        errand.ask(wait, _spelled(request))
        self._wait_for(wait, now)

    def _fetch(self, home: Home, call: Call, session: SwitchSession) -> None:
        """A transfer of dialect A, from all that its token subscribed to."""
        after, timeout = call.arguments
        now, seconds = self.broker.clock.now(), max(codec.seconds(float(timeout)), 0.0)
        request = _get(codec.target("transfer", str(codec.integer(after)), timeout))
        errand = self._errand(home, session)
        errand.subscribe(session.subscribed)
        hear = partial(readme_elsewhere.remember, session)
        deadline = now + seconds + CLUSTER_ANSWER_SECONDS
        nothing, wakeups = readme_elsewhere.NOTHING, self.shared.trace.wakeups
        wait = Forwarded(wakeups, errand, deadline, nothing, hear)
        errand.ask(wait, request)
        self._wait_for(wait, now)

    def forget(self, errand: Errand) -> None:
        self.open.discard(errand)
        if self.errands.get(errand.home.node) is errand:
            del self.errands[errand.home.node]

    def waiting(self) -> int:
        return super().waiting() + sum(one.waiting() for one in self.open)

    def lost(self, reason: str) -> None:
        super().lost(reason)
        for errand in list(self.open):
            errand.end(reason)


def _wanted(call: Call, request: Request) -> Wanted | None:
    """What a transfer asks for; of dialect A's see `readme_elsewhere`."""
    if call.route.operation != "transfer":
        return None
    return codec.wanted_of(request.body)


def _until(now: float, wanted: Wanted | None, more: float) -> float:
    """When nobody waits any more: later than now, as what was asked is not to be answered else."""
    return now + more + (max(wanted.timeout, 0.0) if wanted is not None else 0.0)


def _transfer(part: Wanted) -> bytes:
    most = b',"max":%d}' % part.most if part.most else b"}"
    body = codec.transfer_body(part)[:-1] + most
    return b"POST /transfer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _login(session: SwitchSession) -> bytes:
    target = codec.target("login", session.client)
    grace = f"?grace={session.grace!r}" if session.grace else ""
    return _get(f"{target}{grace}")


def _get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\n\r\n".encode()


def _spelled(request: Request) -> bytes:
    kind = request.headers.get("content-type", "")
    said = f"content-type: {kind}\r\n".encode("latin-1") if kind else b""
    query = b"?" + request.query if request.query else b""
    method = b"POST" if request.method == "POST" else b"GET"
    head = b"%b %b%b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n"
    return head % (method, request.path, query, said, len(request.body)) + request.body


def _taken(came: bytearray) -> tuple[int, bytes] | None:
    """The next answer, if it is there whole, as one of our own hubs writes it."""
    end = came.find(b"\r\n\r\n")
    if end < 0:
        return None
    size = _LENGTH.search(came, 0, end + 4)
    whole = end + 4 + (int(size[1]) if size is not None else 0)
    if len(came) < whole:
        return None
    answer = int(came[_STATUS]), bytes(came[end + 4 : whole])
    del came[:whole]
    return answer
