"""Who may do what: the verbs, what each needs, and the `Rights` that a gate gives.

    verb       asked when                                        needs of the name
    publish    a message goes to a topic or an address            write
    receive    a subscription brings a message                    read
    subscribe  a subscription is made                             read some of what the filter means
    observe    somebody wants to know how many would receive      read or write
    ...        VERBS has all of them

A right is asked by the core, when it is used. Clients with equal permissions share one `Rights`,
and with it the broker's cached routes, so that none is asked per message. `auth` fills these in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from hubbub.core.clock import Clock
from hubbub.core.limits import REFUSALS_KEPT
from hubbub.schema import name_shown

# Of a refusal that is kept: names may be 64 KiB long, and two thousand are kept.
NAME_KEPT: Final = 100
TEXT_KEPT: Final = 300

# What a rule can give.
READ: Final = 1
WRITE: Final = 2
ADMIN: Final = 4

# Of how much that a filter means.
EXACTLY: Final = "exactly"  # it is a name, and this is asked about
SOME: Final = "some"  # anything that matches it
ALL: Final = "all"  # everything that matches it


class Need(NamedTuple):
    """What a verb needs: one of the bits of `access`, of as much as `extent` says."""

    access: int
    extent: str = EXACTLY


PUBLISH: Final = "publish"
RECEIVE: Final = "receive"
SUBSCRIBE: Final = "subscribe"
OBSERVE: Final = "observe"
ENQUEUE: Final = "enqueue"
CONSUME: Final = "consume"
CALL: Final = "call"
CONFIGURE: Final = "configure"
BIND: Final = "bind"
DESTROY: Final = "destroy"
LIST: Final = "list"
TRACE: Final = "trace"
MANAGE: Final = "manage"

VERBS: Final = {
    PUBLISH: Need(WRITE),
    RECEIVE: Need(READ),
    SUBSCRIBE: Need(READ, SOME),
    OBSERVE: Need(READ | WRITE),
    ENQUEUE: Need(WRITE),
    CONSUME: Need(READ),  # and acknowledge
    CALL: Need(WRITE),  # enqueue what wants an answer
    CONFIGURE: Need(ADMIN),  # say what becomes of what others send
    BIND: Need(READ, ALL),  # a queue has no permissions of its own: what enters it is out
    DESTROY: Need(ADMIN),
    LIST: Need(READ | WRITE),  # know that a queue is there, or have it begin
    TRACE: Need(READ, ALL),  # see what others send and get
    MANAGE: Need(ADMIN, ALL),  # end the hub, or what is not one's own
}
# What a client may do with a transient queue of its own, whatever the rules say.
OF_ITS_OWN: Final = frozenset((OBSERVE, ENQUEUE, CONSUME, CALL, CONFIGURE, DESTROY, LIST))

# Why a gate says no. Protocols have codes for these; every other reason is a plain refusal.
NO_CREDENTIALS: Final = "clients without credentials are not let in here"
BAD_CREDENTIALS: Final = "wrong user name or password"
BAD_CLIENT: Final = "this client id is not let in here"
CERTIFICATE_REQUIRED: Final = "a client certificate that says a name is required here"
TOO_MANY: Final = "too many connections"
TOO_FAST: Final = "connections come too fast"
TOO_BUSY: Final = "too many clients want to be let in at once"
CERTIFICATE_REFUSED: Final = "this client certificate is not let in here"
DENIED: Final = "access denied"


class Refused(NamedTuple):
    """One refusal: when (microseconds since 1970), to whom, and in words what and why."""

    time: int
    user: str
    client: str
    text: str


class Refusals:
    """Who was refused what, and by which rule: the last ones, for who asks why.

    Logins are kept apart: anybody can fail to log in, and would push out what users asked for.
    `logins` and `actions`: how many there were since the start. Filled by `core.audit`, which tells
    of them too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logins: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        self._actions: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        self.logins = self.actions = 0

    def last(self, user: str | None, client: str | None) -> list[Refused]:
        """The last refusals of that user and client (None: of all), the newest first."""
        found = [
            one
            for one in (*reversed(self._logins), *reversed(self._actions))
            if user in (None, one.user) and client in (None, one.client)
        ]
        return sorted(found, key=_time, reverse=True)

    def keep_login(self, user: str, client: str, text: str) -> None:
        """Remember a login that failed."""
        self.logins += 1
        self._logins.append(self._refused(user, client, text))

    def keep(self, user: str, client: str, text: str) -> None:
        """Remember what somebody who was let in did not get."""
        self.actions += 1
        self._actions.append(self._refused(user, client, text))

    def _refused(self, user: str, client: str, text: str) -> Refused:
        who, what, why = user[:NAME_KEPT], client[:NAME_KEPT], text[:TEXT_KEPT]
        return Refused(self._clock.stamp(), *map(name_shown, (who, what, why)))


