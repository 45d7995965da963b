"""Logged in by the page: a cookie, and beside it a word that only the page knows (CSRF token).

    POST /admin/login    {"user", "password"}, or {"token"} where `api.token` is set; {} for nobody
    GET /admin/session   who that is, and its word; 401 and what a login wants
    POST /admin/logout   it is over

The gate of the listener is asked as for every client: wrong ones are counted, refused and slowed
down as there. A cookie is sent by the browser whatever page asks, so what changes something must
say the word too. Sessions lie in memory only, by the hash of their cookie: a restart ends all.

Of several processes each has the sessions that began there, and their cookies say so. Another one
asks it with every request of such a browser: so it is over everywhere when it is over.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hubbub.auth.guesses import Guesses
from hubbub.core.clock import Clock
from hubbub.core.gate import Admission, Credentials, Opening
from hubbub.core.limits import (
    LOGIN_BYTES,
    PAGE_IDLE_SECONDS,
    PAGE_SECONDS,
    PAGE_SESSIONS,
    SHARE,
)
from hubbub.core.rights import TOO_BUSY, words_of
from hubbub.runtime.siblings import Siblings
from hubbub.wire.source import source_of

WORD: Final = "hubbub-csrf"  # the header that says it; the page sends it with all that it asks
WRONG_WORD: Final = "this request does not say the word of the session: load the page again"
NEEDS_TOKEN: Final = "the API of this hub wants its token: the setting api.token"
SCHEME: Final = 'Hubbub realm="hubbub"'  # no browser knows it, so none asks by itself
VISIT, LEAVE = "visit", "leave"  # what processes of one hub ask one another
NOT_OVER: Final = "the process of the hub that has this login does not answer: log out again soon"
_SAFE: Final = ("GET", "HEAD")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody types."""

    user: str = ""
    password: str = ""
    token: str = ""


LOGIN: Final = msgspec.json.Decoder(Login)


class Shown(msgspec.Struct, array_like=True):
    """A cookie came to another process: its hash, and the listener there."""

    key: bytes
    place: str


class Known(msgspec.Struct, array_like=True):
    """Whose it is, as the process says that let it in. `token`: it showed that of the API; `lines`,
    `expires`: what a token of its own lets it do, and until when.
    """

    user: str
    owner: str
    proved: bool
    word: str
    token: bool
    lines: list[str] | None
    expires: float


_encoded: Final = msgspec.msgpack.Encoder().encode
_SHOWN: Final = msgspec.msgpack.Decoder(Shown)
_KNOWN: Final = msgspec.msgpack.Decoder(Known)


class Visit:
    """One browser that was let in. `token`: the token of the API when it was, b"" without one.

    `named`: it showed that, or who it is.
    """

    __slots__ = ("admission", "gate", "word", "token", "began", "seen", "whose", "named")

    def __init__(
        self, admission: Admission, opening: Opening, token: bytes, now: float
    ) -> None:  # fmt: skip
        self.admission = admission
        self.gate = opening.gate
        self.word = secrets.token_urlsafe(24)
        self.token = token
        self.began = self.seen = now
        self.whose = admission.owner or opening.address
        shown = admission.credentials
        proved = admission.user != "" and shown is not None and shown.proved
        self.named = token != b"" or proved

    def told(self) -> bytes:
        """To another process."""
        known, shown = self.admission, self.admission.credentials
        lines = self.gate.lines_of(shown) if shown is not None else None
        return _encoded(Known(
            known.user, known.owner, shown is not None and shown.proved, self.word,
            self.token != b"", None if lines is None else list(lines),
            shown.expires if shown is not None else 0.0,
        ))  # fmt: skip

    def admitted(self, opening: Opening) -> Admission:
        """The same for a request on this connection."""
        known = self.admission
        if known.opening is None:  # by the token of the API
            return known
        found = Admission(known.protocol, known.client, known.user, known.rights, opening)
        found.credentials, found.owner = known.credentials, known.owner
        return found


class Tokens:
    """Who says the token of the API, and guesses of it, which are slowed down as those of
    passwords are (`auth.guesses`).
    """

    def __init__(self, clock: Clock) -> None:
        self._guesses = Guesses(clock.now)
        self._right: OrderedDict[str, bytes] = OrderedDict()

    def lacks(self, shown: bytes, token: bytes, opening: Opening, again: bool) -> str:
        """Why it is not let in, "" if it is. `again`: it says the token with all that it asks; then
        one that was right from that address does not suffer from who guesses there.
        """
        place = source_of(opening.address)
        known = again and self._right.get(place) == token
        if not known and self._guesses.blocked(place, ""):
            return words_of(TOO_BUSY)
        if not hmac.compare_digest(shown, token):
            if shown:  # a page whose session is over says none
                self._guesses.wrong(place, "")
            return NEEDS_TOKEN
        self._right[place] = token
        if len(self._right) > PAGE_SESSIONS:
            self._right.popitem(last=False)
        return ""


class Visits:
    """All that began in this process, who was here last at the end."""

    def __init__(
        self, clock: Clock, siblings: Callable[[], Siblings | None] = lambda: None
    ) -> None:  # fmt: skip
        self.tokens = Tokens(clock)
        self._clock = clock
        self._siblings = siblings
        self._known: OrderedDict[bytes, Visit] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, admission: Admission, opening: Opening, token: bytes) -> tuple[str, Visit]:
        """What its cookie says, and the visit. One user or address has a part of all at most."""
        visit = Visit(admission, opening, token, self._clock.now())
        own = [key for key, one in self._known.items() if one.whose == visit.whose]
        if len(own) >= PAGE_SESSIONS // SHARE:
            del self._known[own[0]]
        elif len(self._known) >= PAGE_SESSIONS:
            # Anybody may begin one without a name, at any number of addresses.
            nameless = (key for key, one in self._known.items() if not one.named)
            del self._known[next(nameless, next(iter(self._known)))]
        cookie, siblings = secrets.token_urlsafe(32), self._siblings()
        if siblings is not None:
            cookie = f"{siblings.number}.{cookie}"
        self._known[_hashed(cookie)] = visit
        return cookie, visit

    def find(self, cookie: str, opening: Opening, token: bytes) -> Visit | None:
        """Whose cookie that is, if it holds at this listener and with this token of the API."""
        key = _hashed(cookie)
        visit = self._known.get(key)
        if visit is None or visit.gate is not opening.gate:
            return None
        return self._current(key, visit, token)

    def _current(self, key: bytes, visit: Visit, token: bytes) -> Visit | None:
        now = self._clock.now()
        late = now - visit.seen > PAGE_IDLE_SECONDS or now - visit.began > PAGE_SECONDS
        if late or visit.token != token or not visit.admission.holds():
            del self._known[key]
            return None
        visit.seen = now
        self._known.move_to_end(key)
        return visit

    def end(self, cookie: str) -> None:
        self._known.pop(_hashed(cookie), None)

    # At whichever process it is

    async def found(self, cookie: str, door: Door) -> Visit | None:
        """As `find`, also if another process let it in."""
        siblings, home = self._home(cookie)
        if siblings is None:
            return self.find(cookie, door.opening, door.token)
        await door.turn()  # any cookie makes work, until somebody knows it
        asks = _encoded(Shown(_hashed(cookie), door.opening.gate.place))
        said = await siblings.say({home: asks}, VISIT)
        return self._vouched(_KNOWN.decode(said[home]), door) if said.get(home) else None

    def _vouched(self, known: Known, door: Door) -> Visit | None:
        """As another process says it; what it may is asked here."""
        opening, now = door.opening, self._clock.now()
        if known.token != (door.token != b""):
            return None
        admission = door.everything
        if not known.token:
            shown = Credentials("", known.user, b"", opening.address, opening.certificate, opening)
            shown.proved, shown.expires = known.proved, known.expires
            lines = None if known.lines is None else tuple(known.lines)
            rights = opening.gate.vouched(shown, lines)
            if rights is None:
                return None
            admission = Admission(opening.protocol, "", known.user, rights, opening)
            admission.credentials, admission.owner = shown, known.owner
        visit = Visit(admission, opening, door.token, now)
        visit.word = known.word
        return visit

    async def leave(self, cookie: str, door: Door) -> bool:
        """As `end`; False if the process that has it does not answer."""
        siblings, home = self._home(cookie)
        if siblings is None:
            self.end(cookie)
            return True
        asks = _encoded(Shown(_hashed(cookie), door.opening.gate.place))
        return home in await siblings.say({home: asks}, LEAVE)

    def _home(self, cookie: str) -> tuple[Siblings | None, int]:
        """Whom to ask about it, if another process let it in."""
        siblings, number = self._siblings(), cookie.partition(".")[0]
        if siblings is None or not (number.isascii() and number.isdecimal() and len(number) < 4):
            return None, 0
        home = int(number)
        if home == siblings.number or not 1 <= home <= len(siblings.names):
            return None, 0
        return siblings, home

    def lend(self, given: bytes, token: bytes) -> bytes:
        """What another process is told about a cookie, b"" if nobody has it."""
        shown = _SHOWN.decode(given)
        visit = self._known.get(shown.key)
        if visit is None or visit.gate.place != shown.place:
            return b""
        visit = self._current(shown.key, visit, token)
        return visit.told() if visit is not None else b""

    def left(self, given: bytes) -> bytes:
        """Somebody logged out at another process, which has asked for the word."""
        self._known.pop(_SHOWN.decode(given).key, None)
        return b"left"