def _time(one: Refused) -> int:
    return one.time


def verb_of(name: str) -> str:
    """What whoever publishes to a name does there."""
    return ENQUEUE if name.startswith("$queue/") else PUBLISH


def named(user: str) -> str:
    """A user, or that there is none, as the log and whoever asked read it."""
    return f"user {user!r}" if user else "a client without a user name"


def refusal(user: str, client: str, verb: str, name: str, rule: str) -> str:
    """Why somebody may not do something, as the log and whoever asked read it."""
    who = named(user)
    why = f"refused by {rule}" if rule else "no rule allows it"
    return f"{who} (client {client!r}) may not {verb} {name!r}: {why}"


def worded(reason: str, words: str) -> str:
    """One of these reasons, said by a gate in words of its own."""
    return f"{reason}\n{words}" if words else reason


def kind_of(reason: str) -> str:
    """Which of these reasons it is, if it is one."""
    return reason.partition("\n")[0]


def words_of(reason: str) -> str:
    """What the client is to read."""
    return reason.rpartition("\n")[2]


@mypyc_attr(allow_interpreted_subclasses=True)
class Rights:
    """Permissions of a group of clients; this one allows everything.

    `routes` is the cache of the broker's answers, keyed by the name's UTF-8 bytes; a route is
    valid while its age is the broker's. `found_by_name`: user and client are all that they depend
    on, so a gate can say them of somebody who is gone.
    """

    def __init__(self) -> None:
        self.routes: dict[bytes, Any] = {}  # of `core.route`; only the broker makes them
        self.found_by_name = True

    def may(self, verb: str, name: str) -> bool:
        """Whether one of VERBS may be done with a name, or with what a filter means."""
        return True

    def ask(self, verb: str, name: str) -> bool:
        """The same, for what is asked about many names and once about each: no answer is kept."""
        return self.may(verb, name)

    def decided_by(self, verb: str, name: str) -> str:
        """The rule that refuses, with its place; "" if there is none and that is why."""
        return ""

    def same_as(self, other: Rights) -> bool:
        """Whether another connection with these rights is as good as this one."""
        return self.parts() == other.parts()

    def parts(self) -> list[Rights]:
        """All that have to allow something, each once: connections share those that gates give."""
        return [self]


_NOBODY: Final[list[Rights]] = []  # shared by all who were not asked about: never added to


class Absent(Rights):
    """Those of a client that is away since before this start: it has none of its own yet.

    `find` gives what each gate would let it do now. It may what all of these may, and nothing
    if none lets it in. Found once, until `changes` (a count) says that the rules are others:
    thousands of such clients may be asked about one name.
    """

    def __init__(self, find: Callable[[], list[Rights]], changes: Callable[[], int]) -> None:
        super().__init__()
        self._find = find
        self._changes = changes
        self._found = _NOBODY
        self._found_after = -1

    def may(self, verb: str, name: str) -> bool:
        found = self.parts()
        return bool(found) and all(one.may(verb, name) for one in found)

    def parts(self) -> list[Rights]:
        changes = self._changes()
        if changes != self._found_after:
            self._found, self._found_after = list(dict.fromkeys(self._find())), changes
        return self._found