def _hashed(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


def cookie_name(host: str, secure: bool) -> str:
    """Browsers keep one jar for all ports of a host: two hubs there must not end each other's."""
    port = host.rpartition(":")[2]
    return f"{'__Host-' if secure else ''}hubbub{port if port.isdecimal() else ''}"


class Door(NamedTuple):
    """How one request came: its connection, the token that the API wants, and how to ask. `turn`
    waits until there is time for who is not let in.
    """

    opening: Opening
    token: bytes
    everything: Admission
    ask: Callable[[str, bytes], Awaitable[tuple[Admission | None, str]]]
    turn: Callable[[], Awaitable[None]]


DOOR: Final = "hubbub.door"  # where a scope keeps it


def cookie_in(headers: Mapping[str, str], opening: Opening) -> str:
    """What the cookie of this hub says, "" if there is none."""
    wanted = cookie_name(headers.get("host", ""), opening.secure)
    for one in headers.get("cookie", "").split(";"):
        name, _, value = one.strip().partition("=")
        if name == wanted:
            return value
    return ""


class Asked(NamedTuple):
    """What became of a login: whoever it is, or why not."""

    admission: Admission | None
    reason: str


class Sessions:
    """The three paths of the page's sessions."""

    def __init__(
        self, visits: Visits, came_in: Callable[[Admission], None],
        refused: Callable[[int, str], Response],
    ) -> None:  # fmt: skip
        self._visits = visits
        self._came_in = came_in
        self._refused = refused

    async def who(self, request: Request) -> Response:
        """Who has this cookie; else what a login wants: "token", "password" or "nothing"."""
        door: Door = request.scope[DOOR]
        cookie = cookie_in(request.headers, door.opening)
        visit = await self._visits.found(cookie, door)
        if visit is None:
            return JSONResponse({"wants": _wants(door)}, 401, _headers(door))
        return self._said(visit)

    async def login(self, request: Request) -> Response:
        door: Door = request.scope[DOOR]
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return self._refused(415, "expected application/json")  # no form of another site
        try:
            given = LOGIN.decode(await _body(request))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            return self._refused(400, str(error))
        admission, reason = await self._admitted(door, given)
        if admission is None:
            return self._refused(401, reason)
        await self._visits.leave(cookie_in(request.headers, door.opening), door)
        cookie, visit = self._visits.begin(admission, door.opening, door.token)
        if given.user or given.token:
            self._came_in(admission)
        answer = self._said(visit)
        _set(answer, request, cookie, int(PAGE_SECONDS))
        return answer

    async def logout(self, request: Request) -> Response:
        door: Door = request.scope[DOOR]
        cookie = cookie_in(request.headers, door.opening)
        visit = await self._visits.found(cookie, door)
        if visit is not None and not says_word(visit, request.headers.get(WORD, "")):
            return self._refused(403, WRONG_WORD)
        if not await self._visits.leave(cookie, door):
            return self._refused(503, NOT_OVER)
        answer = JSONResponse({})
        _set(answer, request, "", 0)
        return answer

    async def _admitted(self, door: Door, given: Login) -> Asked:
        if not door.token:
            admission, reason = await door.ask(given.user, given.password.encode())
            return Asked(admission, reason)
        shown = given.token.encode()
        reason = self._visits.tokens.lacks(shown, door.token, door.opening, again=False)
        if not reason:
            door.opening.carrier.let_in("", "")
            return Asked(door.everything, "")
        door.opening.turn_away("", "", "the page wants the token of the API")
        return Asked(None, reason)

    def _said(self, visit: Visit) -> JSONResponse:
        said = {
            "user": visit.admission.user, "csrf": visit.word, "token": visit.token != b"",
            "checks": visit.gate.checks,
        }  # fmt: skip
        return JSONResponse(said, headers={"cache-control": "no-store"})


def says_word(visit: Visit, word: str) -> bool:
    return hmac.compare_digest(visit.word.encode(), word.encode("utf-8", "replace"))


def needs_word(method: str) -> bool:
    return method not in _SAFE


def _wants(door: Door) -> str:
    """Asked of the gate without a word to anybody: who only looks at the page is no wrong login."""
    if door.token:
        return "token"
    opening, found = door.opening, []
    shown = Credentials("", "", b"", opening.address, opening.certificate, opening)
    opening.gate.authenticate(shown, lambda rights, _: found.append(rights is not None))
    return "nothing" if found == [True] else "password"


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LOGIN_BYTES:
            raise ValueError(f"expected at most {LOGIN_BYTES} bytes")
    return body


def _headers(door: Door) -> dict[str, str]:
    return {"cache-control": "no-store", "www-authenticate": SCHEME}


def _set(answer: Response, request: Request, cookie: str, seconds: int) -> None:
    secure = request.scope[DOOR].opening.secure
    answer.set_cookie(
        cookie_name(request.headers.get("host", ""), secure), cookie, max_age=seconds, path="/",
        secure=secure, httponly=True, samesite="strict",
    )  # fmt: skip
